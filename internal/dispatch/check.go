package dispatch

import (
	"context"
	"hash/maphash"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// Checks: which call adds up the records of a limiter, so that a surplus or a lack of free permits does not last. The
// scripts repair what a check finds.

// checkSlack is added to an interval to get the time between two checks.
const checkSlack = 500 * time.Millisecond

// recountTime is for how long one recount of a limiter goes on at most.
const recountTime = 10 * time.Second

// mostChecks is for how many limiters a client knows when their records were added up last. Of more limiters, it forgets
// some, and adds their records up sooner.
const mostChecks = 1 << 15

// A checks knows which limiters need a check. The zero value is ready for use.
type checks struct {
	mu         sync.Mutex       // guards the fields below
	last       map[uint64]check // by a hash of the configuration key
	recounting map[string]bool  // limiters whose records a goroutine adds up page by page, by their configuration keys
}

// A check tells when the records of a limiter were added up, at the rate that it still has.
type check struct {
	at       int64 // µs since 1970, by the client's clock
	rate     int64 // in the last reply
	interval time.Duration
}

var checkSeed = maphash.MakeSeed()

// due reports whether the next call of a limiter must add up the records: this process has not done so yet, the rate has
// changed, or an interval and checkSlack are over.
func (c *checks) due(key string, now time.Time) bool {
	hash := maphash.String(checkSeed, key)
	c.mu.Lock()
	defer c.mu.Unlock()
	last, known := c.last[hash]
	since := now.Sub(time.UnixMicro(last.at))
	return !known || since < 0 || since >= last.interval+checkSlack
}

// saw stores the rate in a reply of Redis, and whether that call checked the records.
func (c *checks) saw(key string, now time.Time, rate int64, interval time.Duration, checked bool) {
	hash := maphash.String(checkSeed, key)
	c.mu.Lock()
	defer c.mu.Unlock()
	last, known := c.last[hash]
	switch {
	case checked:
		if !known && len(c.last) >= mostChecks {
			c.forget(8)
		}
		if c.last == nil {
			c.last = map[uint64]check{}
		}
		c.last[hash] = check{now.UnixMicro(), rate, interval}
	case known && rate != last.rate:
		delete(c.last, hash)
	case known && interval != last.interval:
		c.last[hash] = check{last.at, rate, interval}
	}
}

// forget forgets a few arbitrary checks. c.mu is held.
func (c *checks) forget(few int) {
	for hash := range c.last {
		if delete(c.last, hash); few == 1 {
			return
		}
		few--
	}
}

// recount notes that a recount of a limiter begins, unless one is under way, and reports whether it does.
func (c *checks) recount(key string) (begins bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.recounting == nil {
		c.recounting = map[string]bool{}
	}
	begins = !c.recounting[key]
	c.recounting[key] = true
	return begins
}

// recounted notes that a recount has ended.
func (c *checks) recounted(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.recounting, key)
}

// recounts returns how many recounts are under way.
func (c *checks) recounts() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.recounting)
}

// unchecked reports whether the next call must add up the records.
func (l *Limiter) unchecked() bool { return l.client.checks.due(l.Key(), l.client.clock()) }

// saw stores the rate in a reply of Redis, and whether that call checked the records. If there are too many records for
// one call, it starts a recount.
func (l *Limiter) saw(rate int64, interval time.Duration, notes protocol.Notes, checked bool) {
	c := &l.client.checks
	c.saw(l.Key(), l.client.clock(), rate, interval, checked && !notes.Has(protocol.More))
	if notes.Has(protocol.Many) && c.recount(l.Key()) {
		go l.recountWithin(interval + checkSlack)
	}
}

// recountWithin adds up the records of l, for at most the given time. Errors are dropped, because the next check follows.
func (l *Limiter) recountWithin(limit time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	_ = l.Recount(ctx)
	l.client.checks.recounted(l.Key())
}

// Recount adds up the records of a limiter that has too many for one call, page by page, and repairs what is stored.
func (l *Limiter) Recount(ctx context.Context) error {
	started, sent := time.Now(), new(script.Attempts)
	var progress protocol.Progress
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		request := protocol.Recount{Now: l.encoder.Now(), Progress: progress}
		reply, err := within(ctx, l, func(ctx context.Context) ([]any, error) {
			return l.client.topology.RunMixed(ctx, sent, protocol.RecountScript, true, l.Keys(), request.Args()...)
		})
		if err != nil {
			return err
		}
		notes, next, err := request.Reply(reply)
		if err != nil {
			return err
		}
		if text := notes.Repaired(); text != "" {
			l.client.wake(l.Key())
			if o := l.client.observe; o != nil {
				o(Call{Limiter: l.name, Latency: time.Since(started), Attempts: sent.Count(), Repaired: text})
			}
		}
		if !notes.Has(protocol.More|protocol.Many) || time.Since(started) > recountTime {
			return nil // the next check does the rest
		}
		progress = next
	}
}
