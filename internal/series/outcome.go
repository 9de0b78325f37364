package series

import (
	"context"
	"errors"

	"github.com/rratelimiter/rratelimiter"
)

// outcome.go tells what became of calls and requests, so that all metrics count it alike.

// GuardOutcomes are the outcomes that a rratelimiter.GuardInfo may have.
var GuardOutcomes = [...]string{"unlimited", "allowed", "denied", "shadowed", "failed open", "failed closed",
	"allowed locally", "denied locally", "shadowed locally", "gone"}

// Answered tells whether a call or a request had an answer, given its error. ErrExceedsRate,
// ErrDebtBound and a NotInTimeError count as answers.
func Answered(err error) bool {
	var late *rratelimiter.NotInTimeError
	return err == nil || errors.Is(err, rratelimiter.ErrExceedsRate) || errors.Is(err, rratelimiter.ErrDebtBound) ||
		errors.As(err, &late)
}

// Charged tells whether a request charged permits. They count as charged, and not as granted.
func Charged(info rratelimiter.RequestInfo) bool {
	return (info.Method == "Charge" || info.Method == "ChargeAll") && Answered(info.Err)
}

// Left tells whether a request has no answer because its waiting caller had gone, while no call for
// it was in flight.
func Left(ctx context.Context, info rratelimiter.RequestInfo) bool {
	return info.Waits && ctx.Err() != nil && !errors.Is(info.Err, rratelimiter.ErrOutcomeUnknown)
}
