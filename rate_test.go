package rratelimiter

import (
	"context"
	"errors"
	"io"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/dispatch"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/record"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

func TestInvalidRatesHaveReasons(t *testing.T) {
	good := Rate{Permits: 5, Interval: time.Second}
	tests := []struct {
		name   string
		change func(*Rate)
		want   string // "": the rate is valid
	}{
		{"plain", func(*Rate) {}, ""},
		{"smallest", func(r *Rate) { r.Permits, r.Interval = 1, time.Millisecond }, ""},
		{"largest", func(r *Rate) { r.Permits, r.Interval = math.MaxUint32, math.MaxInt64/1_000_000*1_000_000 }, ""},
		{"per client", func(r *Rate) { r.Type = PerClient }, ""},
		{"keep-alive as the interval", func(r *Rate) { r.KeepAlive = time.Second }, ""},
		{"type 2", func(r *Rate) { r.Type = 2 }, "unknown type 2"},
		{"type -1", func(r *Rate) { r.Type = -1 }, "unknown type -1"},
		{"no permits", func(r *Rate) { r.Permits = 0 }, "0 permits, not 1 to 4294967295"},
		{"negative permits", func(r *Rate) { r.Permits = -7 }, "-7 permits"},
		{"too many permits", func(r *Rate) { r.Permits = math.MaxUint32 + 1 }, "4294967296 permits"},
		{"no interval", func(r *Rate) { r.Interval = 0 }, "interval 0s"},
		{"negative interval", func(r *Rate) { r.Interval = -time.Second }, "interval -1s"},
		{"half a millisecond", func(r *Rate) { r.Interval = 500 * time.Microsecond }, "interval 500µs"},
		{"broken milliseconds", func(r *Rate) { r.Interval = 1500 * time.Microsecond }, "interval 1.5ms"},
		{"short keep-alive", func(r *Rate) { r.KeepAlive = 999 * time.Millisecond }, "keep-alive 999ms is shorter than the interval 1s"},
		{"broken keep-alive", func(r *Rate) { r.KeepAlive = time.Second + time.Microsecond }, "keep-alive 1.000001s"},
		{"negative keep-alive", func(r *Rate) { r.KeepAlive = -time.Second }, "keep-alive -1s"},
		{"nothing", func(r *Rate) { *r = Rate{} }, "0 permits"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			rate := good
			test.change(&rate)
			err := rate.validate()
			if test.want == "" {
				if err != nil {
					t.Fatalf("%v: %v", rate, err)
				}
				return
			}
			if !errors.Is(err, ErrInvalidRate) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%+v: %v, want ErrInvalidRate with %q", rate, err, test.want)
			}
		})
	}
}

func TestRatesReadAndWriteThemselves(t *testing.T) {
	tests := []struct {
		text string
		want Rate
		back string // as String writes it
	}{
		{"100/s", PerSecond(100), "100/s"},
		{"5/250ms", Rate{Permits: 5, Interval: 250 * time.Millisecond}, "5/250ms"},
		{"1000/h", PerHour(1000), "1000/h"},
		{"7/m", PerMinute(7), "7/m"},
		{"7/1m", PerMinute(7), "7/m"},
		{"7/60s", PerMinute(7), "7/m"},
		{"1/ms", Rate{Permits: 1, Interval: time.Millisecond}, "1/ms"},
		{"1/d", Rate{Permits: 1, Interval: 24 * time.Hour}, "1/24h"},
		{"1/90m", Rate{Permits: 1, Interval: 90 * time.Minute}, "1/1h30m"},
		{"1/1h0m5s", Rate{Permits: 1, Interval: time.Hour + 5*time.Second}, "1/1h0m5s"},
		{"1/10m", Rate{Permits: 1, Interval: 10 * time.Minute}, "1/10m"},
		{"1/100h", Rate{Permits: 1, Interval: 100 * time.Hour}, "1/100h"},
		{"1/1.5s", Rate{Permits: 1, Interval: 1500 * time.Millisecond}, "1/1.5s"},
		{" 100 / s ", PerSecond(100), "100/s"},
		{"+3/s", PerSecond(3), "3/s"},
		{"4294967295/s", PerSecond(math.MaxUint32), "4294967295/s"},
		{"10/s per client", Rate{Type: PerClient, Permits: 10, Interval: time.Second}, "10/s per client"},
		{"10/s keep-alive 1h", Rate{Permits: 10, Interval: time.Second, KeepAlive: time.Hour}, "10/s keep-alive 1h"},
		{"10/m per client keep-alive m", Rate{Type: PerClient, Permits: 10, Interval: time.Minute, KeepAlive: time.Minute},
			"10/m per client keep-alive 1m"},
	}
	for _, test := range tests {
		got, err := ParseRate(test.text)
		if err != nil || got != test.want {
			t.Errorf("%q is %+v, %v; want %+v", test.text, got, err, test.want)
		}
		if got.String() != test.back {
			t.Errorf("%q is written %q, want %q", test.text, got, test.back)
		}
	}
	for text, want := range map[string]string{
		"": "100/s", "100": "100/s", "/s": "whole number", "x/s": "whole number", "1.5/s": "whole number", "1e3/s": "whole number",
		"0x10/s": "whole number", "9223372036854775808/s": "whole number", "5/": "interval", "5/x": "interval", "5/1": "interval",
		"5/s/s": "interval", "0/s": "0 permits", "-1/s": "-1 permits", "4294967296/s": "permits", "5/0s": "interval 0s",
		"5/-1s": "interval -1s", "5/1us": "interval 1µs", "5/9999999h": "interval", "5/s keep-alive ": "keep-alive",
		"5/s keep-alive x": "keep-alive", "5/s keep-alive 1ms": "shorter", "5/s per clients": "interval",
		"5/s keep-alive 1h per client": "keep-alive", "5/s per client per client": "interval",
	} {
		got, err := ParseRate(text)
		if !errors.Is(err, ErrInvalidRate) || !strings.Contains(err.Error(), want) || got != (Rate{}) {
			t.Errorf("%q is %+v, %v; want ErrInvalidRate about %q", text, got, err, want)
		}
	}
}

func FuzzParseRate(f *testing.F) {
	for _, text := range []string{"100/s", "5/250ms", "1000/h", "10/s per client keep-alive 1h", "1/d", "1/1h0m5s", "/", "1/"} {
		f.Add(text, int64(1), int64(1), int64(1), false)
	}
	f.Fuzz(func(t *testing.T, text string, permits, interval, keepAlive int64, perClient bool) {
		if rate, err := ParseRate(text); err == nil {
			if err := rate.validate(); err != nil {
				t.Fatalf("%q is %+v: %v", text, rate, err)
			}
			if again, err := ParseRate(rate.String()); err != nil || again != rate {
				t.Fatalf("%q is %+v, written %q, and that is %+v, %v", text, rate, rate, again, err)
			}
		} else if !errors.Is(err, ErrInvalidRate) || rate != (Rate{}) {
			t.Fatalf("%q: %+v, %v", text, rate, err)
		}
		// Any valid rate, however odd, is parsed from its String.
		rate := Rate{Permits: permits, Interval: time.Duration(interval) * time.Millisecond, KeepAlive: time.Duration(keepAlive) * time.Millisecond}
		if perClient {
			rate.Type = PerClient
		}
		if rate.validate() != nil {
			return
		}
		if again, err := ParseRate(rate.String()); err != nil || again != rate {
			t.Fatalf("%+v is written %q, and that is %+v, %v", rate, rate, again, err)
		}
	})
}

func TestRatesOfOneUnit(t *testing.T) {
	for _, test := range []struct {
		rate     Rate
		interval time.Duration
	}{{PerSecond(3), time.Second}, {PerMinute(3), time.Minute}, {PerHour(3), time.Hour}} {
		if want := (Rate{Type: Overall, Permits: 3, Interval: test.interval}); test.rate != want {
			t.Errorf("%+v, want %+v", test.rate, want)
		}
	}
	if Overall.String() != "OVERALL" || PerClient.String() != "PER_CLIENT" || RateType(7).String() != "unknown type 7" {
		t.Errorf("the types are called %v, %v, %v", Overall, PerClient, RateType(7))
	}
}

// everyMethod has all methods of a limiter that can fail, by name.
func everyMethod(c *Client, l *Limiter) map[string]func(context.Context) error {
	rate := PerMinute(10)
	return map[string]func(context.Context) error{
		"Allow":              func(ctx context.Context) error { _, err := l.Allow(ctx, 1); return err },
		"TryAcquire":         func(ctx context.Context) error { _, err := l.TryAcquire(ctx, 1); return err },
		"TryAcquireTimeout":  func(ctx context.Context) error { _, err := l.TryAcquireTimeout(ctx, 1, time.Millisecond); return err },
		"Acquire":            func(ctx context.Context) error { return l.Acquire(ctx, 1) },
		"AcquireUpTo":        func(ctx context.Context) error { _, err := l.AcquireUpTo(ctx, 1); return err },
		"Release":            func(ctx context.Context) error { _, err := l.Release(ctx, 1); return err },
		"AllowAll":           func(ctx context.Context) error { _, err := c.AllowAll(ctx, 1, l); return err },
		"AvailablePermits":   func(ctx context.Context) error { _, err := l.AvailablePermits(ctx); return err },
		"State":              func(ctx context.Context) error { _, err := l.State(ctx); return err },
		"Glance":             func(ctx context.Context) error { _, _, err := l.Glance(ctx); return err },
		"Repair":             func(ctx context.Context) error { _, err := l.Repair(ctx); return err },
		"Reset":              func(ctx context.Context) error { _, err := l.Reset(ctx); return err },
		"Clients":            func(ctx context.Context) error { _, err := l.Clients(ctx); return err },
		"Config":             func(ctx context.Context) error { _, err := l.Config(ctx); return err },
		"TrySetRate":         func(ctx context.Context) error { _, err := l.TrySetRate(ctx, rate); return err },
		"SetRate":            func(ctx context.Context) error { return l.SetRate(ctx, rate) },
		"SetRate, KeepState": func(ctx context.Context) error { return l.SetRate(ctx, rate, KeepState()) },
		"UpdateRate":         func(ctx context.Context) error { _, err := l.UpdateRate(ctx, rate); return err },
		"Exists":             func(ctx context.Context) error { _, err := l.Exists(ctx); return err },
		"Delete":             func(ctx context.Context) error { _, err := l.Delete(ctx); return err },
		"Expire":             func(ctx context.Context) error { _, err := l.Expire(ctx, time.Hour); return err },
		"ExpireAt":           func(ctx context.Context) error { _, err := l.ExpireAt(ctx, time.Now()); return err },
		"ClearExpire":        func(ctx context.Context) error { _, err := l.ClearExpire(ctx); return err },
		"TTL":                func(ctx context.Context) error { _, err := l.TTL(ctx); return err },
		"Rename":             func(ctx context.Context) error { return l.Rename(ctx, "{other}") },
		"RenameNX":           func(ctx context.Context) error { _, err := l.RenameNX(ctx, "{other}"); return err },
	}
}

// A new method of Limiter that can fail must be added above, too.
func TestEveryMethodIsAmongThem(t *testing.T) {
	methods := everyMethod(nil, nil)
	limiter := reflect.TypeFor[*Limiter]()
	for i := range limiter.NumMethod() {
		if name := limiter.Method(i).Name; name != "Name" && name != "Client" && methods[name] == nil {
			t.Errorf("no test tries %s on wrong options and broken state: add it to everyMethod", name)
		}
	}
}

// refusing is a hook that fails the test if a command is sent.
type refusing struct{ t *testing.T }

func (r *refusing) DialHook(redis.DialHook) redis.DialHook {
	return nil // not reached: nothing is sent
}

func (r *refusing) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		r.t.Errorf("%v was sent", cmd.Args()[:2])
		return io.ErrUnexpectedEOF
	}
}

func (r *refusing) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) error {
		r.t.Errorf("%d commands were sent", len(cmds))
		return io.ErrUnexpectedEOF
	}
}

// refusingClient returns a redis client to which no command may be sent.
func refusingClient(t *testing.T) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: "192.0.2.1:1"})
	t.Cleanup(func() { rdb.Close() })
	rdb.AddHook(&refusing{t})
	return rdb
}

func TestWrongOptionsComeBackFromEveryMethod(t *testing.T) {
	clients := map[string]Option{
		"empty client id":    WithClientID(""),
		"no name mapper":     WithNameMapper(nil),
		"no clock":           WithClock(nil),
		"no call timeout":    WithCallTimeout(0),
		"negative timeout":   WithCallTimeout(-time.Second),
		"wrong default":      WithLimiterDefaults(WithRecordFormat(9)),
		"wrong default rate": WithLimiterDefaults(WithServerTime(), WithRate(Rate{})),
		"default granular":   WithLimiterDefaults(WithGranularity(-time.Second)),
	}
	limiters := map[string]LimiterOption{
		"no rate":         WithRate(Rate{}),
		"wrong rate":      WithRate(Rate{Permits: 1, Interval: time.Second, KeepAlive: time.Millisecond}),
		"wrong enforced":  WithEnforcedRate(PerSecond(-1)),
		"unknown format":  WithRecordFormat(-1),
		"no granularity":  WithGranularity(0),
		"granularity, µs": WithGranularity(1500 * time.Microsecond),
		"no deny cache":   WithDenyCache(0),
		"no fallback":     WithFallback(-0.1),
		"much fallback":   WithFallback(1.1),
		"NaN of fallback": WithFallback(math.NaN()),
	}
	check := func(name string, c *Client, l *Limiter) {
		for method, call := range everyMethod(c, l) {
			err := call(t.Context())
			if !errors.Is(err, ErrInvalidOption) {
				t.Errorf("%s: %s answers %v, want ErrInvalidOption", name, method, err)
			} else if !strings.Contains(err.Error(), `"rl"`) {
				t.Errorf("%s: %s answers %q, which does not name the limiter", name, method, err)
			}
			if strings.Contains(name, "rate") && !errors.Is(err, ErrInvalidRate) {
				t.Errorf("%s: %s answers %v, want ErrInvalidRate, too", name, method, err)
			}
		}
	}
	for name, option := range clients {
		c := NewClient(refusingClient(t), WithClientID("id"), option, WithClientID("id"))
		check(name, c, c.RateLimiter("rl"))
		check(name, c, c.RateLimiter("rl", WithRate(PerSecond(1))))
	}
	for name, option := range limiters {
		c := NewClient(refusingClient(t))
		check(name, c, c.RateLimiter("rl", option))
		check(name, c, c.RateLimiter("rl", option, WithRate(PerSecond(1)))) // a valid option does not hide an invalid one
	}
	none := NewClient(nil)
	check("no redis client", none, none.RateLimiter("rl"))
}

func TestLimiterOptionsComeOnTopOfDefaults(t *testing.T) {
	c := NewClient(refusingClient(t), WithLimiterDefaults(WithRate(PerSecond(1)), WithRecordFormat(Redisson321)))
	want := dispatch.Settings{Options: protocol.Options{Own: PerSecond(1).protocol(), Format: record.Redisson321}}
	if got := c.RateLimiter("rl").settings; got != want {
		t.Errorf("the defaults give %+v, want %+v", got, want)
	}
	want = dispatch.Settings{Options: protocol.Options{
		Own: PerSecond(2).protocol(), Enforced: true, Format: record.Redisson321, ServerTime: true, RecordPerRequest: true,
	}}
	got := c.RateLimiter("rl", WithEnforcedRate(PerSecond(2)), WithServerTime(), WithRecordPerRequest()).settings
	if got != want {
		t.Errorf("options on top give %+v, want %+v", got, want)
	}
	if got := c.RateLimiter("rl").settings; got.Enforced {
		t.Errorf("options of one limiter stayed with the client: %+v", got)
	}
}

// TestWrongArgumentsAreRefusedBeforeACall tries invalid values of every argument.
func TestWrongArgumentsAreRefusedBeforeACall(t *testing.T) {
	c := NewClient(refusingClient(t))
	l, other := c.RateLimiter("rl"), NewClient(refusingClient(t)).RateLimiter("rl")
	ctx := t.Context()
	bad := Rate{Permits: 1, Interval: 1}
	tests := []struct {
		name string
		call func() error
		want error
	}{
		{"TrySetRate", func() error { _, err := l.TrySetRate(ctx, bad); return err }, ErrInvalidRate},
		{"SetRate", func() error { return l.SetRate(ctx, bad) }, ErrInvalidRate},
		{"SetRate, KeepState", func() error { return l.SetRate(ctx, bad, KeepState()) }, ErrInvalidRate},
		{"UpdateRate", func() error { _, err := l.UpdateRate(ctx, bad); return err }, ErrInvalidRate},
		{"two conditions", func() error { _, err := l.Expire(ctx, time.Hour, IfSet, IfLess); return err }, ErrInvalidOption},
		{"condition 0", func() error { _, err := l.Expire(ctx, time.Hour, 0); return err }, ErrInvalidOption},
		{"condition 5", func() error { _, err := l.ExpireAt(ctx, time.Now(), 5); return err }, ErrInvalidOption},
		{"another client's limiter", func() error { _, err := c.AllowAll(ctx, 1, l, other); return err }, ErrInvalidOption},
		{"no limiter", func() error { _, err := c.AllowAll(ctx, 1, l, nil); return err }, ErrInvalidOption},
		{"Release of less than none", func() error { _, err := l.Release(ctx, -1); return err }, ErrInvalidPermits},
	}
	for _, n := range []int64{0, -1, math.MinInt64} {
		for name, call := range map[string]func() error{
			"Allow":             func() error { _, err := l.Allow(ctx, n); return err },
			"TryAcquire":        func() error { _, err := l.TryAcquire(ctx, n); return err },
			"TryAcquireTimeout": func() error { _, err := l.TryAcquireTimeout(ctx, n, time.Hour); return err },
			"Acquire":           func() error { return l.Acquire(ctx, n) },
			"AcquireUpTo":       func() error { _, err := l.AcquireUpTo(ctx, n); return err },
			"AllowAll":          func() error { _, err := c.AllowAll(ctx, n, l); return err },
		} {
			tests = append(tests, struct {
				name string
				call func() error
				want error
			}{name, call, ErrInvalidPermits})
		}
	}
	for _, test := range tests {
		if err := test.call(); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", test.name, err, test.want)
		}
	}
	if n, err := l.Release(ctx, 0); n != 0 || err != nil {
		t.Errorf("releasing nothing: %d, %v", n, err)
	}
	if results, err := c.AllowAll(ctx, 1); len(results) != 0 || err != nil {
		t.Errorf("allowing nothing: %v, %v", results, err)
	}
	over, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := c.AllowAll(over, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("allowing nothing in no time: %v", err)
	}
	if _, err := NewClient(nil).AllowAll(ctx, 1); !errors.Is(err, ErrInvalidOption) {
		t.Errorf("allowing nothing of a wrong client: %v", err)
	}
}

func TestMethodsWithoutALimiter(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		l := r.limiter("rl")
		may := map[string]bool{ // these work without a limiter
			"TrySetRate": true, "SetRate": true, "SetRate, KeepState": true, "UpdateRate": true, "Exists": true, "Delete": true,
			"Clients": true, "Expire": true, "ExpireAt": true, "ClearExpire": true,
		}
		for method, call := range everyMethod(r.client, l) {
			err := call(t.Context())
			if may[method] {
				if err != nil {
					t.Errorf("%s without a limiter: %v", method, err)
				}
			} else if !errors.Is(err, ErrNotInitialized) || errors.Is(err, ErrOutcomeUnknown) || !strings.Contains(err.Error(), `"rl"`) {
				t.Errorf("%s without a limiter: %v, want ErrNotInitialized that names it", method, err)
			}
			r.wipe()
		}
		for _, call := range []func() (bool, error){
			func() (bool, error) { return l.UpdateRate(t.Context(), PerSecond(1)) },
			func() (bool, error) { return l.Exists(t.Context()) },
			func() (bool, error) { return l.Delete(t.Context()) },
			func() (bool, error) { return l.Expire(t.Context(), time.Hour) },
			func() (bool, error) { return l.ExpireAt(t.Context(), time.Now().Add(time.Hour)) },
			func() (bool, error) { return l.ClearExpire(t.Context()) },
		} {
			if done, err := call(); done || err != nil {
				t.Errorf("something was done without a limiter: %v, %v", done, err)
			}
		}
		if n := r.rdb.DBSize(t.Context()).Val(); n != 0 {
			t.Errorf("%d keys where there is no limiter", n)
		}
	})
}

// TestAConfigurationInPartsSaysWhichIsMissing also completes the configuration, as Redisson's HSETNX commands do.
func TestAConfigurationInPartsSaysWhichIsMissing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		l := r.limiter("rl")
		full := []string{"rate", "3", "interval", "20000", "type", "1"}
		tests := []struct {
			name  string
			parts []string
			want  string
			set   bool // by TrySetRate(5 per minute, keep-alive an hour), as the type was missing
			after Rate
		}{
			{"nothing", nil, "it has no rate", true, Rate{0, 5, time.Minute, time.Hour}},
			{"rate", full[:2], "its interval is missing", true, Rate{0, 3, time.Minute, time.Hour}},
			{"interval", full[2:4], "its rate is missing", true, Rate{0, 5, 20 * time.Second, time.Hour}},
			{"type", full[4:], "its rate is missing", false, Rate{1, 5, time.Minute, 0}},
			{"no type", full[:4], "its type is missing", true, Rate{0, 3, 20 * time.Second, time.Hour}},
			{"no rate", full[2:], "its rate is missing", false, Rate{1, 5, 20 * time.Second, 0}},
			{"no interval", slices.Concat(full[:2], full[4:]), "its interval is missing", false, Rate{1, 3, time.Minute, 0}},
			{"all", full, "", false, Rate{1, 3, 20 * time.Second, 0}},
			{"keep-alive alone", []string{"keepAliveTime", "90000"}, "it has no rate", true, Rate{0, 5, time.Minute, 90 * time.Second}},
		}
		for _, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				r := newRig(t, s)
				defer r.wipe()
				r.config(l, test.parts...)
				_, err := l.TryAcquire(t.Context(), 1)
				if test.want == "" {
					if err != nil {
						t.Error(err)
					}
				} else if !errors.Is(err, ErrNotInitialized) || !strings.Contains(err.Error(), test.want) {
					t.Errorf("%v, want ErrNotInitialized and %q", err, test.want)
				}
				set, err := l.TrySetRate(t.Context(), Rate{Permits: 5, Interval: time.Minute, KeepAlive: time.Hour})
				if set != test.set || err != nil {
					t.Errorf("TrySetRate: %v, %v; want %v", set, err, test.set)
				}
				if got, err := l.Config(t.Context()); got != test.after || err != nil {
					t.Errorf("then the rate is %+v, %v; want %+v", got, err, test.after)
				}
				if again, err := l.TrySetRate(t.Context(), PerSecond(9)); again || err != nil {
					t.Errorf("TrySetRate set it again: %v, %v", again, err)
				}

				// WithRate does the same.
				r.wipe()
				r.config(l, test.parts...)
				with := r.limiter("rl", WithRate(Rate{Permits: 5, Interval: time.Minute}))
				if !r.try(with, 1) {
					t.Error("WithRate: not granted")
				}
				after := test.after
				if after.KeepAlive == time.Hour {
					after.KeepAlive = 0
				}
				if got, err := with.Config(t.Context()); got != after || err != nil {
					t.Errorf("WithRate made it %+v, %v; want %+v", got, err, after)
				}
			})
		}
	})
}

// seen is an observer that records calls.
type seen struct {
	mu    sync.Mutex
	calls []CallInfo
}

func (s *seen) Call(info CallInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, info)
}

// last returns the last call that was seen, once there are as many as given. The observer sees a call after its callers
// got their results, so it may be late.
func (s *seen) last(t *testing.T, calls int) CallInfo {
	t.Helper()
	for range 5000 {
		s.mu.Lock()
		if len(s.calls) >= calls {
			defer s.mu.Unlock()
			if len(s.calls) > calls {
				t.Fatalf("%d calls were seen, want %d", len(s.calls), calls)
			}
			return s.calls[calls-1]
		}
		s.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("%d calls were seen, want %d", len(s.calls), calls)
	return CallInfo{}
}

func TestWithRateSetsTheRateOnlyWhereNoneIs(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var seen seen
		r := newRig(t, s, WithObserver(&seen))
		rate := Rate{Permits: 5, Interval: time.Minute, KeepAlive: time.Hour, Type: PerClient}
		l := r.limiter("rl", WithRate(rate))
		if !r.try(l, 2) {
			t.Fatal("not granted")
		}
		r.same(l, State{Rate: rate, Available: 3, Used: 2, Records: 1, Oldest: r.now(), Newest: r.now(), TTL: time.Hour, Consistent: true})
		fields := r.rdb.HGetAll(t.Context(), "rl").Val()
		if want := map[string]string{"rate": "5", "interval": "60000", "type": "1", "keepAliveTime": "3600000"}; !reflect.DeepEqual(fields, want) {
			t.Errorf("the configuration is %v, want %v", fields, want)
		}
		if seen.last(t, 1).RateMismatch {
			t.Error("its own rate is called another one")
		}

		other := r.limiter("rl", WithRate(PerSecond(7)))
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
		plain := r.limiter("plain", WithRate(PerSecond(1)))
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
		enforcing := r.limiter("rl", WithEnforcedRate(PerMinute(20)))
		if !r.try(enforcing, 2) {
			t.Fatal("not granted where no rate was")
		}
		r.same(plain, State{Rate: PerMinute(20), Available: 18, Used: 2, Records: 1, Oldest: r.now(), Newest: r.now(), Consistent: true})
		r.setRate(plain, PerMinute(5), KeepState())
		r.advance(time.Second)
		if !r.try(enforcing, 10) {
			t.Fatal("not granted after another rate was set")
		}
		r.same(plain, State{Rate: PerMinute(20), Available: 8, Used: 12, Records: 2, Oldest: r.now().Add(-time.Second), Newest: r.now(), Consistent: true})
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
			if got, err := plain.Config(t.Context()); got != PerMinute(20) || err != nil {
				t.Errorf("%s: the rate is %v, %v", name, got, err)
			}
		}
		results, err := r.client.AllowAll(t.Context(), 3, enforcing)
		if err != nil || !results[0].Allowed || results[0].Remaining != 5 {
			t.Errorf("AllowAll: %+v, %v", results, err)
		}
		r.setRate(plain, PerMinute(4), KeepState())
		results, err = r.client.AllowAll(t.Context(), 3, enforcing)
		if err != nil || !results[0].Allowed || results[0].Remaining != 2 {
			t.Errorf("AllowAll with another rate in force: %+v, %v", results, err)
		}
		r.rdb.HSet(t.Context(), "rl", "type", "2")
		results, err = r.client.AllowAll(t.Context(), 1, enforcing)
		if err != nil || !results[0].Allowed {
			t.Errorf("AllowAll with a garbled type: %+v, %v", results, err)
		}
		var several []*Limiter
		for i := range 6 {
			name := string(rune('a' + i))
			r.setRate(r.limiter(name), PerMinute(1))
			several = append(several, r.limiter(name, WithEnforcedRate(PerMinute(2))))
		}
		results, err = r.client.AllowAll(t.Context(), 2, several...)
		if err != nil || !results[5].Allowed {
			t.Errorf("AllowAll of several with another rate: %+v, %v", results, err)
		}
		if got, err := plain.Config(t.Context()); got != PerMinute(20) || err != nil {
			t.Errorf("the rate is %v, %v", got, err)
		}
	})
}

func TestErrorsNameOperationAndLimiter(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		l := r.limiter("orders")
		r.setRate(l, PerSecond(5))
		_, err := l.TryAcquire(t.Context(), 6)
		if !errors.Is(err, ErrExceedsRate) || !strings.Contains(err.Error(), `try to acquire from "orders"`) || !strings.HasSuffix(err.Error(), ": 6") {
			t.Errorf("%v, want ErrExceedsRate with operation, name and number", err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("enough"))
		for method, call := range everyMethod(r.client, l) {
			err := call(ctx)
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s with a context that is over: %v", method, err)
			}
		}
	})
}
