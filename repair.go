package rratelimiter

import (
	"context"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/lua"
)

// repair.go repairs a limiter on demand. Calls repair what they find wrong by themselves, as far as it costs them
// nothing; these methods read every record.

var repairScript = script.Load(lua.Files, "repair")

// Repaired is what Repair or Reset found and did.
type Repaired struct {
	Changed bool   // something was changed; with DryRun: would be changed
	Fault   string // what was wrong with the free permits; "" if nothing
	Was     int64  // free permits that were stored; 0 if none could be read
	Free    int64  // free permits stored now (DryRun: to be stored): rate - Permits; after Reset, rate
	Records int    // records, expired ones included
	Permits int64  // permits in these records

	Blocked time.Duration // time from the repair until a permit is free according to the records; 0: one is free now
}

// A RepairOption changes what Repair and Reset do.
type RepairOption func(*repairOptions)

type repairOptions struct{ dry bool }

// DryRun makes Repair and Reset report what they would do, without doing it.
func DryRun() RepairOption { return func(o *repairOptions) { o.dry = true } }

// Repair recomputes the free permits from the records, whatever is stored. On a PerClient limiter it repairs this
// client's own state.
//
// Permits that Redisson's release gave back are both free and in a record, which cannot be told from a fault. Repair
// takes them again, unless a call has already removed them from the oldest records.
//
// Records are trusted, whichever client wrote them. One that holds many times the rate, or is dated far in the future,
// leaves the limiter without a free permit for Repaired.Blocked. If that is too long, use Reset.
//
// Repair reads every record: with hundreds of thousands of live ones, that blocks Redis for a part of a second. Without
// a rate the error is ErrNotInitialized.
func (l *Limiter) Repair(ctx context.Context, opts ...RepairOption) (Repaired, error) {
	r, err := l.repair(ctx, "d")
	if err == nil && r.Changed && !repairOptionsOf(opts).dry {
		// The rebuild removes expired records first, a few at a time.
		if _, err = l.acquireDirect(ctx, recentIDs{}, nil, ""); err == nil {
			var after Repaired
			if after, err = l.repair(ctx, ""); err == nil {
				r.Free = after.Free
				l.client.wake(l.key())
			}
		}
	}
	return r, wrap("repair", l.name, err)
}

// Reset removes all records, so that all permits are free, and keeps the configuration. On a PerClient limiter it
// resets this client's own state. For one interval, twice the rate can be used. Without a rate the error is
// ErrNotInitialized. If the reply was lost, it is ErrOutcomeUnknown.
func (l *Limiter) Reset(ctx context.Context, opts ...RepairOption) (Repaired, error) {
	flags := "r"
	if repairOptionsOf(opts).dry {
		flags = "rd"
	}
	r, err := l.repair(ctx, flags)
	if err == nil && r.Changed && flags == "r" {
		l.client.wake(l.key())
	}
	return r, wrap("reset", l.name, err)
}

func repairOptionsOf(opts []RepairOption) (o repairOptions) {
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	return o
}

// repair runs repair.lua. The flags are d (dry run) and r (reset).
func (l *Limiter) repair(ctx context.Context, flags string) (Repaired, error) {
	if l.err != nil {
		return Repaired{}, l.err
	}
	sent := new(script.Attempts)
	twice := flags != "r" // a second execution would reply that there is nothing to reset
	reply, err := within(ctx, l, func(ctx context.Context) ([]int64, error) {
		defer l.changed()
		return l.client.topology.Run(ctx, sent, repairScript, twice, l.keys(), l.now(), flags)
	})
	if err = sent.Explain(err); !twice {
		err = sent.Outcome(err)
	}
	if err == nil && reply[0] != 0 {
		err = notInitialized(reply[0])
	}
	if err != nil {
		return Repaired{}, err
	}
	r := Repaired{
		Changed: reply[1] == 1, Was: reply[3], Free: reply[4], Records: int(reply[5]), Permits: reply[6], Blocked: millis(reply[7]),
	}
	right := reply[4]
	if flags[:min(1, len(flags))] == "r" {
		right = r.Was // a reset removes records even if the free permits are right
	}
	switch {
	case r.Records == 0 && reply[2] == 1:
	case reply[2] == 1:
		r.Fault = "free permits were missing"
	case reply[2] == 2:
		r.Fault = "free permits were no whole number"
	case r.Was != right && r.Records == 0:
		r.Fault = "free permits were not the rate, without a record"
	case r.Was > right:
		r.Fault = fmt.Sprintf("free permits and records were %d more than the rate", r.Was-right)
	case r.Was < right:
		r.Fault = fmt.Sprintf("free permits and records were %d less than the rate", right-r.Was)
	}
	return r, nil
}
