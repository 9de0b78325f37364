package otellimit_test

import (
	"context"
	"fmt"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
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
