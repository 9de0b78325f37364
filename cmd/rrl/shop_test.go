package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/rrltest"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// A shop is a server with limiters, for commands on a live Redis.
type shop struct {
	t   *testing.T
	s   *redistest.Server
	rdb *redis.Client
}

func newShop(t *testing.T, s *redistest.Server) shop { return shop{t, s, s.Client()} }

// onShops runs a test on an embedded and on a real server.
func onShops(t *testing.T, test func(t *testing.T, s shop)) {
	t.Helper()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) { test(t, newShop(t, s)) })
}

// run runs a command on the server.
func (s shop) run(args ...string) (code int, out, errs string) {
	s.t.Helper()
	return s.with("", args...)
}

// with runs a command with an input.
func (s shop) with(input string, args ...string) (code int, out, errs string) {
	s.t.Helper()
	var o, e bytes.Buffer
	all := append([]string{args[0], "--redis", s.s.URL()}, args[1:]...)
	code = run(s.t.Context(), all, strings.NewReader(input), &o, &e)
	return code, o.String(), e.String()
}

// ok runs a command that must succeed, and returns its output.
func (s shop) ok(args ...string) string {
	s.t.Helper()
	code, out, errs := s.run(args...)
	if code != 0 || errs != "" {
		s.t.Fatalf("rrl %q: exit code %d, errors %q, output\n%s", args, code, errs, out)
	}
	return out
}

// unusable runs a command that prints what is wrong as its output, and exits with code 1.
func (s shop) unusable(args ...string) string {
	s.t.Helper()
	code, out, errs := s.run(args...)
	if code != 1 || errs != "" {
		s.t.Fatalf("rrl %q: exit code %d, errors %q, output\n%s", args, code, errs, out)
	}
	return out
}

// fails runs a command that must fail with that code, and one line with that part.
func (s shop) fails(code int, part string, args ...string) {
	s.t.Helper()
	got, out, errs := s.run(args...)
	if got != code || !strings.Contains(errs, part) || strings.Count(errs, "\n") != 1 {
		s.t.Errorf(
			"rrl %q: exit code %d, want %d; errors %q, want %q in one line; output %q", args, got, code, errs, part,
			out,
		)
	}
}

// objects parses the output of --json.
func objects(t *testing.T, text string) (all []map[string]any) {
	t.Helper()
	for line := range strings.Lines(text) {
		var one map[string]any
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		all = append(all, one)
	}
	return all
}

func (s shop) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// limiter writes a configuration: rate, interval in ms, type, and more fields.
func (s shop) limiter(name string, fields ...string) {
	s.t.Helper()
	rrltest.Limiter(s.t, s.rdb, name, fields...)
}

// state writes free permits and records into the keys of a client: each record is ms from now, and
// a member.
func (s shop) state(name, client, value string, records ...any) {
	s.t.Helper()
	rrltest.State(s.t, s.rdb, name, client, value, records...)
}

// snapshotOf makes a limiter and returns its snapshot.
func (s shop) snapshotOf(name string) string {
	s.t.Helper()
	s.limiter(name, "10", "3600000", "0")
	s.state(name, "", "7", -100, rrltest.GoRecord("abc", 3))
	return s.ok("snapshot", name)
}

// onTerminal returns a shop with a limiter x, whose input and output count as a terminal.
func onTerminal(t *testing.T) shop {
	before := terminal
	terminal = func(any) bool { return true }
	t.Cleanup(func() { terminal = before })
	s := newShop(t, redistest.Embedded(t))
	s.limiter("x", "10", "3600000", "0")
	return s
}
