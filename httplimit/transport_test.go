package httplimit

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// A remote is the service behind a Transport. It is a http.RoundTripper itself, so no connection is
// needed.
type remote struct {
	mu     sync.Mutex
	began  time.Time
	times  []time.Duration // of the requests, since it began
	refuse int             // status of the next response; 0: 200
	header string          // Retry-After of the next response
}

func newRemote() *remote { return &remote{began: time.Now()} }

func (s *remote) RoundTrip(*http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.times = append(s.times, time.Since(s.began))
	w := httptest.NewRecorder()
	if s.refuse != 0 {
		w.Header().Set("Retry-After", s.header)
		w.WriteHeader(s.refuse)
		s.refuse = 0
	}
	return w.Result(), nil
}

// next sets the next response.
func (s *remote) next(status int, retryAfter string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse, s.header = status, retryAfter
}

// sent returns the times of the requests since the last call.
func (s *remote) sent() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	times := s.times
	s.times = nil
	return times
}

func fetch(t *testing.T, transport *Transport) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://api.test/", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	return response
}

func TestRequestsArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, s := limittest.NewRealTime(t).Client(), newRemote()
		transport := &Transport{
			Limiter: client.RateLimiter("api", rratelimiter.WithRate(rratelimiter.PerSecond(2))),
			Base:    s,
		}
		for range 6 {
			fetch(t, transport)
		}
		sent := s.sent()
		if len(sent) != 6 {
			t.Errorf("%d requests were sent", len(sent))
		}
		for i, at := range sent {
			if want := time.Duration(i/2) * time.Second; at < want || at > want+100*time.Millisecond {
				t.Errorf("request %d after %v, not %v", i, at, want)
			}
		}
	})
}

// closer is a body that records whether it was closed.
type closer struct {
	io.Reader
	closed bool
}

func (c *closer) Close() error {
	c.closed = true
	return nil
}

func TestRequestThatGetsNoPermitIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, s := limittest.NewRealTime(t), newRemote()
		limiter := server.Client().RateLimiter("api", rratelimiter.WithRate(rratelimiter.PerHour(1)))
		transport := &Transport{Limiter: limiter, Base: s}
		fetch(t, transport)
		for _, paused := range []bool{false, true} {
			if paused {
				s.next(429, "10")
				if _, err := limiter.Delete(t.Context()); err != nil {
					t.Fatal(err)
				}
				fetch(t, transport)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			body := &closer{Reader: strings.NewReader("x")}
			r := httptest.NewRequestWithContext(ctx, http.MethodPost, "http://api.test/", body)
			began := time.Now()
			if _, err := transport.RoundTrip(r); !errors.Is(err, context.DeadlineExceeded) ||
				time.Since(began) > 1100*time.Millisecond {
				t.Errorf("paused %v: after %v %v", paused, time.Since(began), err)
			}
			if !body.closed {
				t.Errorf("paused %v: the body is open", paused)
			}
		}
		if n := len(s.sent()); n != 2 {
			t.Errorf("%d requests were sent", n)
		}
		time.Sleep(10 * time.Second) // until the pause is over
	})
}

func TestPauseOfAllProcesses(t *testing.T) {
	for _, c := range []struct {
		name       string
		rate       rratelimiter.Rate
		status     int
		retryAfter string
		want       time.Duration
	}{
		{"longer than the interval", rratelimiter.PerSecond(10), 429, "30", 30 * time.Second},
		{"shorter than the interval", rratelimiter.PerHour(10), 429, "30", 30 * time.Second},
		{"date", rratelimiter.PerSecond(10), 429, "date", 30 * time.Second},
		{"no time", rratelimiter.PerHour(10), 429, "", time.Second},
		{"0 s", rratelimiter.PerHour(10), 429, "0", time.Second},
		{"too long", rratelimiter.PerHour(10), 429, "86400", time.Minute},
		{"longer than 31 bits", rratelimiter.PerHour(10), 429, "2147483648", time.Minute},
		{"longer than 64 bits", rratelimiter.PerHour(10), 429, "99999999999999999999", time.Minute},
		{"not available", rratelimiter.PerHour(10), 503, "30", 30 * time.Second},
		{"not available, without a time", rratelimiter.PerHour(10), 503, "", 0},
		{"another error", rratelimiter.PerHour(10), 500, "30", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, s := limittest.NewRealTime(t), newRemote()
				limiter := func(ahead time.Duration) *rratelimiter.Limiter {
					now := func() time.Time { return server.Now().Add(ahead) }
					return server.Client(rratelimiter.WithClock(now)).RateLimiter("api", rratelimiter.WithRate(c.rate))
				}
				// The other process's clock is ahead, so that it asks first when permits return. If
				// both asked at the same time of the bubble, chance would decide.
				one, other := &Transport{Limiter: limiter(0), Base: s}, limiter(100*time.Microsecond)
				if c.retryAfter == "date" {
					c.retryAfter = time.Now().Add(30 * time.Second).UTC().Format(http.TimeFormat)
				}
				s.next(c.status, c.retryAfter)
				if response := fetch(t, one); response.StatusCode != c.status {
					t.Errorf("status %d", response.StatusCode)
				}
				s.sent()
				time.Sleep(10 * time.Millisecond) // other requests have not come yet
				var all sync.WaitGroup
				for range 2 {
					all.Go(func() { fetch(t, one) })
				}
				// Another process waits for permits all the time. It can only get the one that was
				// in use, when that returns.
				ctx, cancel := context.WithTimeout(t.Context(), c.want-10*time.Millisecond)
				defer cancel()
				taken := 0
				for c.want > 0 && other.Acquire(ctx, 1) == nil {
					taken++
				}
				if most := int(c.want / c.rate.Interval); taken > most {
					t.Errorf("the other process took %d during the pause", taken)
				}
				all.Wait()
				times := s.sent()
				if len(times) != 2 || times[0] < c.want || times[0] > c.want+1100*time.Millisecond {
					t.Errorf("requests after %v", times)
				}
				synctest.Wait()
				if c.rate.Interval > time.Minute {
					if state, err := other.State(t.Context()); err != nil || state.Used > 1+2 || !state.Consistent {
						t.Errorf("%+v, %v", state, err)
					}
				}
			})
		})
	}
}

// A date of a status 429 that has passed, or is less than 1 s ahead, causes a pause of 1 s.
func TestPauseOfADateThatIsNear(t *testing.T) {
	for _, ahead := range []time.Duration{-time.Hour, 0, time.Second} {
		synctest.Test(t, func(t *testing.T) {
			s := newRemote()
			limiter := limittest.NewRealTime(t).Client().RateLimiter("api",
				rratelimiter.WithRate(rratelimiter.PerHour(10)))
			transport := &Transport{Limiter: limiter, Base: s}
			// the bubble begins with a whole second
			date := time.Now().Add(ahead).UTC().Format(http.TimeFormat)
			time.Sleep(500 * time.Millisecond)
			s.next(429, date)
			fetch(t, transport)
			fetch(t, transport)
			if times := s.sent(); len(times) != 2 || times[1]-times[0] != time.Second {
				t.Errorf("%v ahead: requests after %v", ahead, times)
			}
		})
	}
}

// Permits that return together are taken by one call: another process whose callers wait for them
// would get the rest.
func TestPermitsThatReturnTogetherAreTakenTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, s := limittest.NewRealTime(t), newRemote()
		limiter := func() *rratelimiter.Limiter {
			return server.Client().RateLimiter("api", rratelimiter.WithRate(rratelimiter.PerMinute(10)))
		}
		one, other := &Transport{Limiter: limiter(), Base: s, MaxPause: time.Hour}, limiter()
		if ok, err := other.TryAcquire(t.Context(), 9); !ok || err != nil {
			t.Fatal(ok, err)
		}
		s.next(429, "100")
		fetch(t, one)
		time.Sleep(59 * time.Second)
		for _, want := range []int{2, 1} { // before and after the permits returned
			state, err := other.State(t.Context())
			if err != nil || state.Used != 10 || state.Records != want {
				t.Errorf("%+v, %v; want %d records", state, err, want)
			}
			time.Sleep(2 * time.Second)
		}
		time.Sleep(time.Minute) // until the pause is over
	})
}

// A request that waits for its permit when a pause begins does not use the one that it gets during
// the pause, and a later response extends the pause.
func TestWaitingRequestsStayBehindAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRemote()
		limiter := limittest.NewRealTime(t).Client().RateLimiter("api",
			rratelimiter.WithRate(rratelimiter.PerSecond(2)))
		transport := &Transport{Limiter: limiter, Base: s}
		fetch(t, transport)
		fetch(t, transport)
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() { fetch(t, transport) })
		}
		synctest.Wait()
		for _, seconds := range []string{"20", "10"} {
			transport.pacer.Pause(pauseOf(&http.Response{
				StatusCode: 429,
				Header:     http.Header{"Retry-After": {seconds}},
			}))
		}
		all.Wait()
		times := s.sent()
		if len(times) != 6 {
			t.Fatalf("sent after %v", times)
		}
		for i, at := range times[2:] {
			if want := 20*time.Second + time.Duration(i/2)*time.Second; at < want || at > want+100*time.Millisecond {
				t.Errorf("request %d after %v", i, at)
			}
		}
		time.Sleep(time.Minute)
		if state, err := limiter.State(t.Context()); err != nil || state.Used != 0 {
			t.Errorf("it still takes permits: %+v, %v", state, err)
		}
	})
}

func TestPauseWhileRedisFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, s, book := limittest.NewRealTime(t), newRemote(), &logbook{}
		limiter := server.Client(rratelimiter.WithCallTimeout(100*time.Millisecond)).
			RateLimiter("api", rratelimiter.WithRate(rratelimiter.PerHour(9)))
		transport := &Transport{Limiter: limiter, Base: s, Logger: book.logger()}
		s.next(429, "10")
		fetch(t, transport)
		time.Sleep(time.Second)
		server.Fail("LOADING Redis is loading the dataset in memory")
		time.Sleep(20 * time.Second)
		lines := book.lines()
		if len(lines) != 1 || !strings.Contains(lines[0], "permits could not be taken or given back") {
			t.Errorf("logged %q", lines)
		}
		server.Fail("")
		time.Sleep(time.Hour) // until the permits have returned
		fetch(t, transport)
		if n := len(s.sent()); n != 2 {
			t.Errorf("%d requests were sent", n)
		}
	})
}
