package rratelimiter

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/dispatch"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// Acquiring and releasing permits: argument checks, errors and observers of the public methods. How
// callers share calls is not decided here.

// Allow asks once for n permits and returns all that an HTTP response needs. If fewer than n
// permits are free, it takes none, and Result.RetryAfter says when they will be free.
//
// RetryAfter is exact if the limiter has at most 512 live records, or if n permits will be free
// when its 512 oldest records have expired. Otherwise RetryAfter is a lower bound.
func (l *Limiter) Allow(ctx context.Context, n int64) (Result, error) {
	return l.request(ctx, "allow", dispatch.Ask{N: n, Detail: true})
}

// Peek returns what Allow would return now, and takes no permits. It writes nothing to Redis: it
// does not remove expired records, set the rate of WithRate or WithEnforcedRate, or repair what is
// stored. Only Result.Remaining differs: it is the number of permits that are free now, n of them
// included if Allowed. The answer can be out of date at once: another caller can take the permits.
//
// What this process knows counts as for Allow: permits of a lease (WithLease) allow the request, a
// refusal in the deny cache (WithDenyCache) refuses it, permits that callers of this process wait
// for are not free, and with WithFallback the process answers while Redis is away. Peek takes no
// lease. So where Allow would take one, it can leave fewer permits, which return later.
//
// The times are exact as those of Allow are, with one exception: if the records hold more permits
// than they should, for example after a release by Redisson, Allow may repair them first, and its
// times are then later. Peek counts at most 100,000 expired records. The errors are those of Allow.
// A lost reply never causes ErrOutcomeUnknown. Observers do not see the call.
func (l *Limiter) Peek(ctx context.Context, n int64) (Result, error) {
	result, err := dispatch.Result{}, l.err
	if err == nil && n < 1 {
		err = ErrInvalidPermits
	}
	if err == nil {
		result, err = l.core.Peek(ctx, n)
	}
	return Result(result), wrap("peek at", l.name, withNumber(err, n))
}

// TryAcquire takes n permits if they are free now, and reports whether it did (Redisson:
// tryAcquire).
func (l *Limiter) TryAcquire(ctx context.Context, n int64) (bool, error) {
	result, err := l.request(ctx, "try to acquire from", dispatch.Ask{N: n})
	return result.Allowed, err
}

// TryAcquireTimeout takes n permits and waits for them up to timeout (Redisson: tryAcquire with a
// timeout). If timeout is 0 or less, it is TryAcquire.
//
// It returns false as soon as a reply from Redis shows that the permits will not be free in time.
// It does not wait for a release or a new rate that could free them earlier. Redisson waits until
// the timeout instead.
//
// If Redisson uses limiters on the server, TryAcquireTimeout may leave free permits to Redisson for
// up to 150 ms, or a quarter of the interval if that is less. It asks once more before the timeout
// or ctx ends, so this costs no caller its permits.
//
// If a call is in flight when the timeout ends, TryAcquireTimeout waits for the reply, so a timeout
// never causes ErrOutcomeUnknown. Use the deadline of ctx for a hard bound.
func (l *Limiter) TryAcquireTimeout(ctx context.Context, n int64, timeout time.Duration) (bool, error) {
	if timeout <= 0 {
		return l.TryAcquire(ctx, n)
	}
	until := l.core.Clock().Add(timeout)
	result, err := l.request(ctx, "try to acquire from", dispatch.Ask{N: n, Waits: true, Until: until})
	return result.Allowed, err
}

// Acquire takes n permits and waits for them until ctx ends (Redisson: acquire). Waiting callers
// are served in order, with the exceptions that [Limiter] lists. If Redisson uses limiters on the
// server, Acquire may leave free permits to Redisson for up to 150 ms, or a quarter of the interval
// if that is less, but not beyond the deadline of ctx.
//
// More permits than the rate are ErrExceedsRate, unless the limiter has [WithInstalments].
//
// With [WithFailFast], Acquire returns a *[NotInTimeError] as soon as a reply from Redis shows that
// the permits cannot be free before the deadline of ctx.
//
// If ctx ends while the caller waits, the error is ctx.Err(). If a call for the caller is in flight
// at that time, the error wraps both ctx.Err() and ErrOutcomeUnknown. If a call to Redis fails,
// Acquire stops waiting and returns the error. A caller that must survive an outage of Redis calls
// Acquire again, or uses WithFallback.
func (l *Limiter) Acquire(ctx context.Context, n int64) error {
	_, err := l.request(ctx, "acquire from", dispatch.Ask{N: n, Waits: true})
	return err
}

// request answers a request and reports it to the request observer.
func (l *Limiter) request(ctx context.Context, operation string, a dispatch.Ask) (Result, error) {
	var started time.Time
	if l.client.requestObserver != nil {
		started = time.Now()
	}
	var result dispatch.Result
	var leased bool
	err := l.err
	if err == nil && a.N < 1 {
		err = ErrInvalidPermits
	}
	if err == nil {
		result, leased, err = l.core.Serve(ctx, &a)
	}
	if err != nil {
		result = dispatch.Result{}
		var late schedule.NotInTimeError
		if errors.As(err, &late) {
			err = &NotInTimeError{late.At}
		}
		if a.Taken > 0 {
			err = &PartlyTakenError{a.Taken, err}
		}
		err = wrap(operation, l.name, withNumber(err, a.N))
	}
	if l.client.requestObserver != nil {
		info := RequestInfo{
			Limiter: l.name,
			Method:  methodOf(&a),
			Waits:   a.Waits,
			Permits: a.N,
			Leased:  leased,
			Latency: time.Since(started),
			Err:     err,
		}
		if info.Granted = a.Taken; result.Allowed {
			info.Granted = a.N
		}
		l.client.tell(ctx, info)
	}
	return Result(result), err
}

// withNumber adds the number of permits to an error about it.
func withNumber(err error, n int64) error {
	if errors.Is(err, ErrInvalidPermits) || errors.Is(err, ErrExceedsRate) {
		return fmt.Errorf("%w (%d)", err, n)
	}
	return err
}

// methodOf returns the RequestInfo.Method of a request.
func methodOf(a *dispatch.Ask) string {
	switch {
	case a.Waits && a.Until.IsZero():
		return "Acquire"
	case a.Waits:
		return "TryAcquireTimeout"
	case a.Detail:
		return "Allow"
	}
	return "TryAcquire"
}

// AcquireUpTo takes as many permits as are free now, at most n, and returns how many it took. While
// other callers of this process wait for permits of the limiter, it takes none.
func (l *Limiter) AcquireUpTo(ctx context.Context, n int64) (int64, error) {
	return l.upTo(ctx, "acquire free permits of", n, nil)
}

// upTo serves AcquireUpTo, and reports it to the request observer. sources are those of UpTo in
// dispatch.
func (l *Limiter) upTo(ctx context.Context, operation string, n int64, sources []dispatch.Source) (int64, error) {
	started := time.Now()
	granted, err := l.serveUpTo(ctx, operation, n, sources)
	l.client.tell(ctx, RequestInfo{
		Limiter: l.name, Method: "AcquireUpTo", Permits: n, Granted: granted, Latency: time.Since(started), Err: err,
	})
	return granted, err
}

func (l *Limiter) serveUpTo(ctx context.Context, operation string, n int64, sources []dispatch.Source) (int64, error) {
	if l.err == nil && n < 1 {
		return 0, wrap(operation, l.name, fmt.Errorf("%w (%d)", ErrInvalidPermits, n))
	}
	if l.err != nil {
		return 0, wrap(operation, l.name, l.err)
	}
	got, err := l.core.UpTo(ctx, n, sources)
	return got, wrap(operation, l.name, err)
}

// Release gives n permits back before their interval is over, and returns how many came back: at
// most the permits in use (Redisson: release, since 3.52.0). It removes the permits of the oldest
// grants first. The remaining records keep their times. So, not counting the released permits, no
// window holds more than the rate. Redisson's release does not remove records: after it, the same
// permits become free a second time when their records expire.
//
// If n is 0, Release does nothing. If n is negative, the error is ErrInvalidPermits. Without a rate
// the error is ErrNotInitialized. If the reply is lost, the error is ErrOutcomeUnknown, and more
// permits may have come back than Release returns.
func (l *Limiter) Release(ctx context.Context, n int64) (int64, error) {
	const operation = "release to"
	if l.err != nil {
		return 0, wrap(operation, l.name, l.err)
	}
	if n < 0 {
		return 0, wrap(operation, l.name, fmt.Errorf("%w (%d)", ErrInvalidPermits, n))
	}
	released, err := l.core.Release(ctx, n, 0)
	return released, wrap(operation, l.name, err)
}

// AllowAll asks several limiters for n permits each: either all of them grant, or none does. A
// limiter that is listed twice grants 2n permits. If one limiter is listed twice with different
// options, the options listed first count. Two names that have the same permits in Redis, such as
// "a" and "{a}", are refused with ErrInvalidOption.
//
// With a *redis.Client, AllowAll asks all limiters in one step. With a cluster, a Ring or any other
// client, it does so if the names share a hash tag (on a cluster: a slot). Callers of this process
// that ask the same limiters at the same time share these calls. Callers that ask for the same
// numbers of permits are served in the order of their arrival. AllowAll does not wait for permits,
// so it may take permits before callers that wait for one of the limiters. If ctx ends while the
// call is in flight, the error wraps both ctx.Err() and ErrOutcomeUnknown, and permits that the
// call grants stay taken.
//
// If AllowAll cannot ask all limiters in one step, it asks them one after the other, in the order
// of the arguments. When a limiter refuses, the permits of the limiters before it are given back.
// Other callers may be refused until then, so list first the limiter that refuses most often. If
// ctx ends before all permits are given back, the rest is given back in the background, and the
// error wraps both ctx.Err() and ErrOutcomeUnknown. If ctx ends while a limiter is asked, its
// permits are given back when the reply arrives. If that reply is lost, they stay taken for one
// interval.
//
// The results are in the order of the limiters. If a limiter refuses, Allowed is false in all
// results, and RetryAfter is 0 for the limiters that would have granted. If the limiters were asked
// one after the other, NextAfter and ResetAfter are 0 for the limiters before the one that refused,
// and the limiters after it, which were not asked, have zero Results.
func (c *Client) AllowAll(ctx context.Context, n int64, limiters ...*Limiter) ([]Result, error) {
	return c.AllowAllN(ctx, slices.Repeat([]int64{n}, len(limiters)), limiters...)
}

// AllowAllN is AllowAll for permits[i] of limiters[i]. For example, a call of a language model
// takes one permit of a limit of requests per minute, and one permit for each token of a limit of
// tokens per minute. The slices must have the same length.
func (c *Client) AllowAllN(ctx context.Context, permits []int64, limiters ...*Limiter) ([]Result, error) {
	return c.askAll(ctx, "allow all", dispatch.Ask{}, permits, limiters, nil)
}

// AcquireAll takes n permits of each limiter, of all at the same time, and waits for them until ctx
// ends. While it waits, it holds no permits. Limiters that are listed twice, and names that are
// refused, are as for [Client.AllowAll].
//
// If all limiters can be asked in one step (see [Client.AllowAll]), waiting callers have an order:
// at each limiter, callers of [Limiter.Acquire] and of AcquireAll are served in the order of their
// arrival, as described at [Limiter], if they use Limiters with the same name and options. A call
// for one of them leaves free the permits that callers in front of it wait for. There is one
// exception: while a caller of AcquireAll waits for another limiter, those behind it may take
// permits of this one that are back in time. So a caller of AcquireAll waits at most until its turn
// at each of its limiters and, for each of the others, one interval more.
//
// If the limiters are asked one after the other, AcquireAll asks them in the order of their keys,
// whatever the order of the arguments, and gives back what it took if one refuses. It asks again
// when the permits of that one are free, but also before: after pauses of about 10 ms at first and
// 15 s at most, each twice as long as the one before. Another caller may have given permits back.
// Then callers have no strict order. One that was too late when permits returned asks up to 5 ms
// before those that wait for the first time. While AcquireAll waits, it also calls each limiter, so
// that Redis keeps those with a keep-alive, as [Rate] says: again after the interval and 500 ms, or
// after 15 s without a keep-alive.
//
// The errors are those of [Limiter.Acquire]. With [WithFailFast] for one of the limiters,
// AcquireAll returns a *[NotInTimeError] as soon as a reply shows that it cannot have the permits
// before the deadline of ctx, if the limiters are asked in one step.
func (c *Client) AcquireAll(ctx context.Context, n int64, limiters ...*Limiter) error {
	return c.AcquireAllN(ctx, slices.Repeat([]int64{n}, len(limiters)), limiters...)
}

// AcquireAllN is AcquireAll for permits[i] of limiters[i]. The slices must have the same length.
func (c *Client) AcquireAllN(ctx context.Context, permits []int64, limiters ...*Limiter) error {
	_, err := c.askAll(ctx, "acquire all", dispatch.Ask{Waits: true}, permits, limiters, nil)
	return err
}

// TryAcquireAllTimeout is AcquireAll, but waits up to timeout. It reports whether all limiters
// granted. If timeout is 0 or less, it asks once, as [Client.AllowAll] does. It returns false as
// soon as a reply shows that the permits will not be free in time, as [Limiter.TryAcquireTimeout]
// does. If the limiters are asked one after the other, a second reply must show it, and calls that
// have begun when the timeout ends go on to the last limiter, unless a request is queued at one.
func (c *Client) TryAcquireAllTimeout(
	ctx context.Context, n int64, timeout time.Duration, limiters ...*Limiter,
) (bool, error) {
	a := dispatch.Ask{}
	if timeout > 0 {
		a = dispatch.Ask{Waits: true, Until: c.core.Clock().Add(timeout)}
	}
	results, err := c.askAll(ctx, "try to acquire all", a, slices.Repeat([]int64{n}, len(limiters)), limiters, nil)
	return err == nil && !slices.ContainsFunc(results, func(r Result) bool { return !r.Allowed }), err
}

// askAll makes a request to several limiters, which waits as a says. It fills in the grants with
// what was granted, unless they are nil.
func (c *Client) askAll(
	ctx context.Context, operation string, a dispatch.Ask, permits []int64, limiters []*Limiter, grants []*Grant,
) ([]Result, error) {
	asked, err := c.distinct(operation, permits, limiters, 1)
	if err == nil && len(limiters) == 0 {
		err = ctx.Err() // otherwise ctx is checked for each limiter, and the observer sees it
	}
	if err != nil || len(limiters) == 0 {
		return nil, err
	}
	sums, distinct := asked.sums, asked.limiters
	if grants != nil {
		a.Sources = make([]dispatch.Source, len(distinct))
	}
	var found []Result
	switch {
	case a.Waits && len(distinct) == 1:
		a.N = sums[0]
		found = make([]Result, 1)
		found[0], err = distinct[0].request(ctx, operation+" of", a)
	case c.core.Topology().OneStep(asked.keys):
		found, err = c.askTogether(ctx, operation, a, sums, distinct)
	case a.Waits:
		found, err = c.waitInOrder(ctx, operation, a, sums, distinct)
	default:
		found, err = c.askInOrder(ctx, operation, a, sums, distinct)
	}
	if err != nil {
		return nil, err
	}
	for i, at := range asked.index {
		if grants != nil && found[at].Allowed {
			grants[i] = &Grant{limiter: distinct[at], from: [1]dispatch.Source{a.Sources[at]}, left: permits[i]}
		}
	}
	return asked.spread(found), nil
}

// A distinctAsk is what is asked of several limiters: one that is listed twice is asked once, for
// the sum.
type distinctAsk struct {
	limiters []*Limiter
	sums     []int64
	index    []int    // for each place in the list of the caller, the place in these lists
	few      struct { // memory for few limiters
		limiters [4]*Limiter
		sums     [4]int64
		index    [4]int
	}
}

// keys returns the names of the keys of all limiters.
func (d *distinctAsk) keys() (all []string) {
	for _, l := range d.limiters {
		all = append(all, l.core.Keys()...)
	}
	return all
}

// spread returns the results for the list of the caller.
func (d *distinctAsk) spread(found []Result) []Result {
	if len(d.limiters) == len(d.index) {
		return found
	}
	results := make([]Result, len(d.index))
	for i, at := range d.index {
		results[i] = found[at]
	}
	return results
}

// distinct checks the arguments of a method for several limiters. least is the smallest number of
// permits that can be asked for.
func (c *Client) distinct(operation string, permits []int64, limiters []*Limiter, least int64) (*distinctAsk, error) {
	if len(permits) != len(limiters) {
		return nil, fmt.Errorf(
			"%s: %w: %d numbers for %d limiters", operation, ErrInvalidPermits, len(permits), len(limiters),
		)
	}
	d := new(distinctAsk)
	d.limiters, d.sums, d.index = d.few.limiters[:0], d.few.sums[:0], d.few.index[:0]
	for i, l := range limiters {
		n := permits[i]
		if n < least {
			return nil, fmt.Errorf("%s: %w: %d", operation, ErrInvalidPermits, n)
		}
		if l == nil {
			return nil, fmt.Errorf("%s: %w", operation, invalidOption("a limiter is nil"))
		}
		if l.client != c {
			return nil, wrap(operation+" of", l.name, invalidOption("the limiter is another client's"))
		}
		if l.err != nil {
			return nil, wrap(operation+" of", l.name, l.err)
		}
		at := slices.IndexFunc(
			d.limiters, func(other *Limiter) bool {
				return other.core.Keys()[keys.Permits] == l.core.Keys()[keys.Permits]
			},
		)
		if at >= 0 && d.limiters[at].core.Key() != l.core.Key() { // such as "a" and "{a}"
			return nil, wrap(
				operation+" of", l.name,
				invalidOption("it has the permits of %s, too", keys.Quoted(d.limiters[at].name)),
			)
		}
		if at < 0 {
			at = len(d.limiters)
			d.limiters, d.sums = append(d.limiters, l), append(d.sums, 0)
		}
		d.sums[at] += min(n, math.MaxInt64-d.sums[at])
		d.index = append(d.index, at)
	}
	if c.err != nil {
		return nil, fmt.Errorf("%s: %w", operation, c.err)
	}
	return d, nil
}

// askTogether asks all limiters in one script. It fills in the sources with what was granted,
// unless they are nil.
func (c *Client) askTogether(
	ctx context.Context, operation string, a dispatch.Ask, permits []int64, limiters []*Limiter,
) ([]Result, error) {
	var started time.Time
	if c.requestObserver != nil {
		started = time.Now()
	}
	cores := make([]*dispatch.Limiter, len(limiters))
	for i, l := range limiters {
		cores[i] = &l.core
	}
	a.Detail = true
	decided, leased, err := c.core.ServeAll(ctx, permits, &a, cores)
	if err != nil {
		err = errorOfAll(operation, permits, limiters, err)
	}
	results := make([]Result, len(decided))
	for i, r := range decided {
		results[i] = Result(r)
	}
	if c.requestObserver == nil {
		return results, err
	}
	latency := time.Since(started)
	for i, l := range limiters {
		info := RequestInfo{
			Limiter: l.name,
			Method:  methodOfAll(&a),
			Waits:   a.Waits,
			Permits: permits[i],
			Leased:  leased,
			Latency: latency,
			Err:     err,
		}
		if err == nil && results[i].Allowed {
			info.Granted = permits[i]
		}
		c.tell(ctx, info)
	}
	return results, err
}

// errorOfAll names the operation in an error, and the limiter if it is about one.
func errorOfAll(operation string, permits []int64, limiters []*Limiter, err error) error {
	var late schedule.NotInTimeError
	if errors.As(err, &late) {
		err = &NotInTimeError{late.At}
	}
	var about schedule.MemberError
	if errors.As(err, &about) {
		return wrap(operation+" of", limiters[about.Limiter].name, withNumber(about.Err, permits[about.Limiter]))
	}
	return fmt.Errorf("%s: %w", operation, err)
}

// methodOfAll returns the RequestInfo.Method of a request to several limiters.
func methodOfAll(a *dispatch.Ask) string {
	switch {
	case !a.Waits:
		return "AllowAll"
	case a.Until.IsZero():
		return "AcquireAll"
	}
	return "TryAcquireAllTimeout"
}

// A caller that waits asks again after a pause, or when the permits are free if that is earlier.
// Another caller may have taken them for a moment, and given them back. Pauses double.
const (
	firstPause   = 10 * time.Millisecond
	longestPause = 15 * time.Second

	// A caller that waits for permits to return for the first time lets others be first: it is late
	// by so much, but at most by latePart of the wait.
	longestLate = 5 * time.Millisecond
	latePart    = 100
)

// waitInOrder calls askInOrder until the limiters grant, ctx ends, or the permits are not free
// before the end of the timeout. All callers ask in the order of the keys. So if several want the
// same limiters, one of them gets the permits.
func (c *Client) waitInOrder(
	ctx context.Context, operation string, a dispatch.Ask, permits []int64, limiters []*Limiter,
) ([]Result, error) {
	order := make([]int, len(limiters))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return strings.Compare(limiters[a].core.Key(), limiters[b].core.Key())
	})
	sizes, sorted := make([]int64, len(order)), make([]*Limiter, len(order))
	for i, at := range order {
		sizes[i], sorted[i] = permits[at], limiters[at]
	}
	stay := make([]time.Time, len(sorted)) // see pauseInOrder
	missed := false                        // it was there when the permits returned, and was refused
	for longest := firstPause; ; longest = min(2*longest, longestPause) {
		found, err := c.askInOrder(ctx, operation, a, sizes, sorted)
		if err != nil {
			return nil, err
		}
		results, wait := make([]Result, len(found)), time.Millisecond
		for i, at := range order {
			results[at] = found[i]
			wait = max(wait, found[i].RetryAfter)
		}
		if results[0].Allowed {
			return results, nil
		}
		// at random, so that two callers do not ask at the same time again and again
		pause, now := longest/2+rand.N(longest/2), c.core.Clock()
		late := !a.Until.IsZero() && !now.Add(wait).Before(a.Until)
		if late && (longest > firstPause || !now.Add(pause).Before(a.Until)) {
			return results, nil
		}
		polite := wait + min(longestLate, wait/latePart)
		if !missed && (a.Until.IsZero() || now.Add(polite).Before(a.Until)) {
			wait = polite
		}
		missed = missed || wait <= pause
		if err := c.pauseInOrder(ctx, min(wait, pause), sorted, stay); err != nil {
			return nil, fmt.Errorf("%s: %w", operation, err)
		}
	}
}

// pauseInOrder blocks for d. Meanwhile it keeps the limiters in Redis: stay[i] is when limiters[i]
// needs its next call for that; zero: now. A call that fails is repeated in the next pause, and its
// error is dropped.
func (c *Client) pauseInOrder(ctx context.Context, d time.Duration, limiters []*Limiter, stay []time.Time) error {
	now := time.Now()
	end := now.Add(d)
	bounded, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	for ; now.Before(end); now = time.Now() {
		var calls sync.WaitGroup
		for i, l := range limiters {
			if now.Before(stay[i]) {
				continue
			}
			calls.Go(func() {
				switch kept, err := l.core.Stay(bounded); {
				case err != nil:
					stay[i] = end
				case kept == 0:
					stay[i] = now.Add(longestPause)
				default:
					stay[i] = now.Add(kept)
				}
			})
		}
		calls.Wait()
		next := slices.MinFunc(append(stay, end), time.Time.Compare)
		if err := c.core.Pause(ctx, time.Until(next)); err != nil {
			return err
		}
	}
	return nil
}

// askInOrder asks one limiter after the other. If one refuses, or if the timeout ends while the
// request is queued at one, it gives back what it took. It fills in the sources as askTogether
// does.
func (c *Client) askInOrder(
	ctx context.Context, operation string, a dispatch.Ask, permits []int64, limiters []*Limiter,
) ([]Result, error) {
	fresh := a.Waits || a.Sources != nil // as in one step: no deny cache answers
	sources := a.Sources
	if sources == nil {
		sources = make([]dispatch.Source, len(limiters))
	}
	results := make([]Result, len(limiters))
	for i, l := range limiters {
		var err error
		one := dispatch.Ask{N: permits[i], Detail: true, Fresh: fresh, Until: a.Until, Sources: sources[i : i+1]}
		results[i], err = l.request(ctx, operation+" of", one)
		if err != nil {
			back := undo(ctx, operation, permits, limiters[:i], sources)
			if ctx.Err() != nil && back != nil {
				return nil, back // the same cause, and the outcome of giving back is unknown, too
			}
			return nil, errors.Join(err, back)
		}
		if results[i].Allowed {
			continue
		}
		if err := undo(ctx, operation, permits, limiters[:i], sources); err != nil {
			return nil, err
		}
		for j := range results[:i] {
			results[j].Allowed, results[j].NextAfter, results[j].ResetAfter = false, 0, 0
			results[j].Remaining += permits[j]
		}
		return results, nil
	}
	return results, nil
}

// undo gives back what limiters granted, in parallel, each call within the call timeout. If ctx
// ends, undo returns ErrOutcomeUnknown, and the calls go on in the background.
func undo(
	ctx context.Context, operation string, permits []int64, limiters []*Limiter, sources []dispatch.Source,
) error {
	undone := make(chan error, len(limiters))
	for i, l := range limiters {
		go func() {
			_, err := l.core.Undo(context.WithoutCancel(ctx), permits[i], sources[i])
			undone <- wrap("release to", l.name, err)
		}()
	}
	var failed error
	for range limiters {
		select {
		case err := <-undone:
			if failed == nil {
				failed = err
			}
		case <-ctx.Done():
			return errors.Join(failed, fmt.Errorf("%s: %w", operation, script.Unknown(ctx.Err())))
		}
	}
	return failed
}
