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

// figures.go has the values that views show, and their texts. It does not depend on their source.

type figures struct {
	picture
	name, where     string
	alone           bool // no other client can use the limiter
	length, elapsed time.Duration
	callers         []caller
	granted, denied int64
	waiting         int
	longest         time.Duration
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

// throughput returns permits an interval, over whole intervals: a part of one cannot be compared with a limit.
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

// wait formats a duration for comparison by people.
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

// bar draws a part of a whole in a number of cells. It is full only if the part is the whole, and empty only if the
// part is zero.
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

// sparks draws counts as columns with a height relative to the highest; zeros are not drawn.
func sparks(counts []int64) string {
	return heights(counts, slices.Max(append([]int64{1}, counts...)), 0)
}

// heights draws figures as columns, up to the height of the highest; figures up to none are not drawn.
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
