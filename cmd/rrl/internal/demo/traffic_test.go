package demo

import (
	"testing"
	"time"

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
