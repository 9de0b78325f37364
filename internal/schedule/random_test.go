package schedule

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/record"
)

// A world is a queue, a server that grants in the order of a batch, and the batches in flight
// between them. Other clients take permits, too. Its steps are random.
type world struct {
	t        *testing.T
	random   *rand.Rand
	q        *Queue
	m        Moment
	rate     int64
	interval time.Duration
	grants   []grantOf // on the server
	requests []*Request
	flying   []flight
	nosy     *rand.Rand // if set, Due is called when nothing has happened
	log      []string
}

// A grantOf is permits that count until a time.
type grantOf struct {
	n     int64
	until time.Time
}

// A flight is a batch that the server has answered, with the reply.
type flight struct {
	b       *Batch
	reply   protocol.Reply
	arrives time.Time
}

func newWorld(t *testing.T, seed uint64, nosy bool) *world {
	w := &world{t: t, random: rand.New(rand.NewPCG(seed, 1)), m: at(0), interval: 20 * ms}
	if nosy {
		w.nosy = rand.New(rand.NewPCG(seed, 2))
	}
	w.rate = 1 + w.random.Int64N(8)
	if w.random.IntN(4) == 0 {
		w.interval = 5 * time.Second
	}
	w.q = New(Settings{
		Linger: LingerThreshold, Identity: record.NewIdentity("me"), Granularity: w.random.IntN(4) == 0,
		RecordPerRequest: w.random.IntN(4) == 0, Jitter: func(d time.Duration) time.Duration { return d / 2 },
	})
	return w
}

func (w *world) note(what string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%8v ", w.m.Clock.Sub(start))+fmt.Sprintf(what, args...))
}

// free returns the permits that are free on the server, and when n are.
func (w *world) free(n int64) (free int64, at time.Time) {
	w.grants = slices.DeleteFunc(w.grants, func(g grantOf) bool { return !g.until.After(w.m.Clock) })
	slices.SortStableFunc(w.grants, func(a, b grantOf) int { return a.until.Compare(b.until) })
	free = w.rate
	for _, g := range w.grants {
		free -= g.n
	}
	there, at := free, w.m.Clock
	for _, g := range w.grants {
		if there < n {
			there, at = there+g.n, g.until
		}
	}
	return free, at
}

// serve is the script: it grants the groups of a batch in order.
func (w *world) serve(b *Batch) (g protocol.Reply) {
	g = protocol.Reply{
		Members: protocol.Members{First: protocol.Member{
			Now:      w.m.Clock.UnixMicro(),
			At:       w.m.Clock.UnixMicro(),
			Rate:     w.rate,
			Interval: w.interval,
			Origin:   record.NoOrigin,
		}},
	}
	g.MakeOutcomes(len(b.Ask.Groups))
	blocked := false
	for i, group := range b.Ask.Groups {
		if i >= b.Ask.Strict && b.Ask.Partial {
			blocked = true
		}
		free, at := w.free(group.Permits.First)
		n := min(group.Count, free/group.Permits.First)
		switch {
		case b.Ask.UpTo:
			n = min(group.Permits.First, free)
			w.grants = append(w.grants, grantOf{n, w.m.Clock.Add(w.interval)})
			g.SetGranted(i, n)
			continue
		case group.Permits.First > w.rate:
			g.SetGranted(i, -1)
			continue
		case blocked:
			n = 0
		}
		if n > 0 {
			w.grants = append(w.grants, grantOf{n * group.Permits.First, w.m.Clock.Add(w.interval)})
			_, at = w.free(group.Permits.First)
		}
		g.SetGranted(i, n)
		if n < group.Count {
			g.SetWait(i, 0, max(at.Sub(w.m.Clock), ms).Microseconds())
			blocked = blocked || i < b.Ask.Strict
		}
	}
	g.First.Free, _ = w.free(0)
	return g
}

// drive sends what is due.
func (w *world) drive() {
	for w.q.due(w.m) {
		b := new(Batch)
		if !w.q.fill(w.m, b) {
			break
		}
		w.note("batch %d: %v", b.number, b.Ask)
		took := time.Duration(w.random.Int64N(int64(4 * ms)))
		w.flying = append(w.flying, flight{b, w.serve(b), w.m.Mono.Add(took)})
	}
	if w.nosy != nil {
		for range w.nosy.IntN(3) {
			if w.q.due(w.m) && w.q.fill(w.m, new(Batch)) {
				w.t.Fatalf("another batch is due though nothing has happened\n%v", w.log)
			}
		}
	}
	w.check()
}

// check checks that no request is forgotten: one that waits and is not in flight has a batch that
// decides on it later, or a time at which the queue wakes.
func (w *world) check() {
	q := w.q
	if _, cause := q.Wake(); q.line.ready != nil && q.inFlight == nil && cause == NextEvent {
		w.t.Fatalf("the first waiting request is forgotten\n%v", w.log)
	}
	if len(q.trying) > 0 && q.inFlight == nil && q.pacer.linger.requests == 0 {
		w.t.Fatalf("a request is not asked for\n%v", w.log)
	}
	for _, row := range q.wakeUps() {
		if over(row.at, w.m) {
			w.t.Fatalf("the queue waits for something that is over: %v\n%v", row.cause, w.log)
		}
	}
	asks := q.pacer.asks != Moment{} || !q.pacer.lastCall.IsZero() || !q.pacer.poll.IsZero() || q.pacer.unwalked
	if asks && (q.line.ready == nil || q.inFlight != nil || q.pacer.linger.requests > 0) {
		w.t.Fatalf("the queue waits for a time at which it has nothing to ask for\n%v", w.log)
	}
	var first *Request
	length := 0
	for r := q.line.first; r != nil; r = r.next {
		length++
		if first == nil && !r.state.InFlight() {
			first = r
		}
	}
	if first != q.line.ready || length != q.line.length {
		w.t.Fatalf(
			"%d requests wait, not %d, or another one is the first that is not in flight\n%v", length, q.line.length,
			w.log,
		)
	}
}

// step is a random event.
func (w *world) step() {
	switch w.random.IntN(8) {
	case 0, 1, 2:
		w.join()
	case 3:
		w.leave()
	case 4:
		if w.random.IntN(4) == 0 {
			w.q.Changed()
			w.note("changed")
		} else {
			w.stall()
		}
	case 5:
		if n := w.random.Int64N(w.rate + 1); n > 0 { // another client
			if free, _ := w.free(n); free >= n {
				w.grants = append(w.grants, grantOf{n, w.m.Clock.Add(w.interval)})
				w.note("another client takes %d", n)
			}
		}
	default:
		w.pass(time.Duration(w.random.Int64N(int64(w.interval))))
	}
	w.drive()
}

func (w *world) join() {
	r := &Request{
		Permits: protocol.Permits{First: 1 + w.random.Int64N(3)},
		Kind:    Kind(w.random.IntN(3)),
		Detail:  w.random.IntN(2) == 0,
	}
	if w.random.IntN(12) == 0 {
		r.Permits.First = w.rate + 1
	}
	if r.Kind == UpTo && w.q.Waiting() > 0 {
		r.Kind = Try
	}
	if r.Kind == Wait && w.random.IntN(2) == 0 {
		r.End = w.m.Clock.Add(time.Duration(w.random.Int64N(int64(2 * w.interval))))
		if w.random.IntN(2) == 0 {
			r.Until = r.End
		}
	}
	w.note("request %d: %d permits, kind %d", len(w.requests), r.Permits.First, r.Kind)
	w.requests = append(w.requests, r)
	w.q.Join(r)
}

func (w *world) leave() {
	var there []int
	for i, r := range w.requests {
		if !r.state.Final() && r.state != Abandoned {
			there = append(there, i)
		}
	}
	if len(there) > 0 {
		i := there[w.random.IntN(len(there))]
		w.note("request %d leaves", i)
		w.q.Leave(w.requests[i])
	}
}

func (w *world) stall() {
	if len(w.flying) > 0 {
		f := &w.flying[w.random.IntN(len(w.flying))]
		f.arrives = f.arrives.Add(10 * ms)
		w.note("batch %d stalls: %v", f.b.number, w.q.Stalled(f.b))
	}
}

// pass lets time pass, and delivers replies and wakes the queue when they are due.
func (w *world) pass(d time.Duration) {
	for end := w.m.Mono.Add(d); ; {
		next, reply := end, -1
		if wake, _ := w.q.Wake(); !wake.IsZero() && wake.Before(next) {
			next = wake
		}
		for i, f := range w.flying {
			if f.arrives.Before(next) {
				next, reply = f.arrives, i
			}
		}
		for i, r := range w.requests {
			if !r.Until.IsZero() && r.Until.Before(next) && !r.last && !r.state.Final() {
				w.note("the timeout of request %d is over", i)
				if w.q.Expire(r); !r.state.InFlight() {
					w.drive()
				}
				if !r.state.InFlight() && !r.state.Final() {
					w.q.Leave(r)
				}
			}
		}
		step := max(next.Sub(w.m.Mono), 0)
		w.m = Moment{Clock: w.m.Clock.Add(step), Mono: w.m.Mono.Add(step)}
		if reply >= 0 {
			w.deliver(reply)
		}
		w.drive()
		if !w.m.Mono.Before(end) {
			return
		}
	}
}

// deliver delivers a reply, or an error in its place.
func (w *world) deliver(i int) {
	f := w.flying[i]
	w.flying = slices.Delete(w.flying, i, i+1)
	var facts Facts
	if w.random.IntN(16) == 0 {
		facts = w.q.Fail(w.m, f.b, ErrExceedsRate, nil)
	} else {
		facts = w.q.Settle(w.m, f.b, &f.reply)
		w.judge(f.b, &f.reply, facts)
	}
	w.note("batch %d ends: %+v", f.b.number, facts)
}

// judge checks that what a reply granted went to requests, or is told, and that no waiting request
// passed another one.
func (w *world) judge(b *Batch, g *protocol.Reply, f Facts) {
	given := f.First.Unclaimed
	for _, r := range b.Settled {
		o := r.Outcome
		switch {
		case r.Kind == UpTo:
			given += o.Taken
		case o.First.Allowed:
			given += r.Permits.First
		}
		if o.First.Remaining < 0 ||
			!o.First.Allowed && o.Err == nil && r.Permits.First <= w.rate && r.Kind == Try && o.First.RetryAfter <= 0 {
			w.t.Fatalf("an outcome of %+v\n%v", o, w.log)
		}
		for first := w.q.line.first; o.First.Allowed && r.Kind == Wait && first != nil; first = first.next {
			if first.place < r.place && first.Permits.First <= w.rate && first.asked == b.number {
				w.t.Fatalf("request for %d passed one for %d\n%v", r.Permits.First, first.Permits.First, w.log)
			}
		}
	}
	if given != f.First.Own {
		w.t.Fatalf("%d permits were granted, but %d were given\n%v", f.First.Own, given, w.log)
	}
}

// finish lets all requests end, without new ones.
func (w *world) finish() {
	w.pass(time.Minute)
	for i, r := range w.requests {
		if !r.state.Final() {
			w.t.Fatalf("request %d is %v after a minute\n%v", i, r.state, w.log)
		}
	}
	if !w.q.Idle() {
		w.t.Fatalf("the queue is not idle\n%v", w.log)
	}
}

// In any schedule each request is settled, no permit is lost, and no waiting request passes another
// one.
func TestRandomSchedules(t *testing.T) {
	for seed := range uint64(2000) {
		w := newWorld(t, seed, false)
		for range 60 {
			w.step()
		}
		w.finish()
	}
}

// A call of Due more than needed has no effect.
func TestMoreCallsOfDueHaveNoEffect(t *testing.T) {
	for seed := range uint64(500) {
		calm, nosy := newWorld(t, seed, false), newWorld(t, seed, true)
		for range 60 {
			calm.step()
			nosy.step()
		}
		if !slices.Equal(calm.log, nosy.log) {
			t.Fatalf("seed %d: %v\n%v", seed, calm.log, nosy.log)
		}
	}
}
