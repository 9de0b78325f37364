package grpclimit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/pace"
)

// pacer.go limits the rate of outgoing calls. It does not depend on guards.

// A Pacer limits the rate of outgoing calls, as httplimit.Transport does for HTTP requests. All
// processes that use the same limiter share its rate. Each call, and each stream when it opens,
// takes one permit. Use one Pacer for each service that has a limit. The fields of a Pacer must not
// change after its first use. A Pacer is safe for concurrent use and must not be copied.
//
//	pacer := &grpclimit.Pacer{Limiter: client.RateLimiter("api", rratelimiter.WithRate(rratelimiter.PerSecond(10)))}
//	conn, err := grpc.NewClient(target, credentials,
//		grpc.WithUnaryInterceptor(pacer.Unary), grpc.WithStreamInterceptor(pacer.Stream))
//
// A call waits for its permit until its context ends. If the context ends first, the call is not
// sent, and fails with CANCELLED or DEADLINE_EXCEEDED; with [rratelimiter.WithFailFast], with
// DEADLINE_EXCEEDED as soon as it is known to be too late. If the limiter returns another error,
// for example because Redis cannot be reached, the call is not sent, and fails with UNAVAILABLE.
// The error wraps that of [rratelimiter.Limiter.Acquire].
//
// If a call or a stream ends with RESOURCE_EXHAUSTED or UNAVAILABLE and a RetryInfo, as those of a
// server with a guard do, all calls pause for the delay in it. The caller gets the error. What
// other processes do during a pause is described at httplimit.Transport. RESOURCE_EXHAUSTED without
// a RetryInfo starts no pause: gRPC itself uses it for messages that are too large. The attempts of
// a retry policy of gRPC belong to one call: they are neither paced nor seen.
type Pacer struct {
	// Limiter decides when a call is sent. It must not be nil.
	Limiter *rratelimiter.Limiter
	// MaxPause is the longest pause that one call can cause; 0 means 1 minute.
	MaxPause time.Duration
	// Logger gets one line for each pause in which permits could not be taken or given back. nil
	// means slog.Default().
	Logger *slog.Logger

	once  sync.Once
	pacer *pace.Pacer // set by once
}

// Unary is a grpc.UnaryClientInterceptor. See Pacer.
func (p *Pacer) Unary(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	if err := p.await(ctx); err != nil {
		return err
	}
	err := invoke(ctx, method, req, reply, cc, opts...)
	p.heed(err)
	return err
}

// Stream is a grpc.StreamClientInterceptor. See Pacer. Messages on an open stream are not paced.
func (p *Pacer) Stream(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer,
	opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	if err := p.await(ctx); err != nil {
		return nil, err
	}
	stream, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		p.heed(err)
		return nil, err
	}
	return &heeded{stream, p}, nil
}

// await waits for a permit. Its errors are statuses, which wrap the error of the limiter.
func (p *Pacer) await(ctx context.Context) error {
	p.once.Do(func() { p.pacer = pace.New(p.Limiter, p.MaxPause, p.Logger) })
	err := p.pacer.Await(ctx)
	if err == nil {
		return nil
	}
	code := codes.Unavailable
	var late *rratelimiter.NotInTimeError
	switch {
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &late):
		code = codes.DeadlineExceeded
	}
	return fmt.Errorf("%w: %w", status.Error(code, "the call got no permit"), err)
}

// heed pauses all calls if the status of a call asks for it.
func (p *Pacer) heed(err error) {
	s, _ := status.FromError(err)
	if s.Code() != codes.ResourceExhausted && s.Code() != codes.Unavailable {
		return
	}
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			p.pacer.Pause(info.GetRetryDelay().AsDuration())
		}
	}
}

// A heeded stream passes the status with which it ends to its Pacer.
type heeded struct {
	grpc.ClientStream
	pacer *Pacer
}

func (s *heeded) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	s.pacer.heed(err)
	return err
}
