package rratelimiter

import (
	"context"
	"sort"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// State is the content of a limiter's keys at one time.
type State struct {
	Rate      Rate
	Available int64 // permits free now, including those of expired records
	Used      int64 // permits in live records
	// part of Used that is above the rate: after Charge, or because the rate was lowered
	// (KeepState)
	Debt int64
	// part of Used that this client has taken ahead of demand (WithLease) and may still grant
	Leased         int64
	Records        int           // number of live records
	Oldest, Newest time.Time     // times of live records; zero if there are none
	TTL            time.Duration // of the configuration; 0: none
	// Consistent: the stored free permits and the permits in all records, including expired ones,
	// add up to the rate; or Redis has neither the number nor a record.
	Consistent bool
}

// AvailablePermits returns the number of permits free now (Redisson: availablePermits). Like
// Redisson's method, it removes expired records. It also compares the stored number of free permits
// with the live records. If that number is too low, it is raised. If it is too high, it stays, and
// the surplus is taken out of the oldest records. Without a rate the error is ErrNotInitialized.
func (l *Limiter) AvailablePermits(ctx context.Context) (int64, error) {
	const operation = "count the permits of"
	if l.err != nil {
		return 0, wrap(operation, l.name, l.err)
	}
	free, err := l.core.Free(ctx, true)
	return free, wrap(operation, l.name, err)
}

// State reads the limiter and changes nothing: it does not even remove expired records. It reads
// every record. Hundreds of thousands of records block Redis for a part of a second. Without a rate
// the error is ErrNotInitialized.
func (l *Limiter) State(ctx context.Context) (State, error) {
	r, err := l.read(ctx, protocol.StateScript, false)
	if err != nil {
		return State{}, wrap("look at", l.name, err)
	}
	return l.stateOf(r), nil
}

func (l *Limiter) stateOf(s protocol.State) State {
	debt := int64(0)
	if s.Consistent { // permits that Redisson released are free although their records remain
		debt = max(0, s.Used-s.Rate.Permits)
	}
	return State{
		Rate:      rateOf(s.Rate),
		Available: s.Available,
		Used:      s.Used,
		Debt:      debt,
		Leased:    l.core.Leased(),
		Records:   s.Records,
		Oldest:    s.Oldest, Newest: s.Newest, TTL: s.TTL, Consistent: s.Consistent,
	}
}

// read runs state.lua or glance.lua.
func (l *Limiter) read(ctx context.Context, s *script.Script, configOnly bool) (protocol.State, error) {
	if l.err != nil {
		return protocol.State{}, l.err
	}
	request := protocol.Read{Now: l.core.Now(), ConfigOnly: configOnly}
	reply, err := l.core.Read(ctx, s, request.Args()...)
	if err != nil {
		return protocol.State{}, err
	}
	state, err := request.Reply(reply)
	if err == nil {
		l.core.SeeRate(state.Rate.Permits, protocol.Millis(state.Rate.Interval))
	}
	return state, err
}

// Clients returns the sorted ids of the clients that have their own state on this limiter. A
// PerClient rate creates such state.
//
// Clients scans all keys of the server (SCAN), which takes long on a large server. On a cluster or
// a Ring it scans the node that holds the limiter's keys. An AutoPipeliner, or a client of another
// type, over several nodes does not show which node holds the keys. The method may then scan
// another node. Call it on a limiter of the underlying client instead.
func (l *Limiter) Clients(ctx context.Context) ([]string, error) {
	ids, err := l.clients(ctx)
	return ids, wrap("list the clients of", l.name, err)
}

func (l *Limiter) clients(ctx context.Context) ([]string, error) {
	if l.err != nil {
		return nil, l.err
	}
	found := map[string]bool{}
	names := l.core.Keys()
	for _, prefix := range []string{names[keys.Value] + ":", names[keys.Permits] + ":"} {
		err := l.core.Scan(ctx, escapeGlob(prefix)+"*", func(key string) {
			found[strings.TrimPrefix(key, prefix)] = true
		})
		if err != nil {
			return nil, err
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

// Glance is a cheap State: it changes nothing, and costs Redis almost nothing for any number of
// records. If there are more than 2,000 live or more than 2,000 expired records, Glance does not
// check the stored number of free permits, and exact is false. Without a rate the error is
// ErrNotInitialized.
func (l *Limiter) Glance(ctx context.Context) (s State, exact bool, err error) {
	r, err := l.read(ctx, protocol.GlanceScript, false)
	if err != nil {
		return State{}, false, wrap("glance at", l.name, err)
	}
	return l.stateOf(r), !r.Estimate, nil
}
