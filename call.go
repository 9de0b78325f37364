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
	groups   []groupGrants
	attempts int
}

type groupGrants struct {
	granted int64         // callers; -1: the size exceeds the rate
	wait    time.Duration // of the first caller refused
}

// acquire asks Redis for permits for groups of callers, once. A rate that is enforced and not in force is set on the way.
func (l *Limiter) acquire(ctx context.Context, groups []group, strict int, flags string) (grants, error) {
	records := 1
	if l.settings.recordPerRequest {
		flags += "r"
		for _, g := range groups {
			records += len(g.callers)
		}
	}
	given := l.settings.rate != Rate{}
	args := make([]any, 0, 9+2*len(groups))
	args = append(args, nil, l.client.identity.prefix(l.settings.format, records), inPlaces(flags+l.rateFlag()), strict)
	if given {
		args = append(append(args, 10), l.settings.rate.args()...)
	} else {
		args = append(args, 6)
	}
	for _, g := range groups {
		args = append(args, g.size, len(g.callers))
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
		return readGrants(reply, attempt), nil
	}
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

func readGrants(reply []int64, attempts int) grants {
	g := grants{
		now: reply[1], rate: reply[2], interval: millis(reply[3]), free: reply[4], notes: reply[5], origin: reply[6],
		lasts: millis(reply[7]), attempts: attempts,
	}
	rest := reply[8:]
	g.groups = make([]groupGrants, len(rest)/2)
	for i := range g.groups {
		g.groups[i] = groupGrants{granted: rest[2*i], wait: millis(rest[2*i+1])}
	}
	return g
}
