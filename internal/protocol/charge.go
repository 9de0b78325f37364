package protocol

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/record"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/lua"
)

// ChargeScript is charge.lua.
var ChargeScript = script.Load(lua.Files, "charge")

// A Charge holds the arguments of charge.lua for one call and its retries.
type Charge struct {
	Parts []ChargePart
	began time.Time // when the first attempt was made, with a monotonic reading; zero: none was
}

// A ChargePart is what a charge counts at one limiter.
type ChargePart struct {
	*Encoder
	Permits int64
	Check   bool // compare the free permits with the records
	Sets    int  // how often the call has set the limiter's own rate over another one

	record []byte // of all permits; if one cannot hold them, only its prefix counts
	since  int64  // time of the first attempt or an earlier one, µs since the epoch
	ids    int64  // how many ids a retry searches
}

// Args appends the arguments of an attempt, with the current time. All attempts have the same
// record ids. If find is set, an earlier attempt may have been executed.
func (r *Charge) Args(args []any, find bool) []any {
	now := r.Parts[0].clock().UnixMicro()
	first := r.began.IsZero()
	if first {
		r.began = time.Now()
	}
	args = append(args, millisText(now))
	if find {
		args = append(args, time.Since(r.began).Milliseconds())
	} else {
		args = append(args, "")
	}
	for i := range r.Parts {
		m := &r.Parts[i]
		m.date(now, first)
		flags := flagsOf(m.common(m.Sets), flag{flagCheck, m.Check}, flag{flagServerTime, m.ServerTime})
		args = append(
			args, m.record, m.own, flags, orNone(m.Bucket()), millisText(m.since), m.ids, min(m.Permits, MostPermits),
			m.MaxDebt,
		)
	}
	return args
}

// date sets the time from which on records are searched, and draws ids for the first attempt.
func (m *ChargePart) date(now int64, first bool) {
	if m.since = m.searchFrom(m.since, now, first); !first {
		return
	}
	// A charge has at most nine records for each interval of the debt (lua/shared/debt.lua), those
	// of now, and more where one does not hold their permits.
	const perInterval = 9
	ids := min(m.Permits, perInterval*(m.MaxDebt+2)) + idsOf(m.Permits)
	prefix := m.identity.AppendPrefix(nil, m.Format, int(ids))
	held := uint32(min(m.Permits, math.MaxUint32))
	if m.Bucket() > 0 {
		prefix = record.AppendShare(prefix, m.Format, held)
	}
	if m.ids = ids; m.Bucket() > 0 || m.Format == record.Redisson313 {
		m.ids = 1 // no id tells what several records hold, or ids repeat too soon
	}
	m.record = binary.LittleEndian.AppendUint32(prefix, held)
}

// A Charged is what the reply to a charge says of one limiter.
type Charged struct {
	Now      int64 // time of the call, µs since the epoch
	Rate     int64
	Interval time.Duration
	Free     int64 // permits that remain free; below 0: a debt
	Counted  int64 // permits that were counted
	Notes    Notes
	// until a permit is free; 0: one is, or none ever will be
	RetryAfter time.Duration
	NextAfter  time.Duration // until the next permit returns; 0: none is in use
	ResetAfter time.Duration // until all permits are free
}

// Reply decodes a reply. If a limiter refuses to decide, it returns the error and the limiter's
// index.
func (r *Charge) Reply(a *script.Attempts, reply []int64) (charged []Charged, failed int, err error) {
	if err := statusOf(a, reply[0]); err != nil {
		return nil, int(reply[1]), err
	}
	const figures = 9
	charged = make([]Charged, len(r.Parts))
	for i := range charged {
		f := reply[1+i*figures:][:figures]
		charged[i] = Charged{
			Now: f[0], Rate: f[1], Interval: Millis(f[2]), Free: f[3], Counted: f[4], Notes: Notes(f[5]),
			RetryAfter: Micros(f[6]), NextAfter: Micros(f[7]), ResetAfter: Micros(f[8]),
		}
		if m := &r.Parts[i]; m.ServerTime {
			m.served.Store(f[0] - serverSlack)
		}
	}
	return charged, -1, nil
}
