package script

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// attempts.go knows whether Redis may have executed a call. So it says which failed calls can be
// repeated. What makes a repeated call harmless is that its script looks for the records of an
// earlier attempt (lua/shared/find_attempt.lua).

// An Attempts tracks all attempts of one call: may Redis have executed one? It is passed as an
// argument of the command (of a script: the number of keys), so it sees when the command is
// written. A call that was never written was not executed.
type Attempts struct {
	marks atomic.Uint32 // of the constants below
	count atomic.Int32  // attempts so far
	text  []byte        // the argument, set by NewAttempts or the first Begin
	// cause of the last failure without a reply that has a useful cause
	last atomic.Pointer[error]
	// the process decides if Redis surely did not execute the call: no retry then
	NoRetryIfUnsent bool
}

const (
	// the last attempt was written, at least in part, and may have been executed
	markSent   = 1 << iota
	markDoubt  // an earlier attempt may have been executed
	markClosed // the call is over: nothing is written any more
)

// NewAttempts returns the Attempts of a command that runs no script. It takes the place of an
// argument of the command.
func NewAttempts(argument string) *Attempts { return &Attempts{text: []byte(argument)} }

// MarshalBinary returns the argument. The Redis client calls it when it writes the command.
func (a *Attempts) MarshalBinary() ([]byte, error) {
	if a.marks.Or(markSent)&markClosed != 0 {
		return nil, errClosed
	}
	return a.text, nil
}

// String returns the argument, for logs of commands.
func (a *Attempts) String() string { return string(a.text) }

// Count returns the number of attempts so far.
func (a *Attempts) Count() int { return int(a.count.Load()) }

// A Shared is the number of keys of a command that several calls share. It tells the Attempts of
// each that the command is written.
type Shared struct {
	calls []*Attempts
	text  []byte
}

// NewShared returns the number of keys of a command that calls share.
func NewShared(keys int, calls []*Attempts) *Shared { return &Shared{calls, countText(keys)} }

// MarshalBinary returns the argument. If one of the calls is over, the command is not written.
// Again then lets the others be repeated.
func (s *Shared) MarshalBinary() ([]byte, error) {
	for i, a := range s.calls {
		if _, err := a.MarshalBinary(); err != nil {
			for _, before := range s.calls[:i+1] {
				before.NotExecuted()
			}
			return nil, err
		}
	}
	return s.text, nil
}

// String returns the argument, for logs of commands.
func (s *Shared) String() string { return string(s.text) }

var errClosed = errors.New("rratelimiter: the time for the call is over")

// Begin counts one more attempt, for a script on so many keys.
func (a *Attempts) Begin(keys int) {
	if a.text == nil {
		a.text = countText(keys)
	}
	a.count.Add(1)
	a.NotExecuted()
}

// digits has the most frequent numbers of keys.
var digits = []byte("0123456789")

func countText(keys int) []byte {
	if keys < len(digits) {
		return digits[keys : keys+1]
	}
	return strconv.AppendInt(nil, int64(keys), 10)
}

// End notes how an attempt ended. It may have been executed if it was written and no server
// replied. After a reply without an error markSent stays: the time of the caller may end before the
// reply reaches it.
func (a *Attempts) End(err error) {
	if err == nil {
		return
	}
	if !IsAnswer(err) {
		if a.marks.Load()&markSent != 0 {
			a.marks.Or(markDoubt) // before markSent is cleared, as Outcome may be called at the same time
		}
		if cause := useful(err); cause != nil {
			a.last.Store(&cause)
		}
	}
	a.NotExecuted()
}

// Sent reports whether the last attempt was written, at least in part, and has not failed.
func (a *Attempts) Sent() bool { return a.marks.Load()&markSent != 0 }

// NotExecuted notes that the last attempt had no effect.
func (a *Attempts) NotExecuted() { a.marks.And(^uint32(markSent)) }

// MaybeExecuted reports whether an attempt that ended may have been executed.
func (a *Attempts) MaybeExecuted() bool { return a.marks.Load()&markDoubt != 0 }

// Explain adds to the timeout error of a call the cause for which its last attempt failed.
func (a *Attempts) Explain(err error) error {
	last := a.last.Load()
	if last == nil {
		return err
	}
	var late Late
	if !errors.As(err, &late) {
		return err
	}
	return unavailable{*last, late}
}

// Outcome closes a call that takes permits, or is not idempotent for another reason, and returns
// its final error: ErrOutcomeUnknown with the cause if Redis may have executed it.
// ErrNotInitialized proves that it had no effect.
func (a *Attempts) Outcome(err error) error {
	marks := a.marks.Or(markClosed)
	err = a.Explain(err)
	if err == nil || marks&(markSent|markDoubt) == 0 || errors.Is(err, ErrNotInitialized) ||
		errors.Is(err, ErrOutcomeUnknown) {
		return err
	}
	return Unknown(err)
}

// Again reports whether a call is to be repeated after its last attempt ended with err. Once an
// attempt may have been executed, only an idempotent call is: one that may be executed twice, or
// whose next attempt finds the effect of the earlier one. A script that refuses because of the
// limiter has decided.
func (a *Attempts) Again(err error, idempotent bool) bool {
	if err == nil || errors.Is(err, ErrOutcomeUnknown) || errors.Is(err, ErrNotInitialized) {
		return false
	}
	if errors.Is(err, errClosed) { // perhaps of another call in the pipeline: the Redis client sets it on all commands
		return a.marks.Load()&markClosed == 0 && (idempotent || !a.MaybeExecuted())
	}
	if a.NoRetryIfUnsent && !a.MaybeExecuted() {
		return false
	}
	if IsAnswer(err) {
		return (Says(err, notNow...) || Says(err, "NOREPLICAS")) && (idempotent || !a.MaybeExecuted())
	}
	if a.MaybeExecuted() {
		return idempotent && !errors.Is(err, redis.ErrClosed)
	}
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted)
}

// The pause before a retry doubles from shortestPause to longestPause, and is up to a quarter
// shorter at random.
const (
	shortestPause = 8 * time.Millisecond
	longestPause  = 250 * time.Millisecond
)

// A Backoff makes the pauses between the attempts of one call.
type Backoff struct {
	pause time.Duration // the last one, before jitter
	ended time.Time     // when it ended and an attempt began; zero before the first pause
}

// Rest waits before the next attempt. It returns false if ctx ends. If the pause and an attempt
// that takes as long as the last one would end after ctx, it returns false at once: so a call
// returns the server's last error, not a timeout.
func (b *Backoff) Rest(ctx context.Context) bool {
	b.pause = min(max(2*b.pause, shortestPause), longestPause)
	needed := b.pause - rand.N(b.pause/4)
	pause := needed
	if !b.ended.IsZero() {
		needed += time.Since(b.ended)
	}
	if until, bounded := ctx.Deadline(); bounded && time.Until(until) <= needed {
		return false
	}
	rested := Sleep(ctx, pause) == nil
	b.ended = time.Now()
	return rested
}

// Sleep waits for a time, 0 or less is none, or until ctx ends.
func Sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
