package faults

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// outage_test.go makes the picture of docs/faults.md: what requests see that begin before, during
// and after an outage. With -update it is written from the run of the test.

// Marks around the picture.
const (
	pictureBegin = "<!-- picture: written by the tests in internal/faults/, with -update -->\n"
	pictureEnd   = "<!-- end of picture -->\n"
)

// An answer is what a request got: its kind, and how long after the first request it began and
// ended.
type answer struct {
	kind       string
	began, end time.Duration
}

// The kinds of answers. Requests of a limiter that begin at about the same time get answers of one
// kind.
const (
	prompt  = "Redis"
	late    = "Redis, late"
	broken  = "error"
	locally = "process"
)

func TestOutageOfThePage(t *testing.T) {
	t.Parallel()
	inRounds(t, drawOutage)
}

// drawOutage draws a run. On a busy machine, a run can lack a kind of answer.
func drawOutage(t *testing.T, r *round) {
	const killed, back, total, every = time.Second, 4 * time.Second, 6 * time.Second, 20 * time.Millisecond
	server := redistest.Real(t)
	began := time.Now()
	since := func() time.Duration { return time.Since(began) }
	var mu sync.Mutex
	answers := map[string][]answer{}
	var running sync.WaitGroup
	for name, options := range map[string][]rratelimiter.LimiterOption{
		"without": {rratelimiter.WithRate(ample)},
		"with":    {rratelimiter.WithRate(ample), rratelimiter.WithFallback(0.5)},
	} {
		o := &outages{}
		limiter := rratelimiter.NewClient(server.Client(), rratelimiter.WithObserver(o)).RateLimiter(name, options...)
		for at := time.Duration(0); at < total; at += every {
			running.Go(func() {
				time.Sleep(at - since())
				a := answer{kind: prompt, began: since()}
				_, err := limiter.Allow(t.Context(), 1)
				a.end = since()
				o.mu.Lock()
				local := o.away[name]
				o.mu.Unlock()
				switch {
				case err != nil:
					a.kind = broken
				case local:
					a.kind = locally
				case a.began < back && a.end > back:
					a.kind = late
				}
				mu.Lock()
				answers[name] = append(answers[name], a)
				mu.Unlock()
			})
		}
	}
	time.Sleep(killed - since())
	server.Kill()
	time.Sleep(back - since())
	server.Restart()
	running.Wait()

	var b strings.Builder
	fmt.Fprint(
		&b, "```mermaid\ngantt\n    dateFormat x\n    axisFormat %-S s\n    tickInterval 1second\n    section Redis\n",
	)
	bar := func(label string, from, until time.Duration) {
		fmt.Fprintf(&b, "    %s :%d, %d\n", label, from.Milliseconds(), until.Milliseconds())
	}
	bar("answers", 0, killed)
	bar("killed", killed, back)
	bar("answers", back, total)
	for _, s := range []struct {
		name, title string
		kinds       []string
	}{
		{"without", "default", []string{prompt, broken, late, prompt}},
		{"with", "WithFallback", []string{prompt, locally, prompt}},
	} {
		fmt.Fprintf(&b, "    section %s\n", s.title)
		from := time.Duration(0)
		for i, kind := range s.kinds {
			until := total
			for _, a := range answers[s.name] {
				if i+1 < len(s.kinds) && a.kind == s.kinds[i+1] && a.began > from {
					until = min(until, a.began)
				}
			}
			var took []time.Duration
			for _, a := range answers[s.name] {
				if a.began >= from && a.began < until && a.kind == kind {
					took = append(took, a.end-a.began)
				}
			}
			if len(took) == 0 {
				r.wasSlow("%s: no request got %s", s.title, kind)
				return
			}
			slices.Sort(took)
			median, precision := took[len(took)/2], time.Millisecond
			if median > 100*time.Millisecond {
				precision = 100 * time.Millisecond
			}
			bar(fmt.Sprint(kind, ", ", max(median.Round(precision), precision)), from, until)
			from = until
		}
	}
	fmt.Fprint(&b, "```\n")
	t.Log(b.String())
	if *update {
		text, err := os.ReadFile(page)
		before, rest, ok := strings.Cut(string(text), pictureBegin)
		_, after, also := strings.Cut(rest, pictureEnd)
		if err != nil || !ok || !also {
			t.Fatalf("%s lacks the marks of the picture: %v", page, err)
		}
		if err := os.WriteFile(page, []byte(before+pictureBegin+"\n"+b.String()+"\n"+pictureEnd+after),
			0o644); err != nil {
			t.Fatal(err)
		}
	}
}
