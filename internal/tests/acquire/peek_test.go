package acquire

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// samePeek checks that Peek and then Allow give the same answer at one time, and that Peek changes
// nothing in Redis. It returns the answer of Allow.
func samePeek(r *rig.Rig, what string, l *rratelimiter.Limiter, n int64) rratelimiter.Result {
	r.T.Helper()
	ctx, before := r.T.Context(), r.Dump()
	peeked, err := l.Peek(ctx, n)
	r.Must(err)
	r.Unchanged(before, what)
	result, err := l.Allow(ctx, n)
	r.Must(err)
	want := result
	if result.Allowed {
		want.Remaining += n
	}
	if result.Allowed && 2*result.Remaining > result.Limit {
		want.NextAfter = peeked.NextAfter // that of Allow may be the time of its own permits
	}
	if peeked != want {
		r.T.Errorf("%s, %d permits: Peek returned %+v, and Allow %+v", what, n, peeked, result)
	}
	return result
}

// peekKinds are limiters of each kind, by name, with 10 permits in an interval of a second, or of
// 100 ms.
func peekKinds() map[string][]rratelimiter.LimiterOption {
	kept := rratelimiter.PerSecond(10)
	kept.KeepAlive = time.Hour
	second := rratelimiter.WithRate(rratelimiter.PerSecond(10))
	return map[string][]rratelimiter.LimiterOption{
		"plain":          {second},
		"without a rate": nil,
		"short":          {rratelimiter.WithRate(rratelimiter.Rate{Permits: 10, Interval: 100 * ms})},
		"keep-alive":     {rratelimiter.WithRate(kept)},
		"each client's": {
			rratelimiter.WithRate(rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 10, Interval: time.Second}),
		},
		"granularity":       {second, rratelimiter.WithGranularity(30 * ms)},
		"a record each":     {second, rratelimiter.WithRecordPerRequest()},
		"the oldest format": {second, rratelimiter.WithRecordFormat(rratelimiter.Redisson313)},
		"enforced":          {rratelimiter.WithEnforcedRate(rratelimiter.PerSecond(10))},
		"deny cache":        {second, rratelimiter.WithDenyCache(5)},
	}
}

// TestPeekAnswersAsAllow compares the two over random histories, in which other clients, Redisson
// among them, take permits, set rates, and lose the stored number of free permits.
func TestPeekAnswersAsAllow(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		kinds := peekKinds()
		for _, kind := range slices.Sorted(maps.Keys(kinds)) {
			t.Run(kind, func(t *testing.T) {
				r := rig.New(t, s)
				r.Wipe()
				l, other := r.Limiter("rl", kinds[kind]...),
					r.Limiter("rl", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
				random := rand.New(rand.NewPCG(3, 4))
				var counts [2]int
				for step := range 60 {
					r.Advance(time.Duration(random.Int64N(1000)) * 150 * time.Microsecond)
					if err := peekHistory(r, random, step, other); err != nil {
						t.Fatal(err)
					}
					n := 1 + random.Int64N(5)
					if samePeek(r, fmt.Sprintf("step %d", step), l, n).Allowed {
						counts[0]++
					} else {
						counts[1]++
					}
				}
				if min(counts[0], counts[1]) < 5 {
					t.Errorf("%d requests were granted, and %d refused", counts[0], counts[1])
				}
			})
		}
	})
}

// peekHistory is one step of a random history.
func peekHistory(r *rig.Rig, random *rand.Rand, step int, other *rratelimiter.Limiter) error {
	ctx, n := r.T.Context(), 1+random.Int64N(2)
	value := rig.Keys(other)[keys.Value]
	switch random.IntN(12) {
	case 0, 1:
		_, err := other.TryAcquire(ctx, n)
		return err
	case 2: // Redisson takes permits
		free, err := other.AvailablePermits(ctx)
		if err != nil || free < n || r.Redis.Exists(ctx, value).Val() == 0 {
			return err
		}
		r.AddRecords(other, r.Millis(), rig.MemberOf(fmt.Sprintf("%08d", step), uint32(n)))
		return r.Redis.DecrBy(ctx, value, n).Err()
	case 3:
		return r.Redis.Del(ctx, value).Err()
	case 4:
		r.WriteValue(other, fmt.Sprint(random.Int64N(4)-6))
	case 5:
		return other.SetRate(ctx, rratelimiter.PerSecond(8+random.Int64N(5)), rratelimiter.KeepState())
	}
	return nil
}

// A limiter whose configuration has just expired begins anew, with all permits free.
func TestPeekAfterTheLimiterExpired(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) { // in which no time passes meanwhile
		l := b.Process().RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerHour(10)))
		b.Granted("the first", b.Try(l, 9), 0)
		names := rig.Keys(l)
		b.Server.Del(names[keys.Config])
		for _, key := range []string{names[keys.Value], names[keys.Permits]} {
			b.Server.SetTTL(key, 10*ms) // what is left of a state that ends with its limiter
		}
		for _, n := range []int64{8, 10} {
			if got, err := l.Peek(t.Context(), n); err != nil || !got.Allowed || got.Remaining != 10 {
				t.Errorf("%d permits: %+v, %v", n, got, err)
			}
		}
		if !b.Server.Exists(names[keys.Value]) || !b.Server.Exists(names[keys.Permits]) {
			t.Error("the state was removed")
		}
	})
}

func TestPeekWithoutARateInRedis(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		ctx := t.Context()
		if _, err := r.Limiter("rl").Peek(ctx, 1); !errors.Is(err, rratelimiter.ErrNotInitialized) {
			t.Errorf("without any rate: %v", err)
		}
		for name, opt := range map[string]rratelimiter.LimiterOption{
			"WithRate":         rratelimiter.WithRate(rratelimiter.PerSecond(7)),
			"WithEnforcedRate": rratelimiter.WithEnforcedRate(rratelimiter.PerSecond(7)),
		} {
			want := result(true, 7, 7, 0, time.Second, time.Second)
			if got, err := r.Limiter("rl", opt).Peek(ctx, 3); err != nil || got != want {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
			if _, err := r.Limiter("rl", opt).Peek(ctx, 8); !errors.Is(err, rratelimiter.ErrExceedsRate) {
				t.Errorf("%s, more than the rate: %v", name, err)
			}
		}
		if n := r.Redis.DBSize(ctx).Val(); n != 0 {
			t.Errorf("%d keys were written", n)
		}
	})
}

// Another rate than the enforced one is in force, also of another type: Peek decides under the
// enforced one.
func TestPeekUnderAnEnforcedRate(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for name, enforced := range map[string]rratelimiter.Rate{
			"lower":       rratelimiter.PerSecond(6),
			"shorter":     {Permits: 10, Interval: 400 * ms},
			"kept alive":  {Permits: 10, Interval: time.Second, KeepAlive: time.Hour},
			"each client": {Type: rratelimiter.PerClient, Permits: 10, Interval: time.Second},
		} {
			for _, n := range []int64{1, 2, 6} {
				r := rig.New(t, s)
				r.Wipe()
				l := r.Limiter("rl")
				r.SetRate(l, rratelimiter.PerSecond(10))
				r.Try(l, 4)
				r.Advance(500 * ms)
				r.Try(l, 1)
				// What a limiter of the other type has left behind does not count.
				names := rig.Keys(l)
				r.Must(r.Redis.Set(t.Context(), names[keys.ClientValue], "1", 0).Err())
				r.Must(
					r.Redis.ZAdd(t.Context(), names[keys.ClientPermits],
						redis.Z{Score: float64(r.Millis()), Member: rig.MemberOf("00000001", 9)}).
						Err(),
				)
				samePeek(r, name, r.Limiter("rl", rratelimiter.WithEnforcedRate(enforced)), n)
			}
		}
	})
}

// All expired records are counted, also more than one call removes.
func TestPeekCountsManyExpiredRecords(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("rl")
		r.SetRate(l, rratelimiter.PerSecond(5000))
		r.AddRecords(l, r.Millis(), rig.ManyMembers(5000)...)
		r.WriteValue(l, "0")
		r.Advance(2 * time.Second)
		if got, err := l.Peek(t.Context(), 4500); err != nil || !got.Allowed || got.Remaining != 5000 {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

// A call that grants renews the TTL of what it uses; Peek does not.
func TestPeekRenewsNoTTL(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rate := rratelimiter.Rate{
			Type:      rratelimiter.PerClient,
			Permits:   10,
			Interval:  time.Second,
			KeepAlive: time.Minute,
		}
		r := rig.New(t, s)
		l := r.Limiter("rl", rratelimiter.WithRate(rate))
		r.Try(l, 1)
		names := rig.Keys(l)
		used := []string{names[keys.Config], names[keys.ClientValue], names[keys.ClientPermits]}
		for _, key := range used {
			r.Must(r.Redis.PExpire(t.Context(), key, time.Hour).Err())
		}
		if _, err := l.Peek(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		r.CheckTTL(time.Hour, used...)
	})
}

// After a release by Redisson the records hold more permits than they should. The first Allow of a
// process takes the surplus out of the oldest ones, so it tells of later times. The decision is the
// same.
func TestPeekBesideASurplus(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("rl")
		r.SetRate(l, rratelimiter.PerSecond(10))
		r.AddRecords(l, r.Millis(), rig.MemberOf("00000001", 5))
		r.AddRecords(l, r.Millis()+500, rig.MemberOf("00000002", 5))
		r.Advance(500 * ms)
		r.WriteValue(l, "3") // 3 came back
		peeked, err := l.Peek(t.Context(), 6)
		r.Must(err)
		allowed, err := l.Allow(t.Context(), 6)
		r.Must(err)
		if want := result(false, 10, 3, 500*ms, 500*ms, time.Second); peeked != want {
			t.Errorf("Peek returned %+v, want %+v", peeked, want)
		}
		if want := result(false, 10, 3, time.Second, 500*ms, time.Second); allowed != want {
			t.Errorf("Allow returned %+v, want %+v", allowed, want)
		}
	})
}

// Free permits that were lost are free for the first Peek of a process, as for its first Allow.
func TestPeekFindsWhatWasLost(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("rl")
		r.SetRate(l, rratelimiter.PerSecond(10))
		r.AddRecords(l, r.Millis(), rig.MemberOf("00000001", 2))
		r.WriteValue(l, "3")              // 5 were lost
		samePeek(r, "lost permits", l, 2) // a refusal would add up the records, too
	})
}

func TestPeekByTheServersClock(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("rl", rratelimiter.WithRate(rratelimiter.PerHour(10)), rratelimiter.WithServerTime())
		r.Advance(-24 * time.Hour) // which the server does not see
		r.Try(l, 4)
		before := r.Dump()
		if got, err := l.Peek(t.Context(), 6); err != nil || !got.Allowed || got.Remaining != 6 ||
			got.ResetAfter < time.Hour {
			t.Errorf("%+v, %v", got, err)
		}
		returned := time.UnixMicro(int64(1000 * r.Members(l)[0].Score)).Add(time.Hour)
		earliest := r.Redis.Time(t.Context()).Val()
		got, err := l.Peek(t.Context(), 7)
		latest := r.Redis.Time(t.Context()).Val()
		if err != nil || got.Allowed || got.RetryAfter > returned.Sub(earliest) ||
			got.RetryAfter < returned.Sub(latest) {
			t.Errorf("%+v, %v, between %v and %v", got, err, returned.Sub(latest), returned.Sub(earliest))
		}
		r.Unchanged(before, "Peek")
	})
}

// What the process knows counts as for Allow.

func TestPeekAnswersFromALease(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter(
			"l", rratelimiter.WithRate(rratelimiter.Rate{Permits: 1000, Interval: 10 * time.Second}),
			rratelimiter.WithLease(time.Second),
		)
		for i := range 6 {
			b.SleepTo(time.Duration(i) * 40 * ms)
			b.Granted("demand", b.Try(l, 5), time.Duration(i)*40*ms)
		}
		held := rig.State(t, l).Leased
		if held < 2 {
			t.Fatalf("a lease of %d permits", held)
		}
		var peeked rratelimiter.Result
		p.CheckCalls("Peek", 0, func() { peeked, _ = l.Peek(t.Context(), held) })
		allowed, _ := l.Allow(t.Context(), held)
		if allowed.Remaining += held; !peeked.Allowed || peeked != allowed {
			t.Errorf("Peek returned %+v, and Allow %+v with these permits", peeked, allowed)
		}
		if peeked, err := l.Peek(t.Context(), 100); err != nil || !peeked.Allowed || peeked.Remaining <= 100 {
			t.Errorf("more than the lease has: %+v, %v", peeked, err)
		}
	})
}

func TestPeekAnswersFromTheDenyCache(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)), rratelimiter.WithDenyCache(5))
		b.Granted("the first", b.Try(l, 8), 0)
		b.Refused(l, 3, time.Second)
		p.CheckCalls("a cached refusal", 0, func() {
			if got, err := l.Peek(t.Context(), 4); err != nil ||
				got != result(false, 10, 2, time.Second, time.Second, time.Second) {
				t.Errorf("%+v, %v", got, err)
			}
		})
		if got, err := l.Peek(t.Context(), 1); err != nil || !got.Allowed {
			t.Errorf("fewer permits: %+v, %v", got, err)
		}
	})
}

// A refusal that Peek tells is as good as one of Allow: until it ends, none of them asks Redis.
func TestPeekFillsTheDenyCache(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)), rratelimiter.WithDenyCache(5))
		r.Try(l, 8)
		first, err := l.Peek(t.Context(), 3)
		calls := r.Calls.Load()
		r.Advance(100 * ms)
		second, e := l.Peek(t.Context(), 3)
		if r.Try(l, 4) || err != nil || e != nil ||
			first != result(false, 10, 2, time.Second, time.Second, time.Second) ||
			second != result(false, 10, 2, 900*ms, 900*ms, 900*ms) {
			t.Errorf("%+v, %v, then %+v, %v", first, err, second, e)
		}
		if more := r.Calls.Load() - calls; more != 0 {
			t.Errorf("%d calls after the refusal", more)
		}
		if _, err := l.Reset(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got, err := l.Peek(t.Context(), 3); err != nil || !got.Allowed {
			t.Errorf("after Reset: %+v, %v", got, err)
		}
	})
}

// What Peek tells under a rate that Redis does not have yet is not kept.
func TestPeekUnderAnotherRateFillsNoDenyCache(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		r.Try(r.Limiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10))), 8)
		cache := rratelimiter.WithDenyCache(5)
		strict := r.Limiter("l", rratelimiter.WithEnforcedRate(rratelimiter.PerSecond(8)), cache)
		if got, err := strict.Peek(t.Context(), 1); err != nil || got.Allowed {
			t.Errorf("with the lower rate: %+v, %v", got, err)
		}
		if !r.Try(r.Limiter("l", cache), 1) {
			t.Error("refused by a rate that is not in force")
		}
	})
}

// Permits that callers of the process wait for are not free.
func TestPeekBehindWaitingCallers(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		l := b.Process().RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		b.Granted("the first", b.Try(l, 7), 0)
		b.SleepTo(200 * ms)
		waits := b.Acquire(l, 5)
		b.Waits("a caller", waits)
		for _, n := range []int64{2, 9} {
			peeked, err := l.Peek(t.Context(), n)
			allowed, _ := l.Allow(t.Context(), n)
			if err != nil || peeked.Allowed || peeked != allowed {
				t.Errorf("Peek returned %+v, %v, and Allow %+v", peeked, err, allowed)
			}
		}
		b.SleepTo(time.Second)
		b.Granted("the waiting caller", waits, time.Second)
	})
}

func TestPeekWhileTheProcessDecides(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)), rratelimiter.WithFallback(0.5))
		p.Wire.Fail(rig.ErrRefused)
		for range 2 { // the first time a call finds that the node is away
			for _, n := range []int64{1, 4, 5} {
				peeked, err := l.Peek(t.Context(), n)
				again, _ := l.Peek(t.Context(), n)
				if err != nil || !peeked.Allowed || peeked != again || peeked.Limit != 5 || peeked.Remaining != 5 {
					t.Errorf("%d permits: %+v, %v, and then %+v", n, peeked, err, again)
				}
			}
		}
		b.Granted("the first", b.Try(l, 3), 0)
		for _, n := range []int64{3, 2} {
			peeked, err := l.Peek(t.Context(), n)
			allowed, _ := l.Allow(t.Context(), n)
			if allowed.Allowed {
				allowed.Remaining += n
			}
			if err != nil || peeked != allowed {
				t.Errorf("Peek returned %+v, %v, and Allow %+v with these permits", peeked, err, allowed)
			}
		}
	})
}

// A lost reply costs nothing, so the call is made again.
func TestPeekAfterALostReply(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		b.Granted("the first", b.Try(l, 7), 0)
		p.Wire.Cut.Store(p.Wire.Calls() + 1)
		if got, err := l.Peek(t.Context(), 3); err != nil || !got.Allowed || got.Remaining != 3 {
			t.Errorf("%+v, %v", got, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := l.Peek(ctx, 3); !errors.Is(err, context.Canceled) ||
			errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
			t.Errorf("with a context that is over: %v", err)
		}
	})
}
