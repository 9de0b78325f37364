package dispatch

import (
	"context"

	"github.com/rratelimiter/rratelimiter/internal/lease"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
)

// giveback.go gives back what is unused of leases that have ended, and ends them before this client
// changes their limiter.

// A giveBack is permits of a lease that are to be given back.
type giveBack struct {
	queue *queue
	lease.Leftover
}

// mostGivingBack is how many goroutines give back permits at once: many leases end at the same
// time, and their calls must not take all connections.
const mostGivingBack = 8

// giveBackLater gives back, in the background, what is unused of leases of the queue.
func (q *queue) giveBackLater(all []lease.Leftover) {
	for _, leftover := range all {
		q.client.givingBack.Add(giveBack{q, leftover})
	}
}

// work gives permits back. If very many leases wait behind them, they are not given back.
func (b giveBack) work(behind int) {
	starts := false
	b.queue.event(func(s *schedule.Queue) { starts = s.Ledger().Start(b.Leftover, behind >= lease.MaxLeases) })
	if starts {
		b.queue.giveBack(b.Leftover)
	}
}

// giveBack gives back permits of a lease, after Ledger.Start or Ledger.Change.
func (q *queue) giveBack(leftover lease.Leftover) {
	returned, _ := q.limiters[0].Limiter.Release(context.Background(), leftover.Permits, leftover.At)
	q.event(func(s *schedule.Queue) {
		if s.Ledger().Done(leftover, returned); q.returned != nil && !s.Ledger().Returning() {
			close(q.returned)
			q.returned = nil
		}
	})
}

// EndLeases ends the leases of l before this client changes it. A change may remove records, and
// afterwards one with the score of an earlier lease may hold permits granted to callers. So what is
// unused of the leases is given back before the change, and none is taken until it has ended. A
// batch that was sent before the change may bring a lease after it. That lease is not used: its
// record is gone, or counts until it expires.
func (l *Limiter) EndLeases(ctx context.Context) {
	var givenBack []<-chan struct{}
	for _, q := range l.leasing() {
		q.event(func(s *schedule.Queue) {
			for _, leftover := range s.Ledger().Change() {
				go q.giveBack(leftover)
			}
			if s.Ledger().Returning() {
				if q.returned == nil {
					q.returned = make(chan struct{})
				}
				givenBack = append(givenBack, q.returned)
			}
		})
	}
	for _, done := range givenBack {
		select {
		case <-done:
		case <-ctx.Done(): // so the change is not sent
		}
	}
}
