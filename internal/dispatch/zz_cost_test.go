package dispatch

import (
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/fairshare"
)

func TestCostZZ(t *testing.T) {
	for _, notes := range []int64{1, 1000} {
		for _, n := range []int{1000, 10000} {
			q := newQueue(newLimiter())
			q.rate = 200000
			start := time.Now()
			for i := range notes {
				q.fairShare.Granted(start.UnixMicro()-900_000+i*900, time.Second, 100)
			}
			q.fairShare.Divide(fairshare.Reply{Now: start.UnixMicro(), Rate: q.rate, Free: q.rate - 100*notes, Interval: time.Second}, start, 0, 1)
			var all []*request
			for range n {
				r := &request{Ask: Ask{N: 1, Waits: true}, free: start, end: start.Add(time.Hour), state: requestRefused}
				if r.prev = q.last; r.prev == nil {
					q.first = r
				} else {
					r.prev.next = r
				}
				q.last = r
				q.waiting++
				all = append(all, r)
			}
			q.set(100 * time.Minute)
			began := time.Now()
			for i := n - 1; i > n-101; i-- {
				q.drop(all[i])
			}
			took := time.Since(began)
			t.Logf("%d callers, %d notes: %v a drop", n, notes, took/100)
			q.timer.Stop()
		}
	}
}
