package redisson

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/proof"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// last_call_test.go tests that what a process leaves to Redisson costs no caller its answer.

// A javaModel is Redisson on the limiter "l", which asks when the test says so.
type javaModel struct {
	t    *testing.T
	rdb  *redis.Client
	rate rratelimiter.Rate
	asks uint32
}

func (r *javaModel) take(n int64) bool {
	r.t.Helper()
	id := binary.BigEndian.AppendUint32([]byte{0x99, 0, 0, 0}, r.asks)
	r.asks++
	if err := r.rdb.SetNX(r.t.Context(), "{l}:value", r.rate.Permits, 0).Err(); err != nil {
		r.t.Fatal(err)
	}
	member, err := rratelimiter.PackRecord(rratelimiter.Redisson317, id, uint32(n))
	if err != nil {
		r.t.Fatal(err)
	}
	wait, err := rig.AskRedisson.Run(r.t.Context(), r.rdb, []string{"{l}:value", "{l}:permits"},
		time.Now().UnixMilli(), r.rate.Interval.Milliseconds(), n, member).Int64()
	if err != nil {
		r.t.Fatal(err)
	}
	return wait == 0
}

// ways are the two ways to wait for permits up to a time.
var ways = map[string]func(ctx context.Context, l *rratelimiter.Limiter, n int64, timeout time.Duration) (bool, error){
	"timeout": func(ctx context.Context, l *rratelimiter.Limiter, n int64, timeout time.Duration) (bool, error) {
		return l.TryAcquireTimeout(ctx, n, timeout)
	},
	"deadline": func(ctx context.Context, l *rratelimiter.Limiter, n int64, timeout time.Duration) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		err := l.Acquire(ctx, n)
		if errors.Is(err, context.DeadlineExceeded) {
			return false, nil
		}
		return err == nil, err
	},
}

// A hurried caller waits for n permits for a limited time.
type hurried struct {
	n       int64
	end     time.Duration // when it leaves, since the bubble began
	call    *rig.Call
	inFront []*hurried // those that waited when it came
	free    int64      // permits just before its end
	needed  int64      // for it and the callers in front that still wait then
	taken   int64      // by Redisson before
}

// Whatever else happens, a caller whose permits are free before it leaves gets them, unless
// Redisson takes them: behind other callers, too, and if it asks for more permits than the fair
// share of its process. The calls for that are few.
func TestCallerGetsFreePermitsBeforeItLeaves(t *testing.T) {
	rig.TakeForRedissons(t, rig.AskRedisson.Hash())
	seeds := uint64(proof.Or(30, 10))
	var refused, granted int
	for seed := range seeds {
		rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
			random := rand.New(rand.NewPCG(seed, 0))
			upTo := func(d time.Duration) time.Duration { return time.Duration(random.Int64N(int64(d) + 1)) }
			time.Sleep(upTo(time.Hour))
			b.Start = time.Now()
			p, other := b.Process(), b.Process()
			onlooker := other.RateLimiter("l")
			l := p.RateLimiter("l")
			rate := every(
				[]time.Duration{2 * ms, 10 * ms, 40 * ms, 300 * ms, time.Second, 3 * time.Second}[random.IntN(6)],
				1+random.Int64N(1+random.Int64N(30)),
			)
			rig.MustSet(t, l, rate)
			took := upTo(2 * ms)
			p.Wire.There.Store(int64(upTo(took)))
			p.Wire.Back.Store(int64(took) - p.Wire.There.Load())
			r := &javaModel{t: t, rdb: other.Redis, rate: rate}
			r.take(1)
			// a call is in flight, and the next one takes as long; scores are whole ms
			margin := 2*took + 2*ms
			usual := max(rate.Interval, 100*ms)
			var mu sync.Mutex // guards the variables below
			var all []*hurried
			var byRedisson int64
			for range 60 {
				time.Sleep(upTo(upTo(usual / 4)))
				if random.IntN(8) == 0 {
					if n := 1 + random.Int64N(rate.Permits); r.take(n) {
						mu.Lock()
						byRedisson += n
						mu.Unlock()
					}
					continue
				}
				c := &hurried{n: 1 + random.Int64N(1+random.Int64N(rate.Permits))}
				timeout := margin + upTo(usual) + upTo(usual/2)
				c.end = time.Since(b.Start) + timeout
				for _, other := range all {
					if !other.call.Ended.Load() {
						c.inFront = append(c.inFront, other)
					}
				}
				switch random.IntN(4) {
				case 0:
					c.end = time.Hour
					c.call = b.Acquire(l, c.n)
				case 1:
					c.call = b.Call(func(ctx context.Context) (bool, error) {
						return ways["deadline"](ctx, l, c.n, timeout)
					})
				default:
					c.call = b.TryFor(l, c.n, timeout)
				}
				all = append(all, c)
				time.AfterFunc(timeout-margin, func() {
					s := rig.State(t, onlooker)
					mu.Lock()
					defer mu.Unlock()
					c.free, c.needed, c.taken = s.Available, c.n, byRedisson
					for _, other := range c.inFront {
						if !other.call.Ended.Load() {
							c.needed += other.n
						}
					}
				})
				time.AfterFunc(timeout-time.Nanosecond, func() {
					mu.Lock()
					defer mu.Unlock()
					c.taken = byRedisson - c.taken
				})
			}
			time.Sleep(2 * usual)
			synctest.Wait()
			for i, c := range all {
				switch {
				case c.end == time.Hour:
				case c.call.OK:
					granted++
				case c.needed > 0 && c.call.At >= c.end-margin && c.free-c.taken >= c.needed:
					t.Errorf(
						"seed %d, %v, calls of %v: caller %d for %d was refused at %v, though %d were free at %v, %d for those in front and for itself",
						seed, rate, took, i, c.n, c.call.At, c.free, c.end-margin, c.needed,
					)
				default:
					refused++
				}
			}
			if calls := p.Wire.Calls(); calls > int64(6*len(all)) {
				t.Errorf("seed %d: %d calls for %d callers", seed, calls, len(all))
			}
			for _, c := range all {
				c.call.Cancel()
			}
			time.Sleep(time.Second)
		})
		if t.Failed() {
			break
		}
	}
	if t.Logf("%d callers were granted, %d refused", granted, refused); granted < 10*int(seeds) ||
		refused < 10*int(seeds) {
		t.Error("that is too few to show anything")
	}
}

// A caller alone that waits a little longer than an interval for permits that it took itself always
// gets them.
func TestCallerAloneGetsItsPermitsInTime(t *testing.T) {
	rig.TakeForRedissons(t, rig.AskRedisson.Hash())
	type caller struct {
		rate    rratelimiter.Rate
		n       int64
		timeout time.Duration
	}
	callers := []caller{
		{rratelimiter.PerSecond(1), 1, 1100 * ms},
		{rratelimiter.PerSecond(100), 100, 1100 * ms},
		{rratelimiter.PerSecond(100), 1, 1020 * ms},
		{every(10*ms, 1), 1, 100 * ms},
		{every(5*ms, 1), 1, 100 * ms},
		{every(2*ms, 1), 1, 100 * ms},
		{every(2*ms, 10), 10, 100 * ms},
		{every(40*ms, 5), 2, 42 * ms},
	}
	for timeout := 2010 * ms; timeout <= 2160*ms; timeout += 50 * ms {
		callers = append(callers, caller{every(2*time.Second, 2), 2, timeout})
	}
	for way, ask := range ways {
		for _, rule := range []string{"Redisson has records", "Redisson is on the server"} {
			for _, c := range callers {
				t.Run(
					fmt.Sprintf("%s/%s/%d of %d per %v within %v",
						way, rule, c.n, c.rate.Permits, c.rate.Interval, c.timeout),
					func(t *testing.T) {
						rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
							p := b.Process()
							l := p.RateLimiter("l")
							rig.MustSet(t, l, c.rate)
							r := &javaModel{t: t, rdb: p.Redis, rate: c.rate}
							if rule == "Redisson has records" {
								for r.take(1) {
								}
							} else if err := rig.AskRedisson.Load(t.Context(), p.Redis).Err(); err != nil {
								t.Fatal(err)
							}
							refused := 0
							for range 40 {
								ok, err := ask(t.Context(), l, c.n, c.timeout)
								if err != nil {
									t.Fatal(err)
								}
								if !ok {
									refused++
								}
							}
							if refused > 0 {
								t.Errorf("%d of 40 calls were refused", refused)
							}
						})
					},
				)
			}
		}
	}
}

// Permits are left to Redisson for at most a quarter of the interval, and 150 ms.
func TestHeadStartIsAtMostAQuarterOfTheInterval(t *testing.T) {
	rig.TakeForRedissons(t, rig.AskRedisson.Hash())
	for _, rule := range []string{"Redisson has records", "Redisson is on the server"} {
		for _, interval := range []time.Duration{
			2 * ms, 5 * ms, 10 * ms, 100 * ms, 500 * ms, time.Second, 10 * time.Second,
		} {
			for _, permits := range []int64{1, 3, 40} {
				t.Run(fmt.Sprintf("%s/%d per %v", rule, permits, interval), func(t *testing.T) {
					rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
						p := b.Process()
						l := p.RateLimiter("l")
						rate := every(interval, permits)
						rig.MustSet(t, l, rate)
						if r := (&javaModel{t: t, rdb: p.Redis, rate: rate}); rule == "Redisson has records" {
							for r.take(1) {
							}
							time.Sleep(interval)
						} else if err := rig.AskRedisson.Load(t.Context(), p.Redis).Err(); err != nil {
							t.Fatal(err)
						}
						var all []*rig.Call
						for range 30 + 3*permits {
							all = append(all, b.Acquire(l, 1))
						}
						time.Sleep(100 * interval)
						synctest.Wait()
						var longest time.Duration
						for i, c := range all {
							if c.Err != nil || !c.OK {
								t.Fatalf("caller %d: %v, %v", i, c.OK, c.Err)
							}
							if i >= int(permits) {
								free := max(all[i-1].At, all[i-int(permits)].At+interval)
								longest = max(longest, c.At-free)
							}
						}
						// scores are whole ms
						if most := min(150*ms, interval/4); longest > most+ms || longest < most/2 {
							t.Errorf("permits were free for %v, expected at most %v", longest, most)
						}
					})
				})
			}
		}
	}
}

// Callers that leave while permits are left to Redisson cost a call for many, and each at most a
// few.
func TestLastCallsAreFew(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l")
		rate := rratelimiter.PerSecond(1000)
		rig.MustSet(t, l, rate)
		r := &javaModel{t: t, rdb: p.Redis, rate: rate}
		r.take(1)
		b.Granted("the rest", b.Acquire(l, 999), 0)
		var all []*rig.Call
		for i := range 1000 { // the second half is no part of the fair share, and leaves in 50 ms
			all = append(all, b.Call(func(ctx context.Context) (bool, error) {
				return ways["deadline"](ctx, l, 1, 1020*ms+time.Duration(i)*ms/10)
			}))
		}
		before := p.Wire.Calls()
		b.SleepTo(2 * time.Second)
		for i, c := range all {
			if !c.OK {
				t.Errorf("caller %d was refused at %v", i, c.At)
			}
		}
		if calls := p.Wire.Calls() - before; calls < 5 || calls > 20 { // 500 callers leave in 50 ms
			t.Errorf("%d calls", calls)
		}
	})
}

func every(d time.Duration, permits int64) rratelimiter.Rate {
	return rratelimiter.Rate{Permits: permits, Interval: d}
}
