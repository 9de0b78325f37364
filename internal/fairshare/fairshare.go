// Package fairshare decides how many permits this process leaves to the other clients of a limiter,
// and for how long: it knows which clients use the limiter, and what to leave to them when permits
// return. It sets no timers.
package fairshare

import (
	"math"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/record"
)

// A Reply is what a Share needs of the reply to a call that refused a caller.
type Reply struct {
	Now        int64 // time of the call, µs
	Rate, Free int64
	Interval   time.Duration
	Origin     int64 // first bytes of a live record's id; record.NoOrigin: there is none
	Foreign    bool  // a live record was not written by a Go client
}

// A Share is the fair share of one process of a limiter. There are three rules, of which the first
// that applies decides.
//
// Redisson's threads ask again at a tick of a timer, up to 100 ms after permits returned, so a
// process that always wakes on time would take them all. While records of Redisson are on the
// limiter, and for ten intervals and a second after one was last seen, each process has a quota:
// the permits in use, divided by the number of clients that share the limiter, where all of
// Redisson counts as one. A process takes permits up to its quota as they return. It takes the rest
// a head start later, so that others have the first call on them. The quota is rounded down for a
// process that holds more than it, otherwise up.
//
// At other times threads of Redisson may still wait: one that never gets a permit leaves no record.
// So if Redisson uses limiters on the server, a process leaves a few of its permits free for a head
// start, once in a period. A client that takes one is then known by its record, and the first rule
// applies. Periods follow the clock, so that all Go processes leave permits at the same time, and
// none takes what another one left.
//
// Go processes ask at the same time when permits return, and the first one takes all that its
// callers want. So while records of other Go processes are on the limiter, and for ten intervals
// and a second after one was last seen, a process that got more than its part of the rate in the
// last intervals asks a little later: the one that got least comes first.
//
// A process that sees no other client is not delayed. A Share is not safe for concurrent use.
type Share struct {
	own    []grantedAt      // live grants of this process, in order
	sum    int64            // their permits
	others map[uint32]int64 // tags of other Go clients, with the time (µs) when a record was last seen
	java   int64            // when a record was last seen that is not a Go client's, µs; 0: never
	lately float64          // permits that this process got, of which older ones count less
	latest int64            // time (µs) of lately

	Redisson bool // Redisson uses limiters on this server, perhaps this one

	quota    int64         // permits that this process may hold, as of the last refusal
	strict   bool          // not even its last caller may exceed the quota
	period   int64         // number of the period in which permits were last left by the second rule
	from     time.Time     // start of that head start
	until    time.Time     // its end
	interval time.Duration // of the limiter
	offset   time.Duration // the client's clock minus the clock that dates the grants
}

// notes: grants of one interval are kept apart if the time between them is longer than
// interval/notes.
const notes = 1024

// A grantedAt is n permits that were granted at a time (µs).
type grantedAt struct{ at, n int64 }

// longestHeadStart is a tick of Redisson's timers, which are late on a busy machine, and a round
// trip to Redis.
const longestHeadStart = 150 * time.Millisecond

// headStart returns how long others have the first call on permits. Permits that no client takes
// are lost for that time, so it is at most a quarter of the interval.
func headStart(interval time.Duration) time.Duration { return min(longestHeadStart, interval/4) }

// Between Go processes the turn is short: they ask on time, but wait up to 5 ms, or a 200th of the
// interval, for permits that return together.
const (
	longestTurn = 10 * time.Millisecond
	turnPart    = 100 // of the interval: the longest turn if that is less
	fading      = 4   // intervals, after which a grant counts for 1/e of its permits
)

// Granted adds n permits that this process got at now (µs; with a lease a little later), drops
// grants that have returned, and lets all count less in lately. A grant within 1/notes of the
// interval after another one is joined to that, so that few are kept on limiters with long
// intervals, too. Its permits count as returned a little early.
func (s *Share) Granted(now int64, interval time.Duration, n int64) {
	cutoff := now - interval.Microseconds()
	expired := 0
	for expired < len(s.own) && s.own[expired].at <= cutoff {
		s.sum -= s.own[expired].n
		expired++
	}
	s.own = s.own[expired:]
	if past := now - s.latest; past > 0 {
		s.lately *= math.Exp(-float64(past) / float64(fading*interval.Microseconds()))
		s.latest = now
	}
	if n == 0 {
		return
	}
	s.lately += float64(n)
	s.sum += n
	at := len(s.own)
	for at > 0 && s.own[at-1].at > now {
		at--
	}
	if at > 0 && now-s.own[at-1].at <= interval.Microseconds()/notes {
		s.own[at-1].n += n
	} else {
		s.own = slices.Insert(s.own, at, grantedAt{now, n})
	}
}

// Dated notes the interval of the limiter, and the client's clock minus the clock that dates the
// grants.
func (s *Share) Dated(interval, offset time.Duration) { s.interval, s.offset = interval, offset }

// GaveBack drops n permits that returned early: of the grants at a time (µs), or of the oldest ones
// if it is 0.
func (s *Share) GaveBack(granted, n int64) {
	for i := range s.own {
		own := &s.own[i]
		if since := granted - own.at; granted == 0 || since >= 0 && since <= s.interval.Microseconds()/notes {
			back := min(n, own.n)
			own.n, s.sum, n = own.n-back, s.sum-back, n-back
			s.lately = max(0, s.lately-float64(back))
		}
	}
}

// memory returns for how long (µs) a client counts as sharing the limiter after it was seen.
func memory(interval time.Duration) int64 { return 10*interval.Microseconds() + 1_000_000 }

// Saw notes which clients have live records, according to a refusal.
func (s *Share) Saw(self *record.Identity, r Reply) {
	const most = 64 // other Go clients that are told apart
	now := r.Now
	for tag, at := range s.others {
		if now-at > memory(r.Interval) {
			delete(s.others, tag)
		}
	}
	if r.Foreign {
		s.java = now
	}
	switch k, tag := self.KindOf(r.Origin); {
	case r.Origin == record.NoOrigin:
	case k == record.Other:
		s.java = now
	case k == record.Go && len(s.others) < most:
		if s.others == nil {
			s.others = map[uint32]int64{}
		}
		s.others[tag] = now
	}
}

// Divide computes the quota when n permits were refused to the first waiting caller, for the moment
// when they return: wait after asked. It returns the end of the head start, until which the quota
// holds; the zero time if there is none.
func (s *Share) Divide(r Reply, asked time.Time, wait time.Duration, n int64) time.Time {
	s.Dated(r.Interval, asked.Sub(time.UnixMicro(r.Now)))
	s.Granted(r.Now, r.Interval, 0)
	used := r.Rate - r.Free
	s.GaveBack(0, max(0, s.sum-used)) // another client released them
	free := asked.Add(wait)
	if s.java != 0 && r.Now-s.java <= memory(r.Interval) {
		sharers := int64(len(s.others) + 2)
		s.quota = used / sharers
		if s.strict = s.sum > s.quota; !s.strict {
			s.quota = (used + sharers - 1) / sharers
		}
		return free.Add(headStart(r.Interval))
	}
	if s.Redisson {
		if until := s.leave(r, free, n); !until.IsZero() {
			return until
		}
	}
	return s.turn(r, free)
}

// turn is Divide without Redisson. The turn of a process that got more than its part is later, by
// up to the longest turn if it got twice its part or more. Until then it takes nothing.
func (s *Share) turn(r Reply, free time.Time) time.Time {
	part := float64(r.Rate) / float64(len(s.others)+1) * fading
	over := min(s.lately/part-1, 1)
	if len(s.others) == 0 || over <= 0 {
		return time.Time{}
	}
	s.quota, s.strict = 0, true
	return free.Add(time.Duration(over * float64(min(longestTurn, r.Interval/turnPart))))
}

// leave is Divide if Redisson is on the server, but not known to use this limiter. In every second
// period it leaves a fiftieth of the permits that this process holds, at least one; in every fourth
// twice as many, in every eighth four times, and so on up to all. So a thread that waits for many
// permits has a chance, too. It leaves nothing if the first caller of this process takes more than
// that at once. If no client takes what is left, all this costs less than 3 % of the permits.
func (s *Share) leave(r Reply, free time.Time, n int64) time.Time {
	if !free.Before(s.from) && free.Before(s.until) {
		return s.until // decided before: permits return bit by bit, with refusals between
	}
	long := headStart(r.Interval) // with 150 ms, every is 1 s, or 20 s divided by the rate
	every := max(r.Interval, long*20/3, long*400/3/time.Duration(max(r.Rate, 1)))
	period := free.Add(-s.offset).UnixMicro() / every.Microseconds()
	if period == s.period {
		return time.Time{}
	}
	s.period, s.from, s.until = period, free, free.Add(long)
	left := min(s.sum, max(1, s.sum/50)*min(64, period&-period))
	s.quota, s.strict = s.sum-left, left >= n
	return s.until
}

// Room returns how many permits this process may take at a time before it exceeds its quota; below
// 0: it holds more already.
func (s *Share) Room(at time.Time) int64 { return s.quota - s.Live(at) }

// Fits reports whether a caller may take n permits if there is so much room. A process that was
// within its quota before may exceed it with its last caller; otherwise no caller would ever get
// more permits at once than the quota.
func (s *Share) Fits(n, room int64) bool {
	if !s.strict {
		n = 1
	}
	return n <= room
}

// Live returns how many permits of this process are in use at a time.
func (s *Share) Live(at time.Time) (n int64) {
	for _, own := range s.own {
		if s.returnsAt(own).After(at) {
			n += own.n
		}
	}
	return n
}

// Returned returns a function. For n, it returns the time from which on at most n permits of this
// process are in use; the zero time if that has always been so. n must not increase from call to
// call.
func (s *Share) Returned() func(n int64) time.Time {
	own, sum, at := s.own, s.sum, time.Time{}
	return func(n int64) time.Time {
		for sum > n && len(own) > 0 {
			at, sum, own = s.returnsAt(own[0]), sum-own[0].n, own[1:]
		}
		return at
	}
}

// Ready returns from when on there is room for a caller that wants n permits: from itself, or when
// enough grants of this process have returned, but until at the latest, when the head start ends.
func (s *Share) Ready(from, until time.Time, n int64) time.Time {
	room := s.Room(from)
	for _, own := range s.own {
		if returns := s.returnsAt(own); !s.Fits(n, room) && returns.After(from) {
			from, room = returns, room+own.n
		}
	}
	if !s.Fits(n, room) || from.After(until) {
		return until
	}
	return from
}

func (s *Share) returnsAt(own grantedAt) time.Time {
	return time.UnixMicro(own.at).Add(s.interval + s.offset)
}
