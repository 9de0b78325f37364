package redisson

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/proof"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// A meeting starts Redisson threads on a limiter of which Go processes take every permit.
type meeting struct {
	rate    rratelimiter.Rate
	gos     int // processes
	callers int // of each; 0: four
	// of their requests: a quarter of it to five quarters; 0: they wait without one
	timeout time.Duration
	threads int           // of Redisson
	n       int64         // permits per request of a thread
	tick    time.Duration // of their timer
	phase   time.Duration // of the ticks
	late    time.Duration // largest delay after a tick
	known   bool          // Redisson used the server before
	set     bool          // the Go processes ask for permits of another limiter, too, by AcquireAll
	seed    uint64        // random seed of all start times and delays
	early   time.Duration // in which only the Go processes run; 0: three intervals, at least 3 s

	// is called for each request of a Go process that comes later and is granted; may be nil
	granted func(process int, waited time.Duration)
}

// run first runs only the Go processes, then both sides for the given time. It returns the fraction
// of the rate that each side got in that time.
func (m meeting) run(t *testing.T, both time.Duration) (java, gos float64) {
	t.Helper()
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		random := rand.New(rand.NewPCG(m.seed, 0))
		time.Sleep(time.Duration(random.Int64N(int64(time.Hour))))
		join := time.Now().Add(cmp.Or(m.early, 3*max(time.Second, m.rate.Interval)))
		end := join.Add(both)
		var mu sync.Mutex // guards the variables below and random
		var byGo, byJava int64
		upTo := func(d time.Duration) time.Duration {
			mu.Lock()
			defer mu.Unlock()
			return time.Duration(random.Int64N(int64(d) + 1))
		}
		// travel time to the server, and back
		way := func() time.Duration { return 50*time.Microsecond + upTo(100*time.Microsecond) }
		count := func(sum *int64, n int64) {
			mu.Lock()
			defer mu.Unlock()
			if now := time.Now(); !now.Before(join) && now.Before(end) {
				*sum += n
			}
		}
		var all sync.WaitGroup
		for i := range m.gos {
			p := b.Process(rratelimiter.WithClientID(fmt.Sprint("go", i)))
			l := p.RateLimiter("l", rratelimiter.WithRate(m.rate))
			other := p.RateLimiter("{l}other", rratelimiter.WithRate(rratelimiter.PerSecond(1_000_000)))
			for range cmp.Or(m.callers, 4) {
				all.Go(func() {
					for time.Now().Before(end) {
						p.Wire.There.Store(int64(way()))
						p.Wire.Back.Store(int64(way()))
						came, ok, err := time.Now(), true, error(nil)
						if m.set {
							err = p.AcquireAll(t.Context(), 1, l, other)
						} else if m.timeout == 0 {
							err = l.Acquire(t.Context(), 1)
						} else if ok, err = l.TryAcquireTimeout(t.Context(), 1, m.timeout/4+upTo(m.timeout)); !ok {
							time.Sleep(upTo(20 * ms))
						}
						if err != nil {
							t.Error(err)
							return
						}
						if ok {
							count(&byGo, 1)
						}
						if now := time.Now(); ok && m.granted != nil && !came.Before(join) && now.Before(end) {
							m.granted(i, now.Sub(came))
						}
					}
				})
			}
		}
		rdb := b.Process().Redis
		if m.known {
			if err := rig.AskRedisson.Load(t.Context(), rdb).Err(); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Until(join))
		for thread := range m.threads {
			all.Go(func() {
				for ask := 0; time.Now().Before(end); ask++ {
					id := binary.BigEndian.AppendUint32([]byte{0x99, 0, 0, byte(thread)}, uint32(ask))
					member, err := rratelimiter.PackRecord(rratelimiter.Redisson317, id, uint32(m.n))
					if err != nil {
						t.Error(err)
						return
					}
					now := time.Now().UnixMilli()
					time.Sleep(way())
					wait, err := rig.AskRedisson.Run(t.Context(), rdb, []string{"{l}:value", "{l}:permits"},
						now, m.rate.Interval.Milliseconds(), m.n, member).Int64()
					time.Sleep(way())
					if err != nil {
						t.Error(err)
						return
					}
					if wait == 0 {
						count(&byJava, m.n)
						continue
					}
					due := time.Now().Add(protocol.Millis(wait) - m.phase).Truncate(m.tick).Add(m.tick + m.phase)
					time.Sleep(time.Until(due) + upTo(m.late))
				}
			})
		}
		all.Wait()
		allowed := float64(m.rate.Permits) * float64(both) / float64(m.rate.Interval)
		java, gos = float64(byJava)/allowed, float64(byGo)/allowed
	})
	return java, gos
}

// Whatever the phase of its timer ticks, Redisson soon gets its share of a limiter that was
// saturated when it came.
func TestRedissonGetsPermitsAtAnyPhase(t *testing.T) {
	rig.Long(t)
	rig.TakeForRedissons(t, rig.AskRedisson.Hash())
	for phase := 0; phase < 100; phase += 5 {
		t.Run(fmt.Sprint(phase), func(t *testing.T) {
			t.Parallel()
			m := meeting{
				rate:    rratelimiter.PerSecond(20),
				gos:     1,
				threads: 4,
				n:       1,
				tick:    100 * ms,
				phase:   time.Duration(phase) * ms,
				seed:    uint64(phase),
			}
			if java, gos := m.run(t, 7*time.Second); java < 0.2 || gos < 0.3 || java+gos < 0.95 {
				t.Errorf("of what the rate allows Redisson had %.1f %%, Go %.1f %%", 100*java, 100*gos)
			}
		})
	}
}

// Redisson gets its share on any limiter and machine. The least accepted is about half of its share
// in the long run.
func TestRedissonGetsPermits(t *testing.T) {
	rig.Long(t)
	rig.TakeForRedissons(t, rig.AskRedisson.Hash())
	const busy = 40 * ms
	for name, c := range map[string]struct {
		meeting
		both  time.Duration
		least float64
	}{
		"a busy machine": {
			meeting{rate: rratelimiter.PerSecond(20), gos: 1, threads: 4, n: 1, tick: 100 * ms, late: busy},
			7 * time.Second,
			0.2,
		},
		"a faster timer": {
			meeting{rate: rratelimiter.PerSecond(20), gos: 1, threads: 4, n: 1, tick: 28 * ms, late: busy},
			7 * time.Second, 0.2,
		},
		"a single thread": {
			meeting{rate: rratelimiter.PerSecond(20), gos: 1, threads: 1, n: 1, tick: 100 * ms, late: busy},
			7 * time.Second,
			0.2,
		},
		"a server that knows it": {
			meeting{
				rate:    rratelimiter.PerSecond(20),
				gos:     1,
				threads: 4,
				n:       1,
				tick:    100 * ms,
				late:    busy,
				known:   true,
			},
			7 * time.Second, 0.2,
		},
		"three Go processes": {
			meeting{rate: rratelimiter.PerSecond(40), gos: 3, threads: 4, n: 1, tick: 100 * ms, late: busy},
			14 * time.Second,
			0.1,
		},
		"many permits at a time": {
			meeting{rate: rratelimiter.PerSecond(20), gos: 1, threads: 4, n: 4, tick: 100 * ms}, 40 * time.Second, 0.2,
		},
		"a short interval": {
			meeting{rate: rratelimiter.Rate{Permits: 10, Interval: 250 * ms}, gos: 1, threads: 4, n: 1, tick: 100 * ms},
			7 * time.Second, 0.15,
		},
		"a very short interval": {
			meeting{rate: rratelimiter.Rate{Permits: 5, Interval: 100 * ms}, gos: 1, threads: 4, n: 1, tick: 100 * ms},
			7 * time.Second, 0.1,
		},
		"ten milliseconds": {
			meeting{
				rate:    rratelimiter.Rate{Permits: 2, Interval: 10 * ms},
				gos:     1,
				threads: 4,
				n:       1,
				tick:    100 * ms,
				late:    busy,
			},
			10 * time.Second, 0.01,
		},
		"callers with timeouts": {
			meeting{
				rate:    rratelimiter.PerSecond(20),
				gos:     1,
				callers: 10,
				timeout: 1500 * ms,
				threads: 4,
				n:       1,
				tick:    100 * ms,
				late:    busy,
			},
			7 * time.Second, 0.2,
		},
		"many that leave soon": {
			meeting{
				rate:    rratelimiter.PerSecond(20),
				gos:     1,
				callers: 20,
				timeout: 400 * ms,
				threads: 4,
				n:       1,
				tick:    100 * ms,
				late:    busy,
			},
			10 * time.Second, 0.2,
		},
		"one caller of a set": {
			meeting{
				rate: rratelimiter.PerSecond(4), gos: 1, callers: 1, threads: 1, n: 1, tick: 100 * ms, late: busy,
				set: true,
			},
			30 * time.Second, 0.2,
		},
		"few permits": {
			meeting{rate: rratelimiter.PerSecond(3), gos: 1, threads: 4, n: 1, tick: 100 * ms, late: busy},
			30 * time.Second,
			0.2,
		},
		"one permit": {
			meeting{rate: rratelimiter.PerSecond(1), gos: 1, threads: 4, n: 1, tick: 100 * ms, late: busy},
			2 * time.Minute, 0.2,
		},
		"a long interval": {
			meeting{rate: rratelimiter.PerMinute(30), gos: 1, threads: 4, n: 1, tick: 100 * ms, late: busy},
			6 * time.Minute,
			0.2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			java, gos := c.run(t, c.both)
			t.Logf("of what the rate allows Redisson had %.1f %%, Go %.1f %%", 100*java, 100*gos)
			if java < c.least || java+gos < 0.85 {
				t.Errorf("that is less than %.0f %% for Redisson, or 85 %% in all", 100*c.least)
			}
		})
	}
}

// Permits that are left for a Redisson client that does not come cost little.
func TestLeavingPermitsCostsLittle(t *testing.T) {
	rig.Long(t)
	rig.TakeForRedissons(t, rig.AskRedisson.Hash())
	for _, rate := range []rratelimiter.Rate{
		rratelimiter.PerSecond(1),
		rratelimiter.PerSecond(7),
		rratelimiter.PerSecond(20),
		{Permits: 5, Interval: 100 * ms},
		rratelimiter.PerMinute(60),
	} {
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			t.Parallel()
			m := meeting{rate: rate, gos: 1, known: true}
			if _, gos := m.run(t, 64*time.Second); gos < 0.96 {
				t.Errorf("Go had %.1f %% of what the rate allows", 100*gos)
			}
		})
	}
}

// If Redisson uses limiters on the server, a queue that gets all permits leaves a few for a moment
// in each period, for a client that may wait for them. At other times it asks on time.
func TestQueueThatGetsAllLeavesSomethingForRedisson(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		rig.TakeForRedissons(t, protocol.AcquireScript.SHA)
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(100)))
		var all []*rig.Call
		for range 300 {
			all = append(all, b.Acquire(l, 1))
		}
		b.SleepTo(time.Minute)
		for i, c := range all {
			at := time.Duration(i/100) * time.Second
			switch i {
			case 198, 199:
				at += 150 * ms
			case 294, 295, 296, 297, 298, 299: // twice as many are left, and two of them return late
				at += 150 * ms
			}
			b.Granted(fmt.Sprint("caller ", i), c, at)
		}
	})
}

// On a limiter with few permits it leaves all of them, less often: with one permit a second, that
// one every 20 seconds.
func TestQueueOfFewLeavesAllForRedisson(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		rig.TakeForRedissons(t, protocol.AcquireScript.SHA)
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(1)))
		var all []*rig.Call
		for range 25 {
			all = append(all, b.Acquire(l, 1))
		}
		b.SleepTo(time.Minute)
		at := time.Duration(0)
		for i, c := range all {
			if i > 0 {
				at += time.Second
			}
			if i == 1 || i == 20 {
				at += 150 * ms
			}
			b.Granted(fmt.Sprint("caller ", i), c, at)
		}
	})
}

// Beside a Redisson client, this process wakes a little later while it has more than its share.
func TestQueueYieldsToRedisson(t *testing.T) {
	for _, c := range []struct {
		name  string
		id    []byte        // of the oldest record
		other uint32        // its permits, of 100
		rest  time.Duration // when this process takes the rest
		at    time.Duration // when it takes the permits of the other client
	}{
		{"Redisson has less than half", []byte{1, 2, 3, 4, 5, 6, 7, 8}, 30, 200 * ms, 1150 * ms},
		{"and all else returns meanwhile", []byte{1, 2, 3, 4, 5, 6, 7, 8}, 30, 45 * ms, 1045 * ms},
		{"Redisson has more than half", []byte{1, 2, 3, 4, 5, 6, 7, 8}, 60, 200 * ms, 1000 * ms},
		{"another Go client has less than half", []byte("Goxyz678"), 30, 200 * ms, 1000 * ms},
	} {
		t.Run(c.name, func(t *testing.T) {
			for range proof.Or(20, 5) { // polls have jitter; this wait must have none
				rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
					p := b.Process()
					l := p.RateLimiter("l")
					rig.MustSet(t, l, rratelimiter.PerSecond(100))
					member, err := rratelimiter.PackRecord(rratelimiter.Redisson317, c.id, c.other)
					if err != nil {
						t.Fatal(err)
					}
					score := float64(b.Start.UnixMilli())
					if err := p.Redis.ZAdd(t.Context(), "{l}:permits",
						redis.Z{Score: score, Member: member}).Err(); err != nil {
						t.Fatal(err)
					}
					if err := p.Redis.Set(t.Context(), "{l}:value", 100-c.other, 0).Err(); err != nil {
						t.Fatal(err)
					}
					b.SleepTo(c.rest)
					b.Granted("the caller that takes the rest", b.Acquire(l, 100-int64(c.other)), c.rest)
					waiter := b.Acquire(l, int64(c.other))
					b.SleepTo(3 * time.Second)
					b.Granted("the caller that waits", waiter, c.at)
				})
			}
		})
	}
}

// Permits that came back count in no share, whichever handle of the limiter released them.
func TestReleasedPermitsCountInNoShare(t *testing.T) {
	for _, same := range []bool{true, false} {
		t.Run(fmt.Sprintf("same handle: %v", same), func(t *testing.T) {
			rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
				p := b.Process()
				l := p.RateLimiter("l")
				rig.MustSet(t, l, rratelimiter.PerSecond(100))
				b.Granted("the oldest permits", b.Acquire(l, 41), 0)
				b.SleepTo(100 * ms)
				member, err := rratelimiter.PackRecord(rratelimiter.Redisson317, []byte{1, 2, 3, 4, 5, 6, 7, 8}, 30)
				if err != nil {
					t.Fatal(err)
				}
				z := redis.Z{Score: float64(time.Now().UnixMilli()), Member: member}
				if err := p.Redis.ZAdd(t.Context(), "{l}:permits", z).Err(); err != nil {
					t.Fatal(err)
				}
				if err := p.Redis.DecrBy(t.Context(), "{l}:value", 30).Err(); err != nil {
					t.Fatal(err)
				}
				b.SleepTo(200 * ms)
				b.Granted("the rest", b.Acquire(l, 29), 200*ms)
				handle := l
				if !same {
					handle = p.RateLimiter("l")
				}
				if n, err := handle.Release(t.Context(), 41); n != 41 || err != nil {
					t.Fatal(n, err)
				}
				waiter := b.Acquire(l, 60) // this process has 29 permits, Redisson 30
				b.SleepTo(3 * time.Second)
				b.Granted("the caller that waits", waiter, 1100*ms)
			})
		})
	}
}

// A clock that goes back does not make this process wait for a time at which it was to ask.
func TestQueueYieldsNoLongerThanItPolls(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		var back atomic.Int64
		p := b.Process(rratelimiter.WithClock(func() time.Time { return time.Now().Add(-time.Duration(back.Load())) }))
		l := p.RateLimiter("l")
		rig.MustSet(t, l, rratelimiter.PerSecond(20))
		(&javaModel{t: t, rdb: p.Redis, rate: rratelimiter.PerSecond(20)}).take(5)
		b.Granted("the callers that take the rest", b.Acquire(l, 15), 0)
		waiter := b.Acquire(l, 1)
		back.Store(int64(time.Hour))
		b.SleepTo(30 * time.Second)
		b.Waits("the waiter, as the records are of the future", waiter)
		if err := p.Redis.Del(t.Context(), "{l}:permits", "{l}:value").Err(); err != nil {
			t.Fatal(err)
		}
		b.SleepTo(time.Minute)
		if !waiter.Ended.Load() || !waiter.OK {
			t.Error("the waiter still waits, a poll after all permits were free")
		}
	})
}
