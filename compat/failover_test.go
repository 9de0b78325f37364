package compat

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/compat/redisson"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// failover_test.go kills the master behind Sentinel while Redisson 3.17.5, Redisson 4.7.0 and Go take permits.
//
// Replication is asynchronous: what the old master granted and its replica never heard of is unknown to the new one, which
// grants it again. So a window holds at most the rate and what was lost, and that is at most what was granted between the
// last write that the replica heard of and the end of the old master. Redisson adds what it repeats: see inTime.

func TestFleetFailover(t *testing.T) {
	t.Parallel()
	servers := redistest.Sentinel(t, 1)
	for _, s := range servers.Sentinels { // a busy machine is not to look like the end of the master
		sentinel := redis.NewSentinelClient(s.Options())
		if err := sentinel.Set(t.Context(), redistest.MasterName, "down-after-milliseconds", "1500").Err(); err != nil {
			t.Fatal(err)
		}
		if err := sentinel.Close(); err != nil {
			t.Fatal(err)
		}
	}
	options := []redisson.Option{redisson.Addr(servers.Addrs()...), redisson.Sentinel(redistest.MasterName)}
	old, recent := redisson.Start(t, "3.17.5", options...), redisson.Start(t, "4.7.0", options...)
	rdb := servers.Client()
	b := &bench{T: t, ctx: t.Context(), rdb: rdb, java: old}
	busy := b.client().RateLimiter("failover:busy")
	// Windows of a busy limiter are shorter than the time without a master, so none holds grants of both.
	rate := every(500*time.Millisecond, 100)
	b.must("Go's SetRate", busy.SetRate(b.ctx, rate))
	members := []member{javaMember(t, old, busy.Name()), javaMember(t, recent, busy.Name()), goMember(t, busy)}
	master, replica := servers.Servers[0], servers.Servers[1]
	ofMaster := master.Monitor()
	j := newJournal()
	begun := time.Now()
	var since atomic.Pointer[time.Time] // from when on everybody must get something
	var load sync.WaitGroup
	load.Go(func() {
		j.work(t, func() bool { return since.Load() != nil && j.everybody(members, 10, *since.Load()) }, members...)
	})
	t.Cleanup(load.Wait)
	b.eventually("everybody gets something from the old master", patience, func() bool { return j.everybody(members, 10, begun) })
	long := newLongLimiter(b, old, recent)
	long.everybodyTakes(10)
	if n := rdb.Wait(b.ctx, 1, 10*time.Second).Val(); n != 1 {
		t.Fatalf("%d replicas have heard of the grants", n)
	}
	replica.Pause()
	if n := master.Client().ClientKillByFilter(b.ctx, "TYPE", "replica").Val(); n != 1 {
		t.Fatalf("%d replicas were cut off", n)
	}
	long.everybodyTakes(4)
	master.Kill()
	killed := time.Now()
	replica.Resume()
	servers.Replaced(master)
	replaced := time.Now()
	ofReplica := replica.Monitor() // not before: its clients were thrown out when it became the master
	since.Store(&replaced)
	load.Wait()
	over := time.Now()

	commands, _ := inTime(ofMaster.Killed(), busy.Name(), rate.Interval)
	own, stale := inTime(ofReplica.Stop(), busy.Name(), rate.Interval)
	r := report{
		log: j.log, rate: rate, duration: over.Sub(begun) - replaced.Sub(killed),
		byGo:     j.permits("Go", replaced),
		byJava:   j.permits("3.17.5", replaced) + j.permits("4.7.0", replaced),
		disorder: max(disorderOf(commands, busy.Name()), disorderOf(own, busy.Name())),
		scores: append(scoresOf(t, commands, permitsKey(busy.Name()), over),
			scoresOf(t, own, permitsKey(busy.Name()), over)...),
	}
	r.judge(t, 0)
	t.Logf("%d permits were granted to calls dated an interval ago", stale)
	for _, m := range members {
		t.Logf("the new master serves %v after the end of the old one, %s %v after that; %s",
			replaced.Sub(killed), m.name, j.goesOn(m.name, replaced), kinds(j.faults[m.name]))
	}
	for _, fault := range j.faults["Go"] {
		if !documented(fault) {
			t.Errorf("Go's caller got an error that the documentation does not have: %v", fault)
		}
	}
	long.holds(30, 42)
}

// inTime leaves out the calls on a limiter that are an interval late, with all that they do, and tells how many permits
// these were granted. They are Redisson's, which repeats a call that failed as it was: what it is granted then counts as
// expired already, so it is beyond the rate, with Go in the fleet or without.
func inTime(commands []redistest.Command, name string, interval time.Duration) (rest []redistest.Command, permits int64) {
	late := false
	for _, c := range commands {
		if !c.Lua {
			now, ok := datedBy(c, name)
			late = ok && now <= c.Time.Add(-interval).UnixMilli()
		}
		if !late {
			rest = append(rest, c)
		} else if c.Name() == "ZADD" {
			member := c.Args[len(c.Args)-1]
			permits += int64(binary.LittleEndian.Uint32([]byte(member[len(member)-4:])))
		}
	}
	return rest, permits
}

// goesOn tells how long after a time a member got its first permits.
func (j *journal) goesOn(member string, after time.Time) time.Duration {
	var first time.Duration
	for _, g := range j.grants[member] {
		if since := g.End.Sub(after); since > 0 && (first == 0 || since < first) {
			first = since
		}
	}
	return first
}

// documented tells whether an error is one that a caller has to expect when servers fail: of a call that may have been
// served, that its time was over before it went out, or the redis client's or the server's own for one that was not served.
func documented(err error) bool {
	var answer redis.Error
	var network *net.OpError
	return errors.Is(err, rratelimiter.ErrOutcomeUnknown) || errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &answer) ||
		errors.As(err, &network) && network.Op == "dial" || errors.Is(err, redis.ErrPoolTimeout)
}

// A longLimiter has one window for the whole test, so that each permit can be counted.
type longLimiter struct {
	*bench
	name    string
	takers  []func(n int64) (bool, error)
	granted int64
}

const longRate = 60

func newLongLimiter(b *bench, javas ...*redisson.Process) *longLimiter {
	b.Helper()
	l := &longLimiter{bench: b, name: "failover:long"}
	own := b.client().RateLimiter(l.name)
	b.must("Go's SetRate", own.SetRate(b.ctx, rratelimiter.PerHour(longRate)))
	l.takers = append(l.takers, func(n int64) (bool, error) { return own.TryAcquire(b.ctx, n) })
	for _, java := range javas {
		l.takers = append(l.takers, func(n int64) (bool, error) { return java.TryAcquire(b.ctx, l.name, n) })
	}
	return l
}

// everybodyTakes n permits.
func (l *longLimiter) everybodyTakes(n int64) {
	l.Helper()
	for _, take := range l.takers {
		want(l.bench, "taking permits before the failover", true)(take(n))
		l.granted += n
	}
}

// holds fails unless so many permits are known after the failover, of all that were granted before, and the window goes
// beyond the rate by just the others, whoever asks.
func (l *longLimiter) holds(known, granted int64) {
	l.Helper()
	state, err := l.client().RateLimiter(l.name).State(l.ctx)
	l.must("Go's State", err)
	if state.Used != known || l.granted != granted || !state.Consistent {
		l.Fatalf("of %d permits %d are known after the failover, not %d: %+v", l.granted, state.Used, known, state)
	}
	for refused := 0; refused < len(l.takers); {
		for _, take := range l.takers {
			ok, err := take(1)
			l.must("taking permits after the failover", err)
			if ok {
				l.granted++
				refused = 0
			} else {
				refused++
			}
		}
	}
	if lost := granted - known; l.granted != longRate+lost {
		l.Fatalf("%d permits of %d are granted in a window of which %d were lost", l.granted, longRate, lost)
	}
}
