package limiter

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// change.go runs the scripts that change a limiter. Before such a call its leases end. After one
// that succeeded the waiting callers ask again, even if the caller of the change is gone; after an
// error whose outcome is unknown, they notice a change by a poll.

// changes counts the changes under way, by the configuration key of their limiter.
type changes struct {
	mu  sync.Mutex // guards the field below
	all map[string]int
}

// note notes that a change of a limiter begins (1) or ends (-1).
func (c *changes) note(key string, by int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = map[string]int{}
	}
	if c.all[key] += by; c.all[key] == 0 {
		delete(c.all, key)
	}
}

// Changing reports whether a change of l by this client is under way. No lease is taken meanwhile.
func (l *Limiter) Changing() bool {
	c := &l.client.changes
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all[l.Key()] > 0
}

// suspendLeases ends the leases of l before a change, and lets no batch take one until resume is
// called. If ctx has ended, the change is not sent, and no lease ends.
func (l *Limiter) suspendLeases(ctx context.Context) (resume func()) {
	if ctx.Err() != nil {
		return func() {}
	}
	l.client.changes.note(l.Key(), 1)
	l.queues.EndLeases(ctx)
	return func() { l.client.changes.note(l.Key(), -1) }
}

// begin begins a change of l, which suspends its leases. end must be called in any case, with the
// error of the call.
func (l *Limiter) begin(ctx context.Context) (end func(error)) {
	resume := l.suspendLeases(ctx)
	return func(err error) {
		resume()
		l.changed(err)
	}
}

// changed is called when a change of l has ended with err. It clears the cached refusal of l. If
// the change succeeded, it lets the waiting callers ask again.
func (l *Limiter) changed(err error) {
	l.client.DenyCache.Forget(l.Key())
	if err == nil {
		l.wake()
	}
}

// wake lets the waiting callers of the limiter ask again, whatever the options of their handles.
func (l *Limiter) wake() {
	l.client.wakeChosen(func(other *Limiter) bool { return other.Key() == l.Key() })
}

// wakeChosen lets the waiting callers of the chosen limiters ask again.
func (c *Client) wakeChosen(chosen func(*Limiter) bool) {
	if c.Blocked.Load() > 0 { // a caller that waits from now on asks first
		c.wake(chosen)
	}
}

// WakeAll lets all waiting callers of all limiters ask again, and clears the cached refusals.
func (c *Client) WakeAll() {
	c.DenyCache.Forget("")
	c.wakeChosen(func(*Limiter) bool { return true })
}

// Change runs a script that changes the limiter, and returns its reply. An idempotent one may be
// executed twice. The leases of the limiter, and of the others that are given, end. The keys of the
// others follow those of l.
func (l *Limiter) Change(
	ctx context.Context, s *script.Script, idempotent bool, args []any, others ...*Limiter,
) ([]int64, error) {
	keys, ends := l.Keys(), []func(error){l.begin(ctx)}
	for _, other := range others {
		keys = append(keys[:len(keys):len(keys)], other.Keys()...)
		ends = append(ends, other.begin(ctx))
	}
	sent := new(script.Attempts)
	reply, err := l.run(ctx, sent, s, idempotent, keys, args, ends...)
	return reply, sent.Outcome(err)
}

// run runs a script. Then it calls what ends the changes with the error of the call, even if its
// caller is gone.
func (l *Limiter) run(
	ctx context.Context, t *script.Attempts, s *script.Script, idempotent bool, keys []string, args []any,
	ends ...func(error),
) ([]int64, error) {
	return within(ctx, l, func(ctx context.Context) ([]int64, error) {
		reply, err := l.client.Topology().Run(ctx, t, s, idempotent, keys, args...)
		for _, end := range ends {
			end(err)
		}
		return reply, err
	})
}

// Repair runs repair.lua.
func (l *Limiter) Repair(ctx context.Context, request protocol.Repair) (protocol.Repaired, error) {
	var ends []func(error)
	if !request.Dry {
		ends = append(ends, l.begin(ctx))
	}
	request.Now = l.Now()
	sent := new(script.Attempts)
	reply, err := l.run(ctx, sent, protocol.RepairScript, request.Idempotent(), l.Keys(), request.Args(), ends...)
	if err = sent.Explain(err); !request.Idempotent() {
		err = sent.Outcome(err)
	}
	if err != nil {
		return protocol.Repaired{}, err
	}
	return request.Reply(reply)
}

// Collect removes the client's own value and permits keys if they hold nothing of use. With dry it
// only returns what it would do. Keys with records that counted within the last idle are in use.
func (l *Limiter) Collect(ctx context.Context, idle time.Duration, dry bool) (protocol.Collected, error) {
	request := protocol.Collect{Now: l.Now(), Idle: idle, Dry: dry}
	var reply []int64
	err := l.err
	switch {
	case err != nil:
	case dry:
		reply, err = l.Read(ctx, protocol.CollectScript, request.Args()...)
	default:
		reply, err = l.Change(ctx, protocol.CollectScript, false, request.Args())
	}
	if err != nil {
		return 0, fmt.Errorf("collect the keys of a client of %s: %w", keys.Quoted(l.Name), err)
	}
	return request.Reply(reply), nil
}

// Release gives n permits back, and returns how many came back. If granted is 0, these are the
// oldest ones, and the leases of l end first. Otherwise granted is the score of a record in µs:
// only permits that were granted then come back, and the leases go on.
func (l *Limiter) Release(ctx context.Context, n, granted int64) (released int64, err error) {
	rebuild := false
	for released < n {
		if err := ctx.Err(); err != nil {
			return released, err
		}
		end := l.changed
		if granted == 0 {
			end = l.begin(ctx)
		}
		request := protocol.Release{
			Now: l.Now(), Permits: n - released, Rebuild: rebuild, Granted: granted,
			Own: l.client.identity.Origin(l.Settings.Format),
		}
		sent := new(script.Attempts)
		reply, err := l.run(ctx, sent, protocol.ReleaseScript, false, l.Keys(), request.Args(), end)
		if err != nil {
			return released, sent.Outcome(err)
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

// SetRate runs setrate.lua, and the calls that finish its work. It returns whether the rate was
// set.
func (l *Limiter) SetRate(ctx context.Context, request protocol.SetRate) (bool, error) {
	sent := new(script.Attempts)
	set, err := within(ctx, l, func(ctx context.Context) (set bool, err error) {
		end := l.begin(ctx)
		defer func() { end(err) }()
		return l.setRate(ctx, sent, request)
	})
	return set, sent.Outcome(err)
}

// setRate runs setrate.lua, and the calls that finish its work: a rebuild of the free permits after
// many records have expired, or a recount.
func (l *Limiter) setRate(ctx context.Context, t *script.Attempts, request protocol.SetRate) (bool, error) {
	request.Now = l.Now()
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

// Enforce sets the limiter's own rate in the place of another one. Then the waiting callers of
// other handles ask again, but for those that would set their own rate again. Those of l need not:
// its call is made again in any case.
func (l *Limiter) Enforce(ctx context.Context) error {
	resume := l.suspendLeases(ctx)
	_, err := l.setRate(ctx, new(script.Attempts), protocol.SetRate{Rate: l.Settings.Own, Keep: true})
	resume()
	l.client.DenyCache.Forget(l.Key())
	if err == nil {
		l.client.wakeChosen(func(other *Limiter) bool {
			return other.Key() == l.Key() && other.Settings != l.Settings &&
				(!other.Settings.Enforced || other.Settings.Own == l.Settings.Own)
		})
	}
	return err
}
