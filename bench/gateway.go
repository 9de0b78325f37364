package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/valyala/fasthttp"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
)

// gateway.go measures HTTP requests over kept connections: a server of net/http alone, and the same
// handler behind a guard that limits each client address. The clients run in this process, so their
// cost is part of each row.

const gatewayCallers = 64

var gatewayName = "a gateway, " + thousands(gatewayCallers) + " connections"

func gatewayRows() []*contender {
	served := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	refused := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "too many requests", http.StatusTooManyRequests)
	})
	addr := httplimit.ClientAddr{}
	per := func(name string, rate rratelimiter.Rate,
		options ...rratelimiter.LimiterOption) func(*redis.Client) httplimit.Limit {
		return func(rdb *redis.Client) httplimit.Limit {
			return httplimit.Per(rratelimiter.NewClient(rdb, rratelimiter.WithLimiterDefaults(options...)), name, rate,
				addr.Key)
		}
	}
	guarded := func(limit func(*redis.Client) httplimit.Limit) func(*redis.Client) http.Handler {
		return func(rdb *redis.Client) http.Handler { return httplimit.New(limit(rdb)).Middleware(served) }
	}
	alone := func(h http.Handler) func(*redis.Client) http.Handler {
		return func(*redis.Client) http.Handler { return h }
	}
	return []*contender{
		gatewayRow(rowServer, alone(served)),
		gatewayRow(rowRefusing, alone(refused)),
		gatewayRow(rowLibrary, guarded(per("1s", rratelimiter.PerSecond(1e9)))),
		gatewayRow(rowLease, guarded(per("10s", abundant, rratelimiter.WithLease(100*time.Millisecond)))),
		gatewayRow(rowDenyCache, guarded(per("1h", rratelimiter.PerHour(1), rratelimiter.WithDenyCache(1024)))),
	}
}

// gatewayRow returns a contender whose callers send requests to a server with a handler.
func gatewayRow(name string, handler func(*redis.Client) http.Handler) *contender {
	return &contender{name: name, open: func(_ context.Context, b *lab, s scene) (runner, error) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		rdb := redis.NewClient(&redis.Options{Addr: s.addr, PoolTimeout: patience})
		server := &http.Server{Handler: handler(rdb), ReadHeaderTimeout: patience}
		go func() { _ = server.Serve(listener) }()
		client := &fasthttp.HostClient{Addr: listener.Addr().String(), MaxConns: gatewayCallers}
		return goRunner{b.crew, get(client, "http://"+client.Addr+"/"), func() {
			client.CloseIdleConnections()
			_ = server.Close()
			_ = rdb.Close()
		}}, nil
	}}
}

// get returns an asker that sends a request and reports whether it passed.
func get(client *fasthttp.HostClient, url string) asker {
	return func(context.Context, int, int64, bool) (bool, error) {
		request, response := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
		defer fasthttp.ReleaseRequest(request)
		defer fasthttp.ReleaseResponse(response)
		request.SetRequestURI(url)
		if err := client.DoTimeout(request, response, patience); err != nil {
			return false, err
		}
		switch status := response.StatusCode(); status {
		case http.StatusOK:
			return true, nil
		case http.StatusTooManyRequests:
			return false, nil
		default:
			return false, fmt.Errorf("status %d: %s", status, response.Body())
		}
	}
}

// gatewayDetail compares each row with the server alone; a row that refuses all with the server
// that answers 429.
func gatewayDetail(r *Report) grid {
	g := grid{
		head: []string{
			"", "requests/s", "x the bare server", "p50 µs", "p99 µs", "allocs/request", "allocs of the guard",
			"denied",
		},
	}
	g.fill(r.of(gatewayName), func(row *Row) []string {
		times, objects := "–", "–"
		if bare, _ := found(r, gatewayName, bareServer(row.Name)); bare != nil && bare.Name != row.Name {
			times, objects = quantity(ratio(row, bare, perSecond, perSecond)), quantity(guardAllocs(row, bare))
		}
		return []string{
			thousands(int64(row.median(perSecond))), times, quantity(row.median(p50)), quantity(row.median(p99)),
			quantity(row.median(allocations)), objects, percent(row.median(deniedShare)),
		}
	})
	return g
}

// bareServer returns the name of the row without a guard with which a row is compared.
func bareServer(name string) string {
	if name == rowDenyCache || name == rowRefusing {
		return rowRefusing
	}
	return rowServer
}

// guardAllocs returns the objects on the heap that a guard needs for a request.
func guardAllocs(row, bare *Row) float64 {
	return max(0, row.median(allocations)-bare.median(allocations))
}
