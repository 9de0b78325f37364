package httplimit

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/localwindow"
)

// local.go decides in the process while Redis is unreachable. In any interval, it grants a key at
// most the process's share of the rate. Permits granted in the same tenth of an interval return
// together, an interval after the last of them. It stores at most mostKeys keys. While all of these
// have permits in use, all new keys of a limit together get the permits of one key.

const (
	mostKeys   = 10_000
	mostShared = 1_000 // maximum number of limits whose new keys share a window
	looks      = 8     // number of places that are checked for a key without permits in use
)

type localLimiter struct {
	mu      sync.Mutex
	windows map[localKey]*localwindow.Window
	places  []localKey                        // the keys of windows, each once
	next    int                               // index of the next place to check
	shared  map[commonKey]*localwindow.Window // windows of the keys without a place
}

type localKey struct{ name, key string }

// A commonKey identifies the keys without a place that share a window: the keys of one limit with
// the same interval.
type commonKey struct {
	name     string
	interval time.Duration
}

// ask decides on the claims whose rate is known. can is false if the rate of no claim is known.
func (d *localLimiter) ask(claims []Claim, share float64) (answers []Answer, can bool) {
	if share <= 0 {
		share = 1
	}
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	var windows []*localwindow.Window
	denied := false
	for _, c := range claims {
		if !c.known() {
			continue
		}
		w := d.window(localKey{c.Name, c.Key}, c.Rate.Interval, now, windows)
		limit := c.Rate.Permits
		if limit > 0 {
			limit = max(1, int64(math.Floor(float64(limit)*share)))
		}
		n := max(1, min(c.needs(), limit))
		free := limit - w.Used()
		for i, other := range windows { // two keys of one request may share a window
			if other == w {
				free -= min(answers[i].needs(), answers[i].Limit)
			}
		}
		a := Answer{Claim: c, Result: rratelimiter.Result{Limit: limit, Remaining: max(free, 0)}}
		if a.Refused = n > free; a.Refused {
			a.RetryAfter, denied = w.Until(now, w.Used()+n-limit), true
		}
		a.NextAfter, a.ResetAfter = w.Until(now, 1), w.Until(now, w.Used())
		answers, windows = append(answers, a), append(windows, w)
	}
	if denied {
		return answers, true
	}
	for i, w := range windows {
		n := min(answers[i].needs(), answers[i].Limit)
		w.Take(n)
		answers[i].Allowed, answers[i].Remaining = true, answers[i].Remaining-n
		answers[i].NextAfter, answers[i].ResetAfter = w.Until(now, 1), w.Until(now, w.Used())
	}
	return answers, len(answers) > 0
}

// known reports whether the rate of a claim is known, so that the process can decide on the claim
// locally.
func (c Claim) known() bool { return c.Rate.Interval > 0 }

// refuses reports whether the rate of a claim is known to refuse every request.
func (c Claim) refuses() bool { return c.known() && c.Rate.Permits == 0 }

// window returns the window of a key, advanced to now. It makes the window if there is none. If
// keys of the limit share a window at this time, the new window begins with the permits in use of
// the shared window, because the key may have taken some of them. The windows in held are not
// replaced.
func (d *localLimiter) window(
	key localKey, interval time.Duration, now time.Time, held []*localwindow.Window,
) *localwindow.Window {
	w := d.windows[key]
	if w == nil {
		w = &localwindow.Window{}
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

// place stores a window if there is a free place, or if the key in one of the checked places has no
// permits in use.
func (d *localLimiter) place(key localKey, w *localwindow.Window, now time.Time, held []*localwindow.Window) bool {
	if d.windows == nil {
		d.windows = map[localKey]*localwindow.Window{}
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

// common returns the window that the keys of a limit without a place share. If there are more than
// mostShared limits, all further limits with the same interval share one window.
func (d *localLimiter) common(key commonKey) *localwindow.Window {
	if d.shared == nil {
		d.shared = map[commonKey]*localwindow.Window{}
	}
	if d.shared[key] == nil && len(d.shared) >= mostShared {
		key.name = ""
	}
	if d.shared[key] == nil {
		d.shared[key] = &localwindow.Window{}
	}
	return d.shared[key]
}
