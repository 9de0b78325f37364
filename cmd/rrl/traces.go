package main

import (
	"context"
	"errors"
	"net/url"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
)

// traces.go sends traces of rls to an OpenTelemetry collector.

// tracesTo returns a provider whose spans are sent to a collector (OTLP by HTTP). The SDK reads the
// variables OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER and so on.
func tracesTo(ctx context.Context, collector string) (*sdktrace.TracerProvider, error) {
	address, err := url.Parse(collector)
	switch {
	case err != nil:
		return nil, errors.New(connect.Redacted(err.Error()))
	case address.Scheme != "http" && address.Scheme != "https" || address.Host == "":
		return nil, errors.New("the address of a collector is such as http://host:4318")
	case address.Path == "" || address.Path == "/":
		address.Path = "/v1/traces"
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(address.String()))
	if err != nil {
		return nil, err
	}
	return sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter)), nil
}
