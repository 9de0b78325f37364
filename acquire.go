package rratelimiter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// acquire.go is what callers who want permits see. It knows what they may ask and what they are told; how they are
// served is flight.go's.

// Allow asks once for n permits and tells all that an HTTP answer needs. When n permits are not free, it takes none and
// Result.RetryAfter says when they will be, if nobody else takes them: exactly while at most 512 records live or the
// permits of the first 512 suffice, else at least so long.
func (l *Limiter) Allow(ctx context.Context, n int64) (Result, error) {
	return l.request(ctx, "allow", ask{n: n, detail: true})
}

// TryAcquire takes n permits if they are free now, and tells whether it did (Redisson: tryAcquire).
func (l *Limiter) TryAcquire(ctx context.Context, n int64) (bool, error) {
	result, err := l.request(ctx, "try to acquire from", ask{n: n})
	return result.Allowed, err
}

// TryAcquireTimeout takes n permits, waiting for them up to a time; with none or less it tries once (Redisson: tryAcquire
// with a timeout). It answers false as soon as it is known that the permits won't be free in time, where Redisson sleeps
// until the time is over; a release or a new rate elsewhere could change what is known. A call that is in the air when
// the time ends is waited for, so that the end of the time leaves no doubt: use ctx for a hard bound.
func (l *Limiter) TryAcquireTimeout(ctx context.Context, n int64, timeout time.Duration) (bool, error) {
	if timeout <= 0 {
		return l.TryAcquire(ctx, n)
	}
	until := l.client.clock().Add(timeout)
	result, err := l.request(ctx, "try to acquire from", ask{n: n, waits: true, until: until})
	return result.Allowed, err
}

// Acquire takes n permits, waiting for them until ctx ends (Redisson: acquire). Callers of one process are served in the
// order in which they came. When ctx ends while they wait, the error is ctx.Err(); when it ends while a call for them is
// in the air, it is ErrOutcomeUnknown, too. A call that fails ends the wait with its error: who must outlive a Redis that
// stumbles asks again, or has WithFallback.
func (l *Limiter) Acquire(ctx context.Context, n int64) error {
	_, err := l.request(ctx, "acquire from", ask{n: n, waits: true})
	return err
}

// serve answers a whole request.
func (l *Limiter) serve(ctx context.Context, operation string, a ask) (Result, error) {
	err := l.err
	if err == nil && a.n < 1 {
		err = fmt.Errorf("%w: %d", ErrInvalidPermits, a.n)
	}
	if err == nil && !a.waits && l.settings.denyCache > 0 {
		if err = ctx.Err(); err == nil {
			if result, denied := l.client.denials.answer(l.keyNames[keyConfig], a.n, l.client.clock()); denied {
				return result, nil
			}
		}
		a.detail = true // else a refusal could not be remembered
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
	return Result{}, wrap(operation, l.name, err)
}

// AcquireUpTo takes as many permits as are free now, at most n, and tells how many. While callers of this process wait
// for their turn, nothing is free.
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
	ln := l.client.enter(l)
	queued, before := ln.waiting > 0, ln.grants
	ln.exit()
	if queued {
		return 0, nil
	}
	groups := []group{{size: n, callers: make([]*request, 1)}}
	g, err := l.look(ctx, before, groups, "u")
	if err != nil {
		return 0, wrap(operation, l.name, err)
	}
	got := g.granted(0, groups[0])
	if got > 0 && l.settings.bucket() > 0 {
		ln := l.client.enter(l)
		ln.grants.add(g.id)
		ln.exit()
	}
	return got, nil
}

// look makes a call of its own, after grants that were made before, and goes on until no expired record stands in its way.
func (l *Limiter) look(ctx context.Context, before past, groups []group, flags string) (grants, error) {
	rebuild := ""
	for {
		if err := ctx.Err(); err != nil {
			return grants{}, err
		}
		started, q := time.Now(), &question{before: before}
		sent := &trail{hasty: l.settings.fallsBack && len(groups) > 0}
		g, cause, err := reach(ctx, l, func(ctx context.Context) (grants, error) {
			return l.insist(ctx, q, sent, groups, 0, flags+rebuild, nil)
		}, func(retry time.Duration) (grants, bool) {
			if len(groups) == 0 {
				return grants{}, false
			}
			return l.deputize(groups, 0, flags, retry)
		})
		if len(groups) > 0 {
			err, cause = sent.outcome(err), sent.outcome(cause)
		}
		if err == nil && !g.local() {
			l.learn(g.rate, g.interval)
		}
		g.attempts = int(sent.attempts.Load())
		if o := l.client.observer; o != nil && len(groups) > 0 {
			info := FlightInfo{
				Limiter: l.name, Callers: 1, Latency: time.Since(started), Attempts: g.attempts, Healed: healed(g.notes),
				RateMismatch: g.notes&noteDiffers != 0, Fallback: g.local(), Err: cmp.Or(err, cause),
			}
			if err == nil {
				info.Permits = g.granted(0, groups[0])
			}
			info.Granted = int(min(info.Permits, 1))
			info.Denied = 1 - info.Granted
			o.Flight(info)
		}
		if err != nil || g.notes&noteMore == 0 || len(groups) > 0 && g.granted(0, groups[0]) > 0 {
			return g, err
		}
		rebuild = ""
		if g.notes&noteUnbuilt != 0 {
			rebuild = "b"
		}
	}
}

// Release gives n permits back before their interval is over, those of the oldest grants first, and tells how many came
// back: at most what is in use (Redisson: release, since 3.52.0). What stays counted is then never older than the truth,
// so no window holds more than the rate; Redisson's release lets the same permits return a second time. Zero permits are
// nothing to do, fewer are ErrInvalidPermits. Without a rate the error is ErrNotInitialized; where the answer did not
// arrive it is ErrOutcomeUnknown, and more may have come back than Release tells.
func (l *Limiter) Release(ctx context.Context, n int64) (int64, error) {
	return l.release(ctx, n, 0)
}

// release is Release, or, with the time of a grant in ms, gives back what was granted then, and nothing else; 0: none.
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
			l.client.wake(l.keyNames[keyConfig])
		}
	}()
	flags := ""
	for released < n {
		if err := ctx.Err(); err != nil {
			return released, wrap(operation, l.name, err)
		}
		sent := new(trail)
		reply, err := within(ctx, l.client, func(ctx context.Context) ([]int64, error) {
			args := []any{l.now(), n - released, flags}
			if granted != 0 {
				args = append(args, granted)
			}
			return l.client.run(ctx, sent, releaseScript, false, l.keys(), args...)
		})
		if err == nil && reply[0] != 0 {
			err = notInitialized(reply[0])
		}
		if err = sent.outcome(err); err != nil {
			return released, wrap(operation, l.name, err)
		}
		released += reply[2]
		flags = ""
		if reply[1]&noteUnbuilt != 0 {
			flags = "b"
		}
		if reply[1]&noteMore == 0 {
			break
		}
	}
	return released, nil
}

// AllowAll asks several limiters at once for n permits of each: either all allow and all count, or none counts. A limiter
// that is listed twice gives twice as many; where its options differ, those of the first one listed count.
//
// On a *redis.Client that is one step, and on a cluster, a Ring or any other client where the names share a hash tag (on
// a cluster, a slot). Else the limiters are asked in order, and what was taken is given back when one refuses: others may
// be refused meanwhile, so list the limiter first that refuses most. When ctx ends first, that goes on without the caller,
// whose error is ErrOutcomeUnknown, too. AllowAll does not queue: in one step, callers of this process who wait for one of
// the limiters may be passed.
//
// The results are in the limiters' order; where one refuses, none is Allowed, and RetryAfter is 0 for those that would
// have allowed. Asked in order, the limiters before the one that refuses have no ResetAfter, and those behind it, which
// were not asked, have zero Results.
func (c *Client) AllowAll(ctx context.Context, n int64, limiters ...*Limiter) ([]Result, error) {
	return c.AllowAllN(ctx, slices.Repeat([]int64{n}, len(limiters)), limiters...)
}

// AllowAllN is AllowAll for permits[i] of limiters[i]: a call of a language model, say, counts once against its requests per
// minute, and with all its tokens against those. The slices must be of one length.
func (c *Client) AllowAllN(ctx context.Context, permits []int64, limiters ...*Limiter) ([]Result, error) {
	if len(permits) != len(limiters) {
		return nil, fmt.Errorf("allow all: %w: %d numbers for %d limiters", ErrInvalidPermits, len(permits), len(limiters))
	}
	var keys []string
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
		key := l.keyNames[keyConfig]
		if counts[key] == 0 {
			distinct = append(distinct, l)
			keys = append(keys, l.keys()...)
		}
		if counts[key] > math.MaxInt64-n {
			return nil, wrap("allow all of", l.name, ErrExceedsRate)
		}
		counts[key] += n
	}
	err := c.err
	if err == nil && len(distinct) == 0 {
		err = ctx.Err() // else it is looked at for each limiter, and the observer told
	}
	if err != nil {
		return nil, fmt.Errorf("allow all: %w", err)
	}
	if len(distinct) == 0 {
		return nil, nil
	}
	ask := c.allowInOrder
	if c.together(keys) {
		ask = c.allowTogether
	}
	found, err := ask(ctx, counts, distinct)
	if err != nil {
		return nil, err
	}
	results := make([]Result, len(limiters))
	for i, l := range limiters {
		results[i] = found[slices.IndexFunc(distinct, func(d *Limiter) bool {
			return d.keyNames[keyConfig] == l.keyNames[keyConfig]
		})]
	}
	return results, nil
}

// together is what the observer is told of limiters that were asked in one script.
type together struct {
	asked    bool
	attempts int
	notes    []int64 // of each limiter
	refused  []bool  // by each
	cause    error   // why the process answered
}

// allowTogether asks all limiters in one script, and tells the observer of each one's part.
func (c *Client) allowTogether(ctx context.Context, counts map[string]int64, limiters []*Limiter) ([]Result, error) {
	started := time.Now()
	t := together{notes: make([]int64, len(limiters)), refused: make([]bool, len(limiters))}
	results, err := c.askTogether(ctx, counts, limiters, &t)
	if c.observer == nil {
		return results, err
	}
	latency := time.Since(started)
	for i, l := range limiters {
		info := FlightInfo{
			Limiter: l.name, Callers: 1, Latency: latency, Attempts: t.attempts, Healed: healed(t.notes[i]),
			RateMismatch: t.notes[i]&noteDiffers != 0, Fallback: t.notes[i]&noteLocal != 0, Err: cmp.Or(err, t.cause),
		}
		if err == nil && results[i].Allowed {
			info.Granted, info.Permits = 1, counts[l.keyNames[keyConfig]]
		} else if t.refused[i] || err != nil && !errors.Is(err, ErrExceedsRate) {
			info.Denied = 1
		}
		if t.asked {
			c.observer.Flight(info)
		}
		c.tell(ctx, RequestInfo{
			Limiter: l.name, Method: "AllowAll", Permits: counts[l.keyNames[keyConfig]], Granted: info.Permits,
			Latency: latency, Err: err,
		})
	}
	return results, err
}

// askTogether runs allowall.lua until no expired record and no other rate stands in its way.
func (c *Client) askTogether(
	ctx context.Context, counts map[string]int64, limiters []*Limiter, t *together,
) (results []Result, err error) {
	const perAnswer = 8
	var keys []string
	for _, l := range limiters {
		keys = append(keys, l.keys()...)
	}
	rebuild := make([]string, len(limiters))
	enforced := make([]int, len(limiters))
	for {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("allow all: %w", err)
		}
		t.asked = true
		sent := &trail{hasty: limiters[0].settings.fallsBack}
		reply, cause, err := reach(ctx, limiters[0], func(ctx context.Context) ([]int64, error) {
			return c.insistTogether(ctx, sent, counts, limiters, keys, rebuild)
		}, func(retry time.Duration) ([]int64, bool) { return c.deputizeAll(limiters, counts, retry) })
		t.attempts += int(sent.attempts.Load())
		if err, t.cause = sent.outcome(err), sent.outcome(cause); err != nil {
			return nil, fmt.Errorf("allow all: %w", err)
		}
		if reply[0] != 0 {
			at := reply[1]
			if err = statusError(reply[0]); errors.Is(err, errOtherRate) {
				enforced[at]++
				_, err = within(ctx, c, func(ctx context.Context) (bool, error) {
					return true, limiters[at].enforce(ctx, enforced[at])
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
			if figures[5]&noteUnbuilt != 0 {
				rebuild[i] = "b"
			}
			if t.notes[i] |= figures[5]; figures[5]&noteLocal == 0 {
				l.learn(figures[2], millis(figures[3]))
			}
			if figures[0] < 0 && refused == nil {
				refused = wrap("allow all of", l.name, fmt.Errorf("%w: %d", ErrExceedsRate, counts[l.keyNames[keyConfig]]))
			}
			t.refused[i] = figures[0] != 1
			allowed = allowed && !t.refused[i]
			again = again || figures[0] == 0 && figures[5]&noteMore != 0
			results[i] = Result{
				Limit: figures[2], Remaining: figures[4], RetryAfter: millis(figures[6]), ResetAfter: millis(figures[7]),
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

// insistTogether runs allowall.lua until there is an answer: each time with the same records, and another time.
func (c *Client) insistTogether(
	ctx context.Context, t *trail, counts map[string]int64, limiters []*Limiter, keys, flags []string,
) ([]int64, error) {
	prefixes, firsts, findable := make([][]byte, len(limiters)), make([]any, len(limiters)), true
	for i, l := range limiters {
		n := counts[l.keyNames[keyConfig]]
		records := idsOf(n)
		prefixes[i] = c.identity.appendPrefix(nil, l.settings.format, int(records))
		if l.settings.bucket() > 0 {
			prefixes[i] = appendShare(prefixes[i], l.settings.format, uint32(min(n, math.MaxUint32)))
		}
		if firsts[i] = l.now(); l.settings.serverTime {
			firsts[i] = 0
		}
		findable = findable && l.settings.findable(records)
	}
	var reply []int64
	err := c.repeat(ctx, t, findable, func() (err error) {
		var args []any
		for i, l := range limiters {
			flags := flags[i]
			if l.settings.enforced {
				flags += "e"
			}
			args = append(args, counts[l.keyNames[keyConfig]], l.now(), prefixes[i], flags, l.settings.rateText(),
				l.settings.bucket())
		}
		if t.doubtful() {
			args = append(args, firsts...)
		}
		reply, err = c.try(ctx, t, allowAllScript, keys, args...)
		return err
	})
	return reply, err
}

// allowInOrder asks one limiter after the other, and gives back what it took once one refuses.
func (c *Client) allowInOrder(ctx context.Context, counts map[string]int64, limiters []*Limiter) ([]Result, error) {
	results, taken := make([]Result, len(limiters)), make([]source, len(limiters))
	for i, l := range limiters {
		var err error
		results[i], err = l.request(ctx, "allow", ask{n: counts[l.keyNames[keyConfig]], detail: true, source: &taken[i]})
		if err != nil {
			return nil, errors.Join(err, undo(ctx, counts, limiters[:i], taken))
		}
		if results[i].Allowed {
			continue
		}
		if err := undo(ctx, counts, limiters[:i], taken); err != nil {
			return nil, err
		}
		for j := range results[:i] {
			results[j].Allowed, results[j].ResetAfter = false, 0
			results[j].Remaining += counts[limiters[j].keyNames[keyConfig]]
		}
		return results, nil
	}
	return results, nil
}

// undo gives back what limiters granted, all at once and each call within the client's time for it. It goes on when ctx ends,
// but nobody waits for it then: the permits must go back, the caller may be gone.
func undo(ctx context.Context, counts map[string]int64, limiters []*Limiter, taken []source) error {
	undone := make(chan error, len(limiters))
	for i, l := range limiters {
		go func() { undone <- l.undo(context.WithoutCancel(ctx), counts[l.keyNames[keyConfig]], taken[i]) }()
	}
	var failed error
	for range limiters {
		select {
		case err := <-undone:
			if failed == nil {
				failed = err
			}
		case <-ctx.Done():
			return errors.Join(failed, fmt.Errorf("allow all: %w", unknown(ctx.Err())))
		}
	}
	return failed
}

// undo gives back the very permits that a grant took, so that others' return when they would have returned: as far as they
// are still there.
func (l *Limiter) undo(ctx context.Context, n int64, from source) error {
	if from.local {
		l.client.deputies.untake(l, n)
		return nil
	}
	_, err := l.release(ctx, n, from.at)
	return err
}
