package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/span"
)

// figures.go holds what views show, and the words for it. It knows nothing of where the figures come from.

type figures struct {
	picture
	name, where     string
	alone           bool // nobody else can be on the limiter
	length, elapsed time.Duration
	callers         []caller
	granted, denied int64
	waiting         int
	longest         time.Duration
	healed          string
}

func (f figures) kept() string {
	if f.largest > f.rate.Permits {
		return "LIMIT NOT KEPT"
	}
	return "limit kept"
}

// time is how far the demo is.
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

// throughput is permits an interval, over whole intervals: a part of one says nothing about a limit of permits an interval.
func (f figures) throughput() string {
	if f.over == 0 {
		return fmt.Sprintf("first %s not over", span.Text(f.rate.Interval))
	}
	return fmt.Sprintf("%s of %s", perInterval(f.average, f.rate), thousands(f.rate.Permits))
}

func perInterval(average float64, r rratelimiter.Rate) string {
	_, unit, _ := strings.Cut(rratelimiter.Rate{Permits: 1, Interval: r.Interval}.String(), "/")
	if average >= 1000 {
		return thousands(int64(average)) + "/" + unit
	}
	return fmt.Sprintf("%.1f/%s", average, unit)
}

// wait is a duration as people compare them.
func wait(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d >= time.Second:
		return fmt.Sprintf("%.2f s", d.Seconds())
	case d >= 10*time.Millisecond || d == 0:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}

// bar is a part of a whole in so many cells. It is full only when the part is the whole, and empty only when it is
// nothing.
func bar(part, whole int64, cells int, full, free string) string {
	if cells <= 0 || whole <= 0 {
		return ""
	}
	part = min(max(part, 0), whole)
	n := int(float64(part) / float64(whole) * float64(cells))
	if part < whole {
		n = min(n, cells-1)
	}
	if part > 0 {
		n = max(n, 1)
	}
	return strings.Repeat(full, n) + strings.Repeat(free, cells-n)
}

// sparks draws counts as columns of a height relative to the highest; nothing where there is none.
func sparks(counts []int64) string {
	return heights(counts, slices.Max(append([]int64{1}, counts...)), 0)
}

// heights draws figures as columns, up to the height of the highest; those that are none, or less, are not drawn.
func heights(figures []int64, highest, none int64) string {
	steps := []rune("▁▂▃▄▅▆▇█")
	line := make([]rune, len(figures))
	for i, n := range figures {
		line[i] = ' '
		if n > none {
			line[i] = steps[int(float64(min(n, highest))/float64(max(highest, 1))*float64(len(steps)-1))]
		}
	}
	return string(line)
}

func isPlain(r rune) bool { return unicode.IsPrint(r) }
