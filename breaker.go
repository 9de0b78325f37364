package rratelimiter

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// The breaker of a node: which calls have no reply, when that means that their node is away, and when to probe whether
// it is back. What follows for callers is decided elsewhere.

// While a node is away, the pause between probes grows from shortestOutage to longestOutage.
const (
	shortestOutage = 100 * time.Millisecond
	longestOutage  = time.Second
)

// A node that answers nothing for longestSilence while calls to it are in flight is probed. If it answers neither the
// probe nor another call for as long again, it is away. If half the call timeout is less, that counts instead.
const longestSilence = 250 * time.Millisecond

// A breaker tells whether a node can be reached. It is broken while the node is away. Then limiters with WithFallback
// are decided in the process, and a probe on behalf of no caller checks now and then whether the node is back. If ask
// is not called for longestOutage after the end of a pause, the breaker is no longer broken.
type breaker struct {
	answered atomic.Int64 // start of the latest call that was answered, ns since epoch; 0: none was
	broken   atomic.Bool  // the node is away; set under mu, cleared without it, too
	wanted   atomic.Bool  // ask was called; before that nothing is probed because of silence

	mu      sync.Mutex    // guards the fields below
	until   time.Time     // end of the pause before the next probe
	pause   time.Duration // its length before jitter
	probing bool          // a probe is in flight, or about to be

	calls     map[pending]struct{} // in flight
	last      *Limiter             // of the last call: probes use it
	quiet     time.Time            // since when calls are in flight and none was answered; zero: no reply is due
	suspected time.Time            // when the node was probed because of that; zero: it was not
	watching  bool                 // the timer runs
	timer     *time.Timer          // calls look
}

// A pending is a call in flight. When its node is found to be away, nodeAway is called in a goroutine of its own.
type pending interface{ nodeAway() }

// epoch is the origin of breaker.answered.
var epoch = time.Now()

// answer notes that the node answered a call that began at a time.
func (b *breaker) answer(began time.Time) {
	if at, last := int64(began.Sub(epoch)), b.answered.Load(); at > last || last == 0 {
		b.answered.Store(at)
	}
}

// silent reports whether no call that began after a time was answered.
func (b *breaker) silent(since time.Time) bool {
	last := b.answered.Load()
	return last == 0 || last <= int64(since.Sub(epoch))
}

// begin adds a call that is about to be written.
func (b *breaker) begin(call pending, l *Limiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.calls == nil {
		b.calls = map[pending]struct{}{}
	}
	b.calls[call] = struct{}{}
	if b.last = l; b.quiet.IsZero() {
		b.quiet = time.Now()
	}
	b.watch()
}

// end removes a call, and notes whether the node answered it. An unanswered call proves nothing: its caller may have
// gone, for example.
func (b *breaker) end(call pending, answered bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.calls, call)
	if answered {
		b.heard()
	}
}

// heard notes that the node answered just now. b.mu is held.
func (b *breaker) heard() {
	b.quiet, b.suspected = time.Time{}, time.Time{}
	if len(b.calls) > 0 {
		b.quiet = time.Now()
		b.watch()
	}
}

// watch starts the timer if the node owes a reply and ask was called. b.mu is held.
func (b *breaker) watch() {
	if b.watching || b.quiet.IsZero() || !b.wanted.Load() {
		return
	}
	b.watching = true
	wait := time.Until(b.quiet.Add(b.patience()))
	if b.timer == nil {
		b.timer = time.AfterFunc(wait, b.look)
	} else {
		b.timer.Reset(wait)
	}
}

// patience returns for how long a node may owe a reply before it is probed, and then again before it is away. b.mu is
// held.
func (b *breaker) patience() time.Duration { return min(longestSilence, b.last.client.callTimeout/2) }

// look is called by the timer. When the node has been silent for patience it is probed; after patience again it is
// away.
func (b *breaker) look() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.watching = false
	patience := b.patience()
	switch {
	case b.quiet.IsZero():
		return
	case time.Since(b.quiet) < patience:
		b.watch()
		return
	case b.suspected.IsZero():
		b.suspected = time.Now()
		b.watching = true
		b.timer.Reset(patience)
		if !b.probing && !b.broken.Load() { // while it is broken, ask decides when to probe
			b.probing = true
			go b.last.probe(b)
		}
		return
	}
	b.lose()
}

// lose breaks b, unless a failed call did, and calls nodeAway of the calls in flight. b.mu is held.
func (b *breaker) lose() {
	if b.suspected = (time.Time{}); !b.broken.Load() {
		b.snap()
	}
	for call := range b.calls {
		go call.nodeAway()
	}
}

// snap breaks b and begins the first pause. b.mu is held.
func (b *breaker) snap() {
	b.rest(shortestOutage)
	b.broken.Store(true)
}

// ask reports whether b is broken, and if so, how long to wait before asking again, and whether the caller has to start
// a probe.
func (b *breaker) ask() (broken bool, retry time.Duration, probe bool) {
	if !b.wanted.Load() {
		b.mu.Lock()
		b.wanted.Store(true)
		b.watch()
		b.mu.Unlock()
	}
	if !b.broken.Load() {
		return false, 0, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if retry = time.Until(b.until); retry < -longestOutage && !b.probing {
		b.broken.Store(false)
	}
	broken = b.broken.Load()
	if probe = broken && retry <= 0 && !b.probing; probe {
		b.probing = true
	}
	return broken, max(retry, shortestOutage/10), probe
}

// fail notes why a call that began at a time was not answered. That breaks b, unless a call that began later was
// answered, or the reason concerns one slot alone.
func (b *breaker) fail(began time.Time, why error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.silent(began) && !isOfSlot(why) && !b.broken.Load() {
		b.snap()
	}
}

// retry returns how long to wait before asking again, at least a tenth of shortestOutage.
func (b *breaker) retry() time.Duration {
	if !b.broken.Load() {
		return shortestOutage
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return max(time.Until(b.until), shortestOutage/10)
}

// rest begins a pause, up to a fifth shorter at random. b.mu is held.
func (b *breaker) rest(pause time.Duration) {
	b.pause = pause
	b.until = time.Now().Add(pause - rand.N(pause/5))
}

// probe checks, on behalf of no caller, whether the node of b can be reached.
func (l *Limiter) probe(b *breaker) {
	began, check := time.Now(), l.writeProbe
	if b == &l.client.pipeline.breaker && l.client.clustered() {
		check = l.nodes
	}
	_, err := await(context.Background(), l.client.callTimeout, l.client.callTimeout, nil, check)
	reached := isThere(err)
	b.mu.Lock()
	b.probing = false
	switch {
	case reached:
		b.heard()
	case b.broken.Load():
		b.rest(min(2*b.pause, longestOutage))
	case !b.suspected.IsZero():
		b.lose()
	}
	b.mu.Unlock()
	if reached {
		l.client.reached(b, began)
	}
}

// isThere reports whether the end of a call shows that its node can be reached.
func isThere(err error) bool { return !unreachable(err) || isOfSlot(err) }

// writeProbe makes one call that tells whether Redis could grant permits: it fails on a replica, too.
func (l *Limiter) writeProbe(ctx context.Context) ([]int64, error) {
	return l.client.try(ctx, new(attempts), probeScript, l.keys())
}

// nodes is the topology probe of a cluster: it finds the node that serves l. It sends no command to that node, because
// another node may be the one that is away.
func (l *Limiter) nodes(ctx context.Context) ([]int64, error) {
	_, err := l.client.nodeOf(ctx, l.client.rdb.(*redis.ClusterClient), l)
	return nil, err
}

// reached notes that Redis answered a call that began at a time. If b was broken, the waiting callers of all limiters
// with WithFallback ask again.
func (c *Client) reached(b *breaker, began time.Time) {
	if b.answer(began); b.broken.Load() && b.broken.Swap(false) {
		go c.wakeChosen(func(l *Limiter) bool { return l.settings.fallsBack })
	}
}

// breakerTo returns the breaker for calls of l, and does not block. Each node has one, or each limiter if the Redis
// client does not show its nodes. A cluster whose nodes were not found yet has a single one.
func (c *Client) breakerTo(l *Limiter) *breaker {
	if cluster, ok := c.rdb.(*redis.ClusterClient); ok {
		if c.found.Load() { // from then on MasterForKey does not block
			if node, err := cluster.MasterForKey(context.Background(), l.key()); err == nil {
				return &c.pipelineTo(node).breaker
			}
		}
		return &c.pipeline.breaker
	}
	if c.pipeline.maxBatch > 1 {
		return &c.pipeline.breaker
	}
	q := c.enter(l)
	defer q.exit()
	return q.breakerOf()
}

// nodeOf returns the node of a cluster that serves l. It may make a call until nodes were found once.
func (c *Client) nodeOf(ctx context.Context, cluster *redis.ClusterClient, l *Limiter) (*redis.Client, error) {
	node, err := cluster.MasterForKey(ctx, l.key())
	if err == nil && !c.found.Load() {
		c.found.Store(true)
	}
	return node, err
}

// breakerOf returns the breaker of a queue whose batches have runs of their own: on a Ring that of the shard, else its
// own.
func (q *queue) breakerOf() *breaker {
	if ring, ok := q.client.rdb.(*redis.Ring); ok {
		if shard, err := ring.GetShardClientForKey(q.limiter.key()); err == nil {
			return &q.client.pipelineTo(shard).breaker
		}
	}
	return &q.breaker
}

// askWay reports whether b is broken, and if so, how long to wait before asking again. If a probe is due, it starts one
// in the background.
func (l *Limiter) askWay(b *breaker) (broken bool, retry time.Duration) {
	broken, retry, probe := b.ask()
	if probe {
		go l.probe(b)
	}
	return broken, retry
}

// away reports whether the node that serves l is known to be away.
func (l *Limiter) away() bool {
	if l.err != nil {
		return false
	}
	broken, _ := l.askWay(l.client.breakerTo(l))
	return broken
}
