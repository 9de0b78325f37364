package schedule

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

const ms = time.Millisecond

var start = time.UnixMilli(1_700_000_000_000)

// A caller is a request of a case: how many permits it wants and, as letters, what is known of it: w it waits, l its caller has
// left, t its timeout is over, + its timeout is over 5 ms after the start.
type caller string

func (c caller) request() *Request {
	r := &Request{state: InFlight}
	var rest string
	if n, _ := fmt.Sscanf(string(c), "%d%s", &r.N, &rest); n == 0 {
		panic(c)
	}
	for _, letter := range rest {
		switch letter {
		case 'w':
			r.Kind = Wait
		case 'l':
			r.state = Abandoned
		case 't':
			r.last = true
		case '+':
			r.Until = start.Add(5 * ms)
		}
	}
	return r
}

// A group is the callers of a group, how many of them the reply grants, and the wait of the others.
type group struct {
	callers string // separated by blanks
	granted int64
	wait    time.Duration
}

var verdictNames = [...]string{"granted", "exceeded", "refused", "waits", "again", "left"}

func TestAllot(t *testing.T) {
	for _, c := range []struct {
		name    string
		groups  []group
		free    int64
		notes   protocol.Notes
		partial bool // the queue goes on behind the waiting requests
		full    bool // because the batch is full
		want    string
		spare   int64
	}{
		{name: "all are granted", groups: []group{{"2w 2w", 2, 0}, {"1", 1, 0}}, free: 4, want: "granted 7, granted 5, granted 4"},
		{name: "a request is refused", groups: []group{{"1 1", 1, ms}}, free: 0, want: "granted 0, refused"},
		{name: "a request waits", groups: []group{{"1w 1w", 1, ms}}, free: 0, want: "granted 0, waits"},
		{name: "more than the rate", groups: []group{{"11", -1, 0}, {"1", 1, 0}}, free: 9, want: "exceeded, granted 9"},
		{name: "the timeout ends before", groups: []group{{"1w+", 0, 6 * ms}}, free: 0, want: "refused"},
		{name: "the timeout ends later", groups: []group{{"1w+", 0, 4 * ms}}, free: 0, want: "waits"},
		{name: "the timeout is over", groups: []group{{"1wt", 0, ms}}, free: 0, want: "refused"},

		{name: "the next one gets the permits of a caller that has left", groups: []group{{"2wl 2w", 1, ms}}, want: "left, granted 0"},
		{name: "two get them", groups: []group{{"2wl", 1, 0}, {"1 1 1", 0, ms}}, want: "left, granted 0, granted 0, refused"},
		{name: "they fit nobody", groups: []group{{"2wl", 1, 0}, {"3w", 0, ms}}, want: "left, waits", spare: 2},
		{name: "they never pass a waiting request", groups: []group{{"1wl", 1, 0}, {"3w", 0, ms}, {"1", 0, ms}}, want: "left, waits, refused", spare: 1},
		{name: "but one that is refused", groups: []group{{"1wl", 1, 0}, {"3wt", 0, ms}, {"1", 0, ms}}, want: "left, refused, granted 0"},
		{name: "and one above the rate", groups: []group{{"1wl", 1, 0}, {"12w", 0, ms}, {"1w", 0, ms}}, want: "left, waits, granted 0"},
		{name: "nor the line behind the batch", groups: []group{{"1wl", 1, 0}, {"1", 0, ms}}, partial: true, want: "left, refused", spare: 1},
		{name: "nobody asks for more", groups: []group{{"2l 2l", 2, 0}}, want: "left, left", spare: 4},
		{name: "one that has left was refused", groups: []group{{"2wl 2w", 0, ms}}, want: "left, waits"},

		{name: "expired records remain", groups: []group{{"5", 0, ms}, {"6w", 0, ms}}, notes: protocol.More, want: "again, again"},
		{name: "expired records remain, but the timeout is over", groups: []group{{"6wt", 0, ms}}, notes: protocol.More, want: "refused"},

		{name: "its permits are free, for one in front", groups: []group{{"3w", 0, ms}, {"1w", 0, ms}}, free: 1, want: "waits, waits"},
		{name: "one in front has left", groups: []group{{"3wl", 0, ms}, {"1w 1w 1w", 0, ms}}, free: 2, want: "left, again, again, waits"},
		{name: "one in front is refused", groups: []group{{"3wt", 0, ms}, {"1w", 0, ms}}, free: 2, want: "refused, again"},
		{name: "one above the rate blocks nobody", groups: []group{{"12w", 0, ms}, {"1w", 0, ms}}, free: 1, want: "waits, again"},
		{name: "behind a full batch", groups: []group{{"1w", 1, 0}, {"1 1 1", 0, ms}}, free: 2, partial: true, full: true, want: "granted 2, again, again, refused"},
		{name: "what the fair share leaves", groups: []group{{"1w", 1, 0}, {"1", 0, ms}}, free: 2, partial: true, want: "granted 2, refused"},
		{name: "a full batch, decided by the process", groups: []group{{"1w", 1, 0}, {"1", 0, ms}}, free: 2, partial: true, full: true, notes: protocol.Local, want: "granted 2, refused"},
	} {
		b, g := &Batch{full: c.full}, &protocol.AcquireReply{Rate: 10, Free: c.free, Notes: c.notes}
		b.Ask.Partial = c.partial
		g.MakeOutcomes(len(c.groups))
		for i, of := range c.groups {
			var members []*Request
			for _, text := range strings.Fields(of.callers) {
				members = append(members, caller(text).request())
			}
			if members[0].Kind == Wait {
				b.Ask.Strict++
			}
			b.members = append(b.members, members)
			b.Ask.Groups = append(b.Ask.Groups, protocol.Group{Size: members[0].N, Count: int64(len(members))})
			g.SetGranted(i, of.granted)
			g.SetWait(i, of.wait.Microseconds())
		}
		all, spare := allot(nil, b, g, start, start, nil)
		in := map[*Request]string{}
		for _, one := range all {
			text := verdictNames[one.verdict]
			if one.verdict == granted {
				text += fmt.Sprint(" ", one.free)
			}
			in[one.request] = text
		}
		var texts []string
		for _, members := range b.members {
			for _, r := range members {
				texts = append(texts, in[r])
			}
		}
		if got := strings.Join(texts, ", "); got != c.want || spare != c.spare {
			t.Errorf("%s: %s, and %d for nobody; want %s, and %d", c.name, got, spare, c.want, c.spare)
		}
	}
}
