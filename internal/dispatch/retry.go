package dispatch

import (
	"context"
	"errors"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// One call of acquire.lua with its retries.

// DoWithRetry asks Redis for permits, and retries until there is a final reply or error. If r was sent before, last is
// the error of that attempt, else nil. If the limiter enforces a rate and another one is in force, it sets its own
// first.
func (l *Limiter) DoWithRetry(
	ctx context.Context, r *protocol.AcquireRequest, t *script.Attempts, ask protocol.Ask, last error,
) (g protocol.AcquireReply, err error) {
	c := l.client
	var pauses script.Backoff
	for {
		switch {
		case errors.Is(last, protocol.ErrOtherRate):
			if err := l.enforce(ctx); err != nil {
				return protocol.AcquireReply{Attempts: t.Count()}, err
			}
			r.Sets++
		case last != nil && !c.topology.Redirected(last):
			c.topology.Reload(ctx, last)
			if !pauses.Rest(ctx) {
				return protocol.AcquireReply{Attempts: t.Count()}, last
			}
		}
		args := r.Args(nil, &l.encoder, ask, t.MaybeExecuted() && len(ask.Groups) > 0)
		var reply []int64
		reply, last = c.topology.Try(ctx, t, protocol.AcquireScript, l.Keys(), args...)
		if last == nil {
			g, last = r.Reply(&l.encoder, t, reply)
		}
		g.ID, g.Attempts = r.ID(), t.Count()
		if !errors.Is(last, protocol.ErrOtherRate) && !t.Again(last, l.settings.Findable(r.Records)) {
			return g, last
		}
	}
}

// setRate runs setrate.lua, and the calls that finish its work: a rebuild of the free permits after many records have
// expired, or a recount.
func (l *Limiter) setRate(ctx context.Context, t *script.Attempts, request protocol.SetRate) (bool, error) {
	defer l.changed()
	request.Now = l.encoder.Now()
	reply, err := l.client.topology.Run(ctx, t, protocol.SetRateScript, true, l.Keys(), request.Args()...)
	if err != nil {
		return false, err
	}
	set, notes := request.Reply(reply)
	if notes.Has(protocol.RebuildPending) {
		_, err = l.acquireDirect(ctx, protocol.RecentIDs{}, protocol.Ask{Rebuild: true})
	} else if notes.Has(protocol.Many) {
		err = l.Recount(ctx)
	}
	return set, err
}

// enforce sets the limiter's own rate in the place of another one.
func (l *Limiter) enforce(ctx context.Context) error {
	_, err := l.setRate(ctx, new(script.Attempts), protocol.SetRate{Rate: l.settings.Own, Keep: true})
	return err
}
