package rratelimiter

import "time"

// share.go knows who else uses a limiter, and how much of it this process may take when permits become free. Who wakes, and
// when, is waiter.go's.

// A share knows who else uses a limiter, as far as refusals show it, and what part of it is this process's. Redisson's
// timers tick in steps of up to 100 ms, so a process that always wakes on time would take everything. Beside Redisson,
// one takes no more than its part when permits become free, and what is left a little later.
type share struct {
	own    []grantedAt // live, in order
	sum    int64       // of own
	others map[uint32]int64
	java   int64 // when a record was last seen that is no Go client's, in ms; 0: never
	probe  int64 // when to leave something for somebody who gets nothing, in ms; 0: at once

	redisson bool // uses limiters on this server, perhaps this one

	part     int64         // of the permits, after the last refusal: what this process may hold
	interval time.Duration // of the limiter
	offset   time.Duration // of the client's clock to that which dates the grants
}

type grantedAt struct{ at, n int64 }

// granted notes permits that this process got at a time in ms. What lies close together counts as one grant, so that
// these are few on limiters with long intervals, too.
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
	const notes = 256
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

// divide finds out, when something was refused, what part of the limiter is this process's, and for how long after permits
// are free others have the first call on the rest: 0 if there are no others.
func (s *share) divide(g grants, asked time.Time) time.Duration {
	const most = 110 * time.Millisecond // a tick of Redisson's timers, and the way to Redis
	s.interval, s.offset = g.interval, asked.Sub(time.UnixMilli(g.now))
	s.granted(g.now, g.interval, 0)
	used := g.rate - g.free
	s.part = used / int64(len(s.others)+2)
	switch {
	case s.java != 0 && g.now-s.java <= memory(g.interval):
		return min(most, g.interval/4)
	case !s.redisson || !s.crowds():
		return 0
	}
	return s.probes(g, used, min(most, g.interval/4))
}

// crowds tells whether this process has more than its part.
func (s *share) crowds() bool { return s.sum > s.part }

// probes is divide where Redisson is on the server, but not known on this limiter. One that comes when all permits are
// taken gets none, so it leaves no record by which it could be known (measured: 16 threads without a permit for 5 s, and
// more). So a process that has more than its part leaves a few permits for a while, every two intervals; of a small
// limiter it leaves all, less often.
func (s *share) probes(g grants, used int64, pause time.Duration) time.Duration {
	const few = 10
	if g.now < s.probe {
		return 0
	}
	again := max(2*g.interval, 2*time.Second)
	s.part = used - max(2, used/50)
	if used < few {
		again, s.part = max(again, 10*time.Second), -1
	}
	s.probe = g.now + again.Milliseconds()
	return pause
}

// room tells how many permits this process may take at a time before it has more than its part; below 0 for none.
func (s *share) room(at time.Time) int64 {
	room := s.part
	for _, own := range s.own {
		if s.returnsAt(own).After(at) {
			room -= own.n
		}
	}
	return room
}

// returns tells when the next of this process's grants returns.
func (s *share) returns(now time.Time) time.Time {
	for _, own := range s.own {
		if at := s.returnsAt(own); at.After(now) {
			return at
		}
	}
	return time.Time{}
}

func (s *share) returnsAt(own grantedAt) time.Time {
	return time.UnixMilli(own.at).Add(s.interval + s.offset)
}
