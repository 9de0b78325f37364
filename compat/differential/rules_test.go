package differential

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

// rules_test.go lists all intended differences from Redisson.

// A comparison is one call, made to Redisson and to this library in the same state.
type comparison struct {
	version  string
	call     call
	now      int64 // ms
	before   state
	living   int  // live records before, which rules may replace
	checked  bool // this library's script added the records up
	believed bool // it replaced records with doubtful permits

	start  state         // the state given to Redisson: before, changed by the rules
	asked  call          // the call made to Redisson: call, or what a rule replaces it with
	wanted outcome       // Redisson's outcome, changed by the rules: what this library must do
	took   time.Duration // from the first call to the end of the last
	ended  int64         // the end of the last call, in ms since 1970 by the clock that TTLs follow
}

// A rule is one difference: what Redisson does, what this library does, and why. A rule changes one
// or both sides of a comparison. repairs changes the state or the call that Redisson gets: in the
// repaired state Redisson must answer what this library answers in the original one. expects
// changes Redisson's outcome into the one that this library must have. Both report whether they
// changed anything.
type rule struct {
	name, java, here, why string

	repairs func(c *comparison) bool
	expects func(c *comparison) bool
}

// checked is the largest number of live records that a refusal, or a check of a negative value,
// adds up.
const checked = 256

// walked is the largest number of live records for which the wait is exact.
const walked = 512

// batch is how many expired records a script removes before it checks whether enough permits are
// free.
const batch = 2000

// leaving returns how many expired records a call removes that needs at least enough free permits,
// and how many permits are free then. If the value had to be repaired, the call removes all expired
// records.
func (c *comparison) leaving(enough int64) (count int, free int64) {
	p := c.start.pair()
	free, _ = p.number()
	repaired := p.value != c.before.pairs[c.start.kind()].value
	for i, r := range p.records {
		if r.at > c.edge() || !repaired && i > 0 && i%batch == 0 && free >= enough {
			break
		}
		free += r.permits
		count++
	}
	return count, free
}

// enough returns how many permits the call takes at most.
func (c *comparison) enough() int64 {
	if c.call.kind == acquireUpTo {
		return min(c.call.n, c.start.number("rate"))
	}
	return c.call.n
}

// acquires reports whether the call reads the limiter's state to take or count permits, and the
// limiter is initialized.
func (c *comparison) acquires() bool {
	k := c.call.kind
	return (k == tryAcquire || k == available || k == release || k == acquireUpTo || k == look) && c.start.initialized()
}

func (c *comparison) edge() int64 { return c.now - c.start.number("interval") }

// rebuild sets the value to the rate less the permits in all records. It reports whether the value
// changed.
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

// doubtful reports whether so many permits are hardly those of a grant under a rate: a negative
// request leaves them.
func doubtful(permits, rate int64) bool { return permits >= 1<<31 && permits > rate }

// believe replaces the live records with doubtful permits by one, or as many as are needed, with
// what the free permits and the other records leave of the rate, and reports whether it did.
func (p *pair) believe(rate, edge int64) bool {
	value, whole := p.number()
	expired, live, _ := p.sums(edge)
	var sum int64
	last := -1 // index of the last doubtful record
	for i, r := range p.records {
		if r.at > edge && doubtful(r.permits, rate) {
			sum += r.permits
			last = i
		}
	}
	held := rate - (live - sum)
	if whole {
		held -= value + expired
	}
	if last < 0 || held >= sum {
		return false
	}
	var kept []record
	for i, r := range p.records {
		switch {
		case r.at <= edge || !doubtful(r.permits, rate):
			kept = append(kept, r)
		case i == last: // among records of the same time, the new ones have the place of the old one
			for id := uint64(0xb000_0000); held > 0; id++ {
				part := min(held, math.MaxUint32)
				kept = append(kept, record{r.at, part, memberOf(rratelimiter.Redisson317, id, part)})
				held -= part
			}
		}
	}
	if p.records = kept; len(kept) == 0 {
		p.recordsEnd = 0
	}
	return true
}

// believes does so in the pair of a type, and in the state before the call, too.
func (c *comparison) believes(kind int, rate, edge int64) bool {
	if !c.start.pairs[kind].believe(rate, edge) {
		return false
	}
	c.before.pairs = c.start.clone().pairs
	c.believed = true
	return true
}

var rules = []rule{
	{
		name: "a negative rate is a rate of 0",
		java: "refuses every request, and returns the rate as the free permits",
		here: "refuses every request, and nothing is free",
		why:  "fewer than no permits have no meaning to a caller",
		repairs: func(c *comparison) bool {
			if !c.acquires() || !strings.HasPrefix(c.start.fields["rate"], "-") {
				return false
			}
			c.start.fields["rate"] = "0"
			return true
		},
		expects: func(c *comparison) bool {
			if !c.acquires() || c.before.fields["rate"] == c.wanted.fields["rate"] {
				return false
			}
			c.wanted.fields["rate"] = c.before.fields["rate"]
			return true
		},
	},
	{
		name: "a negative request holds no permits",
		java: "grants it, and reads its record as 2^32 permits less the request",
		here: "where a call adds up the records, or State does, such a record counts as what the others leave of the rate",
		why:  "a bug in one client must not block the limiter for an interval",
		repairs: func(c *comparison) bool {
			p := c.start.pair()
			value, whole := p.number()
			rate, edge := c.start.number("rate"), c.edge()
			expired, _, _ := p.sums(edge)
			kind := c.start.kind()
			switch {
			case c.call.kind == updateRate && c.before.fields["rate"] == "":
				return false // sets nothing
			case c.call.keep &&
				(c.start.fields["type"] == "" || c.start.fields["type"] == strconv.FormatInt(c.call.rate.kind, 10)):
				return c.believes(int(c.call.rate.kind), max(rate, c.call.rate.rate), c.now-c.call.rate.interval)
			case !c.acquires():
				return false
			case c.call.kind == look:
				return p.believe(rate, edge)
			case c.checked || !whole || value < 0 && c.living <= checked || value+expired > rate:
				return c.believes(kind, rate, edge)
			case c.call.kind == release && c.believes(kind, rate, edge):
				c.checked = true // it adds up the records if it meets such a one
				return true
			}
			return false
		},
	},
	{
		name: "records of every format count",
		java: "reads the one format of its own release, and fails on or misreads others",
		here: "reads the last four bytes, which are the permits in every format",
		why:  "a fleet is upgraded one service after the other",
		repairs: func(c *comparison) (changed bool) {
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
		why:  "after an eviction, permits must not be granted twice",
		repairs: func(c *comparison) bool {
			p := c.start.pair()
			return c.acquires() && p.value == "" && len(p.records) > 0 && c.rebuild()
		},
	},
	{
		name: "a value that is no whole number is rebuilt",
		java: "fails on every call",
		here: "free = rate - permits in live records",
		why:  "no script fails on what it finds",
		repairs: func(c *comparison) bool {
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
		java: "up to 3.34 counts each record as one permit; availablePermits returns more than the rate; without expired " +
			"records the value stays",
		here: "free = rate - permits in live records",
		why:  "no window may hold more than the rate",
		repairs: func(c *comparison) bool {
			p := c.start.pair()
			value, whole := p.number()
			expired, _, _ := p.sums(c.edge())
			return c.acquires() && whole && value+expired > c.start.number("rate") && c.rebuild()
		},
	},
	{
		name: "without records all permits are free",
		java: "fails with an arithmetic error on nil from then on (value < n and no records)",
		here: "free = rate",
		why:  "every grant within the interval has a record",
		repairs: func(c *comparison) bool {
			p := c.start.pair()
			_, _, living := p.sums(c.edge())
			return c.acquires() && p.value != "" && len(living) == 0 && c.rebuild()
		},
	},
	{
		name: "a negative value is checked",
		java: "refuses until enough records expire, if there are any",
		here: "free = rate - permits in live records, where these are at most 256; a lowered rate may still leave it negative",
		why:  "a drift must be repaired",
		repairs: func(c *comparison) bool {
			value, whole := c.start.pair().number()
			return c.acquires() && whole && value < 0 && c.living <= checked && c.rebuild()
		},
	},
	{
		name: "a refusal is checked",
		java: "refuses permits that are free by the records: permits lost by a drift never return while the limiter is busy",
		here: "a refusal adds up at most 256 live records and raises a value that is too low; it never lowers it",
		why:  "a rate raised elsewhere or a drift must not cost permits for ever",
		repairs: func(c *comparison) bool {
			p := c.start.pair()
			value, whole := p.number()
			expired, live, living := p.sums(c.edge())
			rate := c.start.number("rate")
			return c.acquires() && c.call.kind == tryAcquire && c.call.n <= rate && whole && value+expired < c.call.n &&
				value+expired+live < rate && len(living) <= checked && c.rebuild()
		},
	},
	{
		name: "free permits and records are the rate",
		java: "grants a surplus again each time that it expires, and never recovers permits that are in neither",
		here: "now and then a call adds up the records; it takes a surplus out of the oldest records and adds a deficit to " +
			"the free permits; State returns what such a call would leave",
		why: "an inconsistency left by Redisson's release, a changed rate or a manual change must not last",
		repairs: func(c *comparison) (changed bool) {
			p := c.start.pair()
			value, whole := p.number()
			expired, live, living := p.sums(c.edge())
			if !c.checked && c.call.kind != look || !c.acquires() || !whole || len(living) == 0 {
				return false
			}
			surplus := value + expired + live - c.start.number("rate")
			if surplus < 0 {
				return c.rebuild()
			}
			gone := len(p.records) - len(living)
			left := slices.Clone(living)
			for surplus > 0 {
				changed = true
				part := min(surplus, left[0].permits)
				surplus -= part
				if left[0].permits -= part; left[0].permits == 0 {
					left = left[1:]
				} else {
					left[0].member = memberOf(rratelimiter.Redisson317, 0xc000_0000, left[0].permits)
				}
			}
			p.records = append(slices.Clone(p.records[:gone]), left...)
			return changed
		},
	},
	{
		name: "a request above the rate still removes expired records",
		java: "fails before it reads the state",
		here: "also fails, but returns expired permits like any call",
		why:  "the same call may serve other requests",
		repairs: func(c *comparison) bool {
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
		java: "has no such method; availablePermits followed by tryAcquire is two calls",
		here: "takes as many of n as are free",
		why:  "one call is atomic",
		repairs: func(c *comparison) bool {
			if c.call.kind != acquireUpTo {
				return false
			}
			p := c.start.pair()
			_, whole := p.number()
			_, free := c.leaving(c.enough())
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
		name: "expired records are removed 2,000 at a time",
		java: "removes all in one call: a million block Redis for a second, and with too many the call fails",
		here: "removes the oldest 2,000, and goes on only while the request needs more",
		why:  "one limiter must not block all others",
		expects: func(c *comparison) bool {
			if c.asked.kind != tryAcquire || !c.wanted.granted && c.call.kind != acquireUpTo || c.wanted.failure != "" {
				return false
			}
			before := c.before.pairs[c.start.kind()].records
			count, _ := c.leaving(c.enough())
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
		java: "returns the time until the oldest record expires, plus 3 ms",
		here: "returns the time until enough records expire, to the ms, walking at most 512",
		why:  "a retry before that is refused",
		expects: func(c *comparison) bool {
			if c.call.kind != tryAcquire || c.wanted.failure != "" || c.wanted.granted {
				return false
			}
			p := c.wanted.pair()
			have, _ := p.number()
			interval := c.wanted.number("interval")
			wait := interval
			for i, r := range p.records {
				have += r.permits
				in := max(1, r.at+interval-c.now)
				if have >= c.call.n || i+1 == walked && len(p.records) > walked {
					wait = in
					break
				}
				wait = max(wait, in) // if all records together do not free enough
			}
			wait = min(wait, longest) // at most what a time.Duration holds
			changed := c.wanted.wait != wait
			c.wanted.wait = wait
			return changed
		},
	},
	{
		name: "free permits are never reported as negative",
		java: "availablePermits returns the value as it is",
		here: "returns 0",
		why:  "a negative number of free permits has no meaning to a caller",
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
		here: "removes or shrinks the oldest live records, and returns how many permits were released",
		why:  "no window may hold more than the rate",
		repairs: func(c *comparison) bool {
			if c.call.kind != release {
				return false
			}
			c.asked = call{kind: available} // which removes expired records
			return true
		},
		expects: func(c *comparison) bool {
			if c.call.kind != release || c.wanted.failure != "" {
				return false
			}
			p := c.wanted.pair()
			value, _ := p.number()
			// before has the members unrepaired: a repaired member can change the order of records
			// of the same time. A call that meets doubtful permits adds up the records, and takes a
			// surplus out of them first.
			from := c.before
			if c.believed {
				from = c.start
			}
			_, _, living := from.pairs[c.wanted.kind()].sums(c.edge())
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
		name: "setRate deletes the state of the old and the new type",
		java: "up to 3.22.0 deletes only the shared state, later only that of the new type; only with args (4.4.0 and later) " +
			"all of it where the type changes",
		here: "deletes the state of the type, and all of it where the type changes",
		why:  "grants under an earlier rate must not count later",
		expects: func(c *comparison) bool {
			if c.call.kind != setRate && c.call.kind != setRateArgs && c.call.kind != updateRate || c.call.keep ||
				!c.wanted.granted {
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
		name: "keeping the state may leave a negative value",
		java: "sets the value to 0 where live grants exceed the new rate",
		here: "the value is negative by the excess; AvailablePermits returns 0",
		why:  "value + records = rate holds, so no later call has to recount",
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
		here: "returns false and sets nothing where no rate is set",
		why:  "a hash without a rate is no limiter",
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
		java: "from 3.38.0 on, returns false but adds a keep-alive to a limiter that an older release made; and sets a TTL " +
			"on a limiter whose hash has a keep-alive but no type",
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
		name: "trySetRate clears the TTL of an older state",
		java: "leaves it, so grants are forgotten while they count",
		here: "clears it, unless the hash has a TTL",
		why:  "a state must not end before its configuration",
		expects: func(c *comparison) bool {
			p := &c.wanted.pairs[0]
			if c.call.kind != trySetRate || !c.wanted.granted || c.before.end != 0 ||
				p.valueEnd == 0 && p.recordsEnd == 0 {
				return false
			}
			p.valueEnd, p.recordsEnd = 0, 0
			return true
		},
	},
	{
		name: "a TTL of the state alone may be lost",
		java: "rewrites the value when permits expire, which clears its TTL; records lose theirs when all expire",
		here: "mostly keeps it, but not where a release shrinks the only record",
		why:  "neither library sets a TTL on the state without one on the configuration",
		expects: func(c *comparison) bool {
			if !c.acquires() && !c.call.keep || c.wanted.end != 0 ||
				c.wanted.failure != "" && c.wanted.failure != exceeds {
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
		java: "before 3.38.0 leaves the field, later the TTL: the limiter expires in the end, however busy it is",
		here: "clears both",
		why:  "a limiter without a keep-alive has no TTL",
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
		why:  "older releases do not support it",
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
		java: "before 3.38.0 does not support it: the limiter expires under live traffic",
		here: "renews it",
		why:  "the newest release does",
		expects: func(c *comparison) bool {
			alive := c.wanted.number("keepAliveTime")
			if !c.acquires() || c.call.kind == available || alive <= 0 ||
				c.version == newest && c.asked.kind == c.call.kind {
				return false
			}
			c.live(&c.wanted, c.ended+alive)
			c.wanted.end = c.ended + alive
			return true
		},
	},
	{
		name: "a keep-alive lasts as long as records count",
		java: "sets the keep-alive, whatever records are ahead of the clock",
		here: "lasts until the newest record no longer counts, unless the keep-alive is shorter than the interval",
		why:  "a debt that expires with its keys would not be paid back",
		expects: func(c *comparison) bool {
			if !c.acquires() && !(c.call.keep && c.wanted.granted) || c.call.kind == available {
				return false
			}
			alive, interval, p := c.wanted.number("keepAliveTime"), c.wanted.number("interval"), c.wanted.pair()
			used := interval
			if n := len(p.records); n > 0 {
				used += max(0, p.records[n-1].at-c.now)
			}
			if alive <= 0 || alive < interval || alive >= used+lateness {
				return false
			}
			end := c.ended + min(max(alive, used, min(used+lateness, c.before.end-c.ended)), 1e15)
			if end == c.wanted.end {
				return false
			}
			c.live(&c.wanted, end)
			c.wanted.end = end
			return true
		},
	},
	{
		name: "a read or release sets the TTL of the state",
		java: "availablePermits writes a value without a TTL although the configuration has one",
		here: "the state always has the TTL of the configuration",
		why:  "a state that outlives its limiter would never expire",
		expects: func(c *comparison) bool {
			if !c.acquires() || c.asked.kind != available || c.wanted.end == 0 ||
				c.call.kind != available && c.wanted.number("keepAliveTime") > 0 {
				return false
			}
			return c.live(&c.wanted, c.wanted.end)
		},
	},
	{
		name: "the state of one client expires after its last use",
		java: "the state of a client that never returns stays for ever",
		here: "it expires an interval and a minute after its last use, later if a record is ahead of the clock, as with a lease or a debt",
		why:  "after that all permits are free, which a missing state means, too",
		expects: func(c *comparison) bool {
			if c.wanted.kind() != 1 || c.wanted.failure == uninitialized ||
				!c.acquires() && !(c.call.keep && c.wanted.granted) {
				return false
			}
			interval, p := c.wanted.number("interval"), c.wanted.pair()
			longest := interval + 60_000
			if n := len(p.records); n > 0 {
				longest += max(0, p.records[n-1].at-c.now)
			}
			end := c.ended + min(longest, 1e15)
			if c.wanted.end != 0 && c.wanted.end <= end {
				end = c.wanted.end
			}
			return c.live(&c.wanted, end) || p.valueEnd == end
		},
	},
	{
		name: "State changes nothing",
		java: "has no such method; availablePermits removes expired records",
		here: "returns the free permits and leaves even expired records",
		why:  "a diagnostic must not change what it inspects",
		repairs: func(c *comparison) bool {
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

// lateness is LATENESS of lua/shared/base.lua, ms.
const lateness = 1000

// live sets the expiry time of the limiter's state, and reports whether it changed.
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
