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
	"github.com/rratelimiter/rratelimiter/internal/hook"
)

// policy.go knows what comes of the limits' answers, or of their absence. It knows nothing of HTTP.

// A Failure says what becomes of requests when the limits can't be asked.
type Failure int

// outcome says it for a log.
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
	FailOpen   Failure = iota // they pass
	FailClosed                // they are refused, as what nobody can serve now
	// FailLocal lets this process decide by itself; see Policy.LocalShare. It keeps apart 10,000 keys that have permits in
	// use. While there are as many, keys that come new share what one key is granted of their limit; the others keep theirs.
	FailLocal
)

// A Policy is what happens around limits. The zero Policy refuses at once what a limit refuses, and lets requests pass
// when there is no answer within 100 ms. Its fields must not change once it is in use. It is safe for concurrent use and
// must not be copied.
type Policy struct {
	// Failure says what becomes of requests that could not be decided in time, or because of an error. Where one limit of
	// several is configured wrongly (it has no rate, or one that can't be set), it says what becomes of that limit alone:
	// the request passes if the others allow it, is refused, or needs what this process decides, too.
	Failure Failure
	// Bound is how long limits may take to answer; 0 means 100 ms. Time that a request waits for its permits is not
	// counted, but a wait ends when it is known that Redis takes longer than this: mostly this long after permits are due. For
	// limiters of other kinds than *rratelimiter.Limiter that know how to wait, it is added to Wait.
	Bound time.Duration
	// LocalShare is the part of each limit's rate that this process grants by itself with FailLocal; 0 means 1, all of it.
	// With n processes, 1/n keeps to the rate in sum. The request passes if no limit's Rate is known.
	LocalShare float64
	// Wait is how long a request may wait for its permits before it is refused; 0 means not at all. A request that would
	// have to wait longer is refused at once. Those of one process that wait for a single *rratelimiter.Limiter are served
	// in their order, others in none.
	Wait time.Duration
	// Shadow lets every request pass, without waiting and without telling the client anything, and counts what would have
	// been refused. Permits are taken.
	Shadow bool
	// OnDeny is called for each request that is refused, or would be without Shadow: Decision.Refused tells by which limits.
	OnDeny func(ctx context.Context, d Decision)
	// OnError is called for each request that could not be decided, for each limit of it that is configured wrongly, and
	// where a request asked for more permits than the rate ever grants (rratelimiter.ErrExceedsRate) and so was cut.
	OnError func(ctx context.Context, err error)
	// OnDecision is called for each decision, before the request goes on.
	OnDecision func(ctx context.Context, d Decision)
	// Logger is told of errors, of each kind once a minute at most; nil is slog.Default().
	Logger *slog.Logger

	counts [outcomes]atomic.Int64
	local  deputy
	mu     sync.Mutex
	logged map[bool]time.Time // when errors of the configuration, or others, were last logged
}

// An Outcome is what became of a request.
type Outcome int

// The outcomes.
const (
	Unlimited       Outcome = iota // no limit bounds it, or a rule makes it free: it passed
	Allowed                        // all limits allowed it: it passed
	Denied                         // a limit refused it
	Shadowed                       // a limit refused it, and it passed, since the policy is a shadow
	FailedOpen                     // the limits could not be asked: it passed
	FailedClosed                   // the limits could not be asked: it was refused
	AllowedLocally                 // the limits could not be asked, and this process allowed it
	DeniedLocally                  // the limits could not be asked, and this process refused it
	ShadowedLocally                // the same, and it passed, since the policy is a shadow
	Gone                           // the client was gone before there was a decision

	outcomes = iota
)

var outcomeNames = [outcomes]string{"unlimited", "allowed", "denied", "shadowed", "failed open", "failed closed",
	"allowed locally", "denied locally", "shadowed locally", "gone"}

// String is the outcome in words: "failed open".
func (o Outcome) String() string {
	if o < 0 || o >= outcomes {
		return fmt.Sprintf("unknown outcome %d", int(o))
	}
	return outcomeNames[o]
}

// Passed tells whether the request may be handled.
func (o Outcome) Passed() bool {
	switch o {
	case Denied, DeniedLocally, FailedClosed, Gone:
		return false
	}
	return true
}

// A Decision is what became of a request, and why.
type Decision struct {
	Outcome Outcome
	Answers []Answer      // of the limits that were asked, in their order
	Err     error         // why the limits could not be asked; nil mostly
	Took    time.Duration // until there was a decision, waiting included
}

// An Answer is what one limit said. Of limits that were not asked, since one before them refused, there is none.
type Answer struct {
	Claim
	rratelimiter.Result      // Allowed is true only if the permits were taken
	Refused             bool // this limit refused
}

// Refused names the limits that refused.
func (d Decision) Refused() []string {
	var names []string
	for _, a := range d.Answers {
		if a.Refused {
			names = append(names, a.Name)
		}
	}
	return names
}

// RetryAfter is when all limits that refused will allow the request, if nobody else takes the permits; 0 if none refused
// or it is not known.
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

// Count tells how many requests came to an outcome so far.
func (p *Policy) Count(o Outcome) int64 {
	if o < 0 || o >= outcomes {
		return 0
	}
	return p.counts[o].Load()
}

// Decide asks for all that a request claims, and says whether it may pass. It is what a Guard
// decides by; what serves requests of any other kind, such as messages, can do the same.
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
	if d.Err != nil && d.Outcome != Gone {
		p.report(ctx, d.Err)
	}
	if p.OnDeny != nil && (refused(d.Answers) || d.Outcome == FailedClosed) {
		p.OnDeny(ctx, d)
	}
	if p.OnDecision != nil {
		p.OnDecision(ctx, d)
	}
	return d
}

// conclude finds the outcome of claims that were asked for.
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

// limited leaves the claims that bound the request. Nothing can be granted more than its rate, so a claim for more is cut
// to that, and takes all there is. Of claims that give one limiter several rates the first counts.
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
				continue // the claims before it take all there is
			}
		}
		left = append(left, c)
	}
	return left
}

// contradicts tells whether two claims give one limiter different rates.
func (c Claim) contradicts(other Claim) bool {
	return c.Rate != other.Rate && c.Rate.Permits != 0 && other.Rate.Permits != 0 && c.shares(other)
}

// shares tells whether two claims are of one limiter.
func (c Claim) shares(other Claim) bool {
	one, ours := c.Limiter.(*rratelimiter.Limiter)
	two, too := other.Limiter.(*rratelimiter.Limiter)
	return ours && too && one.Client() == two.Client() && one.Name() == two.Name()
}

// ask asks all limits, within the bound.
func (p *Policy) ask(ctx context.Context, claims []Claim) ([]Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, p.bound())
	defer cancel()
	answers, err := askAll(ctx, claims)
	if err != nil && refused(answers) {
		p.report(ctx, err)
		return answers, nil
	}
	if len(claims) > 1 && misconfigured(err) || errors.Is(err, rratelimiter.ErrExceedsRate) {
		if slices.ContainsFunc(claims[1:], claims[0].shares) { // then it may be only in sum that they are wrong
			p.report(ctx, err)
		}
		return p.askApart(ctx, claims)
	}
	return answers, err
}

func (p *Policy) bound() time.Duration {
	if p.Bound > 0 {
		return p.Bound
	}
	return 100 * time.Millisecond
}

// A waiter is a limiter that knows how to let callers wait in line.
type waiter interface {
	TryAcquireTimeout(ctx context.Context, n int64, timeout time.Duration) (bool, error)
}

// await waits for permits that were refused, if they can be there in time.
func (p *Policy) await(ctx context.Context, claims []Claim, answers []Answer) ([]Answer, error) {
	started := time.Now()
	left := func() time.Duration { return p.Wait - time.Since(started) }
	for {
		pause := retryAfter(answers)
		if pause <= 0 || pause > left() {
			return answers, nil
		}
		if line, ok := claims[0].Limiter.(waiter); ok && len(claims) == 1 {
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
	bounded, cancel := context.WithTimeout(ctx, p.Wait+p.bound())
	defer cancel()
	bounded, giveUp := context.WithCancelCause(bounded)
	defer giveUp(nil)
	if l, ours := line.(*rratelimiter.Limiter); ours {
		go p.listen(bounded, l, giveUp)
	}
	ok, err := line.TryAcquireTimeout(bounded, a.Permits, p.Wait)
	if err != nil {
		if bounded.Err() != nil {
			err = errors.Join(context.Cause(bounded), err)
		}
		return nil, err
	}
	if !ok {
		return p.ask(ctx, []Claim{a.Claim}) // for when to come back, as of now
	}
	// What else there is to tell nobody said: others may be in line behind, so nothing is free.
	a.Refused, a.Result = false, rratelimiter.Result{Allowed: true, Limit: a.Limit, ResetAfter: a.Rate.Interval}
	return []Answer{a}, nil
}

// listen gives a wait in line up once Redis has been silent for the bound. While nobody asks it, since no permits can be free
// yet, it is not silent.
func (p *Policy) listen(ctx context.Context, l *rratelimiter.Limiter, giveUp context.CancelCauseFunc) {
	for silence := time.Duration(0); silence < p.bound(); silence = hook.Silence(l) {
		timer := time.NewTimer(p.bound() - silence)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
	giveUp(fmt.Errorf("no answer within %v: %w", p.bound(), context.DeadlineExceeded))
}

// failure is what becomes of requests that can't be decided; a shadow refuses nothing.
func (p *Policy) failure() Failure {
	if p.Shadow && p.Failure == FailClosed {
		return FailOpen
	}
	return p.Failure
}

// report tells of errors, and logs those of whose kind none was logged in the last minute.
func (p *Policy) report(ctx context.Context, errs ...error) {
	for _, err := range errs {
		if err != nil {
			p.reportOne(ctx, err)
		}
	}
}

func (p *Policy) reportOne(ctx context.Context, err error) {
	if p.OnError != nil {
		p.OnError(ctx, err)
	}
	wrong := misconfigured(err)
	now := time.Now()
	p.mu.Lock()
	last, logged := p.logged[wrong]
	due := !logged || now.Sub(last) >= time.Minute
	if due {
		if p.logged == nil {
			p.logged = map[bool]time.Time{}
		}
		p.logged[wrong] = now
	}
	p.mu.Unlock()
	if !due {
		return
	}
	logger := p.Logger
	if logger == nil {
		logger = slog.Default()
	}
	if wrong {
		logger.ErrorContext(ctx, "a limit is configured wrongly", "error", err)
	} else {
		logger.WarnContext(ctx, "Redis does not answer for the limits: "+p.failure().outcome(), "error", err)
	}
}

// misconfigured tells whether an error will stay until somebody changes the configuration.
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
