package rratelimiter

import (
	"context"
	"fmt"
)

// repair.go sets a limiter right on demand. What calls find wrong they repair by themselves, as far as it costs them
// nothing; this reads every record.

var repairScript = loadScript("repair")

// Repaired is what Repair or Reset found, and did.
type Repaired struct {
	Changed bool   // something was changed, or would be with DryRun
	Fault   string // what was wrong with the free permits; "" where nothing was
	Was     int64  // free permits as they were stored; 0 where there were none that can be read
	Free    int64  // free permits as they are to be stored: rate - permits in records, expired ones included
	Records int    // records, expired ones included
	Permits int64  // permits in them
}

// A RepairOption is a way of repairing.
type RepairOption func(*repairOptions)

type repairOptions struct{ dry bool }

// DryRun only tells what would be done.
func DryRun() RepairOption { return func(o *repairOptions) { o.dry = true } }

// Repair computes the free permits anew from the records, whatever is stored. On a PerClient limiter these are this
// client's own. Permits that Redisson's release gave back are taken again: until their records expire they are free and in
// a record, which nobody can tell from a fault.
//
// It reads every record: on a limiter with hundreds of thousands of live ones, that takes Redis part of a second. Without
// a rate the error is ErrNotInitialized.
func (l *Limiter) Repair(ctx context.Context, opts ...RepairOption) (Repaired, error) {
	r, err := l.repair(ctx, "d")
	if err == nil && r.Changed && !repairOptionsOf(opts).dry {
		// Expired records leave first, a few at a time.
		if _, err = l.look(ctx, past{}, nil, ""); err == nil {
			var after Repaired
			if after, err = l.repair(ctx, ""); err == nil {
				r.Free = after.Free
				l.client.wake(l.keyNames[keyConfig])
			}
		}
	}
	return r, wrap("repair", l.name, err)
}

// Reset forgets all grants, so that all permits are free, and keeps the configuration. On a PerClient limiter it forgets
// this client's own. For one interval, twice the rate can be used. Without a rate the error is ErrNotInitialized; where the
// answer did not arrive it is ErrOutcomeUnknown.
func (l *Limiter) Reset(ctx context.Context, opts ...RepairOption) (Repaired, error) {
	flags := "r"
	if repairOptionsOf(opts).dry {
		flags = "rd"
	}
	r, err := l.repair(ctx, flags)
	if err == nil && r.Changed && flags == "r" {
		l.client.wake(l.keyNames[keyConfig])
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

// repair is one call of repair.lua.
func (l *Limiter) repair(ctx context.Context, flags string) (Repaired, error) {
	if l.err != nil {
		return Repaired{}, l.err
	}
	sent := new(trail)
	twice := flags != "r" // the second answer would be that there is nothing to forget
	reply, err := within(ctx, l.client, func(ctx context.Context) ([]int64, error) {
		return l.client.run(ctx, sent, repairScript, twice, l.keys(), flags)
	})
	if !twice {
		err = sent.outcome(err)
	}
	if err == nil && reply[0] != 0 {
		err = notInitialized(reply[0])
	}
	if err != nil {
		return Repaired{}, err
	}
	r := Repaired{Changed: reply[1] == 1, Was: reply[3], Free: reply[4], Records: int(reply[5]), Permits: reply[6]}
	right := reply[4]
	if flags[:min(1, len(flags))] == "r" {
		right = r.Was // that grants are forgotten is no fault
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
