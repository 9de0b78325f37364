package httplimit

import (
	"context"
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/classic"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// bill_test.go has what a request uses beyond its permits.

func nothing(*http.Request) int64 { return 0 }

// wantFields checks that a request is refused, with the time until the next one can pass.
func wantFields(t *testing.T, h http.Handler, path, after, field string) {
	t.Helper()
	if w := get(h, "192.0.2.1", path); w.Code != 429 || w.Header().Get("Retry-After") != after ||
		w.Header().Get("RateLimit") != field {
		t.Errorf("%d, not a refusal for %s s with %s:\n%s", w.Code, after, field, headerText(w.Header()))
	}
}

// What a request costs beyond its permits counts in full, also what is not free. Later requests are
// refused until the debt is paid back, and are told when that is.
func TestACostAboveThePermitsIsADebt(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(Limit) Limit
		refused string // the field RateLimit; Retry-After is 120 s
	}{
		"without an estimate": {func(l Limit) Limit { return l }, `"a";r=0;t=120`},
		"too low an estimate": {func(l Limit) Limit {
			return l.Cost(func(*http.Request) int64 { return 5 })
		}, `"a";r=0;t=120`},
		"an estimate of 0": {func(l Limit) Limit { return l.Cost(nothing) }, `"a";r=0;t=120`},
		"an estimate of 0, set last": {func(l Limit) Limit {
			return l.CostAfter(costOf).Cost(nothing)
		}, `"a";r=0;t=120`},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				r := rig.New(t, s)
				h := patient(c.change(Per(r.Client, "a", rratelimiter.PerMinute(10), nil)).CostAfter(
					costOf)).Middleware(answering)
				l := r.Limiter("ratelimit:a")
				wantCodes(t, h, "192.0.2.1", "/200/25", 200)
				awaitUsed(t, l, 25)
				wantFields(t, h, "/200/1", "120", c.refused)
				r.Advance(119 * time.Second)
				wantFields(t, h, "/200/1", "1", `"a";r=0;t=1`)
				r.Advance(time.Second)
				wantCodes(t, h, "192.0.2.1", "/200/4", 200)
				awaitUsed(t, l, 9)
			})
		})
	}
}

// A request whose estimate is 0 takes nothing, and passes as long as a permit is free, however many
// others are being handled. Without CostAfter, the limit does not apply to it.
func TestAnEstimateOfZeroAsksForAFreePermit(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		requests := Per(r.Client, "requests", rratelimiter.PerMinute(5), nil)
		guard := patient(Per(r.Client, "tokens", rratelimiter.PerMinute(2), nil).Cost(nothing).CostAfter(costOf),
			requests)
		h, tokens := guard.Middleware(answering), r.Limiter("ratelimit:tokens")
		wantCodes(t, h, "192.0.2.1", "/200/0", 200, 200, 200)
		if w := get(h, "192.0.2.1", "/200/2"); w.Header().Get("RateLimit") != `"tokens";r=2, "requests";r=1;t=60` {
			t.Errorf("%d with\n%s", w.Code, headerText(w.Header()))
		}
		awaitUsed(t, tokens, 2)
		wantFields(t, h, "/200/1", "60", `"tokens";r=0;t=60`)
		awaitUsed(t, r.Limiter("ratelimit:requests"), 4)
		guard.SetLimits(Per(r.Client, "tokens", rratelimiter.PerMinute(2), nil).Cost(nothing))
		wantCodes(t, h, "192.0.2.1", "/200/1", 200)
		awaitUsed(t, tokens, 2)
	})
}

// A response that is still written counts as far as its handler has told. What the handler has told
// is not counted again after the response. What was charged does not come back.
func TestALongResponseCountsBeforeItEnds(t *testing.T) {
	for name, c := range map[string]struct {
		costs func(int, http.Header) int64
		want  int64
	}{
		"as much as was told": {nil, 12},
		"more":                {func(int, http.Header) int64 { return 15 }, 15},
		"less":                {func(int, http.Header) int64 { return 11 }, 11},
		// of 12, 8 were taken, and 4 were charged
		"much less": {func(int, http.Header) int64 { return 1 }, 4},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				r := rig.New(t, s)
				eight := func(*http.Request) int64 { return 8 }
				guard := patient(Per(r.Client, "a", rratelimiter.PerMinute(10), nil).Cost(eight).CostAfter(c.costs))
				l := r.Limiter("ratelimit:a")
				handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					Charge(r.Context(), 5)
					Charge(r.Context(), 2)
					awaitUsed(t, l, 8) // the estimate covers it
					Charge(r.Context(), 0)
					Charge(r.Context(), -3)
					Charge(r.Context(), 5)
					awaitUsed(t, l, 12)
					wantCodes(t, guard.Middleware(ok), "192.0.2.1", "/", 429)
				})
				wantCodes(t, guard.Middleware(handler), "192.0.2.1", "/", 200)
				awaitUsed(t, l, c.want)
			})
		})
	}
}

// A request can charge the limits with CostAfter of all its guards, or those with a name. Other
// limits count requests.
func TestEachLimitIsChargedOrThoseWithAName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := limittest.NewRealTime(t).Client()
		after := func(name string) Limit { return Per(client, name, rratelimiter.PerHour(100), nil).CostAfter(nil) }
		outer := patient(after("tokens"), Per(client, "requests", rratelimiter.PerHour(100), nil))
		inner := patient(after("bytes"), after("day"),
			Per(client, "failures", rratelimiter.PerHour(100), nil).CountIf(succeeded))
		h := outer.Middleware(inner.Middleware(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			Charge(r.Context(), 3)
			Charge(r.Context(), 40, "bytes")
			Charge(r.Context(), 5, "tokens", "day", "requests", "failures", "unknown")
		})))
		wantCodes(t, h, "192.0.2.1", "/", 200)
		for name, want := range map[string]int64{"tokens": 8, "bytes": 43, "day": 8, "requests": 1, "failures": 1} {
			if n := used(t, client, "ratelimit:"+name); n != want {
				t.Errorf("%s: %d permits used, not %d", name, n, want)
			}
		}
		Charge(t.Context(), 1) // no guard
	})
}

// Handlers outside of a guard see the route that a ServeMux inside has found.
func TestHandlersOutsideSeeTheRoute(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("/orders/{id}", ok)
	guard := patient(Per(limittest.New(t).Client(), "a", rratelimiter.PerHour(1), nil).CostAfter(nil))
	r := httptest.NewRequest(http.MethodGet, "/orders/7", nil)
	if guard.Middleware(mux).ServeHTTP(httptest.NewRecorder(), r); r.Pattern != "/orders/{id}" {
		t.Errorf("pattern %q", r.Pattern)
	}
}

// Limiters of package classic are charged. What they granted does not come back. A limiter that
// cannot be charged is refused: what a request costs would not count.
func TestOtherLimitersAreCharged(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		tokens := classic.Tokens{Capacity: 10, PerStep: 1, Step: 6 * time.Minute}
		bucket := classic.NewTokenBucket(s.Client(), "bucket", tokens)
		guard := patient(Shared("bucket", bucket).Cost(ten).CostAfter(costOf))
		wantCodes(t, guard.Middleware(answering), "192.0.2.1", "/200/3", 200)
		if r, err := bucket.Peek(t.Context(), 1); err != nil || r.Allowed {
			t.Errorf("%+v, %v", r, err)
		}
		debt := classic.NewTokenBucket(s.Client(), "debt", tokens)
		guard.SetLimits(Shared("debt", debt).Cost(nothing).CostAfter(costOf))
		wantCodes(t, guard.Middleware(answering), "192.0.2.1", "/200/15", 200)
		for r, err := debt.Peek(t.Context(), 1); err != nil ||
			r.RetryAfter < 30*time.Minute; r, err = debt.Peek(t.Context(), 1) {
			time.Sleep(time.Millisecond)
		}
		wantCodes(t, guard.Middleware(answering), "192.0.2.1", "/200/1", 429)
		var wrong error
		guard = patient(Shared("counting", &counting{limit: 9}).Cost(nothing).CostAfter(costOf))
		guard.Policy.Logger, guard.Policy.OnError = quiet, func(_ context.Context, err error) { wrong = err }
		if wantCodes(t, guard.Middleware(answering), "192.0.2.1", "/200/3",
			503); !errors.Is(wrong, rratelimiter.ErrInvalidOption) {
			t.Error(wrong)
		}
	})
}

// A charging is a limiter whose charges wait to be let go, and end with an error.
type charging struct {
	mu      sync.Mutex
	charges []int64 // guarded by mu
	ends    chan error
}

func (c *charging) Allow(context.Context, int64) (rratelimiter.Result, error) {
	return rratelimiter.Result{Allowed: true}, nil
}

func (c *charging) Charge(_ context.Context, n int64) (rratelimiter.Result, error) {
	c.mu.Lock()
	c.charges = append(c.charges, n)
	c.mu.Unlock()
	return rratelimiter.Result{Allowed: true}, <-c.ends
}

// A handler may charge as often as it likes: one call of a limit is in flight at a time. What a
// call did not count is in the next one, unless it may have counted.
func TestChargesOfARequest(t *testing.T) {
	failed := errors.New("failed")
	for name, c := range map[string]struct {
		err  error
		want []int64
	}{
		"counted":         {nil, []int64{9, 990, 1000}},
		"up to the bound": {rratelimiter.ErrDebtBound, []int64{9, 990, 1000}},
		"may be counted":  {rratelimiter.ErrOutcomeUnknown, []int64{9, 990, 1000}},
		"was not counted": {failed, []int64{9, 1999}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &charging{ends: make(chan error)}
				guard := New(Shared("charging", l).CostAfter(func(int, http.Header) int64 { return 2000 }))
				reported := 0
				guard.Policy = &Policy{Logger: quiet, OnError: func(_ context.Context, err error) {
					if errors.Is(err, c.err) {
						reported++
					}
				}}
				ctx := context.Background()
				wantCodes(t, guard.Middleware(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					ctx = r.Context()
					for range 100 {
						Charge(ctx, 10)
						synctest.Wait()
					}
					if c.err != failed {
						l.ends <- c.err
						synctest.Wait()
					}
				})), "192.0.2.1", "/", 200)
				synctest.Wait()
				l.ends <- c.err
				synctest.Wait()
				l.ends <- nil
				synctest.Wait()
				if len(l.charges) != len(c.want) || reported > 2 || (c.err != nil) != (reported > 0) {
					t.Fatalf("charged %v, not %v, and %d errors", l.charges, c.want, reported)
				}
				for i, n := range c.want {
					if l.charges[i] != n {
						t.Errorf("charged %v, not %v", l.charges, c.want)
					}
				}
				Charge(ctx, math.MaxInt64) // what is told later counts, too
				synctest.Wait()
				if l.ends <- nil; l.charges[len(l.charges)-1] != math.MaxInt64-2000 {
					t.Errorf("later %v", l.charges)
				}
			})
		})
	}
}

// A request that passes although a limit refused it, or could not be checked, is not charged.
func TestOnlyWhatWasAllowedIsCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := limittest.NewRealTime(t)
		tokens := Per(s.Client(), "tokens", rratelimiter.PerHour(10), nil).Cost(nothing).CostAfter(costOf)
		guard := New(tokens, Per(s.Client(), "requests", rratelimiter.PerHour(1), nil))
		guard.Policy = &Policy{Shadow: true, Logger: quiet}
		h := guard.Middleware(answering)
		wantCodes(t, h, "192.0.2.1", "/200/3", 200, 200) // the other limit refuses the second one
		s.Fail("LOADING")
		wantCodes(t, h, "192.0.2.1", "/200/3", 200)
		s.Fail("")
		time.Sleep(time.Second)
		if n := used(t, s.Client(), "ratelimit:tokens"); n != 3 {
			t.Errorf("%d permits used", n)
		}
		guard.SetLimits(tokens.Shadow())
		wantCodes(t, h, "192.0.2.1", "/200/20", 200)
		synctest.Wait()
		wantCodes(t, h, "192.0.2.1", "/200/1", 200) // in debt
		if n := used(t, s.Client(), "ratelimit:tokens"); n != 23 {
			t.Errorf("%d permits used", n)
		}
		wantCount(t, guard.Policy, map[Outcome]int64{Allowed: 2, Shadowed: 2, FailedOpen: 1})
	})
}

// Requests that may wait do so until the debt is paid back.
func TestRequestsWaitADebtOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := limittest.NewRealTime(t).Client()
		for name, limit := range map[string]Limit{
			"one":  Per(client, "one", rratelimiter.PerSecond(10), nil).CostAfter(costOf),
			"zero": Per(client, "zero", rratelimiter.PerSecond(10), nil).Cost(nothing).CostAfter(costOf),
		} {
			guard := patient(limit)
			guard.Policy.Wait = 3 * time.Second
			h := guard.Middleware(answering)
			wantCodes(t, h, "192.0.2.1", "/200/35", 200)
			synctest.Wait()
			began := time.Now()
			if wantCodes(t, h, "192.0.2.1", "/200/10", 200); time.Since(began).Round(time.Second/8) != 3*time.Second {
				t.Errorf("%s: it waited for %v", name, time.Since(began))
			}
		}
	})
}

// While this process decides, a request takes its estimate, at least one permit.
func TestAnEstimateOfZeroIsOnePermitLocally(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := limittest.NewRealTime(t)
		guard := New(Per(s.Client(), "tokens", rratelimiter.PerHour(2), nil).Cost(nothing).CostAfter(costOf))
		guard.Policy = &Policy{Failure: FailLocal, Logger: quiet}
		s.Fail("LOADING")
		wantCodes(t, guard.Middleware(answering), "192.0.2.1", "/200/3", 200, 200, 429)
		s.Fail("")
		time.Sleep(time.Second)
	})
}

// A debt begins no penalty. A request that is refused because of it does, and waits for the longer
// of both.
func TestADebtAndAPenalty(t *testing.T) {
	for name, change := range map[string]func(Limit) Limit{
		"an estimate of 1": func(l Limit) Limit { return l },
		"an estimate of 0": func(l Limit) Limit { return l.Cost(nothing) },
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				r := rig.New(t, s)
				limit := func(lasts time.Duration) Limit {
					return change(Per(r.Client, "a", rratelimiter.PerMinute(10), nil)).Penalty(r.Client,
						lasts).CostAfter(costOf)
				}
				h := patient(limit(5 * time.Minute)).Middleware(answering)
				l, counted := r.Limiter("ratelimit:a"), r.Limiter("ratelimit:a:counted")
				wantCodes(t, h, "192.0.2.1", "/200/25", 200)
				awaitUsed(t, l, 25)
				awaitUsed(t, counted, 25)
				r.Advance(2 * time.Minute)
				wantCodes(t, h, "192.0.2.1", "/200/25", 200) // nobody was refused: no penalty
				awaitUsed(t, l, 30)
				awaitUsed(t, counted, 30)
				wantFields(t, h, "/200/1", "300", `"a";r=0;t=300`)
				r.Advance(5 * time.Minute)
				wantCodes(t, h, "192.0.2.1", "/200/100", 200)
				awaitUsed(t, l, 100)
				awaitUsed(t, counted, 100)
				wantFields(t, h, "/200/1", "600", `"a";r=0;t=600`)
			})
		})
	}
}

// The debt of a penalty has the bound of that of the limit.
func TestAPenaltyKnowsTheBoundOfADebt(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		guard := patient(Per(r.Client, "a", rratelimiter.PerMinute(10), nil, rratelimiter.WithMaxDebt(1)).
			Penalty(r.Client, time.Hour).CostAfter(costOf))
		var bound error
		told := make(chan error, 2)
		guard.Policy.Logger, guard.Policy.OnError = quiet, func(_ context.Context, err error) { told <- err }
		wantCodes(t, guard.Middleware(answering), "192.0.2.1", "/200/100", 200)
		for range 2 {
			if bound = <-told; !errors.Is(bound, rratelimiter.ErrDebtBound) {
				t.Error(bound)
			}
		}
		awaitUsed(t, r.Limiter("ratelimit:a"), 20)
		awaitUsed(t, r.Limiter("ratelimit:a:counted"), 20)
	})
}

// What exceeds the bound of a debt is logged as that, and not as a call that failed.
func TestADebtAtItsBoundIsLogged(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, book := rig.New(t, s), &logbook{}
		guard := patient(Per(r.Client, "a", rratelimiter.PerMinute(10), nil, rratelimiter.WithMaxDebt(1)).CostAfter(
			costOf))
		guard.Policy.Logger = book.logger()
		wantCodes(t, guard.Middleware(answering), "192.0.2.1", "/200/100", 200)
		var lines []string
		rig.Soon(t, "a line", func() bool { lines = book.lines(); return len(lines) > 0 })
		if got := lines[0]; !strings.Contains(got, "the debt of a limit is at its bound") ||
			!strings.Contains(got, "19 of 99 permits counted") {
			t.Error(got)
		}
	})
}
