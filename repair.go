package rratelimiter

import (
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// repair.go repairs a limiter on demand. Calls repair what they find wrong by themselves, as far as it costs them
// nothing; these methods read every record.

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
	r, err := l.repair(ctx, protocol.Repair{Dry: true})
	if err == nil && r.Changed && !repairOptionsOf(opts).dry {
		// The rebuild removes expired records first, a few at a time.
		if _, err = l.acquireDirect(ctx, protocol.RecentIDs{}, protocol.Ask{}); err == nil {
			var after Repaired
			if after, err = l.repair(ctx, protocol.Repair{}); err == nil {
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
	dry := repairOptionsOf(opts).dry
	r, err := l.repair(ctx, protocol.Repair{Reset: true, Dry: dry})
	if err == nil && r.Changed && !dry {
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

// repair runs repair.lua.
func (l *Limiter) repair(ctx context.Context, request protocol.Repair) (Repaired, error) {
	if l.err != nil {
		return Repaired{}, l.err
	}
	request.Now = l.encoder.Now()
	sent := new(script.Attempts)
	reply, err := within(ctx, l, func(ctx context.Context) ([]int64, error) {
		defer l.changed()
		return l.client.topology.Run(ctx, sent, protocol.RepairScript, request.Idempotent(), l.keys(), request.Args()...)
	})
	if err = sent.Explain(err); !request.Idempotent() {
		err = sent.Outcome(err)
	}
	if err != nil {
		return Repaired{}, err
	}
	done, err := request.Reply(reply)
	return Repaired{
		Changed: done.Changed, Fault: done.Fault, Was: done.Was, Free: done.Free,
		Records: int(done.Records), Permits: done.Permits, Blocked: done.Blocked,
	}, err
}
