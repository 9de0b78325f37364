// Package protocol has a typed request and a typed reply for each script: it encodes arguments, and
// decodes replies, statuses, notes and flags. It knows neither Redis clients nor the callers behind
// a group.
package protocol

import (
	"math"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/record"
)

// A Rate is the configuration of a limiter.
type Rate struct {
	Permits, Interval int64 // Interval in ms
	Type              int64 // as stored: 0 for all clients together, 1 for each client
	KeepAlive         int64 // ms; 0: none
}

// args returns the rate as arguments.
func (r Rate) args() []any { return []any{r.Permits, r.Interval, r.Type, r.KeepAlive} }

// text returns the rate as one argument; "" if it is zero.
func (r Rate) text() string {
	if r == (Rate{}) {
		return ""
	}
	var text []byte
	for i, figure := range [...]int64{r.Permits, r.Interval, r.Type, r.KeepAlive} {
		if i > 0 {
			text = append(text, ' ')
		}
		text = strconv.AppendInt(text, figure, 10)
	}
	return string(text)
}

// Options are the options of a limiter that its scripts depend on.
type Options struct {
	Own              Rate // the limiter's own rate; zero: none
	Enforced         bool // Own takes the place of another rate
	ServerTime       bool // the server's clock dates grants
	Format           record.Format
	RecordPerRequest bool
	// length of the buckets that grants are dated at the end of; 0: none
	Granularity time.Duration
	Lease       time.Duration // the same, of calls that take a lease; 0: none does
	// a debt has at most the permits of so many intervals
	MaxDebt int64
}

// Bucket returns the granularity in effect, in ms; 0 for none.
func (o Options) Bucket() int64 {
	if o.Format == record.Redisson313 {
		return 0 // its ids are too short to tell which client wrote a record
	}
	return o.Granularity.Milliseconds()
}

// mostRecords is how many records of one call a retry looks for at most.
const mostRecords = 512

// Findable reports whether a retry can find so many records of an earlier attempt. Ids of
// Redisson313 repeat too soon to find more than one.
func (o Options) Findable(records int64) bool {
	return records == 1 || records <= mostRecords && o.Format != record.Redisson313
}

// TakesOnce reports whether a request with one record, if Redis executes it after a retry that was
// granted, takes nothing: it finds the record of the retry.
func (o Options) TakesOnce() bool {
	return o.Granularity == 0 && o.Lease == 0 && !o.RecordPerRequest && !o.ServerTime
}

// Dated returns the score (µs) of a grant, or of a lease, as config.lua computes it. The interval
// is in ms.
func (o Options) Dated(now, interval int64, lease bool) int64 {
	const fractions = 200 // ms: with shorter intervals, scores have fractions of a ms
	length := o.Bucket()
	if lease {
		length = o.Lease.Milliseconds()
	}
	length = min(length, interval/10)
	if length <= 1 && interval < fractions && o.Format != record.Redisson313 {
		return now
	}
	if length = max(length, 1) * 1000; length > 1000 && lease {
		now += length / 4
	}
	return (now + length - 1) / length * length
}

// An Encoder has what the requests of one limiter have in common.
type Encoder struct {
	Options
	identity *record.Identity
	clock    func() time.Time
	own      any // Own as an argument
	// ServerTime: lower bound of a new call's time (µs, server's clock); 0: unknown
	served atomic.Int64
}

// Init sets what the requests of a limiter have in common.
func (e *Encoder) Init(o Options, identity *record.Identity, clock func() time.Time) {
	e.Options, e.identity, e.clock = o, identity, clock
	e.own = o.Own.text()
}

// Now returns the time as an argument, or "" if the server's clock decides.
func (e *Encoder) Now() any {
	if e.ServerTime {
		return ""
	}
	return millisText(e.clock().UnixMicro())
}

// millisText formats a time in µs since the epoch as an argument in ms.
func millisText(micros int64) string { return string(appendMillis(nil, micros)) }

// appendMillis appends the text of millisText: ms with three decimals, or none if it is a whole
// number of ms.
func appendMillis(text []byte, micros int64) []byte {
	text = strconv.AppendInt(text, micros/1000, 10)
	rest := micros % 1000
	if rest <= 0 { // before 1970, whole ms are precise enough
		return text
	}
	return append(text, '.', byte('0'+rest/100), byte('0'+rest/10%10), byte('0'+rest%10))
}

// Millis converts ms to a duration, at most the longest possible one.
func Millis(ms int64) time.Duration {
	return time.Duration(min(ms, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}

// Micros converts µs to a duration, at most the longest possible one.
func Micros(us int64) time.Duration {
	return time.Duration(min(us, math.MaxInt64/int64(time.Microsecond))) * time.Microsecond
}

// TTL returns the TTL that a number of PTTL means: -1 is none, and 0 is the last part of a ms.
func TTL(ms int64) time.Duration {
	if ms < 0 {
		return 0
	}
	return max(Millis(ms), time.Millisecond)
}

// searchFrom returns a time (µs) that is no later than any attempt of a call: records of the call
// are searched from then on. now is that of the attempt to be made, and before what the attempt in
// front of it had, if it is not the first.
func (e *Encoder) searchFrom(before, now int64, first bool) int64 {
	switch {
	case first && e.ServerTime:
		return e.served.Load()
	case first:
		return now
	case e.ServerTime:
		return before
	}
	return min(before, now) // the clock may have gone back
}
