package fairshare

import (
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/record"
)

// The number of permits left differs between periods and is decided once in each: refusals in
// between change nothing.
func TestShareLeavesInPeriods(t *testing.T) {
	s := Share{Redisson: true}
	const interval = time.Second
	for period, left := range []int64{1: 2, 2: 4, 3: 2, 4: 8, 5: 2, 6: 4, 7: 2, 8: 16, 64: 100} {
		if left == 0 {
			continue
		}
		asked := time.UnixMilli(int64(period)*1000 - 200)
		r := Reply{Now: asked.UnixMicro(), Rate: 100, Interval: interval}
		s.Granted(r.Now, interval, 100)
		until := s.Divide(r, asked, 300*time.Millisecond, 1)
		if want := asked.Add(300*time.Millisecond + longestHeadStart); !until.Equal(want) || s.quota != 100-left {
			t.Errorf("period %d: %d permits until %v, expected %d until %v", period, s.quota, until, 100-left, want)
		}
		if s.Fits(1, s.Room(asked.Add(300*time.Millisecond))) {
			t.Errorf("period %d: there is room while all its permits are live", period)
		}
		again := Reply{Now: asked.UnixMicro() + 320_000, Rate: 100, Interval: interval}
		if later := s.Divide(again, asked.Add(320*time.Millisecond), 10*time.Millisecond, 1); !later.Equal(until) ||
			s.quota != 100-left {
			t.Errorf("period %d, refused again: %d permits until %v, expected as before", period, s.quota, later)
		}
		if later := s.Divide(again, asked.Add(320*time.Millisecond), 500*time.Millisecond, 1); !later.IsZero() {
			t.Errorf("period %d, after the pause: something is left until %v", period, later)
		}
		s.Granted(r.Now+1_000_000, interval, 0) // all return
	}
}

// Callers that take many permits at a time are not delayed for fewer permits than that.
func TestShareLeavesNoLessThanACallerTakes(t *testing.T) {
	const n = 30
	for period, callers := range map[int64]int{1: 4, 8: 3, 16: 2, 64: 0} { // four would take more than the rate
		s := Share{Redisson: true}
		asked := time.UnixMilli(period*1000 - 200)
		r := Reply{Now: asked.UnixMicro(), Rate: 100, Interval: time.Second}
		s.Granted(r.Now-700_000, r.Interval, 100)
		s.Divide(r, asked, 300*time.Millisecond, n)
		got := 0
		for room := s.Room(asked.Add(300 * time.Millisecond)); s.Fits(n, room); room -= n {
			got++
		}
		if got != callers {
			t.Errorf("period %d: %d callers may go, expected %d", period, got, callers)
		}
	}
}

// A permit that cannot be divided goes to the process that had fewer.
func TestShareOfOnePermit(t *testing.T) {
	const now = 1_000_000_000
	r := Reply{Now: now, Rate: 1, Interval: time.Second, Foreign: true}
	for _, own := range []int64{0, 1} {
		var s Share
		s.Granted(now-500_000, time.Second, own)
		s.Saw(record.NewIdentity("self"), r)
		until := s.Divide(r, time.UnixMicro(now), 500*time.Millisecond, 1)
		free := time.UnixMicro(now + 500_000)
		want := free
		if own == 1 {
			want = free.Add(longestHeadStart)
		}
		if at := s.Ready(free, until, 1); !at.Equal(want) {
			t.Errorf("it held %d: ready after %v, expected %v", own, at.Sub(free), want.Sub(free))
		}
	}
}

// originOf returns the origin that a reply shows for a record of a Go client.
func originOf(i *record.Identity) (origin int64) {
	for _, digit := range []byte(i.AppendPrefix(nil, record.Redisson317, 1))[1:6] {
		origin = origin<<8 | int64(digit)
	}
	return origin
}

// The numbers of the fair-share rule: a Redisson client was seen recently, and a process holds its
// share of the permits in use, or more.
func TestShareRule(t *testing.T) {
	self, others := record.NewIdentity("self"), []*record.Identity{record.NewIdentity("a"), record.NewIdentity("b")}
	const java, now = 0x1234567890, 1_000_000_000
	for _, c := range []struct {
		name     string
		interval time.Duration
		own      int64           // of 100 in use
		seen     map[int64]int64 // ms since a record of this origin was seen
		pause    time.Duration
		held     bool // may take no more permits until then
	}{
		{"alone", time.Second, 100, nil, 0, false},
		{"alone, as its own records show", time.Second, 100, map[int64]int64{originOf(self): 0}, 0, false},
		{
			"another Go client, and more than half lately", time.Second, 100, map[int64]int64{originOf(others[0]): 0},
			10 * time.Millisecond, true,
		},
		{
			"another Go client, on a short interval", 100 * time.Millisecond, 100,
			map[int64]int64{originOf(others[0]): 0},
			time.Millisecond, true,
		},
		{"another Go client, longer ago", time.Second, 100, map[int64]int64{originOf(others[0]): 11001}, 0, false},
		{"nothing seen", time.Second, 100, map[int64]int64{record.NoOrigin: 0}, 0, false},
		{"Java, and more than half", time.Second, 51, map[int64]int64{java: 0}, 150 * time.Millisecond, true},
		{"Java, and half", time.Second, 50, map[int64]int64{java: 0}, 150 * time.Millisecond, true},
		{"Java, and less than half", time.Second, 49, map[int64]int64{java: 0}, 150 * time.Millisecond, false},
		{"a record of no known form", time.Second, 51, map[int64]int64{-1: 0}, 150 * time.Millisecond, true},
		{
			"Java, a Go client, more than a third", time.Second, 34, map[int64]int64{java: 0, originOf(others[0]): 5},
			150 * time.Millisecond, true,
		},
		{
			"Java, a Go client, less than a third", time.Second, 33, map[int64]int64{java: 0, originOf(others[0]): 5},
			150 * time.Millisecond, false,
		},
		{
			"Java, two Go clients, more than a quarter", time.Second, 26,
			map[int64]int64{java: 0, originOf(others[0]): 5, originOf(others[1]): 9}, 150 * time.Millisecond, true,
		},
		{
			"Java, two Go clients, less than a quarter", time.Second, 24,
			map[int64]int64{java: 0, originOf(others[0]): 5, originOf(others[1]): 9}, 150 * time.Millisecond, false,
		},
		{
			"Java, ten intervals and a second ago",
			time.Second,
			51,
			map[int64]int64{java: 11000},
			150 * time.Millisecond,
			true,
		},
		{"Java, longer ago", time.Second, 51, map[int64]int64{java: 11001}, 0, false},
		{
			"a Go client, longer ago", time.Second, 40, map[int64]int64{java: 0, originOf(others[0]): 11001},
			150 * time.Millisecond, false,
		},
		{"a short interval", 100 * time.Millisecond, 51, map[int64]int64{java: 0}, 25 * time.Millisecond, true},
		{"a short interval, long ago", 100 * time.Millisecond, 51, map[int64]int64{java: 2001}, 0, false},
	} {
		var s Share
		for origin, ago := range c.seen {
			s.Saw(self, Reply{Origin: origin, Now: now - 1000*ago, Interval: c.interval})
		}
		// clients seen long ago are forgotten now
		s.Saw(self, Reply{Origin: originOf(self), Now: now, Interval: c.interval})
		s.Granted(now-c.interval.Microseconds(), c.interval, 1000) // expired
		s.Granted(now-1000, c.interval, c.own-1)
		s.Granted(now, c.interval, 1)
		r := Reply{Now: now, Rate: 120, Free: 20, Interval: c.interval}
		asked := time.UnixMicro(now)
		pause := time.Duration(0)
		if until := s.Divide(r, asked, 70*time.Millisecond, 1); !until.IsZero() {
			pause = until.Sub(asked) - 70*time.Millisecond
		}
		if held := pause > 0 && !s.Fits(1, s.Room(asked)); pause != c.pause || held != c.held {
			t.Errorf("%s: %v, held %v; expected %v, %v", c.name, pause, held, c.pause, c.held)
		}
	}
}

// Of Go processes, the one that got less of the rate in the last intervals is served first.
func TestShareTurns(t *testing.T) {
	self, origin := record.NewIdentity("self"), originOf(record.NewIdentity("other"))
	s, now := Share{}, int64(1_000_000_000)
	later := func(seconds, granted int64, want time.Duration) {
		t.Helper()
		for range seconds {
			now += 1_000_000
			s.Granted(now, time.Second, granted)
		}
		r := Reply{Now: now, Rate: 100, Interval: time.Second, Origin: origin}
		s.Saw(self, r)
		free, got := time.UnixMicro(now).Add(time.Second), time.Duration(0)
		if until := s.Divide(r, time.UnixMicro(now), time.Second, 1); !until.IsZero() {
			got = until.Sub(free)
			if ready := s.Ready(free, until, 1); !ready.Equal(until) {
				t.Errorf("it asks %v before the end of its turn", until.Sub(ready))
			}
		}
		if got.Round(time.Millisecond) != want {
			t.Errorf("after %d s with %d permits each, it asks %v later, expected %v", seconds, granted, got, want)
		}
	}
	later(20, 40, 0) // less than half
	// 36 % more than its part just after a grant, 6 % before the next one
	later(20, 60, 4*time.Millisecond)
	later(20, 100, 10*time.Millisecond) // all
	later(1, 0, 8*time.Millisecond)
	s.GaveBack(0, 1000) // nothing of that is live
	later(1, 100, 9*time.Millisecond)
	s.GaveBack(0, 60)
	later(1, 0, 2*time.Millisecond)
	later(3, 0, 0)
}

// Permits that return early are no longer counted, whoever gave them back.
func TestShareOfPermitsGivenBack(t *testing.T) {
	const now = 1_000_000_000
	s := Share{interval: time.Second}
	live := func(what string, want int64) {
		t.Helper()
		if got := s.Live(time.UnixMicro(now)); got != want || s.sum != want {
			t.Errorf("%s: %d, %d in all; expected %d", what, got, s.sum, want)
		}
	}
	for i := range int64(3) {
		s.Granted(now-300_000+100_000*i, time.Second, 10)
	}
	live("three grants", 30)
	s.GaveBack(now-200_000, 4)
	live("a part of the second one", 26)
	s.GaveBack(now-200_000, 10)
	live("more than that", 20)
	s.GaveBack(now-150_000, 10)
	live("a grant of another kind", 20)
	s.GaveBack(0, 5)
	live("the oldest", 15)
	s.Divide(Reply{Now: now, Rate: 100, Free: 92, Interval: time.Second}, time.UnixMicro(now), time.Second, 1)
	live("another client gave back", 8)
	if at := time.UnixMicro(now + 899_999); s.Live(at) != 8 {
		t.Errorf("%d of the latest grant are live", s.Live(at))
	}
}

// Returned tells the first time at which no more than some permits are live.
func TestShareReturns(t *testing.T) {
	const now = 1_000_000_000
	s := Share{interval: time.Second, offset: time.Hour}
	for i, n := range []int64{3, 1, 5, 2} {
		s.Granted(now+100_000*int64(i), time.Second, n)
	}
	returned := s.Returned()
	for n := int64(12); n >= -1; n-- {
		at := returned(n)
		switch {
		case n >= 11 && !at.IsZero():
			t.Errorf("at most %d from %v, though there are 11", n, at)
		case n >= 0 && n < 11 && (s.Live(at) > n || s.Live(at.Add(-1)) <= n):
			t.Errorf("at most %d from %v: %d then, %d just before", n, at, s.Live(at), s.Live(at.Add(-1)))
		}
	}
}

// A fair share keeps little memory of a process's own grants, however many there are.
func TestShareIsSmall(t *testing.T) {
	var s Share
	for i := range int64(2 * 3600 * 10) {
		if s.Granted(100_000*i, time.Hour, 1); len(s.own) > 1030 {
			t.Fatalf("%d notes at %d", len(s.own), 100*i)
		}
	}
	if live := int64(3600 * 10); s.sum > live || s.sum < live*99/100 {
		t.Errorf("%d, expected about %d", s.sum, live)
	}
}
