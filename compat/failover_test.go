package compat

import (
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

// failover_test.go kills the master behind Sentinel while Redisson 3.17.5, Redisson 4.7.0 and Go
// take permits.
//
// Replication is asynchronous: the new master grants again what the old master granted but did not
// replicate. So a window holds at most the rate plus the lost grants, and these are at most what
// was granted between the last replicated write and the end of the old master. Calls that Redisson
// repeats come on top: see inTime.

func TestFleetFailover(t *testing.T) {
	t.Parallel()
	servers := redistest.Sentinel(t, 1)
	options := []redisson.Option{redisson.Addr(servers.Addrs()...), redisson.Sentinel(redistest.MasterName)}
	old, recent := redisson.Start(t, "3.17.5", options...), redisson.Start(t, "4.7.0", options...)
	rdb := servers.Client()
	b := &bench{T: t, ctx: t.Context(), rdb: rdb, java: old}
	busy := b.client(rratelimiter.WithCallTimeout(time.Second)).RateLimiter("failover:busy")
	// Windows of the busy limiter are no longer than the time without a master, so no window holds
	// grants of both masters.
	rate := every(500*time.Millisecond, 100)
	b.must("Go's SetRate", busy.SetRate(b.ctx, rate))
	members := []member{javaMember(t, old, busy.Name()), javaMember(t, recent, busy.Name()), goMember(t, busy)}
	master, replica := servers.Servers[0], servers.Servers[1]
	ofMaster := master.Monitor()
	j := newJournal()
	begun := time.Now()
	var since atomic.Pointer[time.Time] // every member must be granted permits after this time
	var load sync.WaitGroup
	load.Go(func() {
		j.work(t, func() bool { return since.Load() != nil && j.allGot(members, 10, *since.Load()) }, members...)
	})
	t.Cleanup(load.Wait)
	b.eventually(
		"each member is granted permits by the old master", patience, func() bool {
			return j.allGot(members, 10, begun)
		},
	)
	long := newLongLimiter(b, old, recent)
	long.eachTakes(10)
	if n := rdb.Wait(b.ctx, 1, 10*time.Second).Val(); n != 1 {
		t.Fatalf("%d replicas have acknowledged the grants, want 1", n)
	}
	replica.Pause()
	if n := master.Client().ClientKillByFilter(b.ctx, "TYPE", "replica").Val(); n != 1 {
		t.Fatalf("%d replica connections were closed, want 1", n)
	}
	long.eachTakes(4)
	master.Kill()
	killed := time.Now()
	replica.Resume()
	time.Sleep(rate.Interval)
	servers.Replaced(master)
	replaced := time.Now()
	// only now: the server disconnected its clients when it became the master
	ofReplica := replica.Monitor()
	since.Store(&replaced)
	load.Wait()
	over := time.Now()

	commands, _ := inTime(t, ofMaster.Killed(), busy.Name(), rate.Interval)
	own, stale := inTime(t, ofReplica.Stop(), busy.Name(), rate.Interval)
	r := report{
		log: j.log, rate: rate, duration: over.Sub(begun) - replaced.Sub(killed),
		byGo:     j.permits("Go", replaced),
		byJava:   j.permits("3.17.5", replaced) + j.permits("4.7.0", replaced),
		disorder: max(disorderOf(commands, busy.Name()), disorderOf(own, busy.Name())),
		scores: append(scoresOf(t, commands, permitsKey(busy.Name()), over),
			scoresOf(t, own, permitsKey(busy.Name()), over)...),
	}
	r.verify(t)
	t.Logf("%d permits were granted to calls with a time at least an interval old", stale)
	for _, m := range members {
		t.Logf("the new master serves %v after the end of the old one; %s is granted permits %v after that; %s",
			replaced.Sub(killed), m.name, j.goesOn(m.name, replaced), kinds(j.faults[m.name]))
	}
	for _, fault := range j.faults["Go"] {
		if !documented(fault) {
			t.Errorf("Go returned an undocumented error: %v", fault)
		}
	}
	long.holds(30, 42)
}

// inTime removes the calls on a limiter that carry a time at least an interval old, with all their
// effects, and returns how many permits they were granted. Only Redisson sends such calls: it
// repeats a failed call with its original time. Grants of that time count as expired at once, so
// they exceed the rate, with or without Go in the fleet.
func inTime(
	t *testing.T, commands []redistest.Command, name string, interval time.Duration,
) (rest []redistest.Command, permits int64) {
	late := false
	for _, c := range commands {
		if !c.Lua {
			now, ok := datedBy(c, name)
			late = ok && now <= c.Time.Add(-interval).UnixMicro()
		}
		if !late {
			rest = append(rest, c)
		} else {
			for score, member := range c.Added() {
				permits += scoreOf(t, score, member).Permits
			}
		}
	}
	return rest, permits
}

// goesOn returns how long after a time a member was granted its first permits.
func (j *journal) goesOn(member string, after time.Time) time.Duration {
	var first time.Duration
	for _, g := range j.grants[member] {
		if since := g.End.Sub(after); since > 0 && (first == 0 || since < first) {
			first = since
		}
	}
	return first
}

// documented reports whether a caller must expect the error when servers fail. That is
// ErrOutcomeUnknown for a call that may have been executed, os.ErrDeadlineExceeded for one whose
// time ended before it was sent, and an error of the redis client or the server for one that was
// not executed.
func documented(err error) bool {
	var answer redis.Error
	var network *net.OpError
	return errors.Is(err, rratelimiter.ErrOutcomeUnknown) || errors.Is(err, os.ErrDeadlineExceeded) ||
		errors.As(err, &answer) ||
		errors.As(err, &network) && network.Op == "dial" || errors.Is(err, redis.ErrPoolTimeout)
}

// A longLimiter has one window for the whole test, so that the test can count each permit.
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

// eachTakes makes Go and each Redisson take n permits.
func (l *longLimiter) eachTakes(n int64) {
	l.Helper()
	for _, take := range l.takers {
		want(l.bench, "taking permits before the failover", true)(take(n))
		l.granted += n
	}
}

// holds fails unless, of all permits granted before the failover, exactly known are recorded after
// it, and the callers together can exceed the rate by exactly the lost ones.
func (l *longLimiter) holds(known, granted int64) {
	l.Helper()
	state, err := l.client().RateLimiter(l.name).State(l.ctx)
	l.must("Go's State", err)
	if state.Used != known || l.granted != granted || !state.Consistent {
		l.Fatalf("of %d permits %d are recorded after the failover, want %d: %+v", l.granted, state.Used, known, state)
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
