package rratelimiter

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/fairshare"
	"github.com/rratelimiter/rratelimiter/internal/record"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// The request and the reply of acquire.lua: how arguments are encoded and what the numbers in a reply mean. This file
// does not know which callers are behind a group.

// An acquireRequest holds the arguments of acquire.lua for one call. Its memory is reused for the next call.
type acquireRequest struct {
	now     int64     // time of the last attempt, µs since the epoch; 0: by the server's clock
	first   int64     // time of the first attempt or an earlier one, µs since the epoch
	records int64     // number of record ids that belong to the call; 0: no attempt yet
	permits any       // permits asked for, if one record can hold them; otherwise ""
	id      int64     // last three bytes of the first id
	sets    int       // how often the call has set the limiter's own rate over another one
	recent  recentIDs // of grants before the first attempt
	clock   argBuffer // now, in ms
	member  argBuffer // the record of all that is asked for
	groups  argBuffer // see appendGroups
}

// next prepares q for another call, which follows the grants with the given ids.
func (q *acquireRequest) next(before recentIDs) { q.records, q.sets, q.recent = 0, 0, before }

// A recentIDs holds the last three bytes of the ids of a limiter's latest records, as far as replies told of them. No
// later call has joined a record with one of these ids. It is used with a granularity.
type recentIDs struct {
	ids  [8]int64 // a ring: each the id plus 1; 0: none
	next int      // index in ids
}

func (p *recentIDs) add(id int64) {
	p.ids[p.next] = id + 1
	p.next = (p.next + 1) % len(p.ids)
}

// text returns the ids as scripts take them: numbers, each between blanks.
func (p *recentIDs) text() string {
	text := []byte{' '}
	for _, id := range p.ids {
		if id > 0 {
			text = append(strconv.AppendInt(text, id-1, 10), ' ')
		}
	}
	return string(text)
}

// mostRecords is how many records of one call a retry looks for at most.
const mostRecords = 512

// findable reports whether a retry can find so many records of an earlier attempt. Ids of Redisson313 repeat too soon
// to find more than one.
func (s settings) findable(records int64) bool {
	return records == 1 || records <= mostRecords && s.format != record.Redisson313
}

// An argBuffer holds an argument whose bytes change with each request, but rarely their number. It saves allocations.
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

// ask appends the arguments of a request for groups of callers, with the current time. They use the memory of q until
// the reply arrives. A retry has the ids of the first attempt. With look, the script first looks for records of an
// attempt that may have been executed.
func (q *acquireRequest) ask(args []any, l *Limiter, groups []group, strict int, flags string, look bool) []any {
	if l.settings.recordPerRequest {
		flags += "r"
	}
	var memory [64]byte
	var now any = ""
	if q.now = 0; !l.settings.serverTime {
		q.now = l.client.clock().UnixMicro()
		now = q.clock.set(appendMillis(memory[:0], q.now))
	}
	if q.records == 0 {
		q.draw(l, groups, flags)
		q.groups.set(appendGroups(memory[:0], groups, strict))
		if q.first = q.now; l.settings.serverTime {
			q.first = l.served.Load()
		}
	}
	flags += l.flags(q.sets)
	if !look {
		return append(append(args, now, q.member.arg, q.permits, q.groups.arg, flags), l.options...)
	}
	return append(args, now, q.member.arg, q.permits, q.groups.arg, flags,
		l.settings.rateText(), l.settings.bucket(), millisText(q.first), q.records, q.recent.text())
}

// draw gives q new ids and makes the record of all that is asked for.
func (q *acquireRequest) draw(l *Limiter, groups []group, flags string) {
	sum := int64(0)
	q.records = 1
	for _, g := range groups {
		n := int64(len(g.callers))
		if l.settings.recordPerRequest {
			q.records += n
		}
		if g.size > (math.MaxInt64-sum)/n {
			sum = math.MaxInt64
		} else {
			sum += g.size * n
		}
	}
	q.records += idsOf(sum) - 1
	if q.permits = any(sum); sum > math.MaxUint32 || strings.ContainsAny(flags, "ruq") {
		q.permits, sum = "", 0
	}
	var memory [64]byte
	member := l.client.identity.AppendPrefix(memory[:0], l.settings.format, int(q.records))
	q.id = record.EndOf(member)
	if l.settings.bucket() > 0 {
		member = record.AppendShare(member, l.settings.format, uint32(sum))
	}
	q.member.set(binary.LittleEndian.AppendUint32(member, uint32(sum)))
}

// idsOf returns how many records hold the permits of one grant: a record holds at most a uint32.
func idsOf(permits int64) int64 {
	if permits <= math.MaxUint32 {
		return 1
	}
	return 1 + min(permits, mostPermits)/math.MaxUint32
}

// mostPermits is the highest rate that scripts calculate with (MAX_PERMITS in lua/shared/base.lua).
const mostPermits = 1e15

// An acquireReply is the decoded reply of acquire.lua, or a local reply in the same form.
type acquireReply struct {
	now      int64 // time of the call, µs since the epoch
	at       int64 // score of what is granted, µs: now, or a little later (grant.lua)
	rate     int64
	interval time.Duration
	free     int64         // permits that remain free
	notes    int64         // bits: noteMore and so on
	origin   int64         // first bytes of a live record's id, if something was refused; record.NoOrigin: no record
	lasts    time.Duration // until all permits are free
	groups   []int64       // for each group the result of granted and a wait in µs; nil: all granted
	attempts int
	retry    time.Duration // wait before the next request; only in a local reply
	id       int64         // last three bytes of the first id of the call
}

// local reports whether this process made the reply, and not Redis.
func (g acquireReply) local() bool { return g.notes&noteLocal != 0 }

// shared returns what the fair share needs of a reply that refused a caller.
func (g acquireReply) shared() fairshare.Reply {
	return fairshare.Reply{
		Now: g.now, Rate: g.rate, Free: g.free, Interval: g.interval, Origin: g.origin, Foreign: g.notes&noteForeignWriter != 0,
	}
}

// granted returns how many callers of a group got their permits; -1: the size exceeds the rate. With the flag u it is
// the number of permits.
func (g acquireReply) granted(i int, of group) int64 {
	if g.groups == nil {
		return int64(len(of.callers))
	}
	return g.groups[2*i]
}

// wait returns how long the first refused caller of a group has to wait.
func (g acquireReply) wait(i int) time.Duration { return micros(g.groups[2*i+1]) }

// doWithRetry asks Redis for permits for groups of callers, and retries until there is a final reply or error. If q was
// sent before, last is the error of that attempt, else nil. If the limiter enforces a rate and another one is in force,
// it sets its own first.
func (l *Limiter) doWithRetry(
	ctx context.Context, q *acquireRequest, t *script.Attempts, groups []group, strict int, flags string, last error,
) (g acquireReply, err error) {
	c := l.client
	var pauses script.Backoff
	for {
		switch {
		case errors.Is(last, errOtherRate):
			if err := l.enforce(ctx); err != nil {
				return acquireReply{attempts: t.Count()}, err
			}
			q.sets++
		case last != nil && !c.topology.Redirected(last):
			c.topology.Reload(ctx, last)
			if !pauses.Rest(ctx) {
				return acquireReply{attempts: t.Count()}, last
			}
		}
		var reply []int64
		reply, last = c.topology.Try(ctx, t, acquireScript, l.keys(), q.ask(nil, l, groups, strict, flags, t.MaybeExecuted() && len(groups) > 0)...)
		if last == nil {
			g, last = l.readGrants(t, reply, q.now)
		}
		g.id = q.id
		g.attempts = t.Count()
		if !errors.Is(last, errOtherRate) && !t.Again(last, l.settings.findable(q.records)) {
			return g, last
		}
	}
}

// appendGroups appends groups as acquire.lua reads them: "SIZExCOUNT", followed by "!" if the group is strict,
// separated by blanks.
func appendGroups(text []byte, groups []group, strict int) []byte {
	for i, g := range groups {
		if i > 0 {
			text = append(text, ' ')
		}
		text = strconv.AppendInt(text, g.size, 10)
		text = append(text, 'x')
		text = strconv.AppendInt(text, int64(len(g.callers)), 10)
		if i < strict {
			text = append(text, '!')
		}
	}
	return text
}

// Statuses of scripts in addition to those of notInitialized.
const (
	statusOtherRate = 8 // another rate than the one to enforce is in force
	statusUntold    = 9 // the grant of an earlier attempt of the call can no longer be determined
)

var errOtherRate = errors.New("rratelimiter: another rate is in force")

// rateText returns the limiter's own rate as scripts take it; "" if it has none.
func (s settings) rateText() string {
	if s.rate == (Rate{}) {
		return ""
	}
	var text []byte
	for i, figure := range s.rate.figures() {
		if i > 0 {
			text = append(text, ' ')
		}
		text = strconv.AppendInt(text, figure, 10)
	}
	return string(text)
}

// options returns the arguments that are the same in each request of a limiter.
func (s settings) options() []any {
	switch rate, bucket := s.rateText(), s.bucket(); {
	case bucket > 0:
		return []any{rate, bucket}
	case rate != "":
		return []any{rate}
	}
	return nil
}

// flags returns the flags that are the same in each request and for each limiter of AllowAll. The call has set the
// limiter's own rate sets times.
func (l *Limiter) flags(sets int) string {
	flags := ""
	if l.settings.enforced && sets < mostSets {
		flags += "e"
	}
	if l.settings.format == record.Redisson313 {
		flags += "w"
	}
	return flags
}

// bucket returns the granularity as scripts take it, in ms; 0 for none.
func (s settings) bucket() int64 {
	if s.format == record.Redisson313 {
		return 0 // its ids are too short to tell which client wrote a record
	}
	return s.granularity.Milliseconds()
}

// dated returns the score (µs) of a grant, as grant.lua computes it. The interval is in ms.
func (s settings) dated(now, interval int64) int64 {
	const fractions = 200 // ms: with shorter intervals, scores have fractions of a ms
	length := min(s.bucket(), interval/10)
	if length <= 1 && interval < fractions && s.format != record.Redisson313 {
		return now
	}
	length = max(length, 1) * 1000
	return (now + length - 1) / length * length
}

// mostSets is how often one call sets its limiter's own rate. If other processes keep setting another one, as old
// processes do in a rolling deploy, the call is then served at the rate in force, and the observer sees
// CallInfo.RateMismatch.
const mostSets = 3

// enforce sets the limiter's own rate in the place of another one.
func (l *Limiter) enforce(ctx context.Context) error {
	_, err := l.setRate(ctx, new(script.Attempts), l.settings.rate, "k")
	return err
}

// readGrants decodes a reply of acquire.lua. Short replies omit what follows from now, the time of the request in µs.
func (l *Limiter) readGrants(t *script.Attempts, reply []int64, now int64) (acquireReply, error) {
	s := l.settings
	if err := statusError(reply[0]); err != nil {
		if errors.Is(err, errOtherRate) {
			t.NotExecuted()
		}
		return acquireReply{}, err
	}
	g := acquireReply{now: now, rate: reply[1], interval: millis(reply[2]), free: reply[3], origin: record.NoOrigin}
	if len(reply) > 4 {
		g.notes, g.now = reply[4], reply[5]
	}
	if s.serverTime {
		l.served.Store(g.now - serverSlack)
	}
	g.at = s.dated(g.now, reply[2])
	g.lasts = micros(g.at - g.now + reply[2]*1000)
	if len(reply) > 4 {
		g.lasts = micros(reply[6])
	}
	if len(reply) > 7 {
		g.origin, g.groups = reply[7], reply[8:]
	}
	return g, nil
}

// serverSlack is by how many µs a server's clock may go back, or be behind that of the server that it replaces.
const serverSlack = 1_000_000

// statusError returns the error for a status; nil for 0.
func statusError(status int64) error {
	switch status {
	case 0:
		return nil
	case statusOtherRate:
		return errOtherRate
	case statusUntold:
		return script.ErrUntold
	}
	return notInitialized(status)
}
