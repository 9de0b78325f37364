package httplimit

import (
	"context"
	"flag"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/window"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// stories_test.go plays random stories of requests to guards with random options, and judges them
// by what the documentation promises. The seed is always the same (see TestMain). To search longer:
//
//	go test ./httplimit -run Stories -rapid.checks 100000 -rapid.seed 0 -timeout 2h

var promises = flag.String("promises", "", "judge only what matches this regular expression")

// options has a drawer for each option of a story; nil: it has no effect on what is judged. A new
// method of Limit or field of Policy needs one.
var options = map[string]func(*rapid.T, *story){
	"Limit.Cost":      func(t *rapid.T, s *story) { s.cost = edge(t, "cost", s.rate.Permits) },
	"Limit.CountIf":   func(t *rapid.T, s *story) { s.countIf = true },
	"Limit.CostAfter": func(t *rapid.T, s *story) { s.after = rapid.Int64Range(0, s.rate.Permits+1).Draw(t, "cost after") },
	"Limit.Penalty": func(t *rapid.T, s *story) {
		s.penalty = rapid.SampledFrom([]time.Duration{
			time.Millisecond, s.rate.Interval / 4, s.rate.Interval, 4 * s.rate.Interval,
		}).Draw(t, "penalty")
	},
	"Limit.Shadow":  func(t *rapid.T, s *story) { s.limitShadow = true },
	"Limit.Unit":    nil,
	"Limit.OrElse":  nil,
	"WithDenyCache": func(t *rapid.T, s *story) { s.cache = 100 },
	"another limit": func(t *rapid.T, s *story) {
		s.other = rratelimiter.Rate{Permits: rapid.Int64Range(1, 4).Draw(t, "other rate"), Interval: 5 * time.Second}
	},

	"Policy.Failure": func(t *rapid.T, s *story) {
		s.failure = rapid.SampledFrom([]Failure{FailClosed, FailLocal}).Draw(t, "failure")
	},
	"Policy.LocalShare": func(t *rapid.T, s *story) { s.share = 0.5 },
	"Policy.Wait": func(t *rapid.T, s *story) {
		s.wait = rapid.SampledFrom([]time.Duration{
			time.Millisecond, s.rate.Interval / 2, s.rate.Interval, 2 * s.rate.Interval,
		}).Draw(t, "wait")
	},
	"Policy.Shadow": func(t *rapid.T, s *story) { s.shadow = true },
	"Policy.Jitter": func(t *rapid.T, s *story) { s.jitter = s.rate.Interval / 2 },
	"Policy.Bound":  func(t *rapid.T, s *story) { s.bound = time.Second },
	"Policy.Name":   nil, "Policy.Observer": nil, "Policy.OnDeny": nil, "Policy.OnError": nil,
	"Policy.OnDecision": nil, "Policy.Logger": nil,
}

// Each option has a row: the generator of stories learns a new one in the same commit.
func TestStoriesHaveEachOption(t *testing.T) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Policy]()) {
		if _, has := options["Policy."+f.Name]; f.IsExported() && !has {
			t.Errorf("options has no row for Policy.%s", f.Name)
		}
	}
	limit := reflect.TypeFor[Limit]()
	for i := range limit.NumMethod() {
		m := limit.Method(i)
		if _, has := options["Limit."+m.Name]; !has {
			t.Errorf("options has no row for Limit.%s", m.Name)
		}
	}
}

// A story is a limit, a policy, and requests to them.
type story struct {
	rate          rratelimiter.Rate
	names         []string
	cost, after   int64 // 0, -1: no option
	countIf       bool
	penalty       time.Duration
	limitShadow   bool
	cache         int
	other         rratelimiter.Rate
	failure       Failure
	share         float64
	wait          time.Duration
	shadow        bool
	jitter, bound time.Duration
	steps         []step
}

// A step is requests of one key at the same time.
type step struct {
	pause time.Duration // before the step
	n     int           // requests
	takes time.Duration // time of the handler
	fails bool          // the response has status 401, which counts with CountIf
	away  bool          // Redis fails during the step
}

func (s story) String() string {
	return fmt.Sprintf("%v, options %v: cost %d, after %d, penalty %v, other %v, wait %v, failure %d\nsteps %+v\n",
		s.rate, s.names, s.cost, s.after, s.penalty, s.other, s.wait, s.failure, s.steps)
}

func edge(t *rapid.T, label string, rate int64) int64 {
	return rapid.SampledFrom([]int64{1, 2, max(1, rate), rate + 1, math.MaxInt64}).Draw(t, label)
}

func drawStory(t *rapid.T) story {
	s := story{after: -1, rate: rratelimiter.Rate{
		Permits:  rapid.SampledFrom([]int64{1, 2, 3, 0, 5}).Draw(t, "rate"),
		Interval: rapid.SampledFrom([]time.Duration{time.Second, 8 * time.Second}).Draw(t, "interval"),
	}}
	var real []string
	for name, draw := range options {
		if draw != nil {
			real = append(real, name)
		}
	}
	slices.Sort(real)
	s.names = rapid.SliceOfNDistinct(rapid.SampledFrom(real), 2, 4, rapid.ID[string]).Draw(t, "options")
	if !slices.Contains(s.names, "Limit.Penalty") && rapid.Bool().Draw(t, "with a penalty") {
		s.names[0] = "Limit.Penalty" // it has the most neighbours
	}
	for _, name := range s.names {
		options[name](t, &s)
	}
	times := []time.Duration{0, time.Millisecond, s.rate.Interval / 4, s.rate.Interval - 1e6, s.rate.Interval, s.rate.Interval + 1e6}
	for range rapid.IntRange(1, 5).Draw(t, "steps") {
		s.steps = append(s.steps, step{
			pause: rapid.SampledFrom(times).Draw(t, "pause"),
			n:     rapid.SampledFrom([]int{1, 2, int(s.rate.Permits), int(s.rate.Permits) + 1}).Draw(t, "requests"),
			takes: rapid.SampledFrom(times[:4]).Draw(t, "handler"),
			fails: rapid.Bool().Draw(t, "fails"),
			away:  rapid.IntRange(0, 9).Draw(t, "away") == 9,
		})
	}
	return s
}

// An event is a request of a story, with what became of it.
type event struct {
	came, decided, settled time.Duration // settled: end of the handler
	fails                  bool
	d                      Decision
	code                   int
	retry                  string
}

type eventKey struct{}

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

// A play is a story that is played.
type play struct {
	story
	began  time.Time
	server *limittest.Server
	calls  *calls
	h      http.Handler
	mu     sync.Mutex
	events []*event // guarded by mu
	faults []string
	faulty bool
}

// wrong notes a broken promise.
func (p *play) wrong(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); regexp.MustCompile(*promises).MatchString(text) {
		p.faults = append(p.faults, text)
	}
}

func (p *play) now() time.Duration { return time.Since(p.began) }

func (s story) limits(client *rratelimiter.Client) []Limit {
	var opts []rratelimiter.LimiterOption
	if s.cache > 0 {
		opts = append(opts, rratelimiter.WithDenyCache(s.cache))
	}
	l := Per(client, "main", s.rate, byAddr, opts...)
	if s.cost > 0 {
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
	limits := []Limit{l}
	if s.other.Permits > 0 {
		limits = append(limits, Per(client, "other", s.other, byAddr))
	}
	return limits
}

// play plays a story, and returns the promises that it breaks.
func (s story) play(t *testing.T) (faults []string) {
	synctest.Test(t, func(t *testing.T) {
		p := &play{story: s, began: time.Now(), server: limittest.NewRealTime(t), calls: &calls{}}
		rdb := p.server.Redis()
		rdb.AddHook(p.calls)
		client := rratelimiter.NewClient(rdb)
		guard := New(s.limits(client)...)
		guard.Policy = &Policy{
			Failure: s.failure, LocalShare: s.share, Wait: s.wait, Shadow: s.shadow, Jitter: s.jitter, Bound: s.bound,
			Logger: quiet,
			OnDecision: func(ctx context.Context, d Decision) {
				e := ctx.Value(eventKey{}).(*event)
				e.decided, e.d = p.now(), d
				e.d.Answers = slices.Clone(d.Answers)
			},
		}
		p.h = guard.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			st := r.Context().Value(stepKey{}).(step)
			time.Sleep(st.takes)
			if st.fails {
				w.WriteHeader(401)
			}
		}))
		var all sync.WaitGroup
		for _, st := range s.steps {
			time.Sleep(st.pause)
			if st.away {
				p.faulty = true
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

type stepKey struct{}

func (p *play) ask(st step) *event {
	e := &event{came: p.now(), fails: st.fails}
	p.mu.Lock()
	p.events = append(p.events, e)
	p.mu.Unlock()
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "192.0.2.1:1"
	w := httptest.NewRecorder()
	p.h.ServeHTTP(w, r.WithContext(context.WithValue(context.WithValue(r.Context(), eventKey{}, e), stepKey{}, st)))
	e.settled, e.code, e.retry = p.now(), w.Code, w.Header().Get("Retry-After")
	return e
}

// obey asks as a client that obeys Retry-After, while nobody else asks.
func (p *play) obey() {
	e := p.ask(step{})
	if e.code != 429 || e.d.Err != nil {
		return
	}
	least := e.d.RetryAfter() - p.jitter // a request that would wait for less asks Redis
	if p.cache > 0 && p.other.Permits == 0 && least > p.wait && !p.faulty && !p.countIf && p.after < 0 {
		p.ask(step{}) // learns of the penalty
		before := p.calls.add(0)
		last := p.ask(step{})
		if made := p.calls.add(0) - before; made > 0 && last.code == 429 {
			p.wrong("a refusal that the deny cache knows made %d calls", made)
		}
		e = last
	}
	if e.code != 429 || e.d.RetryAfter() == 0 {
		return
	}
	var seconds int
	fmt.Sscan(e.retry, &seconds)
	// a rest of 1 ms is dropped
	if want := int(math.Ceil((e.d.RetryAfter() - time.Millisecond).Seconds())); seconds != max(want, 1) {
		p.wrong("Retry-After is %d s, and the refusal's time is %v", seconds, e.d.RetryAfter())
	}
	time.Sleep(e.d.RetryAfter())
	again := p.ask(step{})
	// a limit that was not checked before, because of a penalty of another one, may refuse
	same := slices.ContainsFunc(again.d.Refused(), func(name string) bool { return slices.Contains(e.d.Refused(), name) })
	if again.code == 429 && again.d.Err == nil && same {
		p.wrong("a client that obeyed Retry-After of %v is refused again at %v, Retry-After %v",
			e.d.RetryAfter(), again.came, again.d.RetryAfter())
	}
}

// rateOf returns the rate of a limit.
func (p *play) rateOf(name string) rratelimiter.Rate {
	if name == "other" {
		return p.other
	}
	return p.rate
}

// until returns when a permit that was granted at a time is free again. A record has the time of its
// grant, rounded up to a whole ms if the interval is at least 200 ms.
func until(granted, interval time.Duration) time.Duration {
	if interval >= 200*time.Millisecond {
		granted = (granted + time.Millisecond - 1).Truncate(time.Millisecond)
	}
	return granted + interval
}

// taken returns the permits that an event holds at least and at most at a time, and those that have
// counted by then.
func (p *play) taken(e *event, name string, at time.Duration) (least, most, counted int64) {
	interval := p.rateOf(name).Interval
	if e.d.Err != nil && e.came <= at && at < until(e.decided+givingBack, interval) {
		return 0, p.rateOf(name).Permits, 0 // its call may have taken them
	}
	for _, a := range e.d.Answers {
		if a.Name != name || !a.Allowed || e.decided > at {
			continue
		}
		final := a.Permits
		if name == "main" && p.after >= 0 {
			final = p.after
		}
		if name == "main" && p.countIf && !e.fails {
			final = 0
		}
		held := at < until(e.decided, interval)
		switch done := e.settled > 0 && e.settled <= at; {
		case done && p.faulty:
			most = max(a.Permits, final)
		case e.settled > 0 && e.settled < at:
			most = final
		default:
			most = max(a.Permits, final)
		}
		if !held {
			most = 0
		}
		if final > a.Permits && at < until(e.settled, interval) && at >= e.settled {
			most = max(most, final)
		}
		if held {
			least = min(a.Permits, final)
		}
		if e.settled <= at && at < until(e.settled, interval) {
			counted = final
		}
		if !p.countIf && p.after < 0 {
			counted = most
		}
		if p.faulty {
			counted = max(counted, most)
		}
	}
	return least, most, counted
}

func (p *play) sums(except *event, name string, at time.Duration) (most, counted int64) {
	for _, e := range p.events {
		if e != except {
			_, m, c := p.taken(e, name, at)
			most, counted = most+m, counted+c
		}
	}
	return most, counted
}

func (p *play) judge() {
	for _, name := range []string{"main", "other"} {
		rate := p.rateOf(name)
		var grants []window.Grant
		for _, e := range p.events {
			if least, _, _ := p.taken(e, name, e.decided); least > 0 {
				from, to := p.began.Add(e.decided), p.began.Add(e.decided)
				if p.faulty { // the reply to an earlier attempt may be lost
					from = p.began.Add(e.came)
				}
				grants = append(grants, window.Grant{Permits: least, Start: from, End: to})
			}
		}
		if rate.Interval > 0 {
			if most, at := window.Largest(grants, rate.Interval); most > rate.Permits {
				p.wrong("%d permits of %s in a window from %v: %v", most, name, at.Sub(p.began), rate)
			}
		}
	}
	for _, e := range p.events {
		if e.d.Err != nil {
			if !p.faulty {
				p.wrong("at %v: %v", e.came, e.d.Err)
			}
			continue
		}
		if e.code == 429 && len(e.d.Refused()) == 0 {
			p.wrong("at %v: a refusal names no limit", e.came)
		}
		for _, a := range e.d.Answers {
			if a.Refused && e.d.Outcome != DeniedLocally && e.d.Outcome != ShadowedLocally {
				p.explain(e, a)
			}
		}
	}
}

// explain judges a refusal.
func (p *play) explain(e *event, a Answer) {
	rate := p.rateOf(a.Name)
	if rate.Permits == 0 {
		return
	}
	if a.Name == "main" && p.penalized(e) {
		return
	}
	most, _ := p.sums(e, a.Name, e.decided)
	waiting, later := false, false
	for _, o := range p.events {
		waiting = waiting || o != e && o.came <= e.decided && o.decided > e.decided
		later = later || o != e && o.decided > e.decided && o.decided <= e.decided+p.wait
	}
	if waiting {
		return
	}
	if most+a.Permits <= rate.Permits {
		p.wrong("at %v: %s refused %d permits: %d of %d are taken, and no penalty follows from what counted",
			e.decided, a.Name, a.Permits, most, rate.Permits)
		return
	}
	if p.wait == 0 || p.countIf || p.after >= 0 || later || p.shadow || p.limitShadow || len(e.d.Refused()) > 1 || e.decided > e.came {
		return
	}
	// with a wait, it could have had them
	if soon, _ := p.sums(e, a.Name, e.decided+p.wait-time.Millisecond); soon+a.Permits <= rate.Permits && !p.faulty {
		p.wrong("at %v: %s refused %d permits at once, which are free within the wait of %v", e.decided, a.Name, a.Permits, p.wait)
	}
}

// penalized reports whether a refusal in the end that follows from what counted has begun a penalty.
func (p *play) penalized(e *event) bool {
	for _, o := range p.events {
		for _, a := range o.d.Answers {
			if o == e || p.penalty == 0 || a.Name != "main" || !a.Refused || o.d.Err != nil || o.decided > e.decided ||
				e.came > until(o.decided, p.penalty) {
				continue
			}
			if _, counted := p.sums(o, "main", o.decided); counted+a.Permits > p.rate.Permits {
				return true
			}
		}
	}
	return false
}

// TestStories judges random stories.
func TestStories(t *testing.T) {
	tries := 1 // a story that fails is played again, to make it shorter: requests at the same time have no certain order
	rapid.Check(t, func(rt *rapid.T) {
		s := drawStory(rt)
		for range tries {
			if faults := s.play(t); faults != nil {
				tries = 5
				rt.Fatalf("%v%s", s, strings.Join(faults, "\n"))
			}
		}
	})
}
