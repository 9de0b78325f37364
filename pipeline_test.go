package rratelimiter_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
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
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// A slowHook is a hook that counts the commands sent, and delays them.
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

func (r *slowHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (r *slowHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		r.alone.Add(1)
		defer r.delay()()
		return next(ctx, cmd)
	}
}

func (r *slowHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		r.pipelines.Add(1)
		r.commands.Add(int64(len(cmds)))
		defer r.delay()()
		return next(ctx, cmds)
	}
}

// Limiters whose callers come at the same time share pipelines, a few of which are in flight at once.
func TestLimitersShareARun(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		slow := &slowHook{}
		slow.takes.Store(int64(10 * ms))
		p.rdb.AddHook(slow)
		c := rratelimiter.NewClient(p.rdb)
		const limiters = 1000
		crowd := func() {
			var all sync.WaitGroup
			for i := range limiters {
				all.Go(func() {
					if ok, err := c.RateLimiter(fmt.Sprint(i), rratelimiter.WithRate(rratelimiter.PerSecond(3))).TryAcquire(t.Context(), 1); !ok || err != nil {
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
		if alone > pipeline.MaxRuns || pipelines > limiters/pipeline.MaxBatch+pipeline.MaxRuns {
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

// A run that stalls releases its slot, and its limiters send further calls. The callers of the stalled run get their
// results when the reply arrives.
func TestStalledRunDelaysNoOtherCaller(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		slow := &slowHook{}
		p.rdb.AddHook(slow)
		c := rratelimiter.NewClient(p.rdb)
		limiter := func(i int) *rratelimiter.Limiter {
			return c.RateLimiter(fmt.Sprint(i), rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		}
		b.granted("the first", b.try(limiter(0), 1), 0)
		slow.takes.Store(int64(500 * ms))
		var stuck []*call
		for i := range pipeline.MaxRuns {
			stuck = append(stuck, b.try(limiter(i), 1))
		}
		slow.takes.Store(0)
		same, other := b.acquire(limiter(0), 1), b.try(limiter(pipeline.MaxRuns), 1)
		b.sleepTo(pipeline.ShortestStall - ms)
		b.waits("the caller that shares a limiter with a stalled call", same)
		b.waits("the caller that finds no slot", other)
		b.sleepTo(pipeline.ShortestStall)
		b.granted("the caller that shares a limiter with a stalled call", same, pipeline.ShortestStall)
		b.granted("the caller that found no slot", other, pipeline.ShortestStall)
		b.granted("a later one", b.try(limiter(0), 1), pipeline.ShortestStall)
		for _, c := range stuck {
			b.waits("a caller of a stalled run", c)
		}
		b.sleepTo(500 * ms)
		for _, c := range stuck {
			b.granted("a caller of a stalled run", c, 500*ms)
		}
		if i := rratelimiter.ClientCore(c).Inspect(); i.InFlight+i.Stalled+i.Queued != 0 {
			t.Errorf("%+v", i)
		}
	})
}

// A duration that is usual for the server is not a stall.
func TestSlowConnectionIsNoStall(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		slow := &slowHook{}
		slow.takes.Store(int64(60 * ms))
		p.rdb.AddHook(slow)
		c := rratelimiter.NewClient(p.rdb)
		l := c.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(1000)))
		for range 20 { // until the usual duration is known
			b.try(l, 1)
			b.sleepTo(time.Since(b.start) + 60*ms)
		}
		slow.most.Store(0)
		for range 30 {
			b.try(l, 1)
			b.sleepTo(time.Since(b.start) + 7*ms)
		}
		if most := slow.most.Load(); most != 1 {
			t.Errorf("%d calls of a limiter were in flight at once", most)
		}
		b.sleepTo(time.Since(b.start) + time.Second)
	})
}

// If more than a few runs stall, the others keep their slots until they time out, so a server that hangs is not
// flooded.
func TestHungServerIsNotFlooded(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		slow := &slowHook{}
		p.rdb.AddHook(slow)
		c := rratelimiter.NewClient(p.rdb)
		b.granted("the first", b.try(c.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(1))), 1), 0)
		slow.takes.Store(int64(10 * time.Second))
		var calls []*call
		for i := range 100 {
			calls = append(calls, b.try(c.RateLimiter(fmt.Sprint(i), rratelimiter.WithRate(rratelimiter.PerSecond(1))), 1))
			b.sleepTo(time.Since(b.start) + 9*ms)
		}
		if most := slow.most.Load(); most > pipeline.MaxRuns+pipeline.MaxStalled {
			t.Errorf("%d runs were in flight", most)
		}
		b.sleepTo(5 * time.Second)
		for _, c := range calls {
			if synctest.Wait(); !c.ended.Load() || c.err == nil || c.at > 3*time.Second {
				t.Fatalf("ended %v with %v, %v at %v", c.ended.Load(), c.ok, c.err, c.at)
			}
		}
		b.sleepTo(30 * time.Second)
		if i := rratelimiter.ClientCore(c).Inspect(); i.InFlight+i.Stalled+i.Queued != 0 {
			t.Errorf("%+v", i)
		}
	})
}

// No caller waits for a hanging server longer than the call timeout plus the time until a stall, wherever its request
// is queued.
func TestHungServerDelaysNoCallerTwice(t *testing.T) {
	for _, limiters := range []int{1, 20, 1000} {
		t.Run(fmt.Sprintf("%d limiters", limiters), func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				p := b.process()
				slow := &slowHook{}
				p.rdb.AddHook(slow)
				c := rratelimiter.NewClient(p.rdb)
				limiter := func(i int) *rratelimiter.Limiter {
					return c.RateLimiter(fmt.Sprint(i%limiters), rratelimiter.WithRate(rratelimiter.PerHour(10000)))
				}
				b.granted("the first", b.try(limiter(0), 1), 0)
				slow.takes.Store(int64(10 * time.Second))
				type asked struct {
					*call
					at time.Duration
				}
				var calls []asked
				for i := range 2500 {
					now := time.Since(b.start)
					if i%2 == 0 {
						calls = append(calls, asked{b.try(limiter(i), 1), now})
					} else {
						calls = append(calls, asked{b.acquire(limiter(i), 1), now})
					}
					if i > 1000 { // run at the same time
						b.sleepTo(now + 2*ms)
					}
				}
				b.sleepTo(5 * time.Second)
				for i, c := range calls {
					if took := c.call.at - c.at; !c.ended.Load() || !errors.Is(c.err, os.ErrDeadlineExceeded) || took > time.Second+pipeline.ShortestStall {
						t.Fatalf("call %d at %v: ended %v with %v, %v after %v", i, c.at, c.ended.Load(), c.ok, c.err, took)
					}
					if errors.Is(c.err, rratelimiter.ErrOutcomeUnknown) { // the hook delays requests before they are written
						t.Fatalf("call %d: %v", i, c.err)
					}
				}
				slow.takes.Store(0)
				b.sleepTo(20 * time.Second)
				b.granted("when it is back", b.try(limiter(0), 1), 20*time.Second)
				if i := rratelimiter.ClientCore(c).Inspect(); i.InFlight+i.Stalled+i.Queued != 0 {
					t.Errorf("%+v", i)
				}
			})
		})
	}
}

// Requests queued behind a lost call are sent if a later call was answered.
func TestLostCallOfAServerThatAnswers(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process() // where nothing stalls
		l, other := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10))),
			p.RateLimiter("other", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		hang := p.wire.hang()
		lost, behind := b.try(l, 1), b.try(l, 1)
		p.wire.passNew()
		b.sleepTo(500 * ms)
		b.granted("another limiter's", b.try(other, 1), 500*ms)
		b.waits("the caller that waits behind it", behind)
		b.sleepTo(time.Second)
		b.ended("the lost call", lost, false, time.Second)
		b.granted("the caller that waits behind it", behind, time.Second)
		hang()
	})
}

// Nothing is taken for callers that cancelled before their call was sent.
func TestCancelledBatchIsNotSent(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		slow := &slowHook{}
		p.rdb.AddHook(slow)
		c := rratelimiter.NewClient(p.rdb)
		limiter := func(i int) *rratelimiter.Limiter {
			return c.RateLimiter(fmt.Sprint(i), rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		}
		slow.takes.Store(int64(500 * ms))
		const slots = pipeline.MaxRuns + pipeline.MaxStalled
		for i := range slots {
			b.try(limiter(i), 1)
			b.sleepTo(time.Since(b.start) + 10*ms)
		}
		cancelled, kept := b.acquire(limiter(slots), 1), b.try(limiter(slots+1), 1)
		b.sleepTo(200 * ms)
		cancelled.end()
		synctest.Wait()
		if !errors.Is(cancelled.err, context.Canceled) {
			t.Errorf("the cancelled one: %v", cancelled.err)
		}
		slow.takes.Store(0)
		b.sleepTo(2 * time.Second)
		b.granted("the caller that has not", kept, 500*ms+pipeline.MaxRuns*10*ms) // when the first run that kept its slot has completed
		if sent := slow.alone.Load() + slow.commands.Load(); sent != slots+1 {
			t.Errorf("%d calls were sent, not %d", sent, slots+1)
		}
		if b.server.Exists(fmt.Sprint(slots)) {
			t.Error("the limiter of the cancelled callers was used")
		}
		b.granted("a later one", b.try(limiter(slots), 1), 2*time.Second)
	})
}

// If another client has flushed the scripts, each call of a pipeline is still answered.
func TestScriptsFlushedBeforeARun(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client()
		slow := &slowHook{}
		rdb.AddHook(slow)
		c := rratelimiter.NewClient(rdb, patient)
		rratelimiter.ClientCore(c).Tune(dispatch.Tuning{Patience: time.Minute})
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
	l := rratelimiter.NewClient(rdb, patient).RateLimiter("moves", rratelimiter.WithRate(rratelimiter.PerHour(10)))
	mustTry(t, l, 1, true)
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
		if err := node.Client().Do(t.Context(), "cluster", "setslot", keys.Slot("moves"), "node", id).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 {
		mustTry(t, l, 1, true)
	}
	mustAvail(t, l, 5)
}

// A served is a server that grants every request at once and keeps no state.
type served struct{ redis.Pipeliner }

func (served) Process(_ context.Context, cmd redis.Cmder) error {
	cmd.(*script.Command).SetVal([]int64{0, 10, 1000, 9})
	return nil
}

func (s served) Pipeline() redis.Pipeliner { return &pile{served: s} }

type pile struct {
	served
	cmds []redis.Cmder
}

func (p *pile) Process(_ context.Context, cmd redis.Cmder) error {
	p.cmds = append(p.cmds, cmd)
	return nil
}

func (p *pile) Exec(ctx context.Context) ([]redis.Cmder, error) {
	for _, cmd := range p.cmds {
		_ = p.served.Process(ctx, cmd)
	}
	return p.cmds, nil
}

// Almost nothing remains of a million names that were used once; fewer with the race detector, which is slow.
func TestMillionNames(t *testing.T) {
	long(t)
	const callers = 64
	names := 1_000_000
	if raceDetector {
		names = 50_000
	}
	c := rratelimiter.NewClient(served{}, patient)
	memory := func() uint64 {
		var m runtime.MemStats
		for range 3 { // the second one also empties the pools
			runtime.GC()
		}
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	goroutines, before := runtime.NumGoroutine(), memory()
	var all sync.WaitGroup
	for caller := range callers {
		all.Go(func() {
			for i := caller; i < names; i += callers {
				if ok, err := c.RateLimiter(fmt.Sprint("name", i), rratelimiter.WithDenyCache(100)).TryAcquire(t.Context(), 1); !ok || err != nil {
					t.Error(ok, err)
					return
				}
			}
		})
	}
	all.Wait()
	soon(t, "the end of the last runs", func() bool { return runtime.NumGoroutine() <= goroutines })
	after := memory()
	runtime.KeepAlive(c)
	if grown := int64(after) - int64(before); grown > 3<<20 { // the checks of the last ones take most of it
		t.Errorf("%d bytes remain of %d names", grown, names)
	}
	if queues := rratelimiter.ClientCore(c).Inspect().Queues; queues > dispatch.SpareQueues {
		t.Errorf("%d queues remain", queues)
	}
}

// A try makes three allocations beside those of go-redis: the command, its context, and the reply, which is the test's
// here.
func TestTryTakesLittleMemory(t *testing.T) {
	l := rratelimiter.NewClient(served{}, patient).RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(1000)))
	most := 3.0
	if raceDetector {
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
