package schedule

import (
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// allot.go says what a reply means for each request of its batch. It changes nothing.

// A verdict is what becomes of one request.
type verdict uint8

const (
	granted  verdict = iota // it has its permits
	exceeded                // it wants more than the rate
	refused                 // it is refused
	waits                   // it was refused, and waits until its permits are free
	again                   // the next batch asks for it at once
	left                    // its caller has left
)

// An allotment is the verdict on one request.
type allotment struct {
	request *Request
	verdict verdict
	free    int64         // permits that are free after a grant
	wait    time.Duration // of a refused request
}

// allot returns the verdicts on all requests of a batch, and how many permits callers that have left were granted that no other
// request got. now is the time by the client's clock, and since that from which the waits in the reply count. line has the turns of
// the waiting requests; nil: a request may wait in vain. The verdicts are appended to all: first those on the requests that the
// reply grants, the last one first, then the others in order.
//
// Permits granted to callers that have left go to the requests behind them, in order, where they fit; they never pass a waiting
// request that wants more. The reply settles each request that does not wait, unless expired records remain (protocol.More),
// or all waiting requests of the batch were granted and the next batch is sent for the rest of the queue in any case.
func allot(all []allotment, b *Batch, g *protocol.AcquireReply, now, since time.Time, line *turns) (verdicts []allotment, spare int64) {
	free := g.Free
	for i := len(b.members) - 1; i >= 0; i-- { // backwards, so that the permits left after each request are known
		for at := int(g.Granted(i, b.Ask.Groups[i])) - 1; at >= 0; at-- {
			r := b.members[i][at]
			one := allotment{request: r, free: free}
			if r.state == Abandoned {
				one.verdict = left
				spare += r.N
			}
			all = append(all, one)
			free += r.N
		}
	}
	rest := remainder{batch: b, reply: g, now: now, spare: spare, free: g.Free}
	for i, members := range b.members {
		n := g.Granted(i, b.Ask.Groups[i])
		rest.group(i)
		for _, r := range members[max(n, 0):] {
			one := allotment{request: r, verdict: exceeded, free: g.Free}
			if r.state == Abandoned {
				one.verdict = left
			} else if n >= 0 {
				due := since.Add(g.Wait(i))
				if line == nil || r.Kind != Wait {
					one.verdict = rest.verdict(r, due)
				} else {
					one.verdict, due = rest.inTurn(r, due, line)
				}
				one.wait = due.Sub(since)
			}
			rest.ahead = rest.ahead || r.Kind == Wait && (one.verdict == waits || one.verdict == again) && r.N <= g.Rate
			all = append(all, one)
		}
	}
	return all, rest.spare
}

// A remainder is what is left for the requests that a reply does not grant.
type remainder struct {
	batch *Batch
	reply *protocol.AcquireReply
	now   time.Time
	spare int64 // permits granted to callers that have left
	free  int64 // permits that requests may ask for again
	ahead bool  // a waiting request in front is not granted
}

// group notes that the requests of a group follow.
func (rest *remainder) group(i int) {
	rest.ahead = rest.ahead || rest.batch.Ask.Partial && i >= rest.batch.Ask.Strict
}

// inTurn is verdict for a request that waits in a line. It also returns when its permits are free. A request that would wait in vain
// is refused, and its permits are free at its turn.
func (rest *remainder) inTurn(r *Request, due time.Time, line *turns) (verdict, time.Time) {
	free, own := rest.free, line.next(r.N, due)
	v := rest.verdict(r, due)
	if v == waits && !r.End.IsZero() && !own.at.Before(r.End) {
		v, due, rest.free = refused, own.at, free
	}
	line.keep(own, v == waits || v == again)
	return v, due
}

// verdict returns the verdict on the next request, whose permits are free at a time.
func (rest *remainder) verdict(r *Request, due time.Time) verdict {
	g := rest.reply
	switch {
	case !rest.ahead && r.N <= rest.spare:
		rest.spare -= r.N
		return granted
	case g.Notes.Has(protocol.More) && (r.Kind != Wait || r.mayWait(rest.now)):
		return again
	case r.N <= rest.free && (r.Kind == Wait && !r.last || r.Kind != Wait && rest.batch.full && !g.Local()):
		rest.free -= r.N // a caller in front has left, or the next batch is sent for the rest of the queue in any case
		return again
	case r.mayWait(due):
		if r.N <= g.Rate { // a request above the local limit waits for Redis, and does not block those behind it
			rest.free = 0
		}
		return waits
	}
	return refused
}
