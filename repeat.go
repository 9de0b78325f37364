package rratelimiter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// repeat.go decides which calls that failed are made again, how long that waits, and what a call that failed for good
// leaves in doubt. It knows nothing of what calls do.

// A trail is what is known of one call, over all its attempts: may Redis have served one of them? It goes with the command
// as one of its arguments, so that it sees when that is written: a call that never was is not in doubt.
type trail struct {
	marks    atomic.Uint32
	attempts atomic.Int32
	text     []byte                // of the argument
	last     atomic.Pointer[error] // why the last attempt that no server answered failed
	hasty    bool                  // somebody else answers where Redis surely did not serve the call, so that is not made again
}

const (
	markSent   = 1 << iota // the last attempt was written, at least in part, and it is not known to have done nothing
	markDoubt              // an earlier attempt may have been served
	markClosed             // the call is over: nothing is written any more
)

var textOfKeyCount = strconv.AppendInt(nil, keyCount, 10)

// MarshalBinary gives the argument, as the command is written.
func (t *trail) MarshalBinary() ([]byte, error) {
	if t.marks.Or(markSent)&markClosed != 0 {
		return nil, errClosedTrail
	}
	return t.text, nil
}

// String is the same for those who print commands.
func (t *trail) String() string { return string(t.text) }

var errClosedTrail = errors.New("rratelimiter: the time for the call is over")

// begin notes one more attempt.
func (t *trail) begin() {
	t.attempts.Add(1)
	t.vain()
}

// end notes how an attempt ended: it is in doubt if it was written and the server did not say anything to it. If it was
// served, that stays noted: its caller's time may end before the answer reaches him.
func (t *trail) end(err error) {
	if err == nil {
		return
	}
	if !isAnswer(err) {
		if t.marks.Load()&markSent != 0 {
			t.marks.Or(markDoubt) // first, as somebody may look meanwhile
		}
		cause := err
		t.last.Store(&cause)
	}
	t.vain()
}

// vain notes that the last attempt did nothing.
func (t *trail) vain() { t.marks.And(^uint32(markSent)) }

// doubtful tells whether an attempt that ended may have been served.
func (t *trail) doubtful() bool { return t.marks.Load()&markDoubt != 0 }

// explain adds to the error of a call whose time is over why its last attempt failed.
func (t *trail) explain(err error) error {
	last := t.last.Load()
	if last == nil {
		return err
	}
	var late late
	if !errors.As(err, &late) || errors.Is(err, *last) {
		return err
	}
	return fmt.Errorf("%w: %w", err, *last)
}

// outcome ends a call that takes permits, or changes something else that counts, and gives its error what the caller must
// know: that Redis may have served it. What the limiter's configuration says leaves no doubt.
func (t *trail) outcome(err error) error {
	marks := t.marks.Or(markClosed)
	err = t.explain(err)
	if err == nil || marks&(markSent|markDoubt) == 0 || errors.Is(err, ErrNotInitialized) || errors.Is(err, ErrOutcomeUnknown) {
		return err
	}
	return unknown(err)
}

// unknown is the error of a call of which nobody knows whether Redis served it.
func unknown(err error) error { return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err) }

// isAnswer tells whether an error is what a server says.
func isAnswer(err error) bool {
	var answer redis.Error
	return errors.As(err, &answer)
}

// Servers say these where they did not serve a command, and may serve it soon: they load their data, or are none that may
// write, or not any more, or have too many clients for the moment.
var notNow = []string{"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "max number of clients"}

// says tells whether an error is a server's answer that begins with one of some words.
func says(err error, words ...string) bool {
	return slices.ContainsFunc(words, func(word string) bool { return redis.HasErrorPrefix(err, word) })
}

// again tells whether a call is to be repeated, given how its last attempt ended. Where one may have been served, only a
// call that may be served twice, or that finds out, is.
func (t *trail) again(err error, twice bool) bool {
	if err == nil || errors.Is(err, ErrOutcomeUnknown) || t.hasty && !t.doubtful() {
		return false
	}
	if isAnswer(err) {
		return (says(err, notNow...) || says(err, "NOREPLICAS")) && (twice || !t.doubtful())
	}
	if t.doubtful() {
		return twice && !errors.Is(err, redis.ErrClosed) && !errors.Is(err, errClosedTrail)
	}
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted)
}

// Pauses before a call is repeated. They grow, and are up to a quarter shorter by chance.
const (
	shortestPause = 8 * time.Millisecond
	longestPause  = 250 * time.Millisecond
)

// A pace is the pauses of one call.
type pace time.Duration

// rest waits before the next attempt. It answers false, and at once, where the time that is left is too short for one.
func (p *pace) rest(ctx context.Context) bool {
	*p = min(max(2**p, pace(shortestPause)), pace(longestPause))
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

// relearn lets a cluster client look who its nodes are, after an attempt that none of them answered.
func (c *Client) relearn(ctx context.Context, err error) {
	if cluster, ok := c.rdb.(*redis.ClusterClient); ok && !isAnswer(err) {
		cluster.ReloadState(ctx)
	}
}

// repeat makes attempts of a call until one is final: once more where one may have been served only if that may be twice.
func (c *Client) repeat(ctx context.Context, t *trail, twice bool, attempt func() error) error {
	var pace pace
	for {
		err := attempt()
		if !t.again(err, twice) {
			return err
		}
		c.relearn(ctx, err)
		if !pace.rest(ctx) {
			return err
		}
	}
}
