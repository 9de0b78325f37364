package calls

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/limiter"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// Batches of several limiters that share a command.

// A sharing is calls of one client that are made at once, in one run of a pipeline.
type sharing struct {
	*rig.Rig
	client   *rratelimiter.Client
	tap      *rig.Tap
	limiters []*rratelimiter.Limiter
	calls    []sharedCall
}

// A sharedCall asks some limiters for as many permits of each: one by TryAcquire, several by
// AllowAll.
type sharedCall struct {
	limiters []*rratelimiter.Limiter
	size     int64
	granted  bool
	err      error
}

// newSharing returns so many limiters, of 10 permits a minute, that have been called once, and
// calls that ask them, one after the other, for 1, 2 or 3 permits. The numbers of limiters of the
// calls are given, to be repeated; one by default.
func newSharing(
	t *testing.T, s *redistest.Server, limiters int, calls []int, options ...rratelimiter.LimiterOption,
) *sharing {
	r := rig.New(t, s)
	r.Wipe()
	c, tap := r.Tapped()
	a := &sharing{Rig: r, client: c, tap: tap}
	options = append(options, rratelimiter.WithRate(rratelimiter.PerMinute(10)))
	for i := range limiters {
		a.limiters = append(a.limiters, c.RateLimiter(fmt.Sprint("rl", i), options...))
		rig.MustTry(t, a.limiters[i], 1, true)
	}
	for rest := a.limiters; len(rest) > 0; {
		n, i := 1, len(a.calls)
		if len(calls) > 0 {
			n = calls[i%len(calls)]
		}
		a.calls = append(a.calls, sharedCall{limiters: rest[:n], size: int64(1 + i%3)})
		rest = rest[n:]
	}
	rig.Core(c).Tune(limiter.Tuning{Patience: time.Minute, RunsInFlight: 1})
	return a
}

// ask makes all calls at once. The plans are for their run and for the requests that follow. It
// returns the number of requests, without that of another limiter which they wait for.
func (a *sharing) ask(plans ...rig.Plan) int {
	first := a.client.RateLimiter("first", rratelimiter.WithRate(rratelimiter.PerMinute(10)))
	a.tap.Requests()
	a.tap.Plan(append([]rig.Plan{{Then: func() {
		rig.Soon(a.T, "the batches", func() bool { return rig.Core(a.client).Inspect().Queued == len(a.calls) })
	}}}, plans...)...)
	var asked sync.WaitGroup
	asked.Go(func() { rig.MustTry(a.T, first, 1, true) })
	rig.Soon(a.T, "the first call", func() bool { return rig.Core(a.client).Inspect().InFlight == 1 })
	for i := range a.calls {
		c := &a.calls[i]
		asked.Go(func() {
			if len(c.limiters) == 1 {
				c.granted, c.err = c.limiters[0].TryAcquire(a.T.Context(), c.size)
			} else if results, err := a.client.AllowAll(a.T.Context(), c.size, c.limiters...); err != nil {
				c.err = err
			} else {
				c.granted = results[0].Allowed
			}
		})
	}
	asked.Wait()
	return a.tap.Requests() - 1
}

// want checks that a call was granted once.
func (a *sharing) want(i int) {
	a.T.Helper()
	c := a.calls[i]
	if !c.granted || c.err != nil {
		a.T.Errorf("call %d: %v, %v", i, c.granted, c.err)
	}
	for _, l := range c.limiters {
		if s := rig.State(a.T, l); s.Used != 1+c.size || s.Records != 2 || !s.Consistent {
			a.T.Errorf("call %d, %s: %+v", i, l.Name(), s)
		}
	}
}

// wantOthers checks that all calls but some were granted once.
func (a *sharing) wantOthers(but ...int) {
	a.T.Helper()
	for i := range a.calls {
		if !slices.Contains(but, i) {
			a.want(i)
		}
	}
}

// TestBatchesOfManyLimitersShareCommands counts the commands on a real server.
func TestBatchesOfManyLimitersShareCommands(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for name, test := range map[string]struct {
			calls    []int
			commands int
		}{
			"one limiter each": {nil, 3},         // for 16, 16 and 8 limiters
			"one and three":    {[]int{1, 3}, 3}, // the same
			"five each":        {[]int{5}, 3},    // for 15, 15 and 10 limiters
		} {
			a := newSharing(t, s, 40, test.calls)
			monitor := func() []redistest.Command { return nil }
			if s.IsReal() {
				monitor = redistest.Monitor(t, s.Addr).Stop
			}
			if n := a.ask(); n != 1 {
				t.Errorf("%s: %d requests", name, n)
			}
			commands := 0
			for _, c := range monitor() {
				if strings.EqualFold(c.Args[0], "evalsha") {
					commands++
				}
			}
			if s.IsReal() && commands != 1+test.commands { // and one for the limiter in front
				t.Errorf("%s: %d commands", name, commands)
			}
			a.wantOthers()
		}
	})
}

// TestLostReplyOfSharedCommand: each batch finds its own grant.
func TestLostReplyOfSharedCommand(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for name, p := range map[string]rig.Plan{
			"reply lost":   {Cut: true},
			"request lost": {Lost: true},
			"half of it":   {Half: true},
		} {
			a := newSharing(t, s, 12, []int{1, 1, 2})
			if n := a.ask(p); n != 1+len(a.calls) {
				t.Errorf("%s: %d requests", name, n)
			}
			a.wantOthers()
		}
	})
}

// TestSharedCommandServesOnlyPlainGrants: the other batches get a command of their own, and an
// error of one limiter concerns no other.
func TestSharedCommandServesOnlyPlainGrants(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		a := newSharing(t, s, 9, nil)
		others := a.Limiter("rl3") // another client takes what this one believes to be free
		a.Try(others, 9)
		a.WriteValue(a.limiters[4], "7") // less than the rate and the records: to be repaired
		a.ask()
		if c := a.calls[3]; c.granted || c.err != nil {
			t.Errorf("an exhausted limiter: %v, %v", c.granted, c.err)
		}
		if s, c := rig.State(t, a.limiters[4]), a.calls[4]; !c.granted || c.err != nil || s.Used != 1+2 {
			t.Errorf("a limiter that lost permits: %v, %v, %+v", c.granted, c.err, s)
		}
		a.wantOthers(3, 4)

		for _, key := range []string{"rl5", "{rl5}:value", "{rl5}:permits"} {
			a = newSharing(t, s, 9, nil)
			a.Must(a.Redis.Del(t.Context(), key).Err())
			a.Must(a.Redis.LPush(t.Context(), key, "a list").Err())
			a.ask()
			if err := a.calls[5].err; err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
				t.Errorf("a limiter whose key %s has another type: %v", key, err)
			}
			a.wantOthers(5)
			if n := a.ask(); n != 1 { // that limiter no longer shares a command, which would be sent in vain
				t.Errorf("a limiter whose key %s has another type: the next calls take %d requests", key, n)
			}
		}
	})
}

// A proxy stands for one in front of several servers, of which each call asks one: it refuses
// commands for several calls.
type proxy struct {
	limiters int // of a call
	refused  atomic.Int64
}

func (p *proxy) refuses(cmd redis.Cmder) bool {
	const keys = 2 // index of their number
	if args := cmd.Args(); !slices.Contains(args, any(protocol.AcquireManyScript.SHA)) ||
		fmt.Sprint(args[keys]) == strconv.Itoa(protocol.ManyKeys*p.limiters) {
		return false
	}
	p.refused.Add(1)
	cmd.SetErr(script.Said("CROSSSLOT Keys in request don't hash to the same slot"))
	return true
}

func (p *proxy) process(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
	if rest := slices.DeleteFunc(slices.Clone(cmds), p.refuses); len(rest) > 0 {
		return next(ctx, rest)
	}
	return nil
}

// TestSharedCommandsEndBehindAProxy: each batch is sent again, and later ones have commands of
// their own.
func TestSharedCommandsEndBehindAProxy(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		a, p := newSharing(t, s, 40, []int{2}), &proxy{limiters: 2}
		rig.Core(a.client).Topology().Redis().(*redis.Client).AddHook(redistest.Hook{Pipeline: p.process})
		a.ask()
		a.wantOthers()
		a.ask()
		if n := p.refused.Load(); n != 3 { // for 16, 16 and 8 limiters
			t.Errorf("%d shared commands", n)
		}
	})
}

// TestSharedCommandGrantsAllLimitersOfACallOrNone: one limiter of a call has too few permits, or a
// key of another type.
func TestSharedCommandGrantsAllLimitersOfACallOrNone(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for poor := 3; poor < 6; poor++ { // of the second call
			check := func(what string, a *sharing) {
				t.Helper()
				for i := 3; i < 6; i++ {
					if i == poor {
						continue
					}
					if s := rig.State(t, a.limiters[i]); s.Used != 1 || !s.Consistent {
						t.Errorf("limiter %d %s: limiter %d has %+v", poor, what, i, s)
					}
				}
				a.wantOthers(1)
			}
			a := newSharing(t, s, 12, []int{3})
			others := a.Limiter(fmt.Sprint("rl", poor))
			a.Try(others, 9)
			a.ask()
			if c := a.calls[1]; c.granted || c.err != nil || rig.State(t, others).Used != 10 {
				t.Errorf("limiter %d is exhausted: %v, %v, %+v", poor, c.granted, c.err, rig.State(t, others))
			}
			check("is exhausted", a)

			a = newSharing(t, s, 12, []int{3})
			key := fmt.Sprintf("{rl%d}:permits", poor)
			a.Must(a.Redis.Del(t.Context(), key).Err())
			a.Must(a.Redis.LPush(t.Context(), key, "a list").Err())
			a.ask()
			if c := a.calls[1]; c.err == nil || !strings.Contains(c.err.Error(), "WRONGTYPE") {
				t.Errorf("a key of limiter %d has another type: %v, %v", poor, c.granted, c.err)
			}
			check("has a key of another type", a)
		}
	})
}

// TestOneLimiterTwiceInASharedCommand: calls of one limiter with different options, and of two
// names with the same state, count each other's permits.
func TestOneLimiterTwiceInASharedCommand(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, name := range []string{"rl0", "{rl0}"} {
			a := newSharing(t, s, 2, nil)
			again := a.client.RateLimiter(name, rratelimiter.WithRate(rratelimiter.PerMinute(10)),
				rratelimiter.WithDenyCache(1))
			a.calls[0].size, a.calls[1] = 6, sharedCall{limiters: []*rratelimiter.Limiter{again}, size: 6}
			a.ask()
			if one, two := a.calls[0], a.calls[1]; one.granted == two.granted || one.err != nil || two.err != nil {
				t.Errorf("%s: %v, %v; %v, %v", name, one.granted, one.err, two.granted, two.err)
			}
			if s := rig.State(t, a.limiters[0]); s.Used != 1+6 || !s.Consistent {
				t.Errorf("%s: %+v", name, s)
			}
		}
	})
}

// TestPlainGrantsOfSeveralLimiters: shared commands and AllowAll count what has expired, and leave
// to the other paths what is to be repaired.
func TestPlainGrantsOfSeveralLimiters(t *testing.T) {
	const limiters = 3
	ways := map[string]func(a *sharing){ // each arranges calls for two permits of each limiter
		"shared command": func(a *sharing) {
			for i := range a.calls {
				a.calls[i].size = 2
			}
		},
		"AllowAll in a shared command": func(a *sharing) {
			a.calls = []sharedCall{{limiters: a.limiters[:2], size: 2}, {limiters: a.limiters[2:], size: 2}}
		},
		"AllowAll": func(a *sharing) {
			a.calls = []sharedCall{{limiters: a.limiters, size: 2}}
		},
	}
	states := map[string]struct {
		prepare func(a *sharing) // after one permit was taken of each limiter
		used    int64            // by what was taken before
		records int
	}{
		"a live record":        {func(a *sharing) { a.Advance(59_999 * ms) }, 1, 1},
		"one that has expired": {func(a *sharing) { a.Advance(time.Minute) }, 0, 0},
		"two that have expired": {func(a *sharing) {
			a.Advance(ms)
			for _, l := range a.limiters {
				a.Try(l, 3)
			}
			a.Advance(time.Minute)
		}, 0, 0},
		"one expired, one live": {func(a *sharing) {
			a.Advance(30 * time.Second)
			for _, l := range a.limiters {
				a.Try(l, 3)
			}
			a.Advance(30 * time.Second)
		}, 3, 1},
		"free permits above the rate": {func(a *sharing) { a.WriteValue(a.limiters[1], "99") }, 1, 1},
		"lost permits, at a check": {func(a *sharing) {
			a.Advance(30 * time.Second)
			for _, l := range a.limiters {
				a.Try(l, 1)
			}
			a.Advance(31 * time.Second)
			a.WriteValue(a.limiters[1], "5")
		}, 1, 1},
	}
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for way, arrange := range ways {
			for name, state := range states {
				t.Run(way+", "+name, func(t *testing.T) {
					a := newSharing(t, s, limiters, nil)
					state.prepare(a)
					arrange(a)
					a.ask()
					for i, c := range a.calls {
						if !c.granted || c.err != nil {
							t.Errorf("call %d: %v, %v", i, c.granted, c.err)
						}
					}
					for i, l := range a.limiters {
						got, err := l.State(t.Context())
						a.Must(err)
						if got.Used != state.used+2 || got.Records != state.records+1 || !got.Consistent {
							t.Errorf("limiter %d: %+v", i, got)
						}
					}
				})
			}
		}
	})
}

// TestAllowAllMakesPlainGrants: an AllowAll that is alone makes plain grants, too, where enough
// permits are thought to be free.
func TestAllowAllMakesPlainGrants(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		c, _ := r.Tapped() // the servers know the scripts
		var scripts []string
		rig.Core(c).Topology().Redis().(*redis.Client).AddHook(redistest.Hook{
			Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
				for name, of := range map[string]*script.Script{
					"acquiremany": protocol.AcquireManyScript, "allowall": protocol.AllowAllScript,
				} {
					if slices.Contains(cmd.Args(), any(of.SHA)) {
						scripts = append(scripts, name)
					}
				}
				return next(ctx, cmd)
			},
		})
		rate := rratelimiter.WithRate(rratelimiter.PerMinute(10))
		a, b := c.RateLimiter("a", rate), c.RateLimiter("b", rate)
		other := r.Limiter("b", rate)
		for _, step := range []struct {
			what    string
			before  func()
			n       int64
			granted bool
			want    string
		}{
			{"the first use", nil, 1, true, "acquiremany"},
			{"enough", nil, 3, true, "acquiremany"},
			{"more than is free", nil, 7, false, "allowall"},
			{"another client has taken", func() { rig.MustTry(t, other, 3, true) }, 5, false, "acquiremany allowall"},
			{"as much as is free", nil, 3, true, "acquiremany"},
			{"all has expired", func() { r.Advance(2 * time.Minute) }, 5, true, "allowall"},
			{"enough again", nil, 2, true, "acquiremany"},
			{"many records have expired", func() {
				r.AddRecords(a, r.Millis()-100_000, rig.ManyMembers(200)...)
			}, 1, true, "acquiremany allowall"},
			{"few records", nil, 1, true, "acquiremany"},
		} {
			if scripts = nil; step.before != nil {
				step.before()
			}
			results, err := c.AllowAll(t.Context(), step.n, a, b)
			if err != nil || results[0].Allowed != step.granted {
				t.Errorf("%s: %+v, %v", step.what, results, err)
			}
			if ran := strings.Join(scripts, " "); ran != step.want {
				t.Errorf("%s: %s, want %s", step.what, ran, step.want)
			}
		}
	})
}
