package grpclimit_test

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/grpclimit"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/limittest"
)

func ExampleUnary() {
	server := limittest.Start()
	defer server.Close()
	guard := httplimit.New(httplimit.Per(server.Client(), "1s", rratelimiter.PerSecond(1), httplimit.Path))
	guard.Policy = patient
	limited := grpclimit.Unary(guard) // to be given to grpc.NewServer, by grpc.UnaryInterceptor

	handler := func(context.Context, any) (any, error) { return "served", nil }
	info := &grpc.UnaryServerInfo{FullMethod: "/shop.Orders/Get"}
	for range 2 {
		answer, err := limited(context.Background(), nil, info, handler)
		fmt.Println(answer, status.Code(err))
	}
	// Output:
	// served OK
	// <nil> ResourceExhausted
}

// A stream counts once, when it opens.
func ExampleStream() {
	server := limittest.Start()
	defer server.Close()
	guard := httplimit.New(httplimit.Per(server.Client(), "1s", rratelimiter.PerSecond(1), httplimit.Path))
	guard.Policy = patient
	limited := grpclimit.Stream(guard) // to be given to grpc.NewServer, by grpc.StreamInterceptor

	handler := func(any, grpc.ServerStream) error { return nil }
	info := &grpc.StreamServerInfo{FullMethod: "/shop.Orders/Watch"}
	for range 2 {
		fmt.Println(status.Code(limited(nil, stream{context.Background()}, info, handler)))
	}
	// Output:
	// OK
	// ResourceExhausted
}

// A stream stands for that of a gRPC server.
type stream struct{ ctx context.Context }

func (s stream) Context() context.Context   { return s.ctx }
func (stream) SetHeader(metadata.MD) error  { return nil }
func (stream) SendHeader(metadata.MD) error { return nil }
func (stream) SetTrailer(metadata.MD)       {}
func (stream) SendMsg(any) error            { return nil }
func (stream) RecvMsg(any) error            { return nil }

// A server without interceptors asks in its method.
func ExampleCheck() {
	server := limittest.Start()
	defer server.Close()
	guard := httplimit.New(httplimit.Per(server.Client(), "1s", rratelimiter.PerSecond(1), httplimit.Path))
	guard.Policy = patient

	get := func(ctx context.Context) error {
		if err := grpclimit.Check(ctx, guard, "/shop.Orders/Get"); err != nil {
			return err
		}
		return nil // the work of the method
	}
	for range 2 {
		fmt.Println(status.Code(get(context.Background())) == codes.ResourceExhausted)
	}
	// Output:
	// false
	// true
}

// What the keys of a guard see of a call.
func ExampleRequest() {
	ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs("x-user", "ann"))
	r := grpclimit.Request(ctx, "/shop.Orders/Get")
	fmt.Println(r.Method, httplimit.Path(r), httplimit.Header("X-User")(r))
	// Output: POST /shop.Orders/Get X-User=ann
}

// Outgoing calls wait for a permit.
func ExamplePacer() {
	server := limittest.Start()
	defer server.Close()
	limiter := server.Client().RateLimiter("api", rratelimiter.WithRate(rratelimiter.PerHour(1)))
	pacer := &grpclimit.Pacer{Limiter: limiter}
	conn, err := grpc.NewClient("orders.example:443", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(pacer.Unary), grpc.WithStreamInterceptor(pacer.Stream))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()

	ctx, cancel := context.WithCancel(context.Background())
	cancel() // the caller is gone, so that nothing is sent
	fmt.Println(status.Code(conn.Invoke(ctx, "/shop.Orders/Get", nil, nil)))
	// Output: Canceled
}
