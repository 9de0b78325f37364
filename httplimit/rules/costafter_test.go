package rules_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/httplimit/rules"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// A field of the response has the cost of a request. Without a whole number in it, the request
// costs what it took.
func TestTheResponseTellsTheCost(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		client := rratelimiter.NewClient(s.Client())
		guard := httplimit.New()
		guard.Policy = &httplimit.Policy{Bound: 10 * time.Second}
		file := filepath.Join(t.TempDir(), "limits.yaml")
		text := "limits: {tokens: {key: all, rate: 100/h, cost: 10, cost-after: X-Tokens-Used}}"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := rules.Watch(t.Context(), guard, file, rules.Config{Client: client}); err != nil {
			t.Fatal(err)
		}
		used := ""
		handler := guard.Middleware(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if used != "" {
				w.Header().Set("X-Tokens-Used", used)
			}
		}))
		limiter, free := client.RateLimiter("ratelimit:tokens"), int64(100)
		for _, c := range []struct {
			used string
			cost int64
		}{{"30", 30}, {"4", 4}, {"", 10}, {"many", 10}, {"0", 0}} {
			used = c.used
			handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
			free -= c.cost
			got := int64(-1) // it is corrected in the background
			for deadline := time.Now().Add(10 * time.Second); got != free && time.Now().Before(deadline); {
				var err error
				if got, err = limiter.AvailablePermits(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if got != free {
				t.Fatalf("after %q: %d permits are free, not %d", c.used, got, free)
			}
		}
	})
}

// A request that costs 0 takes nothing before, and passes while a permit is free.
func TestARequestMayCostNothingUntilItsResponse(t *testing.T) {
	for _, permits := range []string{"rate: 100/h", "quota: 100/day"} {
		t.Run(permits, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				guard := httplimit.New()
				guard.Policy = &httplimit.Policy{Bound: 10 * time.Second}
				file := filepath.Join(t.TempDir(), "limits.yaml")
				text := "limits: {tokens: {key: all, " + permits + ", cost: 0, cost-after: X-Tokens-Used}}"
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				rdb := s.Client()
				if err := rules.Watch(t.Context(), guard, file,
					rules.Config{Client: rratelimiter.NewClient(rdb)}); err != nil {
					t.Fatal(err)
				}
				used := ""
				handler := guard.Middleware(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					if used != "" {
						w.Header().Set("X-Tokens-Used", used)
					}
				}))
				ask := func(cost string) string {
					used = cost
					w := httptest.NewRecorder()
					handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
					return strconv.Itoa(w.Code) + " " + w.Header().Get("RateLimit")
				}
				for _, c := range []struct{ cost, then string }{
					{"", `200 "tokens";r=100`}, {"60", `200 "tokens";r=40`}, {"100", `429 "tokens";r=0`},
				} {
					if got := ask(c.cost); !strings.HasPrefix(got, "200 ") {
						t.Fatalf("%q before it costs %q", got, c.cost)
					}
					rig.Soon(t, c.then, func() bool { return strings.HasPrefix(ask(""), c.then) })
				}
			})
		})
	}
}

// A handler that charges what it uses need not send the field: the request costs what it took, or
// what was charged if that is more. With the field, what was charged does not come back.
func TestAHandlerTellsTheCost(t *testing.T) {
	for _, permits := range []string{"rate: 100/h", "quota: 100/day"} {
		for name, c := range map[string]struct {
			told int64
			used string
			want int64
		}{
			"less than it took":         {4, "", 10},
			"more than it took":         {35, "", 35},
			"a lower cost in the field": {35, "3", 25}, // of 35, 10 were taken, and 25 were charged
		} {
			t.Run(permits+" "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					guard := httplimit.New()
					file := filepath.Join(t.TempDir(), "limits.yaml")
					text := "limits: {tokens: {key: all, " + permits + ", cost: 10, cost-after: X-Tokens-Used}}"
					if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
						t.Fatal(err)
					}
					ctx, stop := context.WithCancel(t.Context())
					defer stop()
					config := rules.Config{Client: limittest.NewRealTime(t).Client()}
					if err := rules.Watch(ctx, guard, file, config); err != nil {
						t.Fatal(err)
					}
					handler := guard.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						httplimit.Charge(r.Context(), c.told)
						synctest.Wait()
						if c.used != "" {
							w.Header().Set("X-Tokens-Used", c.used)
						}
					}))
					ask := func() string {
						w := httptest.NewRecorder()
						handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
						synctest.Wait()
						left, _, _ := strings.Cut(w.Header().Get("RateLimit"), ";t=")
						return left
					}
					ask()
					if got, want := ask(), fmt.Sprint(`"tokens";r=`, 90-c.want); got != want {
						t.Errorf("after a request that costs %d: %s, not %s", c.want, got, want)
					}
				})
			})
		}
	}
}
