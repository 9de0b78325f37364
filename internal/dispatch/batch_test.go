package dispatch

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// A granter is a server that grants every call.
type granter struct{}

func (granter) Process(_ context.Context, cmd redis.Cmder) error {
	cmd.(*script.Command).SetVal([]int64{0, 10, 1000, 9})
	return nil
}

func (granter) Pipeline() redis.Pipeliner { panic("a single call needs no pipeline") }

func newLimiter() *Limiter {
	c := New(Config{Redis: granter{}, ID: "me", Clock: time.Now, CallTimeout: time.Second})
	l := &Limiter{}
	own := protocol.Rate{Permits: 10, Interval: 1000}
	l.Init(c, "l", Settings{Options: protocol.Options{Own: own}}, nil)
	return l
}

// A call that has timed out lets no other call be sent, even if it never stalled before: the requests queued behind it
// fail with it.
func TestALateCallDoesNotStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter()
		q := newQueue(l)
		b := &batch{queue: q, call: call{client: l.client, started: time.Now(), state: batchSent}}
		q.inFlight = b
		time.Sleep(time.Second)
		if q.detach(b); q.inFlight != b || q.detached != 0 {
			t.Error("other calls may be sent")
		}
		b.started = time.Now().Add(-time.Second + time.Millisecond)
		if q.detach(b); q.inFlight == b || q.detached != 1 {
			t.Error("others must wait though the call has a ms left")
		}
	})
}
