package main

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/metrics"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/web"
)

// export.go is the subcommand export: the keys of limiters as metrics for Prometheus.

func newExport() *cobra.Command {
	c := &common{whose: true}
	var listen string
	var o metrics.Options
	cmd := c.serving(&cobra.Command{
		Use:   "export",
		Short: "Serve metrics for Prometheus, read from the keys",
		Long: `export serves metrics for Prometheus at /metrics. Each limiter has: the limit and its interval, the free permits, the
permits in use and their records, the age of the oldest record, the TTL, and whether free permits and records add up to
the rate. export reads them from the keys at each scrape, so they include the grants of Java services. It changes
nothing.

At most --most limiters have metrics; rratelimiter_export_skipped_limiters counts the others. In a PER_CLIENT limiter
each client has its own permits: --client ID exports those of one client, --client all those of each client, and then
each client counts as a limiter. Every client that can reach the address sees names and figures.

While Redis is away, also at the start, rratelimiter_export_up is 0. /healthz answers 200 while export runs. /readyz
answers 200 while Redis answers, and else 503 with the reason.`,
		Example: `  rrl export --match 'api:*'
  rrl export --listen :9580 --client all`,
		Args: noArgs,
	}, func(ctx context.Context, s *session, _ []string) error {
		switch {
		case o.Every < 0:
			return fmt.Errorf("--every: %v is negative", o.Every)
		case o.Most < 1:
			return fmt.Errorf("--most: %d must be at least 1", o.Most)
		}
		o.Client = s.client
		listener, err := net.Listen("tcp", listen)
		if err != nil {
			return fmt.Errorf("--listen: %w", err)
		}
		defer listener.Close()
		link, err := connect.Dial(ctx, s.Flags, s.errs)
		if err != nil {
			return err
		}
		defer link.Close()
		if err := s.served("http", listener.Addr(), "/metrics"); err != nil {
			return err
		}
		return web.Serve(ctx, listener, metrics.New(ctx, link, o, s.errs).Handler())
	})
	f := cmd.Flags()
	f.StringVar(&o.Pattern, "match", "*", "`pattern` of Redis for the limiters' names (* ? [a-z])")
	f.StringVar(&listen, "listen", "127.0.0.1:9580", "`address` of the metrics: host:port")
	f.DurationVar(
		&o.Every, "every", 30*time.Second, "minimum time between two searches for limiters, which go through all keys",
	)
	f.IntVar(&o.Most, "most", 1000, "maximum `number` of limiters")
	c.addFlags(cmd)
	return cmd
}
