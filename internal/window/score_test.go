package window

import (
	"math"
	"math/rand"
	"testing"
	"time"
)

func TestLargestScores(t *testing.T) {
	const interval = 100 * time.Microsecond
	for _, c := range []struct {
		name        string
		scores      []Score
		permits, at int64
	}{
		{"one", []Score{{Permits: 3, At: 1000}}, 3, 901},
		{"exactly an interval apart", []Score{{Permits: 3, At: 1000}, {Permits: 4, At: 1100}}, 4, 1001},
		{"a microsecond less", []Score{{Permits: 3, At: 1000}, {Permits: 4, At: 1099}}, 7, 1000},
		{"in any order", []Score{{Permits: 4, At: 1099}, {Permits: 3, At: 1000}}, 7, 1000},
		{"equal windows: the first", []Score{{Permits: 4, At: 2000}, {Permits: 4, At: 1000}}, 4, 901},
		{
			"a record removed before the next",
			[]Score{{Permits: 3, At: 1000, Removed: 1050}, {Permits: 4, At: 1050}},
			4,
			951,
		},
		{
			"a record removed after the next",
			[]Score{{Permits: 3, At: 1000, Removed: 1051}, {Permits: 4, At: 1050}},
			7,
			951,
		},
		{
			"removed long after it expired",
			[]Score{{Permits: 3, At: 1000, Removed: 9000}, {Permits: 4, At: 1100}},
			4,
			1001,
		},
		{"a part given back: replaced at its own score", []Score{
			{Permits: 5, At: 1000, Removed: 1040}, {Permits: 2, At: 1000, Added: 1040},
			{Permits: 3, At: 1099, Added: 1099}}, 5, 901},
		{"a score in the future holds from when it was written", []Score{
			{Permits: 5, At: 1010, Added: 1000}, {Permits: 2, At: 1000}}, 7, 901},
		{"charged permits exceed the rate", []Score{{Permits: 9, At: 1000, Charged: true}}, 0, 0},
		{"a grant in debt", []Score{{Permits: 9, At: 1100, Added: 1000, Charged: true}, {Permits: 1, At: 1199}}, 10,
			1100},
		{"a grant after a debt", []Score{{Permits: 9, At: 1100, Added: 1000, Charged: true}, {Permits: 1, At: 1200}},
			1, 1101},
		{"a grant just before a charge", []Score{{Permits: 9, At: 1000, Charged: true}, {Permits: 1, At: 1000}}, 1,
			901},
		{"written when it had expired", []Score{{Permits: 5, At: 1000, Added: 1100}}, 0, 0},
		{
			"nothing, or less, written",
			[]Score{{Permits: 0, At: 1000}, {Permits: -3, At: 1000}, {Permits: 1, At: 1000}}, 1,
			901,
		},
		{"none", nil, 0, 0},
		{"at the end of time", []Score{{Permits: 1, At: math.MaxInt64 - 1}}, 1, math.MaxInt64 - 100},
	} {
		t.Run(c.name, func(t *testing.T) {
			if permits, at := LargestScores(c.scores, interval); permits != c.permits || at != c.at {
				t.Errorf("got %d at %d, want %d at %d", permits, at, c.permits, c.at)
			}
		})
	}
	for _, interval := range []time.Duration{0, -1, math.MinInt64} {
		if permits, at := LargestScores([]Score{{Permits: 1, At: 5}}, interval); permits != 0 || at != 0 {
			t.Errorf("interval %d: got %d at %d, want zeros", interval, permits, at)
		}
	}
}

func TestLargestScoresAgainstBruteForce(t *testing.T) {
	r := seeded(t)
	for round := range 3000 {
		interval := int64(1 + r.Intn(12))
		scores := randomScores(r, r.Intn(12))
		var want int64
		for moment := int64(0); moment < 80; moment++ {
			var sum int64
			for _, s := range scores {
				from, until := s.At, s.At+interval
				if s.Added != 0 {
					from = s.Added
				}
				if s.Removed != 0 && s.Removed < until {
					until = s.Removed
				}
				if from <= moment && moment < until {
					sum += s.Permits
				}
			}
			want = max(want, sum)
		}
		if permits, _ := LargestScores(scores, time.Duration(interval)*time.Microsecond); permits != want {
			t.Fatalf("round %d: got %d, want %d\ninterval %d, scores %+v", round, permits, want, interval, scores)
		}
	}
}

// Largest and LargestScores agree on grants whose instant is known exactly, and on a window that
// holds them.
func TestScoresAndGrantsAgree(t *testing.T) {
	r := seeded(t)
	for round := range 1000 {
		interval := int64(1 + r.Intn(12))
		scores := randomScores(r, 1+r.Intn(12))
		var grants []Grant
		for i := range scores {
			scores[i].Added, scores[i].Removed = 0, 0
			grants = append(grants, instant(scores[i].Permits, time.Microsecond*time.Duration(scores[i].At)))
		}
		length := time.Microsecond * time.Duration(interval)
		byScore, at := LargestScores(scores, length)
		byGrant, _ := Largest(grants, length)
		var inWindow int64
		for _, s := range scores {
			if at <= s.At && s.At < at+interval {
				inWindow += s.Permits
			}
		}
		if byScore != byGrant || byScore != inWindow {
			t.Fatalf("round %d: %d by scores, %d by grants, %d in the window at %d\ninterval %d, scores %+v",
				round, byScore, byGrant, inWindow, at, interval, scores)
		}
	}
}

func randomScores(r *rand.Rand, n int) []Score {
	scores := make([]Score, n)
	for i := range scores {
		s := Score{Permits: 1 + r.Int63n(4), At: 1 + r.Int63n(40)}
		if r.Intn(3) == 0 {
			s.Added = s.At + r.Int63n(4)
		}
		if r.Intn(3) == 0 {
			s.Removed = s.At + r.Int63n(15)
		}
		scores[i] = s
	}
	return scores
}
