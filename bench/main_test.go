package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

func TestMain(m *testing.M) {
	if order := os.Getenv(workerEnv); order != "" {
		os.Exit(workerMain(order))
	}
	redistest.Main(m)
}

// newLab returns a lab on a server that only this test uses.
func newLab(t *testing.T, s size) *lab {
	t.Helper()
	server := redistest.Real(t)
	return &lab{
		size: s,
		addr: server.Addr,
		crew: &crew{},
		rdb:  server.Client(func(o *redis.Options) { o.ReadTimeout = patience }),
	}
}

func TestARunMeasuresTakingTurnsAndKeepsTheFigures(t *testing.T) {
	if testing.Short() {
		t.Skip("it measures a real server")
	}
	folder := t.TempDir()
	figures, chart := filepath.Join(folder, "results.json"), filepath.Join(folder, "bench.svg")
	var out, progress bytes.Buffer
	args := []string{
		"-quick", "-java", "", "-run", "^hot limiter, 1,024 callers$", "-rows", "library$", "-json", figures, "-chart",
		chart,
	}
	if err := run(t.Context(), args, &out, &progress); err != nil {
		t.Fatalf("%v\n%s", err, &progress)
	}
	report, err := readReport(figures)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{rowPing, rowLibrary} {
		row := report.row(hotName(1024), name)
		if row == nil {
			t.Fatalf("%s was not measured:\n%s", name, &out)
		}
		s := row.Samples[0]
		if s.Requests == 0 || s.Permits != s.Requests || s.Commands == 0 || s.RedisCPU <= 0 || s.P50 <= 0 ||
			s.P99 < s.P50 ||
			s.Allocs == 0 {
			t.Errorf("%s: %+v", name, s)
		}
	}
	if ping := report.row(hotName(1024), rowPing).Samples[0]; ping.Commands != ping.Requests {
		t.Errorf("%d PINGs for %d requests", ping.Commands, ping.Requests)
	}
	if len(report.Rows) != 2 {
		t.Errorf("%d rows, not the two asked for", len(report.Rows))
	}
	if text := out.String(); !strings.Contains(text, "goals met") || !strings.Contains(text, "quick run") {
		t.Errorf("the text lacks the goals, or that this is a quick run:\n%s", text)
	}
	if text := progress.String(); !strings.Contains(text, "0 %") || strings.Contains(text, "\x1b") {
		t.Errorf("progress without a terminal: %q", text)
	}
	again := new(bytes.Buffer)
	if err := run(t.Context(), []string{"-from", figures}, again, &progress); err != nil ||
		again.String() != out.String() {
		t.Errorf("-from (%v) shows something else:\n%s", err, again)
	}
}

func TestFlagsThatMakeNoSense(t *testing.T) {
	for _, args := range [][]string{
		{"-run", "("}, {"rest"}, {"-update", "-quick"}, {"-update"}, {"-from", "nowhere"},
		{"-java", "", "-run", "no such workload"},
	} {
		if err := run(t.Context(), args, new(bytes.Buffer), new(bytes.Buffer)); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
}
