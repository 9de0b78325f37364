package compat

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
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
// last write that the replica heard of and the end of the old master.

func TestFleetFailover(t *testing.T) {
	t.Parallel()
	servers := redistest.Sentinel(t, 1)
	options := []redisson.Option{redisson.Addr(servers.Addrs()...), redisson.Sentinel(redistest.MasterName)}
	old, recent := redisson.Start(t, "3.17.5", options...), redisson.Start(t, "4.7.0", options...)
	rdb := servers.Client()
	b := &bench{T: t, ctx: t.Context(), rdb: rdb, java: old}
	busy := b.client().RateLimiter("failover:busy")
	// Windows of a busy limiter are shorter than the time without a master, so none holds grants of both.
	rate := every(250*time.Millisecond, 50)
	b.must("Go's SetRate", busy.SetRate(b.ctx, rate))
	members := []member{javaMember(t, old, busy.Name()), javaMember(t, recent, busy.Name()), goMember(busy)}
	const before, after = time.Second, 6 * time.Second
	work := redisson.Work{Threads: 2, For: 300 * time.Millisecond, Min: 1, Max: 3}
	newJournal().work(work, members...)

	master, replica := servers.Servers[0], servers.Servers[1]
	ofMaster := master.Monitor()
	j := newJournal()
	work.At, work.For = time.Now().Add(start/3), before+after
	var load sync.WaitGroup
	load.Go(func() { j.work(work, members...) })
	time.Sleep(time.Until(work.At.Add(before)))

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
	replaced := time.Since(killed)
	ofReplica := replica.Monitor() // not before: its clients were thrown out when it became the master
	load.Wait()

	commands := ofMaster.Killed()
	own := ofReplica.Stop()
	r := report{
		log: j.log, rate: rate, duration: work.For - replaced,
		byGo:     j.permits("Go", killed),
		byJava:   j.permits("3.17.5", killed) + j.permits("4.7.0", killed),
		disorder: max(disorderOf(commands, busy.Name()), disorderOf(own, busy.Name())),
		scores: append(scoresOf(t, commands, permitsKey(busy.Name()), work.At.Add(work.For)),
			scoresOf(t, own, permitsKey(busy.Name()), work.At.Add(work.For))...),
	}
	r.judge(t, 0.5)
	for _, m := range members {
		t.Logf("the new master serves %v after the end of the old one, %s %v; %s",
			replaced, m.name, j.goesOn(m.name, killed.Add(replaced)), kinds(j.faults[m.name]))
	}
	if j.permits("Go", killed.Add(replaced)) == 0 {
		t.Error("Go got nothing from the new master")
	}
	for _, java := range []*redisson.Process{old, recent} { // whose retries take seconds
		b.eventually(java.Version()+" gets something from the new master", 20*time.Second, func() bool {
			granted, _ := java.TryAcquire(b.ctx, busy.Name(), 1)
			return granted
		})
	}
	for _, fault := range j.faults["Go"] {
		if !documented(fault) {
			t.Errorf("Go's caller got an error that the documentation does not have: %v", fault)
		}
	}
	long.holds(30, 42)
}

// goesOn tells when a member got its first permits after a time.
func (j *journal) goesOn(member string, after time.Time) string {
	first := time.Duration(0)
	for _, g := range j.grants[member] {
		if since := g.End.Sub(after); since > 0 && (first == 0 || since < first) {
			first = since
		}
	}
	if first == 0 {
		return "not yet"
	}
	return first.String() + " later"
}

// documented tells whether an error is one that a caller has to expect when servers fail: of a call that may have been
// served, or the redis client's or the server's own for one that was not.
func documented(err error) bool {
	var answer redis.Error
	var network *net.OpError
	return errors.Is(err, rratelimiter.ErrOutcomeUnknown) || errors.As(err, &answer) ||
		errors.As(err, &network) && network.Op == "dial" || errors.Is(err, redis.ErrPoolTimeout)
}

// kinds counts errors by their texts, without what is different in each.
func kinds(faults []error) string {
	counts := map[string]int{}
	for _, fault := range faults {
		text, _, _ := strings.Cut(fault.Error(), " EVAL")
		counts[fmt.Sprintf("%.160s", text)]++
	}
	return fmt.Sprint(len(faults), " faults ", counts)
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
