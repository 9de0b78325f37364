package httplimit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// ok is the handler behind the guards of these tests.
var ok = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "served") })

// get sends a request from a client address to a handler. A change to the request may be given.
func get(h http.Handler, addr, path string, change ...func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.RemoteAddr = addr + ":1234"
	for _, c := range change {
		c(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func wantCodes(t *testing.T, h http.Handler, addr, path string, codes ...int) {
	t.Helper()
	for i, code := range codes {
		if w := get(h, addr, path); w.Code != code {
			t.Fatalf("%s %s, request %d: %d %s, not %d", addr, path, i+1, w.Code, w.Body, code)
		}
	}
}

// patient returns a guard whose limits may be slow, so that a busy machine causes no failure.
func patient(limits ...Limit) *Guard {
	guard := New(limits...)
	guard.Policy = &Policy{Failure: FailClosed, Bound: 10 * time.Second}
	return guard
}

func byAddr(r *http.Request) string { return ClientAddr{}.Key(r) }

// quiet discards the log of a policy.
var quiet = slog.New(slog.DiscardHandler)

func TestRefusedRequestIsToldWhenToComeBack(t *testing.T) {
	s := limittest.New(t)
	client := s.Client()
	guard := patient(
		Per(client, "10s", rratelimiter.Rate{Permits: 2, Interval: 10 * time.Second}, byAddr),
		Per(client, "1m", rratelimiter.PerMinute(3), byAddr),
	)
	served := 0
	h := guard.Middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ }))
	for _, step := range []struct {
		wait          time.Duration
		code          int
		limit, policy string
		retryAfter    string
	}{
		{0, 200, `"10s";r=1;t=10, "1m";r=2;t=60`, `"10s";q=2;w=10, "1m";q=3;w=60`, ""},
		{2500 * time.Millisecond, 200, `"10s";r=0;t=8, "1m";r=1;t=58`, `"10s";q=2;w=10, "1m";q=3;w=60`, ""},
		{0, 429, `"10s";r=0;t=8`, `"10s";q=2;w=10, "1m";q=3;w=60`, "8"},
		{7500 * time.Millisecond, 200, `"10s";r=0;t=3, "1m";r=0;t=50`, `"10s";q=2;w=10, "1m";q=3;w=60`, ""},
		{10 * time.Second, 429, `"1m";r=0;t=40`, `"10s";q=2;w=10, "1m";q=3;w=60`, "40"},
	} {
		s.Advance(step.wait)
		w := get(h, "192.0.2.1", "/")
		h := w.Header()
		if w.Code != step.code || h.Get("RateLimit") != step.limit || h.Get("RateLimit-Policy") != step.policy ||
			h.Get("Retry-After") != step.retryAfter {
			t.Errorf("after %v: %d\n%s\nnot %+v", step.wait, w.Code, headerText(h), step)
		}
	}
	if served != 3 {
		t.Errorf("the handler served %d", served)
	}
}

// fields returns r and t of the only limit in a field RateLimit.
func fields(t *testing.T, h http.Header) (remaining, after int) {
	t.Helper()
	var name string
	if _, err := fmt.Sscanf(strings.ReplaceAll(h.Get("RateLimit"), ";", " "), "%q r=%d t=%d", &name, &remaining,
		&after); err != nil {
		t.Fatalf("%v: %s", err, headerText(h))
	}
	return remaining, after
}

// A client gets the whole rate if it takes the permits that the field RateLimit says remain, and
// then waits for the time in that field. So does one that spreads its requests over this time,
// unless that is too short for a field in whole seconds.
func TestObedientClientGetsTheWholeRate(t *testing.T) {
	const soon = 200 * time.Microsecond
	takes := func(remaining, after int) time.Duration {
		if remaining > 0 {
			return 0
		}
		return time.Duration(after) * time.Second
	}
	spreads := func(remaining, after int) time.Duration {
		return time.Duration(after) * time.Second / time.Duration(remaining+1)
	}
	kept := rratelimiter.PerMinute(6)
	kept.KeepAlive = time.Hour // grants are not plain ones
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for i, c := range []struct {
			rate  rratelimiter.Rate
			took  time.Duration // of one request
			pause func(remaining, after int) time.Duration
		}{
			{rratelimiter.PerSecond(10), soon, takes}, {rratelimiter.PerSecond(100), soon, takes},
			{rratelimiter.PerHour(1000), soon, takes},
			{rratelimiter.PerMinute(6), soon, takes}, {rratelimiter.PerMinute(6), 2 * time.Second, takes},
			{kept, 2 * time.Second, takes},
			{rratelimiter.PerMinute(6), soon, spreads}, {rratelimiter.PerHour(100), soon, spreads},
		} {
			now := time.Date(2026, 1, 1, 0, 0, 0, 300_000, time.UTC)
			start, served, refused := now, 0, 0
			client := rratelimiter.NewClient(
				s.Client(), rratelimiter.WithClock(func() time.Time { return now }),
				rratelimiter.WithCallTimeout(10*time.Second),
			)
			guard := patient(Shared("all", client.RateLimiter(fmt.Sprint(i), rratelimiter.WithRate(c.rate))))
			guard.XRateLimit = true
			h := guard.Middleware(ok)
			for now.Sub(start) < 10*c.rate.Interval && served < 2000 {
				w := get(h, "192.0.2.1", "/")
				remaining, after := fields(t, w.Header())
				if after < 1 || time.Duration(after)*time.Second > c.rate.Interval ||
					w.Header().Get("X-RateLimit-Reset") != fmt.Sprint(after) {
					t.Fatalf("%d: %v: %d\n%s", i, c.rate, w.Code, headerText(w.Header()))
				}
				if w.Code == http.StatusOK {
					served++
				} else {
					refused++
				}
				now = now.Add(c.took + c.pause(remaining, after))
			}
			if most := float64(c.rate.Permits) * float64(now.Sub(start)) / float64(c.rate.Interval); float64(
				served,
			) < 0.95*most {
				t.Errorf("%d: %v: served %d of %.0f, refused %d", i, c.rate, served, most, refused)
			}
		}
	})
}

func TestGuardOnAnyRedis(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		client := rratelimiter.NewClient(s.Client(), rratelimiter.WithCallTimeout(10*time.Second))
		guard := patient(
			Per(client, "1h", rratelimiter.PerHour(2), Join(byAddr, Path)),
			Per(client, "1m", rratelimiter.PerMinute(200), byAddr),
		)
		h := guard.Middleware(ok)
		wantCodes(t, h, "192.0.2.1", "/a", 200, 200, 429, 429)
		wantCodes(t, h, "192.0.2.1", "/b", 200)
		wantCodes(t, h, "192.0.2.2", "/a", 200)
		state, err := client.RateLimiter("ratelimit:192.0.2.1:1m").State(t.Context())
		if err != nil || state.Used != 3 {
			t.Errorf("refused requests took permits of another limit: %+v, %v", state, err)
		}
		if state, err = client.RateLimiter("ratelimit:192.0.2.1:/a:1h").State(t.Context()); err != nil ||
			state.Used != 2 {
			t.Errorf("%+v, %v", state, err)
		}
	})
}

func TestGeneratedLimitersDontStay(t *testing.T) {
	s := limittest.New(t)
	client := s.Client()
	own := rratelimiter.Rate{Permits: 1, Interval: time.Second, KeepAlive: time.Hour}
	h := patient(
		Per(client, "1s", rratelimiter.PerSecond(1), byAddr),
		PerFunc(client, "own", func(*http.Request) rratelimiter.Rate { return own }, byAddr),
	).Middleware(ok)
	for i := range 20 {
		wantCodes(t, h, fmt.Sprintf("192.0.2.%d", i), "/", 200)
	}
	keys := func() int { return len(s.Redis().Keys(t.Context(), "*").Val()) }
	if n := keys(); n != 20*2*3 {
		t.Errorf("%d keys of 40 limiters", n)
	}
	s.Advance(time.Minute)
	if n := keys(); n != 20*3 {
		t.Errorf("after a minute %d keys", n)
	}
	s.Advance(time.Hour)
	if n := keys(); n != 0 {
		t.Errorf("after an hour %d keys", n)
	}
}

// Twice the interval is more than a time.Duration holds.
func TestVeryLongInterval(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		client := rratelimiter.NewClient(s.Client(), rratelimiter.WithCallTimeout(10*time.Second))
		claim := Named(client, "age", "", rratelimiter.Rate{Permits: 1, Interval: 150 * 365 * 24 * time.Hour})
		p := &Policy{Bound: 10 * time.Second}
		for i, want := range []Outcome{Allowed, Denied} {
			if d := p.Decide(t.Context(), claim); d.Outcome != want {
				t.Errorf("request %d: %v, not %v: %v", i+1, d.Outcome, want, d.Err)
			}
		}
	})
}

func TestNamedTakesOptionsOfTheLimiter(t *testing.T) {
	claim := Named(limittest.New(t).Client(), "a", "", rratelimiter.PerSecond(1), rratelimiter.WithLease(time.Second))
	if _, err := claim.Limiter.Allow(t.Context(), 1); !errors.Is(err, rratelimiter.ErrInvalidOption) {
		t.Errorf("a lease that is as long as the interval: %v", err)
	}
}

// A limit that could check no request is an error of the program at its start, and makes no call.
func TestAnInvalidLimitIsNotMade(t *testing.T) {
	s := limittest.New(t)
	second, lease := rratelimiter.PerSecond(1), rratelimiter.WithLease(time.Second) // as long as the interval
	for name, c := range map[string]struct {
		make func()
		bad  bool
	}{
		"a long lease":    {func() { Per(s.Client(), "a", second, byAddr, lease) }, true},
		"a negative rate": {func() { Per(s.Client(), "a", rratelimiter.PerSecond(-1), byAddr) }, true},
		"no interval":     {func() { Per(s.Client(), "a", rratelimiter.Rate{Permits: 1}, byAddr) }, true},
		"a shared long lease": {func() {
			Shared("a", s.Client().RateLimiter("a", rratelimiter.WithEnforcedRate(second), lease))
		}, true},
		"no limit":            {func() { Per(s.Client(), "a", rratelimiter.Unlimited, byAddr) }, false},
		"a rate that refuses": {func() { Per(s.Client(), "a", rratelimiter.PerSecond(0), byAddr) }, false},
		"a rate of each request": {func() {
			PerFunc(s.Client(), "a", func(*http.Request) rratelimiter.Rate { return second }, byAddr, lease)
		}, false},
		"nothing shared": {func() { Shared("a", (*rratelimiter.Limiter)(nil)) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				text, _ := recover().(string)
				if bad := strings.HasPrefix(text, `httplimit: limit "a": `); bad != c.bad || !bad && text != "" {
					t.Errorf("it panicked with %q", text)
				}
			}()
			c.make()
		})
	}
	if n := s.Redis().DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys", n)
	}
}

func TestPerTakesOptionsOfTheLimiters(t *testing.T) {
	s := limittest.New(t)
	guard := patient(Per(s.Client(), "1h", rratelimiter.PerHour(3), byAddr, rratelimiter.WithRecordPerRequest()))
	wantCodes(t, guard.Middleware(ok), "192.0.2.1", "/", 200, 200, 200, 429)
	if n := s.Redis().ZCard(t.Context(), "{ratelimit:192.0.2.1:1h}:permits").Val(); n != 3 {
		t.Errorf("%d records", n)
	}
}

// Browsers ask by themselves whether a script may send a request, and let it read the fields of the
// response that it is told.
func TestRequestsOfScripts(t *testing.T) {
	s := limittest.New(t)
	guard := patient(Per(s.Client(), "1h", rratelimiter.PerHour(1), byAddr))
	guard.CORS = true
	h := guard.Middleware(ok)
	script := func(r *http.Request) { r.Header.Set("Origin", "https://shop.example.com") }
	preflight := func(r *http.Request) {
		script(r)
		r.Method = http.MethodOptions
		r.Header.Set("Access-Control-Request-Method", "PUT")
	}
	const exposed = "Access-Control-Expose-Headers: RateLimit, RateLimit-Policy, Retry-After\n"
	for _, c := range []struct {
		name   string
		change func(*http.Request)
		code   int
		told   bool
	}{
		{"a preflight", preflight, 200, false},
		{"a script's request", script, 200, true},
		{"a preflight after it", preflight, 200, false},
		{"a refusal", script, 429, true},
		{"another request", func(r *http.Request) {}, 429, false},
		{"OPTIONS alone", func(r *http.Request) { r.Method = http.MethodOptions }, 429, false},
		{"OPTIONS of a script", func(r *http.Request) { script(r); r.Method = http.MethodOptions }, 429, true},
	} {
		w := get(h, "192.0.2.1", "/", c.change)
		if told := strings.Contains(headerText(w.Header()), exposed); w.Code != c.code || told != c.told {
			t.Errorf("%s: %d\n%s", c.name, w.Code, headerText(w.Header()))
		}
	}
	guard = patient(Per(s.Client(), "plain", rratelimiter.PerHour(1), byAddr))
	h = guard.Middleware(ok)
	get(h, "192.0.2.1", "/", preflight)
	if w := get(h, "192.0.2.1", "/", script); w.Code != 429 || strings.Contains(headerText(w.Header()), exposed) {
		t.Errorf("without CORS: %d\n%s", w.Code, headerText(w.Header()))
	}
}

// Clients that are refused together are told different times, none of them too early.
func TestRefusedClientsAreScattered(t *testing.T) {
	s := limittest.New(t)
	guard := patient(Per(s.Client(), "1h", rratelimiter.PerHour(1), nil))
	guard.Policy.Jitter = time.Minute
	h := guard.Middleware(ok)
	wantCodes(t, h, "192.0.2.1", "/", 200)
	told := map[int]bool{}
	for range 100 {
		w := get(h, "192.0.2.1", "/")
		remaining, after := fields(t, w.Header())
		if w.Code != 429 || remaining != 0 || after < 3600 || after > 3660 ||
			w.Header().Get("Retry-After") != strconv.Itoa(after) {
			t.Fatalf("%d\n%s", w.Code, headerText(w.Header()))
		}
		told[after] = true
	}
	if len(told) < 20 { // of 61
		t.Errorf("100 clients are told only %d times", len(told))
	}
}

func TestRateOfTheRequest(t *testing.T) {
	s := limittest.New(t)
	var rates atomic.Pointer[map[string]rratelimiter.Rate]
	rates.Store(&map[string]rratelimiter.Rate{"/paid": rratelimiter.PerMinute(2), "/free": rratelimiter.PerMinute(1)})
	h := patient(
		PerFunc(s.Client(), "plan", func(r *http.Request) rratelimiter.Rate {
			return (*rates.Load())[r.URL.Path]
		}, Path),
	).Middleware(ok)
	wantCodes(t, h, "192.0.2.1", "/paid", 200, 200, 429)
	wantCodes(t, h, "192.0.2.1", "/free", 200, 429)
	wantCodes(t, h, "192.0.2.1", "/open", 200, 200, 200)

	// The new rate counts what was granted under the old one.
	rates.Store(&map[string]rratelimiter.Rate{"/paid": rratelimiter.PerMinute(3), "/open": rratelimiter.PerMinute(1)})
	wantCodes(t, h, "192.0.2.1", "/paid", 200, 429)
	wantCodes(t, h, "192.0.2.1", "/free", 200, 200)
	wantCodes(t, h, "192.0.2.1", "/open", 200, 429)
	s.Advance(time.Minute)
	wantCodes(t, h, "192.0.2.1", "/paid", 200, 200, 200, 429)
}

func TestLimitsChangeWhileRequestsCome(t *testing.T) {
	s := limittest.New(t)
	none := func(*http.Request) Claim { return Claim{} }
	refuseAll := Shared("none", fixed{rratelimiter.Result{Limit: 1, RetryAfter: time.Second}, nil})
	guard := patient(none)
	h := guard.Middleware(ok)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for i := range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if w := get(h, fmt.Sprint("192.0.2.", i), "/"); w.Code != 200 && w.Code != 429 {
					t.Errorf("%d %s", w.Code, w.Body)
					return
				}
			}
		})
	}
	for range 50 {
		guard.SetLimits(none, Per(s.Client(), "1h", rratelimiter.PerHour(2), byAddr))
		guard.SetLimits()
		guard.SetLimits(refuseAll, none)
		wantCodes(t, h, "192.0.2.9", "/", 429)
		guard.SetLimits(none)
		wantCodes(t, h, "192.0.2.9", "/", 200)
	}
	close(stop)
	wg.Wait()
}

func TestSkippedRequestsTakeNothing(t *testing.T) {
	s := limittest.New(t)
	guard := patient(Per(s.Client(), "1h", rratelimiter.PerHour(1), byAddr))
	guard.Skip = []Rule{ClientAddr{}.Private, Paths("/healthz")}
	h := guard.Middleware(ok)
	wantCodes(t, h, "192.168.0.1", "/", 200, 200, 200)
	wantCodes(t, h, "192.0.2.1", "/healthz", 200, 200)
	if w := get(h, "192.0.2.1", "/healthz"); len(w.Header()) > 1 {
		t.Errorf("a free request has limit headers:\n%s", headerText(w.Header()))
	}
	if n := s.Redis().DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys", n)
	}
	wantCodes(t, h, "192.0.2.1", "/", 200, 429)
}

func TestOutcomesOfTheDefaultPolicyCanBeRead(t *testing.T) {
	guard := New(Shared("none", fixed{rratelimiter.Result{Limit: 1, RetryAfter: time.Second}, nil}))
	wantCodes(t, guard.Middleware(ok), "192.0.2.1", "/", 429, 429)
	wantCount(t, guard.ActivePolicy(), map[Outcome]int64{Denied: 2})
	guard = patient()
	if guard.ActivePolicy() != guard.Policy {
		t.Error("it is not the policy that was set")
	}
}

func TestZeroGuardLetsAllPass(t *testing.T) {
	wantCodes(t, new(Guard).Middleware(ok), "192.0.2.1", "/", 200, 200)
	wantCodes(t, New().Middleware(ok), "192.0.2.1", "/", 200, 200)
}

func TestNilGuardLetsAllPass(t *testing.T) {
	var guard *Guard
	wantCodes(t, guard.Middleware(ok), "192.0.2.1", "/", 200)
	if n := guard.ActivePolicy().Count(Unlimited); n != 0 {
		t.Errorf("%d counted", n)
	}
}

func TestRefusalTakesNothingOfLimitsWithOtherCosts(t *testing.T) {
	for _, clients := range []int{1, 2} {
		s := limittest.New(t)
		client := s.Client()
		other := client
		if clients == 2 { // so they are checked in order
			other = s.Client()
		}
		h := patient(
			Per(client, "all", rratelimiter.PerMinute(100), nil).Cost(func(*http.Request) int64 { return 3 }),
			Per(other, "each", rratelimiter.PerMinute(1), byAddr),
		).Middleware(ok)
		wantCodes(t, h, "192.0.2.1", "/", 200)
		s.Advance(30 * time.Second)
		wantCodes(t, h, "192.0.2.1", "/", 429, 429, 429)
		all := client.RateLimiter("ratelimit:all")
		if state, err := all.State(t.Context()); err != nil || state.Used != 3 {
			t.Errorf("%d clients: %+v, %v", clients, state, err)
		}
		s.Advance(30 * time.Second)
		if n, err := all.AvailablePermits(t.Context()); n != 100 || err != nil {
			t.Errorf("%d clients: %d are free once what was granted has expired, %v", clients, n, err)
		}
	}
}

func TestCost(t *testing.T) {
	s := limittest.New(t)
	cost := func(r *http.Request) int64 { return r.ContentLength }
	h := patient(Per(s.Client(), "1m", rratelimiter.PerMinute(10), nil).Cost(cost)).Middleware(ok)
	send := func(length int64) int {
		return get(h, "192.0.2.1", "/", func(r *http.Request) { r.ContentLength = length }).Code
	}
	for i, c := range []struct {
		length int64
		code   int
	}{{6, 200}, {5, 429}, {4, 200}, {1, 429}, {0, 200}, {-1, 200}} {
		if code := send(c.length); code != c.code {
			t.Errorf("request %d of cost %d: %d", i, c.length, code)
		}
	}
}

// A request larger than the rate is a configuration error: the response does not show it, and the
// client gains nothing.
func TestRequestLargerThanTheRate(t *testing.T) {
	s := limittest.New(t)
	must := func(_ bool, err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx := t.Context()
	unknown := s.Client().RateLimiter("unknown")
	must(unknown.TrySetRate(ctx, rratelimiter.PerMinute(2)))
	never := s.Client().RateLimiter("never")
	must(never.TrySetRate(ctx, rratelimiter.PerMinute(2)))
	s.Redis().HSet(ctx, "never", "rate", 0)
	cost := func(*http.Request) int64 { return 1e9 }
	for _, c := range []struct {
		name  string
		limit Limit
		codes []int
	}{
		{"takes the whole rate", Per(s.Client(), "1m", rratelimiter.PerMinute(2), nil), []int{200, 429, 429}},
		{"takes a permit of an unknown rate", Shared("unknown", unknown), []int{200, 200, 429}},
		{"gets nothing where there is nothing", Shared("never", never), []int{429, 429}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log bytes.Buffer
			var errs int
			guard := patient(c.limit.Cost(cost))
			guard.Policy = &Policy{
				Bound: 10 * time.Second, Logger: slog.New(slog.NewTextHandler(&log, nil)),
				OnError: func(context.Context, error) { errs++ },
			}
			wantCodes(t, guard.Middleware(ok), "192.0.2.1", "/", c.codes...)
			if strings.Count(log.String(), "\n") != 1 ||
				!strings.Contains(log.String(), "the rate is less than the requested permits") {
				t.Errorf("logged: %s", &log)
			}
			if errs != len(c.codes) {
				t.Errorf("%d errors reported", errs)
			}
		})
	}
}

func TestRefuseWritesTheAnswer(t *testing.T) {
	guard := patient(Shared("mine", fixed{rratelimiter.Result{Limit: 5, RetryAfter: 3 * time.Second}, nil}))
	guard.Refuse = func(w http.ResponseWriter, r *http.Request, d Decision) {
		http.Error(w, fmt.Sprint(r.URL.Path, d.Refused(), w.Header().Get("Retry-After")), http.StatusTeapot)
	}
	if w := get(guard.Middleware(ok), "192.0.2.1", "/x"); w.Code != http.StatusTeapot ||
		w.Body.String() != "/x[mine]3\n" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// The fields are lists, so they have the limits of both guards.
func TestGuardInGuard(t *testing.T) {
	grant := func(name string) *Guard {
		return patient(Shared(name, fixed{rratelimiter.Result{Allowed: true, Limit: 5, Remaining: 4}, nil}))
	}
	w := get(grant("outer").Middleware(grant("inner").Middleware(ok)), "192.0.2.1", "/")
	if got := strings.Join(w.Header().Values("RateLimit"), ", "); got != `"outer";r=4, "inner";r=4` {
		t.Error(got)
	}
}

func TestRequestsWithoutAKey(t *testing.T) {
	client := limittest.New(t).Client()
	user := func(r *http.Request) string { return r.Header.Get("X-User") }
	rates := func(r *http.Request) rratelimiter.Rate {
		if user(r) == "" {
			t.Error("asked for the rate of no user")
		}
		return map[string]rratelimiter.Rate{"ann": rratelimiter.PerHour(1)}[user(r)]
	}
	double := func(*http.Request) int64 { return 2 }
	perUser := PerFunc(client, "users", rates, By("user", user))
	for _, c := range []struct {
		name               string
		limit              Limit
		ann, root, unnamed []int
	}{
		{"not limited", perUser, []int{200, 429}, []int{200, 200}, []int{200, 200, 200}},
		{
			"or else", perUser.OrElse(Per(client, "rest", rratelimiter.PerHour(2), byAddr)), []int{429},
			[]int{200, 200, 200},
			[]int{200, 200, 429},
		},
		{
			"twice", perUser.OrElse(perUser).OrElse(Per(client, "all", rratelimiter.PerHour(1), nil)), []int{429},
			[]int{200, 200}, []int{200, 429},
		},
		{
			"cost",
			Per(client, "cost", rratelimiter.PerHour(2), By("user", user)).Cost(double).OrElse(
				Per(client, "other", rratelimiter.PerHour(1), byAddr)),
			[]int{200, 429}, []int{200, 429}, []int{200, 429},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := patient(c.limit).Middleware(ok)
			for name, codes := range map[string][]int{"ann": c.ann, "root": c.root, "": c.unnamed} {
				for i, code := range codes {
					if w := get(h, "192.0.2.1", "/", func(r *http.Request) {
						r.Header.Set("X-User", name)
					}); w.Code != code {
						t.Errorf("%q, request %d: %d, not %d", name, i, w.Code, code)
					}
				}
			}
		})
	}
}

func TestRouteInsideAMux(t *testing.T) {
	s := limittest.New(t)
	guard := patient(Per(s.Client(), "1h", rratelimiter.PerHour(1), Join(byAddr, Route)))
	mux := http.NewServeMux()
	mux.Handle("GET /orders/{id}", guard.Middleware(ok))
	mux.Handle("GET /users/{id}", guard.Middleware(ok))
	wantCodes(t, mux, "192.0.2.1", "/orders/1", 200, 429)
	wantCodes(t, mux, "192.0.2.1", "/orders/2", 429)
	wantCodes(t, mux, "192.0.2.1", "/users/1", 200)
	if n := s.Redis().Exists(t.Context(), "ratelimit:192.0.2.1:GET+/orders/<id>:1h").Val(); n != 1 {
		t.Errorf("keys: %v", s.Redis().Keys(t.Context(), "*").Val())
	}
}
