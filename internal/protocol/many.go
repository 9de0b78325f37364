package protocol

import (
	"slices"

	"github.com/rratelimiter/rratelimiter/internal/record"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/lua"
)

// Calls that share a command of acquiremany.lua: requests of one limiter (AcquireRequest) and of
// several (AllowAll). Each limiter of a call has figures of its own in the arguments and in the
// reply.

// AcquireManyScript is acquiremany.lua.
var AcquireManyScript = script.Load(lua.Files, "acquiremany")

// ManyKeys is how many keys acquiremany.lua has for a limiter.
const ManyKeys = 3

// KeysOfMany appends the keys of a limiter, given those that other scripts have.
func KeysOfMany(args, keys []any) []any { return append(args, keys[0], keys[1], keys[3]) }

// NowOfMany returns the argument that all calls have in common, for a time in µs since the epoch.
func NowOfMany(now int64) any { return millisText(now) }

// lateness (ms) is that of base.lua: scripts may lengthen a keep-alive that is not longer than an
// interval and this.
const lateness = 1000

// plain reports whether the grants of a limiter with these options can be plain ones.
func (o *Options) plain() bool {
	keepAlive := o.Own.KeepAlive == 0 || o.Own.KeepAlive-o.Own.Interval > lateness
	return o.Bucket() == 0 && !o.RecordPerRequest && !o.ServerTime && o.Own.Type == 0 && keepAlive
}

// Plain reports whether a request with this ask may share a command: one record for all that is
// asked for, in a limiter of which so many permits were free by the last reply, at most an int32.
func (o *Options) Plain(ask BatchAsk, free int64) bool {
	if ask.UpTo || ask.Partial || ask.Rebuild || ask.Lease > 0 || len(ask.Groups) == 0 || !o.plain() {
		return false
	}
	for _, g := range ask.Groups {
		if g.Count == 0 || g.Permits.First > free/g.Count {
			return false
		}
		free -= g.Permits.First * g.Count
	}
	return true
}

// Unseen are the free permits of a limiter if no reply is known.
const Unseen = -1

// Plain reports whether r may share a command. A limiter that this process has not seen mostly has
// enough free permits.
func (r *AllowAll) Plain() bool {
	if r.Ask.Partial || slices.ContainsFunc(r.Ask.Groups, func(g Group) bool { return g.Count == 0 }) {
		return false
	}
	for i := range r.Parts {
		m := &r.Parts[i]
		if m.Rebuild || !m.plain() || m.Free != Unseen && r.wanted(i) > m.Free {
			return false
		}
	}
	return true
}

// ArgsOfMany appends the arguments of an attempt, at the time that the command has.
func (r *AcquireRequest) ArgsOfMany(args []any, e *Encoder, ask BatchAsk, now int64) []any {
	r.date(e, ask, now)
	return append(args, r.permits, r.member.arg, e.own, e.flagsOfMany(ask.Check, ask.Next, false))
}

// ArgsOfMany is the same for several limiters.
func (r *AllowAll) ArgsOfMany(args []any, now int64) []any {
	r.date(now)
	for i := range r.Parts {
		m := &r.Parts[i]
		args = append(args, r.wanted(i), m.member.arg, m.own, m.flagsOfMany(m.Check, true, i < len(r.Parts)-1))
	}
	return args
}

// flagsOfMany returns the flags of a limiter; more: it is not the last one of its call.
func (o *Options) flagsOfMany(check, next, more bool) string {
	return flagsOf(o.wholeScores(), flag{flagCheck, check}, flag{flagNext, next}, flag{flagJoint, more})
}

// figuresOfMany is how many figures of a reply belong to a limiter.
const figuresOfMany = 5

// ReplyOfMany decodes the part of a reply that belongs to r, whose limiter has a place in the
// command. The error is ErrNotPlain if the request must be made by acquire.lua.
func (r *AcquireRequest) ReplyOfMany(e *Encoder, a *script.Attempts, reply []int64, place int) (Reply, error) {
	part := reply[place*figuresOfMany:]
	if err := statusOf(a, part[0]); err != nil {
		return Reply{}, err
	}
	return r.decode(e, part, nil), nil
}

// ReplyOfMany is the same for several limiters, of which the first one has a place in the command.
func (r *AllowAll) ReplyOfMany(a *script.Attempts, reply []int64, place int) (Reply, error) {
	reply = reply[place*figuresOfMany:]
	if err := statusOf(a, reply[0]); err != nil {
		return Reply{}, err
	}
	g := Reply{Members: Same(len(r.Parts), Member{})}
	for i := range r.Parts {
		f := reply[i*figuresOfMany:]
		at := r.Parts[i].Dated(r.dated, f[2], false)
		reset := Micros(at - r.dated + f[2]*1000)
		*g.Of(i) = Member{
			Now:        r.dated,
			Rate:       f[1],
			Interval:   Millis(f[2]),
			Free:       f[3],
			NextAfter:  nextAfter(f[4], reset),
			ResetAfter: reset,
			At:         at,
			Origin:     record.NoOrigin,
		}
	}
	return g, nil
}
