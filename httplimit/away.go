package httplimit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/response"
)

// away.go records which limits cannot be reached because their server does not reply. It logs the
// start and the end of each outage. A *rratelimiter.Limiter reports the state of its own node. For
// other limiters, the policy records the state by the name of the limit.

// The pause between two probes of a server that is down, and between two calls for a request that
// waits for permits that may come back. It doubles with each call.
const (
	shortestPause = 100 * time.Millisecond
	longestPause  = time.Second
)

// settled is the minimum time without a failed request before an outage counts as over.
const settled = time.Second

// outages records the servers that did not reply.
type outages struct {
	mu     sync.Mutex
	limits map[string]*server // by the names of the first mostShared limits; guarded by mu
	// the start of an outage was logged, and its end was not; written under mu
	logged  atomic.Bool
	began   time.Time // start of this outage; guarded by mu, as are all fields below
	reason  error     // error of the outage's first failed request
	last    time.Time // time of the outage's last failed request
	missing []Claim   // claims of the last failed request
}

// A server is the state of the server behind a limit whose limiter is not a *rratelimiter.Limiter.
// outages.mu guards it.
type server struct {
	answered time.Time // start of the latest call that got a reply
	cause    error     // reason why the server counts as away; nil: it does not
	until    time.Time // time of the next probe while the server is down
	pause    time.Duration
	looking  bool // a probe is in flight
}

// away returns the reason why the limits cannot be checked now; nil if they can be checked. It does
// not block.
func (p *Policy) away(ctx context.Context, claims []Claim) error {
	for _, c := range claims {
		var cause error
		if l, ours := c.Limiter.(*rratelimiter.Limiter); !ours {
			p.outages.mu.Lock()
			cause = p.serverAway(ctx, c)
			p.outages.mu.Unlock()
		} else if h := l.Health(); h.Away && !h.Decides {
			cause = rratelimiter.ErrUnavailable
		}
		if cause != nil {
			return fmt.Errorf("limit %q: %w", c.Name, cause)
		}
	}
	return nil
}

// serverAway returns the reason why the server behind a limit counts as away; nil if it does not.
// If a probe is due, serverAway makes the call of this claim in the background as the probe, and
// does not wait for it. outages.mu is held.
func (p *Policy) serverAway(ctx context.Context, c Claim) error {
	s := p.outages.limits[c.Name]
	if s == nil || s.cause == nil {
		return nil
	}
	if !s.looking && !time.Now().Before(s.until) {
		s.looking = true
		go p.look(context.WithoutCancel(ctx), c)
	}
	return s.cause
}

// look probes the server of a limit.
func (p *Policy) look(ctx context.Context, c Claim) {
	bounded := p.bounded(ctx)
	defer bounded.end()
	_, _ = p.try(bounded, c) // try records the result
	p.outages.mu.Lock()
	defer p.outages.mu.Unlock()
	s := p.outages.limits[c.Name]
	s.looking = false
	s.until = time.Now().Add(s.pause)
	s.pause = min(2*s.pause, longestPause)
}

// try makes one call to a limiter. It records whether the server replied, unless the limiter does.
func (p *Policy) try(ctx context.Context, c Claim) (rratelimiter.Result, error) {
	began := time.Now()
	var r rratelimiter.Result
	var err error
	if l, charges := c.Limiter.(charger); charges && c.Permits == 0 {
		r, err = l.Charge(ctx, 0) // asks whether a permit is free
	} else {
		r, err = c.Limiter.Allow(ctx, c.Permits)
	}
	if _, ours := c.Limiter.(*rratelimiter.Limiter); !ours {
		p.outages.note(ctx, c.Name, began, err)
	}
	return r, err
}

// note records the result of a call to the server of a limit. The server counts as away if it
// replied neither to this call nor to a call that began later.
func (o *outages) note(ctx context.Context, name string, began time.Time, err error) {
	cause := unanswered(ctx, err)
	if cause == nil && err != nil && !misconfigured(err) {
		return // the caller's context ended, or the error says nothing about the server
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.limits[name]
	if s == nil {
		if len(o.limits) >= mostShared {
			return
		}
		if o.limits == nil {
			o.limits = map[string]*server{}
		}
		s = &server{}
		o.limits[name] = s
	}
	switch {
	case cause == nil:
		s.cause = nil
		if began.After(s.answered) {
			s.answered = began
		}
	case s.cause == nil && !s.answered.After(began):
		s.cause, s.until, s.pause = cause, time.Now(), shortestPause
	}
}

// unanswered returns the cause if the error of a call means that the server did not reply;
// otherwise nil.
func unanswered(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	var network net.Error
	switch {
	case ctx.Err() != nil:
		if cause := context.Cause(ctx); errors.Is(cause, rratelimiter.ErrUnavailable) {
			return cause // the bound has passed
		}
		return nil
	case errors.Is(err, rratelimiter.ErrUnavailable) || errors.As(err, &network):
		return err
	}
	return nil
}

// failed records that a request could not be decided, and logs the first such request of an outage.
func (p *Policy) failed(ctx context.Context, claims []Claim, d Decision) {
	o, now := &p.outages, time.Now()
	o.mu.Lock()
	o.last, o.missing = now, slices.Clone(claims)
	first := !o.logged.Swap(true)
	if first {
		o.began, o.reason = now, d.Err
	}
	o.mu.Unlock()
	if first {
		p.logger().WarnContext(ctx, "limits cannot be checked: "+p.effect(ctx, d.Outcome), "error", d.Err)
	}
}

// effect describes for a log what happens while limits cannot be checked. o is the outcome of one
// request.
func (p *Policy) effect(ctx context.Context, o Outcome) string {
	switch {
	case p.failure() == FailClosed:
		return response.Closed(ctx)
	case p.Failure != FailLocal:
		return "requests pass"
	case o == FailedOpen:
		return "requests pass, because FailLocal knows the rate of no limit"
	}
	return "this process decides by itself"
}

// decided records that limits decided on a request. This ends an outage if no request has failed
// for the time settled, and if the limits of the last failed request can be checked again, or are
// no longer in force.
func (p *Policy) decided(ctx context.Context) {
	o, now := &p.outages, time.Now()
	if !o.logged.Load() {
		return
	}
	o.mu.Lock()
	if !o.logged.Load() || now.Sub(o.last) < settled {
		o.mu.Unlock()
		return
	}
	for _, c := range o.missing {
		if c.replaced != nil && c.replaced.Load() {
			continue // no request may ask for this limit again
		}
		l, ours := c.Limiter.(*rratelimiter.Limiter)
		if ours && l.Health().Away || !ours && p.serverAway(ctx, c) != nil {
			o.mu.Unlock()
			return
		}
	}
	o.logged.Store(false)
	took, reason := o.last.Sub(o.began), o.reason
	o.missing = nil
	o.mu.Unlock()
	p.logger().InfoContext(ctx, "limits can be checked again", "first_to_last_failure", took, "error", reason)
}
