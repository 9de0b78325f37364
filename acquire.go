package rratelimiter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/record"
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
	groups := []group{{size: n, callers: make([]*request, 1)}}
	g, err := l.acquireDirect(ctx, before, groups, "u")
	if err != nil {
		return 0, wrap(operation, l.name, err)
	}
	got := g.granted(0, groups[0])
	if got > 0 && l.settings.bucket() > 0 {
		q := l.client.enter(l)
		q.grants.add(g.id)
		q.exit()
	}
	return got, nil
}

// acquireDirect makes a call that is not shared, and repeats it while expired records remain and nothing was granted.
// The recent ids are those of the limiter's grants before. Without groups it grants nothing: it counts expired permits
// back and returns what is free. If there are too many live records to add up in one call, it then recounts them.
func (l *Limiter) acquireDirect(ctx context.Context, before recentIDs, groups []group, flags string) (acquireReply, error) {
	rebuild := ""
	for {
		if err := ctx.Err(); err != nil {
			return acquireReply{}, err
		}
		check := len(groups) > 0 && l.unchecked()
		if check {
			rebuild += checkFlag
		}
		started, q := time.Now(), &acquireRequest{recent: before}
		var decide func(time.Duration) (acquireReply, bool)
		if len(groups) > 0 && l.client.localLimiters.canDecide(l) {
			decide = func(retry time.Duration) (acquireReply, bool) { return l.decideLocally(groups, 0, flags, retry) }
		}
		sent := &script.Attempts{NoRetryIfUnsent: decide != nil}
		g, cause, err := reach(ctx, l, func(ctx context.Context) (acquireReply, error) {
			return l.doWithRetry(ctx, q, sent, groups, 0, flags+rebuild, nil)
		}, decide)
		if len(groups) > 0 {
			err, cause = sent.Outcome(err), sent.Outcome(cause)
		} else {
			err = sent.Explain(err)
		}
		if err == nil && !g.local() {
			l.learn(g.rate, g.interval)
			if len(groups) > 0 {
				l.saw(g, check)
			}
		}
		g.attempts = sent.Count()
		if o := l.client.observer; o != nil && len(groups) > 0 {
			info := CallInfo{
				Limiter: l.name, Callers: 1, Latency: time.Since(started), Attempts: g.attempts, Repaired: repaired(g.notes),
				RateMismatch: g.notes&noteRateMismatch != 0, Fallback: g.local(), Err: cmp.Or(err, cause),
			}
			if err == nil {
				info.Permits = g.granted(0, groups[0])
			}
			info.Granted = int(min(info.Permits, 1))
			info.Denied = 1 - info.Granted
			o.Call(info)
		}
		if err == nil && len(groups) == 0 && g.notes&noteMany != 0 {
			if err = l.recount(ctx); err != nil || flags == "" {
				return g, err
			}
			rebuild, flags = "", ""
			continue
		}
		if err != nil || g.notes&noteMore == 0 || len(groups) > 0 && g.granted(0, groups[0]) > 0 {
			return g, err
		}
		rebuild = ""
		if g.notes&noteRebuildPending != 0 {
			rebuild = "b"
		}
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
	flags := ""
	for released < n {
		if err := ctx.Err(); err != nil {
			return released, wrap(operation, l.name, err)
		}
		sent := new(script.Attempts)
		reply, err := within(ctx, l, func(ctx context.Context) ([]int64, error) {
			defer l.changed()
			args := []any{l.now(), n - released, flags}
			if granted != 0 {
				args = append(args, millisText(granted))
			}
			return l.client.topology.Run(ctx, sent, releaseScript, false, l.keys(), args...)
		})
		if err == nil && reply[0] != 0 {
			err = notInitialized(reply[0])
		}
		if err = sent.Outcome(err); err != nil {
			return released, wrap(operation, l.name, err)
		}
		released += reply[2]
		if reply[1]&noteMany != 0 {
			if err := l.recount(ctx); err != nil {
				return released, wrap(operation, l.name, err)
			}
		}
		flags = ""
		if reply[1]&noteRebuildPending != 0 {
			flags = "b"
		}
		if reply[1]&noteMore == 0 {
			break
		}
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
	notes    []int64 // of each limiter
	refused  []bool  // whether each limiter refused
	cause    error   // why Redis did not answer, if the process decided
}

// allowTogether asks all limiters in one script, and informs the observer about each of them.
func (c *Client) allowTogether(ctx context.Context, counts map[string]int64, limiters []*Limiter) ([]Result, error) {
	started := time.Now()
	t := together{notes: make([]int64, len(limiters)), refused: make([]bool, len(limiters))}
	results, err := c.askTogether(ctx, counts, limiters, &t)
	if c.observer == nil {
		return results, err
	}
	latency := time.Since(started)
	for i, l := range limiters {
		info := CallInfo{
			Limiter: l.name, Callers: 1, Latency: latency, Attempts: t.attempts, Repaired: repaired(t.notes[i]),
			RateMismatch: t.notes[i]&noteRateMismatch != 0, Fallback: t.notes[i]&noteLocal != 0, Err: cmp.Or(err, t.cause),
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
	const perAnswer = 8
	var keys []string
	for _, l := range limiters {
		keys = append(keys, l.keys()...)
	}
	rebuild := make([]string, len(limiters))
	sets := make([]int, len(limiters))
	for {
		checks := make([]bool, len(limiters))
		for i, l := range limiters {
			if checks[i] = l.unchecked(); checks[i] {
				rebuild[i] += checkFlag
			}
		}
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("allow all: %w", err)
		}
		t.asked = true
		var decide func(time.Duration) ([]int64, bool)
		if c.localLimiters.canDecide(limiters...) {
			decide = func(retry time.Duration) ([]int64, bool) { return c.decideAllLocally(limiters, counts, retry) }
		}
		sent := &script.Attempts{NoRetryIfUnsent: decide != nil}
		reply, cause, err := reach(ctx, limiters[0], func(ctx context.Context) ([]int64, error) {
			return c.doAllWithRetry(ctx, sent, counts, limiters, keys, rebuild, sets)
		}, decide)
		t.attempts += sent.Count()
		if err, t.cause = sent.Outcome(err), sent.Outcome(cause); err != nil {
			return nil, fmt.Errorf("allow all: %w", err)
		}
		if reply[0] != 0 {
			at := reply[1]
			if err = statusError(reply[0]); errors.Is(err, errOtherRate) {
				sets[at]++
				_, err = within(ctx, limiters[at], func(ctx context.Context) (bool, error) {
					return true, limiters[at].enforce(ctx)
				})
			}
			if err != nil {
				return nil, wrap("allow all of", limiters[at].name, err)
			}
			continue
		}
		results, again := make([]Result, len(limiters)), false
		var refused error
		allowed := true
		for i, l := range limiters {
			figures := reply[1+i*perAnswer:][:perAnswer]
			rebuild[i] = ""
			if figures[5]&noteRebuildPending != 0 {
				rebuild[i] = "b"
			}
			if t.notes[i] |= figures[5]; figures[5]&noteLocal == 0 {
				l.learn(figures[2], millis(figures[3]))
				l.saw(acquireReply{rate: figures[2], interval: millis(figures[3]), notes: figures[5]}, checks[i])
			}
			if figures[0] < 0 && refused == nil {
				refused = wrap("allow all of", l.name, fmt.Errorf("%w: %d", ErrExceedsRate, counts[l.key()]))
			}
			t.refused[i] = figures[0] != 1
			allowed = allowed && !t.refused[i]
			again = again || figures[0] == 0 && figures[5]&noteMore != 0
			results[i] = Result{
				Limit: figures[2], Remaining: figures[4], RetryAfter: micros(figures[6]), ResetAfter: micros(figures[7]),
			}
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

// doAllWithRetry runs allowall.lua until there is a final reply or error. All attempts have the same record ids, and
// each has its own time.
func (c *Client) doAllWithRetry(
	ctx context.Context, t *script.Attempts, counts map[string]int64, limiters []*Limiter, keys, flags []string, sets []int,
) ([]int64, error) {
	prefixes, firsts, findable := make([][]byte, len(limiters)), make([]any, len(limiters)), true
	for i, l := range limiters {
		n := counts[l.key()]
		records := idsOf(n)
		prefixes[i] = c.identity.AppendPrefix(nil, l.settings.format, int(records))
		if l.settings.bucket() > 0 {
			prefixes[i] = record.AppendShare(prefixes[i], l.settings.format, uint32(min(n, math.MaxUint32)))
		}
		if firsts[i] = l.now(); l.settings.serverTime {
			firsts[i] = 0
		}
		findable = findable && l.settings.findable(records)
	}
	var reply []int64
	err := c.topology.Retry(ctx, t, findable, func() (err error) {
		var args []any
		for i, l := range limiters {
			args = append(args, counts[l.key()], l.now(), prefixes[i], flags[i]+l.flags(sets[i]), l.settings.rateText(),
				l.settings.bucket())
		}
		if t.MaybeExecuted() {
			args = append(args, firsts...)
		}
		reply, err = c.topology.Try(ctx, t, allowAllScript, keys, args...)
		return err
	})
	return reply, err
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
