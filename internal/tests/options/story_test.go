package options

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/rratelimiter/rratelimiter"
)

// A story is what happens to one to three limiters. It is data: the same story can be run again.
type story struct {
	oneStep  bool          // the names of the limiters have a common slot
	takes    time.Duration // what each reply takes
	client   []string      // options of the client
	limiters []settings
	asks     []ask // in the order of time
	faults   []fault
}

// An ask is one request.
type ask struct {
	at     time.Duration
	method string
	of     []int   // limiters
	n      []int64 // permits of each
	// the timeout of a method that has one, otherwise the deadline of the context; 0: none
	limit    time.Duration
	deadline time.Duration // of the context, beside a timeout; 0: none
}

// A fault is something that happens to the connection.
type fault struct {
	at    time.Duration
	kind  string
	d     time.Duration // how late replies are, or how long Redis is away
	lasts time.Duration // how long replies are late
}

const (
	late = "late" // replies are late
	lost = "lost" // the next reply is lost
	away = "away" // Redis refuses connections
)

func (s *story) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "one step: %v, a reply takes %v, client: %v\n", s.oneStep, s.takes, s.client)
	for i, l := range s.limiters {
		fmt.Fprintf(&b, "limiter %d: %v\n", i, l)
	}
	for _, f := range s.faults {
		fmt.Fprintf(&b, "%8v %s %v for %v\n", f.at, f.kind, f.d, f.lasts)
	}
	for i, a := range s.asks {
		fmt.Fprintf(&b, "%8v #%d %v\n", a.at, i, a)
	}
	return b.String()
}

func (a ask) String() string {
	parts := make([]string, len(a.of))
	for i := range a.of {
		parts[i] = fmt.Sprintf("%d:%d", a.of[i], a.n[i])
	}
	text := fmt.Sprintf("%s(%s)", a.method, strings.Join(parts, ", "))
	if a.limit > 0 {
		text += fmt.Sprintf(" for %v", a.limit)
	}
	if a.deadline > 0 {
		text += fmt.Sprintf(" deadline %v", a.deadline)
	}
	return text
}

func (s *story) name(limiter int) string {
	if s.oneStep {
		return fmt.Sprintf("{t}%c", 'a'+limiter)
	}
	return fmt.Sprintf("t%c", 'a'+limiter)
}

var (
	singles = []string{
		"Acquire", "TryAcquireTimeout", "TryAcquire", "Allow", "Allow, obey", "AcquireUpTo", "Take", "TakeUpTo", "Peek",
		"Acquire", "TryAcquireTimeout", "Acquire", "TryAcquireTimeout", "Charge",
	}
	together = []string{
		"AcquireAllN", "TryAcquireAllTimeout", "AllowAllN", "TakeAll", "AcquireAllN", "TryAcquireAllTimeout",
		"ChargeAll",
	}
)

// drawStory draws a story. It prefers requests that overlap, and values at edges.
func drawStory(t *rapid.T) *story {
	s := &story{oneStep: !chance(t, "slots", 2), takes: one(t, "reply", []time.Duration{0, ms, 0, 15 * ms})}
	intervals := []time.Duration{time.Second, 3 * time.Second, 30 * time.Second, 100 * ms}
	for range one(t, "limiters", []int{1, 2, 3, 2}) {
		rate := rratelimiter.Rate{
			Permits:  one(t, "rate", []int64{1, 10, 2, 3, 20, 1, 10, 2, 3, 0}),
			Interval: one(t, "interval", intervals),
		}
		if chance(t, "keep-alive", 2) {
			rate.KeepAlive = rate.Interval
		}
		s.limiters = append(s.limiters, drawOptions(t, rate, false))
	}
	names := slices.Sorted(func(yield func(string) bool) {
		for name := range clientRows {
			if !yield(name) {
				return
			}
		}
	})
	if chance(t, "client", 4) {
		s.client = append(s.client, one(t, "client option", names))
	}
	if s.byDefault() {
		for i := range s.limiters {
			s.limiters[i] = s.limiters[0]
		}
	}
	for i, l := range s.limiters {
		if chance(t, "used up", 4) {
			s.asks = append(s.asks, ask{method: "TryAcquire", of: []int{i}, n: []int64{max(l.rate.Permits, 1)}})
		}
	}
	at := time.Duration(0)
	for range one(t, "requests", []int{1, 2, 3, 4, 5, 6}) {
		pauses := []time.Duration{0, ms, 5 * ms, 20 * ms}
		if chance(t, "long pause", 4) {
			pauses = s.edges()
		}
		at += one(t, "pause", pauses)
		s.asks = append(s.asks, s.drawAsk(t, at))
	}
	for range one(t, "faults", []int{0, 1, 0, 2}) {
		f := fault{
			at:   one(t, "fault at request", s.asks).at,
			kind: one(t, "fault", []string{late, late, lost, away}),
		}
		if f.kind != lost {
			f.d = one(t, "fault for", []time.Duration{15 * ms, ms, 100 * ms})
		}
		if f.kind == late {
			f.lasts = one(t, "late for", []time.Duration{ms, time.Second, 10 * time.Second})
		}
		s.faults = append(s.faults, f)
	}
	return s
}

// byDefault reports whether the client has the options of its limiters, which are the same.
func (s *story) byDefault() bool { return slices.Contains(s.client, "WithLimiterDefaults") }

// edges returns durations and those at the edges of the intervals.
func (s *story) edges(more ...time.Duration) []time.Duration {
	for _, l := range s.limiters {
		i := l.rate.Interval
		more = append(more, i, i-ms, i+ms, i/2, 2*i+ms)
	}
	return more
}

func (s *story) drawAsk(t *rapid.T, at time.Duration) ask {
	a := ask{at: at}
	sizes := func(l *settings) int64 {
		r := l.rate.Permits
		all := []int64{1, r, r/2 + 1, max(r-1, 1)}
		if l.has("WithInstalments") {
			all = append(all, 10*r, 2*r+1, 2*r, r+1)
		}
		if chance(t, "beyond", 20) {
			all = []int64{r + 1, 0}
		}
		return one(t, "n", all)
	}
	if len(s.limiters) > 1 && chance(t, "set", 2) {
		a.method = one(t, "method", together)
		order := s.order(t)
		a.of = order[:len(order)-one(t, "without", indices(len(order)-1))]
	} else {
		a.method = one(t, "method", singles)
		a.of = []int{one(t, "limiter", indices(len(s.limiters)))}
		if s.limiters[a.of[0]].has("WithInstalments") && chance(t, "instalments", 2) {
			a.method = "Acquire" // the only one that takes them
		}
	}
	for _, i := range a.of {
		n := sizes(&s.limiters[i])
		if a.charges() {
			n += one(t, "debt", []int64{0, 1, 2}) * s.limiters[i].rate.Permits
		}
		a.n = append(a.n, n)
	}
	if a.method == "TryAcquireAllTimeout" {
		for i := range a.n {
			a.n[i] = a.n[0]
		}
	}
	switch limits := s.edges(2*time.Second, ms, 10*ms, 100*ms, 500*ms); a.method {
	case "TryAcquireTimeout", "TryAcquireAllTimeout":
		a.limit = one(t, "timeout", limits)
		if chance(t, "deadline too", 4) {
			a.deadline = one(t, "deadline", limits)
		}
	case "Acquire", "AcquireAllN":
		fast := slices.ContainsFunc(a.of, func(i int) bool { return s.limiters[i].has("WithFailFast") })
		if fast || chance(t, "with a deadline", 2) {
			a.deadline = one(t, "deadline", limits)
		}
	}
	return a
}

// order draws the limiters of a set in an order.
func (s *story) order(t *rapid.T) []int {
	order := indices(len(s.limiters))
	if chance(t, "backwards", 2) {
		slices.Reverse(order)
	}
	if at := one(t, "order", indices(len(order))); at > 1 {
		order[0], order[at] = order[at], order[0]
	}
	return order
}

// one draws one of some values, with the same chance for each, and shrinks to the first one.
func one[T any](t *rapid.T, what string, all []T) T {
	return all[rapid.IntRange(0, 1<<20).Draw(t, what)%len(all)]
}

// chance is true once in n times.
func chance(t *rapid.T, what string, n int) bool {
	return rapid.IntRange(0, 1<<20).Draw(t, what)%n == n-1
}

func indices(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// Waits reports whether a request waits for its permits.
func (a *ask) waits() bool {
	switch a.method {
	case "Acquire", "TryAcquireTimeout", "AcquireAllN", "TryAcquireAllTimeout":
		return true
	}
	return false
}

// Charges reports whether a request is never refused.
func (a *ask) charges() bool { return a.method == "Charge" || a.method == "ChargeAll" }

// UpTo reports whether a request takes what is free.
func (a *ask) upTo() bool { return a.method == "AcquireUpTo" || a.method == "TakeUpTo" }

// Until returns how long after its start a request may wait; 0: without end.
func (a *ask) until() time.Duration {
	switch {
	case a.limit == 0 || a.deadline > 0 && a.deadline < a.limit:
		return a.deadline
	}
	return a.limit
}
