package dispatch

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/localwindow"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/record"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// Local decisions: what this process grants while Redis cannot be reached (WithFallback). The breaker of a node tells
// when that is so. A local reply has the form of a script's reply.

// bypass completes f with a local decision if its breaker is broken and the process can decide. It reports whether it
// did. queue.mu may be held.
func (b *batch) bypass() bool {
	l := b.queue.limiter
	if !l.settings.FallsBack {
		return false
	}
	broken, retry := b.breaker.Ask(l)
	if !broken {
		return false
	}
	g, known := l.decideLocally(b.ask, retry)
	if !known {
		return false
	}
	go func() {
		b.complete(g, nil)
		b.recycle()
	}()
	return true
}

// decideLocally returns the final reply of f, whose call has ended: that of Redis or, if Redis was not reached, a local
// decision where possible. It updates the breaker. queue.mu is held.
func (b *batch) decideLocally(g protocol.AcquireReply, err error) (protocol.AcquireReply, error) {
	l := b.queue.limiter
	if g.Local() || err == script.ErrUnsent {
		return g, err
	}
	if !script.Unreachable(err) {
		b.breaker.Answer(b.started, l)
		if err == nil {
			l.learn(g.Rate, g.Interval)
		}
		return g, err
	}
	if !script.IsOfSlot(err) {
		b.breaker.Fail(b.started)
	}
	if !l.settings.FallsBack {
		return g, err
	}
	attempts := g.Attempts
	if g, known := l.decideLocally(b.ask, b.breaker.Retry()); known {
		g.Attempts = attempts
		return g, nil
	}
	return g, err
}

// reach makes one call to Redis. If Redis cannot be reached, it calls decide for a local decision; a nil decide means
// that the process cannot decide. The cause tells why Redis did not answer a call that was decided locally; it is nil
// if no call was made.
func reach[T any](
	ctx context.Context, l *Limiter, call func(context.Context) (T, error), decide func(retry time.Duration) (T, bool),
) (answer T, cause, err error) {
	if decide == nil {
		answer, err = within(ctx, l, call)
		return answer, nil, err
	}
	b := l.client.breakerTo(l)
	if broken, retry := b.Ask(l); broken {
		if local, known := decide(retry); known {
			return local, nil, nil
		}
	}
	answer, err = withinRest(ctx, l, l.client.callTimeout, true, call)
	if !errors.Is(err, script.ErrUnavailable) {
		return answer, nil, err
	}
	if local, known := decide(b.Retry()); known {
		return local, err, nil
	}
	return answer, nil, err
}

// maxLocalLimiters is for how many limiters a client stores a rate other than that of WithRate, or local grants.
const maxLocalLimiters = 1 << 16

// A localLimiters holds what a client needs for local decisions. Entries without use are removed by the next replies of
// Redis, a few at a time.
type localLimiters struct {
	most int          // limit of size
	size atomic.Int64 // len(all), to be read without mu

	mu  sync.Mutex               // guards all and its entries
	all map[string]*localLimiter // by the name of the configuration key
}

// A localLimiter decides in the place of Redis on one limiter.
type localLimiter struct {
	rate     int64               // in the last reply of Redis; 0: no reply yet
	interval time.Duration       // the same
	own      bool                // the rate is that of WithRate
	window   *localwindow.Window // local grants; nil: none
}

// spare reports whether the entry holds nothing but a rate.
func (d *localLimiter) spare(now time.Time) bool { return d.window == nil || d.window.Empty(now) }

// learn stores the rate in a reply of Redis, for local decisions and for the deny cache.
func (l *Limiter) learn(rate int64, interval time.Duration) {
	l.client.denyCache.SeeRate(l.Key(), rate, interval)
	if !l.settings.FallsBack {
		return
	}
	d, now := &l.client.localLimiters, l.client.clock()
	own := rate == l.settings.Own.Permits && interval == protocol.Millis(l.settings.Own.Interval)
	if own && d.size.Load() == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	known := d.all[l.Key()]
	if known == nil && !own {
		known = d.add(l.Key(), now)
	}
	if known != nil {
		known.rate, known.interval, known.own = rate, interval, own
	}
	d.forget(2, func(known *localLimiter) bool { return (known.own || known.rate == 0) && known.spare(now) })
}

// add returns a new entry; nil if there is no room. d.mu is held.
func (d *localLimiters) add(name string, now time.Time) *localLimiter {
	if !d.room(now) {
		return nil
	}
	if d.all == nil {
		d.all = map[string]*localLimiter{}
	}
	known := &localLimiter{}
	d.all[name] = known
	d.size.Store(int64(len(d.all)))
	return known
}

// room reports whether there is room for one entry more. If there is none, it first removes some entries without local
// grants. d.mu is held.
func (d *localLimiters) room(now time.Time) bool {
	if len(d.all) >= d.most {
		d.forget(8, func(known *localLimiter) bool { return known.spare(now) })
	}
	return len(d.all) < d.most
}

// forget looks at a few arbitrary entries and removes those that are not needed. d.mu is held.
func (d *localLimiters) forget(few int, needless func(*localLimiter) bool) {
	for name, known := range d.all {
		if needless(known) {
			delete(d.all, name)
		}
		if few--; few == 0 {
			break
		}
	}
	d.size.Store(int64(len(d.all)))
}

// A localBudget holds the permits that this process may grant of one limiter, and those that it has granted.
// localLimiters.mu is held while it is used.
type localBudget struct {
	*localwindow.Window               // local grants
	rate                int64         // of the limiter
	limit               int64         // permits that this process may grant in interval
	interval            time.Duration // of limit
	now                 time.Time
}

func (s localBudget) free() int64 { return s.limit - s.Used() }

// wait returns how long it takes until n permits are free locally. More permits than the limit never are: such a
// request waits for Redis, so wait returns retry.
func (s localBudget) wait(n int64, retry time.Duration) time.Duration {
	if n > s.limit {
		return retry
	}
	return max(s.Until(s.now, n-s.free()), time.Microsecond)
}

// micros returns a wait from now in whole µs, rounded up and counted from the start of the current µs, as in a script's
// reply.
func (s localBudget) micros(wait time.Duration) int64 {
	since := s.now.Sub(time.UnixMicro(s.now.UnixMicro()))
	return int64((wait + since + time.Microsecond - 1) / time.Microsecond)
}

// budget returns the budget of l. It fails if no rate is known or there are too many limiters. d.mu is held.
func (d *localLimiters) budget(l *Limiter, now time.Time) (s localBudget, known bool) {
	s = localBudget{rate: l.settings.Own.Permits, interval: protocol.Millis(l.settings.Own.Interval), now: now}
	stored := d.all[l.Key()]
	if stored != nil && stored.rate > 0 {
		s.rate, s.interval = stored.rate, stored.interval
	}
	if s.rate < 1 || s.interval <= 0 {
		return localBudget{}, false
	}
	s.limit, s.interval = part(l.settings.Fallback, s.rate, s.interval)
	switch {
	case s.limit == 0:
		s.Window = &localwindow.Window{}
	case stored == nil:
		if stored = d.add(l.Key(), now); stored == nil {
			return localBudget{}, false
		}
		fallthrough
	default:
		if stored.window == nil {
			stored.window = &localwindow.Window{}
		}
		s.Window = stored.window
	}
	s.Turn(now, s.interval)
	return s, true
}

// canDecide reports whether the process can decide on all limiters: they have WithFallback, their rates are known, and
// there is room to count their grants.
func (d *localLimiters) canDecide(limiters ...*Limiter) bool {
	for _, l := range limiters {
		own := l.settings.Own.Permits > 0
		if !l.settings.FallsBack || !(own && d.size.Load() < int64(d.most)) && !d.known(l, own) {
			return false
		}
	}
	return true
}

// known reports whether an entry has a rate for l, or one could be added for the limiter's own rate (WithRate).
func (d *localLimiters) known(l *Limiter, own bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if known := d.all[l.Key()]; known != nil {
		return own || known.rate > 0
	}
	return own && (l.settings.Fallback == 0 || d.room(l.client.clock()))
}

// part returns a fraction of a rate. Less than one permit becomes one permit in a longer interval.
func part(fraction float64, permits int64, interval time.Duration) (int64, time.Duration) {
	const rounding = 1e-6 // 0.29 of 100 is 29
	share := fraction * float64(permits)
	if share == 0 || share+rounding >= 1 {
		if fraction == 1 {
			return permits, interval
		}
		return int64(share + rounding), interval
	}
	longer := float64(interval) / share
	return 1, time.Duration(math.Min(longer, math.MaxInt64/2))
}

// decideLocally makes the reply that acquire.lua would make. A request for more than the local limit waits for Redis: it
// may ask again after retry, and does not block those behind it. decideLocally fails if no rate is known.
func (l *Limiter) decideLocally(ask protocol.Ask, retry time.Duration) (protocol.AcquireReply, bool) {
	d, now := &l.client.localLimiters, l.client.clock()
	d.mu.Lock()
	defer d.mu.Unlock()
	s, known := d.budget(l, now)
	if !known {
		return protocol.AcquireReply{}, false
	}
	free := max(s.free(), 0)
	g := protocol.AcquireReply{
		Now: now.UnixMicro(), Rate: s.limit, Interval: s.interval, Notes: protocol.Local, Origin: record.NoOrigin, Retry: retry,
	}
	g.MakeOutcomes(len(ask.Groups))
	blocked, behind := int64(0), len(ask.Groups) // size of the request that blocks others, and the first group behind it
	for i, group := range ask.Groups {
		var given int64
		taken := group.Size
		switch {
		case ask.UpTo:
			given = min(group.Size, free)
			taken = 1
		case group.Size > s.rate:
			given, taken = -1, 0
		case group.Size <= s.limit && blocked == 0 && (i < ask.Strict || !ask.Partial):
			given = min(group.Count, free/group.Size)
			if i < ask.Strict && given < group.Count {
				blocked, behind = group.Size, i+1
			}
		}
		s.Take(given * taken)
		free -= given * taken
		g.SetGranted(i, given)
	}
	for i, group := range ask.Groups {
		wait := s.wait(group.Size, retry)
		if i >= behind {
			wait = max(wait, s.wait(blocked, retry))
		}
		g.SetWait(i, s.micros(wait))
		if given := g.Granted(i, group); i < ask.Strict && given >= 0 && given < group.Count {
			g.Retry = min(g.Retry, wait)
		}
	}
	g.Free, g.ResetAfter = free, protocol.Micros(s.micros(s.Until(now, s.Used())))
	return g, true
}

// decideAllLocally makes the decisions that allowall.lua would make. It fails if one of the limiters does not have
// WithFallback or has no known rate.
func (c *Client) decideAllLocally(limiters []*Limiter, permits []int64, retry time.Duration) ([]protocol.Decision, bool) {
	d, now := &c.localLimiters, c.clock()
	d.mu.Lock()
	defer d.mu.Unlock()
	budgets := make([]localBudget, len(limiters))
	all := true
	for i, l := range limiters {
		known := l.settings.FallsBack
		if known {
			budgets[i], known = d.budget(l, now)
		}
		if !known {
			return nil, false
		}
		all = all && permits[i] <= budgets[i].free()
	}
	decisions := make([]protocol.Decision, len(limiters))
	for i, s := range budgets {
		n := permits[i]
		decision := protocol.Decision{Granted: true, Rate: s.limit, Interval: s.interval, Notes: protocol.Local}
		switch {
		case all:
			s.Take(n)
		case n > s.rate:
			decision.Granted, decision.Exceeds = false, true
		case n > s.free():
			decision.Granted, decision.RetryAfter = false, protocol.Micros(s.micros(s.wait(n, retry)))
		}
		decision.Free, decision.ResetAfter = max(s.free(), 0), protocol.Micros(s.micros(s.Until(now, s.Used())))
		decisions[i] = decision
	}
	return decisions, true
}

// DecidesLocally reports whether the process can decide on l while its node is away.
func (l *Limiter) DecidesLocally() bool {
	if !l.settings.FallsBack {
		return false
	}
	d := &l.client.localLimiters
	d.mu.Lock()
	defer d.mu.Unlock()
	_, known := d.budget(l, l.client.clock())
	return known
}

// untake takes back n permits that were granted locally just before.
func (d *localLimiters) untake(l *Limiter, n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if known := d.all[l.Key()]; known != nil && known.window != nil {
		known.window.Untake(n)
	}
}
