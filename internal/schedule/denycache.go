package schedule

import (
	"github.com/rratelimiter/rratelimiter/internal/denycache"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// denycache.go says what the deny cache keeps of refusals.

// remember keeps the refusals of a batch for the deny cache.
func (q *Queue) remember(m Moment, b *Batch, g *protocol.Reply) {
	for _, r := range b.Settled {
		if o := &r.Outcome; r.Kind == Try && !o.First.Allowed && o.Err == nil {
			if refusal, holds := q.Refusal(m, r.Permits.First, o.First.Result, g); holds {
				b.Refusals = append(b.Refusals, refusal)
			}
		}
	}
}

// Refusal returns what the deny cache keeps of a refusal of n permits. It keeps nothing if the
// permits are free but reserved for waiting callers, which may leave, if the process decided
// locally, or if another rate than the enforced one is in force.
func (q *Queue) Refusal(m Moment, n int64, r Result, g *protocol.Reply) (refusal denycache.Refusal, holds bool) {
	if !q.settings.DenyCache || n <= g.First.Free || g.Local() ||
		q.settings.Enforced && g.First.Notes.Has(protocol.RateMismatch) {
		return refusal, false
	}
	since := q.Since(m, g)
	return denycache.Refusal{
		N: n, Limit: g.First.Rate, Left: g.First.Free, Interval: g.First.Interval,
		Free: since.Add(r.RetryAfter), Next: since.Add(r.NextAfter), Reset: since.Add(r.ResetAfter),
	}, true
}
