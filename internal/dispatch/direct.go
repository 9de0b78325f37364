package dispatch

import (
	"cmp"
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// Calls that are not shared: what they take or count does not depend on other callers of this process.

// UpTo takes as many permits as are free now, at most n, and returns how many it took. While callers wait, none are free.
func (l *Limiter) UpTo(ctx context.Context, n int64) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	q := l.client.enter(l)
	queued, before := q.waiting > 0, q.grants
	q.exit()
	if queued {
		return 0, nil
	}
	ask := protocol.Ask{Groups: []protocol.Group{{Size: n, Count: 1}}, UpTo: true}
	g, err := l.acquireDirect(ctx, before, ask)
	if err != nil {
		return 0, err
	}
	got := g.Granted(0, ask.Groups[0])
	if got > 0 && l.settings.Bucket() > 0 {
		q := l.client.enter(l)
		q.grants.Add(g.ID)
		q.exit()
	}
	return got, nil
}

// Free counts expired permits back, and returns how many are free. With check it adds up the records.
func (l *Limiter) Free(ctx context.Context, check bool) (int64, error) {
	g, err := l.acquireDirect(ctx, protocol.RecentIDs{}, protocol.Ask{Check: check})
	return g.Free, err
}

// acquireDirect makes a call that is not shared, and repeats it while expired records remain and nothing was granted.
// The recent ids are those of the limiter's grants before. Without groups it grants nothing: it counts expired permits
// back and returns what is free. If there are too many live records to add up in one call, it then recounts them.
func (l *Limiter) acquireDirect(ctx context.Context, before protocol.RecentIDs, ask protocol.Ask) (protocol.AcquireReply, error) {
	acquires, rebuild := len(ask.Groups) > 0, false
	for {
		if err := ctx.Err(); err != nil {
			return protocol.AcquireReply{}, err
		}
		check := acquires && l.unchecked()
		this := ask
		this.Check, this.Rebuild = ask.Check || check, ask.Rebuild || rebuild
		var q protocol.AcquireRequest
		q.Next(before)
		started := time.Now()
		var decide func(time.Duration) (protocol.AcquireReply, bool)
		if acquires && canDecide(l) {
			decide = func(retry time.Duration) (protocol.AcquireReply, bool) { return l.decide(ask, retry) }
		}
		sent := &script.Attempts{NoRetryIfUnsent: decide != nil}
		g, cause, err := reach(ctx, l, func(ctx context.Context) (protocol.AcquireReply, error) {
			return l.DoWithRetry(ctx, &q, sent, this, nil)
		}, decide)
		if acquires {
			err, cause = sent.Outcome(err), sent.Outcome(cause)
		} else {
			err = sent.Explain(err)
		}
		if err == nil && !g.Local() {
			l.learn(g.Rate, g.Interval)
			if acquires {
				l.saw(g.Rate, g.Interval, g.Notes, check)
			}
		}
		g.Attempts = sent.Count()
		var granted int64
		if acquires && err == nil {
			granted = g.Granted(0, ask.Groups[0])
		}
		if o := l.client.observe; o != nil && acquires {
			info := Call{
				Limiter: l.name, Callers: 1, Permits: granted, Granted: int(min(granted, 1)), Denied: 1 - int(min(granted, 1)),
				Latency: time.Since(started), Attempts: g.Attempts, Repaired: g.Notes.Repaired(),
				RateMismatch: g.Notes.Has(protocol.RateMismatch), Fallback: g.Local(), Err: cmp.Or(err, cause),
			}
			o(info)
		}
		if err == nil && !acquires && g.Notes.Has(protocol.Many) {
			if err = l.Recount(ctx); err != nil || !ask.Check && !ask.Rebuild {
				return g, err
			}
			ask, rebuild = protocol.Ask{}, false
			continue
		}
		if err != nil || !g.Notes.Has(protocol.More) || granted > 0 {
			return g, err
		}
		rebuild = g.Notes.Has(protocol.RebuildPending)
	}
}

// Release gives n permits back: the oldest ones if granted is 0. Otherwise granted is the score of a record in µs, and
// only permits that were granted then come back. It returns how many did.
func (l *Limiter) Release(ctx context.Context, n, granted int64) (int64, error) {
	var released int64
	defer func() {
		if released > 0 {
			l.Wake()
		}
	}()
	rebuild := false
	for released < n {
		if err := ctx.Err(); err != nil {
			return released, err
		}
		request := protocol.Release{Now: l.Now(), Permits: n - released, Rebuild: rebuild, Granted: granted}
		reply, err := l.Change(ctx, protocol.ReleaseScript, false, request.Args())
		if err != nil {
			return released, err
		}
		came, notes, err := request.Reply(reply)
		if err != nil {
			return released, err
		}
		released += came
		if notes.Has(protocol.Many) {
			if err := l.Recount(ctx); err != nil {
				return released, err
			}
		}
		if !notes.Has(protocol.More) {
			break
		}
		rebuild = notes.Has(protocol.RebuildPending)
	}
	return released, nil
}
