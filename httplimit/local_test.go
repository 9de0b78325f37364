package httplimit

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

func TestLocalGrantsNoMoreThanItsShareInAnyInterval(t *testing.T) {
	for _, interval := range []time.Duration{time.Second, 7 * time.Millisecond, time.Hour + 3} {
		synctest.Test(t, func(t *testing.T) {
			const limit = 5
			var l localLimiter
			random := rand.New(rand.NewPCG(1, 2))
			claim := Claim{Name: "a", Permits: 1, Rate: rratelimiter.Rate{Permits: 2 * limit, Interval: interval}}
			var granted []time.Time
			for range 3000 {
				time.Sleep(time.Duration(random.Int64N(int64(interval / 7))))
				claim.Permits = 1 + random.Int64N(3)
				answers, can := l.ask([]Claim{claim}, 0.5)
				if !can || len(answers) != 1 {
					t.Fatalf("no answer: %v", answers)
				}
				a := answers[0]
				if a.Allowed == a.Refused || a.Limit != limit ||
					a.Refused && (a.RetryAfter <= 0 || a.RetryAfter > a.ResetAfter) ||
					a.ResetAfter > interval || a.NextAfter <= 0 || a.NextAfter > a.ResetAfter {
					t.Fatalf("%+v", a)
				}
				if a.Allowed {
					for range claim.Permits {
						granted = append(granted, time.Now())
					}
				}
			}
			if len(granted) < 500 {
				t.Fatalf("only %d granted", len(granted))
			}
			for i := limit; i < len(granted); i++ {
				if d := granted[i].Sub(granted[i-limit]); d < interval {
					t.Fatalf("more than %d within %v", limit, d)
				}
			}
		})
	}
}

func TestLocalKeepsItsWord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l localLimiter
		claims := []Claim{{Name: "a", Permits: 2, Rate: rratelimiter.PerSecond(3)}}
		ask := func() Answer {
			answers, _ := l.ask(claims, 1)
			return answers[0]
		}
		if a := ask(); !a.Allowed || a.Remaining != 1 {
			t.Fatalf("%+v", a)
		}
		a := ask()
		if !a.Refused || a.Remaining != 1 || a.RetryAfter > time.Second {
			t.Fatalf("%+v", a)
		}
		time.Sleep(a.RetryAfter - 1)
		if again := ask(); !again.Refused {
			t.Errorf("free before its time: %+v", again)
		}
		time.Sleep(time.Nanosecond)
		if again := ask(); !again.Allowed {
			t.Errorf("not free at its time: %+v", again)
		}
	})
}

// A client that this process refuses is told to wait for an interval at most, and is then served.
func TestLocalRetryAfterIsAnIntervalAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := &service{}
		away.hangs.Store(true)
		guard := New(func(*http.Request) Claim {
			return Claim{Name: "a", Limiter: away, Rate: rratelimiter.PerMinute(2)}
		})
		guard.Policy = &Policy{Failure: FailLocal, Logger: quiet}
		h := guard.Middleware(ok)
		// in one tenth of the interval, whose permits return together
		for _, pause := range []time.Duration{0, 3 * time.Second} {
			time.Sleep(pause)
			wantCodes(t, h, "192.0.2.1", "/", 200)
		}
		w := get(h, "192.0.2.1", "/")
		if limit, retry := w.Header().Get("RateLimit"), w.Header().Get("Retry-After"); w.Code != 429 ||
			limit != `"a";r=0;t=60` || retry != "60" {
			t.Errorf("%d, Retry-After: %s\n%s", w.Code, retry, headerText(w.Header()))
		}
		time.Sleep(time.Minute)
		wantCodes(t, h, "192.0.2.1", "/", 200, 200, 429)
		time.Sleep(time.Second) // the call that checks whether the server is back
	})
}

func TestLocalRefusalTakesNothingFromOtherLimits(t *testing.T) {
	var l localLimiter
	small := Claim{Name: "small", Permits: 1, Rate: rratelimiter.PerHour(1)}
	large := Claim{Name: "large", Permits: 1, Rate: rratelimiter.PerHour(2)}
	for i, want := range []bool{true, false, false} {
		if answers, _ := l.ask([]Claim{large, small}, 1); answers[0].Allowed != want || answers[1].Refused == want ||
			answers[0].Refused {
			t.Fatalf("%d: %+v", i, answers)
		}
	}
	if answers, _ := l.ask([]Claim{large}, 1); !answers[0].Allowed {
		t.Errorf("refusals took permits: %+v", answers)
	}
}

func TestLocalNeedsARate(t *testing.T) {
	var l localLimiter
	if answers, can := l.ask([]Claim{{Name: "a", Permits: 1}}, 1); can {
		t.Errorf("decided: %+v", answers)
	}
}

func TestLocalIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l localLimiter
		passed := func(key string) bool {
			answers, can := l.ask([]Claim{{Name: "a", Key: key, Permits: 1, Rate: rratelimiter.PerMinute(2)}}, 1)
			if !can {
				t.Fatalf("no answer for key %s", key)
			}
			return answers[0].Allowed
		}
		want := func(key string, want ...bool) {
			t.Helper()
			for i, w := range want {
				if passed(key) != w {
					t.Fatalf("key %s, request %d: passed %v", key, i+1, !w)
				}
			}
		}
		want("mine", true)
		for i := range 2 * mostKeys {
			passed(fmt.Sprint(i))
		}
		if n := len(l.windows) + len(l.shared); n != mostKeys+1 || len(l.places) != mostKeys {
			t.Errorf("%d keys are kept, in %d places", n, len(l.places))
		}
		want("mine", true, false)   // it has kept its place
		want("new", false)          // for keys without a place everything is used up
		want("0", true, false)      // the first of the others have their own place
		time.Sleep(2 * time.Minute) // all permits have returned
		want("mine", true, true, false)
		want("new", true, true, false)
		want("other", true)
		if n := len(l.windows) + len(l.shared); n > mostKeys {
			t.Errorf("%d keys are kept", n)
		}
	})
}

// A key that gets a place of its own may have taken a part of what the keys without a place shared.
func TestLocalKeyWithANewPlaceGainsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l localLimiter
		ask := func(key string, rate rratelimiter.Rate) bool {
			answers, _ := l.ask([]Claim{{Name: "a", Key: key, Permits: 1, Rate: rate}}, 1)
			return answers[0].Allowed
		}
		for i := range mostKeys {
			ask(fmt.Sprint(i), rratelimiter.PerSecond(1))
		}
		hour := rratelimiter.PerHour(1)
		if !ask("late", hour) || ask("late", hour) {
			t.Fatal("without a place it is not one an hour")
		}
		time.Sleep(2 * time.Second)
		if ask("late", hour) {
			t.Error("two within an hour")
		}
		if len(l.windows) != mostKeys {
			t.Errorf("%d keys", len(l.windows))
		}
		time.Sleep(2 * time.Hour)
		if !ask("late", hour) {
			t.Error("none in the next hour")
		}
	})
}

func TestLocalNamesAreBounded(t *testing.T) {
	var l localLimiter
	for i := range mostKeys + 2*mostShared {
		l.ask([]Claim{{Name: fmt.Sprint(i), Permits: 1, Rate: rratelimiter.PerHour(1)}}, 1)
	}
	if n := len(l.shared); n != mostShared+1 {
		t.Errorf("%d names share", n)
	}
}

func TestLocalCountsOneLimitTwiceInARequest(t *testing.T) {
	var l localLimiter
	claim := Claim{Name: "a", Permits: 2, Rate: rratelimiter.PerHour(3)}
	if answers, _ := l.ask([]Claim{claim, claim}, 1); answers[0].Refused || !answers[1].Refused {
		t.Errorf("%+v", answers)
	}
}

// The plans of tenants have rates of different intervals, and one request can have two keys without
// a place.
func TestLocalKeysWithoutAPlaceShareByInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l localLimiter
		claim := func(key string, interval time.Duration) Claim {
			return Claim{Name: "a", Key: key, Permits: 1, Rate: rratelimiter.Rate{Permits: 2, Interval: interval}}
		}
		for i := range mostKeys {
			l.ask([]Claim{claim(fmt.Sprint(i), time.Hour)}, 1)
		}
		granted := map[time.Duration]int{}
		for range 300 {
			for _, interval := range []time.Duration{100 * time.Millisecond, 300 * time.Millisecond} {
				if answers, _ := l.ask([]Claim{claim("new", interval)}, 1); answers[0].Allowed {
					granted[interval]++
				}
				time.Sleep(5 * time.Millisecond)
			}
		}
		if short, long := granted[100*time.Millisecond], granted[300*time.Millisecond]; short < 50 || short > 62 ||
			long < 16 || long > 22 {
			t.Errorf("in 3 s %d of 2 each 100 ms, and %d of 2 each 300 ms", short, long)
		}

		time.Sleep(2 * time.Second)
		passed := 0
		for range 6 {
			answers, _ := l.ask([]Claim{claim("one", time.Second), claim("two", time.Second)}, 1)
			if answers[0].Allowed {
				passed += 2
			}
		}
		if passed != 2 {
			t.Errorf("%d passed together of a common 2", passed)
		}
	})
}
