package protocol

import (
	"math"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/record"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/lua"
)

// AllowAllScript is allowall.lua.
var AllowAllScript = script.Load(lua.Files, "allowall")

// A Wanted is what one request of AllowAll asks of one limiter.
type Wanted struct {
	*Encoder
	N       int64
	Rebuild bool // finish a rebuild of the free permits
	Check   bool // compare the free permits with the records
	Sets    int  // how often the call has set the limiter's own rate over another one
}

// An AllowAll holds the arguments of allowall.lua for one call and its retries.
type AllowAll struct {
	wanted   []Wanted
	prefixes [][]byte // of the records of each limiter
	firsts   []any    // times of the first attempt, or earlier ones
	findable bool
}

// NewAllowAll returns a request for all the permits at once, with record ids of its own.
func NewAllowAll(wanted []Wanted) *AllowAll {
	r := &AllowAll{
		wanted: wanted, prefixes: make([][]byte, len(wanted)), firsts: make([]any, len(wanted)), findable: true,
	}
	for i, w := range wanted {
		records := idsOf(w.N)
		r.prefixes[i] = w.identity.AppendPrefix(nil, w.Format, int(records))
		if w.Bucket() > 0 {
			r.prefixes[i] = record.AppendShare(r.prefixes[i], w.Format, uint32(min(w.N, math.MaxUint32)))
		}
		if r.firsts[i] = w.Now(); w.ServerTime {
			r.firsts[i] = 0
		}
		r.findable = r.findable && w.Options.Findable(records)
	}
	return r
}

// Findable reports whether a retry can find the records of an earlier attempt.
func (r *AllowAll) Findable() bool { return r.findable }

// Args returns the arguments of an attempt, with the current time. If it is to find the records of an earlier attempt,
// which may have been executed, the script looks for these first.
func (r *AllowAll) Args(find bool) []any {
	var args []any
	for i, w := range r.wanted {
		flags := w.common(w.Sets)
		if w.Rebuild {
			flags += "b"
		}
		if w.Check {
			flags += "s"
		}
		args = append(args, w.N, w.Now(), r.prefixes[i], flags, w.Own.text(), w.Bucket())
	}
	if find {
		args = append(args, r.firsts...)
	}
	return args
}

// A Decision is the outcome of AllowAll for one limiter.
type Decision struct {
	Granted    bool // if all limiters grant
	Exceeds    bool // more permits were wanted than the rate
	Rate       int64
	Interval   time.Duration
	Free       int64 // permits that remain free
	Notes      Notes
	RetryAfter time.Duration // until the permits are free; 0 if Granted
	ResetAfter time.Duration // until all permits are free
}

// Reply decodes a reply. If a limiter refuses to decide, it returns the error and the limiter's index.
func (r *AllowAll) Reply(reply []int64) (decisions []Decision, failed int, err error) {
	if err := statusError(reply[0]); err != nil {
		return nil, int(reply[1]), err
	}
	const figures = 8
	decisions = make([]Decision, len(r.wanted))
	for i := range decisions {
		f := reply[1+i*figures:][:figures]
		decisions[i] = Decision{
			Granted: f[0] == 1, Exceeds: f[0] < 0, Rate: f[2], Interval: Millis(f[3]), Free: f[4], Notes: Notes(f[5]),
			RetryAfter: Micros(f[6]), ResetAfter: Micros(f[7]),
		}
	}
	return decisions, 0, nil
}
