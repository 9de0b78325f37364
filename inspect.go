package rratelimiter

import (
	"context"
	"sort"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
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
	var g protocol.AcquireReply
	if err == nil {
		g, err = l.acquireDirect(ctx, protocol.RecentIDs{}, protocol.Ask{Check: true})
	}
	return g.Free, wrap("count the permits of", l.name, err)
}

// State reads the limiter and changes nothing; not even expired records are removed. It reads every record: with
// hundreds of thousands of them, that blocks Redis for a part of a second. Without a rate the error is
// ErrNotInitialized.
func (l *Limiter) State(ctx context.Context) (State, error) {
	r, err := l.read(ctx, protocol.StateScript, false)
	if err != nil {
		return State{}, wrap("look at", l.name, err)
	}
	return stateOf(r), nil
}

func stateOf(s protocol.State) State {
	return State{
		Rate: rateOf(s.Rate), Available: s.Available, Used: s.Used, Records: s.Records,
		Oldest: s.Oldest, Newest: s.Newest, TTL: s.TTL, Consistent: s.Consistent,
	}
}

// read runs state.lua or glance.lua.
func (l *Limiter) read(ctx context.Context, s *script.Script, configOnly bool) (protocol.State, error) {
	if l.err != nil {
		return protocol.State{}, l.err
	}
	request := protocol.Read{Now: l.encoder.Now(), ConfigOnly: configOnly}
	sent := new(script.Attempts)
	reply, err := within(ctx, l, func(ctx context.Context) ([]int64, error) {
		return l.client.topology.Run(ctx, sent, s, true, l.keys(), request.Args()...)
	})
	if err = sent.Explain(err); err != nil {
		return protocol.State{}, err
	}
	state, err := request.Reply(reply)
	if err == nil {
		l.client.denyCache.SeeRate(l.key(), state.Rate.Permits, protocol.Millis(state.Rate.Interval))
	}
	return state, err
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
