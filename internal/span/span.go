// Package span formats durations without superfluous zeros: 1h, not 1h0m0s. It also adds those that
// may be very long. It does not know limiters.
package span

import (
	"math"
	"strings"
	"time"
)

// Sum returns the sum of two durations that are not negative, at most the longest possible one.
func Sum(a, b time.Duration) time.Duration { return a + min(b, math.MaxInt64-a) }

// Text writes a duration without the zeros at its end: 1h, not 1h0m0s. time.ParseDuration reads it.
func Text(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
