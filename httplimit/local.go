package httplimit

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/local"
)

// local.go decides in the process while Redis can't. It never grants a key more than its share of a rate in any interval, and
// permits return up to a tenth of that late. It remembers at most mostKeys keys: when as many have permits in use, those that
// are new share what one key has of their limit.

const (
	mostKeys   = 10_000
	mostShared = 1_000 // names of limits whose new keys share
	looks      = 8     // keys that a new one looks at, for one that needs its place no more
)

type deputy struct {
	mu      sync.Mutex
	windows map[localKey]*local.Window
	places  []localKey                  // the keys of windows, each once
	next    int                         // the place to look at next
	shared  map[commonKey]*local.Window // of the keys without a place
}

type localKey struct{ name, key string }

// A commonKey tells which keys without a place share: those of one limit, whose intervals are the same.
type commonKey struct {
	name     string
	interval time.Duration
}

// ask answers for claims whose rate is known. It can't if there is none.
func (d *deputy) ask(claims []Claim, share float64) (answers []Answer, can bool) {
	if share <= 0 {
		share = 1
	}
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	var windows []*local.Window
	denied := false
	for _, c := range claims {
		if !c.local() {
			continue
		}
		w := d.window(localKey{c.Name, c.Key}, c.Rate.Interval, now, windows)
		limit := max(1, int64(math.Floor(float64(c.Rate.Permits)*share)))
		n := min(c.Permits, limit)
		free := limit - w.Used()
		for i, other := range windows { // keys of one request may share, too
			if other == w {
				free -= min(answers[i].Permits, answers[i].Limit)
			}
		}
		a := Answer{Claim: c, Result: rratelimiter.Result{Limit: limit, Remaining: max(free, 0)}}
		if a.Refused = n > free; a.Refused {
			a.RetryAfter, denied = w.Until(now, w.Used()+n-limit), true
		}
		a.ResetAfter = w.Until(now, w.Used())
		answers, windows = append(answers, a), append(windows, w)
	}
	if denied {
		return answers, true
	}
	for i, w := range windows {
		n := min(answers[i].Permits, answers[i].Limit)
		w.Take(n)
		answers[i].Allowed, answers[i].Remaining = true, answers[i].Remaining-n
		answers[i].ResetAfter = w.Until(now, w.Used())
	}
	return answers, len(answers) > 0
}

// local tells whether the process can decide on a claim by itself.
func (c Claim) local() bool { return c.Rate.Permits > 0 && c.Rate.Interval > 0 }

// window finds the window of a key, moved on to now, or makes it. One that is made while keys share begins with what these
// have in use, since the key may have had a part of that. The windows held stay.
func (d *deputy) window(key localKey, interval time.Duration, now time.Time, held []*local.Window) *local.Window {
	w := d.windows[key]
	if w == nil {
		w = &local.Window{}
		shared := commonKey{key.name, interval}
		common := d.shared[shared]
		if common != nil && common.Empty(now) && !slices.Contains(held, common) {
			delete(d.shared, shared)
			common = nil
		}
		if !d.place(key, w, now, held) {
			w = d.common(shared)
		} else if common != nil {
			*w = *common
		}
	}
	w.Turn(now, interval)
	return w
}

// place gives a window a place, if there is one or a few looks find one whose key has nothing in use.
func (d *deputy) place(key localKey, w *local.Window, now time.Time, held []*local.Window) bool {
	if d.windows == nil {
		d.windows = map[localKey]*local.Window{}
	}
	if len(d.places) < mostKeys {
		d.places = append(d.places, key)
		d.windows[key] = w
		return true
	}
	for range looks {
		at := d.next
		d.next = (d.next + 1) % len(d.places)
		old := d.places[at]
		if was := d.windows[old]; was.Empty(now) && !slices.Contains(held, was) {
			delete(d.windows, old)
			d.places[at], d.windows[key] = key, w
			return true
		}
	}
	return false
}

// common is the window that the keys of a limit share which have no place. Where there are too many limits, those without
// one share, too.
func (d *deputy) common(key commonKey) *local.Window {
	if d.shared == nil {
		d.shared = map[commonKey]*local.Window{}
	}
	if d.shared[key] == nil && len(d.shared) >= mostShared {
		key.name = ""
	}
	if d.shared[key] == nil {
		d.shared[key] = &local.Window{}
	}
	return d.shared[key]
}
