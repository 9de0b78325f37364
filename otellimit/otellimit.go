// Package otellimit counts and traces by OpenTelemetry what limiters do.
//
//	observer, err := otellimit.New(otellimit.Config{TracerProvider: otel.GetTracerProvider()})
//	...
//	client := rratelimiter.NewClient(rdb, rratelimiter.WithObserver(observer))
//
// One Observer serves all clients of a process. Its metrics, and what to look at, stand in docs/observability.md. They are
// those of promlimit: exporters for Prometheus give them the same names, so the dashboard and the alert rules fit both.
//
// Each request (Acquire, Allow, ...) becomes a span in the trace of its context: its length is the time that the limit cost.
// A call to Redis serves many requests at once, so it is no part of any of their traces; Config.TraceCalls gives calls traces
// of their own.
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

// Config is what can be chosen. With the zero Config there are metrics, all limiters counted together, and no spans.
type Config struct {
	MeterProvider  metric.MeterProvider        // nil: the global one
	TracerProvider trace.TracerProvider        // nil: no spans
	TraceCalls     bool                        // a span for each call to Redis, too
	Label          func(limiter string) string // the attribute "limiter" of a limiter's metrics; nil: none
	MostLabels     int                         // of those; limiters that come later get "other". 0: 100
}

// Observer is an observer of clients. It is safe for concurrent use.
type Observer struct {
	all    *series.Set[*limiter]
	tracer trace.Tracer // nil: no spans
	calls  trace.Tracer // the same, if calls are traced

	called, attempts, carried, requests metric.Int64Counter
	permits, abandoned                  metric.Int64Counter
	healed, mismatched, fallbacks       metric.Int64Counter
	callTime, waitTime                  metric.Float64Histogram

	mu      sync.Mutex
	clients []weak.Pointer[rratelimiter.Client]
}

// A limiter is the attributes of one label.
type limiter struct {
	plain, ok, failed, unknown, granted, denied, remembered, left attributes
}

// Attributes are a set as instruments take it, made once.
type attributes struct {
	add     []metric.AddOption
	record  []metric.RecordOption
	observe []metric.ObserveOption
}

func newLimiter(label string) *limiter {
	with := func(outcome string) attributes {
		var list []attribute.KeyValue
		if label != "" {
			list = append(list, attribute.String("limiter", label))
		}
		if outcome != "" {
			list = append(list, attribute.String("outcome", outcome))
		}
		set := metric.WithAttributeSet(attribute.NewSet(list...))
		return attributes{[]metric.AddOption{set}, []metric.RecordOption{set}, []metric.ObserveOption{set}}
	}
	return &limiter{
		plain: with(""), ok: with("ok"), failed: with("failed"), unknown: with("unknown"),
		granted: with("granted"), denied: with("denied"), remembered: with("remembered"), left: with("left"),
	}
}

// New makes an observer.
func New(config Config) (*Observer, error) {
	o := &Observer{all: series.New(config.Label, config.MostLabels, newLimiter)}
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
	o.called = counter("rratelimiter.calls", "{call}", "Calls to Redis that ask for permits, by outcome: ok, failed, or unknown, "+
		"where permits may be spent that nobody got. AllowAll's one call counts for each of its limiters.")
	o.callTime = histogram("rratelimiter.call.duration", "Time from asking Redis to its answer.",
		.00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5)
	o.attempts = counter("rratelimiter.call.attempts", "{command}",
		"Commands sent for the calls; more than calls where some were repeated.")
	o.carried = counter("rratelimiter.call.requests", "{request}",
		"Requests that the calls carried. One that waits is carried more than once.")
	o.requests = counter("rratelimiter.requests", "{request}", "Requests, by outcome: granted, denied, remembered, "+
		"which is denied without asking Redis, failed, or left, where a caller who waited has gone.")
	o.permits = counter("rratelimiter.granted.permits", "{permit}", "Permits granted.")
	o.abandoned = counter("rratelimiter.abandoned.permits", "{permit}",
		"Permits granted to callers who had gone, that nobody else could use.")
	o.waitTime = histogram("rratelimiter.wait.duration", "Time that callers who may wait were blocked, granted or not.",
		.001, .005, .025, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300)
	o.healed = counter("rratelimiter.healed", "{call}", "Calls that found a broken state and repaired it.")
	o.mismatched = counter("rratelimiter.rate.mismatches", "{call}",
		"Calls that found another rate in force than their limiter's own.")
	o.fallbacks = counter("rratelimiter.fallbacks", "{call}",
		"Calls that the process answered by itself, as Redis could not be reached.")
	_, err := meter.Int64ObservableUpDownCounter("rratelimiter.waiting.requests", metric.WithUnit("{request}"),
		metric.WithDescription("Callers who are blocked now."), metric.WithInt64Callback(o.waiting))
	return o, errors.Join(append(problems, err)...)
}

// Flight counts a call.
func (o *Observer) Flight(info rratelimiter.FlightInfo) {
	ctx := context.Background()
	called := !info.Fallback || info.Err != nil
	if o.calls != nil && called {
		ctx = o.traceCall(ctx, info)
	}
	l := o.all.Of(info.Limiter)
	add(ctx, o.requests, info.Granted, l.granted)
	add(ctx, o.requests, info.Remembered, l.remembered)
	add(ctx, o.permits, info.Permits, l.plain)
	add(ctx, o.abandoned, info.Abandoned, l.plain)
	answered := series.Answered(info.Err)
	if answered || info.Fallback {
		add(ctx, o.requests, info.Denied, l.denied) // who else has no permits has an error, which Request sees
	}
	if info.Fallback {
		add(ctx, o.fallbacks, 1, l.plain)
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
	if info.Healed != "" {
		add(ctx, o.healed, 1, l.plain)
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

// Request notes how long a caller was blocked, and what became of it.
func (o *Observer) Request(ctx context.Context, info rratelimiter.RequestInfo) {
	if o.tracer != nil {
		ctx = o.traceRequest(ctx, info)
	}
	switch {
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

// Watch lets the observer count who waits in a client. NewClient calls it. It does not keep the client from being collected.
func (o *Observer) Watch(c *rratelimiter.Client) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.clients = append(o.clients, weak.Make(c))
}

// waiting tells how many callers are blocked, by label.
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

// since is the time at which something began that took so long.
func since(took time.Duration) trace.SpanStartOption {
	return trace.WithTimestamp(time.Now().Add(-took))
}
