package schedule

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

const ms = time.Millisecond

const unknown = -time.Microsecond // the wait in a reply that does not say it

var start = time.UnixMilli(1_700_000_000_000)

// A caller is a request of a case: how many permits it wants, of two limiters with a slash between,
// and, as letters, what is known of it: w it waits, l its caller has left, t its timeout is over, +
// its timeout is over 5 ms after the start, k it is no request, but permits that are kept free.
type caller string

func (c caller) request() *Request {
	r := &Request{standing: standing{state: InFlight}}
	var rest string
	if n, _ := fmt.Sscanf(string(c), "%d%s", &r.Permits.First, &rest); n == 0 {
		panic(c)
	}
	if strings.HasPrefix(rest, "/") {
		r.Permits.Rest = make([]int64, 1)
		other := rest
		rest = ""
		_, _ = fmt.Sscanf(other, "/%d%s", &r.Permits.Rest[0], &rest)
	}
	for _, letter := range rest {
		switch letter {
		case 'w', 'k':
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

// carry adds a group of callers.
func (b *Batch) carry(callers string) {
	var members []*Request
	for _, text := range strings.Fields(callers) {
		members = append(members, caller(text).request())
	}
	first, reservations := members[0], strings.HasSuffix(callers, "k")
	if reservations {
		members = nil
	}
	b.members = append(b.members, members)
	b.Ask.Groups = append(b.Ask.Groups, protocol.Group{Permits: first.Permits, Count: int64(len(members))})
	b.Ask.Strict += oneIf(first.Kind == Wait)
}

// textOf returns numbers of permits with slashes between.
func textOf(p protocol.Permits) string {
	text := fmt.Sprint(p.First)
	for _, n := range p.Rest {
		text += fmt.Sprint("/", n)
	}
	return text
}

var verdictNames = [...]string{"granted", "exceeded", "parted", "refused", "waits", "again", "left"}

func TestAllot(t *testing.T) {
	for _, c := range []struct {
		name    string
		groups  []group
		free    int64
		other   int64 // permits that are free of the other limiter, if there are two
		notes   protocol.Notes
		partial bool // the queue goes on behind the waiting requests
		full    bool // because the batch is full
		// something has changed since the batch was sent
		outdated bool
		// 0: the groups are behind no reservation without a date; else when the first permits
		// return
		undated time.Duration
		want    string
		spare   string // permits that nobody gets
	}{
		{
			name: "all are granted", groups: []group{{"2w 2w", 2, 0}, {"1", 1, 0}}, free: 4,
			want: "granted 7, granted 5, granted 4",
		},
		{name: "a request is refused", groups: []group{{"1 1", 1, ms}}, free: 0, want: "granted 0, refused"},
		{name: "a request waits", groups: []group{{"1w 1w", 1, ms}}, free: 0, want: "granted 0, waits"},
		{name: "more than the rate", groups: []group{{"11", -1, 0}, {"1", 1, 0}}, free: 9, want: "exceeded, granted 9"},
		{name: "the timeout ends before", groups: []group{{"1w+", 0, 6 * ms}}, free: 0, want: "refused"},
		{name: "the timeout ends later", groups: []group{{"1w+", 0, 4 * ms}}, free: 0, want: "waits"},
		{name: "the timeout is over", groups: []group{{"1wt", 0, ms}}, free: 0, want: "refused"},

		{
			name: "a reservation in front has no date", groups: []group{{"5k", 0, 0}, {"1w+", 0, 6 * ms}},
			undated: 4 * ms, want: "waits",
		},
		{
			name: "and no permits return in time", groups: []group{{"5k", 0, 0}, {"1w+", 0, 6 * ms}},
			undated: 5 * ms, want: "refused",
		},
		{
			name: "something has changed", groups: []group{{"1w+ 1w 1wt", 0, 6 * ms}, {"1", 0, ms}}, outdated: true,
			want: "waits, waits, refused, refused",
		},

		{
			name: "the next one gets the permits of a caller that has left", groups: []group{{"2wl 2w", 1, ms}},
			want: "left, granted 0",
		},
		{
			name:   "two get them",
			groups: []group{{"2wl", 1, 0}, {"1 1 1", 0, ms}},
			want:   "left, granted 0, granted 0, refused",
		},
		{name: "they fit nobody", groups: []group{{"2wl", 1, 0}, {"3w", 0, ms}}, want: "left, waits", spare: "2"},
		{
			name: "they never pass a waiting request", groups: []group{{"1wl", 1, 0}, {"3w", 0, ms}, {"1", 0, ms}},
			want: "left, waits, refused", spare: "1",
		},
		{
			name: "but one that is refused", groups: []group{{"1wl", 1, 0}, {"3wt", 0, ms}, {"1", 0, ms}},
			want: "left, refused, granted 0",
		},
		{
			name: "and one above the rate", groups: []group{{"1wl", 1, 0}, {"12w", 0, ms}, {"1w", 0, ms}},
			want: "left, waits, granted 0",
		},
		{
			name: "nor the line behind the batch", groups: []group{{"1wl", 1, 0}, {"1", 0, ms}}, partial: true,
			want: "left, refused", spare: "1",
		},
		{name: "nobody asks for more", groups: []group{{"2l 2l", 2, 0}}, want: "left, left", spare: "4"},
		{name: "one that has left was refused", groups: []group{{"2wl 2w", 0, ms}}, want: "left, waits"},

		{
			name: "expired records remain", groups: []group{{"5", 0, ms}, {"6w", 0, ms}}, notes: protocol.More,
			want: "again, again",
		},
		{
			name:   "expired records remain, but the timeout is over",
			groups: []group{{"6wt", 0, ms}},
			notes:  protocol.More,
			want:   "refused",
		},

		{
			name: "its permits are free, for one in front", groups: []group{{"3w", 0, ms}, {"1w", 0, ms}}, free: 1,
			want: "waits, waits",
		},
		{
			name: "one in front has left", groups: []group{{"3wl", 0, ms}, {"1w 1w 1w", 0, ms}}, free: 2,
			want: "left, again, again, waits",
		},
		{
			name:   "one in front is refused",
			groups: []group{{"3wt", 0, ms}, {"1w", 0, ms}},
			free:   2,
			want:   "refused, again",
		},
		{
			name: "one above the rate blocks nobody", groups: []group{{"12w", 0, ms}, {"1w", 0, ms}}, free: 1,
			want: "waits, again",
		},
		{
			name:    "behind a full batch",
			groups:  []group{{"1w", 1, 0}, {"1 1 1", 0, ms}},
			free:    2,
			partial: true,
			full:    true,
			want:    "granted 2, again, again, refused",
		},
		{
			name: "what the fair share leaves", groups: []group{{"1w", 1, 0}, {"1", 0, ms}}, free: 2, partial: true,
			want: "granted 2, refused",
		},
		{
			name:    "a full batch, decided by the process",
			groups:  []group{{"1w", 1, 0}, {"1", 0, ms}},
			free:    2,
			partial: true,
			full:    true, notes: protocol.Local, want: "granted 2, refused",
		},

		{name: "permits are kept free", groups: []group{{"1k", 0, 0}, {"1w", 0, ms}}, free: 1, want: "waits"},
		{
			name:   "permits are kept from some",
			groups: []group{{"3wl", 0, ms}, {"1k", 0, 0}, {"1w 1w", 0, ms}},
			free:   2,
			want:   "left, again, waits",
		},
		{
			name:   "kept permits are none of a caller that has left",
			groups: []group{{"1wl", 1, 0}, {"1k", 0, 0}, {"1w", 0, ms}},
			want:   "left, granted 0",
		},

		{
			name: "two limiters grant", groups: []group{{"2/1w 2/1w", 2, 0}, {"1/3", 1, 0}}, free: 4, other: 5,
			want: "granted 7/9, granted 5/8, granted 4/5",
		},
		{
			name: "one of two limiters refuses", groups: []group{{"1/2 1/2", 1, ms}}, free: 5, other: 1,
			want: "granted 5/1, refused",
		},
		{
			name:   "more than the rate of the second",
			groups: []group{{"1/11", -2, 0}, {"1/1", 1, 0}},
			free:   9,
			other:  9,
			want:   "exceeded, granted 9/9",
		},
		{
			name:   "the next one that fits both gets them",
			groups: []group{{"2/2l", 1, 0}, {"1/3", 0, ms}, {"2/1", 0, ms}},
			want:   "left, refused, granted 0/0", spare: "0/1",
		},
		{
			name:   "they fit one limiter of nobody",
			groups: []group{{"2/2l 2/2l", 2, 0}, {"5/1", 0, ms}, {"1/5", 0, ms}},
			want:   "left, left, refused, refused", spare: "4/4",
		},
		{
			name: "they never pass a waiting set", groups: []group{{"1/1wl", 1, 0}, {"1/2w", 0, ms}, {"1/1", 0, ms}},
			want: "left, waits, refused", spare: "1/1",
		},
		{
			name:   "a set above one rate blocks nobody",
			groups: []group{{"1/12w", 0, ms}, {"1/1w", 0, ms}},
			free:   1,
			other:  1,
			want:   "waits, again",
		},
		{
			name: "a set in front has left", groups: []group{{"1/3wl", 0, ms}, {"1/1w 1/1w", 0, ms}}, free: 9, other: 1,
			want: "left, again, waits",
		},
		{
			name:   "permits of one limiter are kept free",
			groups: []group{{"0/1k", 0, 0}, {"1/1w", 0, ms}},
			free:   5,
			other:  1,
			want:   "waits",
		},
		{
			name:   "a wait is not known",
			groups: []group{{"1/1", 0, unknown}, {"1/2w", 0, unknown}, {"1/1wt", 0, unknown}},
			want:   "again, again, refused",
		},
		{
			name:   "expired records remain, but the waits are known",
			groups: []group{{"5/1", 0, ms}},
			notes:  protocol.More,
			want:   "refused",
		},
	} {
		b := &Batch{full: c.full, undated: oneIf(c.undated > 0)}
		g := replyOf(protocol.Member{Rate: 10, Free: c.free, Notes: c.notes, NextAfter: c.undated})
		b.Ask.Partial = c.partial
		if strings.Contains(c.groups[0].callers, "/") {
			g.Rest = []protocol.Member{{Rate: 10, Free: c.other}}
		}
		g.MakeOutcomes(len(c.groups))
		for i, of := range c.groups {
			b.carry(of.callers)
			g.SetGranted(i, of.granted)
			g.SetWait(i, g.Len()-1, of.wait.Microseconds()) // for the last limiter
		}
		all, spare := allot(nil, b, g, start, start, c.outdated, nil)
		in := map[*Request]string{}
		for _, one := range all {
			text := verdictNames[one.verdict]
			if one.verdict == granted {
				text += " " + textOf(one.free)
			}
			in[one.request] = text
		}
		var texts []string
		for _, members := range b.members {
			for _, r := range members {
				texts = append(texts, in[r])
			}
		}
		nobody := ""
		if spare.Any(func(n int64) bool { return n > 0 }) {
			nobody = textOf(spare)
		}
		if got := strings.Join(texts, ", "); got != c.want || nobody != c.spare {
			t.Errorf("%s: %s, and %q for nobody; want %s, and %q", c.name, got, nobody, c.want, c.spare)
		}
	}
}
