package rratelimiter

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"
)

// Errors that methods return, to be matched with errors.Is. An error of a method wraps one of these, or the error of
// the Redis client, and adds the operation and the limiter's name.
var (
	// ErrNotInitialized means that the limiter has no rate, or an invalid one. The text names the missing or invalid
	// field. Set the rate with SetRate; TrySetRate and WithRate help only where fields are missing.
	ErrNotInitialized = errors.New("rratelimiter: rate limiter is not initialized")
	// ErrExceedsRate means that one request asked for more permits than the rate has.
	ErrExceedsRate = errors.New("rratelimiter: requested permits exceed the rate")
	// ErrInvalidPermits means that a request asked for fewer than one permit (Release: fewer than zero), or that
	// AllowAllN got slices of different lengths.
	ErrInvalidPermits = errors.New("rratelimiter: permits must be positive")
	// ErrInvalidRate means that a Rate cannot be set. The text names the invalid field.
	ErrInvalidRate = errors.New("rratelimiter: invalid rate")
	// ErrInvalidOption means that an option or argument is invalid. NewClient and RateLimiter return no error: if one
	// of their options is invalid, every method of the limiter returns ErrInvalidOption.
	ErrInvalidOption = errors.New("rratelimiter: invalid option")
	// ErrOutcomeUnknown means that Redis may have executed a call whose reply was lost. The call could not be retried
	// within WithCallTimeout, or a retry might have taken effect twice. So permits may be taken that no caller
	// received. It wraps the cause. If the call was never sent, the error is the cause alone.
	ErrOutcomeUnknown = errors.New("rratelimiter: the call may or may not have been served")
	// ErrUnavailable means that Redis could not be reached, did not answer within WithCallTimeout, or cannot serve any
	// client now: it is loading, busy, out of client connections, a replica, or part of a cluster that is down. It
	// wraps the cause. With WithFallback the process decides instead, where it can. If the caller's context has ended,
	// its error is returned instead of ErrUnavailable.
	ErrUnavailable = errors.New("rratelimiter: Redis could not be reached, or did not answer in time")
	// ErrCrossSlotName means that a name cannot be used on this cluster, because the keys that Redisson derives from it
	// are in different slots; or that the two names of a Rename are. Keys of names without braces, and of names with a
	// complete hash tag ("{tag}x"), are always in one slot.
	ErrCrossSlotName = errors.New("rratelimiter: the keys of this name lie in different cluster slots")
)

// wrap adds the operation and the limiter's name to an error.
func wrap(operation, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", operation, quoted(name), err)
}

// An unavailable is ErrUnavailable with its cause. late is set if the call also timed out.
type unavailable struct{ cause, late error }

func (u unavailable) Error() string { return fmt.Sprintf("%v: %v", ErrUnavailable, u.cause) }

func (u unavailable) Unwrap() []error {
	if u.late == nil {
		return []error{ErrUnavailable, u.cause}
	}
	return []error{ErrUnavailable, u.cause, u.late}
}

// A doubtful is ErrOutcomeUnknown with its cause.
type doubtful struct{ cause error }

func (d doubtful) Error() string {
	cause := d.cause
	if u, ok := cause.(unavailable); ok {
		cause = u.cause
	}
	return fmt.Sprintf("%v: %v", ErrOutcomeUnknown, cause)
}

func (d doubtful) Unwrap() []error { return []error{ErrOutcomeUnknown, d.cause} }

// unknown returns ErrOutcomeUnknown with a cause.
func unknown(err error) error { return doubtful{err} }

// failure converts the error of a call to the error that its caller gets. If Redis was not reached, that is the error
// of ctx once the caller's context ctx has ended, else ErrUnavailable. timeout is the duration that the call was given.
func failure(ctx context.Context, timeout time.Duration, err error) error {
	switch {
	case !unreachable(err):
		return err
	case ctx.Err() != nil && errors.Is(err, ErrOutcomeUnknown):
		return unknown(ctx.Err())
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, ErrUnavailable):
		return err
	}
	if cause := useful(err); cause != nil {
		return unavailable{cause: cause}
	}
	return unavailable{cause: late(timeout)}
}

// useful returns the part of an error that is not a context error, or nil if there is none. The caller's context has
// not ended at that point, and the contexts with which this package and go-redis bound calls are internal.
func useful(err error) error {
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		return err
	}
	switch e := err.(type) {
	case *net.OpError: // errors.Is treats a network timeout as context.DeadlineExceeded
		if e.Timeout() {
			return &net.OpError{Op: e.Op, Net: e.Net, Source: e.Source, Addr: e.Addr, Err: os.ErrDeadlineExceeded}
		}
		return useful(e.Err)
	case interface{ Unwrap() error }:
		return useful(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, part := range e.Unwrap() {
			if cause := useful(part); cause != nil {
				return cause
			}
		}
	}
	return nil
}

// quoted quotes a name for an error text: on one line, and at most its first 200 bytes.
func quoted(name string) string {
	const most = 200
	if len(name) <= most {
		return strconv.Quote(name)
	}
	return fmt.Sprintf("%q... (%d bytes)", name[:most], len(name))
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
