package schedule

import (
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// linger.go says how long requests wait for others that share their call, although none is in
// flight.

// LingerThreshold is how long a batch takes before the queue lingers after it, for up to a tenth of
// its time. Callers that have just been answered mostly ask again at once; without the linger they
// would miss the next batch and wait for two.
const LingerThreshold = 2 * time.Millisecond

// A linger is a wait before the next batch.
type linger struct {
	requests int       // it is over once so many requests are queued; 0: the queue does not linger
	until    time.Time // it is over then at the latest, by the monotonic clock
}

// lingers starts a linger after a batch that is complete, and reports whether it does: Redis has
// answered, it took long enough, and callers that were answered may ask again and share the next
// batch with others. If no call is needed now, there are others only if at least two callers were
// answered; and if requests sleep, the next batch is sent when they wake. g is the zero reply after
// an error.
func (q *Queue) lingers(m Moment, b *Batch, g *protocol.Reply) bool {
	took, answered := m.Mono.Sub(b.started), len(b.Settled)
	if g.First.Rate == 0 || g.Local() || took < q.settings.Linger || answered == 0 ||
		!q.urgent() && (q.line.ready != nil || answered == 1) {
		return false
	}
	q.pacer.unset()
	q.pacer.linger = linger{answered + len(q.trying) + q.line.length, m.Mono.Add(took / 10)}
	return true
}

// lingering reports whether the queue still lingers.
func (q *Queue) lingering(m Moment) bool {
	l := &q.pacer.linger
	return l.requests > 0 && len(q.trying)+q.line.length < l.requests && !over(l.until, m)
}
