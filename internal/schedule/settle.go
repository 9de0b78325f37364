package schedule

import (
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// settle.go applies a reply, or an error, to the requests of a batch.

// Settle applies a reply of Redis or of the process to the requests of a batch in flight. b.Settled
// then has those that are settled.
func (q *Queue) Settle(m Moment, b *Batch, g *protocol.Reply) Facts {
	f := q.facts()
	if !g.Local() {
		q.saw(m, b, g) // while the state of b tells whether the lease is late
	}
	late := q.complete(b)
	q.answered = m.Mono
	rates := ratesOf(g)
	if !g.Local() {
		q.learn(rates)
		q.pacer.measured(m.Mono.Sub(b.started))
		q.detach(q.inFlight) // Redis answers
	}
	beaten := false
	if b.Ask.UpTo {
		q.settleUpTo(b, g, &f)
	} else {
		beaten = q.apply(m, b, g, &f)
		q.ledger.Granted(f.First.Own)
	}
	if f.Refused {
		q.ledger.Refused(m.Mono)
		q.remember(m, b, g) // before correct: the cache keeps what Redis has told
	}
	if q.local = (protocol.Permits{}); g.Local() {
		q.local = rates
	}
	f.Sleeps = q.plan(m, b, g, beaten, late)
	if f.Refused {
		q.correct(m, b, g.Local()) // by the head start that plan has set
	}
	if !g.Local() {
		q.date(b, g)
		q.tellTallies(&f)
	}
	q.tellOthers(b)
	return f
}

// learn keeps the rates. A request that joined before they were known may want more, which is an
// error at once.
func (q *Queue) learn(rates protocol.Permits) {
	if protocol.Equal(rates, q.rates) {
		return
	}
	q.rates = rates
	for r := range q.Line() {
		q.recheck = q.recheck || r.state.unasked() && r.Instalments == nil && !fits(r.Permits, rates)
	}
}

// Fail ends the requests of a batch in flight with an error. If behind is not nil, the requests
// that had to wait for the batch fail with that, without a call: otherwise they could wait for a
// server that hangs for twice the call timeout. Waiting requests whose permits are not free yet
// stay.
func (q *Queue) Fail(m Moment, b *Batch, err, behind error) Facts {
	f := q.facts()
	late := q.complete(b)
	for _, members := range b.members {
		for _, r := range members {
			q.settle(b, r, Outcome{Err: err})
		}
	}
	carried := len(b.Settled)
	if behind != nil && !late && !b.Ask.UpTo {
		q.failQueued(m, b, behind)
		f.Behind = len(b.Settled) - carried
	}
	f.failed(len(b.Settled))
	f.Sleeps = q.plan(m, b, &protocol.Reply{}, false, late)
	q.tellOthers(b)
	return f
}

// complete notes that a batch is complete, and reports whether its queue did not wait for it any
// longer.
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

// Since returns the time, by the client's clock, from which the waits in a reply count: the time of
// the request, to the µs. If the server's clock dates grants, that moment is not known exactly by
// this clock; the current time is never too early.
func (q *Queue) Since(m Moment, g *protocol.Reply) time.Time {
	if q.settings.ServerTime {
		return m.Clock
	}
	return time.UnixMicro(g.First.Now)
}

// mostKept is the largest number of verdicts whose memory is kept.
const mostKept = 1024

// apply applies the verdicts on the requests of a batch. It reports whether another client took
// permits that were free for one of them.
func (q *Queue) apply(m Moment, b *Batch, g *protocol.Reply, f *Facts) (beaten bool) {
	since := q.Since(m, g)
	q.tally(b, g, f)
	var unclaimed protocol.Permits
	q.verdicts, unclaimed = allot(q.verdicts[:0], b, g, m.Clock, since, b.changes != q.changes, q.turns(g, since))
	for limiter := range q.pacer.members {
		f.Of(limiter).Unclaimed = *unclaimed.Of(limiter)
	}
	free := freeOf(g)
	outcomes := make([]MemberOutcome, 0, len(q.verdicts)*(g.Len()-1)) // memory for the outcomes
	// how many requests that do not wait are asked for again: they come before later ones
	first := 0
	for _, v := range q.verdicts {
		r := v.request
		switch v.verdict {
		case left:
			r.state.To(Gone)
		case granted:
			goes, late := q.goesOn(m, r, g)
			switch {
			case goes:
			case !late.IsZero():
				q.settle(b, r, Outcome{Err: NotInTimeError{late}})
				f.First.Denied++
			default:
				q.settle(b, r, grant(g, v.free, &outcomes))
				f.Granted++
			}
		case parted:
			q.firstInstalment(r, g.First.Rate)
			q.dateLast(r, g)
			q.again(r, first)
		case exceeded:
			failed := g.Exceeded(v.group, b.Ask.Groups[v.group])
			q.settle(b, r, Outcome{Err: MemberError{failed, ErrExceedsRate}})
			f.Of(failed).Denied++
		case again:
			q.again(r, first)
			first += oneIf(r.Kind == Try)
		case waits:
			q.dateLast(r, g)
			if q.takesLess(r, g) {
				q.again(r, first)
				continue
			}
			beaten = beaten || f.First.Own == 0 && !r.free.IsZero() && !since.Before(r.free)
			q.goesToSleep(r, since.Add(v.wait), refusal(g, v, &outcomes), free)
		case refused:
			q.refuse(b, r, since.Add(v.wait), refusal(g, v, &outcomes), f)
		}
	}
	clear(q.verdicts) // they would keep requests of which nothing else is left
	if cap(q.verdicts) > mostKept {
		q.verdicts = nil
	}
	return beaten
}

// tally counts what a reply grants, for the facts and for the fair share.
func (q *Queue) tally(b *Batch, g *protocol.Reply, f *Facts) {
	for limiter := range q.pacer.members {
		own := &f.Of(limiter).Own
		for i, group := range b.Ask.Groups {
			*own += max(g.Granted(i, group), 0) * *group.Permits.Of(limiter)
		}
		if of := g.Of(limiter); f.First.Own > 0 && !g.Local() { // local grants have no record
			q.pacer.members[limiter].share.Granted(of.At, of.Interval, *own)
		}
	}
}

// goesToSleep lets a waiting request that was refused wait until its permits are free.
func (q *Queue) goesToSleep(r *Request, until time.Time, o Outcome, free protocol.Permits) {
	r.Outcome, r.free = o, until
	q.land(r, Refused)
	if q.line.ready != r && fits(r.Permits, free) {
		r.free = time.Time{} // it waits only for the requests in front, whose callers may leave
	}
}

// refuse settles a request that was refused, and whose permits are free at a time.
func (q *Queue) refuse(b *Batch, r *Request, free time.Time, o Outcome, f *Facts) {
	if r.Kind == Wait && r.Until.IsZero() { // only a request that would wait in vain is refused then
		o.Err = NotInTimeError{free}
	}
	q.settle(b, r, o)
	for limiter := range o.Len() {
		f.Of(limiter).Denied += oneIf(o.Len() == 1 || o.Of(limiter).RetryAfter > 0)
	}
	f.Refused = true
}

// settleUpTo applies a reply to the only request of a batch, which takes what it is granted.
func (q *Queue) settleUpTo(b *Batch, g *protocol.Reply, f *Facts) {
	r, taken := b.members[0][0], g.Granted(0, b.Ask.Groups[0])
	f.First.Own = taken
	switch {
	case r.state == Abandoned:
		r.state.To(Gone)
		f.First.Unclaimed = taken
		return
	case taken == 0 && g.First.Notes.Has(protocol.More): // expired records remain
		q.land(r, Queued)
		q.upTo = append(q.upTo, r)
		return
	case taken == 0:
		f.First.Denied++
	default:
		f.Granted++
	}
	outcome := grant(g, freeOf(g), new([]MemberOutcome))
	outcome.First.Allowed, outcome.Taken = taken > 0, taken
	q.settle(b, r, outcome)
}

// land notes that a request is no longer in flight, and not settled.
func (q *Queue) land(r *Request, s State) {
	r.state.To(s)
	r.batch, r.changes = nil, r.batch.changes
	if r.Kind == Wait {
		q.line.returned(r)
	}
}

// again lets the next batch ask for a request at once. One that does not wait is inserted at a
// place among those that do not wait, in front of later ones.
func (q *Queue) again(r *Request, place int) {
	q.land(r, Queued)
	q.recheck = true
	if r.Kind == Try {
		q.trying = slices.Insert(q.trying, place, r)
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
		if r.state.unasked() || r.state == Refused && !m.Clock.Before(free) {
			q.settle(b, r, Outcome{Err: err})
		}
		r = next
	}
}

func oneIf(is bool) int {
	if is {
		return 1
	}
	return 0
}
