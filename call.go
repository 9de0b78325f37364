package rratelimiter

import (
	"context"
	"errors"
	"strings"
	"time"
)

// call.go is the one place that knows how acquire.lua is asked and what it answers. Who asks, and who is told, is flight.go's.

// grants is what acquire.lua answers.
type grants struct {
	now      int64 // ms since the epoch
	rate     int64
	interval time.Duration
	free     int64
	notes    int64
	origin   int64 // of the oldest live record, when something was refused
	lasts    time.Duration
	groups   []int64 // two figures each
	attempts int
}

// granted tells how many callers of a group got their permits; -1: the size exceeds the rate.
func (g grants) granted(group int) int64 { return g.groups[2*group] }

// wait tells how long the first caller of a group who was refused has to wait.
func (g grants) wait(group int) time.Duration { return millis(g.groups[2*group+1]) }

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
		reply, last = l.client.run(ctx, acquireScript, l.keys(), l.appendCall(nil, groups, strict, flags)...)
		if last == nil {
			g, last = readGrants(reply)
		}
		if !errors.Is(last, errOtherRate) {
			g.attempts = attempt
			return g, last
		}
	}
}

// appendCall appends the arguments of acquire.lua.
func (l *Limiter) appendCall(args []any, groups []group, strict int, flags string) []any {
	records := 1
	if l.settings.recordPerRequest {
		flags += "r"
		for _, g := range groups {
			records += len(g.callers)
		}
	}
	prefix := l.client.identity.prefix(l.settings.format, records)
	args = append(args, l.now(), prefix, inPlaces(flags+l.rateFlag()), strict)
	if (l.settings.rate != Rate{}) {
		args = append(append(args, 10), l.settings.rate.args()...)
	} else {
		args = append(args, 6)
	}
	for _, g := range groups {
		args = append(args, g.size, len(g.callers))
	}
	return args
}

// inPlaces writes the flags of acquire.lua, each in its place: reading them costs that script less than looking for them.
func inPlaces(flags string) string {
	const all = "rudpwebq"
	places := []byte("--------")
	for i := range flags {
		places[strings.IndexByte(all, flags[i])] = flags[i]
	}
	return string(places)
}

// statusOtherRate is the status of scripts that found another rate than the one to enforce.
const statusOtherRate = 8

var errOtherRate = errors.New("rratelimiter: another rate is in force")

// rateFlag is the flag that tells scripts what to do with the limiter's own rate.
func (l *Limiter) rateFlag() string {
	switch {
	case l.settings.rate == Rate{}:
		return ""
	case l.settings.enforced:
		return "e"
	}
	return "w"
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

func readGrants(reply []int64) (grants, error) {
	switch reply[0] {
	case 0:
	case statusOtherRate:
		return grants{}, errOtherRate
	default:
		return grants{}, notInitialized(reply[0])
	}
	return grants{
		now: reply[1], rate: reply[2], interval: millis(reply[3]), free: reply[4], notes: reply[5], origin: reply[6],
		lasts: millis(reply[7]), groups: reply[8:],
	}, nil
}
