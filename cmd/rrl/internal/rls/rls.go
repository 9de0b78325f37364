// Package rls serves Envoy's rate limit service, its health, and metrics. It does not parse
// commands.
package rls

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/web"
	"github.com/rratelimiter/rratelimiter/envoylimit"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/httplimit/rules"
	"github.com/rratelimiter/rratelimiter/promlimit"
)

// Options say what is served.
type Options struct {
	Rules     string // file of the domains, or a folder
	DenyCache int    // as rratelimiter.WithDenyCache; 0: none
	// as in envoylimit.New, which must fail closed: without Redis, the server is not ready
	Policy *httplimit.Policy
	Drain  time.Duration // maximum time for the requests in flight at the end
	Logger *slog.Logger  // gets a line when the file has changed

	TLS       TLS
	MaxAge    time.Duration        // of a connection, which then gets a GOAWAY; 0: no end
	Prefix    string               // of the limiters' names in Redis
	Fields    []string             // three header fields (see named), in the place of those of httplimit; nil: these
	NearLimit float64              // share of a limit above which permits are counted (see near)
	JSON      bool                 // answer POST /json beside the metrics
	Tracer    trace.TracerProvider // gets a span for each request; nil: none
}

// A Server serves the domains of a file.
type Server struct {
	ratelimitv3.UnimplementedRateLimitServiceServer

	o       Options
	metrics *promlimit.Metrics
	near    *near
	health  *health.Server

	mu      sync.Mutex
	domains []rules.Domain                     // guarded by mu
	service atomic.Pointer[envoylimit.Service] // nil until Redis has answered; written under mu
}

// New returns a server of the file, which it reads now, and again when it changes, until ctx ends.
// If the file has errors, New returns them (rules.Faults).
func New(ctx context.Context, o Options) (*Server, error) {
	s := &Server{o: o, health: health.NewServer()}
	label := func(limiter string) string { return s.service.Load().Label(limiter) }
	s.metrics, s.near = promlimit.New(promlimit.Config{Label: label}), newNear(o.NearLimit, label)
	s.o.Policy.OnDecision = s.near.note
	return s, rules.WatchDomains(ctx, o.Rules, rules.Config{Logger: o.Logger}, s.setDomains)
}

func (s *Server) setDomains(domains []rules.Domain) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.domains = domains
	if service := s.service.Load(); service != nil {
		service.SetDomains(domains)
	}
}

// begin makes the service, once Redis has answered.
func (s *Server) begin(rdb rratelimiter.Redis) {
	defaults := []rratelimiter.LimiterOption{rratelimiter.WithServerTime()}
	if s.o.DenyCache > 0 {
		defaults = append(defaults, rratelimiter.WithDenyCache(s.o.DenyCache))
	}
	client := rratelimiter.NewClient(
		rdb, rratelimiter.WithObserver(s.metrics), rratelimiter.WithLimiterDefaults(defaults...),
		rratelimiter.WithNameMapper(func(name string) string { return s.o.Prefix + name }),
	)
	service := envoylimit.New(client, s.o.Policy)
	s.mu.Lock()
	defer s.mu.Unlock()
	service.SetDomains(s.domains)
	s.service.Store(service)
}

var errNotYet = errors.New("no reply from Redis yet")

// ShouldRateLimit passes a request to the service. Until Redis has answered, the error is
// UNAVAILABLE.
func (s *Server) ShouldRateLimit(
	ctx context.Context, r *ratelimitv3.RateLimitRequest,
) (*ratelimitv3.RateLimitResponse, error) {
	service := s.service.Load()
	if service == nil {
		return nil, status.Error(codes.Unavailable, errNotYet.Error())
	}
	response, err := service.ShouldRateLimit(ctx, r)
	if err == nil && s.o.Fields != nil && !s.o.Policy.Shadow {
		response.ResponseHeadersToAdd = named(s.o.Fields, response)
	}
	return response, err
}

// workers is how many goroutines are kept for requests: a new one has to grow its stack first,
// which costs a tenth of the processor time of a decision. Further requests get new ones.
const workers = 32

// options returns the options of the gRPC server, and a function that frees what they use.
func (s *Server) options() (opts []grpc.ServerOption, end func(), err error) {
	opts, end = append(opts, grpc.NumStreamWorkers(workers)), func() {}
	if s.o.TLS.Cert != "" {
		safe, stop, err := s.o.TLS.credentials()
		if err != nil {
			return nil, nil, err
		}
		opts, end = append(opts, grpc.Creds(safe)), stop
	}
	if s.o.MaxAge > 0 {
		opts = append(opts, grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: s.o.MaxAge}))
	}
	if s.o.Tracer != nil {
		opts = append(opts, grpc.StatsHandler(otelgrpc.NewServerHandler(
			otelgrpc.WithTracerProvider(s.o.Tracer), otelgrpc.WithPropagators(propagation.TraceContext{}),
		)))
	}
	return opts, end, nil
}

// Serve serves gRPC and, unless the second listener is nil, metrics and probes by HTTP, until ctx
// ends. Then it takes no more requests, and waits for those in flight. The context of the link must
// end with ctx.
func (s *Server) Serve(ctx context.Context, link *connect.Link, listener, metrics net.Listener) (err error) {
	opts, free, err := s.options()
	if err != nil {
		return err
	}
	defer free()
	server := grpc.NewServer(opts...)
	ratelimitv3.RegisterRateLimitServiceServer(server, s)
	grpc_health_v1.RegisterHealthServer(server, s.health)
	s.report(grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	go func() {
		if there, err := link.Wait(); err == nil {
			s.begin(there.Redis)
			s.report(grpc_health_v1.HealthCheckResponse_SERVING)
		}
	}()
	ended := make(chan error, 2)
	go func() { ended <- server.Serve(listener) }()
	// probes are answered while requests are in flight
	drained, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	if metrics != nil {
		go func() { ended <- web.Serve(drained, metrics, s.handler(ctx, link)) }()
	}
	select {
	case err = <-ended:
	case <-ctx.Done():
	}
	s.health.Shutdown()
	drain(server, s.o.Drain)
	return err
}

// theirService is the name of the service in health checks of envoyproxy/ratelimit.
const theirService = "ratelimit"

// report sets what the health service answers, for the server and for the service. After Shutdown
// it has no effect.
func (s *Server) report(status grpc_health_v1.HealthCheckResponse_ServingStatus) {
	for _, name := range []string{"", ratelimitv3.RateLimitService_ServiceDesc.ServiceName, theirService} {
		s.health.SetServingStatus(name, status)
	}
}

// handler returns the handler of metrics and probes. ctx ends when the server drains.
func (s *Server) handler(ctx context.Context, link *connect.Link) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(s.metrics, s.near.count)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	if s.o.JSON {
		mux.HandleFunc("POST /json", s.answer)
	}
	web.Probe(mux, func(asked context.Context) error {
		if ctx.Err() != nil {
			return errors.New("it drains: requests in flight are answered, and no more are taken")
		}
		if err := link.Writable(asked); err != nil {
			return err
		}
		if s.service.Load() == nil {
			return errNotYet
		}
		return nil
	})
	return mux
}

// drain ends a server: it waits for the requests in flight, but not longer than most.
func drain(server *grpc.Server, most time.Duration) {
	drained := make(chan struct{})
	go func() {
		server.GracefulStop()
		close(drained)
	}()
	select {
	case <-drained:
	case <-time.After(most):
		go server.Stop() // waits up to two minutes for connections that have sent nothing
	}
}
