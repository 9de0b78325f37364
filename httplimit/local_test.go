package httplimit

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

func TestLocalGrantsNoMoreThanItsShareInAnyInterval(t *testing.T) {
	for _, interval := range []time.Duration{time.Second, 7 * time.Millisecond, time.Hour + 3} {
		synctest.Test(t, func(t *testing.T) {
			const limit = 5
			var l deputy
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
				if a.Allowed == a.Refused || a.Limit != limit || a.Refused && (a.RetryAfter <= 0 || a.RetryAfter > a.ResetAfter) {
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
		var l deputy
		claims := []Claim{{Name: "a", Permits: 2, Rate: rratelimiter.PerSecond(3)}}
		ask := func() Answer {
			answers, _ := l.ask(claims, 1)
			return answers[0]
		}
		if a := ask(); !a.Allowed || a.Remaining != 1 {
			t.Fatalf("%+v", a)
		}
		a := ask()
		if !a.Refused || a.Remaining != 1 || a.RetryAfter > 1100*time.Millisecond {
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

func TestLocalRefusalTakesNothingFromOtherLimits(t *testing.T) {
	var l deputy
	small := Claim{Name: "small", Permits: 1, Rate: rratelimiter.PerHour(1)}
	large := Claim{Name: "large", Permits: 1, Rate: rratelimiter.PerHour(2)}
	for i, want := range []bool{true, false, false} {
		if answers, _ := l.ask([]Claim{large, small}, 1); answers[0].Allowed != want || answers[1].Refused == want || answers[0].Refused {
			t.Fatalf("%d: %+v", i, answers)
		}
	}
	if answers, _ := l.ask([]Claim{large}, 1); !answers[0].Allowed {
		t.Errorf("refusals took permits: %+v", answers)
	}
}

func TestLocalNeedsARate(t *testing.T) {
	var l deputy
	if answers, can := l.ask([]Claim{{Name: "a", Permits: 1}}, 1); can {
		t.Errorf("decided: %+v", answers)
	}
}

func TestLocalIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l deputy
		ask := func(key int) bool {
			_, can := l.ask([]Claim{{Name: "a", Key: fmt.Sprint(key), Permits: 1, Rate: rratelimiter.PerMinute(5)}}, 1)
			return can
		}
		for i := range mostKeys {
			if !ask(i) {
				t.Fatalf("no room for key %d", i)
			}
		}
		if ask(mostKeys) {
			t.Error("room for one more")
		}
		if !ask(0) {
			t.Error("a key lost its room")
		}
		time.Sleep(2 * time.Minute)
		if !ask(mostKeys) || len(l.windows) != 1 {
			t.Errorf("%d keys stay", len(l.windows))
		}
	})
}
