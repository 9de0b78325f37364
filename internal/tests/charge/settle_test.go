package charge

import (
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// What was taken becomes what was used, as often as Settle is called.
func TestAGrantIsSettled(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("l", rratelimiter.WithRate(rratelimiter.PerMinute(10)))
		take := func(n int64) *rratelimiter.Grant {
			t.Helper()
			g, result, err := l.Take(t.Context(), n)
			if err != nil || g == nil {
				t.Fatalf("%+v, %v", result, err)
			}
			return g
		}
		settle := func(what string, g *rratelimiter.Grant, used, want int64) {
			t.Helper()
			err := g.Settle(t.Context(), used)
			if s := rig.State(t, l); err != nil || s.Used != want || !s.Consistent {
				t.Errorf("%s: %v, %+v; want %d permits in use", what, err, s, want)
			}
		}
		g := take(6)
		settle("less", g, 4, 4)
		settle("the same again", g, 4, 4)
		settle("more", g, 9, 9)
		settle("the same again", g, 9, 9)
		settle("a debt", g, 13, 13)
		settle("less than was charged: what was taken comes back", g, 11, 11)
		settle("nothing: what was charged stays", g, 0, 9)
		r.Advance(3 * time.Minute)

		g = take(5)
		if n, err := g.Return(t.Context(), 2); n != 2 || err != nil {
			t.Error(n, err)
		}
		settle("after a return", g, 4, 4)
		r.Advance(2 * time.Minute)
		settle("less, after its interval", g, 1, 0)
		settle("more, after its interval", g, 8, 7)

		if err := g.Settle(t.Context(), -1); !errors.Is(err, rratelimiter.ErrInvalidPermits) {
			t.Error(err)
		}
		var none *rratelimiter.Grant
		if err := none.Settle(t.Context(), 0); err != nil {
			t.Error(err)
		}
		if err := none.Settle(t.Context(), 1); !errors.Is(err, rratelimiter.ErrInvalidPermits) {
			t.Error(err)
		}
	})
}

// A charge that failed is made by the next Settle; one whose outcome is unknown is not.
func TestSettleAfterAnError(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		client, tap := r.Tapped(rratelimiter.WithCallTimeout(300 * ms))
		l := client.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerMinute(10)), rratelimiter.WithMaxDebt(1))
		g, _, err := l.Take(t.Context(), 2)
		r.Must(err)
		settle := func(used int64, want error, counts int64) {
			t.Helper()
			if err := g.Settle(t.Context(), used); !errors.Is(err, want) {
				t.Errorf("%v, want %v", err, want)
			}
			if s := rig.State(t, l); s.Used != counts {
				t.Errorf("%+v, want %d permits in use", s, counts)
			}
		}
		tap.Plan(rig.Plan{Answer: "-ERR no\r\n"})
		if err := g.Settle(t.Context(), 5); err == nil {
			t.Error("no error")
		}
		settle(5, nil, 5)
		cut := make([]rig.Plan, 100)
		for i := range cut {
			cut[i].Cut = true
		}
		tap.Plan(cut...)
		if err := g.Settle(t.Context(), 6); !errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
			t.Error(err)
		}
		tap.Plan()
		settle(6, nil, 6)
		settle(100, rratelimiter.ErrDebtBound, 20)
		settle(100, nil, 20)
	})
}

// Each grant of several limiters is settled with its own number.
func TestSeveralGrantsAreSettled(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		requests := r.Limiter("{t}requests", rratelimiter.WithRate(rratelimiter.PerMinute(10)))
		tokens := r.Limiter("{t}tokens", rratelimiter.WithRate(rratelimiter.PerMinute(1000)))
		grants, results, err := r.Client.TakeAll(t.Context(), []int64{1, 400}, requests, tokens)
		if err != nil || grants == nil {
			t.Fatal(results, err)
		}
		for _, used := range []int64{1500, 1500, 1200} {
			r.Must(grants.Settle(t.Context(), []int64{1, used}))
			if a, b := rig.State(t, requests), rig.State(t, tokens); a.Used != 1 || b.Used != used ||
				b.Debt != used-1000 {
				t.Errorf("%+v, %+v", a, b)
			}
		}
		if err := grants.Settle(t.Context(), []int64{1}); !errors.Is(err, rratelimiter.ErrInvalidPermits) {
			t.Error(err)
		}
	})
}

// Two callers that settle a grant at the same time, with the same number, give back once what was
// not used.
func TestAGrantIsSettledByTwoCallers(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("l", rratelimiter.WithRate(rratelimiter.PerMinute(10)))
		g, _, err := l.Take(t.Context(), 10)
		r.Must(err)
		var callers sync.WaitGroup
		lock := rig.GrantLock(g)
		lock.Lock()
		for range 2 {
			callers.Go(func() {
				if err := g.Settle(t.Context(), 7); err != nil {
					t.Error(err)
				}
			})
		}
		// If a caller that has waited for more than 1 ms finds the lock taken again, it is handed
		// over in turn from then on.
		for range 2 {
			for held := time.Now(); time.Since(held) < 5*ms; {
				runtime.Gosched()
			}
			lock.Unlock()
			lock.Lock()
		}
		lock.Unlock()
		callers.Wait()
		if s := rig.State(t, l); s.Used != 7 || g.Permits() != 7 {
			t.Errorf("%+v, and %d permits can be given back", s, g.Permits())
		}
	})
}
