package differential

import (
	"slices"
	"strconv"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

// rules_test.go is the list of all that differs on purpose.

// A comparison is one call, asked of Redisson and of this library in the same state.
type comparison struct {
	version string
	call    call
	now     int64 // ms
	before  state

	start  state // what Redisson is to find instead, as this library sees it
	asked  call  // what Redisson is asked instead
	wanted outcome
	took   time.Duration // from the first call to the end of the last
	ended  int64         // when that was, ms by the clock of life times
}

// A rule is one difference: what Redisson does, what this library does, and why. There are two kinds. With heals,
// Redisson must answer in a healed state what this library answers in the state as it is. With expects, what Redisson
// answered and left becomes what this library must answer and leave. Both tell whether they had anything to change.
type rule struct {
	name, java, here, why string

	heals   func(c *comparison) bool
	expects func(c *comparison) bool
}

// checked is up to how many live records a refusal adds up, and up to how many a negative value is checked.
const checked = 256

// walked is up to how many live records a wait is found exactly.
const walked = 512

// batch is how many expired records leave in one call of a script.
const batch = 2000

// leaving is how many expired records of the limiter leave in a call that is content with so many free permits, and how
// many permits are free then. A value that had to be healed needs all of them to leave.
func (c *comparison) leaving(enough int64) (count int, free int64) {
	p := c.start.pair()
	free, _ = p.number()
	healed := p.value != c.before.pairs[c.start.kind()].value
	for i, r := range p.records {
		if r.at > c.edge() || !healed && i > 0 && i%batch == 0 && free >= enough {
			break
		}
		free += r.permits
		count++
	}
	return count, free
}

// acquires tells whether a call reads the state of the limiter to take or count permits, and can.
func (c *comparison) acquires() bool {
	k := c.call.kind
	return (k == tryAcquire || k == available || k == release || k == acquireUpTo || k == look) && c.start.initialized()
}

func (c *comparison) edge() int64 { return c.now - c.start.number("interval") }

// rebuild makes the value what the records say.
func (c *comparison) rebuild() bool {
	p := c.start.pair()
	var all int64
	for _, r := range p.records {
		all += r.permits
	}
	value := strconv.FormatInt(c.start.number("rate")-all, 10)
	changed := p.value != value
	p.value = value
	return changed
}

var rules = []rule{
	{
		name: "records of every format count",
		java: "reads the one format of its own release, and fails on or misreads others",
		here: "reads the last four bytes, which are the permits in every format",
		why:  "a fleet is upgraded one service after the other",
		heals: func(c *comparison) (changed bool) {
			for i := range c.start.pairs {
				for j := range c.start.pairs[i].records {
					r := &c.start.pairs[i].records[j]
					if len(r.member) != 13 && len(r.member) != 21 {
						r.member = memberOf(rratelimiter.Redisson317, 0xd000_0000+uint64(j), r.permits)
						changed = true
					}
				}
			}
			return changed
		},
	},
	{
		name: "a missing value is rebuilt",
		java: "starts with all permits free again, whatever was granted",
		here: "free = rate - permits in live records",
		why:  "an eviction must not grant twice",
		heals: func(c *comparison) bool {
			p := c.start.pair()
			return c.acquires() && p.value == "" && len(p.records) > 0 && c.rebuild()
		},
	},
	{
		name: "a value that is no whole number is rebuilt",
		java: "fails on every call",
		here: "free = rate - permits in live records",
		why:  "no script fails on what it finds",
		heals: func(c *comparison) bool {
			p := c.start.pair()
			_, whole := p.number()
			if !c.acquires() || p.value == "" || whole {
				return false
			}
			p.valueEnd = 0
			return c.rebuild()
		},
	},
	{
		name: "a value above the rate is rebuilt",
		java: "to 3.34 takes the number of records for the permits; availablePermits answers more than the rate; without " +
			"expired records the value stays",
		here: "free = rate - permits in live records",
		why:  "no window may hold more than the rate",
		heals: func(c *comparison) bool {
			p := c.start.pair()
			value, whole := p.number()
			expired, _, _ := p.sums(c.edge())
			return c.acquires() && whole && value+expired > c.start.number("rate") && c.rebuild()
		},
	},
	{
		name: "without records all is free",
		java: "fails with an arithmetic error on nil from then on (value < n and no records)",
		here: "free = rate",
		why:  "nothing that is not recorded was granted within the interval",
		heals: func(c *comparison) bool {
			p := c.start.pair()
			_, _, living := p.sums(c.edge())
			return c.acquires() && p.value != "" && len(living) == 0 && c.rebuild()
		},
	},
	{
		name: "a negative value is checked",
		java: "refuses until records that are enough expire, if there are any",
		here: "free = rate - permits in live records, where these are at most 256; a lowered rate may still leave it negative",
		why:  "drift must heal",
		heals: func(c *comparison) bool {
			p := c.start.pair()
			value, whole := p.number()
			_, _, living := p.sums(c.edge())
			return c.acquires() && whole && value < 0 && len(living) <= checked && c.rebuild()
		},
	},
	{
		name: "a refusal is checked",
		java: "refuses what is free by the records: permits lost by a drift never come back while the limiter is busy",
		here: "a refusal adds up at most 256 live records and raises a value that is too low; it never lowers it",
		why:  "a rate raised elsewhere or a drift must not cost permits for ever",
		heals: func(c *comparison) bool {
			p := c.start.pair()
			value, whole := p.number()
			expired, live, living := p.sums(c.edge())
			rate := c.start.number("rate")
			return c.acquires() && c.call.kind == tryAcquire && c.call.n <= rate && whole && value+expired < c.call.n &&
				value+expired+live < rate && len(living) <= checked && c.rebuild()
		},
	},
	{
		name: "a request above the rate still tidies up",
		java: "fails before it reads the state",
		here: "fails, too, and counts expired permits back as any call does",
		why:  "it may share its call with others",
		heals: func(c *comparison) bool {
			if !c.acquires() || c.call.kind != tryAcquire || c.call.n <= c.start.number("rate") {
				return false
			}
			c.asked = call{kind: available}
			return true
		},
		expects: func(c *comparison) bool {
			if c.asked.kind == c.call.kind || c.call.kind != tryAcquire || c.wanted.failure != "" {
				return false
			}
			c.wanted.answer = answer{failure: exceeds}
			return true
		},
	},
	{
		name: "AcquireUpTo takes what is free",
		java: "has no such method; tryAcquire of what availablePermits says is two calls",
		here: "takes as many of n as are free",
		why:  "nobody can come between",
		heals: func(c *comparison) bool {
			if c.call.kind != acquireUpTo {
				return false
			}
			p := c.start.pair()
			_, whole := p.number()
			_, free := c.leaving(1)
			if p.value == "" {
				free, whole = c.start.number("rate"), true
			}
			c.asked = call{kind: available}
			if n := min(free, c.call.n); whole && n > 0 {
				c.asked = call{kind: tryAcquire, n: n}
			}
			return true
		},
		expects: func(c *comparison) bool {
			if c.call.kind != acquireUpTo || c.wanted.failure != "" {
				return false
			}
			c.wanted.answer = answer{amount: c.asked.n, wait: unknown}
			return true
		},
	},
	{
		name: "expired records leave 2,000 at a time",
		java: "removes any number of them in one call: a million block Redis for a second, and too many fail",
		here: "removes the oldest 2,000, and goes on only while the request needs more",
		why:  "one limiter must not hold up all others",
		expects: func(c *comparison) bool {
			if c.asked.kind != tryAcquire || !c.wanted.granted && c.call.kind != acquireUpTo || c.wanted.failure != "" {
				return false
			}
			enough := c.call.n
			if c.call.kind == acquireUpTo {
				enough = 1
			}
			before := c.before.pairs[c.start.kind()].records
			count, _ := c.leaving(enough)
			stay := 0
			for count+stay < len(before) && before[count+stay].at <= c.edge() {
				stay++
			}
			if stay == 0 {
				return false
			}
			p := c.wanted.pair()
			value, _ := p.number()
			p.records = append(slices.Clone(before[count:count+stay]), p.records...)
			for _, r := range before[count : count+stay] {
				value -= r.permits
			}
			p.set(value)
			return true
		},
	},
	{
		name: "the wait is for all permits that are asked for",
		java: "answers when the oldest record expires, and 3 ms more",
		here: "answers when enough records expire, to the ms, walking at most 512",
		why:  "who comes back too early asks in vain",
		expects: func(c *comparison) bool {
			if c.call.kind != tryAcquire || c.wanted.failure != "" || c.wanted.granted {
				return false
			}
			p := c.wanted.pair()
			have, _ := p.number()
			interval := c.wanted.number("interval")
			wait := interval // where all records together are not enough
			for i, r := range p.records {
				have += r.permits
				if have >= c.call.n || i+1 == walked && len(p.records) > walked {
					wait = max(1, r.at+interval-c.now)
					break
				}
			}
			changed := c.wanted.wait != wait
			c.wanted.wait = wait
			return changed
		},
	},
	{
		name: "free permits are never told as negative",
		java: "availablePermits answers the value as it is",
		here: "answers 0",
		why:  "nobody can take fewer than no permits",
		expects: func(c *comparison) bool {
			if c.call.kind != available && c.call.kind != look || c.wanted.amount >= 0 || c.wanted.failure != "" {
				return false
			}
			c.wanted.amount = 0
			return true
		},
	},
	{
		name: "release gives back the oldest grants",
		java: "raises the value and leaves the records, so the same permits come back twice",
		here: "removes or shrinks the oldest live records, and tells how many permits came back",
		why:  "the window must hold",
		heals: func(c *comparison) bool {
			if c.call.kind != release {
				return false
			}
			c.asked = call{kind: available} // which counts expired permits back
			return true
		},
		expects: func(c *comparison) bool {
			if c.call.kind != release || c.wanted.failure != "" {
				return false
			}
			p := c.wanted.pair()
			value, _ := p.number()
			// Members in another format were healed: of those of one time, another may come first then.
			_, _, living := c.before.pairs[c.wanted.kind()].sums(c.edge())
			p.records = slices.Clone(living)
			left := c.call.n
			for left > 0 && len(p.records) > 0 {
				back := min(left, p.records[0].permits)
				left -= back
				if p.records[0].permits -= back; p.records[0].permits == 0 {
					p.records = p.records[1:]
				}
			}
			if len(p.records) == 0 {
				p.recordsEnd = 0
			}
			p.set(min(c.wanted.number("rate"), value+c.call.n-left))
			c.wanted.answer = answer{granted: true, amount: c.call.n - left}
			return true
		},
	},
	{
		name: "setRate forgets the state of the old and the new type",
		java: "to 3.22.0 forgets the shared state alone, later that of the new type alone; only with args, from 4.4.0 on, " +
			"all of it where the type changes",
		here: "forgets the state of the type, and all of it where the type changes",
		why:  "grants under another rate must not come up later",
		expects: func(c *comparison) bool {
			if c.call.kind != setRate && c.call.kind != setRateArgs && c.call.kind != updateRate || c.call.keep || !c.wanted.granted {
				return false
			}
			kept := c.before.pairs
			kept[c.call.rate.kind] = pair{}
			if c.before.fields["type"] != strconv.FormatInt(c.call.rate.kind, 10) {
				kept = [2]pair{}
			}
			a, b := state{pairs: kept}, state{pairs: c.wanted.pairs}
			c.wanted.pairs = kept
			return len(a.differences(&b, time.Hour)) > 0
		},
	},
	{
		name: "keeping the state may leave a debt",
		java: "takes 0 permits for free where live grants are more than the new rate",
		here: "the value is negative by what is too much; 0 is told",
		why:  "value + records = rate holds, so nothing has to be counted anew later",
		expects: func(c *comparison) bool {
			if c.call.kind != setRateArgs && c.call.kind != updateRate || !c.call.keep || !c.wanted.granted {
				return false
			}
			p := c.wanted.pair()
			_, live, _ := p.sums(c.now - c.call.rate.interval)
			if c.call.rate.rate >= live || p.value == "" {
				return false
			}
			p.set(c.call.rate.rate - live)
			return true
		},
	},
	{
		name: "updateRate needs a rate",
		java: "sets the rate wherever the hash has any field",
		here: "answers false, and sets nothing, where no rate is set",
		why:  "a part of a configuration is no limiter",
		expects: func(c *comparison) bool {
			if c.call.kind != updateRate || !c.wanted.granted || c.before.fields["rate"] != "" {
				return false
			}
			c.wanted = outcome{state: c.before.clone()}
			return true
		},
	},
	{
		name: "trySetRate of a limiter with a rate changes nothing",
		java: "from 3.38.0 on, gives a limiter that older releases made a keep-alive, although it answers false; and a " +
			"life time to one whose hash has a keep-alive but no type",
		here: "sets a keep-alive together with the type or not at all",
		why:  "false means that nothing was set",
		expects: func(c *comparison) bool {
			if c.call.kind != trySetRate {
				return false
			}
			before := c.before.fields["keepAliveTime"]
			if c.wanted.granted && before != "" && c.wanted.end != c.before.end {
				c.wanted.end = c.before.end
				return true
			}
			if !c.wanted.granted && c.wanted.fields["keepAliveTime"] != before {
				delete(c.wanted.fields, "keepAliveTime")
				return true
			}
			return false
		},
	},
	{
		name: "a life time of the state alone may end",
		java: "writes the value anew when permits expire, which takes its life time away; records lose theirs when all expire",
		here: "keeps it mostly, but not where a release shrinks the only record",
		why:  "only a stranger sets a life time of the state without one of the configuration",
		expects: func(c *comparison) bool {
			if !c.acquires() && !c.call.keep || c.wanted.end != 0 || c.wanted.failure != "" && c.wanted.failure != exceeds {
				return false
			}
			p, before := c.wanted.pair(), c.before.pairs[c.wanted.kind()]
			if before.valueEnd == 0 && before.recordsEnd == 0 {
				return false
			}
			if p.value != "" {
				p.valueEnd = -before.valueEnd
			}
			if len(p.records) > 0 {
				p.recordsEnd = -before.recordsEnd
			}
			return true
		},
	},
	{
		name: "setRate without a keep-alive ends one",
		java: "before 3.38.0 leaves the field, and later the life time: the limiter dies in the end, however busy it is",
		here: "clears both",
		why:  "a limiter without a keep-alive lives for ever",
		expects: func(c *comparison) bool {
			if c.call.kind != setRate && c.call.kind != setRateArgs && c.call.kind != updateRate || !c.wanted.granted ||
				c.call.rate.keepAlive != 0 || c.before.number("keepAliveTime") <= 0 {
				return false
			}
			c.wanted.fields["keepAliveTime"] = "0"
			c.wanted.end = 0
			p := &c.wanted.pairs[c.call.rate.kind]
			p.valueEnd, p.recordsEnd = 0, 0
			return true
		},
	},
	{
		name: "a keep-alive of 0 need not be written",
		java: "from 3.38.0 on writes the field always",
		here: "writes it where the rate has one, or to clear one",
		why:  "older releases don't know it",
		expects: func(c *comparison) bool {
			if c.wanted.fields["keepAliveTime"] != "0" || c.before.fields["keepAliveTime"] != "" {
				return false
			}
			delete(c.wanted.fields, "keepAliveTime")
			return true
		},
	},
	{
		name: "every acquire renews a keep-alive",
		java: "before 3.38.0 does not know it: the limiter dies under live traffic",
		here: "renews it",
		why:  "the newest release does",
		expects: func(c *comparison) bool {
			alive := c.wanted.number("keepAliveTime")
			if !c.acquires() || c.call.kind == available || alive <= 0 || c.version == newest && c.asked.kind == c.call.kind {
				return false
			}
			c.live(&c.wanted, c.ended+alive)
			c.wanted.end = c.ended + alive
			return true
		},
	},
	{
		name: "whoever looks or releases passes the life time on",
		java: "availablePermits makes a value that lives for ever beside a configuration that does not",
		here: "the state always lives as long as the configuration",
		why:  "a state that outlives its limiter stays for ever",
		expects: func(c *comparison) bool {
			if !c.acquires() || c.asked.kind != available || c.wanted.end == 0 ||
				c.call.kind != available && c.wanted.number("keepAliveTime") > 0 {
				return false
			}
			return c.live(&c.wanted, c.wanted.end)
		},
	},
	{
		name: "what belongs to one client leaves after it",
		java: "leaves the state of a client that never comes back for ever",
		here: "it lives for an interval and a minute from its last use",
		why:  "after that it means that all is free, as no state does",
		expects: func(c *comparison) bool {
			if c.wanted.kind() != 1 || c.wanted.failure == uninitialized || !c.acquires() && !(c.call.keep && c.wanted.granted) {
				return false
			}
			end := c.ended + c.wanted.number("interval") + 60_000
			p := c.wanted.pair()
			if c.wanted.end != 0 && c.wanted.end <= end {
				end = c.wanted.end
			}
			return c.live(&c.wanted, end) || p.valueEnd == end
		},
	},
	{
		name: "State changes nothing",
		java: "has no such method; availablePermits counts expired permits back",
		here: "tells what is free and leaves even expired records",
		why:  "whoever looks for a fault must not change it",
		heals: func(c *comparison) bool {
			if c.call.kind != look {
				return false
			}
			c.asked = call{kind: available}
			return true
		},
		expects: func(c *comparison) bool {
			if c.call.kind != look {
				return false
			}
			c.wanted.state = c.before.clone()
			return true
		},
	},
}

// live gives the state that the limiter uses an end, and tells whether it had another.
func (c *comparison) live(o *outcome, end int64) bool {
	p := o.pair()
	changed := false
	if p.value != "" && p.valueEnd != end {
		p.valueEnd, changed = end, true
	}
	if len(p.records) > 0 && p.recordsEnd != end {
		p.recordsEnd, changed = end, true
	}
	return changed
}
