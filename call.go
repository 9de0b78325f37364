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
	now    int64 // ms since the epoch; 0: the server knows
	clock  text
	member text
	groups text
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
// theirs until the answer is there.
func (q *question) ask(args []any, l *Limiter, groups []group, strict int, flags string) []any {
	each := l.settings.recordPerRequest
	if each {
		flags += "r"
	}
	records, sum := 1, int64(0)
	for _, g := range groups {
		n := int64(len(g.callers))
		if each {
			records += len(g.callers)
		}
		if g.size > (math.MaxUint32-sum)/n {
			sum = math.MaxInt64 // more than a record holds, whatever else comes
		} else {
			sum += g.size * n
		}
	}
	var permits any = sum
	if sum > math.MaxUint32 || strings.ContainsAny(flags, "ruq") {
		permits, sum = "", 0
	}
	if l.settings.enforced {
		flags += "e"
	}
	var memory [64]byte
	var now any = ""
	if q.now = 0; !l.settings.serverTime {
		q.now = l.client.clock().UnixMilli()
		now = q.clock.set(strconv.AppendInt(memory[:0], q.now, 10))
	}
	member := l.client.identity.appendPrefix(memory[:0], l.settings.format, records)
	args = append(args, now, q.member.set(binary.LittleEndian.AppendUint32(member, uint32(sum))), permits,
		q.groups.set(appendGroups(memory[:0], groups, strict)), flags)
	return append(args, l.options...)
}

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

// acquire asks Redis for permits for groups of callers, once. A rate that is enforced and not in force is set on the way: at
// once, if last, the error of an earlier answer, says so.
func (l *Limiter) acquire(ctx context.Context, groups []group, strict int, flags string, last error) (g grants, err error) {
	for attempt := 0; ; {
		if errors.Is(last, errOtherRate) {
			if err := l.enforce(ctx, attempt); err != nil {
				return grants{attempts: attempt}, err
			}
		}
		var reply []int64
		attempt++
		var q question
		reply, last = l.client.run(ctx, acquireScript, l.keys(), q.ask(nil, l, groups, strict, flags)...)
		if last == nil {
			g, last = l.settings.readGrants(reply, q.now)
		}
		if !errors.Is(last, errOtherRate) {
			g.attempts = attempt
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

// statusOtherRate is the status of scripts that found another rate than the one to enforce.
const statusOtherRate = 8

var errOtherRate = errors.New("rratelimiter: another rate is in force")

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
	_, err := l.setRate(ctx, l.settings.rate, "k")
	return err
}

// readGrants reads an answer of acquire.lua, which tells no more than who asked at a time can't know.
func (s settings) readGrants(reply []int64, now int64) (grants, error) {
	switch reply[0] {
	case 0:
	case statusOtherRate:
		return grants{}, errOtherRate
	default:
		return grants{}, notInitialized(reply[0])
	}
	g := grants{now: now, rate: reply[1], interval: millis(reply[2]), free: reply[3], origin: noOrigin}
	if len(reply) > 4 {
		g.notes, g.now = reply[4], reply[5]
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
