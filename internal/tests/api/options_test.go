package api

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/limiter"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/record"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// options_test.go tests how options are checked and combined, and the rates that options set.

func TestWrongOptionsComeBackFromEveryMethod(t *testing.T) {
	clients := map[string]rratelimiter.Option{
		"empty option":     {},
		"empty client id":  rratelimiter.WithClientID(""),
		"no name mapper":   rratelimiter.WithNameMapper(nil),
		"no clock":         rratelimiter.WithClock(nil),
		"no call timeout":  rratelimiter.WithCallTimeout(0),
		"negative timeout": rratelimiter.WithCallTimeout(-time.Second),
		"wrong default":    rratelimiter.WithLimiterDefaults(rratelimiter.WithRecordFormat(9)),
		"wrong default rate": rratelimiter.WithLimiterDefaults(
			rratelimiter.WithServerTime(), rratelimiter.WithRate(rratelimiter.Rate{}),
		),
		"default granular": rratelimiter.WithLimiterDefaults(rratelimiter.WithGranularity(-time.Second)),
	}
	limiters := map[string]rratelimiter.LimiterOption{
		"empty option": {},
		"no rate":      rratelimiter.WithRate(rratelimiter.Rate{}),
		"wrong rate": rratelimiter.WithRate(
			rratelimiter.Rate{Permits: 1, Interval: time.Second, KeepAlive: time.Millisecond},
		),
		"wrong enforced":  rratelimiter.WithEnforcedRate(rratelimiter.PerSecond(-1)),
		"unknown format":  rratelimiter.WithRecordFormat(-1),
		"no granularity":  rratelimiter.WithGranularity(0),
		"no lease":        rratelimiter.WithLease(0),
		"a lease of µs":   rratelimiter.WithLease(1500 * time.Microsecond),
		"granularity, µs": rratelimiter.WithGranularity(1500 * time.Microsecond),
		"no deny cache":   rratelimiter.WithDenyCache(0),
		"no fallback":     rratelimiter.WithFallback(-0.1),
		"much fallback":   rratelimiter.WithFallback(1.1),
		"NaN of fallback": rratelimiter.WithFallback(math.NaN()),
	}
	check := func(name string, c *rratelimiter.Client, l *rratelimiter.Limiter) {
		for method, call := range rig.EveryMethod(c, l) {
			err := call(t.Context())
			if !errors.Is(err, rratelimiter.ErrInvalidOption) {
				t.Errorf("%s: %s answers %v, want ErrInvalidOption", name, method, err)
			} else if !strings.Contains(err.Error(), `"rl"`) {
				t.Errorf("%s: %s answers %q, which does not name the limiter", name, method, err)
			}
			if strings.Contains(name, "rate") && !errors.Is(err, rratelimiter.ErrInvalidRate) {
				t.Errorf("%s: %s answers %v, want ErrInvalidRate, too", name, method, err)
			}
		}
	}
	for name, option := range clients {
		c := rratelimiter.NewClient(
			rig.RefusingClient(t), rratelimiter.WithClientID("id"), option, rratelimiter.WithClientID("id"),
		)
		check(name, c, c.RateLimiter("rl"))
		check(name, c, c.RateLimiter("rl", rratelimiter.WithRate(rratelimiter.PerSecond(1))))
	}
	for name, option := range limiters {
		c := rratelimiter.NewClient(rig.RefusingClient(t))
		check(name, c, c.RateLimiter("rl", option))
		// a valid option does not hide an invalid one
		check(name, c, c.RateLimiter("rl", option, rratelimiter.WithRate(rratelimiter.PerSecond(1))))
	}
	none := rratelimiter.NewClient(nil)
	check("no redis client", none, none.RateLimiter("rl"))
}

func TestLimiterOptionsComeOnTopOfDefaults(t *testing.T) {
	c := rratelimiter.NewClient(
		rig.RefusingClient(t),
		rratelimiter.WithLimiterDefaults(
			rratelimiter.WithRate(rratelimiter.PerSecond(1)), rratelimiter.WithRecordFormat(rratelimiter.Redisson321),
		),
	)
	want := limiter.Settings{
		Options: protocol.Options{Own: protocol.Rate{Permits: 1, Interval: 1000}, Format: record.Redisson321,
			MaxDebt: 10},
	}
	if got := rig.Settings(c.RateLimiter("rl")); got != want {
		t.Errorf("the defaults give %+v, want %+v", got, want)
	}
	want = limiter.Settings{Options: protocol.Options{
		Own: protocol.Rate{
			Permits: 2, Interval: 1000,
		}, Enforced: true, Format: record.Redisson321, ServerTime: true, RecordPerRequest: true, MaxDebt: 10,
	}}
	got := rig.Settings(c.RateLimiter("rl", rratelimiter.WithEnforcedRate(rratelimiter.PerSecond(2)),
		rratelimiter.WithServerTime(), rratelimiter.WithRecordPerRequest()))
	if got != want {
		t.Errorf("options on top give %+v, want %+v", got, want)
	}
	if got := rig.Settings(c.RateLimiter("rl")); got.Enforced {
		t.Errorf("options of one limiter stayed with the client: %+v", got)
	}
}

func TestWithRateSetsTheRateOnlyWhereNoneIs(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var seen rig.Log
		r := rig.New(t, s, rratelimiter.WithObserver(&seen))
		rate := rratelimiter.Rate{Permits: 5, Interval: time.Minute, KeepAlive: time.Hour, Type: rratelimiter.PerClient}
		l := r.Limiter("rl", rratelimiter.WithRate(rate))
		if !r.Try(l, 2) {
			t.Fatal("not granted")
		}
		r.SameState(l,
			rratelimiter.State{Rate: rate, Available: 3, Used: 2, Records: 1, Oldest: r.Now(), Newest: r.Now(),
				TTL: time.Hour, Consistent: true})
		fields := r.Redis.HGetAll(t.Context(), "rl").Val()
		if want := map[string]string{
			"rate":          "5",
			"interval":      "60000",
			"type":          "1",
			"keepAliveTime": "3600000",
		}; !reflect.DeepEqual(
			fields, want,
		) {
			t.Errorf("the configuration is %v, want %v", fields, want)
		}
		if seen.Last(t, 1).RateMismatch {
			t.Error("its own rate is called another one")
		}

		other := r.Limiter("rl", rratelimiter.WithRate(rratelimiter.PerSecond(7)))
		if !r.Try(other, 1) {
			t.Fatal("not granted")
		}
		if info := seen.Last(t, 2); !info.RateMismatch {
			t.Errorf("the observer does not see the other rate: %+v", info)
		}
		if got, err := other.Config(t.Context()); got != rate || err != nil {
			t.Errorf("the rate became %v, %v", got, err)
		}

		// Without keep-alive the field is not written: a Redisson release that does not know it
		// must not find it.
		plain := r.Limiter("plain", rratelimiter.WithRate(rratelimiter.PerSecond(1)))
		if n, err := plain.AvailablePermits(t.Context()); n != 1 || err != nil {
			t.Errorf("%d permits, %v", n, err)
		}
		if fields := r.Redis.HGetAll(t.Context(), "plain").Val(); len(fields) != 3 {
			t.Errorf("the configuration is %v", fields)
		}
		// A keep-alive of 0, as Redisson writes it from 3.38.0 on, is none.
		r.Redis.HSet(t.Context(), "plain", "keepAliveTime", "0")
		if r.Try(plain, 1); seen.Last(t, 3).RateMismatch {
			t.Error("a keep-alive of 0 makes it another rate")
		}
		for i, field := range []string{"rate", "interval", "type", "keepAliveTime"} {
			r.Wipe()
			r.WriteConfig(plain, "rate", "1", "interval", "1000", "type", "0")
			r.Redis.HSet(t.Context(), "plain", field, []string{"2", "2000", "1", "2000"}[i])
			if r.Try(plain, 1); !seen.Last(t, 4+i).RateMismatch {
				t.Errorf("another %s is not reported", field)
			}
		}
	})
}

func TestWithEnforcedRateSetsTheRateAndKeepsTheGrants(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		plain := r.Limiter("rl")
		enforcing := r.Limiter("rl", rratelimiter.WithEnforcedRate(rratelimiter.PerMinute(20)))
		if !r.Try(enforcing, 2) {
			t.Fatal("not granted where no rate was")
		}
		r.SameState(
			plain,
			rratelimiter.State{Rate: rratelimiter.PerMinute(20), Available: 18, Used: 2, Records: 1, Oldest: r.Now(),
				Newest: r.Now(), Consistent: true},
		)
		r.SetRate(plain, rratelimiter.PerMinute(5), rratelimiter.KeepState())
		r.Advance(time.Second)
		if !r.Try(enforcing, 10) {
			t.Fatal("not granted after another rate was set")
		}
		r.SameState(plain, rratelimiter.State{Rate: rratelimiter.PerMinute(20), Available: 8, Used: 12, Records: 2,
			Oldest: r.Now().Add(-time.Second), Newest: r.Now(), Consistent: true})
		for name, spoil := range map[string]func(){
			"interval":   func() { r.Redis.HSet(t.Context(), "rl", "interval", "59999") },
			"keep-alive": func() { r.Redis.HSet(t.Context(), "rl", "keepAliveTime", "90000") },
			"no type":    func() { r.Redis.HDel(t.Context(), "rl", "type") },
			"no rate":    func() { r.Redis.HDel(t.Context(), "rl", "rate") },
			"text":       func() { r.Redis.HSet(t.Context(), "rl", "rate", "nan") },
			"no number":  func() { r.Redis.HSet(t.Context(), "rl", "interval", "") },
		} {
			spoil()
			if n, err := enforcing.AvailablePermits(t.Context()); n != 8 || err != nil {
				t.Errorf("%s: %d permits are free, %v; want 8", name, n, err)
			}
			if got, err := plain.Config(t.Context()); got != rratelimiter.PerMinute(20) || err != nil {
				t.Errorf("%s: the rate is %v, %v", name, got, err)
			}
		}
		results, err := r.Client.AllowAll(t.Context(), 3, enforcing)
		if err != nil || !results[0].Allowed || results[0].Remaining != 5 {
			t.Errorf("AllowAll: %+v, %v", results, err)
		}
		r.SetRate(plain, rratelimiter.PerMinute(4), rratelimiter.KeepState())
		results, err = r.Client.AllowAll(t.Context(), 3, enforcing)
		if err != nil || !results[0].Allowed || results[0].Remaining != 2 {
			t.Errorf("AllowAll with another rate in force: %+v, %v", results, err)
		}
		r.Redis.HSet(t.Context(), "rl", "type", "2")
		results, err = r.Client.AllowAll(t.Context(), 1, enforcing)
		if err != nil || !results[0].Allowed {
			t.Errorf("AllowAll with a garbled type: %+v, %v", results, err)
		}
		var several []*rratelimiter.Limiter
		for i := range 6 {
			name := string(rune('a' + i))
			r.SetRate(r.Limiter(name), rratelimiter.PerMinute(1))
			several = append(several, r.Limiter(name, rratelimiter.WithEnforcedRate(rratelimiter.PerMinute(2))))
		}
		results, err = r.Client.AllowAll(t.Context(), 2, several...)
		if err != nil || !results[5].Allowed {
			t.Errorf("AllowAll of several with another rate: %+v, %v", results, err)
		}
		if got, err := plain.Config(t.Context()); got != rratelimiter.PerMinute(20) || err != nil {
			t.Errorf("the rate is %v, %v", got, err)
		}
	})
}
