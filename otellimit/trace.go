package otellimit

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/series"
)

// trace.go makes spans of finished requests and calls. A span has a limiter's whole name: traces
// can hold any number of names.

// traceRequest makes a span of a request, in the trace of its caller, and returns the span's
// context.
func (o *Observer) traceRequest(ctx context.Context, info rratelimiter.RequestInfo) context.Context {
	ctx, span := o.tracer.Start(ctx, "rratelimiter."+info.Method, since(info.Latency))
	if span.IsRecording() {
		span.SetAttributes(
			attribute.String("rratelimiter.limiter", series.LabelOf(info.Limiter)),
			attribute.Int64("rratelimiter.permits.requested", info.Permits),
			attribute.Int64("rratelimiter.permits.granted", info.Granted),
		)
		fail(span, info.Err)
	}
	span.End()
	return ctx
}

// traceCall makes a span of a call, in a trace of its own, and returns the span's context.
func (o *Observer) traceCall(ctx context.Context, info rratelimiter.CallInfo) context.Context {
	ctx, span := o.calls.Start(ctx, "rratelimiter.call", since(info.Latency), trace.WithSpanKind(trace.SpanKindClient))
	if span.IsRecording() {
		span.SetAttributes(
			attribute.String("db.system.name", "redis"),
			attribute.String("rratelimiter.limiter", series.LabelOf(info.Limiter)),
			attribute.Int("rratelimiter.call.requests", info.Callers),
			attribute.Int("rratelimiter.call.attempts", info.Attempts),
			attribute.Int("rratelimiter.requests.granted", info.Granted),
			attribute.Int("rratelimiter.requests.denied", info.Denied),
			attribute.Int64("rratelimiter.permits.granted", info.Permits),
			attribute.Int64("rratelimiter.permits.unclaimed", info.Unclaimed),
			attribute.Bool("rratelimiter.rate_mismatch", info.RateMismatch),
			attribute.Bool("rratelimiter.fallback", info.Fallback),
		)
		if info.Repaired != "" {
			span.SetAttributes(attribute.String("rratelimiter.repaired", info.Repaired))
		}
		fail(span, info.Err)
	}
	span.End()
	return ctx
}

// fail marks a span as failed, with the kind of its error.
func fail(span trace.Span, err error) {
	if err == nil {
		return
	}
	kind := "_OTHER"
	for _, known := range []struct {
		err  error
		kind string
	}{
		{rratelimiter.ErrOutcomeUnknown, "outcome_unknown"},
		{context.Canceled, "canceled"},
		{context.DeadlineExceeded, "deadline_exceeded"},
		{rratelimiter.ErrUnavailable, "unavailable"},
		{rratelimiter.ErrNotInitialized, "not_initialized"},
		{rratelimiter.ErrExceedsRate, "exceeds_rate"},
		{rratelimiter.ErrInvalidPermits, "invalid_permits"},
		{rratelimiter.ErrInvalidOption, "invalid_option"},
		{rratelimiter.ErrCrossSlotName, "cross_slot_name"},
	} {
		if errors.Is(err, known.err) {
			kind = known.kind
			break
		}
	}
	span.SetAttributes(attribute.String("error.type", kind))
	span.SetStatus(codes.Error, err.Error())
}
