// Package checks keeps when the records of each limiter were added up, in little memory. It tells
// which call is to add them up again, so that a surplus or a lack of free permits does not last.
package checks

import (
	"hash/maphash"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// Slack is added to an interval to get the time between two checks.
const Slack = 500 * time.Millisecond

// A Table is a hash table with four slots a bucket. If a bucket is full, the oldest entry leaves,
// and that limiter is checked at its next call. The zero Table is ready for use. It is safe for
// concurrent use.
type Table struct {
	mu    sync.Mutex // guards the fields below
	slots []check    // buckets, by the hash
	// limiters whose records a goroutine adds up page by page, by their configuration keys
	recounting map[string]bool
}

// A check tells when the records of a limiter were added up, at the rate that it still has.
type check struct {
	hash     uint64 // of the configuration key; 0: the slot is empty
	at       int64  // µs since 1970, by the client's clock
	rate     int64  // in the last reply
	interval int32  // in the last reply, ms, or the longest possible one
	// in the last reply, or the most possible ones; below protocol.Unseen: the last request was no
	// plain grant
	free int32
}

// saturated returns n, or the nearest number that fits.
func saturated(n int64) int32 { return int32(max(math.MinInt32, min(n, math.MaxInt32))) }

// fewestSlots and mostSlots are how many slots there are at first, and at most, which takes 1.5 MB.
// The number doubles once a bucket is full.
const fewestSlots, mostSlots, slotsOfBucket = 3 << 6, 3 << 14, 4

// seed seeds the hashes of limiters.
var seed = maphash.MakeSeed()

// find returns the check of a limiter, and its hash; nil if there is none. The table is locked.
func (t *Table) find(key string) (*check, uint64) {
	hash := maphash.String(seed, key) | 1<<63 // never 0
	bucket := t.bucket(hash)
	if i := slices.IndexFunc(bucket, func(one check) bool { return one.hash == hash }); i >= 0 {
		return &bucket[i], hash
	}
	return nil, hash
}

// bucket returns the slots that a hash can be in.
func (t *Table) bucket(hash uint64) []check {
	if len(t.slots) == 0 {
		return nil
	}
	first := hash % uint64(len(t.slots)/slotsOfBucket) * slotsOfBucket
	return t.slots[first : first+slotsOfBucket]
}

// Due reports whether the next call of a limiter must add up the records: this process has not done
// so yet, the rate has changed, or an interval and Slack are over. It also returns how many
// permits were free by the last reply; protocol.Unseen if no reply is known, below that if the last
// request was no plain grant.
func (t *Table) Due(key string, now time.Time) (due bool, free int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	last, _ := t.find(key)
	if last == nil {
		return true, protocol.Unseen
	}
	since := now.Sub(time.UnixMicro(last.at))
	return since < 0 || since >= protocol.Millis(int64(last.interval))+Slack, int64(last.free)
}

// NotPlain notes that a request of a limiter was no plain grant. This holds until the next check.
func (t *Table) NotPlain(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if last, _ := t.find(key); last != nil {
		last.free = protocol.Unseen - 1
	}
}

// Saw stores the rate and the free permits in a reply of Redis, and whether that call checked the
// records.
func (t *Table) Saw(key string, now time.Time, rate int64, interval time.Duration, free int64, checked bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	last, hash := t.find(key)
	this := check{hash, now.UnixMicro(), rate, saturated(interval.Milliseconds()), saturated(free)}
	switch {
	case checked:
		t.store(this)
	case last != nil && rate != last.rate:
		*last = check{}
	case last != nil:
		last.interval = this.interval
		if last.free >= 0 {
			last.free = this.free
		}
	}
}

// store stores a check. The table is locked.
func (t *Table) store(this check) {
	bucket := t.bucket(this.hash)
	place := func(one check) bool { return one.hash == this.hash }
	if !slices.ContainsFunc(bucket, place) {
		place = func(one check) bool { return one.hash == 0 }
	}
	if i := slices.IndexFunc(bucket, place); i >= 0 {
		bucket[i] = this
		return
	}
	if len(t.slots) == mostSlots { // the oldest one leaves
		oldest := &bucket[0]
		for i := range bucket {
			if bucket[i].at < oldest.at {
				oldest = &bucket[i]
			}
		}
		*oldest = this
		return
	}
	old := t.slots
	t.slots = make([]check, max(fewestSlots, 2*len(old)))
	for _, one := range old {
		if one.hash != 0 {
			t.store(one)
		}
	}
	t.store(this)
}

// Recount notes that a recount of a limiter begins, unless one is under way, and reports whether it
// does.
func (t *Table) Recount(key string) (begins bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.recounting == nil {
		t.recounting = map[string]bool{}
	}
	begins = !t.recounting[key]
	t.recounting[key] = true
	return begins
}

// Recounted notes that a recount has ended.
func (t *Table) Recounted(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.recounting, key)
}

// Recounts returns how many recounts are under way.
func (t *Table) Recounts() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.recounting)
}
