// Package otellimit exports metrics and traces of limiters to OpenTelemetry.
//
//	observer, err := otellimit.New(otellimit.Config{TracerProvider: otel.GetTracerProvider()})
//	...
//	client := rratelimiter.NewClient(rdb, rratelimiter.WithObserver(observer))
//
// One Observer serves all clients of a process. docs/observability.md describes its metrics. They
// are those of promlimit: exporters for Prometheus give them the same names, so the dashboard and
// the alert rules fit both.
//
// Each request (Acquire, Allow, ...) becomes a span in the trace of its context; its duration is
// that of the request. A call to Redis serves many requests at once, so it belongs to none of their
// traces; Config.TraceCalls gives calls traces of their own.
package otellimit

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
	"weak"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/series"
)

const scope = "github.com/rratelimiter/rratelimiter/otellimit"

// Config has the options. With the zero Config there are metrics, with all limiters counted
// together, and no spans.
type Config struct {
	MeterProvider  metric.MeterProvider // nil: the global one
	TracerProvider trace.TracerProvider // nil: no spans
	// also a span for each CallInfo, but not for decisions without a call (Fallback)
	TraceCalls bool
	// the attribute "limiter" of a limiter's metrics; nil: none
	Label func(limiter string) string
	// maximum of labels, and of policies of guards; further ones are counted as "other". 0: 100
	MostLabels int
}

// Observer is an observer of clients. It is safe for concurrent use.
type Observer struct {
	all    *series.Set[*limiter]
	guards *series.Set[map[string]attributes] // attributes of each guard policy, by outcome
	tracer trace.Tracer                       // nil: no spans
	calls  trace.Tracer                       // the same, if calls are traced

	called, attempts, carried, requests  metric.Int64Counter
	permits, charged, unclaimed, guarded metric.Int64Counter
	decisions, leases                    metric.Int64Counter
	repaired, mismatched, fallbacks      metric.Int64Counter
	callTime, waitTime                   metric.Float64Histogram

	mu      sync.Mutex
	clients []weak.Pointer[rratelimiter.Client]
}

// A limiter has the attributes of one label.
type limiter struct {
	plain, ok, failed, unknown, granted, denied, cached, left attributes
	byRedis, byLease, byCache, byFallback                     attributes
	taken, returned, void                                     attributes
}

// Attributes are a prepared attribute set, in the forms that instruments take.
type attributes struct {
	add     []metric.AddOption
	record  []metric.RecordOption
	observe []metric.ObserveOption
}

// newAttributes returns attributes; those without a value are left out.
func newAttributes(all ...attribute.KeyValue) attributes {
	all = slices.DeleteFunc(all, func(a attribute.KeyValue) bool { return a.Value.AsString() == "" })
	set := metric.WithAttributeSet(attribute.NewSet(all...))
	return attributes{[]metric.AddOption{set}, []metric.RecordOption{set}, []metric.ObserveOption{set}}
}

func newLimiter(label string) *limiter {
	with := func(outcome string) attributes {
		return newAttributes(attribute.String("limiter", label), attribute.String("outcome", outcome))
	}
	by := func(what string) attributes {
		return newAttributes(attribute.String("limiter", label), attribute.String("by", what))
	}
	return &limiter{
		plain: with(""), ok: with("ok"), failed: with("failed"), unknown: with("unknown"),
		granted: with("granted"), denied: with("denied"), cached: with("cached"), left: with("left"),
		byRedis: by("redis"), byLease: by("lease"), byCache: by("cache"), byFallback: by("fallback"),
		taken: with("taken"), returned: with("returned"), void: with("void"),
	}
}

func newGuard(policy string) map[string]attributes {
	outcomes := map[string]attributes{}
	for _, outcome := range series.GuardOutcomes {
		outcomes[outcome] = newAttributes(attribute.String("policy", policy), attribute.String("outcome", outcome))
	}
	return outcomes
}

// New returns an observer.
func New(config Config) (*Observer, error) {
	o := &Observer{
		all:    series.New(config.Label, config.MostLabels, newLimiter),
		guards: series.New(func(policy string) string { return policy }, config.MostLabels, newGuard),
	}
	if config.TracerProvider != nil {
		o.tracer = config.TracerProvider.Tracer(scope)
		if config.TraceCalls {
			o.calls = o.tracer
		}
	}
	provider := config.MeterProvider
	if provider == nil {
		provider = otel.GetMeterProvider()
	}
	meter := provider.Meter(scope)
	var problems []error
	counter := func(name, unit, description string) metric.Int64Counter {
		c, err := meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(description))
		problems = append(problems, err)
		return c
	}
	histogram := func(name, description string, buckets ...float64) metric.Float64Histogram {
		h, err := meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description),
			metric.WithExplicitBucketBoundaries(buckets...))
		problems = append(problems, err)
		return h
	}
	o.called = counter(
		"rratelimiter.calls",
		"{call}",
		"Calls to Redis that ask for permits, by outcome: ok, failed, or unknown, "+
			"where permits may be spent that no caller got. AllowAll's one call counts for each of its limiters.",
	)
	o.callTime = histogram("rratelimiter.call.duration", "Time from sending a call to Redis to its reply.",
		.00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5)
	o.attempts = counter("rratelimiter.call.attempts", "{command}",
		"Commands sent for the calls; more than the calls if some were retried.")
	o.carried = counter(
		"rratelimiter.call.requests", "{request}",
		"Requests that calls carried, and queued requests that failed with a call. A waiting request counts once for each call that carries it.",
	)
	o.requests = counter("rratelimiter.requests", "{request}", "Requests, by outcome: granted; denied; "+
		"cached (denied without a call to Redis); failed; left (the context of a waiting caller ended while no call was in flight).")
	o.permits = counter("rratelimiter.granted.permits", "{permit}", "Permits granted.")
	o.charged = counter("rratelimiter.charged.permits", "{permit}", "Permits charged after their use, free or not.")
	o.unclaimed = counter("rratelimiter.unclaimed.permits", "{permit}",
		"Permits granted to callers that had already returned, and that no other caller could use.")
	o.decisions = counter("rratelimiter.decisions", "{request}",
		"Requests that were granted or denied, by what decided: "+
			"redis, lease (WithLease), cache (WithDenyCache) or fallback (WithFallback).")
	o.leases = counter(
		"rratelimiter.lease.permits",
		"{permit}",
		"Permits of leases, by outcome: taken (ahead of demand); "+
			"returned (unused); void (neither granted nor returned).",
	)
	o.waitTime = histogram(
		"rratelimiter.wait.duration", "Time that callers of waiting methods were blocked, granted or not.", .001, .005,
		.025,
		.1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300,
	)
	o.repaired = counter("rratelimiter.repaired", "{call}", "Calls that found a broken state and repaired it.")
	o.mismatched = counter("rratelimiter.rate.mismatches", "{call}",
		"Calls that found a rate in force that differs from their limiter's own.")
	o.fallbacks = counter("rratelimiter.fallbacks", "{call}",
		"Calls that the process decided locally, since Redis was unreachable.")
	o.guarded = counter("rratelimiter.guard.decisions", "{decision}",
		"Decisions of guards, by the name of their policy and by outcome.")
	_, err := meter.Int64ObservableUpDownCounter("rratelimiter.waiting.requests", metric.WithUnit("{request}"),
		metric.WithDescription("Callers that are blocked now."), metric.WithInt64Callback(o.waiting))
	return o, errors.Join(append(problems, err)...)
}

// Call counts a call.
func (o *Observer) Call(info rratelimiter.CallInfo) {
	ctx := context.Background()
	called := !info.Fallback || info.Err != nil
	if o.calls != nil && called {
		ctx = o.traceCall(ctx, info)
	}
	l := o.all.Of(info.Limiter)
	add(ctx, o.requests, info.Granted, l.granted)
	add(ctx, o.requests, info.DenyCacheHits, l.cached)
	add(ctx, o.permits, info.Permits, l.plain)
	add(ctx, o.unclaimed, info.Unclaimed, l.plain)
	add(ctx, o.decisions, info.DenyCacheHits, l.byCache)
	add(ctx, o.leases, info.Leased, l.taken)
	add(ctx, o.leases, info.Returned, l.returned)
	add(ctx, o.leases, info.Void, l.void)
	answered, decided := series.Answered(info.Err), info.Granted
	if answered || info.Fallback {
		// other callers without permits have an error, which Request counts
		add(ctx, o.requests, info.Denied, l.denied)
		decided += info.Denied
	}
	if info.Fallback {
		add(ctx, o.fallbacks, 1, l.plain)
		add(ctx, o.decisions, decided, l.byFallback)
	} else {
		add(ctx, o.decisions, decided, l.byRedis)
	}
	if !called {
		return
	}
	o.callTime.Record(ctx, info.Latency.Seconds(), l.plain.record...)
	add(ctx, o.attempts, info.Attempts, l.plain)
	add(ctx, o.carried, info.Callers, l.plain)
	switch {
	case answered:
		add(ctx, o.called, 1, l.ok)
	case errors.Is(info.Err, rratelimiter.ErrOutcomeUnknown):
		add(ctx, o.called, 1, l.unknown)
	default:
		add(ctx, o.called, 1, l.failed)
	}
	if info.Repaired != "" {
		add(ctx, o.repaired, 1, l.plain)
	}
	if info.RateMismatch {
		add(ctx, o.mismatched, 1, l.plain)
	}
}

func add[N int | int64](ctx context.Context, c metric.Int64Counter, n N, a attributes) {
	if n != 0 {
		c.Add(ctx, int64(n), a.add...)
	}
}

// Request records how long a caller was blocked, and counts charged permits, requests that leases
// grant, and requests without a reply.
func (o *Observer) Request(ctx context.Context, info rratelimiter.RequestInfo) {
	if o.tracer != nil {
		ctx = o.traceRequest(ctx, info)
	}
	switch {
	case series.Charged(info):
		add(ctx, o.charged, info.Granted, o.all.Of(info.Limiter).plain)
	case info.Leased:
		l := o.all.Of(info.Limiter)
		add(ctx, o.requests, 1, l.granted)
		add(ctx, o.decisions, 1, l.byLease)
		add(ctx, o.permits, info.Granted, l.plain)
	case series.Answered(info.Err):
	case series.Left(ctx, info):
		add(ctx, o.requests, 1, o.all.Of(info.Limiter).left)
	default:
		add(ctx, o.requests, 1, o.all.Of(info.Limiter).failed)
	}
	if info.Waits {
		o.waitTime.Record(ctx, info.Latency.Seconds(), o.all.Of(info.Limiter).plain.record...)
	}
}

// Guard counts a decision of a guard.
func (o *Observer) Guard(ctx context.Context, info rratelimiter.GuardInfo) {
	if outcome, known := o.guards.Of(info.Policy)[info.Outcome]; known {
		add(ctx, o.guarded, 1, outcome)
	}
}

// Watch adds a client whose waiting callers are counted. NewClient calls it. The client can still
// be garbage collected.
func (o *Observer) Watch(c *rratelimiter.Client) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.clients = append(o.clients, weak.Make(c))
}

// waiting reports the number of blocked callers, by label.
func (o *Observer) waiting(_ context.Context, result metric.Int64Observer) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	sums := map[*limiter]int64{}
	for l := range o.all.All() {
		sums[l] = 0
	}
	o.clients = slices.DeleteFunc(o.clients, func(p weak.Pointer[rratelimiter.Client]) bool {
		c := p.Value()
		if c == nil {
			return true
		}
		for name, n := range c.Waiting() {
			sums[o.all.Of(name)] += int64(n)
		}
		return false
	})
	for l, n := range sums {
		result.Observe(n, l.plain.observe...)
	}
	return nil
}

// since returns the start time of a span that ends now, from its duration.
func since(took time.Duration) trace.SpanStartOption {
	return trace.WithTimestamp(time.Now().Add(-took))
}
