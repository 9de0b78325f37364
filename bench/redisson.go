package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/compat/redisson"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// redisson.go brings in Redisson itself: Java processes, warmed up, and the script that they send. The script is read off
// the wire when the program runs; it is no part of this repository.

// A java is one version of Redisson in a process.
type java struct {
	version string
	process *redisson.Process
}

// javaName is the name of a row.
func javaName(version string, mode redisson.Mode) string {
	how := map[redisson.Mode]string{redisson.Sync: "threads", redisson.Async: "async", redisson.Blocked: "threads"}[mode]
	return "Redisson " + version + ", " + how
}

// warmUp is for how long each JVM works in each mode before it is measured: its compiler has done most by then.
const warmUp = 3 * time.Second

// openJava starts the versions, reads the script of the last one, and warms all of them up.
func (b *lab) openJava(ctx context.Context, versions []string) error {
	if err := redisson.Build(ctx, versions...); err != nil {
		return err
	}
	for i, version := range versions {
		// The flags of a server: the optimising compiler, the collector that the JVM chooses, memory enough.
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

// javaRows are the rows of the versions that run, in the given modes.
func javaRows(versions []string, modes ...redisson.Mode) (rows []*contender) {
	for _, version := range versions {
		for _, mode := range modes {
			rows = append(rows, &contender{name: javaName(version, mode), java: true, open: func(_ context.Context, b *lab, s scene) (runner, error) {
				for _, j := range b.javas {
					if j.version == version {
						return javaRunner{j.process, mode, s.names[0]}, nil
					}
				}
				return nil, fmt.Errorf("no Redisson %s runs", version)
			}})
		}
	}
	return rows
}

// javaRunner asks from a JVM.
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
		return counts{}, errors.New("the Java side knows no callers that arrive one by one")
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	return javaCounts(r.process.Bench(ctx, r.name, redisson.Blocked, callers, 0))
}

func (javaRunner) close() {}

func javaCounts(r redisson.BenchResult, err error) (counts, error) {
	return counts{requests: r.Requests, permits: r.Granted, denied: r.Requests - r.Granted, took: r.Took, p50: r.P50, p99: r.P99}, err
}

// unlimited is a rate that is never used up; its records expire all the time.
var unlimited = rratelimiter.Rate{Permits: 1e9, Interval: 250 * time.Millisecond}

// capture reads the text of the script that a call sends: the longest one that passes, as a whole or to be loaded.
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
			return "", fmt.Errorf("no script of Redisson passed: %w", err)
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

// scriptIn is the script that a command carries, "" if it carries none.
func scriptIn(args []string) string {
	switch {
	case len(args) > 2 && strings.EqualFold(args[0], "eval"):
		return args[1]
	case len(args) == 3 && strings.EqualFold(args[0], "script") && strings.EqualFold(args[1], "load"):
		return args[2]
	}
	return ""
}
