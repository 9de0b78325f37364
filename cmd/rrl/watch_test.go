package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/feed"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/rrltest"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// someSight returns a limiter of 50/s that was half used ten seconds ago and is used up now.
func someSight(name string) feed.Sight {
	at := time.Unix(1_700_000_000, 500e6)
	return feed.Sight{
		Look: feed.Look{
			Name:       name,
			At:         at,
			Rate:       rratelimiter.PerSecond(50),
			Used:       50,
			Records:    12,
			Consistent: true,
			TTL:        time.Hour,
		},
		Frees: []feed.Free{
			{
				At: at.Add(-10 * time.Second), Free: 25,
			}, {At: at.Add(-2 * time.Second), Free: 7}, {At: at.Add(-1900 * time.Millisecond), Free: 9},
		},
		Seen: []feed.Span{{From: at.Add(-time.Minute), To: at}},
		Seconds: []feed.Second{
			{At: time.Unix(1_699_999_990, 0), Permits: 25, By: map[string]int64{"abc123": 25}},
			{At: time.Unix(1_699_999_999, 0), Permits: 50, By: map[string]int64{"abc123": 20, "": 30}},
			{At: time.Unix(1_700_000_000, 0), Permits: 3, By: map[string]int64{"": 3}},
		},
	}
}

func TestWatchFrameFitsTheTerminalAndSaysWhatHappens(t *testing.T) {
	failed, faulty, odd := someSight("broken"), someSight("faulty"), someSight("odd\n\x1b[31m")
	failed.Failed = errors.New("redis://localhost:1: connection refused")
	faulty.Fault = "its rate is missing"
	odd.Consistent = false
	sights := []feed.Sight{someSight("orders"), failed, faulty, odd, {}}
	for _, size := range [][2]int{{80, 24}, {200, 60}, {40, 10}, {20, 3}, {1, 1}} {
		for n := range len(sights) + 1 {
			lines := watchFrame(sights[:n], "redis://localhost", size[0], size[1])
			if len(lines) > size[1] {
				t.Errorf("%v, %d limiters: %d lines", size, n, len(lines))
			}
			for _, line := range lines {
				if lipgloss.Width(line) > size[0] || strings.ContainsAny(line, "\n\r\t") ||
					strings.Contains(line, "\x1b[31m") {
					t.Errorf("%v, %d limiters: %q", size, n, line)
				}
			}
		}
	}
	text := ansi.Strip(strings.Join(watchFrame(sights, "redis://localhost", 140, 60), "\n"))
	for _, want := range []string{
		"orders  50/s", "0 of 50 free", "50 last second, 7.5 a second", "50 permits in 12 records, gone in 1h",
		"Go client abc123 45, Java or unknown 33", "connection refused", "its rate is missing", "does not add up",
		"q stops",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// A long name leaves room for the figures.
func TestWatchCutsNames(t *testing.T) {
	frame := watchFrame([]feed.Sight{someSight(strings.Repeat("名", 100))}, "redis://localhost", 80, 24)
	if text := ansi.Strip(strings.Join(frame, "\n")); !strings.Contains(text, "…") ||
		!strings.Contains(text, "0 of 50 free\n") {
		t.Error(text)
	}
}

// Of many clients those are named that fit, who got most first.
func TestWatchNamesClientsThatFit(t *testing.T) {
	v := someSight("orders")
	v.Seconds = []feed.Second{{At: v.Seconds[0].At, By: map[string]int64{}}}
	for i := range 20 {
		v.Seconds[0].By[fmt.Sprintf("abc1%02d", i)] = int64(100 - i)
	}
	for width := range 200 {
		list := grantedTo(v, width)
		if lipgloss.Width(list) > max(width, len("20 more")) ||
			!regexp.MustCompile(`^(Go client abc1\d\d \d+, )*\d+ more$`).MatchString(list) {
			t.Errorf("%d cells: %q", width, list)
		}
	}
	if got, want := grantedTo(v, 60), "Go client abc100 100, Go client abc101 99, 18 more"; got != want {
		t.Errorf("%q, not %q", got, want)
	}
}

func TestWatchWritesALineASecondWhereThereIsNoTerminal(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := rrltest.Client(s.Client()).RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerMinute(100)))
		if err := l.Acquire(t.Context(), 40); err != nil {
			t.Fatal(err)
		}
		code, out, errs := rrl(t.Context(), "watch", "orders", "--for", "1500ms", "--redis", s.URL())
		if code != 0 || !strings.Contains(out, "orders 100/m [############........] 60 free, 40 in use") {
			t.Errorf("%d %s\n%s", code, errs, out)
		}
		code, out, errs = rrl(t.Context(), "watch", "orders", "--for", "900ms", "--json", "--redis", s.URL())
		var second map[string]any // one, at once
		if err := json.Unmarshal([]byte(out), &second); code != 0 || err != nil {
			t.Fatalf("%d %s %v\n%s", code, errs, err, out)
		}
		for field, want := range map[string]any{
			"name":       "orders",
			"rate":       "100/m",
			"available":  60.0,
			"used":       40.0,
			"consistent": true,
		} {
			if second[field] != want {
				t.Errorf("%s is %v, not %v", field, second[field], want)
			}
		}
		if code, _, errs := rrl(t.Context(), "watch", "--redis", s.URL()); code != 1 ||
			!strings.Contains(errs, "needs the name") {
			t.Errorf("without a name: %d %s", code, errs)
		}
	})
}

// A mistyped name must not look like a limiter that nobody uses.
func TestWatchNeedsALimiter(t *testing.T) {
	s := newShop(t, redistest.Embedded(t))
	s.limiter("orders", "20", "60000", "0")
	s.limiter("each", "20", "60000", "1")
	s.fails(1, "there is no limiter nobody; rrl ls lists", "watch", "orders", "nobody", "--for", "1s")
	s.fails(1, "there is no limiter o*: watch takes names, not a pattern", "watch", "o*", "--for", "1s")
	s.fails(1, "no client of each has state", "watch", "each", "--client", "all", "--for", "1s")
}

// Each whole second is written once, however the polls fall, and also if one falls between two
// polls.
func TestWatchWritesEachSecondOnce(t *testing.T) {
	at := func(ms int64) feed.Sight { return feed.Sight{Now: time.UnixMilli(ms)} }
	for _, c := range []struct {
		name        string
		sight       feed.Sight
		written     int64
		first, last int64 // first > last: none
	}{
		{"the first poll", at(100_900), 0, 99, 99},
		{"a poll in the same second", at(100_990), 99, 100, 99},
		{"a second later", at(101_100), 99, 100, 100},
		{"two seconds later", at(102_000), 99, 100, 101},
		{"after an outage", at(160_000), 99, 158, 159},
		{"no poll yet", feed.Sight{}, 0, 1, 0},
		{"the clock was set back", at(50_000), 99, 49, 49},
	} {
		if first, last := due(c.sight, c.written); first != c.first || last != c.last {
			t.Errorf("%s: %d to %d, not %d to %d", c.name, first, last, c.first, c.last)
		}
	}
}
