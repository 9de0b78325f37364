// Package pace lets calls to a service wait for permits of a limiter, and pauses them when the
// service asks for it. It knows neither HTTP nor gRPC: httplimit.Transport and grpclimit.Pacer,
// which describe a pause, are built on it.
package pace

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// A Pacer decides when a call is sent. It is safe for concurrent use.
type Pacer struct {
	limiter *rratelimiter.Limiter
	longest time.Duration // the longest pause that one response can cause
	logger  *slog.Logger

	mu      sync.Mutex
	until   time.Time // end of the latest pause; guarded by mu
	holding bool      // hold is running; guarded by mu
}

const (
	longestPause = time.Minute      // the longest pause, unless it is set
	holdCall     = time.Second      // maximum time of the calls of take
	holdEvery    = time.Millisecond // minimum time until the next take, if one took no permits
	// maximum time until then, because permits can be given back at any time
	holdAtMost = time.Second
	holdEarly  = 5 * time.Millisecond // take is called this long before permits return
	givingBack = time.Second          // maximum time of a call that gives permits back
	// a grant is renewed this long before its end, at most a quarter of the interval
	renewAhead = 100 * time.Millisecond
)

// New returns a Pacer. longest is the longest pause that one response can cause; 0 or less means 1
// minute. A nil logger means slog.Default().
func New(limiter *rratelimiter.Limiter, longest time.Duration, logger *slog.Logger) *Pacer {
	if longest <= 0 {
		longest = longestPause
	}
	if logger == nil {
		logger = slog.Default()
	}
	return &Pacer{limiter: limiter, longest: longest, logger: logger}
}

// Await waits for the end of a pause, and for a permit. A permit that is granted during a pause is
// not used: otherwise all requests with such permits would be sent at once at the end of the pause.
func (p *Pacer) Await(ctx context.Context) error {
	for {
		if err := script.Sleep(ctx, p.pause()); err != nil {
			return err
		}
		if err := p.limiter.Acquire(ctx, 1); err != nil {
			return err
		}
		if p.pause() <= 0 {
			return nil
		}
	}
}

// pause returns the time until the end of the pause; 0 or less if there is no pause.
func (p *Pacer) pause() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Until(p.until)
}

// Pause begins or extends a pause. A time of 0 or less is none.
func (p *Pacer) Pause(d time.Duration) {
	if d = min(d, p.longest); d <= 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if until := time.Now().Add(d); until.After(p.until) {
		p.until = until
	}
	if !p.holding {
		p.holding = true
		go p.hold()
	}
}

// hold takes all permits until the pause is over, and then gives them back. Before one of its
// grants expires, hold gives the grant back and takes the permits again: other processes wait until
// the grant expires, and would be first to take the permits then. Before permits of other processes
// return, hold calls take a little earlier than other processes would.
func (p *Pacer) hold() {
	type taken struct {
		grant *rratelimiter.Grant
		renew time.Time
	}
	var held []taken
	logged := false
	fails := func(err error) bool {
		if err != nil && !logged {
			p.logger.Warn("permits could not be taken or given back for a pause that a service requested", "error", err)
			logged = true
		}
		return err != nil
	}
	var rate rratelimiter.Rate // Unlimited: not known
	var due time.Time          // time at which the next permits return; zero: not known
	for p.paused() {
		for len(held) > 0 && !time.Now().Before(held[0].renew) {
			err := giveBack(held[0].grant)
			held = held[1:]
			if fails(err) {
				break
			}
		}
		grant, wait, err := p.take(&rate, &due)
		if fails(err) {
			wait = holdAtMost
		}
		if grant != nil {
			held = append(held, taken{grant, time.Now().Add(rate.Interval - min(renewAhead, rate.Interval/4))})
			due = time.Time{}
			continue
		}
		if len(held) > 0 {
			wait = min(wait, time.Until(held[0].renew))
		}
		_ = script.Sleep(context.Background(), min(max(wait, holdEvery), holdAtMost, p.pause()))
	}
	for _, h := range held {
		if fails(giveBack(h.grant)) {
			return
		}
	}
}

// take takes all free permits. If no permit is free, it returns the time until take should be
// called again. It updates rate and due, which belong to hold.
func (p *Pacer) take(
	rate *rratelimiter.Rate, due *time.Time,
) (grant *rratelimiter.Grant, wait time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), holdCall)
	defer cancel()
	if rate.Permits == 0 { // not known, or no request can be sent anyway
		if *rate, err = p.limiter.Config(ctx); err != nil || rate.Permits == 0 {
			return nil, holdAtMost, err
		}
	}
	if grant, err = p.limiter.TakeUpTo(ctx, rate.Permits); grant != nil || err != nil {
		return grant, 0, err
	}
	if !time.Now().Before(*due) {
		var r rratelimiter.Result
		grant, r, err = p.limiter.Take(ctx, 1)
		if errors.Is(err, rratelimiter.ErrExceedsRate) { // the rate has become 0
			*rate = rratelimiter.Rate{}
			return nil, holdAtMost, nil
		}
		if grant != nil || err != nil {
			return grant, 0, err
		}
		*due = time.Now().Add(r.RetryAfter)
	}
	return nil, time.Until(*due) - holdEarly, nil
}

// giveBack gives all permits of a grant back.
func giveBack(g *rratelimiter.Grant) error {
	ctx, cancel := context.WithTimeout(context.Background(), givingBack)
	defer cancel()
	_, err := g.Return(ctx, g.Permits())
	return err
}

// paused reports whether there is a pause. If there is no pause, it records that hold ends.
func (p *Pacer) paused() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holding = time.Now().Before(p.until)
	return p.holding
}
