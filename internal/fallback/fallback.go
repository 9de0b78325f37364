// Package fallback grants or refuses requests in the process while Redis is away. Its replies
// have the form of a script's reply. Package dispatch decides which requests it answers.
package fallback

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/localwindow"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/record"
)

// MaxLimiters is for how many limiters a client stores a rate other than the limiter's own, or
// local grants.
const MaxLimiters = 1 << 16

// A Limiter is one limiter as local decisions see it.
type Limiter struct {
	Key      string        // identifies it
	Own      int64         // permits of its own rate
	Interval time.Duration // of its own rate; 0: it has none
	Fraction float64       // the part of the rate that it grants, 0 to 1
}

// Limiters hold what a client needs for local decisions. Entries without use are removed by the
// next replies of Redis, a few at a time. The zero value is not usable: Most must be set.
type Limiters struct {
	Most int          // limit of Size
	size atomic.Int64 // len(all), to be read without mu

	mu  sync.Mutex        // guards all and its entries
	all map[string]*entry // by Limiter.Key
}

// An entry decides in the place of Redis on one limiter.
type entry struct {
	rate     int64               // in the last reply of Redis
	interval time.Duration       // the same; 0: no reply yet
	own      bool                // the rate is the limiter's own
	window   *localwindow.Window // local grants; nil: none
}

// spare reports whether the entry holds nothing but a rate.
func (d *entry) spare(now time.Time) bool { return d.window == nil || d.window.Empty(now) }

// Learn stores the rate in a reply of Redis.
func (d *Limiters) Learn(l *Limiter, rate int64, interval time.Duration, now time.Time) {
	own := rate == l.Own && interval == l.Interval
	if own && d.size.Load() == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	known := d.all[l.Key]
	if known == nil && !own {
		known = d.add(l.Key, now)
	}
	if known != nil {
		known.rate, known.interval, known.own = rate, interval, own
	}
	d.forget(2, func(known *entry) bool { return (known.own || known.interval == 0) && known.spare(now) })
}

// Size returns the number of entries.
func (d *Limiters) Size() int { return int(d.size.Load()) }

// add returns a new entry; nil if there is no room. d.mu is held.
func (d *Limiters) add(name string, now time.Time) *entry {
	if !d.room(now) {
		return nil
	}
	if d.all == nil {
		d.all = map[string]*entry{}
	}
	known := &entry{}
	d.all[name] = known
	d.size.Store(int64(len(d.all)))
	return known
}

// room reports whether there is room for one entry more. If there is none, it first removes some
// entries without local grants. d.mu is held.
func (d *Limiters) room(now time.Time) bool {
	if len(d.all) >= d.Most {
		d.forget(8, func(known *entry) bool { return known.spare(now) })
	}
	return len(d.all) < d.Most
}

// forget looks at a few arbitrary entries and removes those that are not needed. d.mu is held.
func (d *Limiters) forget(few int, needless func(*entry) bool) {
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

// A localBudget holds the permits that this process may grant of one limiter, and those that it has
// granted. Limiters.mu is held while it is used.
type localBudget struct {
	*localwindow.Window               // local grants
	rate                int64         // of the limiter
	limit               int64         // permits that this process may grant in interval
	interval            time.Duration // of limit
	now                 time.Time
}

func (s localBudget) free() int64 { return s.limit - s.Used() }

// wait returns how long it takes until n permits are free locally. More permits than the limit
// never are: such a request waits for Redis, so wait returns retry.
func (s localBudget) wait(n int64, retry time.Duration) time.Duration {
	if n > s.limit {
		return retry
	}
	return max(s.Until(s.now, n-s.free()), time.Microsecond)
}

// micros returns a wait from now in whole µs, rounded up and counted from the start of the current
// µs, as in a script's reply.
func (s localBudget) micros(wait time.Duration) int64 {
	if wait == 0 {
		return 0
	}
	since := s.now.Sub(time.UnixMicro(s.now.UnixMicro()))
	return int64((wait + since + time.Microsecond - 1) / time.Microsecond)
}

// times returns the time until the next local permit returns, and until all have returned.
func (s localBudget) times() (next, all time.Duration) {
	return protocol.Micros(s.micros(s.Until(s.now, 1))), protocol.Micros(s.micros(s.Until(s.now, s.Used())))
}

// budget returns the budget of l. It fails if no rate is known or there are too many limiters. d.mu
// is held.
func (d *Limiters) budget(l *Limiter, now time.Time) (s localBudget, known bool) {
	s = localBudget{rate: l.Own, interval: l.Interval, now: now}
	stored := d.all[l.Key]
	if stored != nil && stored.interval > 0 {
		s.rate, s.interval = stored.rate, stored.interval
	}
	if s.interval <= 0 {
		return localBudget{}, false
	}
	s.limit, s.interval = part(l.Fraction, s.rate, s.interval)
	switch {
	case s.limit == 0:
		s.Window = &localwindow.Window{}
	case stored == nil:
		if stored = d.add(l.Key, now); stored == nil {
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

// budgets returns the budgets of several limiters. It fails if the rate of one is not known, or if
// there is no room to count the grants of all. d.mu is held.
func (d *Limiters) budgets(limiters []*Limiter, now time.Time) ([]localBudget, bool) {
	budgets := make([]localBudget, len(limiters))
	for i, l := range limiters {
		known := false
		if budgets[i], known = d.budget(l, now); !known {
			return nil, false
		}
	}
	for i, l := range limiters {
		if stored := d.all[l.Key]; budgets[i].limit > 0 && (stored == nil || stored.window != budgets[i].Window) {
			return nil, false // removed to make room for another one
		}
	}
	return budgets, true
}

// CanDecide reports whether the process can decide on l: its rate is known, and there is room to
// count its grants.
func (d *Limiters) CanDecide(l *Limiter, now time.Time) bool {
	own := l.Interval > 0
	return own && d.size.Load() < int64(d.Most) || d.known(l, own, now)
}

// known reports whether an entry has a rate for l, or one could be added for the limiter's own rate
// (WithRate).
func (d *Limiters) known(l *Limiter, own bool, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if known := d.all[l.Key]; known != nil {
		return own || known.interval > 0
	}
	return own && (l.Fraction == 0 || d.room(now))
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

// Decide makes the reply that acquire.lua, or for several limiters allowall.lua, would make. A
// request for more than the local limit waits for Redis: it may ask again after retry, and does not
// block those behind it. It fails if the rate of a limiter is not known, or if there is no room to
// count the grants of all.
func (d *Limiters) Decide(
	limiters []*Limiter, ask protocol.BatchAsk, now time.Time, retry time.Duration,
) (g protocol.Reply, known bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	budgets, known := d.budgets(limiters, now)
	switch {
	case !known:
		return g, false
	case len(budgets) == 1:
		return budgets[0].decide(ask, retry), true
	}
	return decideAll(budgets, ask, retry), true
}

// Peek is Decide, but takes nothing.
func (d *Limiters) Peek(l *Limiter, ask protocol.BatchAsk, now time.Time, retry time.Duration) (protocol.Reply, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, known := d.budget(l, now)
	if !known {
		return protocol.Reply{}, false
	}
	before := *s.Window
	g := s.decide(ask, retry)
	*s.Window = before
	return g, true
}

func (s localBudget) decide(ask protocol.BatchAsk, retry time.Duration) protocol.Reply {
	now := s.now.UnixMicro()
	free := max(s.free(), 0)
	g := protocol.Reply{Retry: retry}
	g.First = protocol.Member{
		Now: now, At: now, Rate: s.limit, Interval: s.interval, Notes: protocol.Local, Origin: record.NoOrigin,
	}
	g.MakeOutcomes(len(ask.Groups))
	// size of the request that blocks others, and the first group behind it
	blocked, behind := int64(0), len(ask.Groups)
	for i, group := range ask.Groups {
		var given int64
		size := group.Permits.First
		taken := size
		switch {
		case ask.UpTo:
			given = min(size, free)
			taken = 1
		case group.Count == 0: // the process keeps no order between callers of a limiter and of a set
		case size > s.rate:
			given, taken = -1, 0
		case size <= s.limit && blocked == 0 && (i < ask.Strict || !ask.Partial):
			given = min(group.Count, free/size)
			if i < ask.Strict && given < group.Count {
				blocked, behind = size, i+1
			}
		}
		s.Take(given * taken)
		free -= given * taken
		g.SetGranted(i, given)
	}
	for i, group := range ask.Groups {
		wait := s.wait(group.Permits.First, retry)
		if i >= behind {
			wait = max(wait, s.wait(blocked, retry))
		}
		g.SetWait(i, 0, s.micros(wait))
		if given := g.Granted(i, group); i < ask.Strict && given >= 0 && given < group.Count {
			g.Retry = min(g.Retry, wait)
		}
	}
	g.First.Free = free
	g.First.NextAfter, g.First.ResetAfter = s.times()
	return g
}

// decideAll makes the reply that allowall.lua would make.
func decideAll(budgets []localBudget, ask protocol.BatchAsk, retry time.Duration) protocol.Reply {
	now := budgets[0].now.UnixMicro()
	g := protocol.Reply{Members: protocol.Same(len(budgets), protocol.Member{}), Retry: retry}
	g.MakeOutcomes(len(ask.Groups))
	blocked := false
	for i, group := range ask.Groups {
		n, waits := grantedByAll(budgets, group)
		if blocked || ask.Partial && i >= ask.Strict {
			n = min(n, 0)
		}
		for j, s := range budgets {
			s.Take(max(n, 0) * *group.Permits.Of(j))
		}
		blocked = blocked || i < ask.Strict && !waits && n >= 0 && n < group.Count
		g.SetGranted(i, n)
	}
	for i, group := range ask.Groups {
		for j, s := range budgets {
			if size := *group.Permits.Of(j); size > s.free() {
				g.SetWait(i, j, s.micros(s.wait(size, retry)))
			}
		}
		if n := g.Granted(i, group); i < ask.Strict && n >= 0 && n < group.Count {
			g.Retry = min(g.Retry, g.Wait(i))
		}
	}
	for i, s := range budgets {
		m := g.Of(i)
		m.Now, m.At, m.Rate, m.Interval, m.Free = now, now, s.limit, s.interval, max(s.free(), 0)
		m.Notes, m.Origin = protocol.Local, record.NoOrigin
		m.NextAfter, m.ResetAfter = s.times()
	}
	return g
}

// grantedByAll returns how many requests of a group all budgets can grant; below 0: as
// protocol.Reply.Granted has it. waits: the group wants more than a local limit, and so waits for
// Redis.
func grantedByAll(budgets []localBudget, group protocol.Group) (n int64, waits bool) {
	n = group.Count
	for j, s := range budgets {
		switch size := *group.Permits.Of(j); {
		case n > 0 && size > s.rate:
			return protocol.Exceeds(j), false
		case n > 0:
			n = min(n, max(s.free(), 0)/size)
			waits = waits || size > s.limit
		}
	}
	return n, waits
}

// Decides reports whether the process can decide on l while its node is away.
func (d *Limiters) Decides(l *Limiter, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, known := d.budget(l, now)
	return known
}

// Untake takes back n permits that were granted locally at a time, and returns how many: none once
// their interval is over.
func (d *Limiters) Untake(l *Limiter, n int64, at, now time.Time) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, known := d.budget(l, now)
	if !known || now.Sub(at) >= s.interval {
		return 0
	}
	s.Untake(n)
	return n
}

// Charge counts permits that were used at several limiters, free or not. most is how many times the
// limit of the process a debt may be, of each limiter. It fails if a rate is not known, if there is
// no room, or if the limit of a limiter is 0.
func (d *Limiters) Charge(
	limiters []*Limiter, permits, most []int64, now time.Time, retry time.Duration,
) ([]protocol.Charged, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	budgets, known := d.budgets(limiters, now)
	if !known {
		return nil, false
	}
	charged := make([]protocol.Charged, len(limiters))
	for i, s := range budgets {
		if s.limit == 0 {
			return nil, false
		}
		charged[i].Counted = max(0, min(permits[i], s.free()+most[i]*s.limit))
	}
	for i, s := range budgets {
		c := &charged[i]
		s.Take(c.Counted)
		c.Now, c.Rate, c.Interval, c.Free, c.Notes = now.UnixMicro(), s.limit, s.interval, s.free(), protocol.Local
		c.NextAfter, c.ResetAfter = s.times()
		if c.Free < 1 {
			c.RetryAfter = s.wait(1, retry)
		}
	}
	return charged, true
}
