package compat

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/compat/redisson"
	"github.com/rratelimiter/rratelimiter/internal/record"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// upgrades_test.go upgrades a limiter in use from an old Redisson to the newest, and Go with it, in
// the order of docs/guide/share-with-java.md. It also shows the reason for that order: what a
// Redisson does with records that it cannot read.

func upgrades(f *mixed) {
	older := javas(f.T, f.server, "3.15.6", "3.16.8")
	f.Run("records of others", func(t *testing.T) { recordsOfOthers(f.in(t), append(older, f.old, f.recent)) })
	f.Run("one limiter through all", func(t *testing.T) { throughAll(f.in(t), older[0], older[1]) })
}

// An outcome is what a Redisson does with a limiter of 10 permits that has two records of 4
// permits: one expired long ago, the other is of now.
type outcome struct {
	name string
	seen func(b *bench, limiter string)
}

var (
	rightly = outcome{"reads them", func(b *bench, limiter string) {
		want(b, "7 permits", false)(b.java.TryAcquire(b.ctx, limiter, 7))
		want(b, "6 permits", true)(b.java.TryAcquire(b.ctx, limiter, 6))
	}}
	failing = outcome{"fails", func(b *bench, limiter string) {
		if _, err := b.java.TryAcquire(b.ctx, limiter, 1); err == nil || !strings.Contains(err.Error(), "unpack") {
			b.Fatalf("it did not fail as expected: %v", err)
		}
	}}
	asNothing = outcome{"counts no permits back", func(b *bench, limiter string) {
		want(b, "3 permits", false)(b.java.TryAcquire(b.ctx, limiter, 3))
		want(b, "2 permits", true)(b.java.TryAcquire(b.ctx, limiter, 2))
	}}
	asOne = outcome{"counts each record that is left as one permit", func(b *bench, limiter string) {
		want(b, "10 permits", false)(b.java.TryAcquire(b.ctx, limiter, 10))
		want(b, "9 permits", true)(b.java.TryAcquire(b.ctx, limiter, 9))
	}}
	asMuch = outcome{"takes what is left for far more than the rate", func(b *bench, limiter string) {
		want(b, "1 permit", false)(b.java.TryAcquire(b.ctx, limiter, 1))
	}}
	asEndless = outcome{"gives back far more than the rate", func(b *bench, limiter string) {
		for range 10 {
			want(b, "10 permits", true)(b.java.TryAcquire(b.ctx, limiter, 10))
		}
	}}
)

// recordsOfOthers: no Redisson can read records of a release in another row of the guide's table,
// older or newer, nor what Go writes for those. Go reads them all, and once Go has removed the
// expired ones, Redisson works correctly again.
func recordsOfOthers(f *mixed, javas []*redisson.Process) {
	made := map[string][]outcome{ // one outcome for the records of each of javas
		"3.15.6": {rightly, asNothing, asEndless, asEndless},
		"3.16.8": {failing, rightly, failing, failing},
		"3.17.5": {failing, asOne, rightly, rightly},
		"4.7.0":  {failing, asMuch, rightly, rightly},
	}
	for _, java := range javas {
		for i, writer := range javas {
			found := made[java.Version()][i]
			f.Run(java.Version()+" "+found.name+", those of "+writer.Version(), func(t *testing.T) {
				b := f.in(t).beside(java)
				l := b.limiter("records of " + t.Name())
				b.granted(l, format(writer.Version()), 2*long, 0)
				found.seen(b, l.Name())

				b.granted(l, format(writer.Version()), 2*long, 0)
				want(b, "Go's AvailablePermits", int64(6))(l.AvailablePermits(b.ctx))
				b.granted(l, format(writer.Version()), 2*long, 2*long)
				want(b, "Go's TryAcquire", true)(l.TryAcquire(b.ctx, 1))
				want(b, "10 permits, after Go", false)(java.TryAcquire(b.ctx, l.Name(), 10))
				want(b, "9 permits, after Go", true)(java.TryAcquire(b.ctx, l.Name(), 9))
			})
		}
	}
}

// long is an interval that does not end during a test.
const long = time.Hour

// granted creates the limiter again, with 10 permits and a record of 4 permits for each of the
// ages.
func (b *bench) granted(l *rratelimiter.Limiter, f rratelimiter.RecordFormat, ago ...time.Duration) {
	b.Helper()
	b.must("Go's SetRate", l.SetRate(b.ctx, every(long, 10)))
	idLength := map[rratelimiter.RecordFormat]int{rratelimiter.Redisson313: 4, rratelimiter.Redisson321: 16}[f]
	if idLength == 0 {
		idLength = 8
	}
	var records []redis.Z
	for i, d := range ago {
		record, err := rratelimiter.PackRecord(f, bytes.Repeat([]byte{'a' + byte(i)}, idLength), 4)
		b.must("PackRecord", err)
		records = append(records, redis.Z{Score: float64(time.Now().Add(-d).UnixMilli()), Member: record})
	}
	b.must("ZADD", b.rdb.ZAdd(b.ctx, permitsKey(l.Name()), records...).Err())
	b.must("SET", b.rdb.Set(b.ctx, valueKey(l.Name()), 10-4*len(records), 0).Err())
}

// throughAll: while members join and leave, every member is served, no call fails, and no window
// holds more than the rate.
func throughAll(f *mixed, first, second *redisson.Process) {
	const name, interval, granularity = "upgraded", 300 * time.Millisecond, 30 * time.Millisecond
	rate := every(interval, 60)
	b := f.beside(f.recent)
	java := func(p *redisson.Process) member { return javaMember(f.T, p, name) }
	// process returns a Go member that shares nothing with the others, as if it were a process of
	// its own.
	process := func(called string, opts ...rratelimiter.LimiterOption) member {
		client := rratelimiter.NewClient(f.server.Client(), rratelimiter.WithCallTimeout(patience))
		m := goMember(f.T, client.RateLimiter(name, opts...))
		m.name = called
		return m
	}
	for313 := rratelimiter.WithRecordFormat(rratelimiter.Redisson313)
	for316 := rratelimiter.WithRecordFormat(rratelimiter.Redisson316)
	for321 := rratelimiter.WithRecordFormat(rratelimiter.Redisson321)
	granular := rratelimiter.WithGranularity(granularity)

	want(b, "Java's trySetRate", true)(
		first.TrySetRate(b.ctx, name, redisson.Rate{Permits: rate.Permits, Interval: interval}),
	)
	monitor := f.server.Monitor(func(c redistest.Command) bool {
		return len(c.Args) > 1 && c.Args[1] == permitsKey(name) || len(c.Args) > 3 && c.Args[3] == name
	})
	r := newRota(b)
	begun := time.Now()
	// When the last client of a row has been gone for an interval, none of its records is left.
	cross := func(next rratelimiter.RecordFormat) {
		time.Sleep(interval + granularity)
		r.served()
		for _, member := range f.rdb.ZRange(b.ctx, permitsKey(name), 0, -1).Val() {
			if f, _, _ := record.FormatOf([]byte(member)); rratelimiter.RecordFormat(f) != next {
				b.Fatalf("a record of %v is left", rratelimiter.RecordFormat(f))
			}
		}
	}

	r.join(java(first))
	r.join(process("Go for 3.13", for313))
	r.leave(first.Version())
	r.join(process("Go for 3.16", for316))
	r.leave("Go for 3.13")
	cross(rratelimiter.Redisson316)

	r.join(java(second), process("Go for 3.16, granular", for316, granular))
	r.leave(second.Version())
	r.join(process("Go"))
	r.leave("Go for 3.16", "Go for 3.16, granular")
	cross(rratelimiter.Redisson317)

	r.join(java(f.old), process("Go, granular", granular))
	r.join(java(f.recent), process("Go for 3.21, a record a request", for321, rratelimiter.WithRecordPerRequest()))
	r.leave(f.old.Version(), "Go")
	r.served()
	r.leave(r.atWork()...)
	over := time.Now()
	commands := monitor.Stop()

	result := report{
		log:      r.journal.log,
		scores:   scoresOf(f.T, commands, permitsKey(name), over),
		disorder: disorderOf(commands, name),
		duration: over.Sub(begun), rate: rate,
	}
	for _, m := range r.members {
		granted := r.journal.permits(m.name, time.Time{})
		if strings.HasPrefix(m.name, "Go") {
			result.byGo += granted
		} else {
			result.byJava += granted
		}
		f.Logf("%s got %d permits", m.name, granted)
		if faults := r.journal.faults[m.name]; len(faults) > 0 {
			f.Errorf("%s: %s", m.name, kinds(faults))
		}
	}
	result.verify(f.T)
	if used := result.used(); used < 0.5 {
		f.Errorf("%.1f %% of what the rate allows was used", 100*used)
	}

	l := f.limiter(name)
	for side, available := range map[string]func() (int64, error){
		f.recent.Version(): func() (int64, error) { return f.recent.Available(b.ctx, name) },
		"Go":               func() (int64, error) { return l.AvailablePermits(b.ctx) },
	} {
		b.eventually(side+" sees all permits free", patience, func() bool {
			n, err := available()
			b.must(side, err)
			return n == rate.Permits
		})
	}
	if s, err := l.State(b.ctx); err != nil || !s.Consistent || s.Records != 0 {
		f.Errorf("when all permits are free the state is %+v, %v", s, err)
	}
}

// A rota is the changing set of members on a limiter, with one journal for all of them.
type rota struct {
	*bench
	journal *journal
	members []member          // all that ever joined
	end     map[string]func() // by name of a working member: ends its work
}

func newRota(b *bench) *rota {
	j := newJournal()
	j.spell = 200 * time.Millisecond
	r := &rota{bench: b, journal: j, end: map[string]func(){}}
	b.Cleanup(func() { r.leave(r.atWork()...) })
	return r
}

func (r *rota) atWork() []string { return slices.Collect(maps.Keys(r.end)) }

// join starts members, and waits until every working member is served.
func (r *rota) join(members ...member) {
	r.Helper()
	for _, m := range members {
		var over atomic.Bool
		left := make(chan struct{})
		go func() {
			defer close(left)
			r.journal.work(r.T, over.Load, m)
		}()
		r.members = append(r.members, m)
		r.end[m.name] = func() {
			over.Store(true)
			<-left
		}
	}
	r.served()
}

// served waits until every working member was granted more permits than calls in flight can bring.
func (r *rota) served() {
	r.Helper()
	const enough = 20
	since := time.Now()
	for _, name := range r.atWork() {
		r.eventually(name+" is served", patience, func() bool { return r.journal.permits(name, since) >= enough })
	}
}

// leave ends the work of members, and waits until they have stopped.
func (r *rota) leave(names ...string) {
	var wg sync.WaitGroup
	for _, name := range names {
		wg.Go(r.end[name])
		delete(r.end, name)
	}
	wg.Wait()
}
