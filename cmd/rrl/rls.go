package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/rls"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/httplimit/rules"
)

// rls.go is the subcommand rls: Envoy's rate limit service.

func newRls() *cobra.Command {
	c := &common{}
	var listen, metrics string
	o := rls.Options{Drain: 10 * time.Second}
	cmd := c.serving(&cobra.Command{
		Use:   "rls --rules FILE",
		Short: "Serve Envoy's rate limit service, with limits that Java can share",
		Long: `rls serves Envoy's rate limit service (gRPC, envoy.service.ratelimit.v3.RateLimitService) by a file of rules:

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

--rules can be a folder: rls reads its files that end with .yaml or .yml. A file that begins with "domain:" has the format of
envoyproxy/ratelimit; rrl check-rules says what of it works.

The limiter of (remote_address, 192.0.2.1) is ratelimit:remote_address=192.0.2.1:shop. rrl check-rules checks a file. rls
reads it every 2 s: new rules are in force without a restart. If they have faults the old ones stay in force, and each
fault is printed with its line.

If Redis does not answer within 100 ms the reply is the error UNAVAILABLE: Envoy lets the request pass, unless its filter
has failure_mode_deny. So it is while Redis is away at the start. grpc.health.v1 reports SERVING once Redis has answered,
until a signal comes. Then rls takes no more requests, and ends when those in flight are answered, after 10 s at the
latest. The connection is not encrypted: listen on this host only, or in a network that you trust.

Beside the metrics (--metrics), /healthz answers 200 while rls runs. /readyz answers 200 while Redis takes writes, as a
replica does not, and else, or after the signal, 503 with the reason.`,
		Example: `  rrl rls --rules envoy.yaml
  rrl rls --rules envoy.yaml --listen :8081 --metrics :9581 --deny-cache 10000`,
		Args: noArgs,
	}, func(ctx context.Context, s *session, _ []string) error {
		switch {
		case o.Rules == "":
			return errors.New("--rules is needed: the file with the domains; see rrl rls --help")
		case o.DenyCache < 0:
			return fmt.Errorf("--deny-cache: %d is negative", o.DenyCache)
		}
		o.Logger = slog.New(slog.NewTextHandler(s.errs, nil))
		o.Policy = &httplimit.Policy{Name: "envoy", Failure: httplimit.FailClosed, Logger: o.Logger}
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
		if err := s.served("grpc", listener.Addr(), ""); err != nil {
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
	f.IntVar(
		&o.DenyCache, "deny-cache", 0,
		"`limiters` whose refusals are kept in memory, and repeated without a call to Redis; 0: none",
	)
	c.addFlags(cmd)
	return cmd
}
