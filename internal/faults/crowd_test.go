package faults

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// crowd_test.go lets thousands of callers in several processes compete for one limiter, and checks
// their grants by the commands that Redis got, and by their own logs.

// A history has what Redis executed for one limiter, in that order.
type history struct {
	scores []window.Score
	// the same records, each from the time of its call to the server's when that was served
	spans    []window.Grant
	disorder time.Duration // how far behind an earlier call's time a later one's was
	// permits in records that were live at once, by the time of each call in turn
	most int64
}

// historyOf returns the calls and the records of a limiter from the commands of a MONITOR.
func historyOf(t *testing.T, commands []redistest.Command, name string, rate rratelimiter.Rate) (h history) {
	t.Helper()
	var live []window.Score
	var latest, disorder, sum int64
	for _, c := range commands {
		if isCall(c, name) {
			now := moment(t, c.Args[8])
			latest = max(latest, now)
			disorder = max(disorder, latest-now)
			live = slices.DeleteFunc(live, func(s window.Score) bool {
				expired := s.At <= now-rate.Interval.Microseconds()
				if expired {
					sum -= s.Permits
				}
				return expired
			})
		} else if isRecord(c, name) {
			for score, member := range c.Added() {
				s := window.Score{
					At:      moment(t, score),
					Permits: int64(binary.LittleEndian.Uint32([]byte(member[len(member)-4:]))),
				}
				live = append(live, s)
				sum += s.Permits
				h.most = max(h.most, sum)
				h.scores = append(h.scores, s)
				h.spans = append(h.spans, window.Grant{Permits: s.Permits, Start: time.UnixMicro(s.At), End: c.Time})
			}
		}
	}
	h.disorder = time.Duration(disorder) * time.Microsecond
	return h
}

// isCall reports whether a command asks for permits of a limiter.
func isCall(c redistest.Command, name string) bool {
	return strings.HasPrefix(c.Name(), "EVAL") && len(c.Args) > 12 && c.Args[3] == name
}

// isRecord reports whether a command writes a record of a limiter.
func isRecord(c redistest.Command, name string) bool {
	return c.Name() == "ZADD" && c.Args[1] == "{"+name+"}:permits"
}

// moment parses a time, in µs.
func moment(t *testing.T, text string) int64 {
	t.Helper()
	n, ok := redistest.Micros(text)
	if !ok {
		t.Fatalf("%q is no time", text)
	}
	return n
}

// permits returns the permits in all records.
func (h history) permits() (sum int64) {
	for _, s := range h.scores {
		sum += s.Permits
	}
	return sum
}

// occupied returns the mean fraction of the rate that was in use between two times.
func (h history) occupied(rate rratelimiter.Rate, from, to time.Time) float64 {
	var held int64
	for _, s := range h.scores {
		start, end := max(s.At, from.UnixMicro()), min(s.At+rate.Interval.Microseconds(), to.UnixMicro())
		held += s.Permits * max(0, end-start)
	}
	return float64(held) / float64(rate.Permits*to.Sub(from).Microseconds())
}

// judge fails the test if more was granted than the rate allows. There are four checks:
//
// The order in which Redis executed the calls: by the time of each, the live permits never exceed
// the rate.
//
// The records, and the log of the callers: both contain for each grant two times between which it
// was made; the first is not after its score, and the last not before its execution. Permits that
// expired for a later grant did so at least an interval after the first time of the earlier one, by
// one clock for all, and before the later one was executed: so two grants lie in one window for
// certain only if the limiter is at fault, however slow and in whatever order calls travel.
//
// The scores alone. Every client reads its clock before it sends its call, so a call can overtake
// another one with a later time. A record that one call found expired lets the next one grant,
// whose time may be that much earlier: so only windows that are shorter than the interval by that
// much never hold more than the rate.
func (h history) judge(t *testing.T, rate rratelimiter.Rate, granted calls) {
	t.Helper()
	var log []window.Grant
	for _, c := range granted {
		log = append(log, window.Grant{Permits: c.Permits, Start: c.Start, End: c.End})
	}
	byLog, _ := window.Largest(log, rate.Interval)
	bySpan, _ := window.Largest(h.spans, rate.Interval)
	byScore, _ := window.LargestScores(h.scores, rate.Interval-h.disorder)
	t.Logf(
		"of %d permits, %d live at most; largest window %d by %d records, %d by their scores (calls are out of order by up to %v), %d by the log of %d grants",
		rate.Permits, h.most, bySpan, len(h.spans), byScore, h.disorder, byLog, len(log),
	)
	if most := max(h.most, bySpan, byScore, byLog); most > rate.Permits {
		t.Errorf("%d permits in a window, of %d", most, rate.Permits)
	}
}

// watch records the commands for a limiter that a server gets.
func watch(t *testing.T, server *redistest.Server, name string) *redistest.Recording {
	t.Helper()
	return redistest.Monitor(
		t, server.Addr, func(c redistest.Command) bool { return isCall(c, name) || isRecord(c, name) },
	)
}

func setRate(t *testing.T, server *redistest.Server, name string, rate rratelimiter.Rate) {
	t.Helper()
	if err := rratelimiter.NewClient(server.Client()).RateLimiter(name).SetRate(t.Context(), rate); err != nil {
		t.Fatal(err)
	}
}

// TestCrowd: 4 processes with 1024 callers each use the whole rate, and not one permit more.
//
// A free permit is idle until the next request, so late timers and the time of calls limit the use
// of the rate: 2 % of this interval are 40 ms. A busy machine needs that, while callers ask for
// several times the rate, at a pace that does not keep the machine busy. It is checked once the
// limiter was full for the first time. A server that stands still for 0.7 s loses as much, so the
// best of a few rounds is judged; a limiter that wastes permits does so in each.
func TestCrowd(t *testing.T) {
	const least, rounds = 0.98, 3
	server := redistest.Real(t)
	best := 0.0
	for round := 0; round < rounds && best < least; round++ {
		best = max(best, crowdRound(t, server, fmt.Sprint("crowd:", round)))
	}
	if best < least {
		t.Errorf("in %d rounds at most %.1f %% of the rate was used, not %.0f %%", rounds, 100*best, 100*least)
	}
}

// crowdRound is a round of TestCrowd. It returns how much of the rate was used.
func crowdRound(t *testing.T, server *redistest.Server, name string) (used float64) {
	const processes = 4
	rate := rratelimiter.Rate{Permits: 8000, Interval: 2 * time.Second}
	setRate(t, server, name, rate)
	recording := watch(t, server, name)
	o := order{Kind: "crowd", Addr: server.Addr, Name: name, Goroutines: 1024, For: 6 * time.Second, Pause: time.Second}
	got, start := runWorkers(t, slices.Repeat([]order{o}, processes)...)
	h := historyOf(t, recording.Stop(), name, rate)

	all := slices.Concat(got...)
	h.judge(t, rate, all.where(isGranted))
	given, doubtful := all.where(isGranted).permits(), all.where(isUnknown).permits()
	if len(h.scores) == 0 {
		t.Fatal("no record was written")
	}
	used = h.occupied(rate, time.UnixMicro(h.scores[0].At).Add(rate.Interval), start.Add(o.For))
	t.Logf(
		"%d permits recorded, %d granted, %d of unknown outcome; %.1f %% of the rate used", h.permits(), given,
		doubtful,
		100*used,
	)
	if h.permits() < given || h.permits() > given+doubtful {
		t.Errorf("%d permits recorded, %d granted and %d of unknown outcome", h.permits(), given, doubtful)
	}
	for i, c := range got {
		if len(c.where(isGranted)) == 0 {
			t.Errorf("process %d got nothing", i)
		}
	}
	return used
}

// TestBigRequestsUnderStreams: in each of 4 processes one caller asks for 50 permits, again and
// again, while 200 others ask for one at a time, for several times the rate.
//
// With its own limiter, a process serves that caller within one interval: from its first refusal on
// no caller behind it gets anything, and all permits of the others expire meanwhile. (The limit
// allows more for a busy machine.) The caller pauses for longer than an interval, so that the
// others have taken the whole rate, a permit at a time, when it returns.
//
// Between processes there is no order. But while the big callers of all four wait, the others get
// nothing, so within an interval one of the four is served: that is a round, here of an eighth of a
// second or so. Then only the others of its process can get permits, until it is back. Which one is
// served is random: three times of four it is another one, so 40 rounds without it are one case in
// 100,000. The limit is the time of 40 rounds.
func TestBigRequestsUnderStreams(t *testing.T) {
	const processes = 4
	for _, test := range []struct {
		what     string
		name     func(process int) string
		interval time.Duration // for 1 permit a ms
		away     time.Duration
		limit    time.Duration
		last     time.Duration // longer than the limit, so that starvation shows
	}{
		{
			what: "a limiter each", name: func(i int) string { return fmt.Sprint("stream:", i) },
			interval: 250 * time.Millisecond,
			away:     500 * time.Millisecond,
			limit:    4 * time.Second,
			last:     8 * time.Second,
		},
		{
			what: "one limiter", name: func(int) string { return "stream" },
			interval: 500 * time.Millisecond,
			away:     100 * time.Millisecond,
			limit:    5 * time.Second,
			last:     6 * time.Second,
		},
	} {
		t.Run(test.what, func(t *testing.T) {
			t.Parallel()
			server := redistest.Real(t)
			orders := make([]order, processes)
			for i := range orders {
				orders[i] = order{
					Kind: "stream", Addr: server.Addr, Name: test.name(i), Goroutines: 200, For: test.last,
					Pause: 100 * time.Millisecond, Away: test.away,
				}
				setRate(t, server, orders[i].Name,
					rratelimiter.Rate{Permits: test.interval.Milliseconds(), Interval: test.interval})
			}
			got, _ := runWorkers(t, orders...)
			for i, c := range got {
				longest := c.percentile(100)
				t.Logf("process %d: %d grants of %d permits, half of them within %v, all within %v",
					i, len(c), big, c.percentile(50), longest)
				if longest > test.limit || len(c) == 0 {
					t.Errorf("process %d: one of %d grants of %d permits took %v, not %v",
						i, len(c), big, longest, test.limit)
				}
			}
		})
	}
}
