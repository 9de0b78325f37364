package otellimit

import (
	"errors"
	"maps"
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
	"github.com/rratelimiter/rratelimiter/internal/series/seriestest"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// A rig is an observer and the metrics and spans that it exports.
type rig struct {
	*Observer
	reader *sdkmetric.ManualReader
	spans  *tracetest.SpanRecorder
	tracer trace.Tracer // of the application
}

func newRig(t *testing.T, config Config) *rig {
	t.Helper()
	r := &rig{reader: sdkmetric.NewManualReader(), spans: tracetest.NewSpanRecorder()}
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

// Values returns the metrics for the shared tests.
func (r *rig) Values(t *testing.T) map[string]float64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := r.reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	add := func(name string, set attribute.Set, value float64) {
		values[strings.TrimPrefix(name, "rratelimiter.")+"{"+set.Encoded(attribute.DefaultEncoder())+"}"] = value
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					add(m.Name, p.Attributes, float64(p.Value))
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					add(m.Name, p.Attributes, float64(p.Count))
					add(m.Name+".sum", p.Attributes, p.Sum)
				}
			default:
				t.Errorf("%s is a %T", m.Name, data)
			}
		}
	}
	maps.DeleteFunc(values, func(_ string, value float64) bool { return value == 0 })
	return values
}

func TestMetrics(t *testing.T) {
	seriestest.Run(t, func(t *testing.T, label func(string) string, most int) seriestest.Exporter {
		return newRig(t, Config{Label: label, MostLabels: most})
	})
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
		{
			"rratelimiter.Allow",
			"rratelimiter.limiter=orders,rratelimiter.permits.granted=3,rratelimiter.permits.requested=3",
			codes.Unset,
		},
		{
			"rratelimiter.TryAcquire",
			"rratelimiter.limiter=orders,rratelimiter.permits.granted=0,rratelimiter.permits.requested=3", codes.Unset,
		},
		{
			"rratelimiter.Acquire",
			"error.type=exceeds_rate,rratelimiter.limiter=orders,rratelimiter.permits.granted=0,rratelimiter.permits.requested=6",
			codes.Error,
		},
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
	if got := attributesOf(call); call.Name() != "rratelimiter.call" || call.SpanKind() != trace.SpanKindClient ||
		got != want {
		t.Errorf("%s, a %v: %s", call.Name(), call.SpanKind(), got)
	}
}

// Names may be any bytes, and exporters accept only UTF-8.
func TestSpansAreUTF8(t *testing.T) {
	r := newRig(t, Config{TraceCalls: true})
	r.Request(t.Context(), rratelimiter.RequestInfo{Limiter: "a\xffb"})
	r.Call(rratelimiter.CallInfo{Limiter: "a\xffb"})
	spans := r.spans.Ended()
	if len(spans) != 2 {
		t.Errorf("%d spans", len(spans))
	}
	for _, s := range spans {
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
	for name, label := range map[string]func(string) string{
		"none": nil,
		"name": func(limiter string) string { return limiter },
	} {
		b.Run("label="+name, func(b *testing.B) {
			o, err := New(
				Config{
					Label:         label,
					MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader())),
				},
			)
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
	info := rratelimiter.RequestInfo{
		Limiter: "orders", Method: "Acquire", Waits: true, Permits: 1, Latency: time.Millisecond,
	}
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
