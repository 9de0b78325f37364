package simulate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// measured has the results of all algorithms on the built-in traces: once for all tests, since it
// takes seconds.
var measured = sync.OnceValues(func() ([]simulation, error) {
	all := make([]simulation, len(builtIn()))
	failed := make([]error, len(all))
	var group sync.WaitGroup
	for i, t := range builtIn() {
		group.Go(func() { all[i], failed[i] = simulate(context.Background(), t, algorithms, sizes) })
	}
	group.Wait()
	return all, errors.Join(failed...)
})

// traced returns the outcomes of one built-in trace, by algorithm.
func traced(t *testing.T, name string) map[string]outcome {
	t.Helper()
	simulations, err := measured()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]outcome{}
	for _, s := range simulations {
		for _, o := range s.Outcomes {
			if s.Trace == name {
				all[o.Algorithm] = o
			}
		}
	}
	if len(all) != len(algorithms) {
		t.Fatalf("%d outcomes of %s", len(all), name)
	}
	return all
}

// within returns the permits granted from one second to another.
func (o outcome) within(from, to time.Duration) (sum int64) {
	for _, g := range o.grants {
		if g.at >= from && g.at < to {
			sum += g.n
		}
	}
	return sum
}

// The grants of each algorithm on the traces that show their differences.
func TestSimulateBuiltInTraces(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	t.Parallel()
	edge := traced(t, "window-edge")
	for _, name := range []string{"fixed-window", "window-keys", "list-window", "cursor-window"} {
		if passed := edge[name].within(2*time.Second, 5*time.Second); passed != 1980 || edge[name].Largest != 1980 {
			t.Errorf("window-edge: %s passes %d in seconds 3 to 5, %d in any three", name, passed, edge[name].Largest)
		}
	}
	early := traced(t, "early-burst")
	for _, name := range []string{
		"rratelimiter", "sliding-log", "sub-windows", "two-counters", "fixed-window", "window-keys", "list-window",
		"cursor-window",
	} {
		if first, rest := early[name].within(0, time.Second),
			early[name].within(time.Second, 3*time.Second); first != 1000 ||
			rest != 0 {
			t.Errorf("early-burst: %s passes %d in second 1 and %d in seconds 2 and 3", name, first, rest)
		}
	}
	halves := traced(t, "two-halves")
	border := traced(t, "border")
	for _, name := range []string{"window-keys", "cursor-window"} {
		if passed := halves[name].within(500*time.Millisecond, 1500*time.Millisecond); passed != 10 {
			t.Errorf("two-halves: %s passes %d in a second", name, passed)
		}
		if passed := border[name].within(900*time.Millisecond, 1101*time.Millisecond); passed != 20 {
			t.Errorf("border: %s passes %d in 0.2 s", name, passed)
		}
	}
	limits := map[string]int64{"window-edge": 1000, "early-burst": 1000, "two-halves": 5, "border": 10}
	for trace, all := range map[string]map[string]outcome{
		"window-edge": edge,
		"early-burst": early,
		"two-halves":  halves,
		"border":      border,
	} {
		for _, name := range []string{"rratelimiter", "sliding-log"} {
			if most := all[name].Largest; most != limits[trace] {
				t.Errorf("%s: %s has a window of %d", trace, name, most)
			}
		}
		for _, o := range all {
			inProcess := strings.HasPrefix(o.Algorithm, "smooth")
			switch {
			case o.Fault != "" || o.Granted == 0 || o.Granted > o.Offered || o.within(0, time.Hour) != o.Granted:
				t.Errorf("%s: %+v", trace, o)
			case inProcess != (o.Memory == 0) || inProcess != (o.Calls == 0) || o.Commands < o.Calls:
				t.Errorf("%s: %s takes %d bytes, %v calls, %v commands",
					trace, o.Algorithm, o.Memory, o.Calls, o.Commands)
			case o.MeanWait > o.MaxWait || o.Granted < o.Offered && o.MaxWait == 0:
				t.Errorf("%s: %s waits %v, at most %v", trace, o.Algorithm, o.MeanWait, o.MaxWait)
			}
		}
	}
}

// The page has the measured results. If this fails, update it: rrl simulate --docs
// docs/algorithms.md
func TestSimulateDocsAreMeasured(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	folder := filepath.Join("..", "..", "..", "..", "docs")
	text, err := os.ReadFile(filepath.Join(folder, "algorithms.md"))
	if err != nil {
		t.Fatal(err)
	}
	simulations, err := measured()
	if err != nil {
		t.Fatal(err)
	}
	// it shows the same as two-halves
	shown := slices.DeleteFunc(slices.Clone(simulations), func(s simulation) bool { return s.Trace == "border" })
	if _, renewed, err := tableIn(string(text), shown...); err != nil || renewed != string(text) {
		t.Errorf("docs/algorithms.md does not have what is measured (%v):\n%s", err, markdown(shown))
	}
	for _, s := range shown {
		drawn := filepath.Join(t.TempDir(), "drawn.svg")
		if err := s.save(drawn); err != nil {
			t.Fatal(err)
		}
		kept := filepath.Join(folder, "algorithms", s.Trace+".svg")
		if !bytes.Equal(content(t, kept), content(t, drawn)) {
			t.Errorf("%s is not what is measured", kept)
		}
	}
}

func TestSimulateRenewsAPage(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	text := "before\n<!-- measured: early-burst, two-halves, border -->\nwhat was\n<!-- end -->\n"
	if err := os.WriteFile(page, []byte(text+"after\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	o := Options{Docs: page, Algorithms: []string{"gcra"}}
	if err := Run(t.Context(), o, nil, &out); err != nil || !strings.Contains(out.String(), page) {
		t.Fatal(err, out.String())
	}
	renewed := string(content(t, page))
	if strings.Contains(renewed, "what was") ||
		!strings.Contains(renewed, "| algorithm | early-burst | two-halves | border |\n") ||
		strings.Count(renewed, "| gcra |") != 1 ||
		!strings.HasSuffix(renewed, "<!-- end -->\nafter\n") {
		t.Error(renewed)
	}
	if chart := content(t, filepath.Join(strings.TrimSuffix(page, ".md"), "border.svg")); !bytes.Contains(
		chart, []byte("gcra"),
	) {
		t.Error("the chart has no gcra")
	}
	for text, want := range map[string]string{
		"no place": "no line", "<!-- measured: border, bordre -->\n<!-- end -->\n": "not built in",
	} {
		if err := os.WriteFile(page, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Run(t.Context(), o, nil, &out); err == nil || !strings.Contains(err.Error(), want) {
			t.Error(err)
		}
	}
}

// A table fits its terminal: a narrow one gets no charts, then fewer figures.
func TestSimulateFitsTheTerminal(t *testing.T) {
	of := func(name string) algorithm {
		return algorithms[slices.IndexFunc(algorithms, func(a algorithm) bool { return a.name == name })]
	}
	s, err := simulate(t.Context(), builtIn()[0], []algorithm{of("gcra"), of("smooth-warming-up")}, sizes)
	if err != nil {
		t.Fatal(err)
	}
	for width, want := range map[int]struct{ with, without string }{
		0: {"commands", "…"}, 140: {"each ", "…"}, 80: {"commands", "each "}, 60: {"longest", "commands"},
	} {
		var out strings.Builder
		if err := s.showTable(&render.Output{Out: &out, Width: width}); err != nil {
			t.Fatal(err)
		}
		table := strings.Split(out.String(), "\n\n")[1]
		for line := range strings.Lines(table) {
			if cells := ansi.StringWidth(strings.TrimSpace(line)); width > 0 && cells > width {
				t.Errorf("%d of %d cells: %s", cells, width, line)
			}
		}
		if strings.Count(table, "\n") != 3 || !strings.Contains(table, want.with) ||
			strings.Contains(table, want.without) {
			t.Errorf("in %d cells, want %q and no %q:\n%s", width, want.with, want.without, table)
		}
	}
}

func TestSimulateReadsLogs(t *testing.T) {
	at := func(d time.Duration) []time.Duration {
		return []time.Duration{300 * time.Millisecond, d, 2*time.Second + 100*time.Millisecond}
	}
	half := at(1500 * time.Millisecond)
	for name, c := range map[string]struct {
		text string
		want []time.Duration
	}{
		"seconds":      {"1700000000.3\n1700000001.5\n1700000002.1\n", half},
		"from zero":    {"0.3\n1.5\n2.1\n", half},
		"milliseconds": {"1700000001500\n1700000000300\n1700000002100\n", half},
		"nanoseconds":  {"1700000001500000000\n1700000000300000000\n1700000002100000000", half},
		"CSV": {
			"time,path\n2026-01-02T03:04:05.3Z,/a\n2026-01-02T03:04:06.5Z,/b\n2026-01-02T03:04:07.1Z,/c\n", half,
		},
		"log": {
			"2026-01-02 03:04:05,3 INFO a\n2026-01-02 03:04:06,5 INFO b\n\n2026-01-02 03:04:07,1 INFO c\n", half,
		},
		"zones": {"2026-01-02T03:04:05.3+01:00 a\n2026-01-02T02:04:06.5Z b\n2026-01-02T03:04:07.1+0100 c\n", half},
		"web server": {
			"1.2.3.4 - - [02/Jan/2026:03:04:05 +0000] \"GET / HTTP/1.1\" 200 5\n" +
				"1.2.3.4 - - [02/Jan/2026:03:04:07 +0000] \"GET / HTTP/1.1\" 200 5\n",
			[]time.Duration{0, 2 * time.Second},
		},
	} {
		trace, err := readTrace(name, strings.NewReader(c.text), rratelimiter.PerSecond(1), 0)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(trace.arrivals) != len(c.want) || trace.length != 3*time.Second {
			t.Errorf("%s: %+v", name, trace)
			continue
		}
		for i, want := range c.want {
			if got := trace.arrivals[i].at; (got-want).Abs() > time.Microsecond || trace.arrivals[i].n != 1 {
				t.Errorf("%s: request %d at %v", name, i, got)
			}
		}
	}
	trace, err := readTrace("permits", strings.NewReader("0.1;5\n0.2;7\n"), rratelimiter.PerSecond(1), 2)
	if err != nil || trace.arrivals[0].n != 5 || trace.arrivals[1].n != 7 {
		t.Errorf("%+v, %v", trace, err)
	}
	for name, text := range map[string]string{
		"nothing":     "",
		"no time":     "0.5\nsoon\n",
		"only a head": "time\n",
		"no column":   "0.5\n",
		"no number":   "0.5,many\n",
	} {
		if trace, err := readTrace(name, strings.NewReader(text), rratelimiter.PerSecond(1), 2); err == nil {
			t.Errorf("%s: %+v", name, trace)
		}
	}
}

// A real server uses more memory than the bare bytes, keeps its own keys, and gets no keys that
// stay.
func TestSimulateWeighsOnARealServer(t *testing.T) {
	server := redistest.Shared(t)
	rdb := server.Client()
	if err := rdb.Set(t.Context(), "limit", "somebody's", 0).Err(); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Run(t.Context(), Options{Trace: "border", Rate: "10/s", JSON: true, Address: server.URL()}, nil,
		&out); err != nil {
		t.Fatal(err)
	}
	var s simulation
	if err := json.Unmarshal(out.Bytes(), &s); err != nil {
		t.Fatal(err)
	}
	bare := traced(t, "border")
	for _, o := range s.Outcomes {
		if b := bare[o.Algorithm]; (o.Memory <= b.Memory) != (b.Memory == 0) || o.Granted != b.Granted ||
			o.Commands != b.Commands {
			t.Errorf("%+v, without a server %+v", o, b)
		}
	}
	if keys := rdb.Keys(t.Context(), "*").Val(); len(keys) != 1 || rdb.Get(t.Context(), "limit").Val() != "somebody's" {
		t.Errorf("left: %q", keys)
	}
}

func TestSimulatePatternsKeepTheirLoad(t *testing.T) {
	for name := range patterns {
		trace, err := pattern(name, rratelimiter.PerSecond(50), 20*time.Second, 2, 7)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(trace.arrivals); n < 1800 || n > 2200 {
			t.Errorf("%s: %d requests, not 2000", name, n)
		}
		for i, a := range trace.arrivals {
			if a.at < 0 || a.at > trace.length || i > 0 && a.at < trace.arrivals[i-1].at {
				t.Errorf("%s: request %d at %v", name, i, a.at)
			}
		}
	}
}

func content(t *testing.T, path string) []byte {
	t.Helper()
	bytes, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}

func TestMain(m *testing.M) { redistest.Main(m) }

// Requests that are charged pass as long as a permit is free, and then not until the debt is paid
// back. In the long run, the rate is used, also if one request costs several intervals' permits.
func TestSimulateCharges(t *testing.T) {
	ctx, seconds := t.Context(), int64(20)
	for _, name := range []string{"rratelimiter", "token-bucket", "gcra"} {
		at := slices.IndexFunc(algorithms, func(a algorithm) bool { return a.name == name })
		tr := trace{name: "tokens", rate: rratelimiter.PerSecond(100), length: 20 * time.Second, charged: true}
		for i := range 10 * seconds {
			tr.arrivals = append(tr.arrivals, arrival{time.Duration(i) * 100 * time.Millisecond, 250})
		}
		s, err := simulate(ctx, tr, algorithms[at:at+1], sizes)
		if err != nil {
			t.Fatal(err)
		}
		o := s.Outcomes[0]
		if least, most := 95*seconds, 100*seconds+2*250; o.Fault != "" || o.Granted < least || o.Granted > most {
			t.Errorf("%s: %d permits are used, want %d to %d: %s", name, o.Granted, least, most, o.Fault)
		}
	}
}
