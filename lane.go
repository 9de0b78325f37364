package rratelimiter

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// lane.go brings flights to Redis. It knows nodes and pipelines: flights of all limiters whose keys lie on one node travel
// together when they leave together, a few pipelines are in the air at once, and one that does not come back holds up
// nobody but its own callers.

const (
	mostTrips   = 4   // of a lane in the air at once
	mostStalled = 4   // trips of a lane that gave their place away; more keep it
	mostFlights = 256 // of a trip

	// A trip has stalled once it takes longer than this, and so many times longer than usual; or twice as long, where that is a
	// quarter of what a call may take. Whoever comes when a server begins to hang may wait so much longer than a call takes.
	shortestStall = 20 * time.Millisecond
	stallFactor   = 8
)

// A lane is the way to one node.
type lane struct {
	node    Redis
	timeout time.Duration // of a trip
	places  int           // for trips in the air
	seats   int           // for flights in a trip
	patient time.Duration // a trip that takes no longer has not stalled
	used    time.Time     // when somebody last asked for the lane; the client's lock's

	mu      sync.Mutex
	waiting []*flight     // for a place
	air     int           // trips that have a place
	stalled int           // trips that gave it away
	usual   time.Duration // that a trip takes, smoothed
	spare   []*trip

	breaker breaker // on a cluster, the client's own lane has that of finding nodes
}

// newLane makes the way to a node, or to many behind a client that does not show them: there each flight goes by itself.
func newLane(node Redis, timeout time.Duration) *lane {
	l := &lane{node: node, timeout: timeout, places: mostTrips, seats: mostFlights, patient: shortestStall}
	switch node.(type) {
	case *redis.Ring, *redis.AutoPipeliner:
		l.places, l.seats = math.MaxInt, 1
	}
	return l
}

// send brings a flight on its way.
func (c *Client) send(f *flight) {
	cluster, ok := c.rdb.(*redis.ClusterClient)
	if f.breaker = &c.lane.breaker; !ok && c.lane.seats == 1 {
		f.breaker = f.line.way()
	}
	if f.bypass() {
		return
	}
	if !ok {
		if t := c.lane.admit(f); t != nil {
			go t.start()
		}
		return
	}
	go func() { // finding the node may take a call of its own
		ctx, cancel := context.WithTimeout(context.Background(), c.callTimeout)
		defer cancel()
		late := time.AfterFunc(c.callTimeout, func() { f.land(grants{attempts: 1}, errLate(c.callTimeout)) })
		node, err := cluster.MasterForKey(ctx, f.line.limiter.keyNames[keyConfig])
		if !late.Stop() {
			return
		}
		if err != nil {
			f.due, f.stall = f.started.Add(c.callTimeout), time.Now().Add(shortestStall)
			if f.sent.again(err, false) {
				f.alone(err)
			} else {
				f.land(grants{attempts: 1}, err)
			}
			return
		}
		lane := c.laneTo(node)
		if f.breaker = &lane.breaker; f.bypass() {
			return
		}
		if t := lane.admit(f); t != nil {
			t.run()
		}
	}()
}

// longestRest is how long a lane is kept that nobody uses. What is known of a way must last between calls.
const longestRest = time.Minute

// laneTo gives the lane to a node of a cluster, or the one of a Ring's shard, whose breaker counts alone. Lanes that nobody
// has used for a while are forgotten when a new one is made: their nodes may have left.
func (c *Client) laneTo(node *redis.Client) *lane {
	c.lanesMu.Lock()
	defer c.lanesMu.Unlock()
	now := time.Now()
	l := c.lanes[node]
	if l == nil {
		for other, l := range c.lanes {
			l.mu.Lock()
			if l.air+l.stalled+len(l.waiting) == 0 && now.Sub(l.used) > longestRest {
				delete(c.lanes, other)
			}
			l.mu.Unlock()
		}
		l = newLane(node, c.callTimeout)
		c.lanes[node] = l
	}
	l.used = now
	return l
}

// admit takes a flight, and answers a trip for the caller to run if there is a place for one.
func (l *lane) admit(f *flight) *trip {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, f)
	return l.load()
}

// load puts those who wait on a trip, if there is a place for one. The lane is locked.
func (l *lane) load() *trip {
	if len(l.waiting) == 0 || l.air >= l.places {
		return nil
	}
	if l.forsake(); len(l.waiting) == 0 {
		return nil
	}
	l.air++
	var t *trip
	if last := len(l.spare) - 1; last >= 0 {
		t, l.spare = l.spare[last], l.spare[:last]
	} else {
		t = &trip{lane: l, expired: make(chan struct{})}
		t.start = t.run
	}
	n := min(len(l.waiting), l.seats)
	t.flights = append(t.flights[:0], l.waiting[:n]...)
	l.waiting = slices.Delete(l.waiting, 0, n)
	t.started = time.Now()
	t.bound = &bound{context.Background(), t.started.Add(l.timeout), t.expired}
	t.stall = min(max(l.patient, min(stallFactor*l.usual, max(2*l.usual, l.timeout/4))), t.left(t.flights))
	if t.timer == nil {
		t.timer = time.AfterFunc(t.stall, t.overdue)
	} else {
		t.timer.Reset(t.stall)
	}
	return t
}

// forsake takes those out of the line whose callers have all gone: nothing is to be taken for them. The lane is locked.
func (l *lane) forsake() {
	gone := func(f *flight) bool { return f.present.Load() == 0 }
	if !slices.ContainsFunc(l.waiting[:min(len(l.waiting), l.seats)], gone) {
		return
	}
	var forsaken []*flight
	l.waiting = slices.DeleteFunc(l.waiting, func(f *flight) bool {
		if !gone(f) {
			return false
		}
		forsaken = append(forsaken, f)
		return true
	})
	go func() {
		for _, f := range forsaken {
			f.land(grants{}, errUnsent)
		}
	}()
}

// A trip is one pipeline: there and back.
type trip struct {
	lane    *lane
	start   func() // run, which then takes no memory
	flights []*flight
	asking  []*flight // those of them that have no answer yet
	timer   *time.Timer
	expired chan struct{} // closed when it is late
	bound   *bound
	started time.Time
	stall   time.Duration // how long it may take before it has stalled

	// What follows is the lane's lock's.
	stalled bool // it takes too long
	yielded bool // and gave its place away
	over    bool // it is back
}

// A bound is the context of a trip's commands. It ends when the trip is late.
type bound struct {
	context.Context
	deadline time.Time
	expired  <-chan struct{}
}

func (b *bound) Deadline() (time.Time, bool) { return b.deadline, true }
func (b *bound) Done() <-chan struct{}       { return b.expired }

func (b *bound) Err() error {
	select {
	case <-b.expired:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// run makes a trip, and goes on with those for whom there was no place before.
func (t *trip) run() {
	for t != nil {
		t = t.fly()
	}
}

// fly makes one trip. It answers the next one, if its place can be used again.
func (t *trip) fly() (next *trip) {
	l := t.lane
	t.carry()

	l.mu.Lock()
	t.over = true
	regular := !t.stalled
	early := regular && len(t.flights) == 1
	switch {
	case t.yielded:
		l.stalled--
	case early: // whoever departs while this one lands needs the place
		l.air--
	}
	l.usual += (time.Since(t.started) - l.usual) / 8
	l.mu.Unlock()
	for i, f := range t.flights {
		f.arrive(regular)
		t.flights[i] = nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !early && !t.yielded {
		l.air--
	}
	if regular && t.timer.Stop() && len(l.spare) < mostTrips { // else its timer may still call, or it is one of many
		t.over = false
		l.spare = append(l.spare, t)
	}
	return l.load()
}

// carry asks Redis until each flight has an answer. Where the server lacks the script, the first one brings its text: so
// those behind find it, unless somebody removes it meanwhile.
func (t *trip) carry() {
	t.asking = append(t.asking[:0], t.flights...)
	for _, f := range t.flights {
		f.due, f.stall = f.started.Add(t.lane.timeout), t.started.Add(t.stall)
	}
	for text := false; len(t.asking) > 0; text = true {
		for i, f := range t.asking {
			f.ask(t.bound, text && i == 0)
		}
		t.exchange()
		t.asking = slices.DeleteFunc(t.asking, func(f *flight) bool {
			err := f.cmd.Err()
			if err == nil || !redis.HasErrorPrefix(err, "NOSCRIPT") {
				return true
			}
			f.sent.end(err)
			return false
		})
	}
}

// exchange sends the commands of those who ask, and reads the replies. What failed stands in each command.
func (t *trip) exchange() {
	if len(t.asking) == 1 {
		_ = t.lane.node.Process(t.bound, &t.asking[0].cmd)
		return
	}
	pipe := t.lane.node.Pipeline()
	for _, f := range t.asking {
		_ = pipe.Process(t.bound, &f.cmd)
	}
	_, _ = pipe.Exec(t.bound)
}

// left tells how much time is left until the first of some flights is late: a flight's time begins when it departs, not when
// it has a place.
func (t *trip) left(flights []*flight) time.Duration {
	first := flights[0].started
	for _, f := range flights[1:] {
		if f.started.Before(first) {
			first = f.started
		}
	}
	return max(t.lane.timeout-time.Since(first), 0)
}

// overdue is called when a trip stalls, and when flights of it are late. The first time its place is free for another one,
// and its limiters may make their next calls; then the callers of those that are late are told. So are those who still wait
// for its place then, if no later call was answered.
func (t *trip) overdue() {
	l := t.lane
	l.mu.Lock()
	if t.over {
		l.mu.Unlock()
		return
	}
	left := t.left(t.flights)
	late := left == 0
	t.stalled = true
	var next *trip
	var behind []*flight
	if late && !t.yielded && l.breaker.silent(t.flights[0].started) {
		behind, l.waiting = l.waiting, nil
	}
	if !t.yielded && (late || l.stalled < mostStalled) {
		t.yielded = true
		l.stalled++
		l.air--
		next = l.load()
	}
	flights := slices.Clone(t.flights)
	l.mu.Unlock()
	if next != nil {
		go next.start()
	}
	if !late {
		for _, f := range flights {
			f.line.stall(f)
		}
		t.timer.Reset(left)
		return
	}
	for _, f := range behind {
		f.land(grants{}, unsent(errLate(l.timeout)))
	}
	var rest []*flight
	for _, f := range flights {
		if time.Since(f.started) < l.timeout {
			rest = append(rest, f)
		} else {
			f.land(grants{attempts: int(f.sent.attempts.Load())}, errLate(l.timeout))
		}
	}
	if len(rest) > 0 {
		t.timer.Reset(t.left(rest))
		return
	}
	close(t.expired) // not before: that a context ended must not look like the end of a caller's
}
