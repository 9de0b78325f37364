package httplimit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// fixed is a limiter that always returns the same result.
type fixed struct {
	result rratelimiter.Result
	err    error
}

func (f fixed) Allow(context.Context, int64) (rratelimiter.Result, error) { return f.result, f.err }

// hung is a limiter whose server does not reply.
type hung struct{}

func (hung) Allow(ctx context.Context, _ int64) (rratelimiter.Result, error) {
	<-ctx.Done()
	return rratelimiter.Result{}, ctx.Err()
}

// counting is a limiter of some permits that never return automatically.
type counting struct {
	limit, used   int64
	giveBackFails error
}

func (c *counting) Allow(_ context.Context, n int64) (rratelimiter.Result, error) {
	if c.used+n > c.limit {
		return rratelimiter.Result{Limit: c.limit, Remaining: c.limit - c.used, RetryAfter: time.Second}, nil
	}
	c.used += n
	return rratelimiter.Result{Allowed: true, Limit: c.limit, Remaining: c.limit - c.used, ResetAfter: time.Second}, nil
}

func (c *counting) Release(_ context.Context, n int64) (int64, error) {
	if c.giveBackFails != nil {
		return 0, c.giveBackFails
	}
	c.used -= n
	return n, nil
}

func wantCount(t *testing.T, p *Policy, want map[Outcome]int64) {
	t.Helper()
	for o := Outcome(0); o < outcomes; o++ {
		if n := p.Count(o); n != want[o] {
			t.Errorf("%d %v, not %d", n, o, want[o])
		}
	}
}

func TestNoAnswerWithinTheBound(t *testing.T) {
	for _, c := range []struct {
		name    string
		policy  *Policy
		bound   time.Duration
		outcome Outcome
	}{
		{"zero policy", &Policy{}, 100 * time.Millisecond, FailedOpen},
		{"closed", &Policy{Failure: FailClosed, Bound: 20 * time.Millisecond}, 20 * time.Millisecond, FailedClosed},
		{"closed shadow", &Policy{Failure: FailClosed, Shadow: true}, 100 * time.Millisecond, FailedOpen},
		{"local", &Policy{Failure: FailLocal}, 100 * time.Millisecond, AllowedLocally},
		{"waiting adds nothing", &Policy{Wait: time.Hour}, 100 * time.Millisecond, FailedOpen},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.policy.Logger = quiet
				claims := []Claim{
					{Name: "a", Limiter: &counting{limit: 5}, Rate: rratelimiter.PerSecond(5)},
					{Name: "b", Limiter: hung{}, Rate: rratelimiter.PerSecond(5)},
				}
				d := c.policy.Decide(t.Context(), claims...)
				if d.Outcome != c.outcome || d.Took != c.bound || !errors.Is(d.Err, rratelimiter.ErrUnavailable) ||
					errors.Is(d.Err, context.DeadlineExceeded) {
					t.Errorf("%v after %v: %v", d.Outcome, d.Took, d.Err)
				}
				wantCount(t, c.policy, map[Outcome]int64{c.outcome: 1})
				synctest.Wait()
				if used := claims[0].Limiter.(*counting).used; used != 0 {
					t.Errorf("%d permits stay taken", used)
				}
			})
		})
	}
}

func TestRedisThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := limittest.NewRealTime(t)
		guard := New(
			Per(s.Client(), "1h", rratelimiter.PerHour(1), byAddr),
			Per(s.Client(), "1m", rratelimiter.PerMinute(1), byAddr),
		)
		guard.Policy = &Policy{Logger: quiet, Failure: FailLocal, Bound: 10 * time.Second}
		h := guard.Middleware(ok)
		s.Fail("LOADING Redis is loading the dataset in memory")
		wantCodes(t, h, "192.0.2.1", "/", 200, 429, 429)
		wantCodes(t, h, "192.0.2.2", "/", 200)
		w := get(h, "192.0.2.1", "/")
		if got := w.Header().Get("RateLimit-Policy"); got != `"1h";q=1;w=3600, "1m";q=1;w=60` {
			t.Error(got)
		}
		s.Fail("")
		time.Sleep(2 * time.Second) // until a probe has found Redis back
		wantCodes(t, h, "192.0.2.1", "/", 200, 429)
		wantCount(t, guard.Policy, map[Outcome]int64{AllowedLocally: 2, DeniedLocally: 3, Allowed: 1, Denied: 1})
	})
}

func TestErrorsOfTheConfigurationAreToldAndLoggedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var reported []error
		p := &Policy{
			Logger:  slog.New(slog.NewTextHandler(&log, nil)),
			OnError: func(_ context.Context, err error) { reported = append(reported, err) },
		}
		decide := func(err error) {
			if d := p.Decide(t.Context(), Claim{Limiter: fixed{err: err}}); d.Outcome != FailedOpen ||
				!errors.Is(d.Err, err) {
				t.Fatalf("%v: %v", d.Outcome, d.Err)
			}
		}
		for range 3 {
			decide(rratelimiter.ErrNotInitialized)
			decide(rratelimiter.ErrInvalidOption)
		}
		if got := log.String(); strings.Count(got, "level=ERROR") != 1 || strings.Count(got, "\n") != 1 {
			t.Errorf("logged:\n%s", got)
		}
		if len(reported) != 6 || !errors.Is(reported[0], rratelimiter.ErrNotInitialized) {
			t.Errorf("reported %v", reported)
		}
		log.Reset()
		time.Sleep(time.Minute)
		decide(rratelimiter.ErrInvalidOption)
		if got := log.String(); !strings.Contains(got, "level=ERROR") {
			t.Errorf("after a minute, logged: %s", got)
		}
	})
}

func TestShadowRefusesNothing(t *testing.T) {
	s := limittest.New(t)
	guard := New(Per(s.Client(), "1h", rratelimiter.PerHour(1), byAddr))
	var denied []string
	guard.Policy = &Policy{
		Shadow: true, Wait: time.Hour, Bound: 10 * time.Second,
		OnDeny: func(_ context.Context, d Decision) { denied = append(denied, fmt.Sprint(d.Outcome, d.Refused())) },
	}
	h := guard.Middleware(ok)
	wantCodes(t, h, "192.0.2.1", "/", 200, 200)
	if w := get(h, "192.0.2.1", "/"); len(w.Header()) > 1 || w.Code != 200 {
		t.Errorf("the client sees a shadow: %d\n%s", w.Code, headerText(w.Header()))
	}
	wantCount(t, guard.Policy, map[Outcome]int64{Allowed: 1, Shadowed: 2})
	if !slices.Equal(denied, []string{"shadowed [1h]", "shadowed [1h]"}) {
		t.Errorf("denied: %v", denied)
	}
}

func TestHooksTellWhichLimitRefused(t *testing.T) {
	var denied, decided []string
	p := &Policy{
		Logger:     quiet,
		OnDeny:     func(_ context.Context, d Decision) { denied = append(denied, fmt.Sprint(d.Outcome, d.Refused())) },
		OnDecision: func(_ context.Context, d Decision) { decided = append(decided, d.Outcome.String()) },
	}
	much := Claim{Name: "much", Limiter: &counting{limit: 100}}
	little := Claim{Name: "little", Limiter: &counting{limit: 1}}
	p.Decide(t.Context(), much, little)
	p.Decide(t.Context(), much, little)
	p.Decide(t.Context())
	p.Failure = FailClosed
	p.Decide(t.Context(), Claim{Name: "broken", Limiter: fixed{err: errors.New("no")}})
	if !slices.Equal(denied, []string{"denied [little]", "failed closed []"}) {
		t.Errorf("denied: %v", denied)
	}
	if !slices.Equal(decided, []string{"allowed", "denied", "unlimited", "failed closed"}) {
		t.Errorf("decided: %v", decided)
	}
}

func TestRefusalTakesNothingFromOtherLimits(t *testing.T) {
	s := limittest.New(t)
	rate := rratelimiter.PerHour
	one, other := s.Client(), s.Client()
	for _, c := range []struct {
		name   string
		claims []Claim
	}{
		{"at once", []Claim{Named(one, "a", "1", rate(5)), Named(one, "b", "1", rate(1))}},
		{"of two clients", []Claim{Named(one, "a", "2", rate(5)), Named(other, "b", "2", rate(1))}},
		{
			"of two sizes",
			[]Claim{
				Named(one, "a", "3", rate(50)),
				{Name: "b", Permits: 3, Limiter: one.RateLimiter("three", rratelimiter.WithRate(rate(3)))},
			},
		},
		{"the first one refuses", []Claim{Named(one, "b", "4", rate(1)), Named(one, "a", "4", rate(5))}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := &Policy{Bound: 10 * time.Second}
			if d := p.Decide(t.Context(), c.claims...); d.Outcome != Allowed || len(d.Answers) != 2 {
				t.Fatalf("%+v", d)
			}
			for range 3 {
				d := p.Decide(t.Context(), c.claims...)
				if d.Outcome != Denied || !slices.Equal(d.Refused(), []string{"b"}) || d.RetryAfter() != time.Hour {
					t.Fatalf("%+v", d)
				}
			}
			for _, claim := range c.claims {
				state, err := claim.Limiter.(*rratelimiter.Limiter).State(t.Context())
				if err != nil || state.Used != max(claim.Permits, 1) {
					t.Errorf("%s: %+v, %v", claim.Name, state, err)
				}
			}
		})
	}
}

func TestRefusalStandsWhereOthersCantTakeBack(t *testing.T) {
	var reported []error
	p := &Policy{Logger: quiet, OnError: func(_ context.Context, err error) { reported = append(reported, err) }}
	cause := errors.New("connection lost")
	d := p.Decide(t.Context(),
		Claim{Name: "lost", Limiter: &counting{limit: 5, giveBackFails: cause}},
		Claim{Name: "kept", Limiter: fixed{result: rratelimiter.Result{Allowed: true, Limit: 9, Remaining: 8}}},
		Claim{Name: "full", Limiter: &counting{}},
		Claim{Name: "not asked", Limiter: &counting{}})
	if d.Outcome != Denied || len(d.Answers) != 3 || d.Answers[0].Remaining != 5 || d.Answers[1].Remaining != 8 ||
		!slices.Equal(d.Refused(), []string{"full"}) {
		t.Errorf("%+v", d)
	}
	if len(reported) != 1 || !errors.Is(reported[0], cause) {
		t.Errorf("reported %v", reported)
	}
}

func TestWaitInLine(t *testing.T) {
	s := limittest.New(t)
	p := &Policy{Wait: 90 * time.Second, Bound: 10 * time.Second}
	claim := Named(s.Client(), "1m", "", rratelimiter.PerMinute(1))
	if d := p.Decide(t.Context(), claim); d.Outcome != Allowed {
		t.Fatalf("%+v", d)
	}
	first := make(chan Decision)
	go func() { first <- p.Decide(t.Context(), claim) }()
	s.AwaitWaiting("", 1)
	second := make(chan Decision)
	go func() { second <- p.Decide(t.Context(), claim) }()
	s.AwaitWaiting("", 2)
	s.Advance(time.Minute)
	d := <-first
	want := rratelimiter.Result{Allowed: true, Limit: 1, NextAfter: time.Minute, ResetAfter: time.Minute}
	if d.Outcome != Allowed || !reflect.DeepEqual(d.Answers[0].Result, want) {
		t.Errorf("first: %+v", d)
	}
	// From now on, the permit for the second request comes too late for the bound.
	d = <-second
	if d.Outcome != Denied || d.RetryAfter() != time.Minute {
		t.Errorf("second: %+v", d)
	}
}

// mute is a hook of a redis client that blocks all calls from its activation until it is closed.
type mute struct {
	on     atomic.Bool
	closed chan struct{}
}

func (m *mute) hold() {
	if m.on.Load() {
		<-m.closed
	}
}

func (m *mute) DialHook(next redis.DialHook) redis.DialHook { return next }

func (m *mute) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		m.hold()
		return next(ctx, cmd)
	}
}

func (m *mute) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		m.hold()
		return next(ctx, cmds)
	}
}

func TestWaitInLineEndsWhenRedisIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := limittest.NewRealTime(t)
		m := mute{closed: make(chan struct{})}
		defer close(m.closed)
		s.Redis().AddHook(&m)
		p := &Policy{Wait: time.Hour, Logger: quiet}
		client := s.Client(rratelimiter.WithCallTimeout(time.Hour))
		claim := Named(client, "500ms", "", rratelimiter.Rate{Permits: 1, Interval: 500 * time.Millisecond})
		if d := p.Decide(t.Context(), claim); d.Outcome != Allowed {
			t.Fatalf("%+v", d)
		}
		waited := make(chan Decision)
		go func() { waited <- p.Decide(t.Context(), claim) }()
		s.AwaitWaiting("", 1)
		m.on.Store(true)
		d := <-waited
		if d.Outcome != FailedOpen || !errors.Is(d.Err, rratelimiter.ErrUnavailable) || d.Took > 700*time.Millisecond {
			t.Errorf("%v after %v: %v", d.Outcome, d.Took, d.Err)
		}
	})
}

func TestWaitForSeveralLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := limittest.NewRealTime(t).Client()
		p := &Policy{Wait: 3 * time.Second}
		claims := []Claim{
			Named(c, "a", "", rratelimiter.PerSecond(2)),
			Named(c, "b", "", rratelimiter.Rate{Permits: 3, Interval: 2 * time.Second}),
		}
		var mu sync.Mutex
		var took []string
		var wg sync.WaitGroup
		for range 12 {
			wg.Go(func() {
				d := p.Decide(t.Context(), claims...)
				mu.Lock()
				defer mu.Unlock()
				took = append(took, fmt.Sprint(d.Outcome, " ", d.Took.Round(100*time.Millisecond)))
			})
		}
		wg.Wait()
		slices.Sort(took)
		counts := map[string]int{}
		for _, s := range took {
			counts[s]++
		}
		want := map[string]int{"allowed 0s": 2, "allowed 1s": 1, "allowed 2s": 2, "allowed 3s": 1}
		for s, n := range want {
			if counts[s] != n {
				t.Errorf("%s: %d, not %d; all: %v", s, counts[s], n, counts)
			}
		}
		if n := p.Count(Denied); n != 6 {
			t.Errorf("%d denied; all: %v", n, counts)
		}
	})
}

func TestWaitInVainIsRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := limittest.NewRealTime(t).Client()
		p := &Policy{Wait: 59 * time.Second}
		minute, hour := Named(c, "1m", "", rratelimiter.PerMinute(1)), Named(c, "1h", "", rratelimiter.PerHour(2))
		p.Decide(t.Context(), minute, hour)
		for _, claims := range [][]Claim{{minute}, {minute, hour}} {
			if d := p.Decide(t.Context(), claims...); d.Outcome != Denied || d.RetryAfter() != time.Minute ||
				d.Took != 0 {
				t.Errorf("%+v", d)
			}
		}
	})
}

// The longest Wait lets a request wait as long as its context, whatever Bound is.
func TestTheLongestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := limittest.NewRealTime(t).Client()
		minute := Named(c, "1m", "", rratelimiter.PerMinute(1))
		for i, bound := range []time.Duration{0, 10 * time.Second, math.MaxInt64} {
			p := &Policy{Wait: math.MaxInt64, Bound: bound}
			want := time.Duration(min(i, 1)) * time.Minute
			if d := p.Decide(t.Context(), minute); d.Outcome != Allowed || d.Took != want {
				t.Errorf("with a bound of %v: %+v, want a permit after %v", bound, d, want)
			}
		}
	})
}

// A time that is as long as any stays so beside Jitter.
func TestTheLongestRetryAfter(t *testing.T) {
	p := &Policy{Jitter: time.Hour}
	never := fixed{result: rratelimiter.Result{Limit: 1, RetryAfter: math.MaxInt64}}
	d := p.Decide(t.Context(), Claim{Name: "a", Limiter: never})
	if d.Outcome != Denied || d.RetryAfter() != math.MaxInt64 {
		t.Errorf("%+v", d)
	}
}

func TestClientThatIsGone(t *testing.T) {
	for _, wait := range []time.Duration{0, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			limiters := []Claim{{Name: "a", Limiter: hung{}}}
			if wait > 0 {
				limiters[0].Limiter = &counting{}
			}
			p := &Policy{
				Failure: FailClosed,
				Wait:    wait,
				OnError: func(_ context.Context, err error) { t.Errorf("an error: %v", err) },
			}
			guard := New(func(*http.Request) Claim { return limiters[0] })
			guard.Policy = p
			time.AfterFunc(50*time.Millisecond, cancel)
			w := get(guard.Middleware(ok), "192.0.2.1", "/", func(r *http.Request) { *r = *r.WithContext(ctx) })
			if strings.Contains(w.Body.String(), "served") {
				t.Error("served")
			}
			wantCount(t, p, map[Outcome]int64{Gone: 1})
		})
	}
}

// decisions is an observer of guards.
type decisions struct {
	mu       sync.Mutex
	reported []rratelimiter.GuardInfo
}

func (d *decisions) Call(rratelimiter.CallInfo) {}

func (d *decisions) Guard(_ context.Context, info rratelimiter.GuardInfo) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reported = append(d.reported, info)
}

// outcomes returns the outcomes since the last call, with the names of their policies.
func (d *decisions) outcomes() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []string
	for _, info := range d.reported {
		all = append(all, strings.TrimSpace(info.Policy+" "+info.Outcome))
	}
	d.reported = nil
	return strings.Join(all, ", ")
}

func TestObserverOfTheClientIsToldTheDecisions(t *testing.T) {
	s := limittest.New(t)
	reported, other := &decisions{}, &decisions{}
	client := s.Client(rratelimiter.WithObserver(reported))
	guard := New(Per(client, "1h", rratelimiter.PerHour(1), nil))
	guard.Policy = &Policy{Name: "api", Bound: 10 * time.Second, Logger: quiet}
	guard.Skip = []Rule{Paths("/free")}
	h := guard.Middleware(ok)
	wantCodes(t, h, "192.0.2.1", "/", 200, 429)
	wantCodes(t, h, "192.0.2.1", "/free", 200)
	s.Fail("OOM command not allowed")
	wantCodes(t, h, "192.0.2.1", "/", 200)
	s.Fail("")
	if got := reported.outcomes(); got != "api allowed, api denied, api unlimited, api failed open" {
		t.Error(got)
	}
	// Each client has its own observer.
	guard.SetLimits(Per(s.Client(rratelimiter.WithObserver(other)), "1m", rratelimiter.PerMinute(1), nil))
	wantCodes(t, h, "192.0.2.1", "/", 200)
	if here, there := reported.outcomes(), other.outcomes(); here != "" || there != "api allowed" {
		t.Errorf("reported %q and %q", here, there)
	}
	// A client without an observer works, too.
	guard.SetLimits(Per(s.Client(), "1s", rratelimiter.PerSecond(1), nil))
	wantCodes(t, h, "192.0.2.1", "/", 200)
}

func TestObserverOfThePolicyIsToldEveryOutcome(t *testing.T) {
	s := limittest.New(t)
	reported, unused := &decisions{}, &decisions{}
	rate := rratelimiter.PerHour(1)
	broken := func(name string) Claim { return Claim{Name: name, Rate: rate, Limiter: fixed{err: errors.New("down")}} }
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		policy *Policy
		ctx    context.Context
		claims []Claim
		want   string
	}{
		{&Policy{}, t.Context(), nil, "unlimited"},
		{&Policy{}, t.Context(), []Claim{{Limiter: &counting{limit: 1}}}, "allowed, denied"},
		{&Policy{Shadow: true}, t.Context(), []Claim{{Limiter: &counting{limit: 1}}}, "allowed, shadowed"},
		{&Policy{}, t.Context(), []Claim{broken("a")}, "failed open"},
		{&Policy{Failure: FailClosed}, t.Context(), []Claim{broken("b")}, "failed closed"},
		{&Policy{Failure: FailLocal}, t.Context(), []Claim{broken("c")}, "allowed locally, denied locally"},
		{
			&Policy{Failure: FailLocal, Shadow: true},
			t.Context(),
			[]Claim{broken("d")},
			"allowed locally, shadowed locally",
		},
		{&Policy{}, gone, []Claim{{Limiter: hung{}}}, "gone"},
		{&Policy{Bound: 10 * time.Second}, t.Context(),
			[]Claim{Named(s.Client(rratelimiter.WithObserver(unused)), "1h", "", rate)}, "allowed"},
	} {
		c.policy.Observer, c.policy.Logger = reported, quiet
		for range strings.Split(c.want, ", ") {
			c.policy.Decide(c.ctx, c.claims...)
		}
		if got := reported.outcomes(); got != c.want {
			t.Errorf("reported %q, not %q", got, c.want)
		}
	}
	if got := unused.outcomes(); got != "" {
		t.Errorf("the client's observer got %q", got)
	}
}

func TestObserverIsToldWhyAndHowLongItTook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reported := &decisions{}
		p := &Policy{Observer: reported, Logger: quiet}
		p.Decide(t.Context(), Claim{Limiter: hung{}})
		if info := reported.reported[0]; info.Latency != 100*time.Millisecond ||
			!errors.Is(info.Err, rratelimiter.ErrUnavailable) {
			t.Errorf("%+v", info)
		}
	})
}

func TestOutcomesHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for o := Outcome(0); o < outcomes; o++ {
		if s := o.String(); s == "" || seen[s] {
			t.Errorf("%d: %q", o, s)
		}
		seen[o.String()] = true
	}
	if s := Outcome(outcomes).String(); s != "unknown outcome 10" {
		t.Error(s)
	}
}
