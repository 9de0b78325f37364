package dispatch

import (
	"context"
	"hash/maphash"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// Checks: which call adds up the records of a limiter, so that a surplus or a lack of free permits does not last. The
// scripts repair what a check finds.

// checkSlack is added to an interval to get the time between two checks.
const checkSlack = 500 * time.Millisecond

// recountTime is for how long one recount of a limiter goes on at most.
const recountTime = 10 * time.Second

// A checks knows when the records of each limiter were last added up. It is a hash table with four slots a bucket. If a bucket
// is full, the oldest entry leaves, and that limiter is checked at its next call. The zero value is ready for use.
type checks struct {
	mu         sync.Mutex      // guards the fields below
	slots      []check         // buckets, by the hash
	recounting map[string]bool // limiters whose records a goroutine adds up page by page, by their configuration keys
}

// A check tells when the records of a limiter were added up, at the rate that it still has.
type check struct {
	hash     uint64 // of the configuration key; 0: the slot is empty
	at       int64  // µs since 1970, by the client's clock
	rate     int64  // in the last reply
	interval int32  // in the last reply, ms, or the longest possible one
	free     int32  // in the last reply, or the most possible ones; below 0: the last request was no plain grant
}

// sum returns the sum of two durations that are not negative, at most the longest possible one: an interval may be that.
func sum(a, b time.Duration) time.Duration { return a + min(b, math.MaxInt64-a) }

// saturated returns n, or the nearest number that fits.
func saturated(n int64) int32 { return int32(max(math.MinInt32, min(n, math.MaxInt32))) }

// fewestSlots and mostSlots are how many slots there are at first, and at most, which takes 1.5 MB. The number doubles once a
// bucket is full.
const fewestSlots, mostSlots, slotsOfBucket = 3 << 6, 3 << 14, 4

// hashSeed seeds the hashes of limiters, here and in sets.
var hashSeed = maphash.MakeSeed()

// find returns the check of a limiter, and its hash; nil if there is none. c.mu is held.
func (c *checks) find(key string) (*check, uint64) {
	hash := maphash.String(hashSeed, key) | 1<<63 // never 0
	bucket := c.bucket(hash)
	if i := slices.IndexFunc(bucket, func(one check) bool { return one.hash == hash }); i >= 0 {
		return &bucket[i], hash
	}
	return nil, hash
}

// bucket returns the slots that a hash can be in. c.mu is held.
func (c *checks) bucket(hash uint64) []check {
	if len(c.slots) == 0 {
		return nil
	}
	first := hash % uint64(len(c.slots)/slotsOfBucket) * slotsOfBucket
	return c.slots[first : first+slotsOfBucket]
}

// due reports whether the next call of a limiter must add up the records: this process has not done so yet, the rate has
// changed, or an interval and checkSlack are over. It also returns how many permits were free by the last reply; below 0:
// this is not known, or the last request was no plain grant.
func (c *checks) due(key string, now time.Time) (due bool, free int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last, _ := c.find(key)
	if last == nil {
		return true, -1
	}
	since := now.Sub(time.UnixMicro(last.at))
	return since < 0 || since >= protocol.Millis(int64(last.interval))+checkSlack, int64(last.free)
}

// notPlain notes that a request of a limiter was no plain grant. This holds until the next check.
func (c *checks) notPlain(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if last, _ := c.find(key); last != nil {
		last.free = -1
	}
}

// saw stores the rate and the free permits in a reply of Redis, and whether that call checked the records.
func (c *checks) saw(key string, now time.Time, rate int64, interval time.Duration, free int64, checked bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last, hash := c.find(key)
	this := check{hash, now.UnixMicro(), rate, saturated(interval.Milliseconds()), saturated(free)}
	switch {
	case checked:
		c.store(this)
	case last != nil && rate != last.rate:
		*last = check{}
	case last != nil:
		last.interval = this.interval
		if last.free >= 0 {
			last.free = this.free
		}
	}
}

// store stores a check. c.mu is held.
func (c *checks) store(this check) {
	bucket := c.bucket(this.hash)
	place := func(one check) bool { return one.hash == this.hash }
	if !slices.ContainsFunc(bucket, place) {
		place = func(one check) bool { return one.hash == 0 }
	}
	if i := slices.IndexFunc(bucket, place); i >= 0 {
		bucket[i] = this
		return
	}
	if len(c.slots) == mostSlots { // the oldest one leaves
		oldest := &bucket[0]
		for i := range bucket {
			if bucket[i].at < oldest.at {
				oldest = &bucket[i]
			}
		}
		*oldest = this
		return
	}
	old := c.slots
	c.slots = make([]check, max(fewestSlots, 2*len(old)))
	for _, one := range old {
		if one.hash != 0 {
			c.store(one)
		}
	}
	c.store(this)
}

// recount notes that a recount of a limiter begins, unless one is under way, and reports whether it does.
func (c *checks) recount(key string) (begins bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.recounting == nil {
		c.recounting = map[string]bool{}
	}
	begins = !c.recounting[key]
	c.recounting[key] = true
	return begins
}

// recounted notes that a recount has ended.
func (c *checks) recounted(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.recounting, key)
}

// recounts returns how many recounts are under way.
func (c *checks) recounts() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.recounting)
}

// unchecked reports whether the next call must add up the records, and how many permits were free by the last reply.
func (l *Limiter) unchecked() (due bool, free int64) {
	return l.client.checks.due(l.Key(), l.client.clock())
}

// saw stores the rate and the free permits in a reply of Redis, and whether that call checked the records. If there are too
// many records for one call, it starts a recount.
func (l *Limiter) saw(rate int64, interval time.Duration, free int64, notes protocol.Notes, checked bool) {
	c := &l.client.checks
	c.saw(l.Key(), l.client.clock(), rate, interval, free, checked && !notes.Has(protocol.More))
	if notes.Has(protocol.Many) && c.recount(l.Key()) {
		go l.recountWithin(sum(interval, checkSlack))
	}
}

// recountWithin adds up the records of l, for at most the given time. Errors are dropped, because the next check follows.
func (l *Limiter) recountWithin(limit time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	_ = l.Recount(ctx)
	l.client.checks.recounted(l.Key())
}

// Recount adds up the records of a limiter that has too many for one call, page by page, and repairs what is stored.
func (l *Limiter) Recount(ctx context.Context) error {
	started, sent := time.Now(), new(script.Attempts)
	var progress protocol.Progress
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		request := protocol.Recount{Now: l.encoder.Now(), Progress: progress}
		reply, err := within(ctx, l, func(ctx context.Context) ([]any, error) {
			return l.client.Topology().RunMixed(ctx, sent, protocol.RecountScript, true, l.Keys(), request.Args()...)
		})
		if err != nil {
			return err
		}
		notes, next, err := request.Reply(reply)
		if err != nil {
			return err
		}
		if text := notes.Repaired(); text != "" {
			l.client.wake(l.Key())
			if o := l.client.observe; o != nil {
				o(Call{Limiter: l.name, Latency: time.Since(started), Attempts: sent.Count(), Repaired: text})
			}
		}
		if !notes.Has(protocol.More|protocol.Many) || time.Since(started) > recountTime {
			return nil // the next check does the rest
		}
		progress = next
	}
}
