package httplimit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// answering is a handler whose response has the status and the cost of the path: "/200/7".
var answering = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(r.URL.Path, "/")
	status, _ := strconv.Atoi(parts[1])
	w.WriteHeader(status)
	if len(parts) > 2 {
		w.Header().Set("X-Cost", parts[2]) // too late to be sent
	}
})

func succeeded(status int, _ http.Header) bool { return status < 400 }

func costOf(_ int, h http.Header) int64 {
	n, _ := strconv.ParseInt(h.Get("X-Cost"), 10, 64)
	return n
}

func ten(*http.Request) int64 { return 10 }

// used returns the permits in use of a limiter, after all background work.
func used(t *testing.T, client *rratelimiter.Client, name string) int64 {
	t.Helper()
	synctest.Wait()
	state, err := client.RateLimiter(name).State(t.Context())
	if err != nil || !state.Consistent {
		t.Errorf("%s: %+v, %v", name, state, err)
	}
	return state.Used
}

func TestRequestsCountByTheirResponses(t *testing.T) {
	client := func(t *testing.T) *rratelimiter.Client { return limittest.NewRealTime(t).Client() }
	for _, c := range []struct {
		name   string
		change func(Limit) Limit
		paths  []string
		want   int64
	}{
		{
			"only successes count", func(l Limit) Limit { return l.CountIf(succeeded) },
			[]string{"/200", "/500", "/404", "/204"}, 2,
		},
		{"cost is returned", func(l Limit) Limit {
			return l.Cost(ten).CountIf(succeeded)
		}, []string{"/200", "/500"}, 10},
		{"cheaper", func(l Limit) Limit { return l.Cost(ten).CostAfter(costOf) }, []string{"/200/3", "/200/4"}, 7},
		{"as expected", func(l Limit) Limit { return l.Cost(ten).CostAfter(costOf) }, []string{"/200/10"}, 10},
		{"free", func(l Limit) Limit { return l.Cost(ten).CostAfter(costOf) }, []string{"/200/0"}, 0},
		{"not known", func(l Limit) Limit { return l.Cost(ten).CostAfter(costOf) }, []string{"/200/-1"}, 10},
		{"dearer", func(l Limit) Limit { return l.CostAfter(costOf) }, []string{"/200/3", "/200/4"}, 7},
		{"more than is free", func(l Limit) Limit { return l.CostAfter(costOf) }, []string{"/200/15", "/200/100"}, 115},
		{"both", func(l Limit) Limit {
			return l.CostAfter(costOf).CountIf(succeeded)
		}, []string{"/200/3", "/500/4"}, 3},
		{
			"both, the other way round", func(l Limit) Limit { return l.CountIf(succeeded).CostAfter(costOf) },
			[]string{"/200/3", "/500/4"}, 3,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := client(t)
				alone := patient(c.change(Per(client, "alone", rratelimiter.PerHour(20), nil)))
				several := patient(
					Per(client, "plain", rratelimiter.PerHour(100), nil),
					c.change(Per(client, "one", rratelimiter.PerHour(20), nil)),
				)
				for _, path := range c.paths {
					for _, guard := range []*Guard{alone, several} {
						if w := get(guard.Middleware(answering), "192.0.2.1",
							path); !strings.HasPrefix(path, "/"+strconv.Itoa(w.Code)) {
							t.Errorf("%s: %d", path, w.Code)
						}
						synctest.Wait()
					}
				}
				for _, name := range []string{"ratelimit:alone", "ratelimit:one"} {
					if n := used(t, client, name); n != c.want {
						t.Errorf("%s: %d permits used, not %d", name, n, c.want)
					}
				}
				if n := used(t, client, "ratelimit:plain"); n != int64(len(c.paths)) {
					t.Errorf("another limit: %d permits used", n)
				}
			})
		})
	}
}

// asked is an observer that counts the requests of each method.
type asked struct {
	mu      sync.Mutex
	methods map[string]int // guarded by mu
}

func (a *asked) Call(rratelimiter.CallInfo) {}

func (a *asked) Request(_ context.Context, info rratelimiter.RequestInfo) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.methods[info.Method]++
}

// Limits of one server are checked in one call, also if some depend on the response, and each
// corrects its own permits.
func TestLimitsThatDependOnTheResponseAreOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := &asked{methods: map[string]int{}}
		client := limittest.NewRealTime(t).Client(rratelimiter.WithObserver(seen))
		guard := patient(
			Per(client, "requests", rratelimiter.PerHour(20), nil),
			Per(
				client, "failed", rratelimiter.PerHour(20), nil,
			).CountIf(func(status int, _ http.Header) bool { return status >= 400 }),
			Per(client, "tokens", rratelimiter.PerHour(20), nil).Cost(ten).CostAfter(costOf),
		)
		wantCodes(t, guard.Middleware(answering), "192.0.2.1", "/200/7", 200)
		for name, want := range map[string]int64{"requests": 1, "failed": 0, "tokens": 7} {
			if n := used(t, client, "ratelimit:"+name); n != want {
				t.Errorf("%s: %d permits used, not %d", name, n, want)
			}
		}
		if len(seen.methods) != 1 || seen.methods["AllowAll"] != 3 {
			t.Errorf("asked by %v", seen.methods)
		}
	})
}

// A request takes its permits before it is handled, and a limit that waits asks again.
func TestPermitsAreTakenWhileARequestIsHandled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := limittest.NewRealTime(t).Client()
		guard := patient(
			Per(
				client, "failed", rratelimiter.PerMinute(1), byAddr,
			).CountIf(func(status int, _ http.Header) bool { return status == 401 }),
		)
		slow := guard.Middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			time.Sleep(30 * time.Second)
		}))
		first := make(chan int)
		go func() { first <- get(slow, "192.0.2.1", "/").Code }()
		synctest.Wait()
		wantCodes(t, guard.Middleware(answering), "192.0.2.1", "/200", 429)
		if code := <-first; code != 200 {
			t.Error(code)
		}
		synctest.Wait()
		guard.Policy.Wait = time.Minute
		wantCodes(t, guard.Middleware(answering), "192.0.2.1", "/401", 401, 401)
		guard.Policy.Wait = 0
		wantCodes(t, guard.Middleware(answering), "192.0.2.1", "/200", 429)
	})
}

// A request that waits passes soon after the permits of another request have come back. If they do
// not come back, it passes when their interval is over, even if that is the end of its wait.
func TestAWaitingRequestGetsPermitsThatComeBack(t *testing.T) {
	for _, another := range []bool{false, true} { // limit
		synctest.Test(t, func(t *testing.T) {
			client := limittest.NewRealTime(t).Client()
			limits := []Limit{
				Per(client, "failed", rratelimiter.PerMinute(1), byAddr).
					CountIf(func(status int, _ http.Header) bool { return status == 401 }),
			}
			if another {
				limits = append(limits, Per(client, "all", rratelimiter.PerMinute(100), byAddr))
			}
			guard := patient(limits...)
			guard.Policy.Wait = time.Minute
			slow := guard.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(5 * time.Second)
				answering(w, r)
			}))
			began := time.Now()
			go get(slow, "192.0.2.1", "/200")
			synctest.Wait()
			wantCodes(t, guard.Middleware(answering), "192.0.2.1", "/401", 401)
			if took := time.Since(began); took < 5*time.Second || took > 6*time.Second {
				t.Errorf("a request passed after %v, another one's permit came back after 5 s", took)
			}
			began = time.Now()
			wantCodes(t, guard.Middleware(answering), "192.0.2.1", "/401", 401)
			if took := time.Since(began); took != time.Minute {
				t.Errorf("a request passed after %v, the permit returned after 1m0s", took)
			}
		})
	}
}

// A refusal of one limit gives the permits of the others back, once.
func TestRefusedRequestIsNotCorrected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := limittest.NewRealTime(t).Client()
		never := func(int, http.Header) bool { return false }
		for _, shadow := range []bool{false, true} {
			guard := patient(
				Per(client, "wide", rratelimiter.PerHour(9), nil).CountIf(never),
				Per(client, "none", rratelimiter.PerHour(1), nil).Cost(ten),
			)
			guard.Policy.Shadow, guard.Policy.Logger = shadow, quiet
			get(guard.Middleware(answering), "192.0.2.1", "/200")
			get(guard.Middleware(answering), "192.0.2.1", "/200")
			if n := used(t, client, "ratelimit:wide"); n != 0 {
				t.Errorf("shadow %v: %d permits used", shadow, n)
			}
		}
	})
}

// lazy is a limiter that gives permits back slowly.
type lazy struct{ *counting }

func (l lazy) Release(ctx context.Context, n int64) (int64, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

func TestGivingBackDoesNotDelayTheResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := &logbook{}
		var reported error
		guard := New(Shared("lazy", lazy{&counting{limit: 9}}).CountIf(succeeded))
		guard.Policy = &Policy{Logger: book.logger(), OnError: func(_ context.Context, err error) { reported = err }}
		began := time.Now()
		wantCodes(t, guard.Middleware(answering), "192.0.2.1", "/500", 500)
		if took := time.Since(began); took != 0 {
			t.Errorf("it took %v", took)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		lines := book.lines()
		if len(lines) != 1 || !strings.Contains(lines[0], "permits could be neither given back nor corrected") ||
			!strings.Contains(lines[0], "lazy") {
			t.Errorf("logged %q", lines)
		}
		if !errors.Is(reported, context.DeadlineExceeded) {
			t.Errorf("reported %v", reported)
		}
	})
}

// What other limiters can do decides what is corrected.
func TestOtherLimitersThatCountByTheResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &counting{limit: 9}
		guard := New(Shared("counting", l).CountIf(succeeded))
		wantCodes(t, guard.Middleware(answering), "192.0.2.1", "/500", 500)
		synctest.Wait()
		if l.used != 0 {
			t.Errorf("%d used after a failure", l.used)
		}
		called := false
		guard.SetLimits(
			Shared("fixed", fixed{result: rratelimiter.Result{Allowed: true}}).CountIf(func(int, http.Header) bool {
				called = true
				return false
			}),
		)
		if wantCodes(t, guard.Middleware(answering), "192.0.2.1", "/200", 200); called {
			t.Error("asked for a limiter that takes nothing back")
		}
	})
}

func TestStatusOfAResponse(t *testing.T) {
	for _, c := range []struct {
		name   string
		handle http.HandlerFunc
		status int
	}{
		{"nothing written", func(http.ResponseWriter, *http.Request) {}, 200},
		{"body only", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "x"); w.WriteHeader(500) }, 200},
		{"flushed", func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush(); w.WriteHeader(500) }, 200},
		{"flushed by a controller", func(w http.ResponseWriter, _ *http.Request) {
			_ = http.NewResponseController(w).Flush()
			w.WriteHeader(500)
		}, 200},
		{"informational first", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(103)
			w.WriteHeader(404)
		}, 404},
		{"panic", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 500},
		{
			"panic after the status",
			func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(403); panic(http.ErrAbortHandler) }, 403,
		},
		{"hijacked", func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				conn.Close()
			}
		}, 101},
		{"deadline", func(w http.ResponseWriter, _ *http.Request) {
			if http.NewResponseController(w).SetWriteDeadline(time.Time{}) == nil {
				w.WriteHeader(202)
			}
		}, 202},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := make(chan int, 1)
			guard := New(Shared("counting", &counting{limit: 1}).CountIf(func(status int, _ http.Header) bool {
				got <- status
				return true
			}))
			server := httptest.NewUnstartedServer(guard.Middleware(c.handle))
			server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0) // some handlers write the header twice
			server.Start()
			defer server.Close()
			if response, err := http.Get(server.URL); err == nil {
				_, _ = io.Copy(io.Discard, response.Body)
				response.Body.Close()
			}
			if status := <-got; status != c.status {
				t.Errorf("%d, not %d", status, c.status)
			}
		})
	}
}

func TestSettleByHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := limittest.NewRealTime(t).Client()
		guard := patient(Per(client, "calls", rratelimiter.PerHour(5), nil).CountIf(succeeded))
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		for _, status := range []int{200, 500} {
			ctx, cancel := context.WithCancel(t.Context())
			d := guard.Decide(r.WithContext(ctx))
			guard.ActivePolicy().Settle(ctx, d, status, nil)
			cancel() // giving back goes on
		}
		if n := used(t, client, "ratelimit:calls"); n != 1 {
			t.Errorf("%d permits used", n)
		}
	})
}

// Admit tells whether a response is of interest: of the requests that pass, and took permits that
// can be corrected.
func TestDecisionThatSettles(t *testing.T) {
	client := limittest.New(t).Client()
	login := Per(client, "logins", rratelimiter.PerHour(1), nil)
	other := Per(client, "others", rratelimiter.PerHour(1), nil).CountIf(succeeded)
	for i, c := range []struct {
		limit Limit
		want  []bool // of two requests, of which the second one passes only because of Shadow
	}{{login, []bool{false, false}}, {other, []bool{true, false}}} {
		guard := patient(c.limit)
		guard.Policy.Shadow, guard.Policy.Logger = true, quiet
		for request, want := range c.want {
			d := guard.Admit(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
			if !d.Outcome.Passed() || d.Settles() != want {
				t.Errorf("limit %d, request %d: %v, settles: %v", i, request+1, d.Outcome, d.Settles())
			}
		}
	}
}

// What another process gives back, this one grants: it keeps no refusal of a limit whose permits
// come back after the response.
func TestPermitsThatComeBackAreFreeDespiteADenyCache(t *testing.T) {
	for name, change := range map[string]func(Limit) Limit{
		"CountIf": func(l Limit) Limit {
			return l.CountIf(func(status int, _ http.Header) bool { return status == 401 })
		},
		"CostAfter": func(l Limit) Limit { return l.CostAfter(func(int, http.Header) int64 { return 0 }) },
	} {
		for _, kind := range []string{"one limit", "two limits", "two limits without a common slot"} {
			t.Run(name+", "+kind, func(t *testing.T) {
				redistest.Each(t, func(t *testing.T, s *redistest.Server) {
					one := rig.New(t, s)
					guard := func(client *rratelimiter.Client) *Guard {
						cached := rratelimiter.WithDenyCache(100)
						limits := []Limit{change(Per(client, "login", rratelimiter.PerHour(1), byAddr, cached))}
						if kind != "one limit" {
							limits = append(limits, Per(client, "all", rratelimiter.PerHour(100), nil, cached))
						}
						return patient(limits...)
					}
					here, there := guard(one.Client), guard(one.Beside("other").Client)
					if kind == "two limits without a common slot" {
						ring := redis.NewRing(&redis.RingOptions{
							Addrs: map[string]string{"one": s.Addr}, DB: s.Options().DB, DialTimeout: time.Minute,
						})
						t.Cleanup(func() { ring.Close() })
						here = guard(rratelimiter.NewClient(ring, rratelimiter.WithClock(one.Now)))
					}
					r := httptest.NewRequest(http.MethodPost, "/", nil)
					inFlight := there.Decide(r)
					wantOutcomes(t, here, r, Denied, Denied)
					there.ActivePolicy().Settle(t.Context(), inFlight, 200, http.Header{})
					awaitUsed(t, one.Limiter("ratelimit:192.0.2.1:login"), 0)
					wantOutcomes(t, here, r, Allowed, Denied)
				})
			})
		}
	}
}

func wantOutcomes(t *testing.T, guard *Guard, r *http.Request, want ...Outcome) {
	t.Helper()
	for i, o := range want {
		if d := guard.Decide(r); d.Outcome != o {
			t.Errorf("request %d: %v, %v, want %v", i+1, d.Outcome, d.Err, o)
		}
	}
}
