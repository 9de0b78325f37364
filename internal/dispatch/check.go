package dispatch

import (
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/checks"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/span"
)

// check.go tells package checks what replies say, and adds up the records of a limiter that has too
// many for one call. The scripts repair what a check finds.

// recountTime is for how long one recount of a limiter goes on at most.
const recountTime = 10 * time.Second

// unchecked reports whether the next call must add up the records, and how many permits were free
// by the last reply.
func (l *Limiter) unchecked() (due bool, free int64) {
	return l.client.checks.Due(l.Key(), l.client.Clock())
}

// saw stores the rate and the free permits in a reply of Redis, and whether that call checked the
// records. If there are too many records for one call, it starts a recount.
func (l *Limiter) saw(rate int64, interval time.Duration, free int64, notes protocol.Notes, checked bool) {
	c := &l.client.checks
	c.Saw(l.Key(), l.client.Clock(), rate, interval, free, checked && !notes.Has(protocol.More))
	if notes.Has(protocol.Many) && c.Recount(l.Key()) {
		go l.recountWithin(span.Sum(interval, checks.Slack))
	}
}

// recountWithin adds up the records of l, for at most the given time. Errors are dropped, because
// the next check follows.
func (l *Limiter) recountWithin(limit time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	_ = l.Recount(ctx)
	l.client.checks.Recounted(l.Key())
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
