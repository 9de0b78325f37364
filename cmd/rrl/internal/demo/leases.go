package demo

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

// leases.go is how a witness checks a limiter whose clients have leases (WithLease). A record of a
// lease is dated at its end, it is replaced by one with more permits, and what is unused leaves it
// again. So records can't be counted once each. But at every moment the live records must not hold
// more than the rate: the permits that callers got within the last interval are among them. The
// witness reads all of them with each poll.

// A holding is what a client's records of one time held when they were last seen, and how much of
// it is Java's.
type holding struct{ at, permits, java int64 }

// liveRecords are the records of a limiter with leases.
type liveRecords struct {
	holdings  map[string]holding // by client and time
	most      int64              // permits in live records at one moment
	before    int64              // permits in records from before the demo
	forgotten int64              // permits in holdings that were removed
}

// beginLive is begin for a limiter with leases.
func (w *witness) beginLive(ctx context.Context) error {
	w.live.holdings = map[string]holding{}
	w.last = time.Now()
	if err := w.look(ctx); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.live.before = w.recorded
	w.began, w.recorded, w.earlier, w.others = time.Now(), 0, 0, 0
	return nil
}

// takeLive takes all live records of a poll. w.mu is held.
func (w *witness) takeLive(l look) {
	live := w.live
	cutoff := float64(l.until.Add(-w.rate.Interval).UnixMicro()) / 1000
	var sum int64
	seen := map[string]holding{}
	for _, z := range l.records {
		member, _ := z.Member.(string)
		record, err := rratelimiter.UnpackRecord([]byte(member))
		if err != nil {
			continue // it is not counted
		}
		if z.Score > cutoff {
			sum += int64(record.Permits)
		}
		owner := string(record.ID)
		var java int64
		if byGo(record.ID) {
			owner = owner[:5] // later calls of the client replace its record
		} else {
			java = int64(record.Permits)
		}
		key := owner + strconv.FormatFloat(z.Score, 'f', -1, 64)
		seen[key] = holding{int64(z.Score), seen[key].permits + int64(record.Permits), seen[key].java + java}
	}
	live.most = max(live.most, sum)
	for key, h := range live.holdings {
		if float64(h.at) > cutoff && seen[key].at == 0 {
			delete(live.holdings, key) // all of it was given back
		}
	}
	maps.Copy(live.holdings, seen)
	oldest := l.until.Add(-(averaged + 1) * w.rate.Interval).UnixMilli()
	w.recent, w.recorded = w.recent[:0], live.forgotten-live.before
	for key, h := range live.holdings {
		w.recorded += h.permits
		if h.at < oldest {
			live.forgotten += h.permits
			delete(live.holdings, key)
		} else {
			w.recent = append(w.recent, moment(h))
		}
	}
}

// liveViolation describes a moment with more permits in live records than the rate; "" without one.
// w.mu is held.
func (w *witness) liveViolation() string {
	if w.live.most <= w.rate.Permits {
		return ""
	}
	return fmt.Sprintf("live records held %d permits at one moment, and the rate is %v", w.live.most, w.rate)
}
