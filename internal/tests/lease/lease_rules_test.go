package lease

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/limiter"
	"github.com/rratelimiter/rratelimiter/internal/record"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// lease_rules_test.go tests when permits are taken ahead, how many, and that what is left of them
// comes back.

// aheadOf counts the permits that a client takes ahead.
type aheadOf struct{ permits atomic.Int64 }

func (a *aheadOf) Call(info rratelimiter.CallInfo) { a.permits.Add(info.Leased) }

// A lease takes at most a quarter of what is free, never the last tenth of the rate, and nothing
// with a refusal.
func TestWhatALeaseTakes(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, test := range []struct {
			name           string
			taken, request int64
			granted        bool
			free           int64
		}{
			{"as much as is asked for", 0, 100, true, 800},
			{"a quarter of what is free", 0, 600, true, 300},
			{"not the last tenth", 0, 870, true, 100},
			{"less than a tenth is free", 0, 950, true, 50},
			{"a refusal", 500, 900, false, 500},
		} {
			t.Run(test.name, func(t *testing.T) {
				r := rig.New(t, s)
				rate := rratelimiter.WithRate(rratelimiter.PerHour(1000))
				if test.taken > 0 {
					rig.MustTry(t, r.Limiter(t.Name(), rate), test.taken, true)
				}
				rig.MustTry(t, r.Limiter(t.Name(), rate, rratelimiter.WithLease(time.Minute)), test.request,
					test.granted)
				if free := r.Free(r.Limiter(t.Name())); free != test.free {
					t.Errorf("%d are free, not %d", free, test.free)
				}
			})
		}
	})
}

// While a caller waits, and once Redisson was noticed, no permits are taken ahead.
func TestNoLeaseWhileOthersNeedThePermits(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		var ahead aheadOf
		p := b.Process(rratelimiter.WithObserver(&ahead))
		l := p.RateLimiter("l",
			rratelimiter.WithRate(rratelimiter.PerMinute(1000)), rratelimiter.WithLease(time.Second))
		b.Granted("Acquire", b.Acquire(l, 10), 0)
		if n := ahead.permits.Load(); n != 0 {
			t.Errorf("%d permits were taken ahead for a caller that waits", n)
		}
		rig.TakeForRedissons(t, rig.AskRedisson.Hash())
		if err := rig.AskRedisson.Load(t.Context(), p.Redis).Err(); err != nil {
			t.Fatal(err)
		}
		waiting := b.Acquire(l, 1000) // looks for Redisson
		b.SleepTo(2 * time.Minute)
		if !waiting.Ended.Load() {
			t.Fatal("it still waits")
		}
		b.SleepTo(4 * time.Minute)
		rig.MustTry(t, l, 10, true)
		if n := ahead.permits.Load(); n != 0 {
			t.Errorf("%d permits were taken ahead beside Redisson", n)
		}
	})
}

// By the server's clock, too, a lease ends with the bucket in which it was asked for.
func TestALeaseByTheServersClockEnds(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter(
			"l", rratelimiter.WithRate(rratelimiter.PerMinute(100)), rratelimiter.WithLease(100*ms),
			rratelimiter.WithServerTime(),
		)
		b.SleepTo(ms)
		p.Wire.Back.Store(int64(20 * ms)) // the lease began when it was asked for
		b.Try(l, 10)
		b.SleepTo(30 * ms)
		p.Wire.Back.Store(0)
		p.CheckCalls("while it lasts", 0, func() { rig.MustTry(t, l, 1, true) })
		b.SleepTo(99 * ms)
		p.Wire.There.Store(int64(10 * ms)) // the next one comes later
		b.Granted("shortly before its end", b.Try(l, 1), 99*ms)
		b.SleepTo(100 * ms)
		next := b.Try(l, 1)
		b.Waits("at its end", next)
		b.SleepTo(time.Second) // what was left is given back
	})
}

// The next lease is taken in the last quarter of a bucket, and follows at the end of the last one,
// so that no request waits for a call.
func TestTheNextLeaseFollows(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		var ahead aheadOf
		p := b.Process(rratelimiter.WithObserver(&ahead))
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerMinute(1000)), rratelimiter.WithLease(100*ms))
		b.SleepTo(ms)
		rig.MustTry(t, l, 40, true) // and as many ahead
		b.SleepTo(70 * ms)
		p.CheckCalls("before the last quarter", 0, func() {
			rig.MustTry(t, l, 20, true)
		})
		b.SleepTo(90 * ms)
		p.CheckCalls("in the last quarter", 1, func() {
			rig.MustTry(t, l, 5, true)
		})
		state, err := l.State(t.Context())
		if want := ahead.permits.Load() - 25; err != nil || want <= 15 || state.Leased != want ||
			state.Used != 65+want {
			t.Errorf("%+v, %v; %d are ahead", state, err, want)
		}
		b.SleepTo(110 * ms)
		p.CheckCalls("after the end of the first one", 0, func() { rig.MustTry(t, l, 10, true) })
		b.SleepTo(120 * ms) // what was left of the first one is given back
		rig.EndLeases(t, l)
		b.SleepTo(130 * ms)
		if state, err := l.State(t.Context()); err != nil || state.Leased != 0 || state.Used != 75 {
			t.Errorf("%+v, %v; 75 were granted", state, err)
		}
	})
}

// What a stalled call brings is given back if there is a lease. Once that is used up, the next call
// brings another one.
func TestALeaseIsTakenAfterAStalledCall(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		p.MayStall()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.Rate{Permits: 100_000, Interval: 10 * time.Second}),
			rratelimiter.WithLease(time.Second))
		b.SleepTo(100 * ms)
		rig.MustTry(t, l, 40, true) // and as many ahead
		p.Wire.There.Store(int64(100 * ms))
		b.SleepTo(200 * ms)
		rig.MustTry(t, l, 36, true) // so more are asked for
		synctest.Wait()
		p.Wire.There.Store(0)
		b.SleepTo(400 * ms)
		calls := p.Wire.Calls()
		for range 1000 {
			rig.MustTry(t, l, 1, true)
			time.Sleep(ms / 10)
		}
		if n := p.Wire.Calls() - calls; n > 20 {
			t.Errorf("%d calls for 1,000 requests within 0.1 s", n)
		}
		b.SleepTo(3 * time.Second)
	})
}

// In a limiter with a short interval, leases end with shorter buckets, and are taken as often as
// these end.
func TestLeasesOfAShortInterval(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		rig.MustTrySet(t, b.Process().RateLimiter("l"), rratelimiter.PerSecond(10_000), true)
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithLease(time.Second)) // in force: 100 ms
		before := p.Wire.Calls()
		for range 1000 {
			rig.MustTry(t, l, 1, true)
			time.Sleep(ms)
		}
		if calls := p.Wire.Calls() - before; calls > 40 {
			t.Errorf("%d calls in ten buckets", calls)
		}
		b.SleepTo(2 * time.Second)
	})
}

// What is granted from memory until the end of a lease counts for an interval after it, so the
// state lives as long.
func TestTheStateLivesAsLongAsALease(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		rate := rratelimiter.Rate{Permits: 1000, Interval: time.Hour, KeepAlive: time.Hour}
		rig.MustTry(t, r.Limiter("l", rratelimiter.WithRate(rate), rratelimiter.WithLease(time.Minute)), 100, true)
		own := r.Limiter("own", rratelimiter.WithLease(6*time.Minute))
		r.SetRate(own, rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 1000, Interval: time.Hour})
		rig.MustTry(t, own, 100, true)
		lives := func(least, most time.Duration, keys ...string) {
			t.Helper()
			for _, key := range keys {
				if ttl := r.Redis.PTTL(t.Context(), key).Val(); ttl <= least || ttl > most {
					t.Errorf("%s lives for %v", key, ttl)
				}
			}
		}
		for _, then := range []func(l *rratelimiter.Limiter){
			func(*rratelimiter.Limiter) {},
			func(l *rratelimiter.Limiter) { rig.MustTry(t, l, 1, true) },
			func(l *rratelimiter.Limiter) { r.Release(l, 1) },
		} {
			then(r.Limiter("l"))
			then(r.Limiter("own"))
			lives(time.Hour, time.Hour+75*time.Second, "l", "{l}:value", "{l}:permits")
			lives(time.Hour+90*time.Second, time.Hour+9*time.Minute, "{own}:value:me", "{own}:permits:me")
		}
	})
}

// A retry finds its lease, whatever happened to the limiter since: the rest of it, or none.
func TestALostReplyWithALeaseAfterAChange(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for name, change := range map[string]func(r *rig.Rig, l *rratelimiter.Limiter){
			"an interval too short for a lease": func(r *rig.Rig, l *rratelimiter.Limiter) {
				r.SetRate(l, rratelimiter.Rate{Permits: 100, Interval: 15 * ms}, rratelimiter.KeepState())
			},
			"Redisson's release": func(r *rig.Rig, l *rratelimiter.Limiter) {
				r.Must(r.Redis.IncrBy(r.T.Context(), "{l}:value", 5).Err())
			},
		} {
			r := rig.New(t, s)
			r.Wipe()
			c, tap := r.Tapped()
			l := c.RateLimiter("l", rratelimiter.WithLease(100*ms))
			r.SetRate(l, rratelimiter.PerSecond(100))
			tap.Plan(rig.Plan{Cut: true, Then: func() { change(r, r.Limiter("l")) }})
			if ok, err := l.TryAcquire(t.Context(), 1); err != nil && !errors.Is(err, rratelimiter.ErrOutcomeUnknown) ||
				err != nil && strings.Contains(err.Error(), "ERR") {
				t.Errorf("%s: %v, %v", name, ok, err)
			}
		}
	})
}

// A batch beside one that has stalled takes nothing ahead.
func TestNoLeaseBesideAStalledBatch(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		var ahead aheadOf
		p := b.Process(rratelimiter.WithObserver(&ahead), rratelimiter.WithCallTimeout(time.Minute))
		p.MayStall()
		l := p.RateLimiter("l",
			rratelimiter.WithRate(rratelimiter.PerMinute(1000)), rratelimiter.WithLease(time.Second))
		p.Wire.There.Store(int64(10 * time.Second))
		stalled := b.Try(l, 10)
		b.SleepTo(5 * time.Second)
		p.Wire.There.Store(0)
		b.Granted("the second", b.Try(l, 10), 5*time.Second)
		if n := ahead.permits.Load(); n != 0 || stalled.Ended.Load() {
			t.Errorf("%d permits were taken ahead", n)
		}
		b.End(stalled.Cancel)
	})
}

// What is left of a lease goes on with the next one if both end at the same time.
func TestWhatIsLeftOfALeaseGoesOn(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		client, tap := r.Tapped()
		l := client.RateLimiter("l",
			rratelimiter.WithRate(rratelimiter.PerHour(10_000)), rratelimiter.WithLease(time.Minute))
		rig.MustTry(t, l, 100, true)
		tap.Plan(rig.Plan{Cut: true, Replies: 1, Then: func() { rig.MustTry(t, l, 80, true) }}) // of 100 ahead
		// more than the lease has: its call takes more ahead
		rig.MustTry(t, l, 200, true)
		rig.EndLeases(t, l)
		rig.Soon(t, "the return of all that is unused", func() bool { return r.Free(r.Limiter("l")) == 10_000-380 })
	})
}

// What is left of a short lease comes back soon, though another limiter of the client has a lease
// that lasts longer.
func TestAShortLeaseDoesNotWaitForALongOne(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		long := p.RateLimiter(
			"long", rratelimiter.WithRate(rratelimiter.PerHour(1000)), rratelimiter.WithLease(5*time.Minute),
		)
		short := p.RateLimiter("short",
			rratelimiter.WithRate(rratelimiter.PerMinute(1000)), rratelimiter.WithLease(100*ms))
		rig.MustTry(t, long, 10, true)
		rig.MustTry(t, short, 10, true)
		b.SleepTo(time.Second)
		if free, err := b.Process().RateLimiter("short").AvailablePermits(t.Context()); err != nil || free != 990 {
			t.Errorf("%d permits are free, %v; want 990", free, err)
		}
	})
}

// queued makes a request that takes permits ahead, one that queues behind it, and a third, from the
// lease, while the call of the second is in flight: once that is over, more is to be taken ahead,
// unless what follows the third prevents it.
func queued(r *rig.Rig, then func(l *rratelimiter.Limiter)) (*rratelimiter.Client, *rratelimiter.Limiter) {
	client, tap := r.Tapped()
	l := client.RateLimiter("l",
		rratelimiter.WithRate(rratelimiter.PerHour(10_000)), rratelimiter.WithLease(time.Minute))
	second := make(chan bool)
	tap.Plan(rig.Plan{Cut: true, Replies: 1, Then: func() {
		go func() {
			ok, err := l.TryAcquire(r.T.Context(), 200)
			second <- ok && err == nil
		}()
		rig.Soon(r.T, "the second queues", func() bool { return rig.Core(client).Inspect().Asking == 1 })
	}}, rig.Plan{Cut: true, Replies: 1, Then: func() {
		rig.MustTry(r.T, l, 90, true) // of 100 ahead
		then(l)
	}})
	rig.MustTry(r.T, l, 100, true)
	if !<-second {
		r.T.Error("the second is refused")
	}
	return client, l
}

// What is left of a lease is given back if the next one has another end.
func TestWhatIsLeftOfALeaseIsGivenBack(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		queued(r, func(*rratelimiter.Limiter) { r.Advance(2 * time.Minute) })
		// Of 10,000, 390 are granted, and the next lease has a quarter of what was free when 400
		// were taken.
		rig.Soon(t, "the return of what is unused", func() bool { return r.Free(r.Limiter("l")) == 10_000-390-2400 })
	})
}

// Nothing is taken ahead for a lease that a change has ended meanwhile.
func TestAChangeEndsTheWishForMore(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		client, _ := queued(r, func(l *rratelimiter.Limiter) {
			rig.EndLeases(t, l)
		})
		rig.Soon(t, "the return of what is unused", func() bool { return r.Free(r.Limiter("l")) == 10_000-390 })
		time.Sleep(20 * ms) // for a call in the background
		if free, i := r.Free(r.Limiter("l")), rig.Core(client).Inspect(); free != 10_000-390 || i.Leases != 0 {
			t.Errorf("%d are free, with %d leases", free, i.Leases)
		}
	})
}

// What is left of a lease whose record has expired is not given back: it is free already.
func TestALeaseIsNotGivenBackAfterItsRecord(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		rate := rratelimiter.Rate{Permits: 1000, Interval: 10 * time.Minute}
		l := r.Limiter("l", rratelimiter.WithRate(rate), rratelimiter.WithLease(time.Minute))
		rig.MustTry(t, l, 100, true)
		r.Advance(12 * time.Minute)
		rig.MustTry(t, r.Limiter("l"), 300, true)
		before := r.Calls.Load()
		rig.EndLeases(t, l)
		rig.Soon(t, "the call", func() bool { return r.Calls.Load() > before })
		time.Sleep(10 * ms)
		if state := rig.State(t, r.Limiter("l")); state.Available != 700 || !state.Consistent {
			t.Errorf("%+v", state)
		}
	})
}

// A queue that lingers for further callers, far from Redis, makes no call for a lease if none come.
func TestNoCallForALeaseThatNobodyAskedFor(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		rig.Core(p.Client).Tune(limiter.Tuning{Patience: time.Minute})
		rate := rratelimiter.PerHour(1000)
		l := p.RateLimiter("l", rratelimiter.WithRate(rate), rratelimiter.WithLease(time.Minute))
		for range 4 { // so that the demand is known
			rig.MustTry(t, l, 10, true)
			time.Sleep(time.Minute)
		}
		other := b.Process().RateLimiter("l")
		free, err := other.AvailablePermits(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		rig.MustTry(t, other, free-90, true) // a lease leaves a tenth of the rate free
		time.Sleep(2 * time.Minute)
		p.Wire.Back.Store(int64(20 * time.Millisecond))
		p.CheckCalls("three callers", 2, func() {
			for range 3 { // the second and the third one wait for the call of the first
				b.Try(l, 1)
			}
			time.Sleep(time.Second)
		})
	})
}

// A change waits for what is being given back.
func TestAChangeWaitsForWhatIsBeingGivenBack(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process(rratelimiter.WithCallTimeout(2 * time.Minute))
		rate := rratelimiter.PerHour(1000)
		l := p.RateLimiter("l", rratelimiter.WithRate(rate), rratelimiter.WithLease(time.Minute))
		rig.MustTry(t, l, 100, true) // and 100 ahead
		p.Wire.There.Store(int64(30 * time.Second))
		b.Call(func(ctx context.Context) (bool, error) {
			_, err := l.TrySetRate(ctx, rate)
			return true, err
		})
		p.Wire.There.Store(0)
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := l.SetRate(soon, rate); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a change did not end with its context: %v", err)
		}
		rig.MustSet(t, l, rate)
		rig.MustTry(t, p.RateLimiter(l.Name(), rratelimiter.WithGranularity(time.Minute)), 200, true)
		b.SleepTo(40 * time.Second)
		if free, err := l.AvailablePermits(t.Context()); free != 800 || err != nil {
			t.Errorf("%d are free after 200 of 1000 were granted, %v", free, err)
		}
	})
}

// A record that holds more than the permits of an attempt and its lease is not the attempt's.
func TestARecordOfMoreThanAnAttemptAndItsLease(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		client, tap := r.Tapped()
		l := client.RateLimiter("l", rratelimiter.WithLease(time.Minute))
		r.SetRate(l, rratelimiter.PerHour(1000))
		identity := rig.Core(client).Identity()
		identity.StartAt(41)
		prefix := record.AppendShare(identity.AppendPrefix(nil, record.Redisson317, 1), record.Redisson317, 0)
		r.AddRecords(l, r.Millis()+1, string(prefix)+"\x09\x00\x00\x00")
		identity.StartAt(41)
		tap.Plan(rig.Plan{Lost: true})
		if ok, err := l.TryAcquire(t.Context(), 2); !errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
			t.Errorf("%v, %v", ok, err)
		}
	})
}
