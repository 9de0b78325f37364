package rratelimiter

import "time"

// share.go knows who else uses a limiter, and how much of it this process may take when permits return. Who wakes, and
// when, is waiter.go's.

// A share is what one process may take of a limiter that it shares with Redisson, whose threads come late: they ask again
// at a tick of a timer, up to 100 ms after permits returned, so a process that always wakes on time would take them all.
// The rule has two halves:
//
// Where records of Redisson are on the limiter, each process has a part of it: what is in use, by the number of those who
// share it. Up to its part it takes permits as they return, and the rest a pause later, so that others have the first
// call on that. One permit more or less is for whoever had less before.
//
// Where no such record is, threads of Redisson may still be waiting: who never gets a permit leaves no record. So where
// Redisson uses limiters on the server, a process leaves a few of its permits for a pause, once in a period. Whoever takes
// one of them is known by its record, and then the first half holds. Periods go by the clock, so that all Go processes
// leave something at the same time, and none takes what another left.
//
// Without Redisson on the server nobody is ever late.
type share struct {
	own    []grantedAt // live, in order
	sum    int64       // of own
	others map[uint32]int64
	java   int64 // when a record was last seen that is no Go client's, in ms; 0: never

	redisson bool // uses limiters on this server, perhaps this one

	part     int64         // of the permits, after the last refusal: what this process may hold
	strictly bool          // not even its last caller may go beyond that
	period   int64         // the one in which permits were last left for somebody unknown
	from     time.Time     // when that began,
	until    time.Time     // and ended
	interval time.Duration // of the limiter
	offset   time.Duration // of the client's clock to that which dates the grants
}

type grantedAt struct{ at, n int64 }

// pause is for how long others have the first call on permits: a tick of Redisson's timers, which are late themselves on a
// busy machine, and the way to Redis. Permits that nobody wants are lost for so long, so where many are left it is no more
// than a quarter of the interval.
const pause = 150 * time.Millisecond

// granted notes permits that this process got at a time in ms. What lies close together counts as one grant, so that
// these are few on limiters with long intervals, too: it counts as returned a little early.
func (s *share) granted(now int64, interval time.Duration, n int64) {
	edge := now - interval.Milliseconds()
	dead := 0
	for dead < len(s.own) && s.own[dead].at <= edge {
		s.sum -= s.own[dead].n
		dead++
	}
	s.own = s.own[dead:]
	if n == 0 {
		return
	}
	s.sum += n
	const notes = 1024
	if last := len(s.own) - 1; last >= 0 && now-s.own[last].at <= interval.Milliseconds()/notes {
		s.own[last].n += n
	} else {
		s.own = append(s.own, grantedAt{now, n})
	}
}

// noOrigin is what a refusal tells where no record lived before it.
const noOrigin = -2

// memory is for how long a client that was seen counts as one that shares the limiter.
func memory(interval time.Duration) int64 { return 10*interval.Milliseconds() + 1000 }

// saw notes whose records a refusal met.
func (s *share) saw(self *identity, g grants) {
	const most = 64 // others that are told apart
	now := g.now
	for tag, at := range s.others {
		if now-at > memory(g.interval) {
			delete(s.others, tag)
		}
	}
	if g.notes&noteOther != 0 {
		s.java = now
	}
	switch k, tag := self.kindOf(g.origin); {
	case g.origin == noOrigin:
	case k == kindOther:
		s.java = now
	case k == kindGo && len(s.others) < most:
		if s.others == nil {
			s.others = map[uint32]int64{}
		}
		s.others[tag] = now
	}
}

// divide finds out, when n permits were refused to the first in line, how much this process may hold when these return,
// after a wait. That counts until the time that it answers: so long others have the first call on the rest. It is zero if
// there are no others.
func (s *share) divide(g grants, asked time.Time, wait time.Duration, n int64) time.Time {
	s.interval, s.offset = g.interval, asked.Sub(time.UnixMilli(g.now))
	s.granted(g.now, g.interval, 0)
	used, sharers := g.rate-g.free, int64(len(s.others)+2)
	free := asked.Add(wait)
	switch {
	case s.java != 0 && g.now-s.java <= memory(g.interval):
		s.part = used / sharers
		if s.strictly = s.sum > s.part; !s.strictly {
			s.part = (used + sharers - 1) / sharers
		}
		return free.Add(min(pause, g.interval/4))
	case s.redisson:
		return s.leave(g, free, n)
	}
	return time.Time{}
}

// leave is divide where Redisson is on the server, but not known on this limiter. In every second period it leaves a
// fiftieth of what it holds, in every fourth twice as much, in every eighth four times, and so on up to all: so who waits
// for many permits has a chance, too. It leaves nothing where its own first caller takes more than that at a time. Where
// nobody comes all this costs less than three permits of a hundred.
func (s *share) leave(g grants, free time.Time, n int64) time.Time {
	if !free.Before(s.from) && free.Before(s.until) {
		return s.until // decided before: what returns at a time returns bit by bit, with refusals between
	}
	every := max(g.interval, time.Second, 20*time.Second/time.Duration(max(g.rate, 1)))
	period := free.Add(-s.offset).UnixMilli() / every.Milliseconds()
	if period == s.period {
		return time.Time{}
	}
	s.period, s.from, s.until = period, free, free.Add(pause)
	left := min(s.sum, max(1, s.sum/50)*min(64, period&-period))
	s.part, s.strictly = s.sum-left, left >= n
	return s.until
}

// room tells how many permits this process may take at a time, beside the n of the first caller in line, before it has more
// than its part; below 0 for none at all. A process that had no more than its part before may go beyond it with its last
// caller: else nobody ever got more permits at a time than a part has.
func (s *share) room(at time.Time, n int64) int64 {
	if !s.strictly {
		n = 1
	}
	room := s.part - n
	for _, own := range s.own {
		if s.returnsAt(own).After(at) {
			room -= own.n
		}
	}
	return room
}

// ready tells from when on there is room for a caller who wants n permits: from a time on, or when enough of this process's
// grants have returned, or at the latest when others have had their time.
func (s *share) ready(from, until time.Time, n int64) time.Time {
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

// together tells when to ask for permits that return at a time, where many wait: with the last of this process's grants that
// return right after it. Then they are one grant from then on, and take one call.
func (s *share) together(free time.Time) time.Time {
	within := free.Add(min(2*time.Millisecond, s.interval/500))
	for _, own := range s.own {
		if at := s.returnsAt(own); at.After(free) && !at.After(within) {
			free = at
		}
	}
	return free
}

func (s *share) returnsAt(own grantedAt) time.Time {
	return time.UnixMilli(own.at).Add(s.interval + s.offset)
}
