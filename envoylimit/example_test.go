package envoylimit_test

import (
	"context"
	"fmt"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"

	"github.com/rratelimiter/rratelimiter/envoylimit"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/httplimit/rules"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// A service of a file, which is read again when it changes. The embedded server replaces the Redis
// of a real program, and the last lines replace Envoy.
func Example() {
	redis := limittest.Start()
	defer redis.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	service := envoylimit.New(redis.Client(), patient(httplimit.FailClosed))
	err := rules.WatchDomains(ctx, "../httplimit/rules/testdata/envoy.yaml", rules.Config{}, service.SetDomains)
	if err != nil {
		fmt.Println(err)
		return
	}
	server := grpc.NewServer()
	ratelimitv3.RegisterRateLimitServiceServer(server, service) // then server.Serve

	request := to("shop", of("remote_address=192.0.2.1"), of("user=ann method=POST"))
	response, err := service.ShouldRateLimit(ctx, request)
	fmt.Println(response.GetOverallCode(), err)
	for _, h := range response.GetResponseHeadersToAdd() {
		fmt.Println(h.Key, h.Value)
	}
	// Output:
	// OK <nil>
	// Ratelimit "remote_address";r=9;t=1, "user,method";r=99;t=60
	// Ratelimit-Policy "remote_address";q=10;w=1, "user,method";q=100;w=60
}

// As promlimit.Config.Label, it gives each domain and its keys a series, not each value.
func ExampleLabel() {
	fmt.Println(envoylimit.Label("ratelimit:remote_address=192.0.2.1:shop"))
	// Output: shop:remote_address
}
