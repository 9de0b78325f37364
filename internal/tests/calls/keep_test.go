package calls

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// keep_test.go tests groups without requests: a call keeps their permits free of the requests
// behind them.

// An asker makes one call for groups of callers of a limiter. again: the call is made a second
// time, as after a lost reply.
type asker func(ctx context.Context, l *rratelimiter.Limiter, ask protocol.BatchAsk, again bool) (protocol.Reply, error)

// askOne asks by acquire.lua.
func askOne(ctx context.Context, l *rratelimiter.Limiter, ask protocol.BatchAsk, again bool) (protocol.Reply, error) {
	var q protocol.AcquireRequest
	q.Next(protocol.RecentIDs{})
	encoder := rig.LimiterCore(l).Encoder()
	run := func(find bool) (protocol.Reply, error) {
		a := new(script.Attempts)
		reply, err := rig.Core(l.Client()).
			Topology().
			Run(ctx, a, protocol.AcquireScript, false, rig.Keys(l), q.Args(nil, encoder, ask, find)...)
		if err != nil {
			return protocol.Reply{}, err
		}
		return q.Reply(encoder, a, reply)
	}
	g, err := run(false)
	if again && err == nil {
		g, err = run(true)
	}
	return g, err
}

// askTwo asks the limiter and another one by allowall.lua. Each request wants one permit of that.
func askTwo(ctx context.Context, l *rratelimiter.Limiter, ask protocol.BatchAsk, again bool) (protocol.Reply, error) {
	other := l.Client().RateLimiter("other", rratelimiter.WithRate(rratelimiter.PerHour(1000)))
	ask.Groups = slices.Clone(ask.Groups)
	for i := range ask.Groups {
		ask.Groups[i].Permits.Rest = []int64{min(1, ask.Groups[i].Count)}
	}
	var q protocol.AllowAll
	q.Next(2, &ask)
	q.Parts[0].Encoder, q.Parts[1].Encoder = rig.LimiterCore(l).Encoder(), rig.LimiterCore(other).Encoder()
	run := func(find bool) (protocol.Reply, error) {
		a := new(script.Attempts)
		reply, err := rig.Core(l.Client()).
			Topology().
			Run(ctx, a, protocol.AllowAllScript, false, slices.Concat(rig.Keys(l), rig.Keys(other)),
				q.Args(nil, find)...)
		if err != nil {
			return protocol.Reply{}, err
		}
		g, _, err := q.Reply(a, reply)
		return g, err
	}
	g, err := run(false)
	if again && err == nil {
		g, err = run(true)
	}
	return g, err
}

// TestPermitsAreKeptFree: of 10 permits a minute, 8 are free, and 2 return after 59 s.
func TestPermitsAreKeptFree(t *testing.T) {
	const all, later = 59 * time.Second, time.Minute
	cases := []struct {
		name    string
		groups  []protocol.Group
		strict  int
		granted []int64
		waits   []time.Duration // of the groups that are refused
	}{
		{"of those behind", rig.Groups(5, 0, 1, 5), 1, []int64{0, 3}, []time.Duration{0, all}},
		{"of those that wait behind", rig.Groups(5, 0, 1, 5), 2, []int64{0, 3}, []time.Duration{0, all}},
		{"of a size that does not fit", rig.Groups(7, 0, 2, 1, 1, 1), 1, []int64{0, 0, 1}, []time.Duration{0, all, 0}},
		{"not of those in front", rig.Groups(3, 2, 5, 0, 1, 1), 2, []int64{2, 0, 0}, []time.Duration{0, 0, later}},
		{"twice", rig.Groups(3, 0, 3, 1, 3, 0, 1, 1), 3, []int64{0, 1, 0, 0}, []time.Duration{0, 0, 0, all}},
		{"not behind a refused group that waits", rig.Groups(9, 1, 5, 0), 2, []int64{0, 0}, []time.Duration{all}},
		{"all that is free", rig.Groups(8, 0, 1, 1), 1, []int64{0, 0}, []time.Duration{0, all}},
		{"more than the rate", rig.Groups(100, 0, 1, 1), 1, []int64{0, 0}, []time.Duration{0, later}},
		{"beside more than the rate", rig.Groups(7, 0, 11, 1, 1, 1), 1, []int64{0, -1, 1}, nil},
	}
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for script, ask := range map[string]asker{"acquire.lua": askOne, "allowall.lua": askTwo} {
			for _, options := range [][]rratelimiter.LimiterOption{nil, {rratelimiter.WithRecordPerRequest()}} {
				for _, c := range cases {
					for _, again := range []bool{false, true} {
						r := rig.New(t, s)
						r.Wipe()
						l := r.Limiter("rl", append(options, rratelimiter.WithRate(rratelimiter.PerMinute(10)))...)
						r.Try(l, 2)
						r.Advance(time.Second)
						g, err := ask(t.Context(), l,
							protocol.BatchAsk{Groups: c.groups, Strict: c.strict, Detail: true},
							again)
						r.Must(err)
						used := int64(2)
						for i, group := range c.groups {
							n := g.Granted(i, group)
							if n != c.granted[i] ||
								n >= 0 && n < group.Count && (!again && g.WaitFor(i, 0) != c.waits[i]) {
								t.Errorf(
									"%s, %s, again %v: group %d is granted %d times, and waits %v; expected %d, %v",
									script, c.name, again, i, n,
									g.Wait(i), c.granted[i], c.waits,
								)
							}
							used += max(n, 0) * group.Permits.First
						}
						if state := rig.State(t, l); state.Used != used || !state.Consistent ||
							g.First.Free != 10-used {
							t.Errorf(
								"%s, %s, again %v: %+v, expected %d used; the reply says %d are free", script, c.name,
								again, state, used,
								g.First.Free,
							)
						}
					}
				}
			}
		}
	})
}
