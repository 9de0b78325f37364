package promlimit

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
	"github.com/rratelimiter/rratelimiter/internal/series/seriestest"
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

// An exporter is Metrics that the shared tests read.
type exporter struct{ *Metrics }

func (e exporter) Values(t *testing.T) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(e.Metrics)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	names := strings.NewReplacer("rratelimiter_", "", "_total", "", "_seconds", "", "_", ".")
	for _, family := range families {
		name := names.Replace(family.GetName())
		for _, m := range family.Metric {
			var labels []string
			for _, l := range m.Label { // sorted
				if l.GetValue() != "" {
					labels = append(labels, l.GetName()+"="+l.GetValue())
				}
			}
			set := "{" + strings.Join(labels, ",") + "}"
			values[name+set] = m.GetCounter().GetValue() + m.GetGauge().GetValue() +
				float64(m.GetHistogram().GetSampleCount())
			values[name+".sum"+set] = m.GetHistogram().GetSampleSum()
		}
	}
	maps.DeleteFunc(values, func(_ string, value float64) bool { return value == 0 })
	return values
}

func TestMetrics(t *testing.T) {
	seriestest.Run(t, func(_ *testing.T, label func(string) string, most int) seriestest.Exporter {
		return exporter{New(Config{Label: label, MostLabels: most})}
	})
}

func TestBucketsOfCalls(t *testing.T) {
	m := New(Config{})
	m.Call(rratelimiter.CallInfo{Latency: 2 * time.Millisecond})
	expect(t, page(t, m), `
		rratelimiter_call_duration_seconds_bucket{limiter="",le="0.0025"} 1
		rratelimiter_call_duration_seconds_sum{limiter=""} 0.002`)
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

func TestGuardTellsTheObserverOfItsClient(t *testing.T) {
	server := limittest.New(t)
	m := New(Config{})
	guard := httplimit.New(httplimit.Per(server.Client(rratelimiter.WithObserver(m)), "1h", rratelimiter.PerHour(2),
		nil))
	guard.Policy = &httplimit.Policy{Name: "api", Bound: 10 * time.Second}
	for range 5 {
		guard.Check(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	}
	expect(t, page(t, m), `
		rratelimiter_guard_decisions_total{outcome="allowed",policy="api"} 2
		rratelimiter_guard_decisions_total{outcome="denied",policy="api"} 3`)
}

// Names come from requests and may be any bytes. None may end the process, or prevent Prometheus
// from reading the others.
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

// The page that describes the metrics lists each with its labels.
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
		row := fmt.Sprintf("| `%s` | %s |", f.GetName(), strings.Join(labels, ", "))
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
	l := server.Client(rratelimiter.WithObserver(m)).
		RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerHour(10_000)),
			rratelimiter.WithLease(time.Minute))
	server.Advance(time.Second) // at a whole minute a lease would end at once
	for range 100 {
		if ok, err := l.TryAcquire(t.Context(), 2); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	counted := m.all.Of("")
	byRedis, byLease := testutil.ToFloat64(counted.byRedis), testutil.ToFloat64(counted.byLease)
	if byLease < 50 || byRedis+byLease != 100 || testutil.ToFloat64(counted.granted) != 100 ||
		testutil.ToFloat64(counted.permits) != 200 {
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
