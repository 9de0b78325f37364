package demo

import (
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/redisson"
)

func TestResultsOfJava(t *testing.T) {
	traffic := newTraffic(Load{Workers: 2, Pollers: 1, Permits: 3, rate: perSecond(50), java: true}, nil)
	at := time.UnixMilli(1000)
	for _, r := range []redisson.Result{
		{Granted: true, Worker: true, Start: at, End: at.Add(time.Second)},
		{Granted: true, Start: at, End: at.Add(time.Minute)},
		{Start: at, End: at},
	} {
		traffic.answeredInJava(r)
	}
	if want := (side{granted: 6, polled: 3, denied: 1, longest: time.Second}); traffic.java != want {
		t.Errorf("%+v", traffic.java)
	}
	// Each of the three threads may have three permits more than it has reported.
	if least, most := traffic.own(); least != 6 || most != 15 {
		t.Errorf("%d to %d", least, most)
	}
}

// The observer is told of a call later than Redis executes it. Till then the call may have served
// those that stopped.
func TestCallsInFlightMayHaveServedTheirCallers(t *testing.T) {
	traffic := newTraffic(Load{Workers: 2, Permits: 3}, nil)
	at := time.UnixMilli(1000)
	traffic.Call(rratelimiter.CallInfo{Permits: 3})
	traffic.answered(0, at, at, true, nil)
	traffic.answered(1, at, at, false, rratelimiter.ErrOutcomeUnknown)
	if least, most := traffic.own(); least != 3 || most != 6 {
		t.Errorf("%d to %d", least, most)
	}
}
