// Package routertest has the tests of a guard in a router. They send real requests to a server. The
// modules ginlimit, echolimit and fiberlimit and the examples run them on their router.
package routertest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// A Start starts a server whose routes have a guard, and returns its URL. The routes are those of
// statuses, and what they do is in the comments there.
type Start func(t *testing.T, guard *httplimit.Guard) (url string)

// statuses are the routes, and the status of their responses.
var statuses = map[string]int{
	"/right": http.StatusOK,           // responds with a body, and the field X-Cost: 2
	"/wrong": http.StatusUnauthorized, // responds without a body
	// returns an error of the program that only the router's error handler knows
	"/error":   http.StatusUnauthorized,
	"/nothing": http.StatusOK,                  // writes nothing
	"/panic":   http.StatusInternalServerError, // panics; a middleware outside of the guard recovers
	"/late":    http.StatusUnauthorized,        // writes the status and a body, and then panics
	"/stream":  http.StatusOK,                  // charges 2, writes and flushes a part, and does so again
	// takes over the connection; the status depends on the router
	"/hijack": 0,
}

// Run runs the tests. lacks has routes that the router does not have.
func Run(t *testing.T, start Start, lacks ...string) {
	for path, status := range statuses {
		if slices.Contains(lacks, path) {
			continue
		}
		t.Run(path, func(t *testing.T) {
			if path != "/hijack" {
				testCounts(t, start, path, status)
			}
			testSettles(t, start, path, status)
		})
	}
	t.Run("cost", func(t *testing.T) { testCost(t, start) })
	t.Run("charge", func(t *testing.T) { testCharge(t, start) })
	t.Run("response", func(t *testing.T) { testResponse(t, start) })
	t.Run("no guard", func(t *testing.T) {
		url := start(t, nil)
		wantStatus(t, url+"/right", http.StatusOK)
	})
}

// A limit of three counts the responses with one status: the fourth request is refused.
func testCounts(t *testing.T, start Start, path string, status int) {
	guard, _ := newGuard(t, func(l httplimit.Limit) httplimit.Limit {
		return l.CountIf(func(got int, _ http.Header) bool { return got == status })
	})
	url := start(t, guard)
	for range 3 {
		wantStatus(t, url+path, status)
	}
	wantStatus(t, url+path, http.StatusTooManyRequests)
}

// The other responses give their permits back, once for each request.
func testSettles(t *testing.T, start Start, path string, want int) {
	statuses := make(chan int, 10)
	guard, limiter := newGuard(t, func(l httplimit.Limit) httplimit.Limit {
		return l.CountIf(func(status int, _ http.Header) bool {
			statuses <- status
			return false
		})
	})
	url := start(t, guard)
	for range 4 {
		if response, err := http.Get(url + path); err == nil { // without a response after a hijack
			_, _ = io.Copy(io.Discard, response.Body)
			response.Body.Close()
		}
		if status := <-statuses; status != want && want != 0 {
			t.Errorf("status %d counts, not %d", status, want)
		}
		awaitUsed(t, limiter, 0)
	}
	if len(statuses) != 0 {
		t.Errorf("%d calls too many", len(statuses))
	}
}

func testCost(t *testing.T, start Start) {
	guard, limiter := newGuard(t, func(l httplimit.Limit) httplimit.Limit {
		return l.CostAfter(func(_ int, h http.Header) int64 {
			var cost int64
			_, _ = fmt.Sscan(h.Get("X-Cost"), &cost)
			return cost
		})
	})
	wantStatus(t, start(t, guard)+"/right", http.StatusOK)
	awaitUsed(t, limiter, 2)
}

// A handler charges while it streams. All counts, although the limit has only 3 permits: the next
// request is refused.
func testCharge(t *testing.T, start Start) {
	guard, limiter := newGuard(t, func(l httplimit.Limit) httplimit.Limit { return l.CostAfter(nil) })
	url := start(t, guard)
	wantStatus(t, url+"/stream", http.StatusOK)
	awaitUsed(t, limiter, 4)
	if h := wantStatus(t, url+"/right", http.StatusTooManyRequests); h.Get("Retry-After") != "3600" {
		t.Errorf("a refusal has the header %v", h)
	}
}

// The responses have the header fields of the guard, and those of a refusal its body. Skipped
// requests have none.
func testResponse(t *testing.T, start Start) {
	guard, _ := newGuard(t, func(l httplimit.Limit) httplimit.Limit { return l })
	guard.Skip = []httplimit.Rule{httplimit.Paths("/nothing")}
	url := start(t, guard)
	for _, remaining := range []int{2, 1, 0} {
		h := wantStatus(t, url+"/right", http.StatusOK)
		if got, want := h.Get("RateLimit"), fmt.Sprintf(`"all";r=%d;t=3600`, remaining); got != want ||
			h.Get("X-Cost") != "2" {
			t.Errorf("RateLimit: %s, not %s; %v", got, want, h)
		}
	}
	h := wantStatus(t, url+"/right", http.StatusTooManyRequests)
	if h.Get("Retry-After") != "3600" || h.Get("Content-Type") != "application/problem+json" || h.Get("X-Cost") != "" {
		t.Errorf("a refusal has the header %v", h)
	}
	if h := wantStatus(t, url+"/nothing", http.StatusOK); h.Get("RateLimit") != "" {
		t.Errorf("a skipped request has the header %v", h)
	}
}

// newGuard returns a guard with one limit of three requests an hour for all requests together, and
// its limiter.
func newGuard(t *testing.T, change func(httplimit.Limit) httplimit.Limit) (*httplimit.Guard, *rratelimiter.Limiter) {
	client := limittest.New(t).Client()
	guard := httplimit.New(change(httplimit.Per(client, "all", rratelimiter.PerHour(3), nil)))
	guard.Policy = &httplimit.Policy{Bound: 10 * time.Second, Failure: httplimit.FailClosed}
	return guard, client.RateLimiter("ratelimit:all")
}

// wantStatus sends a request, checks the status of the response, and returns its header.
func wantStatus(t *testing.T, url string, status int) http.Header {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body) // /late can end early
	// no handler adds to the body
	if response.StatusCode != status || status == http.StatusTooManyRequests && !json.Valid(body) {
		t.Fatalf("%s: %d %s, not %d", url, response.StatusCode, body, status)
	}
	return response.Header
}

// awaitUsed waits until so many permits are in use: they are corrected in the background.
func awaitUsed(t *testing.T, limiter *rratelimiter.Limiter, want int64) {
	t.Helper()
	for {
		state, err := limiter.State(context.WithoutCancel(t.Context()))
		if err != nil {
			t.Fatal(err)
		}
		if state.Used == want {
			return
		}
		time.Sleep(time.Millisecond)
	}
}
