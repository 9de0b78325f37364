package options

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// A judge returns what in a story breaks a promise.
type judge struct {
	promise string
	judge   func(tr *trace) []string
}

var judges = []judge{
	{"no call panics", each(neverPanics)},
	{"no window holds more than the rate", windows},
	{"what was told was taken, and what was not told was not", sums},
	{"a call ends as its method says", each(endsAsDocumented)},
	{"a caller leaves when its time is over", each(leavesInTime)},
	{"what can be served is not refused", each(notRefused)},
	{"a waiting caller is served when its permits are free and its turn has come", each(servedInTurn)},
	{"limiters without a common slot waste no permits while a caller waits", each(wastesNothing)},
	{"a caller with a timeout is not sent away if it would be served in time", each(notSentAway)},
	{"a caller that is to fail fast does not wait in vain", each(failsFast)},
	{"a limiter does not disappear while a caller waits for it", each(staysThere)},
	{"a client that obeys RetryAfter passes if nobody else asks", each(obeys)},
	{"a result tells which limiter refused", each(tellsWhich)},
	{"an error names the limiter", each(names)},
}

// each makes a judge of single calls.
func each(judge func(tr *trace, c *call) string) func(tr *trace) []string {
	return func(tr *trace) (faults []string) {
		for _, c := range tr.calls {
			if c.panicked != nil && c.last == 0 {
				continue
			}
			if text := judge(tr, c); text != "" {
				faults = append(faults, fmt.Sprintf("%v\n\t%s", c, text))
			}
		}
		return faults
	}
}

func neverPanics(_ *trace, c *call) string {
	if c.panicked != nil {
		return "it panicked"
	}
	return ""
}

func windows(tr *trace) (faults []string) {
	for i, l := range tr.limiters {
		tick := ms
		if l.rate.Interval < 200*ms && !slices.Contains(tr.client, "WithClock") &&
			l.format != rratelimiter.Redisson313 {
			tick = time.Microsecond
		}
		var grants []window.Grant
		for _, c := range tr.calls {
			for at, of := range c.of {
				if of == i && c.granted[at] <= l.rate.Permits && !c.charges() {
					grants = append(grants, window.Grant{
						Permits: c.granted[at], Start: time.Unix(0, int64(c.start)), End: time.Unix(0, int64(c.end)),
					})
				}
			}
		}
		most := l.rate.Permits
		if l.has("WithFallback") && tr.outage() {
			most += max(int64(l.fraction*float64(most)), 1)
		}
		if n, at := window.LargestAt(grants, l.rate.Interval, tick); n > most {
			from := time.Duration(at.UnixNano())
			faults = append(faults, fmt.Sprintf("limiter %d: %d permits in the window from %v", i, n, from))
		}
		for _, e := range tr.events {
			sum := int64(0)
			for _, r := range e.records[i] {
				if r.until > e.at {
					sum += r.n
				}
			}
			if sum > l.rate.Permits*(1+tr.debt(i)) {
				faults = append(faults, fmt.Sprintf("limiter %d: records with %d permits at %v", i, sum, e.at))
				break
			}
		}
	}
	return faults
}

// debt returns how many intervals' permits of a limiter the story may owe.
func (tr *trace) debt(limiter int) int64 {
	charged := slices.ContainsFunc(tr.asks, func(a ask) bool { return a.charges() && slices.Contains(a.of, limiter) })
	switch l := &tr.limiters[limiter]; {
	case !charged:
		return 0
	case l.has("WithMaxDebt"):
		return int64(l.debt)
	}
	return 10
}

// outage reports whether the process may decide at a time of the story.
func (tr *trace) outage() bool {
	for _, f := range tr.faults {
		if f.kind != late || f.d >= 400*ms {
			return true
		}
	}
	return false
}

func sums(tr *trace) (faults []string) {
	for i, l := range tr.limiters {
		told, unknown, bound := int64(0), int64(0), false
		// taken has more than was told: a lease; a retry that dates all permits of a period anew;
		// and permits that were given back, because another limiter refused
		more := l.has("WithLease") ||
			l.has("WithGranularity") && slices.ContainsFunc(tr.faults, func(f fault) bool { return f.kind == lost })
		for _, c := range tr.calls {
			more = more || tr.apart(c) && slices.Contains(c.of, i)
			for at, of := range c.of {
				if of != i {
					continue
				}
				told += c.granted[at]
				bound = bound || c.bound
				var partly *rratelimiter.PartlyTakenError
				if errors.As(c.err, &partly) {
					told += partly.Taken
				}
				if errors.Is(c.err, rratelimiter.ErrOutcomeUnknown) {
					unknown += c.n[at]
				}
			}
		}
		if told > tr.taken[i] && !bound && !(l.has("WithFallback") && tr.outage()) {
			faults = append(faults, fmt.Sprintf("limiter %d: %d permits were told, %d taken", i, told, tr.taken[i]))
		}
		if tr.taken[i] > told+unknown && !more {
			faults = append(faults,
				fmt.Sprintf("limiter %d: %d permits were taken, %d told", i, tr.taken[i], told+unknown))
		}
	}
	return faults
}

// above returns the index of a limiter of a call whose rate is less than the permits wanted; -1 if
// there is none.
func (tr *trace) above(c *call) int {
	if c.upTo() || c.charges() {
		return -1
	}
	for i, of := range c.of {
		l := &tr.limiters[of]
		if c.n[i] > l.rate.Permits && !(c.method == "Acquire" && l.has("WithInstalments") && l.rate.Permits > 0) {
			return i
		}
	}
	return -1
}

// behindInstalments reports whether a caller that takes its permits in instalments is in front of a
// call.
func (tr *trace) behindInstalments(c *call) bool {
	return slices.ContainsFunc(tr.calls, func(front *call) bool {
		return front.method == "Acquire" && front.first < c.first && front.last > c.first &&
			slices.Contains(c.of, front.of[0]) && tr.limiters[front.of[0]].has("WithInstalments")
	})
}

func endsAsDocumented(tr *trace, c *call) string {
	exempt := tr.exempt(c.start, c.end)
	invalid := slices.Min(c.n) < 1 && !c.charges()
	switch above := tr.above(c) >= 0; {
	case exempt && c.err != nil && !invalid:
		return ""
	case c.deadline > 0 && c.end >= c.start+c.deadline && errors.Is(c.err, context.DeadlineExceeded):
		return ""
	case invalid != errors.Is(c.err, rratelimiter.ErrInvalidPermits):
		return "ErrInvalidPermits is for fewer than one permit"
	case invalid:
		return ""
	case above && (c.refused() && c.timedOut() || tr.apart(c) && (c.refused() || c.cancelled) ||
		c.cancelled && tr.behindInstalments(c)):
		return "" // no reply has come yet, or another limiter was asked before
	case above && !errors.Is(c.err, rratelimiter.ErrExceedsRate) && !exempt,
		!above && errors.Is(c.err, rratelimiter.ErrExceedsRate):
		if errors.Is(c.err, rratelimiter.ErrNotInitialized) {
			return "" // see staysThere
		}
		return "ErrExceedsRate is for more permits than the rate"
	case above && c.end > c.start+tr.slack(c) && !tr.apart(c) && !tr.behindInstalments(c):
		return "more permits than the rate are refused at once"
	}
	var late *rratelimiter.NotInTimeError
	switch {
	case c.err == nil:
		if (c.method == "Acquire" || c.method == "AcquireAllN") && !c.allowed {
			return "it has no permits and no error"
		}
	case errors.Is(c.err, rratelimiter.ErrExceedsRate):
	case errors.Is(c.err, rratelimiter.ErrNotInitialized):
	case errors.Is(c.err, context.Canceled):
		if !c.cancelled {
			return "its context was not cancelled"
		}
	case errors.Is(c.err, context.DeadlineExceeded):
		if c.deadline == 0 || c.end < c.start+c.deadline {
			return "its context has not ended"
		}
	case errors.As(c.err, &late):
		if !slices.ContainsFunc(c.of, func(of int) bool { return tr.limiters[of].has("WithFailFast") }) ||
			c.deadline == 0 {
			return "it was not to fail fast"
		}
		if c.limit > 0 {
			return "a method with a timeout returns false"
		}
	default:
		return "no fault was near"
	}
	return ""
}

func leavesInTime(tr *trace, c *call) string {
	last := never
	switch {
	case !c.waits():
		last = c.start
	case c.until() > 0:
		last = c.start + c.until()
	}
	if last != never && c.end > last+tr.slack(c) && !tr.exempt(c.start, c.end) {
		return fmt.Sprintf("it ended %v late", c.end-last)
	}
	return ""
}

// timedOut reports whether the timeout of a call was over when it ended.
func (c *call) timedOut() bool { return c.limit > 0 && c.end >= c.start+c.limit }

// refused reports whether a call was refused, and not because of an error.
func (c *call) refused() bool { return c.err == nil && !c.allowed }

func notRefused(tr *trace, c *call) string {
	if c.waits() || !c.refused() || tr.exempt(c.start, c.end) {
		return ""
	}
	for _, s := range tr.spans(c.first, c.last) {
		if !tr.could(&s, c) {
			return ""
		}
	}
	return "its permits were free all the time, and not kept for callers in front"
}

func servedInTurn(tr *trace, c *call) string {
	if tr.apart(c) {
		return ""
	}
	return served(tr, c)
}

func wastesNothing(tr *trace, c *call) string {
	if !tr.apart(c) {
		return ""
	}
	return served(tr, c)
}

// served judges that a waiting caller is served as soon as that is possible.
func served(tr *trace, c *call) string {
	if !c.waits() || tr.above(c) >= 0 || slices.Min(c.n) < 1 || tr.exempt(c.start, c.start) {
		return ""
	}
	for i, of := range c.of {
		if c.n[i] > tr.limiters[of].rate.Permits {
			return "" // instalments
		}
	}
	since, possible := time.Duration(0), false
	for _, s := range tr.spans(c.first, c.last) {
		switch can := tr.could(&s, c) && !tr.exempt(s.from, s.to); {
		case can && !possible:
			since, possible = s.from, true
		case !can:
			possible = false
		}
		tolerance := tr.slack(c)
		if tr.apart(c) { // it pauses for 5 to 10 ms, then for about twice as long, and so on
			tolerance += min(2*(since-c.start)+10*ms, 15*time.Second)
		}
		if possible && s.to > since+tolerance {
			return fmt.Sprintf("its permits were free from %v on, and its turn had come", since)
		}
	}
	if possible && c.refused() && !c.timedOut() && since == c.start {
		return "its permits were free all the time, and not kept for callers in front"
	}
	return ""
}

func notSentAway(tr *trace, c *call) string {
	var late *rratelimiter.NotInTimeError
	if !c.waits() || c.until() == 0 || c.timedOut() || tr.above(c) >= 0 ||
		!c.refused() && !errors.As(c.err, &late) || tr.exempt(c.start, c.end) {
		return ""
	}
	for _, s := range tr.spans(c.first, c.last) {
		if tr.inTurn(&s, c)+tr.slack(c) >= c.start+c.until() {
			return ""
		}
	}
	return "all the time it looked as if it would be served in time"
}

func failsFast(tr *trace, c *call) string {
	fast := slices.ContainsFunc(c.of, func(of int) bool { return tr.limiters[of].has("WithFailFast") })
	end := never
	if c.limit > 0 {
		end = c.start + c.limit
	}
	if fast && c.deadline > 0 {
		end = min(end, c.start+c.deadline)
	}
	judged := c.start + tr.slack(c)
	if tr.behindInstalments(c) {
		return "" // it is judged later
	}
	if !c.waits() || tr.apart(c) || end == never || c.end <= judged || end <= judged ||
		tr.exempt(c.start, judged) || errors.Is(c.err, rratelimiter.ErrNotInitialized) {
		return ""
	}
	for _, s := range tr.spans(c.first, c.last) {
		if s.from <= judged && tr.alone(&s, c) < end {
			return ""
		}
	}
	return "its permits could not be free in time, as the first reply showed"
}

func staysThere(tr *trace, c *call) string {
	if !errors.Is(c.err, rratelimiter.ErrNotInitialized) || tr.exempt(c.start, c.end) || tr.above(c) >= 0 {
		return ""
	}
	of := c.of[0]
	if i := slices.IndexFunc(c.of, func(of int) bool { return tr.isNamed(of, c.err) }); i >= 0 {
		of = c.of[i]
	}
	l := &tr.limiters[of]
	switch used := tr.used(of, c.end); {
	case l.rate.KeepAlive == 0:
		return "its limiter has no keep-alive"
	case c.end < used+l.rate.KeepAlive:
		return fmt.Sprintf("its limiter was used at %v", used)
	case c.end > c.start+tr.slack(c) &&
		(!tr.apart(c) || c.start+tr.slack(c) < tr.used(of, c.start)+l.rate.KeepAlive):
		return "it was there, and the call has waited"
	}
	return ""
}

// used returns when Redis has last granted permits of a limiter, at the earliest; 0: its rate was
// set then.
func (tr *trace) used(of int, before time.Duration) (last time.Duration) {
	if l := &tr.limiters[of]; l.has("WithLease") || l.has("WithFallback") && tr.outage() {
		return 0 // the process may have granted them
	}
	for _, c := range tr.calls {
		if i := slices.Index(c.of, of); i >= 0 && c.granted[i] > 0 && !c.bound && c.end <= before {
			last = max(last, c.start)
		}
	}
	return last
}

func obeys(tr *trace, c *call) string {
	again := c.again
	if again == nil || !again.refused() || tr.exempt(c.start, again.end) {
		return ""
	}
	for _, other := range tr.calls {
		if other != c && other != again && other.last > c.first && other.first < again.last &&
			other.wants(c.of[0]) > 0 {
			return ""
		}
		// the deny cache tells when the permits of a smaller request are free
		if tr.limiters[c.of[0]].has("WithDenyCache") && other.first < c.first && other.wants(c.of[0]) > 0 &&
			(other.wants(c.of[0]) < c.n[0] || other.charges()) {
			return ""
		}
	}
	return fmt.Sprintf("refused again at %v", again.end)
}

func tellsWhich(tr *trace, c *call) string {
	if c.results == nil || c.err != nil {
		return ""
	}
	if len(c.results) != len(c.of) {
		return fmt.Sprintf("%d results for %d limiters", len(c.results), len(c.of))
	}
	refused := 0
	for i, r := range c.results {
		if r.Allowed != c.allowed {
			return "some are allowed, and some are not"
		}
		if r.RetryAfter > 0 {
			refused++
		}
		if tr.apart(c) || c.allowed || c.end > c.start || tr.exempt(c.start, c.end) {
			continue
		}
		one := &call{ask: ask{of: c.of[i : i+1], n: c.n[i : i+1]}, first: c.first}
		could := 0
		all := tr.spans(c.first, c.last)
		for _, s := range all {
			if len(s.waiting) > 0 {
				could = -1
				break
			}
			if tr.could(&s, one) {
				could++
			}
		}
		if could == len(all) && r.RetryAfter > 0 || could == 0 && r.RetryAfter == 0 {
			return fmt.Sprintf("RetryAfter of limiter %d is %v", c.of[i], r.RetryAfter)
		}
	}
	if c.allowed != (refused == 0) {
		return fmt.Sprintf("%d limiters refused", refused)
	}
	return ""
}

// isNamed reports whether an error names a limiter.
func (tr *trace) isNamed(of int, err error) bool {
	return strings.Contains(err.Error(), strconv.Quote(tr.name(of)))
}

func names(tr *trace, c *call) string {
	if c.err == nil || errors.Is(c.err, rratelimiter.ErrInvalidPermits) {
		return ""
	}
	if len(c.of) == 1 && !tr.isNamed(c.of[0], c.err) {
		return "the error does not name the limiter"
	}
	if errors.Is(c.err, rratelimiter.ErrExceedsRate) {
		for i, of := range c.of {
			if tr.isNamed(of, c.err) && c.n[i] > tr.limiters[of].rate.Permits {
				return ""
			}
		}
		return "the error names no limiter with a lower rate"
	}
	return ""
}
