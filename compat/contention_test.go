package compat

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/compat/redisson"
	"github.com/rratelimiter/rratelimiter/internal/hook"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// contention_test.go lets Java and Go processes fight for one limiter, and has two judges who know nothing of it: the
// log of what callers got, and the records that Redis was told to write.

const (
	start = 1500 * time.Millisecond // from sending the orders to the first call; everybody is ready by then
	grace = 2 * time.Second
)

// A fleet is processes on one limiter, each with a name for the report.
type fleet struct {
	rate  rratelimiter.Rate
	javas []*redisson.Process
	gos   int
	work  redisson.Work

	granularity time.Duration // of the Go processes; 0: none
}

// A report is what a fleet got.
type report struct {
	log      []window.Grant
	byJava   int64 // permits
	byGo     int64
	scores   []window.Score
	disorder time.Duration // how far behind an earlier call's time a later one's was
	duration time.Duration
	rate     rratelimiter.Rate
}

// run lets all processes work at the same time. Where mixed, every second one polls and the others block; else all block.
func (f fleet) run(t *testing.T, server *redistest.Server, name string, mixed bool) report {
	t.Helper()
	rdb := server.Client()
	limiter := rratelimiter.NewClient(rdb).RateLimiter(name)
	if err := limiter.SetRate(t.Context(), f.rate); err != nil {
		t.Fatal(err)
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
	for i := range f.gos {
		w := work
		w.Blocked = !mixed || i%2 == 0
		wg.Go(func() {
			add(&r.byGo, runGo(t, order{Addr: server.Addr, Name: name, Granularity: f.granularity, Work: w}))
		})
	}
	wg.Wait()
	commands := monitor.Stop()
	r.scores = scoresOf(t, commands, "{"+name+"}:permits", work.At.Add(work.For))
	r.disorder = disorderOf(commands, name)
	return r
}

// disorderOf tells how far time went back between calls and those that were granted, in the order in which Redis served
// them. Every client takes the time before it sends its call, so on a busy machine a call can overtake another that says
// it is later. A record that one call found expired lets a later one grant, whose time may be that much earlier: so it is
// windows shorter than the interval by that much that never hold more than the rate. (Where calls are in order, the two are
// the same.)
func disorderOf(commands []redistest.Command, name string) time.Duration {
	var latest, current, most int64
	for _, c := range commands {
		if c.Lua && c.Name() == "ZADD" {
			most = max(most, latest-current)
		}
		if c.Lua {
			continue
		}
		current = latest // of a call on another limiter
		if now, ok := datedBy(c, name); ok {
			latest, current = max(latest, now), now
		}
	}
	return time.Duration(most) * time.Millisecond
}

// datedBy tells the time that a client gave to its call on a limiter, in ms.
func datedBy(c redistest.Command, name string) (now int64, ok bool) {
	if len(c.Args) < 10 || !strings.HasPrefix(c.Name(), "EVAL") || c.Args[3] != name {
		return 0, false
	}
	for _, arg := range c.Args[8:10] { // Java says how many permits first, Go the time
		if now, err := strconv.ParseInt(arg, 10, 64); err == nil && now > 1e12 {
			return now, true
		}
	}
	return 0, false
}

// scoresOf reads, from what a MONITOR saw, the records written for a permits key: whoever wrote them, in whatever format.
// A record that a larger one of the same score replaced counts no more; nothing else takes single records away here. With
// a granularity, scores are the ends of buckets, and no window of them may hold more than the rate, either: each counts
// from before its score to an interval after it.
func scoresOf(t *testing.T, commands []redistest.Command, key string, until time.Time) []window.Score {
	t.Helper()
	var scores []window.Score
	written := map[string]int{} // index by member
	for _, c := range commands {
		if len(c.Args) == 3 && strings.EqualFold(c.Args[0], "zrem") && c.Args[1] == key && !c.Time.After(until) {
			i, known := written[c.Args[2]]
			if last := len(scores) - 1; !known || scores[i].At != scores[last].At || scores[i].Permits >= scores[last].Permits {
				t.Fatalf("the record %q was removed after %+v", c.Args[2], scores[last])
			}
			scores[i].Permits = 0
			continue
		}
		if len(c.Args) < 4 || !strings.EqualFold(c.Args[0], "zadd") || c.Args[1] != key || c.Time.After(until) {
			continue
		}
		score, member := c.Args[len(c.Args)-2], c.Args[len(c.Args)-1]
		at, err := strconv.ParseInt(score, 10, 64)
		if err != nil || len(member) < 4 {
			t.Fatalf("a record with score %q and member %q", score, member)
		}
		permits := binary.LittleEndian.Uint32([]byte(member[len(member)-4:]))
		written[member] = len(scores)
		scores = append(scores, window.Score{Permits: int64(permits), At: at})
	}
	return scores
}

// judge fails the test unless no window holds more than the rate, by both judges, and at least a part of what the rate
// allows was granted, by the second.
func (r report) judge(t *testing.T, least float64) {
	t.Helper()
	interval := r.rate.Interval - r.disorder
	byLog, _ := window.Largest(r.log, interval)
	byScore, _ := window.LargestScores(r.scores, interval.Milliseconds())
	granted := int64(0)
	for _, s := range r.scores {
		granted += s.Permits
	}
	allowed := float64(r.rate.Permits) * float64(r.duration) / float64(r.rate.Interval)
	used := float64(granted) / allowed
	t.Logf("%v for %v, calls up to %v out of order: largest window %d by the log of %d grants, %d by %d records, of %d; used %.1f %% of what the rate allows; Java %.1f %%, Go %.1f %%",
		r.rate, r.duration, r.disorder, byLog, len(r.log), byScore, len(r.scores), r.rate.Permits, 100*used, 100*r.javaShare(), 100-100*r.javaShare())
	if byLog > r.rate.Permits || byScore > r.rate.Permits {
		t.Errorf("a window holds %d permits by the log, %d by the records, of %d", byLog, byScore, r.rate.Permits)
	}
	if used < least {
		t.Errorf("%.1f %% of what the rate allows was granted, not %.0f %%", 100*used, 100*least)
	}
}

func (r report) javaShare() float64 { return float64(r.byJava) / float64(r.byJava+r.byGo) }

func javas(t *testing.T, server *redistest.Server, versions ...string) []*redisson.Process {
	t.Helper()
	processes := make([]*redisson.Process, len(versions))
	for i, version := range versions {
		processes[i] = redisson.Start(t, version, redisson.Addr(server.Addr))
	}
	return processes
}

func every(d time.Duration, permits int64) rratelimiter.Rate {
	return rratelimiter.Rate{Permits: permits, Interval: d}
}

// TestContention: two Java and two Go processes with 8 threads each, one of a kind blocked and one polling.
func TestContention(t *testing.T) {
	server := redistest.Real(t)
	for _, versions := range [][]string{{"3.17.5", "3.17.5"}, {"4.7.0", "4.7.0"}, {"3.17.5", "4.7.0"}} {
		t.Run(strings.Join(versions, "+"), func(t *testing.T) {
			f := fleet{
				rate: every(250*time.Millisecond, 200), javas: javas(t, server, versions...), gos: 2,
				work: redisson.Work{Threads: 8, For: 5 * time.Second, Min: 1, Max: 3},
			}
			f.run(t, server, "contention:"+strings.Join(versions, "+"), true).judge(t, 0.95)
		})
	}
}

// TestContentionWithGranularity is the same where the Go processes join what they are granted within a bucket.
func TestContentionWithGranularity(t *testing.T) {
	server := redistest.Real(t)
	f := fleet{
		rate: every(250*time.Millisecond, 200), javas: javas(t, server, "3.17.5", "4.7.0"), gos: 2,
		work:        redisson.Work{Threads: 8, For: 5 * time.Second, Min: 1, Max: 3},
		granularity: 25 * time.Millisecond,
	}
	r := f.run(t, server, "contention:granularity", true)
	r.judge(t, 0.75) // all permits of Go return up to a tenth of the interval late
	joined := 0
	for _, s := range r.scores {
		if s.Permits == 0 {
			joined++
		}
	}
	t.Logf("%d of %d records were joined with another one", joined, len(r.scores))
	if joined == 0 {
		t.Error("no record was joined with another one")
	}
}

// TestSharing: blocked threads in Java and blocked goroutines, in as many processes as there are, share what there is.
func TestSharing(t *testing.T) {
	server := redistest.Real(t)
	for _, version := range []string{"3.17.5", "4.7.0"} {
		java := javas(t, server, version)
		for _, c := range []struct {
			rate rratelimiter.Rate
			gos  int
		}{
			{every(250*time.Millisecond, 200), 1},
			{every(250*time.Millisecond, 200), 3},
			{rratelimiter.PerSecond(100), 1},
		} {
			t.Run(fmt.Sprintf("%s/%d per %v/Go x %d", version, c.rate.Permits, c.rate.Interval, c.gos), func(t *testing.T) {
				f := fleet{
					rate: c.rate, javas: java, gos: c.gos,
					work: redisson.Work{Blocked: true, Threads: 16, For: max(6*time.Second, 10*c.rate.Interval), Min: 1, Max: 1},
				}
				r := f.run(t, server, "sharing:"+t.Name(), false)
				r.judge(t, 0.9)
				least, most := 0.3, 0.7
				if c.gos == 3 {
					least, most = 0.125, 1 // half of its quarter
				}
				if share := r.javaShare(); share < least || share > most {
					t.Errorf("Java got %.1f %%, not %.1f to %.1f %%", 100*share, 100*least, 100*most)
				}
			})
		}
	}
}

// TestRedissonIsNoticed: each version leaves on a server what a Go client looks for, and a Go client alone doesn't.
func TestRedissonIsNoticed(t *testing.T) {
	for _, version := range redisson.Versions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			server := redistest.Real(t)
			limiter := rratelimiter.NewClient(server.Client()).RateLimiter("noticed", rratelimiter.WithRate(rratelimiter.PerMinute(5)))
			if ok, err := limiter.TryAcquire(t.Context(), 1); !ok || err != nil {
				t.Fatal(ok, err)
			}
			if hook.RedissonHere(t.Context(), limiter) {
				t.Error("Redisson is noticed where there is none")
			}
			java := redisson.Start(t, version, redisson.Addr(server.Addr))
			if ok, err := java.TryAcquire(t.Context(), "noticed", 1); !ok || err != nil {
				t.Fatal(ok, err)
			}
			if !hook.RedissonHere(t.Context(), limiter) {
				t.Error("Redisson is not noticed: the hash of its script is missing in redisson.go")
			}
		})
	}
}

// TestJavaJoinsASaturatedLimiter: Java threads that come when a Go process takes every permit have theirs soon.
func TestJavaJoinsASaturatedLimiter(t *testing.T) {
	server := redistest.Real(t)
	for _, version := range []string{"3.17.5", "4.7.0"} {
		java := javas(t, server, version)[0]
		t.Run(version, func(t *testing.T) {
			name := "joins:" + t.Name()
			limiter := rratelimiter.NewClient(server.Client()).RateLimiter(name)
			if err := limiter.SetRate(t.Context(), rratelimiter.PerSecond(50)); err != nil {
				t.Fatal(err)
			}
			const early, both = 2 * time.Second, 7 * time.Second
			at := time.Now().Add(start)
			var wg sync.WaitGroup
			wg.Go(func() {
				runGo(t, order{Addr: server.Addr, Name: name, Work: redisson.Work{
					Blocked: true, Threads: 4, At: at, For: early + both, Min: 1, Max: 1,
				}})
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
			if share < 0.1 {
				t.Errorf("Java got %.1f %%, not 10 %%", 100*share)
			}
		})
	}
}

// TestGoAloneWakesExactly: without Java nobody yields, and next to nothing is wasted.
func TestGoAloneWakesExactly(t *testing.T) {
	server := redistest.Real(t)
	f := fleet{
		rate: rratelimiter.PerSecond(100), gos: 1,
		work: redisson.Work{Blocked: true, Threads: 16, For: 10 * time.Second, Min: 1, Max: 1},
	}
	f.run(t, server, "alone", false).judge(t, 0.99)
}
