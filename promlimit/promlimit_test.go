package promlimit

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// page returns the text of the metrics for Prometheus, without comments and zeros.
func page(t *testing.T, m *Metrics) string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(m)
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	if answer.Code != 200 {
		t.Fatalf("%d %s", answer.Code, answer.Body)
	}
	var lines []string
	for line := range strings.Lines(answer.Body.String()) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "#") && !strings.HasSuffix(line, " 0") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

// expect checks lines of a page.
func expect(t *testing.T, page, want string) {
	t.Helper()
	lines := strings.Split(page, "\n")
	for line := range strings.Lines(strings.TrimSpace(want)) {
		if line = strings.TrimSpace(line); !slices.Contains(lines, line) {
			t.Errorf("%s is not there:\n%s", line, page)
		}
	}
}

func TestCountsWhatACallTells(t *testing.T) {
	down := errors.New("down")
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		info rratelimiter.CallInfo
		want string
	}{
		"a call for many": {
			rratelimiter.CallInfo{
				Callers: 9, Granted: 4, Denied: 3, Permits: 12, Unclaimed: 2, Latency: 2 * ms, Attempts: 1, DenyCacheHits: 5,
				Leased: 20, Returned: 8, Void: 3,
			}, `
			rratelimiter_decisions_total{by="redis",limiter=""} 7
			rratelimiter_decisions_total{by="cache",limiter=""} 5
			rratelimiter_lease_permits_total{limiter="",outcome="taken"} 20
			rratelimiter_lease_permits_total{limiter="",outcome="returned"} 8
			rratelimiter_lease_permits_total{limiter="",outcome="void"} 3
			rratelimiter_calls_total{limiter="",outcome="ok"} 1
			rratelimiter_call_duration_seconds_bucket{limiter="",le="0.0025"} 1
			rratelimiter_call_duration_seconds_sum{limiter=""} 0.002
			rratelimiter_call_attempts_total{limiter=""} 1
			rratelimiter_call_requests_total{limiter=""} 9
			rratelimiter_requests_total{limiter="",outcome="granted"} 4
			rratelimiter_requests_total{limiter="",outcome="denied"} 3
			rratelimiter_requests_total{limiter="",outcome="cached"} 5
			rratelimiter_granted_permits_total{limiter=""} 12
			rratelimiter_unclaimed_permits_total{limiter=""} 2`,
		},
		"a failure": {
			rratelimiter.CallInfo{Callers: 3, Denied: 2, Attempts: 2, Err: down}, `
			rratelimiter_calls_total{limiter="",outcome="failed"} 1
			rratelimiter_call_requests_total{limiter=""} 3
			rratelimiter_call_attempts_total{limiter=""} 2`,
		},
		"a doubt": {
			rratelimiter.CallInfo{Callers: 2, Denied: 2, Err: fmt.Errorf("%w: %w", rratelimiter.ErrOutcomeUnknown, down)}, `
			rratelimiter_calls_total{limiter="",outcome="unknown"} 1
			rratelimiter_call_requests_total{limiter=""} 2`,
		},
		"more than the rate": {
			rratelimiter.CallInfo{Callers: 1, Denied: 1, Err: fmt.Errorf("%w: 7", rratelimiter.ErrExceedsRate)}, `
			rratelimiter_call_requests_total{limiter=""} 1
			rratelimiter_decisions_total{by="redis",limiter=""} 1
			rratelimiter_requests_total{limiter="",outcome="denied"} 1`,
		},
		"a failure that the process makes up for": {
			rratelimiter.CallInfo{Granted: 1, Denied: 2, Permits: 3, Attempts: 1, Fallback: true, Err: down}, `
			rratelimiter_calls_total{limiter="",outcome="failed"} 1
			rratelimiter_call_attempts_total{limiter=""} 1
			rratelimiter_requests_total{limiter="",outcome="granted"} 1
			rratelimiter_requests_total{limiter="",outcome="denied"} 2
			rratelimiter_granted_permits_total{limiter=""} 3
			rratelimiter_decisions_total{by="fallback",limiter=""} 3
			rratelimiter_fallbacks_total{limiter=""} 1`,
		},
		"an answer without a call": {
			rratelimiter.CallInfo{Callers: 3, Granted: 1, Denied: 2, Permits: 3, Fallback: true}, `
			rratelimiter_requests_total{limiter="",outcome="granted"} 1
			rratelimiter_requests_total{limiter="",outcome="denied"} 2
			rratelimiter_granted_permits_total{limiter=""} 3
			rratelimiter_decisions_total{by="fallback",limiter=""} 3
			rratelimiter_fallbacks_total{limiter=""} 1`,
		},
		"a repair": {
			rratelimiter.CallInfo{Repaired: "free permits were missing"}, `
			rratelimiter_repaired_total{limiter=""} 1`,
		},
		"another rate": {
			rratelimiter.CallInfo{RateMismatch: true}, `
			rratelimiter_rate_mismatches_total{limiter=""} 1`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := New(Config{})
			before := page(t, m)
			if before != "" {
				t.Errorf("counted already: %s", before)
			}
			m.Call(c.info)
			got := page(t, m)
			expect(t, got, c.want)
			for line := range strings.Lines(got) {
				line = strings.TrimSpace(line)
				if !strings.Contains(line, "call_duration") && !strings.Contains(line, `outcome="ok"`) && !strings.Contains(c.want, line) {
					t.Errorf("not expected: %s", line)
				}
			}
		})
	}
}

// A request without a reply counts once, by its caller's context.
func TestCountsRequestsWithoutAnAnswer(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	unknown := fmt.Errorf("%w: %w", rratelimiter.ErrOutcomeUnknown, context.Canceled)
	for name, c := range map[string]struct {
		ctx  context.Context
		info rratelimiter.RequestInfo
		want string // outcome
	}{
		"granted or denied":  {t.Context(), rratelimiter.RequestInfo{}, ""},
		"too large":          {t.Context(), rratelimiter.RequestInfo{Err: rratelimiter.ErrExceedsRate}, ""},
		"Redis fails":        {t.Context(), rratelimiter.RequestInfo{Waits: true, Err: errors.New("down")}, "failed"},
		"no time left":       {over, rratelimiter.RequestInfo{Err: context.Canceled}, "failed"},
		"a doubt":            {over, rratelimiter.RequestInfo{Waits: true, Err: unknown}, "failed"},
		"gone while in line": {over, rratelimiter.RequestInfo{Waits: true, Err: context.Canceled}, "left"},
	} {
		t.Run(name, func(t *testing.T) {
			m := New(Config{})
			m.Request(c.ctx, c.info)
			want := ""
			if c.want != "" {
				want = `rratelimiter_requests_total{limiter="",outcome="` + c.want + `"} 1`
			}
			got := ""
			for line := range strings.Lines(page(t, m)) {
				if strings.Contains(line, "requests_total") {
					got += strings.TrimSpace(line)
				}
			}
			if got != want {
				t.Errorf("got %s, expected %s", got, want)
			}
		})
	}
}

// Calls, the time of blocked callers and their number arrive from a client.
func TestObservesAClient(t *testing.T) {
	server := limittest.New(t)
	m := New(Config{WaitBuckets: []float64{3600}})
	client := server.Client(rratelimiter.WithObserver(rratelimiter.Observers(m, nil)))
	l := client.RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerMinute(5)))
	for range 2 {
		if _, err := l.Allow(t.Context(), 3); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error)
	go func() { gone <- l.Acquire(ctx, 4) }()
	server.AwaitWaiting("orders", 1)
	expect(t, page(t, m), `
		rratelimiter_requests_total{limiter="",outcome="granted"} 1
		rratelimiter_requests_total{limiter="",outcome="denied"} 1
		rratelimiter_granted_permits_total{limiter=""} 3
		rratelimiter_waiting_requests{limiter=""} 1`)
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	now := page(t, m)
	if strings.Contains(now, "waiting_requests") {
		t.Errorf("who has gone still waits:\n%s", now)
	}
	expect(t, now, `
		rratelimiter_wait_duration_seconds_bucket{limiter="",le="3600"} 1
		rratelimiter_wait_duration_seconds_count{limiter=""} 1`)
}

func TestLabelsTellLimitersApart(t *testing.T) {
	server := limittest.New(t)
	m := New(Config{MostLabels: 2, Label: func(limiter string) string {
		kind, _, _ := strings.Cut(limiter, ":")
		return kind
	}})
	client := server.Client(rratelimiter.WithObserver(m))
	for _, name := range []string{"a:1", "a:2", "b", "c", "d"} {
		l := client.RateLimiter(name, rratelimiter.WithRate(rratelimiter.PerMinute(1)))
		if err := l.Acquire(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
	}
	ended := make(chan error)
	ctx, cancel := context.WithCancel(t.Context())
	for _, name := range []string{"a:1", "d"} {
		go func() { ended <- client.RateLimiter(name).Acquire(ctx, 1) }()
		server.AwaitWaiting(name, 1)
	}
	expect(t, page(t, m), `
		rratelimiter_granted_permits_total{limiter="a"} 2
		rratelimiter_granted_permits_total{limiter="b"} 1
		rratelimiter_granted_permits_total{limiter="other"} 2
		rratelimiter_waiting_requests{limiter="a"} 1
		rratelimiter_waiting_requests{limiter="other"} 1`)
	cancel()
	<-ended
	<-ended
}

func TestCountsDecisionsOfGuards(t *testing.T) {
	m := New(Config{MostLabels: 2})
	for policy, n := range map[string]int{"": 3, "api": 2} {
		for range n {
			m.Guard(t.Context(), rratelimiter.GuardInfo{Policy: policy, Outcome: "failed open", Err: errors.New("down")})
		}
	}
	m.Guard(t.Context(), rratelimiter.GuardInfo{Policy: "one more", Outcome: "allowed"})
	m.Guard(t.Context(), rratelimiter.GuardInfo{Policy: "api", Outcome: "of a later version"})
	now := page(t, m)
	expect(t, now, `
		rratelimiter_guard_decisions_total{outcome="failed open",policy=""} 3
		rratelimiter_guard_decisions_total{outcome="failed open",policy="api"} 2
		rratelimiter_guard_decisions_total{outcome="allowed",policy="other"} 1`)
	if n := strings.Count(now, "guard_decisions"); n != 3 {
		t.Errorf("%d series:\n%s", n, now)
	}
}

func TestGuardTellsTheObserverOfItsClient(t *testing.T) {
	server := limittest.New(t)
	m := New(Config{})
	guard := httplimit.New(httplimit.Per(server.Client(rratelimiter.WithObserver(m)), "1h", rratelimiter.PerHour(2), nil))
	guard.Policy = &httplimit.Policy{Name: "api", Bound: 10 * time.Second}
	for range 5 {
		guard.Check(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	}
	expect(t, page(t, m), `
		rratelimiter_guard_decisions_total{outcome="allowed",policy="api"} 2
		rratelimiter_guard_decisions_total{outcome="denied",policy="api"} 3`)
}

// Names come from requests and may be any bytes. None may end the process, or prevent Prometheus from reading the
// others.
func TestNamesMayBeAnyBytes(t *testing.T) {
	m := New(Config{Label: func(limiter string) string { return limiter }})
	m.Call(rratelimiter.CallInfo{Limiter: "a\xffb", Permits: 1})
	expect(t, page(t, m), `rratelimiter_granted_permits_total{limiter="\"a\\xffb\""} 1`)
}

// A client has no Close, so an observer must not keep it from being collected.
func TestWatchedClientsCanBeCollected(t *testing.T) {
	m := New(Config{})
	collected := make(chan bool)
	func() {
		client := rratelimiter.NewClient(nil, rratelimiter.WithObserver(m))
		runtime.AddCleanup(client, func(c chan bool) { close(c) }, collected)
	}()
	for range 5000 {
		runtime.GC()
		select {
		case <-collected:
			if page(t, m); len(m.clients) != 0 {
				t.Errorf("%d clients are still watched", len(m.clients))
			}
			return
		case <-time.After(time.Millisecond):
		}
	}
	t.Error("the client is kept")
}

func TestMetricsFollowPrometheusConventions(t *testing.T) {
	m := New(Config{})
	m.Call(rratelimiter.CallInfo{})
	problems, err := testutil.CollectAndLint(m)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// The page that describes the metrics lists each with its type and labels.
func TestMetricsAreDescribed(t *testing.T) {
	page, err := os.ReadFile("../docs/observability.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "\n## Metrics\n")
	text, _, _ = strings.Cut(text, "\n## ")
	registry := prometheus.NewPedanticRegistry()
	m := New(Config{})
	m.Guard(t.Context(), rratelimiter.GuardInfo{}) // without guards they have no series
	registry.MustRegister(m)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		labels := []string{}
		for _, l := range f.Metric[0].Label {
			labels = append(labels, "`"+l.GetName()+"`")
		}
		row := fmt.Sprintf("| `%s` | %s | %s |", f.GetName(), strings.ToLower(f.GetType().String()), strings.Join(labels, ", "))
		if !strings.Contains(text, row) {
			t.Errorf("docs/observability.md does not have: %s", row)
		}
	}
	if listed := strings.Count(text, "\n| `rratelimiter_"); listed != len(families) {
		t.Errorf("docs/observability.md lists %d metrics, there are %d", listed, len(families))
	}
}

// With leases all requests are counted, each once, and so are the permits that they take ahead.
func TestLeasesAddUp(t *testing.T) {
	m := New(Config{})
	server := limittest.New(t)
	l := server.Client(rratelimiter.WithObserver(m)).RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerHour(10_000)),
		rratelimiter.WithLease(time.Minute))
	server.Advance(time.Second) // at a whole minute a lease would end at once
	for range 100 {
		if ok, err := l.TryAcquire(t.Context(), 2); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	counted := m.all.Of("")
	byRedis, byLease := testutil.ToFloat64(counted.byRedis), testutil.ToFloat64(counted.byLease)
	if byLease < 50 || byRedis+byLease != 100 || testutil.ToFloat64(counted.granted) != 100 || testutil.ToFloat64(counted.permits) != 200 {
		t.Errorf("%v requests decided by Redis and %v by leases; %v granted, with %v permits",
			byRedis, byLease, testutil.ToFloat64(counted.granted), testutil.ToFloat64(counted.permits))
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) { // a call may still refill the lease
		state, err := l.State(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		left := testutil.ToFloat64(counted.taken) - testutil.ToFloat64(counted.returned) - 2*byLease
		if left == float64(state.Leased) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%v permits taken ahead are neither used nor given back, and %d are left", left, state.Leased)
		}
	}
}
