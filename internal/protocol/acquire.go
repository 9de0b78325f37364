package protocol

import (
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/fairshare"
	"github.com/rratelimiter/rratelimiter/internal/record"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/lua"
)

// AcquireScript is acquire.lua. PeekScript takes the same arguments and gives the same reply, but
// changes nothing. PeekRateScript decides as if the limiter's own rate had been set before.
var (
	AcquireScript  = script.Load(lua.Files, "acquire")
	PeekScript     = script.Load(lua.Files, "shared/peek", "acquire")
	PeekRateScript = script.Load(lua.Files, "shared/peek", "shared/peekrate", "acquire")
)

// A Group is Count requests for the same permits each. A group without requests keeps the permits
// free: callers in front, whom another call asks for, wait for them.
type Group struct {
	Permits Permits
	Count   int64
}

// A BatchAsk is what one call of acquire.lua is asked to do for groups of requests. Without groups
// it counts expired permits back and returns what is free.
type BatchAsk struct {
	Groups []Group
	// number of groups that stand in a queue; they come first: if one is refused, none behind it is
	// granted, or keeps permits free
	Strict  int
	UpTo    bool  // grant a part of the only group's permits rather than nothing
	Detail  bool  // return when permits will be free, if a request is refused
	Next    bool  // return when the next permit returns, if all is granted
	Rebuild bool  // finish a rebuild of the free permits
	Check   bool  // compare the free permits with the records
	Partial bool  // the queue goes on behind the strict groups: grant no others
	Apart   bool  // join no record of another batch: retries of detached batches must find theirs
	Lease   int64 // how many permits to take ahead, at most
}

// flags returns the flags of a call. common are those of Options.common. general: the call is more
// than a plain grant.
func (a BatchAsk) flags(common string, general bool) string {
	return flagsOf(
		common, flag{flagGeneral, general}, flag{flagUpTo, a.UpTo}, flag{flagDetail, a.Detail}, flag{flagNext, a.Next},
		flag{flagRebuild, a.Rebuild}, flag{flagStrictOnly, a.Partial}, flag{flagApart, a.Apart},
		flag{flagCheck, a.Check},
	)
}

// common returns the flags that do not depend on the call. The call has set the limiter's own rate
// sets times.
func (o Options) common(sets int) string {
	return flagsOf(
		o.wholeScores(), flag{flagEnforce, o.Enforced && sets < mostSets}, flag{flagRecordEach, o.RecordPerRequest},
	)
}

// wholeScores returns the flag for scores in whole ms if the format needs it.
func (o Options) wholeScores() string {
	if o.Format == record.Redisson313 {
		return string(flagWholeScores)
	}
	return ""
}

// mostSets is how often one call sets its limiter's own rate. If other processes keep setting
// another one, as old processes do in a rolling deploy, the call is then served at the rate in
// force, with the note RateMismatch.
const mostSets = 3

// MostPermits is the highest rate that scripts calculate with (MAX_NUMBER in lua/shared/base.lua).
const MostPermits = 1e15

// An AcquireRequest holds the arguments of acquire.lua for one call and its retries. Its memory is
// reused for the next call.
type AcquireRequest struct {
	Records int64 // number of record ids that belong to the call; 0: no attempt yet
	Sets    int   // how often the call has set the limiter's own rate over another one

	now     int64     // time of the last attempt, µs since the epoch; 0: by the server's clock
	first   int64     // time of the first attempt or an earlier one, µs since the epoch
	permits any       // permits asked for, if one record can hold them; otherwise ""
	id      int64     // last three bytes of the first id
	recent  RecentIDs // of grants before the first attempt
	// when the last attempt was made, with a monotonic reading; only with Options.Lease
	began  time.Time
	clock  argBuffer // now, in ms
	member argBuffer // the record of all that is asked for
	groups []any     // see setGroups
}

// Next prepares r for another call, which follows the grants with the given ids.
func (r *AcquireRequest) Next(before RecentIDs) { r.Records, r.Sets, r.recent = 0, 0, before }

// ID returns the last three bytes of the call's first id.
func (r *AcquireRequest) ID() int64 { return r.id }

// A RecentIDs holds the last three bytes of the ids of a queue's latest batches that were granted
// permits. It is used with a granularity: a batch that joins a record gives it the batch's own id.
// So a record that still has one of these ids was joined by no later batch, and a retry knows that
// it is not its own.
type RecentIDs struct {
	ids  [8]int64 // a ring: each the id plus 1; 0: none
	next int      // index in ids
}

// Add adds an id.
func (p *RecentIDs) Add(id int64) {
	p.ids[p.next] = id + 1
	p.next = (p.next + 1) % len(p.ids)
}

// text returns the ids as scripts take them: numbers, each between blanks.
func (p *RecentIDs) text() string {
	text := []byte{' '}
	for _, id := range p.ids {
		if id > 0 {
			text = append(strconv.AppendInt(text, id-1, 10), ' ')
		}
	}
	return string(text)
}

// An argBuffer holds an argument whose bytes change with each request, but rarely their number. It
// saves allocations.
type argBuffer struct {
	bytes []byte
	arg   any // bytes, as an interface value
}

// set replaces the bytes and returns them as an argument.
func (t *argBuffer) set(bytes []byte) any {
	if t.arg == nil || len(bytes) != len(t.bytes) {
		t.bytes = slices.Clone(bytes)
		t.arg = t.bytes
	} else {
		copy(t.bytes, bytes)
	}
	return t.arg
}

// Args appends the arguments of an attempt, with the current time. They use the memory of r until
// the reply arrives. A retry has the ids of the first attempt. If it is to find the records of an
// earlier attempt, which may have been executed, the script looks for these first.
func (r *AcquireRequest) Args(args []any, e *Encoder, ask BatchAsk, find bool) []any {
	var memory [32]byte
	var now any = ""
	if e.Lease > 0 {
		r.began = time.Now()
	}
	at := int64(0)
	if !e.ServerTime {
		at = e.clock().UnixMicro()
		now = r.clock.set(appendMillis(memory[:0], at))
	}
	r.date(e, ask, at)
	general := find || r.permits == any("") || len(ask.Groups) == 0 || ask.Rebuild || e.Bucket() > 0
	args = append(args, now, r.member.arg, r.permits, ask.flags(e.common(r.Sets), general), e.own)
	if general {
		args = append(args, orNone(e.Bucket()))
		if ask.Lease > 0 {
			args = append(args, ask.Lease, e.Lease.Milliseconds())
		} else {
			args = append(args, "", "")
		}
		if find {
			args = append(args, millisText(r.first), r.Records, r.recent.text())
		} else {
			args = append(args, "", "", "")
		}
	}
	return append(args, r.groups...)
}

// orNone returns a number as an argument; "" for 0.
func orNone(n int64) any {
	if n == 0 {
		return ""
	}
	return n
}

// date sets the time of an attempt, and draws ids for the first one.
func (r *AcquireRequest) date(e *Encoder, ask BatchAsk, now int64) {
	r.now = now
	if r.Records > 0 {
		r.first = e.searchFrom(r.first, now, false)
		return
	}
	r.draw(e, ask)
	r.setGroups(ask)
	r.first = e.searchFrom(0, now, true)
}

// draw gives r new ids and makes the record of all that is asked for.
func (r *AcquireRequest) draw(e *Encoder, ask BatchAsk) {
	sum := int64(0)
	r.Records = 1
	keeps := false
	for _, g := range ask.Groups {
		if g.Count == 0 {
			keeps = true
			continue
		}
		if e.RecordPerRequest {
			r.Records += g.Count
		}
		if g.Permits.First > (math.MaxInt64-sum)/g.Count {
			sum = math.MaxInt64
		} else {
			sum += g.Permits.First * g.Count
		}
	}
	r.Records += idsOf(min(sum, math.MaxInt64-ask.Lease)+ask.Lease) - 1
	if r.permits = any(sum); sum > math.MaxUint32 || e.RecordPerRequest || ask.UpTo || ask.Partial || keeps ||
		ask.Lease > 0 {
		r.permits, sum = "", 0
	}
	var memory [64]byte
	member := e.identity.AppendPrefix(memory[:0], e.Format, int(r.Records))
	r.id = record.EndOf(member)
	if e.Bucket() > 0 || ask.Lease > 0 { // the share tells that the record may be dated ahead
		member = record.AppendShare(member, e.Format, uint32(sum))
	}
	r.member.set(binary.LittleEndian.AppendUint32(member, uint32(sum)))
}

// idsOf returns how many records hold the permits of one grant: a record holds at most a uint32.
func idsOf(permits int64) int64 {
	if permits <= math.MaxUint32 {
		return 1
	}
	return 1 + min(permits, MostPermits)/math.MaxUint32
}

// setGroups makes the arguments for the groups: of each its size and its count, which is negative
// if the group is strict. Numbers that stay the same are used again, which saves allocations.
func (r *AcquireRequest) setGroups(ask BatchAsk) {
	if n := 2 * len(ask.Groups); n <= cap(r.groups) {
		r.groups = r.groups[:n]
	} else {
		r.groups = make([]any, n)
	}
	set := func(at int, n int64) {
		if r.groups[at] != any(n) {
			r.groups[at] = n
		}
	}
	for i, g := range ask.Groups {
		set(2*i, g.Permits.First)
		if i < ask.Strict {
			set(2*i+1, -g.Count)
		} else {
			set(2*i+1, g.Count)
		}
	}
}

// A Reply is the decoded reply of acquire.lua or allowall.lua, or a local reply in the same form.
type Reply struct {
	Members
	ID    int64         // last three bytes of the first id of the call; 0 with several limiters
	Ahead int64         // permits that were taken for a lease, dated At
	Began time.Time     // if Ahead: when the attempt was made, with a monotonic reading
	Retry time.Duration // wait before the next request; only in a local reply
	// for each group the result of Granted, and for each limiter a wait in µs; nil: all granted
	outcomes []int64
}

// A Member is what a reply says of one limiter.
type Member struct {
	Now      int64 // time of the call, µs since the epoch
	At       int64 // score of what is granted, µs: now, or a little later (config.lua)
	Rate     int64
	Interval time.Duration
	Free     int64 // permits that remain free
	Notes    Notes
	// first bytes of a live record's id, if something was refused; record.NoOrigin: not known, or
	// no record
	Origin     int64
	NextAfter  time.Duration // until the next permit returns; if that is not known, ResetAfter
	ResetAfter time.Duration // until all permits are free
	// until the permits are free, too, that return shortly after those of the first refused
	// waiting caller; 0: there are none
	Together time.Duration
}

// Local reports whether this process made the reply, and not Redis.
func (r *Reply) Local() bool { return r.First.Notes.Has(Local) }

// figures is how many figures of outcomes a group has.
func (r *Reply) figures() int { return 1 + r.Len() }

// Granted returns how many requests of a group got their permits; below 0: the size exceeds a rate
// (Exceeds). With UpTo it is the number of permits.
func (r *Reply) Granted(i int, of Group) int64 {
	if r.outcomes == nil {
		return of.Count
	}
	return r.outcomes[i*r.figures()]
}

// Exceeds is what Granted returns for a group whose size exceeds the rate of a limiter: -1 for
// limiter 0, -2 for limiter 1, and so on.
func Exceeds(limiter int) int64 { return int64(-1 - limiter) }

// Exceeded returns the limiter whose rate the size of a group exceeds, if Granted is below 0.
func (r *Reply) Exceeded(i int, of Group) (limiter int) { return int(-1 - r.Granted(i, of)) }

// unknownWait is the wait in a reply if it is not known.
const unknownWait = -1

// WaitFor returns how long the first refused request of a group has to wait for the permits of a
// limiter; 0 if the limiter has them.
func (r *Reply) WaitFor(i, limiter int) time.Duration {
	return Micros(max(0, r.outcomes[i*r.figures()+1+limiter]))
}

// Wait returns how long the first refused request of a group has to wait.
func (r *Reply) Wait(i int) (longest time.Duration) {
	for limiter := range r.Len() {
		longest = max(longest, r.WaitFor(i, limiter))
	}
	return longest
}

// Undecided reports whether the refused requests of a group must be made again at once: expired
// records remain, or their waits are not known.
func (r *Reply) Undecided(i int) bool {
	return r.Len() == 1 && r.First.Notes.Has(More) ||
		slices.Contains(r.outcomes[i*r.figures()+1:][:r.Len()], unknownWait)
}

// MakeOutcomes makes room for the outcomes of n groups, for a local reply.
func (r *Reply) MakeOutcomes(n int) { r.outcomes = make([]int64, n*r.figures()) }

// SetGranted sets how many requests of a group are granted, in a local reply.
func (r *Reply) SetGranted(i int, granted int64) { r.outcomes[i*r.figures()] = granted }

// SetWait sets the wait of a group for the permits of a limiter in µs, in a local reply.
func (r *Reply) SetWait(i, limiter int, us int64) { r.outcomes[i*r.figures()+1+limiter] = us }

// Shared returns what the fair share needs of a reply that refused a caller.
func (m *Member) Shared() fairshare.Reply {
	return fairshare.Reply{
		Now:      m.Now,
		Rate:     m.Rate,
		Free:     m.Free,
		Interval: m.Interval,
		Origin:   m.Origin,
		Foreign:  m.Notes.Has(ForeignWriter),
	}
}

// Reply decodes the reply to the last attempt of r.
func (r *AcquireRequest) Reply(e *Encoder, a *script.Attempts, reply []int64) (Reply, error) {
	if err := statusOf(a, reply[0]); err != nil {
		return Reply{}, err
	}
	const header = 6 // figures, of which the last one is the number of those that follow
	return r.decode(e, reply, reply[header:][:reply[header-1]]), nil
}

// decode decodes the header of a reply, and what follows it: nothing if all is granted and there is
// nothing else to tell.
func (r *AcquireRequest) decode(e *Encoder, header, rest []int64) Reply {
	next, interval := header[4], header[2]
	m := Member{Now: r.now, Rate: header[1], Interval: Millis(interval), Free: header[3], Origin: record.NoOrigin}
	g := Reply{ID: r.id}
	const fixed = 6 // figures of the rest, before two a group
	if len(rest) > 0 {
		m.Notes, m.Now, m.Origin, g.Ahead, m.Together = Notes(rest[0]), rest[1], rest[3], rest[4], Micros(rest[5])
	}
	if len(rest) > fixed {
		g.outcomes = rest[fixed:]
	}
	if e.ServerTime {
		e.served.Store(m.Now - serverSlack)
	}
	if g.Ahead > 0 {
		g.Began = r.began
	}
	m.At = e.Dated(m.Now, interval, g.Ahead > 0)
	m.ResetAfter = Micros(m.At - m.Now + interval*1000)
	if len(rest) > 0 {
		m.ResetAfter = Micros(rest[2])
	}
	m.NextAfter = nextAfter(next, m.ResetAfter)
	g.First = m
	return g
}

// nextAfter returns the time until the next permit returns. us is that time in a reply (0: not
// known). reset is the time until all permits are free or, after a grant, until its own are.
func nextAfter(us int64, reset time.Duration) time.Duration {
	if us == 0 {
		return reset
	}
	return min(Micros(us), reset)
}

// serverSlack is by how many µs a server's clock may go back, or be behind that of the server that
// it replaces.
const serverSlack = 1_000_000
