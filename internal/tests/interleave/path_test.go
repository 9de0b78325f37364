package interleave

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/proof"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// path_test.go runs one path: it asks the prefix of choices, and then takes the first choice at
// each branch.

const (
	ms    = time.Millisecond
	slot  = "{t}"
	late  = 15 * ms         // how late a reply is
	grace = 3 * time.Second // after the last moment, in which nothing goes wrong
)

// A scope says what is searched.
type scope struct {
	name     string
	limiters []limiter
	callers  []caller
	moments  []time.Duration // what the path may wait for, since its beginning
	// at most so many in a path: a fault is a held message, a late or lost reply, a caller out of
	// turn, or a context that ends
	faults int
	least  int // paths, so that a search cannot become empty
}

// A limiter has so many permits in an interval.
type limiter struct {
	rate     int64
	interval time.Duration
	lease    time.Duration // 0: none
}

// A caller makes one call.
type caller struct {
	method  string // of rig.Methods, or "SetRate"
	of      []int  // limiters
	n       []int64
	timeout time.Duration
	first   bool // it calls before the path begins
	leaves  bool // its context may end
}

// A path is one run.
type path struct {
	*scope
	wire    *wire
	client  *rratelimiter.Client
	objects []*rratelimiter.Limiter
	start   time.Time
	prefix  []int // choices that are given
	taken   []int // choices
	widths  []int // how many there were
	steps   []string
	faulty  int // faults so far
	moment  int // the next one
	arrived chan struct{}
	cancels []context.CancelFunc
	lost    bool // a reply was lost
	// it was that of a call that took about an interval, so a retry may find its records expired,
	// or that of a release, which is not repeated
	unsure bool

	mu       sync.Mutex // guards the fields below
	messages []*message
	calls    []*call // in the order in which they began; nil in callers that have not come
	by       []*call // by caller
	events   []event
	delays   []delay
	ahead    []int64 // permits taken for leases, by limiter
	failures []string
}

// A call is one that a caller has made.
type call struct {
	caller
	number      int
	first, last int // indexes of the events of its beginning and of its end
	start, end  time.Duration
	ended       bool
	left        bool // its context was ended
	answer      rig.Answer
}

// An event changes what is known.
type event struct {
	at      time.Duration
	records [][]record // of each limiter, from now on
}

// A delay is a time in which callers may be late, as a message was held, or its reply late or lost.
type delay struct{ from, to time.Duration }

func (p *path) now() time.Duration { return time.Since(p.start) }

// run runs a path, and returns it. A failure is among its failures.
func run(t *testing.T, s *scope, w *wire, prefix []int) (p *path) {
	p = &path{
		scope:  s,
		wire:   w,
		prefix: prefix,
		by:     make([]*call, len(s.callers)),
		ahead:  make([]int64, len(s.limiters)),
	}
	defer func() {
		if reason := recover(); reason != nil {
			p.failures = append(p.failures, fmt.Sprint("the path does not end: ", reason))
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		p.start, p.arrived = time.Now(), make(chan struct{}, 1)
		p.play()
	})
	p.judge()
	return p
}

// Call tells what is taken ahead, as an observer.
func (p *path) Call(c rratelimiter.CallInfo) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.limiters {
		if c.Limiter == p.key(i) {
			p.ahead[i] += c.Leased
		}
	}
}

func (p *path) key(limiter int) string { return slot + string(rune('x'+limiter)) }

func (p *path) play() {
	p.wire.command("FLUSHDB")
	rdb := redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:6379", Dialer: p.dial, Protocol: 2, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	defer rdb.Close()
	p.client = rratelimiter.NewClient(rdb, rratelimiter.WithClientID("me"), rratelimiter.WithObserver(p))
	for i, l := range p.scope.limiters {
		opts := []rratelimiter.LimiterOption{
			rratelimiter.WithRate(rratelimiter.Rate{Permits: l.rate, Interval: l.interval}),
		}
		if l.lease > 0 {
			opts = append(opts, rratelimiter.WithLease(l.lease))
		}
		p.objects = append(p.objects, p.client.RateLimiter(p.key(i), opts...))
	}
	p.look()
	for i, c := range p.callers {
		if c.first {
			p.begin(i)
			p.settle()
		}
	}
	for p.step() {
	}
	p.wait(p.moments[len(p.moments)-1] + grace - p.now())
	for _, cancel := range p.cancels {
		cancel()
	}
	p.wait(grace) // what goes on in the background
}

// settle lets the server execute all messages.
func (p *path) settle() {
	for {
		synctest.Wait()
		p.mu.Lock()
		all := p.messages
		p.mu.Unlock()
		if len(all) == 0 {
			return
		}
		p.tell("(Redis executes" + all[0].name + ")")
		p.execute(all[0], "")
	}
}

// wait lets time pass. The server executes all messages at once.
func (p *path) wait(d time.Duration) {
	over := time.After(d)
	for {
		p.settle()
		select {
		case <-p.arrived:
		case <-over:
			p.settle()
			return
		}
	}
}

// An option is what may happen next.
type option struct {
	text string
	do   func()
}

// step takes a choice; false: there is none.
func (p *path) step() bool {
	synctest.Wait()
	options := p.options()
	if len(options) == 0 {
		return false
	}
	choice := 0
	if at := len(p.taken); at < len(p.prefix) {
		choice = p.prefix[at]
	}
	p.taken, p.widths = append(p.taken, choice), append(p.widths, len(options))
	o := options[min(choice, len(options)-1)] // a pause of random length may be over in another order
	p.tell(o.text)
	o.do()
	return true
}

// options returns what may happen next.
func (p *path) options() (all []option) {
	p.mu.Lock()
	defer p.mu.Unlock()
	add := func(faults int, do func(), text ...any) {
		if p.faulty+faults <= p.faults {
			all = append(all, option{fmt.Sprint(text...), func() { p.faulty += faults; do() }})
		}
	}
	var next *message
	holds := 0 // faults, if something else happens before the message
	if len(p.messages) > 0 {
		next = p.messages[0]
		if !next.held {
			holds = 1
		}
		add(0, func() { p.execute(next, "") }, "Redis executes", next.name)
		add(1, func() { p.execute(next, "late") }, "Redis executes", next.name, ", the reply is late")
		add(1, func() { p.execute(next, "lost") }, "Redis executes", next.name, ", the reply is lost")
	}
	hold := func() {
		if next != nil {
			next.held = true
		}
	}
	turn := slices.Index(p.by, nil)
	for i, c := range p.callers {
		if p.by[i] == nil {
			add(holds+min(i-turn, 1), func() { hold(); p.begin(i) }, c)
		}
	}
	waits := slices.ContainsFunc(p.calls, func(c *call) bool { return !c.ended })
	if p.moment < len(p.moments) && (turn >= 0 || next != nil || waits) {
		at := p.moments[p.moment]
		add(holds, func() { hold(); p.pass(at) }, "time goes on to ", at)
	}
	for i, c := range p.by {
		if c != nil && !c.ended && c.leaves {
			add(1, func() { c.left = true; p.cancels[i]() }, "the context of ", c, " ends")
		}
	}
	return all
}

func (p *path) tell(step string) { p.steps = append(p.steps, fmt.Sprintf("%12v  %s", p.now(), step)) }

// pass lets time pass until a moment, or until a message arrives.
func (p *path) pass(until time.Duration) {
	select { // an old signal
	case <-p.arrived:
	default:
	}
	select {
	case <-p.arrived:
	case <-time.After(until - p.now()):
		p.moment++
	}
}

// execute lets the server execute the first message. how: its reply arrives, or is "late" or
// "lost".
func (p *path) execute(m *message, how string) {
	p.mu.Lock()
	p.messages = p.messages[1:]
	p.mu.Unlock()
	reply := p.wire.do(m.request, m.commands)
	p.look()
	now := p.now()
	over := now
	switch how {
	case "":
		m.far.Write(reply)
	case "late":
		time.AfterFunc(late, func() { m.far.Write(reply) })
		over += late
	case "lost":
		m.Close()
		over += lostFor
		p.lost = true
		p.unsure = p.unsure || strings.Contains(m.name, "release")
		for _, l := range p.limiters {
			p.unsure = p.unsure || now+lostFor/5 >= m.at+l.interval
		}
	}
	if over > m.at { // after a slow call, a queue lingers for a tenth of its time
		p.delays = append(p.delays, delay{m.at, over + (over-m.at)/10})
	}
}

// look notes what Redis holds.
func (p *path) look() {
	all := make([][]record, len(p.limiters))
	for i, l := range p.limiters {
		all[i] = p.wire.records(p.key(i), l.interval, p.start)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, event{p.now(), all})
}

// note adds an event at which Redis holds what it held before. p.mu is held.
func (p *path) note() int {
	p.events = append(p.events, event{p.now(), p.events[len(p.events)-1].records})
	return len(p.events) - 1
}

// begin lets a caller call.
func (p *path) begin(number int) {
	c := &call{caller: p.callers[number], number: number}
	args := rig.Args{Client: p.client, Permits: c.n, Timeout: c.timeout}
	for _, of := range c.of {
		args.Limiters = append(args.Limiters, p.objects[of])
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.mu.Lock()
	c.start, c.first = p.now(), p.note()
	p.calls, p.by[number] = append(p.calls, c), c
	p.mu.Unlock()
	for len(p.cancels) <= number {
		p.cancels = append(p.cancels, func() {})
	}
	p.cancels[number] = cancel
	go func() {
		defer cancel()
		defer func() {
			reason := recover()
			p.mu.Lock()
			defer p.mu.Unlock()
			c.end, c.last, c.ended = p.now(), p.note(), true
			if reason != nil {
				c.answer.Err = errPanic
				p.failures = append(p.failures, fmt.Sprintf("%v panics: %v\n%s", c, reason, debug.Stack()))
			}
		}()
		c.answer = c.do(ctx, args)
	}()
}

var errPanic = errors.New("it panics")

// do makes the call.
func (c *caller) do(ctx context.Context, args rig.Args) rig.Answer {
	if c.method == "SetRate" {
		err := args.Limiters[0].SetRate(ctx, rratelimiter.Rate{Permits: c.n[0], Interval: 200 * ms})
		return rig.Answer{Err: err}
	}
	for _, m := range rig.Methods {
		if m.Name == c.method {
			return m.Call(ctx, args)
		}
	}
	panic(c.method)
}

func (c caller) String() string {
	text := c.method + "("
	for i, of := range c.of {
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprintf("%d of %c", c.n[i], 'x'+of)
	}
	if c.timeout > 0 {
		text += ", " + c.timeout.String()
	}
	return text + ")"
}

// text returns the steps of a path, and its failures.
func (p *path) text() string {
	var b strings.Builder
	for i, s := range p.steps {
		fmt.Fprintf(&b, "%3d %s\n", i+1, s)
	}
	for _, c := range p.calls {
		fmt.Fprintf(&b, "    %v at %v: ", c, c.start)
		if c.ended {
			fmt.Fprintf(&b, "ended at %v: %+v\n", c.end, c.answer)
		} else {
			fmt.Fprintln(&b, "has not ended")
		}
	}
	for _, f := range p.failures {
		fmt.Fprintln(&b, "broken:", f)
	}
	choices := make([]string, len(p.taken))
	for i, c := range p.taken {
		choices[i] = strconv.Itoa(c)
	}
	fmt.Fprintf(
		&b, "again: %s go test ./internal/tests/interleave -run '%s$' -path %s", proof.Setting(), p.name,
		strings.Join(choices, "."),
	)
	return b.String()
}
