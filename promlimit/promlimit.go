// Package promlimit counts for Prometheus what limiters do.
//
//	metrics := promlimit.New(promlimit.Config{})
//	prometheus.MustRegister(metrics)
//	client := rratelimiter.NewClient(rdb, rratelimiter.WithObserver(metrics))
//
// One Metrics serves all clients of a process. Its metrics, and what to look at, stand in docs/observability.md, with a
// dashboard and alert rules; otellimit has the same by OpenTelemetry.
//
// Limiters can have millions of names, so all are counted together. Config.Label names those that are to be told apart:
//
//	promlimit.Config{Label: func(limiter string) string {
//		if strings.HasPrefix(limiter, "ratelimit:") { // a limiter for each client
//			return "gateway"
//		}
//		return limiter
//	}}
package promlimit

import (
	"context"
	"errors"
	"slices"
	"sync"
	"weak"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/series"
)

// Config is what can be chosen. The zero Config is a good one.
type Config struct {
	Label       func(limiter string) string // the label "limiter" of a limiter's metrics; nil: "", one series for all limiters
	MostLabels  int                         // of those; limiters that come later get "other". 0: 100
	CallBuckets []float64                   // of the time that calls take, in seconds; nil: 0.25 ms to 2.5 s
	WaitBuckets []float64                   // of the time that callers are blocked, in seconds; nil: 1 ms to 5 minutes
}

var (
	callBuckets = []float64{.00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5}
	waitBuckets = []float64{.001, .005, .025, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
)

// Metrics is an observer of clients and a collector of Prometheus. It is safe for concurrent use.
type Metrics struct {
	all    *series.Set[*limiter]
	counts []prometheus.Collector

	waiting *prometheus.GaugeVec
	mu      sync.Mutex
	clients []weak.Pointer[rratelimiter.Client]
}

// A limiter is the series of one label.
type limiter struct {
	called, failed, unknown       prometheus.Counter
	callTime                      prometheus.Observer
	attempts, carried             prometheus.Counter
	granted, denied, refused      prometheus.Counter // requests
	doubted, left                 prometheus.Counter // requests without an answer
	permits, abandoned            prometheus.Counter
	waitTime                      prometheus.Observer
	waiting                       prometheus.Gauge
	healed, mismatched, fallbacks prometheus.Counter
}

// New makes metrics, which are to be registered.
func New(config Config) *Metrics {
	m := &Metrics{}
	label := []string{"limiter"}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(
			prometheus.CounterOpts{Namespace: "rratelimiter", Name: name, Help: help}, append(label, labels...))
		m.counts = append(m.counts, c)
		return c
	}
	histogram := func(name, help string, buckets, standard []float64) *prometheus.HistogramVec {
		if buckets == nil {
			buckets = standard
		}
		h := prometheus.NewHistogramVec(
			prometheus.HistogramOpts{Namespace: "rratelimiter", Name: name, Help: help, Buckets: buckets}, label)
		m.counts = append(m.counts, h)
		return h
	}
	calls := counter("calls_total", "Calls to Redis that ask for permits, by outcome: ok, failed, or unknown, "+
		"where permits may be spent that nobody got. AllowAll's one call counts for each of its limiters.", "outcome")
	callTime := histogram("call_duration_seconds", "Time from asking Redis to its answer.", config.CallBuckets, callBuckets)
	attempts := counter("call_attempts_total", "Commands sent for the calls; more than calls where some were repeated.")
	carried := counter("call_requests_total", "Requests that the calls carried. One that waits is carried more than once.")
	requests := counter("requests_total", "Requests, by outcome: granted, denied, remembered, "+
		"which is denied without asking Redis, failed, or left, where a caller who waited has gone.", "outcome")
	permits := counter("granted_permits_total", "Permits granted.")
	abandoned := counter("abandoned_permits_total", "Permits granted to callers who had gone, that nobody else could use.")
	waitTime := histogram("wait_duration_seconds", "Time that callers who may wait were blocked, granted or not.",
		config.WaitBuckets, waitBuckets)
	healed := counter("healed_total", "Calls that found a broken state and repaired it.")
	mismatched := counter("rate_mismatches_total", "Calls that found another rate in force than their limiter's own.")
	fallbacks := counter("fallbacks_total", "Calls that the process answered by itself, as Redis could not be reached.")
	m.waiting = prometheus.NewGaugeVec(
		prometheus.GaugeOpts{Namespace: "rratelimiter", Name: "waiting_requests", Help: "Callers who are blocked now."}, label)
	m.all = series.New(config.Label, config.MostLabels, func(label string) *limiter {
		return &limiter{
			called:     calls.WithLabelValues(label, "ok"),
			failed:     calls.WithLabelValues(label, "failed"),
			unknown:    calls.WithLabelValues(label, "unknown"),
			callTime:   callTime.WithLabelValues(label),
			attempts:   attempts.WithLabelValues(label),
			carried:    carried.WithLabelValues(label),
			granted:    requests.WithLabelValues(label, "granted"),
			denied:     requests.WithLabelValues(label, "denied"),
			refused:    requests.WithLabelValues(label, "remembered"),
			doubted:    requests.WithLabelValues(label, "failed"),
			left:       requests.WithLabelValues(label, "left"),
			permits:    permits.WithLabelValues(label),
			abandoned:  abandoned.WithLabelValues(label),
			waitTime:   waitTime.WithLabelValues(label),
			waiting:    m.waiting.WithLabelValues(label),
			healed:     healed.WithLabelValues(label),
			mismatched: mismatched.WithLabelValues(label),
			fallbacks:  fallbacks.WithLabelValues(label),
		}
	})
	return m
}

// Flight counts a call.
func (m *Metrics) Flight(info rratelimiter.FlightInfo) {
	l := m.all.Of(info.Limiter)
	called := !info.Fallback || info.Err != nil
	add(l.granted, info.Granted)
	add(l.refused, info.Remembered)
	add(l.permits, info.Permits)
	add(l.abandoned, info.Abandoned)
	answered := series.Answered(info.Err)
	if answered || info.Fallback {
		add(l.denied, info.Denied) // who else has no permits has an error, which Request sees
	}
	if info.Fallback {
		l.fallbacks.Inc()
	}
	if !called {
		return
	}
	l.callTime.Observe(info.Latency.Seconds())
	add(l.attempts, info.Attempts)
	add(l.carried, info.Callers)
	switch {
	case answered:
		l.called.Inc()
	case errors.Is(info.Err, rratelimiter.ErrOutcomeUnknown):
		l.unknown.Inc()
	default:
		l.failed.Inc()
	}
	if info.Healed != "" {
		l.healed.Inc()
	}
	if info.RateMismatch {
		l.mismatched.Inc()
	}
}

func add[N int | int64](c prometheus.Counter, n N) {
	if n != 0 {
		c.Add(float64(n))
	}
}

// Request notes how long a caller was blocked, and that it has no answer.
func (m *Metrics) Request(ctx context.Context, info rratelimiter.RequestInfo) {
	switch {
	case series.Answered(info.Err):
	case series.Left(ctx, info):
		m.all.Of(info.Limiter).left.Inc()
	default:
		m.all.Of(info.Limiter).doubted.Inc()
	}
	if info.Waits {
		m.all.Of(info.Limiter).waitTime.Observe(info.Latency.Seconds())
	}
}

// Watch lets the metrics count who waits in a client. NewClient calls it. It does not keep the client from being collected.
func (m *Metrics) Watch(c *rratelimiter.Client) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.clients = append(m.clients, weak.Make(c))
}

// Describe is for Prometheus.
func (m *Metrics) Describe(descriptions chan<- *prometheus.Desc) {
	for _, c := range m.counts {
		c.Describe(descriptions)
	}
	m.waiting.Describe(descriptions)
}

// Collect is for Prometheus.
func (m *Metrics) Collect(metrics chan<- prometheus.Metric) {
	for _, c := range m.counts {
		c.Collect(metrics)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for l := range m.all.All() {
		l.waiting.Set(0)
	}
	m.clients = slices.DeleteFunc(m.clients, func(p weak.Pointer[rratelimiter.Client]) bool {
		c := p.Value()
		if c == nil {
			return true
		}
		for name, n := range c.Waiting() {
			m.all.Of(name).waiting.Add(float64(n))
		}
		return false
	})
	m.waiting.Collect(metrics)
}
