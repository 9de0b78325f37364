package otellimit_test

import (
	"context"
	"fmt"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limittest"
	"github.com/rratelimiter/rratelimiter/otellimit"
)

// Each request is a span in the trace of its context.
func Example() {
	server := limittest.Start()
	defer server.Close()

	spans := tracetest.NewSpanRecorder() // a program has an exporter
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	observer, err := otellimit.New(otellimit.Config{
		MeterProvider:  sdkmetric.NewMeterProvider(),
		TracerProvider: tracers,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := server.Client(rratelimiter.WithObserver(observer))
	orders := client.RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerSecond(10)))

	ctx, work := tracers.Tracer("shop").Start(context.Background(), "work")
	if err := orders.Acquire(ctx, 3); err != nil {
		fmt.Println(err)
		return
	}
	work.End()
	for _, span := range spans.Ended() {
		fmt.Println(span.Name(), "in the trace:", span.SpanContext().TraceID() == work.SpanContext().TraceID())
	}
	// Output:
	// rratelimiter.Acquire in the trace: true
	// work in the trace: true
}

// Metrics without traces: a Config without a TracerProvider. The label is the name of the limiter.
func ExampleNew() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	reader := sdkmetric.NewManualReader() // a program has an exporter
	observer, err := otellimit.New(otellimit.Config{
		MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)),
		Label:         func(limiter string) string { return limiter },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	orders := server.Client(rratelimiter.WithObserver(observer)).
		RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
	fmt.Println(orders.TryAcquire(ctx, 3))

	var data metricdata.ResourceMetrics
	if err := reader.Collect(ctx, &data); err != nil {
		fmt.Println(err)
		return
	}
	for _, metric := range data.ScopeMetrics[0].Metrics {
		if sum, ok := metric.Data.(metricdata.Sum[int64]); ok && metric.Name == "rratelimiter.granted.permits" {
			fmt.Println(metric.Name, sum.DataPoints[0].Value)
		}
	}
	// Output:
	// true <nil>
	// rratelimiter.granted.permits 3
}
