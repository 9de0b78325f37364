package compat

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/compat/redisson"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// lease_test.go lets a Java process compete with Go processes that take permits ahead of demand (WithLease).

// TestLeasesDoNotStarveJava: two Go processes ask for more than the rate, one that waits and one that polls. With their
// leases, Java gets at least a fifth of its share without them, by the medians of 7 rounds, and no window holds more
// than the rate. The rounds with and without leases take turns. In five runs, idle and busy, the ratio of the medians
// was 0.47 to 0.78, with a standard deviation of 0.11. So a fifth is 3.8 of these below the mean, and a false alarm has
// a probability of about 0.01 % if the ratios are distributed normally.
func TestLeasesDoNotStarveJava(t *testing.T) {
	const rounds = 7
	server := redistest.Real(t)
	java := javas(t, server, "4.7.0")
	reports := map[bool][]report{}
	for round := range 2 * rounds {
		leased := (round+1)/2%2 == 1 // so that a trend, as of a JVM that warms up, favours neither
		f := fleet{
			rate: every(250*time.Millisecond, 200), javas: java, gos: 2,
			work: redisson.Work{Threads: 8, For: time.Second, Min: 1, Max: 3},
		}
		if leased {
			f.lease = 25 * time.Millisecond
		}
		r := f.run(t, server, fmt.Sprint("lease:", round), true)
		r.verify(t)
		reports[leased] = append(reports[leased], r)
	}
	with, without := median(reports[true], report.javaShare), median(reports[false], report.javaShare)
	t.Logf("Java's share: %.1f %% in the median with leases, %.1f %% without", 100*with, 100*without)
	if with < without/5 {
		t.Error("Java is starved by leases")
	}
	for leased, rounds := range reports {
		if used := median(rounds, report.used); used < 0.75 {
			t.Errorf("leases %v: %.1f %% of what the rate allows was used in the median", leased, 100*used)
		}
	}
}

// heldOf is scoresOf where clients give permits back, too: each record counts from when it was written until it was
// removed, by the server's clock.
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
				// A script that joins records writes the larger one first.
				last := scores[len(scores)-1]
				scores[i].Removed = c.Time.UnixMicro()
				if i != len(scores)-1 && last.At == scores[i].At && last.Permits > scores[i].Permits {
					scores[i].Removed = min(last.Added, scores[i].Removed)
				}
			}
		case "zadd":
			score, member := args[len(args)-2], args[len(args)-1]
			at, ok := redistest.Micros(score)
			if !ok || len(member) < 4 {
				t.Fatalf("a record with score %q and member %q", score, member)
			}
			written[member] = len(scores)
			permits := binary.LittleEndian.Uint32([]byte(member[len(member)-4:]))
			scores = append(scores, window.Score{Permits: int64(permits), At: at, Added: c.Time.UnixMicro()})
		}
	}
	return scores
}
