package rratelimiter

import (
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// Repair and Reset: argument checks and results. What is repaired is decided by lua/repair.lua.

// Repaired describes what Repair or Reset found and changed.
type Repaired struct {
	Changed bool // something was changed; with DryRun: would be changed
	// Fault says what was wrong with the stored number of free permits; "" if nothing. Reset
	// reports only a number that is missing or invalid.
	Fault string
	Was   int64 // free permits stored before; 0 if that could not be read
	// Free is the right number of free permits. For Reset it is the rate. For Repair it is the rate
	// less the permits in all records. Expired records count, too, if they stay: with DryRun, or if
	// nothing is repaired.
	Free    int64
	Records int   // number of records, including expired ones
	Permits int64 // permits in these records

	// time from the repair until a permit is free according to the records; 0: one is free now
	Blocked time.Duration
}

// A RepairOption changes what Repair and Reset do.
type RepairOption func(*repairOptions)

type repairOptions struct{ dry bool }

// DryRun makes Repair and Reset report what they would do, without doing it.
func DryRun() RepairOption { return func(o *repairOptions) { o.dry = true } }

// Repair recomputes the number of free permits from the records, and ignores the stored number. On
// a PerClient limiter it repairs this client's own state.
//
// Redisson's release makes permits free, but leaves them in their records. Repair cannot
// distinguish this from a fault. It counts such permits as used again, unless a Go client has
// already taken them out of the oldest records. Go clients do that when they find more free permits
// than the records allow.
//
// Repair trusts all records, whichever client wrote them. A record that holds many times the rate,
// or is dated far in the future, leaves the limiter without a free permit for Repaired.Blocked. If
// that is too long, use Reset.
//
// Repair reads every record. Hundreds of thousands of live records block Redis for a part of a
// second. Without a rate the error is ErrNotInitialized.
func (l *Limiter) Repair(ctx context.Context, opts ...RepairOption) (Repaired, error) {
	r, err := l.repair(ctx, protocol.Repair{Dry: true})
	if err == nil && r.Changed && !repairOptionsOf(opts).dry {
		// The rebuild removes expired records first, a few at a time.
		if _, err = l.core.Free(ctx, false); err == nil {
			var after Repaired
			if after, err = l.repair(ctx, protocol.Repair{}); err == nil {
				r.Free = after.Free
			}
		}
	}
	return r, wrap("repair", l.name, err)
}

// Reset removes all records and keeps the configuration: all permits are free then. On a PerClient
// limiter it resets this client's own state. Up to twice the rate can be granted within the
// interval around a Reset. Without a rate the error is ErrNotInitialized. If the reply was lost,
// the error is ErrOutcomeUnknown.
func (l *Limiter) Reset(ctx context.Context, opts ...RepairOption) (Repaired, error) {
	r, err := l.repair(ctx, protocol.Repair{Reset: true, Dry: repairOptionsOf(opts).dry})
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

func (l *Limiter) repair(ctx context.Context, request protocol.Repair) (Repaired, error) {
	if l.err != nil {
		return Repaired{}, l.err
	}
	done, err := l.core.Repair(ctx, request)
	return Repaired{
		Changed: done.Changed, Fault: done.Fault, Was: done.Was, Free: done.Free,
		Records: int(done.Records), Permits: done.Permits, Blocked: done.Blocked,
	}, err
}
