package protocol

import (
	"encoding/binary"
	"math"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/record"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/lua"
)

// AllowAllScript is allowall.lua.
var AllowAllScript = script.Load(lua.Files, "allowall")

// A JointGroup is Count requests, each for Sizes[i] permits of limiter i.
type JointGroup struct {
	Sizes []int64
	Count int64
}

// A Member is a limiter that is asked together with others.
type Member struct {
	*Encoder
	Rebuild bool  // finish a rebuild of the free permits
	Check   bool  // compare the free permits with the records
	Free    int64 // permits that were free by the last reply, at most an int32; Unseen, or below it: not known
	Sets    int   // how often the call has set the limiter's own rate over another one

	member argBuffer // the record of all that is wanted of it
	ids    int64     // number of its record ids; 0: no attempt yet
	since  int64     // time of the first attempt or an earlier one, µs since the epoch
}

// An AllowAll holds the arguments of allowall.lua for one call and its retries. Its memory is reused for the next call.
type AllowAll struct {
	Members []Member
	Groups  []JointGroup

	dated int64     // time of the last attempt, µs since the epoch
	now   argBuffer // the same, in ms
}

// Next prepares r for another call to so many limiters, without groups.
func (r *AllowAll) Next(limiters int) {
	r.Groups = r.Groups[:0]
	r.Members = slices.Grow(r.Members[:0], limiters)[:limiters]
	for i := range r.Members {
		r.Members[i] = Member{member: r.Members[i].member}
	}
}

// Findable reports whether a retry can find the records of an earlier attempt.
func (r *AllowAll) Findable() bool {
	for i := range r.Members {
		if m := &r.Members[i]; !m.Options.Findable(m.ids) {
			return false
		}
	}
	return true
}

// TakesOnce reports whether a call that Redis executes after a retry that was granted takes nothing.
func (r *AllowAll) TakesOnce() bool {
	for i := range r.Members {
		if !r.Members[i].TakesOnce() {
			return false
		}
	}
	return len(r.Groups) == 1
}

// wanted returns the permits of all requests of a member, at most the largest int64.
func (r *AllowAll) wanted(i int) (sum int64) {
	for _, g := range r.Groups {
		size := g.Sizes[i]
		if size > (math.MaxInt64-sum)/g.Count {
			return math.MaxInt64
		}
		sum += size * g.Count
	}
	return sum
}

// draw gives the records of a member new ids.
func (r *AllowAll) draw(i int) {
	m, sum := &r.Members[i], r.wanted(i)
	m.ids = idsOf(sum)
	if m.RecordPerRequest {
		m.ids = 0
		for _, g := range r.Groups {
			m.ids += g.Count * idsOf(g.Sizes[i])
		}
	}
	var memory [64]byte
	held := uint32(min(sum, math.MaxUint32)) // more does not fit into one record, and the script makes several
	member := m.identity.AppendPrefix(memory[:0], m.Format, int(m.ids))
	if m.Bucket() > 0 {
		member = record.AppendShare(member, m.Format, held)
	}
	m.member.set(binary.LittleEndian.AppendUint32(member, held))
}

// date sets the time of an attempt, and draws ids for the first one.
func (r *AllowAll) date(now int64) {
	r.dated = now
	for i := range r.Members {
		m := &r.Members[i]
		if m.ids == 0 {
			r.draw(i)
			if m.since = now; m.ServerTime {
				m.since = m.served.Load()
			}
		} else if !m.ServerTime {
			m.since = min(m.since, now) // the clock may have gone back
		}
	}
}

// Args appends the arguments of an attempt, with the current time. All attempts have the same record ids. If one is to
// find the records of an earlier attempt, which may have been executed, the script looks for these first.
func (r *AllowAll) Args(args []any, find bool) []any {
	r.date(r.Members[0].clock().UnixMicro())
	var memory [32]byte
	args = append(args, r.now.set(appendMillis(memory[:0], r.dated)), len(r.Groups))
	for _, g := range r.Groups {
		args = append(args, g.Count)
	}
	for i := range r.Members {
		m := &r.Members[i]
		args = append(args, m.member.arg, m.own, m.flags(), orNone(m.Bucket()))
		if find {
			args = append(args, millisText(m.since), m.ids)
		} else {
			args = append(args, "", "")
		}
		for _, g := range r.Groups {
			args = append(args, g.Sizes[i])
		}
	}
	return args
}

// flags returns the flags of a member.
func (m *Member) flags() string {
	return flagsOf(m.common(m.Sets), flag{flagRebuild, m.Rebuild}, flag{flagCheck, m.Check}, flag{flagServerTime, m.ServerTime})
}

// An AllowAllReply is the decoded reply of allowall.lua, or a local reply in the same form.
type AllowAllReply struct {
	Members  []MemberReply
	outcomes []int64 // for each group the result of Granted, and a wait (µs) for each limiter; nil: all is granted
}

// A MemberReply is what a reply says of one limiter.
type MemberReply struct {
	Rate       int64
	Interval   time.Duration
	Free       int64 // permits that remain free
	Notes      Notes
	NextAfter  time.Duration // as in AcquireReply
	ResetAfter time.Duration // until all permits are free
	At         int64         // score of what is granted, µs (config.lua)
}

// unknownWait is the wait in a reply if it is not known; the request is made again.
const unknownWait = -1

// Granted returns how many requests of a group were granted. If their size exceeds the rate of a limiter, it is below 0,
// and exceeded is the index of that limiter.
func (r AllowAllReply) Granted(group int, of JointGroup) (n int64, exceeded int) {
	if r.outcomes == nil {
		return of.Count, -1
	}
	n = r.outcomes[group*(1+len(r.Members))]
	return n, int(-n - 1)
}

// Wait returns how long the first refused request of a group has to wait for the permits of a limiter; 0 if the limiter
// has them. It is not known if expired records remain, or if an earlier attempt was found.
func (r AllowAllReply) Wait(group, limiter int) (wait time.Duration, known bool) {
	us := r.outcomes[group*(1+len(r.Members))+1+limiter]
	return Micros(max(us, 0)), us != unknownWait
}

// Local reports whether this process made the reply, and not Redis.
func (r AllowAllReply) Local() bool { return r.Members[0].Notes.Has(Local) }

// MakeOutcomes makes room for the outcomes of n groups, for a local reply.
func (r *AllowAllReply) MakeOutcomes(n int) { r.outcomes = make([]int64, n*(1+len(r.Members))) }

// SetOutcome sets the outcome of a group in a local reply. The waits are in µs, one for each limiter.
func (r *AllowAllReply) SetOutcome(group int, granted int64, waits ...int64) {
	at := group * (1 + len(r.Members))
	r.outcomes[at] = granted
	copy(r.outcomes[at+1:], waits)
}

// Reply decodes a reply. If a limiter refuses to decide, it returns the error and the limiter's index.
func (r *AllowAll) Reply(a *script.Attempts, reply []int64) (g AllowAllReply, failed int, err error) {
	if err := statusOf(a, reply[0]); err != nil {
		return AllowAllReply{}, int(reply[1]), err
	}
	const header, figures = 2, 7
	listed := reply[1] // groups
	g.Members = make([]MemberReply, len(r.Members))
	for i := range g.Members {
		f := reply[header+i*figures:][:figures]
		g.Members[i] = MemberReply{
			Rate: f[1], Interval: Millis(f[2]), Free: f[3], Notes: Notes(f[5]), ResetAfter: Micros(f[6]),
			NextAfter: nextAfter(f[4], Micros(f[6])), At: r.Members[i].Dated(f[0], f[2], false),
		}
		if m := &r.Members[i]; m.ServerTime {
			m.served.Store(f[0] - serverSlack)
		}
	}
	if listed > 0 {
		g.outcomes = reply[header+len(r.Members)*figures:]
	}
	return g, -1, nil
}
