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
// calls in the air.
type line struct {
	client  *Client
	limiter *Limiter // one with this name and these settings
	keys    []any    // its keys, as arguments

	mu          sync.Mutex
	first, last *request // who waits, in order
	waiting     int
	trying      []*request
	flight      *flight // the call in the air, which the next one waits for
	flights     int64   // calls so far
	astray      int     // calls in the air that stalled, so that none waits for them
	ask         bool    // somebody has a question that the flight in the air doesn't carry
	gathers     int     // how many callers the next flight waits for, those included who were just answered; 0: it doesn't
	rebuild     bool    // the next flight finishes a rebuild of the free permits
	grants      past    // the latest ones, with a granularity
	timer       *time.Timer
	naps        int  // sleeps in a row that were cut short, and slept to their end
	napping     bool // the timer ends one more
	share       share
	rate        int64     // as of the last answer; 0: none yet
	passes      int64     // who wants no more may be served by the process though the first one can't; 0: nobody
	noticed     time.Time // when Redisson was last looked for on the server
	polite      time.Time // until then this process takes no more than its part, by the client's clock
	breaker     breaker   // where the way to the node has none
	parked      bool      // among the spare lines
	dropped     bool      // no longer among the lines of the client
}

func newLine(l *Limiter) *line {
	ln := &line{client: l.client, limiter: l, keys: make([]any, keyCount)}
	for i, key := range l.keyNames {
		ln.keys[i] = key
	}
	return ln
}

// idle tells whether nobody uses the line.
func (ln *line) idle() bool {
	return ln.first == nil && len(ln.trying) == 0 && ln.flight == nil && ln.astray == 0 && ln.gathers == 0
}

// wake lets everybody who waits for a limiter in this process ask again, and forgets what was refused: it has just changed.
// "" means all limiters.
func (c *Client) wake(name string) {
	c.denials.forget(name)
	c.rouse(func(l *Limiter) bool { return name == "" || l.keyNames[keyConfig] == name })
}

// rouse lets everybody who waits for chosen limiters in this process ask again.
func (c *Client) rouse(chosen func(*Limiter) bool) {
	for _, ln := range c.lines.list(chosen) {
		ln.mu.Lock()
		if ln.waiting > 0 {
			ln.polite = time.Time{}
			ln.ask = true
			ln.depart()
		}
		ln.exit()
	}
}

// answer waits for the answer to what somebody asks of a limiter: until it comes or ctx ends.
func (c *Client) answer(ctx context.Context, l *Limiter, a ask) (Result, error) {
	if err := ctx.Err(); err != nil {
		return Result{}, err
	}
	r := c.newRequest(a)
	ln := c.enter(l)
	ln.join(r)
	ln.exit()
	var over <-chan time.Time
	if !a.until.IsZero() {
		timer := time.NewTimer(a.until.Sub(c.clock()))
		defer timer.Stop()
		over = timer.C
	}
	for {
		select {
		case <-r.done:
			result, err := r.result, r.err
			c.recycle(r)
			return result, err
		case <-ctx.Done():
			return ln.abandon(r, ctx.Err())
		case <-over:
			if ln.giveUp(r) {
				return Result{}, nil
			}
		}
	}
}

// join adds a caller. Behind others who wait there is nothing to ask, unless these are in calls that stalled, or the caller
// wants to know how long it takes, or asks for more than there ever is. The line is locked.
func (ln *line) join(r *request) {
	if r.waits {
		ln.client.waiting.Add(1)
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
	gathered := ln.gathers > 0 && len(ln.trying)+ln.waiting >= ln.gathers
	if gathered {
		ln.gathers = 0
		ln.timer.Stop()
	}
	if gathered || !r.waits || ln.flight == nil && ln.waiter() == r || !r.until.IsZero() || ln.rate > 0 && r.n > ln.rate ||
		r.n <= ln.passes {
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
	ln.client.waiting.Add(-1)
}

// abandon ends a request whose caller's context is over, unless its answer is there already.
func (ln *line) abandon(r *request, cause error) (Result, error) {
	ln.mu.Lock()
	defer ln.exit()
	if r.settled {
		return r.result, r.err
	}
	ln.drop(r)
	if r.flying {
		cause = unknown(cause)
	}
	return Result{}, cause
}

// giveUp ends a request whose time is over, unless a call for it is in the air: its answer comes soon, and is the last.
func (ln *line) giveUp(r *request) bool {
	ln.mu.Lock()
	defer ln.exit()
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
	if r.flying {
		r.on.present.Add(-1)
	}
	if !r.waits {
		return
	}
	ahead := r.prev == nil || !r.flying && r.prev.flying && ln.waiter() == r
	ln.leave(r)
	if ln.waiting == 0 {
		ln.stop()
	} else if ahead {
		ln.ask = true
		ln.depart()
	}
}

// waiter is the first one in line who is not under way already; nil if there is none.
func (ln *line) waiter() *request {
	r := ln.first
	for r != nil && r.flying {
		r = r.next
	}
	return r
}

// plan decides, after a flight landed, whether the next one goes at once or when the first in line can be served.
func (ln *line) plan(f *flight, g grants) {
	if ln.first == nil {
		ln.stop()
	}
	next, took := ln.waiter(), time.Since(f.started)
	urgent := ln.urgent(next)
	switch {
	case ln.flight != nil || ln.gathers > 0:
	case g.rate > 0 && !g.local() && took >= ln.client.faraway && len(f.answered) > 0 && (urgent || next == nil && len(f.answered) > 1):
		ln.gathers = len(f.answered) + len(ln.trying) + ln.waiting
		ln.set(took / 10)
	case urgent:
		ln.depart()
	case next != nil && next.flown != f.number:
		ln.rest()
	case next != nil && g.local():
		ln.set(min(max(next.free.Sub(ln.client.clock()), 0), g.retry))
	case next != nil:
		ln.share.saw(ln.client.identity, g)
		ln.sleep(next, g)
		ln.notice()
	}
}

// urgent tells whether there is something to ask at once, given who is next in line.
func (ln *line) urgent(next *request) bool {
	return ln.ask || len(ln.trying) > 0 || next != nil && !next.asked
}

// faraway is how long a flight takes to a server for which the next one waits for a tenth of that. Callers who have just
// had their answers mostly ask again at once: they would miss it by a hair, and wait for two.
const faraway = 2 * time.Millisecond

// stop ends the sleep of a line in which nobody waits any more.
func (ln *line) stop() {
	ln.naps = 0
	if ln.timer != nil && ln.gathers == 0 {
		ln.timer.Stop()
	}
}

// Sleeps are cut short, since what happens elsewhere can't be heard: a rate raised, permits released. They grow by those that
// were slept to their end: who tries meanwhile asks for those who wait, too, and says nothing about how long they have.
const (
	shortestCut = time.Second
	longestCut  = 15 * time.Second
)

// sleep sets the timer to the moment at which the first in line can be served, as an answer told, or at which it is the turn
// of this process.
func (ln *line) sleep(next *request, g grants) {
	now, since := ln.client.clock(), ln.since(g)
	ln.polite = ln.share.divide(g, since, next.free.Sub(since), next.n)
	wait, longest := max(next.free.Sub(now), 0), ln.longest()
	if wait > longest {
		ln.polite = time.Time{}
		ln.nap(longest)
	} else {
		ln.naps = 0
		if next.free.Before(ln.polite) {
			wait = max(ln.share.ready(next.free, ln.polite, next.n).Sub(now), 0)
		}
		ln.set(wait)
	}
	ln.client.watch()
}

// longest is how long the line may sleep.
func (ln *line) longest() time.Duration { return min(shortestCut<<ln.naps, longestCut) }

// nap sets the timer to about so long, in the place of a sleep that is to be cut short.
func (ln *line) nap(longest time.Duration) {
	ln.set(longest - rand.N(longest/10))
	ln.napping = true
}

// room tells how many permits callers in line may ask for now, beside those of the first; below 0 for none.
func (ln *line) room() int64 {
	if next, now := ln.waiter(), ln.client.clock(); next != nil && now.Before(ln.polite) {
		return ln.share.room(now, next.n)
	}
	return math.MaxInt64
}

// rest sets the timer to the moment at which a line that did not ask for its first caller may do so: when that can be
// served, or when it is the turn of this process.
func (ln *line) rest() {
	now, next := ln.client.clock(), ln.waiter()
	at := next.free
	if now.Before(ln.polite) {
		at = ln.share.ready(now, ln.polite, next.n)
	}
	if wait, longest := max(at.Sub(now), 0), ln.longest(); wait > longest {
		ln.nap(longest)
	} else {
		ln.set(wait)
	}
}

func (ln *line) set(wait time.Duration) {
	ln.napping = false
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
		if c.waiting.Load() == 0 {
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

// rise asks for those who waited: where they are many, once for all that returns about now.
func (ln *line) rise() {
	ln.mu.Lock()
	defer ln.exit()
	if ln.gathers > 0 {
		ln.gathers = 0
		ln.depart()
		return
	}
	if ln.waiting == 0 {
		return
	}
	if ln.napping {
		ln.naps = min(ln.naps+1, 4)
	}
	if next, now := ln.waiter(), ln.client.clock(); next != nil && ln.waiting > 1 && !now.Before(next.free) {
		if at := ln.share.together(next.free); now.Before(at) {
			ln.set(at.Sub(now))
			return
		}
	}
	ln.ask = true
	ln.depart()
}
