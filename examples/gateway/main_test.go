package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// A world has a backend, a gateway in front of it, and a clock.
type world struct {
	t        *testing.T
	gateway  *httptest.Server
	redis    *redistest.Server
	asked    atomic.Int64 // requests that reached the backend
	forward  atomic.Value // X-Forwarded-For of the last of them
	advanced atomic.Int64 // ns
}

func start(t *testing.T, s *redistest.Server) *world {
	w := &world{t: t, redis: s}
	backend := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.asked.Add(1)
		w.forward.Store(r.Header.Get("X-Forwarded-For"))
		io.WriteString(rw, "answer to "+r.URL.Path)
	}))
	t.Cleanup(backend.Close)
	began := time.Now().Truncate(time.Millisecond) // on long intervals, scores of grants are whole ms
	client := rratelimiter.NewClient(
		s.Client(),
		rratelimiter.WithCallTimeout(10*time.Second),
		rratelimiter.WithClock(func() time.Time {
			return began.Add(time.Duration(w.advanced.Load()))
		}),
	)
	target, err := url.Parse(backend.URL)
	if err != nil {
		t.Fatal(err)
	}
	trusted, err := networks("127.0.0.0/8, ::1/128,")
	if err != nil {
		t.Fatal(err)
	}
	patient := &httplimit.Policy{Bound: 10 * time.Second, Failure: httplimit.FailClosed}
	w.gateway = httptest.NewServer(gateway(client, target, trusted, patient))
	t.Cleanup(w.gateway.Close)
	return w
}

func (w *world) advance(d time.Duration) { w.advanced.Add(int64(d)) }

// get requests a path. forwarded is the X-Forwarded-For of the proxy in front, if any.
func (w *world) get(path, forwarded string) *http.Response {
	w.t.Helper()
	r, err := http.NewRequest(http.MethodGet, w.gateway.URL+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	if forwarded != "" {
		r.Header.Set("X-Forwarded-For", forwarded)
	}
	answer, err := w.gateway.Client().Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	if served := answer.StatusCode == http.StatusOK; served != strings.HasPrefix(string(body), "answer to "+path) {
		w.t.Fatalf("%d %s", answer.StatusCode, body)
	}
	return answer
}

// passed sends n requests and returns how many of them were served.
func (w *world) passed(n int, path, forwarded string) (served int) {
	w.t.Helper()
	for range n {
		switch answer := w.get(path, forwarded); answer.StatusCode {
		case http.StatusOK:
			served++
		case http.StatusTooManyRequests:
			if answer.Header.Get("Retry-After") == "" {
				w.t.Error("a refusal has no Retry-After")
			}
		default:
			w.t.Fatalf("status %s", answer.Status)
		}
	}
	return served
}

func each(t *testing.T, test func(t *testing.T, w *world)) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) { test(t, start(t, s)) })
}

func TestTenASecondAndTwoHundredAMinute(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		const client = "203.0.113.7"
		total := 0
		for second := range 21 {
			want := 10
			if second == 20 {
				want = 0 // the limit of the minute is used up
			}
			if n := w.passed(12, "/orders", client); n != want {
				t.Fatalf("second %d: %d passed, not %d", second, n, want)
			}
			total += want
			w.advance(time.Second)
		}
		if n := w.asked.Load(); n != int64(total) {
			t.Errorf("%d requests reached the backend, not %d", n, total)
		}
		refused := w.get("/orders", client)
		if got := refused.Header.Get("RateLimit"); got != `"1m";r=0;t=39` {
			t.Errorf("RateLimit: %s", got)
		}
		w.advance(39 * time.Second)
		if n := w.passed(12, "/orders", client); n != 10 {
			t.Errorf("after a minute %d passed", n)
		}
	})
}

func TestClientsAndPathsAreCountedApart(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		for _, c := range []struct{ path, client string }{
			{"/orders", "203.0.113.7"}, {"/orders", "203.0.113.8"}, {"/users", "203.0.113.7"},
			{"/orders", "2001:db8::1"},
		} {
			if n := w.passed(11, c.path, c.client); n != 10 {
				t.Errorf("%s of %s: %d passed", c.path, c.client, n)
			}
		}
		if n := w.passed(1, "/orders", "2001:db8::2"); n != 0 {
			t.Error("an address of the same /64 network was counted apart")
		}
	})
}

func TestDetoursAreNoOtherPaths(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		n := 0
		for _, path := range []string{
			"/orders", "//orders", "/./orders", "/x/../orders", "/orders/", "/orders;0", "/orders;1", "/x/..;/orders",
			"/%6frders",
		} {
			n += w.passed(4, path, "203.0.113.7")
		}
		if n != 10 {
			t.Errorf("%d passed", n)
		}
	})
}

func TestNamesInRedis(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.passed(1, "/orders", "203.0.113.7")
		rdb := w.redis.Client()
		keys := rdb.Keys(t.Context(), "ratelimit:*").Val()
		slices.Sort(keys)
		if want := []string{"ratelimit:203.0.113.7:/orders:1m", "ratelimit:203.0.113.7:/orders:1s"}; !slices.Equal(
			keys, want,
		) {
			t.Errorf("%v, not %v", keys, want)
		}
		for _, key := range rdb.Keys(t.Context(), "*").Val() {
			if ttl := rdb.PTTL(t.Context(), key).Val(); ttl <= 0 || ttl > 2*time.Minute {
				t.Errorf("%s lives for %v", key, ttl)
			}
		}
	})
}

func TestPrivateClientsAreFree(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		for _, client := range []string{"10.1.2.3", "192.168.0.9", "fd00::5"} {
			if n := w.passed(15, "/orders", client); n != 15 {
				t.Errorf("client %q: %d of 15 passed", client, n)
			}
		}
		if n := w.redis.Client().DBSize(t.Context()).Val(); n != 0 {
			t.Errorf("%d keys", n)
		}
	})
}

func TestNobodyPassesForPrivate(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		if n := w.passed(11, "/orders", "10.1.2.3, 203.0.113.7"); n != 10 {
			t.Errorf("%d of 11 passed", n)
		}
		if n := w.passed(11, "/orders", "10.1.2.3, nonsense"); n != 10 {
			t.Errorf("with an unreadable header, %d of 11 passed", n)
		}
		if got := w.forward.Load(); got != "10.1.2.3, nonsense, 127.0.0.1" {
			t.Errorf("the backend sees X-Forwarded-For: %v", got)
		}
		if n := w.passed(11, "/users", ""); n != 10 {
			t.Errorf("without a header, %d of 11 passed", n)
		}
	})
}

func TestWrongFlags(t *testing.T) {
	for _, c := range []struct{ backend, redis, trust, want string }{
		{":", "redis://localhost", "", "backend:"},
		{"http://localhost", "http://localhost", "", "redis:"},
		{"http://localhost", "redis://localhost", "10.0.0.0", "trust:"},
		{"http://localhost", "redis://localhost", "", "listen"},
	} {
		if err := run("localhost:nonsense", c.backend, c.redis, c.trust); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
