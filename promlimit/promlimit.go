// Package promlimit exports metrics of limiters to Prometheus.
//
//	metrics := promlimit.New(promlimit.Config{})
//	prometheus.MustRegister(metrics)
//	client := rratelimiter.NewClient(rdb, rratelimiter.WithObserver(metrics))
//
// One Metrics serves all clients of a process. docs/observability.md describes the metrics, with a
// dashboard and alert rules; otellimit has the same metrics for OpenTelemetry.
//
// Limiters can have millions of names, so all are counted together. Config.Label gives limiters
// their own series:
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

// Config has the options. The zero Config is a good default.
type Config struct {
	// the label "limiter" of a limiter's metrics; nil: "", one series for all limiters
	Label func(limiter string) string
	// maximum of labels, and of policies of guards; further ones are counted as "other". 0: 100
	MostLabels int
	// for the duration of calls, in seconds; nil: 0.25 ms to 2.5 s
	CallBuckets []float64
	// for the time that callers are blocked, in seconds; nil: 1 ms to 5 minutes
	WaitBuckets []float64
}

var (
	callBuckets = []float64{.00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5}
	waitBuckets = []float64{.001, .005, .025, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
)

// Metrics is an observer of clients and a collector of Prometheus. It is safe for concurrent use.
type Metrics struct {
	all    *series.Set[*limiter]
	guards *series.Set[map[string]prometheus.Counter] // counters of each guard policy, by outcome
	counts []prometheus.Collector

	waiting *prometheus.GaugeVec
	mu      sync.Mutex // guards clients
	clients []weak.Pointer[rratelimiter.Client]
}

// A limiter has the series of one label.
type limiter struct {
	called, failed, unknown         prometheus.Counter
	callTime                        prometheus.Observer
	attempts, carried               prometheus.Counter
	granted, denied, refused        prometheus.Counter // requests
	doubted, left                   prometheus.Counter // requests without a reply
	permits, charged, unclaimed     prometheus.Counter
	byRedis, byLease                prometheus.Counter // requests
	byCache, byFallback             prometheus.Counter
	taken, returned, void           prometheus.Counter // permits of leases
	waitTime                        prometheus.Observer
	waiting                         prometheus.Gauge
	repaired, mismatched, fallbacks prometheus.Counter
}

// New returns metrics that the caller registers with Prometheus.
func New(config Config) *Metrics {
	m := &Metrics{}
	guarded := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "rratelimiter", Name: "guard_decisions_total",
		Help: "Decisions of guards, by the name of their policy and by outcome."}, []string{"policy", "outcome"})
	m.counts = append(m.counts, guarded)
	m.guards = series.New(
		func(policy string) string { return policy },
		config.MostLabels,
		func(policy string) map[string]prometheus.Counter {
			counters := map[string]prometheus.Counter{}
			for _, outcome := range series.GuardOutcomes {
				counters[outcome] = guarded.WithLabelValues(policy, outcome)
			}
			return counters
		},
	)
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
		"where permits may be spent that no caller got. AllowAll's one call counts for each of its limiters.",
		"outcome")
	callTime := histogram(
		"call_duration_seconds", "Time from sending a call to Redis to its reply.", config.CallBuckets, callBuckets,
	)
	attempts := counter("call_attempts_total", "Commands sent for the calls; more than the calls if some were retried.")
	carried := counter(
		"call_requests_total",
		"Requests that calls carried, and queued requests that failed with a call. A waiting request counts once for each call that carries it.",
	)
	requests := counter("requests_total", "Requests, by outcome: granted; denied; "+
		"cached (denied without a call to Redis); failed; left (the context of a waiting caller ended while no call was in flight).", "outcome")
	permits := counter("granted_permits_total", "Permits granted.")
	charged := counter("charged_permits_total", "Permits charged after their use, free or not.")
	unclaimed := counter(
		"unclaimed_permits_total",
		"Permits granted to callers that had already returned, and that no other caller could use.",
	)
	decisions := counter("decisions_total", "Requests that were granted or denied, by what decided: redis, lease "+
		"(WithLease), cache (WithDenyCache) or fallback (WithFallback).", "by")
	leases := counter("lease_permits_total", "Permits of leases, by outcome: taken (ahead of demand); "+
		"returned (unused); void (neither granted nor returned).", "outcome")
	waitTime := histogram("wait_duration_seconds", "Time that callers of waiting methods were blocked, granted or not.",
		config.WaitBuckets, waitBuckets)
	repaired := counter("repaired_total", "Calls that found a broken state and repaired it.")
	mismatched := counter(
		"rate_mismatches_total", "Calls that found a rate in force that differs from their limiter's own.",
	)
	fallbacks := counter("fallbacks_total", "Calls that the process decided locally, since Redis was unreachable.")
	m.waiting = prometheus.NewGaugeVec(
		prometheus.GaugeOpts{
			Namespace: "rratelimiter",
			Name:      "waiting_requests",
			Help:      "Callers that are blocked now.",
		},
		label,
	)
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
			refused:    requests.WithLabelValues(label, "cached"),
			doubted:    requests.WithLabelValues(label, "failed"),
			left:       requests.WithLabelValues(label, "left"),
			permits:    permits.WithLabelValues(label),
			charged:    charged.WithLabelValues(label),
			unclaimed:  unclaimed.WithLabelValues(label),
			byRedis:    decisions.WithLabelValues(label, "redis"),
			byLease:    decisions.WithLabelValues(label, "lease"),
			byCache:    decisions.WithLabelValues(label, "cache"),
			byFallback: decisions.WithLabelValues(label, "fallback"),
			taken:      leases.WithLabelValues(label, "taken"),
			returned:   leases.WithLabelValues(label, "returned"),
			void:       leases.WithLabelValues(label, "void"),
			waitTime:   waitTime.WithLabelValues(label),
			waiting:    m.waiting.WithLabelValues(label),
			repaired:   repaired.WithLabelValues(label),
			mismatched: mismatched.WithLabelValues(label),
			fallbacks:  fallbacks.WithLabelValues(label),
		}
	})
	return m
}

// Call counts a call.
func (m *Metrics) Call(info rratelimiter.CallInfo) {
	l := m.all.Of(info.Limiter)
	called := !info.Fallback || info.Err != nil
	add(l.granted, info.Granted)
	add(l.refused, info.DenyCacheHits)
	add(l.permits, info.Permits)
	add(l.unclaimed, info.Unclaimed)
	add(l.byCache, info.DenyCacheHits)
	add(l.taken, info.Leased)
	add(l.returned, info.Returned)
	add(l.void, info.Void)
	answered, decided := series.Answered(info.Err), info.Granted
	if answered || info.Fallback {
		add(l.denied, info.Denied) // other callers without permits have an error, which Request counts
		decided += info.Denied
	}
	if info.Fallback {
		l.fallbacks.Inc()
		add(l.byFallback, decided)
	} else {
		add(l.byRedis, decided)
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
	if info.Repaired != "" {
		l.repaired.Inc()
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

// Request records how long a caller was blocked, and counts charged permits, requests that leases
// grant, and requests without a reply.
func (m *Metrics) Request(ctx context.Context, info rratelimiter.RequestInfo) {
	switch {
	case series.Charged(info):
		add(m.all.Of(info.Limiter).charged, info.Granted)
	case info.Leased:
		l := m.all.Of(info.Limiter)
		l.granted.Inc()
		l.byLease.Inc()
		add(l.permits, info.Granted)
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

// Guard counts a decision of a guard.
func (m *Metrics) Guard(_ context.Context, info rratelimiter.GuardInfo) {
	if c := m.guards.Of(info.Policy)[info.Outcome]; c != nil {
		c.Inc()
	}
}

// Watch adds a client whose waiting callers are counted. NewClient calls it. The client can still
// be garbage collected.
func (m *Metrics) Watch(c *rratelimiter.Client) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.clients = append(m.clients, weak.Make(c))
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(descriptions chan<- *prometheus.Desc) {
	for _, c := range m.counts {
		c.Describe(descriptions)
	}
	m.waiting.Describe(descriptions)
}

// Collect implements prometheus.Collector.
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
