package httplimit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/series"
)

// policy.go decides by the answers of the limits, or without them. It does not depend on HTTP.

// A Failure decides what happens to requests when the limits cannot be checked.
type Failure int

// outcome describes it for a log.
func (f Failure) outcome() string {
	switch f {
	case FailClosed:
		return "requests are refused"
	case FailLocal:
		return "this process decides by itself"
	}
	return "requests pass"
}

// The ways to fail.
const (
	FailOpen   Failure = iota // requests pass
	FailClosed                // requests are refused, with status 503
	// FailLocal lets this process decide locally; see Policy.LocalShare. It distinguishes 10,000 keys that have permits
	// in use. Beyond that, new keys share the grants that one key would get of their limit; the others keep theirs.
	FailLocal
)

// A Policy decides what happens around limits. The zero Policy refuses at once what a limit refuses, and lets requests
// pass when there is no reply within 100 ms. Its fields must not change once it is in use. It is safe for concurrent
// use and must not be copied.
type Policy struct {
	// Name identifies the policy to observers: the label "policy" of metrics.
	Name string
	// Observer gets each decision, if it is a rratelimiter.GuardObserver. nil is the observer of the client of the
	// request's limiters or, where the request has no *rratelimiter.Limiter, of the first one that the policy had.
	Observer rratelimiter.Observer
	// Failure decides what happens to requests that could not be decided in time, or because of an error. While the
	// server of a limit counts as down, requests don't wait for it: Failure decides at once, and one call at a time
	// probes whether the server is back. A limiter with rratelimiter.WithFallback then decides in the process instead.
	// For limiters of other kinds than *rratelimiter.Limiter, those of one limit's name count as one server. Where one
	// limit of several has an invalid configuration (it has no rate, or one that can't be set), Failure applies to that
	// limit alone: the request passes if the others allow it, is refused, or also needs the decision of this process.
	Failure Failure
	// Bound is the time within which limits must reply; 0 means 100 ms. Time that a request waits for its permits is
	// not counted, but the wait ends when Redis is silent for longer than this: mostly this long after permits are due.
	// For limiters of other kinds than *rratelimiter.Limiter that have TryAcquireTimeout, Bound is added to Wait.
	Bound time.Duration
	// LocalShare is the part of each limit's rate that this process grants locally with FailLocal; 0 means 1, all of
	// it. With n processes, 1/n keeps to the rate in sum. The request passes if no limit's Rate is known.
	LocalShare float64
	// Wait is how long a request may wait for its permits before it is refused; 0 means not at all. A request that
	// would have to wait longer is refused at once. Requests of one process that wait for a single
	// *rratelimiter.Limiter without CountIf and CostAfter are served in their order, other requests in no order.
	Wait time.Duration
	// Shadow lets every request pass, without waiting and without header fields in the response, and counts those that
	// would have been refused. Permits are taken.
	Shadow bool
	// OnDeny is called for each request that is refused, or would be without Shadow: Decision.Refused names the limits.
	OnDeny func(ctx context.Context, d Decision)
	// OnError is called for each request that could not be decided, for each of its limits with an invalid
	// configuration, for a request that asked for more permits than the rate (rratelimiter.ErrExceedsRate) and so was
	// cut, and for each limit whose permits could not be given back or corrected.
	OnError func(ctx context.Context, err error)
	// OnDecision is called for each decision, before the request is handled.
	OnDecision func(ctx context.Context, d Decision)
	// Logger gets one line when limits cannot be checked any more, with the reason, and one when they decide requests
	// again: after no request has failed for 1 s. Other errors are logged once a minute at most. nil is slog.Default().
	Logger *slog.Logger

	counts  [outcomes]atomic.Int64
	known   atomic.Pointer[rratelimiter.Client] // client of the first limiter that was checked
	local   localLimiter
	outages outages
	mu      sync.Mutex
	logged  map[bool]time.Time // last log time of configuration errors (true) and others; guarded by mu
}

// An Outcome is the result of a request.
type Outcome int

// The outcomes.
const (
	Unlimited       Outcome = iota // no limit applies to it, or a rule skips it: it passed
	Allowed                        // all limits allowed it: it passed
	Denied                         // a limit refused it
	Shadowed                       // a limit refused it, and it passed because of Policy.Shadow
	FailedOpen                     // the limits could not be checked: it passed
	FailedClosed                   // the limits could not be checked: it was refused
	AllowedLocally                 // the limits could not be checked, and this process allowed it
	DeniedLocally                  // the limits could not be checked, and this process refused it
	ShadowedLocally                // the same, and it passed because of Policy.Shadow
	Gone                           // the request's context ended before the decision

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

// A Decision is the result of a request, and its reasons.
type Decision struct {
	Outcome Outcome
	Answers []Answer      // of the limits that were checked, in their order
	Err     error         // why the limits could not be checked; mostly nil
	Took    time.Duration // time until the decision, waiting included
}

// An Answer is the reply of one limit. Limits that were not checked, since one before them refused, have none.
type Answer struct {
	Claim
	rratelimiter.Result      // Allowed is true only if the permits were taken
	Refused             bool // this limit refused

	back way
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

// RetryAfter returns the time until all limits that refused will allow the request, if no other request takes the
// permits; 0 if none refused or the time is not known.
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

// Decide checks all claims of a request, and decides whether it may pass. A Guard uses it; servers of other protocols
// and consumers of messages can use it, too.
func (p *Policy) Decide(ctx context.Context, claims ...Claim) Decision {
	started := time.Now()
	var d Decision
	if claims = p.limited(ctx, claims); len(claims) > 0 {
		d.Answers, d.Err = p.ask(ctx, claims)
		if d.Err == nil && p.Wait > 0 && !p.Shadow && refused(d.Answers) {
			d.Answers, d.Err = p.await(ctx, claims, d.Answers)
		}
		p.conclude(ctx, claims, &d)
	}
	d.Took = time.Since(started)
	p.counts[d.Outcome].Add(1)
	if o, ok := p.observer(claims).(rratelimiter.GuardObserver); ok {
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
		p.failed(ctx, claims, d.Err)
	}
	if p.OnDeny != nil && (refused(d.Answers) || d.Outcome == FailedClosed) {
		p.OnDeny(ctx, d)
	}
	if p.OnDecision != nil {
		p.OnDecision(ctx, d)
	}
	return d
}

// observer returns the observer of a decision on claims.
func (p *Policy) observer(claims []Claim) rratelimiter.Observer {
	if p.Observer != nil {
		return p.Observer
	}
	client := p.known.Load()
	for _, c := range claims {
		if l, ours := c.Limiter.(*rratelimiter.Limiter); ours {
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

// conclude sets the outcome of claims that were checked.
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
			return
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

// limited returns the claims that apply to the request. A claim for more permits than the rate is cut to the rate. Of
// claims that give one limiter several rates the first counts.
func (p *Policy) limited(ctx context.Context, claims []Claim) []Claim {
	left := make([]Claim, 0, len(claims))
	for _, c := range claims {
		if l, ours := c.Limiter.(*rratelimiter.Limiter); c.Limiter == nil || ours && l == nil {
			continue
		}
		if c.Permits == 0 {
			c.Permits = 1
		}
		if other := slices.IndexFunc(left, c.contradicts); other >= 0 {
			p.report(ctx, fmt.Errorf("limit %q, key %q: %w: a rate of %v, and another one of %v: the first one counts",
				c.Name, c.Key, rratelimiter.ErrInvalidOption, left[other].Rate, c.Rate))
			continue
		}
		if most := c.Rate.Permits; most > 0 {
			for _, other := range left {
				if c.shares(other) {
					most -= other.Permits
				}
			}
			if c.Permits > most {
				p.report(ctx, fmt.Errorf("limit %q, key %q: %w: %d", c.Name, c.Key, rratelimiter.ErrExceedsRate, c.Permits))
				c.Permits = most
			}
			if most < 1 {
				continue // the claims before it take the whole rate
			}
		}
		left = append(left, c)
	}
	return left
}

// contradicts reports whether two claims give one limiter different rates.
func (c Claim) contradicts(other Claim) bool {
	return c.Rate != other.Rate && c.Rate.Permits != 0 && other.Rate.Permits != 0 && c.shares(other)
}

// shares reports whether two claims use one limiter.
func (c Claim) shares(other Claim) bool {
	one, ours := c.Limiter.(*rratelimiter.Limiter)
	two, too := other.Limiter.(*rratelimiter.Limiter)
	return ours && too && one.Client() == two.Client() && one.Name() == two.Name()
}

// ask checks all limits, within the bound.
func (p *Policy) ask(ctx context.Context, claims []Claim) ([]Answer, error) {
	if err := p.away(ctx, claims); err != nil {
		return nil, err
	}
	ctx, cancel := p.bounded(ctx)
	defer cancel()
	answers, err := p.askAll(ctx, claims)
	if err != nil && refused(answers) {
		p.report(ctx, err)
		return answers, nil
	}
	if len(claims) > 1 && misconfigured(err) || errors.Is(err, rratelimiter.ErrExceedsRate) {
		if slices.ContainsFunc(claims[1:], claims[0].shares) { // the claims may exceed the rate only in sum
			p.report(ctx, err)
		}
		answers, err = p.askApart(ctx, claims)
	}
	if cause := context.Cause(ctx); err != nil && !misconfigured(err) && errors.Is(cause, rratelimiter.ErrUnavailable) {
		return nil, cause
	}
	return answers, err
}

// bounded returns a context that ends after the bound.
func (p *Policy) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, p.bound(), noAnswer(p.bound()))
}

// A noAnswer is the error if there was no reply within that time.
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

// await waits for permits that were refused, if they can be free in time.
func (p *Policy) await(ctx context.Context, claims []Claim, answers []Answer) ([]Answer, error) {
	started := time.Now()
	left := func() time.Duration { return p.Wait - time.Since(started) }
	for {
		pause := retryAfter(answers)
		if pause <= 0 || pause > left() {
			return answers, nil
		}
		if line, ok := claims[0].Limiter.(waiter); ok && len(claims) == 1 && !claims[0].settles() {
			return p.awaitInLine(ctx, line, answers[0])
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		}
		var err error
		if answers, err = p.ask(ctx, claims); err != nil || !refused(answers) {
			return answers, err
		}
	}
}

func (p *Policy) awaitInLine(ctx context.Context, line waiter, a Answer) ([]Answer, error) {
	bounded, cancel := context.WithTimeoutCause(ctx, p.Wait+p.bound(), noAnswer(p.bound()))
	defer cancel()
	bounded, giveUp := context.WithCancelCause(bounded)
	defer giveUp(nil)
	if l, ours := line.(*rratelimiter.Limiter); ours {
		go p.listen(bounded, l, giveUp)
	}
	ok, err := line.TryAcquireTimeout(bounded, a.Permits, p.Wait)
	if err != nil {
		if bounded.Err() != nil {
			err = context.Cause(bounded)
		}
		return nil, err
	}
	if !ok {
		return p.ask(ctx, []Claim{a.Claim}) // for the current RetryAfter
	}
	// TryAcquireTimeout returns no further details. Other callers may be queued behind, so Remaining is 0.
	a.Refused, a.Result = false, rratelimiter.Result{Allowed: true, Limit: a.Limit, ResetAfter: a.Rate.Interval}
	return []Answer{a}, nil
}

// listen cancels a wait in the queue once Redis has been silent for the bound. Redis does not count as silent while no
// call is sent because no permits can be free yet.
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

// failure returns what happens to requests that cannot be decided; a shadow refuses nothing.
func (p *Policy) failure() Failure {
	if p.Shadow && p.Failure == FailClosed {
		return FailOpen
	}
	return p.Failure
}

// report reports errors that did not prevent a decision, and configuration errors. It logs one of each kind a minute.
func (p *Policy) report(ctx context.Context, errs ...error) {
	for _, err := range errs {
		if err == nil {
			continue
		}
		p.tell(ctx, err)
		wrong := misconfigured(err)
		switch {
		case !p.due(wrong):
		case wrong:
			p.logger().ErrorContext(ctx, "a limit is configured wrongly", "error", err)
		default:
			p.logger().WarnContext(ctx, "permits were not given back or corrected", "error", err)
		}
	}
}

func (p *Policy) tell(ctx context.Context, err error) {
	if p.OnError != nil {
		p.OnError(ctx, err)
	}
}

// due reports whether no error of a kind, of the configuration or not, was logged within the last minute.
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

// misconfigured reports whether an error persists until the configuration is changed.
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
