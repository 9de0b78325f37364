package dispatch

import (
	"context"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// check.go decides which call adds up the records of a limiter, so that a surplus or a lack of free
// permits does not last. The scripts repair what a check finds.

// recountTime is for how long one recount of a limiter goes on at most.
const recountTime = 10 * time.Second

// A checks knows when the records of each limiter were last added up.
type checks struct {
	mu    sync.Mutex // guards the fields below
	table checkTable
	// limiters whose records a goroutine adds up page by page, by their configuration keys
	recounting map[string]bool
}

// due reports whether the next call of a limiter must add up the records, and how many permits were
// free by the last reply: see checkTable.
func (c *checks) due(key string, now time.Time) (due bool, free int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.table.due(key, now)
}

// notPlain notes that a request of a limiter was no plain grant.
func (c *checks) notPlain(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.table.notPlain(key)
}

// saw stores the rate and the free permits in a reply of Redis, and whether that call checked the
// records.
func (c *checks) saw(key string, now time.Time, rate int64, interval time.Duration, free int64, checked bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.table.saw(key, now, rate, interval, free, checked)
}

// recount notes that a recount of a limiter begins, unless one is under way, and reports whether it
// does.
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

// unchecked reports whether the next call must add up the records, and how many permits were free
// by the last reply.
func (l *Limiter) unchecked() (due bool, free int64) {
	return l.client.checks.due(l.Key(), l.client.Clock())
}

// saw stores the rate and the free permits in a reply of Redis, and whether that call checked the
// records. If there are too many records for one call, it starts a recount.
func (l *Limiter) saw(rate int64, interval time.Duration, free int64, notes protocol.Notes, checked bool) {
	c := &l.client.checks
	c.saw(l.Key(), l.client.Clock(), rate, interval, free, checked && !notes.Has(protocol.More))
	if notes.Has(protocol.Many) && c.recount(l.Key()) {
		go l.recountWithin(sum(interval, checkSlack))
	}
}

// recountWithin adds up the records of l, for at most the given time. Errors are dropped, because
// the next check follows.
func (l *Limiter) recountWithin(limit time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	_ = l.Recount(ctx)
	l.client.checks.recounted(l.Key())
}

// Recount adds up the records of a limiter that has too many for one call, page by page, and
// repairs what is stored.
func (l *Limiter) Recount(ctx context.Context) error {
	started, sent := time.Now(), new(script.Attempts)
	var progress protocol.Progress
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		request := protocol.Recount{Now: l.encoder.Now(), Progress: progress}
		reply, err := within(ctx, l, func(ctx context.Context) ([]any, error) {
			return l.client.Topology().RunMixed(ctx, sent, protocol.RecountScript, true, l.Keys(), request.Args()...)
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
			if o := l.client.config.Observe; o != nil {
				o(Call{Limiter: l.name, Latency: time.Since(started), Attempts: sent.Count(), Repaired: text})
			}
		}
		if !notes.Has(protocol.More|protocol.Many) || time.Since(started) > recountTime {
			return nil // the next check does the rest
		}
		progress = next
	}
}
