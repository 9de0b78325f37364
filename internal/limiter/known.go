package limiter

import (
	"time"

	"github.com/rratelimiter/rratelimiter/internal/denycache"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
)

// known.go keeps what replies say about a limiter, and answers from it: the refusals of the deny
// cache, and the rate for local decisions.

// Learn keeps the rate in a reply of Redis, for local decisions and for the deny cache.
func (l *Limiter) Learn(rate int64, interval time.Duration) {
	l.SeeRate(rate, interval)
	if l.Settings.FallsBack {
		l.client.Local.Learn(&l.Local, rate, interval, l.Clock())
	}
}

// SeeRate drops a cached refusal under another rate.
func (l *Limiter) SeeRate(rate int64, interval time.Duration) {
	l.client.DenyCache.SeeRate(l.Key(), rate, interval)
}

// Unchecked reports whether the next call must add up the records, and how many permits were free
// by the last reply.
func (l *Limiter) Unchecked() (due bool, free int64) {
	return l.client.Checks.Due(l.Key(), l.Clock())
}

// Saw is Learn for a reply that also tells how many permits are free, and whether that call checked
// the records. If there are too many records for one call, it starts a recount.
func (l *Limiter) Saw(rate int64, interval time.Duration, free int64, notes protocol.Notes, checked bool) {
	l.Learn(rate, interval)
	c := &l.client.Checks
	c.Saw(l.Key(), l.Clock(), rate, interval, free, checked && !notes.Has(protocol.More))
	if notes.Has(protocol.Many) && c.Recount(l.Key()) {
		go l.recountLater(interval)
	}
}

// Remember stores a refusal at a time in the deny cache. denials is DenyCache.Changes before the
// call.
func (l *Limiter) Remember(refusal denycache.Refusal, now time.Time, denials int64) {
	refusal.Enforced = l.enforced
	l.client.DenyCache.Add(l.Settings.DenyCache, l.Key(), refusal, now, denials)
}

// Refusal returns the refusal in the deny cache that holds for a request, and the result that it
// gives; nil if there is none.
func (l *Limiter) Refusal(n int64) (schedule.Result, *denycache.Refusal) {
	now := l.Clock()
	known := l.client.DenyCache.Find(l.Key(), n, now, l.enforced)
	if known == nil {
		return schedule.Result{}, nil
	}
	result := schedule.Result{
		Limit: known.Limit, Remaining: known.Left, RetryAfter: known.Free.Sub(now), NextAfter: known.Next.Sub(now),
		ResetAfter: known.Reset.Sub(now),
	}
	if result.NextAfter <= 0 { // a permit has returned, and it is not known when the one after it does
		result.NextAfter = result.RetryAfter
	}
	return result, known
}
