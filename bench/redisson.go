package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/compat/redisson"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// redisson.go runs Redisson in warmed up Java processes and captures the script that they send. The
// script is not part of this repository: the program reads it with MONITOR.

// A java is a process with one version of Redisson.
type java struct {
	version string
	process *redisson.Process
}

// javaName returns the name of the row of a version and a mode.
func javaName(version string, mode redisson.Mode) string {
	how := map[redisson.Mode]string{
		redisson.Sync:    "threads",
		redisson.Async:   "async",
		redisson.Blocked: "threads",
	}[mode]
	return "Redisson " + version + ", " + how
}

// warmUp is the time that each JVM runs in each mode before it is measured. By then its compiler
// has done most of its work.
const warmUp = 3 * time.Second

// openJava starts and warms up the versions, and captures the script of the last one.
func (b *lab) openJava(ctx context.Context, versions []string) error {
	if err := redisson.Build(ctx, versions...); err != nil {
		return err
	}
	for i, version := range versions {
		// As on a server: the optimising compiler, the default garbage collector and enough memory.
		process, err := redisson.Open(ctx, version, redisson.Addr(b.addr), redisson.JVM("-Xms256m", "-Xmx1g"))
		if err != nil {
			return err
		}
		b.javas = append(b.javas, &java{version, process})
		if err := b.clear(ctx); err != nil {
			return err
		}
		const name = "warm-up"
		if err := b.setRates(ctx, []string{name}, unlimited); err != nil {
			return err
		}
		if i == len(versions)-1 {
			if b.script, err = capture(ctx, b.addr, func() error {
				_, err := process.TryAcquire(ctx, name, 1)
				return err
			}); err != nil {
				return err
			}
		}
		for _, mode := range []redisson.Mode{redisson.Sync, redisson.Async} {
			if _, err := process.Bench(ctx, name, mode, 64, b.javaWarm); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *lab) closeJava() {
	for _, j := range b.javas {
		_ = j.process.Close()
	}
}

// javaRows returns a row for each of the versions and modes.
func javaRows(versions []string, modes ...redisson.Mode) (rows []*contender) {
	for _, version := range versions {
		for _, mode := range modes {
			rows = append(
				rows,
				&contender{
					name: javaName(version, mode),
					java: true,
					open: func(_ context.Context, b *lab, s scene) (runner, error) {
						for _, j := range b.javas {
							if j.version == version {
								return javaRunner{j.process, mode, s.names[0]}, nil
							}
						}
						return nil, fmt.Errorf("no Redisson %s runs", version)
					},
				},
			)
		}
	}
	return rows
}

// javaRunner sends requests from a JVM.
type javaRunner struct {
	process *redisson.Process
	mode    redisson.Mode
	name    string
}

func (r javaRunner) run(ctx context.Context, w work) (counts, error) {
	return javaCounts(r.process.Bench(ctx, r.name, r.mode, w.callers, w.time))
}

func (r javaRunner) wait(ctx context.Context, callers int, arrive time.Duration) (counts, error) {
	if arrive > 0 {
		return counts{}, errors.New("callers that arrive one by one are not supported in Java")
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	return javaCounts(r.process.Bench(ctx, r.name, redisson.Blocked, callers, 0))
}

func (javaRunner) close() {}

func javaCounts(r redisson.BenchResult, err error) (counts, error) {
	return counts{
		requests: r.Requests, permits: r.Granted, denied: r.Requests - r.Granted, took: r.Took, p50: r.P50, p99: r.P99,
	}, err
}

// abundant is a rate that is never used up, with an interval of which 100 ms are a small part;
// abundantBeside is the same for 1 s.
var (
	abundant       = rratelimiter.Rate{Permits: math.MaxUint32, Interval: 10 * time.Second}
	abundantBeside = rratelimiter.Rate{Permits: math.MaxUint32, Interval: time.Minute}
)

// unlimited is a rate that is never used up. Its interval is short, so that records expire all the
// time.
var unlimited = rratelimiter.Rate{Permits: 1e9, Interval: 250 * time.Millisecond}

// unlimitedBeside is the same for the other limiter of a pair.
var unlimitedBeside = rratelimiter.Rate{Permits: 2e9, Interval: 500 * time.Millisecond}

// capture returns the text of the script that a call sends by EVAL or SCRIPT LOAD: the first one
// that contains "zadd".
func capture(ctx context.Context, addr string, call func() error) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	lines := bufio.NewReader(conn)
	if _, err := io.WriteString(conn, "MONITOR\r\n"); err != nil {
		return "", err
	}
	if _, err := lines.ReadString('\n'); err != nil {
		return "", err
	}
	called := make(chan error, 1)
	go func() { called <- call() }()
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return "", fmt.Errorf("no script of Redisson: %w", err)
		}
		command, err := redistest.ParseCommand([]byte(strings.TrimRight(line, "\r\n")))
		if err != nil {
			return "", err
		}
		if text := scriptIn(command.Args); strings.Contains(text, "zadd") {
			return text, <-called
		}
	}
}

// scriptIn returns the script in a command, "" if there is none.
func scriptIn(args []string) string {
	switch {
	case len(args) > 2 && strings.EqualFold(args[0], "eval"):
		return args[1]
	case len(args) == 3 && strings.EqualFold(args[0], "script") && strings.EqualFold(args[1], "load"):
		return args[2]
	}
	return ""
}
