package rratelimiter

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/span"
)

// Rates: what a limiter is configured with, and how a rate is written.

// RateType is the scope of a limit.
type RateType int

// The types, by Redisson's numbers.
const (
	Overall RateType = 0 // one limit for all clients together
	// one limit for each client id: each Redisson instance and each Client, usually each process
	PerClient RateType = 1
)

// String returns Redisson's name of the type: OVERALL or PER_CLIENT.
func (t RateType) String() string {
	switch t {
	case Overall:
		return "OVERALL"
	case PerClient:
		return "PER_CLIENT"
	}
	return fmt.Sprintf("unknown type %d", int(t))
}

// Rate is a limiter's configuration.
//
// Redisson can store intervals and keep-alives that are too long for a time.Duration. They are in
// force. Config and State return them as 292 years.
type Rate struct {
	Type RateType // Overall (zero value) or PerClient
	// Permits per Interval, 0 to 4294967295. A rate of 0 refuses every request: methods that take a
	// number of permits return ErrExceedsRate, also to callers that already wait; AcquireUpTo and
	// TakeUpTo take nothing.
	Permits  int64
	Interval time.Duration // whole milliseconds, at least 1 ms
	// KeepAlive is the time from the last use of the limiter until Redis removes it (Redisson 3.38
	// and later): whole milliseconds, at least Interval. 0 means that it is never removed. A call
	// that leaves callers waiting keeps the limiter for at least Interval + 1 s, and the next one
	// comes before that. Redisson does not: beside it, choose a KeepAlive that is longer than the
	// waits of callers.
	KeepAlive time.Duration
}

// Unlimited is the zero Rate. For packages httplimit and grpclimit it means that a request is not
// limited. A limiter cannot have this rate: to set it is ErrInvalidRate.
var Unlimited Rate

// PerSecond returns a rate of permits per second.
func PerSecond(permits int64) Rate { return Rate{Permits: permits, Interval: time.Second} }

// PerMinute returns a rate of permits per minute.
func PerMinute(permits int64) Rate { return Rate{Permits: permits, Interval: time.Minute} }

// PerHour returns a rate of permits per hour.
func PerHour(permits int64) Rate { return Rate{Permits: permits, Interval: time.Hour} }

// validate returns ErrInvalidRate for a rate that cannot be set.
func (r Rate) validate() error {
	switch {
	case r.Type != Overall && r.Type != PerClient:
		return invalidRate("%v", r.Type)
	case r.Permits < 0 || r.Permits > math.MaxUint32:
		return invalidRate("%d permits, not 0 to %d", r.Permits, uint32(math.MaxUint32))
	case r.Interval < time.Millisecond || r.Interval%time.Millisecond != 0:
		return invalidRate("interval %v is not a positive number of whole milliseconds", r.Interval)
	case r.KeepAlive < 0 || r.KeepAlive%time.Millisecond != 0:
		return invalidRate("keep-alive %v is neither 0 nor a positive number of whole milliseconds", r.KeepAlive)
	case r.KeepAlive != 0 && r.KeepAlive < r.Interval:
		return invalidRate("keep-alive %v is shorter than the interval %v", r.KeepAlive, r.Interval)
	}
	return nil
}

// protocol returns the rate as scripts take it.
func (r Rate) protocol() protocol.Rate {
	return protocol.Rate{
		Permits:   r.Permits,
		Interval:  r.Interval.Milliseconds(),
		Type:      int64(r.Type),
		KeepAlive: r.KeepAlive.Milliseconds(),
	}
}

// rateOf is the inverse of protocol.
func rateOf(r protocol.Rate) Rate {
	return Rate{
		Permits: r.Permits, Interval: protocol.Millis(r.Interval), Type: RateType(r.Type),
		KeepAlive: protocol.Millis(r.KeepAlive),
	}
}

var units = map[string]time.Duration{
	"ms": time.Millisecond, "s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour,
	"sec": time.Second, "second": time.Second, "min": time.Minute, "minute": time.Minute, "hour": time.Hour,
	"day": 24 * time.Hour, "w": week, "week": week,
}

const week = 7 * 24 * time.Hour

const (
	perClientText = " per client"
	keepAliveText = " keep-alive "
)

// String formats the rate in the form that ParseRate reads: "100/s", "5/250ms", "1000/h", "10/s per
// client keep-alive 1h".
func (r Rate) String() string {
	text := strconv.FormatInt(r.Permits, 10) + "/"
	switch unit := span.Text(r.Interval); {
	case r.Interval == week:
		text += "week"
	case r.Interval == units["day"]:
		text += "d"
	case strings.HasPrefix(unit, "1") && units[unit[1:]] != 0:
		text += unit[1:]
	default:
		text += unit
	}
	if r.Type == PerClient {
		text += perClientText
	}
	if r.KeepAlive != 0 {
		text += keepAliveText + span.Text(r.KeepAlive)
	}
	return text
}

// ParseRate parses a rate: the number of permits, a slash, and an interval, such as "100/s". The
// interval is a unit (ms, s, m, h, d, w, sec, second, min, minute, hour, day, week), a duration in
// the syntax of time.ParseDuration, or a whole number of days or weeks, such as 7d or 2w. After it,
// " per client" and " keep-alive " with an interval are optional, in this order. A month and a year
// have no fixed length, so no rate has them. The error is ErrInvalidRate and names the invalid
// part.
func ParseRate(s string) (Rate, error) {
	rest, keepAlive, kept := strings.Cut(strings.TrimSpace(s), keepAliveText)
	rest, perClient := strings.CutSuffix(rest, perClientText)
	permits, interval, found := strings.Cut(rest, "/")
	if !found {
		return Rate{}, invalidRate("%q is not of the form permits/interval, such as 100/s", s)
	}
	var r Rate
	var err error
	if r.Permits, err = strconv.ParseInt(strings.TrimSpace(permits), 10, 64); err != nil {
		return Rate{}, invalidRate("%q: permits are not a whole number", s)
	}
	if r.Interval, err = parseInterval(interval); err != nil {
		return Rate{}, invalidRate(
			"%q: the interval is neither a unit (ms, s, m, h, d, w, sec, second, min, minute, hour, day, week) nor a duration such as 5m or 7d",
			s,
		)
	}
	if kept {
		if r.KeepAlive, err = parseInterval(keepAlive); err != nil {
			return Rate{}, invalidRate("%q: the keep-alive is not a duration", s)
		}
	}
	if perClient {
		r.Type = PerClient
	}
	if err := r.validate(); err != nil {
		return Rate{}, err
	}
	return r, nil
}

func parseInterval(text string) (time.Duration, error) {
	text = strings.TrimSpace(text)
	if unit, found := units[text]; found {
		return unit, nil
	}
	for _, unit := range []string{"d", "w"} { // time.ParseDuration does not know them
		if number, found := strings.CutSuffix(text, unit); found {
			n, err := strconv.ParseInt(number, 10, 64)
			if err == nil && (n < 0 || n > int64(math.MaxInt64/units[unit])) {
				err = strconv.ErrRange
			}
			return time.Duration(n) * units[unit], err
		}
	}
	return time.ParseDuration(text)
}
