package demo

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
)

func someFigures(callers, columns int) figures {
	f := figures{
		name:    "rrl-demo",
		where:   "embedded server",
		alone:   true,
		length:  5 * time.Second,
		elapsed: 3100 * time.Millisecond,
		side:    side{granted: 154, denied: 20, longest: 376 * time.Millisecond}, waiting: 3,
		picture: picture{
			rate:    perSecond(50),
			used:    47,
			columns: make([]int64, columns),
			average: 49.5,
			over:    3,
			largest: 50,
		},
	}
	for i := range callers {
		f.callers = append(
			f.callers, caller{name: fmt.Sprintf("worker %d", i+1), blocks: i%2 == 0, granted: int64(i), state: asking},
		)
	}
	return f
}

func TestFrameFitsTheTerminal(t *testing.T) {
	for _, size := range [][2]int{{80, 24}, {120, 40}, {40, 10}, {200, 60}, {20, 3}, {1, 1}} {
		for _, callers := range []int{0, 1, 6, 500} {
			f := someFigures(callers, render.BarCells(size[0]))
			f.name = strings.Repeat("long", 30)
			f.alone = callers == 6
			f.changed = strings.Repeat("somebody ", 20)
			for _, lines := range [][]string{
				frame(f, size[0], size[1]), page(f, "line\nline", size[0], size[1]),
				frame(withJava(f), size[0], size[1]),
			} {
				if len(lines) > size[1] {
					t.Errorf("%v, %d callers: %d lines", size, callers, len(lines))
				}
				for _, line := range lines {
					if lipgloss.Width(line) > size[0] || strings.ContainsAny(line, "\n\r\t") {
						t.Errorf("%v, %d callers: %q", size, callers, line)
					}
				}
			}
		}
	}
}

func TestFrameSaysWhatHappens(t *testing.T) {
	text := ansi.Strip(strings.Join(frame(someFigures(60, render.BarCells(80)), 80, 24), "\n"))
	for _, want := range []string{
		"rrl-demo  50/s", "3.1s of 5s", "47 of 50 in use", "3 permits free, 3 waiting", "49.5/s of 50",
		"50 of 50, limit kept", "waits", "49 more", "376 ms", "q stops",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	f := someFigures(2, render.BarCells(80))
	f.largest, f.others, f.alone = 51, 7, false
	text = ansi.Strip(strings.Join(frame(f, 80, 24), "\n"))
	for _, want := range []string{"51 of 50, LIMIT NOT KEPT", "others", "j shows the Java"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// withJava adds the figures of Java.
func withJava(f figures) figures {
	f.release, f.java = "4.7.0", side{granted: 206, denied: 30, longest: 700 * time.Millisecond}
	for range 1000 {
		f.samples = append(f.samples, sample{inGo: 20, inJava: 27})
	}
	return f
}

func TestFrameWithJava(t *testing.T) {
	text := ansi.Strip(strings.Join(frame(withJava(someFigures(6, render.BarCells(80))), 80, 24), "\n"))
	for _, want := range []string{
		"rrl-demo  50/s  Redisson 4.7.0", "50 ─────", "█ Go, ▒ Java; at most 50 in any 1s", "Go 43 %, Java 57 %",
		"50 of 50, limit kept", "49.5/s of 50", "Go                154      43 %        20  376 ms",
		"Java              206      57 %        30  700 ms",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "embedded") || strings.Contains(text, "worker") {
		t.Error(text)
	}
}

func TestStack(t *testing.T) {
	f := figures{
		picture: picture{rate: perSecond(4), samples: []sample{{0, 0}, {1, 1}, {2, 2}, {4, 0}, {0, 4}, {3, 2}}},
	}
	lines := stack(f, 10, 4)
	for i := range lines {
		lines[i] = ansi.Strip(lines[i])
	}
	want := []string{
		"4 ───────█",
		"      ▒█▒▒",
		"      ▒█▒█",
		"     ▒██▒█",
		"     ███▒█",
	}
	if !slices.Equal(lines[:5], want) {
		t.Errorf("\n%s", strings.Join(lines, "\n"))
	}
}

func TestPlainLineIsASCII(t *testing.T) {
	f := someFigures(2, 0)
	f.others = 3
	line := plainLine(f)
	for _, want := range []string{
		"  3.1s [#########.] 47/50 granted 154 denied 20 waiting 3, 49.5/s, largest 50, others 3",
	} {
		if !strings.Contains(line, want) {
			t.Errorf("no %q in %q", want, line)
		}
	}
	if got, want := plainLine(withJava(f)),
		"  3.1s [GGGGJJJJJ.] 47/50 Go 154 (43 %) Java 206 (57 %), 49.5/s, largest 50, others 3"; got != want {
		t.Errorf("%q", got)
	}
	f.largest = 51
	if !strings.HasSuffix(plainLine(f), "largest 51, others 3: LIMIT NOT KEPT") {
		t.Errorf("%q", plainLine(f))
	}
	if len(line) != utf8.RuneCountInString(line) {
		t.Errorf("%q", line)
	}
}

func TestKeys(t *testing.T) {
	l := newLive(func(columns int) figures { return someFigures(3, columns) }, "JAVA")
	press := func(key rune) tea.Cmd {
		_, cmd := l.Update(tea.KeyPressMsg{Code: key, Text: string(key)})
		return cmd
	}
	press('j')
	if !strings.Contains(l.View().Content, "JAVA") {
		t.Error("j shows no Java")
	}
	press('j')
	if strings.Contains(l.View().Content, "JAVA") {
		t.Error("j does not go back")
	}
	l.Update(tea.WindowSizeMsg{Width: 30, Height: 5})
	if lines := strings.Split(l.View().Content, "\n"); len(lines) > 5 || lipgloss.Width(lines[0]) > 30 {
		t.Errorf("%q", lines)
	}
	if cmd := press('q'); cmd == nil {
		t.Error("q does not stop")
	} else if _, quits := cmd().(tea.QuitMsg); !quits {
		t.Error("q does not stop")
	}
}

func TestLiveViewEndsWithTheDemo(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
	defer cancel()
	var out bytes.Buffer
	err := showLive(ctx, func(columns int) figures { return someFigures(3, columns) }, "", strings.NewReader(""), &out)
	if err != nil || !strings.Contains(ansi.Strip(out.String()), "47 of 50 in use") {
		t.Errorf("%v: %q", err, out.String())
	}
}

func TestJavaHasNoPassword(t *testing.T) {
	for _, address := range []string{
		"redis://user:secret@localhost:7000/3", "unix://user:secret@/tmp/redis.sock?db=2",
		"rediss://user:secret@a:7000,b:7001/0?read_timeout=1s",
	} {
		s, err := connect.To(address)
		if err != nil {
			t.Fatal(err)
		}
		if java := javaSnippet(s, "x", perSecond(5), 1); strings.Contains(java, "secret") {
			t.Errorf("%s: the password is printed\n%s", address, java)
		}
		s.Close()
	}
}

func TestJava(t *testing.T) {
	s, err := connect.To("rediss://me:secret@host:7000/3")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	text := javaSnippet(s, "a\"b\u00e9\U0001F600\n", rratelimiter.Rate{Permits: 5, Interval: 250 * time.Millisecond}, 2)
	for _, want := range []string{
		`.setAddress("rediss://host:7000").setDatabase(3)`, `.setUsername("me")`, `System.getenv("REDIS_PASSWORD")`,
		`getRateLimiter("a\"b\u00e9\ud83d\ude00\n")`,
		"trySetRate(RateType.OVERALL, 5, 250, RateIntervalUnit.MILLISECONDS)", "acquire(2)",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	text = javaSnippet(
		s, "x", rratelimiter.Rate{
			Type:      rratelimiter.PerClient,
			Permits:   5,
			Interval:  time.Hour,
			KeepAlive: 2 * time.Hour,
		}, 1,
	)
	for _, want := range []string{
		"3.38",
		"RateType.PER_CLIENT, 5, Duration.ofMillis(3600000), Duration.ofMillis(7200000)",
		"own permits",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}
