package pace

import (
	"errors"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// At a rate of 0, no call is sent, and a pause holds nothing. The other tests are those of
// httplimit.Transport.
func TestRateOfZero(t *testing.T) {
	l := limittest.New(t).Client().RateLimiter("stored")
	if err := l.SetRate(t.Context(), rratelimiter.PerMinute(0)); err != nil {
		t.Fatal(err)
	}
	p := New(l, 0, nil)
	if err := p.Await(t.Context()); !errors.Is(err, rratelimiter.ErrExceedsRate) {
		t.Error(err)
	}
	var rate rratelimiter.Rate
	var due time.Time
	if grant, wait, err := p.take(&rate, &due); grant != nil || wait != holdAtMost || err != nil {
		t.Error(grant, wait, err)
	}
	// The rate becomes 0 during a pause.
	rate = rratelimiter.PerMinute(1)
	if grant, wait, err := p.take(&rate, &due); grant != nil || wait != holdAtMost || err != nil ||
		rate != (rratelimiter.Rate{}) {
		t.Error(grant, wait, err, rate)
	}
}
