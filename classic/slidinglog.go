package classic

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync/atomic"

	"github.com/rratelimiter/rratelimiter"
)

var slidingLogScript = load("sliding_log")

// NewSlidingLog returns a sliding window that stores each grant.
//
// Model: a grant counts for one interval from its time on. At any moment, the grants of the last
// interval count.
//
// Layout: a hash NAME and a zset NAME_windows. The zset has a record for each grant: its score is
// the time in ms, its member begins with the permits. Other implementations write only the permits.
// There, a second grant of the same size is the same member: it replaces the first record instead
// of adding one. Here a colon and a unique text follows. In the hash, currentRate is the permits of
// all records, and cursor the time from which they count: that of the oldest. Both keys have a TTL
// of an interval from the last grant. A call computes currentRate from the records again if it
// reads all of them (a refusal reads up to 512), or if currentRate is less than the number of
// records, and so wrong. Records that are more than one minute and more than an interval ahead are
// removed.
//
// Cost: a record of some 80 bytes for each grant of an interval; one call with ten commands, and
// the time to remove expired records. On a cluster the two keys need a hash tag: over a
// *redis.ClusterClient a name without one is kept as {NAME} and {NAME}_windows.
//
// Weakness: only memory. At most Permits in any interval, exactly, by the clients' clocks.
func NewSlidingLog(rdb rratelimiter.Redis, name string, rate rratelimiter.Rate, opts ...Option) *Limiter {
	l := newLimiter(rdb, name, rate.Permits, rate.Permits, opts, checkRate(rate))
	keys := l.pair("_windows")
	l.try = func(ctx context.Context, n int64, m mode) (rratelimiter.Result, int64, error) {
		reply, err := l.run(
			ctx, slidingLogScript, m, keys, rate.Permits, rate.Interval.Milliseconds(), l.now(), n, unique(),
		)
		if err != nil {
			return rratelimiter.Result{}, 0, err
		}
		r := counted(rate.Permits, reply)
		r.ResetAfter, r.NextAfter = millis(reply[3]), millis(reply[4])
		return r, reply[0], nil
	}
	return l
}

var (
	process = rand.Text()[:12]
	serial  atomic.Uint32
)

// unique returns a text of twenty characters that no other call of any process gets.
func unique() string { return process + fmt.Sprintf("%08x", serial.Add(1)) }
