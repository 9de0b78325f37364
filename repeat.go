package rratelimiter

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rratelimiter/rratelimiter/internal/keys"
)

// Retries: which failed calls are made again, after which pause, and whether a call that failed for good may have been
// executed. This file does not know what a call does.

// An attempts tracks all attempts of one call: may Redis have executed one? It is an argument of the command itself,
// the number of keys, and so sees when the command is written. A call that was never written was not executed.
type attempts struct {
	marks           atomic.Uint32         // of the constants below
	count           atomic.Int32          // attempts so far
	text            []byte                // the argument, set before the first attempt
	last            atomic.Pointer[error] // cause of the last failure without a reply that has a useful cause
	noRetryIfUnsent bool                  // the process decides if Redis surely did not execute the call: no retry then
}

const (
	markSent   = 1 << iota // the last attempt was written, at least in part, and may have been executed
	markDoubt              // an earlier attempt may have been executed
	markClosed             // the call is over: nothing is written any more
)

// textOfKeyCount is attempts.text for a script on one limiter.
var textOfKeyCount = strconv.AppendInt(nil, keys.Count, 10)

// MarshalBinary returns the argument. The Redis client calls it when it writes the command.
func (t *attempts) MarshalBinary() ([]byte, error) {
	if t.marks.Or(markSent)&markClosed != 0 {
		return nil, errClosedAttempts
	}
	return t.text, nil
}

// String returns the argument, for logs of commands.
func (t *attempts) String() string { return string(t.text) }

var errClosedAttempts = errors.New("rratelimiter: the time for the call is over")

// begin counts one more attempt.
func (t *attempts) begin() {
	t.count.Add(1)
	t.notExecuted()
}

// end notes how an attempt ended. It may have been executed if it was written and no server replied. After a reply
// without an error markSent stays: the time of the caller may end before the reply reaches it.
func (t *attempts) end(err error) {
	if err == nil {
		return
	}
	if !isAnswer(err) {
		if t.marks.Load()&markSent != 0 {
			t.marks.Or(markDoubt) // before markSent is cleared, as outcome may be called at the same time
		}
		if cause := useful(err); cause != nil {
			t.last.Store(&cause)
		}
	}
	t.notExecuted()
}

// notExecuted notes that the last attempt had no effect.
func (t *attempts) notExecuted() { t.marks.And(^uint32(markSent)) }

// maybeExecuted reports whether an attempt that ended may have been executed.
func (t *attempts) maybeExecuted() bool { return t.marks.Load()&markDoubt != 0 }

// explain adds to the timeout error of a call the cause for which its last attempt failed.
func (t *attempts) explain(err error) error {
	last := t.last.Load()
	if last == nil {
		return err
	}
	var late late
	if !errors.As(err, &late) {
		return err
	}
	return unavailable{*last, late}
}

// outcome closes a call that takes permits, or is not idempotent for another reason, and returns its final error:
// ErrOutcomeUnknown with the cause if Redis may have executed it. ErrNotInitialized proves that it had no effect.
func (t *attempts) outcome(err error) error {
	marks := t.marks.Or(markClosed)
	err = t.explain(err)
	if err == nil || marks&(markSent|markDoubt) == 0 || errors.Is(err, ErrNotInitialized) || errors.Is(err, ErrOutcomeUnknown) {
		return err
	}
	return unknown(err)
}

// isAnswer reports whether an error is a server's reply.
func isAnswer(err error) bool {
	var answer redis.Error
	return errors.As(err, &answer)
}

// notNow are the errors with which servers refuse a command that they may serve soon: they load their data, are not or
// no longer a master, miss a part of the cluster, move a slot, or have too many clients.
var notNow = []string{"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "max number of clients"}

// says reports whether an error is a server's reply that begins with one of the words.
func says(err error, words ...string) bool {
	return slices.ContainsFunc(words, func(word string) bool { return redis.HasErrorPrefix(err, word) })
}

// again reports whether a call is to be repeated after its last attempt ended with err. Once an attempt may have been
// executed, only an idempotent call is: one that may be executed twice, or whose next attempt finds the effect of the
// earlier one.
func (t *attempts) again(err error, idempotent bool) bool {
	if err == nil || errors.Is(err, ErrOutcomeUnknown) || t.noRetryIfUnsent && !t.maybeExecuted() {
		return false
	}
	if isAnswer(err) {
		return (says(err, notNow...) || says(err, "NOREPLICAS")) && (idempotent || !t.maybeExecuted())
	}
	if t.maybeExecuted() {
		return idempotent && !errors.Is(err, redis.ErrClosed) && !errors.Is(err, errClosedAttempts)
	}
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted)
}

// The pause before a retry doubles from shortestPause to longestPause, and is up to a quarter shorter at random.
const (
	shortestPause = 8 * time.Millisecond
	longestPause  = 250 * time.Millisecond
)

// A backoff is the last pause of one call before jitter.
type backoff time.Duration

// rest waits before the next attempt. It returns false if ctx ends, or, at once, if ctx has no time left for an attempt
// after the pause.
func (p *backoff) rest(ctx context.Context) bool {
	*p = min(max(2**p, backoff(shortestPause)), backoff(longestPause))
	pause := time.Duration(*p)
	pause -= rand.N(pause / 4)
	if until, bounded := ctx.Deadline(); bounded && time.Until(until) <= pause {
		return false
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// reloadTopology makes a cluster client reload its nodes after an attempt that no node answered.
func (c *Client) reloadTopology(ctx context.Context, err error) {
	if cluster, ok := c.rdb.(*redis.ClusterClient); ok && !isAnswer(err) {
		cluster.ReloadState(ctx)
	}
}

// retry makes attempts of a call until one is final. If one may have been executed, it goes on only if the call is
// idempotent.
func (c *Client) retry(ctx context.Context, t *attempts, idempotent bool, attempt func() error) error {
	var pauses backoff
	for {
		err := attempt()
		if !t.again(err, idempotent) {
			return err
		}
		c.reloadTopology(ctx, err)
		if !pauses.rest(ctx) {
			return err
		}
	}
}
