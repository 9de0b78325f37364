package feed

import (
	"testing"
	"time"
)

// someGrants returns what was seen of 25 permits granted ten seconds ago, and of 53 granted lately.
func someGrants() Sight {
	at := time.Unix(1_700_000_000, 500e6)
	return Sight{
		Look: Look{At: at},
		Frees: []Free{
			{
				At: at.Add(-10 * time.Second), Free: 25,
			}, {At: at.Add(-2 * time.Second), Free: 7}, {At: at.Add(-1900 * time.Millisecond), Free: 9},
		},
		Seen: []Span{{at.Add(-2 * time.Minute), at}},
		Seconds: []Second{
			{
				At: time.Unix(1_699_999_990, 0), Permits: 25,
			}, {At: time.Unix(1_699_999_999, 0), Permits: 50}, {At: time.Unix(1_700_000_000, 0), Permits: 3},
		},
	}
}

func TestColumnsAreWholeSecondsUpToNow(t *testing.T) {
	free, granted := someGrants().Columns(10)
	if free[0] != 25 || free[8] != 7 || free[5] != -1 {
		t.Errorf("free %v: 25 ten seconds ago, the fewest of two looks two seconds ago, none between", free)
	}
	if granted[0] != 25 || granted[9] != 50 || granted[4] != 0 {
		t.Errorf("granted %v", granted)
	}
}

// The first polls, and those after Redis was away, do not count the seconds that were not seen as
// seconds without grants.
func TestMeansAreOverTheSecondsThatWereSeen(t *testing.T) {
	v := someGrants()
	at := v.At
	for _, c := range []struct {
		seen  []Span
		want  float64
		known bool
	}{
		{v.Seen, 7.5, true},
		{[]Span{{at.Add(-4 * time.Second), at}}, 50. / 3, true},
		{
			[]Span{{at.Add(-20 * time.Second), at.Add(-8 * time.Second)}, {at.Add(-1500 * time.Millisecond), at}},
			75. / 3, true,
		},
		{[]Span{{at.Add(-1400 * time.Millisecond), at}}, 0, false},
		{nil, 0, false},
	} {
		v.Seen = c.seen
		if mean, known := v.Mean(10); mean != c.want || known != c.known {
			t.Errorf("%v a second (known: %v), want %v (%v), of what was seen in %v",
				mean, known, c.want, c.known, c.seen)
		}
		if _, seen := v.LastSecond(); seen != c.known {
			t.Errorf("the last second was seen: %v, in %v", seen, c.seen)
		}
	}
}
