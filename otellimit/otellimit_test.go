package otellimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// A rig is an observer and the metrics and spans that it exports.
type rig struct {
	*Observer
	t      *testing.T
	reader *sdkmetric.ManualReader
	spans  *tracetest.SpanRecorder
	tracer trace.Tracer // of the application
}

func newRig(t *testing.T, config Config) *rig {
	t.Helper()
	r := &rig{t: t, reader: sdkmetric.NewManualReader(), spans: tracetest.NewSpanRecorder()}
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r.spans))
	r.tracer = provider.Tracer("application")
	config.MeterProvider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(r.reader))
	config.TracerProvider = provider
	o, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	r.Observer = o
	return r
}

// lines returns the metrics, without zeros: "name{attributes} value", for histograms "name{attributes} count sum".
func (r *rig) lines() []string {
	r.t.Helper()
	var all metricdata.ResourceMetrics
	if err := r.reader.Collect(r.t.Context(), &all); err != nil {
		r.t.Fatal(err)
	}
	var lines []string
	line := func(name string, set attribute.Set, value string) {
		if !strings.HasPrefix(value, "0") {
			lines = append(lines, fmt.Sprintf("%s{%s} %s", name, set.Encoded(attribute.DefaultEncoder()), value))
		}
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					line(m.Name, p.Attributes, fmt.Sprint(p.Value))
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					line(m.Name, p.Attributes, fmt.Sprint(p.Count, p.Sum))
				}
			default:
				r.t.Errorf("%s is a %T", m.Name, data)
			}
		}
	}
	return lines
}

func (r *rig) expect(want ...string) {
	r.t.Helper()
	lines := r.lines()
	for _, line := range want {
		if !slices.Contains(lines, line) {
			r.t.Errorf("%s is not there:\n%s", line, strings.Join(lines, "\n"))
		}
	}
}

func TestCountsWhatACallTells(t *testing.T) {
	down := errors.New("down")
	for name, c := range map[string]struct {
		info rratelimiter.CallInfo
		want []string
	}{
		"a call for many": {
			rratelimiter.CallInfo{
				Callers: 9, Granted: 4, Denied: 3, Permits: 12, Unclaimed: 2, Latency: 2 * time.Millisecond, Attempts: 1, DenyCacheHits: 5,
				Leased: 20, Returned: 8, Void: 3,
			}, []string{
				"rratelimiter.decisions{by=redis} 7",
				"rratelimiter.decisions{by=cache} 5",
				"rratelimiter.lease.permits{outcome=taken} 20",
				"rratelimiter.lease.permits{outcome=returned} 8",
				"rratelimiter.lease.permits{outcome=void} 3",
				"rratelimiter.calls{outcome=ok} 1",
				"rratelimiter.call.duration{} 1 0.002",
				"rratelimiter.call.attempts{} 1",
				"rratelimiter.call.requests{} 9",
				"rratelimiter.requests{outcome=granted} 4",
				"rratelimiter.requests{outcome=denied} 3",
				"rratelimiter.requests{outcome=cached} 5",
				"rratelimiter.granted.permits{} 12",
				"rratelimiter.unclaimed.permits{} 2",
			},
		},
		"a failure": {
			rratelimiter.CallInfo{Denied: 2, Attempts: 2, Err: down}, []string{
				"rratelimiter.calls{outcome=failed} 1",
				"rratelimiter.call.duration{} 1 0",
				"rratelimiter.call.attempts{} 2",
			},
		},
		"a doubt": {
			rratelimiter.CallInfo{Denied: 2, Err: fmt.Errorf("%w: %w", rratelimiter.ErrOutcomeUnknown, down)}, []string{
				"rratelimiter.calls{outcome=unknown} 1",
				"rratelimiter.call.duration{} 1 0",
			},
		},
		"a failure that the process makes up for": {
			rratelimiter.CallInfo{Granted: 1, Denied: 2, Permits: 3, Attempts: 1, Fallback: true, Err: down}, []string{
				"rratelimiter.calls{outcome=failed} 1",
				"rratelimiter.call.duration{} 1 0",
				"rratelimiter.call.attempts{} 1",
				"rratelimiter.requests{outcome=granted} 1",
				"rratelimiter.requests{outcome=denied} 2",
				"rratelimiter.granted.permits{} 3",
				"rratelimiter.decisions{by=fallback} 3",
				"rratelimiter.fallbacks{} 1",
			},
		},
		"an answer without a call": {
			rratelimiter.CallInfo{Callers: 3, Granted: 1, Denied: 2, Permits: 3, Fallback: true}, []string{
				"rratelimiter.requests{outcome=granted} 1",
				"rratelimiter.requests{outcome=denied} 2",
				"rratelimiter.granted.permits{} 3",
				"rratelimiter.decisions{by=fallback} 3",
				"rratelimiter.fallbacks{} 1",
			},
		},
		"a repair and another rate": {
			rratelimiter.CallInfo{Repaired: "free permits were missing", RateMismatch: true}, []string{
				"rratelimiter.calls{outcome=ok} 1",
				"rratelimiter.call.duration{} 1 0",
				"rratelimiter.repaired{} 1",
				"rratelimiter.rate.mismatches{} 1",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Config{})
			r.Call(c.info)
			r.expect(c.want...)
			if n := len(r.lines()); n != len(c.want) {
				t.Errorf("%d metrics, expected %d: %q", n, len(c.want), r.lines())
			}
		})
	}
}

func TestCountsWhatALeaseGrants(t *testing.T) {
	r := newRig(t, Config{})
	r.Request(t.Context(), rratelimiter.RequestInfo{Method: "Allow", Permits: 3, Granted: 3, Leased: true})
	r.Request(t.Context(), rratelimiter.RequestInfo{Method: "Allow", Permits: 3, Granted: 3}) // by a call, which tells of it
	r.expect("rratelimiter.requests{outcome=granted} 1", "rratelimiter.decisions{by=lease} 1", "rratelimiter.granted.permits{} 3")
	if n := len(r.lines()); n != 3 {
		t.Errorf("%d metrics: %q", n, r.lines())
	}
}

func TestLabelsTellLimitersApart(t *testing.T) {
	server := limittest.New(t)
	r := newRig(t, Config{MostLabels: 1, Label: func(limiter string) string { return limiter }})
	client := server.Client(rratelimiter.WithObserver(r))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	for _, name := range []string{"a", "b", "c"} {
		l := client.RateLimiter(name, rratelimiter.WithRate(rratelimiter.PerMinute(1)))
		if err := l.Acquire(ctx, 1); err != nil {
			t.Fatal(err)
		}
		go func() { ended <- l.Acquire(ctx, 1) }()
		server.AwaitWaiting(name, 1)
	}
	r.expect(
		"rratelimiter.granted.permits{limiter=a} 1",
		"rratelimiter.granted.permits{limiter=other} 2",
		"rratelimiter.waiting.requests{limiter=a} 1",
		"rratelimiter.waiting.requests{limiter=other} 2",
	)
	cancel()
	for range 3 {
		<-ended
	}
	for _, line := range r.lines() {
		if strings.HasPrefix(line, "rratelimiter.waiting") {
			t.Errorf("who has gone still waits: %s", line)
		}
	}
}

func TestCountsDecisionsOfGuards(t *testing.T) {
	r := newRig(t, Config{MostLabels: 2})
	for policy, n := range map[string]int{"": 3, "api": 2} {
		for range n {
			r.Guard(t.Context(), rratelimiter.GuardInfo{Policy: policy, Outcome: "failed open", Err: errors.New("down")})
		}
	}
	r.Guard(t.Context(), rratelimiter.GuardInfo{Policy: "one more", Outcome: "allowed"})
	r.Guard(t.Context(), rratelimiter.GuardInfo{Policy: "api", Outcome: "of a later version"})
	r.expect(
		"rratelimiter.guard.decisions{outcome=failed open} 3",
		"rratelimiter.guard.decisions{outcome=failed open,policy=api} 2",
		"rratelimiter.guard.decisions{outcome=allowed,policy=other} 1",
	)
	if n := len(r.lines()); n != 3 {
		t.Errorf("%d metrics: %q", n, r.lines())
	}
}

// attributesOf returns the attributes of a span as text.
func attributesOf(s sdktrace.ReadOnlySpan) string {
	set := attribute.NewSet(s.Attributes()...)
	return set.Encoded(attribute.DefaultEncoder())
}

func TestRequestsAreSpansOfTheirTraces(t *testing.T) {
	server := limittest.New(t)
	r := newRig(t, Config{})
	l := server.Client(rratelimiter.WithObserver(r)).
		RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerMinute(5)))
	ctx, work := r.tracer.Start(t.Context(), "work")
	if _, err := l.Allow(ctx, 3); err != nil {
		t.Fatal(err)
	}
	if ok, err := l.TryAcquire(ctx, 3); ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := l.Acquire(ctx, 6); !errors.Is(err, rratelimiter.ErrExceedsRate) {
		t.Fatal(err)
	}
	work.End()
	want := []struct {
		name, attributes string
		status           codes.Code
	}{
		{"rratelimiter.Allow", "rratelimiter.limiter=orders,rratelimiter.permits.granted=3,rratelimiter.permits.requested=3", codes.Unset},
		{"rratelimiter.TryAcquire", "rratelimiter.limiter=orders,rratelimiter.permits.granted=0,rratelimiter.permits.requested=3", codes.Unset},
		{"rratelimiter.Acquire", "error.type=exceeds_rate,rratelimiter.limiter=orders,rratelimiter.permits.granted=0,rratelimiter.permits.requested=6", codes.Error},
	}
	spans := r.spans.Ended()
	if len(spans) != len(want)+1 {
		t.Fatalf("%d spans", len(spans))
	}
	for i, w := range want {
		s := spans[i]
		if s.Name() != w.name || attributesOf(s) != w.attributes || s.Status().Code != w.status {
			t.Errorf("span %d: %s %s %v", i, s.Name(), attributesOf(s), s.Status())
		}
		if s.Parent().SpanID() != work.SpanContext().SpanID() {
			t.Errorf("span %d is no part of the caller's", i)
		}
	}
}

// A span ends when it is made, so it must start earlier by the duration of its request.
func TestSpansAreAsLongAsWhatTheyShow(t *testing.T) {
	r := newRig(t, Config{TraceCalls: true})
	r.Request(t.Context(), rratelimiter.RequestInfo{Method: "Acquire", Latency: time.Hour})
	r.Call(rratelimiter.CallInfo{
		Limiter: "orders", Callers: 3, Granted: 2, Denied: 1, Permits: 4, Unclaimed: 1, Attempts: 2, Latency: time.Hour,
		Repaired: "free permits were missing", Err: rratelimiter.ErrOutcomeUnknown,
	})
	spans := r.spans.Ended()
	if len(spans) != 2 {
		t.Fatalf("%d spans", len(spans))
	}
	for _, s := range spans {
		if took := s.EndTime().Sub(s.StartTime()); took < time.Hour || took > time.Hour+time.Minute {
			t.Errorf("%s took %v", s.Name(), took)
		}
	}
	call := spans[1]
	want := "db.system.name=redis,error.type=outcome_unknown,rratelimiter.call.attempts=2,rratelimiter.call.requests=3," +
		"rratelimiter.fallback=false,rratelimiter.limiter=orders,rratelimiter.permits.granted=4,rratelimiter.permits.unclaimed=1," +
		"rratelimiter.rate_mismatch=false,rratelimiter.repaired=free permits were missing,rratelimiter.requests.denied=1," +
		"rratelimiter.requests.granted=2"
	if got := attributesOf(call); call.Name() != "rratelimiter.call" || call.SpanKind() != trace.SpanKindClient || got != want {
		t.Errorf("%s, a %v: %s", call.Name(), call.SpanKind(), got)
	}
}

// Names may be any bytes, and exporters accept only UTF-8.
func TestSpansAreUTF8(t *testing.T) {
	r := newRig(t, Config{TraceCalls: true})
	r.Request(t.Context(), rratelimiter.RequestInfo{Limiter: "a\xffb"})
	r.Call(rratelimiter.CallInfo{Limiter: "a\xffb"})
	for _, s := range r.spans.Ended() {
		if got := attributesOf(s); !strings.Contains(got, `rratelimiter.limiter="a\\xffb"`) {
			t.Errorf("%s: %s", s.Name(), got)
		}
	}
}

func TestCallsAreNoSpansByDefault(t *testing.T) {
	r := newRig(t, Config{})
	r.Call(rratelimiter.CallInfo{})
	if n := len(r.spans.Ended()); n != 0 {
		t.Errorf("%d spans", n)
	}
}

func BenchmarkCall(b *testing.B) {
	info := rratelimiter.CallInfo{
		Limiter: "orders", Callers: 100, Granted: 60, Denied: 40, Permits: 60, Latency: time.Millisecond, Attempts: 1,
	}
	for name, label := range map[string]func(string) string{"none": nil, "name": func(limiter string) string { return limiter }} {
		b.Run("label="+name, func(b *testing.B) {
			o, err := New(Config{Label: label, MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				o.Call(info)
			}
		})
	}
}

func BenchmarkRequest(b *testing.B) {
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))
	info := rratelimiter.RequestInfo{Limiter: "orders", Method: "Acquire", Waits: true, Permits: 1, Latency: time.Millisecond}
	for name, config := range map[string]Config{
		"spans=none":      {},
		"spans=unsampled": {TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))},
		"spans=sampled":   {TracerProvider: sdktrace.NewTracerProvider()},
	} {
		b.Run(name, func(b *testing.B) {
			config.MeterProvider = meters
			o, err := New(config)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				o.Request(b.Context(), info)
			}
		})
	}
}
