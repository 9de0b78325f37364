package interleave

import (
	"flag"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/proof"
)

var onePath = flag.String("path", "", "run only the path with these choices, and print it")

// next returns the choices of the path after p; nil: it was the last one.
func next(p *path) []int {
	for i := len(p.taken) - 1; i >= 0; i-- {
		if p.taken[i]+1 < p.widths[i] {
			return append(p.taken[:i:i], p.taken[i]+1)
		}
	}
	return nil
}

// search runs all paths of a scope, or the given one.
func search(t *testing.T, s scope) {
	s.name = t.Name()
	if !proof.Asked() {
		s.faults, s.least = s.faults-1, s.least/20
	}
	w := newWire(t)
	if *onePath != "" {
		var choices []int
		for _, word := range strings.Split(*onePath, ".") {
			n, _ := strconv.Atoi(word)
			choices = append(choices, n)
		}
		p := run(t, &s, w, choices)
		t.Log("\n" + p.text())
		if len(p.failures) > 0 {
			t.Fail()
		}
		return
	}
	paths, began := 0, time.Now()
	for choices := []int{}; choices != nil; {
		p := run(t, &s, w, choices)
		if paths++; len(p.failures) > 0 {
			t.Fatalf("path %d:\n%s", paths, p.text())
		}
		choices = next(p)
	}
	t.Logf("%d paths in %v", paths, time.Since(began).Round(ms))
	if paths < s.least {
		t.Errorf("only %d paths", paths)
	}
}

// Two sets share a limiter, and a caller of the first one leaves after 10 ms.
func TestTwoSetsThatShareALimiter(t *testing.T) {
	search(t, scope{
		limiters: []limiter{{1, 100 * ms, 0}, {1, 100 * ms, 0}, {1, 200 * ms, 0}},
		callers: []caller{
			{method: "AcquireAll", of: []int{0, 1}, n: []int64{1, 1}, leaves: true},
			{method: "AcquireAll", of: []int{0, 2}, n: []int64{1, 1}},
			{method: "TryAcquireAllTimeout", of: []int{0, 1}, n: []int64{1, 1}, timeout: 10 * ms},
		},
		moments: []time.Duration{12 * ms, 110 * ms}, faults: 2, least: 2500,
	})
}

// A set waits long for one of its limiters, and single callers want what it leaves them of the
// other.
func TestASetAndASingleCaller(t *testing.T) {
	search(t, scope{
		limiters: []limiter{{10, 100 * ms, 0}, {5, 1000 * ms, 0}},
		callers: []caller{
			{method: "TryAcquire", of: []int{1}, n: []int64{5}, first: true},
			{method: "AcquireAllN", of: []int{0, 1}, n: []int64{5, 5}, leaves: true},
			{method: "Acquire", of: []int{0}, n: []int64{8}},
			{method: "TryAcquireTimeout", of: []int{0}, n: []int64{8}, timeout: 150 * ms},
		},
		moments: []time.Duration{12 * ms, 60 * ms, 110 * ms}, faults: 2, least: 7000,
	})
}

// Callers come while the process has a lease of one of their limiters. A waiting set ends the
// lease.
func TestALeaseBesideASet(t *testing.T) {
	search(t, scope{
		limiters: []limiter{{40, 200 * ms, 20 * ms}, {40, 100 * ms, 0}},
		callers: []caller{
			{method: "Allow", of: []int{0}, n: []int64{3}, first: true},
			{method: "Allow", of: []int{0}, n: []int64{1}},
			{method: "AllowAllN", of: []int{0, 1}, n: []int64{2, 1}},
			{method: "AcquireAllN", of: []int{0, 1}, n: []int64{36, 1}, leaves: true},
		},
		moments: []time.Duration{15 * ms, 210 * ms}, faults: 2, least: 4000,
	})
}

// The rate is changed while a call brings the next lease.
func TestAChangeWhileALeaseIsRenewed(t *testing.T) {
	search(t, scope{
		limiters: []limiter{{40, 200 * ms, 20 * ms}},
		callers: []caller{
			{method: "Allow", of: []int{0}, n: []int64{3}, first: true},
			{method: "Allow", of: []int{0}, n: []int64{1}},
			{method: "SetRate", of: []int{0}, n: []int64{20}, leaves: true},
			{method: "Allow", of: []int{0}, n: []int64{19}},
		},
		moments: []time.Duration{18 * ms, 40 * ms}, faults: 2, least: 3500,
	})
}
