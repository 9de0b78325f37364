package adapt_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/adapt"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/limittest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func TestEachCallTakesOnePermit(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		client := rratelimiter.NewClient(s.Client(), rratelimiter.WithCallTimeout(10*time.Second))
		l := client.RateLimiter("api", rratelimiter.WithRate(rratelimiter.PerHour(4)))
		a := adapt.New(l)
		if qps := a.QPS(); qps != 0 {
			t.Errorf("QPS without a rate: %v", qps)
		}
		if err := a.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		if err := a.Limit(t.Context()); err != nil {
			t.Error(err)
		}
		if !a.TryAccept() {
			t.Error("not accepted")
		}
		a.Accept()
		a.Stop()
		if state, err := l.State(t.Context()); err != nil || state.Used != 4 {
			t.Errorf("%+v, %v", state, err)
		}
		// A grant is dated at the next whole ms, so the wait can be up to 1 ms longer than the
		// hour.
		soon := regexp.MustCompile(`retry after (59m|1h0m0\.000)`)
		if err := a.Limit(t.Context()); !errors.Is(err, adapt.ErrRefused) || !soon.MatchString(err.Error()) {
			t.Error(err)
		}
		if a.TryAccept() {
			t.Error("accepted")
		}
		if qps := a.QPS(); qps != float32(4.0/3600) {
			t.Errorf("QPS %v", qps)
		}
	})
}

func TestWaitingForAPermit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := adapt.New(limittest.NewRealTime(t).Client().RateLimiter("api",
			rratelimiter.WithRate(rratelimiter.PerMinute(1))))
		began := time.Now()
		a.Accept()
		if err := a.Wait(t.Context()); err != nil || time.Since(began).Truncate(time.Second) != time.Minute {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := a.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		a.Accept()
		if took := time.Since(began).Truncate(time.Second); took != 2*time.Minute {
			t.Errorf("after %v", took)
		}
	})
}

// While Redis fails, Limit returns the error, TryAccept refuses, and Accept tries again.
func TestWhileRedisFails(t *testing.T) {
	was := slog.Default()
	defer slog.SetDefault(was)
	var book strings.Builder
	slog.SetDefault(slog.New(slog.NewTextHandler(&book, nil)))
	synctest.Test(t, func(t *testing.T) {
		s := limittest.NewRealTime(t)
		a := adapt.New(s.Client().RateLimiter("api", rratelimiter.WithRate(rratelimiter.PerHour(9))))
		s.Fail("OOM command not allowed")
		if err := a.Limit(t.Context()); err == nil || errors.Is(err, adapt.ErrRefused) {
			t.Error(err)
		}
		if a.TryAccept() {
			t.Error("accepted")
		}
		var accepted sync.WaitGroup
		accepted.Go(a.Accept)
		time.Sleep(10 * time.Second)
		s.Fail("")
		began := time.Now()
		if accepted.Wait(); time.Since(began) > 10*time.Second {
			t.Errorf("after %v", time.Since(began))
		}
	})
	if !strings.Contains(book.String(), "a caller of Accept waits") || !strings.Contains(book.String(), "limiter=api") {
		t.Errorf("logged %q", book.String())
	}
}

// Each step of a program waits for a permit that all processes share.
func ExampleLimiter_Wait() {
	server := limittest.Start()
	defer server.Close()
	limiter := server.Client().RateLimiter("api", rratelimiter.WithRate(rratelimiter.PerHour(2)))

	var pace interface { // for example *rate.Limiter of golang.org/x/time/rate
		Wait(ctx context.Context) error
	} = adapt.New(limiter)
	for range 2 {
		fmt.Println(pace.Wait(context.Background()))
	}
	// Output:
	// <nil>
	// <nil>
}

func ExampleLimiter_Limit() {
	server := limittest.Start()
	defer server.Close()
	limiter := server.Client().RateLimiter("api", rratelimiter.WithRate(rratelimiter.PerHour(1)))

	// to be given to ratelimit.UnaryServerInterceptor of go-grpc-middleware
	limited := adapt.New(limiter)
	for range 2 {
		fmt.Println(limited.Limit(context.Background()))
	}
	// Output:
	// <nil>
	// too many requests: retry after 1h0m0s
}
