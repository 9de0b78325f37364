package guide

import (
	"context"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

func serveOne(ctx context.Context, w http.ResponseWriter, addr string) error {
	client := rratelimiter.NewClient(redis.NewClient(&redis.Options{Addr: addr})) // such as "localhost:6379"
	limiter := client.RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerSecond(100)))
	if err := limiter.Acquire(ctx, 1); err != nil { // waits for a permit
		return err
	}
	result, err := limiter.Allow(ctx, 1) // or, in another place: does not wait for a permit
	if err != nil {
		return err // for example ErrUnavailable
	}
	if !result.Allowed {
		wait := max(result.RetryAfter.Truncate(time.Millisecond), time.Second) // at least 1 s; 1.0004 s becomes 1 s, not 2 s
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
		http.Error(w, "too many requests", http.StatusTooManyRequests)
		return nil
	}
	_, err = io.WriteString(w, "the order")
	return err
}

func TestTheFirstProgramRuns(t *testing.T) {
	server := redistest.Embedded(t)
	ctx := t.Context()
	rdb := server.Client()
	// Another client has set a lower rate, which applies.
	other := rratelimiter.NewClient(rdb).RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerHour(3)))
	if err := other.Acquire(ctx, 1); err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{http.StatusOK, http.StatusTooManyRequests} {
		body := []string{"the order", "too many requests\n"}[i]
		if i == 1 {
			if _, err := other.Release(ctx, 1); err != nil { // Acquire must not wait an hour
				t.Fatal(err)
			}
		}
		w := httptest.NewRecorder()
		if err := serveOne(ctx, w, server.Addr); err != nil || w.Code != want || w.Body.String() != body ||
			(want == http.StatusOK) != (w.Header().Get("Retry-After") == "") {
			t.Errorf("%d %v %q, %v", w.Code, w.Header(), w.Body, err)
		}
	}
}
