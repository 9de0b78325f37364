package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
	"github.com/rratelimiter/rratelimiter/internal/serverinfo"
)

// A host is what a server reports about itself.
type host struct {
	where    string
	info     map[string]string // INFO
	settings map[string]string // CONFIG GET; empty if the user may not run it
	ahead    time.Duration     // by how much Redis's clock is ahead of this host's
	error    time.Duration     // bound of the error of ahead
}

// hosts returns all masters.
func hosts(ctx context.Context, s *connect.Server) ([]host, error) {
	var mu sync.Mutex
	var all []host
	ask := func(ctx context.Context, master *redis.Client) error {
		h := host{where: s.Where, info: map[string]string{}, settings: map[string]string{}}
		if _, cluster := s.Redis.(*redis.ClusterClient); cluster {
			h.where = master.Options().Addr
		}
		for _, section := range []string{"server", "memory", "replication", "persistence", "cluster"} {
			text, err := master.Info(ctx, section).Result()
			if connect.Unanswered(err) { // else: not every server has all sections
				return err
			}
			for name, value := range serverinfo.Fields(text) {
				h.info[name] = render.Visible(value)
			}
		}
		for _, setting := range []string{"cluster-require-full-coverage", "save"} {
			values, err := master.ConfigGet(ctx, setting).Result()
			if connect.Unanswered(err) { // else: not every user may run it
				return err
			}
			for name, value := range values {
				h.settings[name] = value
			}
		}
		var err error
		if h.ahead, h.error, err = skew(ctx, master, time.Now); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, h)
		return nil
	}
	var err error
	switch rdb := s.Redis.(type) {
	case *redis.ClusterClient:
		err = rdb.ForEachMaster(ctx, ask)
	case *redis.Client:
		err = ask(ctx, rdb)
	}
	slices.SortFunc(all, func(a, b host) int { return strings.Compare(a.where, b.where) })
	return all, err
}

// skew measures by how much Redis's clock is ahead of this host's, and the bound of the error: half
// of the shortest of some round trips.
func skew(ctx context.Context, rdb *redis.Client, now func() time.Time) (ahead, wrong time.Duration, err error) {
	for i := range 7 {
		began := time.Now()
		before := now()
		theirs, err := rdb.Time(ctx).Result()
		half := time.Since(began) / 2
		if err != nil {
			return 0, 0, err
		}
		if i == 0 || half < wrong {
			ahead, wrong = theirs.Sub(before.Add(half)), half
		}
	}
	return ahead, wrong, nil
}

// describe returns a server in one line.
func (h host) describe() string {
	version := ""
	if v := serverinfo.Server(h.info); v != "" {
		version = v + ", "
	}
	direction := "behind"
	if h.ahead < 0 {
		direction = "ahead"
	}
	return fmt.Sprintf("%s: %sthis host's clock is %s %s (+- %s)", h.where, version,
		render.Wait(h.ahead.Abs()), direction, render.Wait(h.error))
}
