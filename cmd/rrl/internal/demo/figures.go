package demo

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
	"github.com/rratelimiter/rratelimiter/internal/span"
)

// figures.go has the values that views show, and their texts. It does not depend on their source.

type figures struct {
	picture
	name, where     string
	alone           bool // no other client can use the limiter
	length, elapsed time.Duration
	callers         []caller
	side            // of Go
	java            side
	release         string // of the Redisson of Java; "" without Java
	waiting         int
	repaired        string
}

func (f figures) kept() string {
	if f.largest > f.rate.Permits {
		return "LIMIT NOT KEPT"
	}
	return "limit kept"
}

// time returns the progress of the demo.
func (f figures) time() string {
	elapsed := fmt.Sprintf("%.1fs", f.elapsed.Seconds())
	if f.length == 0 {
		return elapsed
	}
	if f.elapsed > f.length {
		return span.Text(f.length) + " of " + span.Text(f.length)
	}
	return elapsed + " of " + span.Text(f.length)
}

// throughput returns permits an interval, over whole intervals: a part of one cannot be compared
// with a limit.
func (f figures) throughput() string {
	if f.over == 0 {
		return fmt.Sprintf("the first %s has not ended", span.Text(f.rate.Interval))
	}
	return fmt.Sprintf("%s of %s", f.perInterval(), render.Thousands(f.rate.Permits))
}

// shares returns what part of all permits each side got.
func shares(inGo, inJava int64) (ofGo, ofJava string) {
	if inGo+inJava == 0 {
		return "0 %", "0 %"
	}
	percent := int(math.Round(100 * float64(inGo) / float64(inGo+inJava)))
	return fmt.Sprintf("%d %%", percent), fmt.Sprintf("%d %%", 100-percent)
}

// perInterval returns the average: a lower bound if records may have expired unseen.
func (p picture) perInterval() string {
	_, unit, _ := strings.Cut(rratelimiter.Rate{Permits: 1, Interval: p.rate.Interval}.String(), "/")
	average := fmt.Sprintf("%.1f/%s", p.average, unit)
	if p.average >= 1000 {
		average = render.Thousands(int64(p.average)) + "/" + unit
	}
	if p.partial {
		return "at least " + average
	}
	return average
}
