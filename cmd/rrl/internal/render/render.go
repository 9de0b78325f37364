// Package render formats what rrl prints: numbers, times, names, tables, bars, live views and JSON.
// It does not call Redis.
package render

import (
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/span"
)

// Wait formats a duration for comparison by people.
func Wait(d time.Duration) string {
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

// Number returns "1 permit" or "1,234 permits".
func Number(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return Thousands(n) + " " + what + "s"
}

// Thousands formats a number with commas.
func Thousands(n int64) string {
	text := fmt.Sprint(n)
	for at := len(text) - 3; at > 0 && text[at-1] != '-'; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

// Lasting formats a TTL for people; "-" is none.
func Lasting(ttl time.Duration) string {
	switch {
	case ttl == 0:
		return "-"
	case ttl < time.Second:
		return span.Text(ttl)
	case ttl < time.Hour:
		return span.Text(ttl.Round(time.Second))
	case ttl < 48*time.Hour:
		return span.Text(ttl.Round(time.Minute))
	}
	return fmt.Sprintf("%dd", int64(ttl.Round(time.Hour)/(24*time.Hour)))
}

// Ago formats the time between two times for people, before or after now.
func Ago(at, now time.Time) string {
	d := now.Sub(at)
	text := Lasting(d.Abs().Round(time.Millisecond))
	if text == "-" {
		text = "0s"
	}
	if d < 0 {
		return text + " ahead"
	}
	return text + " ago"
}
