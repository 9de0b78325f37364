package rratelimiter

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// waiter.go keeps the callers who wait: first in, first out, one timer a limiter, and a share for others. It knows
// nothing of what a call looks like.

// A line is all callers of one limiter in this process, now: those who wait for their turn, those who try once, and the
// call in the air. It is made when somebody comes and forgotten some time after the last one left.
type line struct {
	client  *Client
	limiter *Limiter // one with this name and these settings

	mu          sync.Mutex
	first, last *request // who waits, in order
	waiting     int
	trying      []*request
	flight      *flight
	ask         bool // somebody has a question that the flight in the air doesn't carry
	rebuild     bool // the next flight finishes a rebuild of the free permits
	timer       *time.Timer
	naps        int // sleeps in a row that were cut short
	share       share
	rate        int64     // as of the last answer; 0: none yet
	noticed     time.Time // when Redisson was last looked for on the server
	polite      time.Time // until then this process takes no more than its part, by the client's clock

	users  int       // requests not yet answered; the client's lock
	expiry time.Time // when the line is forgotten; the client's lock
}

// lineKey tells limiters apart.
type lineKey struct {
	name     string // of the configuration key
	settings settings
}

// enter gives the line of a limiter, which stays at least until as many calls of exit.
func (c *Client) enter(l *Limiter) *line {
	key := lineKey{l.keyNames[keyConfig], l.settings}
	c.mu.Lock()
	defer c.mu.Unlock()
	ln := c.lines[key]
	if ln == nil {
		ln = &line{client: c, limiter: l}
		c.lines[key] = ln
	}
	ln.users++
	return ln
}

// exit says that a request left. A line that nobody uses is forgotten: at once if nobody ever waited, else after a time
// in which it may be of use again, since it remembers who shares the limiter.
func (c *Client) exit(ln *line, waited bool) {
	const linger = 30 * time.Second
	c.mu.Lock()
	defer c.mu.Unlock()
	ln.users--
	if waited {
		ln.expiry = time.Now().Add(linger)
	}
	if ln.users > 0 {
		return
	}
	if ln.expiry.IsZero() {
		delete(c.lines, lineKey{ln.limiter.keyNames[keyConfig], ln.limiter.settings})
	} else if c.sweep == nil {
		c.sweep = time.AfterFunc(linger, func() { c.forget(linger) })
	}
}

// forget drops lines that nobody used for a while, and comes again while some are left.
func (c *Client) forget(linger time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for key, ln := range c.lines {
		if ln.users == 0 && now.After(ln.expiry) {
			delete(c.lines, key)
		}
	}
	c.sweep = nil
	if len(c.lines) > 0 {
		c.sweep = time.AfterFunc(linger, func() { c.forget(linger) })
	}
}

// wake lets everybody who waits for a limiter in this process ask again: it has just changed. "" means all limiters.
func (c *Client) wake(name string) {
	c.mu.Lock()
	var woken []*line
	for key, ln := range c.lines {
		if name == "" || key.name == name {
			woken = append(woken, ln)
		}
	}
	c.mu.Unlock()
	for _, ln := range woken {
		ln.mu.Lock()
		if ln.waiting > 0 {
			ln.polite = time.Time{}
			ln.ask = true
			ln.depart()
		}
		ln.mu.Unlock()
	}
}

// answer waits for the answer to a request: until it comes or ctx ends.
func (c *Client) answer(ctx context.Context, l *Limiter, r *request) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ln := c.enter(l)
	defer c.exit(ln, r.waits)
	ln.join(r)
	var over <-chan time.Time
	if !r.until.IsZero() {
		timer := time.NewTimer(r.until.Sub(c.clock()))
		defer timer.Stop()
		over = timer.C
	}
	for {
		select {
		case <-r.done:
			return r.err
		case <-ctx.Done():
			return ln.abandon(r, ctx.Err())
		case <-over:
			if ln.giveUp(r) {
				return nil
			}
		}
	}
}

// join adds a caller. Behind others who wait there is nothing to ask, unless the caller wants to know how long it takes, or
// asks for more than there ever is.
func (ln *line) join(r *request) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if r.waits {
		r.prev, ln.last = ln.last, r
		if r.prev == nil {
			ln.first = r
		} else {
			r.prev.next = r
		}
		ln.waiting++
	} else {
		ln.trying = append(ln.trying, r)
	}
	if !r.waits || r.prev == nil || !r.until.IsZero() || ln.rate > 0 && r.n > ln.rate {
		ln.ask = true
		ln.depart()
	}
}

// leave takes a caller who waits out of the line.
func (ln *line) leave(r *request) {
	if r.prev == nil {
		ln.first = r.next
	} else {
		r.prev.next = r.next
	}
	if r.next == nil {
		ln.last = r.prev
	} else {
		r.next.prev = r.prev
	}
	ln.waiting--
}

// abandon ends a request whose caller's context is over, unless its answer is there already. It makes the caller's error.
func (ln *line) abandon(r *request, cause error) error {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if r.settled {
		return r.err
	}
	ln.drop(r)
	if r.flying {
		return outcome(cause)
	}
	return cause
}

// giveUp ends a request whose time is over, unless a call for it is in the air: its answer comes soon, and is the last.
func (ln *line) giveUp(r *request) bool {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	r.last = true
	if r.settled || r.flying {
		return false
	}
	ln.drop(r)
	return true
}

// drop forgets a request without an answer. Whoever is first in line then may need fewer permits, so it asks.
func (ln *line) drop(r *request) {
	r.gone = true
	if !r.waits {
		return
	}
	wasFirst := ln.first == r
	ln.leave(r)
	if ln.waiting == 0 {
		ln.stop()
	} else if wasFirst {
		ln.ask = true
		ln.depart()
	}
}

// plan decides, after a flight landed, whether the next one goes at once or when the first in line can be served.
func (ln *line) plan(f *flight, g grants) {
	if ln.first == nil {
		ln.stop()
	}
	switch {
	case ln.ask || len(ln.trying) > 0 || ln.first != nil && !ln.first.asked:
		ln.depart()
	case ln.first != nil && ln.first.flown != f:
		ln.rest()
	case ln.first != nil:
		ln.share.saw(ln.client.identity, g)
		ln.sleep(ln.first.result.RetryAfter, g)
		ln.notice()
	}
}

// stop ends the sleep of a line in which nobody waits any more.
func (ln *line) stop() {
	ln.naps = 0
	if ln.timer != nil {
		ln.timer.Stop()
	}
}

// Sleeps are cut short, since what happens elsewhere can't be heard: a rate raised, permits released.
const (
	shortestCut = time.Second
	longestCut  = 15 * time.Second
)

// sleep sets the timer to the moment at which the first in line can be served, so long after an answer, or at which it is
// the turn of this process.
func (ln *line) sleep(wait time.Duration, g grants) {
	now, since := ln.client.clock(), ln.since(g)
	free := since.Add(wait)
	ln.polite = ln.share.divide(g, since, wait, ln.first.n)
	wait = max(free.Sub(now), 0)
	if longest := min(shortestCut<<ln.naps, longestCut); wait > longest {
		wait = longest - rand.N(longest/10)
		ln.naps = min(ln.naps+1, 4)
		ln.polite = time.Time{}
	} else {
		ln.naps = 0
		if free.Before(ln.polite) {
			wait = max(ln.share.ready(free, ln.polite, ln.first.n).Sub(now), 0)
		}
	}
	ln.set(wait)
	ln.client.watch()
}

// room tells how many permits callers in line may ask for now; below 0 for none.
func (ln *line) room() int64 {
	if now := ln.client.clock(); ln.first != nil && now.Before(ln.polite) {
		return ln.share.room(now, ln.first.n)
	}
	return math.MaxInt64
}

// rest sets the timer to the moment at which a line that has its part may ask again.
func (ln *line) rest() {
	now := ln.client.clock()
	ln.set(max(ln.share.ready(now, ln.polite, ln.first.n).Sub(now), 0))
}

func (ln *line) set(wait time.Duration) {
	if ln.timer == nil {
		ln.timer = time.AfterFunc(wait, ln.rise)
	} else {
		ln.timer.Reset(wait)
	}
}

// A pool of connections is what a redis client shows of itself: none are left once it is closed.
type pool interface{ PoolStats() *redis.PoolStats }

// watch looks, while callers wait, whether the redis client was closed: nothing else would tell them before they wake. A
// client without connections may also be one that lost them all, so it is asked.
func (c *Client) watch() {
	const often = 100 * time.Millisecond
	connections, known := c.rdb.(pool)
	if !known || !c.watching.CompareAndSwap(false, true) {
		return
	}
	time.AfterFunc(often, func() {
		c.watching.Store(false)
		if !c.waited() {
			return
		}
		if connections.PoolStats().TotalConns == 0 {
			ctx, cancel := context.WithTimeout(context.Background(), c.callTimeout)
			defer cancel()
			if errors.Is(c.rdb.Process(ctx, redis.NewStatusCmd(ctx, "ping")), redis.ErrClosed) {
				c.wake("")
			}
		}
		c.watch()
	})
}

// waited tells whether anybody is waiting for an answer.
func (c *Client) waited() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ln := range c.lines {
		if ln.users > 0 {
			return true
		}
	}
	return false
}

// rise asks for those who waited.
func (ln *line) rise() {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if ln.waiting > 0 {
		ln.ask = true
		ln.depart()
	}
}
