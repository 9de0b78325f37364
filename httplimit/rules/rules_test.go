package rules

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// A book collects what a logger writes.
type book struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (b *book) Write(line []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(line)
}

// lines returns what was written since the last call.
func (b *book) lines() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.text.Reset()
	return strings.Split(strings.TrimSuffix(b.text.String(), "\n"), "\n")
}

// A bench is a guard that obeys a file.
type bench struct {
	t     *testing.T
	file  string
	guard *httplimit.Guard
	book  *book
}

// newBench starts a guard with a file, in a bubble.
func newBench(t *testing.T, text string) *bench { return newBenchThatReads(t, text, 0) }

// newBenchThatReads is newBench for a guard that reads the file so often.
func newBenchThatReads(t *testing.T, text string, every time.Duration) *bench {
	b := &bench{t: t, file: filepath.Join(t.TempDir(), "limits.yaml"), guard: httplimit.New(), book: &book{}}
	b.guard.Policy = &httplimit.Policy{Bound: time.Minute}
	b.write(text)
	server := limittest.NewRealTime(t)
	err := Watch(t.Context(), b.guard, b.file, Config{
		Client: server.Client(),
		Redis:  server.Redis(),
		Every:  every,
		Addr:   httplimit.ClientAddr{Trusted: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")}},
		Keys:   map[string]httplimit.Key{"tenant": httplimit.Header("X-Tenant")},
		Logger: slog.New(slog.NewTextHandler(b.book, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) write(text string) {
	b.t.Helper()
	if err := os.WriteFile(b.file, []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// passes sends a request and checks whether it may pass. header are names and values of header
// fields.
func (b *bench) passes(want bool, method, target string, header ...string) {
	b.t.Helper()
	r := httptest.NewRequest(method, target, nil)
	r.RemoteAddr = "203.0.113.1:1234"
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
		if header[i] == "From" {
			r.RemoteAddr = header[i+1] + ":1234"
		}
	}
	if d := b.guard.Decide(r); d.Outcome.Passed() != want || d.Err != nil {
		b.t.Errorf("%s %s %v: %v %v", method, target, header, d.Outcome, d.Err)
	}
}

// logged checks the lines that were logged since the last call.
func (b *bench) logged(want ...string) {
	b.t.Helper()
	lines := b.book.lines()
	if len(want) == 0 {
		want = []string{""}
	}
	if len(lines) != len(want) {
		b.t.Fatalf("logged %q, want %q", lines, want)
	}
	for i, line := range lines {
		if !strings.Contains(line, want[i]) || line == "" != (want[i] == "") {
			b.t.Errorf("logged %q, want %q", line, want[i])
		}
	}
}

// The clock of a bubble begins on Saturday, 1 January 2000, at 0:00 UTC.
func TestQuotasEndWithTheirPeriods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBenchThatReads(t, `
limits:
  daily: {key: header X-User, quota: 2/day, paths: /day, time-zone: Asia/Tokyo}
  weekly: {key: all, quota: 3/week, paths: /week, cost: 2}
  monthly: {key: all, rate: 1/month, from: 15, paths: /month}
  fortnight: {key: all, rate: 1/2w, paths: /fortnight}
  yearly: {key: all, rate: 1 / year, from: february, time-zone: Asia/Tokyo, paths: /year}
  both: {key: all, quota: 10/day, paths: /both}
  hourly: {key: all, rate: 1/h, paths: /both}
`, 24*time.Hour)
		to := func(day, hour int) { time.Sleep(time.Until(time.Date(2000, 1, day, hour, 0, 0, 0, time.UTC))) }
		b.passes(true, "GET", "/day", "X-User", "ann")
		b.passes(true, "GET", "/day", "X-User", "ann")
		b.passes(false, "GET", "/day", "X-User", "ann")
		b.passes(true, "GET", "/day", "X-User", "bob")
		b.passes(true, "GET", "/week")
		b.passes(false, "GET", "/week")
		b.passes(true, "GET", "/month")
		b.passes(true, "GET", "/fortnight")
		b.passes(true, "GET", "/year")
		b.passes(true, "GET", "/both")
		for range 20 { // permits of the quota are given back if the other limit refuses
			b.passes(false, "GET", "/both")
		}
		to(1, 14)
		b.passes(true, "GET", "/both")
		b.passes(false, "GET", "/day", "X-User", "ann")
		to(1, 15) // midnight in Tokyo
		b.passes(true, "GET", "/day", "X-User", "ann")
		to(2, 23)
		b.passes(false, "GET", "/week")
		to(3, 0) // Monday
		b.passes(true, "GET", "/week")
		to(14, 23)
		b.passes(false, "GET", "/month")
		to(15, 0)
		b.passes(true, "GET", "/month")
		b.passes(true, "GET", "/fortnight")
		b.passes(false, "GET", "/fortnight")
		to(31, 14)
		b.passes(false, "GET", "/year")
		to(31, 15) // February begins in Tokyo
		b.passes(true, "GET", "/year")
		b.logged()
	})
}

// Without a Redis of its own, a Config counts quotas on that of its client.
func TestAQuotaUsesTheRedisOfTheClient(t *testing.T) {
	file := filepath.Join(t.TempDir(), "limits.yaml")
	if err := os.WriteFile(file, []byte("limits: {a: {key: all, quota: 1/year}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	guard := httplimit.New()
	if err := Watch(t.Context(), guard, file, Config{Client: limittest.New(t).Client()}); err != nil {
		t.Fatal(err)
	}
	for i, want := range []httplimit.Outcome{httplimit.Allowed, httplimit.Denied} {
		if d := guard.Decide(httptest.NewRequest("GET", "/", nil)); d.Outcome != want {
			t.Errorf("request %d: %v, %v", i, d.Outcome, d.Err)
		}
	}
}

// Networks that would make each request panic are refused before the first one.
func TestWrongTrustedNetworksAreRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "limits.yaml")
	if err := os.WriteFile(file, []byte("limits: {}"), 0o600); err != nil {
		t.Fatal(err)
	}
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("::ffff:10.0.0.0/8")}
	err := Watch(t.Context(), httplimit.New(), file, Config{
		Client: limittest.New(t).Client(), Addr: httplimit.ClientAddr{Trusted: trusted},
	})
	if !errors.Is(err, rratelimiter.ErrInvalidOption) || !strings.Contains(err.Error(), "::ffff:10.0.0.0/8") {
		t.Error(err)
	}
}

// A penalty may end before the quota returns: the client is told the later time.
func TestPenaltyBesideAQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // it begins on 2000-01-01 at midnight, UTC
		server := limittest.NewRealTime(t)
		c := Config{Client: server.Client(), Redis: server.Redis()}
		limits, err := Parse("f", []byte("limits: {a: {key: all, quota: 1/day, penalty: 1h}}"))
		if err != nil {
			t.Fatal(err)
		}
		guard := httplimit.New(c.build(limits)...)
		ask := func() (int, string) {
			w := httptest.NewRecorder()
			guard.Middleware(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
			return w.Code, w.Header().Get("Retry-After")
		}
		for i, want := range []string{"404 ", "429 86400", "429 84600"} {
			if i == 2 {
				time.Sleep(30 * time.Minute)
			}
			if code, after := ask(); fmt.Sprint(code, " ", after) != want {
				t.Errorf("%d %s, want %s", code, after, want)
			}
		}
		time.Sleep(84600 * time.Second)
		if code, after := ask(); code != 404 {
			t.Errorf("%d %s", code, after)
		}
	})
}

func TestPlansHostsShadowAndSkip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, `
skip: [/healthz, /static/]
limits:
  plan:
    key: [header X-User, path]
    paths: /plan
    rate: 1/h
    plans: {header: X-Plan, rates: {pro: 2/h, own: unlimited, none: 0/h}}
    lease: 100ms
  shop:
    key: all
    rate: 1/h
    hosts: [shop.example.com, "*.Example.org"]
    paths: /shop
  everywhere:
    key: header X-All
    rate: 1/h
  trial:
    key: all
    rate: 1/h
    paths: /trial
    shadow: true
  login:
    key: header X-Login
    rate: 2/s
    penalty: 1m
`)
		b.passes(true, "GET", "/plan", "X-User", "ann")
		b.passes(false, "GET", "/plan", "X-User", "ann")
		b.passes(true, "GET", "/plan", "X-User", "bob", "X-Plan", "pro")
		b.passes(true, "GET", "/plan", "X-User", "bob", "X-Plan", "pro")
		b.passes(false, "GET", "/plan", "X-User", "bob", "X-Plan", "pro")
		b.passes(true, "GET", "/plan", "X-User", "eve", "X-Plan", "another")
		b.passes(false, "GET", "/plan", "X-User", "eve", "X-Plan", "another")
		b.passes(false, "GET", "/plan", "X-User", "dan", "X-Plan", "none")
		for range 3 {
			b.passes(true, "GET", "/plan", "X-User", "ann", "X-Plan", "own")
			b.passes(true, "GET", "/healthz", "X-All", "ann")
			b.passes(true, "GET", "/static/x.css", "X-All", "ann")
			b.passes(true, "GET", "/trial")
			b.passes(true, "GET", "https://other.example/shop")
			b.passes(true, "GET", "https://example.org/shop")
		}
		b.passes(true, "GET", "/static/..;/x", "X-All", "ann") // some servers read /x
		b.passes(false, "GET", "/", "X-All", "ann")
		b.passes(true, "GET", "/static/..;/plan", "X-User", "one")
		b.passes(false, "GET", "/plan", "X-User", "one")
		b.passes(true, "GET", "https://a.b.example.org:8443/shop")
		for _, passes := range []bool{true, true, false} {
			b.passes(passes, "GET", "/login", "X-Login", "ann")
		}
		time.Sleep(59 * time.Second)
		b.passes(false, "GET", "/login", "X-Login", "ann")
		time.Sleep(time.Second)
		b.passes(true, "GET", "/login", "X-Login", "ann")
		for _, host := range []string{
			"shop.example.com",
			"SHOP.example.com.",
			"shop.example.com:443",
			"x.example.org",
		} {
			b.passes(false, "GET", "https://"+host+"/shop")
		}
		if n := b.guard.Policy.Count(httplimit.Shadowed); n != 2 {
			t.Errorf("%d requests would have been refused", n)
		}
		b.logged()
	})
}

func TestLimitsApplyToTheirRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, `
exempt: [192.0.2.0/24, 10.0.0.0/8]
limits:
  hourly:
    key: all
    rate: 5/h
    cost: 5
    paths: [/search, /export/]
    methods: [GET, PUT]
    exempt: 198.51.100.7
`)
		for _, r := range [][]string{
			{"POST", "/search"}, {"GET", "/"}, {"GET", "/searching"}, {"GET", "/search/deep"}, {"GET", "/SEARCH"},
			{"GET", "/exporting"}, {"DELETE", "/export/1"},
			{"GET", "/search", "From", "192.0.2.9"},
			{"GET", "/search", "From", "198.51.100.7"},
			{"GET", "/search", "From", "10.9.0.1", "X-Forwarded-For", "192.0.2.9"},
		} {
			b.passes(true, r[0], r[1], r[2:]...)
			b.passes(true, r[0], r[1], r[2:]...)
		}
		b.passes(true, "GET", "/search", "From", "198.51.100.8")
		for _, r := range [][]string{
			{"GET", "/search"}, {"HEAD", "/search"}, {"PUT", "/export/1"}, {"GET", "/export/"}, {"GET", "/export"},
			{"GET", "/search/"}, {"GET", "/search?q=1"},
			{"GET", "//search"}, {"GET", "/x/../search"}, {"GET", "/x/%2e%2e/search"}, {"GET", "/export/../x"},
			{"GET", "/./export//1"},
			{"GET", "/search;0"}, {"GET", "/search%3bx"}, {"GET", "/x/..;/search"}, {"GET", "/%73earch"},
			{"GET", "/%2573earch"},
			{"GET", "/search;a%2fb"},
			{"GET", "/x%5c..%5csearch"}, {"GET", "/export;x/1"}, {"GET", "/x%2f../export/1"},
			{"GET", "/search", "From", "10.9.0.1"}, // no header of the proxy: the client is not known
			{"GET", "/search", "From", "198.51.100.8", "X-Forwarded-For", "192.0.2.9"},
		} {
			b.passes(false, r[0], r[1], r[2:]...)
		}
	})
}

// A limit of one path counts all of its spellings together.
func TestOneLimiterForAllSpellings(t *testing.T) {
	for head, passes := range map[string]bool{"": true, "ignore-case: true\n": false} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, head+"limits: {one: {rate: 1/h, key: path, paths: [/Login]}}")
			b.passes(true, "GET", "/Login")
			for _, target := range []string{
				"/Login", "/Login/", "/Login;0", "/Login;1", "/x/..;/Login", "/%4cogin", "//Login",
			} {
				b.passes(false, "GET", target)
			}
			b.passes(passes, "GET", "/LOGIN")
			b.passes(passes, "GET", "/LOGIN;x")
			b.passes(true, "GET", "/other")
		})
	}
}

func TestKeysOfAFile(t *testing.T) {
	a := []string{"X-Tenant", "a", "X-Key", "1", "From", "192.0.2.1"}
	b := []string{"X-Tenant", "b", "X-Key", "2", "From", "192.0.2.2"}
	without := []string{"From", "192.0.2.1"}
	for key, passes := range map[string]struct{ other, path, without, again bool }{ // each after a request of a
		"all":                       {false, false, false, false},
		"address":                   {true, false, false, false},
		"path":                      {false, true, false, false},
		"header X-Key":              {true, false, true, true},
		"tenant":                    {true, false, true, true},
		"[address, path]":           {true, true, false, false},
		"header X-Key or address":   {true, false, true, false},
		"[tenant or address, path]": {true, true, true, false},
	} {
		t.Run(key, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bench := newBench(t, "limits: {one: {rate: 1/h, key: "+key+"}}")
				bench.passes(true, "GET", "/", a...)
				bench.passes(false, "GET", "/", a...)
				bench.passes(passes.other, "GET", "/", b...)
				bench.passes(passes.path, "GET", "/other", a...)
				bench.passes(passes.without, "GET", "/", without...)
				bench.passes(passes.again, "GET", "/", without...)
			})
		})
	}
}

func TestAChangedFileIsInForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, "limits: {one: {rate: 1/h, key: all}}")
		b.passes(true, "GET", "/")
		b.passes(false, "GET", "/")
		b.write("limits: {one: {rate: 3/h, key: all}}")
		time.Sleep(3 * time.Second) // read once
		b.passes(false, "GET", "/")
		b.logged()
		time.Sleep(2 * time.Second)
		b.logged("new rules are in force")
		b.passes(true, "GET", "/") // the live grant counts
		b.passes(true, "GET", "/")
		b.passes(false, "GET", "/")
		b.write("limits: {one: {rate: 0/h, key: all}}") // refuses every request
		time.Sleep(4 * time.Second)
		b.passes(false, "GET", "/")
		b.logged("new rules are in force")
		b.write("limits: {}")
		time.Sleep(4 * time.Second)
		b.passes(true, "GET", "/")
		b.logged("new rules are in force")
		time.Sleep(time.Minute)
		b.logged()
	})
}

func TestABadFileChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const good = "limits: {one: {rate: 1/h, key: all}}"
		b := newBench(t, good)
		b.passes(true, "GET", "/")
		for _, bad := range []struct {
			text   string
			logged []string // once
		}{
			{"", []string{"limits.yaml:1: "}},
			{"limits:", []string{"limits.yaml:1: "}},
			{"limits: {one: {rate: 1/h, key: all}, two: {rate: 1}}", []string{"two: it has no field", "two: rate: "}},
		} {
			b.write(bad.text)
			time.Sleep(time.Minute)
			b.passes(false, "GET", "/")
			b.logged(bad.logged...)
		}
		b.write(good)
		time.Sleep(time.Minute)
		b.logged("new rules are in force")
		if err := os.Remove(b.file); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		b.passes(false, "GET", "/")
		b.logged("cannot be read")
		b.write("limits: {}")
		time.Sleep(time.Minute)
		b.passes(true, "GET", "/")
		b.logged("new rules are in force")
		if err := os.Remove(b.file); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		b.logged("cannot be read") // again, since it could be read meanwhile
	})
}

// Content that differs at each read is not complete.
func TestAFileThatIsBeingWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, "limits: {one: {rate: 1/h, key: all}}")
		b.passes(true, "GET", "/")
		time.Sleep(time.Second)
		text := "limits: {}\n"
		for range 10 {
			text += "# and more\n"
			b.write(text)
			time.Sleep(2 * time.Second)
		}
		b.passes(false, "GET", "/")
		b.logged()
		time.Sleep(2 * time.Second)
		b.passes(true, "GET", "/")
	})
}

// A request that waits for its permit when the rules change still gets it by those that it began
// with.
func TestRequestsKeepTheRulesThatTheyBeganWith(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, "limits: {one: {rate: 1/m, key: all}}")
		b.guard.Policy.Wait = time.Hour
		b.passes(true, "GET", "/")
		began := time.Now()
		waited := make(chan time.Duration)
		go func() {
			b.passes(true, "GET", "/")
			waited <- time.Since(began)
		}()
		synctest.Wait()
		b.write("limits: {}")
		time.Sleep(5 * time.Second)
		b.logged("new rules are in force")
		b.passes(true, "GET", "/")
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("a request under the new rules took %v", took)
		}
		if took := <-waited; took < time.Minute {
			t.Errorf("the request under the old rules waited for %v", took)
		}
	})
}

func TestWatchEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "limits.yaml")
		if err := os.WriteFile(file, []byte("limits: {one: {rate: 1/h, key: all}}"), 0o600); err != nil {
			t.Fatal(err)
		}
		guard := httplimit.New()
		ctx, cancel := context.WithCancel(t.Context())
		if err := Watch(ctx, guard, file, Config{Client: limittest.NewRealTime(t).Client()}); err != nil {
			t.Fatal(err)
		}
		cancel()
		synctest.Wait()
		if err := os.WriteFile(file, []byte("limits: {}"), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		guard.Policy = &httplimit.Policy{Bound: time.Minute}
		for i, want := range []httplimit.Outcome{httplimit.Allowed, httplimit.Denied} {
			if d := guard.Decide(httptest.NewRequest(http.MethodGet, "/", nil)); d.Outcome != want {
				t.Errorf("request %d: %v", i+1, d.Outcome)
			}
		}
	})
}

func TestAFirstFileThatIsBad(t *testing.T) {
	guard := httplimit.New()
	file := filepath.Join(t.TempDir(), "limits.yaml")
	if err := Watch(t.Context(), guard, file, Config{}); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := os.WriteFile(file, []byte("\nlimits: 5"), 0o600); err != nil {
		t.Fatal(err)
	}
	var faults Faults
	err := Watch(t.Context(), guard, file, Config{})
	if !errors.As(err, &faults) || len(faults) != 1 || faults[0].Line != 2 ||
		!strings.HasPrefix(err.Error(), file+":2: ") {
		t.Error(err)
	}
}
