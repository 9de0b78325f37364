package rratelimiter

import (
	"time"

	"github.com/rratelimiter/rratelimiter/internal/record"
)

// The fair share of a process: which other clients use a limiter, and how much of it this process may take when permits
// return. This file does not set timers.

// A fairShare decides how much one process may take of a limiter that it shares with Redisson. Redisson's threads ask
// again at a tick of a timer, up to 100 ms after permits returned, so a process that always wakes on time would take
// them all. There are two rules:
//
// While records of Redisson are on the limiter, each process has a quota: the permits in use, divided by the number of
// clients that share the limiter, where all of Redisson counts as one. A process takes permits up to its quota as they
// return. It takes the rest a head start later, so that others have the first call on them. The quota is rounded down
// for a process that holds more than it, otherwise up.
//
// While there is no such record, threads of Redisson may still wait: one that never gets a permit leaves no record. So
// if Redisson uses limiters on the server, a process leaves a few of its permits free for a head start, once in a
// period. A client that takes one is then known by its record, and the first rule applies. Periods follow the clock, so
// that all Go processes leave permits at the same time, and none takes what another one left.
//
// Without Redisson on the server no process is delayed. A fairShare is not safe for concurrent use.
type fairShare struct {
	own    []grantedAt      // live grants of this process, in order
	sum    int64            // their permits
	others map[uint32]int64 // tags of other Go clients, with the time (µs) when a record was last seen
	java   int64            // when a record was last seen that is not a Go client's, µs; 0: never

	redisson bool // Redisson uses limiters on this server, perhaps this one

	quota    int64         // permits that this process may hold, as of the last refusal
	strict   bool          // not even its last caller may exceed the quota
	period   int64         // number of the period in which permits were last left by the second rule
	from     time.Time     // start of that head start
	until    time.Time     // its end
	interval time.Duration // of the limiter
	offset   time.Duration // the client's clock minus the clock that dates the grants
}

// A grantedAt is n permits that were granted at a time (µs).
type grantedAt struct{ at, n int64 }

// headStart is how long others have the first call on permits: a tick of Redisson's timers, which are late on a busy
// machine, and a round trip to Redis. Permits that no client takes are lost for that time, so after the first rule it
// is at most a quarter of the interval.
const headStart = 150 * time.Millisecond

// granted adds n permits that this process got at now (µs), and drops grants that have returned. A grant within 1/1024
// of the interval after the last one is joined to that, so that few are kept on limiters with long intervals, too. Its
// permits count as returned a little early.
func (s *fairShare) granted(now int64, interval time.Duration, n int64) {
	cutoff := now - interval.Microseconds()
	expired := 0
	for expired < len(s.own) && s.own[expired].at <= cutoff {
		s.sum -= s.own[expired].n
		expired++
	}
	s.own = s.own[expired:]
	if n == 0 {
		return
	}
	s.sum += n
	const notes = 1024
	if last := len(s.own) - 1; last >= 0 && now-s.own[last].at <= interval.Microseconds()/notes {
		s.own[last].n += n
	} else {
		s.own = append(s.own, grantedAt{now, n})
	}
}

// noOrigin is the origin in a refusal if there is no live record.
const noOrigin = -2

// memory returns for how long (µs) a client counts as sharing the limiter after it was seen.
func memory(interval time.Duration) int64 { return 10*interval.Microseconds() + 1_000_000 }

// saw notes which clients have live records, according to a refusal.
func (s *fairShare) saw(self *record.Identity, g acquireReply) {
	const most = 64 // other Go clients that are told apart
	now := g.now
	for tag, at := range s.others {
		if now-at > memory(g.interval) {
			delete(s.others, tag)
		}
	}
	if g.notes&noteForeignWriter != 0 {
		s.java = now
	}
	switch k, tag := self.KindOf(g.origin); {
	case g.origin == noOrigin:
	case k == record.Other:
		s.java = now
	case k == record.Go && len(s.others) < most:
		if s.others == nil {
			s.others = map[uint32]int64{}
		}
		s.others[tag] = now
	}
}

// divide computes the quota when n permits were refused to the first waiting caller, for the moment when they return:
// wait after asked. It returns the end of the head start, until which the quota holds; the zero time if there is none.
func (s *fairShare) divide(g acquireReply, asked time.Time, wait time.Duration, n int64) time.Time {
	s.interval, s.offset = g.interval, asked.Sub(time.UnixMicro(g.now))
	s.granted(g.now, g.interval, 0)
	used, sharers := g.rate-g.free, int64(len(s.others)+2)
	free := asked.Add(wait)
	switch {
	case s.java != 0 && g.now-s.java <= memory(g.interval):
		s.quota = used / sharers
		if s.strict = s.sum > s.quota; !s.strict {
			s.quota = (used + sharers - 1) / sharers
		}
		return free.Add(min(headStart, g.interval/4))
	case s.redisson:
		return s.leave(g, free, n)
	}
	return time.Time{}
}

// leave is divide if Redisson is on the server, but not known to use this limiter. In every second period it leaves a
// fiftieth of the permits that this process holds, at least one; in every fourth twice as many, in every eighth four
// times, and so on up to all. So a thread that waits for many permits has a chance, too. It leaves nothing if the first
// caller of this process takes more than that at once. If no client takes what is left, all this costs less than 3 % of
// the permits.
func (s *fairShare) leave(g acquireReply, free time.Time, n int64) time.Time {
	if !free.Before(s.from) && free.Before(s.until) {
		return s.until // decided before: permits return bit by bit, with refusals between
	}
	every := max(g.interval, time.Second, 20*time.Second/time.Duration(max(g.rate, 1)))
	period := free.Add(-s.offset).UnixMilli() / every.Milliseconds()
	if period == s.period {
		return time.Time{}
	}
	s.period, s.from, s.until = period, free, free.Add(headStart)
	left := min(s.sum, max(1, s.sum/50)*min(64, period&-period))
	s.quota, s.strict = s.sum-left, left >= n
	return s.until
}

// room returns how many permits this process may take at a time, in addition to the n of its first caller, before it
// exceeds its quota; below 0, not even those. A process that was within its quota before may exceed it with its last
// caller; otherwise no caller would ever get more permits at once than the quota.
func (s *fairShare) room(at time.Time, n int64) int64 {
	if !s.strict {
		n = 1
	}
	room := s.quota - n
	for _, own := range s.own {
		if s.returnsAt(own).After(at) {
			room -= own.n
		}
	}
	return room
}

// ready returns from when on there is room for a caller that wants n permits: from itself, or when enough grants of
// this process have returned, but until at the latest, when the head start ends.
func (s *fairShare) ready(from, until time.Time, n int64) time.Time {
	room := s.room(from, n)
	for _, own := range s.own {
		if returns := s.returnsAt(own); room < 0 && returns.After(from) {
			from, room = returns, room+own.n
		}
	}
	if room < 0 || from.After(until) {
		return until
	}
	return from
}

// together returns when to ask for permits that return at free if several callers wait: with the last of this process's
// grants that return within 2 ms, or a 500th of the interval if that is less. From then on they are one grant, and take
// one call.
func (s *fairShare) together(free time.Time) time.Time {
	within := free.Add(min(2*time.Millisecond, s.interval/500))
	for _, own := range s.own {
		if at := s.returnsAt(own); at.After(free) && !at.After(within) {
			free = at
		}
	}
	return free
}

func (s *fairShare) returnsAt(own grantedAt) time.Time {
	return time.UnixMicro(own.at).Add(s.interval + s.offset)
}
