package lease

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func begun(permits int64, began time.Time, lasts time.Duration) *Lease {
	l := &Lease{Permits: permits, Began: began, Lasts: lasts, At: began.Add(lasts).UnixMicro()}
	l.Begin()
	return l
}

func TestALeaseHasSoManyPermits(t *testing.T) {
	now := time.Now()
	l := begun(5, now, time.Second)
	for _, step := range []struct {
		n, left int64
		ok      bool
	}{{2, 3, true}, {4, 0, false}, {3, 0, true}, {1, 0, false}} {
		if left, ok := l.Take(step.n, now, now); left != step.left || ok != step.ok {
			t.Errorf("of %d: %d left, %v; want %d, %v", step.n, left, ok, step.left, step.ok)
		}
	}
	if used := l.Used(); used != 5 {
		t.Errorf("%d are used", used)
	}
	if !l.Untake(2) || l.Left() != 2 || l.Used() != 0 {
		t.Errorf("%d are left after two came back", l.Left())
	}
	if unused := l.End(); unused != 2 {
		t.Errorf("%d were unused", unused)
	}
	if l.Untake(1) || l.End() != 0 || l.Left() != 0 {
		t.Error("it goes on after its end")
	}
	if _, ok := l.Take(1, now, now); ok {
		t.Error("it grants after its end")
	}
}

// A lease ends by the clock that dated it, or by the time since it was asked for, whichever is
// first.
func TestALeaseEndsByBothClocks(t *testing.T) {
	now := time.Now()
	for _, test := range []struct {
		name      string
		server    bool
		now, mono time.Duration // since it was asked for
		valid     bool
	}{
		{"shortly before", false, 999_999 * time.Microsecond, 999_999 * time.Microsecond, true},
		{"at its end", false, time.Second, time.Second, false},
		{"the clock went forward", false, time.Second, time.Millisecond, false},
		{"the clock stepped back", false, -time.Hour, time.Second, false},
		{"by the server's clock, only the time since counts", true, time.Hour, 999 * time.Millisecond, true},
		{"by the server's clock, at its end", true, -time.Hour, time.Second, false},
	} {
		l := begun(1, now.Truncate(time.Microsecond), time.Second)
		l.Began, l.Server = now, test.server
		if valid := l.Valid(now.Truncate(time.Microsecond).Add(test.now), now.Add(test.mono)); valid != test.valid {
			t.Errorf("%s: valid %v", test.name, valid)
		}
	}
}

// More is asked for once: when an eighth of the permits is left, or when it is time for the next
// lease.
func TestALeaseIsRefilledOnce(t *testing.T) {
	now := time.Now()
	for _, test := range []struct {
		name   string
		left   int64
		after  time.Duration
		refill bool
	}{
		{"much is left", 13, 0, false},
		{"an eighth is left", 12, 0, true},
		{"too early", 100, 800*time.Millisecond - 1, false},
		{"it is time for the next one", 100, 800 * time.Millisecond, true},
	} {
		l := begun(100, now, time.Second)
		l.Renews = 800 * time.Millisecond
		if got := l.Refill(test.left, now.Add(test.after)); got != test.refill {
			t.Errorf("%s: %v", test.name, got)
		}
		if test.refill && l.Refill(0, now.Add(time.Second)) {
			t.Errorf("%s: again", test.name)
		}
	}
}

// A lease ends with a bucket, and lasts for a quarter of one or longer; the next one is asked for
// in the last quarter.
func TestRest(t *testing.T) {
	const bucket = time.Second
	for after, rest := range map[time.Duration]time.Duration{
		0: time.Second, 1: time.Second - 1, 750 * time.Millisecond: 250 * time.Millisecond,
		750*time.Millisecond + 1: 1250*time.Millisecond - 1, 999 * time.Millisecond: 1001 * time.Millisecond,
	} {
		if got := Rest(time.Unix(7, 0).Add(after), bucket); got != rest {
			t.Errorf("%v after the end of a bucket: %v, not %v", after, got, rest)
		}
	}
	for range 1000 {
		if renews := Renews(bucket, bucket, rand.N); renews <= bucket*3/4 || renews > bucket*7/8 {
			t.Fatalf("the next one after %v", renews)
		}
	}
}

// However many callers take and give back, no permit is granted twice, and what ends is what was
// not granted.
func TestALeaseIsTakenByMany(t *testing.T) {
	const permits, callers = 10_000, 8
	now := time.Now()
	l := begun(permits, now, time.Hour)
	var taken, unused atomic.Int64
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			for range permits / callers * 2 {
				n := int64(1 + i%3)
				if _, ok := l.Take(n, now, now); ok {
					if i == 0 && l.Untake(n) {
						continue
					}
					taken.Add(n)
				}
			}
			if i == 3 {
				unused.Add(l.End())
			}
		})
	}
	all.Wait()
	unused.Add(l.End())
	if sum := taken.Load() + unused.Load(); sum != permits {
		t.Errorf("%d taken and %d unused of %d", taken.Load(), unused.Load(), permits)
	}
}
