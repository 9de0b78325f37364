package rules

import (
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// values has values of each field of a limit, at the edges of what is accepted and beyond; nil: the
// field is always the same. A new field needs a row.
var values = map[string][]string{
	"key":   {"address", "all", "path", "header X-A or address", "[address, path]", "no key"},
	"rate":  rates,
	"plans": {"{header: X-Plan, rates: {pro: 5/s}}", "{header: X-Plan, rates: {pro: unlimited}}", "{header: X-Plan, rates: {pro: 9007199254740992/s}}"},
	"quota": {"1/day", "0/day", "2147483647/day", "2147483648/week", "5000000000/month", "9007199254740991/month",
		"9007199254740992/month", "9223372036854775807/day", "5/year"},
	"from":      {"april", "monday", "1", "31", "32", "0"},
	"time-zone": {"Europe/Berlin", "UTC", "Nowhere"},
	"cost":      {"1", "0", "2", "5", "6", "2147483648", "9007199254740992", "9223372036854775807"},
	"paths":     {"/", "/a/", "a"},
	"methods":   {"GET", "[GET, POST]", "get"},
	"hosts":     {"example.com", "'*.example.com'"},
	"exempt":    {"10.0.0.0/8", "192.0.2.1", "::ffff:10.0.0.0/104"},
	"lease":     {"1ms", "100ms", "101ms", "1us", "0s"},
	"penalty":   {"1ms", "1us", "15m", "2562047h"},
	"shadow":    {"true", "false"},
}

var rates = []string{
	"0/s", "1/s", "5/s", "2147483647/s", "2147483648/s", "5000000000/1h", "9007199254740991/s", "9007199254740992/s",
	"9223372036854775807/s", "1/1ms", "1/1us", "1/2562047h", "1/week", "5/7d", "2/month", "0/month", "1/year", "1/s keep-alive 1s", "1/s keep-alive 1ms", "1/s keep-alive 2562047h",
}

// Each field has values: the generator of files learns a new one in the same commit.
func TestFilesHaveEachField(t *testing.T) {
	for _, field := range limitFields {
		if len(values[field]) == 0 {
			t.Errorf("values has no row for %s", field)
		}
	}
}

func drawLimit(t *rapid.T) string {
	fields := append(slices.Clone(limitFields[1:]), "penalty")
	names := rapid.SliceOfNDistinct(rapid.SampledFrom(fields), 0, 3, rapid.ID[string]).Draw(t, "fields")
	if !slices.Contains(names, "rate") && !slices.Contains(names, "quota") {
		names = append(names, rapid.SampledFrom([]string{"rate", "quota"}).Draw(t, "permits"))
	}
	lines := []string{"key: " + rapid.SampledFrom(values["key"]).Draw(t, "key")}
	for _, name := range names {
		lines = append(lines, name+": "+rapid.SampledFrom(values[name]).Draw(t, name))
	}
	return "{" + strings.Join(lines, ", ") + "}"
}

// What the check of a file accepts, a guard serves without an error. What it refuses, Watch refuses.
func TestFilesThatAreAcceptedAreServed(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		text := "limits:\n  a: " + drawLimit(rt) + "\n"
		if rapid.Bool().Draw(rt, "another limit") {
			text += "  b: " + drawLimit(rt) + "\n"
		}
		if fault := faultOf(t, text); fault != "" {
			rt.Fatalf("%s%s", text, fault)
		}
	})
}

// faultOf returns what is wrong with the way in which a file is served.
func faultOf(t *testing.T, text string) string {
	server := limittest.Start()
	defer server.Close()
	file := filepath.Join(t.TempDir(), "limits.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var failed []string
	guard := httplimit.New()
	guard.Policy = &httplimit.Policy{
		Bound:   1e10,
		Logger:  slog.New(slog.DiscardHandler),
		OnError: func(_ context.Context, err error) { failed = append(failed, err.Error()) },
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	_, refused := Parse(file, []byte(text))
	err := Watch(ctx, guard, file, Config{Client: server.Client(), Redis: server.Redis(), Logger: guard.Policy.Logger})
	if (err == nil) != (refused == nil) {
		return fmt.Sprintf("the check says %v, Watch %v", refused, err)
	}
	if err != nil {
		return ""
	}
	for i := range 4 {
		r := httptest.NewRequest("GET", "http://example.com/", nil)
		r.RemoteAddr = "192.0.2.7:1"
		if i%2 == 1 {
			r.Header.Set("X-Plan", "pro")
		}
		if d := guard.Decide(r); d.Err != nil || len(failed) > 0 {
			return fmt.Sprintf("the check accepts it, and request %d gets %v, %v, %q", i, d.Outcome, d.Err, failed)
		}
	}
	return ""
}
