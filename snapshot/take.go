package snapshot

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/serverinfo"
)

// take.go reads a limiter out of Redis.

//go:embed *.lua
var luaFiles embed.FS

var takeScript = script.Load(luaFiles, "take")

// Limits of what is read in one step, so that Redis is not blocked for more than some 10 ms.
const (
	mostRecords = 10_000
	mostStates  = 250
)

// pageSize is the number of records of one read where there are more.
const pageSize = 2_000

// A TakeOption changes how a snapshot is taken.
type TakeOption func(*taking)

type taking struct {
	note   string
	listed bool
	ids    []string
}

// WithNote sets Snapshot.Note.
func WithNote(note string) TakeOption {
	return func(t *taking) { t.note = note }
}

// WithClients limits the keys of clients of a PER_CLIENT limiter to those of the given clients.
// Without ids, no client's keys are taken. The configuration and the shared keys are always taken.
// Without the option the keys of all clients are taken, which needs a search of all keys of the
// server (SCAN): that does not block Redis, but takes long on a server with many millions of keys.
func WithClients(ids ...string) TakeOption {
	return func(t *taking) {
		t.listed = true
		t.ids = append(t.ids, ids...)
	}
}

// Take reads the state of the limiter whose configuration key is name. rdb is any client of
// go-redis. If the limiter has no key, the error is ErrNotFound; a limiter of which only some keys
// exist, with or without a configuration, is taken as it is.
//
// A limiter with at most 10,000 records in at most 250 pairs of keys is read in one step, so the
// snapshot is the state of one instant (of the clients known when Take began). A larger one is read
// in parts, so that Redis serves other clients in between, and Snapshot.OneStep is false: it may
// contain or lack records that are added or removed meanwhile, so records and free permits need not
// add up.
func Take(ctx context.Context, rdb rratelimiter.Redis, name string, opts ...TakeOption) (*Snapshot, error) {
	var t taking
	for _, opt := range opts {
		opt(&t)
	}
	s, err := t.take(ctx, rdb, name)
	if err != nil {
		return nil, fmt.Errorf("take a snapshot of %q: %w", name, err)
	}
	return s, nil
}

func (t taking) take(ctx context.Context, rdb rratelimiter.Redis, name string) (*Snapshot, error) {
	ids := t.ids
	if !t.listed {
		var err error
		if ids, err = clientsOf(ctx, rdb, name); err != nil {
			return nil, err
		}
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	s := &Snapshot{Name: name, Note: t.note, OneStep: len(ids) < mostStates}
	states := []*State{&s.Shared}
	s.Clients = make([]ClientState, len(ids))
	for i, id := range ids {
		s.Clients[i].ID = id
		states = append(states, &s.Clients[i].State)
	}
	keys := keysOf(name, ids)
	config, servers := keys[0], script.NewTopology(rdb)
	for first := 0; first < len(states); first += mostStates {
		last := min(first+mostStates, len(states))
		if err := s.read(ctx, servers, config, keys[1+2*first:1+2*last], states[first:last], first == 0); err != nil {
			return nil, err
		}
	}
	s.Clients = slices.DeleteFunc(s.Clients, func(c ClientState) bool { return c.State == State{} })
	if len(s.Clients) == 0 {
		s.Clients = nil
	}
	if s.Config == nil && s.Shared == (State{}) && s.Clients == nil {
		return nil, ErrNotFound
	}
	s.Server = version(ctx, servers)
	return s, nil
}

// read reads some states, each with its two keys, and in the first call the configuration.
func (s *Snapshot) read(
	ctx context.Context, servers *script.Topology, config string, keys []string, states []*State, first bool,
) error {
	keys = append([]string{config}, keys...)
	host := time.Now()
	// the Redis client repeats reads; more retries would need a time limit
	once := &script.Attempts{NoRetryIfUnsent: true}
	reply, err := servers.RunMixed(ctx, once, takeScript, false, keys, mostRecords)
	if err != nil {
		return err
	}
	whole := reply[2].(int64) == 1
	s.OneStep = s.OneStep && whole
	content := func(at int, kind string) (any, time.Duration, error) {
		found, content := reply[3+3*at].(string), reply[5+3*at]
		switch found {
		case "none":
			return nil, 0, nil
		case kind:
			return content, life(reply[4+3*at].(int64)), nil
		}
		return nil, 0, fmt.Errorf("%w: %q is a %s, not a %s", ErrWrongType, keys[at], found, kind)
	}
	if first {
		seconds, _ := strconv.ParseInt(reply[0].(string), 10, 64)
		micros, _ := strconv.ParseInt(reply[1].(string), 10, 64)
		s.TakenAt = time.UnixMilli(seconds*1000 + micros/1000).UTC()
		s.HostTime = time.UnixMilli(host.UnixMilli()).UTC()
		fields, ttl, err := content(0, "hash")
		if err != nil {
			return err
		}
		if fields != nil {
			s.Config = &Config{TTL: ttl}
			for pair := range slices.Chunk(fields.([]any), 2) {
				s.Config.Fields = append(s.Config.Fields, Field{pair[0].(string), pair[1].(string)})
			}
		}
	}
	for i, state := range states {
		at := 1 + 2*i
		text, ttl, err := content(at, "string")
		if err != nil {
			return err
		}
		if text != nil {
			state.Value = &Value{text.(string), ttl}
		}
		records, ttl, err := content(at+1, "zset")
		if err != nil {
			return err
		}
		if records == nil {
			continue
		}
		state.Permits = &Permits{TTL: ttl}
		if whole {
			state.Permits.Records, err = recordsOf(records.([]any))
		} else {
			state.Permits.Records, err = page(ctx, servers, config, keys[at+1])
		}
		if err != nil {
			return err
		}
		if len(state.Permits.Records) == 0 {
			state.Permits = nil // they were removed during the read
		}
	}
	return nil
}

func recordsOf(reply []any) ([]Record, error) {
	records := make([]Record, 0, len(reply)/2)
	for pair := range slices.Chunk(reply, 2) {
		score, err := strconv.ParseFloat(pair[1].(string), 64)
		if err != nil {
			return nil, fmt.Errorf("read the score of a record: %w", err)
		}
		records = append(records, Record{[]byte(pair[0].(string)), score})
	}
	return records, nil
}

// page reads a set of records in parts. It finds each record that exists all the time, perhaps more
// than once. A cursor is valid only on the server that returned it, so all parts come from the one
// on which scripts run.
func page(ctx context.Context, servers *script.Topology, config, key string) ([]Record, error) {
	server, err := servers.Server(ctx, config)
	if err != nil {
		return nil, err
	}
	found := map[string]float64{}
	var cursor uint64
	for {
		cmd := redis.NewScanCmd(ctx, nil, "zscan", key, cursor, "count", pageSize)
		if err := server.Process(ctx, cmd); err != nil {
			return nil, err
		}
		members, next := cmd.Val()
		for pair := range slices.Chunk(members, 2) {
			score, err := strconv.ParseFloat(pair[1], 64)
			if err != nil {
				return nil, fmt.Errorf("read the score of a record: %w", err)
			}
			found[pair[0]] = score
		}
		if cursor = next; cursor == 0 {
			break
		}
	}
	records := make([]Record, 0, len(found))
	for member, score := range found {
		records = append(records, Record{[]byte(member), score})
	}
	slices.SortFunc(records, func(a, b Record) int {
		return cmp.Or(cmp.Compare(a.Score, b.Score), bytes.Compare(a.Member, b.Member))
	})
	return records, nil
}

// version returns the product and version of the server; "" if the server has none, or the user may
// not read it.
func version(ctx context.Context, servers *script.Topology) string {
	cmd := redis.NewStringCmd(ctx, "info", "server")
	if servers.Process(ctx, cmd) != nil {
		return ""
	}
	return serverinfo.Server(serverinfo.Fields(cmd.Val()))
}

// clientsOf returns the clients that have their own keys of a limiter.
func clientsOf(ctx context.Context, rdb rratelimiter.Redis, name string) ([]string, error) {
	return rratelimiter.NewClient(rdb).RateLimiter(name).Clients(ctx)
}

// keysOf returns the keys of a limiter: the configuration, then two for each state, the shared one
// first.
func keysOf(name string, ids []string) []string {
	shared := keys.Names(name, "")
	all := []string{shared[0], shared[1], shared[3]}
	for _, id := range ids {
		own := keys.Names(name, id)
		all = append(all, own[2], own[4])
	}
	return all
}

// life returns the TTL of a reply of PTTL, at least 1 ms for a key that exists.
func life(ms int64) time.Duration {
	switch {
	case ms < 0:
		return 0
	case ms > math.MaxInt64/int64(time.Millisecond):
		return math.MaxInt64 / time.Millisecond * time.Millisecond
	}
	return time.Duration(max(ms, 1)) * time.Millisecond
}
