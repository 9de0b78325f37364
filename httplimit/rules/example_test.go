package rules_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"time"

	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/httplimit/rules"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// The limits of a guard are in a file, which changes while the program runs. The embedded server
// replaces the Redis of a real program.
func ExampleWatch() {
	server := limittest.Start()
	defer server.Close()
	folder, err := os.MkdirTemp("", "rules")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(folder)
	file := filepath.Join(folder, "limits.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			fmt.Println(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	write(`
limits:
  orders:
    key: header X-API-Key
    rate: 1/m
    paths: /orders/
`)
	guard := httplimit.New()
	guard.Policy = &httplimit.Policy{Bound: 10 * time.Second}
	if err := rules.Watch(ctx, guard, file, rules.Config{Client: server.Client()}); err != nil {
		fmt.Println(err)
		return
	}
	h := guard.Middleware(http.NotFoundHandler())
	for _, path := range []string{"/orders/1", "/orders/2", "/"} {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Header.Set("X-API-Key", "k")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		fmt.Println(path, w.Code)
	}
	// Output:
	// /orders/1 404
	// /orders/2 429
	// / 404
}

// Parse finds all errors in a file at once.
func ExampleParse() {
	_, err := rules.Parse("limits.yaml", []byte(`
limits:
  orders:
    key: header X-API-Key
    rate: 10
    cots: 5
`))
	fmt.Println(err)
	// Output:
	// limits.yaml:5: orders: rate: "10" is not of the form permits/interval, such as 100/s
	// limits.yaml:6: orders: unknown field "cots"; known are key, rate, plans, quota, from, time-zone, cost, cost-after, paths, methods, hosts, exempt, lease, penalty, shadow; the format is in docs/guide/guard-an-http-api.md
}

// The domains of a file. envoylimit.Service.SetDomains takes them.
func ExampleWatchDomains() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	err := rules.WatchDomains(ctx, "testdata/envoy.yaml", rules.Config{}, func(domains []rules.Domain) {
		for _, d := range domains[0].Descriptors {
			fmt.Println(domains[0].Name, d.Key, d.Value, d.HasRate)
		}
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// shop remote_address  true
	// shop remote_address 192.0.2.7 true
	// shop generic_key all true
	// shop path /export/* true
	// shop user  false
	// shop tenant  true
}

// ParseFile reads both sections of a file.
func ExampleParseFile() {
	f, err := rules.ParseFile("limits.yaml", []byte(`
limits: {orders: {key: all, rate: 10/s}}
domains: {shop: [{key: remote_address, rate: 5/s}]}
`))
	fmt.Println(len(f.Limits), len(f.Domains), err)
	// Output: 1 1 <nil>
}
