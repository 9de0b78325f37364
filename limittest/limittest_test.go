package limittest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// eachKind runs a test with a clock driven by hand, with the same in a bubble, and with a bubble's
// own clock.
func eachKind(t *testing.T, test func(t *testing.T, s *limittest.Server)) {
	t.Run("by hand", func(t *testing.T) { test(t, limittest.New(t)) })
	t.Run("by hand in a bubble", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { test(t, limittest.New(t)) })
	})
	t.Run("bubble's clock", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { test(t, limittest.NewRealTime(t)) })
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func allowed(t *testing.T, l *rratelimiter.Limiter, n int64) bool {
	t.Helper()
	ok, err := l.TryAcquire(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

func TestPermitsReturnWhenTheClockMoves(t *testing.T) {
	eachKind(t, func(t *testing.T, s *limittest.Server) {
		for _, opts := range [][]rratelimiter.LimiterOption{nil, {rratelimiter.WithServerTime()}} {
			name := fmt.Sprint("jobs", len(opts))
			l := s.Client().RateLimiter(name, append(opts, rratelimiter.WithRate(rratelimiter.PerMinute(2)))...)
			if !allowed(t, l, 2) || allowed(t, l, 1) {
				t.Fatal("not two permits a minute")
			}
			s.Advance(time.Minute - time.Millisecond)
			if allowed(t, l, 1) {
				t.Fatal("permits returned early")
			}
			s.Advance(time.Millisecond)
			if !allowed(t, l, 2) {
				t.Fatal("permits did not return")
			}
		}
	})
}

func TestAdvanceServesWaitingCallers(t *testing.T) {
	eachKind(t, func(t *testing.T, s *limittest.Server) {
		l := s.Client().RateLimiter("jobs", rratelimiter.WithRate(rratelimiter.PerSecond(1)))
		if !allowed(t, l, 1) {
			t.Fatal("no permit")
		}
		served := make(chan error, 2)
		for i := range 2 {
			go func() { served <- l.Acquire(t.Context(), 1) }()
			s.AwaitWaiting("jobs", i+1)
		}
		s.Advance(999 * time.Millisecond)
		if n := s.Waiting("jobs"); n != 2 {
			t.Fatalf("after 999 ms %d wait, not 2", n)
		}
		s.Advance(time.Millisecond)
		if n := s.Waiting("jobs"); n != 1 {
			t.Fatalf("after 1 s %d wait, not 1", n)
		}
		if err := <-served; err != nil {
			t.Fatal(err)
		}
		s.Advance(time.Second)
		if n := s.Waiting(""); n != 0 {
			t.Fatalf("after 2 s %d wait, not 0", n)
		}
		if err := <-served; err != nil {
			t.Fatal(err)
		}
	})
}

// A long step serves each caller at its time, as many short ones would.
func TestAdvanceStopsWhereACallerCanBeServed(t *testing.T) {
	eachKind(t, func(t *testing.T, s *limittest.Server) {
		began := s.Now()
		l := s.Client().
			RateLimiter("jobs", rratelimiter.WithRate(rratelimiter.Rate{Permits: 1, Interval: 100 * time.Millisecond}))
		if !allowed(t, l, 1) {
			t.Fatal("no permit")
		}
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				if err := l.Acquire(context.Background(), 1); err != nil {
					t.Error(err)
				}
			})
		}
		s.AwaitWaiting("jobs", 5)
		s.Advance(530 * time.Millisecond)
		if n := s.Waiting("jobs"); n != 0 {
			t.Fatalf("%d wait, not 0", n)
		}
		wg.Wait()
		if took := s.Now().Sub(began); took != 530*time.Millisecond {
			t.Fatalf("the clock moved by %v", took)
		}
		state, err := l.State(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if at := state.Newest.Sub(began.Truncate(time.Millisecond)); at != 500*time.Millisecond {
			t.Errorf("the last one was served after %v, not 500 ms", at)
		}
	})
}

func TestKeysExpireWhenTheClockMoves(t *testing.T) {
	eachKind(t, func(t *testing.T, s *limittest.Server) {
		l := s.Client().RateLimiter("jobs", rratelimiter.WithRate(rratelimiter.PerSecond(1)))
		if !allowed(t, l, 1) {
			t.Fatal("no permit")
		}
		if _, err := l.Expire(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
		s.Advance(time.Hour - time.Second)
		if ttl, err := l.TTL(t.Context()); err != nil || ttl != time.Second {
			t.Fatalf("it lives for %v (%v), not 1 s", ttl, err)
		}
		s.Advance(time.Second)
		if exists, err := l.Exists(t.Context()); err != nil || exists {
			t.Fatalf("it outlived its time (%v)", err)
		}
	})
}

func TestServerShowsTheSameTime(t *testing.T) {
	s := limittest.New(t)
	s.Set(time.Date(2031, 5, 6, 7, 8, 9, 10e6, time.UTC))
	if at := s.Redis().Time(t.Context()).Val(); !at.Equal(s.Now()) || at.Year() != 2031 {
		t.Errorf("TIME is %v, the clock shows %v", at, s.Now())
	}
	s.Set(limittest.Epoch.Add(-time.Hour))
	if at := s.Redis().Time(t.Context()).Val(); !at.Equal(limittest.Epoch.Add(-time.Hour)) {
		t.Errorf("set back, TIME is %v", at)
	}
}

func TestClientWithWrongClock(t *testing.T) {
	s := limittest.New(t)
	ahead := s.Client(rratelimiter.WithClock(func() time.Time { return s.Now().Add(time.Hour) }))
	l := ahead.RateLimiter("jobs", rratelimiter.WithRate(rratelimiter.PerSecond(1)))
	if !allowed(t, l, 1) {
		t.Fatal("no permit")
	}
	state, err := l.State(t.Context())
	if err != nil || !state.Newest.Equal(limittest.Epoch.Add(time.Hour)) {
		t.Errorf("the grant is dated %v (%v)", state.Newest, err)
	}
}

// Callers in two clients of one server are two processes.
func TestWaitingCountsAllClients(t *testing.T) {
	eachKind(t, func(t *testing.T, s *limittest.Server) {
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 2 {
			c := s.Client()
			for _, name := range []string{"a", "b"} {
				l := c.RateLimiter(name, rratelimiter.WithRate(rratelimiter.PerHour(3)))
				wg.Go(func() {
					if err := l.Acquire(ctx, 3); err != nil && !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
				})
			}
		}
		s.AwaitWaiting("a", 1)
		s.AwaitWaiting("b", 1)
		if n := s.Waiting(""); n != 2 {
			t.Errorf("%d wait, not 2", n)
		}
		cancel()
		wg.Wait()
		s.AwaitWaiting("", 0)
	})
}

func TestCloseEndsWaiting(t *testing.T) {
	eachKind(t, func(t *testing.T, s *limittest.Server) {
		l := s.Client().RateLimiter("jobs", rratelimiter.WithRate(rratelimiter.PerHour(1)))
		if !allowed(t, l, 1) {
			t.Fatal("no permit")
		}
		ended := make(chan error, 1)
		go func() { ended <- l.Acquire(context.Background(), 1) }()
		s.AwaitWaiting("jobs", 1)
		s.Close()
		if n := s.Waiting("jobs"); n != 0 {
			t.Errorf("closed, %d still wait", n)
		}
		if err := <-ended; !errors.Is(err, redis.ErrClosed) {
			t.Errorf("ended with %v", err)
		}
	})
}

// The probe of a node can come later. It must not start the server again.
func TestNoConnectionAfterClose(t *testing.T) {
	s := limittest.Start()
	dial := s.Redis().Options().Dialer
	s.Close()
	if conn, err := dial(t.Context(), "", ""); err == nil {
		conn.Close()
		t.Error("the server is there again")
	}
}

func TestFailedServer(t *testing.T) {
	s := limittest.New(t)
	l := s.Client().RateLimiter("jobs", rratelimiter.WithRate(rratelimiter.PerHour(1)))
	s.Fail("OOM command not allowed")
	if _, err := l.TryAcquire(t.Context(), 1); err == nil || !strings.Contains(err.Error(), "OOM") {
		t.Errorf("the error is %v", err)
	}
	s.Fail("")
	if !allowed(t, l, 1) {
		t.Error("no permit after all is well again")
	}
}

// A pipe without a buffer blocks both ends as soon as a pipeline is larger than what the server
// reads at once.
func TestLongPipeline(t *testing.T) {
	eachKind(t, func(t *testing.T, s *limittest.Server) {
		pipe := s.Redis().Pipeline()
		for range 5_000 {
			pipe.Incr(t.Context(), "counter")
		}
		began := time.Now()
		if _, err := pipe.Exec(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n, err := s.Redis().Get(t.Context(), "counter").Int(); err != nil || n != 5_000 {
			t.Errorf("counted %d (%v)", n, err)
		}
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("took %v: it was held up until a deadline", took)
		}
	})
}

// A timeout ends when the clock has passed it, even if less real time has passed.
func TestTimeoutFollowsTheClock(t *testing.T) {
	eachKind(t, func(t *testing.T, s *limittest.Server) {
		l := s.Client().RateLimiter("jobs", rratelimiter.WithRate(rratelimiter.PerHour(1)))
		for _, c := range []struct {
			timeout, step time.Duration
			served        bool
		}{
			{3 * time.Hour, time.Hour, true},
			{90 * time.Minute, 2 * time.Hour, true},
			{3 * time.Hour, 4 * time.Hour, false},
		} {
			must(t, s.Redis().FlushAll(t.Context()).Err())
			if !allowed(t, l, 1) {
				t.Fatal("no permit")
			}
			answer := make(chan bool)
			go func() {
				ok, err := l.TryAcquireTimeout(t.Context(), 1, c.timeout)
				if err != nil {
					t.Error(err)
				}
				answer <- ok
			}()
			s.AwaitWaiting("jobs", 1)
			if !c.served {
				// Another client's grant, from the caller's point of view.
				member := s.Redis().ZRange(t.Context(), "{jobs}:permits", 0, 0).Val()[0]
				must(t, s.Redis().ZIncrBy(t.Context(), "{jobs}:permits", 4*3600_000, member).Err())
			}
			s.Advance(c.step)
			s.AwaitWaiting("jobs", 0)
			if ok := <-answer; ok != c.served {
				t.Errorf("%v, %v later: %v", c.timeout, c.step, ok)
			}
		}
	})
}

// Contexts follow time.Now, so in a bubble everything has one clock.
func TestBubbleHasOneClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limittest.NewRealTime(t).Client().RateLimiter("jobs", rratelimiter.WithRate(rratelimiter.PerHour(1)))
		began := time.Now()
		if !allowed(t, l, 1) {
			t.Fatal("no permit")
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		if err := l.Acquire(ctx, 1); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 10*time.Minute {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		if ok, err := l.TryAcquireTimeout(t.Context(), 1, 49*time.Minute); ok || err != nil ||
			time.Since(began) != 10*time.Minute {
			t.Errorf("after %v: %v, %v", time.Since(began), ok, err)
		}
		if ok, err := l.TryAcquireTimeout(t.Context(), 1, 51*time.Minute); !ok || err != nil ||
			time.Since(began) != time.Hour {
			t.Errorf("after %v: %v, %v", time.Since(began), ok, err)
		}
	})
}

// recorder is a test that notes failures instead of failing.
type recorder struct {
	testing.TB
	failed string
}

func (r *recorder) Helper() {}
func (r *recorder) Fatalf(format string, args ...any) {
	r.failed = fmt.Sprintf(format, args...)
	panic(r)
}

func TestServerFailsTheTest(t *testing.T) {
	for _, c := range []struct {
		name, want string
		do         func(s *limittest.Server)
	}{
		{"back", "use Set", func(s *limittest.Server) { s.Advance(-time.Second) }},
		{"nobody comes", `0 callers wait for "jobs", not 1`, func(s *limittest.Server) { s.AwaitWaiting("jobs", 1) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &recorder{TB: t}
				s := limittest.New(r)
				defer func() {
					if recover() != r || !strings.Contains(r.failed, c.want) {
						t.Errorf("failed with %q, not %q", r.failed, c.want)
					}
				}()
				c.do(s)
			})
		})
	}
}

func TestStartNeedsNoTest(t *testing.T) {
	s := limittest.Start()
	l := s.Client().RateLimiter("jobs", rratelimiter.WithRate(rratelimiter.PerSecond(1)))
	if !allowed(t, l, 1) {
		t.Error("no permit")
	}
	s.Close()
	s.Close()
	if _, err := l.TryAcquire(t.Context(), 1); !errors.Is(err, redis.ErrClosed) {
		t.Errorf("closed, the error is %v", err)
	}
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	s.Advance(-1)
}

// A call that begins in the background shortly before the end of a test is still answered.
func TestCloseLetsCallsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := limittest.NewRealTime(t)
		l := s.Client().RateLimiter("tokens", rratelimiter.WithRate(rratelimiter.PerMinute(10)))
		var err error
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, err = l.Charge(t.Context(), 3)
		}()
		s.Close()
		if <-done; err != nil {
			t.Error(err)
		}
	})
}
