package survey

import (
	"errors"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
)

// Tolerable reports whether an error concerns only one limiter, so that others can be read.
func Tolerable(err error) bool {
	return errors.Is(err, rratelimiter.ErrNotInitialized) || errors.Is(err, rratelimiter.ErrCrossSlotName) ||
		IsWrongType(err)
}

// absent is the error for a limiter that does not exist, or that can't be used: ErrNotInitialized,
// in other words.
type absent string

func (a absent) Error() string { return string(a) }

// Is reports whether the error is the library's.
func (a absent) Is(target error) bool { return target == rratelimiter.ErrNotInitialized }

// Absent returns the error for a limiter that does not exist, or that can't be used for a reason.
func Absent(name, reason string) error {
	if reason != "" && reason != NoRate {
		return absent(render.Printable(name) + " can't be used: " + reason)
	}
	return absent("there is no limiter " + render.Printable(name))
}

// NoRate is the reason for a limiter without a configuration.
const NoRate = "it has no rate"

// IsWrongType reports whether an error means that another program uses a key of a limiter.
func IsWrongType(err error) bool {
	return connect.HasPrefix(err, "WRONGTYPE")
}
