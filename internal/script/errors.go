package script

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// Errors that callers match; the root package exports and documents them.
var (
	ErrNotInitialized = errors.New("rratelimiter: rate limiter is not initialized")
	ErrOutcomeUnknown = errors.New("rratelimiter: the call may or may not have been served")
	ErrUnavailable    = errors.New("rratelimiter: Redis could not be reached, did not answer in time, or cannot serve now")
	ErrCrossSlotName  = errors.New("rratelimiter: the keys are in different cluster slots, or on different shards")
)

// ErrUntold is the ErrOutcomeUnknown of a call whose earlier attempt can no longer be found.
var ErrUntold = Unknown(errors.New("the retry could not find out what the first attempt was granted"))

// ErrUnsent means that Redis was not asked.
var ErrUnsent = errors.New("the call was not made because all its callers were cancelled")

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

// Unknown returns ErrOutcomeUnknown with a cause.
func Unknown(err error) error { return doubtful{err} }

// Failure converts the error of a call to the error that its caller gets. If Redis was not reached,
// that is the error of ctx once the caller's context ctx has ended, else ErrUnavailable. timeout is
// the duration that the call was given.
func Failure(ctx context.Context, timeout time.Duration, err error) error {
	switch {
	case !Unreachable(err):
		return err
	case ctx.Err() != nil && errors.Is(err, ErrOutcomeUnknown):
		return Unknown(ctx.Err())
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, ErrUnavailable):
		return err
	}
	if cause := useful(err); cause != nil {
		return unavailable{cause: cause}
	}
	return unavailable{cause: Late(timeout)}
}

// useful returns the part of an error that is not a context error, or nil if there is none. The
// caller's context has not ended at that point, and the contexts with which this package and
// go-redis bound calls are internal.
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

// A Late is the error of a call that had no reply for this long.
type Late time.Duration

func (l Late) Error() string { return fmt.Sprintf("no answer within %v", time.Duration(l)) }

func (Late) Unwrap() error { return os.ErrDeadlineExceeded }

// IsAnswer reports whether an error is a server's reply.
func IsAnswer(err error) bool {
	var answer redis.Error
	return errors.As(err, &answer)
}

// notNow are the errors with which servers refuse a command that they may serve soon: they load
// their data, are not or no longer a master, miss a part of the cluster, move a slot, disagree
// about it, or have too many clients.
var notNow = []string{
	"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", disagreed, "max number of clients",
}

// disagreed begins the error of a command that the nodes of a cluster have redirected more often
// than MaxRedirects of the Redis client allows.
const disagreed = "the nodes of the cluster disagree about a slot"

// Says reports whether an error is a server's reply that begins with one of the words.
func Says(err error, words ...string) bool {
	return slices.ContainsFunc(words, func(word string) bool { return redis.HasErrorPrefix(err, word) })
}

// Unreachable reports whether a call failed because Redis cannot be reached or cannot serve any
// client now: the network failed, no reply or no connection came in time, or the server replied
// that it is loading, is busy, has too many clients, is a replica, or is part of a cluster that is
// down or disagrees about a slot. A server's error about a limiter, memory or access rights is a
// reply. A closed Redis client stays closed, so redis.ErrClosed does not count either.
func Unreachable(err error) bool {
	if err == nil || errors.Is(err, redis.ErrClosed) || errors.Is(err, ErrNotInitialized) || errors.Is(err, ErrUntold) {
		return false
	}
	return !IsAnswer(err) || errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted) ||
		Says(err, notNow...) || Says(err, "BUSY")
}

// IsOfSlot reports whether an error for which Unreachable is true concerns one slot alone, while
// its node works: the slot is being moved, no node has it, or the nodes disagree about it.
func IsOfSlot(err error) bool { return Says(err, "TRYAGAIN", "CLUSTERDOWN Hash slot", disagreed) }

// IsOfNode reports whether an error for which Unreachable is true tells that the node is away: it
// concerns neither one slot alone nor a command that was not written because its call, or another
// one in the pipeline, was over.
func IsOfNode(err error) bool { return !IsOfSlot(err) && !errors.Is(err, errClosed) }

// IsThere reports whether the end of a call shows that its node can be reached.
func IsThere(err error) bool { return !Unreachable(err) || IsOfSlot(err) }

// ServerError turns a server's error into one of this package where there is one.
func ServerError(err error) error {
	if err == nil {
		return nil
	}
	if err = scriptError(err); redis.HasErrorPrefix(err, "CROSSSLOT") {
		err = fmt.Errorf("%w: %w", ErrCrossSlotName, err)
	}
	return err
}

// A wrapped is the error of a command in a script on Redis before 7.0 and on miniredis, without the
// words that these put before it: redis.HasErrorPrefix looks for the code ("WRONGTYPE") at the
// start. An error that a script detects itself has the same form, with a nil error inside.
type wrapped struct {
	error
	text string
}

// Said returns the error for what a script found out itself, in the form of a server's error: it
// begins with a code.
func Said(text string) error { return wrapped{text: text} }

func (w wrapped) Error() string { return w.text }
func (w wrapped) RedisError()   {}
func (w wrapped) Unwrap() error { return w.error }

var inScript = regexp.MustCompile(`(?s)^ERR Error .*?: ?\d+: -?([A-Z]{3,} .*?)(?:\s*stack traceback:.*)?$`)

func scriptError(err error) error {
	if found := inScript.FindStringSubmatch(err.Error()); found != nil {
		return wrapped{err, found[1]}
	}
	return err
}
