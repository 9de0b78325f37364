package schedule

import (
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// poll.go cuts long sleeps into polls, because changes made by other processes, such as a raised
// rate or released permits, send no signal. Polls double with each one that slept to its end. A
// batch that is sent meanwhile for a request that does not wait asks for the waiting requests, too,
// and does not lengthen the polls.

const (
	shortestPoll = time.Second
	longestPoll  = 15 * time.Second
	mostPolls    = 4 // after so many in a row, the pauses between polls are the longest

	// While callers wait, a limiter with a keep-alive is kept for an interval and a second
	// (LATENESS in lua/shared/base.lua) after each call. So they poll it about an interval and
	// keepSlack after the last call.
	keepSlack = time.Second / 2

	// A poll shortly before the permits return would be in vain. So a sleep is not cut if it ends
	// within this time after the poll.
	pollSlack = shortestPoll / 8
)

// nextPoll returns when a queue polls that would otherwise make no call for the time wait, by the
// monotonic clock; zero: it does not poll. Up to a tenth of the pause before the poll is left out
// at random. Polls also keep limiters with a keep-alive alive.
func (q *Queue) nextPoll(m Moment, wait time.Duration) time.Time {
	longest := min(shortestPoll<<q.pacer.polls, longestPoll)
	for i := range q.pacer.members {
		if kept := q.pacer.members[i].kept; kept > 0 {
			longest = min(longest, kept)
		}
	}
	if wait <= longest+pollSlack {
		return time.Time{}
	}
	return m.Mono.Add(longest - q.settings.Jitter(longest/10))
}

// Kept returns when a limiter with a keep-alive is to be asked for again after a call that refused
// a waiting request; 0: it has no keep-alive.
func Kept(of *protocol.Member) time.Duration {
	if !of.Notes.Has(protocol.KeepAlive) {
		return 0
	}
	return of.Interval + keepSlack
}
