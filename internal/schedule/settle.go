package schedule

import (
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// settle.go applies a reply, or an error, to the requests of a batch.

// Facts are what the owner of a queue has to know of a batch that is complete.
type Facts struct {
	Own       int64 // permits that the reply granted
	Unclaimed int64 // of these, those that no request got: their callers have left
	Granted   int   // requests
	Denied    int   // requests that were refused or failed
	Behind    int   // requests that failed with the batch though it did not carry them
	Refused   bool  // a request was refused
	Sleeps    bool  // waiting requests sleep
}

// Settle applies a reply of Redis or of the process to the requests of a batch in flight. b.Settled then has those that are
// settled.
func (q *Queue) Settle(m Moment, b *Batch, g *protocol.AcquireReply) (f Facts) {
	q.complete(b)
	if !g.Local() {
		q.rate = g.Rate
		q.pacer.measured(m.Mono.Sub(b.started))
	}
	beaten := false
	if b.Ask.UpTo {
		q.settleUpTo(b, g, &f)
	} else {
		beaten = q.apply(m, b, g, &f)
	}
	q.mayPass = 0
	if first := q.line.first; g.Local() && first != nil && first.N > g.Rate {
		q.mayPass = g.Rate
	}
	f.Sleeps = q.plan(m, b, g, beaten)
	return f
}

// Fail ends the requests of a batch in flight with an error. If behind is not nil, the requests that had to wait for the batch fail with
// that, without a call: otherwise they could wait for a server that hangs for twice the call timeout. Waiting requests whose
// permits are not free yet stay.
func (q *Queue) Fail(m Moment, b *Batch, err, behind error) (f Facts) {
	late := q.complete(b)
	for _, members := range b.members {
		for _, r := range members {
			if q.settle(b, r, Outcome{Err: err}) {
				f.Denied++
			}
		}
	}
	if behind != nil && !late && !b.Ask.UpTo {
		q.failQueued(m, b, behind)
		f.Behind = len(b.Settled) - f.Denied
		f.Denied += f.Behind
	}
	f.Sleeps = q.plan(m, b, &protocol.AcquireReply{}, false)
	return f
}

// complete notes that a batch is complete, and reports whether its queue did not wait for it any longer.
func (q *Queue) complete(b *Batch) (late bool) {
	late = b.state == BatchDetached
	b.state.To(BatchComplete)
	switch {
	case b.Ask.UpTo:
		q.beside--
	case late:
		q.detached--
	default:
		q.inFlight = nil
	}
	return late
}

// Since returns the time, by the client's clock, from which the waits in a reply count: the time of the request, to the µs. If
// the server's clock dates grants, that moment is not known exactly by this clock; the current time is never too early.
func (q *Queue) Since(m Moment, g *protocol.AcquireReply) time.Time {
	if q.settings.ServerTime {
		return m.Clock
	}
	return time.UnixMicro(g.Now)
}

// mostKept is for how many verdicts memory is kept.
const mostKept = 1024

// apply applies the verdicts on the requests of a batch. It reports whether another client took permits that were free for one of
// them.
func (q *Queue) apply(m Moment, b *Batch, g *protocol.AcquireReply, f *Facts) (beaten bool) {
	since := q.Since(m, g)
	for i, group := range b.Ask.Groups {
		f.Own += max(g.Granted(i, group), 0) * group.Size
	}
	if f.Own > 0 && !g.Local() { // local grants have no record
		q.pacer.share.Granted(g.At, g.Interval, f.Own)
	}
	q.verdicts, f.Unclaimed = allot(q.verdicts[:0], b, g, m.Clock, since, q.turns(g, since))
	for _, v := range q.verdicts {
		r := v.request
		switch v.verdict {
		case left:
			r.state.To(Gone)
		case granted:
			q.settle(b, r, grant(g, v.free))
			f.Granted++
		case exceeded:
			q.settle(b, r, Outcome{Err: ErrExceedsRate})
			f.Denied++
		case again:
			q.again(r)
		case waits:
			beaten = beaten || f.Own == 0 && !r.free.IsZero() && !since.Before(r.free)
			r.Outcome, r.free = refusal(g, v.wait), since.Add(v.wait)
			if r.N <= g.Free {
				r.free = time.Time{} // it waits only for the requests in front, whose callers may leave
			}
			q.land(r, Refused)
		case refused:
			o := refusal(g, v.wait)
			if r.Kind == Wait && r.Until.IsZero() { // only a request that would wait in vain is refused then
				o.Err = NotInTimeError{since.Add(v.wait)}
			}
			q.settle(b, r, o)
			f.Denied++
			f.Refused = true
		}
	}
	clear(q.verdicts) // they would keep requests of which nothing else is left
	if cap(q.verdicts) > mostKept {
		q.verdicts = nil
	}
	return beaten
}

// turns returns the turns of waiting requests after a reply. While the process decides, they are not known: Redis may come back.
func (q *Queue) turns(g *protocol.AcquireReply, since time.Time) *turns {
	if !q.settings.FailFast || g.Local() {
		return nil
	}
	q.pacer.share.Dated(g.Interval, since.Sub(time.UnixMicro(g.Now)))
	return &turns{rate: g.Rate, interval: g.Interval, returned: q.pacer.share.Returned}
}

// settleUpTo applies a reply to the only request of a batch, which takes what it is granted.
func (q *Queue) settleUpTo(b *Batch, g *protocol.AcquireReply, f *Facts) {
	r, taken := b.members[0][0], g.Granted(0, b.Ask.Groups[0])
	f.Own = taken
	switch {
	case r.state == Abandoned:
		r.state.To(Gone)
		f.Unclaimed = taken
		return
	case taken == 0 && g.Notes.Has(protocol.More): // expired records remain
		q.land(r, Queued)
		q.upTo = append(q.upTo, r)
		return
	case taken == 0:
		f.Denied++
	default:
		f.Granted++
	}
	outcome := grant(g, g.Free)
	outcome.Allowed, outcome.Taken = taken > 0, taken
	q.settle(b, r, outcome)
}

// grant returns the outcome of a grant, after which so many permits are free.
func grant(g *protocol.AcquireReply, free int64) Outcome {
	return Outcome{Result: Result{true, g.Rate, free, 0, g.NextAfter, g.ResetAfter}, At: g.At, Local: g.Local()}
}

// refusal returns the outcome of a refusal with a wait.
func refusal(g *protocol.AcquireReply, wait time.Duration) Outcome {
	return Outcome{Result: Result{false, g.Rate, g.Free, wait, g.NextAfter, g.ResetAfter}}
}

// land notes that a request is no longer in flight, and not settled.
func (q *Queue) land(r *Request, s State) {
	r.state.To(s)
	r.batch = nil
	if r.Kind == Wait {
		q.line.returned(r)
	}
}

// again lets the next batch ask for a request at once.
func (q *Queue) again(r *Request) {
	q.land(r, Queued)
	q.recheck = true
	if r.Kind == Try {
		q.trying = append(q.trying, r)
	}
}

// settle ends a request, as b is complete, unless its caller has left. It reports whether it did.
func (q *Queue) settle(b *Batch, r *Request, o Outcome) bool {
	if r.state == Abandoned {
		r.state.To(Gone)
		return false
	}
	r.state.To(Settled)
	r.batch, r.Outcome = nil, o
	if r.Kind == Wait {
		q.line.remove(r)
	}
	b.Settled = append(b.Settled, r)
	return true
}

// failQueued fails the requests that had to wait for a batch.
func (q *Queue) failQueued(m Moment, b *Batch, err error) {
	for _, r := range q.trying {
		if r.state == Queued {
			q.settle(b, r, Outcome{Err: err})
		}
	}
	clear(q.trying)
	q.trying = q.trying[:0]
	free := time.Time{}
	for r := q.line.first; r != nil; {
		next := r.next
		if r.free.After(free) {
			free = r.free
		}
		if r.state == Queued || r.state == Refused && !m.Clock.Before(free) {
			q.settle(b, r, Outcome{Err: err})
		}
		r = next
	}
}

// Reserve corrects the outcomes of the refused requests of a complete batch that do not wait (Reserved).
func (q *Queue) Reserve(m Moment, b *Batch, local bool) {
	for _, r := range b.Settled {
		if r.Kind != Wait && r.Outcome.Err == nil {
			r.Outcome.Result = q.Reserved(m, r.N, r.Outcome.Result, local)
		}
	}
}

// Reserved corrects the result of a request for n permits that does not wait. If it was refused, free permits are reserved for the
// waiting requests, so Remaining is 0, and RetryAfter is at least the time until the first of them can be served. local: the
// process made the reply, which contains that wait already.
func (q *Queue) Reserved(m Moment, n int64, o Result, local bool) Result {
	first := q.line.first
	free := n <= o.Remaining // but reserved
	if o.Allowed || first == nil && !free {
		return o
	}
	o.Remaining = 0
	if !local {
		if free {
			o.RetryAfter = time.Millisecond
		}
		if first != nil {
			o.RetryAfter = max(o.RetryAfter, q.turn(m, first).Sub(m.Clock))
		}
	}
	o.NextAfter = o.RetryAfter
	o.ResetAfter = max(o.ResetAfter, o.RetryAfter)
	return o
}
