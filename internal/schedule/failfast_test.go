package schedule

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/record"
)

// TestTurns has lines of waiting requests at 10 permits an interval of 100 ms, and the earliest
// time at which each can have its permits.
func TestTurns(t *testing.T) {
	for _, c := range []struct {
		name string
		// permits that this process was granted, one grant 10 ms after the other, the last one at
		// the start
		own   []int64
		sizes []int64
		waits []int64 // ms: when the permits of each are free
		want  string  // ms
	}{
		{name: "alone", sizes: []int64{3}, waits: []int64{7}, want: "7"},
		{name: "behind one that waits longer", sizes: []int64{9, 1}, waits: []int64{50, 7}, want: "50 50"},
		{name: "before one that waits longer", sizes: []int64{1, 9}, waits: []int64{7, 50}, want: "7 50"},
		{name: "as many as the rate", sizes: []int64{5, 5}, waits: []int64{7, 7}, want: "7 7"},
		{
			name:  "more than the rate",
			sizes: []int64{5, 5, 1, 4, 1},
			waits: []int64{7, 7, 7, 7, 7},
			want:  "7 7 107 107 107",
		},
		{name: "many times the rate", sizes: []int64{10, 10, 10, 1}, waits: []int64{7, 7, 7, 7}, want: "7 107 207 307"},
		{name: "behind a part of one in front", sizes: []int64{4, 7, 2}, waits: []int64{7, 7, 7}, want: "7 107 107"},
		{
			name: "permits of the process return one by one", own: []int64{4, 3, 3}, sizes: []int64{4, 1, 3, 2},
			waits: []int64{80, 80, 80, 80}, want: "80 90 100 100",
		},
		{
			name: "permits of others are not known", own: []int64{2}, sizes: []int64{4, 4}, waits: []int64{30, 30},
			want: "30 30",
		},
	} {
		q := New(Settings{})
		for i, n := range c.own {
			at := start.Add(time.Duration(i+1-len(c.own)) * 10 * ms)
			q.pacer.members[0].share.Granted(at.UnixMicro(), 100*ms, n)
		}
		q.pacer.members[0].share.Dated(100*ms, 0)
		line := turns{rate: 10, interval: 100 * ms, returned: q.pacer.members[0].share.Returned}
		var got []string
		for i, n := range c.sizes {
			one := line.next(n, start.Add(time.Duration(c.waits[i])*ms))
			line.note(one, true)
			got = append(got, fmt.Sprint(one.at.Sub(start).Milliseconds()))
		}
		if got := strings.Join(got, " "); got != c.want {
			t.Errorf("%s: after %s ms, want %s", c.name, got, c.want)
		}
	}
}

// A request that is refused leaves the line to those behind it: also what it wanted does not count
// any more.
func TestTurnsBehindARefusedRequest(t *testing.T) {
	q := New(Settings{FailFast: true})
	q.pacer.members[0].share.Granted(start.Add(-20*ms).UnixMicro(), 100*ms, 5)
	q.pacer.members[0].share.Granted(start.UnixMicro(), 100*ms, 5)
	waiting := func(n int64, end time.Duration) *Request {
		return &Request{
			Permits:  protocol.Permits{First: n},
			Kind:     Wait,
			End:      start.Add(end),
			standing: standing{state: InFlight},
		}
	}
	b := &Batch{Ask: protocol.BatchAsk{Strict: 3}}
	g := replyOf(protocol.Member{Now: start.UnixMicro(), Rate: 10, Interval: 100 * ms})
	g.MakeOutcomes(3)
	for i, r := range []*Request{waiting(10, 90*ms), waiting(5, 90*ms), waiting(1, 90*ms)} {
		b.members = append(b.members, []*Request{r})
		b.Ask.Groups = append(b.Ask.Groups, protocol.Group{Permits: r.Permits, Count: 1})
		g.SetWait(i, 0, (80 * ms).Microseconds())
	}
	all, _ := allot(nil, b, g, start, start, false, q.turns(g, start))
	var got []string
	for _, one := range all {
		got = append(got, fmt.Sprint(verdictNames[one.verdict], " ", one.wait))
	}
	if got, want := strings.Join(got, ", "), "refused 100ms, waits 80ms, refused 100ms"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// Permits that are free for one behind a refused request are asked for again.
func TestFreePermitsBehindARequestThatWouldWaitInVain(t *testing.T) {
	q := New(Settings{FailFast: true})
	b := &Batch{Ask: protocol.BatchAsk{Strict: 2}}
	g := replyOf(protocol.Member{Now: start.UnixMicro(), Rate: 10, Free: 3, Interval: 100 * ms})
	g.MakeOutcomes(2)
	for i, n := range []int64{5, 2} {
		b.members = append(b.members,
			[]*Request{
				{
					Permits:  protocol.Permits{First: n},
					Kind:     Wait,
					End:      start.Add(50 * ms),
					standing: standing{state: InFlight},
				},
			})
		b.Ask.Groups = append(b.Ask.Groups, protocol.Group{Permits: protocol.Permits{First: n}, Count: 1})
		g.SetWait(i, 0, (80 * ms).Microseconds())
	}
	all, _ := allot(nil, b, g, start, start, false, q.turns(g, start))
	if all[0].verdict != refused || all[1].verdict != again {
		t.Errorf("%s, and behind it %s", verdictNames[all[0].verdict], verdictNames[all[1].verdict])
	}
}

// With FailFast, a request is refused as soon as a reply shows that it would wait in vain. One
// behind others asks for a call, too.
func TestFailFastRefusesARequestThatWouldWaitInVain(t *testing.T) {
	for _, c := range []struct {
		name  string
		fast  bool
		until bool // it has a timeout
		end   time.Duration
		fails bool
	}{
		{"its permits are free before the end", true, false, 101 * ms, false},
		{"they are free at the end", true, false, 100 * ms, true},
		{"without FailFast", false, false, 50 * ms, false},
		{"it has no end", true, false, 0, false},
		{"it has a timeout", true, true, 50 * ms, true},
	} {
		q := New(Settings{FailFast: c.fast, Identity: record.NewIdentity("me")})
		r := &Request{Permits: protocol.Permits{First: 10}, Kind: Wait}
		if c.end > 0 {
			r.End = start.Add(c.end)
		}
		if c.until {
			r.Until = start.Add(time.Hour)
		}
		m := Moment{Clock: start, Mono: start}
		q.Join(r)
		b := new(Batch)
		if !q.due(m) || !q.fill(m, b) {
			t.Fatalf("%s: no call", c.name)
		}
		g := &protocol.Reply{
			Members: protocol.Members{
				First: protocol.Member{Now: start.UnixMicro(), Rate: 10, Interval: 100 * ms, ResetAfter: 100 * ms},
			},
		}
		g.MakeOutcomes(1)
		g.SetWait(0, 0, (100 * ms).Microseconds())
		f := q.Settle(m, b, g)
		var late NotInTimeError
		isLate := errors.As(r.Outcome.Err, &late)
		if r.Settled() != c.fails || f.Refused != c.fails || isLate != (c.fails && !c.until) {
			t.Errorf("%s: settled %v, %v", c.name, r.Settled(), r.Outcome)
		}
		if isLate && !late.At.Equal(start.Add(100*ms)) {
			t.Errorf("%s: %v", c.name, late)
		}
		if c.fails {
			continue
		}
		behind := &Request{Permits: protocol.Permits{First: 1}, Kind: Wait, End: start.Add(time.Hour)}
		if q.Join(behind); q.due(m) != c.fast {
			t.Errorf("%s: the one behind it asks for a call: %v", c.name, !c.fast)
		}
	}
}

// While the process decides, no request is refused for its turn.
func TestFailFastKnowsNoTurnsWhileTheProcessDecides(t *testing.T) {
	q := New(Settings{FailFast: true})
	if q.turns(replyOf(protocol.Member{Notes: protocol.Local}), start) != nil {
		t.Error("the process knows the turns")
	}
}

// A request for more than the rate first asks for all, which takes nothing. So it does again if the
// queue is late, and the last instalment would be late then.
func TestARequestIsJudgedBeforeItsFirstInstalment(t *testing.T) {
	for _, c := range []struct {
		name  string
		after time.Duration
		want  int64
	}{
		{"on time", 100 * ms, 5},
		{"late, but in time", 149 * ms, 5},
		{"too late", 150 * ms, 25},
	} {
		q := New(Settings{FailFast: true, Identity: record.NewIdentity("me")})
		m := Moment{Clock: start, Mono: start}
		r := &Request{
			Permits:     protocol.Permits{First: 25},
			Kind:        Wait,
			End:         start.Add(350 * ms),
			Instalments: new(Instalments),
		}
		q.Join(r)
		next := func(want int64) *Batch {
			t.Helper()
			b := new(Batch)
			if !q.due(m) || !q.fill(m, b) || b.Ask.Groups[0].Permits.First != want {
				t.Fatalf("%s: the batch asks for %v, want %d permits", c.name, b.Ask.Groups, want)
			}
			return b
		}
		for _, ask := range []struct {
			permits, granted int64
			wait             time.Duration
		}{{25, -1, 0}, {5, 0, 100 * ms}} {
			b := next(ask.permits)
			g := replyOf(protocol.Member{Now: start.UnixMicro(), Rate: 10, Interval: 100 * ms})
			g.MakeOutcomes(1)
			g.SetGranted(0, ask.granted)
			g.SetWait(0, 0, ask.wait.Microseconds())
			q.Settle(m, b, g)
		}
		m = Moment{Clock: start.Add(c.after), Mono: start.Add(c.after)}
		next(c.want)
	}
}
