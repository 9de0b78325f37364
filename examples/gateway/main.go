// Command gateway is a reverse proxy that limits the requests of each client to each path: 10 per
// second and 200 per minute. Different spellings of a path ("//x", "/./x", "/x;a") count as the
// same path, even if only some backends read them as one. Clients in private networks, and on the
// same machine, are not limited. All gateways on one Redis share the limits, whose names are
// "ratelimit:IP:PATH:INTERVAL".
//
// The proxies of -trust must write X-Forwarded-For. The client of a proxy's request without this
// header is unknown, so the request is limited by the proxy's address, even if that is private. The
// networks of -trust must not contain clients. In the folder examples:
//
//	go run ./gateway -backend http://localhost:9000 -redis redis://localhost:6379 -trust 10.0.0.0/8
//
// To see it refuse on one machine, let it trust this machine, and name a client. Some server must
// listen on port 9000, such as python3 -m http.server 9000. 12 requests within a second are two too
// many:
//
//	go run ./gateway -backend http://localhost:9000 -redis redis://localhost:6379 -trust 127.0.0.0/8,::1/128
//	curl -s -o /dev/null -w '%{http_code}\n' -H 'X-Forwarded-For: 203.0.113.5' 'http://localhost:8080/?[1-12]'
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
	backend := flag.String("backend", "http://localhost:9000", "`URL` of the service behind the gateway")
	server := flag.String("redis", "redis://localhost:6379", "`URL` of Redis")
	trust := flag.String("trust", "", "comma-separated `networks` of our own proxies, which write X-Forwarded-For")
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

// networks parses a list such as "10.0.0.0/8,fd00::/8".
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

// gateway returns a handler that forwards requests to a backend, as far as the limits allow.
func gateway(
	client *rratelimiter.Client, backend *url.URL, trusted []netip.Prefix, policy *httplimit.Policy,
) http.Handler {
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
