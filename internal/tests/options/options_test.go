package options

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// TestOptionsAreRefusedByAllMethodsOrNone: what is invalid, each method refuses, and no method
// refuses what is valid. Values and pairs are refused as the godoc of the option says.
func TestOptionsAreRefusedByAllMethodsOrNone(t *testing.T) {
	r := rig.New(t, redistest.Embedded(t))
	rapid.Check(t, func(rt *rapid.T) {
		rate := rratelimiter.Rate{
			Permits: one(rt, "rate", []int64{10, 1, 0, 1<<32 - 1, 1 << 32, -1}),
			Interval: one(rt, "interval",
				[]time.Duration{time.Second, ms, 9 * ms, 10 * ms, 11 * ms, 0, time.Microsecond}),
		}
		s := drawOptions(rt, rate, true)
		valid := s.refused() == "" && (!s.has("WithRate") && !s.has("WithEnforcedRate") || s.validRate())
		calls := rig.EveryMethod(r.Client, r.Limiter("rl", s.options()...))
		methods := slices.Sorted(maps.Keys(calls))
		for range 8 { // many sets find more than all methods
			method := one(rt, "method", methods)
			r.Must(r.Redis.FlushDB(t.Context()).Err()) // no method waits for permits that another took
			if !s.has("WithRate") && !s.has("WithEnforcedRate") {
				r.WriteConfig(r.Limiter("rl"), "rate", "10", "interval", "1000", "type", "0")
			}
			err := calls[method](t.Context())
			if invalid := errors.Is(err, rratelimiter.ErrInvalidOption); invalid == valid {
				rt.Fatalf("%v: %s returned %v, expected ErrInvalidOption: %v", s, method, err, !valid)
			}
			if valid && (errors.Is(err, rratelimiter.ErrInvalidRate) ||
				errors.Is(err, rratelimiter.ErrInvalidPermits)) {
				rt.Fatalf("%v: %s returned %v", s, method, err)
			}
		}
	})
}

// validRate reports whether the rate may be set.
func (s *settings) validRate() bool {
	return s.rate.Permits >= 0 && s.rate.Permits < 1<<32 && s.rate.Interval >= ms && s.rate.Interval%ms == 0
}
