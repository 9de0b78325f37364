package grpclimit_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/grpclimit"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// patient gives limits much time to reply, so that a busy machine causes no failure.
var patient = &httplimit.Policy{Bound: 10 * time.Second, Failure: httplimit.FailClosed}

// serve starts a health service behind a guard, and returns a client of it.
func serve(t *testing.T, guard *httplimit.Guard, opts ...grpc.DialOption) grpc_health_v1.HealthClient {
	t.Helper()
	return serveBy(t, health.NewServer(), guard, opts...)
}

// serveBy is serve for a given service.
func serveBy(
	t *testing.T, service grpc_health_v1.HealthServer, guard *httplimit.Guard, opts ...grpc.DialOption,
) grpc_health_v1.HealthClient {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(
		grpc.UnaryInterceptor(grpclimit.Unary(guard)), grpc.StreamInterceptor(grpclimit.Stream(guard)),
	)
	grpc_health_v1.RegisterHealthServer(server, service)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient(
		listener.Addr().String(),
		append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return grpc_health_v1.NewHealthClient(conn)
}

func call(ctx context.Context, c grpc_health_v1.HealthClient, opts ...grpc.CallOption) error {
	_, err := c.Check(ctx, &grpc_health_v1.HealthCheckRequest{}, opts...)
	return err
}

func wantCodes(t *testing.T, ctx context.Context, c grpc_health_v1.HealthClient, want ...codes.Code) {
	t.Helper()
	for i, code := range want {
		if err := call(ctx, c); status.Code(err) != code {
			t.Fatalf("call %d: %v, not %v", i+1, err, code)
		}
	}
}

func TestRefusedCallIsToldWhenToComeBack(t *testing.T) {
	s := limittest.New(t)
	client := s.Client()
	guard := httplimit.New(
		httplimit.Per(client, "1m", rratelimiter.PerMinute(1),
			httplimit.Join(httplimit.ClientAddr{}.Key, httplimit.Path)),
		httplimit.Per(client, "1h", rratelimiter.PerHour(5), httplimit.ClientAddr{}.Key),
	)
	guard.Policy, guard.PartitionKeys = patient, true
	c := serve(t, guard)
	wantCodes(t, t.Context(), c, codes.OK)
	s.Advance(500 * time.Millisecond)

	var trailer metadata.MD
	refused := status.Convert(call(t.Context(), c, grpc.Trailer(&trailer)))
	if refused.Code() != codes.ResourceExhausted || len(refused.Details()) != 2 {
		t.Fatalf("%v, %v", refused, refused.Details())
	}
	if d := refused.Details()[0].(*errdetails.RetryInfo).RetryDelay.AsDuration(); d != 59500*time.Millisecond {
		t.Errorf("retry after %v", d)
	}
	violations := refused.Details()[1].(*errdetails.QuotaFailure).Violations
	if len(violations) != 1 || violations[0].Description != "1m" ||
		violations[0].Subject != "127.0.0.1:/grpc.health.v1.Health/Check" {
		t.Errorf("violations %v", violations)
	}
	if got := fmt.Sprint(trailer["grpc-retry-pushback-ms"]); got != "[59500]" {
		t.Errorf("pushback %v", got)
	}
	s.Advance(59500 * time.Millisecond)
	wantCodes(t, t.Context(), c, codes.OK)
}

// A retry of a call that can never pass is of no use: it is told no delay, as httplimit sets no
// Retry-After.
func TestCallThatCanNeverPassIsToldNoDelay(t *testing.T) {
	client := limittest.New(t).Client()
	none := client.RateLimiter("none", rratelimiter.WithRate(rratelimiter.PerSecond(0)))
	zero := httplimit.Per(client, "zero", rratelimiter.PerSecond(0), nil)
	for name, limit := range map[string]httplimit.Limit{
		"rate 0":                    zero,
		"rate 0, not known":         httplimit.Shared("none", none),
		"rate 0 with a penalty":     zero.Penalty(client, time.Hour),
		"more than rate, not known": httplimit.Shared("none", none).Cost(func(*http.Request) int64 { return 2 }),
	} {
		guard := httplimit.New(limit)
		guard.Policy = &httplimit.Policy{Bound: 10 * time.Second, Logger: slog.New(slog.DiscardHandler)}
		var trailer metadata.MD
		refused := status.Convert(call(t.Context(), serve(t, guard), grpc.Trailer(&trailer)))
		if refused.Code() != codes.ResourceExhausted || len(refused.Details()) != 1 ||
			len(trailer["grpc-retry-pushback-ms"]) > 0 {
			t.Errorf("%s: %v, %v, %v", name, refused, refused.Details(), trailer)
		}
	}
}

// logins is a health service whose calls fail with the code in the field code of their metadata.
type logins struct {
	grpc_health_v1.UnimplementedHealthServer
}

func codeIn(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	var code codes.Code
	if err := code.UnmarshalJSON([]byte(strconv.Quote(md.Get("code")[0]))); err != nil {
		return err
	}
	return status.Error(code, "as asked for")
}

func (logins) Check(
	ctx context.Context, _ *grpc_health_v1.HealthCheckRequest,
) (*grpc_health_v1.HealthCheckResponse, error) {
	return &grpc_health_v1.HealthCheckResponse{}, codeIn(ctx)
}

func (logins) Watch(_ *grpc_health_v1.HealthCheckRequest, stream grpc_health_v1.Health_WatchServer) error {
	return codeIn(stream.Context())
}

// A generating service charges each call and each message.
type generating struct {
	grpc_health_v1.UnimplementedHealthServer
}

func (generating) Check(ctx context.Context,
	_ *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	httplimit.Charge(ctx, 5)
	return &grpc_health_v1.HealthCheckResponse{}, nil
}

func (generating) Watch(_ *grpc_health_v1.HealthCheckRequest, stream grpc_health_v1.Health_WatchServer) error {
	for range 3 {
		httplimit.Charge(stream.Context(), 4)
		if err := stream.Send(&grpc_health_v1.HealthCheckResponse{}); err != nil {
			return err
		}
	}
	return nil
}

// What handlers charge counts in full, of calls and of streams. Later calls are refused.
func TestHandlersCharge(t *testing.T) {
	for name, want := range map[string]int64{"call": 5, "stream": 12} {
		t.Run(name, func(t *testing.T) {
			s := limittest.New(t)
			guard := httplimit.New(httplimit.Per(s.Client(), "tokens", rratelimiter.PerHour(3), nil).CostAfter(nil))
			guard.Policy = patient
			c := serveBy(t, generating{}, guard)
			if name == "call" {
				wantCodes(t, t.Context(), c, codes.OK)
			} else if open, err := c.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{}); err != nil {
				t.Fatal(err)
			} else {
				for err == nil {
					_, err = open.Recv()
				}
				if err != io.EOF {
					t.Fatal(err)
				}
			}
			l := s.Client().RateLimiter("ratelimit:tokens")
			for state, err := l.State(t.Context()); err != nil ||
				state.Used != want; state, err = l.State(t.Context()) {
				time.Sleep(time.Millisecond)
			}
			wantCodes(t, t.Context(), c, codes.ResourceExhausted)
		})
	}
}

// Only failed logins count, of calls and of streams.
func TestCountIfGetsTheCode(t *testing.T) {
	s := limittest.New(t)
	var fields sync.Map
	guard := httplimit.New(
		httplimit.Per(s.Client(), "logins", rratelimiter.PerHour(3), nil).CountIf(func(status int, h http.Header) bool {
			fields.Store(status, h.Get("Grpc-Status"))
			return status == http.StatusUnauthorized
		}),
	)
	guard.Policy = patient
	c := serveBy(t, logins{}, guard)
	l := s.Client().RateLimiter("ratelimit:logins")
	login := func(stream bool, code string, want codes.Code, free int64) {
		t.Helper()
		ctx := metadata.AppendToOutgoingContext(t.Context(), "code", code)
		var err error
		if !stream {
			err = call(ctx, c)
		} else if open, failed := c.Watch(ctx, &grpc_health_v1.HealthCheckRequest{}); failed != nil {
			err = failed
		} else if _, err = open.Recv(); err == io.EOF {
			err = nil
		}
		if got := status.Code(err); got != want {
			t.Fatalf("%s: %v, not %v", code, err, want)
		}
		// permits are given back in the background
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			n, err := l.AvailablePermits(t.Context())
			if err != nil || n == free {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: %d permits are free, not %d", code, n, free)
			}
		}
	}
	login(false, "OK", codes.OK, 3)
	login(false, "UNAUTHENTICATED", codes.Unauthenticated, 2)
	login(false, "NOT_FOUND", codes.NotFound, 2)
	login(true, "INTERNAL", codes.Internal, 2)
	login(true, "OK", codes.OK, 2)
	login(true, "UNAUTHENTICATED", codes.Unauthenticated, 1)
	login(false, "UNAUTHENTICATED", codes.Unauthenticated, 0)
	login(true, "OK", codes.ResourceExhausted, 0)
	for status, field := range map[int]string{200: "0", 401: "16", 404: "5", 500: "13"} {
		if got, _ := fields.Load(status); got != field {
			t.Errorf("status %d: Grpc-Status %v", status, got)
		}
	}
}

func TestStream(t *testing.T) {
	guard := httplimit.New(httplimit.Per(limittest.New(t).Client(), "1h", rratelimiter.PerHour(1), httplimit.Path))
	guard.Policy = patient
	c := serve(t, guard)
	open := func() error {
		stream, err := c.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
		if err != nil {
			return err
		}
		_, err = stream.Recv()
		return err
	}
	if err := open(); err != nil {
		t.Errorf("first stream: %v", err)
	}
	if err := open(); status.Code(err) != codes.ResourceExhausted || err == io.EOF {
		t.Errorf("second stream: %v", err)
	}
	wantCodes(t, t.Context(), c, codes.OK, codes.ResourceExhausted) // a method of its own
}

// A method has one limiter, and is skipped, with and without its leading slash.
func TestOneSpellingOfAMethod(t *testing.T) {
	for name, key := range map[string]httplimit.Key{"path": httplimit.Path, "route": httplimit.Route} {
		guard := httplimit.New(httplimit.Per(limittest.New(t).Client(), "1h", rratelimiter.PerHour(1), key))
		guard.Policy, guard.Skip = patient, []httplimit.Rule{httplimit.Paths("/grpc.health.v1.Health/")}
		unary := func(method string) error {
			_, err := grpclimit.Unary(guard)(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: method},
				func(context.Context, any) (any, error) { return nil, nil })
			return err
		}
		stream := func(method string) error {
			return grpclimit.Stream(guard)(nil, opened{ctx: t.Context()}, &grpc.StreamServerInfo{FullMethod: method},
				func(any, grpc.ServerStream) error { return nil })
		}
		if err := stream("shop.Orders/Get"); err != nil {
			t.Errorf("%s: first stream: %v", name, err)
		}
		for _, err := range []error{
			stream("/shop.Orders/Get"),
			stream("shop.Orders/Get"),
			unary("/shop.Orders/Get"),
			unary("shop.Orders/Get"),
		} {
			if status.Code(err) != codes.ResourceExhausted {
				t.Errorf("%s: another call: %v", name, err)
			}
		}
		for range 2 {
			for _, method := range []string{"/grpc.health.v1.Health/Watch", "grpc.health.v1.Health/Watch"} {
				if err := stream(method); err != nil {
					t.Errorf("%s: skipped: %v", name, err)
				}
			}
		}
	}
}

// An opened stream has only a context.
type opened struct {
	grpc.ServerStream
	ctx context.Context
}

func (o opened) Context() context.Context { return o.ctx }

// gRPC itself refuses a method without its leading slash (before 1.79.3 it did not: GO-2026-4762).
// Such a call reaches no limit.
func TestMethodWithoutItsSlashIsRefused(t *testing.T) {
	guard := httplimit.New(httplimit.Per(limittest.New(t).Client(), "1h", rratelimiter.PerHour(1), httplimit.Route))
	guard.Policy = patient
	var asked atomic.Int32
	guard.Skip = []httplimit.Rule{func(*http.Request) bool { asked.Add(1); return false }}
	c := serve(
		t,
		guard,
		grpc.WithUnaryInterceptor(
			func(ctx context.Context, method string, in, out any, conn *grpc.ClientConn, call grpc.UnaryInvoker,
				opts ...grpc.CallOption) error {
				return call(ctx, strings.TrimPrefix(method, "/"), in, out, conn, opts...)
			},
		),
		grpc.WithStreamInterceptor(
			func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer,
				opts ...grpc.CallOption) (grpc.ClientStream, error) {
				return open(ctx, desc, conn, strings.TrimPrefix(method, "/"), opts...)
			},
		),
	)
	wantCodes(t, t.Context(), c, codes.Unimplemented, codes.Unimplemented)
	stream, err := c.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unimplemented || asked.Load() != 0 {
		t.Errorf("the stream ended with %v, %d calls reached the guard", err, asked.Load())
	}
}

func TestKeysAndRulesOfHTTP(t *testing.T) {
	addr := httplimit.ClientAddr{Trusted: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
	guard := httplimit.New(httplimit.Per(limittest.New(t).Client(), "1h", rratelimiter.PerHour(1),
		httplimit.Join(addr.Key, httplimit.Header("X-Api-Key"))))
	guard.Policy = patient
	guard.Skip = []httplimit.Rule{func(r *http.Request) bool { return r.Host == "free.example" }}
	c := serve(t, guard, grpc.WithAuthority("shop.example"))
	as := func(addr, key string) context.Context {
		return metadata.AppendToOutgoingContext(t.Context(), "x-forwarded-for", addr, "x-api-key", key)
	}
	wantCodes(t, as("192.0.2.1", "a"), c, codes.OK, codes.ResourceExhausted)
	wantCodes(t, as("192.0.2.1", "b"), c, codes.OK)
	wantCodes(t, as("192.0.2.2", "a"), c, codes.OK)
	wantCodes(t, as("192.0.2.2", "a"), serve(t, guard, grpc.WithAuthority("free.example")), codes.OK, codes.OK)
}

func TestNilPeer(t *testing.T) {
	if r := grpclimit.Request(peer.NewContext(t.Context(), nil), "/a/B"); r.RemoteAddr != "" || r.TLS != nil {
		t.Errorf("%+v", r)
	}
}

func TestNilGuardLetsAllCallsPass(t *testing.T) {
	if err := grpclimit.Check(t.Context(), nil, "/a/B"); err != nil {
		t.Error(err)
	}
}

// The client's certificate is a part of the request.
func TestRequestKnowsTheConnection(t *testing.T) {
	addr := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 80}
	state := tls.ConnectionState{PeerCertificates: []*x509.Certificate{{Subject: pkix.Name{CommonName: "shop"}}}}
	for _, p := range []*peer.Peer{{Addr: addr, AuthInfo: credentials.TLSInfo{State: state}}, {Addr: addr}, {}} {
		r := grpclimit.Request(peer.NewContext(t.Context(), p), "/a/B")
		if p.Addr != nil && r.RemoteAddr != "192.0.2.1:80" {
			t.Errorf("from %q", r.RemoteAddr)
		}
		if secure := p.AuthInfo != nil; secure != (r.TLS != nil) ||
			secure && r.TLS.PeerCertificates[0].Subject.CommonName != "shop" {
			t.Errorf("TLS %+v", r.TLS)
		}
	}
}

func TestRedisThatFails(t *testing.T) {
	s := limittest.New(t)
	for _, c := range []struct {
		failure httplimit.Failure
		want    codes.Code
	}{{httplimit.FailOpen, codes.OK}, {httplimit.FailClosed, codes.Unavailable}} {
		guard := httplimit.New(httplimit.Per(s.Client(), "1h", rratelimiter.PerHour(1), httplimit.Path))
		guard.Policy = &httplimit.Policy{
			Failure: c.failure,
			Bound:   10 * time.Second,
			Logger:  slog.New(slog.DiscardHandler),
		}
		client := serve(t, guard)
		s.Fail("OOM command not allowed")
		err := call(t.Context(), client)
		s.Fail("")
		if status.Code(err) != c.want {
			t.Errorf("failure %v: %v", c.failure, err)
		}
		if c.want != codes.OK {
			if details := status.Convert(err).Details(); len(details) != 1 ||
				details[0].(*errdetails.RetryInfo).RetryDelay.AsDuration() <= 0 {
				t.Errorf("details %v", details)
			}
		}
	}
}

func TestRateOfZeroRefusesEveryCall(t *testing.T) {
	s := limittest.New(t)
	for rate, want := range map[rratelimiter.Rate]codes.Code{
		rratelimiter.PerMinute(0): codes.ResourceExhausted, rratelimiter.Unlimited: codes.OK,
	} {
		guard := httplimit.New(
			httplimit.PerFunc(s.Client(), "plan", func(*http.Request) rratelimiter.Rate { return rate }, nil),
		)
		guard.Policy = patient
		wantCodes(t, t.Context(), serve(t, guard), want, want)
	}
}

// A gRPC client with a retry policy retries after the delay in the trailer.
func TestClientComesBack(t *testing.T) {
	s := limittest.New(t)
	guard := httplimit.New(
		httplimit.Per(s.Client(), "20ms", rratelimiter.Rate{Permits: 1, Interval: 20 * time.Millisecond},
			httplimit.Path),
	)
	guard.Policy = &httplimit.Policy{
		Bound:  10 * time.Second,
		OnDeny: func(context.Context, httplimit.Decision) { s.Advance(20 * time.Millisecond) },
	}
	c := serve(t, guard,
		grpc.WithDefaultServiceConfig(`{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 2,
		"initialBackoff": "3600s", "maxBackoff": "3600s", "backoffMultiplier": 1,
		"retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}}]}`))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second) // the delay is an hour
	defer cancel()
	wantCodes(t, ctx, c, codes.OK, codes.OK)
	if n := guard.Policy.Count(httplimit.Denied); n != 1 {
		t.Errorf("%d refused", n)
	}
}

func TestClientThatIsGone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	guard := httplimit.New(httplimit.Per(limittest.New(t).Client(), "1h", rratelimiter.PerHour(1), nil))
	guard.Policy = patient
	if err := grpclimit.Check(ctx, guard, "/a/B"); status.Code(err) != codes.Canceled {
		t.Errorf("%v", err)
	}
}
