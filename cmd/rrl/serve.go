package main

import (
	"context"
	"fmt"
	"net"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/web"
)

// serve.go is the subcommand serve: the view of watch as a read-only web page.

func newServe() *cobra.Command {
	c := &common{whose: true}
	var listen string
	var hosts []string
	cmd := c.live(&cobra.Command{
		Use:   "serve [PATTERN]",
		Short: "Serve a web page with live limiters",
		Long: `serve shows limiters on a web page: the free permits over time, and the grants of each second by client. It changes
nothing in Redis, and the page loads nothing from other servers. It polls a limiter only while its card is open on a
page. An open page also reads the list of its limiters, with their free permits, every 5 s.

The page lists the limiters whose name matches PATTERN (as in Redis: * ? [a-z]), or all. It sorts them by name or by
use. The card of a PER_CLIENT limiter offers its clients, unless --client selects one. The page's address names the
open cards, so a copy of it opens the same cards. While Redis is away, the page says since when.

Every client that can reach the address sees the page. To show it outside this machine, put a proxy with authentication
in front of it. The page accepts requests for the address it listens on, for localhost, and for the names of --host. It
refuses all others, because otherwise a foreign page in your browser could read this page under the foreign name (DNS
rebinding).`,
		Example: `  rrl serve
  rrl serve 'api:*' --listen 127.0.0.1:9000
  rrl serve --listen :8580 --host limits.example.com`,
		Args:              onePattern,
		ValidArgsFunction: c.complete,
	}, func(ctx context.Context, s *session, args []string) error {
		pattern, err := s.pattern(args)
		if err != nil {
			return err
		}
		s.Quiet()
		listener, err := net.Listen("tcp", listen)
		if err != nil {
			return fmt.Errorf("--listen: %w", err)
		}
		if err := s.served("http", listener.Addr(), ""); err != nil {
			return err
		}
		name, _, _ := net.SplitHostPort(listen) // no error: the listener has accepted it
		return web.New(ctx, s.Server, s.client, pattern, append(hosts, name)).Serve(listener)
	})
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:8580", "`address` of the page: host:port")
	cmd.Flags().
		StringSliceVar(&hosts, "host", nil,
			"also accept this `name` in the Host header, as a proxy may send it; may be repeated")
	c.addFlags(cmd)
	return cmd
}

// served prints the URL. A listener on all addresses is reached as localhost.
func (s *session) served(scheme string, addr net.Addr, path string) error {
	host, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		return err
	}
	if net.ParseIP(host).IsUnspecified() {
		host = "localhost"
	}
	url := scheme + "://" + net.JoinHostPort(host, port) + path
	if s.json {
		return s.Emit(struct {
			URL string `json:"url"`
		}{url})
	}
	s.Say("%s", url)
	return nil
}
