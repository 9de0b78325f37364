// Package load tests a guarded HTTP server under load, with a real Redis.
package load

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	vegeta "github.com/tsenart/vegeta/v12/lib"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// A service is a guarded server that records each served request: the time of its arrival, and the
// time when it had passed the guard.
type service struct {
	*httptest.Server
	mu     sync.Mutex
	passed []window.Grant
}

type began struct{}

func serve(tb testing.TB, guard *httplimit.Guard) *service {
	s := &service{}
	h := guard.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		now := time.Now()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.passed = append(s.passed, window.Grant{Start: r.Context().Value(began{}).(time.Time), End: now, Permits: 1})
	}))
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), began{}, time.Now())))
	}))
	tb.Cleanup(s.Close)
	return s
}

// attack sends requests for a page at a rate for a duration d. It calls see, if not nil, with each
// result in order.
func attack(tb testing.TB, url string, perSecond int, d time.Duration, see func(*vegeta.Result)) *vegeta.Metrics {
	tb.Helper()
	attacker := vegeta.NewAttacker(vegeta.Timeout(30*time.Second), vegeta.KeepAlive(true))
	target := vegeta.NewStaticTargeter(vegeta.Target{Method: http.MethodGet, URL: url})
	var m vegeta.Metrics
	for r := range attacker.Attack(target, vegeta.ConstantPacer{Freq: perSecond, Per: time.Second}, d, "load") {
		m.Add(r)
		if see != nil {
			see(r)
		}
	}
	m.Close()
	return &m
}

func client(s *redistest.Server) *rratelimiter.Client {
	return rratelimiter.NewClient(s.Client(), rratelimiter.WithCallTimeout(30*time.Second))
}

func TestNoMoreThanTheLimitPasses(t *testing.T) {
	s := redistest.Shared(t)
	// The guard fails closed, so that only granted requests pass. The bound leaves time for the
	// replies of a busy machine.
	policy := &httplimit.Policy{Failure: httplimit.FailClosed, Bound: 20 * time.Second}
	for _, c := range []struct {
		name string
		rate rratelimiter.Rate
		all  bool // the interval is longer than the attack, so exactly the rate passes
	}{
		{"of an hour", rratelimiter.PerHour(100), true},
		{"of a quarter second", rratelimiter.Rate{Permits: 20, Interval: 250 * time.Millisecond}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			// Two gateways, each with its own client, share the limit.
			var services []*service
			for range 2 {
				guard := httplimit.New(httplimit.Per(client(s), "limit", c.rate, httplimit.Path))
				guard.Policy = policy
				services = append(services, serve(t, guard))
			}
			var wg sync.WaitGroup
			for _, service := range services {
				wg.Go(func() {
					// On a busy machine the server may be silent for half a second, and then counts
					// as away (503).
					m := attack(t, service.URL, 300, 2*time.Second, nil)
					if m.StatusCodes["200"]+m.StatusCodes["429"]+m.StatusCodes["503"] != int(m.Requests) {
						t.Errorf("answers %v, errors %v", m.StatusCodes, m.Errors)
					}
				})
			}
			wg.Wait()
			passed := slices.Concat(services[0].passed, services[1].passed)
			most, at := window.Largest(passed, c.rate.Interval)
			if most > c.rate.Permits {
				t.Errorf("%d passed within %v from %v", most, c.rate.Interval, at)
			}
			if n := int64(len(passed)); c.all && n != c.rate.Permits || n < c.rate.Permits {
				t.Errorf("%d passed, of a rate of %v", n, c.rate)
			}
		})
	}
}

// The zero policy bounds the time of Redis to 100 ms. A request without this bound would hang here
// for the call timeout of 30 s.
func TestTrafficGoesOnWithoutRedis(t *testing.T) {
	for _, c := range []struct {
		name      string
		end, mend func(*redistest.Server)
	}{
		{"killed", (*redistest.Server).Kill, (*redistest.Server).Restart},
		{"hung", (*redistest.Server).Pause, (*redistest.Server).Resume},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := redistest.Real(t)
			guard := httplimit.New(httplimit.Per(client(s), "1h", rratelimiter.PerHour(5), httplimit.Path))
			guard.Policy = &httplimit.Policy{Logger: slog.New(slog.DiscardHandler)}
			service := serve(t, guard)
			awaitRefusal(t, service)
			ended := make(chan time.Time, 1)
			time.AfterFunc(time.Second, func() {
				c.end(s)
				ended <- time.Now()
			})
			var answers []*vegeta.Result
			m := attack(t, service.URL, 100, 3*time.Second, func(r *vegeta.Result) { answers = append(answers, r) })
			at := <-ended
			after := 0
			var slowest time.Duration
			for _, r := range answers {
				if r.Timestamp.After(at) {
					after++
					slowest = max(slowest, r.Latency)
					if r.Code != http.StatusOK {
						t.Fatalf("without Redis: %d %s", r.Code, r.Error)
					}
				}
			}
			if after == 0 || m.StatusCodes["429"]+m.StatusCodes["200"] != int(m.Requests) {
				t.Errorf("%d answers without Redis; in all %v", after, m.StatusCodes)
			}
			if open := guard.Policy.Count(httplimit.FailedOpen); open < int64(after) {
				t.Errorf("%d answers without Redis, and %d counted", after, open)
			}
			if slowest > 2*time.Second { // more than the bound, for a busy machine
				t.Errorf("the slowest answer took %v", slowest)
			}
			t.Logf("without Redis %d answers, the slowest after %v", after, slowest)

			c.mend(s)
			awaitRefusal(t, service)
		})
	}
}

// awaitRefusal sends requests to a service until one is refused, for at most 30 s.
func awaitRefusal(t *testing.T, s *service) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		answer, err := s.Client().Get(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode == http.StatusTooManyRequests {
			return
		}
	}
	t.Fatal("nothing is refused for 30 s")
}

// BenchmarkLoad reports the latency of a request at 500 requests per second over loopback, without
// a guard and with one and two limits. The differences are the cost of a guard. The time per
// operation has no meaning here.
func BenchmarkLoad(b *testing.B) {
	c := client(redistest.Shared(b))
	one := httplimit.Per(c, "1s", rratelimiter.PerSecond(1e6), httplimit.Path)
	two := httplimit.Per(c, "1m", rratelimiter.PerMinute(1e8), httplimit.Path)
	for _, limits := range [][]httplimit.Limit{nil, {one}, {one, two}} {
		b.Run(fmt.Sprintf("%d limits", len(limits)), func(b *testing.B) {
			guard := httplimit.New(limits...)
			// so that Redis decides every request
			guard.Policy = &httplimit.Policy{Failure: httplimit.FailClosed, Bound: 20 * time.Second}
			service := serve(b, guard)
			var median, late []time.Duration
			for b.Loop() {
				m := attack(b, service.URL, 500, time.Second, nil)
				if m.StatusCodes["200"] != int(m.Requests) {
					b.Fatalf("answers %v, errors %v", m.StatusCodes, m.Errors)
				}
				median, late = append(median, m.Latencies.P50), append(late, m.Latencies.P99)
			}
			slices.Sort(median)
			slices.Sort(late)
			b.ReportMetric(float64(median[len(median)/2].Microseconds()), "µs/p50")
			b.ReportMetric(float64(late[len(late)/2].Microseconds()), "µs/p99")
		})
	}
}
