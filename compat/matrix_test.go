package compat

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/compat/redisson"
	"github.com/rratelimiter/rratelimiter/internal/dispatch"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

var (
	update = flag.Bool("update", false, "write the table of the matrix into numbers.md")
	all    = flag.Bool("all", false, "run the matrix with every release of Redisson")
)

// A check is a column of the matrix.
type check struct {
	name        string
	since       string // the first version that it applies to; "" all
	run         func(b *bench, name string)
	otherwise   string // the table entry for versions before otherwiseTo that pass, if not yes
	otherwiseTo string
}

var checks = []check{
	{name: "Java sets, Go goes on", run: javaFirst(redisson.Overall)},
	{name: "Go sets, Java goes on", run: goFirst(redisson.Overall)},
	{name: "the same per client", run: func(b *bench, name string) {
		javaFirst(redisson.PerClient)(b, name+":java")
		goFirst(redisson.PerClient)(b, name+":go")
	}},
	{
		name:        "Java reads Go's records",
		run:         javaReadsRecords,
		otherwise:   "except `availablePermits`",
		otherwiseTo: "3.13.4",
	},
	{name: "Go reads Java's records", run: goReadsRecords},
	{name: "TTL by Java", run: ttlByJava},
	{name: "TTL by Go", run: ttlByGo},
	{name: "new rate by Java", since: "3.13.4", run: newRateByJava},
	{name: "rate of 0 refuses", run: zeroRate},
	{name: "keep-alive", run: keepAlive, otherwise: "not renewed by Java", otherwiseTo: "3.38.0"},
	{name: "release", since: "3.52.0", run: release},
}

// TestMatrix runs every check with every version, or with -all every release, and compares the
// results with the tables of numbers.md and methods.md.
func TestMatrix(t *testing.T) {
	versions := redisson.Versions
	if *all {
		versions = redisson.Releases
	}
	if err := redisson.Build(context.Background(), versions...); err != nil {
		t.Fatal(err)
	}
	listed := listedMethods(t)
	var mu sync.Mutex
	results := map[string]map[string]string{}
	t.Run("versions", func(t *testing.T) {
		for _, version := range versions {
			t.Run(version, func(t *testing.T) {
				t.Parallel()
				server := redistest.Real(t)
				row := map[string]string{}
				left := len(checks)
				defer func() {
					mu.Lock()
					defer mu.Unlock()
					if left == 0 { // otherwise -run selected only some checks
						results[version] = row
					}
				}()
				b := &bench{
					T:    t,
					ctx:  t.Context(),
					rdb:  server.Client(),
					java: redisson.Start(t, version, redisson.Addr(server.Addr)),
				}
				t.Run("is noticed", func(t *testing.T) { isNoticed(t, server, b.java) })
				t.Run("methods", func(t *testing.T) { listed.compare(t, b.java) })
				t.Run("configuration alone", func(t *testing.T) {
					configurationAlone(&bench{T: t, ctx: t.Context(), rdb: b.rdb, java: b.java}, version+":alone")
				})
				for _, c := range checks {
					if before(version, c.since) {
						row[c.name] = "–"
						left--
						continue
					}
					row[c.name] = "NO"
					passed := t.Run(c.name, func(t *testing.T) {
						left--
						c.run(&bench{T: t, ctx: t.Context(), rdb: b.rdb, java: b.java}, version+":"+c.name)
					})
					switch {
					case passed && before(version, c.otherwiseTo):
						row[c.name] = c.otherwise
					case passed:
						row[c.name] = "yes"
					}
				}
			})
		}
	})
	cells := map[string]string{}
	for version, row := range results { // the versions that -run selected
		cells[version] = cellsOf(version, row)
	}
	t.Logf("version x check:\n%s", tableOf(cells))
	compareTable(t, cells)
}

// isNoticed: the first call of a Redisson version leaves traces on its server that a Go client
// looks for; a Go client does not.
func isNoticed(t *testing.T, server *redistest.Server, java *redisson.Process) {
	var core *dispatch.Client
	limiter := rratelimiter.NewClient(showing(&core, server.Client()), rratelimiter.WithCallTimeout(patience)).
		RateLimiter("noticed", rratelimiter.WithRate(rratelimiter.PerHour(5)))
	bare, err := core.Limiter("noticed")
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := limiter.TryAcquire(t.Context(), 1); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if bare.RedissonHere(t.Context()) {
		t.Error("Redisson is noticed where there is none")
	}
	if ok, err := java.TryAcquire(t.Context(), "noticed", 1); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if !bare.RedissonHere(t.Context()) {
		t.Error("Redisson is not noticed: the hash of its script is missing in redisson.go")
	}
}

// before reports whether one version is older than another.
func before(version, other string) bool {
	parts := func(v string) (numbers []int) {
		for _, part := range strings.Split(v, ".") {
			n, _ := strconv.Atoi(part)
			numbers = append(numbers, n)
		}
		return numbers
	}
	return other != "" && slices.Compare(parts(version), parts(other)) < 0
}

// differs reports whether the table has a column for the check: not all releases give the same
// result.
func (c check) differs() bool { return c.since != "" || c.otherwise != "" }

// tableOf returns the table with the cells of some releases. Releases in sequence with the same
// cells share a row.
func tableOf(cells map[string]string) string {
	var text strings.Builder
	text.WriteString("| Redisson | format that Java writes |")
	columns := 2
	for _, c := range checks {
		if c.differs() {
			fmt.Fprintf(&text, " %s |", c.name)
			columns++
		}
	}
	text.WriteString("\n|" + strings.Repeat("---|", columns) + "\n")
	for i := 0; i < len(redisson.Releases); {
		first, row := redisson.Releases[i], cells[redisson.Releases[i]]
		last := first
		for i++; i < len(redisson.Releases) && cells[redisson.Releases[i]] == row; i++ {
			last = redisson.Releases[i]
		}
		if row == "" {
			continue
		}
		if last != first {
			first += " to " + last
		}
		text.WriteString("| " + first + " |" + row + "\n")
	}
	return text.String()
}

// cellsIn returns the cells of each release in a table, which tableOf made.
func cellsIn(table string) map[string]string {
	cells := map[string]string{}
	for line := range strings.Lines(table) {
		parts := strings.SplitN(strings.TrimSpace(line), "|", 3)
		if len(parts) < 3 {
			continue
		}
		first, last, several := strings.Cut(strings.TrimSpace(parts[1]), " to ")
		if !several {
			last = first
		}
		from, to := slices.Index(redisson.Releases, first), slices.Index(redisson.Releases, last)
		for i := from; i >= 0 && i <= to; i++ {
			cells[redisson.Releases[i]] = parts[2]
		}
	}
	return cells
}

// cellsOf returns the cells of a release.
func cellsOf(version string, results map[string]string) string {
	text := fmt.Sprintf(" `%s` |", formatNames[format(version)])
	for _, c := range checks {
		if c.differs() {
			text += fmt.Sprintf(" %s |", results[c.name])
		}
	}
	return text
}

var formatNames = map[rratelimiter.RecordFormat]string{
	rratelimiter.Redisson313: "Redisson313", rratelimiter.Redisson316: "Redisson316",
	rratelimiter.Redisson317: "Redisson317", rratelimiter.Redisson321: "Redisson321",
}

// format returns the record format that a version writes.
func format(version string) rratelimiter.RecordFormat {
	switch {
	case before(version, "3.16.4"):
		return rratelimiter.Redisson313
	case before(version, "3.17.0"):
		return rratelimiter.Redisson316
	case before(version, "3.21.0"):
		return rratelimiter.Redisson317
	}
	return rratelimiter.Redisson321
}

const (
	numbersPage = "numbers.md"
	tableBegin  = "<!-- matrix: written by make matrix-all -->\n"
	tableEnd    = "<!-- /matrix -->"
)

// compareTable compares the cells of some releases with the page, which has those of every release,
// and with the update flag writes them there.
func compareTable(t *testing.T, cells map[string]string) {
	t.Helper()
	head, table, tail := tableOnThePage(t)
	known := cellsIn(table)
	maps.Copy(known, cells)
	text := tableOf(known)
	if strings.TrimSpace(table) == strings.TrimSpace(text) {
		return
	}
	if !*update {
		t.Errorf("the table in %s does not say what is above; make matrix-all writes it", numbersPage)
		return
	}
	if err := os.WriteFile(numbersPage, []byte(head+"\n"+text+"\n"+tail), 0o644); err != nil {
		t.Fatal(err)
	}
}

// tableOnThePage returns the table of releases, and what stands before and after it.
func tableOnThePage(t *testing.T) (head, table, tail string) {
	t.Helper()
	content, err := os.ReadFile(numbersPage)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, found := strings.Cut(string(content), tableBegin)
	table, tail, ends := strings.Cut(rest, tableEnd)
	if !found || !ends {
		t.Fatalf("%s has no place for the table", numbersPage)
	}
	return head + tableBegin, table, tableEnd + tail
}

// TestTheTableHasEveryRelease checks that the table has all releases; most runs compare only some
// of them.
func TestTheTableHasEveryRelease(t *testing.T) {
	_, table, _ := tableOnThePage(t)
	known := cellsIn(table)
	for _, version := range redisson.Releases {
		if known[version] == "" {
			t.Errorf("%s has no row for %s", numbersPage, version)
		}
	}
	if strings.TrimSpace(table) != strings.TrimSpace(tableOf(known)) {
		t.Errorf("the rows in %s are not those that make matrix-all writes", numbersPage)
	}
	for _, version := range redisson.Versions {
		if !slices.Contains(redisson.Releases, version) {
			t.Errorf("%s is no release", version)
		}
	}
}

// limiter returns the Go side of a check. It writes records that the version can read.
func (b *bench) limiter(name string, opts ...rratelimiter.LimiterOption) *rratelimiter.Limiter {
	opts = append(opts, rratelimiter.WithRecordFormat(readable(b.java.Version())))
	return b.client(rratelimiter.WithClientID(b.java.ID())).RateLimiter(name, opts...)
}

// readable returns the record format for a fleet with this version.
func readable(version string) rratelimiter.RecordFormat {
	if f := format(version); f != rratelimiter.Redisson321 {
		return f
	}
	return rratelimiter.Redisson317 // the default, readable from 3.17.0 on
}

func goType(t redisson.Type) rratelimiter.RateType {
	if t == redisson.PerClient {
		return rratelimiter.PerClient
	}
	return rratelimiter.Overall
}

// javaFirst: Java sets the rate and takes some permits; Go reads the rate and takes the rest; then
// neither finds a free permit.
func javaFirst(kind redisson.Type) func(*bench, string) {
	return func(b *bench, name string) {
		l := b.limiter(name)
		want(b, "Java's trySetRate", true)(
			b.java.TrySetRate(b.ctx, name, redisson.Rate{Type: kind, Permits: 5, Interval: time.Minute}),
		)
		want(b, "Go's Config", rratelimiter.Rate{Type: goType(kind), Permits: 5, Interval: time.Minute})(
			l.Config(b.ctx))
		want(b, "Go's TrySetRate", false)(l.TrySetRate(b.ctx, rratelimiter.PerSecond(1)))
		want(b, "Java's tryAcquire", true)(b.java.TryAcquire(b.ctx, name, 2))
		want(b, "Go's AvailablePermits", int64(3))(l.AvailablePermits(b.ctx))
		want(b, "Go's TryAcquire", true)(l.TryAcquire(b.ctx, 3))
		b.nothingLeft(l, name)
	}
}

// goFirst is javaFirst with the sides swapped.
func goFirst(kind redisson.Type) func(*bench, string) {
	return func(b *bench, name string) {
		l := b.limiter(name)
		rate := redisson.Rate{Type: kind, Permits: 5, Interval: time.Minute}
		want(b, "Go's TrySetRate", true)(
			l.TrySetRate(b.ctx, rratelimiter.Rate{Type: goType(kind), Permits: 5, Interval: time.Minute}),
		)
		want(b, "Java's getConfig", rate)(b.java.Config(b.ctx, name))
		want(b, "Java's trySetRate",
			false)(b.java.TrySetRate(b.ctx, name, redisson.Rate{Permits: 1, Interval: time.Second}))
		want(b, "Go's TryAcquire", true)(l.TryAcquire(b.ctx, 2))
		want(b, "Java's availablePermits", int64(3))(b.java.Available(b.ctx, name))
		want(b, "Java's tryAcquire", true)(b.java.TryAcquire(b.ctx, name, 3))
		b.nothingLeft(l, name)
	}
}

// comparesWithRate is the first version that compares every request with the rate.
const comparesWithRate = "3.14.0"

// zeroRate: a rate of 0, set by Java, by Go, or by Go over another rate, refuses every request of
// both. Java's methods throw, those that wait, too; the oldest releases compare a request with the
// rate only where no free permits are stored.
func zeroRate(b *bench, name string) {
	for who, set := range map[string]func(l *rratelimiter.Limiter) error{
		"Java's trySetRate": func(l *rratelimiter.Limiter) error {
			_, err := b.java.TrySetRate(b.ctx, l.Name(), redisson.Rate{Interval: time.Minute})
			return err
		},
		"Go's TrySetRate": func(l *rratelimiter.Limiter) error {
			_, err := l.TrySetRate(b.ctx, rratelimiter.PerMinute(0))
			return err
		},
		"Go's SetRate": func(l *rratelimiter.Limiter) error {
			want(b, "Java's trySetRate",
				true)(b.java.TrySetRate(b.ctx, l.Name(), redisson.Rate{Permits: 5, Interval: time.Minute}))
			want(b, "Java's tryAcquire", true)(b.java.TryAcquire(b.ctx, l.Name(), 2))
			return l.SetRate(b.ctx, rratelimiter.PerMinute(0), rratelimiter.KeepState())
		},
	} {
		l := b.limiter(name + ":" + who)
		b.must(who, set(l))
		want(b, "Go's Config", rratelimiter.PerMinute(0))(l.Config(b.ctx))
		want(b, "Java's getConfig", redisson.Rate{Type: redisson.Overall, Interval: time.Minute})(
			b.java.Config(b.ctx, l.Name()),
		)
		for range 2 { // the first call of Go stores the free permits
			for what, call := range map[string]func() (bool, error){
				"tryAcquire": func() (bool, error) { return b.java.TryAcquire(b.ctx, l.Name(), 1) },
				"tryAcquire with a timeout": func() (bool, error) {
					return b.java.TryAcquireTimeout(b.ctx, l.Name(), 1, 20*time.Millisecond)
				},
			} {
				ok, err := call()
				if failure := (*redisson.Error)(nil); ok || err != nil && !errors.As(err, &failure) ||
					!before(b.java.Version(), comparesWithRate) &&
						(err == nil || !strings.Contains(err.Error(), "exceed defined rate")) {
					b.Fatalf("%s, then Java's %s: %v, %v", who, what, ok, err)
				}
			}
			if !before(b.java.Version(), comparesWithRate) {
				if err := b.java.Acquire(b.ctx, l.Name(), 1); err == nil ||
					!strings.Contains(err.Error(), "exceed defined rate") {
					b.Fatalf("%s, then Java's acquire: %v", who, err)
				}
			}
			if ok, err := l.TryAcquire(b.ctx, 1); ok || !errors.Is(err, rratelimiter.ErrExceedsRate) {
				b.Fatalf("%s, then Go's TryAcquire: %v, %v", who, ok, err)
			}
			want(b, "Go's AcquireUpTo", int64(0))(l.AcquireUpTo(b.ctx, 5))
			want(b, "Go's AvailablePermits", int64(0))(l.AvailablePermits(b.ctx))
		}
		b.must("Go's SetRate", l.SetRate(b.ctx, rratelimiter.PerMinute(5)))
		want(b, "Java's tryAcquire at a rate of 5", true)(b.java.TryAcquire(b.ctx, l.Name(), 3))
		want(b, "Go's TryAcquire at a rate of 5", true)(l.TryAcquire(b.ctx, 2))
	}
}

func (b *bench) nothingLeft(l *rratelimiter.Limiter, name string) {
	b.Helper()
	want(b, "Java's availablePermits", int64(0))(b.java.Available(b.ctx, name))
	want(b, "Go's AvailablePermits", int64(0))(l.AvailablePermits(b.ctx))
	want(b, "Java's tryAcquire", false)(b.java.TryAcquire(b.ctx, name, 1))
	want(b, "Go's TryAcquire", false)(l.TryAcquire(b.ctx, 1))
	state, err := l.State(b.ctx)
	b.must("Go's State", err)
	if !state.Consistent || state.Used != 5 || state.Records != 2 {
		b.Fatalf("two grants of 5 permits in sum left %+v", state)
	}
}

const recordsInterval = 900 * time.Millisecond

// twoGrants takes 3 and then 4 of 10 permits, far enough apart that the first expires well before
// the second.
func (b *bench) twoGrants(take func(n int64) (bool, error)) {
	b.Helper()
	want(b, "the first grant", true)(take(3))
	time.Sleep(recordsInterval * 2 / 3)
	want(b, "the second grant", true)(take(4))
}

// javaReadsRecords: Go's records expire one by one in Java's own script, which has to unpack them.
// The availablePermits of 3.13.3 fails on any expired record, also on its own.
func javaReadsRecords(b *bench, name string) {
	own := before(b.java.Version(), "3.13.4")
	see := func(name string) (int64, error) { return b.java.Available(b.ctx, name) }
	if own {
		rate := redisson.Rate{Permits: 10, Interval: time.Millisecond}
		want(b, "Java's trySetRate", true)(b.java.TrySetRate(b.ctx, name+":own", rate))
		want(b, "Java's tryAcquire", true)(b.java.TryAcquire(b.ctx, name+":own", 1))
		b.eventually("Java's availablePermits fails on its own record", 10*time.Second, func() bool {
			_, err := b.java.Available(b.ctx, name+":own")
			return err != nil && strings.Contains(err.Error(), "unpack")
		})
		see = b.freeByTrying
	}
	formats := []rratelimiter.RecordFormat{readable(b.java.Version())}
	if f := format(b.java.Version()); f != formats[0] {
		formats = append(formats, f)
	}
	for _, f := range formats {
		name := fmt.Sprintf("%s:%d", name, f)
		l := b.client().RateLimiter(name, rratelimiter.WithRecordFormat(f))
		want(b, "Go's TrySetRate", true)(l.TrySetRate(b.ctx, rratelimiter.Rate{Permits: 10, Interval: recordsInterval}))
		began := time.Now()
		b.twoGrants(func(n int64) (bool, error) { return l.TryAcquire(b.ctx, n) })
		free, err := see(name)
		if b.must("what Java sees", err); free != 3 && time.Since(began) < recordsInterval {
			b.Fatalf("Java sees %d permits free, not 3", free)
		}
		b.sees("Java", []int64{3, 6, 10}, func() (int64, error) { return see(name) })
		if n := b.rdb.ZCard(b.ctx, permitsKey(name)).Val(); n != 0 {
			b.Fatalf("Java left %d records of Go", n)
		}
	}
}

// freeByTrying makes Java's tryAcquire update the free permits by a request above the rate. Where
// no record is live the call fails, as in all releases, but only after the update.
func (b *bench) freeByTrying(name string) (int64, error) {
	granted, err := b.java.TryAcquire(b.ctx, name, 11)
	if granted || err != nil && !strings.Contains(err.Error(), "unpack") {
		return 0, fmt.Errorf("11 of 10 permits: granted %v, %v", granted, err)
	}
	return b.rdb.Get(b.ctx, valueKey(name)).Int64()
}

// goReadsRecords is the reverse of javaReadsRecords; Go also unpacks every member itself. On a busy
// machine the first record may expire before Java writes the second one.
func goReadsRecords(b *bench, name string) {
	for attempt := range 10 {
		if b.goReads(fmt.Sprint(name, ":", attempt)) {
			return
		}
	}
	b.Fatal("Java never wrote two records within an interval")
}

// goReads reports whether Java wrote two records within an interval, and fails the check unless Go
// reads them.
func (b *bench) goReads(name string) bool {
	l := b.limiter(name)
	want(b, "Java's trySetRate", true)(
		b.java.TrySetRate(b.ctx, name, redisson.Rate{Permits: 10, Interval: recordsInterval}),
	)
	began := time.Now()
	b.twoGrants(func(n int64) (bool, error) { return b.java.TryAcquire(b.ctx, name, n) })
	members, err := b.rdb.ZRangeWithScores(b.ctx, permitsKey(name), 0, -1).Result()
	b.must("reading the records", err)
	if time.Since(began) >= recordsInterval {
		return false
	}
	var sizes []uint32
	for _, m := range members {
		record, err := rratelimiter.UnpackRecord([]byte(m.Member.(string)))
		b.must("UnpackRecord", err)
		packed, err := rratelimiter.PackRecord(format(b.java.Version()), record.ID, record.Permits)
		b.must("PackRecord", err)
		if string(packed) != m.Member {
			b.Fatalf("Java wrote %x, Go packs %x", m.Member, packed)
		}
		sizes = append(sizes, record.Permits)
	}
	if !slices.Equal(sizes, []uint32{3, 4}) {
		b.Fatalf("Java's records hold %v permits", sizes)
	}
	b.sees("Go", []int64{3, 6, 10}, func() (int64, error) { return l.AvailablePermits(b.ctx) })
	if n := b.rdb.ZCard(b.ctx, permitsKey(name)).Val(); n != 0 {
		b.Fatalf("Go left %d records of Java", n)
	}
	return true
}

// sees calls ask until it has returned the given numbers, in this order, and no others.
func (b *bench) sees(side string, numbers []int64, ask func() (int64, error)) {
	b.Helper()
	at := 0
	b.eventually(fmt.Sprintf("%s sees %v", side, numbers), 10*time.Second, func() bool {
		n, err := ask()
		b.must(side, err)
		for at < len(numbers)-1 && n != numbers[at] {
			at++
		}
		if n != numbers[at] {
			b.Fatalf("%s sees %d permits free, not one of %v", side, n, numbers)
		}
		return at == len(numbers)-1
	})
}

func valueKey(name string) string   { return "{" + name + "}:value" }
func permitsKey(name string) string { return "{" + name + "}:permits" }

// stateLives fails unless the TTLs of value and permits are about the given one.
func (b *bench) stateLives(name string, ttl time.Duration) {
	b.Helper()
	for _, key := range []string{valueKey(name), permitsKey(name)} {
		left := b.rdb.PTTL(b.ctx, key).Val()
		if left > ttl || left < ttl-10*time.Second {
			b.Fatalf("%s lives %v, not about %v", key, left, ttl)
		}
	}
}

// ttlByJava: Java's expire also applies to the state that Go writes.
func ttlByJava(b *bench, name string) {
	l := b.limiter(name)
	want(b, "Java's trySetRate", true)(b.java.TrySetRate(b.ctx, name, redisson.Rate{Permits: 5, Interval: time.Minute}))
	want(b, "Java's expire", true)(b.java.Expire(b.ctx, name, time.Minute))
	want(b, "Go's TryAcquire", true)(l.TryAcquire(b.ctx, 1))
	b.stateLives(name, time.Minute)
}

// ttlByGo: Go's expire applies to the existing state, and to what Java writes, where that version
// gives the state the TTL of the configuration.
func ttlByGo(b *bench, name string) {
	l := b.limiter(name)
	want(b, "Go's TrySetRate", true)(l.TrySetRate(b.ctx, rratelimiter.Rate{Permits: 5, Interval: time.Minute}))
	want(b, "Java's tryAcquire", true)(b.java.TryAcquire(b.ctx, name, 1))
	want(b, "Go's Expire", true)(l.Expire(b.ctx, time.Minute))
	b.stateLives(name, time.Minute)
	want(b, "Java's tryAcquire", true)(b.java.TryAcquire(b.ctx, name, 1))
	b.stateLives(name, time.Minute)
	ttl, err := b.java.TTL(b.ctx, name)
	b.must("Java's remainTimeToLive", err)
	if ttl > time.Minute || ttl < 50*time.Second {
		b.Fatalf("Java sees a TTL of %v", ttl)
	}
	want(b, "Go's ClearExpire", true)(l.ClearExpire(b.ctx))
	want(b, "Java's remainTimeToLive", -time.Millisecond)(b.java.TTL(b.ctx, name))
}

// newRateByJava: Go uses a rate as soon as Java has set it.
func newRateByJava(b *bench, name string) {
	l := b.limiter(name, rratelimiter.WithRate(rratelimiter.PerMinute(1)))
	want(b, "Go's TryAcquire", true)(l.TryAcquire(b.ctx, 1))
	want(b, "Go's TryAcquire", false)(l.TryAcquire(b.ctx, 1))
	b.must("Java's setRate", b.java.SetRate(b.ctx, name, redisson.Rate{Permits: 7, Interval: time.Minute}))
	want(b, "Go's AvailablePermits", int64(7))(l.AvailablePermits(b.ctx))
	want(b, "Go's TryAcquire", true)(l.TryAcquire(b.ctx, 5))
	if before(b.java.Version(), "4.4.0") {
		return
	}
	want(b, "Java's updateRate", true)(
		b.java.UpdateRate(b.ctx, name, redisson.Rate{Permits: 9, Interval: time.Minute, KeepState: true}),
	)
	want(b, "Go's AvailablePermits", int64(4))(l.AvailablePermits(b.ctx))
}

// keepAlive: each side renews a limiter with a keep-alive that the other set. Redisson before 3.38
// does not support keep-alives, so a limiter that only it uses expires. 3.37.0 accepts one as a TTL
// but never renews it.
func keepAlive(b *bench, name string) {
	const alive = 1500 * time.Millisecond
	l := b.limiter(name)
	goRate := rratelimiter.Rate{Permits: 5, Interval: 100 * time.Millisecond, KeepAlive: alive}
	// renew reports whether the limiter stays alive while it is used. If the machine stalled too
	// long to decide, the limiter is created and used again.
	renew := func(take func() (bool, error)) (lives bool) {
		for range 10 {
			used, late := time.Now(), false
			lives = true
			for end := used.Add(2 * alive); lives && time.Now().Before(end); time.Sleep(alive / 5) {
				began := time.Now()
				_, err := take()
				late = late || time.Since(used) > alive*2/3
				used, lives = began, err == nil
			}
			lives = lives && b.rdb.Exists(b.ctx, name).Val() == 1
			if lives || !late {
				break
			}
			b.must("Go's SetRate", l.SetRate(b.ctx, goRate))
		}
		return lives
	}
	want(b, "Go's TrySetRate", true)(l.TrySetRate(b.ctx, goRate))
	supported, accepted := !before(b.java.Version(), "3.38.0"), !before(b.java.Version(), "3.37.0")
	if lives := renew(func() (bool, error) { return b.java.TryAcquire(b.ctx, name, 1) }); lives != supported {
		b.Fatalf("under Java's traffic the limiter lives on: %v, want %v", lives, supported)
	}
	rate := redisson.Rate{Permits: 5, Interval: 100 * time.Millisecond, KeepAlive: alive}
	err := b.java.SetRate(b.ctx, name, rate)
	if accepted {
		b.must("Java's setRate", err)
	} else if !errors.Is(err, redisson.ErrUnsupported) {
		b.Fatalf("Java's setRate with a keep-alive: %v, want unsupported", err)
	}
	if !supported {
		if field := b.rdb.HGet(b.ctx, name, "keepAliveTime").Val(); accepted && field != "" {
			b.Fatalf("Java wrote a keep-alive of %s", field)
		}
		b.must("Go's SetRate", l.SetRate(b.ctx, goRate))
	}
	if !renew(func() (bool, error) { return l.TryAcquire(b.ctx, 1) }) {
		b.Fatal("under Go's traffic the limiter died")
	}
	b.eventually("the limiter dies unused", 4*alive, func() bool {
		return b.rdb.Exists(b.ctx, name, valueKey(name), permitsKey(name)).Val() == 0
	})
	_, err = l.TryAcquire(b.ctx, 1)
	if !errors.Is(err, rratelimiter.ErrNotInitialized) {
		b.Fatalf("acquiring from a dead limiter: %v", err)
	}
}

// release: permits that Java releases are free for Go, and vice versa.
func release(b *bench, name string) {
	l := b.limiter(name, rratelimiter.WithRate(rratelimiter.PerMinute(5)))
	want(b, "Go's TryAcquire", true)(l.TryAcquire(b.ctx, 5))
	b.must("Java's release", b.java.Release(b.ctx, name, 2))
	want(b, "Go's AvailablePermits", int64(2))(l.AvailablePermits(b.ctx))
	want(b, "Go's TryAcquire", true)(l.TryAcquire(b.ctx, 2))
	want(b, "Go's TryAcquire", false)(l.TryAcquire(b.ctx, 1))
	want(b, "Go's Release", int64(3))(l.Release(b.ctx, 3))
	want(b, "Java's availablePermits", int64(3))(b.java.Available(b.ctx, name))
	want(b, "Java's tryAcquire", true)(b.java.TryAcquire(b.ctx, name, 3))
	want(b, "Java's tryAcquire", false)(b.java.TryAcquire(b.ctx, name, 1))
}
