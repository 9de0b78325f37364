package rratelimiter

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/local"
)

// fallback.go decides in the process while Redis can't be reached: when that is so, when Redis is asked again, and what the
// process grants meanwhile. Its answers look like those of the scripts, so callers are told as always; how, is flight.go's.

// noteLocal is the note of an answer that this process gave. Scripts have no such note.
const noteLocal = 1 << 30

// unreachable tells whether a call failed since Redis can't be reached, or can't serve anybody now: the network failed, no
// answer or no connection came in time, or the server said that it is loading, busy, full of clients, a replica, or a part
// of a cluster that is down. What a server says of a limiter, of its memory or of who may do what is an answer, and a redis
// client that was closed never comes back.
func unreachable(err error) bool {
	if err == nil || errors.Is(err, redis.ErrClosed) || errors.Is(err, ErrNotInitialized) || errors.Is(err, errContested) ||
		errors.Is(err, errUntold) {
		return false
	}
	return !isAnswer(err) || errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted) ||
		says(err, notNow...) || says(err, "BUSY")
}

// isOfSlot tells whether an error that unreachable knows is of one slot alone, and nothing is wrong with the node: that slot is
// on its way to another one, or nobody has it.
func isOfSlot(err error) bool { return says(err, "TRYAGAIN", "CLUSTERDOWN Hash slot") }

// Redis is asked again after a pause, which grows while it can't be reached.
const (
	shortestOutage = 100 * time.Millisecond
	longestOutage  = time.Second
)

// A breaker is what flights know of the way to a node: whether it was broken just now. While it is, flights that can be are
// decided in the process, and now and then a call that carries nobody looks whether the node is back. So a node that hangs
// costs those a call's time who come before that is known, and nobody else. What is known is forgotten when nobody asks.
type breaker struct {
	answered atomic.Int64 // when the last call began that had an answer, since epoch; 0: none had
	broken   atomic.Bool

	mu      sync.Mutex
	until   time.Time // the end of the pause
	pause   time.Duration
	probing bool
}

var epoch = time.Now()

// answer notes that the node answered a call.
func (b *breaker) answer(began time.Time) {
	if at, last := int64(began.Sub(epoch)), b.answered.Load(); at > last || last == 0 {
		b.answered.Store(at)
	}
}

// silent tells whether no call that began after a time was answered.
func (b *breaker) silent(since time.Time) bool {
	last := b.answered.Load()
	return last == 0 || last <= int64(since.Sub(epoch))
}

// ask tells whether the way is broken, and if so when it is worth while to ask again, and whether it is the caller's turn to
// look.
func (b *breaker) ask() (broken bool, retry time.Duration, probe bool) {
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

// fail notes why a call did not reach the node: it breaks the way, unless a call that began later was answered. It tells
// when it is worth while to ask again.
func (b *breaker) fail(began time.Time, why error) (retry time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.silent(began) || isOfSlot(why) {
		return shortestOutage
	}
	if !b.broken.Load() {
		b.rest(shortestOutage)
		b.broken.Store(true)
	}
	return max(time.Until(b.until), shortestOutage/10)
}

// rest begins a pause. The breaker is locked.
func (b *breaker) rest(pause time.Duration) {
	b.pause = pause
	b.until = time.Now().Add(pause - rand.N(pause/5))
}

// probe looks whether Redis is back, on behalf of nobody.
func (l *Limiter) probe(b *breaker) {
	began, look := time.Now(), l.sound
	if b == &l.client.lane.breaker && l.client.clustered() {
		look = l.found
	}
	_, err := within(context.Background(), l.client, look)
	reached := !unreachable(err) || isOfSlot(err)
	b.mu.Lock()
	b.probing = false
	if !reached {
		b.rest(min(2*b.pause, longestOutage))
	}
	b.mu.Unlock()
	if reached {
		l.client.reached(b, began)
	}
}

// sound asks Redis once whether it could grant permits: it fails on a replica, too.
func (l *Limiter) sound(ctx context.Context) ([]int64, error) {
	return l.client.try(ctx, new(trail), probeScript, l.keys())
}

// found looks for the node of a cluster that serves the limiter, and asks it nothing: it may be another one that is away.
func (l *Limiter) found(ctx context.Context) ([]int64, error) {
	_, err := l.client.serverOf(ctx, l.keyNames[keyConfig])
	return nil, err
}

// reached notes that Redis answered a call. If it was not to be reached before, whoever waits in the process asks again.
func (c *Client) reached(b *breaker, began time.Time) {
	if b.answer(began); b.broken.Load() && b.broken.Swap(false) {
		go c.rouse(func(l *Limiter) bool { return l.settings.fallsBack })
	}
}

// bypass answers a flight in the process, where the way to Redis is broken and the process can. The line may be locked.
func (f *flight) bypass() bool {
	l := f.line.limiter
	if !l.settings.fallsBack {
		return false
	}
	broken, retry, probe := f.breaker.ask()
	if probe {
		go l.probe(f.breaker)
	}
	if !broken {
		return false
	}
	g, known := l.deputize(f.groups, f.strict, f.flags(), retry)
	if !known {
		return false
	}
	go func() {
		f.land(g, nil)
		f.recycle()
	}()
	return true
}

// deputize gives the answer to a flight whose call has ended: that of Redis or, where that was not reached, the process's.
func (f *flight) deputize(g grants, err error) (grants, error) {
	l := f.line.limiter
	if g.local() || err == errUnsent {
		return g, err
	}
	if !unreachable(err) {
		l.client.reached(f.breaker, f.started)
		if err == nil {
			l.learn(g.rate, g.interval)
		}
		return g, err
	}
	if !l.settings.fallsBack {
		return g, err
	}
	attempts := g.attempts
	if g, known := l.deputize(f.groups, f.strict, f.flags(), f.breaker.fail(f.started, err)); known {
		g.attempts = attempts
		return g, nil
	}
	return g, err
}

// reach makes one call to Redis, or lets the process answer where that can't be reached. A cause is why it could not, if it
// was asked now.
func reach[T any](
	ctx context.Context, l *Limiter, call func(context.Context) (T, error), deputize func(retry time.Duration) (T, bool),
) (answer T, cause, err error) {
	c := l.client
	if !l.settings.fallsBack {
		answer, err = within(ctx, c, call)
		return answer, nil, err
	}
	b := c.breakerTo(ctx, l)
	broken, retry, probe := b.ask()
	if probe {
		go l.probe(b)
	}
	if broken {
		if answer, known := deputize(retry); known {
			return answer, nil, nil
		}
	}
	began := time.Now()
	answer, err = within(ctx, c, call)
	if err != nil && ctx.Err() != nil {
		return answer, nil, err
	}
	if !unreachable(err) {
		c.reached(b, began)
		return answer, nil, err
	}
	if local, known := deputize(b.fail(began, err)); known {
		return local, err, nil
	}
	return answer, nil, err
}

// breakerTo gives the breaker of the way to a limiter: each node has one, or each limiter where nodes don't show.
func (c *Client) breakerTo(ctx context.Context, l *Limiter) *breaker {
	if cluster, ok := c.rdb.(*redis.ClusterClient); ok {
		node, err := within(ctx, c, func(ctx context.Context) (*redis.Client, error) {
			return cluster.MasterForKey(ctx, l.keyNames[keyConfig])
		})
		if err != nil {
			return &c.lane.breaker
		}
		return &c.laneTo(node).breaker
	}
	if c.lane.seats > 1 {
		return &c.lane.breaker
	}
	ln := c.enter(l)
	defer ln.exit()
	return ln.way()
}

// way gives the breaker of a line whose flights go by themselves: that of its shard on a Ring, if that counts, else its own.
func (ln *line) way() *breaker {
	if ring, ok := ln.client.rdb.(*redis.Ring); ok && ln.limiter.settings.fallsBack {
		if shard, err := ring.GetShardClientForKey(ln.limiter.keyNames[keyConfig]); err == nil {
			return &ln.client.laneTo(shard).breaker
		}
	}
	return &ln.breaker
}

// mostDeputies is of how many limiters a client knows the rate, where it is not WithRate's, or what it granted by itself.
const mostDeputies = 1 << 16

// deputies are what a client needs to stand in for Redis, by the names of configuration keys. They are forgotten when there
// is nothing to know any more: by whoever has an answer of Redis next, a few at a time.
type deputies struct {
	most int
	size atomic.Int64 // of all

	mu  sync.Mutex
	all map[string]*deputy
}

// A deputy stands in for Redis on one limiter.
type deputy struct {
	rate     int64 // as Redis told last; 0: it did not
	interval time.Duration
	own      bool          // the rate is WithRate's
	window   *local.Window // what the process granted by itself; nil: nothing
}

// spare tells whether nothing would be lost with a deputy but the rate.
func (d *deputy) spare(now time.Time) bool { return d.window == nil || d.window.Empty(now) }

// learn notes the rate that Redis told.
func (l *Limiter) learn(rate int64, interval time.Duration) {
	if !l.settings.fallsBack {
		return
	}
	d, now := &l.client.deputies, l.client.clock()
	own := rate == l.settings.rate.Permits && interval == l.settings.rate.Interval
	if own && d.size.Load() == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	known := d.all[l.keyNames[keyConfig]]
	if known == nil && !own {
		known = d.add(l.keyNames[keyConfig], now)
	}
	if known != nil {
		known.rate, known.interval, known.own = rate, interval, own
	}
	d.forget(2, func(known *deputy) bool { return (known.own || known.rate == 0) && known.spare(now) })
}

// add makes a deputy; nil if there are too many that count.
func (d *deputies) add(name string, now time.Time) *deputy {
	if len(d.all) >= d.most {
		if d.forget(8, func(known *deputy) bool { return known.spare(now) }); len(d.all) >= d.most {
			return nil
		}
	}
	if d.all == nil {
		d.all = map[string]*deputy{}
	}
	known := &deputy{}
	d.all[name] = known
	d.size.Store(int64(len(d.all)))
	return known
}

// forget looks at a few deputies, whichever come, and drops those that are not needed.
func (d *deputies) forget(few int, needless func(*deputy) bool) {
	for name, known := range d.all {
		if needless(known) {
			delete(d.all, name)
		}
		if few--; few == 0 {
			break
		}
	}
	d.size.Store(int64(len(d.all)))
}

// A stake is what a process may grant of a limiter, and what it has granted.
type stake struct {
	*local.Window
	rate     int64 // of the limiter
	limit    int64 // of this process,
	interval time.Duration
	now      time.Time
}

func (s stake) free() int64 { return s.limit - s.Used() }

// wait tells in ms how long it is until permits for a request are free beside what is in use: those of a request beyond the
// limit never are, so it waits for Redis.
func (s stake) wait(n int64, retry time.Duration) int64 {
	wait := retry
	if n <= s.limit {
		wait = s.Until(s.now, n-s.free())
	}
	return s.millis(wait)
}

// millis is a wait in ms from the ms of now on, as in an answer of a script.
func (s stake) millis(wait time.Duration) int64 {
	since := s.now.Sub(time.UnixMilli(s.now.UnixMilli()))
	return int64((wait + since + time.Millisecond - 1) / time.Millisecond)
}

// stake gives what the process may grant of a limiter. It can't where no rate is known, or there are too many limiters.
func (d *deputies) stake(l *Limiter, now time.Time) (s stake, known bool) {
	s = stake{rate: l.settings.rate.Permits, interval: l.settings.rate.Interval, now: now}
	stored := d.all[l.keyNames[keyConfig]]
	if stored != nil && stored.rate > 0 {
		s.rate, s.interval = stored.rate, stored.interval
	}
	if s.rate < 1 || s.interval <= 0 {
		return stake{}, false
	}
	s.limit, s.interval = part(l.settings.fallback, s.rate, s.interval)
	switch {
	case s.limit == 0:
		s.Window = &local.Window{}
	case stored == nil:
		if stored = d.add(l.keyNames[keyConfig], now); stored == nil {
			return stake{}, false
		}
		fallthrough
	default:
		if stored.window == nil {
			stored.window = &local.Window{}
		}
		s.Window = stored.window
	}
	s.Turn(now, s.interval)
	return s, true
}

// part is a fraction of a rate. What would be less than a permit is one permit in a longer time.
func part(fraction float64, permits int64, interval time.Duration) (int64, time.Duration) {
	const rounding = 1e-6 // 0.29 of 100 is 29
	share := fraction * float64(permits)
	if share == 0 || share+rounding >= 1 {
		if fraction == 1 {
			return permits, interval
		}
		return int64(share + rounding), interval
	}
	longer := float64(interval) / share
	return 1, time.Duration(math.Min(longer, math.MaxInt64/2))
}

// deputize answers groups of callers in the process, as acquire.lua would; but who asks for more than the process ever
// grants by itself waits for Redis, and holds nobody up. It can't where no rate is known.
func (l *Limiter) deputize(groups []group, strict int, flags string, retry time.Duration) (grants, bool) {
	d, now := &l.client.deputies, l.client.clock()
	d.mu.Lock()
	defer d.mu.Unlock()
	s, known := d.stake(l, now)
	if !known {
		return grants{}, false
	}
	free := max(s.free(), 0)
	partly, queued := strings.Contains(flags, "u"), strings.Contains(flags, "q")
	g := grants{
		now: now.UnixMilli(), rate: s.limit, interval: s.interval, notes: noteLocal, origin: noOrigin,
		groups: make([]int64, 2*len(groups)), retry: retry,
	}
	blocked := int64(0) // the size that holds others up
	for i, group := range groups {
		var given int64
		taken := group.size
		switch {
		case partly:
			given = min(group.size, free)
			taken = 1
		case group.size > s.rate:
			given, taken = -1, 0
		case group.size <= s.limit && blocked == 0 && (i < strict || !queued):
			given = min(int64(len(group.callers)), free/group.size)
			if i < strict && given < int64(len(group.callers)) {
				blocked = group.size
			}
		}
		s.Take(given * taken)
		free -= given * taken
		g.groups[2*i] = given
	}
	for i, group := range groups {
		wait := max(s.wait(group.size, retry), 1)
		if blocked > 0 && i >= strict {
			wait = max(wait, s.wait(blocked, retry))
		}
		g.groups[2*i+1] = wait
		if given := g.groups[2*i]; i < strict && given >= 0 && given < int64(len(group.callers)) {
			g.retry = min(g.retry, millis(wait))
		}
	}
	g.free, g.lasts = free, millis(s.millis(s.Until(now, s.Used())))
	return g, true
}

// deputizeAll answers a caller who asks several limiters in the process, as allowall.lua would. It can't where one of them
// does not fall back, or has no rate that is known.
func (c *Client) deputizeAll(limiters []*Limiter, counts map[string]int64, retry time.Duration) ([]int64, bool) {
	d, now := &c.deputies, c.clock()
	d.mu.Lock()
	defer d.mu.Unlock()
	stakes := make([]stake, len(limiters))
	all := true
	for i, l := range limiters {
		known := l.settings.fallsBack
		if known {
			stakes[i], known = d.stake(l, now)
		}
		if !known {
			return nil, false
		}
		all = all && counts[l.keyNames[keyConfig]] <= stakes[i].free()
	}
	reply := []int64{0}
	for i, l := range limiters {
		s, n := stakes[i], counts[l.keyNames[keyConfig]]
		granted, wait := int64(1), int64(0)
		switch {
		case all:
			s.Take(n)
		case n > s.rate:
			granted = -1
		case n > s.free():
			granted, wait = 0, max(s.wait(n, retry), 1)
		}
		lasts := s.millis(s.Until(now, s.Used()))
		reply = append(reply, granted, now.UnixMilli(), s.limit, s.interval.Milliseconds(), max(s.free(), 0), noteLocal, wait, lasts)
	}
	return reply, true
}

// untake takes back n permits that the process granted by itself just before.
func (d *deputies) untake(l *Limiter, n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if known := d.all[l.keyNames[keyConfig]]; known != nil && known.window != nil {
		known.window.Untake(n)
	}
}
