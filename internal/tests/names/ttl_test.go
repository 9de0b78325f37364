package names

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// ttl_test.go tests the TTLs of a limiter: those of KeepAlive and Expire, and those that its own
// keys of a client have.

func TestStateLivesAsLongAsTheConfiguration(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx := t.Context()
		for method, call := range map[string]func(*rratelimiter.Limiter) error{
			"TryAcquire":       func(l *rratelimiter.Limiter) error { _, err := l.TryAcquire(ctx, 1); return err },
			"refused":          func(l *rratelimiter.Limiter) error { _, err := l.TryAcquire(ctx, 5); return err },
			"AcquireUpTo":      func(l *rratelimiter.Limiter) error { _, err := l.AcquireUpTo(ctx, 3); return err },
			"AvailablePermits": func(l *rratelimiter.Limiter) error { _, err := l.AvailablePermits(ctx); return err },
			"Release":          func(l *rratelimiter.Limiter) error { _, err := l.Release(ctx, 1); return err },
			"AllowAll": func(l *rratelimiter.Limiter) error {
				_, err := l.Client().AllowAll(ctx, 1, l)
				return err
			},
			"SetRate, keep": func(l *rratelimiter.Limiter) error {
				return l.SetRate(ctx, rratelimiter.PerMinute(6), rratelimiter.KeepState())
			},
		} {
			for _, ttl := range []time.Duration{0, 2 * time.Minute} {
				r := rig.New(t, s)
				r.Wipe()
				l := r.Limiter("rl")
				r.SetRate(l, rratelimiter.PerMinute(5))
				r.Try(l, 3)
				if ttl > 0 {
					r.Must(r.Redis.PExpire(ctx, "rl", ttl).Err())
				}
				if err := call(l); err != nil {
					t.Errorf("%s: %v", method, err)
				}
				r.CheckTTL(ttl, "rl", "{rl}:value", "{rl}:permits")
			}
		}

		// A value that is written again gets the same TTL.
		r := rig.New(t, s)
		r.Wipe()
		l := r.Limiter("rl")
		r.SetRate(l, rratelimiter.PerMinute(5))
		r.Must(r.Redis.PExpire(ctx, "rl", time.Minute).Err())
		if n := r.Free(l); n != 5 {
			t.Errorf("%d permits are free", n)
		}
		r.CheckTTL(time.Minute, "rl", "{rl}:value")
		r.SetRate(l, rratelimiter.PerMinute(5))
		r.CheckTTL(time.Minute, "rl") // as with Redisson

		// An invalid keep-alive counts as none.
		for _, keep := range []string{"-5", "nan"} {
			r.Wipe()
			r.WriteConfig(l, "rate", "5", "interval", "60000", "type", "0", "keepAliveTime", keep)
			r.Must(r.Redis.PExpire(ctx, "rl", time.Minute).Err())
			r.Try(l, 1)
			r.CheckTTL(time.Minute, "rl", "{rl}:value", "{rl}:permits")
			r.SameState(
				l,
				rratelimiter.State{Rate: rratelimiter.PerMinute(5), Available: 4, Used: 1, Records: 1, Oldest: r.Now(),
					Newest: r.Now(), TTL: time.Minute, Consistent: true},
			)
		}
	})
}

func TestKeepAliveRenewsAllThreeKeys(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		ctx := t.Context()
		l := r.Limiter("rl")
		keys := []string{"rl", "{rl}:value", "{rl}:permits"}
		rate := rratelimiter.Rate{Permits: 5, Interval: time.Minute, KeepAlive: time.Hour}
		if set, err := l.TrySetRate(ctx, rate); !set || err != nil {
			t.Fatal(set, err)
		}
		r.CheckTTL(time.Hour, "rl")
		for _, use := range []struct {
			name string
			call func() error
		}{
			{"granted", func() error { _, err := l.TryAcquire(ctx, 5); return err }},
			{"refused", func() error { _, err := l.TryAcquire(ctx, 1); return err }},
			{"released", func() error { _, err := l.Release(ctx, 1); return err }},
			{"in part", func() error { _, err := l.AcquireUpTo(ctx, 3); return err }},
			{"all", func() error { _, err := r.Client.AllowAll(ctx, 1, l); return err }},
			{"rate set, state kept", func() error { return l.SetRate(ctx, rate, rratelimiter.KeepState()) }},
		} {
			for _, key := range keys {
				r.Redis.PExpire(ctx, key, time.Minute)
			}
			if err := use.call(); err != nil {
				t.Errorf("%s: %v", use.name, err)
			}
			r.CheckTTL(time.Hour, keys...)
		}
		for _, look := range []func() error{
			func() error { _, err := l.AvailablePermits(ctx); return err },
			func() error { _, err := l.State(ctx); return err },
			func() error { _, err := l.Config(ctx); return err },
		} {
			r.Must(r.Redis.PExpire(ctx, "rl", time.Minute).Err())
			r.Must(look())
			r.CheckTTL(time.Minute, "rl") // reading does not extend the TTL
		}

		// Setting a rate without keep-alive removes the TTLs, and the reservation-alive from the
		// configuration.
		for _, opts := range [][]rratelimiter.SetOption{nil, {rratelimiter.KeepState()}} {
			r.SetRate(l, rate, opts...)
			r.Try(l, 1)
			r.SetRate(l, rratelimiter.PerMinute(5), opts...)
			r.Try(l, 1)
			r.CheckTTL(0, keys...)
			if keep := r.Redis.HGet(ctx, "rl", "keepAliveTime").Val(); keep != "0" {
				t.Errorf("the reservation-alive is %q, want 0", keep)
			}
		}
		// A TTL that was set otherwise stays.
		r.Must(r.Redis.PExpire(ctx, "rl", time.Minute).Err())
		r.SetRate(l, rratelimiter.PerMinute(6), rratelimiter.KeepState())
		r.CheckTTL(time.Minute, keys...)
	})
}

// TestExpireForgetsLiveGrants: a limiter in use ends with its TTL, and so do the grants that still
// count. With a keep-alive it goes on.
func TestExpireForgetsLiveGrants(t *testing.T) {
	for _, kept := range []bool{false, true} {
		server := limittest.New(t)
		rate := rratelimiter.PerSecond(5)
		if kept {
			rate.KeepAlive = 3 * time.Second
		}
		l := server.Client().RateLimiter("rl", rratelimiter.WithRate(rate))
		rig.MustTry(t, l, 1, true)
		if !kept {
			if set, err := l.Expire(t.Context(), 3*time.Second); !set || err != nil {
				t.Fatal(set, err)
			}
		}
		server.Advance(2900 * ms)
		rig.MustTry(t, l, 5, true)
		server.Advance(99 * ms)
		rig.MustTry(t, l, 1, false)
		server.Advance(11 * ms)
		rig.MustTry(t, l, 5, !kept) // 10 within 0.11 s
	}
}

// While callers wait, their process calls again when permits return: at the latest an interval
// later. A limiter lives longer than that, even if its keep-alive is as short as its interval, and
// whatever other processes call meanwhile.
func TestALimiterOutlivesTheWaitOfItsCallers(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, kind := range []rratelimiter.RateType{rratelimiter.Overall, rratelimiter.PerClient} {
			r, other := rig.New(t, s), rig.New(t, s)
			r.Wipe()
			rate := rratelimiter.Rate{Type: kind, Permits: 2, Interval: time.Minute, KeepAlive: time.Minute}
			l := r.Limiter("rl")
			r.SetRate(l, rate)
			r.Try(l, 2)
			// ends returns when a key expires, at the earliest and at the latest.
			ends := func(key string) (first, last time.Time) {
				before := time.Now()
				ttl, err := r.Redis.PTTL(t.Context(), key).Result()
				r.Must(err)
				return before.Add(ttl), time.Now().Add(ttl + ms)
			}
			pair := []string{"rl", rig.Keys(l)[keys.Value+int(kind)], rig.Keys(l)[keys.Permits+int(kind)]}
			granted := time.Now()
			if first, _ := ends("rl"); first.After(granted.Add(time.Minute + 10*ms)) {
				t.Errorf("%v: without a waiting caller, the limiter ends %v after the grant", kind, first.Sub(granted))
			}
			go l.Acquire(t.Context(), 1)
			rig.Soon(t, "the caller waits", func() bool { return rig.Core(r.Client).Look("rl").Next > 0 })
			ended := map[string]time.Time{}
			for _, key := range pair {
				first, last := ends(key)
				if ended[key] = first; last.Before(granted.Add(time.Minute + 900*ms)) {
					t.Errorf("%v: a caller waits, and %q ends %v after the grant", kind, key, last.Sub(granted))
				}
			}
			r.Try(l, 1)
			other.Try(other.Limiter("rl"), 2)
			if _, err := other.Limiter("rl").Release(t.Context(), 0); err != nil {
				t.Error(err)
			}
			for _, key := range pair {
				if _, last := ends(key); last.Before(ended[key]) {
					t.Errorf("%v: calls that do not wait let %q end %v earlier", kind, key, ended[key].Sub(last))
				}
			}
		}
	})
}

func TestAClientsOwnPairLeavesByItself(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx := t.Context()
		own := []string{"{rl}:value:me", "{rl}:permits:me"}
		for _, test := range []struct {
			name      string
			keepAlive time.Duration
			ttl       time.Duration // of the configuration
			want      time.Duration
		}{
			{"for ever", 0, 0, 10*time.Second + time.Minute},
			{"short configuration", 0, 65 * time.Second, 65 * time.Second},
			{"long configuration", 0, time.Hour, 70 * time.Second},
			{"short keep-alive", 65 * time.Second, 0, 65 * time.Second},
			{"long keep-alive", time.Hour, 0, 70 * time.Second},
		} {
			t.Run(test.name, func(t *testing.T) {
				r := rig.New(t, s)
				r.Wipe()
				l := r.Limiter("rl")
				r.SetRate(
					l,
					rratelimiter.Rate{
						Type:      rratelimiter.PerClient,
						Permits:   5,
						Interval:  10 * time.Second,
						KeepAlive: test.keepAlive,
					},
				)
				if test.ttl > 0 {
					r.Must(r.Redis.PExpire(ctx, "rl", test.ttl).Err())
				}
				if n := r.Free(l); n != 5 {
					t.Fatalf("%d permits are free", n)
				}
				r.CheckTTL(test.want, own[0])
				for range 2 {
					r.Try(l, 2)
					r.CheckTTL(test.want, own...)
					r.Redis.PExpire(ctx, own[0], 5*time.Second)
					r.Redis.PExpire(ctx, own[1], 5*time.Second)
				}
				r.Release(l, 1)
				r.CheckTTL(test.want, own...)
				r.SetRate(l, rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 6, Interval: 10 * time.Second,
					KeepAlive: test.keepAlive}, rratelimiter.KeepState())
				r.CheckTTL(test.want, own...)
				r.SameState(l, rratelimiter.State{
					Rate: rratelimiter.Rate{
						Type: rratelimiter.PerClient, Permits: 6, Interval: 10 * time.Second, KeepAlive: test.keepAlive,
					},
					Available:  3,
					Used:       3,
					Records:    2,
					Oldest:     r.Now(),
					Newest:     r.Now(),
					TTL:        max(test.ttl, test.keepAlive),
					Consistent: true,
				})
				r.CheckTTL(-1, "{rl}:value", "{rl}:permits")
			})
		}
	})
}

func TestExpireConditions(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		ctx := t.Context()
		l := r.Limiter("rl")
		const none, short, long = time.Duration(0), 10 * time.Minute, 20 * time.Minute
		tests := []struct {
			had  time.Duration
			cond []rratelimiter.ExpireCondition
			new  time.Duration
			want bool
		}{
			{none, nil, short, true}, {long, nil, short, true},
			{none, []rratelimiter.ExpireCondition{rratelimiter.IfNotSet}, short, true}, {long,
				[]rratelimiter.ExpireCondition{rratelimiter.IfNotSet}, short, false},
			{none, []rratelimiter.ExpireCondition{rratelimiter.IfSet}, short, false}, {long,
				[]rratelimiter.ExpireCondition{rratelimiter.IfSet}, short, true},
			{none, []rratelimiter.ExpireCondition{rratelimiter.IfGreater}, long, false}, {short,
				[]rratelimiter.ExpireCondition{rratelimiter.IfGreater}, long, true},
			{long, []rratelimiter.ExpireCondition{rratelimiter.IfGreater}, short, false},
			{none, []rratelimiter.ExpireCondition{rratelimiter.IfLess}, short, true}, {long,
				[]rratelimiter.ExpireCondition{rratelimiter.IfLess}, short, true},
			{short, []rratelimiter.ExpireCondition{rratelimiter.IfLess}, long, false},
		}
		for _, test := range tests {
			for _, absolute := range []bool{false, true} {
				r.Wipe()
				r.SetRate(l, rratelimiter.PerMinute(5))
				r.Try(l, 1)
				r.Must(r.Redis.Set(ctx, rig.Keys(l)[keys.ClientValue], "5", 0).Err())
				r.Must(r.Redis.ZAdd(ctx, rig.Keys(l)[keys.ClientPermits],
					redis.Z{Member: rig.MemberOf("12345678", 1)}).Err())
				if test.had > 0 {
					if done, err := l.Expire(ctx, test.had); !done || err != nil {
						t.Fatal(done, err)
					}
				}
				var done bool
				var err error
				if absolute {
					done, err = l.ExpireAt(ctx, time.Now().Add(test.new), test.cond...)
				} else {
					done, err = l.Expire(ctx, test.new, test.cond...)
				}
				if done != test.want || err != nil {
					t.Errorf("%v after %v with %v, absolute %v: %v, %v",
						test.new, test.had, test.cond, absolute, done, err)
				}
				want := test.had
				if test.want {
					want = test.new
				}
				r.CheckTTL(want, rig.Keys(l)...)
				ttl, err := l.TTL(ctx)
				if err != nil || ttl > want || ttl < want-30*time.Second {
					t.Errorf("TTL is %v, %v; want %v", ttl, err, want)
				}
				if cleared, err := l.ClearExpire(ctx); cleared != (want > 0) || err != nil {
					t.Errorf("clearing %v: %v, %v", want, cleared, err)
				}
				r.CheckTTL(0, l.Name(), rig.Keys(l)[keys.Value], rig.Keys(l)[keys.Permits])
				r.CheckTTL(2*time.Minute, rig.Keys(l)[keys.ClientValue], rig.Keys(l)[keys.ClientPermits])
			}
		}
		for _, ttl := range []time.Duration{0, -time.Hour} {
			r.SetRate(l, rratelimiter.PerMinute(5))
			r.Try(l, 1)
			if done, err := l.Expire(ctx, ttl); !done || err != nil {
				t.Errorf("Expire(%v): %v, %v", ttl, done, err)
			}
			r.CheckTTL(-1, rig.Keys(l)...)
		}
		r.SetRate(l, rratelimiter.PerMinute(5))
		if done, err := l.ExpireAt(ctx, time.Now().Add(-time.Hour)); !done || err != nil {
			t.Errorf("ExpireAt a time that is over: %v, %v", done, err)
		}
		if there, err := l.Exists(ctx); there || err != nil {
			t.Errorf("the limiter is there: %v, %v", there, err)
		}
	})
}

// A configuration that is lost and made again lives on; its state, which is older, must not end
// before it.
func TestAStateLivesAsLongAsItsNewConfiguration(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		rate := rratelimiter.PerMinute(10)
		l := r.Limiter("rl", rratelimiter.WithRate(rate))
		for name, use := range map[string]func(){
			"a plain grant": func() { r.Try(l, 1) },
			"another grant": func() {
				r.Try(r.Limiter("rl", rratelimiter.WithRate(rate), rratelimiter.WithGranularity(time.Second)), 1)
			},
			"one of AllowAll": func() {
				_, err := r.Client.AllowAll(t.Context(), 1, l, r.Limiter("other", rratelimiter.WithRate(rate)))
				r.Must(err)
			},
			"a look":  func() { r.Free(l) },
			"SetRate": func() { r.SetRate(l, rate, rratelimiter.KeepState()) },
			"TrySetRate": func() {
				_, err := l.TrySetRate(t.Context(), rate)
				r.Must(err)
			},
		} {
			t.Run(name, func(t *testing.T) {
				r.Wipe()
				r.Try(l, 1)
				_, err := l.Expire(t.Context(), time.Hour)
				r.Must(err)
				r.Must(r.Redis.Del(t.Context(), "rl").Err())
				use()
				r.CheckTTL(0, "rl", "{rl}:value", "{rl}:permits")
			})
		}
	})
}

// A state that ends with the TTL of a configuration, but a little after it, does not count for a
// new limiter.
func TestANewLimiterHasNoStateOfAnEndedOne(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		rate := rratelimiter.PerMinute(3)
		l := r.Limiter("rl", rratelimiter.WithRate(rate))
		for name, use := range map[string]func(){
			"a plain grant": func() { r.Try(l, 3) },
			"another grant": func() {
				r.Try(r.Limiter("rl", rratelimiter.WithRate(rate), rratelimiter.WithGranularity(time.Second)), 3)
			},
			"a grant of AllowAll": func() {
				_, err := r.Client.AllowAll(t.Context(), 3, l, r.Limiter("other", rratelimiter.WithRate(rate)))
				r.Must(err)
			},
			"TrySetRate": func() {
				_, err := l.TrySetRate(t.Context(), rate)
				r.Must(err)
				r.Try(l, 3)
			},
			"SetRate": func() {
				r.SetRate(l, rate, rratelimiter.KeepState())
				r.Try(l, 3)
			},
		} {
			t.Run(name, func(t *testing.T) {
				r.Wipe()
				r.Try(l, 1)
				r.Advance(time.Second)
				r.Must(r.Redis.Del(t.Context(), "rl").Err())
				_, err := r.Redis.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
					p.PExpire(t.Context(), "{rl}:value", 10*time.Millisecond)
					p.PExpire(t.Context(), "{rl}:permits", 10*time.Millisecond)
					return nil
				})
				r.Must(err)
				use()
				r.CheckTTL(0, "rl", "{rl}:value", "{rl}:permits")
				if state, err := l.State(t.Context()); err != nil || state.Used != 3 || state.Available != 0 ||
					!state.Consistent {
					t.Errorf("%+v, %v: want all three granted", state, err)
				}
			})
		}
	})
}

func TestAClientsOwnPairLeavesAfterClearExpire(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("rl")
		r.SetRate(l, rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 5, Interval: 10 * time.Second})
		r.Must(r.Redis.PExpire(t.Context(), "rl", time.Hour).Err())
		r.Try(l, 1)
		if cleared, err := l.ClearExpire(t.Context()); !cleared || err != nil {
			t.Errorf("ClearExpire: %v, %v", cleared, err)
		}
		r.CheckTTL(0, "rl")
		r.CheckTTL(70*time.Second, "{rl}:value:me", "{rl}:permits:me")
	})
}

func TestTTLsAreNeitherLostNorOverflow(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("rl")
		r.SetRate(l, rratelimiter.PerMinute(5))
		for name, test := range map[string]struct {
			far  time.Time
			lost bool
		}{
			"year 3000": {time.Date(3000, 1, 1, 0, 0, 0, 0, time.UTC), false},
			"far":       {time.Unix(1<<60, 0), false},
			"long ago":  {time.Unix(-1<<60, 0), true},
		} {
			r.SetRate(l, rratelimiter.PerMinute(5))
			r.Try(l, 1)
			if done, err := l.ExpireAt(t.Context(), test.far); !done || err != nil {
				t.Errorf("%s: %v, %v", name, done, err)
			}
			if there, err := l.Exists(t.Context()); there == test.lost || err != nil {
				t.Errorf("%s: it is there: %v, %v", name, there, err)
			}
			if !test.lost && !r.Try(l, 1) {
				t.Errorf("%s: nothing is granted", name)
			}
		}
	})
}

// recorded is a redis client that records the arguments of the last command.
type recorded struct {
	rratelimiter.Redis
	args *[]any
}

func (r recorded) Process(ctx context.Context, cmd redis.Cmder) error {
	*r.args = cmd.Args()
	return r.Redis.Process(ctx, cmd)
}

func TestAPositiveTTLIsNotRoundedToZero(t *testing.T) {
	var args []any
	l := rratelimiter.NewClient(recorded{redistest.Embedded(t).Client(), &args}).RateLimiter("rl")
	for ttl, want := range map[time.Duration]int64{
		1: 1, 500 * time.Microsecond: 1, time.Millisecond: 1, time.Millisecond + 1: 2, math.MaxInt64: 9223372036855,
		0: 0, -1: 0, -time.Second: -1000,
	} {
		if _, err := l.Expire(t.Context(), ttl); err != nil || args[len(args)-2] != want {
			t.Errorf("Expire(%v): %v, %v; want %d ms", ttl, args, err, want)
		}
	}
}
