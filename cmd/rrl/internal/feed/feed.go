// Package feed reads a limiter repeatedly, for live views: the free permits over time, and the
// permits that each client was granted in each second. It changes nothing and prints nothing.
package feed

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/survey"
)

const (
	// Length is how long what was seen is remembered.
	Length = 2 * time.Minute

	slowest = time.Second
	fastest = 100 * time.Millisecond
	most    = 20_000 // records read in one look
)

// A Feed is what was seen of one limiter. Grants are read from their records, which live for one
// interval, so looks must be more frequent than that: see Every.
type Feed struct {
	limiter *connect.Limiter
	own     bool
	every   time.Duration
	slots   map[int64]map[string]int64 // permits granted, by the number of the slot and who wrote them
	slot    time.Duration
	free    []Free
	seen    []Span
	// of the server's clock, compared with this host's, at the last look that told; before one: 0
	ahead time.Duration
}

// New makes a feed of a limiter. own says that, of a PER_CLIENT limiter, its client's own state is
// meant.
func New(l *connect.Limiter, own bool) *Feed {
	return &Feed{limiter: l, own: own, every: slowest}
}

// Free is how many permits were free at a time.
type Free struct {
	At   time.Time
	Free int64
}

// A Second is what was granted in one second.
type Second struct {
	At      time.Time // when it began
	Permits int64
	By      map[string]int64 // by the tag of the Go client; "": Java or unknown
}

// A Span is a time for which all grants were read, as far as their number allows.
type Span struct{ From, To time.Time }

// A Look is one look at a limiter, by the server's clock.
type Look struct {
	Name, Client string
	At           time.Time
	Fault        string // why the rate can't be used, or "": then all else is zero
	Rate         rratelimiter.Rate
	Free, Used   int64
	Records      int           // live ones
	TTL          time.Duration // of the configuration; 0: none
	Consistent   bool          // free permits and records add up to the rate
	Partial      bool          // more was granted since the last look than is read
}

// Every is how long to wait until the next look: less than half of the interval where that is
// short, so that no record lives and dies between two looks, else a second. Intervals below a fifth
// of a second are too short for that.
func (f *Feed) Every() time.Duration { return f.every }

// Look looks once. The error is that of Redis; a limiter without a rate is none.
func (f *Feed) Look(ctx context.Context) (Look, error) {
	k := Look{Name: f.limiter.Name()}
	state, _, err := f.limiter.Glance(ctx)
	if errors.Is(err, rratelimiter.ErrNotInitialized) {
		k.At, k.Fault = f.now(), survey.Reason(err)
		f.every = slowest
		return k, nil
	}
	if err != nil {
		return k, err
	}
	own := f.own && state.Rate.Type == rratelimiter.PerClient
	if own {
		k.Client = f.limiter.Client().ID()
	}
	interval := state.Rate.Interval
	f.every = min(slowest, max(interval*2/5, fastest))
	f.cut(min(slowest, max(interval/10, time.Millisecond)))
	back := min(2*f.every, interval*9/10)
	grants, at, complete, err := survey.Recent(ctx, f.limiter, own, back, most)
	if err != nil {
		return k, err
	}
	f.ahead = time.Until(at)
	k.At, k.Rate, k.Free, k.Used, k.Records = at, state.Rate, state.Available, state.Used, state.Records
	k.TTL, k.Consistent, k.Partial = state.TTL, state.Consistent, !complete
	f.count(grants)
	f.cover(at, back)
	f.free = append(f.free, Free{at, state.Available})
	f.forget(at.Add(-Length))
	return k, nil
}

// now estimates the server's time.
func (f *Feed) now() time.Time { return time.Now().Add(f.ahead) }

// slotLengths are such that seconds are made of whole slots.
var slotLengths = []time.Duration{1000, 500, 200, 100, 50, 20, 10, 5, 2, 1} // in ms

// cut sets the length of slots. What was counted in others is forgotten with an old interval.
func (f *Feed) cut(longest time.Duration) {
	for _, slot := range slotLengths {
		if slot *= time.Millisecond; slot <= longest {
			if f.slot != slot {
				f.slot, f.slots, f.seen = slot, map[int64]map[string]int64{}, nil
			}
			return
		}
	}
}

// count notes grants. What a slot has lost since it was counted was released, or is beyond what was
// read: it was granted all the same. What was released and granted again within a slot counts once.
func (f *Feed) count(grants []survey.Grant) {
	found := map[int64]map[string]int64{}
	for _, g := range grants {
		slot := g.At.UnixMilli() / f.slot.Milliseconds()
		if found[slot] == nil {
			found[slot] = map[string]int64{}
		}
		found[slot][g.Tag] += g.Permits
	}
	for slot, by := range found {
		if f.slots[slot] == nil {
			f.slots[slot] = by
			continue
		}
		for tag, permits := range by {
			f.slots[slot][tag] = max(f.slots[slot][tag], permits)
		}
	}
}

// cover notes that a look read the grants from so long back until now. Looks at their regular pace
// leave no gap, though records of an interval below a fifth of a second live and die between them.
func (f *Feed) cover(at time.Time, back time.Duration) {
	if n := len(f.seen); n > 0 && at.Sub(f.seen[n-1].To) <= 2*f.every {
		f.seen[n-1].To = at
		return
	}
	f.seen = append(f.seen, Span{at.Add(-back), at})
}

func (f *Feed) forget(before time.Time) {
	f.free = slices.DeleteFunc(f.free, func(p Free) bool { return p.At.Before(before) })
	f.seen = slices.DeleteFunc(f.seen, func(s Span) bool { return s.To.Before(before) })
	maps.DeleteFunc(f.slots, func(slot int64, _ map[string]int64) bool {
		return slot*f.slot.Milliseconds() < before.UnixMilli()
	})
}

// Seen are the times for which grants were read, in order.
func (f *Feed) Seen() []Span { return slices.Clone(f.seen) }

// Frees are the free permits of all looks since a time.
func (f *Feed) Frees(since time.Time) []Free {
	first, _ := slices.BinarySearchFunc(f.free, since, func(p Free, at time.Time) int { return p.At.Compare(at) })
	return slices.Clone(f.free[first:])
}

// Seconds are the grants of each second since a time, in order, those seconds without any left out.
func (f *Feed) Seconds(since time.Time) []Second {
	found := map[int64]*Second{}
	for slot, by := range f.slots {
		at := slot * f.slot.Milliseconds() / 1000
		if at < since.Unix() {
			continue
		}
		if found[at] == nil {
			found[at] = &Second{At: time.Unix(at, 0), By: map[string]int64{}}
		}
		for tag, permits := range by {
			found[at].Permits += permits
			found[at].By[tag] += permits
		}
	}
	var seconds []Second
	for _, s := range found {
		seconds = append(seconds, *s)
	}
	slices.SortFunc(seconds, func(a, b Second) int { return a.At.Compare(b.At) })
	return seconds
}

// Writers are the tags of those who were granted something in seconds, who got most first.
func Writers(seconds []Second) (tags []string, permits map[string]int64) {
	permits = map[string]int64{}
	for _, s := range seconds {
		for tag, n := range s.By {
			permits[tag] += n
		}
	}
	tags = slices.Collect(maps.Keys(permits))
	slices.SortFunc(
		tags, func(a, b string) int { return cmp.Or(cmp.Compare(permits[b], permits[a]), strings.Compare(a, b)) },
	)
	return tags, permits
}
