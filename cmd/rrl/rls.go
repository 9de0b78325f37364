package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/rls"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/httplimit/rules"
	"github.com/rratelimiter/rratelimiter/internal/response"
)

// rls.go is the subcommand rls: Envoy's rate limit service.

func newRls() *cobra.Command {
	c := &common{}
	var listen, metrics string
	var collector string
	o := rls.Options{Drain: 10 * time.Second, TLS: rls.TLS{Every: time.Minute}}
	shadow := false
	cmd := c.serving(&cobra.Command{
		Use:   "rls --rules FILE",
		Short: "Serve Envoy's rate limit service, with limits that Java can share",
		Long: `rls serves Envoy's rate limit service (gRPC, envoy.service.ratelimit.v3.RateLimitService) by a file of
rules:

  domains:
    shop:                        # the domain of Envoy's rate limit filter
      - key: remote_address      # each address has 10 requests a second
        rate: 10/s
      - key: remote_address
        value: 192.0.2.7         # the most specific rule applies
        rate: unlimited
      - key: path
        value: /export/*
        shared: true             # all paths that match share the rate
        rate: 100/m
        shadow: true             # counted, but not refused
      - key: user
        descriptors:             # a descriptor with two entries
          - key: method
            rate: 6000/m
            lease: 1s            # decided from memory: see WithLease

--rules can be a folder: rls reads its files that end with .yaml or .yml. A file that begins with "domain:" has the
format of envoyproxy/ratelimit; rrl check-rules says what of it works.

The limiter of (remote_address, 192.0.2.1) is ratelimit:remote_address=192.0.2.1:shop. rrl check-rules checks a file.
rls reads it every 2 s: new rules are in force without a restart. If they have faults the old ones stay in force, and
each fault is printed with its line.

If Redis does not answer within 100 ms the reply is the error UNAVAILABLE: Envoy lets the request pass, unless its
filter has failure_mode_deny. So it is while Redis is away at the start. grpc.health.v1 reports SERVING once Redis has
answered, until a signal comes. Then rls takes no more requests, and ends when those in flight are answered, after
10 s at the latest. Without --tls-cert the connection is not encrypted: then listen on this host only, or in a
network that you trust. The files of certificates are read again each minute.

Beside the metrics (--metrics), /healthz answers 200 while rls runs. /readyz answers 200 while Redis takes writes, as
a replica does not, and else, or after the signal, 503 with the reason. With --json-endpoint, POST /json takes a
request as JSON, such as {"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]}. The
answer has the status 200 or, over the limit, 429.`,
		Example: `  rrl rls --rules envoy.yaml
  rrl rls --rules envoy.yaml --listen :8081 --metrics :9581 --deny-cache 10000
  rrl rls --rules /etc/ratelimit/config --listen :8081 --tls-cert tls.crt --tls-key tls.key --tls-client-ca ca.crt`,
		Args: noArgs,
	}, func(ctx context.Context, s *session, _ []string) error {
		switch {
		case o.Rules == "":
			return errors.New("--rules is needed: the file with the domains; see rrl rls --help")
		case o.DenyCache < 0:
			return fmt.Errorf("--deny-cache: %d is negative", o.DenyCache)
		case o.MaxAge < 0:
			return fmt.Errorf("--max-connection-age: %v is negative", o.MaxAge)
		case !(o.NearLimit > 0 && o.NearLimit <= 1): // nor NaN
			return fmt.Errorf("--near-limit: %v is not a share above 0, up to 1", o.NearLimit)
		case o.Fields != nil && !threeNames(o.Fields):
			return errors.New("--header-names: three names are needed, such as RateLimit-Limit,RateLimit-Remaining,RateLimit-Reset")
		case o.JSON && metrics == "":
			return errors.New("--json-endpoint needs --metrics: the address by which it is reached")
		}
		if err := o.TLS.Check(); err != nil {
			return err
		}
		o.Logger = slog.New(slog.NewTextHandler(s.errs, nil))
		o.Policy = &httplimit.Policy{Name: "envoy", Failure: httplimit.FailClosed, Logger: o.Logger, Shadow: shadow}
		if collector != "" {
			traces, err := tracesTo(ctx, collector)
			if err != nil {
				return fmt.Errorf("--traces: %w", err)
			}
			defer func() {
				ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
				defer cancel()
				traces.Shutdown(ctx) // sends the last traces; that they are lost is no error of the service
			}()
			o.Tracer = traces
		}
		server, err := rls.New(ctx, o)
		if faults := (rules.Faults{}); errors.As(err, &faults) {
			fmt.Fprintln(s.errs, connect.LastDefence(faults.Error())) // as check-rules
			return exit{code: 1}
		}
		if err != nil {
			return err
		}
		listener, err := net.Listen("tcp", listen)
		if err != nil {
			return fmt.Errorf("--listen: %w", err)
		}
		defer listener.Close()
		var scraped net.Listener
		if metrics != "" {
			if scraped, err = net.Listen("tcp", metrics); err != nil {
				return fmt.Errorf("--metrics: %w", err)
			}
			defer scraped.Close()
		}
		link, err := connect.Dial(ctx, s.Flags, s.errs)
		if err != nil {
			return err
		}
		defer link.Close()
		if scraped != nil {
			if err := s.served("http", scraped.Addr(), "/metrics"); err != nil {
				return err
			}
		}
		scheme := "grpc"
		if o.TLS.Cert != "" {
			scheme = "grpcs"
		}
		if err := s.served(scheme, listener.Addr(), ""); err != nil {
			return err
		}
		return server.Serve(ctx, link, listener, scraped)
	})
	f := cmd.Flags()
	f.StringVar(&o.Rules, "rules", "", "`file` of the rules, or a folder of files: YAML")
	f.StringVar(&listen, "listen", "127.0.0.1:8081", "`address` of the service: host:port")
	f.StringVar(
		&metrics, "metrics", "",
		"`address` of metrics for Prometheus, at /metrics, and of /healthz and /readyz: host:port; without it none are served",
	)
	f.BoolVar(&o.JSON, "json-endpoint", false, "answer POST /json beside the metrics: who reaches it takes permits")
	f.StringVar(&o.TLS.Cert, "tls-cert", "",
		"`file` with the certificate of the service (PEM); without it there is no TLS")
	f.StringVar(&o.TLS.Key, "tls-key", "", "`file` with the key of --tls-cert (PEM)")
	f.StringVar(
		&o.TLS.ClientCA, "tls-client-ca", "",
		"`file` with the CA certificates for those that clients must have then (PEM)",
	)
	f.StringVar(&o.TLS.Client, "tls-client-name", "", "DNS `name` that the certificate of a client must have")
	f.DurationVar(&o.MaxAge, "max-connection-age", 0, "`time` after which a client must connect again; 0: none")
	f.BoolVar(&shadow, "shadow", false, "refuse no request: the answer is OK, and limits are counted")
	f.StringVar(&o.Prefix, "prefix", "", "`text` before the names of limiters in Redis")
	f.StringSliceVar(
		&o.Fields, "header-names", nil,
		"three `names` of header fields, for the limit, what remains, and the seconds until the reset, in the place of RateLimit, RateLimit-Policy and Retry-After",
	)
	f.Float64Var(
		&o.NearLimit, "near-limit", 0.8, "`share` of a limit above which rratelimiter_near_limit_permits_total counts",
	)
	f.StringVar(
		&collector, "traces", "",
		"`address` of an OpenTelemetry collector that gets traces: http://host:4318; OTEL_ variables set name and sampling",
	)
	f.IntVar(
		&o.DenyCache, "deny-cache", 0,
		"`limiters` whose refusals are kept in memory, and repeated without a call to Redis; 0: none",
	)
	c.addFlags(cmd)
	return cmd
}

// threeNames reports whether these are the names of three header fields.
func threeNames(names []string) bool {
	known := map[string]bool{}
	for _, name := range names {
		if !response.ValidField.MatchString(name) {
			return false
		}
		known[http.CanonicalHeaderKey(name)] = true
	}
	return len(names) == 3 && len(known) == 3
}
