package api

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// invalid returns why a rate is invalid, or nil. WithRate validates it as SetRate does.
func invalid(rate rratelimiter.Rate) error {
	return rig.OptionsError(rratelimiter.NewClient(rig.Served{}).RateLimiter("rl", rratelimiter.WithRate(rate)))
}

func TestInvalidRatesHaveReasons(t *testing.T) {
	good := rratelimiter.Rate{Permits: 5, Interval: time.Second}
	tests := []struct {
		name   string
		change func(*rratelimiter.Rate)
		want   string // "": the rate is valid
	}{
		{"plain", func(*rratelimiter.Rate) {}, ""},
		{"smallest", func(r *rratelimiter.Rate) { r.Permits, r.Interval = 1, time.Millisecond }, ""},
		{"largest", func(r *rratelimiter.Rate) { r.Permits, r.Interval = math.MaxUint32, rig.LongestInterval }, ""},
		{"per client", func(r *rratelimiter.Rate) { r.Type = rratelimiter.PerClient }, ""},
		{"keep-alive as the interval", func(r *rratelimiter.Rate) { r.KeepAlive = time.Second }, ""},
		{"type 2", func(r *rratelimiter.Rate) { r.Type = 2 }, "unknown type 2"},
		{"type -1", func(r *rratelimiter.Rate) { r.Type = -1 }, "unknown type -1"},
		{"no permits", func(r *rratelimiter.Rate) { r.Permits = 0 }, ""},
		{"negative permits", func(r *rratelimiter.Rate) { r.Permits = -7 }, "-7 permits, not 0 to 4294967295"},
		{"too many permits", func(r *rratelimiter.Rate) { r.Permits = math.MaxUint32 + 1 }, "4294967296 permits"},
		{"no interval", func(r *rratelimiter.Rate) { r.Interval = 0 }, "interval 0s"},
		{"negative interval", func(r *rratelimiter.Rate) { r.Interval = -time.Second }, "interval -1s"},
		{"half a millisecond", func(r *rratelimiter.Rate) { r.Interval = 500 * time.Microsecond }, "interval 500µs"},
		{"broken milliseconds", func(r *rratelimiter.Rate) { r.Interval = 1500 * time.Microsecond }, "interval 1.5ms"},
		{
			"short keep-alive",
			func(r *rratelimiter.Rate) { r.KeepAlive = 999 * time.Millisecond },
			"keep-alive 999ms is shorter than the interval 1s",
		},
		{
			"broken keep-alive",
			func(r *rratelimiter.Rate) { r.KeepAlive = time.Second + time.Microsecond },
			"keep-alive 1.000001s",
		},
		{"negative keep-alive", func(r *rratelimiter.Rate) { r.KeepAlive = -time.Second }, "keep-alive -1s"},
		{"unlimited", func(r *rratelimiter.Rate) { *r = rratelimiter.Unlimited }, "interval 0s"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			rate := good
			test.change(&rate)
			err := invalid(rate)
			if test.want == "" {
				if err != nil {
					t.Fatalf("%v: %v", rate, err)
				}
				return
			}
			if !errors.Is(err, rratelimiter.ErrInvalidRate) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%+v: %v, want ErrInvalidRate with %q", rate, err, test.want)
			}
		})
	}
}

func TestRatesReadAndWriteThemselves(t *testing.T) {
	tests := []struct {
		text string
		want rratelimiter.Rate
		back string // as String writes it
	}{
		{"100/s", rratelimiter.PerSecond(100), "100/s"},
		{"5/250ms", rratelimiter.Rate{Permits: 5, Interval: 250 * time.Millisecond}, "5/250ms"},
		{"1000/h", rratelimiter.PerHour(1000), "1000/h"},
		{"7/m", rratelimiter.PerMinute(7), "7/m"},
		{"7/1m", rratelimiter.PerMinute(7), "7/m"},
		{"7/60s", rratelimiter.PerMinute(7), "7/m"},
		{"100/sec", rratelimiter.PerSecond(100), "100/s"},
		{"100/second", rratelimiter.PerSecond(100), "100/s"},
		{"7/min", rratelimiter.PerMinute(7), "7/m"},
		{"7/minute", rratelimiter.PerMinute(7), "7/m"},
		{"7/hour", rratelimiter.PerHour(7), "7/h"},
		{"1/day", rratelimiter.Rate{Permits: 1, Interval: 24 * time.Hour}, "1/d"},
		{"1/ms", rratelimiter.Rate{Permits: 1, Interval: time.Millisecond}, "1/ms"},
		{"1/d", rratelimiter.Rate{Permits: 1, Interval: 24 * time.Hour}, "1/d"},
		{"5/week", rratelimiter.Rate{Permits: 5, Interval: 7 * 24 * time.Hour}, "5/week"},
		{"5/w", rratelimiter.Rate{Permits: 5, Interval: 7 * 24 * time.Hour}, "5/week"},
		{"5/7d", rratelimiter.Rate{Permits: 5, Interval: 7 * 24 * time.Hour}, "5/week"},
		{"5/2w", rratelimiter.Rate{Permits: 5, Interval: 14 * 24 * time.Hour}, "5/336h"},
		{"5/30d keep-alive 60d", rratelimiter.Rate{
			Permits: 5, Interval: 30 * 24 * time.Hour, KeepAlive: 60 * 24 * time.Hour,
		}, "5/720h keep-alive 1440h"},
		{"1/90m", rratelimiter.Rate{Permits: 1, Interval: 90 * time.Minute}, "1/1h30m"},
		{"1/1h0m5s", rratelimiter.Rate{Permits: 1, Interval: time.Hour + 5*time.Second}, "1/1h0m5s"},
		{"1/10m", rratelimiter.Rate{Permits: 1, Interval: 10 * time.Minute}, "1/10m"},
		{"1/100h", rratelimiter.Rate{Permits: 1, Interval: 100 * time.Hour}, "1/100h"},
		{"1/1.5s", rratelimiter.Rate{Permits: 1, Interval: 1500 * time.Millisecond}, "1/1.5s"},
		{" 100 / s ", rratelimiter.PerSecond(100), "100/s"},
		{"+3/s", rratelimiter.PerSecond(3), "3/s"},
		{"0/s", rratelimiter.PerSecond(0), "0/s"},
		{"4294967295/s", rratelimiter.PerSecond(math.MaxUint32), "4294967295/s"},
		{
			"10/s per client", rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 10, Interval: time.Second},
			"10/s per client",
		},
		{
			"10/s keep-alive 1h", rratelimiter.Rate{Permits: 10, Interval: time.Second, KeepAlive: time.Hour},
			"10/s keep-alive 1h",
		},
		{
			"10/m per client keep-alive m",
			rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 10, Interval: time.Minute, KeepAlive: time.Minute},
			"10/m per client keep-alive 1m",
		},
	}
	for _, test := range tests {
		got, err := rratelimiter.ParseRate(test.text)
		if err != nil || got != test.want {
			t.Errorf("%q is %+v, %v; want %+v", test.text, got, err, test.want)
		}
		if got.String() != test.back {
			t.Errorf("%q is written %q, want %q", test.text, got, test.back)
		}
	}
	for text, want := range map[string]string{
		"": "100/s", "100": "100/s", "/s": "whole number", "x/s": "whole number", "1.5/s": "whole number",
		"1e3/s":                 "whole number",
		"0x10/s":                "whole number",
		"9223372036854775808/s": "whole number",
		"5/":                    "interval",
		"5/x":                   "interval",
		"5/1.5d":                "interval",
		"5/106752d":             "interval",
		"5/0d":                  "interval 0s",
		"5/month":               "interval", "5/-1w": "interval",
		"5/1":              "interval",
		"5/s/s":            "interval",
		"5/seconds":        "interval",
		"-1/s":             "-1 permits",
		"4294967296/s":     "permits",
		"5/0s":             "interval 0s",
		"5/-1s":            "interval -1s",
		"5/1us":            "interval 1µs",
		"5/9999999h":       "interval",
		"5/s keep-alive ":  "keep-alive",
		"5/s keep-alive x": "keep-alive", "5/s keep-alive 1ms": "shorter", "5/s per clients": "interval",
		"5/s keep-alive 1h per client": "keep-alive", "5/s per client per client": "interval",
	} {
		got, err := rratelimiter.ParseRate(text)
		if !errors.Is(err, rratelimiter.ErrInvalidRate) || !strings.Contains(err.Error(), want) ||
			got != (rratelimiter.Rate{}) {
			t.Errorf("%q is %+v, %v; want ErrInvalidRate about %q", text, got, err, want)
		}
	}
}

func FuzzParseRate(f *testing.F) {
	for _, text := range []string{
		"100/s", "5/250ms", "1000/h", "10/s per client keep-alive 1h", "1/d", "0/m", "1/1h0m5s", "/", "1/",
	} {
		f.Add(text, int64(1), int64(1), int64(1), false)
	}
	f.Fuzz(func(t *testing.T, text string, permits, interval, keepAlive int64, perClient bool) {
		if rate, err := rratelimiter.ParseRate(text); err == nil {
			if err := invalid(rate); err != nil {
				t.Fatalf("%q is %+v: %v", text, rate, err)
			}
			if again, err := rratelimiter.ParseRate(rate.String()); err != nil || again != rate {
				t.Fatalf("%q is %+v, written %q, and that is %+v, %v", text, rate, rate, again, err)
			}
		} else if !errors.Is(err, rratelimiter.ErrInvalidRate) || rate != (rratelimiter.Rate{}) {
			t.Fatalf("%q: %+v, %v", text, rate, err)
		}
		// Any valid rate, however odd, is parsed from its String.
		rate := rratelimiter.Rate{Permits: permits, Interval: time.Duration(interval) * time.Millisecond,
			KeepAlive: time.Duration(keepAlive) * time.Millisecond}
		if perClient {
			rate.Type = rratelimiter.PerClient
		}
		if invalid(rate) != nil {
			return
		}
		if again, err := rratelimiter.ParseRate(rate.String()); err != nil || again != rate {
			t.Fatalf("%+v is written %q, and that is %+v, %v", rate, rate, again, err)
		}
	})
}

func TestRatesOfOneUnit(t *testing.T) {
	for _, test := range []struct {
		rate     rratelimiter.Rate
		interval time.Duration
	}{
		{rratelimiter.PerSecond(3), time.Second},
		{rratelimiter.PerMinute(3), time.Minute},
		{rratelimiter.PerHour(3), time.Hour},
	} {
		if want := (rratelimiter.Rate{
			Type:     rratelimiter.Overall,
			Permits:  3,
			Interval: test.interval,
		}); test.rate != want {
			t.Errorf("%+v, want %+v", test.rate, want)
		}
	}
	if rratelimiter.Overall.String() != "OVERALL" || rratelimiter.PerClient.String() != "PER_CLIENT" ||
		rratelimiter.RateType(7).String() != "unknown type 7" {
		t.Errorf("the types are called %v, %v, %v",
			rratelimiter.Overall, rratelimiter.PerClient, rratelimiter.RateType(7))
	}
}

// TestAConfigurationInPartsSaysWhichIsMissing also completes the configuration, as Redisson's
// HSETNX commands do.
func TestAConfigurationInPartsSaysWhichIsMissing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("rl")
		full := []string{"rate", "3", "interval", "20000", "type", "1"}
		tests := []struct {
			name  string
			parts []string
			want  string
			set   bool // by TrySetRate(5 per minute, keep-alive an hour), as the type was missing
			after rratelimiter.Rate
		}{
			{
				"nothing",
				nil,
				"it has no rate",
				true,
				rratelimiter.Rate{Permits: 5, Interval: time.Minute, KeepAlive: time.Hour},
			},
			{
				"rate", full[:2], "its interval is missing", true,
				rratelimiter.Rate{Permits: 3, Interval: time.Minute, KeepAlive: time.Hour},
			},
			{
				"interval", full[2:4], "its rate is missing", true,
				rratelimiter.Rate{Permits: 5, Interval: 20 * time.Second, KeepAlive: time.Hour},
			},
			{
				"type", full[4:], "its rate is missing", false,
				rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 5, Interval: time.Minute},
			},
			{
				"no type", full[:4], "its type is missing", true,
				rratelimiter.Rate{Permits: 3, Interval: 20 * time.Second, KeepAlive: time.Hour},
			},
			{
				"no rate", full[2:], "its rate is missing", false,
				rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 5, Interval: 20 * time.Second},
			},
			{
				"no interval", slices.Concat(full[:2], full[4:]), "its interval is missing", false,
				rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 3, Interval: time.Minute},
			},
			{
				"all",
				full,
				"",
				false,
				rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 3, Interval: 20 * time.Second},
			},
			{
				"keep-alive alone", []string{"keepAliveTime", "90000"}, "it has no rate", true,
				rratelimiter.Rate{Permits: 5, Interval: time.Minute, KeepAlive: 90 * time.Second},
			},
		}
		for _, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				r := rig.New(t, s)
				defer r.Wipe()
				r.WriteConfig(l, test.parts...)
				_, err := l.TryAcquire(t.Context(), 1)
				if test.want == "" {
					if err != nil {
						t.Error(err)
					}
				} else if !errors.Is(err, rratelimiter.ErrNotInitialized) || !strings.Contains(err.Error(), test.want) {
					t.Errorf("%v, want ErrNotInitialized and %q", err, test.want)
				}
				set, err := l.TrySetRate(t.Context(),
					rratelimiter.Rate{Permits: 5, Interval: time.Minute, KeepAlive: time.Hour})
				if set != test.set || err != nil {
					t.Errorf("TrySetRate: %v, %v; want %v", set, err, test.set)
				}
				if got, err := l.Config(t.Context()); got != test.after || err != nil {
					t.Errorf("then the rate is %+v, %v; want %+v", got, err, test.after)
				}
				if again, err := l.TrySetRate(t.Context(), rratelimiter.PerSecond(9)); again || err != nil {
					t.Errorf("TrySetRate set it again: %v, %v", again, err)
				}

				// WithRate does the same.
				r.Wipe()
				r.WriteConfig(l, test.parts...)
				with := r.Limiter("rl", rratelimiter.WithRate(rratelimiter.Rate{Permits: 5, Interval: time.Minute}))
				if !r.Try(with, 1) {
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
