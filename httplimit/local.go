package httplimit

import (
	"math"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/local"
)

// local.go decides in the process while Redis can't. It never grants more than its share of a rate in any interval, and
// permits return up to a tenth of that late. It keeps at most mostKeys keys.

const mostKeys = 10_000

type deputy struct {
	mu      sync.Mutex
	windows map[localKey]*local.Window
}

type localKey struct{ name, key string }

// ask answers for claims whose rate is known. It can't if there is none, or no room for their keys.
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
		if c.Rate.Permits < 1 || c.Rate.Interval <= 0 {
			continue
		}
		w := d.window(localKey{c.Name, c.Key}, c.Rate.Interval, now)
		if w == nil {
			continue
		}
		limit := max(1, int64(math.Floor(float64(c.Rate.Permits)*share)))
		n := min(c.Permits, limit)
		free := limit - w.Used()
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

// window finds the window of a key, moved on to now, or makes it; nil if there is no room.
func (d *deputy) window(key localKey, interval time.Duration, now time.Time) *local.Window {
	w := d.windows[key]
	if w == nil {
		if len(d.windows) >= mostKeys && !d.sweep(now) {
			return nil
		}
		if d.windows == nil {
			d.windows = map[localKey]*local.Window{}
		}
		w = &local.Window{}
		d.windows[key] = w
	}
	w.Turn(now, interval)
	return w
}

// sweep forgets keys that have nothing in use, and tells whether that made room.
func (d *deputy) sweep(now time.Time) bool {
	for key, w := range d.windows {
		if w.Empty(now) {
			delete(d.windows, key)
		}
	}
	return len(d.windows) < mostKeys
}
