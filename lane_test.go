package rratelimiter

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

	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// A road is a hook that counts what is sent, and takes its time.
type road struct {
	takes     atomic.Int64 // ns
	alone     atomic.Int64 // commands by themselves
	pipelines atomic.Int64
	commands  atomic.Int64 // in pipelines
	most      atomic.Int64 // sent at once
	now       atomic.Int64 // being sent
}

func (r *road) travel() (arrive func()) {
	now := r.now.Add(1)
	for most := r.most.Load(); now > most && !r.most.CompareAndSwap(most, now); most = r.most.Load() {
	}
	time.Sleep(time.Duration(r.takes.Load()))
	return func() { r.now.Add(-1) }
}

func (r *road) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (r *road) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		r.alone.Add(1)
		defer r.travel()()
		return next(ctx, cmd)
	}
}

func (r *road) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		r.pipelines.Add(1)
		r.commands.Add(int64(len(cmds)))
		defer r.travel()()
		return next(ctx, cmds)
	}
}

// Limiters whose callers come at the same time share pipelines, a few of which are in the air at once.
func TestLimitersShareATrip(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		road := &road{}
		road.takes.Store(int64(10 * ms))
		p.rdb.AddHook(road)
		c := NewClient(p.rdb)
		const limiters = 1000
		crowd := func() {
			var all sync.WaitGroup
			for i := range limiters {
				all.Go(func() {
					if ok, err := c.RateLimiter(fmt.Sprint(i), WithRate(PerSecond(2))).TryAcquire(t.Context(), 1); !ok || err != nil {
						t.Error(ok, err)
					}
				})
			}
			all.Wait()
		}
		crowd() // makes the connections
		for _, count := range []*atomic.Int64{&road.alone, &road.pipelines, &road.commands, &road.most} {
			count.Store(0)
		}
		start := time.Now()
		crowd()
		alone, pipelines, commands := road.alone.Load(), road.pipelines.Load(), road.commands.Load()
		if alone+commands != limiters {
			t.Errorf("%d calls for %d limiters", alone+commands, limiters)
		}
		if alone > mostTrips || pipelines > limiters/mostFlights+mostTrips {
			t.Errorf("%d calls by themselves, %d pipelines", alone, pipelines)
		}
		if most := road.most.Load(); most != mostTrips {
			t.Errorf("%d were in the air at once, not %d", most, mostTrips)
		}
		if took := time.Since(start); took > 30*ms {
			t.Errorf("it took %v", took)
		}
	})
}

// A trip that stalls gives its place to others, and its limiters go on; those who are on it have their answer when it comes.
func TestStalledTripHoldsNobodyUp(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		road := &road{}
		p.rdb.AddHook(road)
		c := NewClient(p.rdb)
		limiter := func(i int) *Limiter { return c.RateLimiter(fmt.Sprint(i), WithRate(PerSecond(10))) }
		b.granted("the first", b.try(limiter(0), 1), 0)
		road.takes.Store(int64(500 * ms))
		var stuck []*call
		for i := range mostTrips {
			stuck = append(stuck, b.try(limiter(i), 1))
		}
		road.takes.Store(0)
		same, other := b.acquire(limiter(0), 1), b.try(limiter(mostTrips), 1)
		b.sleepTo(shortestStall - ms)
		b.waits("who shares a limiter with a stalled call", same)
		b.waits("who finds no place", other)
		b.sleepTo(shortestStall)
		b.granted("who shares a limiter with a stalled call", same, shortestStall)
		b.granted("who found no place", other, shortestStall)
		b.granted("who comes later", b.try(limiter(0), 1), shortestStall)
		for _, c := range stuck {
			b.waits("who is on a stalled trip", c)
		}
		b.sleepTo(500 * ms)
		for _, c := range stuck {
			b.granted("who was on a stalled trip", c, 500*ms)
		}
		if c.lane.air != 0 || c.lane.stalled != 0 {
			t.Errorf("%+v", c.lane)
		}
	})
}

// What takes long is no stall where it always takes long.
func TestSlowRoadIsNoStall(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		road := &road{}
		road.takes.Store(int64(60 * ms))
		p.rdb.AddHook(road)
		c := NewClient(p.rdb)
		l := c.RateLimiter("l", WithRate(PerSecond(1000)))
		for range 20 { // until it is known
			b.try(l, 1)
			b.sleepTo(time.Since(b.start) + 60*ms)
		}
		road.most.Store(0)
		for range 30 {
			b.try(l, 1)
			b.sleepTo(time.Since(b.start) + 7*ms)
		}
		if most := road.most.Load(); most != 1 {
			t.Errorf("%d calls of a limiter were in the air at once", most)
		}
		b.sleepTo(time.Since(b.start) + time.Second)
	})
}

// More stalled trips than a few keep their places, until they are late: a server that hangs is not flooded.
func TestHungServerIsNotFlooded(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		road := &road{}
		p.rdb.AddHook(road)
		c := NewClient(p.rdb)
		b.granted("the first", b.try(c.RateLimiter("l", WithRate(PerSecond(1))), 1), 0)
		road.takes.Store(int64(10 * time.Second))
		var calls []*call
		for i := range 100 {
			calls = append(calls, b.try(c.RateLimiter(fmt.Sprint(i), WithRate(PerSecond(1))), 1))
			b.sleepTo(time.Since(b.start) + 9*ms)
		}
		if most := road.most.Load(); most > mostTrips+mostStalled {
			t.Errorf("%d trips were in the air", most)
		}
		b.sleepTo(5 * time.Second)
		for _, c := range calls {
			if synctest.Wait(); !c.ended.Load() || c.err == nil || c.at > 3*time.Second {
				t.Fatalf("ended %v with %v, %v at %v", c.ended.Load(), c.ok, c.err, c.at)
			}
		}
		b.sleepTo(30 * time.Second)
		if c.lane.air != 0 || c.lane.stalled != 0 || len(c.lane.waiting) != 0 {
			t.Errorf("%+v", c.lane)
		}
	})
}

// Nobody waits longer for a server that hangs than a call may take, and that before it stalls, wherever it is that they wait.
func TestHungServerHoldsNobodyUpTwice(t *testing.T) {
	for _, limiters := range []int{1, 20, 1000} {
		t.Run(fmt.Sprintf("%d limiters", limiters), func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				p := b.process()
				road := &road{}
				p.rdb.AddHook(road)
				c := NewClient(p.rdb)
				limiter := func(i int) *Limiter { return c.RateLimiter(fmt.Sprint(i%limiters), WithRate(PerHour(10000))) }
				b.granted("the first", b.try(limiter(0), 1), 0)
				road.takes.Store(int64(10 * time.Second))
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
					if i > 1000 { // so many at once
						b.sleepTo(now + 2*ms)
					}
				}
				b.sleepTo(5 * time.Second)
				for i, c := range calls {
					if took := c.call.at - c.at; !c.ended.Load() || !errors.Is(c.err, os.ErrDeadlineExceeded) || took > time.Second+shortestStall {
						t.Fatalf("call %d at %v: ended %v with %v, %v after %v", i, c.at, c.ended.Load(), c.ok, c.err, took)
					}
					if errors.Is(c.err, ErrOutcomeUnknown) { // the road takes its time before anything is written
						t.Fatalf("call %d: %v", i, c.err)
					}
				}
				road.takes.Store(0)
				b.sleepTo(20 * time.Second)
				b.granted("when it is back", b.try(limiter(0), 1), 20*time.Second)
				if c.lane.air != 0 || c.lane.stalled != 0 || len(c.lane.waiting) != 0 {
					t.Errorf("%+v", c.lane)
				}
			})
		})
	}
}

// A call that is late lets nobody depart any more, even if it never stalled before: who waits behind it is told with it.
func TestALateCallDoesNotStall(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := NewClient(b.process().rdb)
		ln := newLine(c.RateLimiter("l"))
		f := &flight{line: ln, started: time.Now()}
		ln.flight = f
		b.sleepTo(c.callTimeout)
		if ln.stall(f); ln.flight != f || ln.astray != 0 {
			t.Error("others may depart")
		}
		f.started = time.Now().Add(-c.callTimeout + ms)
		if ln.stall(f); ln.flight == f || ln.astray != 1 {
			t.Error("others must wait though the call has a ms left")
		}
	})
}

// Who waits behind a call that is lost goes on where a later call was answered.
func TestLostCallOfAServerThatAnswers(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process() // where nothing stalls
		l, other := p.RateLimiter("l", WithRate(PerSecond(10))), p.RateLimiter("other", WithRate(PerSecond(10)))
		hang := p.wire.hang()
		lost, behind := b.try(l, 1), b.try(l, 1)
		p.wire.mu.Lock()
		p.wire.hung = nil
		p.wire.mu.Unlock()
		b.sleepTo(500 * ms)
		b.granted("another limiter's", b.try(other, 1), 500*ms)
		b.waits("who waits behind it", behind)
		b.sleepTo(time.Second)
		b.ended("the lost call", lost, false, time.Second)
		b.granted("who waits behind it", behind, time.Second)
		hang()
	})
}

// Nothing is taken for callers who have gone before their call was made.
func TestForsakenFlightIsNotSent(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		road := &road{}
		p.rdb.AddHook(road)
		c := NewClient(p.rdb)
		limiter := func(i int) *Limiter { return c.RateLimiter(fmt.Sprint(i), WithRate(PerSecond(10))) }
		road.takes.Store(int64(500 * ms))
		const places = mostTrips + mostStalled
		for i := range places {
			b.try(limiter(i), 1)
			b.sleepTo(time.Since(b.start) + 10*ms)
		}
		forsaken, kept := b.acquire(limiter(places), 1), b.try(limiter(places+1), 1)
		b.sleepTo(200 * ms)
		forsaken.end()
		synctest.Wait()
		if !errors.Is(forsaken.err, context.Canceled) {
			t.Errorf("who has gone: %v", forsaken.err)
		}
		road.takes.Store(0)
		b.sleepTo(2 * time.Second)
		b.granted("who has not", kept, 500*ms+mostTrips*10*ms) // when the first trip that kept its place is back
		if sent := road.alone.Load() + road.commands.Load(); sent != places+1 {
			t.Errorf("%d calls were sent, not %d", sent, places+1)
		}
		if b.server.Exists(fmt.Sprint(places)) {
			t.Error("the limiter that nobody waits for was used")
		}
		b.granted("who comes later", b.try(limiter(places), 1), 2*time.Second)
	})
}

// A pipeline finds no script where somebody flushed them: each of its calls is answered all the same.
func TestScriptsFlushedBeforeATrip(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client()
		road := &road{}
		rdb.AddHook(road)
		c := NewClient(rdb, patient)
		c.lane.patient = c.callTimeout
		var sum int64
		for round := range 5 {
			if err := rdb.ScriptFlush(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			road.takes.Store(int64(5 * ms)) // so that pipelines fill
			var all sync.WaitGroup
			for i := range 100 {
				all.Go(func() {
					l := c.RateLimiter(fmt.Sprint(i), WithRate(PerHour(10)))
					result, err := l.Allow(t.Context(), 1)
					if err != nil || !result.Allowed || result.Remaining != int64(9-round) {
						t.Errorf("round %d: %+v, %v", round, result, err)
					}
				})
			}
			all.Wait()
			road.takes.Store(0)
			sum += 100
		}
		if road.pipelines.Load() == 0 || sum != 500 {
			t.Error("nothing travelled together")
		}
	})
}

// A node of a cluster that has lost a slot says where it went.
func TestSlotThatMoved(t *testing.T) {
	nodes := redistest.Cluster(t, 2)
	rdb := nodes.ClusterClient()
	l := NewClient(rdb, patient).RateLimiter("moves", WithRate(PerHour(10)))
	mustTry(t, l, 1, true)
	from := nodes.Owner("moves")
	if err := from.Client().FlushAll(t.Context()).Err(); err != nil { // only empty slots can simply be given away
		t.Fatal(err)
	}
	to := nodes.Servers[0]
	if to == from {
		to = nodes.Servers[1]
	}
	id := to.Client().ClusterMyID(t.Context()).Val()
	for _, node := range []*redistest.Server{to, from} {
		if err := node.Client().Do(t.Context(), "cluster", "setslot", slot("moves"), "node", id).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 {
		mustTry(t, l, 1, true)
	}
	mustAvail(t, l, 5)
}

// A served is a server that grants all, at once and without a memory.
type served struct{ redis.Pipeliner }

func (served) Process(_ context.Context, cmd redis.Cmder) error {
	cmd.(*once).SetVal([]int64{0, 10, 1000, 9})
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

// Of a million names that somebody asked for once next to nothing remains; of fewer with the race detector, which is slow.
func TestMillionNames(t *testing.T) {
	const callers = 64
	names := 1_000_000
	if raceDetector {
		names = 50_000
	}
	c := NewClient(served{})
	memory := func() uint64 {
		var m runtime.MemStats
		for range 3 { // what pools hold goes with the second one
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
				if ok, err := c.RateLimiter(fmt.Sprint("name", i), WithDenyCache(100)).TryAcquire(t.Context(), 1); !ok || err != nil {
					t.Error(ok, err)
					return
				}
			}
		})
	}
	all.Wait()
	soon(t, "the end of the last trips", func() bool { return runtime.NumGoroutine() <= goroutines })
	after := memory()
	runtime.KeepAlive(c)
	if grown := int64(after) - int64(before); grown > 1<<20 {
		t.Errorf("%d bytes remain of %d names", grown, names)
	}
	if lines := len(c.lines.all); lines > spareLines {
		t.Errorf("%d lines remain", lines)
	}
}

// A try takes three pieces of memory beside what go-redis takes: the command, its context, and the reply, here the test's.
func TestTryTakesLittleMemory(t *testing.T) {
	l := NewClient(served{}).RateLimiter("l", WithRate(PerSecond(1000)))
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
