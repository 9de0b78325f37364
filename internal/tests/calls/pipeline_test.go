package calls

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/dispatch"
	"github.com/rratelimiter/rratelimiter/internal/exchange/pipeline"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/limiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// A slowHook is a hook that counts the scripts that are called, and delays them.
type slowHook struct {
	takes     atomic.Int64 // ns
	alone     atomic.Int64 // single commands
	pipelines atomic.Int64
	commands  atomic.Int64 // in pipelines
	most      atomic.Int64 // in flight at the same time, at most
	now       atomic.Int64 // in flight
}

func (r *slowHook) delay() (done func()) {
	now := r.now.Add(1)
	for most := r.most.Load(); now > most && !r.most.CompareAndSwap(most, now); most = r.most.Load() {
	}
	time.Sleep(time.Duration(r.takes.Load()))
	return func() { r.now.Add(-1) }
}

// slowed adds a slowHook to a redis client.
func slowed(rdb *redis.Client) *slowHook {
	r := &slowHook{}
	rdb.AddHook(redistest.Hook{
		Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			if !strings.HasPrefix(cmd.Name(), "eval") { // of a new connection
				return next(ctx, cmd)
			}
			r.alone.Add(1)
			defer r.delay()()
			return next(ctx, cmd)
		},
		Pipeline: func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
			if !strings.HasPrefix(cmds[0].Name(), "eval") {
				return next(ctx, cmds)
			}
			r.pipelines.Add(1)
			r.commands.Add(int64(len(cmds)))
			defer r.delay()()
			return next(ctx, cmds)
		},
	})
	return r
}

// slowClient returns a client of a new process, whose commands are counted and delayed.
func slowClient(b *rig.Bubble) (*rratelimiter.Client, *slowHook) {
	rdb := b.Process().Redis
	slow := slowed(rdb) // before the client adds its own hook
	return rratelimiter.NewClient(rdb), slow
}

// Limiters whose callers come at the same time share pipelines, a few of which are in flight at
// once.
func TestLimitersShareARun(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		c, slow := slowClient(b)
		slow.takes.Store(int64(10 * ms))
		const limiters = 1000
		crowd := func() {
			var all sync.WaitGroup
			for i := range limiters {
				all.Go(func() {
					if ok, err := c.RateLimiter(fmt.Sprint(i),
						rratelimiter.WithRate(rratelimiter.PerSecond(3))).TryAcquire(t.Context(), 1); !ok ||
						err != nil {
						t.Error(ok, err)
					}
				})
			}
			all.Wait()
		}
		crowd() // opens the connections
		crowd() // loads the script
		for _, count := range []*atomic.Int64{&slow.alone, &slow.pipelines, &slow.commands, &slow.most} {
			count.Store(0)
		}
		start := time.Now()
		crowd()
		alone, pipelines, commands := slow.alone.Load(), slow.pipelines.Load(), slow.commands.Load()
		if calls := alone + commands; calls < limiters/16 || calls > limiters/8 { // up to 16 share a call
			t.Errorf("%d calls for %d limiters", calls, limiters)
		}
		if alone > pipeline.MaxRuns || pipelines > limiters/pipeline.MaxJobs+pipeline.MaxRuns {
			t.Errorf("%d calls by themselves, %d pipelines", alone, pipelines)
		}
		if most := slow.most.Load(); most != pipeline.MaxRuns {
			t.Errorf("%d were in flight at once, not %d", most, pipeline.MaxRuns)
		}
		if took := time.Since(start); took > 30*ms {
			t.Errorf("it took %v", took)
		}
	})
}

// A run that stalls releases its slot, and its limiters send further calls. The callers of the
// stalled run get their results when the reply arrives.
func TestStalledRunDelaysNoOtherCaller(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		c, slow := slowClient(b)
		limiter := func(i int) *rratelimiter.Limiter {
			return c.RateLimiter(fmt.Sprint(i), rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		}
		b.Granted("the first", b.Try(limiter(0), 1), 0)
		slow.takes.Store(int64(500 * ms))
		var stuck []*rig.Call
		for i := range pipeline.MaxRuns {
			stuck = append(stuck, b.Try(limiter(i), 1))
		}
		slow.takes.Store(0)
		same, other := b.Acquire(limiter(0), 1), b.Try(limiter(pipeline.MaxRuns), 1)
		b.SleepTo(pipeline.ShortestStall - ms)
		b.Waits("the caller that shares a limiter with a stalled call", same)
		b.Waits("the caller that finds no slot", other)
		b.SleepTo(pipeline.ShortestStall)
		b.Granted("the caller that shares a limiter with a stalled call", same, pipeline.ShortestStall)
		b.Granted("the caller that found no slot", other, pipeline.ShortestStall)
		b.Granted("a later one", b.Try(limiter(0), 1), pipeline.ShortestStall)
		for _, c := range stuck {
			b.Waits("a caller of a stalled run", c)
		}
		b.SleepTo(500 * ms)
		for _, c := range stuck {
			b.Granted("a caller of a stalled run", c, 500*ms)
		}
		if i := rig.Core(c).Inspect(); i.InFlight+i.Stalled+i.Queued != 0 {
			t.Errorf("%+v", i)
		}
	})
}

// A duration that is usual for the server is not a stall.
func TestSlowConnectionIsNoStall(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		c, slow := slowClient(b)
		slow.takes.Store(int64(60 * ms))
		l := c.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(1000)))
		for range 20 { // until the usual duration is known
			b.Try(l, 1)
			b.SleepTo(time.Since(b.Start) + 60*ms)
		}
		slow.most.Store(0)
		for range 30 {
			b.Try(l, 1)
			b.SleepTo(time.Since(b.Start) + 7*ms)
		}
		if most := slow.most.Load(); most != 1 {
			t.Errorf("%d calls of a limiter were in flight at once", most)
		}
		b.SleepTo(time.Since(b.Start) + time.Second)
	})
}

// If more than a few runs stall, the others keep their slots until they time out, so a server that
// hangs is not flooded.
func TestHungServerIsNotFlooded(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		c, slow := slowClient(b)
		b.Granted("the first", b.Try(c.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(1))), 1), 0)
		slow.takes.Store(int64(10 * time.Second))
		var calls []*rig.Call
		for i := range 100 {
			calls = append(calls,
				b.Try(c.RateLimiter(fmt.Sprint(i), rratelimiter.WithRate(rratelimiter.PerSecond(1))), 1))
			b.SleepTo(time.Since(b.Start) + 9*ms)
		}
		if most := slow.most.Load(); most > pipeline.MaxRuns+pipeline.MaxStalled {
			t.Errorf("%d runs were in flight", most)
		}
		b.SleepTo(5 * time.Second)
		for _, c := range calls {
			if synctest.Wait(); !c.Ended.Load() || c.Err == nil || c.At > 3*time.Second {
				t.Fatalf("ended %v with %v, %v at %v", c.Ended.Load(), c.OK, c.Err, c.At)
			}
		}
		b.SleepTo(30 * time.Second)
		if i := rig.Core(c).Inspect(); i.InFlight+i.Stalled+i.Queued != 0 {
			t.Errorf("%+v", i)
		}
	})
}

// No caller waits for a hanging server longer than the call timeout plus the time until a stall,
// wherever its request is queued.
func TestHungServerDelaysNoCallerTwice(t *testing.T) {
	for _, limiters := range []int{1, 20, 1000} {
		t.Run(fmt.Sprintf("%d limiters", limiters), func(t *testing.T) {
			rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
				c, slow := slowClient(b)
				limiter := func(i int) *rratelimiter.Limiter {
					return c.RateLimiter(fmt.Sprint(i%limiters), rratelimiter.WithRate(rratelimiter.PerHour(10000)))
				}
				b.Granted("the first", b.Try(limiter(0), 1), 0)
				slow.takes.Store(int64(10 * time.Second))
				type asked struct {
					*rig.Call
					at time.Duration
				}
				var calls []asked
				for i := range 2500 {
					now := time.Since(b.Start)
					if i%2 == 0 {
						calls = append(calls, asked{b.Try(limiter(i), 1), now})
					} else {
						calls = append(calls, asked{b.Acquire(limiter(i), 1), now})
					}
					if i > 1000 { // run at the same time
						b.SleepTo(now + 2*ms)
					}
				}
				b.SleepTo(5 * time.Second)
				for i, c := range calls {
					if took := c.Call.At - c.at; !c.Ended.Load() || !errors.Is(c.Err, os.ErrDeadlineExceeded) ||
						took > time.Second+pipeline.ShortestStall {
						t.Fatalf("call %d at %v: ended %v with %v, %v after %v",
							i, c.at, c.Ended.Load(), c.OK, c.Err, took)
					}
					// the hook delays requests before they are written
					if errors.Is(c.Err, rratelimiter.ErrOutcomeUnknown) {
						t.Fatalf("call %d: %v", i, c.Err)
					}
				}
				slow.takes.Store(0)
				b.SleepTo(20 * time.Second)
				b.Granted("when it is back", b.Try(limiter(0), 1), 20*time.Second)
				if i := rig.Core(c).Inspect(); i.InFlight+i.Stalled+i.Queued != 0 {
					t.Errorf("%+v", i)
				}
			})
		})
	}
}

// Requests queued behind a lost call are sent if a later call was answered.
func TestLostCallOfAServerThatAnswers(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process() // where nothing stalls
		l, other := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10))),
			p.RateLimiter("other", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		hang := p.Wire.Hang()
		lost, behind := b.Try(l, 1), b.Try(l, 1)
		p.Wire.PassNew()
		b.SleepTo(500 * ms)
		b.Granted("another limiter's", b.Try(other, 1), 500*ms)
		b.Waits("the caller that waits behind it", behind)
		b.SleepTo(time.Second)
		b.Ended("the lost call", lost, false, time.Second)
		b.Granted("the caller that waits behind it", behind, time.Second)
		hang()
	})
}

// Nothing is taken for callers that cancelled before their call was sent.
func TestCancelledBatchIsNotSent(t *testing.T) {
	for method, ask := range map[string]func(context.Context, *rratelimiter.Limiter) error{
		"Acquire":  func(ctx context.Context, l *rratelimiter.Limiter) error { return l.Acquire(ctx, 1) },
		"Allow":    func(ctx context.Context, l *rratelimiter.Limiter) error { _, err := l.Allow(ctx, 1); return err },
		"Take":     func(ctx context.Context, l *rratelimiter.Limiter) error { _, _, err := l.Take(ctx, 1); return err },
		"TakeUpTo": func(ctx context.Context, l *rratelimiter.Limiter) error { _, err := l.TakeUpTo(ctx, 5); return err },
		"TakeAll": func(ctx context.Context, l *rratelimiter.Limiter) error {
			_, _, err := l.Client().TakeAll(ctx, []int64{1, 2}, l,
				l.Client().RateLimiter("other", rratelimiter.WithRate(rratelimiter.PerSecond(10))))
			return err
		},
	} {
		t.Run(method, func(t *testing.T) {
			rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
				c, slow := slowClient(b)
				limiter := func(i int) *rratelimiter.Limiter {
					return c.RateLimiter(fmt.Sprint(i), rratelimiter.WithRate(rratelimiter.PerSecond(10)))
				}
				slow.takes.Store(int64(500 * ms))
				const slots = pipeline.MaxRuns + pipeline.MaxStalled
				for i := range slots {
					b.Try(limiter(i), 1)
					b.SleepTo(time.Since(b.Start) + 10*ms)
				}
				cancelled := b.Call(func(ctx context.Context) (bool, error) {
					err := ask(ctx, limiter(slots))
					return err == nil, err
				})
				kept := b.Try(limiter(slots+1), 1)
				b.SleepTo(200 * ms)
				cancelled.Cancel()
				synctest.Wait()
				if !errors.Is(cancelled.Err, context.Canceled) {
					t.Errorf("the cancelled one: %v", cancelled.Err)
				}
				slow.takes.Store(0)
				b.SleepTo(2 * time.Second)
				// when the first run that kept its slot has completed
				b.Granted("the caller that has not", kept, 500*ms+pipeline.MaxRuns*10*ms)
				if sent := slow.alone.Load() + slow.commands.Load(); sent != slots+1 {
					t.Errorf("%d calls were sent, not %d", sent, slots+1)
				}
				if b.Server.Exists(fmt.Sprint(slots)) {
					t.Error("the limiter of the cancelled callers was used")
				}
				if i := rig.Core(c).Inspect(); i.Busy+i.Waiting+i.Asking != 0 {
					t.Errorf("%+v", i)
				}
				b.Granted("a later one", b.Try(limiter(slots), 1), 2*time.Second)
			})
		})
	}
}

// If another client has flushed the scripts, each call of a pipeline is still answered.
func TestScriptsFlushedBeforeARun(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client()
		slow := slowed(rdb)
		c := rratelimiter.NewClient(rdb, rig.Patient)
		rig.Core(c).Tune(limiter.Tuning{Patience: time.Minute})
		var sum int64
		for round := range 5 {
			if err := rdb.ScriptFlush(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			slow.takes.Store(int64(5 * ms)) // so that pipelines fill
			var all sync.WaitGroup
			for i := range 100 {
				all.Go(func() {
					l := c.RateLimiter(fmt.Sprint(i), rratelimiter.WithRate(rratelimiter.PerHour(10)))
					result, err := l.Allow(t.Context(), 1)
					if err != nil || !result.Allowed || result.Remaining != int64(9-round) {
						t.Errorf("round %d: %+v, %v", round, result, err)
					}
				})
			}
			all.Wait()
			slow.takes.Store(0)
			sum += 100
		}
		if slow.pipelines.Load() == 0 || sum != 500 {
			t.Error("no pipeline was shared")
		}
	})
}

// A cluster node that has lost a slot redirects calls to the slot's new node.
func TestSlotThatMoved(t *testing.T) {
	nodes := redistest.Cluster(t, 2)
	rdb := nodes.ClusterClient()
	l := rratelimiter.NewClient(rdb, rig.Patient).RateLimiter("moves", rratelimiter.WithRate(rratelimiter.PerHour(10)))
	rig.MustTry(t, l, 1, true)
	from := nodes.Owner("moves")
	if err := from.Client().FlushAll(t.Context()).Err(); err != nil { // only empty slots can be moved in one step
		t.Fatal(err)
	}
	to := nodes.Servers[0]
	if to == from {
		to = nodes.Servers[1]
	}
	id := to.Client().ClusterMyID(t.Context()).Val()
	for _, node := range []*redistest.Server{from, to} { // so that the two never both claim the slot
		if err := node.Client().Do(t.Context(), "cluster", "setslot", keys.Slot("moves"), "node",
			id).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 {
		rig.MustTry(t, l, 1, true)
	}
	rig.MustBeFree(t, l, 5)
}

// Almost nothing remains of many names that were used once; fewer with the race detector, which is
// slow.
func TestManyNames(t *testing.T) {
	rig.Long(t)
	const callers = 64
	names := 200_000
	if rig.RaceDetector {
		names = 20_000
	}
	c := rratelimiter.NewClient(rig.Served{}, rig.Patient)
	goroutines, before := runtime.NumGoroutine(), rig.HeapAlloc()
	var all sync.WaitGroup
	for caller := range callers {
		all.Go(func() {
			for i := caller; i < names; i += callers {
				if ok, err := c.RateLimiter(fmt.Sprint("name", i), rratelimiter.WithDenyCache(100)).TryAcquire(
					t.Context(), 1); !ok ||
					err != nil {
					t.Error(ok, err)
					return
				}
			}
		})
	}
	all.Wait()
	rig.Soon(t, "the end of the last runs", func() bool { return runtime.NumGoroutine() <= goroutines })
	grown := rig.HeapAlloc() - before
	runtime.KeepAlive(c)
	if grown > 3<<20 { // the checks of the last ones take most of it
		t.Errorf("%d bytes remain of %d names", grown, names)
	}
	if queues := rig.Core(c).Inspect().Queues; queues > dispatch.SpareQueues {
		t.Errorf("%d queues remain", queues)
	}
}

// A try makes three allocations beside those of go-redis: the command, its context, and the reply,
// which is the test's here.
func TestTryTakesLittleMemory(t *testing.T) {
	l := rratelimiter.NewClient(rig.Served{}, rig.Patient).
		RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(1000)))
	most := 3.0
	if rig.RaceDetector {
		most = 12 // it makes pools forget
	}
	got := testing.AllocsPerRun(1000, func() {
		if ok, err := l.TryAcquire(t.Context(), 1); !ok || err != nil {
			t.Error(ok, err)
		}
	})
	if got > most {
		t.Errorf("%v allocations", got)
	}
}
