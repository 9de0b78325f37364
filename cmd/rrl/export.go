package main

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/metrics"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/web"
)

// export.go is the subcommand export: the keys of limiters as metrics for Prometheus.

func newExport() *cobra.Command {
	c := &common{whose: true}
	var listen string
	var o metrics.Options
	cmd := c.live(&cobra.Command{
		Use:   "export",
		Short: "Serve metrics for Prometheus, read from the keys",
		Long: `export serves metrics for Prometheus at /metrics: of each limiter the limit and its interval, the free permits, the live
permits and their records, the age of the oldest, the TTL, and whether it adds up. They are read from the keys at each
scrape, by Redis's clock, and include the grants of Java services as well as Go's. It changes nothing.

At most --most limiters have metrics; rratelimiter_export_skipped_limiters counts the others. The permits of PER_CLIENT
limiters belong to each client: --client selects one, all exports each client's, which counts as a limiter. While Redis
is unreachable, rratelimiter_export_up is 0. Every client that can reach the address sees names and figures.`,
		Example: `  rrl export --match 'api:*'
  rrl export --listen :9580 --client all`,
		Args: noArgs,
	}, func(ctx context.Context, s *session, _ []string) error {
		switch {
		case o.Every < 0:
			return fmt.Errorf("--every: %v is no time to wait", o.Every)
		case o.Most < 1:
			return fmt.Errorf("--most: %d limiters are none", o.Most)
		}
		o.Client = s.client
		listener, err := net.Listen("tcp", listen)
		if err != nil {
			return fmt.Errorf("--listen: %w", err)
		}
		if err := s.served(fmt.Sprintf("http://%s/metrics", listener.Addr())); err != nil {
			return err
		}
		return web.Serve(ctx, listener, metrics.New(ctx, s.Server, o, s.errs).Handler())
	})
	f := cmd.Flags()
	f.StringVar(&o.Pattern, "match", "*", "`pattern` of Redis for the limiters' names (* ? [a-z])")
	f.StringVar(&listen, "listen", "127.0.0.1:9580", "`address` of the metrics: host:port")
	f.DurationVar(&o.Every, "every", 30*time.Second, "minimum time between two searches for limiters, which go through all keys")
	f.IntVar(&o.Most, "most", 1000, "maximum `number` of limiters")
	c.addFlags(cmd)
	return cmd
}
