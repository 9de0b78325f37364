package options

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// A trace is what happened in a story. All times count from its beginning.
type trace struct {
	*story
	calls  []*call
	events []event // the start and the end of each call, and each change in Redis
	taken  []int64 // of each limiter: permits in all records that were ever written
	end    time.Duration
}

// A call is a request and how it ended.
type call struct {
	ask
	number     int
	first      int // index of the event of its start
	last       int // of its end
	start, end time.Duration
	granted    []int64 // of each limiter
	allowed    bool
	results    []rratelimiter.Result
	err        error
	bound      bool // a debt reached its bound, so the charge counted at most what is granted
	panicked   any
	again      *call // the next try of a client that obeys RetryAfter
	cancelled  bool  // it still waited when the story was over
}

// An event changes what the model knows.
type event struct {
	at      time.Duration
	started *call
	ended   *call
	records [][]entry // of each limiter, as Redis holds them from now on
}

// An entry is a record in Redis: n permits that count until a time.
type entry struct {
	n     int64
	until time.Duration
}

// A player runs a story.
type player struct {
	*trace
	b        *rig.Bubble
	p        *rig.Process
	limiters []*rratelimiter.Limiter

	mu      sync.Mutex // guards the fields below, and the trace
	records [][]entry
	seen    []map[string]int64 // permits of each record
}

// play runs a story.
func play(t *testing.T, s *story) *trace {
	tr := &trace{story: s, taken: make([]int64, len(s.limiters))}
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		b.ShareScripts()
		x := &player{trace: tr, b: b, records: make([][]entry, len(s.limiters))}
		x.run()
	})
	return tr
}

func (x *player) now() time.Duration { return time.Since(x.b.Start) }

// note adds an event. x.mu is held.
func (x *player) note(e event) int {
	e.at, e.records = x.now(), x.records
	x.events = append(x.events, e)
	return len(x.events) - 1
}

// look notes what Redis holds.
func (x *player) look() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.records = make([][]entry, len(x.story.limiters))
	for i, l := range x.story.limiters {
		shared, err := x.b.Server.SortedSet(x.permits(i))
		if err != nil {
			continue // there is none
		}
		x.b.Server.Lock() // another call may be writing to it
		all := maps.Clone(shared)
		x.b.Server.Unlock()
		// by the end of the id, which is a counter; a call that joins a record gives it another id
		joins := l.has("WithGranularity") && l.format != rratelimiter.Redisson313
		sums := map[string]int64{}
		for member, score := range all {
			id, n := member[len(member)-6:len(member)-4], rig.PermitsOf(member)
			if joins {
				id = fmt.Sprint(score)
			}
			sums[id] += n
			until := time.UnixMicro(int64(score*1000 + 0.5)).Add(l.rate.Interval).Sub(x.b.Start)
			x.records[i] = append(x.records[i], entry{n, until})
		}
		for id, n := range sums {
			if more := n - x.seen[i][id]; more > 0 {
				x.taken[i] += more
				x.seen[i][id] = n
			}
		}
		slices.SortFunc(x.records[i], func(a, b entry) int { return cmp.Compare(a.until, b.until) })
	}
	x.note(event{})
}

// permits returns the key of the records of a limiter.
func (x *player) permits(limiter int) string {
	name := x.name(limiter)
	if slices.Contains(x.client, "WithNameMapper") {
		name = mapped(name)
	}
	return keys.Names(name, "me")[keys.Permits]
}

func (x *player) run() {
	opts := []rratelimiter.Option{rig.Patient}
	for _, name := range x.client {
		opts = append(opts, clientRows[name](x.story))
	}
	x.p = x.b.Process(opts...)
	x.p.Redis.AddHook(redistest.Hook{
		Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			defer x.look()
			return next(ctx, cmd)
		},
		Pipeline: func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
			defer x.look()
			return next(ctx, cmds)
		},
	})
	for i := range x.story.limiters {
		l := &x.story.limiters[i]
		x.seen = append(x.seen, map[string]int64{})
		own := l.options()
		if x.byDefault() {
			own = nil
		}
		x.limiters = append(x.limiters, x.p.RateLimiter(x.name(i), own...))
		if !l.has("WithRate") && !l.has("WithEnforcedRate") {
			rig.MustSet(x.b.T, x.limiters[i], l.rate)
		}
	}
	x.look()
	x.p.Wire.Back.Store(int64(x.takes))

	type step struct {
		at time.Duration
		do func()
	}
	var steps []step
	for _, f := range x.faults {
		switch f.kind {
		case late:
			steps = append(steps, step{f.at, func() { x.p.Wire.Back.Store(int64(x.takes + f.d)) }})
			steps = append(steps, step{f.at + f.lasts, func() { x.p.Wire.Back.Store(int64(x.takes)) }})
		case lost:
			steps = append(steps, step{f.at, func() { x.p.Wire.Cut.Store(x.p.Wire.Calls() + 1) }})
		case away:
			steps = append(steps, step{f.at, func() { x.p.Wire.Fail(rig.ErrRefused) }})
			steps = append(steps, step{f.at + f.d, func() { x.p.Wire.Fault.Store(nil) }})
		}
	}
	over := x.b.Start
	var cancels []func()
	for i, a := range x.asks {
		steps = append(steps, step{a.at, func() { cancels = append(cancels, x.ask(i, a)) }})
		over = x.b.Start.Add(a.at)
	}
	slices.SortStableFunc(steps, func(a, b step) int { return cmp.Compare(a.at, b.at) })
	for _, s := range steps {
		x.b.SleepTo(max(s.at, x.now()))
		s.do()
	}
	longest := time.Duration(0)
	for _, l := range x.story.limiters {
		longest = max(longest, l.rate.Interval)
	}
	x.b.SleepTo(max(over.Sub(x.b.Start)+4*longest, x.now()))
	x.mu.Lock()
	x.end = x.now()
	x.mu.Unlock()
	for _, cancel := range cancels {
		cancel()
	}
	x.b.SleepTo(x.now() + 30*time.Second)
	x.look()
}

// ask makes a request, and returns once it has ended or waits. The returned function ends its
// context.
func (x *player) ask(number int, a ask) (cancel func()) {
	ctx, cancel := context.WithCancel(context.Background())
	x.b.T.Cleanup(cancel)
	go func() {
		c := x.call(ctx, number, a)
		if a.method == "Allow, obey" && c.err == nil && !c.allowed && c.panicked == nil {
			select {
			case <-time.After(c.results[0].RetryAfter):
				c.again = x.call(ctx, number, a)
			case <-ctx.Done(): // the story is over
			}
		}
	}()
	synctest.Wait()
	return cancel
}

func (x *player) call(ctx context.Context, number int, a ask) *call {
	c := &call{ask: a, number: number, granted: make([]int64, len(a.of))}
	if a.deadline > 0 {
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, a.deadline)
		defer cancel()
	}
	x.mu.Lock()
	c.start, c.first = x.now(), x.note(event{started: c})
	x.calls = append(x.calls, c)
	x.mu.Unlock()
	func() {
		defer func() { c.panicked = recover() }()
		x.do(ctx, c)
	}()
	x.mu.Lock()
	defer x.mu.Unlock()
	c.end, c.last = x.now(), x.note(event{ended: c})
	c.cancelled = x.end > 0
	return c
}

// do makes the call.
func (x *player) do(ctx context.Context, c *call) {
	limiters := make([]*rratelimiter.Limiter, len(c.of))
	for i, of := range c.of {
		limiters[i] = x.limiters[of]
	}
	l, n, client := limiters[0], c.n[0], x.p.Client
	var result rratelimiter.Result
	switch c.method {
	case "Acquire":
		c.err = l.Acquire(ctx, n)
		c.allowed = c.err == nil
	case "TryAcquireTimeout":
		c.allowed, c.err = l.TryAcquireTimeout(ctx, n, c.limit)
	case "TryAcquire":
		c.allowed, c.err = l.TryAcquire(ctx, n)
	case "Allow", "Allow, obey":
		result, c.err = l.Allow(ctx, n)
		c.results, c.allowed = []rratelimiter.Result{result}, result.Allowed
	case "Peek":
		result, c.err = l.Peek(ctx, n)
		c.results, c.allowed = []rratelimiter.Result{result}, result.Allowed
		return
	case "Take":
		_, result, c.err = l.Take(ctx, n)
		c.results, c.allowed = []rratelimiter.Result{result}, result.Allowed
	case "Charge":
		_, c.err = l.Charge(ctx, n)
		c.charged()
		return
	case "ChargeAll":
		_, c.err = client.ChargeAll(ctx, c.n, limiters...)
		c.charged()
		return
	case "AcquireUpTo":
		c.granted[0], c.err = l.AcquireUpTo(ctx, n)
		c.allowed = c.granted[0] > 0
	case "TakeUpTo":
		var g *rratelimiter.Grant
		g, c.err = l.TakeUpTo(ctx, n)
		c.granted[0], c.allowed = g.Permits(), g != nil
	case "AcquireAllN":
		c.err = client.AcquireAllN(ctx, c.n, limiters...)
		c.allowed = c.err == nil
	case "TryAcquireAllTimeout":
		c.allowed, c.err = client.TryAcquireAllTimeout(ctx, n, c.limit, limiters...)
	case "AllowAllN":
		c.results, c.err = client.AllowAllN(ctx, c.n, limiters...)
		c.allowed = c.err == nil && c.results[0].Allowed
	case "TakeAll":
		_, c.results, c.err = client.TakeAll(ctx, c.n, limiters...)
		c.allowed = c.err == nil && c.results[0].Allowed
	default:
		panic(c.method)
	}
	if c.allowed && !c.upTo() {
		copy(c.granted, c.n)
	}
}

// charged notes what a charge has counted. One whose debt reached the bound is judged by the
// records.
func (c *call) charged() {
	c.bound = errors.Is(c.err, rratelimiter.ErrDebtBound)
	if c.bound {
		c.err = nil
	}
	if c.allowed = c.err == nil; c.allowed {
		copy(c.granted, c.n)
	}
}

func (c *call) String() string {
	text := fmt.Sprintf("#%d %v at %v ended at %v: ", c.number, c.ask, c.start, c.end)
	switch {
	case c.panicked != nil:
		return text + fmt.Sprintf("panic: %v", c.panicked)
	case c.err != nil:
		return text + c.err.Error()
	}
	return text + fmt.Sprintf("granted %v, results %+v", c.granted, c.results)
}
