// Package rls serves Envoy's rate limit service, its health, and metrics. It does not parse commands.
package rls

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/web"
	"github.com/rratelimiter/rratelimiter/envoylimit"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/httplimit/rules"
	"github.com/rratelimiter/rratelimiter/promlimit"
)

// Options say what is served.
type Options struct {
	Rules     string            // file of the domains
	DenyCache int               // as rratelimiter.WithDenyCache; 0: none
	Policy    *httplimit.Policy // as in envoylimit.New
	Drain     time.Duration     // maximum time for the requests in flight at the end
	Logger    *slog.Logger      // gets a line when the file has changed
}

// A Server serves the domains of a file.
type Server struct {
	service *envoylimit.Service
	metrics *promlimit.Metrics
	drain   time.Duration
}

// New returns a server of the file, which it reads now, and again when it changes, until ctx ends. If the file has errors,
// New returns them (rules.Faults).
func New(ctx context.Context, rdb rratelimiter.Redis, o Options) (*Server, error) {
	s := &Server{metrics: promlimit.New(promlimit.Config{Label: envoylimit.Label}), drain: o.Drain}
	defaults := []rratelimiter.LimiterOption{rratelimiter.WithServerTime()}
	if o.DenyCache > 0 {
		defaults = append(defaults, rratelimiter.WithDenyCache(o.DenyCache))
	}
	client := rratelimiter.NewClient(rdb, rratelimiter.WithObserver(s.metrics), rratelimiter.WithLimiterDefaults(defaults...))
	s.service = envoylimit.New(client, o.Policy)
	return s, rules.WatchDomains(ctx, o.Rules, rules.Config{Logger: o.Logger}, s.service.SetDomains)
}

// Serve serves gRPC and, unless the second listener is nil, metrics by HTTP, until ctx ends. Then it takes no more
// requests, and waits for those in flight.
func (s *Server) Serve(ctx context.Context, listener, metrics net.Listener) (err error) {
	server, checks := grpc.NewServer(), health.NewServer()
	ratelimitv3.RegisterRateLimitServiceServer(server, s.service)
	grpc_health_v1.RegisterHealthServer(server, checks)
	checks.SetServingStatus(ratelimitv3.RateLimitService_ServiceDesc.ServiceName, grpc_health_v1.HealthCheckResponse_SERVING)
	ended := make(chan error, 2)
	go func() { ended <- server.Serve(listener) }()
	if metrics != nil {
		registry := prometheus.NewRegistry()
		registry.MustRegister(s.metrics)
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
		go func() { ended <- web.Serve(ctx, metrics, mux) }()
	}
	select {
	case err = <-ended:
	case <-ctx.Done():
	}
	checks.Shutdown()
	drain(server, s.drain)
	return err
}

// drain ends a server: it waits for the requests in flight, but not longer than most.
func drain(server *grpc.Server, most time.Duration) {
	late := time.AfterFunc(most, server.Stop)
	defer late.Stop()
	server.GracefulStop()
}
