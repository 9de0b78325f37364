package dispatch

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/limiter"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/record"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// A granter is a server that grants every call.
type granter struct{}

func (granter) Process(_ context.Context, cmd redis.Cmder) error {
	cmd.(*script.Command).SetVal([]int64{0, 10, 1000, 9, 0, 0})
	return nil
}

func (granter) Pipeline() redis.Pipeliner { panic("a single call needs no pipeline") }

func newLimiter() *Limiter {
	c := New(limiter.Config{Redis: granter{}, ID: "me", Clock: time.Now, CallTimeout: time.Second})
	l := &Limiter{}
	own := protocol.Rate{Permits: 10, Interval: 1000}
	l.Init(c, "l", limiter.Settings{Options: protocol.Options{Own: own}}, nil)
	return l
}

// A call that has timed out lets no other call be sent, even if it never stalled before: the
// requests queued behind it fail with it.
func TestALateCallDoesNotStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter()
		q := l.client.registry.queueOf(l)
		sent := func(ago time.Duration) *batch {
			q.schedule.Join(&q.client.newRequest(t.Context(), &Ask{N: 1}, schedule.Try).Request)
			send, _ := q.schedule.Next(nil, q.client.Moment, q.open)
			b := send[0].Owner.(*batch)
			q.begin(b)
			time.Sleep(ago)
			return b
		}
		b := sent(time.Second)
		if b.Stalled(); b.State() != schedule.BatchSent {
			t.Error("other calls may be sent")
		}
		q.schedule.Fail(q.client.Moment(), &b.Batch, os.ErrDeadlineExceeded, nil)
		b = sent(time.Second - time.Millisecond)
		if b.Stalled(); b.State() != schedule.BatchDetached {
			t.Error("others must wait though the call has a ms left")
		}
	})
}

// pause returns a hook that calls a function after commands were made and before they are written.
func pause(p func()) redis.Hook {
	return redistest.Hook{
		Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			p()
			return next(ctx, cmd)
		},
		Pipeline: func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
			p()
			return next(ctx, cmds)
		},
	}
}

// A batch that is complete before its command is written does not make the other batches of its run
// fail, and is no sign that the node is away.
func TestABatchThatIsOverFailsNoOther(t *testing.T) {
	// a retry cannot find its records
	apart := func(o *limiter.Settings) { o.RecordPerRequest, o.Format = true, record.Redisson313 }
	for name, test := range map[string]struct {
		options func(*limiter.Settings)
		before  bool // the limiters have been called before, so that they share a command
		over    int
		unknown bool // the others may have been executed, and no retry finds out
	}{
		"commands in a pipeline":  {nil, false, 1, false},
		"a shared command":        {nil, true, 1, false},
		"records cannot be found": {apart, false, 2, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, redistest.Embedded(t), 10, 10, test.options)
			for _, s := range []*script.Script{protocol.AcquireScript, protocol.AcquireManyScript} {
				if err := p.rdb.ScriptLoad(t.Context(), s.Text).Err(); err != nil {
					t.Fatal(err)
				}
			}
			p.client.Tune(limiter.Tuning{Patience: time.Minute, RunsInFlight: 1})
			first, limiters := p.limiters[0], p.limiters[1:]
			for _, name := range []string{"c", "d"} {
				l := &Limiter{}
				l.Init(p.client, name, p.limiters[0].Settings, nil)
				limiters = append(limiters, l)
			}
			used := int64(1)
			if test.before {
				used++
				for _, l := range limiters {
					if _, _, err := l.Serve(t.Context(), &Ask{N: 1}); err != nil {
						t.Fatal(err)
					}
				}
			}
			ask := func(l *Limiter, queued int) chan error {
				done := make(chan error, 1)
				go func() {
					_, _, err := l.Serve(context.Background(), &Ask{N: 1})
					done <- err
				}()
				for start := time.Now(); ; time.Sleep(100 * time.Microsecond) {
					if i := p.client.Inspect(); i.InFlight == 1 && i.Queued == queued {
						return done
					}
					if time.Since(start) > 10*time.Second {
						t.Fatal("the request is not queued")
					}
				}
			}
			p.gate.mu.Lock()
			all := []chan error{ask(first, 0)}
			for i, l := range limiters {
				all = append(all, ask(l, i+1))
			}
			q := limiters[test.over].queue.Load()
			q.mu.Lock()
			b := q.schedule.InFlight().Owner.(*batch)
			q.mu.Unlock()
			var runs atomic.Int64
			p.rdb.AddHook(pause(func() {
				if runs.Add(1) == 2 {
					b.call.Late()
					p.client.Exchange.ServerBreaker().Answer(time.Time{}, first) // the node is not away
				}
			}))
			p.gate.mu.Unlock()
			if err := <-all[0]; err != nil {
				t.Error(err)
			}
			for i := range limiters {
				var want error
				if i == test.over {
					want = os.ErrDeadlineExceeded
				} else if test.unknown {
					want = script.ErrOutcomeUnknown
				}
				if err := <-all[1+i]; !errors.Is(err, want) {
					t.Errorf("limiter %d: %v, want %v", i, err, want)
				}
			}
			if p.client.Exchange.ServerBreaker().Broken() {
				t.Error("the node is away")
			}
			for i, l := range limiters {
				if free, err := l.Free(t.Context(), true); i != test.over && !test.unknown && free != 10-used ||
					err != nil {
					t.Errorf("limiter %d: %d permits are free, %v", i, free, err)
				}
			}
		})
	}
}
