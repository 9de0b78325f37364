package protocol

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/rratelimiter/rratelimiter/internal/record"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/lua"
)

// AllowAllScript is allowall.lua.
var AllowAllScript = script.Load(lua.Files, "allowall")

// A Part is what a call that asks several limiters asks of one of them.
type Part struct {
	*Encoder
	Rebuild bool // finish a rebuild of the free permits
	Check   bool // compare the free permits with the records
	// permits that were free by the last reply, at most an int32; Unseen, or below it: not known
	Free int64
	Sets int // how often the call has set the limiter's own rate over another one

	member argBuffer // the record of all that is wanted of it
	ids    int64     // number of its record ids; 0: no attempt yet
	since  int64     // time of the first attempt or an earlier one, µs since the epoch
}

// An AllowAll holds the arguments of allowall.lua for one call and its retries. Its memory is
// reused for the next call.
type AllowAll struct {
	Parts []Part
	Ask   *BatchAsk // its groups, and which of them are strict

	dated int64     // time of the last attempt, µs since the epoch
	now   argBuffer // the same, in ms
}

// Next prepares r for another call to so many limiters.
func (r *AllowAll) Next(limiters int, ask *BatchAsk) {
	r.Ask = ask
	r.Parts = slices.Grow(r.Parts[:0], limiters)[:limiters]
	for i := range r.Parts {
		r.Parts[i] = Part{member: r.Parts[i].member}
	}
}

// Findable reports whether a retry can find the records of an earlier attempt.
func (r *AllowAll) Findable() bool {
	for i := range r.Parts {
		if m := &r.Parts[i]; !m.Options.Findable(m.ids) {
			return false
		}
	}
	return true
}

// TakesOnce reports whether a call that Redis executes after a retry that was granted takes
// nothing.
func (r *AllowAll) TakesOnce() bool {
	for i := range r.Parts {
		if !r.Parts[i].TakesOnce() {
			return false
		}
	}
	return len(r.Ask.Groups) == 1 && r.Ask.Groups[0].Count > 0
}

// wanted returns the permits of all requests of a member, at most the largest int64.
func (r *AllowAll) wanted(i int) (sum int64) {
	for _, g := range r.Ask.Groups {
		size := *g.Permits.Of(i)
		if g.Count > 0 && size > (math.MaxInt64-sum)/g.Count {
			return math.MaxInt64
		}
		sum += size * g.Count
	}
	return sum
}

// draw gives the records of a member new ids.
func (r *AllowAll) draw(i int) {
	m, sum := &r.Parts[i], r.wanted(i)
	m.ids = idsOf(sum)
	if m.RecordPerRequest {
		m.ids = 0
		for _, g := range r.Ask.Groups {
			m.ids += g.Count * idsOf(*g.Permits.Of(i))
		}
	}
	var memory [64]byte
	// more does not fit into one record, and the script makes several
	held := uint32(min(sum, math.MaxUint32))
	member := m.identity.AppendPrefix(memory[:0], m.Format, int(m.ids))
	if m.Bucket() > 0 {
		member = record.AppendShare(member, m.Format, held)
	}
	m.member.set(binary.LittleEndian.AppendUint32(member, held))
}

// date sets the time of an attempt, and draws ids for the first one.
func (r *AllowAll) date(now int64) {
	r.dated = now
	for i := range r.Parts {
		m := &r.Parts[i]
		first := m.ids == 0
		if first {
			r.draw(i)
		}
		m.since = m.searchFrom(m.since, now, first)
	}
}

// Args appends the arguments of an attempt, with the current time. All attempts have the same
// record ids. If one is to find the records of an earlier attempt, which may have been executed,
// the script looks for these first.
func (r *AllowAll) Args(args []any, find bool) []any {
	r.date(r.Parts[0].clock().UnixMicro())
	var memory [32]byte
	args = append(args, r.now.set(appendMillis(memory[:0], r.dated)), len(r.Ask.Groups))
	for i, g := range r.Ask.Groups {
		if i < r.Ask.Strict {
			g.Count = -g.Count
		}
		args = append(args, g.Count)
	}
	for i := range r.Parts {
		m := &r.Parts[i]
		args = append(args, m.member.arg, m.own, m.flags(r.Ask.Partial), orNone(m.Bucket()))
		if find {
			args = append(args, millisText(m.since), m.ids)
		} else {
			args = append(args, "", "")
		}
		for _, g := range r.Ask.Groups {
			args = append(args, *g.Permits.Of(i))
		}
	}
	return args
}

// flags returns the flags of a part; partial: as in BatchAsk.
func (m *Part) flags(partial bool) string {
	return flagsOf(
		m.common(m.Sets), flag{flagRebuild, m.Rebuild}, flag{flagCheck, m.Check}, flag{flagServerTime, m.ServerTime},
		flag{flagStrictOnly, partial},
	)
}

// Reply decodes a reply. If a limiter refuses to decide, it returns the error and the limiter's
// index.
func (r *AllowAll) Reply(a *script.Attempts, reply []int64) (g Reply, failed int, err error) {
	if err := statusOf(a, reply[0]); err != nil {
		return Reply{}, int(reply[1]), err
	}
	const header, figures = 2, 9
	listed := reply[1] // groups
	g.Members = Same(len(r.Parts), Member{})
	for i := range r.Parts {
		f := reply[header+i*figures:][:figures]
		*g.Of(i) = Member{
			Now: f[0], Rate: f[1], Interval: Millis(f[2]), Free: f[3], Notes: Notes(f[5]), ResetAfter: Micros(f[6]),
			NextAfter: nextAfter(f[4], Micros(f[6])), At: r.Parts[i].Dated(f[0], f[2], false), Origin: f[7],
			Together: Micros(f[8]),
		}
		if m := &r.Parts[i]; m.ServerTime {
			m.served.Store(f[0] - serverSlack)
		}
	}
	if listed > 0 {
		g.outcomes = reply[header+len(r.Parts)*figures:]
	}
	return g, -1, nil
}
