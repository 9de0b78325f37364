package rratelimiter_test

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/dispatch"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/record"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// options_test.go tests how options are checked and combined, and the rates that options set.

func TestWrongOptionsComeBackFromEveryMethod(t *testing.T) {
	clients := map[string]rratelimiter.Option{
		"empty client id":    rratelimiter.WithClientID(""),
		"no name mapper":     rratelimiter.WithNameMapper(nil),
		"no clock":           rratelimiter.WithClock(nil),
		"no call timeout":    rratelimiter.WithCallTimeout(0),
		"negative timeout":   rratelimiter.WithCallTimeout(-time.Second),
		"wrong default":      rratelimiter.WithLimiterDefaults(rratelimiter.WithRecordFormat(9)),
		"wrong default rate": rratelimiter.WithLimiterDefaults(rratelimiter.WithServerTime(), rratelimiter.WithRate(rratelimiter.Rate{})),
		"default granular":   rratelimiter.WithLimiterDefaults(rratelimiter.WithGranularity(-time.Second)),
	}
	limiters := map[string]rratelimiter.LimiterOption{
		"no rate":         rratelimiter.WithRate(rratelimiter.Rate{}),
		"wrong rate":      rratelimiter.WithRate(rratelimiter.Rate{Permits: 1, Interval: time.Second, KeepAlive: time.Millisecond}),
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
		for method, call := range everyMethod(c, l) {
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
		c := rratelimiter.NewClient(refusingClient(t), rratelimiter.WithClientID("id"), option, rratelimiter.WithClientID("id"))
		check(name, c, c.RateLimiter("rl"))
		check(name, c, c.RateLimiter("rl", rratelimiter.WithRate(rratelimiter.PerSecond(1))))
	}
	for name, option := range limiters {
		c := rratelimiter.NewClient(refusingClient(t))
		check(name, c, c.RateLimiter("rl", option))
		check(name, c, c.RateLimiter("rl", option, rratelimiter.WithRate(rratelimiter.PerSecond(1)))) // a valid option does not hide an invalid one
	}
	none := rratelimiter.NewClient(nil)
	check("no redis client", none, none.RateLimiter("rl"))
}

func TestLimiterOptionsComeOnTopOfDefaults(t *testing.T) {
	c := rratelimiter.NewClient(refusingClient(t),
		rratelimiter.WithLimiterDefaults(rratelimiter.WithRate(rratelimiter.PerSecond(1)), rratelimiter.WithRecordFormat(rratelimiter.Redisson321)))
	want := dispatch.Settings{Options: protocol.Options{Own: protocol.Rate{Permits: 1, Interval: 1000}, Format: record.Redisson321}}
	if got := rratelimiter.SettingsOf(c.RateLimiter("rl")); got != want {
		t.Errorf("the defaults give %+v, want %+v", got, want)
	}
	want = dispatch.Settings{Options: protocol.Options{
		Own: protocol.Rate{Permits: 2, Interval: 1000}, Enforced: true, Format: record.Redisson321, ServerTime: true, RecordPerRequest: true,
	}}
	got := rratelimiter.SettingsOf(c.RateLimiter("rl", rratelimiter.WithEnforcedRate(rratelimiter.PerSecond(2)),
		rratelimiter.WithServerTime(), rratelimiter.WithRecordPerRequest()))
	if got != want {
		t.Errorf("options on top give %+v, want %+v", got, want)
	}
	if got := rratelimiter.SettingsOf(c.RateLimiter("rl")); got.Enforced {
		t.Errorf("options of one limiter stayed with the client: %+v", got)
	}
}

func TestWithRateSetsTheRateOnlyWhereNoneIs(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var seen log
		r := newRig(t, s, rratelimiter.WithObserver(&seen))
		rate := rratelimiter.Rate{Permits: 5, Interval: time.Minute, KeepAlive: time.Hour, Type: rratelimiter.PerClient}
		l := r.limiter("rl", rratelimiter.WithRate(rate))
		if !r.try(l, 2) {
			t.Fatal("not granted")
		}
		r.same(l, rratelimiter.State{Rate: rate, Available: 3, Used: 2, Records: 1, Oldest: r.now(), Newest: r.now(),
			TTL: time.Hour, Consistent: true})
		fields := r.rdb.HGetAll(t.Context(), "rl").Val()
		if want := map[string]string{"rate": "5", "interval": "60000", "type": "1", "keepAliveTime": "3600000"}; !reflect.DeepEqual(fields, want) {
			t.Errorf("the configuration is %v, want %v", fields, want)
		}
		if seen.last(t, 1).RateMismatch {
			t.Error("its own rate is called another one")
		}

		other := r.limiter("rl", rratelimiter.WithRate(rratelimiter.PerSecond(7)))
		if !r.try(other, 1) {
			t.Fatal("not granted")
		}
		if info := seen.last(t, 2); !info.RateMismatch {
			t.Errorf("the observer does not see the other rate: %+v", info)
		}
		if got, err := other.Config(t.Context()); got != rate || err != nil {
			t.Errorf("the rate became %v, %v", got, err)
		}

		// Without keep-alive the field is not written: a Redisson release that does not know it must not find it.
		plain := r.limiter("plain", rratelimiter.WithRate(rratelimiter.PerSecond(1)))
		if n, err := plain.AvailablePermits(t.Context()); n != 1 || err != nil {
			t.Errorf("%d permits, %v", n, err)
		}
		if fields := r.rdb.HGetAll(t.Context(), "plain").Val(); len(fields) != 3 {
			t.Errorf("the configuration is %v", fields)
		}
		// A keep-alive of 0, as Redisson writes it from 3.38.0 on, is none.
		r.rdb.HSet(t.Context(), "plain", "keepAliveTime", "0")
		if r.try(plain, 1); seen.last(t, 3).RateMismatch {
			t.Error("a keep-alive of 0 makes it another rate")
		}
		for i, field := range []string{"rate", "interval", "type", "keepAliveTime"} {
			r.wipe()
			r.config(plain, "rate", "1", "interval", "1000", "type", "0")
			r.rdb.HSet(t.Context(), "plain", field, []string{"2", "2000", "1", "2000"}[i])
			if r.try(plain, 1); !seen.last(t, 4+i).RateMismatch {
				t.Errorf("another %s is not reported", field)
			}
		}
	})
}

func TestWithEnforcedRateSetsTheRateAndKeepsTheGrants(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		plain := r.limiter("rl")
		enforcing := r.limiter("rl", rratelimiter.WithEnforcedRate(rratelimiter.PerMinute(20)))
		if !r.try(enforcing, 2) {
			t.Fatal("not granted where no rate was")
		}
		r.same(plain, rratelimiter.State{Rate: rratelimiter.PerMinute(20), Available: 18, Used: 2, Records: 1, Oldest: r.now(),
			Newest: r.now(), Consistent: true})
		r.setRate(plain, rratelimiter.PerMinute(5), rratelimiter.KeepState())
		r.advance(time.Second)
		if !r.try(enforcing, 10) {
			t.Fatal("not granted after another rate was set")
		}
		r.same(plain, rratelimiter.State{Rate: rratelimiter.PerMinute(20), Available: 8, Used: 12, Records: 2,
			Oldest: r.now().Add(-time.Second), Newest: r.now(), Consistent: true})
		for name, spoil := range map[string]func(){
			"interval":   func() { r.rdb.HSet(t.Context(), "rl", "interval", "59999") },
			"keep-alive": func() { r.rdb.HSet(t.Context(), "rl", "keepAliveTime", "90000") },
			"no type":    func() { r.rdb.HDel(t.Context(), "rl", "type") },
			"no rate":    func() { r.rdb.HDel(t.Context(), "rl", "rate") },
			"text":       func() { r.rdb.HSet(t.Context(), "rl", "rate", "nan") },
			"no number":  func() { r.rdb.HSet(t.Context(), "rl", "interval", "") },
		} {
			spoil()
			if n, err := enforcing.AvailablePermits(t.Context()); n != 8 || err != nil {
				t.Errorf("%s: %d permits are free, %v; want 8", name, n, err)
			}
			if got, err := plain.Config(t.Context()); got != rratelimiter.PerMinute(20) || err != nil {
				t.Errorf("%s: the rate is %v, %v", name, got, err)
			}
		}
		results, err := r.client.AllowAll(t.Context(), 3, enforcing)
		if err != nil || !results[0].Allowed || results[0].Remaining != 5 {
			t.Errorf("AllowAll: %+v, %v", results, err)
		}
		r.setRate(plain, rratelimiter.PerMinute(4), rratelimiter.KeepState())
		results, err = r.client.AllowAll(t.Context(), 3, enforcing)
		if err != nil || !results[0].Allowed || results[0].Remaining != 2 {
			t.Errorf("AllowAll with another rate in force: %+v, %v", results, err)
		}
		r.rdb.HSet(t.Context(), "rl", "type", "2")
		results, err = r.client.AllowAll(t.Context(), 1, enforcing)
		if err != nil || !results[0].Allowed {
			t.Errorf("AllowAll with a garbled type: %+v, %v", results, err)
		}
		var several []*rratelimiter.Limiter
		for i := range 6 {
			name := string(rune('a' + i))
			r.setRate(r.limiter(name), rratelimiter.PerMinute(1))
			several = append(several, r.limiter(name, rratelimiter.WithEnforcedRate(rratelimiter.PerMinute(2))))
		}
		results, err = r.client.AllowAll(t.Context(), 2, several...)
		if err != nil || !results[5].Allowed {
			t.Errorf("AllowAll of several with another rate: %+v, %v", results, err)
		}
		if got, err := plain.Config(t.Context()); got != rratelimiter.PerMinute(20) || err != nil {
			t.Errorf("the rate is %v, %v", got, err)
		}
	})
}
