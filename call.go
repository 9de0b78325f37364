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
)

// call.go is the one place that knows how acquire.lua is asked and what it answers. Who asks, and who is told, is flight.go's.

// A question is the arguments of acquire.lua. Its memory serves for the next one, too.
type question struct {
	now     int64 // ms since the epoch; 0: the server knows
	first   int64 // the time of the first attempt, or one before it
	records int64 // ids that are its own; 0: it was not asked yet
	permits any   // as asked for, of one record; "": one can't tell
	id      int64 // the end of its first id
	before  past  // grants that were made before
	clock   text
	member  text
	groups  text
}

// next makes it the question of another call, after grants on the same line.
func (q *question) next(before past) { q.records, q.before = 0, before }

// A past is the ends of the ids under which a line's latest grants were written, whose answers are there: a record with
// one of these was not touched since. It is kept where records are joined.
type past struct {
	ids  [8]int64
	next int
}

func (p *past) add(id int64) {
	p.ids[p.next] = id + 1
	p.next = (p.next + 1) % len(p.ids)
}

// text is the ids as scripts take them, each between blanks.
func (p *past) text() string {
	text := []byte{' '}
	for _, id := range p.ids {
		if id > 0 {
			text = append(strconv.AppendInt(text, id-1, 10), ' ')
		}
	}
	return string(text)
}

// mostRecords is how many records of one call are looked for.
const mostRecords = 512

// findable tells whether so many records of an attempt can be found: not if their ids come round too soon.
func (s settings) findable(records int64) bool {
	return records == 1 || records <= mostRecords && s.format != Redisson313
}

// A text is an argument whose bytes change from question to question, but hardly ever their number.
type text struct {
	bytes []byte
	arg   any
}

// set gives the text other bytes, and answers it as an argument.
func (t *text) set(bytes []byte) any {
	if t.arg == nil || len(bytes) != len(t.bytes) {
		t.bytes = slices.Clone(bytes)
		t.arg = t.bytes
	} else {
		copy(t.bytes, bytes)
	}
	return t.arg
}

// ask appends the arguments with which groups of callers ask a limiter for permits now. The memory of the question is
// theirs until the answer is there. Asked once more, the question keeps its ids; the script looks for them first, if an
// earlier attempt may have been served.
func (q *question) ask(args []any, l *Limiter, groups []group, strict int, flags string, look bool) []any {
	if l.settings.recordPerRequest {
		flags += "r"
	}
	var memory [64]byte
	var now any = ""
	if q.now = 0; !l.settings.serverTime {
		q.now = l.client.clock().UnixMilli()
		now = q.clock.set(strconv.AppendInt(memory[:0], q.now, 10))
	}
	if q.records == 0 {
		q.draw(l, groups, flags)
		q.groups.set(appendGroups(memory[:0], groups, strict))
		if q.first = q.now; l.settings.serverTime {
			q.first = l.served.Load()
		}
	}
	if l.settings.enforced {
		flags += "e"
	}
	if !look {
		return append(append(args, now, q.member.arg, q.permits, q.groups.arg, flags), l.options...)
	}
	return append(args, now, q.member.arg, q.permits, q.groups.arg, flags,
		l.settings.rateText(), l.settings.bucket(), q.first, q.records, q.before.text())
}

// draw gives the question its ids, and makes the record of all that is asked for.
func (q *question) draw(l *Limiter, groups []group, flags string) {
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
	member := l.client.identity.appendPrefix(memory[:0], l.settings.format, int(q.records))
	q.id = endOf(member)
	if l.settings.bucket() > 0 {
		member = appendShare(member, l.settings.format, uint32(sum))
	}
	q.member.set(binary.LittleEndian.AppendUint32(member, uint32(sum)))
}

// idsOf is how many records hold permits that one call is granted.
func idsOf(permits int64) int64 {
	if permits <= math.MaxUint32 {
		return 1
	}
	return 1 + min(permits, mostPermits)/math.MaxUint32
}

// mostPermits is the highest rate that scripts count with (MOST in lua/shared/names.lua).
const mostPermits = 1e15

// grants is what acquire.lua answers.
type grants struct {
	now      int64 // ms since the epoch
	at       int64 // the time of what is granted, ms: now or, with a granularity, up to so much later
	rate     int64
	interval time.Duration
	free     int64
	notes    int64
	origin   int64 // of the oldest live record, when something was refused
	lasts    time.Duration
	groups   []int64 // two figures each; nil: all are granted
	attempts int
	retry    time.Duration // until it is worth while to ask again; only of an answer that the process gave
	id       int64         // the end of the first id that the call had
}

// local tells whether the process answered instead of Redis.
func (g grants) local() bool { return g.notes&noteLocal != 0 }

// granted tells how many callers of a group got their permits; -1: the size exceeds the rate.
func (g grants) granted(i int, of group) int64 {
	if g.groups == nil {
		return int64(len(of.callers))
	}
	return g.groups[2*i]
}

// wait tells how long the first caller of a group who was refused has to wait.
func (g grants) wait(i int) time.Duration { return millis(g.groups[2*i+1]) }

// insist asks Redis for permits for groups of callers until it has an answer: with a question that may have been asked
// before, and then with the error in which that ended. A rate that is enforced and not in force is set on the way.
func (l *Limiter) insist(
	ctx context.Context, q *question, t *trail, groups []group, strict int, flags string, last error,
) (g grants, err error) {
	c := l.client
	var pace pace
	for enforced := 0; ; {
		switch {
		case errors.Is(last, errOtherRate):
			if err := l.enforce(ctx, enforced); err != nil {
				return grants{attempts: int(t.attempts.Load())}, err
			}
			enforced++
		case last != nil && !c.redirected(last):
			c.relearn(ctx, last)
			if !pace.rest(ctx) {
				return grants{attempts: int(t.attempts.Load())}, last
			}
		}
		var reply []int64
		reply, last = c.try(ctx, t, acquireScript, l.keys(), q.ask(nil, l, groups, strict, flags, t.doubtful() && len(groups) > 0)...)
		if last == nil {
			g, last = l.readGrants(t, reply, q.now)
		}
		g.id = q.id
		g.attempts = int(t.attempts.Load())
		if !errors.Is(last, errOtherRate) && !t.again(last, l.settings.findable(q.records)) {
			return g, last
		}
	}
}

// appendGroups writes groups as acquire.lua reads them: "SIZExCOUNT", with a mark where they are strict.
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

// Statuses of scripts beside those of notInitialized.
const (
	statusOtherRate = 8 // another rate than the one to enforce is in force
	statusUntold    = 9 // nobody can tell any more what an earlier attempt of the call was granted
)

var (
	errOtherRate = errors.New("rratelimiter: another rate is in force")
	errUntold    = unknown(errors.New("what the call was granted can't be told from that of others any more"))
)

// rateText is the limiter's own rate as scripts take it; "" if it has none.
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

// options are the arguments that are the same in each question.
func (s settings) options() []any {
	switch rate, bucket := s.rateText(), s.bucket(); {
	case bucket > 0:
		return []any{rate, bucket}
	case rate != "":
		return []any{rate}
	}
	return nil
}

// bucket is the granularity as scripts take it, in ms; 0 for none.
func (s settings) bucket() int64 {
	if s.format == Redisson313 {
		return 0 // its ids are too short to tell whose a record is
	}
	return s.granularity.Milliseconds()
}

// dated is the time at which a grant counts as made, in ms: the end of its bucket, as bucket.lua has it.
func (s settings) dated(now, interval int64) int64 {
	if length := min(s.bucket(), interval/10); length > 1 {
		return (now + length - 1) / length * length
	}
	return now
}

var errContested = errors.New("rratelimiter: somebody else keeps setting another rate")

// enforce sets the limiter's own rate over another one. It gives up when others keep setting theirs.
func (l *Limiter) enforce(ctx context.Context, attempt int) error {
	if attempt > 3 {
		return errContested
	}
	_, err := l.setRate(ctx, new(trail), l.settings.rate, "k")
	return err
}

// readGrants reads an answer of acquire.lua, which tells no more than who asked at a time can't know.
func (l *Limiter) readGrants(t *trail, reply []int64, now int64) (grants, error) {
	s := l.settings
	if err := statusError(reply[0]); err != nil {
		if errors.Is(err, errOtherRate) {
			t.vain()
		}
		return grants{}, err
	}
	g := grants{now: now, rate: reply[1], interval: millis(reply[2]), free: reply[3], origin: noOrigin}
	if len(reply) > 4 {
		g.notes, g.now = reply[4], reply[5]
	}
	if s.serverTime {
		l.served.Store(g.now - serverSlack)
	}
	g.at = s.dated(g.now, reply[2])
	g.lasts = millis(g.at + reply[2] - g.now)
	if len(reply) > 4 {
		g.lasts = millis(reply[6])
	}
	if len(reply) > 7 {
		g.origin, g.groups = reply[7], reply[8:]
	}
	return g, nil
}

// serverSlack is how many ms the clock of a server may go back, or be behind that of the one whose place it takes.
const serverSlack = 1000

// statusError makes an error of the status with which a script answers nothing else.
func statusError(status int64) error {
	switch status {
	case 0:
		return nil
	case statusOtherRate:
		return errOtherRate
	case statusUntold:
		return errUntold
	}
	return notInitialized(status)
}
