// Command bench compares the speed of this library with that of its peers, on a redis-server of its
// own, and checks the performance goals:
//
//	go run ./bench                        all workloads and rows: a quarter of an hour
//	go run ./bench -quick                 shorter samples: a minute and a half; do not quote the figures
//	go run ./bench -run 'hot' -rows lib   workloads and rows by regular expression; bare PING always runs
//	go run ./bench -update                all, and writes README.md, bench/README.md, docs/bench.svg and
//	                                      bench/results.json
//	go run ./bench -from bench/results.json   shows an earlier run
//
// It needs redis-server, and a JDK and Maven for Redisson. If -java is empty, Redisson is not
// measured. README.md in this folder describes the measurements, and has the main tables.
//
// This file has the command line. lab.go measures rows in turn. workloads.go and rows.go define the
// workloads and the rows. load.go (callers that do not wait), waiting.go (callers that wait),
// memory.go (records) and scripttime.go (time in Redis) take the samples. redisson.go runs the Java
// side. result.go holds the figures, goals.go checks them, and table.go, chart.go and readme.go
// show them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strings"

	"golang.org/x/term"
)

func main() {
	if order := os.Getenv(workerEnv); order != "" {
		os.Exit(workerMain(order))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "bench: "+err.Error())
		}
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	quick, update     bool
	run, rows         *regexp.Regexp
	java              []string
	json, chart, from string
}

func parse(args []string, errs io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(errs)
	flags.BoolVar(
		&o.quick, "quick", false,
		"a minute and a half instead of a quarter of an hour; the figures are not for quoting",
	)
	flags.BoolVar(
		&o.update, "update", false,
		"write the tables into "+readmeFile+" and "+tablesFile+", the chart to "+chartFile+" and the figures to "+
			jsonFile,
	)
	pattern := func(name, usage string, to **regexp.Regexp) {
		*to = regexp.MustCompile("")
		flags.Func(name, usage, func(text string) (err error) {
			*to, err = regexp.Compile("(?i)" + text)
			return err
		})
	}
	pattern("run", "measure workloads whose names match `regexp`", &o.run)
	pattern("rows", "measure rows whose names match `regexp`; bare PING always", &o.rows)
	java := flags.String("java", "3.17.5,4.7.0", "`versions` of Redisson to measure, the newest last; '' for none")
	flags.StringVar(&o.json, "json", "", "write the figures to `file`")
	flags.StringVar(&o.chart, "chart", "", "draw the chart to `file`, as SVG")
	flags.StringVar(&o.from, "from", "", "measure nothing, show the figures in `file`")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unknown argument %q", flags.Arg(0))
	}
	if *java != "" {
		o.java = strings.Split(*java, ",")
	}
	if o.update {
		o.json, o.chart = jsonFile, chartFile
		if o.quick {
			return o, errors.New("the figures of a quick run are not for the pages")
		}
		if o.from == jsonFile {
			o.json = ""
		}
		return o, checkPages(readmeFile, tablesFile)
	}
	return o, nil
}

func run(ctx context.Context, args []string, out, errs io.Writer) error {
	o, err := parse(args, errs)
	if err != nil {
		return err
	}
	var report *Report
	if o.from != "" {
		report, err = readReport(o.from)
	} else {
		report, err = measure(ctx, o, newProgress(errs))
	}
	if err != nil {
		return err
	}
	fmt.Fprint(out, fullText(report))
	failed := report.failed()
	if failed != nil && o.update {
		return fmt.Errorf("the pages are not updated: %w", failed)
	}
	if o.json != "" {
		err = errors.Join(err, report.write(o.json))
	}
	if o.chart != "" {
		err = errors.Join(err, drawChart(report, o.chart))
	}
	if o.update {
		err = errors.Join(err, updatePage(readmeFile, readmeText(report)), updatePage(tablesFile, tablesText(report)))
	}
	return errors.Join(err, failed)
}

// width returns the number of columns of a terminal; 0 if the writer is not a terminal.
func width(w io.Writer) int {
	file, ok := w.(*os.File)
	if !ok {
		return 0
	}
	columns, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return 0
	}
	return max(columns, 40) // some terminals report 0
}
