package httplimit

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// A key that its limit refuses once stays refused in all processes until the penalty is over,
// however often it asks. Other keys and other limits do not change.
func TestPenalty(t *testing.T) {
	s := limittest.New(t)
	process := func() *Guard {
		client := s.Client()
		return patient(
			Per(client, "1m", rratelimiter.PerMinute(10), byAddr),
			Per(client, "1s", rratelimiter.PerSecond(2), byAddr).Penalty(client, 30*time.Second),
		)
	}
	first, second := process(), process()
	one, two := first.Middleware(ok), second.Middleware(ok)
	wantCodes(t, one, "192.0.2.1", "/", 200, 200)
	s.Advance(500 * time.Millisecond)
	response := get(one, "192.0.2.1", "/")
	if response.Code != 429 || response.Header().Get("Retry-After") != "30" {
		t.Errorf("%d, Retry-After %q, want 429 after 30 s", response.Code, response.Header().Get("Retry-After"))
	}
	for range 20 {
		s.Advance(time.Second)
		wantCodes(t, one, "192.0.2.1", "/", 429)
		wantCodes(t, two, "192.0.2.1", "/", 429)
	}
	response = get(two, "192.0.2.1", "/")
	if got := headerText(response.Header()); response.Code != 429 || got != "Content-Type: application/problem+json\n"+
		"Ratelimit: \"1s\";r=0;t=10\nRatelimit-Policy: \"1s\";q=2;w=1\nRetry-After: 10\nX-Content-Type-Options: nosniff\n" {
		t.Errorf("%d with\n%s", response.Code, got)
	}
	wantCodes(t, two, "192.0.2.2", "/", 200, 200)
	if free, err := s.Client().RateLimiter("ratelimit:192.0.2.1:1m").AvailablePermits(t.Context()); err != nil ||
		free != 8 {
		t.Errorf("the other limit has %d free permits, %v, want 8", free, err)
	}
	s.Advance(10 * time.Second)
	wantCodes(t, two, "192.0.2.1", "/", 200, 200, 429)
	wantCount(t, second.Policy, map[Outcome]int64{Allowed: 4, Denied: 22})
}

// The limiter of a penalty is one that all processes and rrl find.
func TestPenaltyEndsWithAReset(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		client := s.Client()
		limiter := rratelimiter.NewClient(client)
		h := patient(Per(limiter, "login", rratelimiter.PerHour(1), byAddr).Penalty(limiter, time.Hour)).Middleware(ok)
		wantCodes(t, h, "192.0.2.1", "/", 200, 429)
		for _, name := range []string{"ratelimit:192.0.2.1:login", "ratelimit:192.0.2.1:login:penalty"} {
			wantCodes(t, h, "192.0.2.1", "/", 429)
			if _, err := limiter.RateLimiter(name).Reset(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		wantCodes(t, h, "192.0.2.1", "/", 200, 429)
	})
}

// A rate of 0 is not exceeded by anybody: requests pass as soon as the rate is higher.
func TestNoPenaltyForARateOfZero(t *testing.T) {
	client, rate := limittest.New(t).Client(), rratelimiter.PerSecond(0)
	h := patient(
		PerFunc(client, "plan", func(*http.Request) rratelimiter.Rate { return rate }, byAddr).Penalty(client,
			time.Hour),
	).Middleware(ok)
	wantCodes(t, h, "192.0.2.1", "/", 429)
	rate = rratelimiter.PerSecond(1)
	wantCodes(t, h, "192.0.2.1", "/", 200)
}

// Without a reply about the penalty, Policy.Failure decides. A refusal is one even if its penalty
// cannot begin.
func TestPenaltyThatFails(t *testing.T) {
	away := limittest.New(t)
	box := away.Client()
	var failed []error
	guard := func(l Allower) *Guard {
		guard := patient(Shared("a", l).Penalty(box, time.Minute))
		guard.Policy.Logger = quiet
		guard.Policy.OnError = func(_ context.Context, err error) { failed = append(failed, err) }
		return guard
	}
	refusing := refusalThat(func() { away.Fail("ERR the penalty's server fails") })
	wantCodes(t, guard(refusing).Middleware(ok), "192.0.2.1", "/", 429)
	if len(failed) != 1 {
		t.Errorf("the errors are %v", failed)
	}
	wantCodes(t, guard(refusing).Middleware(ok), "192.0.2.1", "/", 503)
	if len(failed) != 2 {
		t.Errorf("the errors are %v", failed)
	}
}

// A refusalThat refuses after it has called the function.
type refusalThat func()

func (r refusalThat) Allow(context.Context, int64) (rratelimiter.Result, error) {
	r()
	return rratelimiter.Result{Limit: 1, RetryAfter: time.Second}, nil
}

func TestPenaltyPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a penalty of less than a millisecond is accepted")
		}
	}()
	client := limittest.New(t).Client()
	Per(client, "a", rratelimiter.PerSecond(1), nil).Penalty(client, time.Microsecond)
}

// wantRefused checks that a request is refused, and when it may come back: in Retry-After and in
// the field RateLimit.
func wantRefused(t *testing.T, h http.Handler, path string, seconds int) {
	t.Helper()
	w := get(h, "192.0.2.1", path)
	if after := w.Header().Get("Retry-After"); w.Code != 429 || after != strconv.Itoa(seconds) {
		t.Fatalf("%d, Retry-After %q, want 429 after %d s", w.Code, after, seconds)
	}
	if _, after := fields(t, w.Header()); after != seconds {
		t.Fatalf("t=%d, want %d", after, seconds)
	}
}

// awaitUsed waits until a limiter has so many permits in use: they are counted and given back in
// the background.
func awaitUsed(t *testing.T, l *rratelimiter.Limiter, permits int64) {
	t.Helper()
	for {
		switch s, err := l.State(t.Context()); {
		case err != nil && !errors.Is(err, rratelimiter.ErrNotInitialized):
			t.Fatal(err)
		case s.Used == permits:
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// Requests that are refused only because others are in flight begin no penalty, in no process.
// Those that count do.
func TestPenaltyFollowsFromWhatCounted(t *testing.T) {
	failed := func(status int, _ http.Header) bool { return status == http.StatusUnauthorized }
	for name, limit := range map[string]func(*rratelimiter.Client) Limit{
		"CountIf": func(c *rratelimiter.Client) Limit {
			return Per(c, "login", rratelimiter.PerMinute(5), byAddr).CountIf(failed).Penalty(c, 15*time.Minute)
		},
		"CountIf after the penalty": func(c *rratelimiter.Client) Limit {
			return Per(c, "login", rratelimiter.PerMinute(5), byAddr).Penalty(c, 15*time.Minute).CountIf(failed)
		},
		"CostAfter": func(c *rratelimiter.Client) Limit {
			cost := func(status int, h http.Header) int64 {
				if failed(status, h) {
					return 10
				}
				return 0
			}
			return Per(c, "login", rratelimiter.PerMinute(50), byAddr).Cost(ten).CostAfter(cost).Penalty(c,
				15*time.Minute)
		},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				r := rig.New(t, s)
				first, second := patient(limit(r.Client)), patient(limit(r.Beside("other").Client))
				permits := r.Limiter("ratelimit:192.0.2.1:login")
				entered, leave := make(chan bool), make(chan bool)
				slow := func(w http.ResponseWriter, r *http.Request) {
					entered <- true
					<-leave
				}
				codes := make(chan int)
				for i := range 5 {
					guard := []*Guard{first, second}[i%2]
					go func() { codes <- get(guard.Middleware(http.HandlerFunc(slow)), "192.0.2.1", "/").Code }()
					<-entered
				}
				one, two := first.Middleware(answering), second.Middleware(answering)
				wantCodes(t, one, "192.0.2.1", "/200", 429, 429)
				wantCodes(t, two, "192.0.2.1", "/200", 429)
				for range 5 {
					leave <- true
					if code := <-codes; code != 200 {
						t.Error(code)
					}
				}
				for range 8 {
					awaitUsed(t, permits, 0)
					wantCodes(t, one, "192.0.2.1", "/200", 200)
				}
				awaitUsed(t, permits, 0)
				wantCodes(t, one, "192.0.2.1", "/401", 401, 401, 401)
				wantCodes(t, two, "192.0.2.1", "/401", 401, 401)
				counted := r.Limiter("ratelimit:192.0.2.1:login:counted")
				for s, err := counted.State(t.Context()); err != nil ||
					s.Available > 0; s, err = counted.State(t.Context()) {
					time.Sleep(time.Millisecond)
				}
				wantRefused(t, two, "/200", 900)
				r.Advance(5 * time.Minute)
				wantRefused(t, one, "/200", 600)
			})
		})
	}
}

// A request that waits is not refused, and begins no penalty. One that would wait for too long
// does.
func TestPenaltyBeginsWhenARequestIsRefusedInTheEnd(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		client := rratelimiter.NewClient(s.Client(), rratelimiter.WithCallTimeout(20*time.Second))
		rate := rratelimiter.Rate{Permits: 3, Interval: 200 * time.Millisecond}
		guard := patient(Per(client, "a", rate, byAddr).Penalty(client, time.Hour))
		guard.Policy.Wait = 20 * time.Second
		wantCodes(t, guard.Middleware(ok), "192.0.2.1", "/", 200, 200, 200, 200, 200, 200, 200)
		guard.Policy = &Policy{Bound: 10 * time.Second, Wait: time.Minute}
		guard.SetLimits(Per(client, "b", rratelimiter.PerHour(1), byAddr).Penalty(client, 2*time.Hour))
		wantCodes(t, guard.Middleware(ok), "192.0.2.1", "/", 200)
		wantRefused(t, guard.Middleware(ok), "/", 7200)
	})
}

// A penalized request does not wait, and takes no permit, though the limit has some.
func TestPenalizedRequestsDoNotWait(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		h := patient(Per(r.Client, "a", rratelimiter.PerMinute(1), byAddr).Penalty(r.Client,
			10*time.Minute)).Middleware(ok)
		wantCodes(t, h, "192.0.2.1", "/", 200, 429)
		r.Advance(5 * time.Minute)
		waiting := patient(Per(r.Client, "a", rratelimiter.PerMinute(1), byAddr).Penalty(r.Client, 10*time.Minute))
		waiting.Policy.Wait = time.Hour
		wantRefused(t, waiting.Middleware(ok), "/", 300)
		if n := r.Free(r.Limiter("ratelimit:192.0.2.1:a")); n != 1 {
			t.Errorf("%d permits are free, want 1", n)
		}
	})
}

// A client that comes back when it is told passes, also if the penalty ends before the limit has
// the permits of the request.
func TestObedientClientIsNotPenalizedAgain(t *testing.T) {
	byPath := func(r *http.Request) int64 { n, _ := strconv.ParseInt(r.URL.Path[1:], 10, 64); return n }
	type step struct {
		wait    time.Duration
		path    string
		refused int // seconds; 0: it passes
	}
	const m = time.Minute
	for name, c := range map[string]struct {
		rate  rratelimiter.Rate
		lasts time.Duration
		steps []step
	}{
		"shorter than the interval": {
			rratelimiter.Rate{Permits: 3, Interval: 8 * time.Second}, 2 * time.Second,
			[]step{{0, "/3", 0}, {0, "/1", 8}, {time.Second, "/1", 7}, {7 * time.Second, "/1", 0}},
		},
		"back too early": {
			rratelimiter.Rate{Permits: 3, Interval: 8 * time.Second}, 2 * time.Second,
			[]step{
				{0, "/3", 0},
				{0, "/1", 8},
				{7 * time.Second, "/1", 2},
				{time.Second, "/1", 1},
				{time.Second, "/1", 0},
			},
		},
		"1000 an hour": {
			rratelimiter.PerHour(1000), 15 * m,
			[]step{{0, "/1000", 0}, {10 * m, "/1", 3000}, {10 * m, "/1", 2400}, {40 * m, "/1", 0}},
		},
		"a dearer request": {
			rratelimiter.PerHour(10), 45 * m,
			[]step{
				{0, "/4", 0}, {30 * m, "/6", 0}, {0, "/1", 2700}, {10 * m, "/4", 2100}, {0, "/10", 3000},
				{25 * m, "/1", 600},
				{0, "/10", 1500}, {25 * m, "/10", 0},
			},
		},
		"another penalty": {
			rratelimiter.PerHour(10), 45 * m,
			[]step{
				{0, "/10", 0}, {20 * m, "/1", 2700}, {42 * m, "/1", 180}, {3 * m, "/10", 0}, {0, "/1", 3600},
				{44 * m, "/1", 960},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				r := rig.New(t, s)
				h := patient(Per(r.Client, "a", c.rate, byAddr).Cost(byPath).Penalty(r.Client, c.lasts)).Middleware(ok)
				for _, step := range c.steps {
					r.Advance(step.wait)
					if step.refused == 0 {
						wantCodes(t, h, "192.0.2.1", step.path, 200)
					} else {
						wantRefused(t, h, step.path, step.refused)
					}
				}
			})
		})
	}
}

// All limits with a penalty say when the request may come back, so that one wait is enough.
func TestTheLongestPenaltyIsTold(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		h := patient(
			Per(r.Client, "a", rratelimiter.PerMinute(1), byAddr).Penalty(r.Client, 5*time.Minute),
			Per(r.Client, "b", rratelimiter.PerMinute(1), byAddr).Penalty(r.Client, 20*time.Minute),
		).Middleware(ok)
		wantCodes(t, h, "192.0.2.1", "/", 200, 429)
		r.Advance(time.Minute)
		if w := get(h, "192.0.2.1", "/"); w.Header().Get("Retry-After") != "1140" ||
			w.Header().Get("RateLimit") != `"a";r=0;t=240, "b";r=0;t=1140` {
			t.Errorf("%d with\n%s", w.Code, headerText(w.Header()))
		}
		r.Advance(19 * time.Minute)
		wantCodes(t, h, "192.0.2.1", "/", 200)
	})
}

// With a deny cache, the process refuses the requests of a penalized key without a call, until the
// penalty ends or this client changes it.
func TestPenaltyFromTheDenyCache(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		limit := Per(r.Client, "login", rratelimiter.PerMinute(5), byAddr, rratelimiter.WithDenyCache(100)).
			Penalty(r.Client, 15*time.Minute)
		h := patient(limit).Middleware(ok)
		wantCodes(t, h, "192.0.2.1", "/", 200, 200, 200, 200, 200)
		refused := func(what string, most int64) {
			t.Helper()
			began, calls := r.Now(), r.Calls.Load()
			for range 250 {
				wantRefused(t, h, "/", 900-int(r.Now().Sub(began)/time.Second))
			}
			for range 14 {
				r.Advance(time.Minute)
				for range 50 {
					wantRefused(t, h, "/", 900-int(r.Now().Sub(began)/time.Second))
				}
			}
			if n := r.Calls.Load() - calls; n > most {
				t.Errorf("%s: %d calls for 950 refusals, want at most %d", what, n, most)
			}
		}
		// what the penalty has left, that the limit refuses, that it begins; then that it goes on,
		// and that the limit has the permits again
		refused("the first penalty", 5)
		r.Advance(time.Minute)
		wantCodes(t, h, "192.0.2.1", "/", 200, 200, 200, 200, 200)
		refused("the second penalty", 5)
		if _, err := r.Limiter("ratelimit:192.0.2.1:login:penalty").Reset(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantCodes(t, h, "192.0.2.1", "/", 200)
	})
}

// A request of a key without a penalty costs two calls.
func TestALimitWithAPenaltyCostsTwoCalls(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		h := patient(Per(r.Client, "login", rratelimiter.PerMinute(5), byAddr).Penalty(r.Client, time.Hour)).Middleware(
			ok)
		wantCodes(t, h, "192.0.2.1", "/", 200)
		calls := r.Calls.Load()
		if wantCodes(t, h, "192.0.2.1", "/", 200); r.Calls.Load()-calls != 2 {
			t.Errorf("%d calls", r.Calls.Load()-calls)
		}
	})
}

// A limit in shadow begins penalties, and counts what they would refuse.
func TestPenaltyInShadow(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		guard := patient(Per(r.Client, "a", rratelimiter.PerSecond(1), byAddr).Penalty(r.Client, time.Hour).Shadow())
		h := guard.Middleware(ok)
		wantCodes(t, h, "192.0.2.1", "/", 200, 200)
		r.Advance(time.Minute)
		wantCodes(t, h, "192.0.2.1", "/", 200)
		wantCount(t, guard.Policy, map[Outcome]int64{Allowed: 1, Shadowed: 2})
	})
}

// While the process decides for the limit, no penalty is asked for, and none begins.
func TestNoPenaltyWhileTheProcessDecides(t *testing.T) {
	s := limittest.New(t)
	client := s.Client()
	limit := Per(client, "a", rratelimiter.PerMinute(1), byAddr, rratelimiter.WithFallback(1)).Penalty(client,
		time.Hour)
	h, health := patient(limit).Middleware(ok), client.RateLimiter("a").Health
	s.Fail("LOADING Redis is loading the dataset in memory")
	hasty := New(limit)
	hasty.Policy = &Policy{Logger: quiet}
	for !health().Away {
		get(hasty.Middleware(ok), "192.0.2.1", "/")
	}
	wantCodes(t, h, "192.0.2.2", "/", 200, 429)
	s.Fail("")
	for health().Away {
		time.Sleep(time.Millisecond)
	}
	s.Advance(time.Minute)
	wantCodes(t, h, "192.0.2.2", "/", 200)
}

// Without its rate, what counted of a limit is not known.
func TestPenaltyOfALimitThatCountsWithoutARate(t *testing.T) {
	seen := &decisions{}
	client := limittest.New(t).Client(rratelimiter.WithObserver(seen))
	shared := client.RateLimiter("a", rratelimiter.WithRate(rratelimiter.PerSecond(1)))
	guard := patient(Shared("a", shared).CountIf(succeeded).Penalty(client, time.Hour))
	guard.Policy.Logger = quiet
	var failed error
	guard.Policy.OnError = func(_ context.Context, err error) { failed = err }
	wantCodes(t, guard.Middleware(ok), "192.0.2.1", "/", 503)
	if !errors.Is(failed, rratelimiter.ErrInvalidOption) {
		t.Errorf("the error is %v", failed)
	}
	if len(seen.reported) != 1 || seen.reported[0].Outcome != "failed closed" {
		t.Errorf("the client's observer was told %+v", seen.reported)
	}
}

// A request that costs more than a rate that the guard does not know asks for one permit, also
// while it has a penalty.
func TestPenaltyOfACostAboveTheRate(t *testing.T) {
	client := limittest.New(t).Client()
	shared := client.RateLimiter("a", rratelimiter.WithRate(rratelimiter.PerMinute(1)))
	guard := patient(Shared("a", shared).Cost(ten).Penalty(client, time.Second))
	guard.Policy.Logger = quiet
	h := guard.Middleware(ok)
	wantCodes(t, h, "192.0.2.1", "/", 200)
	wantRefused(t, h, "/", 60)
	wantRefused(t, h, "/", 60)
}

// If a limiter takes no permits back, all requests count, and its refusals begin penalties.
func TestPenaltyOfALimiterThatTakesNothingBack(t *testing.T) {
	client := limittest.New(t).Client()
	full := Shared("full", fixed{rratelimiter.Result{Limit: 1, RetryAfter: time.Second}, nil})
	h := patient(full.CountIf(succeeded).Penalty(client, time.Hour)).Middleware(ok)
	wantRefused(t, h, "/", 3600)
	wantRefused(t, h, "/", 3600)
}

// Limits with different names have different penalties, also for one key.
func TestPenaltiesOfAlternatives(t *testing.T) {
	client := limittest.New(t).Client()
	limit := Per(client, "a", rratelimiter.PerHour(1), func(r *http.Request) string { return r.Header.Get("X-Key") }).
		OrElse(Per(client, "b", rratelimiter.PerHour(1), func(*http.Request) string { return "k" })).Penalty(client,
		time.Hour)
	h := patient(limit).Middleware(ok)
	wantCodes(t, h, "192.0.2.1", "/", 200, 429)
	keyed := func(r *http.Request) { r.Header.Set("X-Key", "k") }
	if w := get(h, "192.0.2.1", "/", keyed); w.Code != 200 {
		t.Errorf("%d", w.Code)
	}
}
