package rratelimiter

import (
	"errors"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// Errors that methods return; match them with errors.Is. The error of a method wraps one of these
// errors, or the error of the Redis client, and adds the operation and the limiter's name.
var (
	// ErrNotInitialized means that the limiter has no rate, or an invalid one. The text names the
	// missing or invalid field. SetRate sets the rate in both cases. TrySetRate and WithRate set
	// missing fields, but do not replace invalid ones.
	ErrNotInitialized = script.ErrNotInitialized
	// ErrExceedsRate means that one request asked for more permits than the rate has. At a rate of
	// 0, any request does. This error is a refusal, not a failure of Redis.
	ErrExceedsRate = schedule.ErrExceedsRate
	// ErrInvalidPermits means that a request asked for fewer than one permit (Release, Return,
	// Charge, ChargeAll, Settle: fewer than zero), or that AllowAllN, AcquireAllN, TakeAll,
	// ChargeAll or GrantAll.Settle got slices of different lengths.
	ErrInvalidPermits = errors.New("rratelimiter: invalid number of permits")
	// ErrDebtBound means that Charge, ChargeAll or Settle counted fewer permits than were used,
	// because the debt is as large as [WithMaxDebt] allows. The text has the number that was
	// counted. The other results of the method are valid.
	ErrDebtBound = errors.New("rratelimiter: the debt has reached its bound")
	// ErrInvalidRate means that a Rate cannot be set. The text names the invalid field.
	ErrInvalidRate = errors.New("rratelimiter: invalid rate")
	// ErrInvalidOption means that an option or an argument is invalid. NewClient and RateLimiter
	// return no error. If one of their options is invalid, every method of the limiter returns
	// ErrInvalidOption.
	ErrInvalidOption = errors.New("rratelimiter: invalid option")
	// ErrOutcomeUnknown means that Redis may have executed a call whose reply the caller did not
	// get. The most frequent cause is that the caller's context ended while the call was in flight:
	// the error then wraps both ctx.Err() and ErrOutcomeUnknown. Otherwise the reply was lost. Then
	// no retry was answered within WithCallTimeout, or a retry could not find out what the earlier
	// attempt was granted, or there was no retry because it could have taken permits twice. Permits
	// may be taken that no caller received. ErrOutcomeUnknown wraps the cause. If no call carried
	// the request yet, the error is only the cause, without ErrOutcomeUnknown.
	ErrOutcomeUnknown = script.ErrOutcomeUnknown
	// ErrUnavailable means that Redis could not be reached, that no connection or no reply came
	// within WithCallTimeout, or that the server replied with one of these errors: LOADING, BUSY,
	// READONLY, MASTERDOWN, CLUSTERDOWN, TRYAGAIN, or "max number of clients reached", or that
	// nodes of a cluster disagree about a slot: the call got MOVED or ASK more often than
	// MaxRedirects of the Redis client allows. ErrUnavailable wraps the cause. With WithFallback,
	// the process decides acquiring calls instead, if it can (see there). If the caller's context
	// has ended, the error is ctx.Err() instead of ErrUnavailable.
	ErrUnavailable = script.ErrUnavailable
	// ErrCrossSlotName means that the keys that Redisson derives from a name are in different slots
	// of the cluster, or on a Ring have different hash tags, so the name cannot be used. It also
	// means this for the two names of a Rename. The keys of a name without braces, or with a
	// complete hash tag ("{tag}x"), are always together.
	ErrCrossSlotName = script.ErrCrossSlotName
)

// A NotInTimeError means that the records in Redis show that the permits of a caller of Acquire or
// AcquireAll cannot be free before the deadline of its context (see [WithFailFast]). Nothing was
// taken, unless a *[PartlyTakenError] wraps it. It does not match context.DeadlineExceeded: the
// context has not ended.
type NotInTimeError struct {
	// the earliest time at which the caller can have its permits, by the client's clock (WithClock)
	At time.Time
}

// Error returns a text with the time.
func (e *NotInTimeError) Error() string { return schedule.NotInTimeError{At: e.At}.Error() }

// A PartlyTakenError means that Acquire took some of its permits in instalments (see
// [WithInstalments]), and then ended with an error, which it wraps: that of the context, of a call
// to Redis, or a *[NotInTimeError].
type PartlyTakenError struct {
	Taken int64 // permits that were taken
	Err   error
}

// Error returns a text with the number of permits.
func (e *PartlyTakenError) Error() string {
	return fmt.Sprintf("%d permits were taken before: %v", e.Taken, e.Err)
}

// Unwrap returns the error that ended the call.
func (e *PartlyTakenError) Unwrap() error { return e.Err }

// wrap adds the operation and the limiter's name to an error.
func wrap(operation, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", operation, keys.Quoted(name), err)
}

func invalidOption(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalidOption, fmt.Sprintf(format, args...))
}

// asOption wraps an error, such as ErrInvalidRate, in ErrInvalidOption.
func asOption(err error) error {
	if errors.Is(err, ErrInvalidOption) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrInvalidOption, err)
}

func invalidRate(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalidRate, fmt.Sprintf(format, args...))
}
