// Package simulate sends one trace of requests through several rate limiting algorithms, on a
// virtual clock, and shows what each grants: as tables, charts and JSON. It does not parse
// commands.
package simulate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
)

// Options say what is simulated, and what is written.
type Options struct {
	Trace      string   // a built-in trace, a pattern, a file, or - for the input
	Algorithms []string // none: all
	Rate       string
	Length     time.Duration // of a pattern
	Load       float64       // of a pattern: permits requested, as a multiple of the rate
	Seed       int64         // of the poisson pattern
	Permits    int           // column of a file with the permits of each request, from 1; 0: one each
	Charge     bool          // requests pass while a permit is free, and their permits are charged afterwards
	JSON       bool
	Out        []string // files to write, too: .png, .svg or .json
	Docs       string   // a page to update, in place of all output
	Address    string   // of a server that measures the keys; "": none
	// reports whether the user gave a flag: one without effect is an error; nil: none
	Given func(flag string) bool
}

// Traces returns the built-in traces, a line each.
func Traces() string {
	var b strings.Builder
	for _, t := range builtIn() {
		fmt.Fprintf(&b, "  %-12s %s; limit %v\n", t.name, t.about, t.rate)
	}
	return b.String()
}

// Run simulates a trace, and writes the result.
func Run(ctx context.Context, o Options, in io.Reader, out io.Writer) error {
	which, err := o.which()
	if err != nil {
		return err
	}
	if err := o.unused(); err != nil {
		return err
	}
	weigh := sizes
	if o.Address != "" {
		s, err := connect.To(o.Address)
		if err != nil {
			return err
		}
		defer s.Close()
		if err := s.Redis.Ping(ctx).Err(); err != nil {
			return s.Clean(fmt.Errorf("%s: %w", s.Where, err))
		}
		weigh = memoryUsage(s.Redis)
	}
	if o.Docs != "" {
		return renew(ctx, o.Docs, which, weigh, out)
	}
	t, err := o.read(in)
	if err != nil {
		return err
	}
	if t.charged = o.Charge; o.Charge {
		t.about += ", charged afterwards"
	}
	for _, path := range o.Out {
		if !slices.Contains([]string{".png", ".svg", ".json"}, filepath.Ext(path)) {
			return fmt.Errorf("--out %s: must end in .png, .svg or .json", path)
		}
	}
	s, err := simulate(ctx, t, which, weigh)
	if err != nil {
		return err
	}
	for _, path := range o.Out {
		if err := s.write(path); err != nil {
			return err
		}
	}
	if o.JSON {
		return s.writeJSON(out)
	}
	return s.showTable(&render.Output{Out: out, Width: render.TerminalWidth(out)})
}

// which returns the requested algorithms, in the order of the list.
func (o Options) which() ([]algorithm, error) {
	if len(o.Algorithms) == 0 {
		return algorithms, nil
	}
	var which []algorithm
	for _, a := range algorithms {
		if slices.Contains(o.Algorithms, a.name) {
			which = append(which, a)
		}
	}
	for _, name := range o.Algorithms {
		if !slices.Contains(Algorithms(), name) {
			return nil, fmt.Errorf("--algorithms: %q is none of %s", name, names(Algorithms()))
		}
	}
	return which, nil
}

// unused returns an error for a flag that was given and has no effect on the requested trace.
func (o Options) unused() error {
	given := func(flags ...string) string {
		for _, flag := range flags {
			if o.Given != nil && o.Given(flag) {
				return flag
			}
		}
		return ""
	}
	if o.Docs != "" {
		if flag := given(
			"trace", "rate", "for", "load", "seed", "permits-column", "charge", "json", "out",
		); flag != "" {
			return fmt.Errorf("--%s: --docs simulates the built-in traces of the page, and writes only the page and its charts", flag)
		}
		return nil
	}
	builtIn := slices.Contains(builtInNames(), o.Trace)
	_, made := patterns[o.Trace]
	if flag := given("rate"); flag != "" && builtIn {
		return fmt.Errorf(
			"--rate: the built-in trace %s has its own limit; a rate is for a pattern (%s) or a file", o.Trace,
			names(Patterns()),
		)
	}
	if flag := given("for", "load"); flag != "" && !made {
		return fmt.Errorf("--%s: only a pattern uses it (%s), and %s is not one", flag, names(Patterns()), o.Trace)
	}
	if flag := given("seed"); flag != "" && o.Trace != "poisson" {
		return fmt.Errorf("--seed: only the poisson pattern uses it, and --trace is %s", o.Trace)
	}
	if flag := given("permits-column"); flag != "" && (builtIn || made) {
		return fmt.Errorf("--permits-column: only a file uses it, and %s is not one", o.Trace)
	}
	return nil
}

// read returns the requested trace.
func (o Options) read(in io.Reader) (trace, error) {
	for _, t := range builtIn() {
		if t.name == o.Trace {
			return t, nil
		}
	}
	rate, err := rratelimiter.ParseRate(o.Rate)
	if err != nil {
		return trace{}, fmt.Errorf("--rate: %w", err)
	}
	if rate.Permits == 0 {
		return trace{}, fmt.Errorf("--rate %v: it refuses every request, so there is nothing to compare", rate)
	}
	if _, made := patterns[o.Trace]; !made {
		name := "standard input"
		if o.Trace != "-" {
			file, err := os.Open(o.Trace)
			if errors.Is(err, os.ErrNotExist) {
				return pattern(o.Trace, rate, 0, 0, 0)
			}
			if err != nil {
				return trace{}, err
			}
			defer file.Close()
			in, name = file, filepath.Base(o.Trace)
		}
		t, err := readTrace(name, in, rate, o.Permits)
		if err != nil {
			return t, fmt.Errorf("%s: %w", name, err)
		}
		return t, nil
	}
	if o.Length <= 0 || !(o.Load > 0) || o.Load > 1000 {
		return trace{}, errors.New("--for and --load must be positive, and the load at most 1000")
	}
	return pattern(o.Trace, rate, o.Length, o.Load, o.Seed)
}

func (s simulation) write(path string) error {
	if filepath.Ext(path) != ".json" {
		return s.save(path)
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	return closing(file, s.writeJSON(file))
}

func (s simulation) writeJSON(out io.Writer) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(s)
}

// renew simulates the built-in traces that a page names. It writes a chart of each into a folder
// beside the page, with the page's name, and the table into the page, between two marker lines.
func renew(ctx context.Context, page string, which []algorithm, weigh scale, out io.Writer) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	named, _, err := tableIn(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", page, err)
	}
	folder := strings.TrimSuffix(page, filepath.Ext(page))
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	var all []simulation
	for _, t := range builtIn() {
		if !slices.Contains(named, t.name) {
			continue
		}
		s, err := simulate(ctx, t, which, weigh)
		if err != nil {
			return err
		}
		chart := filepath.Join(folder, t.name+".svg")
		if err := s.save(chart); err != nil {
			return err
		}
		all = append(all, s)
		fmt.Fprintln(out, chart)
	}
	if len(all) != len(named) {
		return fmt.Errorf("%s names a trace that is not built in: %s", page, strings.Join(named, ", "))
	}
	_, renewed, err := tableIn(string(text), all...)
	if err != nil {
		return err
	}
	if err := os.WriteFile(page, []byte(renewed), 0o644); err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, page)
	return err
}

// Marker lines of a page, before and after the table. The first one names the traces.
var tableBegin = regexp.MustCompile("(?m)^<!-- measured: (.*) -->\n")

const tableEnd = "<!-- end -->\n"

// tableIn returns the traces that a page names, and the page with the table of the given
// simulations.
func tableIn(page string, all ...simulation) (named []string, renewed string, err error) {
	at := tableBegin.FindStringSubmatchIndex(page)
	if at == nil {
		return nil, "", errors.New("no line \"<!-- measured: TRACE, ... -->\"")
	}
	_, after, closed := strings.Cut(page[at[1]:], tableEnd)
	if !closed {
		return nil, "", fmt.Errorf("no line %q", strings.TrimSpace(tableEnd))
	}
	return strings.Split(page[at[2]:at[3]], ", "), page[:at[1]] + markdown(all) + tableEnd + after, nil
}
