package httplimit

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// stories_play_test.go plays a story, and notes what became of each request.

// An event is a request of a story, with what became of it.
type event struct {
	step
	came, decided, settled time.Duration // settled: end of the handler
	d                      Decision
	header                 http.Header // of the response
	code                   int
	told                   []rratelimiter.GuardInfo // by the observer
	denied                 int                      // calls of OnDeny
	errs                   []error                  // of OnError
}

type eventKey struct{}

// A play is a story that is played.
type play struct {
	story
	began    time.Time
	server   *limittest.Server
	calls    *calls
	h        http.Handler
	mu       sync.Mutex
	events   []*event // guarded by mu, as are the reports in them
	faults   []string
	faulty   bool // Redis has failed
	failures []time.Duration
}

// wrong notes a broken promise.
func (p *play) wrong(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); regexp.MustCompile(*promises).MatchString(text) {
		p.faults = append(p.faults, text)
	}
}

func (p *play) now() time.Duration { return time.Since(p.began) }

// note changes the event of a request.
func (p *play) note(ctx context.Context, change func(e *event)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e, ok := ctx.Value(eventKey{}).(*event); ok {
		change(e)
	}
}

// calls counts the commands that a client sends.
type calls struct {
	mu sync.Mutex
	n  int // guarded by mu
}

func (c *calls) DialHook(next redis.DialHook) redis.DialHook { return next }
func (c *calls) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { c.add(1); return next(ctx, cmd) }
}
func (c *calls) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { c.add(len(cmds)); return next(ctx, cmds) }
}
func (c *calls) add(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n += n
	return c.n
}

// A reporter is the observer of a policy or of a client.
type reporter struct{ p *play }

func (reporter) Call(rratelimiter.CallInfo) {}
func (r reporter) Guard(ctx context.Context, info rratelimiter.GuardInfo) {
	r.p.note(ctx, func(e *event) { e.told = append(e.told, info) })
}

const whoField = "X-Who"

func isClient(r *http.Request, who client) bool {
	return r.Header.Get(whoField) == strconv.Itoa(int(who))
}

func (s story) limits(client *rratelimiter.Client) []Limit {
	var opts []rratelimiter.LimiterOption
	if s.cache > 0 {
		opts = append(opts, rratelimiter.WithDenyCache(s.cache))
	}
	if s.lease > 0 {
		opts = append(opts, rratelimiter.WithLease(s.lease))
	}
	if s.fallback {
		opts = append(opts, rratelimiter.WithFallback(1))
	}
	key := func(r *http.Request) string {
		if isClient(r, anonymous) {
			return ""
		}
		return byAddr(r)
	}
	l := Per(client, "main", s.rate, key, opts...)
	if s.perFunc {
		l = PerFunc(client, "main", func(r *http.Request) rratelimiter.Rate {
			if isClient(r, unlimited) {
				return rratelimiter.Unlimited
			}
			return s.rate
		}, key, opts...)
	}
	if s.shared {
		l = Shared("main", client.RateLimiter("main", append(opts, rratelimiter.WithRate(s.rate))...))
	}
	if s.cost > 0 || s.zero {
		l = l.Cost(func(*http.Request) int64 { return s.cost })
	}
	if s.countIf {
		l = l.CountIf(func(status int, _ http.Header) bool { return status == 401 })
	}
	if s.after >= 0 {
		l = l.CostAfter(func(int, http.Header) int64 { return s.after })
	}
	if s.penalty > 0 {
		l = l.Penalty(client, s.penalty)
	}
	if s.limitShadow {
		l = l.Shadow()
	}
	if s.unit != "" {
		l = l.Unit(s.unit)
	}
	if s.anonymous.Permits > 0 {
		l = l.OrElse(Per(client, "anonymous", s.anonymous, nil))
	}
	limits := []Limit{l}
	if s.other.Permits > 0 {
		limits = append(limits, Per(client, "other", s.other, byAddr))
	}
	return limits
}

// play plays a story, and returns the promises that it breaks.
func (s story) play(t *testing.T) (faults []string) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now().Add(-time.Millisecond) // so that a time of 0 means never
		p := &play{story: s, began: began, server: limittest.NewRealTime(t), calls: &calls{}}
		rdb := p.server.Redis()
		rdb.AddHook(p.calls)
		client := rratelimiter.NewClient(rdb)
		if !s.observer {
			client = rratelimiter.NewClient(rdb, rratelimiter.WithObserver(reporter{p}))
		}
		guard := New(s.limits(client)...)
		guard.Policy = &Policy{
			Name: "story", Failure: s.failure, LocalShare: s.share, Wait: s.wait, Shadow: s.shadow, Jitter: s.jitter,
			Bound: s.bound, Logger: quiet,
			OnDecision: func(ctx context.Context, d Decision) {
				p.note(ctx, func(e *event) {
					e.decided, e.d = p.now(), d
					e.d.Answers = slices.Clone(d.Answers)
				})
			},
			OnDeny: func(ctx context.Context, _ Decision) { p.note(ctx, func(e *event) { e.denied++ }) },
			OnError: func(ctx context.Context, err error) {
				p.note(ctx, func(e *event) { e.errs = append(e.errs, err) })
			},
		}
		if s.observer {
			guard.Policy.Observer = reporter{p}
		}
		p.h = guard.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			e := r.Context().Value(eventKey{}).(*event)
			Charge(r.Context(), s.told)
			time.Sleep(e.takes)
			if e.fails {
				w.WriteHeader(401)
			}
		}))
		var all sync.WaitGroup
		for _, st := range s.steps {
			time.Sleep(st.pause)
			if st.away {
				p.faulty, p.failures = true, append(p.failures, p.now())
				p.server.Fail("LOADING the story's fault")
			}
			for range st.n {
				all.Go(func() { p.ask(st) })
			}
			synctest.Wait()
			p.server.Fail("")
		}
		all.Wait()
		synctest.Wait()
		p.obey()
		p.judge()
		faults = p.faults
		time.Sleep(2 * time.Second) // what gives permits back ends
	})
	return faults
}

func (p *play) ask(st step) *event {
	e := &event{step: st, came: p.now()}
	p.mu.Lock()
	p.events = append(p.events, e)
	p.mu.Unlock()
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "192.0.2.1:1"
	r.Header.Set(whoField, strconv.Itoa(int(st.who)))
	w := httptest.NewRecorder()
	p.h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), eventKey{}, e)))
	e.settled, e.code, e.header = p.now(), w.Code, w.Header()
	return e
}
