package rratelimiter

import (
	"errors"
	"fmt"
	"strconv"
)

// What can go wrong, to be matched with errors.Is. Errors of methods wrap one of these, or the error of the Redis
// client, with the operation and the limiter's name.
var (
	// ErrNotInitialized says that the limiter has no rate, or one that can't be used; the message tells which part is
	// missing or wrong. TrySetRate, SetRate or WithRate help.
	ErrNotInitialized = errors.New("rratelimiter: rate limiter is not initialized")
	// ErrExceedsRate says that more permits were asked for at once than the rate ever grants.
	ErrExceedsRate = errors.New("rratelimiter: requested permits exceed the rate")
	// ErrInvalidPermits says that fewer permits than one were asked for.
	ErrInvalidPermits = errors.New("rratelimiter: permits must be positive")
	// ErrInvalidRate says that a Rate can't be set; the message tells which part of it is wrong.
	ErrInvalidRate = errors.New("rratelimiter: invalid rate")
	// ErrInvalidOption says that an option of NewClient or RateLimiter was wrong. Constructors return no error: every
	// method of what they made returns it.
	ErrInvalidOption = errors.New("rratelimiter: invalid option")
	// ErrOutcomeUnknown says that Redis may have served a call whose answer did not arrive, and which could not be made
	// again within its time (WithCallTimeout), or not without doing twice what it does: so permits may be spent that
	// nobody got. The cause is wrapped, too. A call that never reached Redis is not in doubt: its error is the cause.
	ErrOutcomeUnknown = errors.New("rratelimiter: the call may or may not have been served")
	// ErrCrossSlotName says that a name can't be used on this cluster, since Redisson's names of its keys lie in
	// different slots. Names without braces, and names with a whole hash tag ("{tag}x"), don't have this trouble.
	ErrCrossSlotName = errors.New("rratelimiter: the keys of this name lie in different cluster slots")
)

// wrap adds to an error the operation and the limiter that it happened to.
func wrap(operation, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", operation, quoted(name), err)
}

// quoted is a name as an error shows it: in one line, and not all of it where it is long.
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

// asOption makes the error of a wrong option out of any other, such as that of a wrong rate.
func asOption(err error) error {
	if errors.Is(err, ErrInvalidOption) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrInvalidOption, err)
}

func invalidRate(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalidRate, fmt.Sprintf(format, args...))
}
