package protocol

import (
	"errors"
	"fmt"
	"strings"

	"github.com/rratelimiter/rratelimiter/internal/script"
)

// ErrOtherRate means that another rate than the one to enforce is in force.
var ErrOtherRate = errors.New("rratelimiter: another rate is in force")

// ErrNotPlain means that a request needs a command of its own: acquiremany.lua makes only plain
// grants.
var ErrNotPlain = errors.New("rratelimiter: the request is no plain grant")

// ErrNotNow means the same, but only for now: too few permits are free, or many records have
// expired.
var ErrNotNow = errors.New("rratelimiter: the request is no plain grant now")

// statusError returns the error for the status with which a script refuses; nil for 0.
func statusError(status int64) error {
	const (
		otherRate = 8
		untold    = 9 // the grant of an earlier attempt of the call can no longer be determined
		notPlain  = 10
		notNow    = 11
	)
	switch status {
	case 0:
		return nil
	case otherRate:
		return ErrOtherRate
	case untold:
		return script.ErrUntold
	case notPlain:
		return ErrNotPlain
	case notNow:
		return ErrNotNow
	}
	what := [...]string{
		1: "it has no rate", 2: "its rate is missing", 3: "its interval is missing", 4: "its type is missing",
		5: "its rate is no whole number",
		6: "its interval is no positive whole number",
		7: "its type is neither 0 nor 1",
	}
	if status < 1 || status >= int64(len(what)) {
		return script.Said(fmt.Sprintf("ERR unknown status %d in the reply of a script", status))
	}
	return fmt.Errorf("%w: %s", script.ErrNotInitialized, what[status])
}

// statusOf is statusError for the reply to an attempt. With ErrOtherRate, ErrNotPlain and ErrNotNow
// the attempt had no effect.
func statusOf(a *script.Attempts, status int64) error {
	err := statusError(status)
	if err == ErrOtherRate || err == ErrNotPlain || err == ErrNotNow {
		a.NotExecuted()
	}
	return err
}

// Notes are bits in a reply, as in lua/shared/base.lua; Local is not used by scripts.
type Notes int64

// The notes.
const (
	More           Notes = 256     // expired records remain
	RebuildPending Notes = 512     // the free permits must be rebuilt once these are removed
	RateMismatch   Notes = 1024    // another rate than the caller's is in force
	ForeignWriter  Notes = 2048    // a live record was not written by a Go client
	Many           Notes = 4096    // there are too many live records to add up in one call
	KeepAlive      Notes = 8192    // the limiter has a keep-alive; only after a refusal
	Local          Notes = 1 << 30 // this process made the reply, and not Redis
)

// Has reports whether any of some notes is set.
func (n Notes) Has(some Notes) bool { return n&some != 0 }

// repairs are the notes about repairs, with their texts.
var repairs = []struct {
	note Notes
	text string
}{
	{1, "free permits were missing"},
	{2, "free permits were no whole number"},
	{4, "free permits were negative"},
	{8, "free permits were above the rate"},
	{16, "free and expired permits together were more than the rate"},
	{32, "there were no records, but free permits differed from the rate"},
	{64, "free permits and those in records together were less than the rate"},
	{128, "free permits and those in records together were more than the rate"},
}

// Repaired returns the texts of the repairs that a script made; "" if it made none.
func (n Notes) Repaired() string {
	var texts []string
	for _, r := range repairs {
		if n&r.note != 0 {
			texts = append(texts, r.text)
		}
	}
	return strings.Join(texts, ", ")
}
