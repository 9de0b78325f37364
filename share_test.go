package rratelimiter

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rratelimiter/rratelimiter/internal/record"
)

// askRedisson behaves like Redisson's tryAcquire: it returns 0 if it grants, else the ms until the oldest record
// expires, plus three. KEYS: value, permits; ARGV: now, interval (ms), permits, record.
var askRedisson = redis.NewScript(`
local now, interval, wanted = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now - interval)) do
  redis.call('INCRBY', KEYS[1], string.byte(member, -4) + 256 * string.byte(member, -3))
  redis.call('ZREM', KEYS[2], member)
end
if tonumber(redis.call('GET', KEYS[1])) >= wanted then
  redis.call('ZADD', KEYS[2], now, ARGV[4])
  redis.call('DECRBY', KEYS[1], wanted)
  return 0
end
return tonumber(redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2]) + interval - now + 3`)

// A meeting starts Redisson threads on a limiter of which Go processes take every permit.
type meeting struct {
	rate    Rate
	gos     int           // processes, each with four callers
	threads int           // of Redisson
	n       int64         // permits per request of a thread
	tick    time.Duration // of their timer
	phase   time.Duration // of the ticks
	late    time.Duration // largest delay after a tick
	known   bool          // Redisson used the server before
	seed    uint64        // random seed of all start times and delays
}

// run first runs only the Go processes, then both sides for the given time. It returns the fraction of the rate that
// each side got in that time.
func (m meeting) run(t *testing.T, both time.Duration) (java, gos float64) {
	t.Helper()
	inBubble(t, func(t *testing.T, b *bubble) {
		random := rand.New(rand.NewPCG(m.seed, 0))
		time.Sleep(time.Duration(random.Int64N(int64(time.Hour))))
		join := time.Now().Add(3 * max(time.Second, m.rate.Interval))
		end := join.Add(both)
		var mu sync.Mutex // guards the variables below and random
		var byGo, byJava int64
		upTo := func(d time.Duration) time.Duration {
			mu.Lock()
			defer mu.Unlock()
			return time.Duration(random.Int64N(int64(d) + 1))
		}
		way := func() time.Duration { return 50*time.Microsecond + upTo(100*time.Microsecond) } // travel time to the server, and back
		count := func(sum *int64, n int64) {
			mu.Lock()
			defer mu.Unlock()
			if now := time.Now(); !now.Before(join) && now.Before(end) {
				*sum += n
			}
		}
		var all sync.WaitGroup
		for i := range m.gos {
			p := b.process(WithClientID(fmt.Sprint("go", i)))
			l := p.RateLimiter("l", WithRate(m.rate))
			for range 4 {
				all.Go(func() {
					for time.Now().Before(end) {
						p.wire.there.Store(int64(way()))
						p.wire.back.Store(int64(way()))
						if err := l.Acquire(t.Context(), 1); err != nil {
							t.Error(err)
							return
						}
						count(&byGo, 1)
					}
				})
			}
		}
		rdb := b.process().rdb
		if m.known {
			if err := askRedisson.Load(t.Context(), rdb).Err(); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Until(join))
		for thread := range m.threads {
			all.Go(func() {
				for ask := 0; time.Now().Before(end); ask++ {
					id := binary.BigEndian.AppendUint32([]byte{0x99, 0, 0, byte(thread)}, uint32(ask))
					member, err := PackRecord(Redisson317, id, uint32(m.n))
					if err != nil {
						t.Error(err)
						return
					}
					now := time.Now().UnixMilli()
					time.Sleep(way())
					wait, err := askRedisson.Run(t.Context(), rdb, []string{"{l}:value", "{l}:permits"},
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
					due := time.Now().Add(millis(wait) - m.phase).Truncate(m.tick).Add(m.tick + m.phase)
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

// Whatever the phase of its timer ticks, Redisson soon gets its share of a limiter that was saturated when it came.
func TestRedissonGetsPermitsAtAnyPhase(t *testing.T) {
	useScript(t, askRedisson.Hash())
	for phase := range 100 {
		t.Run(fmt.Sprint(phase), func(t *testing.T) {
			t.Parallel()
			m := meeting{
				rate: PerSecond(20), gos: 1, threads: 4, n: 1, tick: 100 * ms, phase: time.Duration(phase) * ms, seed: uint64(phase),
			}
			if java, gos := m.run(t, 7*time.Second); java < 0.2 || gos < 0.3 || java+gos < 0.95 {
				t.Errorf("of what the rate allows Redisson had %.1f %%, Go %.1f %%", 100*java, 100*gos)
			}
		})
	}
}

// Redisson gets its share on any limiter and machine. The least accepted is about half of its share in the long run.
func TestRedissonGetsPermits(t *testing.T) {
	useScript(t, askRedisson.Hash())
	const busy = 40 * ms
	for name, c := range map[string]struct {
		meeting
		both  time.Duration
		least float64
	}{
		"a busy machine":         {meeting{rate: PerSecond(20), gos: 1, threads: 4, n: 1, tick: 100 * ms, late: busy}, 7 * time.Second, 0.2},
		"a faster timer":         {meeting{rate: PerSecond(20), gos: 1, threads: 4, n: 1, tick: 28 * ms, late: busy}, 7 * time.Second, 0.2},
		"a single thread":        {meeting{rate: PerSecond(20), gos: 1, threads: 1, n: 1, tick: 100 * ms, late: busy}, 7 * time.Second, 0.2},
		"a server that knows it": {meeting{rate: PerSecond(20), gos: 1, threads: 4, n: 1, tick: 100 * ms, late: busy, known: true}, 7 * time.Second, 0.2},
		"three Go processes":     {meeting{rate: PerSecond(40), gos: 3, threads: 4, n: 1, tick: 100 * ms, late: busy}, 14 * time.Second, 0.1},
		"many permits at a time": {meeting{rate: PerSecond(20), gos: 1, threads: 4, n: 4, tick: 100 * ms}, 40 * time.Second, 0.2},
		"a short interval":       {meeting{rate: Rate{Permits: 10, Interval: 250 * ms}, gos: 1, threads: 4, n: 1, tick: 100 * ms}, 7 * time.Second, 0.15},
		"a very short interval":  {meeting{rate: Rate{Permits: 5, Interval: 100 * ms}, gos: 1, threads: 4, n: 1, tick: 100 * ms}, 7 * time.Second, 0.1},
		"few permits":            {meeting{rate: PerSecond(3), gos: 1, threads: 4, n: 1, tick: 100 * ms, late: busy}, 30 * time.Second, 0.2},
		"one permit":             {meeting{rate: PerSecond(1), gos: 1, threads: 4, n: 1, tick: 100 * ms, late: busy}, 2 * time.Minute, 0.2},
		"a long interval":        {meeting{rate: PerMinute(30), gos: 1, threads: 4, n: 1, tick: 100 * ms, late: busy}, 10 * time.Minute, 0.2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(2) {
				c.seed, c.phase = seed, time.Duration(37*seed)*ms
				java, gos := c.run(t, c.both)
				t.Logf("of what the rate allows Redisson had %.1f %%, Go %.1f %%", 100*java, 100*gos)
				if java < c.least || java+gos < 0.85 {
					t.Errorf("that is less than %.0f %% for Redisson, or 85 %% in all", 100*c.least)
				}
			}
		})
	}
}

// Permits that are left for a Redisson client that does not come cost little.
func TestLeavingPermitsCostsLittle(t *testing.T) {
	useScript(t, askRedisson.Hash())
	for _, rate := range []Rate{PerSecond(1), PerSecond(7), PerSecond(20), {Permits: 5, Interval: 100 * ms}, PerMinute(60)} {
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			t.Parallel()
			m := meeting{rate: rate, gos: 1, known: true}
			if _, gos := m.run(t, 64*time.Second); gos < 0.96 {
				t.Errorf("Go had %.1f %% of what the rate allows", 100*gos)
			}
		})
	}
}

// useScript makes the hash of a test's script count as Redisson's: a server that has it counts as used by Redisson.
func useScript(t *testing.T, sha string) {
	t.Helper()
	old := redissonScripts
	redissonScripts = []any{sha}
	t.Cleanup(func() { redissonScripts = old })
}

// If Redisson uses limiters on the server, a queue that gets all permits leaves a few for a moment in each period, for
// a client that may wait for them. At other times it asks on time.
func TestQueueThatGetsAllLeavesSomethingForRedisson(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		useScript(t, acquireScript.sha)
		l := p.RateLimiter("l", WithRate(PerSecond(100)))
		var all []*call
		for range 300 {
			all = append(all, b.acquire(l, 1))
		}
		b.sleepTo(time.Minute)
		for i, c := range all {
			at := time.Duration(i/100) * time.Second
			switch i {
			case 198, 199:
				at += 150 * ms
			case 294, 295, 296, 297, 298, 299: // twice as many are left, and two of them return late
				at += 150 * ms
			}
			b.granted(fmt.Sprint("caller ", i), c, at)
		}
	})
}

// On a limiter with few permits it leaves all of them, less often: with one permit a second, that one every 20 seconds.
func TestQueueOfFewLeavesAllForRedisson(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		useScript(t, acquireScript.sha)
		l := p.RateLimiter("l", WithRate(PerSecond(1)))
		var all []*call
		for range 25 {
			all = append(all, b.acquire(l, 1))
		}
		b.sleepTo(time.Minute)
		at := time.Duration(0)
		for i, c := range all {
			if i > 0 {
				at += time.Second
			}
			if i == 1 || i == 20 {
				at += 150 * ms
			}
			b.granted(fmt.Sprint("caller ", i), c, at)
		}
	})
}

// The number of permits left differs between periods and is decided once in each: refusals in between change nothing.
func TestShareLeavesInPeriods(t *testing.T) {
	s := fairShare{redisson: true}
	const interval = time.Second
	for period, left := range []int64{1: 2, 2: 4, 3: 2, 4: 8, 5: 2, 6: 4, 7: 2, 8: 16, 64: 100} {
		if left == 0 {
			continue
		}
		asked := time.UnixMilli(int64(period)*1000 - 200)
		g := acquireReply{now: asked.UnixMicro(), rate: 100, interval: interval}
		s.granted(g.now, interval, 100)
		until := s.divide(g, asked, 300*ms, 1)
		if want := asked.Add(300*ms + headStart); !until.Equal(want) || s.quota != 100-left {
			t.Errorf("period %d: %d permits until %v, expected %d until %v", period, s.quota, until, 100-left, want)
		}
		if s.room(asked.Add(300*ms), 1) >= 0 {
			t.Errorf("period %d: there is room while all its permits are live", period)
		}
		again := acquireReply{now: asked.UnixMicro() + 320_000, rate: 100, interval: interval}
		if later := s.divide(again, asked.Add(320*ms), 10*ms, 1); !later.Equal(until) || s.quota != 100-left {
			t.Errorf("period %d, refused again: %d permits until %v, expected as before", period, s.quota, later)
		}
		if later := s.divide(again, asked.Add(320*ms), 500*ms, 1); !later.IsZero() {
			t.Errorf("period %d, after the pause: something is left until %v", period, later)
		}
		s.granted(g.now+1_000_000, interval, 0) // all return
	}
}

// Callers that take many permits at a time are not delayed for fewer permits than that.
func TestShareLeavesNoLessThanACallerTakes(t *testing.T) {
	const n = 30
	for period, callers := range map[int64]int{1: 4, 8: 3, 16: 2, 64: 0} { // four would take more than the rate
		s := fairShare{redisson: true}
		asked := time.UnixMilli(period*1000 - 200)
		g := acquireReply{now: asked.UnixMicro(), rate: 100, interval: time.Second}
		s.granted(g.now-700_000, g.interval, 100)
		s.divide(g, asked, 300*ms, n)
		got := 0
		for room := s.room(asked.Add(300*ms), n); room >= 0; room -= n {
			got++
		}
		if got != callers {
			t.Errorf("period %d: %d callers may go, expected %d", period, got, callers)
		}
	}
}

// A permit that cannot be divided goes to the process that had fewer.
func TestShareOfOnePermit(t *testing.T) {
	const now = 1_000_000_000
	g := acquireReply{now: now, rate: 1, interval: time.Second, notes: noteForeignWriter}
	for _, own := range []int64{0, 1} {
		var s fairShare
		s.granted(now-500_000, time.Second, own)
		s.saw(record.NewIdentity("self"), g)
		until := s.divide(g, time.UnixMicro(now), 500*ms, 1)
		free := time.UnixMicro(now + 500_000)
		want := free
		if own == 1 {
			want = free.Add(headStart)
		}
		if at := s.ready(free, until, 1); !at.Equal(want) {
			t.Errorf("it held %d: ready after %v, expected %v", own, at.Sub(free), want.Sub(free))
		}
	}
}

// The numbers of the fair-share rule: a Redisson client was seen recently, and a process holds its share of the permits
// in use, or more.
func TestShareRule(t *testing.T) {
	self, others := record.NewIdentity("self"), []*record.Identity{record.NewIdentity("a"), record.NewIdentity("b")}
	id := func(i *record.Identity) (origin int64) {
		for _, digit := range []byte(i.AppendPrefix(nil, record.Redisson317, 1))[1:6] {
			origin = origin<<8 | int64(digit)
		}
		return origin
	}
	const java, now = 0x1234567890, 1_000_000_000
	for _, c := range []struct {
		name     string
		interval time.Duration
		own      int64           // of 100 in use
		seen     map[int64]int64 // ms since a record of this origin was seen
		pause    time.Duration
		held     bool // may take no more permits until then
	}{
		{"alone", time.Second, 100, nil, 0, false},
		{"alone, as its own records show", time.Second, 100, map[int64]int64{id(self): 0}, 0, false},
		{"another Go client", time.Second, 100, map[int64]int64{id(others[0]): 0}, 0, false},
		{"nothing seen", time.Second, 100, map[int64]int64{noOrigin: 0}, 0, false},
		{"Java, and more than half", time.Second, 51, map[int64]int64{java: 0}, 150 * ms, true},
		{"Java, and half", time.Second, 50, map[int64]int64{java: 0}, 150 * ms, true},
		{"Java, and less than half", time.Second, 49, map[int64]int64{java: 0}, 150 * ms, false},
		{"a record of no known form", time.Second, 51, map[int64]int64{-1: 0}, 150 * ms, true},
		{"Java, a Go client, more than a third", time.Second, 34, map[int64]int64{java: 0, id(others[0]): 5}, 150 * ms, true},
		{"Java, a Go client, less than a third", time.Second, 33, map[int64]int64{java: 0, id(others[0]): 5}, 150 * ms, false},
		{"Java, two Go clients, more than a quarter", time.Second, 26, map[int64]int64{java: 0, id(others[0]): 5, id(others[1]): 9}, 150 * ms, true},
		{"Java, two Go clients, less than a quarter", time.Second, 24, map[int64]int64{java: 0, id(others[0]): 5, id(others[1]): 9}, 150 * ms, false},
		{"Java, ten intervals and a second ago", time.Second, 51, map[int64]int64{java: 11000}, 150 * ms, true},
		{"Java, longer ago", time.Second, 51, map[int64]int64{java: 11001}, 0, false},
		{"a Go client, longer ago", time.Second, 40, map[int64]int64{java: 0, id(others[0]): 11001}, 150 * ms, false},
		{"a short interval", 100 * ms, 51, map[int64]int64{java: 0}, 25 * ms, true},
		{"a short interval, long ago", 100 * ms, 51, map[int64]int64{java: 2001}, 0, false},
	} {
		var s fairShare
		for origin, ago := range c.seen {
			s.saw(self, acquireReply{origin: origin, now: now - 1000*ago, interval: c.interval})
		}
		s.saw(self, acquireReply{origin: id(self), now: now, interval: c.interval}) // clients seen long ago are forgotten now
		s.granted(now-c.interval.Microseconds(), c.interval, 1000)                  // expired
		s.granted(now-1000, c.interval, c.own-1)
		s.granted(now, c.interval, 1)
		g := acquireReply{now: now, rate: 120, free: 20, interval: c.interval}
		asked := time.UnixMicro(now)
		pause := time.Duration(0)
		if until := s.divide(g, asked, 70*ms, 1); !until.IsZero() {
			pause = until.Sub(asked) - 70*ms
		}
		if held := pause > 0 && s.room(asked, 1) < 0; pause != c.pause || held != c.held {
			t.Errorf("%s: %v, held %v; expected %v, %v", c.name, pause, held, c.pause, c.held)
		}
	}
}

// A fair share keeps little memory of a process's own grants, however many there are.
func TestShareIsSmall(t *testing.T) {
	var s fairShare
	for i := range int64(2 * 3600 * 10) {
		if s.granted(100_000*i, time.Hour, 1); len(s.own) > 1030 {
			t.Fatalf("%d notes at %d", len(s.own), 100*i)
		}
	}
	if live := int64(3600 * 10); s.sum > live || s.sum < live*99/100 {
		t.Errorf("%d, expected about %d", s.sum, live)
	}
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
			for range 20 { // polls have jitter; this wait must have none
				inBubble(t, func(t *testing.T, b *bubble) {
					p := b.process()
					l := p.RateLimiter("l")
					mustSet(t, l, PerSecond(100))
					member, err := PackRecord(Redisson317, c.id, c.other)
					if err != nil {
						t.Fatal(err)
					}
					score := float64(b.start.UnixMilli())
					if err := p.rdb.ZAdd(t.Context(), "{l}:permits", redis.Z{Score: score, Member: member}).Err(); err != nil {
						t.Fatal(err)
					}
					if err := p.rdb.Set(t.Context(), "{l}:value", 100-c.other, 0).Err(); err != nil {
						t.Fatal(err)
					}
					b.sleepTo(c.rest)
					b.granted("the caller that takes the rest", b.acquire(l, 100-int64(c.other)), c.rest)
					waiter := b.acquire(l, int64(c.other))
					b.sleepTo(3 * time.Second)
					b.granted("the caller that waits", waiter, c.at)
				})
			}
		})
	}
}

// Grants to this process within two ms become one grant in the next interval, so that many waiting callers cost few
// calls.
func TestGrantsThatReturnTogetherBecomeOne(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		l := p.RateLimiter("l", WithRate(PerSecond(6)))
		for at := range 3 {
			b.sleepTo(time.Duration(at) * ms)
			b.granted("one of the first", b.try(l, 2), time.Duration(at)*ms)
		}
		var waiting []*call
		for range 18 {
			waiting = append(waiting, b.acquire(l, 1))
		}
		p.asks("three intervals", 3, func() { b.sleepTo(4 * time.Second) })
		for i, c := range waiting {
			b.granted("the caller that waited", c, time.Duration(1+i/6)*time.Second+2*ms)
		}
	})
}
