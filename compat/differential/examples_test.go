package differential

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// examples_test.go has a minimal example of each rule, with the outcomes of both sides.

// A sketch is a state in short notation.
type sketch struct {
	fields  string // name=value ...
	lives   int    // TTL of the configuration in minutes; 0: none
	shared  string // value permits@ms ..., ms since epoch; the value "none" stands for no value key
	clients string
	format  rratelimiter.RecordFormat // of all records; the default is what Redisson 3.17.5 writes
	stated  int                       // TTL of value and records in minutes; 0: none
}

func (k sketch) state() state {
	in := func(minutes int) int64 {
		if minutes == 0 {
			return 0
		}
		return time.Now().Add(time.Duration(minutes) * time.Minute).UnixMilli()
	}
	s := state{fields: map[string]string{}, end: in(k.lives)}
	for field := range strings.FieldsSeq(k.fields) {
		name, value, _ := strings.Cut(field, "=")
		s.fields[name] = value
	}
	for kind, text := range []string{k.shared, k.clients} {
		p := &s.pairs[kind]
		for i, word := range strings.Fields(text) {
			if i == 0 {
				p.value, p.valueEnd = strings.TrimPrefix(word, "none"), in(k.stated)
				continue
			}
			var r record
			if _, err := fmt.Sscanf(word, "%d@%d", &r.permits, &r.at); err != nil {
				panic(err)
			}
			r.at += epoch
			r.member = memberOf(k.format, uint64(i), r.permits)
			p.records, p.recordsEnd = append(p.records, r), in(k.stated)
		}
	}
	return s
}

// said formats an outcome as in the examples.
func (o outcome) said(k kind) string {
	a := o.answer.String()
	if o.failure != "" && o.failure != uninitialized && o.failure != exceeds {
		a = "fails"
	}
	if k == tryAcquire || k == available || k == release {
		delete(o.fields, "rate")
		delete(o.fields, "interval")
		delete(o.fields, "type")
	}
	text := strings.Replace(o.state.String(), "map[]; ", "", 1)
	return a + "; " + strings.TrimSuffix(text, "; client's nothing")
}

const limit = "rate=5 interval=1000 type=0" // of most examples: 5 permits a second

var examples = []struct {
	rule       string
	version    string
	before     sketch
	call       call
	java, here string
}{
	{
		rule: "a negative rate is a rate of 0", version: "4.7.0",
		before: sketch{fields: "rate=-3 interval=1000 type=0"}, call: call{kind: available},
		java: `-3; shared value "-3"`,
		here: `no; shared value "0"`, // no permit
	},
	{
		rule: "a negative request holds no permits", version: "4.7.0",
		before: sketch{fields: limit, shared: "6 4294967295@-10"}, call: call{kind: available},
		java: `6; shared value "6" 4294967295@-10`,
		here: `5; shared value "5"`,
	},
	{
		rule: "a negative request holds no permits", version: "4.7.0",
		// 2 are in neither
		before: sketch{fields: limit, shared: "1 4294967295@-20 2@-10"}, call: call{kind: available},
		java: `1; shared value "1" 4294967295@-20 2@-10`,
		here: `1; shared value "1" 2@-20 2@-10`,
	},
	{
		// what two of them hold is more than a record does
		rule: "a negative request holds no permits", version: "4.7.0",
		before: sketch{
			fields: "rate=1000000 interval=1000 type=0", shared: "-4294967288 4294967289@-20 4294967289@-10",
		}, call: call{kind: available},
		java: `-4294967288; shared value "-4294967288" 4294967289@-20 4294967289@-10`,
		here: `no; shared value "-4294967288" 999993@-10 4294967295@-10`,
	},
	{
		// without a type, the records of the new type count
		rule: "a negative request holds no permits", version: "4.7.0",
		before: sketch{fields: "rate=5 interval=1000", shared: "6 4294967295@-10", clients: "6 4294967295@-10"},
		call:   call{kind: setRateArgs, rate: config{5, 1000, 1, 0}, keep: true},
		java:   `yes; map[interval:1000 keepAliveTime:0 rate:5 type:1]; shared value "6" 4294967295@-10; client's value "0" 4294967295@-10`,
		here: `yes; map[interval:1000 rate:5 type:1]; shared value "6" 4294967295@-10; ` +
			`client's value "5" value lives 1m0s`,
	},
	{
		rule: "records of every format count", version: "3.17.5",
		before: sketch{fields: limit, shared: "1 4@-1000", format: rratelimiter.Redisson313},
		call:   call{kind: tryAcquire, n: 2},
		java:   `fails; shared value "1" 4@-1000`,
		here:   `yes; shared value "3" 2@0`,
	},
	{
		rule: "a missing value is rebuilt", version: "4.7.0",
		before: sketch{fields: limit, shared: "none 4@-10"}, call: call{kind: tryAcquire, n: 2},
		java: `yes; shared value "3" 4@-10 2@0`,
		here: `no, wait 990 ms; shared value "1" 4@-10`,
	},
	{
		rule: "a value that is no whole number is rebuilt", version: "4.7.0",
		before: sketch{fields: limit, shared: "x 4@-10"}, call: call{kind: tryAcquire, n: 1},
		java: `fails; shared value "x" 4@-10`,
		here: `yes; shared value "0" 4@-10 1@0`,
	},
	{
		rule: "a value above the rate is rebuilt", version: "3.17.5",
		before: sketch{fields: limit, shared: "4 2@-1000 4@-10"}, call: call{kind: tryAcquire, n: 3},
		java: `yes; shared value "1" 4@-10 3@0`,
		here: `no, wait 990 ms; shared value "1" 4@-10`,
	},
	{
		rule: "without records all permits are free", version: "4.7.0",
		before: sketch{fields: limit, shared: "0"}, call: call{kind: tryAcquire, n: 1},
		java: `fails; shared value "0"`,
		here: `yes; shared value "4" 1@0`,
	},
	{
		rule: "a negative value is checked", version: "4.7.0",
		before: sketch{fields: limit, shared: "-3 2@-10"}, call: call{kind: available},
		java: `-3; shared value "-3" 2@-10`,
		here: `3; shared value "3" 2@-10`,
	},
	{
		rule: "a refusal is checked", version: "4.7.0",
		before: sketch{fields: limit, shared: "0 2@-10"}, call: call{kind: tryAcquire, n: 3},
		java: `no, wait 993 ms; shared value "0" 2@-10`,
		here: `yes; shared value "0" 2@-10 3@0`,
	},
	{
		rule: "free permits and records are the rate", version: "4.7.0",
		before: sketch{fields: limit, shared: "2 1@-20 4@-10"}, call: call{kind: available},
		java: `2; shared value "2" 1@-20 4@-10`,
		here: `2; shared value "2" 3@-10`,
	},
	{
		rule: "free permits and records are the rate", version: "4.7.0",
		before: sketch{fields: limit, shared: "1 2@-10"}, call: call{kind: available},
		java: `1; shared value "1" 2@-10`,
		here: `3; shared value "3" 2@-10`,
	},
	{
		rule: "a request above the rate still removes expired records", version: "4.7.0",
		before: sketch{fields: limit, shared: "2 1@-1000 2@-10"}, call: call{kind: tryAcquire, n: 6},
		java: `fails: more than the rate; shared value "2" 1@-1000 2@-10`,
		here: `fails: more than the rate; shared value "3" 2@-10`,
	},
	{
		rule: "expired records are removed 2,000 at a time", version: "4.7.0",
		before: sketch{fields: "rate=2001 interval=1000 type=0", shared: "0" + strings.Repeat(" 1@-1000", batch+1)},
		call:   call{kind: tryAcquire, n: 1},
		java:   `yes; shared value "2000" 1@0`,
		here:   `yes; shared value "1999" 1@-1000 1@0`,
	},
	{
		rule: "the wait is for all permits that are asked for", version: "4.7.0",
		before: sketch{fields: limit, shared: "1 2@-300 2@-100"}, call: call{kind: tryAcquire, n: 4},
		java: `no, wait 703 ms; shared value "1" 2@-300 2@-100`,
		here: `no, wait 900 ms; shared value "1" 2@-300 2@-100`,
	},
	{
		rule: "free permits are never reported as negative", version: "4.7.0",
		before: sketch{fields: limit, shared: "-1 6@-10"}, call: call{kind: available},
		java: `-1; shared value "-1" 6@-10`,
		here: `no; shared value "-1" 6@-10`,
	},
	{
		rule: "release gives back the oldest grants", version: "4.7.0",
		before: sketch{fields: limit, shared: "0 2@-300 3@-100"}, call: call{kind: release, n: 3},
		java: `yes; shared value "3" 2@-300 3@-100`,
		here: `3; shared value "3" 2@-100`,
	},
	{
		rule: "setRate deletes the state of the old and the new type", version: "3.17.5",
		before: sketch{fields: "rate=5 interval=1000 type=1", shared: "3 2@-10", clients: "1 4@-10"},
		call:   call{kind: setRate, rate: config{9, 1000, 1, 0}},
		java:   `yes; map[interval:1000 rate:9 type:1]; shared nothing; client's value "1" 4@-10`,
		here:   `yes; map[interval:1000 rate:9 type:1]; shared value "3" 2@-10`,
	},
	{
		rule: "keeping the state may leave a negative value", version: "4.7.0",
		before: sketch{fields: limit, shared: "1 4@-10"},
		call:   call{kind: updateRate, rate: config{3, 1000, 0, 0}, keep: true},
		java:   `yes; map[interval:1000 keepAliveTime:0 rate:3 type:0]; shared value "0" 4@-10`,
		here:   `yes; map[interval:1000 rate:3 type:0]; shared value "-1" 4@-10`,
	},
	{
		rule: "updateRate needs a rate", version: "4.7.0",
		before: sketch{fields: "keepAliveTime=0"}, call: call{kind: updateRate, rate: config{3, 1000, 0, 0}},
		java: `yes; map[interval:1000 keepAliveTime:0 rate:3 type:0]; shared nothing`,
		here: `no; map[keepAliveTime:0]; shared nothing`,
	},
	{
		rule: "trySetRate of a limiter with a rate changes nothing", version: "4.7.0",
		before: sketch{fields: limit}, call: call{kind: trySetRate, rate: config{3, 1000, 0, 3_600_000}},
		java: `no; map[interval:1000 keepAliveTime:3600000 rate:5 type:0]; shared nothing`,
		here: `no; map[interval:1000 rate:5 type:0]; shared nothing`,
	},
	{
		rule: "trySetRate clears the TTL of an older state", version: "4.7.0",
		before: sketch{shared: "1 2@-10", stated: 60}, call: call{kind: trySetRate, rate: config{9, 1000, 0, 0}},
		java: `yes; map[interval:1000 keepAliveTime:0 rate:9 type:0]; shared value "1" 2@-10 value lives 1h0m0s records live 1h0m0s`,
		here: `yes; map[interval:1000 rate:9 type:0]; shared value "1" 2@-10`,
	},
	{
		rule: "a TTL of the state alone may be lost", version: "4.7.0",
		before: sketch{fields: limit, shared: "1 2@-1000 2@-10", stated: 60}, call: call{kind: tryAcquire, n: 1},
		java: `yes; shared value "2" 2@-10 1@0 records live 1h0m0s`,
		here: `yes; shared value "2" 2@-10 1@0 value lives 1h0m0s records live 1h0m0s`,
	},
	{
		rule: "setRate without a keep-alive ends one", version: "3.35.0",
		before: sketch{fields: limit + " keepAliveTime=3600000", lives: 60},
		call:   call{kind: setRate, rate: config{9, 1000, 0, 0}},
		java:   `yes; map[interval:1000 keepAliveTime:3600000 rate:9 type:0] lives 1h0m0s; shared nothing`,
		here:   `yes; map[interval:1000 keepAliveTime:0 rate:9 type:0]; shared nothing`,
	},
	{
		rule: "a keep-alive of 0 need not be written", version: "4.7.0",
		before: sketch{}, call: call{kind: trySetRate, rate: config{9, 1000, 0, 0}},
		java: `yes; map[interval:1000 keepAliveTime:0 rate:9 type:0]; shared nothing`,
		here: `yes; map[interval:1000 rate:9 type:0]; shared nothing`,
	},
	{
		rule: "every acquire renews a keep-alive", version: "3.35.0",
		before: sketch{fields: limit + " keepAliveTime=3600000", lives: 10}, call: call{kind: tryAcquire, n: 1},
		java: `yes; map[keepAliveTime:3600000] lives 10m0s; shared value "4" 1@0 value lives 10m0s records live 10m0s`,
		here: `yes; map[keepAliveTime:3600000] lives 1h0m0s; ` +
			`shared value "4" 1@0 value lives 1h0m0s records live 1h0m0s`,
	},
	{
		rule: "a keep-alive lasts as long as records count", version: "4.7.0",
		before: sketch{fields: limit + " keepAliveTime=3600000", lives: 60, shared: "3 2@7200000"},
		call:   call{kind: tryAcquire, n: 1},
		java: `yes; map[keepAliveTime:3600000] lives 1h0m0s; ` +
			`shared value "2" 1@0 2@7200000 value lives 1h0m0s records live 1h0m0s`,
		here: `yes; map[keepAliveTime:3600000] lives 2h0m0s; ` +
			`shared value "2" 1@0 2@7200000 value lives 2h0m0s records live 2h0m0s`,
	},
	{
		rule: "a read or release sets the TTL of the state", version: "4.7.0",
		before: sketch{fields: limit, lives: 60}, call: call{kind: available},
		java: `5; map[] lives 1h0m0s; shared value "5"`,
		here: `5; map[] lives 1h0m0s; shared value "5" value lives 1h0m0s`,
	},
	{
		rule: "the state of one client expires after its last use", version: "4.7.0",
		before: sketch{fields: "rate=5 interval=1000 type=1"}, call: call{kind: tryAcquire, n: 1},
		java: `yes; shared nothing; client's value "4" 1@0`,
		here: `yes; shared nothing; client's value "4" 1@0 value lives 1m0s records live 1m0s`,
	},
}

// TestRules shows for each rule what Redisson does and what this library does.
func TestRules(t *testing.T) {
	w := newWorld(t, learn(t), redistest.Shared(t), "rules")
	by := newCallers(w)[0]
	// Redisson has neither
	shown := map[string]bool{"AcquireUpTo takes what is free": true, "State changes nothing": true}
	for _, e := range examples {
		shown[e.rule] = true
		t.Run(e.rule, func(t *testing.T) {
			before, err := w.begin(t.Context(), e.before.state())
			if err != nil {
				t.Fatal(err)
			}
			c := &comparison{version: e.version, call: e.call, asked: e.call, now: w.now, before: before, start: before}
			if err := w.copy(t.Context()); err != nil {
				t.Fatal(err)
			}
			java, err := w.askJava(t.Context(), c, false)
			if err != nil {
				t.Fatal(err)
			}
			here, err := w.askGo(t.Context(), c, by)
			if err != nil {
				t.Fatal(err)
			}
			if java.said(e.call.kind) != e.java {
				t.Errorf("Redisson %s, %v:\n got %q\nwant %q", e.version, e.call, java.said(e.call.kind), e.java)
			}
			if here.said(e.call.kind) != e.here {
				t.Errorf("Go, %v:\n got %q\nwant %q", e.call, here.said(e.call.kind), e.here)
			}
			if before, err = w.begin(t.Context(), e.before.state()); err != nil { // with TTLs from now on
				t.Fatal(err)
			}
			if _, differences, err := w.compare(t.Context(),
				&comparison{version: e.version, call: e.call, before: before}, by); err != nil ||
				len(differences) > 0 {
				t.Errorf("not what the rules say: %v, %q", err, differences)
			}
			for i, r := range rules {
				if r.name == e.rule && w.hits[i].Load() == 0 {
					t.Errorf("is not what this rule is about")
				}
			}
		})
	}
	for _, r := range rules {
		if !shown[r.name] {
			t.Errorf("no example of the rule %q", r.name)
		}
	}
}
