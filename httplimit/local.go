package httplimit

import (
	"math"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

// local.go decides in the process while Redis can't. It never grants more than its share of a rate in any interval; it
// counts by tenths of the interval, so permits return up to a tenth late. It keeps at most mostKeys keys.

const (
	tenths   = 10
	mostKeys = 10_000
)

type local struct {
	mu      sync.Mutex
	windows map[localKey]*window
}

type localKey struct{ name, key string }

// A window counts what was granted in the last tenths of an interval, and in the current one.
type window struct {
	interval time.Duration
	current  int64 // number of the tenth that counts[0] belongs to
	counts   [tenths + 1]int64
}

// ask answers for claims whose rate is known. It can't if there is none, or no room for their keys.
func (l *local) ask(claims []Claim, share float64) (answers []Answer, can bool) {
	if share <= 0 {
		share = 1
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	var windows []*window
	denied := false
	for _, c := range claims {
		if c.Rate.Permits < 1 || c.Rate.Interval <= 0 {
			continue
		}
		w := l.window(localKey{c.Name, c.Key}, c.Rate.Interval, now)
		if w == nil {
			continue
		}
		limit := max(1, int64(math.Floor(float64(c.Rate.Permits)*share)))
		n := min(c.Permits, limit)
		free := limit - w.used()
		a := Answer{Claim: c, Result: rratelimiter.Result{Limit: limit, Remaining: max(free, 0)}}
		if a.Refused = n > free; a.Refused {
			a.RetryAfter, denied = w.until(now, w.used()+n-limit), true
		}
		a.ResetAfter = w.until(now, w.used())
		answers, windows = append(answers, a), append(windows, w)
	}
	if denied {
		return answers, true
	}
	for i, w := range windows {
		n := min(answers[i].Permits, answers[i].Limit)
		w.counts[0] += n
		answers[i].Allowed, answers[i].Remaining = true, answers[i].Remaining-n
		answers[i].ResetAfter = w.until(now, w.used())
	}
	return answers, len(answers) > 0
}

// window finds the window of a key, moved on to now, or makes it; nil if there is no room.
func (l *local) window(key localKey, interval time.Duration, now time.Time) *window {
	w := l.windows[key]
	if w == nil || w.interval != interval {
		if w == nil && len(l.windows) >= mostKeys && !l.sweep(now) {
			return nil
		}
		if l.windows == nil {
			l.windows = map[localKey]*window{}
		}
		w = &window{interval: interval, current: now.UnixNano() / tenth(interval)}
		l.windows[key] = w
	}
	w.move(now)
	return w
}

// sweep forgets keys that have nothing in use, and tells whether that made room.
func (l *local) sweep(now time.Time) bool {
	for key, w := range l.windows {
		if w.move(now); w.used() == 0 {
			delete(l.windows, key)
		}
	}
	return len(l.windows) < mostKeys
}

// tenth is the length of a tenth in ns, rounded up.
func tenth(interval time.Duration) int64 { return (int64(interval) + tenths - 1) / tenths }

func (w *window) move(now time.Time) {
	current := now.UnixNano() / tenth(w.interval)
	for ; w.current < current; w.current++ {
		if w.used() == 0 {
			w.current = current
			return
		}
		copy(w.counts[1:], w.counts[:])
		w.counts[0] = 0
	}
}

func (w *window) used() (sum int64) {
	for _, n := range w.counts {
		sum += n
	}
	return sum
}

// until is the time until n permits that are in use will have returned.
func (w *window) until(now time.Time, n int64) time.Duration {
	for i := tenths; i >= 0; i-- {
		if n <= 0 {
			break
		}
		if n -= w.counts[i]; n <= 0 {
			end := (w.current - int64(i) + tenths + 1) * tenth(w.interval)
			return time.Duration(end - now.UnixNano())
		}
	}
	return 0
}
