package dispatch

import (
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// Calls that grant nothing: they count what is free, keep a limiter, give permits back, or set a
// rate.

// Free counts expired permits back, and returns how many are free. With check it adds up the
// records.
func (l *Limiter) Free(ctx context.Context, check bool) (int64, error) {
	g, err := l.count(ctx, protocol.BatchAsk{Check: check})
	return g.First.Free, err
}

// count makes a call that grants nothing: it counts expired permits back and returns what is free.
// It repeats the call while expired records remain. If there are too many live records to add up in
// one call, it then recounts them.
func (l *Limiter) count(ctx context.Context, ask protocol.BatchAsk) (g protocol.Reply, err error) {
	for {
		if err := ctx.Err(); err != nil {
			return g, err
		}
		sent := new(script.Attempts)
		g, err = within(ctx, l, func(ctx context.Context) (protocol.Reply, error) {
			return l.DoWithRetry(ctx, sent, ask)
		})
		if err != nil {
			return g, sent.Explain(err)
		}
		l.learn(g.First.Rate, g.First.Interval)
		switch {
		case g.First.Notes.Has(protocol.Many):
			if err = l.Recount(ctx); err != nil || !ask.Check && !ask.Rebuild {
				return g, err
			}
			ask = protocol.BatchAsk{}
		case g.First.Notes.Has(protocol.More):
			ask.Rebuild = ask.Rebuild || g.First.Notes.Has(protocol.RebuildPending)
		default:
			return g, nil
		}
	}
}

// DoWithRetry makes a call of acquire.lua that no pipeline carries.
func (l *Limiter) DoWithRetry(ctx context.Context, t *script.Attempts, ask protocol.BatchAsk) (protocol.Reply, error) {
	var g protocol.Reply
	body := acquireBody{limiter: l, ask: &ask, reply: &g}
	err := l.client.exchange.Do(ctx, t, &body, nil, l)
	return g, err
}

// Stay makes a call as for a caller that waits, which is refused whatever is free, so that Redis
// keeps the limiter. It returns after which time that is to be repeated; 0: it has no keep-alive.
func (l *Limiter) Stay(ctx context.Context) (time.Duration, error) {
	ask := protocol.BatchAsk{
		Groups: []protocol.Group{
			{Permits: protocol.Permits{First: protocol.MostPermits}},
			{Permits: protocol.Permits{First: 1}, Count: 1},
		},
		Strict: 2,
	}
	for {
		g, err := within(ctx, l, func(ctx context.Context) (protocol.Reply, error) {
			return l.DoWithRetry(ctx, new(script.Attempts), ask)
		})
		if err != nil || !g.First.Notes.Has(protocol.More) { // expired records that remain hide the keep-alive
			return schedule.Kept(&g.First), err
		}
	}
}

// Release gives n permits back that callers were granted: the oldest ones if granted is 0.
// Otherwise granted is the score of a record in µs, and only permits that were granted then come
// back. It returns how many did.
func (l *Limiter) Release(ctx context.Context, n, granted int64) (int64, error) {
	released, err := l.release(ctx, n, granted)
	if q := l.queue.Load(); q != nil {
		q.event(func(s *schedule.Queue) { s.GaveBack(granted, released) })
	}
	return released, err
}

// release is Release for any permits, those of a lease included, of which the schedule does not
// know.
func (l *Limiter) release(ctx context.Context, n, granted int64) (released int64, err error) {
	rebuild := false
	for released < n {
		if err := ctx.Err(); err != nil {
			return released, err
		}
		end := l.changed
		if granted == 0 {
			end = l.changing(ctx, l.changed)
		}
		request := protocol.Release{
			Now: l.Now(), Permits: n - released, Rebuild: rebuild, Granted: granted,
			Own: l.client.identity.Origin(l.settings.Format),
		}
		reply, err := l.change(ctx, protocol.ReleaseScript, false, l.Keys(), request.Args(), end)
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

// undo waits for the reply to a request whose caller's context ended, and gives back what it was
// granted.
func (q *queue) undo(r *request) {
	<-r.done
	if r.Outcome.First.Allowed {
		for i, l := range q.limiters {
			n := *r.Permits.Of(i)
			if r.Kind == schedule.UpTo {
				n = r.Outcome.Taken
			}
			_, _ = l.Undo(context.Background(), n, r.sources[i])
		}
	}
	q.client.recycle(r)
}

// Undo gives back n permits with the score of one grant, so that permits granted at other times
// return when they would have, and returns how many came back. Permits that expired or were
// released already are not given back again.
func (l *Limiter) Undo(ctx context.Context, n int64, from Source) (int64, error) {
	if from.Local {
		return l.client.localLimiters.Untake(&l.local, n, time.UnixMicro(from.At), l.client.Clock()), nil
	}
	return l.Release(ctx, n, from.At)
}

// SetRate runs setrate.lua, and the calls that finish its work. It returns whether the rate was
// set.
func (l *Limiter) SetRate(ctx context.Context, request protocol.SetRate) (bool, error) {
	sent := new(script.Attempts)
	set, err := within(ctx, l, func(ctx context.Context) (bool, error) {
		return l.setRate(ctx, sent, request, l.changed)
	})
	return set, sent.Outcome(err)
}

// setRate runs setrate.lua, and the calls that finish its work: a rebuild of the free permits after
// many records have expired, or a recount. Then it calls changed.
func (l *Limiter) setRate(
	ctx context.Context, t *script.Attempts, request protocol.SetRate, changed func(error),
) (set bool, err error) {
	end := l.changing(ctx, changed)
	defer func() { end(err) }()
	request.Now = l.encoder.Now()
	reply, err := l.client.Topology().Run(ctx, t, protocol.SetRateScript, true, l.Keys(), request.Args()...)
	if err != nil {
		return false, err
	}
	set, notes := request.Reply(reply)
	if notes.Has(protocol.RebuildPending) {
		_, err = l.count(ctx, protocol.BatchAsk{Rebuild: true})
	} else if notes.Has(protocol.Many) {
		err = l.Recount(ctx)
	}
	return set, err
}

// enforce sets the limiter's own rate in the place of another one.
func (l *Limiter) enforce(ctx context.Context) error {
	_, err := l.setRate(ctx, new(script.Attempts), protocol.SetRate{Rate: l.settings.Own, Keep: true}, func(err error) {
		l.client.denyCache.Forget(l.Key())
		if err == nil {
			// Not the callers of l, whose call is made again in any case, and not those that would
			// set their own rate again.
			l.client.wakeChosen(func(other *Limiter) bool {
				return other.Key() == l.Key() && other.settings != l.settings &&
					(!other.settings.Enforced || other.settings.Own == l.settings.Own)
			})
		}
	})
	return err
}

// SeeRate drops a cached refusal under another rate.
func (l *Limiter) SeeRate(rate int64, interval time.Duration) {
	l.client.denyCache.SeeRate(l.Key(), rate, interval)
}
