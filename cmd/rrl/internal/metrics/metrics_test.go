package metrics

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/rrltest"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/survey"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/web"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/series"
)

func TestMain(m *testing.M) { rrltest.Main(m) }

// A shop is a server with limiters.
type shop struct {
	t   *testing.T
	s   *redistest.Server
	rdb *redis.Client
}

// onShops runs a test on an embedded and on a real server.
func onShops(t *testing.T, test func(t *testing.T, s shop)) {
	t.Helper()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) { test(t, shop{t, s, s.Client()}) })
}

func (s shop) limiter(name string, fields ...string) {
	s.t.Helper()
	rrltest.Limiter(s.t, s.rdb, name, fields...)
}

func (s shop) state(name, client, value string, records ...any) {
	s.t.Helper()
	rrltest.State(s.t, s.rdb, name, client, value, records...)
}

func (s shop) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// A scraper reads metrics as Prometheus does.
type scraper struct {
	t       *testing.T
	address string
	errs    *bytes.Buffer // output of the exporter; it is read between scrapes
}

// startExport serves the metrics of all limiters, with a new search for each scrape unless arrange
// changes that.
func startExport(t *testing.T, address string, arrange func(e *Exporter)) scraper {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	x := scraper{t: t, errs: new(bytes.Buffer)}
	link, err := connect.Dial(ctx, connect.Flags{Address: address}, x.errs)
	if err != nil {
		t.Fatal(err)
	}
	e := New(ctx, link, Options{Pattern: "*", Most: 1000}, x.errs)
	if arrange != nil {
		arrange(e)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- web.Serve(ctx, listener, e.Handler()) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		link.Close()
	})
	x.address = "http://" + listener.Addr().String() + "/metrics"
	return x
}

// scrape returns the metrics without their common prefix: their values by name and labels.
func (x scraper) scrape(patience time.Duration) map[string]float64 {
	x.t.Helper()
	in, err := http.NewRequestWithContext(x.t.Context(), http.MethodGet, x.address, nil)
	if err != nil {
		x.t.Fatal(err)
	}
	in.Header.Set("X-Prometheus-Scrape-Timeout-Seconds", fmt.Sprint(patience.Seconds()))
	answer, err := http.DefaultClient.Do(in)
	if err != nil {
		x.t.Fatal(err)
	}
	defer answer.Body.Close()
	read, err := io.ReadAll(answer.Body)
	if err != nil {
		x.t.Fatal(err)
	}
	text := string(read)
	if answer.StatusCode != http.StatusOK {
		x.t.Fatalf("%s\n%s", answer.Status, text)
	}
	values := map[string]float64{}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		line = strings.TrimSpace(strings.TrimPrefix(line, "rratelimiter_"))
		at := strings.LastIndex(line, " ")
		if values[line[:at]], err = strconv.ParseFloat(line[at+1:], 64); err != nil {
			x.t.Fatalf("%q: %v", line, err)
		}
	}
	return values
}

// expect compares metrics with all expected ones. Times may differ by a minute.
func expect(t *testing.T, got, want map[string]float64) {
	t.Helper()
	for key := range maps.Keys(got) {
		if _, expected := want[key]; !expected {
			t.Errorf("%s %v is not expected", key, got[key])
		}
	}
	for key, value := range want {
		passes := strings.HasPrefix(key, "state_ttl") || strings.HasPrefix(key, "state_oldest")
		found, there := got[key]
		if off := found - value; !there || !passes && off != 0 || off < -60 || off > 60 {
			t.Errorf("%s is %v (there: %v), want %v", key, found, there, value)
		}
	}
}

func TestExportShowsWhatGoAndJavaUse(t *testing.T) {
	onShops(t, func(t *testing.T, s shop) {
		l := rrltest.Client(s.rdb, rratelimiter.WithLimiterDefaults(rratelimiter.WithServerTime())).RateLimiter("a")
		s.must(l.SetRate(t.Context(), rratelimiter.PerHour(100)))
		s.must(l.Acquire(t.Context(), 7))
		s.state("a", "", "73", -600_000, rrltest.JavaRecord(rratelimiter.Redisson321, 20)) // granted ten minutes ago
		s.must(s.rdb.PExpire(t.Context(), "a", 90*time.Minute).Err())
		s.limiter("b", "5", "250", "0")
		s.limiter("c\n\xff", "10", "3600000", "0")
		s.state("c\n\xff", "", "10", 600_000, rrltest.JavaRecord(rratelimiter.Redisson317, 1))
		s.limiter("d", "ten", "1000", "0")
		s.limiter("e", "3", "1000", "1")
		s.must(s.rdb.HSet(t.Context(), "hash", "rate", "1").Err())
		x := startExport(t, s.s.URL(), nil)
		expect(t, x.scrape(time.Minute), map[string]float64{
			"export_up": 1, "export_skipped_limiters": 0, "export_errors_total": 0,

			`state_limit_permits{limiter="a"}`: 100, `state_interval_seconds{limiter="a"}`: 3600,
			`state_available_permits{limiter="a"}`:         73,
			`state_live_permits{limiter="a"}`:              27,
			`state_records{limiter="a"}`:                   2,
			`state_oldest_record_age_seconds{limiter="a"}`: 600, `state_ttl_seconds{limiter="a"}`: 5400,
			`state_consistent{limiter="a"}`: 1,

			`state_limit_permits{limiter="b"}`: 5, `state_interval_seconds{limiter="b"}`: .25,
			`state_available_permits{limiter="b"}`: 5,
			`state_live_permits{limiter="b"}`:      0,
			`state_records{limiter="b"}`:           0,
			`state_consistent{limiter="b"}`:        1,

			// It does not add up, by a record from the future; its name is no UTF-8.
			`state_limit_permits{limiter="\"c\\n\\xff\""}`: 10, `state_interval_seconds{limiter="\"c\\n\\xff\""}`: 3600,
			`state_available_permits{limiter="\"c\\n\\xff\""}`: 10, `state_live_permits{limiter="\"c\\n\\xff\""}`: 1,
			`state_records{limiter="\"c\\n\\xff\""}`:                   1,
			`state_oldest_record_age_seconds{limiter="\"c\\n\\xff\""}`: -600,
			`state_consistent{limiter="\"c\\n\\xff\""}`:                0,

			`state_consistent{limiter="d"}`: 0, // its rate is no number

			// each client's permits are its own
			`state_limit_permits{limiter="e"}`: 3, `state_interval_seconds{limiter="e"}`: 1,
		})
	})
}

func TestExportLinksToItsMetrics(t *testing.T) {
	x := startExport(t, redistest.Embedded(t).URL(), nil)
	for path, want := range map[string]int{"/": http.StatusOK, "/other": http.StatusNotFound} {
		answer, err := http.Get(strings.TrimSuffix(x.address, "/metrics") + path)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		if answer.Body.Close(); err != nil {
			t.Fatal(err)
		}
		if answer.StatusCode != want ||
			strings.Contains(string(text), `<a href="metrics">`) != (want == http.StatusOK) {
			t.Errorf("%s: %s\n%s", path, answer.Status, text)
		}
	}
}

func TestExportShowsClients(t *testing.T) {
	onShops(t, func(t *testing.T, s shop) {
		s.limiter("e", "3", "3600000", "1")
		s.state("e", "x", "2", -1000, rrltest.GoRecord("abc", 1))
		s.state("e", "y", "0", -1000, rrltest.JavaRecord(rratelimiter.Redisson321, 3))
		all := startExport(t, s.s.URL(), func(e *Exporter) { e.Client = survey.Everyone }).scrape(time.Minute)
		one := startExport(t, s.s.URL(), func(e *Exporter) { e.Client = "y" }).scrape(time.Minute)
		few := startExport(t, s.s.URL(), func(e *Exporter) { e.Client, e.Most = survey.Everyone, 1 }).scrape(
			time.Minute)
		for client, live := range map[string]float64{"x": 1, "y": 3} {
			key := fmt.Sprintf(`state_live_permits{client="%s",limiter="e"}`, client)
			if got, there := all[key]; got != live {
				t.Errorf("of all, %s is %v (there: %v)", client, got, there)
			}
			if _, there := one[key]; there != (client == "y") {
				t.Errorf("of y alone, %s is there: %v", client, there)
			}
			if _, there := few[key]; there != (client == "x") {
				t.Errorf("of one at most, %s is there: %v", client, there)
			}
		}
		if few["export_skipped_limiters"] != 1 {
			t.Errorf("of one at most: %v", few)
		}
	})
}

func TestExportFollowsLimitersThatComeAndGo(t *testing.T) {
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		s := shop{t, server, server.Client()}
		x := startExport(t, server.URL(), nil)
		nothing := map[string]float64{"export_up": 1, "export_skipped_limiters": 0, "export_errors_total": 0}
		expect(t, x.scrape(time.Minute), nothing)
		s.limiter("a", "5", "1000", "0")
		if got := x.scrape(time.Minute); got[`state_limit_permits{limiter="a"}`] != 5 {
			t.Errorf("when it has come: %v", got)
		}
		s.must(s.rdb.Del(t.Context(), "a").Err())
		expect(t, x.scrape(time.Minute), nothing)
	})
}

// A limiter that is removed between two searches has no metrics, and a new one is found by the next
// search.
func TestExportSearchesSometimes(t *testing.T) {
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		s := shop{t, server, server.Client()}
		s.limiter("a", "5", "1000", "0")
		var e *Exporter
		x := startExport(t, server.URL(), func(made *Exporter) { e = made; e.Every = time.Hour })
		if got := x.scrape(time.Minute); got[`state_limit_permits{limiter="a"}`] != 5 {
			t.Fatalf("%v", got)
		}
		s.must(s.rdb.Del(t.Context(), "a").Err())
		s.limiter("b", "5", "1000", "0")
		expect(
			t, x.scrape(time.Minute),
			map[string]float64{"export_up": 1, "export_skipped_limiters": 0, "export_errors_total": 0},
		)
		e.turn <- struct{}{}
		e.listed.at = e.listed.at.Add(-2 * time.Hour)
		<-e.turn
		if got := x.scrape(time.Minute); got[`state_limit_permits{limiter="b"}`] != 5 {
			t.Errorf("after another search: %v", got)
		}
	})
}

// While a search takes longer than a scrape, there are still metrics.
func TestExportHasTheLastListWhileASearchGoesOn(t *testing.T) {
	t.Parallel()
	server := redistest.Embedded(t)
	s := shop{t, server, server.Client()}
	s.limiter("a", "5", "1000", "0")
	var e *Exporter
	x := startExport(t, server.URL(), func(made *Exporter) { e = made })
	x.scrape(time.Minute)
	search := make(chan listing, 1)
	e.turn <- struct{}{}
	e.search = search
	<-e.turn
	got := x.scrape(2 * time.Second)
	for range 4 { // a busy machine may be late
		if got["export_up"] != 1 {
			got = x.scrape(2 * time.Second)
		}
	}
	if got["export_up"] != 1 || got[`state_limit_permits{limiter="a"}`] != 5 {
		t.Errorf("while it goes on: %v", got)
	}
	search <- listing{at: time.Now(), skipped: 3}
	if got = x.scrape(time.Minute); got["export_skipped_limiters"] != 3 {
		t.Errorf("when it has found something: %v", got)
	}
}

func TestExportShowsSoManyAtMost(t *testing.T) {
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		s := shop{t, server, server.Client()}
		for i := range 50 {
			s.limiter(fmt.Sprintf("l%02d", i), "5", "1000", "0")
		}
		got := startExport(t, server.URL(), func(e *Exporter) { e.Most = 20 }).scrape(time.Minute)
		shown := 0
		for key := range got {
			if strings.HasPrefix(key, "state_limit_permits") {
				shown++
			}
		}
		if shown != 20 || got["export_skipped_limiters"] != 30 || got["export_up"] != 1 {
			t.Errorf("%d are shown: %v", shown, got)
		}
	})
}

func TestExportOutlivesItsRedis(t *testing.T) {
	for name, start := range map[string]func(testing.TB) *redistest.Server{
		"embedded": redistest.Embedded, "redis": func(tb testing.TB) *redistest.Server { return redistest.Real(tb) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t)
			s := shop{t, server, server.Client()}
			x := startExport(t, server.URL(), func(e *Exporter) { e.Every = time.Hour })
			server.Kill()
			if got := x.scrape(time.Minute); got["export_up"] != 0 || got["export_errors_total"] != 1 {
				t.Errorf("before the first search: %v", got)
			}
			server.Restart()
			s.limiter("a", "5", "1000", "0")
			x.errs.Reset()
			if got := x.scrape(time.Minute); got["export_up"] != 1 || got[`state_limit_permits{limiter="a"}`] != 5 ||
				x.errs.Len() > 0 {
				t.Errorf("before: %v, %s", got, x.errs)
			}
			server.Kill()
			for range 2 {
				got := x.scrape(time.Minute)
				if _, there := got[`state_limit_permits{limiter="a"}`]; there || got["export_up"] != 0 ||
					got["export_errors_total"] == 0 {
					t.Errorf("without Redis: %v", got)
				}
			}
			if said := x.errs.String(); strings.Count(said, "\n") != 1 || !strings.HasPrefix(said, "rrl: ") {
				t.Errorf("it says %q", said)
			}
			server.Restart()
			s.limiter("a", "5", "1000", "0")
			if got := x.scrape(time.Minute); got["export_up"] != 1 || got[`state_limit_permits{limiter="a"}`] != 5 {
				t.Errorf("after: %v", got)
			}
		})
	}
}

func TestExportWhileRedisIsAwayAtTheStart(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	server.Kill()
	x := startExport(t, server.URL(), nil)
	expect(
		t, x.scrape(time.Minute),
		map[string]float64{"export_up": 0, "export_errors_total": 1, "export_skipped_limiters": 0},
	)
	server.Restart()
	for got := 0.; got == 0; {
		got = x.scrape(time.Minute)["export_up"]
	}
}

// If a server hangs, the response still comes within the scrape timeout.
func TestExportAnswersInTimeForAScrape(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	x := startExport(t, server.URL(), nil)
	server.Pause()
	for range 2 {
		if got := x.scrape(200 * time.Millisecond); got["export_up"] != 0 || got["export_errors_total"] == 0 {
			t.Errorf("of a server that hangs: %v", got)
		}
	}
	server.Resume()
	if got := x.scrape(time.Minute); got["export_up"] != 1 {
		t.Errorf("when it goes on: %v", got)
	}
	for text, want := range map[string]time.Duration{
		"":      9 * time.Second,
		"20":    18 * time.Second,
		"-1":    9 * time.Second,
		"NaN":   9 * time.Second,
		"1e300": 9 * time.Second,
	} {
		if got := scrapeTime(http.Header{"X-Prometheus-Scrape-Timeout-Seconds": {text}}); got != want {
			t.Errorf("of %q it takes %v", text, got)
		}
	}
}

func TestExportOnACluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.Cluster(t, 3)
	rdb := nodes.ClusterClient()
	for i := range 9 {
		l := rrltest.Client(rdb).RateLimiter(fmt.Sprint("l", i), rratelimiter.WithRate(rratelimiter.PerHour(10)))
		if err := l.Acquire(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
	}
	got := startExport(t, "redis://"+nodes.Addrs()[0], nil).scrape(time.Minute)
	for i := range 9 {
		name := fmt.Sprintf(`{limiter="l%d"}`, i)
		age, there := got["state_oldest_record_age_seconds"+name]
		if !there || age < -1 || age > 60 || got["state_live_permits"+name] != 2 {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// The rule of docs/rrl.md is sufficient, and each part of it is needed.
func TestExportNeedsFewCommands(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../../docs/rrl.md")
	if err != nil {
		t.Fatal(err)
	}
	rule := strings.Fields(regexp.MustCompile("needs for export: `([^`]*)`").FindStringSubmatch(string(text))[1])
	server := redistest.Real(t)
	s := shop{t, server, server.Client()}
	s.limiter("a", "5", "3600000", "0")
	s.state("a", "", "4", -1000, rrltest.GoRecord("abc", 1))
	s.limiter("e", "5", "3600000", "1")
	s.state("e", "x", "4", -1000, rrltest.GoRecord("abc", 1))
	s.limiter("half", "5", "1000") // an unusable configuration: it has no type
	for without := -1; without < len(rule); without++ {
		allowed := slices.Clone(rule)
		if without >= 0 {
			allowed = slices.Delete(allowed, without, without+1)
		}
		user := []any{"acl", "setuser", "looker", "reset", "on", "nopass", "~*"}
		for _, command := range allowed {
			user = append(user, command)
		}
		s.must(s.rdb.Do(t.Context(), user...).Err())
		s.must(s.rdb.ScriptFlush(t.Context()).Err())
		address := strings.Replace(server.URL(), "://", "://looker:x@", 1)
		x := startExport(t, address, func(e *Exporter) { e.Client, e.Every = survey.Everyone, time.Hour })
		s.limiter("gone", "5", "1000", "0")
		x.scrape(time.Minute)
		s.must(s.rdb.Del(t.Context(), "gone").Err())
		got := x.scrape(time.Minute)
		_, stays := got[`state_consistent{client="",limiter="gone"}`]
		broken, found := got[`state_consistent{client="",limiter="half"}`]
		works := !stays && found && broken == 0 && got["export_up"] == 1 &&
			got[`state_live_permits{client="",limiter="a"}`] == 1 &&
			got[`state_live_permits{client="x",limiter="e"}`] == 1
		if works != (without < 0) {
			t.Errorf("with %q it works: %v, %v", allowed, works, got)
		}
	}
}

func TestLabelsOfNamesDiffer(t *testing.T) {
	names := []string{"a", "\xff", `"\xff"`, `"a"`, "", "a\n", `a\n`, "é"}
	labels := map[string]bool{}
	for _, name := range names {
		labels[series.LabelOf(name)] = true
	}
	if len(labels) != len(names) {
		t.Errorf("%q have the labels %q", names, slices.Sorted(maps.Keys(labels)))
	}
}

// The page on observability has all metrics of export, and no others of that kind.
func TestDocumentationHasAllMetricsOfExport(t *testing.T) {
	server := redistest.Embedded(t)
	s := shop{t, server, server.Client()}
	s.limiter("a", "5", "3600000", "0")
	s.state("a", "", "4", -1000, rrltest.GoRecord("abc", 1))
	s.must(s.rdb.PExpire(t.Context(), "a", time.Hour).Err())
	there := map[string]bool{}
	for key := range startExport(t, server.URL(), nil).scrape(time.Minute) {
		name, _, _ := strings.Cut(key, "{")
		there["rratelimiter_"+name] = true
	}
	text, err := os.ReadFile("../../../../docs/observability.md")
	if err != nil {
		t.Fatal(err)
	}
	said := map[string]bool{}
	for _, name := range regexp.MustCompile(`rratelimiter_(state|export)_[a-z_]+`).FindAllString(string(text), -1) {
		said[name] = true
	}
	if !maps.Equal(there, said) {
		t.Errorf("export has %q, the page %q", slices.Sorted(maps.Keys(there)), slices.Sorted(maps.Keys(said)))
	}
}
