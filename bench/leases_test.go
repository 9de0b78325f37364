package main

import (
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

func TestProcessesThatShareAreMeasured(t *testing.T) {
	b := newLab(t, size{sharedTime: 500 * time.Millisecond})
	for _, name := range []string{rowShared, rowSharedLease} {
		s, err := b.shared(
			t.Context(), &contender{name: name},
			sharing{processes: sharers, rate: rratelimiter.PerSecond(5000), demand: 50},
		)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if s.Requests < 500 || s.Permits+s.Denied != s.Requests || s.Limit != 2500 || s.Window < .2 || s.Window > 1 ||
			s.Commands == 0 || s.P99 == 0 {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

func TestNamesThatAreUsedOnceAreMeasured(t *testing.T) {
	b := newLab(t, size{names: 2000})
	s, err := b.once(t.Context(), leaseRow(abundant, namesLease, 0))
	if err != nil {
		t.Fatal(err)
	}
	if s.Requests != 2000 || s.Denied != 0 || s.Kept == 0 || s.Goroutines > 0 {
		t.Errorf("%+v", s)
	}
}
