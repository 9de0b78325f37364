// Command gateway is a reverse proxy that limits what each client may ask of each path: 10 requests a second and 200 a
// minute, whatever detours are in it ("//x", "/./x"). Clients in private networks are free. The limits are shared by all
// gateways on one Redis, where they are named "ratelimit:IP:PATH:INTERVAL".
//
// The proxies of -trust must write X-Forwarded-For: what comes from one without it may be anybody's, so it is limited by the
// proxy's address, and not free though that is private. Name no network there in which clients are, too.
//
//	go run ./gateway -backend http://localhost:9000 -redis redis://localhost:6379 -trust 10.0.0.0/8
package main

import (
	"flag"
	"fmt"
	"log"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
)

func main() {
	listen := flag.String("listen", "localhost:8080", "`address` to listen on")
	backend := flag.String("backend", "http://localhost:9000", "`URL` of the service behind")
	server := flag.String("redis", "redis://localhost:6379", "`URL` of Redis")
	trust := flag.String("trust", "", "`networks` of our own proxies in front, which write X-Forwarded-For, with commas between them")
	flag.Parse()
	if err := run(*listen, *backend, *server, *trust); err != nil {
		log.Fatal(err)
	}
}

func run(listen, backend, server, trust string) error {
	target, err := url.Parse(backend)
	if err != nil {
		return fmt.Errorf("backend: %w", err)
	}
	options, err := redis.ParseURL(server)
	if err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	trusted, err := networks(trust)
	if err != nil {
		return fmt.Errorf("trust: %w", err)
	}
	client := rratelimiter.NewClient(redis.NewClient(options))
	s := &http.Server{Addr: listen, Handler: gateway(client, target, trusted, nil), ReadHeaderTimeout: 10 * time.Second}
	return s.ListenAndServe()
}

// networks reads a list such as "10.0.0.0/8,fd00::/8".
func networks(list string) (found []netip.Prefix, err error) {
	for text := range strings.SplitSeq(list, ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, err
		}
		found = append(found, network)
	}
	return found, nil
}

// gateway passes requests on to a backend, as far as the limits allow it.
func gateway(client *rratelimiter.Client, backend *url.URL, trusted []netip.Prefix, policy *httplimit.Policy) http.Handler {
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(backend)
		r.Out.Header["X-Forwarded-For"] = r.In.Header["X-Forwarded-For"]
		r.SetXForwarded()
	}}
	addr := httplimit.ClientAddr{Trusted: trusted}
	perPath := httplimit.Join(addr.Key, httplimit.Path)
	guard := httplimit.New(
		httplimit.Per(client, "1s", rratelimiter.PerSecond(10), perPath),
		httplimit.Per(client, "1m", rratelimiter.PerMinute(200), perPath),
	)
	guard.Skip = []httplimit.Rule{addr.Private}
	guard.Policy = policy
	return guard.Middleware(proxy)
}
