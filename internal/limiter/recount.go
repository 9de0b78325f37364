package limiter

import (
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/checks"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/span"
)

// recount.go adds up the records of a limiter that has too many for one call. The scripts repair
// what that finds. Package checks tells when it is due.

// recountTime is for how long one recount of a limiter goes on at most.
const recountTime = 10 * time.Second

// recountLater adds up the records of l in the background, for at most the time until the next
// check. Errors are dropped, because that follows.
func (l *Limiter) recountLater(interval time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), span.Sum(interval, checks.Slack))
	defer cancel()
	_ = l.Recount(ctx)
	l.client.Checks.Recounted(l.Key())
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
		request := protocol.Recount{Now: l.Now(), Progress: progress}
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
			l.changed(nil)
			l.client.Observe(CallInfo{
				Limiter: l.Name, Latency: time.Since(started), Attempts: sent.Count(), Repaired: text,
			})
		}
		if !notes.Has(protocol.More|protocol.Many) || time.Since(started) > recountTime {
			return nil // the next check does the rest
		}
		progress = next
	}
}
