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
			{At: at.Add(-10 * time.Second), Free: 25}, {At: at.Add(-2 * time.Second), Free: 7}, {At: at.Add(-1900 * time.Millisecond), Free: 9},
		},
		Seconds: []Second{
			{At: time.Unix(1_699_999_990, 0), Permits: 25}, {At: time.Unix(1_699_999_999, 0), Permits: 50}, {At: time.Unix(1_700_000_000, 0), Permits: 3},
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
	if mean := someGrants().Mean(10); mean != 7.5 {
		t.Errorf("%v permits a second on average, 75 in ten", mean)
	}
}
