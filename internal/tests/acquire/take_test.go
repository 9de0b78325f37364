package acquire

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// A grant gives back its own permits, once, and only what is left of it; a release by somebody else
// takes the oldest ones.
func TestAGrantIsReturned(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, now := t.Context(), time.UnixMilli(1_700_000_000_000)
		client := rratelimiter.NewClient(s.Client(), rratelimiter.WithClock(func() time.Time { return now }),
			rig.Patient)
		l := client.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerMinute(10)))
		take := func(n int64) *rratelimiter.Grant {
			t.Helper()
			g, result, err := l.Take(ctx, n)
			if err != nil || g == nil || !result.Allowed || g.Permits() != n {
				t.Fatalf("%+v, %+v, %v", g, result, err)
			}
			now = now.Add(time.Second)
			return g
		}
		returned := func(g *rratelimiter.Grant, n, want, left int64) {
			t.Helper()
			if got, err := g.Return(ctx, n); got != want || err != nil || g.Permits() != left {
				t.Errorf("returned %d of %d, %v; left are %d; want %d and %d", got, n, err, g.Permits(), want, left)
			}
		}
		free := func(want int64) {
			t.Helper()
			if got, err := l.AvailablePermits(ctx); got != want || err != nil {
				t.Errorf("%d are free, %v; want %d", got, err, want)
			}
		}
		old, young := take(4), take(5)
		g, result, err := l.Take(ctx, 2)
		if g != nil || result.Allowed || result.RetryAfter != 58*time.Second || err != nil {
			t.Errorf("refused: %+v, %+v, %v", g, result, err)
		}
		if n, err := g.Return(ctx, 2); n != 0 || err != nil || g.Permits() != 0 {
			t.Errorf("of a refused request, %d came back, %v", n, err)
		}
		returned(young, 0, 0, 5)
		returned(young, 2, 2, 3)
		returned(young, 9, 3, 0)
		returned(young, 1, 0, 0)
		free(6)
		if _, err := young.Return(ctx, -1); !errors.Is(err, rratelimiter.ErrInvalidPermits) {
			t.Error(err)
		}
		if n, err := l.Release(ctx, 3); n != 3 || err != nil {
			t.Error(n, err)
		}
		returned(old, 4, 1, 0)
		free(10)

		late := take(3)
		now = now.Add(time.Minute)
		returned(late, 3, 0, 0)
		free(10)
	})
}

// A grant gives back none of the permits that another client got at the same time.
func TestAGrantReturnsNoneOfAnotherClients(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		clock := rratelimiter.WithClock(func() time.Time { return time.UnixMilli(1_700_000_000_000) })
		for at, name := range []string{"the first client's", "the second client's"} {
			var grants []*rratelimiter.Grant
			for i := range 2 {
				l := rratelimiter.NewClient(s.Client(), clock, rig.Patient).
					RateLimiter(name, rratelimiter.WithRate(rratelimiter.PerMinute(100)))
				g, _, err := l.Take(t.Context(), int64(10+20*i))
				if err != nil {
					t.Fatal(err)
				}
				grants = append(grants, g)
			}
			want := []int64{grants[0].Permits(), grants[1].Permits()}
			want[at]--
			if n, err := grants[at].Return(t.Context(), 1); n != 1 || err != nil {
				t.Errorf("%s: %d came back, %v", name, n, err)
			}
			var held []int64
			for _, member := range s.Client().ZRange(t.Context(), "{"+name+"}:permits", 0, -1).Val() {
				record, err := rratelimiter.UnpackRecord([]byte(member))
				if err != nil {
					t.Fatal(err)
				}
				held = append(held, int64(record.Permits))
			}
			if slices.Sort(held); !slices.Equal(held, want) {
				t.Errorf("%s: the records hold %v, not %v", name, held, want)
			}
		}
	})
}

// Other clients can have many records of the same time, which Redis lists before those of the
// grant.
func TestAGrantIsFoundBehindManyRecordsOfTheSameTime(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("rl")
		r.SetRate(l, rratelimiter.PerMinute(10000))
		grant, _, err := l.Take(t.Context(), 3)
		if err != nil {
			t.Fatal(err)
		}
		r.AddRecords(l, r.Millis(), rig.ManyMembers(4500)...)
		r.WriteValue(l, strconv.Itoa(10000-3-4500))
		if back, err := grant.Return(t.Context(), 2); back != 2 || err != nil {
			t.Errorf("%d came back, %v", back, err)
		}
		if free, err := l.AvailablePermits(t.Context()); free != 10000-1-4500 || err != nil {
			t.Errorf("%d are free, %v", free, err)
		}
	})
}

// Each grant of TakeAll gives back its own permits, whether the limiters are asked in one step or
// in order, in any form of records, and whatever others were granted at another time.
func TestEachGrantOfTakeAllIsReturned(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for name, options := range map[string][]rratelimiter.LimiterOption{
			"plain":         nil,
			"a record each": {rratelimiter.WithRecordPerRequest()},
			"granularity":   {rratelimiter.WithGranularity(500 * ms)},
			"server time":   {rratelimiter.WithServerTime()},
		} {
			for way, rdb := range map[string]rratelimiter.Redis{
				"one step": s.Client(),
				"in order": struct{ rratelimiter.Redis }{s.Client()},
			} {
				t.Run(name+", "+way, func(t *testing.T) {
					r := rig.New(t, s)
					r.Wipe()
					ctx := t.Context()
					c := rratelimiter.NewClient(rdb, rratelimiter.WithClock(r.Now),
						rratelimiter.WithCallTimeout(20*time.Second))
					requests := c.RateLimiter("requests",
						append(options, rratelimiter.WithRate(rratelimiter.PerHour(5)))...)
					tokens := c.RateLimiter("tokens",
						append(options, rratelimiter.WithRate(rratelimiter.PerHour(1000)))...)
					take := func(permits ...int64) []*rratelimiter.Grant {
						t.Helper()
						grants, results, err := c.TakeAll(ctx, permits, requests, tokens, tokens)
						if err != nil || len(grants) != 3 || len(results) != 3 || !results[2].Allowed {
							t.Fatalf("%v, %+v, %v", grants, results, err)
						}
						for i, g := range grants {
							if g.Permits() != permits[i] {
								t.Errorf("grant %d has %d permits, not %d", i, g.Permits(), permits[i])
							}
						}
						r.Advance(time.Second)
						return grants
					}
					returned := func(g *rratelimiter.Grant, n, want int64) {
						t.Helper()
						if got, err := g.Return(ctx, n); got != want || err != nil {
							t.Errorf("%d came back, %v; want %d", got, err, want)
						}
					}
					free := func(want ...int64) {
						t.Helper()
						if got := []int64{r.Free(requests), r.Free(tokens)}; !slices.Equal(got, want) {
							t.Errorf("%d are free, want %d", got, want)
						}
					}
					first := take(1, 100, 10)
					granted := rig.State(t, tokens).Oldest
					second := take(2, 600, 50)
					free(2, 240)
					returned(second[1], 500, 500)
					returned(second[2], 50, 50)
					returned(second[1], 1000, 100)
					returned(second[1], 1, 0)
					free(2, 890)
					if left := rig.State(t, tokens); left.Oldest != granted || left.Newest != granted {
						t.Errorf("the permits in use were granted from %v to %v, not at %v",
							left.Oldest, left.Newest, granted)
					}

					before := r.Dump()
					grants, results, err := c.TakeAll(ctx, []int64{1, 891}, requests, tokens)
					if grants != nil || err != nil || results[0].Allowed || results[0].RetryAfter != 0 ||
						results[1].Allowed ||
						results[1].RetryAfter == 0 {
						t.Errorf("refused: %v, %+v, %v", grants, results, err)
					}
					if way == "one step" { // in order the first limiter took a permit, and gave it back
						r.Unchanged(before, "a refusal")
					}
					returned(second[0], 2, 2)
					returned(first[0], 5, 1)
					returned(first[2], 10, 10)
					free(5, 900)
					if n := r.Release(tokens, 60); n != 60 {
						t.Errorf("%d were released", n)
					}
					returned(first[1], 100, 40) // the others are free already
					free(5, 1000)
				})
			}
		}
	})
}

// TakeUpTo takes what is free, and gives back what was granted then.
// TestAllGrantsAreReturnedTogether: one Return gives back what is left of all grants. If a call
// fails, the others count.
func TestAllGrantsAreReturnedTogether(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		a, b := r.Limiter("a", rratelimiter.WithRate(rratelimiter.PerMinute(10))), r.Limiter(
			"b", rratelimiter.WithRate(rratelimiter.PerMinute(20)),
		)
		take := func() rratelimiter.GrantAll {
			t.Helper()
			grants, _, err := r.Client.TakeAll(t.Context(), []int64{3, 5}, a, b)
			r.Must(err)
			return grants
		}
		grants := take()
		if n, err := grants[1].Return(t.Context(), 1); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		for _, want := range []int64{7, 0} {
			if n, err := grants.Return(t.Context()); n != want || err != nil {
				t.Errorf("%d permits came back, %v, want %d", n, err, want)
			}
		}
		if freeA, freeB := r.Free(a), r.Free(b); freeA != 10 || freeB != 20 {
			t.Errorf("%d and %d permits are free", freeA, freeB)
		}
		grants = append(take(), nil) // a nil grant holds nothing
		key := rig.Keys(a)[keys.Permits]
		r.Must(r.Redis.Del(t.Context(), key).Err())
		r.Must(r.Redis.Set(t.Context(), key, "of another type", 0).Err())
		if n, err := grants.Return(t.Context()); n != 5 || err == nil || grants[0].Permits() != 3 ||
			grants[1].Permits() != 0 {
			t.Errorf("%d permits came back, %v; left are %d and %d", n, err, grants[0].Permits(), grants[1].Permits())
		}
	})
}

func TestTakeUpToIsReturned(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		ctx := t.Context()
		l := r.Limiter("l", rratelimiter.WithRate(rratelimiter.PerMinute(10)))
		old, err := l.TakeUpTo(ctx, 4)
		r.Must(err)
		granted := r.Now()
		r.Advance(time.Second)
		rest, err := l.TakeUpTo(ctx, 100)
		r.Must(err)
		if old.Permits() != 4 || rest.Permits() != 6 {
			t.Errorf("took %d and %d", old.Permits(), rest.Permits())
		}
		if g, err := l.TakeUpTo(ctx, 1); g != nil || err != nil {
			t.Errorf("none are free: %v, %v", g, err)
		}
		if n, err := rest.Return(ctx, 100); n != 6 || err != nil {
			t.Errorf("%d came back, %v", n, err)
		}
		r.SameState(
			l,
			rratelimiter.State{
				Rate: rratelimiter.PerMinute(10), Available: 6, Used: 4, Records: 1, Oldest: granted, Newest: granted,
				Consistent: true,
			},
		)
		if g, err := l.TakeUpTo(ctx, 0); g != nil || !errors.Is(err, rratelimiter.ErrInvalidPermits) {
			t.Errorf("%v, %v", g, err)
		}
	})
}

func TestReturnAfterTheInterval(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		ctx := t.Context()
		short, long := r.Limiter("short", rratelimiter.WithRate(rratelimiter.PerSecond(5))), r.Limiter(
			"long", rratelimiter.WithRate(rratelimiter.PerHour(5)),
		)
		grants, _, err := r.Client.TakeAll(ctx, []int64{2, 3}, short, long)
		r.Must(err)
		r.Advance(time.Second)
		if n, err := grants[0].Return(ctx, 2); n != 0 || err != nil {
			t.Errorf("%d came back after the interval, %v", n, err)
		}
		if n, err := grants[1].Return(ctx, 3); n != 3 || err != nil || r.Free(long) != 5 {
			t.Errorf("%d came back, %v", n, err)
		}
	})
}

func TestTakeAllOfWhatCannotBeAsked(t *testing.T) {
	r := rig.New(t, redistest.Embedded(t))
	ctx := t.Context()
	a, b := r.Limiter("a", rratelimiter.WithRate(rratelimiter.PerHour(5))), r.Limiter(
		"b", rratelimiter.WithRate(rratelimiter.PerHour(5)),
	)
	for _, test := range []struct {
		permits  []int64
		limiters []*rratelimiter.Limiter
		want     error
	}{
		{[]int64{1}, []*rratelimiter.Limiter{a, b}, rratelimiter.ErrInvalidPermits},
		{[]int64{1, 0}, []*rratelimiter.Limiter{a, b}, rratelimiter.ErrInvalidPermits},
		{[]int64{1, 6}, []*rratelimiter.Limiter{a, b}, rratelimiter.ErrExceedsRate},
		{[]int64{3, 3}, []*rratelimiter.Limiter{a, a}, rratelimiter.ErrExceedsRate},
		{[]int64{1, 1}, []*rratelimiter.Limiter{a, r.Limiter("none")}, rratelimiter.ErrNotInitialized},
		{[]int64{1, 1}, []*rratelimiter.Limiter{a, nil}, rratelimiter.ErrInvalidOption},
		{
			[]int64{1, 1}, []*rratelimiter.Limiter{a, rig.New(t, redistest.Embedded(t)).Limiter("b")},
			rratelimiter.ErrInvalidOption,
		},
		{nil, nil, nil},
	} {
		grants, results, err := r.Client.TakeAll(ctx, test.permits, test.limiters...)
		if !errors.Is(err, test.want) || grants != nil || results != nil {
			t.Errorf("%d: %v, %+v, %v", test.permits, grants, results, err)
		}
	}
}

// What a call in flight is granted after its caller left is given back.
func TestTakesThatAreLeftAreGivenBack(t *testing.T) {
	type take func(ctx context.Context, p *rig.Process, a, b *rratelimiter.Limiter) error
	takeAll := func(ctx context.Context, p *rig.Process, a, b *rratelimiter.Limiter) error {
		_, _, err := p.TakeAll(ctx, []int64{3, 2}, a, b)
		return err
	}
	for name, c := range map[string]struct {
		names [2]string
		take  take
	}{
		"Take": {[2]string{"a", "b"}, func(ctx context.Context, _ *rig.Process, a, _ *rratelimiter.Limiter) error {
			_, _, err := a.Take(ctx, 3)
			return err
		}},
		"TakeUpTo": {[2]string{"a", "b"}, func(ctx context.Context, _ *rig.Process, a, _ *rratelimiter.Limiter) error {
			_, err := a.TakeUpTo(ctx, 100)
			return err
		}},
		"TakeAll in one step": {[2]string{"{t}a", "{t}b"}, takeAll},
		"TakeAll in order":    {[2]string{"a", "b"}, takeAll},
	} {
		t.Run(name, func(t *testing.T) {
			rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
				p := b.Process()
				one := p.RateLimiter(c.names[0], rratelimiter.WithRate(rratelimiter.PerHour(10)))
				two := p.RateLimiter(c.names[1], rratelimiter.WithRate(rratelimiter.PerHour(10)))
				rig.MustTry(t, one, 1, true)
				rig.MustTry(t, two, 1, true)
				b.SleepTo(time.Second)
				resume := p.Wire.Hang()
				ctx, cancel := context.WithTimeout(t.Context(), 70*ms)
				defer cancel()
				if err := c.take(ctx, p, one, two); !errors.Is(err, context.DeadlineExceeded) ||
					!errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
					t.Error(err)
				}
				resume()
				synctest.Wait()
				for _, l := range []*rratelimiter.Limiter{one, two} {
					if s := rig.State(t, l); s.Used != 1 || !s.Consistent {
						t.Errorf("%s: %+v", l.Name(), s)
					}
				}
			})
		})
	}
}

// What such a call is granted goes to the requests behind first, and only the rest is given back.
func TestATakeThatIsLeftServesTheRequestBehind(t *testing.T) {
	for _, c := range []struct {
		behind int64
		ok     bool
		used   int64
	}{
		{6, true, 1 + 6},
		{4, true, 1 + 4},
		{7, false, 1},
	} {
		t.Run(fmt.Sprint(c.behind, " behind"), func(t *testing.T) {
			rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
				p := b.Process()
				l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerHour(10)))
				plug := p.Wire.Hang()
				b.Try(l, 1)
				gone := b.Call(func(ctx context.Context) (bool, error) {
					g, _, err := l.Take(ctx, 6)
					return g != nil, err
				})
				behind := b.Try(l, c.behind)
				resume := p.Wire.Hang()
				plug()
				b.SleepTo(10 * ms)
				gone.Cancel()
				b.Ended("the caller that left", gone, false, 10*ms)
				resume()
				b.Ended("the caller behind", behind, c.ok, 10*ms)
				if s := rig.State(t, l); s.Used != c.used || !s.Consistent {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// The same where the call in flight does not decide: expired records remain, and the next call
// does.
func TestATakeThatIsLeftBeforeItIsDecided(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p, n := b.Process(), int64(2100) // more records than leave in one call
		l := p.RateLimiter(
			"l", rratelimiter.WithRate(rratelimiter.PerMinute(n)), rratelimiter.WithRecordPerRequest(),
		)
		for range n {
			b.Try(l, 1)
		}
		b.SleepTo(2 * time.Minute)
		resume := p.Wire.Hang()
		ctx, cancel := context.WithTimeout(t.Context(), 70*ms)
		defer cancel()
		if _, _, err := l.Take(ctx, n); !errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
			t.Error(err)
		}
		resume()
		synctest.Wait()
		if s := rig.State(t, l); s.Available != n || !s.Consistent {
			t.Errorf("%+v", s)
		}
		if i := rig.Core(p.Client).Inspect(); i.Busy != 0 || i.Waiting != 0 || i.Asking != 0 {
			t.Errorf("%+v", i)
		}
	})
}

// What the process grants in the place of Redis after the caller left comes back to the process.
func TestATakeThatIsLeftAndGrantedLocally(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerHour(10)), rratelimiter.WithFallback(1))
		b.Granted("the first", b.Try(l, 1), 0) // the rate is known
		resume := p.Wire.Hang()
		gone := b.Call(func(ctx context.Context) (bool, error) {
			g, _, err := l.Take(ctx, 6)
			return g != nil, err
		})
		b.SleepTo(70 * ms)
		gone.Cancel()
		b.Ended("the caller that left", gone, false, 70*ms)
		b.SleepTo(time.Second) // the process has decided
		b.Granted("a caller that needs these permits", b.Try(l, 10), time.Second)
		b.End(resume)
	})
}

// Permits that the process granted in the place of Redis come back to the process.
func TestTakeAllGrantedLocally(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		p.Wire.Fail(rig.ErrRefused)
		for way, names := range map[string][2]string{"one step": {"{t}a", "{t}b"}, "in order": {"a", "b"}} {
			one := p.RateLimiter(names[0], rratelimiter.WithRate(rratelimiter.PerHour(10)),
				rratelimiter.WithFallback(1))
			two := p.RateLimiter(names[1], rratelimiter.WithRate(rratelimiter.PerHour(10)),
				rratelimiter.WithFallback(1))
			grants, _, err := p.TakeAll(t.Context(), []int64{10, 4}, one, two)
			if err != nil || grants == nil {
				t.Fatal(way, grants, err)
			}
			if n, err := grants[0].Return(t.Context(), 9); n != 9 || err != nil {
				t.Errorf("%s: %d came back, %v", way, n, err)
			}
			rig.MustAllow(t, one, 10, false)
			rig.MustAllow(t, one, 9, true)
			rig.MustAllow(t, two, 7, false)
			if g, err := two.TakeUpTo(t.Context(), 9); err != nil || g.Permits() != 6 {
				t.Errorf("%s: %v, %v", way, g, err)
			} else if n, err := g.Return(t.Context(), 9); n != 6 || err != nil {
				t.Errorf("%s: %d came back, %v", way, n, err)
			}
			rig.MustAllow(t, two, 6, true)
		}
	})
}
