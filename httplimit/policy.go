package httplimit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/series"
	"github.com/rratelimiter/rratelimiter/internal/span"
)

// policy.go decides by the replies of the limits, or without replies. It does not depend on HTTP.

// A Failure decides what happens to requests when the limits cannot be checked.
type Failure int

// The failure modes.
const (
	FailOpen   Failure = iota // requests pass
	FailClosed                // requests are refused, with status 503
	// FailLocal lets this process decide locally; see Policy.LocalShare. It needs the Rate of the
	// Claim, which a Limit of Shared has not: give the limiter of such a Limit the option
	// rratelimiter.WithFallback instead. The process counts separately at most 10,000 keys that
	// have permits in use. All further keys of a limit together get the permits of one key.
	FailLocal
)

// A Policy decides what happens if a limit refuses, or if limits cannot be checked. The zero Policy
// refuses a request at once if a limit refuses it, and lets a request pass if there is no reply
// within 100 ms. The fields of a Policy must not change after its first use. A Policy is safe for
// concurrent use and must not be copied.
type Policy struct {
	// Name identifies the policy to observers. It is the label "policy" of metrics.
	Name string
	// Observer gets each decision, if it implements rratelimiter.GuardObserver. nil means the
	// observer of the Client of the request's first *rratelimiter.Limiter. If the request has no
	// such limiter, nil means the observer of the Client of the first *rratelimiter.Limiter that
	// this policy has checked.
	Observer rratelimiter.Observer
	// Failure decides what happens to a request whose limits did not reply within Bound, or
	// returned an error.
	//
	// While the server of a limit counts as away, requests do not wait for it. Failure decides at
	// once, and one call at a time checks whether the server is back. A limiter with
	// rratelimiter.WithFallback decides in the process instead. All limiters of other types than
	// *rratelimiter.Limiter count as one server if their limits have the same name.
	//
	// If one of several limits has an invalid configuration (no rate, or a rate that cannot be
	// set), Failure applies to this limit only. With FailOpen, the other limits decide. With
	// FailClosed, the request is refused. With FailLocal, the other limits decide, and this process
	// decides for the invalid limit.
	Failure Failure
	// Bound is the time within which limits must reply; 0 means 100 ms. The time that a request
	// waits for permits does not count, but the wait ends if Redis does not reply for longer than
	// Bound. While a request waits, usually no call is in flight until permits are due to return,
	// so an outage is noticed only then. For limiters of other types than *rratelimiter.Limiter
	// that have TryAcquireTimeout, the request waits at most Wait plus Bound.
	Bound time.Duration
	// LocalShare is the part of each limit's rate that this process grants locally with FailLocal;
	// 0 means 1, the whole rate. With n processes and a LocalShare of 1/n, all processes together
	// keep to the rate, if the rate has at least n permits: each process grants at least one permit
	// per interval. If no limit has a known Rate, the request passes.
	LocalShare float64
	// Wait is the longest time that a request may wait for permits; 0 means that no request waits.
	// A request that would have to wait longer is refused at once. If requests of one process wait
	// for a single *rratelimiter.Limiter without CountIf and CostAfter, they are served in order.
	// Other requests are served in no particular order; with CountIf or CostAfter, they ask again
	// at least once a second, because permits may come back. With Shadow, no request waits, and
	// Limit.Shadow and a key with a penalty (Limit.Penalty) let no request wait, either.
	Wait time.Duration
	// Shadow lets every request pass whose context has not ended, without waiting and without
	// header fields in the response. The policy counts the requests that a limit would have
	// refused. FailClosed acts as FailOpen. Permits are taken, and penalties begin (Limit.Penalty).
	Shadow bool
	// Jitter is the longest time by which the RetryAfter of a refusal is raised, at random, so that
	// clients that were refused together do not come back together; 0 means none. All limits of one
	// request are raised by the same time. Retry-After and t in the field RateLimit have whole
	// seconds, rounded up, so less than some seconds has little effect there. A penalty does not
	// last longer because of it.
	Jitter time.Duration
	// OnDeny is called for each request that is refused, also by FailClosed, or that a limit would
	// refuse without Shadow. Decision.Refused returns the names of the limits that refused.
	OnDeny func(ctx context.Context, d Decision)
	// OnError is called for
	//   - each request that could not be decided, unless its context ended before;
	//   - each limit with an invalid configuration;
	//   - each request for more permits than the rate (rratelimiter.ErrExceedsRate): its number of
	//     permits is reduced;
	//   - each limit whose permits could not be given back or corrected.
	OnError func(ctx context.Context, err error)
	// OnDecision is called for each decision, before the request is handled.
	OnDecision func(ctx context.Context, d Decision)
	// Logger gets one line with the reason when limits can no longer be checked, and one line when
	// the limits decide again and no request has failed for 1 s. Errors of the configuration are
	// logged at most once a minute, and so are errors of giving permits back. nil means
	// slog.Default().
	Logger *slog.Logger

	counts  [outcomes]atomic.Int64
	known   atomic.Pointer[rratelimiter.Client] // client of the first limiter that was checked
	local   localLimiter
	outages outages
	mu      sync.Mutex
	// last log time of configuration errors (true) and others; guarded by mu
	logged map[bool]time.Time
}

// An Outcome is the result of a request.
type Outcome int

// The outcomes.
const (
	// the request passed: no limit applies to it, or Guard.Skip exempts it
	Unlimited Outcome = iota
	Allowed           // the request passed: all limits allowed it
	Denied            // a limit refused the request
	// a limit refused the request, but it passed because of Policy.Shadow or Limit.Shadow
	Shadowed
	FailedOpen     // limits could not be checked, and the request passed
	FailedClosed   // limits could not be checked, and the request was refused
	AllowedLocally // limits could not be checked, and this process allowed the request
	DeniedLocally  // limits could not be checked, and this process refused the request
	// as DeniedLocally, but the request passed because of Policy.Shadow or Limit.Shadow
	ShadowedLocally
	Gone // the request's context ended before the decision

	outcomes = iota
)

var outcomeNames [outcomes]string = series.GuardOutcomes

// String returns the outcome in words: "failed open".
func (o Outcome) String() string {
	if o < 0 || o >= outcomes {
		return fmt.Sprintf("unknown outcome %d", int(o))
	}
	return outcomeNames[o]
}

// Passed reports whether the request may be handled.
func (o Outcome) Passed() bool {
	switch o {
	case Denied, DeniedLocally, FailedClosed, Gone:
		return false
	}
	return true
}

// A Decision is the outcome of a request, with its reasons.
type Decision struct {
	Outcome Outcome
	Answers []Answer      // the answers of the limits that were checked, in their order
	Err     error         // the reason if limits could not be checked; usually nil
	Took    time.Duration // time until the decision, including the wait for permits
}

// An Answer is the reply of one limit. A limit that was not checked, because a limit before it
// refused, has no Answer.
type Answer struct {
	Claim
	rratelimiter.Result      // Allowed is true only if the permits were taken (if 0: if one was free)
	Refused             bool // this limit refused the request

	back way
	bill *bill // what the request uses; nil: its permits do not depend on the response
}

// Refused returns the names of the limits that refused.
func (d Decision) Refused() []string {
	var names []string
	for _, a := range d.Answers {
		if a.Refused {
			names = append(names, a.Name)
		}
	}
	return names
}

// RetryAfter returns the time until all limits that refused can allow the request, if no other
// request takes the permits. It returns 0 if no limit refused, or if the time is not known.
func (d Decision) RetryAfter() time.Duration { return retryAfter(d.Answers) }

func retryAfter(answers []Answer) (longest time.Duration) {
	for _, a := range answers {
		if a.Refused {
			longest = max(longest, a.RetryAfter)
		}
	}
	return longest
}

func refused(answers []Answer) bool {
	for _, a := range answers {
		if a.Refused {
			return true
		}
	}
	return false
}

// Count returns the number of requests with an outcome so far.
func (p *Policy) Count(o Outcome) int64 {
	if o < 0 || o >= outcomes {
		return 0
	}
	return p.counts[o].Load()
}

// Decide checks all claims of a request, and decides whether the request passes. Guards call
// Decide. Servers of other protocols and consumers of messages can call it, too.
func (p *Policy) Decide(ctx context.Context, claims ...Claim) Decision {
	started := time.Now()
	var d Decision
	observer := p.observer(claims)
	claims = p.limited(ctx, claims)
	enforced, shadowed := p.split(claims)
	if len(enforced) > 0 {
		d.Answers, d.Err = p.check(ctx, enforced, p.Wait > 0 && !p.Shadow)
		p.conclude(ctx, enforced, &d)
	}
	if len(shadowed) > 0 && d.Outcome.Passed() {
		p.shadow(ctx, shadowed, &d)
	}
	p.scatter(&d)
	d.Took = time.Since(started)
	p.counts[d.Outcome].Add(1)
	if o, ok := observer.(rratelimiter.GuardObserver); ok {
		o.Guard(ctx, rratelimiter.GuardInfo{Policy: p.Name, Outcome: d.Outcome.String(), Latency: d.Took, Err: d.Err})
	}
	switch {
	case d.Outcome == Gone || len(claims) == 0:
	case d.Err == nil:
		p.decided(ctx)
	case misconfigured(d.Err):
		p.report(ctx, d.Err)
	default:
		p.tell(ctx, d.Err)
		p.failed(ctx, claims, d)
	}
	if p.OnDeny != nil && (refused(d.Answers) || d.Outcome == FailedClosed) {
		p.OnDeny(ctx, d)
	}
	if p.OnDecision != nil {
		p.OnDecision(ctx, d)
	}
	return d
}

// scatter raises the times of a refusal (see Policy.Jitter).
func (p *Policy) scatter(d *Decision) {
	if p.Jitter <= 0 || d.Outcome.Passed() {
		return
	}
	later := rand.N(p.Jitter)
	for i := range d.Answers {
		if a := &d.Answers[i]; a.Refused && a.RetryAfter > 0 {
			a.RetryAfter = span.Sum(a.RetryAfter, later)
		}
	}
}

// observer returns the observer of a decision on claims.
func (p *Policy) observer(claims []Claim) rratelimiter.Observer {
	if p.Observer != nil {
		return p.Observer
	}
	client := p.known.Load()
	for _, c := range claims {
		if l, ours := c.Limiter.(*rratelimiter.Limiter); ours && l != nil {
			if client == nil {
				p.known.CompareAndSwap(nil, l.Client())
			}
			client = l.Client()
			break
		}
	}
	if client == nil {
		return nil
	}
	return client.Observer()
}

// conclude sets the outcome after the claims were checked.
func (p *Policy) conclude(ctx context.Context, claims []Claim, d *Decision) {
	allowed, shadowed, denied := Allowed, Shadowed, Denied
	if d.Err != nil {
		d.Outcome = FailedOpen
		switch {
		case ctx.Err() != nil:
			d.Outcome = Gone
			return
		case p.failure() == FailClosed:
			d.Outcome = FailedClosed
			return
		case p.Failure != FailLocal:
			claims = slices.DeleteFunc(slices.Clone(claims), func(c Claim) bool { return !c.refuses() })
		}
		var can bool
		if d.Answers, can = p.local.ask(claims, p.LocalShare); !can {
			return
		}
		allowed, shadowed, denied = AllowedLocally, ShadowedLocally, DeniedLocally
	}
	switch {
	case !refused(d.Answers):
		d.Outcome = allowed
	case p.Shadow:
		d.Outcome = shadowed
	default:
		d.Outcome = denied
	}
}

// limited returns the claims that apply to the request. A claim for more permits than the rate is
// reduced to the rate. If several claims give one limiter different rates, the strictest rate
// counts.
func (p *Policy) limited(ctx context.Context, claims []Claim) []Claim {
	if len(claims) == 1 && claims[0].simple() {
		return claims
	}
	left := make([]Claim, 0, len(claims))
	for _, c := range claims {
		if c.empty() {
			continue
		}
		if c.Permits == 0 && !c.zero {
			c.Permits = 1
		}
		if err := c.invalid(); err != nil {
			c.Limiter, c.penalty, c.Permits = failing{err}, nil, c.needs()
		}
		if other := slices.IndexFunc(left, c.contradicts); other >= 0 {
			p.report(ctx, fmt.Errorf("limit %q, key %q: %w: a rate of %v, and another one of %v: the stricter one counts",
				c.Name, c.Key, rratelimiter.ErrInvalidOption, left[other].Rate, c.Rate))
			if !c.stricter(left[other]) {
				continue
			}
			left = slices.DeleteFunc(left, c.contradicts)
		}
		if c.refuses() {
			if slices.ContainsFunc(left, c.shares) {
				continue
			}
			c.Permits = 1 // any number is refused
		} else if most := c.Rate.Permits; c.known() && c.Permits > 0 {
			for _, other := range left {
				if c.shares(other) {
					most -= other.Permits
				}
			}
			most = max(most, 0)
			if c.Permits > most {
				p.report(ctx, fmt.Errorf("limit %q, key %q: %w: %d; it asks for %d instead, what other limits leave of the rate",
					c.Name, c.Key, rratelimiter.ErrExceedsRate, c.Permits, most))
				c.Permits = most
			}
			if most == 0 {
				continue // the claims before it take the whole rate
			}
		}
		left = append(left, c)
	}
	return left
}

// simple reports whether the claim applies as it is, if it is the only one.
func (c Claim) simple() bool {
	return !c.empty() && c.Permits > 0 && (!c.known() || c.Permits <= c.Rate.Permits) && c.invalid() == nil
}

// empty reports whether the limit of the claim does not apply.
func (c Claim) empty() bool { return c.unlimited() || c.zero && c.Permits == 0 && !c.after }

// unlimited reports whether the claim has no limiter.
func (c Claim) unlimited() bool {
	l, ours := c.Limiter.(*rratelimiter.Limiter)
	return c.Limiter == nil || ours && l == nil
}

// needs returns how many permits must be free so that the request can pass.
func (c Claim) needs() int64 { return max(1, c.Permits) }

// repeats reports whether two claims of one limit, for two readings of a path, use one limiter.
func (c Claim) repeats(other Claim) bool {
	_, ours := c.Limiter.(*rratelimiter.Limiter)
	return c.Name == other.Name && c.Key == other.Key && (!ours || c.shares(other))
}

// contradicts reports whether two claims give one limiter different rates.
func (c Claim) contradicts(other Claim) bool {
	return c.Rate != other.Rate && c.known() && other.known() && c.shares(other)
}

// stricter reports whether the rate of a claim is known, and lower than the known rate of the other
// claim.
func (c Claim) stricter(other Claim) bool {
	if !c.known() || !other.known() || other.refuses() {
		return false
	}
	mine := float64(c.Rate.Permits) / float64(c.Rate.Interval)
	its := float64(other.Rate.Permits) / float64(other.Rate.Interval)
	return mine < its || mine == its && c.Rate.Permits < other.Rate.Permits
}

// shares reports whether two claims use one limiter.
func (c Claim) shares(other Claim) bool {
	one, ours := c.Limiter.(*rratelimiter.Limiter)
	two, too := other.Limiter.(*rratelimiter.Limiter)
	return ours && too && one.Client() == two.Client() && one.Name() == two.Name()
}

// check checks all limits. First it refuses the keys that have a penalty: their requests take no
// permits and do not wait. Then the request takes its permits or, if it waits, gets them later. If
// it is refused in the end, its penalties begin.
func (p *Policy) check(ctx context.Context, claims []Claim, waits bool) ([]Answer, error) {
	bounded := p.bounded(ctx)
	defer bounded.end()
	if answers, err := p.penalized(bounded, claims); answers != nil || err != nil {
		return answers, bounded.cause(err)
	}
	answers, err := p.ask(bounded, claims)
	if err == nil && waits && refused(answers) {
		answers, err = p.await(ctx, claims, answers)
	}
	if err == nil {
		p.penalize(ctx, answers)
	}
	return answers, err
}

// ask asks all limits once, within the bound, which it ends.
func (p *Policy) ask(bounded *bound, claims []Claim) ([]Answer, error) {
	defer bounded.end()
	if err := p.away(bounded.Context, claims); err != nil {
		return nil, err
	}
	answers, err := p.askAll(bounded, claims)
	return answers, bounded.cause(err)
}

// bounded returns a context that ends after the bound.
func (p *Policy) bounded(ctx context.Context) *bound {
	return newBound(ctx, p.bound())
}

// A noAnswer is the error of limits that did not reply within this time.
type noAnswer time.Duration

func (n noAnswer) Error() string { return fmt.Sprintf("no answer within %v", time.Duration(n)) }

func (n noAnswer) Unwrap() error { return rratelimiter.ErrUnavailable }

func (p *Policy) bound() time.Duration {
	if p.Bound > 0 {
		return p.Bound
	}
	return 100 * time.Millisecond
}

// A waiter is a limiter that can queue callers.
type waiter interface {
	TryAcquireTimeout(ctx context.Context, n int64, timeout time.Duration) (bool, error)
}

// await waits for permits after a refusal, if the permits can be free within p.Wait.
func (p *Policy) await(ctx context.Context, claims []Claim, answers []Answer) ([]Answer, error) {
	started := time.Now()
	settles := slices.ContainsFunc(claims, Claim.settles)
	for {
		pause := retryAfter(answers)
		if pause <= 0 || pause > p.Wait-time.Since(started) {
			return answers, nil
		}
		if line, ok := claims[0].Limiter.(waiter); ok && len(claims) == 1 && !settles {
			return p.awaitInLine(ctx, line, answers[0])
		}
		// Permits of limits that settle may come back before.
		for due, look := time.Now().Add(pause), shortestPause; pause > 0; pause = time.Until(due) {
			if settles {
				pause = min(pause, look)
				look = min(2*look, longestPause)
			}
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return nil, ctx.Err()
			}
			var err error
			if answers, err = p.ask(p.bounded(ctx), claims); err != nil || !refused(answers) {
				return answers, err
			}
		}
	}
}

func (p *Policy) awaitInLine(ctx context.Context, line waiter, a Answer) ([]Answer, error) {
	bounded, cancel := context.WithTimeoutCause(ctx, span.Sum(p.Wait, p.bound()), noAnswer(p.bound()))
	defer cancel()
	bounded, giveUp := context.WithCancelCause(bounded)
	defer giveUp(nil)
	if l, ours := line.(*rratelimiter.Limiter); ours {
		go p.listen(bounded, l, giveUp)
	}
	ok, err := line.TryAcquireTimeout(bounded, a.Permits, p.Wait)
	switch {
	case errors.Is(err, rratelimiter.ErrExceedsRate), err == nil && !ok:
		return p.ask(p.bounded(ctx), []Claim{a.Claim}) // the rate was lowered; or to get the current RetryAfter
	case err != nil && bounded.Err() != nil:
		return nil, context.Cause(bounded)
	case err != nil:
		return nil, err
	}
	// TryAcquireTimeout returns only a bool. Remaining is 0, because other callers may be waiting
	// for the next permits, and NextAfter is the longest that it can be.
	a.Refused, a.Result = false, rratelimiter.Result{
		Allowed: true, Limit: a.Limit, NextAfter: a.Rate.Interval, ResetAfter: a.Rate.Interval,
	}
	return []Answer{a}, nil
}

// listen cancels a wait in the queue if Redis does not reply for the bound. The time in which no
// call is sent, because no permits can be free yet, does not count.
func (p *Policy) listen(ctx context.Context, l *rratelimiter.Limiter, giveUp context.CancelCauseFunc) {
	for silence := time.Duration(0); silence < p.bound(); silence = l.Health().Silence {
		timer := time.NewTimer(p.bound() - silence)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
	giveUp(noAnswer(p.bound()))
}

// failure returns what happens to requests that cannot be decided. With Shadow, no request is
// refused.
func (p *Policy) failure() Failure {
	if p.Shadow && p.Failure == FailClosed {
		return FailOpen
	}
	return p.Failure
}

// report reports errors that did not prevent a decision, and configuration errors. It logs at most
// one error of each of these two kinds a minute.
func (p *Policy) report(ctx context.Context, errs ...error) {
	for _, err := range errs {
		if err == nil {
			continue
		}
		p.tell(ctx, err)
		wrong := misconfigured(err)
		switch {
		case !p.due(wrong):
		case errors.Is(err, rratelimiter.ErrNotInitialized):
			p.logger().ErrorContext(ctx, "a limit has no rate", "error", err)
		case wrong:
			p.logger().ErrorContext(ctx, "a limit is configured wrongly", "error", err)
		case errors.Is(err, rratelimiter.ErrDebtBound):
			p.logger().WarnContext(ctx, "the debt of a limit is at its bound, and what exceeds it does not count",
				"error", err)
		default:
			p.logger().WarnContext(ctx, "permits could be neither given back nor corrected", "error", err)
		}
	}
}

func (p *Policy) tell(ctx context.Context, err error) {
	if p.OnError != nil {
		p.OnError(ctx, err)
	}
}

// due reports whether no error of one kind (wrong: configuration errors) was logged within the last
// minute.
func (p *Policy) due(wrong bool) bool {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if last, logged := p.logged[wrong]; logged && now.Sub(last) < time.Minute {
		return false
	}
	if p.logged == nil {
		p.logged = map[bool]time.Time{}
	}
	p.logged[wrong] = now
	return true
}

func (p *Policy) logger() *slog.Logger {
	if p.Logger != nil {
		return p.Logger
	}
	return slog.Default()
}

// misconfigured reports whether the error persists until the configuration is changed.
func misconfigured(err error) bool {
	for _, wrong := range []error{
		rratelimiter.ErrExceedsRate, rratelimiter.ErrNotInitialized, rratelimiter.ErrInvalidPermits,
		rratelimiter.ErrInvalidRate, rratelimiter.ErrInvalidOption, rratelimiter.ErrCrossSlotName,
	} {
		if errors.Is(err, wrong) {
			return true
		}
	}
	return false
}
