package differential

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// window_test.go runs up to six Go and Redisson clients on two limiters, with wrong clocks, crashes
// and lost replies, and counts the granted permits.
//
// The bounds follow from the clocks. Let s be the most by which any client's clock is ahead of any
// other's during the test. A record carries the time of the client that wrote it; a client treats
// it as expired when it is an interval old by that client's own clock. By the true clock the record
// is then at least interval - s old, so every grant counts at least that long:
//
//   - No window of interval - s holds more permits than the rate. Hence no window of interval holds
//     more than ceil(interval / (interval - s)) times the rate, and not more than the rate where
//     all clocks agree.
//   - No grant counts longer than interval + s, plus the granularity of its client, plus the time
//     that a later call of the same record took: its retry dates the whole record anew. After that
//     all permits are free.
//
// Released permits do not count from then on. Where all clocks agree, and records have the times of
// their grants, the permits of the oldest grants count as released, as the library promises;
// otherwise those of the newest, because the oldest record may be that of another grant. A release
// can also give back permits that another client has taken ahead (WithLease), which learns that
// only when its lease ends: such permits do not count when they are granted.
//
// Redisson's release is left out: it lets the same permits return twice (rules_test.go).

// A participant is one client of a test case.
type participant struct {
	name string
	skew atomic.Int64 // how far its clock is ahead of the true time, in ms

	version  string // Redisson's version; "" for Go
	client   *rratelimiter.Client
	limiters [2]*rratelimiter.Limiter
	faults   *faults
	releases bool
	slack    int64 // how much longer its grants may count, in ms
}

// A kindOfGo is a configuration of this library.
type kindOfGo struct {
	name     string
	opts     func(interval int64) []rratelimiter.LimiterOption
	slack    func(interval int64) int64
	releases bool
	server   bool // uses the server's clock
	ahead    bool // takes permits ahead of demand
}

var kindsOfGo = []kindOfGo{
	{name: "Go"},
	{name: "Go that releases and uses AllowAll", releases: true},
	{name: "Go with a record a request", opts: func(int64) []rratelimiter.LimiterOption {
		return []rratelimiter.LimiterOption{rratelimiter.WithRecordPerRequest()}
	}},
	{name: "Go with granularity", opts: func(interval int64) []rratelimiter.LimiterOption {
		return []rratelimiter.LimiterOption{rratelimiter.WithGranularity(time.Duration(interval/10) * time.Millisecond)}
	}, slack: func(interval int64) int64 { return interval / 10 }},
	{name: "Go with leases", opts: func(interval int64) []rratelimiter.LimiterOption {
		return []rratelimiter.LimiterOption{
			rratelimiter.WithLease(max(1, time.Duration(interval/10)) * time.Millisecond),
		}
	}, slack: func(interval int64) int64 { return interval/8 + 1 }, ahead: true},
	{name: "Go with a deny cache", opts: func(int64) []rratelimiter.LimiterOption {
		return []rratelimiter.LimiterOption{rratelimiter.WithDenyCache(100)}
	}},
	{name: "Go with server time", opts: func(int64) []rratelimiter.LimiterOption {
		return []rratelimiter.LimiterOption{rratelimiter.WithServerTime()}
	}, server: true},
}

// javaVersions are the Redisson versions that take part.
var javaVersions = []string{"3.17.5", newest}

// offered returns kindsOfGo without those that the library rejects as "not offered yet".
func offered(t *testing.T, rdb *redis.Client) []kindOfGo {
	t.Helper()
	var kinds []kindOfGo
	for _, k := range kindsOfGo {
		if k.opts != nil {
			l := rratelimiter.NewClient(rdb, rratelimiter.WithCallTimeout(time.Minute)).
				RateLimiter("offered", append(k.opts(1000), rratelimiter.WithRate(rratelimiter.PerSecond(5)))...)
			if _, err := l.TryAcquire(t.Context(), 1); err != nil {
				if !strings.Contains(err.Error(), "not offered yet") {
					t.Fatalf("%s: %v", k.name, err)
				}
				t.Logf("%s: %v", k.name, err)
				continue
			}
		}
		kinds = append(kinds, k)
	}
	return kinds
}

// An event is a grant or, with negative permits, a release. certain is false where the caller got
// no reply, so that the server may or may not have executed the call.
type event struct {
	permits    int64
	start, end time.Time // by the true clock
	certain    bool
}

// A mix is one test case.
type mix struct {
	wire
	rdb      *redis.Client // without faults
	names    [2]string
	rate     int64
	interval int64
	real     bool // uses time.Now instead of now
	// true time, in ms since 1970; clients with leases read it in the background
	now          atomic.Int64
	participants []*participant
	ids          uint64
	most         int64 // largest skew so far
	least        int64 // smallest skew so far
	slack        int64 // largest slack of a participant, in ms
	longest      int64 // longest call of a participant with slack, in ms, rounded up
	leased       *leased
	ahead        bool // a participant takes permits ahead of demand
	events       [2][]event
}

// time returns the true time.
func (m *mix) time() time.Time {
	if m.real {
		return time.Now()
	}
	return time.UnixMilli(m.now.Load())
}

// spread returns the largest difference between two clocks so far, in ms.
func (m *mix) spread() int64 { return m.most - m.least }

// set changes a participant's clock.
func (m *mix) set(f *participant, skew int64) {
	f.skew.Store(skew)
	m.most, m.least = max(m.most, skew), min(m.least, skew)
}

// join creates a Go participant's client. After a crash it creates another one, with another client
// id.
func (m *mix) join(f *participant, k kindOfGo, rdb *redis.Client) {
	f.client = rratelimiter.NewClient(rdb, rratelimiter.WithCallTimeout(time.Minute),
		rratelimiter.WithObserver(m.leased),
		rratelimiter.WithClock(func() time.Time {
			return m.time().Add(time.Duration(f.skew.Load()) * time.Millisecond)
		}))
	for i, name := range m.names {
		var opts []rratelimiter.LimiterOption
		if k.opts != nil {
			opts = k.opts(m.interval)
		}
		f.limiters[i] = f.client.RateLimiter(name, opts...)
	}
}

// note records the permits of a call. certain is false where the reply was lost.
func (m *mix) note(limiter int, permits int64, start time.Time, certain bool) {
	if permits != 0 {
		m.events[limiter] = append(m.events[limiter], event{permits, start, m.time(), certain})
	}
}

// An environment is shared by all test cases: connections, Redisson's scripts and the kinds of Go
// client.
type environment struct {
	wire
	rdb           *redis.Client
	kinds         []kindOfGo
	faulty        []*faults
	faultyClients []*redis.Client // clients with the faults of the same index
	cases         atomic.Int64
	full          atomic.Int64 // test cases in which a window held the whole rate
	lost          atomic.Int64 // lost requests and replies
	leased        leased
}

// leased counts the permits that were taken ahead of demand.
type leased struct{ permits atomic.Int64 }

func (l *leased) Call(info rratelimiter.CallInfo) { l.permits.Add(info.Leased) }

const maxParticipants = 6

func newEnvironment(t *testing.T) *environment {
	server := redistest.Real(t)
	c := &environment{wire: learn(t), rdb: server.Client()}
	c.load(t, c.rdb)
	if err := c.rdb.ScriptLoad(t.Context(), readText).Err(); err != nil {
		t.Fatal(err)
	}
	c.kinds = offered(t, c.rdb)
	for range maxParticipants {
		f := &faults{}
		c.faulty = append(c.faulty, f)
		c.faultyClients = append(c.faultyClients, server.Client(f.options))
	}
	return c
}

// draw draws a test case.
func (c *environment) draw(t *rapid.T, real bool) *mix {
	// Names of their own, because clients with leases of earlier cases may still use theirs.
	n := c.cases.Add(1)
	m := &mix{
		wire: c.wire, rdb: c.rdb, names: [2]string{fmt.Sprint("window:a", n), fmt.Sprint("window:b", n)}, real: real,
		leased: &c.leased,
	}
	m.now.Store(epoch)
	m.rate = rapid.Int64Range(1, 40).Draw(t, "rate")
	m.interval = rapid.SampledFrom([]int64{20, 100, 1000, 60_000}).Draw(t, "interval")
	if real {
		m.interval = 60
	}
	ctx := context.Background()
	setup := rratelimiter.NewClient(m.rdb, rratelimiter.WithCallTimeout(time.Minute))
	for _, name := range m.names {
		l := setup.RateLimiter(name)
		rate := rratelimiter.Rate{Permits: m.rate, Interval: time.Duration(m.interval) * time.Millisecond}
		if err := l.SetRate(ctx, rate); err != nil {
			t.Fatal(err)
		}
	}
	wrong := m.interval / 4 * int64(rapid.IntRange(0, 1).Draw(t, "wrong clocks"))
	for i := range rapid.IntRange(1, maxParticipants).Draw(t, "clients") {
		f := &participant{}
		which := rapid.IntRange(0, len(c.kinds)+len(javaVersions)-1).Draw(t, "client")
		if which >= len(c.kinds) {
			f.version = javaVersions[which-len(c.kinds)]
			f.name = "Redisson " + f.version
		} else {
			k := c.kinds[which]
			if k.server && !real {
				k = c.kinds[0] // the test cannot set the server's clock
			}
			f.name, f.releases, f.faults = k.name, k.releases, c.faulty[i]
			m.ahead = m.ahead || k.ahead
			f.faults.arm(noFault, 0)
			if k.slack != nil {
				f.slack = k.slack(m.interval)
				m.slack = max(m.slack, f.slack)
			}
			m.join(f, k, c.faultyClients[i])
		}
		if wrong > 0 {
			m.set(f, rapid.Int64Range(-wrong, wrong).Draw(t, "ahead"))
		}
		t.Logf("%s, %d ms ahead", f.name, f.skew.Load())
		m.participants = append(m.participants, f)
	}
	return m
}

// step passes some time and lets one participant act.
func (m *mix) step(t *rapid.T, c *environment) {
	switch rapid.IntRange(0, 5).Draw(t, "time") {
	case 0, 1:
	case 2, 3:
		m.pass(rapid.Int64Range(1, max(1, m.interval/8)).Draw(t, "ms"))
	case 4:
		m.pass(rapid.Int64Range(1, m.interval).Draw(t, "ms"))
	case 5:
		// until the oldest grant that still counts expires, give or take 1 ms
		if n := len(m.events[0]); n > 0 && !m.real {
			for _, d := range m.events[0] {
				if left := d.start.UnixMilli() + m.interval - m.now.Load(); left > 0 {
					m.pass(max(0, left+int64(rapid.IntRange(-1, 1).Draw(t, "give or take"))))
					break
				}
			}
		}
	}
	f := m.participants[rapid.IntRange(0, len(m.participants)-1).Draw(t, "participant")]
	if wrong := max(m.most, -m.least); wrong > 0 && chance(t, 10, "its clock jumps") {
		m.set(f, rapid.Int64Range(-wrong, wrong).Draw(t, "ahead"))
	}
	n := rapid.Int64Range(1, max(1, m.rate/rapid.SampledFrom([]int64{1, 4, 20}).Draw(t, "part"))).Draw(t, "permits")
	limiter := rapid.IntRange(0, 4).Draw(t, "limiter") / 4
	if f.version != "" {
		m.java(t, f, limiter, n)
	} else {
		m.golang(t, c, f, limiter, n)
	}
}

func (m *mix) pass(ms int64) {
	if m.real {
		time.Sleep(time.Duration(ms) * time.Millisecond)
	} else {
		m.now.Add(ms)
	}
}

// java makes a Redisson participant call tryAcquire. If it crashes, the reply is lost.
func (m *mix) java(t *rapid.T, f *participant, limiter int, n int64) {
	ctx := context.Background()
	crashes := chance(t, 8, "crashes")
	start := m.time()
	m.ids++
	p := m.rdb.Pipeline()
	asked := call{kind: tryAcquire, n: n}
	reply := m.send(ctx, p, f.version, asked, m.names[limiter], start.UnixMilli()+f.skew.Load(), m.ids)
	p.Exec(ctx)
	a := understand(asked, reply)
	t.Logf("%d ms: %s tries %d of limiter %d: %v", m.now.Load()-epoch, f.name, n, limiter, a)
	if a.failure != "" {
		t.Fatalf("Redisson fails: %s", a.failure)
	}
	if a.granted {
		m.note(limiter, n, start, !crashes)
	}
}

// golang makes a Go participant call one of its methods.
func (m *mix) golang(t *rapid.T, c *environment, f *participant, limiter int, n int64) {
	ctx := context.Background()
	trouble := noFault
	if chance(t, 20, "trouble") { // rare, because the library waits before it retries
		trouble = fault(rapid.IntRange(int(loseRequest), int(loseReply)).Draw(t, "what is lost"))
		f.faults.arm(trouble, rapid.SampledFrom([]int{1, 1, 1, 1, 2}).Draw(t, "how often"))
	}
	l, start := f.limiters[limiter], m.time()
	way := rapid.IntRange(0, 3).Draw(t, "way")
	if f.releases {
		way += 2
	}
	var err error
	switch way {
	case 0, 3:
		var granted bool
		if granted, err = l.TryAcquire(ctx, n); granted || maybeExecuted(err) {
			m.note(limiter, n, start, err == nil)
		}
	case 1:
		var r rratelimiter.Result
		if r, err = l.Allow(ctx, n); r.Allowed || maybeExecuted(err) {
			m.note(limiter, n, start, err == nil)
		}
	case 2:
		var got int64
		got, err = l.AcquireUpTo(ctx, n)
		if maybeExecuted(err) {
			got = n
		}
		m.note(limiter, got, start, err == nil)
	case 4:
		var all []rratelimiter.Result
		all, err = f.client.AllowAll(ctx, n, f.limiters[:]...)
		for i := range f.limiters {
			if maybeExecuted(err) || err == nil && all[i].Allowed {
				m.note(i, n, start, err == nil)
			}
		}
	case 5:
		var back int64
		back, err = l.Release(ctx, n)
		if maybeExecuted(err) {
			back = n
		}
		m.note(limiter, -back, start, err == nil)
	}
	if f.slack > 0 {
		m.longest = max(m.longest, m.time().Sub(start).Milliseconds()+1)
	}
	c.lost.Add(int64(f.faults.disarm()))
	t.Logf("%d ms: %s, way %d, %d of limiter %d: %d %v", m.now.Load()-epoch, f.name, way, n, limiter, trouble, err)
	if err != nil {
		if trouble == noFault {
			t.Fatalf("%s fails without a fault: %v", f.name, err)
		}
		if chance(t, 3, "restarts") {
			for i, client := range c.faultyClients {
				if c.faulty[i] == f.faults {
					for _, k := range c.kinds {
						if k.name == f.name {
							m.join(f, k, client)
						}
					}
				}
			}
		}
	}
}

// consistent fails the test unless free permits and the permits in records add up to the rate. All
// scripts of both sides preserve this sum.
func (m *mix) consistent(t *rapid.T) {
	ctx := context.Background()
	for limiter, name := range m.names {
		s, err := parseState(m.rdb.EvalSha(ctx, readSHA, keysOf(name, clientID)))
		if err != nil {
			t.Fatal(err)
		}
		p := s.pair()
		_, sum, _ := p.sums(0)
		if value, whole := p.number(); value+sum != m.rate || !whole && p.value != "" {
			if p.value != "" || sum != 0 {
				t.Fatalf("free permits and records of limiter %d are not the rate: %v", limiter, s)
			}
		}
	}
}

// maybeExecuted reports whether a failed call may have been executed.
func maybeExecuted(err error) bool { return errors.Is(err, rratelimiter.ErrOutcomeUnknown) }

// verify fails the test unless the bounds in the comment at the top of this file hold.
func (m *mix) verify(t *rapid.T, c *environment) {
	ctx := context.Background()
	full := false
	for limiter := range m.names {
		length := m.interval - m.spread()
		held := m.held(limiter, length)
		if held > m.rate {
			t.Fatalf(
				"a window of %d ms holds %d permits of limiter %d, and the rate is %d per %d ms", length, held, limiter,
				m.rate,
				m.interval,
			)
		}
		full = full || held == m.rate
		if !m.ahead {
			m.accounted(t, limiter)
		}
	}
	if full {
		c.full.Add(1)
	}
	m.pass(m.interval + m.spread() + m.slack + 1)
	for limiter, name := range m.names {
		for _, f := range m.participants {
			sees := func() (free int64, err error) {
				if f.version == "" {
					return f.limiters[limiter].AvailablePermits(ctx)
				}
				p := m.rdb.Pipeline()
				reply := m.send(ctx, p, f.version, call{kind: available}, name, m.time().UnixMilli()+f.skew.Load(), 0)
				_, err = p.Exec(ctx)
				return understand(call{kind: available}, reply).amount, err
			}
			free, err := sees()
			if err == nil && free < m.rate && m.ahead {
				// more for a lease may have been asked for in the background, and late
				m.pass(m.interval + m.spread() + m.slack + 1)
				free, err = sees()
			}
			if err != nil || free != m.rate {
				t.Fatalf("after all grants have expired, %s sees %d permits of %d free, %v", f.name, free, m.rate, err)
			}
		}
	}
}

// held returns the largest sum of permits of one limiter in a window of length ms, without released
// permits.
func (m *mix) held(limiter int, length int64) int64 {
	if m.real {
		// The exact time of a call is unknown here, so released permits count as never granted.
		var grants []window.Grant
		for _, d := range m.events[limiter] {
			if d.permits > 0 && d.certain {
				grants = append(grants, window.Grant{Permits: d.permits, Start: d.start, End: d.end})
			}
			for i := len(grants) - 1; i >= 0 && d.permits < 0; i-- {
				back := min(grants[i].Permits, -d.permits)
				grants[i].Permits -= back
				d.permits += back
			}
		}
		// the resolution of Java's clock
		most, _ := window.LargestAt(grants, time.Duration(length)*time.Millisecond, time.Millisecond)
		return most
	}
	var scores []window.Score
	early := int64(0) // released before they were granted
	for _, d := range m.events[limiter] {
		at := d.start.UnixMicro()
		if d.permits > 0 {
			if back := min(early, d.permits); d.certain {
				scores = append(scores, window.Score{Permits: d.permits - back, At: at, Added: at})
				early -= back
			}
			continue
		}
		var rest int64
		scores, rest = cancel(scores, -d.permits, at, 1000*length, m.spread() == 0 && m.slack == 0)
		if m.ahead {
			early += rest
		}
	}
	most, _ := window.LargestScores(scores, time.Duration(length)*time.Millisecond)
	return most
}

// cancel marks permits as released at a moment: those of the oldest grants that still count, or of
// the newest. It also returns how many permits there are no grants for.
func cancel(scores []window.Score, permits, at, length int64, oldest bool) ([]window.Score, int64) {
	for i := range scores {
		if !oldest {
			i = len(scores) - 1 - i
		}
		s := &scores[i]
		if permits == 0 || s.Removed != 0 || s.At+length <= at {
			continue
		}
		rest := s.Permits - min(permits, s.Permits)
		permits -= s.Permits - rest
		if rest > 0 {
			kept := *s
			kept.Permits = rest
			s.Permits -= rest
			s.Removed = at
			scores = append(scores, window.Score{})
			copy(scores[i+2:], scores[i+1:])
			scores[i+1] = kept
			break
		}
		s.Removed = at
	}
	return scores, permits
}

// accounted fails the test if more permits are in use than were granted, with certainty or perhaps.
func (m *mix) accounted(t *rapid.T, limiter int) {
	since := m.time().Add(-time.Duration(m.interval+m.spread()+m.slack+m.longest+1) * time.Millisecond)
	granted := int64(0)
	for _, d := range m.events[limiter] {
		if d.permits > 0 && d.end.After(since) {
			granted += d.permits
		}
	}
	for _, f := range m.participants {
		if f.version != "" {
			continue
		}
		free, err := f.limiters[limiter].AvailablePermits(context.Background())
		if err != nil || m.rate-free > granted {
			t.Fatalf("%s sees %d permits of %d free, and %d were granted lately, %v",
				f.name, free, m.rate, granted, err)
		}
	}
}

// run runs test cases.
func (c *environment) run(t *testing.T, cases int, real bool) {
	setChecks(t, cases)
	began := time.Now()
	rapid.Check(t, func(t *rapid.T) {
		m := c.draw(t, real)
		t.Repeat(map[string]func(*rapid.T){"step": func(t *rapid.T) {
			m.step(t, c)
			m.consistent(t)
		}})
		m.verify(t, c)
	})
	t.Logf("%d cases in %v: in %d a window was full, %d requests or replies were lost, %d permits were taken ahead",
		cases, time.Since(began).Round(time.Millisecond), c.full.Load(), c.lost.Load(), c.leased.permits.Load())
	// In 30 cases of real time, 5 to 80 permits were taken ahead, and 21 to 31 windows were full.
	if c.full.Load() < int64(cases/4) || c.lost.Load() < int64(cases/4) || c.leased.permits.Load() < int64(cases/40) {
		t.Error("too little happened to show anything")
	}
}

func setChecks(t *testing.T, n int) {
	t.Helper()
	if err := flag.Set("rapid.checks", strconv.Itoa(n)); err != nil {
		t.Fatal(err)
	}
}

// TestWindow sets the clock itself, so that every millisecond counts.
func TestWindow(t *testing.T) { newEnvironment(t).run(t, 400, false) }

// TestWindowInRealTime runs in real time, so clients that use the server's clock take part, too.
func TestWindowInRealTime(t *testing.T) { newEnvironment(t).run(t, 30, true) }
