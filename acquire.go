package rratelimiter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// Acquiring and releasing permits: argument checks, errors and observers of the public methods. How callers share calls
// is not decided here.

// Allow asks once for n permits and returns all that an HTTP response needs. If n permits are not free, it takes none,
// and Result.RetryAfter is the time until they are, if no other client takes them: exactly if at most 512 records are
// live or the permits of the first 512 suffice, else the time is a lower bound. While callers of this process wait,
// RetryAfter is at least the time until the first of them can be served.
func (l *Limiter) Allow(ctx context.Context, n int64) (Result, error) {
	return l.request(ctx, "allow", ask{n: n, detail: true})
}

// TryAcquire takes n permits if they are free now, and reports whether it did (Redisson: tryAcquire).
func (l *Limiter) TryAcquire(ctx context.Context, n int64) (bool, error) {
	result, err := l.request(ctx, "try to acquire from", ask{n: n})
	return result.Allowed, err
}

// TryAcquireTimeout takes n permits and waits for them up to timeout (Redisson: tryAcquire with a timeout). With a
// timeout of 0 or less it tries once, as TryAcquire. It returns false as soon as it is known that the permits will not
// be free in time, although a release or a new rate elsewhere could change that; Redisson sleeps until the timeout. If
// a call is in flight when the timeout ends, TryAcquireTimeout waits for its reply, so that the timeout never leaves
// the outcome unknown. Use ctx for a hard bound.
func (l *Limiter) TryAcquireTimeout(ctx context.Context, n int64, timeout time.Duration) (bool, error) {
	if timeout <= 0 {
		return l.TryAcquire(ctx, n)
	}
	until := l.client.clock().Add(timeout)
	result, err := l.request(ctx, "try to acquire from", ask{n: n, waits: true, until: until})
	return result.Allowed, err
}

// Acquire takes n permits and waits for them until ctx ends (Redisson: acquire). Callers of one process are served in
// order, unless a call stalls. If ctx ends while the caller waits, the error is ctx.Err(). If a call for it is in
// flight then, the error is ErrOutcomeUnknown, too. A call that fails ends the wait with its error. A caller that must
// outlast short failures of Redis asks again, or uses WithFallback.
func (l *Limiter) Acquire(ctx context.Context, n int64) error {
	_, err := l.request(ctx, "acquire from", ask{n: n, waits: true})
	return err
}

// serve answers a request: from the deny cache, or by a call that it shares with other callers.
func (l *Limiter) serve(ctx context.Context, operation string, a ask) (Result, error) {
	err := l.err
	if err == nil && a.n < 1 {
		err = fmt.Errorf("%w: %d", ErrInvalidPermits, a.n)
	}
	if err == nil && !a.waits && l.settings.denyCache > 0 {
		if err = ctx.Err(); err == nil {
			now := l.client.clock()
			if known := l.client.denyCache.Find(l.key(), a.n, now, l.enforced); known != nil {
				return Result{
					Limit: known.Limit, Remaining: known.Left, RetryAfter: known.Free.Sub(now), ResetAfter: known.Reset.Sub(now),
				}, nil
			}
		}
		a.detail = true // the deny cache needs Result.RetryAfter and ResetAfter
	}
	var result Result
	if err == nil {
		result, err = l.client.answer(ctx, l, a)
	}
	if err == nil {
		return result, nil
	}
	if errors.Is(err, ErrExceedsRate) {
		err = fmt.Errorf("%w: %d", err, a.n)
	}
	if errors.Is(err, ErrUnavailable) {
		err = script.Failure(ctx, l.client.callTimeout, err) // the caller's context may have ended meanwhile
	}
	return Result{}, wrap(operation, l.name, err)
}

// AcquireUpTo takes as many permits as are free now, at most n, and returns how many it took. While callers of this
// process wait, no permits are free.
func (l *Limiter) AcquireUpTo(ctx context.Context, n int64) (int64, error) {
	started := time.Now()
	granted, err := l.acquireUpTo(ctx, n)
	l.client.tell(ctx, RequestInfo{
		Limiter: l.name, Method: "AcquireUpTo", Permits: n, Granted: granted, Latency: time.Since(started), Err: err,
	})
	return granted, err
}

func (l *Limiter) acquireUpTo(ctx context.Context, n int64) (int64, error) {
	const operation = "acquire up to from"
	if l.err == nil && n < 1 {
		return 0, wrap(operation, l.name, fmt.Errorf("%w: %d", ErrInvalidPermits, n))
	}
	if l.err != nil {
		return 0, wrap(operation, l.name, l.err)
	}
	if err := ctx.Err(); err != nil {
		return 0, wrap(operation, l.name, err)
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
		return 0, wrap(operation, l.name, err)
	}
	got := g.Granted(0, ask.Groups[0])
	if got > 0 && l.settings.Bucket() > 0 {
		q := l.client.enter(l)
		q.grants.Add(g.ID)
		q.exit()
	}
	return got, nil
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
		if acquires && l.client.localLimiters.canDecide(l) {
			decide = func(retry time.Duration) (protocol.AcquireReply, bool) { return l.decideLocally(ask, retry) }
		}
		sent := &script.Attempts{NoRetryIfUnsent: decide != nil}
		g, cause, err := reach(ctx, l, func(ctx context.Context) (protocol.AcquireReply, error) {
			return l.doWithRetry(ctx, &q, sent, this, nil)
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
		if o := l.client.observer; o != nil && acquires {
			info := CallInfo{
				Limiter: l.name, Callers: 1, Permits: granted, Granted: int(min(granted, 1)), Denied: 1 - int(min(granted, 1)),
				Latency: time.Since(started), Attempts: g.Attempts, Repaired: g.Notes.Repaired(),
				RateMismatch: g.Notes.Has(protocol.RateMismatch), Fallback: g.Local(), Err: cmp.Or(err, cause),
			}
			o.Call(info)
		}
		if err == nil && !acquires && g.Notes.Has(protocol.Many) {
			if err = l.recount(ctx); err != nil || !ask.Check && !ask.Rebuild {
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

// Release gives n permits back before their interval is over, those of the oldest grants first, and returns how many
// came back: at most those in use (Redisson: release, since 3.52.0). The permits that stay counted are then never older
// than those in use, so no window holds more than the rate. After Redisson's release the same permits return a second
// time. n = 0 does nothing; n < 0 is ErrInvalidPermits. Without a rate the error is ErrNotInitialized. If the reply is
// lost it is ErrOutcomeUnknown, and more permits may have come back than Release returns.
func (l *Limiter) Release(ctx context.Context, n int64) (int64, error) {
	return l.release(ctx, n, 0)
}

// release is Release if granted is 0. Otherwise granted is the score of a record in µs, and release gives back only
// permits that were granted then.
func (l *Limiter) release(ctx context.Context, n, granted int64) (int64, error) {
	const operation = "release to"
	if l.err != nil {
		return 0, wrap(operation, l.name, l.err)
	}
	if n < 0 {
		return 0, wrap(operation, l.name, fmt.Errorf("%w: %d", ErrInvalidPermits, n))
	}
	var released int64
	defer func() {
		if released > 0 {
			l.client.wake(l.key())
		}
	}()
	rebuild := false
	for released < n {
		if err := ctx.Err(); err != nil {
			return released, wrap(operation, l.name, err)
		}
		sent := new(script.Attempts)
		request := protocol.Release{Permits: n - released, Rebuild: rebuild, Granted: granted}
		reply, err := within(ctx, l, func(ctx context.Context) ([]int64, error) {
			defer l.changed()
			request.Now = l.encoder.Now()
			return l.client.topology.Run(ctx, sent, protocol.ReleaseScript, false, l.keys(), request.Args()...)
		})
		var came int64
		var notes protocol.Notes
		if err == nil {
			came, notes, err = request.Reply(reply)
		}
		if err = sent.Outcome(err); err != nil {
			return released, wrap(operation, l.name, err)
		}
		released += came
		if notes.Has(protocol.Many) {
			if err := l.recount(ctx); err != nil {
				return released, wrap(operation, l.name, err)
			}
		}
		if !notes.Has(protocol.More) {
			break
		}
		rebuild = notes.Has(protocol.RebuildPending)
	}
	return released, nil
}

// AllowAll asks several limiters at once for n permits of each: either all of them grant, or none does. A limiter that
// is listed twice grants twice as many; if its options differ, those of the first one listed count.
//
// With a *redis.Client this is one step. With a cluster, a Ring or any other client it is one step if the names share a
// hash tag (on a cluster: a slot). Otherwise the limiters are asked in order, and when one refuses, the permits taken
// from those before it are given back. Other callers may be refused meanwhile, so list the limiter first that refuses
// most often. If ctx ends first, giving back goes on in the background, and the error is ErrOutcomeUnknown, too. The
// permits of a call in flight are given back when its reply arrives; if the reply is lost, they stay taken for one
// interval. AllowAll does not queue: in one step it may pass callers of this process that wait for one of the limiters.
//
// The results are in the order of the limiters. If one refuses, no result is Allowed, and RetryAfter is 0 for the
// limiters that would have granted. If they were asked in order, those before the one that refuses have no ResetAfter,
// and those behind it, which were not asked, have zero Results.
func (c *Client) AllowAll(ctx context.Context, n int64, limiters ...*Limiter) ([]Result, error) {
	return c.AllowAllN(ctx, slices.Repeat([]int64{n}, len(limiters)), limiters...)
}

// AllowAllN is AllowAll for permits[i] of limiters[i]. For example, a call of a language model counts once against its
// requests per minute, and with all its tokens against its tokens per minute. The slices must have the same length.
func (c *Client) AllowAllN(ctx context.Context, permits []int64, limiters ...*Limiter) ([]Result, error) {
	if len(permits) != len(limiters) {
		return nil, fmt.Errorf("allow all: %w: %d numbers for %d limiters", ErrInvalidPermits, len(permits), len(limiters))
	}
	var all []string
	var distinct []*Limiter
	counts := map[string]int64{}
	for i, l := range limiters {
		n := permits[i]
		if n < 1 {
			return nil, fmt.Errorf("allow all: %w: %d", ErrInvalidPermits, n)
		}
		if l == nil {
			return nil, fmt.Errorf("allow all: %w", invalidOption("a limiter is nil"))
		}
		if l.client != c {
			return nil, wrap("allow all of", l.name, invalidOption("the limiter is another client's"))
		}
		if l.err != nil {
			return nil, wrap("allow all of", l.name, l.err)
		}
		key := l.key()
		if counts[key] == 0 {
			distinct = append(distinct, l)
			all = append(all, l.keys()...)
		}
		if counts[key] > math.MaxInt64-n {
			return nil, wrap("allow all of", l.name, ErrExceedsRate)
		}
		counts[key] += n
	}
	err := c.err
	if err == nil && len(distinct) == 0 {
		err = ctx.Err() // otherwise ctx is checked for each limiter, and the observer sees it
	}
	if err != nil {
		return nil, fmt.Errorf("allow all: %w", err)
	}
	if len(distinct) == 0 {
		return nil, nil
	}
	ask := c.allowInOrder
	if c.topology.OneStep(all) {
		ask = c.allowTogether
	}
	found, err := ask(ctx, counts, distinct)
	if err != nil {
		return nil, err
	}
	results := make([]Result, len(limiters))
	for i, l := range limiters {
		results[i] = found[slices.IndexFunc(distinct, func(d *Limiter) bool {
			return d.key() == l.key()
		})]
	}
	return results, nil
}

// A together collects, for the observer, what happened to limiters that were asked in one script.
type together struct {
	asked    bool // a call was made, or decided locally
	attempts int
	notes    []protocol.Notes // of each limiter
	refused  []bool           // whether each limiter refused
	cause    error            // why Redis did not answer, if the process decided
}

// allowTogether asks all limiters in one script, and informs the observer about each of them.
func (c *Client) allowTogether(ctx context.Context, counts map[string]int64, limiters []*Limiter) ([]Result, error) {
	started := time.Now()
	t := together{notes: make([]protocol.Notes, len(limiters)), refused: make([]bool, len(limiters))}
	results, err := c.askTogether(ctx, counts, limiters, &t)
	if c.observer == nil {
		return results, err
	}
	latency := time.Since(started)
	for i, l := range limiters {
		info := CallInfo{
			Limiter: l.name, Callers: 1, Latency: latency, Attempts: t.attempts, Repaired: t.notes[i].Repaired(),
			RateMismatch: t.notes[i].Has(protocol.RateMismatch), Fallback: t.notes[i].Has(protocol.Local), Err: cmp.Or(err, t.cause),
		}
		if err == nil && results[i].Allowed {
			info.Granted, info.Permits = 1, counts[l.key()]
		} else if t.refused[i] || err != nil && !errors.Is(err, ErrExceedsRate) {
			info.Denied = 1
		}
		if t.asked {
			c.observer.Call(info)
		}
		c.tell(ctx, RequestInfo{
			Limiter: l.name, Method: "AllowAll", Permits: counts[l.key()], Granted: info.Permits,
			Latency: latency, Err: err,
		})
	}
	return results, err
}

// askTogether runs allowall.lua until it is no longer stopped by expired records or by another rate than an enforced
// one.
func (c *Client) askTogether(
	ctx context.Context, counts map[string]int64, limiters []*Limiter, t *together,
) (results []Result, err error) {
	var all []string
	wanted := make([]protocol.Wanted, len(limiters))
	for i, l := range limiters {
		all = append(all, l.keys()...)
		wanted[i] = protocol.Wanted{Encoder: &l.encoder, N: counts[l.key()]}
	}
	for {
		for i, l := range limiters {
			wanted[i].Check = l.unchecked()
		}
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("allow all: %w", err)
		}
		t.asked = true
		var decide func(time.Duration) (decided, bool)
		if c.localLimiters.canDecide(limiters...) {
			decide = func(retry time.Duration) (decided, bool) {
				local, known := c.decideAllLocally(limiters, counts, retry)
				return decided{decisions: local}, known
			}
		}
		sent := &script.Attempts{NoRetryIfUnsent: decide != nil}
		d, cause, err := reach(ctx, limiters[0], func(ctx context.Context) (decided, error) {
			return c.doAllWithRetry(ctx, sent, protocol.NewAllowAll(slices.Clone(wanted)), all)
		}, decide)
		t.attempts += sent.Count()
		if err, t.cause = sent.Outcome(err), sent.Outcome(cause); err != nil {
			return nil, fmt.Errorf("allow all: %w", err)
		}
		if err := d.fault; err != nil {
			failed := limiters[d.failed]
			if errors.Is(err, protocol.ErrOtherRate) {
				wanted[d.failed].Sets++
				_, err = within(ctx, failed, func(ctx context.Context) (bool, error) { return true, failed.enforce(ctx) })
			}
			if err != nil {
				return nil, wrap("allow all of", failed.name, err)
			}
			continue
		}
		results, again := make([]Result, len(limiters)), false
		var refused error
		allowed := true
		for i, l := range limiters {
			one := d.decisions[i]
			wanted[i].Rebuild = one.Notes.Has(protocol.RebuildPending)
			if t.notes[i] |= one.Notes; !one.Notes.Has(protocol.Local) {
				l.learn(one.Rate, one.Interval)
				l.saw(one.Rate, one.Interval, one.Notes, wanted[i].Check)
			}
			if one.Exceeds && refused == nil {
				refused = wrap("allow all of", l.name, fmt.Errorf("%w: %d", ErrExceedsRate, wanted[i].N))
			}
			t.refused[i] = !one.Granted
			allowed = allowed && one.Granted
			again = again || !one.Granted && !one.Exceeds && one.Notes.Has(protocol.More)
			results[i] = Result{Limit: one.Rate, Remaining: one.Free, RetryAfter: one.RetryAfter, ResetAfter: one.ResetAfter}
		}
		if refused != nil {
			return nil, refused
		}
		if again {
			continue
		}
		for i := range results {
			results[i].Allowed = allowed
		}
		return results, nil
	}
}

// A decided is the reply to a request for several limiters.
type decided struct {
	decisions []protocol.Decision
	failed    int   // index of the limiter that cannot be decided
	fault     error // why
}

// doAllWithRetry runs allowall.lua until there is a final reply or error. All attempts have the same record ids, and
// each has its own time.
func (c *Client) doAllWithRetry(
	ctx context.Context, t *script.Attempts, request *protocol.AllowAll, all []string,
) (d decided, err error) {
	var reply []int64
	err = c.topology.Retry(ctx, t, request.Findable(), func() (err error) {
		reply, err = c.topology.Try(ctx, t, protocol.AllowAllScript, all, request.Args(t.MaybeExecuted())...)
		return err
	})
	if err == nil {
		d.decisions, d.failed, d.fault = request.Reply(reply)
	}
	return d, err
}

// allowInOrder asks one limiter after the other. If one refuses, it gives back what it took.
func (c *Client) allowInOrder(ctx context.Context, counts map[string]int64, limiters []*Limiter) ([]Result, error) {
	results, taken := make([]Result, len(limiters)), make([]source, len(limiters))
	for i, l := range limiters {
		var err error
		results[i], err = l.request(ctx, "allow", ask{n: counts[l.key()], detail: true, source: &taken[i]})
		if err != nil {
			back := undo(ctx, counts, limiters[:i], taken)
			if ctx.Err() != nil && back != nil {
				return nil, back // the same cause, and the outcome of giving back is unknown, too
			}
			return nil, errors.Join(err, back)
		}
		if results[i].Allowed {
			continue
		}
		if err := undo(ctx, counts, limiters[:i], taken); err != nil {
			return nil, err
		}
		for j := range results[:i] {
			results[j].Allowed, results[j].ResetAfter = false, 0
			results[j].Remaining += counts[limiters[j].key()]
		}
		return results, nil
	}
	return results, nil
}

// undo gives back what limiters granted, in parallel, each call within the call timeout. If ctx ends, undo returns
// ErrOutcomeUnknown, and the calls go on in the background.
func undo(ctx context.Context, counts map[string]int64, limiters []*Limiter, taken []source) error {
	undone := make(chan error, len(limiters))
	for i, l := range limiters {
		go func() { undone <- l.undo(context.WithoutCancel(ctx), counts[l.key()], taken[i]) }()
	}
	var failed error
	for range limiters {
		select {
		case err := <-undone:
			if failed == nil {
				failed = err
			}
		case <-ctx.Done():
			return errors.Join(failed, fmt.Errorf("allow all: %w", script.Unknown(ctx.Err())))
		}
	}
	return failed
}

// giveBack waits for the reply to a request whose caller's context ended, and gives back what it was granted.
func (l *Limiter) giveBack(r *request) {
	<-r.done
	if r.result.Allowed {
		_ = l.undo(context.Background(), r.n, *r.source)
	}
	l.client.recycle(r)
}

// undo gives back n permits with the score of one grant, so that permits granted at other times return when they would
// have. Permits that expired or were released already are not given back again.
func (l *Limiter) undo(ctx context.Context, n int64, from source) error {
	if from.local {
		l.client.localLimiters.untake(l, n)
		return nil
	}
	_, err := l.release(ctx, n, from.at)
	return err
}
