package soak

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// judge_test.go checks two things: the times between which callers got grants, and the records that
// were written to Redis. Both are checked in periods: a fault that removes a limiter's state also
// removes earlier grants, so it ends a period, and the next one begins once no earlier grant can
// matter.

// A judge has the data that is not checked yet.
type judge struct {
	t      *testing.T
	server *redistest.Server
	limits []limit

	mu      sync.Mutex
	log     map[string][]window.Grant // since the period began
	begun   time.Time
	watched *redistest.Recording // nil while none runs

	counted   map[string]int64 // permits of checked grants
	byLog     map[string]int64 // largest window
	records   map[string]int
	byRecords map[string]int64
	stretches int
}

func newJudge(t *testing.T, server *redistest.Server, limits []limit) *judge {
	j := &judge{
		t: t, server: server, limits: limits, log: map[string][]window.Grant{}, counted: map[string]int64{},
		byLog: map[string]int64{}, records: map[string]int{}, byRecords: map[string]int64{},
	}
	j.begin()
	return j
}

// settled returns the time after which a removed state does not matter any more: a few of the
// longest intervals.
func (j *judge) settled() time.Duration {
	var longest time.Duration
	for _, l := range j.limits {
		longest = max(longest, l.rate.Interval)
	}
	return 2*longest + 500*time.Millisecond
}

// granted adds a grant.
func (j *judge) granted(name string, g window.Grant) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.log[name] = append(j.log[name], g)
}

// begin starts a period.
func (j *judge) begin() {
	watched := redistest.Monitor(j.t, j.server.Addr, func(c redistest.Command) bool {
		return c.Name() == "ZADD" && strings.HasPrefix(c.Args[1], "{soak:")
	})
	j.mu.Lock()
	defer j.mu.Unlock()
	j.watched, j.begun = watched, time.Now()
}

// end ends a period, and checks it. Later grants are not checked before the next one begins.
func (j *judge) end() {
	j.t.Helper()
	if j.watched == nil {
		return
	}
	ended := time.Now()
	commands := j.watched.Stop()
	j.watched = nil
	// A grant of this period may be logged a little later, and by Java up to a command's time
	// later; grants that overlap its end are not checked.
	time.Sleep(100 * time.Millisecond)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.stretches++
	spans := spansOf(j.t, commands)
	for _, l := range j.limits {
		log := slices.DeleteFunc(
			j.log[l.name], func(g window.Grant) bool { return g.Start.Before(j.begun) || g.End.After(ended) },
		)
		most, at := window.LargestAt(log, l.rate.Interval, time.Millisecond) // as exact as Java's clock
		if most > l.rate.Permits {
			j.t.Errorf("%s: callers were granted %d of %d in a window from %v on", l.name, most, l.rate.Permits, at)
		}
		for _, g := range log {
			j.counted[l.name] += g.Permits
		}
		j.byLog[l.name] = max(j.byLog[l.name], most)
		if !l.joined {
			most, at := window.Largest(spans[l.name], l.rate.Interval)
			if most > l.rate.Permits {
				j.t.Errorf("%s: records of %d permits, of %d, in a window from %v on", l.name, most, l.rate.Permits, at)
			}
			j.records[l.name] += len(spans[l.name])
			j.byRecords[l.name] = max(j.byRecords[l.name], most)
		}
	}
	clear(j.log)
}

// spansOf returns the recorded grants of each limit: between the time of the call, which is the
// score, and the time of its execution. A record that is written again, as by a retried call, is
// one grant.
func spansOf(t *testing.T, commands []redistest.Command) map[string][]window.Grant {
	found := map[string]map[string]window.Grant{}
	for _, c := range commands {
		name := strings.TrimSuffix(strings.TrimPrefix(c.Args[1], "{"), "}:permits")
		if found[name] == nil {
			found[name] = map[string]window.Grant{}
		}
		for text, member := range c.Added() {
			score, ok := redistest.Micros(text)
			if !ok || len(member) < 4 {
				t.Errorf("a record of %s: %q at %s", name, member, text)
				continue
			}
			g, again := found[name][member]
			if !again {
				g = window.Grant{
					Permits: int64(binary.LittleEndian.Uint32([]byte(member[len(member)-4:]))),
					Start:   time.UnixMicro(score),
				}
			}
			g.End = c.Time
			found[name][member] = g
		}
	}
	spans := map[string][]window.Grant{}
	for name, members := range found {
		for _, g := range members {
			spans[name] = append(spans[name], g)
		}
	}
	return spans
}

func (j *judge) report() string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintf(
		w, "limiter, in %d stretches\trate\tpermits granted\tmost in a window\trecords\tmost in a window\n",
		j.stretches,
	)
	for _, l := range j.limits {
		fmt.Fprintf(w, "%s\t%v\t%d\t%d\t%d\t%d\n",
			l.name, l.rate, j.counted[l.name], j.byLog[l.name], j.records[l.name], j.byRecords[l.name])
	}
	_ = w.Flush()
	return text.String()
}
