package rratelimiter

import (
	"errors"
	"fmt"

	"github.com/rratelimiter/rratelimiter/internal/dispatch"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// Errors that methods return, to be matched with errors.Is. An error of a method wraps one of these, or the error of
// the Redis client, and adds the operation and the limiter's name.
var (
	// ErrNotInitialized means that the limiter has no rate, or an invalid one. The text names the missing or invalid
	// field. Set the rate with SetRate; TrySetRate and WithRate help only where fields are missing.
	ErrNotInitialized = script.ErrNotInitialized
	// ErrExceedsRate means that one request asked for more permits than the rate has.
	ErrExceedsRate = dispatch.ErrExceedsRate
	// ErrInvalidPermits means that a request asked for fewer than one permit (Release: fewer than zero), or that
	// AllowAllN or TakeAll got slices of different lengths.
	ErrInvalidPermits = errors.New("rratelimiter: permits must be positive")
	// ErrInvalidRate means that a Rate cannot be set. The text names the invalid field.
	ErrInvalidRate = errors.New("rratelimiter: invalid rate")
	// ErrInvalidOption means that an option or argument is invalid. NewClient and RateLimiter return no error: if one
	// of their options is invalid, every method of the limiter returns ErrInvalidOption.
	ErrInvalidOption = errors.New("rratelimiter: invalid option")
	// ErrOutcomeUnknown means that Redis may have executed a call whose reply was lost. The call could not be retried
	// within WithCallTimeout, or a retry might have taken effect twice. So permits may be taken that no caller
	// received. It wraps the cause. If the call was never sent, the error is the cause alone.
	ErrOutcomeUnknown = script.ErrOutcomeUnknown
	// ErrUnavailable means that Redis could not be reached, did not answer within WithCallTimeout, or cannot serve any
	// client now: it is loading, busy, out of client connections, a replica, or part of a cluster that is down. It
	// wraps the cause. With WithFallback the process decides instead, where it can. If the caller's context has ended,
	// its error is returned instead of ErrUnavailable.
	ErrUnavailable = script.ErrUnavailable
	// ErrCrossSlotName means that a name cannot be used on this cluster, because the keys that Redisson derives from it
	// are in different slots; or that the two names of a Rename are. Keys of names without braces, and of names with a
	// complete hash tag ("{tag}x"), are always in one slot.
	ErrCrossSlotName = script.ErrCrossSlotName
)

// wrap adds the operation and the limiter's name to an error.
func wrap(operation, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", operation, dispatch.Quoted(name), err)
}

func invalidOption(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalidOption, fmt.Sprintf(format, args...))
}

// asOption makes an ErrInvalidOption of another error, such as that of an invalid rate.
func asOption(err error) error {
	if errors.Is(err, ErrInvalidOption) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrInvalidOption, err)
}

func invalidRate(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalidRate, fmt.Sprintf(format, args...))
}
