package compat

import (
	"strings"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// lease_test.go lets a Java process compete with Go processes that take permits ahead of demand
// (WithLease).

// contendWithLeases lets Go processes take permits ahead. In the first interval these hold leases;
// then the rate is in use, and they take nothing ahead any more.
func contendWithLeases(t *testing.T, server *redistest.Server, f fleet) {
	f.lease = 25 * time.Millisecond
	ahead := 0
	// permits of leases expire up to an eighth of the interval late
	for _, r := range f.rounds(t, server, "contention:leases", true, 2, 0.75) {
		for _, s := range r.scores {
			if s.At > s.Added+time.Millisecond.Microseconds() {
				ahead++
			}
		}
	}
	t.Logf("%d records are of a call that took a lease", ahead)
	if ahead == 0 {
		t.Error("no call took a lease")
	}
}

// heldOf is scoresOf where clients give permits back, too: each record counts from when it was
// written until it was removed, by the server's clock.
func heldOf(t *testing.T, commands []redistest.Command, key string, until time.Time) (scores []window.Score) {
	t.Helper()
	written := map[string]int{} // index by member
	for _, c := range commands {
		if !c.Lua || len(c.Args) < 3 || c.Args[1] != key || c.Time.After(until) {
			continue
		}
		switch args := c.Args; strings.ToLower(args[0]) {
		case "zrem":
			for _, member := range args[2:] {
				i, known := written[member]
				if !known {
					t.Fatalf("the record %q was removed before it was written", member)
				}
				scores[i].Removed = c.Time.UnixMicro()
			}
		case "zadd":
			for score, member := range c.Added() {
				s := scoreOf(t, score, member)
				s.Added = c.Time.UnixMicro()
				if i, again := written[member]; again { // a call that is made again dates its record anew
					scores[i].Removed = s.Added
				}
				written[member] = len(scores)
				scores = append(scores, s)
			}
		}
	}
	return scores
}
