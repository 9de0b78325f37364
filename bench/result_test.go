package main

import "testing"

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{nil, 0}, {[]float64{5}, 5}, {[]float64{9, 1, 5}, 5}, {[]float64{4, 1, 3, 2}, 2.5},
	} {
		if got := median(c.values); got != c.want {
			t.Errorf("median of %v: %v, want %v", c.values, got, c.want)
		}
	}
}

func TestRatioComparesWithinARound(t *testing.T) {
	// The machine is ten times as fast in the second round, which does not change the ratio of the
	// rows.
	a := &Row{Samples: []Sample{{Requests: 20, Seconds: 1}, {Requests: 200, Seconds: 1}, {Requests: 20, Seconds: 1}}}
	b := &Row{Samples: []Sample{{Requests: 10, Seconds: 1}, {Requests: 100, Seconds: 1}, {Requests: 5, Seconds: 1}}}
	if got := ratio(a, b, perSecond, perSecond); got != 2 {
		t.Errorf("ratio %v, want 2", got)
	}
}

func TestARowThatFailedIsNoRow(t *testing.T) {
	r := &Report{
		Rows: []*Row{{Workload: "w", Name: "n", Samples: []Sample{{}}, Fault: "broken"}, {Workload: "w", Name: "m"}},
	}
	if r.row("w", "n") != nil || r.row("w", "m") != nil {
		t.Error("a row without figures, or with doubtful ones, is used")
	}
	if r.failed() == nil {
		t.Error("the run did not fail")
	}
}
