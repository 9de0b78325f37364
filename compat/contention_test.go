package compat

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/compat/redisson"
	"github.com/rratelimiter/rratelimiter/internal/dispatch"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// contention_test.go lets Java and Go processes compete for one limiter. Two independent sources
// show what was granted: the log of the callers, and the records written to Redis.

const (
	// from giving the work to processes that are ready to their first call
	start = 300 * time.Millisecond
	grace = 2 * time.Second
)

// A fleet is a set of processes on one limiter.
type fleet struct {
	rate  rratelimiter.Rate
	javas []*redisson.Process
	gos   int
	work  redisson.Work

	granularity time.Duration // granularity of the Go processes; 0: none
	lease       time.Duration // leases of the Go processes; 0: none
}

// A report is what a fleet was granted.
type report struct {
	log    []window.Grant
	byJava int64 // permits
	byGo   int64
	scores []window.Score
	// largest amount by which a call's time lies before that of a call that Redis served earlier
	disorder time.Duration
	duration time.Duration
	rate     rratelimiter.Rate
}

// run lets all processes work at the same time. If mixed, every second process polls and the others
// block; otherwise all block.
func (f fleet) run(t *testing.T, server *redistest.Server, name string, mixed bool) report {
	t.Helper()
	rdb := server.Client()
	limiter := rratelimiter.NewClient(rdb, rratelimiter.WithCallTimeout(patience)).RateLimiter(name)
	if err := limiter.SetRate(t.Context(), f.rate); err != nil {
		t.Fatal(err)
	}
	workers := make([]*worker, f.gos)
	for i := range workers {
		workers[i] = startGo(t, order{Addr: server.Addr, Name: name, Granularity: f.granularity, Lease: f.lease})
	}
	monitor := redistest.Monitor(t, server.Addr)
	work := f.work
	work.At, work.Pause, work.Grace = time.Now().Add(start), 2*time.Millisecond, grace
	r := report{duration: work.For, rate: f.rate}
	var mu sync.Mutex
	var wg sync.WaitGroup
	add := func(sum *int64, grants []redisson.Grant) {
		mu.Lock()
		defer mu.Unlock()
		for _, g := range grants {
			*sum += g.Permits
			r.log = append(r.log, window.Grant{Permits: g.Permits, Start: g.Start, End: g.End})
		}
	}
	for i, java := range f.javas {
		w := work
		w.Blocked = !mixed || i%2 == 0
		wg.Go(func() {
			result, err := java.Run(t.Context(), name, w)
			if err != nil {
				t.Errorf("Java %s: %v", java.Version(), err)
				return
			}
			for _, fault := range result.Faults {
				t.Errorf("Java %s: %v", java.Version(), fault)
			}
			add(&r.byJava, result.Grants)
		})
	}
	for i, worker := range workers {
		w := work
		w.Blocked = !mixed || i%2 == 0
		wg.Go(func() { add(&r.byGo, worker.run(t, w)) })
	}
	wg.Wait()
	commands := monitor.Stop()
	scores := scoresOf
	if f.lease > 0 {
		scores = heldOf
	}
	r.scores = scores(t, commands, "{"+name+"}:permits", work.At.Add(work.For))
	r.disorder = disorderOf(commands, name)
	return r
}

// disorderOf returns the largest amount by which the time of a granted call lies before the time of
// a call that Redis served earlier. Every client reads its clock before it sends a call, so on a
// busy machine a call can overtake one with an earlier time. A record that the first call found
// expired lets the second one be granted, whose time may be earlier by this amount. So the rate
// bounds only windows that are shorter than the interval by this amount. (With all calls in order,
// it is 0.)
func disorderOf(commands []redistest.Command, name string) time.Duration {
	var latest, current, most int64
	for _, c := range commands {
		if c.Lua && c.Name() == "ZADD" {
			most = max(most, latest-current)
		}
		if c.Lua {
			continue
		}
		current = latest // for a call on another limiter
		if now, ok := datedBy(c, name); ok {
			latest, current = max(latest, now), now
		}
	}
	return time.Duration(most) * time.Microsecond
}

// datedBy returns the time in a client's call on a limiter, in µs since 1970.
func datedBy(c redistest.Command, name string) (now int64, ok bool) {
	if len(c.Args) < 10 || !strings.HasPrefix(c.Name(), "EVAL") || c.Args[3] != name {
		return 0, false
	}
	for _, arg := range c.Args[8:10] { // Java passes the permits first, Go the time
		if now, ok := redistest.Micros(arg); ok && now > 1e15 {
			return now, true
		}
	}
	return 0, false
}

// scoresOf extracts from a MONITOR log the records written to a permits key, by any client and in
// any format. A record that was replaced by a larger one of the same score, or got a new score, no
// longer counts; nothing else removes single records here. With a granularity, scores are the ends
// of buckets. No window of such scores may exceed the rate either, because each counts from before
// its score until an interval after it.
func scoresOf(t *testing.T, commands []redistest.Command, key string, until time.Time) []window.Score {
	t.Helper()
	var scores []window.Score
	written := map[string]int{} // index by member
	for _, c := range commands {
		if len(c.Args) == 3 && strings.EqualFold(c.Args[0], "zrem") && c.Args[1] == key && !c.Time.After(until) {
			i, known := written[c.Args[2]]
			if last := len(scores) - 1; !known || scores[i].At != scores[last].At ||
				scores[i].Permits >= scores[last].Permits {
				t.Fatalf("the record %q was removed after %+v", c.Args[2], scores[last])
			}
			scores[i].Permits = 0
			continue
		}
		if len(c.Args) < 2 || c.Args[1] != key || c.Time.After(until) {
			continue
		}
		for score, member := range c.Added() {
			if i, again := written[member]; again { // a call that is made again dates its record anew
				scores[i].Permits = 0
			}
			written[member] = len(scores)
			scores = append(scores, scoreOf(t, score, member))
		}
	}
	return scores
}

// scoreOf returns a record of a MONITOR log.
func scoreOf(t *testing.T, score, member string) window.Score {
	t.Helper()
	at, ok := redistest.Micros(score)
	if !ok || len(member) < 4 {
		t.Fatalf("a record with score %q and member %q", score, member)
	}
	return window.Score{Permits: int64(binary.LittleEndian.Uint32([]byte(member[len(member)-4:]))), At: at}
}

func TestARecordThatIsDatedAnewCountsOnce(t *testing.T) {
	command := func(second int64, score string) redistest.Command {
		return redistest.Command{
			Time: time.Unix(second, 0),
			Lua:  true,
			Args: []string{"ZADD", "permits", score, "a record of \x01\x00\x00\x00"},
		}
	}
	commands := []redistest.Command{command(1, "1700000000000"), command(2, "1700000000020")}
	sum := int64(0)
	for _, s := range scoresOf(t, commands, "permits", time.Unix(9, 0)) {
		sum += s.Permits
	}
	held, _ := window.LargestScores(heldOf(t, commands, "permits", time.Unix(9, 0)), time.Hour)
	if sum != 1 || held != 1 {
		t.Errorf("one permit counts as %d, held as %d", sum, held)
	}
}

// verify fails the test if a window holds more than the rate, by the log or by the records.
func (r report) verify(t *testing.T) {
	t.Helper()
	interval := r.rate.Interval - r.disorder
	byLog, _ := window.LargestAt(r.log, interval, time.Millisecond) // the resolution of Java's clock
	byScore, _ := window.LargestScores(r.scores, interval)
	t.Logf(
		"%v for %v, calls up to %v out of order: largest window %d by the log of %d grants, %d by %d records, of %d; used %.1f %% of what the rate allows; Java %.1f %%, Go %.1f %%",
		r.rate, r.duration, r.disorder, byLog, len(r.log), byScore, len(r.scores), r.rate.Permits, 100*r.used(),
		100*r.javaShare(), 100-100*r.javaShare(),
	)
	if byLog > r.rate.Permits || byScore > r.rate.Permits {
		t.Errorf("a window holds %d permits by the log, %d by the records, of %d", byLog, byScore, r.rate.Permits)
	}
}

// used returns which part of what the rate allows the records hold.
func (r report) used() float64 {
	granted := int64(0)
	for _, s := range r.scores {
		if s.Removed == 0 { // neither given back nor joined with another one
			granted += s.Permits
		}
	}
	return float64(granted) / (float64(r.rate.Permits) * float64(r.duration) / float64(r.rate.Interval))
}

// rounds lets the fleet work at least some times, and more often until a round uses at least the
// fraction least of what the rate allows: one of nine must. No window may hold more than the rate
// in any round. A busy machine, on which callers run late, uses less: with a load of 14 to 27 on
// two processors, 3 of 136 rounds used less than 90 %, and once, while calls were held up by 0.4 s,
// six rounds in a row less than 60 %. A limiter that wastes permits wastes them in each round. If
// such a time begins in one run of ten, and ends after a round with a probability of a half, a
// false alarm has a probability of 0.04 %.
func (f fleet) rounds(
	t *testing.T, server *redistest.Server, name string, mixed bool, some int, least float64,
) (reports []report) {
	t.Helper()
	most := 0.0
	for round := 0; round < some || round < 9 && most < least; round++ {
		r := f.run(t, server, fmt.Sprint(name, ":", round), mixed)
		r.verify(t)
		reports = append(reports, r)
		most = max(most, r.used())
	}
	if most < least {
		t.Errorf("%.1f %% of what the rate allows was used in the best round, not %.0f %%", 100*most, 100*least)
	}
	return reports
}

// median returns the median of a figure of some reports.
func median(reports []report, of func(report) float64) float64 {
	var figures []float64
	for _, r := range reports {
		figures = append(figures, of(r))
	}
	slices.Sort(figures)
	return figures[len(figures)/2]
}

func (r report) javaShare() float64 { return float64(r.byJava) / float64(r.byJava+r.byGo) }

// javas starts Redisson processes, and lets them work for a moment, in which Java loads its
// classes.
func javas(t *testing.T, server *redistest.Server, versions ...string) []*redisson.Process {
	t.Helper()
	processes := make([]*redisson.Process, len(versions))
	for i, version := range versions {
		java := redisson.Start(t, version, redisson.Addr(server.Addr))
		if err := java.SetRate(t.Context(), "warming",
			redisson.Rate{Permits: 1000, Interval: 100 * time.Millisecond}); err != nil {
			t.Fatal(err)
		}
		for _, blocked := range []bool{true, false} {
			if _, err := java.Run(t.Context(), "warming",
				redisson.Work{Blocked: blocked, Threads: 8, For: 200 * time.Millisecond}); err != nil {
				t.Fatal(err)
			}
		}
		processes[i] = java
	}
	return processes
}

func every(d time.Duration, permits int64) rratelimiter.Rate {
	return rratelimiter.Rate{Permits: permits, Interval: d}
}

// TestContention: two Java and two Go processes with 8 threads each ask for more than the rate; one
// process of each pair blocks and one polls.
func TestContention(t *testing.T) {
	server := redistest.Real(t)
	f := fleet{
		rate: every(250*time.Millisecond, 200), javas: javas(t, server, "3.17.5", "4.7.0"), gos: 2,
		work: redisson.Work{Threads: 8, For: 2 * time.Second, Min: 1, Max: 3},
	}
	t.Run("3.17.5 blocks, 4.7.0 polls", func(t *testing.T) { f.rounds(t, server, "contention:blocks", true, 1, 0.8) })
	slices.Reverse(f.javas)
	t.Run("4.7.0 blocks, 3.17.5 polls", func(t *testing.T) { f.rounds(t, server, "contention:polls", true, 1, 0.8) })
	t.Run("granularity", func(t *testing.T) { contendWithGranularity(t, server, f) })
	t.Run("leases", func(t *testing.T) { contendWithLeases(t, server, f) })
}

// contendWithGranularity lets Go processes join the grants of a bucket into one record.
func contendWithGranularity(t *testing.T, server *redistest.Server, f fleet) {
	f.granularity = 25 * time.Millisecond
	joined := 0
	// permits of Go expire up to a tenth of the interval late
	for _, r := range f.rounds(t, server, "contention:granularity", true, 2, 0.75) {
		for _, s := range r.scores {
			if s.Permits == 0 {
				joined++
			}
		}
	}
	t.Logf("%d records were joined with another one", joined)
	if joined == 0 {
		t.Error("no record was joined with another one")
	}
}

// TestSharing: blocked Java threads and blocked goroutines in several processes share the permits,
// also if the latter may have leases.
func TestSharing(t *testing.T) {
	server := redistest.Real(t)
	for _, version := range []string{"3.17.5", "4.7.0"} {
		java := javas(t, server, version)
		for _, c := range []struct {
			rate  rratelimiter.Rate
			gos   int
			lease time.Duration
		}{
			{every(250*time.Millisecond, 200), 1, 0},
			{every(250*time.Millisecond, 200), 1, 25 * time.Millisecond},
			{every(250*time.Millisecond, 200), 3, 0},
			{rratelimiter.PerSecond(100), 1, 0},
		} {
			if version != "4.7.0" && c.lease == 0 && (c.gos > 1 || c.rate.Interval == time.Second) {
				continue // both versions wait alike
			}
			t.Run(
				fmt.Sprintf("%s/%d per %v/Go x %d, lease %v", version, c.rate.Permits, c.rate.Interval, c.gos, c.lease),
				func(t *testing.T) {
					f := fleet{
						rate: c.rate, javas: java, gos: c.gos, lease: c.lease,
						work: redisson.Work{
							Blocked: true,
							Threads: 16,
							For:     max(2*time.Second, 5*c.rate.Interval),
							Min:     1,
							Max:     1,
						},
					}
					least, most := 0.3, 0.7
					if c.gos == 3 {
						least, most = 0.125, 1 // half of its quarter
					}
					rounds := f.rounds(t, server, "sharing:"+t.Name(), false, 3, 0.8)
					if share := median(rounds, report.javaShare); share < least || share > most {
						t.Errorf("Java got %.1f %%, not %.1f to %.1f %%", 100*share, 100*least, 100*most)
					}
				},
			)
		}
	}
}

// showing returns a Redis client for NewClient, which sets core to the dispatcher of the new
// client.
func showing(core **dispatch.Client, rdb rratelimiter.Redis) rratelimiter.Redis {
	return dispatch.Extended{Redis: rdb, Made: func(made *dispatch.Client) { *core = made }}
}

// TestJavaJoinsASaturatedLimiter: Java threads that start while a Go process takes every permit are
// soon granted their share.
func TestJavaJoinsASaturatedLimiter(t *testing.T) {
	server := redistest.Real(t)
	for _, version := range []string{"3.17.5", "4.7.0"} {
		java := javas(t, server, version)[0]
		t.Run(version, func(t *testing.T) {
			name := "joins:" + t.Name()
			limiter := rratelimiter.NewClient(server.Client(), rratelimiter.WithCallTimeout(patience)).RateLimiter(name)
			if err := limiter.SetRate(t.Context(), rratelimiter.PerSecond(50)); err != nil {
				t.Fatal(err)
			}
			const early, both = 2 * time.Second, 7 * time.Second
			worker := startGo(t, order{Addr: server.Addr, Name: name})
			at := time.Now().Add(start)
			var wg sync.WaitGroup
			wg.Go(func() {
				worker.run(t, redisson.Work{Blocked: true, Threads: 4, At: at, For: early + both, Min: 1, Max: 1})
			})
			result, err := java.Run(t.Context(), name, redisson.Work{
				Blocked: true, Threads: 4, At: at.Add(early), For: both, Min: 1, Max: 1, Grace: grace,
			})
			wg.Wait()
			if err != nil {
				t.Fatal(err)
			}
			share := float64(result.Permits) / (50 * both.Seconds())
			t.Logf("Java got %.1f %% of what the rate allows", 100*share)
			if share < 0.1 { // 45 to 49 % with a load of 14 to 27 on two processors
				t.Errorf("Java got %.1f %%, not 10 %%", 100*share)
			}
		})
	}
}

// TestGoAloneWakesExactly: without Java no Go process yields, and almost no permit is wasted.
func TestGoAloneWakesExactly(t *testing.T) {
	server := redistest.Real(t)
	f := fleet{
		rate: rratelimiter.PerSecond(100), gos: 1,
		work: redisson.Work{Blocked: true, Threads: 16, For: 4 * time.Second, Min: 1, Max: 1},
	}
	f.rounds(t, server, "alone", false, 3, 0.99)
}
