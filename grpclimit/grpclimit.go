// Package grpclimit guards gRPC servers with the limits, keys, rules and policies of httplimit.
// Refused calls fail with RESOURCE_EXHAUSTED and the delay until a retry.
//
//	guard := httplimit.New(
//		httplimit.Per(client, "1s", rratelimiter.PerSecond(10),
//			httplimit.Join(httplimit.ClientAddr{}.Key, httplimit.Path)),
//	)
//	guard.Skip = []httplimit.Rule{httplimit.Paths("/grpc.health.v1.Health/")}
//	server := grpc.NewServer(
//		grpc.UnaryInterceptor(grpclimit.Unary(guard)),
//		grpc.StreamInterceptor(grpclimit.Stream(guard)),
//	)
//
// Limits see a call as the HTTP request that it is on the wire: a POST whose path is the method
// ("/shop.Orders/Get") and whose header is the metadata. [Request] returns it. The functions of
// CountIf and CostAfter get what the call ended with: the HTTP status for its code, as in
// gRPC-Gateway (UNAUTHENTICATED is 401), and the header field Grpc-Status with the code as a
// number. A handler tells the cost of a call by httplimit.Charge, with its context: CostAfter(nil).
//
// A [Pacer] limits the rate of the calls that a program sends.
package grpclimit

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/rratelimiter/rratelimiter/httplimit"
)

// Unary returns an interceptor that lets calls pass, or refuses them as Check does. With a nil
// guard all calls pass.
func Unary(guard *httplimit.Guard) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		var reply any
		err := serve(ctx, guard, info.FullMethod, func(ctx context.Context) (err error) {
			reply, err = handler(ctx, req)
			return err
		})
		return reply, err
	}
}

// Stream returns an interceptor that lets streams open, or refuses them as Check does. With a nil
// guard all streams open. Messages on an open stream are not limited; their handler can charge them
// by httplimit.Charge, so that later calls wait or are refused.
func Stream(guard *httplimit.Guard) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		return serve(stream.Context(), guard, info.FullMethod, func(ctx context.Context) error {
			if ctx != stream.Context() {
				stream = &charged{stream, ctx}
			}
			return handler(srv, stream)
		})
	}
}

// A charged stream has the context for httplimit.Charge.
type charged struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *charged) Context() context.Context { return s.ctx }

// serve lets handle serve a call, or refuses it. It corrects the permits of the call after its end.
func serve(ctx context.Context, guard *httplimit.Guard, fullMethod string, handle func(context.Context) error) error {
	d := guard.Decide(Request(ctx, fullMethod))
	if err := refusal(ctx, guard, d); err != nil {
		return err
	}
	if !d.Settles() {
		return handle(ctx)
	}
	code := codes.Internal // if handle panics
	defer func() { settle(ctx, guard, d, code) }()
	err := handle(httplimit.NewContext(ctx, d))
	code = codeOf(err)
	return err
}

// Check decides on a call. ctx is the server's context of the call, and fullMethod the method that
// is called. The error is nil if the call may pass, else a status:
//   - RESOURCE_EXHAUSTED if a limit refused, with a QuotaFailure that names the limits;
//   - UNAVAILABLE if the limits could not be checked and the policy fails closed;
//   - CANCELLED or DEADLINE_EXCEEDED if the call's context ended.
//
// The first two have a RetryInfo, and the trailer grpc-retry-pushback-ms, from which gRPC clients
// with a retry policy take the delay. A call that can never pass has neither, for example because
// the rate is 0. Guard.PartitionKeys adds the keys to the QuotaFailure; Guard.Refuse,
// Guard.XRateLimit and Guard.CORS are for HTTP. Check does not see how the call ends, so limits
// with CountIf or CostAfter keep the permits that they took.
func Check(ctx context.Context, guard *httplimit.Guard, fullMethod string) error {
	return refusal(ctx, guard, guard.Decide(Request(ctx, fullMethod)))
}

// refusal returns the status for a call that may not pass; nil for one that may.
func refusal(ctx context.Context, guard *httplimit.Guard, d httplimit.Decision) error {
	switch {
	case d.Outcome.Passed():
		return nil
	case d.Outcome == httplimit.Gone:
		return status.FromContextError(ctx.Err()).Err()
	case d.Outcome == httplimit.FailedClosed:
		return refuse(ctx, status.New(codes.Unavailable, "the rate limits cannot be checked"), time.Second, nil)
	}
	quota := &errdetails.QuotaFailure{}
	for _, a := range d.Answers {
		if !a.Refused {
			continue
		}
		violation := &errdetails.QuotaFailure_Violation{Description: a.Name}
		if guard.PartitionKeys {
			violation.Subject = a.Key
		}
		quota.Violations = append(quota.Violations, violation)
	}
	return refuse(ctx, status.New(codes.ResourceExhausted, "too many requests"), d.RetryAfter(), quota)
}

// refuse returns a status with details. retry is the delay until a retry; 0: none is of use. quota
// may be nil.
func refuse(ctx context.Context, s *status.Status, retry time.Duration, quota *errdetails.QuotaFailure) error {
	var details []protoadapt.MessageV1
	if retry > 0 {
		ms := (retry + time.Millisecond - 1) / time.Millisecond
		// SetTrailer fails outside a server; the status has the same delay.
		_ = grpc.SetTrailer(ctx, metadata.Pairs("grpc-retry-pushback-ms", strconv.FormatInt(int64(ms), 10)))
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(retry)})
	}
	if quota != nil {
		details = append(details, quota)
	}
	detailed, err := s.WithDetails(details...)
	if err != nil {
		return s.Err()
	}
	return detailed.Err()
}

// Request returns a call as limits see it. Its path and pattern are the method with a leading
// slash. Servers of gRPC before 1.79.3 also serve a stream that is opened without the slash, and
// pass its method on without the slash. If the connection uses TLS, the field TLS has its state,
// with the client's certificates.
func Request(ctx context.Context, fullMethod string) *http.Request {
	fullMethod = "/" + strings.TrimPrefix(fullMethod, "/")
	r := &http.Request{
		Method: http.MethodPost, URL: &url.URL{Path: fullMethod}, Pattern: fullMethod, Header: http.Header{},
	}
	if p, ok := peer.FromContext(ctx); ok && p != nil {
		if p.Addr != nil {
			r.RemoteAddr = p.Addr.String()
		}
		if secure, ok := p.AuthInfo.(credentials.TLSInfo); ok {
			r.TLS = &secure.State
		}
	}
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		for name, values := range md {
			if name == ":authority" && len(values) > 0 {
				r.Host = values[0]
			} else {
				r.Header[http.CanonicalHeaderKey(name)] = values
			}
		}
	}
	return r.WithContext(ctx)
}
