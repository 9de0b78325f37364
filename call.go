package rratelimiter

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// call.go is the one place that knows how acquire.lua is asked and what it answers. Who asks, and who is told, is flight.go's.

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
	groups   []groupGrants
	attempts int
}

type groupGrants struct {
	granted int64         // callers; -1: the size exceeds the rate
	wait    time.Duration // of the first caller refused
}

// acquire asks Redis for permits for groups of callers, once. A rate that is enforced and not in force is set on the way.
func (l *Limiter) acquire(ctx context.Context, groups []group, strict int, flags string) (grants, error) {
	records, sum := 1, int64(0)
	for _, g := range groups {
		n := int64(len(g.callers))
		if l.settings.recordPerRequest {
			records += len(g.callers)
		}
		if g.size > (math.MaxUint32-sum)/n {
			sum = math.MaxInt64 // more than a record holds
			break
		}
		sum += g.size * n
	}
	if l.settings.recordPerRequest {
		flags += "r"
	}
	var permits any = sum
	if sum > math.MaxUint32 || strings.ContainsAny(flags, "ruq") {
		permits, sum = "", 0
	}
	if l.settings.enforced {
		flags += "e"
	}
	args := make([]any, 5, 7)
	args[1] = member(l.client.identity.prefix(l.settings.format, records), sum)
	args[2], args[3], args[4] = permits, groupsText(groups, strict), flags
	if rate, granularity := l.settings.rateText(), l.settings.bucket(); granularity > 0 {
		args = append(args, rate, granularity)
	} else if rate != "" {
		args = append(args, rate)
	}
	for attempt := 1; ; attempt++ {
		args[0] = l.now()
		reply, err := l.client.run(ctx, acquireScript, l.keys(), args...)
		if err == nil && reply[0] == statusOtherRate {
			err = l.enforce(ctx, attempt)
			if err == nil {
				continue
			}
		}
		if err == nil && reply[0] != 0 {
			err = notInitialized(reply[0])
		}
		if err != nil {
			return grants{attempts: attempt}, err
		}
		now, _ := args[0].(int64)
		return l.settings.readGrants(reply, now, groups, attempt), nil
	}
}

// member is the member of the permits set for a grant, from the bytes before the permits.
func member(prefix string, permits int64) string {
	return string(binary.LittleEndian.AppendUint32([]byte(prefix), uint32(permits)))
}

// groupsText writes groups as acquire.lua reads them: "SIZExCOUNT", with a mark where they are strict.
func groupsText(groups []group, strict int) string {
	var bytes [24]byte
	text := bytes[:0]
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
	return string(text)
}

// statusOtherRate is the status of scripts that found another rate than the one to enforce.
const statusOtherRate = 8

// rateText is the limiter's own rate as scripts take it; "" if it has none.
func (s settings) rateText() string {
	if s.rate == (Rate{}) {
		return ""
	}
	return fmt.Sprintf("%d %d %d %d", s.rate.args()...)
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

// readGrants reads an answer of acquire.lua, which tells no more than the caller can't know.
func (s settings) readGrants(reply []int64, now int64, groups []group, attempts int) grants {
	g := grants{
		now: now, rate: reply[1], interval: millis(reply[2]), free: reply[3], origin: noOrigin, attempts: attempts,
		groups: make([]groupGrants, len(groups)),
	}
	if len(reply) > 4 {
		g.notes, g.now = reply[4], reply[5]
	}
	g.at = s.dated(g.now, reply[2])
	g.lasts = millis(g.at + reply[2] - g.now)
	if len(reply) > 4 {
		g.lasts = millis(reply[6])
	}
	if len(reply) <= 7 {
		for i := range groups {
			g.groups[i] = groupGrants{granted: int64(len(groups[i].callers))}
		}
		return g
	}
	g.origin = reply[7]
	for i := range groups {
		g.groups[i] = groupGrants{granted: reply[8+2*i], wait: millis(reply[9+2*i])}
	}
	return g
}
