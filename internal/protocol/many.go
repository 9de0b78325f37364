package protocol

import "github.com/rratelimiter/rratelimiter/internal/script"

// Requests that share a command of acquiremany.lua.

// Plain reports whether a request with this ask may share a command: one record for all that is asked for, in a limiter of
// which so many permits were free by the last reply.
func (o *Options) Plain(ask Ask, free int64) bool {
	if ask.UpTo || ask.Partial || ask.Rebuild || ask.Lease > 0 || len(ask.Groups) == 0 ||
		o.Bucket() > 0 || o.RecordPerRequest || o.ServerTime || o.Own.Type > 0 || o.Own.KeepAlive > 0 {
		return false
	}
	for _, g := range ask.Groups {
		if g.Size > free/g.Count {
			return false
		}
		free -= g.Size * g.Count
	}
	return true
}

// NowOfMany returns the argument of acquiremany.lua that all its requests have in common, for a time in µs since the epoch.
func NowOfMany(now int64) any { return millisText(now) }

// ArgsOfMany appends the arguments of an attempt that shares its command, at the time that the command has.
func (r *AcquireRequest) ArgsOfMany(args []any, e *Encoder, ask Ask, now int64) []any {
	r.date(e, ask, now)
	return append(args, r.permits, r.member.arg, e.own, Ask{Check: ask.Check}.flags(e.wholeScores()))
}

// ReplyOfMany decodes the part of a reply that belongs to one of the requests. The error is ErrNotPlain if the request must
// be made by acquire.lua.
func (r *AcquireRequest) ReplyOfMany(e *Encoder, a *script.Attempts, reply []int64, place int) (AcquireReply, error) {
	const figures = 4 // of a request
	return r.Reply(e, a, reply[place*figures:][:figures])
}
