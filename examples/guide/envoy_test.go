package guide

import (
	"context"
	"testing"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/envoylimit"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/httplimit/rules"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// envoyService returns a server with the service of a file.
func envoyService(ctx context.Context, client *rratelimiter.Client,
	policy *httplimit.Policy) (*grpc.Server, *envoylimit.Service, error) {
	service := envoylimit.New(client, policy) // nil: the error UNAVAILABLE if Redis does not answer within 100 ms
	err := rules.WatchDomains(ctx, "envoy.yaml", rules.Config{}, service.SetDomains)
	server := grpc.NewServer()
	ratelimitv3.RegisterRateLimitServiceServer(server, service)
	return server, service, err
}

func TestEnvoyService(t *testing.T) {
	t.Chdir(rulesFolder)
	server, service, err := envoyService(t.Context(), limittest.New(t).Client(), &httplimit.Policy{Bound: patience})
	if err != nil || len(server.GetServiceInfo()) != 1 {
		t.Fatal(err, server.GetServiceInfo())
	}
	request := &ratelimitv3.RateLimitRequest{
		Domain:     "shop",
		HitsAddend: 6,
		Descriptors: []*ratelimit.RateLimitDescriptor{
			{Entries: []*ratelimit.RateLimitDescriptor_Entry{{Key: "remote_address", Value: "192.0.2.1"}}},
		},
	}
	for _, want := range []ratelimitv3.RateLimitResponse_Code{
		ratelimitv3.RateLimitResponse_OK,
		ratelimitv3.RateLimitResponse_OVER_LIMIT,
	} {
		if response, err := service.ShouldRateLimit(t.Context(), request); err != nil || response.OverallCode != want {
			t.Errorf("%v, %v; want %v", response, err, want)
		}
	}
}
