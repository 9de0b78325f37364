package rratelimiter

import (
	"context"
	"sort"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// inspect.go reads the state of a limiter. Only AvailablePermits changes it: like Redisson's method it repairs what is
// wrong.

// State is the content of a limiter's keys at one time.
type State struct {
	Rate           Rate
	Available      int64         // permits free now, including those of expired records
	Used           int64         // permits in live records
	Records        int           // number of live records
	Oldest, Newest time.Time     // times of live records; zero if there are none
	TTL            time.Duration // of the configuration; 0: none
	Consistent     bool          // value + all records == rate
}

// AvailablePermits returns the number of permits free now (Redisson: availablePermits). Like Redisson's method it
// removes expired records and repairs what it finds wrong. To do so it reads the live records. Without a rate the error
// is ErrNotInitialized.
func (l *Limiter) AvailablePermits(ctx context.Context) (int64, error) {
	err := l.err
	var g acquireReply
	if err == nil {
		g, err = l.acquireDirect(ctx, recentIDs{}, nil, checkFlag)
	}
	return g.free, wrap("count the permits of", l.name, err)
}

// State reads the limiter and changes nothing; not even expired records are removed. It reads every record: with
// hundreds of thousands of them, that blocks Redis for a part of a second. Without a rate the error is
// ErrNotInitialized.
func (l *Limiter) State(ctx context.Context) (State, error) {
	r, err := l.inspect(ctx, "")
	if err != nil {
		return State{}, wrap("look at", l.name, err)
	}
	return readState(r), nil
}

// readState decodes the reply of state.lua or glance.lua.
func readState(r []int64) State {
	s := State{
		Rate:      readRate(r),
		Available: r[5], Used: r[6], Records: int(r[7]), TTL: ttlOf(r[10]), Consistent: r[11] == 1,
	}
	if s.Records > 0 {
		s.Oldest, s.Newest = time.UnixMicro(r[8]), time.UnixMicro(r[9])
	}
	return s
}

// inspect runs state.lua. The flag "c" limits it to the configuration.
func (l *Limiter) inspect(ctx context.Context, flags string) ([]int64, error) {
	return l.inspectBy(ctx, stateScript, flags)
}

func (l *Limiter) inspectBy(ctx context.Context, s *script.Script, flags string) ([]int64, error) {
	if l.err != nil {
		return nil, l.err
	}
	sent := new(script.Attempts)
	reply, err := within(ctx, l, func(ctx context.Context) ([]int64, error) {
		return l.client.topology.Run(ctx, sent, s, true, l.keys(), l.now(), flags)
	})
	err = sent.Explain(err)
	if err == nil && reply[0] != 0 {
		err = notInitialized(reply[0])
	}
	if err == nil {
		rate := readRate(reply)
		l.client.denyCache.SeeRate(l.key(), rate.Permits, rate.Interval)
	}
	return reply, err
}

func readRate(r []int64) Rate {
	return Rate{Permits: r[1], Interval: millis(r[2]), Type: RateType(r[3]), KeepAlive: millis(r[4])}
}

// Clients returns the sorted ids of the clients that have state of their own on this limiter, as a PerClient rate makes
// it.
//
// It scans all keys of the server (SCAN), which takes long on a large one. On a cluster or a Ring it scans the node
// that holds the limiter's keys. An AutoPipeliner, or a client of another type, over several nodes does not show which
// node that is, so the list may come from any of them: use a limiter over the underlying client instead.
func (l *Limiter) Clients(ctx context.Context) ([]string, error) {
	ids, err := l.clients(ctx)
	return ids, wrap("list the clients of", l.name, err)
}

func (l *Limiter) clients(ctx context.Context) ([]string, error) {
	if l.err != nil {
		return nil, l.err
	}
	server, err := within(ctx, l, func(ctx context.Context) (Redis, error) {
		return l.client.topology.Server(ctx, l.key())
	})
	if err != nil {
		return nil, err
	}
	found := map[string]bool{}
	for _, prefix := range []string{l.keyNames[keys.Value] + ":", l.keyNames[keys.Permits] + ":"} {
		var cursor uint64
		for {
			type page struct {
				keys []string
				next uint64
			}
			got, err := within(ctx, l, func(ctx context.Context) (page, error) {
				cmd := redis.NewScanCmd(ctx, nil, "scan", cursor, "match", escapeGlob(prefix)+"*", "count", 1000)
				err := server.Process(ctx, cmd)
				keys, next := cmd.Val()
				return page{keys, next}, err
			})
			if err != nil {
				return nil, err
			}
			for _, key := range got.keys {
				found[strings.TrimPrefix(key, prefix)] = true
			}
			if cursor = got.next; cursor == 0 {
				break
			}
		}
	}
	ids := make([]string, 0, len(found))
	for id := range found {
		ids = append(ids, id)
	}
	sort.Strings(ids)
	return ids, nil
}

// escapeGlob returns a glob-style pattern that matches only the text.
func escapeGlob(text string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(text)
}
