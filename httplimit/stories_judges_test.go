package httplimit

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// stories_judges_test.go judges what became of the requests of a story.

// obey asks as a client that obeys Retry-After, while nobody else asks.
func (p *play) obey() {
	e := p.ask(step{})
	if e.code != 429 || e.d.Err != nil {
		return
	}
	least := e.d.RetryAfter() - p.jitter         // a request that would wait for less asks Redis
	above := p.shared && p.cost > p.rate.Permits // an error of the configuration, which Redis finds
	if p.cache > 0 && p.other.Permits == 0 && least > p.wait && !p.faulty && !p.settles() && !above {
		p.ask(step{}) // learns of the penalty
		before := p.calls.add(0)
		last := p.ask(step{})
		if made := p.calls.add(0) - before; made > 0 && last.code == 429 {
			p.wrong("a refusal that the deny cache knows made %d calls", made)
		}
		e = last
	}
	if e.code != 429 || e.d.RetryAfter() == 0 {
		return
	}
	time.Sleep(e.d.RetryAfter())
	again := p.ask(step{})
	if again.code != 429 || again.d.Err != nil {
		return
	}
	for _, name := range again.d.Refused() {
		// during a penalty, the other limits are not asked; what a process granted while Redis was
		// away, Redis does not know; what an earlier request cost can be counted late, after a
		// failure
		asked := slices.ContainsFunc(e.d.Answers, func(a Answer) bool { return a.Name == name })
		late := p.settles() && p.away(e.decided)
		if asked && !late && !(p.faulty && p.fallback) {
			p.wrong("a client that obeyed Retry-After of %v is refused again at %v by %s, Retry-After %v",
				e.d.RetryAfter(), again.came, name, again.d.RetryAfter())
		}
	}
}

// settles reports whether the permits of the limit depend on the response.
func (s story) settles() bool { return s.countIf || s.after >= 0 }

// invalid reports whether the options of the limit do not go together.
func (s story) invalid() bool { return s.shared && s.penalty > 0 && s.settles() }

// rateOf returns the rate of a limit.
func (p *play) rateOf(name string) rratelimiter.Rate {
	switch name {
	case "other":
		return p.other
	case "anonymous":
		return p.anonymous
	}
	return p.rate
}

// applies returns the names of the limits that apply to a request, in their order.
func (p *play) applies(e *event) (names []string) {
	switch {
	case e.who == anonymous && !p.shared:
		if p.anonymous.Permits > 0 {
			names = append(names, "anonymous")
		}
	case p.zero && p.after < 0:
	case p.shared || e.who == known || !p.perFunc:
		names = append(names, "main")
	}
	if p.other.Permits > 0 {
		names = append(names, "other")
	}
	return names
}

// failed reports whether Redis has failed from one time to another.
func (p *play) failed(from, to time.Duration) bool {
	return slices.ContainsFunc(p.failures, func(at time.Duration) bool { return from <= at && at <= to })
}

// away reports whether Redis has failed so lately that calls are still repeated, or not made.
func (p *play) away(at time.Duration) bool { return p.failed(at-3*time.Second, at) }

// until returns when a permit that was granted at a time is free again. A record has the time of
// its grant, rounded up to a whole ms if the interval is at least 200 ms. A call that takes a lease
// dates all its permits ahead, by up to 1.25 times the lease. Permits that a process grants within
// a tenth of the interval while Redis is away return together.
func (p *play) until(granted time.Duration, name string) time.Duration {
	interval := p.rateOf(name).Interval
	if name == "main" {
		granted += p.lease * 5 / 4
	}
	if name == "main" && p.fallback && p.faulty {
		granted += interval / 10
	}
	return wholeMs(granted, interval) + interval
}

func wholeMs(granted, interval time.Duration) time.Duration {
	if interval >= 200*time.Millisecond {
		granted = (granted + time.Millisecond - 1).Truncate(time.Millisecond)
	}
	return granted
}

// cost returns what a request costs a limit in the end.
func (p *play) final(e *event, a Answer) int64 {
	switch {
	case a.Name != "main":
		return a.Permits
	case p.countIf && !e.fails:
		return 0
	case p.after >= 0:
		return p.after
	}
	return a.Permits
}

// taken returns the permits that an event holds at least and at most at a time, and those that have
// counted by then.
func (p *play) taken(e *event, name string, at time.Duration) (least, most, counted int64) {
	for _, a := range e.d.Answers {
		if a.Name != name || !a.Allowed || e.decided > at {
			continue
		}
		final := min(p.final(e, a), a.Permits) // charged has the rest
		settled := e.settled > 0 && e.settled <= at
		if at < p.until(e.decided, name) {
			least, most = min(a.Permits, final), a.Permits
			// what is given back at this moment, or while Redis may be away, may still be taken
			if e.settled > 0 && e.settled < at && !p.away(e.settled) {
				most = least
			}
		}
		last := e.settled // when what was taken after the response was taken
		if p.away(e.settled) {
			last += correcting
		}
		if settled && at < p.until(last, name) {
			counted = final
		}
		if !p.settles() || p.away(e.settled) {
			counted = max(counted, most)
		}
	}
	return least, most, counted
}

func (p *play) sums(except *event, name string, at time.Duration) (most, counted int64) {
	for _, e := range p.events {
		if e != except {
			_, m, c := p.taken(e, name, at)
			most, counted = most+m, counted+c
		}
	}
	for _, from := range p.charged(name, at, false) {
		if at < p.until(from, name) {
			most++
		}
	}
	for _, from := range p.charged(name, at, true) {
		if at < p.until(from, name) {
			counted++
		}
	}
	return most, counted
}

// charged returns from when on the permits count that are charged up to a time, at the latest: from
// when a caller that waits would have had each, and up to an eighth of the interval later.
// forPenalty: at the limiter that the penalty asks, which learns of a request when it is over.
func (p *play) charged(name string, at time.Duration, forPenalty bool) (charged []time.Duration) {
	if name != "main" || p.after < 0 {
		return nil
	}
	type change struct {
		at      time.Duration
		permits int64
		charge  bool
	}
	var changes []change
	for _, e := range p.events {
		for _, a := range e.d.Answers {
			if a.Name != name || !a.Allowed || e.d.Err != nil {
				continue
			}
			final, early, over := p.final(e, a), max(0, p.told-a.Permits), e.settled
			if p.away(over) {
				over += correcting
			}
			if forPenalty {
				early = 0
				changes = append(changes, change{over, min(final, a.Permits), false})
			} else {
				changes = append(changes, change{e.decided, a.Permits, false}, change{e.decided, early, true})
			}
			changes = append(changes, change{over, max(0, final-a.Permits-early), true})
		}
	}
	slices.SortFunc(changes, func(a, b change) int {
		if a.at == b.at && a.charge != b.charge { // what was granted fits beside what was charged before
			return map[bool]int{false: -1, true: 1}[a.charge]
		}
		return cmp.Compare(a.at, b.at)
	})
	var all []time.Duration // from when on each permit counts
	for _, c := range changes {
		for range c.permits {
			from := c.at
			if c.charge {
				if before := len(all) - int(p.rate.Permits); before >= 0 {
					if free := p.until(all[before], name); free > from {
						from = free + p.rate.Interval/8
					}
				}
				if c.at <= at+correcting {
					charged = append(charged, from)
				}
			}
			place, _ := slices.BinarySearch(all, from)
			all = slices.Insert(all, place, from)
		}
	}
	return charged
}

func (p *play) judge() {
	for _, name := range []string{"main", "other", "anonymous"} {
		p.window(name)
	}
	for _, e := range p.events {
		p.reports(e)
		p.fields(e)
		if p.invalid() && slices.Contains(p.applies(e), "main") {
			p.refusesOptions(e)
			continue
		}
		p.answers(e)
		if e.d.Err != nil && !p.faulty {
			p.wrong("at %v: %v", e.came, e.d.Err)
		}
		if e.d.Err != nil {
			continue
		}
		if e.code == 429 && len(e.d.Refused()) == 0 {
			p.wrong("at %v: a refusal names no limit", e.came)
		}
		for _, a := range e.d.Answers {
			if a.Refused && e.d.Outcome != DeniedLocally && e.d.Outcome != ShadowedLocally {
				p.explain(e, a)
				p.banned(e, a)
			}
		}
	}
}

// window judges that no window has more than the rate, and as much again that the process granted
// while Redis was away.
func (p *play) window(name string) {
	rate := p.rateOf(name)
	if rate.Interval == 0 {
		return
	}
	var grants []window.Grant
	for _, e := range p.events {
		if least, _, _ := p.taken(e, name, e.decided); least > 0 && e.d.Err == nil {
			from, to := p.began.Add(e.decided), p.began.Add(e.decided)
			if p.failed(e.came, e.decided) { // the reply to an earlier attempt may be lost
				from = p.began.Add(e.came)
			}
			grants = append(grants, window.Grant{Permits: least, Start: from, End: to})
		}
	}
	bound := rate.Permits
	if name == "main" && p.fallback && p.faulty {
		bound *= 2
	}
	if most, at := window.Largest(grants, rate.Interval); most > bound {
		p.wrong("%d permits of %s in a window from %v: %v", most, name, at.Sub(p.began), rate)
	}
}

// reports judges what the observer and the callbacks of the policy were told.
func (p *play) reports(e *event) {
	if told := len(e.told); told > 1 || told == 0 && (p.observer || len(p.applies(e)) > 0) {
		p.wrong("at %v: the observer was told %d decisions", e.came, told)
	}
	for _, info := range e.told {
		if info.Policy != "story" || info.Outcome != e.d.Outcome.String() || info.Err != e.d.Err {
			p.wrong("at %v: the observer was told %+v of %v, %v", e.came, info, e.d.Outcome, e.d.Err)
		}
	}
	if denied := len(e.d.Refused()) > 0 || e.d.Outcome == FailedClosed; denied != (e.denied == 1) || e.denied > 1 {
		p.wrong("at %v: %d calls of OnDeny for %v by %v", e.came, e.denied, e.d.Outcome, e.d.Refused())
	}
	for _, err := range e.errs {
		above := errors.Is(err, rratelimiter.ErrExceedsRate) && p.cost > p.rate.Permits
		options := errors.Is(err, rratelimiter.ErrInvalidOption) && p.invalid()
		if !above && !options && !p.faulty {
			p.wrong("at %v: an error was reported: %v", e.came, err)
		}
	}
	if above := p.cost > p.rate.Permits && p.rate.Permits > 0; above && len(e.errs) == 0 && !p.faulty &&
		slices.ContainsFunc(e.d.Answers, func(a Answer) bool { return a.Name == "main" && a.Allowed }) {
		p.wrong("at %v: %d permits were asked for, and no error was reported", e.came, p.cost)
	}
}

// refusesOptions judges a request whose limit has options that do not go together.
func (p *play) refusesOptions(e *event) {
	if !slices.ContainsFunc(e.errs, func(err error) bool { return errors.Is(err, rratelimiter.ErrInvalidOption) }) &&
		!(p.limitShadow && !e.d.Outcome.Passed()) { // a limit in shadow is asked after the others
		p.wrong("at %v: no ErrInvalidOption, but %v, %v", e.came, e.d.Outcome, e.errs)
	}
	if slices.ContainsFunc(e.d.Answers, func(a Answer) bool { return a.Name == "main" }) {
		p.wrong("at %v: a limit whose options do not go together answers: %v", e.came, e.d.Outcome)
	}
}

// answers judges which limits decided on a request.
func (p *play) answers(e *event) {
	applies := p.applies(e)
	var names []string
	for _, a := range e.d.Answers {
		names = append(names, a.Name)
	}
	slices.Sort(names) // limits in shadow are asked last
	all := slices.Sorted(slices.Values(applies))
	switch {
	case slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(all, name) }):
		p.wrong("at %v: %v decided, and %v apply", e.came, names, all)
	case (e.d.Outcome == Unlimited) != (len(all) == 0):
		p.wrong("at %v: %v, and %v apply", e.came, e.d.Outcome, all)
	case e.d.Outcome == Allowed && !slices.Equal(names, all):
		p.wrong("at %v: allowed by %v, and %v apply", e.came, names, all)
	}
}

var item = regexp.MustCompile(`"([^"]*)"((?:;[a-z]+=[^,;]*)*)`)

// items returns the items of a list in the header, with their parameters.
func items(list []string) map[string]map[string]string {
	all := map[string]map[string]string{}
	for _, m := range item.FindAllStringSubmatch(strings.Join(list, ","), -1) {
		all[m[1]] = map[string]string{}
		for _, parameter := range strings.Split(m[2], ";")[1:] {
			name, value, _ := strings.Cut(parameter, "=")
			all[m[1]][name] = strings.Trim(value, `"`)
		}
	}
	return all
}

// seconds is how many seconds the header tells for a time. A rest of 1 ms is dropped.
func seconds(d time.Duration) int64 {
	return max(1, int64(math.Ceil((d - time.Millisecond).Seconds())))
}

// fields judges the fields of the response.
func (p *play) fields(e *event) {
	policies, limits := items(e.header[fieldPolicy]), items(e.header[fieldLimit])
	if p.shadow || len(e.d.Answers) == 0 {
		if len(policies)+len(limits) > 0 {
			p.wrong("at %v: %v and %v of %v", e.came, policies, limits, e.d.Outcome)
		}
		return
	}
	longest := int64(0)
	for _, a := range e.d.Answers {
		if a.Name == "main" && p.limitShadow {
			if policies["main"] != nil || limits["main"] != nil {
				p.wrong("at %v: a limit in shadow has a field", e.came)
			}
			continue
		}
		rate, known := p.rateOf(a.Name), a.Name != "main" || !p.shared
		want := map[string]string{paramQuota: fmt.Sprint(rate.Permits)}
		if local := e.d.Outcome == AllowedLocally || e.d.Outcome == DeniedLocally; local ||
			a.Name == "main" && p.shared {
			// the share of this process, or 0 if the limiter did not tell its rate
			want[paramQuota] = fmt.Sprint(a.Limit)
		}
		if known {
			want[paramTime] = fmt.Sprint(int64(rate.Interval.Seconds()))
		}
		if a.Name == "main" && p.unit != "" {
			want[paramUnit] = p.unit
		}
		if got := policies[a.Name]; fmt.Sprint(got) != fmt.Sprint(want) {
			p.wrong("at %v: RateLimit-Policy of %s has %v, want %v", e.came, a.Name, got, want)
		}
		got := limits[a.Name]
		if (got != nil) != (a.Refused || e.d.Outcome.Passed()) {
			p.wrong("at %v: RateLimit of %s has %v after %v", e.came, a.Name, got, e.d.Outcome)
		}
		t, err := strconv.ParseInt(got[paramMore], 10, 64)
		switch {
		case a.Refused && a.RetryAfter > 0 && (err != nil || t != seconds(a.RetryAfter)):
			p.wrong("at %v: t of %s is %d s, and its time is %v", e.came, a.Name, t, a.RetryAfter)
		case a.Refused && a.RetryAfter == 0 && got[paramMore] != "":
			p.wrong("at %v: t of %s is %d s, and it can never pass", e.came, a.Name, t)
		case !a.Refused && t > seconds(p.until(0, a.Name)):
			p.wrong("at %v: t of %s is %d s, longer than the interval", e.came, a.Name, t)
		}
		if a.Refused {
			longest = max(longest, t)
		}
	}
	if e.code != 429 {
		return
	}
	want := ""
	if longest > 0 {
		want = fmt.Sprint(longest)
	}
	if after := e.header.Get("Retry-After"); after != want {
		p.wrong("at %v: Retry-After is %q, and the longest t %q", e.came, after, want)
	}
}

// explain judges a refusal.
func (p *play) explain(e *event, a Answer) {
	rate := p.rateOf(a.Name)
	if rate.Permits == 0 {
		return
	}
	most, _ := p.sums(e, a.Name, e.decided)
	waiting, soon := false, int64(0) // soon: of most, what is not back shortly before the end of the wait
	// one call cannot check limits of which one is asked for more than its rate: a request then
	// takes the permits of the first limit for a moment
	apart := (p.shared && p.cost > p.rate.Permits || p.zero) && p.other.Permits > 0
	for _, o := range p.events {
		waiting = waiting || o != e && o.came <= e.decided && (o.decided > e.decided || apart && o.decided == e.decided)
		if o != e && o.decided <= e.decided {
			_, n, _ := p.taken(o, a.Name, e.decided+p.wait-time.Millisecond)
			soon += n
		}
	}
	penalized := func(latest time.Duration) bool { return a.Name == "main" && p.penalizedBy(e, latest) }
	// a request of several limits can be refused by one after another one's penalty has begun
	atOnce := e.decided == e.came && p.wait > 0 && p.other.Permits == 0 && !p.shadow && !p.limitShadow
	switch {
	case waiting: // permits are kept for requests that wait, or taken by one that another limit refuses
	case a.Name == "main" && p.lease > 0 && most > 0: // how much a lease has taken ahead is not told
	case most+a.needs() <= rate.Permits && !penalized(e.decided):
		p.wrong("at %v: %s refused %d permits: %d of %d are taken, and no penalty follows from what counted",
			e.decided, a.Name, a.Permits, most, rate.Permits)
	case soon+a.needs() <= rate.Permits && atOnce && !p.settles() && !p.faulty && !penalized(e.came-1):
		p.wrong("at %v: %s refused %d permits at once, which are free within the wait of %v",
			e.decided, a.Name, a.Permits, p.wait)
	}
}

// penalizedBy reports whether a refusal in the end that follows from what counted, and was decided
// at a time at the latest, has begun a penalty.
func (p *play) penalizedBy(e *event, latest time.Duration) bool {
	for _, o := range p.events {
		for _, a := range o.d.Answers {
			if o == e || p.penalty == 0 || a.Name != "main" || !a.Refused || o.d.Err != nil || o.decided > latest ||
				e.came > wholeMs(o.decided, p.penalty)+p.penalty {
				continue
			}
			_, counted := p.sums(o, "main", o.decided)
			if p.lease > 0 || !p.settles() || counted+a.needs() > p.rate.Permits {
				return true
			}
		}
	}
	return false
}

// banned judges that a refusal of a limit with a penalty, all of whose permits count, begins it:
// the limit refuses each request that comes during the penalty.
func (p *play) banned(o *event, a Answer) {
	if a.Name != "main" || p.penalty == 0 || p.settles() || p.faulty || a.RetryAfter == 0 ||
		p.penalizedBy(o, o.decided-1) { // a refusal during a penalty does not extend it
		return
	}
	for _, e := range p.events {
		if e.came <= o.decided || e.came >= o.decided+p.penalty || !slices.Contains(p.applies(e), "main") {
			continue
		}
		refused := slices.Contains(e.d.Refused(), "main")
		if !refused && !(p.limitShadow && e.d.Outcome == Denied) { // a limit in shadow is asked last
			p.wrong("at %v: %v during a penalty of %v from %v on", e.came, e.d.Outcome, p.penalty, o.decided)
		}
	}
}
