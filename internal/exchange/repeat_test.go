package exchange

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// An attempt that was surely not executed is repeated if Redis can serve it soon. One that may have
// been executed is repeated only if the next one finds what it was granted.
func TestWhatFollowsAnAttempt(t *testing.T) {
	moved, loading, broken := script.Said("MOVED 1 a:1"), script.Said("LOADING"), fmt.Errorf("read: %w", io.EOF)
	single, cluster := New(redis.NewClient(&redis.Options{}), time.Second, time.Now), New(
		redis.NewClusterClient(&redis.ClusterOptions{}), time.Second, time.Now,
	)
	for _, test := range []struct {
		what           string
		x              *Exchange
		err            error
		sent, findable bool
		want           step
	}{
		{"a reply", single, nil, true, true, finish},
		{"another rate", single, protocol.ErrOtherRate, false, false, enforce},
		{"a redirect that the client follows", cluster, moved, false, false, follow},
		{"a redirect that it does not follow", single, moved, false, false, finish},
		{"a server that loads its data", single, loading, false, false, pause},
		{"an error of the server", single, script.Said("WRONGTYPE"), false, true, finish},
		{"no connection", single, broken, false, false, pause},
		{"a lost reply that can be found", single, broken, true, true, pause},
		{"a lost reply that cannot be found", single, broken, true, false, finish},
		{"a limiter without a rate", single, script.ErrNotInitialized, false, true, finish},
		{"the same, found after a lost reply", single, script.ErrNotInitialized, true, true, finish},
	} {
		var a script.Attempts
		a.Begin(1)
		if test.sent {
			_, _ = a.MarshalBinary()
		}
		a.End(test.err)
		if got := test.x.after(test.err, &a, test.findable); got != test.want {
			t.Errorf("%s: %d, want %d", test.what, got, test.want)
		}
	}
}

// A body asks nothing.
type body struct{}

func (body) Script() *script.Script                          { return protocol.ProbeScript }
func (body) Args(args []any, _ bool) []any                   { return args }
func (body) Read(*script.Attempts, []int64) error            { return nil }
func (body) Findable() bool                                  { return true }
func (body) TakesOnce() bool                                 { return true }
func (body) Enforce(context.Context, *script.Attempts) error { return nil }
func (body) Plain() bool                                     { return false }
func (body) Joint() bool                                     { return false }
func (body) SharedArgs(args []any, _ int64) []any            { return args }
func (body) ReadShared(*script.Attempts, []int64, int) error { return nil }

// An owner keeps what it is told.
type owner struct{ done []Outcome }

func (o *owner) Cancelled() bool         { return false }
func (o *owner) Away(time.Duration) bool { return false }
func (o *owner) Stalled()                {}
func (o *owner) Done(outcome Outcome)    { o.done = append(o.done, outcome) }

// The timer of a run that has stalled may end a call while its reply arrives. The owner is told
// once.
func TestACallEndsOnce(t *testing.T) {
	x := New(redis.NewClient(&redis.Options{}), time.Second, time.Now)
	x.Tune(Tuning{RunsInFlight: 1, JobsInOne: 1})
	var c Call
	var o owner
	c.Begin(x, body{}, &o, []Target{target{}})
	cmd, _ := c.Command(t.Context(), false, nil)
	c.Late()
	cmd.(*script.Command).SetVal([]int64{0})
	c.Done(false)
	if len(o.done) != 1 || !errors.Is(o.done[0].Err, script.ErrUnavailable) {
		t.Errorf("its owner is told %+v", o.done)
	}
}
