package classic_test

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/classic"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// contents returns the keys of the server with what they hold, and whether they have a TTL; and the
// shortest TTL.
func (b *bench) contents() (all []string, shortest time.Duration) {
	b.Helper()
	shortest = time.Hour
	for _, key := range slices.Sorted(slices.Values(b.rdb.Keys(b.Context(), "*").Val())) {
		read := map[string][]any{
			"string": {"get", key}, "hash": {"hgetall", key}, "list": {"lrange", key, 0, -1},
			"zset": {"zrange", key, 0, -1, "withscores"},
			"none": {"exists", key}, // it has expired since KEYS
		}[b.do("type", key).(string)]
		life := b.do("pttl", key).(int64)
		hasTTL := life != -1 // 0 in its last millisecond, -2 when the key has expired since KEYS
		if hasTTL {
			shortest = min(shortest, time.Duration(life)*ms)
		}
		all = append(all, fmt.Sprintf("%q %q %t", key, fmt.Sprint(b.do(read...)), hasTTL))
	}
	return all, shortest
}

// TestPeekAnswersAsAllow compares the two at one time, over random histories with debts and after
// damages, and checks that Peek changes nothing.
func TestPeekAnswersAsAllow(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, subject := range subjects() {
			t.Run(subject.name, func(t *testing.T) {
				onServer(t, s, func(b *bench) {
					b.do("flushdb")
					random := rand.New(rand.NewSource(1))
					l := subject.make(b.rdb, "key", b.clock())
					var counts [2]int
					steps := 100
					if s.IsReal() {
						steps = 40
					}
					for step := range steps {
						b.pass(time.Duration(random.Intn(250)) * ms)
						if step > steps/2 && random.Intn(4) == 0 {
							for _, key := range b.rdb.Keys(b.Context(), "*").Val() {
								b.damage(random, key)
							}
						}
						if random.Intn(10) == 0 {
							_, _ = l.Charge(b.Context(), 1+random.Int63n(min(2*subject.most, 6)))
						}
						if b.samePeek(l, 1+random.Int63n(min(subject.most, 4)), subject.timed && s.IsReal()) {
							counts[0]++
						} else {
							counts[1]++
						}
					}
					if min(counts[0], counts[1]) < 5 && !subject.night {
						b.Errorf("%d requests were granted, and %d refused", counts[0], counts[1])
					}
				})
			})
		}
	})
}

// samePeek compares Peek with Allow, and reports whether Allow granted. If a server counts down a
// TTL between the two, the times may differ a little.
func (b *bench) samePeek(l asker, n int64, counting bool) bool {
	b.Helper()
	before, shortest := b.contents()
	if b.mini == nil && shortest < 500*ms {
		return b.takes(l, 1) > 0 // a key could expire between the two
	}
	peeked, err := l.Peek(b.Context(), n)
	if after, _ := b.contents(); !slices.Equal(before, after) {
		b.Fatalf("Peek changed\n%v to\n%v", before, after)
	}
	if err != nil {
		b.Fatal(err)
	}
	result, err := l.Allow(b.Context(), n)
	if err != nil {
		b.Fatal(err)
	}
	if peeked.Allowed {
		peeked.Remaining = max(0, peeked.Remaining-n) // a debt shows as 0
	}
	same := func(peeked, allowed *time.Duration) {
		if counting && *allowed <= *peeked && *allowed > *peeked-200*ms {
			*peeked = *allowed
		}
	}
	same(&peeked.RetryAfter, &result.RetryAfter)
	same(&peeked.NextAfter, &result.NextAfter)
	same(&peeked.ResetAfter, &result.ResetAfter)
	if peeked != result {
		b.Fatalf("%d permits: Peek returned %+v less these, and Allow %+v", n, peeked, result)
	}
	return result.Allowed
}

func TestPeekAtASmooth(t *testing.T) {
	for name, l := range map[string]func(classic.Option) *classic.Smooth{
		"bursty":  func(clock classic.Option) *classic.Smooth { return classic.NewSmoothBursty(5, clock) },
		"warming": func(clock classic.Option) *classic.Smooth { return classic.NewSmoothWarmingUp(5, 2*time.Second, clock) },
	} {
		now := epoch
		clock := classic.WithClock(func() time.Time { return now })
		peeking, plain := l(clock), l(clock) // equal, but nothing peeks at the second
		random := rand.New(rand.NewSource(1))
		for range 200 {
			now = now.Add(time.Duration(random.Intn(700)) * ms)
			n := 1 + random.Int63n(4)
			stored := int64(plain.Stored())
			peeked, err := peeking.Peek(t.Context(), n)
			result, _ := peeking.Allow(t.Context(), n)
			if unpeeked, _ := plain.Allow(t.Context(), n); result != unpeeked {
				t.Fatalf("%s: %+v after a Peek, %+v without", name, result, unpeeked)
			}
			want := result
			want.Remaining = stored
			if err != nil || peeked != want {
				t.Fatalf("%s: Peek returned %+v, %v, and Allow %+v with %d stored permits", name, peeked, err, result, stored)
			}
		}
	}
	if _, err := classic.NewSmoothBursty(5).Peek(t.Context(), 0); err == nil {
		t.Error("0 permits are no error")
	}
}
