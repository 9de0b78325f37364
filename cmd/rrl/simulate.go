package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
)

// simulate.go is the subcommand that compares algorithms: its flags and its output.

type simulateOptions struct {
	trace      string
	algorithms []string
	rate       string
	length     time.Duration
	load       float64
	seed       int64
	permits    int
	json       bool
	out        []string
	docs       string
	address    string
}

func newSimulate() *cobra.Command {
	var o simulateOptions
	cmd := &cobra.Command{
		Use:   "simulate",
		Short: "Compare algorithms on the same traffic",
		Long: `simulate feeds one trace of requests through any set of algorithms, on a virtual clock and an embedded server, and
shows the grants of each over time, its largest window (permits in any interval), the waits of queued callers, the
memory of its keys in Redis, and the calls and commands for each permit.

Built-in traces, each with its own limit:
` + described() + `
Patterns, for --rate, --for and --load: ` + names(patternNames()) + `.

Anything else is a file, or - for standard input: a log or CSV with a timestamp at the beginning of each line, or in
brackets as web servers write it.

Algorithms: ` + names(algorithmNames()) + `.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runSimulate(cmd.Context(), o, cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.trace, "trace", "window-edge", "a built-in trace, a pattern, a file, or - for standard input")
	flags.StringSliceVar(&o.algorithms, "algorithms", nil, "names of algorithms; all if none is given")
	flags.StringVar(&o.rate, "rate", "10/s", "the limit, such as 100/s; built-in traces have their own")
	flags.DurationVar(&o.length, "for", 10*time.Second, "length of a pattern")
	flags.Float64Var(&o.load, "load", 1.5, "permits that a pattern requests, as a multiple of the rate")
	flags.Int64Var(&o.seed, "seed", 1, "seed of the poisson pattern")
	flags.IntVar(&o.permits, "permits-column", 0, "column of a file, from 1, that has the permits of each request; 0: one each")
	flags.BoolVar(&o.json, "json", false, "JSON instead of a table")
	flags.StringSliceVarP(&o.out, "out", "o", nil, "also write these files: .png, .svg or .json")
	flags.StringVar(&o.docs, "docs", "", "a page of Markdown in which the tables of all built-in traces are updated, with a chart of each beside it")
	flags.StringVar(&o.address, "redis", "", "a server that measures the keys with MEMORY USAGE: redis://[user:password@]host:port[/db]")
	flags.SortFlags = false
	return cmd
}

func described() string {
	var b strings.Builder
	for _, t := range builtIn() {
		fmt.Fprintf(&b, "  %-12s %s; limit %v\n", t.name, t.about, t.rate)
	}
	return b.String()
}

func runSimulate(ctx context.Context, o simulateOptions, in io.Reader, out io.Writer) error {
	which, err := o.which()
	if err != nil {
		return err
	}
	weigh := sizes
	if o.address != "" {
		s, err := connect.To(o.address)
		if err != nil {
			return err
		}
		defer s.Close()
		if err := s.Redis.Ping(ctx).Err(); err != nil {
			return s.Clean(fmt.Errorf("%s: %w", s.Where, err))
		}
		weigh = memoryUsage(s.Redis)
	}
	if o.docs != "" {
		return renew(ctx, o.docs, which, weigh, out)
	}
	t, err := o.read(in)
	if err != nil {
		return err
	}
	for _, path := range o.out {
		if !slices.Contains([]string{".png", ".svg", ".json"}, filepath.Ext(path)) {
			return fmt.Errorf("--out %s: must end in .png, .svg or .json", path)
		}
	}
	s, err := simulate(ctx, t, which, weigh)
	if err != nil {
		return err
	}
	for _, path := range o.out {
		if err := s.write(path); err != nil {
			return err
		}
	}
	if o.json {
		return s.writeJSON(out)
	}
	return s.showTable(out)
}

// which returns the requested algorithms, in the order of the list.
func (o simulateOptions) which() ([]algorithm, error) {
	if len(o.algorithms) == 0 {
		return algorithms, nil
	}
	var which []algorithm
	for _, a := range algorithms {
		if slices.Contains(o.algorithms, a.name) {
			which = append(which, a)
		}
	}
	for _, name := range o.algorithms {
		if !slices.Contains(algorithmNames(), name) {
			return nil, fmt.Errorf("--algorithms: %q is none of %s", name, names(algorithmNames()))
		}
	}
	return which, nil
}

// read returns the requested trace.
func (o simulateOptions) read(in io.Reader) (trace, error) {
	for _, t := range builtIn() {
		if t.name == o.trace {
			return t, nil
		}
	}
	rate, err := rratelimiter.ParseRate(o.rate)
	if err != nil {
		return trace{}, fmt.Errorf("--rate: %w", err)
	}
	if _, made := patterns[o.trace]; !made {
		name := "standard input"
		if o.trace != "-" {
			file, err := os.Open(o.trace)
			if errors.Is(err, os.ErrNotExist) {
				return pattern(o.trace, rate, 0, 0, 0)
			}
			if err != nil {
				return trace{}, err
			}
			defer file.Close()
			in, name = file, filepath.Base(o.trace)
		}
		t, err := readTrace(name, in, rate, o.permits)
		if err != nil {
			return t, fmt.Errorf("%s: %w", name, err)
		}
		return t, nil
	}
	if o.length <= 0 || !(o.load > 0) || o.load > 1000 {
		return trace{}, errors.New("--for and --load must be positive, and the load at most 1000")
	}
	return pattern(o.trace, rate, o.length, o.load, o.seed)
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

// renew simulates all built-in traces, writes a chart of each into a folder beside a page, with the page's name, and
// puts the tables into the page, each between two marker lines.
func renew(ctx context.Context, page string, which []algorithm, weigh scale, out io.Writer) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	folder := strings.TrimSuffix(page, filepath.Ext(page))
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	renewed := string(text)
	for _, t := range builtIn() {
		s, err := simulate(ctx, t, which, weigh)
		if err != nil {
			return err
		}
		chart := filepath.Join(folder, t.name+".svg")
		if err := s.save(chart); err != nil {
			return err
		}
		if renewed, err = between(renewed, t.name, s.markdown()); err != nil {
			return fmt.Errorf("%s: %w", page, err)
		}
		fmt.Fprintln(out, chart)
	}
	if err := os.WriteFile(page, []byte(renewed), 0o644); err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, page)
	return err
}

// between replaces a table in a page between its marker lines.
func between(page, name, text string) (string, error) {
	begin, end := fmt.Sprintf("<!-- measured: %s -->\n", name), "<!-- end -->\n"
	before, rest, found := strings.Cut(page, begin)
	_, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		return page, fmt.Errorf("no lines %q and %q", strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return before + begin + text + end + after, nil
}
