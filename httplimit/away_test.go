package httplimit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// A service is a limiter of unlimited permits on a server that can hang.
type service struct {
	hangs       atomic.Bool
	calls, most atomic.Int64 // since it hangs: all calls, and most calls at a time
	now         atomic.Int64
}

func (s *service) Allow(ctx context.Context, _ int64) (rratelimiter.Result, error) {
	switch {
	case ctx.Err() != nil:
		return rratelimiter.Result{}, ctx.Err()
	case !s.hangs.Load():
		return rratelimiter.Result{Allowed: true, Limit: 9, Remaining: 9}, nil
	}
	s.calls.Add(1)
	now := s.now.Add(1)
	for most := s.most.Load(); now > most && !s.most.CompareAndSwap(most, now); most = s.most.Load() {
	}
	defer s.now.Add(-1)
	<-ctx.Done()
	return rratelimiter.Result{}, ctx.Err()
}

// A logbook collects a logger's lines, without times.
type logbook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logbook) Write(line []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(line)
}

func (b *logbook) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

// lines returns the lines since the last call.
func (b *logbook) lines() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	text := strings.TrimSpace(b.text.String())
	b.text.Reset()
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

// FailLocal cannot decide on a limit whose rate it does not know. The log says so.
func TestFailLocalWithoutARate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, book := &service{}, &logbook{}
		s.hangs.Store(true)
		p := &Policy{Failure: FailLocal, Logger: book.logger()}
		if d := p.Decide(t.Context(), Shared("a", s)(nil)); d.Outcome != FailedOpen {
			t.Errorf("%v", d.Outcome)
		}
		if lines := book.lines(); len(lines) != 1 ||
			!strings.Contains(lines[0], "requests pass, because FailLocal knows the rate of no limit") {
			t.Errorf("%q", lines)
		}
	})
}

// While a server is known to hang, no request waits for it, one call at a time probes it, and the
// log has one line for each change.
func TestServerThatHangsHoldsUpOneRequest(t *testing.T) {
	for _, c := range []struct {
		failure Failure
		want    Outcome
		log     string
	}{
		{FailOpen, FailedOpen, "requests pass"},
		{FailClosed, FailedClosed, "requests are refused"},
		{FailLocal, AllowedLocally, "this process decides by itself"},
	} {
		t.Run(c.want.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, book := &service{}, &logbook{}
				p := &Policy{Failure: c.failure, Logger: book.logger()}
				claim := Claim{Name: "a", Limiter: s, Rate: rratelimiter.PerSecond(1e6)}
				decide := func() Decision {
					ctx, cancel := context.WithCancel(t.Context()) // as that of a request, which ends with it
					defer cancel()
					return p.Decide(ctx, claim)
				}
				if d := decide(); d.Outcome != Allowed {
					t.Fatalf("%+v", d)
				}
				time.Sleep(time.Second)
				s.hangs.Store(true)
				if d := decide(); d.Outcome != c.want || d.Took != 100*time.Millisecond {
					t.Errorf("first: %v after %v", d.Outcome, d.Took)
				}
				for range 10_000 {
					time.Sleep(time.Millisecond)
					if d := decide(); d.Outcome != c.want || d.Took != 0 ||
						!errors.Is(d.Err, rratelimiter.ErrUnavailable) {
						t.Fatalf("then: %v after %v: %v", d.Outcome, d.Took, d.Err)
					}
				}
				if calls, most := s.calls.Load(), s.most.Load(); most != 1 || calls < 9 || calls > 15 {
					t.Errorf("%d calls in 10 s, %d at a time", calls, most)
				}
				s.hangs.Store(false)
				var back time.Duration
				for began := time.Now(); back == 0; time.Sleep(time.Millisecond) {
					if d := decide(); d.Outcome == Allowed {
						back = time.Since(began)
					}
				}
				if back > 1200*time.Millisecond {
					t.Errorf("back after %v", back)
				}
				for range 5000 {
					if d := decide(); d.Outcome != Allowed || d.Took != 0 {
						t.Fatalf("%+v", d)
					}
					time.Sleep(time.Millisecond)
				}
				lines := book.lines()
				away := `level=WARN msg="limits cannot be checked: ` + c.log + `" error="no answer within 100ms"`
				if len(lines) != 2 || lines[0] != away ||
					!strings.HasPrefix(lines[1],
						`level=INFO msg="limits can be checked again" first_to_last_failure=1`) ||
					!strings.Contains(lines[1], "no answer within 100ms") {
					t.Errorf("logged:\n%s", strings.Join(lines, "\n"))
				}
			})
		})
	}
}

// One limit may have several servers, which share the name of the limit.
func TestServerThatAnswersOthersIsNotAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{}
		s.hangs.Store(true)
		p := &Policy{Logger: quiet}
		var group sync.WaitGroup
		for range 20 {
			group.Go(func() { p.Decide(t.Context(), Claim{Name: "a", Key: "there", Limiter: s}) })
			time.Sleep(10 * time.Millisecond)
			for range 2 {
				if d := p.Decide(t.Context(),
					Claim{Name: "a", Key: "here", Limiter: &service{}}); d.Outcome != Allowed {
					t.Fatalf("%+v", d)
				}
			}
		}
		group.Wait()
	})
}

// The server of another limit may be up.
func TestServerOfAnotherLimitIsNotAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := &logbook{}
		p := &Policy{Logger: book.logger()}
		p.Decide(t.Context(), Claim{Name: "here", Limiter: &service{}}, Claim{Name: "there", Limiter: hung{}})
		if d := p.Decide(t.Context(), Claim{Name: "here", Limiter: &service{}}); d.Outcome != Allowed {
			t.Errorf("%+v", d)
		}
		if d := p.Decide(t.Context(), Claim{Name: "there", Limiter: hung{}}); d.Outcome != FailedOpen || d.Took != 0 {
			t.Errorf("%+v", d)
		}
		time.Sleep(2 * settled)
		p.Decide(t.Context(), Claim{Name: "here", Limiter: &service{}})
		if lines := book.lines(); len(lines) != 1 {
			t.Errorf("while one of them is away, logged:\n%s", strings.Join(lines, "\n"))
		}
		time.Sleep(p.bound()) // until the last probe ends
	})
}

// The outage of a limit ends when its server replies to a probe, or when SetLimits removes the
// limit, even if no request asks for the limit again. Then the log has the next outage.
func TestOutageOfALimitThatIsNotAskedAgainEnds(t *testing.T) {
	for _, removed := range []bool{false, true} {
		t.Run(fmt.Sprint("removed ", removed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				book, exports, orders := &logbook{}, &service{}, &service{}
				exported := func(r *http.Request) Claim {
					if r.URL.Path != "/exports" {
						return Claim{}
					}
					return Claim{Name: "exports", Limiter: exports}
				}
				guard := New(exported, Shared("orders", orders))
				guard.Policy = &Policy{Logger: book.logger()}
				h := guard.Middleware(ok)
				logs := func(want string) {
					t.Helper()
					for range 40 {
						wantCodes(t, h, "192.0.2.1", "/orders", 200)
						time.Sleep(100 * time.Millisecond)
					}
					if lines := book.lines(); len(lines) != 1 || !strings.Contains(lines[0], want) {
						t.Errorf("want %q, logged:\n%s", want, strings.Join(lines, "\n"))
					}
				}
				exports.hangs.Store(true)
				wantCodes(t, h, "192.0.2.1", "/exports", 200)
				logs("cannot be checked")
				if removed {
					guard.SetLimits(Shared("orders", orders))
				} else {
					exports.hangs.Store(false)
				}
				logs("can be checked again")
				orders.hangs.Store(true)
				logs("cannot be checked")
				orders.hangs.Store(false)
				logs("can be checked again")
			})
		})
	}
}

// A caller's short deadline is no evidence about the server.
func TestCallersThatLeaveDontMakeAServerAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &Policy{Logger: quiet}
		for range 5 {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			if d := p.Decide(ctx, Claim{Name: "a", Limiter: hung{}}); d.Outcome != Gone ||
				d.Took != 50*time.Millisecond {
				t.Errorf("%+v", d)
			}
			cancel()
		}
	})
}

// An error of a limiter is a reply, and the limiter is called again each time.
func TestAnErrorThatIsAnAnswerIsAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := &logbook{}
		p := &Policy{Logger: book.logger()}
		for _, cause := range []error{errors.New("one"), errors.New("two"), rratelimiter.ErrNotInitialized} {
			if d := p.Decide(t.Context(), Claim{Name: "a", Limiter: fixed{err: cause}}); !errors.Is(d.Err, cause) {
				t.Errorf("%v", d.Err)
			}
		}
		if lines := book.lines(); len(lines) != 2 || !strings.Contains(lines[0], "error=one") ||
			!strings.Contains(lines[1], "a limit has no rate") {
			t.Errorf("logged:\n%s", strings.Join(lines, "\n"))
		}
	})
}

// Failures between answers are logged as one outage.
func TestFailuresNowAndThenAreLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := &logbook{}
		p := &Policy{Logger: book.logger()}
		for range 100 {
			p.Decide(t.Context(), Claim{Name: "a", Limiter: fixed{err: errors.New("overloaded")}})
			time.Sleep(10 * time.Millisecond)
			p.Decide(t.Context(), Claim{Name: "a", Limiter: &service{}})
			time.Sleep(settled / 2)
		}
		if lines := book.lines(); len(lines) != 1 || !strings.Contains(lines[0], "overloaded") {
			t.Errorf("logged:\n%s", strings.Join(lines, "\n"))
		}
		time.Sleep(settled)
		p.Decide(t.Context(), Claim{Name: "a", Limiter: &service{}})
		if lines := book.lines(); len(lines) != 1 || !strings.Contains(lines[0], "again") {
			t.Errorf("in the end, logged:\n%s", strings.Join(lines, "\n"))
		}
	})
}

// The example of the guide: two limits, a bound of 100 ms, and a server that hangs or has died.
func TestServerThatIsAwayDoesNotHoldUpRequests(t *testing.T) {
	type server = redistest.Server
	for _, c := range []struct {
		name       string
		fallback   bool
		stop, back func(*server)
		want       Outcome
	}{
		{"hangs", false, (*server).Pause, (*server).Resume, FailedOpen},
		{"hangs, with a fallback", true, (*server).Pause, (*server).Resume, Allowed},
		{"has died", false, (*server).Kill, (*server).Restart, FailedOpen},
		{"has died, with a fallback", true, (*server).Kill, (*server).Restart, Allowed},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, book := redistest.Real(t), &logbook{}
			var options []rratelimiter.Option
			if c.fallback {
				options = append(options, rratelimiter.WithLimiterDefaults(rratelimiter.WithFallback(1)))
			}
			client := rratelimiter.NewClient(s.Client(), options...)
			guard := New(
				Per(client, "1s", rratelimiter.PerSecond(1e6), byAddr),
				Per(client, "1m", rratelimiter.PerMinute(1e8), byAddr),
			)
			guard.Policy = &Policy{Logger: book.logger()}
			h := guard.Middleware(ok)
			decide := func() Outcome {
				before := map[Outcome]int64{}
				for o := range outcomes {
					before[Outcome(o)] = guard.Policy.Count(Outcome(o))
				}
				get(h, "192.0.2.1", "/")
				for o, n := range before {
					if guard.Policy.Count(o) > n {
						return o
					}
				}
				return -1
			}
			until := func(want Outcome, within time.Duration) {
				t.Helper()
				began := time.Now()
				for got := decide(); got != want; got = decide() {
					if time.Since(began) > within {
						t.Fatalf("%v after %v", got, within)
					}
					time.Sleep(5 * time.Millisecond)
				}
			}
			until(Allowed, 10*time.Second)
			c.stop(s)
			for began := time.Now(); time.Since(began) < 1500*time.Millisecond; {
				decide()
			}
			var took []time.Duration
			for range 200 {
				asked := time.Now()
				got := decide()
				took = append(took, time.Since(asked))
				// On a busy machine, the bound may pass without any call to the server.
				if got != c.want && took[len(took)-1] < guard.Policy.bound() {
					t.Fatalf("%v", got)
				}
				time.Sleep(time.Millisecond)
			}
			// A request that waits for the server takes the bound. The machine alone must hold up
			// each second request for half of that to make this fail.
			slices.Sort(took)
			if median := took[len(took)/2]; median > guard.Policy.bound()/2 {
				t.Errorf("half of the requests took more than %v", median)
			}
			c.back(s)
			until(Allowed, 10*time.Second)
			// The first request after the time settled ends the outage, unless it fails itself, or
			// the server is away to a fallback that has not probed it since.
			for began := time.Now(); guard.Policy.outages.logged.Load(); time.Sleep(settled + 100*time.Millisecond) {
				if time.Since(began) > time.Minute {
					t.Fatal("the outage does not end")
				}
				decide()
			}
			lines := book.lines()
			if len(lines) == 0 && c.fallback {
				return // the fallback detected it first
			}
			if len(lines) < 2 || len(lines)%2 != 0 || !strings.HasPrefix(lines[0], "level=WARN") ||
				!strings.HasPrefix(lines[1], "level=INFO") {
				t.Errorf("logged:\n%s", strings.Join(lines, "\n"))
			}
		})
	}
}

// On a cluster, the limits on the other nodes are checked as before.
func TestNodeThatIsAwayFailsItsOwnLimitsAlone(t *testing.T) {
	nodes := redistest.Cluster(t, 3, "--cluster-require-full-coverage", "no")
	client := rratelimiter.NewClient(nodes.ClusterClient())
	p := &Policy{Logger: quiet, Bound: 2 * time.Second}
	hangs := nodes.Servers[0]
	var here, there []Claim // each with a key of its own
	for i := 0; len(here) < 5 || len(there) < 5; i++ {
		claim := Named(client, "1s", fmt.Sprint(i), rratelimiter.PerSecond(1000))
		if nodes.Owner("ratelimit:"+claim.Key+":1s") == hangs {
			there = append(there, claim)
		} else {
			here = append(here, claim)
		}
	}
	decide := func(claims []Claim, i int) Decision { return p.Decide(t.Context(), claims[i%len(claims)]) }
	for i := range max(len(here), len(there)) {
		for _, claims := range [][]Claim{here, there} {
			if d := decide(claims, i); d.Outcome != Allowed {
				t.Fatalf("%+v", d)
			}
		}
	}
	hangs.Pause()
	defer hangs.Resume()
	for range 2 { // until it is known
		decide(there, 0)
	}
	began := time.Now()
	const many = 50 // which would take 100 s
	for i := range many {
		if d := decide(there, i); d.Outcome != FailedOpen {
			t.Errorf("a limit of the node that hangs: %+v", d)
		}
		if d := decide(here, i); d.Outcome != Allowed {
			t.Errorf("a limit of another node: %+v", d)
		}
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("%d requests took %v", 2*many, took)
	}
	hangs.Resume()
	for began := time.Now(); decide(there, 1).Outcome != Allowed; time.Sleep(5 * time.Millisecond) {
		if time.Since(began) > 10*time.Second {
			t.Fatal("the node is not asked again")
		}
	}
}
