package dispatch

import (
	"context"
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

// unchecked reports whether the next call must add up the records: this process has not done so yet, the rate has
// changed, or an interval and checkSlack are over. q.mu is held.
func (q *queue) unchecked() bool {
	since := q.client.clock().Sub(q.checked)
	return since < 0 || since >= q.interval+checkSlack
}

// saw stores the rate in a reply of Redis, and whether that call checked the records. If there are too many records for
// one call, it starts a recount. q.mu is held.
func (q *queue) saw(rate int64, interval time.Duration, notes protocol.Notes, check bool) {
	if check && !notes.Has(protocol.More) {
		q.checked = q.client.clock()
	} else if rate != q.rate {
		q.checked = time.Time{}
	}
	q.rate, q.interval = rate, interval
	if notes.Has(protocol.Many) && !q.recounting {
		q.recounting = true
		go q.recount(q.interval + checkSlack)
	}
}

// recount adds up the records of the queue's limiter, for at most the given time. Errors are dropped, because the next
// check follows.
func (q *queue) recount(within time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	_ = q.limiter.Recount(ctx)
	q.mu.Lock()
	q.recounting = false
	q.exit()
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

// unchecked is queue.unchecked for the limiter's queue.
func (l *Limiter) unchecked() bool {
	q := l.client.enter(l)
	defer q.exit()
	return q.unchecked()
}

// saw is queue.saw for the limiter's queue.
func (l *Limiter) saw(rate int64, interval time.Duration, notes protocol.Notes, check bool) {
	q := l.client.enter(l)
	defer q.exit()
	q.saw(rate, interval, notes, check)
}
