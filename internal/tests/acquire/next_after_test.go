package acquire

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// A result's NextAfter is the time until the oldest live record expires. After a grant that leaves
// more than half of the permits it may be that of the grant's own record.
func TestNextAfterIsWhenTheNextPermitReturns(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		kept := rratelimiter.PerSecond(10)
		kept.KeepAlive = time.Hour
		for kind, opts := range map[string][]rratelimiter.LimiterOption{
			"plain":       {rratelimiter.WithRate(rratelimiter.PerSecond(10))},
			"keep-alive":  {rratelimiter.WithRate(kept)},
			"granularity": {rratelimiter.WithRate(rratelimiter.PerSecond(10)), rratelimiter.WithGranularity(30 * ms)},
			"each client's": {
				rratelimiter.WithRate(rratelimiter.Rate{
					Type:     rratelimiter.PerClient,
					Permits:  10,
					Interval: time.Second,
				}),
			},
		} {
			r := rig.New(t, s)
			r.Wipe()
			l, other := r.Limiter("{rl}", opts...),
				r.Limiter("{rl}other", rratelimiter.WithRate(rratelimiter.PerSecond(1000)))
			random := rand.New(rand.NewPCG(1, 2))
			exact := 0
			for range 150 {
				r.Advance(time.Duration(random.Int64N(150)) * ms)
				n := 1 + random.Int64N(4)
				result, err := l.Allow(t.Context(), n)
				if random.IntN(3) == 0 {
					var results []rratelimiter.Result
					if results, err = r.Client.AllowAll(t.Context(), n, other, l); err == nil {
						result = results[1]
					}
				}
				r.Must(err)
				var want time.Duration // 0: no record
				for _, record := range append(r.Members(l), r.MembersAt(rig.Keys(l)[keys.ClientPermits])...) {
					if at := int64(record.Score) + 1000 - r.Millis(); at > 0 &&
						(want == 0 || at < want.Milliseconds()) {
						want = time.Duration(at) * ms
					}
				}
				switch own := result.Allowed && 2*result.Remaining > result.Limit; {
				case result.NextAfter == want:
					exact++
				case !own || result.NextAfter != result.ResetAfter || want > result.ResetAfter:
					t.Errorf("%s: %+v, the next permit returns after %v", kind, result, want)
				}
			}
			if exact < 100 {
				t.Errorf("%s: only %d of 150 are exact", kind, exact)
			}
		}
	})
}

// All permits return when a limiter expires.
func TestNextAfterIsNotAfterTheTTL(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("rl", rratelimiter.WithRate(rratelimiter.PerHour(10)))
		r.Try(l, 5)
		_, err := l.Expire(t.Context(), time.Minute)
		r.Must(err)
		for _, n := range []int64{1, 5} { // granted, refused
			result, err := l.Allow(t.Context(), n)
			if err != nil || result.Allowed != (n == 1) || result.NextAfter <= 0 || result.NextAfter > time.Minute+ms {
				t.Errorf("%d: %+v, %v", n, result, err)
			}
		}
	})
}

// A cached refusal tells only of a permit that has not returned yet.
func TestNextAfterOfACachedRefusal(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)), rratelimiter.WithDenyCache(5))
		b.Granted("the first", b.Try(l, 4), 0)
		b.SleepTo(100 * ms)
		b.Granted("the second", b.Try(l, 4), 100*ms)
		p.CheckCalls("the refusal", 1, func() { b.Refused(l, 7, time.Second) })
		for _, step := range []struct{ at, want time.Duration }{
			{200 * ms, 800 * ms},
			{999 * ms, ms},
			{1050 * ms, 50 * ms},
		} {
			b.SleepTo(step.at)
			p.CheckCalls("a cached one", 0, func() {
				if result, err := l.Allow(t.Context(), 7); err != nil || result.Allowed ||
					result.NextAfter != step.want {
					t.Errorf("at %v: %+v, %v, expected %v", step.at, result, err, step.want)
				}
			})
		}
	})
}
