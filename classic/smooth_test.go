package classic_test

import (
	"context"
	"errors"
	"math"
	"math/rand"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/classic"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// smooth_test.go has the behaviour of the in-process limiters; that it is Guava's is proved in
// compat/guava.

// A hand moves the clock of a smooth limiter.
type hand struct{ now time.Time }

func newHand() *hand { return &hand{epoch} }

func (h *hand) option() classic.Option { return classic.WithClock(func() time.Time { return h.now }) }

func reserve(t *testing.T, s *classic.Smooth, n int64) time.Duration {
	t.Helper()
	wait, err := s.Reserve(n)
	if err != nil {
		t.Fatal(err)
	}
	return wait
}

func TestSmoothRequestsPayForTheOneBefore(t *testing.T) {
	clock := newHand()
	s := classic.NewSmoothBursty(5, clock.option())
	for i, step := range []struct {
		n    int64
		wait time.Duration
	}{{10, 0}, {1, 2 * time.Second}, {1, 2200 * ms}, {5, 2400 * ms}, {1, 3400 * ms}} {
		if wait := reserve(t, s, step.n); wait != step.wait {
			t.Errorf("request %d waits %v, not %v", i, wait, step.wait)
		}
	}
	r, err := s.Allow(t.Context(), 1)
	if err != nil || r.Allowed || r.RetryAfter != 3600*ms || r.NextAfter != r.RetryAfter {
		t.Errorf("%+v, %v", r, err)
	}
	clock.now = clock.now.Add(3600 * ms)
	if r, err = s.Allow(t.Context(), 1000); err != nil || !r.Allowed {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestSmoothBurstyStoresPermitsOfASecond(t *testing.T) {
	clock := newHand()
	s := classic.NewSmoothBursty(5, clock.option())
	clock.now = clock.now.Add(500 * ms)
	if stored := s.Stored(); stored != 2.5 {
		t.Errorf("500 ms at 5 a second give %v", stored)
	}
	clock.now = clock.now.Add(time.Hour)
	if stored := s.Stored(); stored != 5 {
		t.Errorf("an hour gives %v", stored)
	}
	for i := range 6 {
		if wait := reserve(t, s, 1); wait != 0 {
			t.Errorf("stored permit %d waits %v", i, wait)
		}
	}
	if wait := reserve(t, s, 1); wait != 200*ms {
		t.Errorf("waits %v", wait)
	}
}

func TestSmoothSetRateRescalesWhatIsStored(t *testing.T) {
	for _, warmUp := range []time.Duration{0, 2 * time.Second} {
		clock := newHand()
		s := classic.NewSmoothBursty(5, clock.option())
		if warmUp > 0 {
			s = classic.NewSmoothWarmingUp(5, warmUp, clock.option())
			reserve(t, s, 5)
		}
		clock.now = clock.now.Add(2500 * ms)
		before := s.Stored()
		if err := s.SetRate(20); err != nil {
			t.Fatal(err)
		}
		if stored := s.Stored(); s.Rate() != 20 || stored != 4*before || before == 0 {
			t.Errorf("%v stored of rate 5 become %v of rate %v", before, stored, s.Rate())
		}
	}
}

func TestSmoothWarmingUpRampsUp(t *testing.T) {
	clock := newHand()
	s := classic.NewSmoothWarmingUp(10, 2*time.Second, clock.option())
	var waits []time.Duration
	last := time.Duration(0)
	for range 30 {
		wait := reserve(t, s, 1)
		waits = append(waits, wait-last)
		last = wait
	}
	if waits[0] != 0 || waits[1] < 285*ms || waits[1] > 300*ms {
		t.Errorf("cold: %v", waits[:2])
	}
	for i := 2; i < len(waits); i++ {
		if waits[i] > waits[i-1] {
			t.Errorf("permit %d waits %v more, the one before %v", i, waits[i], waits[i-1])
		}
	}
	if waits[29] != 100*ms {
		t.Errorf("warm: %v", waits[29])
	}
}

// The last request of any time is not paid within it; all others are.
func TestSmoothBounds(t *testing.T) {
	for _, warmUp := range []time.Duration{0, time.Second} {
		for seed := range int64(20) {
			random := rand.New(rand.NewSource(seed))
			clock := newHand()
			rate := 1 + 20*random.Float64()
			s, burst := classic.NewSmoothBursty(rate, clock.option()), rate
			if warmUp > 0 {
				s, burst = classic.NewSmoothWarmingUp(rate, warmUp, clock.option()), 0
			}
			var log []window.Grant
			largest := int64(5)
			for range 300 {
				clock.now = clock.now.Add(time.Duration(random.ExpFloat64() * float64(200*ms)).Truncate(
					time.Microsecond))
				n := 1 + random.Int63n(largest)
				if r, err := s.Allow(t.Context(), n); err != nil {
					t.Fatal(err)
				} else if r.Allowed {
					log = append(log, window.Grant{Permits: n, Start: clock.now, End: clock.now})
				}
			}
			for _, over := range []time.Duration{ms, 300 * ms, time.Second, 7 * time.Second} {
				most, at := window.Largest(log, over)
				if bound := burst + rate*over.Seconds() + float64(largest) + 0.01; float64(most) > bound {
					t.Errorf("warm-up %v, seed %d: %d permits in the %v from %v, more than %.1f",
						warmUp, seed, most, over, at, bound)
				}
			}
		}
	}
}

func TestSmoothAcquireWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := classic.NewSmoothBursty(4)
		began := time.Now()
		for range 5 {
			if err := s.Acquire(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("took %v", took)
		}
	})
}

func TestSmoothWrongParametersAreTold(t *testing.T) {
	for _, rate := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		if _, err := classic.NewSmoothBursty(rate).Allow(t.Context(), 1); !errors.Is(err, rratelimiter.ErrInvalidRate) {
			t.Errorf("rate %v: %v", rate, err)
		}
		if err := classic.NewSmoothBursty(1).SetRate(rate); !errors.Is(err, rratelimiter.ErrInvalidRate) {
			t.Errorf("rate %v: %v", rate, err)
		}
	}
	if err := classic.NewSmoothWarmingUp(1, 0).Acquire(t.Context(), 1); !errors.Is(err, rratelimiter.ErrInvalidOption) {
		t.Error(err)
	}
	if _, err := classic.NewSmoothBursty(1).Reserve(0); !errors.Is(err, rratelimiter.ErrInvalidPermits) {
		t.Error(err)
	}
}

// A context that has ended ends every method, and takes nothing.
func TestSmoothEndsWithItsContext(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	now := epoch
	for name, s := range map[string]*classic.Smooth{
		"bursty":     classic.NewSmoothBursty(1, classic.WithClock(func() time.Time { return now })),
		"warming up": classic.NewSmoothWarmingUp(1, time.Minute, classic.WithClock(func() time.Time { return now })),
	} {
		if r, err := s.Allow(ended, 1); !errors.Is(err, context.Canceled) || r != (rratelimiter.Result{}) {
			t.Errorf("%s: Allow: %+v, %v", name, r, err)
		}
		if r, err := s.Peek(ended, 1); !errors.Is(err, context.Canceled) || r != (rratelimiter.Result{}) {
			t.Errorf("%s: Peek: %+v, %v", name, r, err)
		}
		if err := s.Acquire(ended, 1); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: Acquire: %v", name, err)
		}
		if r, err := s.Allow(t.Context(), 1); err != nil || !r.Allowed {
			t.Errorf("%s: the permit is gone: %+v, %v", name, r, err)
		}
	}
}
