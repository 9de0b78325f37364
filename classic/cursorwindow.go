package classic

import (
	"context"

	"github.com/rratelimiter/rratelimiter"
)

var cursorWindowScript = load("cursor_window")

// NewCursorWindow returns a window with a cursor: a fixed window that stores its beginning.
//
// Model: a window begins at the cursor and counts grants until an interval has passed; then the
// cursor advances by whole intervals. The first window of a limiter begins at a multiple of the
// interval, counted from 1970.
//
// Layout: a hash NAME: cursor, the beginning of the window (ms), and currentRate, permits granted
// in it. Its TTL is an interval from the last grant. A cursor that is invalid, or ahead by more
// than an interval, starts a new window; an invalid currentRate counts as 0.
//
// Cost: one hash of two numbers, one call with three commands. It works on a cluster: there is one
// key.
//
// Weakness: it is often called a sliding window, but slides no more than other fixed windows: with
// 10 a second, 10 at 0.9 s and 10 at 1.1 s are 20 in 0.2 s. At most 2 x Permits in any interval.
func NewCursorWindow(rdb rratelimiter.Redis, name string, rate rratelimiter.Rate, opts ...Option) *Limiter {
	l := newLimiter(rdb, name, rate.Permits, rate.Permits, opts, checkRate(rate))
	l.try = func(ctx context.Context, n int64, m mode) (rratelimiter.Result, int64, error) {
		reply, err := l.run(
			ctx, cursorWindowScript, m, []string{name}, rate.Permits, rate.Interval.Milliseconds(), l.now(), n,
		)
		if err != nil {
			return rratelimiter.Result{}, 0, err
		}
		return counted(rate.Permits, reply), reply[0], nil
	}
	return l
}
