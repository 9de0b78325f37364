package schedule

import (
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// allot.go says what a reply means for each request of its batch. It changes no request.

// A verdict is what becomes of one request.
type verdict uint8

const (
	granted  verdict = iota // it has its permits
	exceeded                // it wants more than the rate
	parted                  // it wants more than the rate, and asks at once for the first instalment
	refused                 // it is refused
	waits                   // it was refused, and waits until its permits are free
	again                   // the next batch asks for it at once
	left                    // its caller has left
)

// An allotment is the verdict on one request.
type allotment struct {
	request *Request
	verdict verdict
	group   int              // of the batch
	free    protocol.Permits // permits that are free after a grant
	wait    time.Duration    // of a refused request
}

// allot returns the verdicts on all requests of a batch, and how many permits callers that have
// left were granted that no other request got. now is the time by the client's clock, and since
// that from which the waits in the reply count. outdated: something has changed since the batch was
// sent, so a request that may still wait is not refused, but is asked for again. line has the turns
// of the waiting requests; nil: a request may wait in vain. The verdicts are appended to all: first
// those on the requests that the reply grants, the last one first, then the others in order.
//
// Permits granted to callers that have left go to the requests behind them, in order, where they
// fit; they never pass a waiting request that wants more. The reply settles each request that does
// not wait, with two exceptions. Its outcome is not known while expired records remain
// (protocol.More). And if the batch was full, Redis refused it only because it stands behind
// waiting requests that were left out: if its permits are still free, it is asked for again behind
// these.
func allot(
	all []allotment, b *Batch, g *protocol.Reply, now, since time.Time, outdated bool, line *turns,
) (verdicts []allotment, spare protocol.Permits) {
	free := freeOf(g)
	spare = protocol.Same(free.Len(), int64(0))
	memory := make([]int64, 0, b.requests*len(free.Rest)) // of what is free after each grant
	// backwards, so that the permits left after each request are known
	for i := len(b.members) - 1; i >= 0; i-- {
		for at := int(g.Granted(i, b.Ask.Groups[i])) - 1; at >= 0; at-- {
			r := b.members[i][at]
			one := allotment{request: r, group: i, free: protocol.In(&memory, free.Len())}
			add(&one.free, free, 1)
			if r.state == Abandoned {
				one.verdict = left
				add(&spare, r.Permits, 1)
			}
			all = append(all, one)
			add(&free, r.Permits, 1)
		}
	}
	rest, remains := remainder{
		batch: b, reply: g, now: now, since: since, outdated: outdated,
		spare: spare, free: freeOf(g), rates: ratesOf(g),
	}, freeOf(g)
	for i, members := range b.members {
		n := g.Granted(i, b.Ask.Groups[i])
		rest.group(i, b.Ask.Groups[i])
		for _, r := range members[max(n, 0):] {
			one := allotment{request: r, verdict: exceeded, group: i, free: remains}
			if r.state == Abandoned {
				one.verdict = left
			} else if n < 0 && r.Instalments != nil {
				one.verdict, one.wait = rest.byInstalments(i, r, since, line)
			} else if n >= 0 {
				due := since.Add(g.Wait(i))
				if line == nil || r.Kind != Wait {
					one.verdict = rest.verdict(i, r, due)
				} else {
					one.verdict, due = rest.inTurn(i, r, due, line)
				}
				one.wait = due.Sub(since)
			}
			rest.ahead = rest.ahead ||
				r.Kind == Wait && (one.verdict == waits || one.verdict == again) && fits(r.Permits, rest.rates)
			all = append(all, one)
		}
	}
	return all, rest.spare
}

// A remainder is what is left for the requests that a reply does not grant.
type remainder struct {
	batch    *Batch
	reply    *protocol.Reply
	now      time.Time
	since    time.Time // from then on the waits in the reply count
	outdated bool
	spare    protocol.Permits // permits granted to callers that have left
	free     protocol.Permits // permits that requests may ask for again
	rates    protocol.Permits
	ahead    bool // a waiting request in front is not granted
	// permits were kept from the group for a reservation whose date is not known
	undated bool
}

// group notes that the requests of a group follow, or that it keeps permits from those behind it.
func (rest *remainder) group(i int, g protocol.Group) {
	if g.Count == 0 {
		add(&rest.free, g.Permits, -1)
	}
	rest.ahead = rest.ahead || rest.batch.Ask.Partial && i >= rest.batch.Ask.Strict
	rest.undated = rest.batch.undated > 0 && i >= rest.batch.undated && !rest.reply.Local()
}

// verdict returns the verdict on the next request of a group, whose permits are free at a time.
func (rest *remainder) verdict(group int, r *Request, due time.Time) verdict {
	g := rest.reply
	switch {
	case !rest.ahead && fits(r.Permits, rest.spare):
		add(&rest.spare, r.Permits, -1)
		return granted
	case g.Undecided(group) && (r.Kind != Wait || r.mayWait(rest.now)):
		return again
	case fits(r.Permits, rest.free) && (r.Kind == Wait && !r.last || r.Kind != Wait && rest.batch.full && !g.Local()):
		// a caller in front has left, or the next batch carries it behind the waiting requests that
		// this one left out
		add(&rest.free, r.Permits, -1)
		return again
	case r.mayWait(due) || rest.undated && r.mayWait(rest.soonest(r)) || rest.outdated && r.mayWait(rest.now):
		// a request above the local limit waits for Redis, and does not block those behind it
		if fits(r.Permits, rest.rates) {
			rest.free = protocol.Same(rest.free.Len(), int64(0))
		}
		return waits
	}
	return refused
}

// soonest returns a time before which the permits of a request are not free, whoever leaves.
func (rest *remainder) soonest(r *Request) time.Time {
	at := rest.now
	for i := range rest.reply.Len() {
		if of := rest.reply.Of(i); of.Free < *r.Permits.Of(i) {
			at = latest(at, rest.since.Add(of.NextAfter))
		}
	}
	return at
}
