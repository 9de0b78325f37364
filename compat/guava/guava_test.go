// Package guava tests that the smooth limiters of package classic behave like Guava's RateLimiter:
// the same random requests on the same clock get the same waits, to the microsecond.
package guava

import (
	"bytes"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/classic"
)

// harness builds the Java side in a temporary folder and returns its jar. This takes a few seconds,
// and the first time on a machine a download of 4 MB.
func harness(t *testing.T) string {
	t.Helper()
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		t.Fatalf("real Guava needs a JDK 17 or later and Maven: apt-get install openjdk-17-jdk-headless maven: %v", err)
	}
	folder, out := t.TempDir(), ""
	for attempt := 0; attempt < 3; attempt++ {
		args := []string{"-B", "-q", "-f", filepath.Join("java", "pom.xml"), "-Dharness.out=" + folder, "package"}
		if attempt > 0 {
			args = append(args, "-U") // otherwise Maven does not repeat a failed download
		}
		var output []byte
		if output, err = exec.CommandContext(t.Context(), mvn, args...).CombinedOutput(); err == nil {
			return filepath.Join(folder, "harness.jar")
		}
		out = string(output)
	}
	t.Fatalf("build: %v\n%s", err, out)
	return ""
}

// A step is a command to the harness, and the answer of our own limiter to it.
type step struct{ command, ours string }

// A course is a sequence of random requests to one limiter.
type course struct {
	random *rand.Rand
	now    time.Time
	start  time.Time
	steps  []step
	waited int // requests that had to wait
}

func newCourse(seed int64) *course {
	start := time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)
	return &course{random: rand.New(rand.NewSource(seed)), now: start, start: start}
}

func (c *course) rate() float64 {
	switch c.random.Intn(4) {
	case 0:
		return float64(1 + c.random.Intn(100))
	case 1:
		return 0.01 + c.random.Float64()
	case 2:
		return 1e5 * c.random.Float64()
	}
	return 0.1 + 50*c.random.Float64()
}

func (c *course) note(ours any, command string, args ...any) {
	c.steps = append(c.steps, step{fmt.Sprintf(command, args...), fmt.Sprint(ours)})
}

func formatRate(rate float64) string { return strconv.FormatFloat(rate, 'g', -1, 64) }

// run makes the requests to our own limiter, and records the commands for the real one with the
// expected answers.
func (c *course) run(t *testing.T, requests int) {
	t.Helper()
	clock := classic.WithClock(func() time.Time { return c.now })
	rate := c.rate()
	limiter := classic.NewSmoothBursty(rate, clock)
	if c.random.Intn(2) == 0 {
		c.note("ok", "bursty %s", formatRate(rate))
	} else {
		warmUp := time.Duration(1+c.random.Int63n(10_000_000)) * time.Microsecond
		limiter = classic.NewSmoothWarmingUp(rate, warmUp, clock)
		c.note("ok", "warming %s %d", formatRate(rate), warmUp.Microseconds())
	}
	for range requests {
		// The time between requests is about the time that the permits take, so that some requests
		// wait and some permits are stored.
		c.now = c.now.Add(
			time.Duration(c.random.ExpFloat64() * 3e6 / limiter.Rate() * float64(c.random.Intn(3)) * 1e3).
				Truncate(time.Microsecond),
		)
		c.note("ok", "at %d", c.now.Sub(c.start).Microseconds())
		n := int64(1 + c.random.Intn(5))
		if c.random.Intn(10) == 0 {
			n = int64(1 + c.random.Intn(500))
		}
		switch c.random.Intn(8) {
		case 0:
			rate := c.rate()
			if err := limiter.SetRate(rate); err != nil {
				t.Fatal(err)
			}
			c.note("ok", "rate %s", formatRate(rate))
		case 1, 2, 3:
			r, err := limiter.Allow(t.Context(), n)
			if err != nil {
				t.Fatal(err)
			}
			c.note(r.Allowed, "try %d", n)
		default:
			wait, err := limiter.Reserve(n)
			if err != nil {
				t.Fatal(err)
			}
			if wait > 0 {
				c.waited++
			}
			c.note(wait.Microseconds(), "reserve %d", n)
		}
	}
}

func TestSmoothIsGuavas(t *testing.T) {
	const courses, requests = 200, 150
	var all []step
	waited := 0
	for seed := range int64(courses) {
		c := newCourse(seed)
		c.run(t, requests)
		all = append(all, c.steps...)
		waited += c.waited
	}
	var commands bytes.Buffer
	for _, s := range all {
		commands.WriteString(s.command + "\n")
	}
	java := "java"
	if home := os.Getenv("JAVA_HOME"); home != "" {
		java = filepath.Join(home, "bin", "java")
	}
	cmd := exec.CommandContext(
		t.Context(), java, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-jar", harness(t),
	)
	var errs bytes.Buffer
	cmd.Stdin, cmd.Stderr = &commands, &errs
	output, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	answers := strings.Fields(string(output))
	if len(answers) != len(all) {
		t.Fatalf("%d answers to %d commands\n%s", len(answers), len(all), errs.String())
	}
	begins, wrong := 0, 0
	for i, s := range all {
		if strings.HasPrefix(s.command, "bursty") || strings.HasPrefix(s.command, "warming") {
			begins = i
		}
		if answers[i] != s.ours {
			t.Errorf("%s, step %d: %s: Guava %s, ours %s", all[begins].command, i-begins, s.command, answers[i], s.ours)
			if wrong++; wrong == 10 {
				t.FailNow()
			}
		}
	}
	if waited < courses*requests/10 {
		t.Errorf("only %d requests waited", waited)
	}
	t.Logf("%d limiters, %d commands, %d waits, all the same", courses, len(all), waited)
}
