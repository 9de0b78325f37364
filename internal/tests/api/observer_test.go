package api

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// A requestLog is an observer that also records requests and clients.
type requestLog struct {
	rig.Log
	mu       sync.Mutex
	requests []rratelimiter.RequestInfo
	contexts []context.Context
	clients  []*rratelimiter.Client
}

func (l *requestLog) Request(ctx context.Context, info rratelimiter.RequestInfo) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests = append(l.requests, info)
	l.contexts = append(l.contexts, ctx)
}

func (l *requestLog) Watch(c *rratelimiter.Client) { l.clients = append(l.clients, c) }

func TestRequestObserverSeesEachRequest(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		log := &requestLog{}
		p := b.Process(rratelimiter.WithObserver(log))
		p.Wire.There.Store(int64(2 * ms))
		p.Wire.Back.Store(int64(3 * ms))
		type key struct{}
		ctx := context.WithValue(t.Context(), key{}, true)
		l, other := p.RateLimiter("{t}a", rratelimiter.WithRate(rratelimiter.PerSecond(10))),
			p.RateLimiter("{t}b", rratelimiter.WithRate(rratelimiter.PerSecond(100)))
		try := func(_ any, err error) {
			if err != nil {
				t.Error(err)
			}
		}
		try(l.Allow(ctx, 4))                            // until 5 ms
		try(l.TryAcquire(ctx, 7))                       // until 10
		try(l.TryAcquireTimeout(ctx, 3, 3*time.Second)) // until 15
		try(l.AcquireUpTo(ctx, 5))                      // until 20
		// refused at 22, the first one's permits return at 1002
		try(nil, l.Acquire(ctx, 2))
		try(p.AllowAll(ctx, 1, l, other))
		if err := l.Acquire(ctx, 11); !errors.Is(err, rratelimiter.ErrExceedsRate) {
			t.Error(err)
		}
		want := []rratelimiter.RequestInfo{
			{Method: "Allow", Permits: 4, Granted: 4, Latency: 5 * ms},
			{Method: "TryAcquire", Permits: 7, Latency: 5 * ms},
			{Method: "TryAcquireTimeout", Waits: true, Permits: 3, Granted: 3, Latency: 5 * ms},
			{Method: "AcquireUpTo", Permits: 5, Granted: 3, Latency: 5 * ms},
			{Method: "Acquire", Waits: true, Permits: 2, Granted: 2, Latency: 985 * ms},
			{Method: "AllowAll", Permits: 1, Granted: 1, Latency: 5 * ms},
			{Limiter: "{t}b", Method: "AllowAll", Permits: 1, Granted: 1, Latency: 5 * ms},
			{Method: "Acquire", Waits: true, Permits: 11, Latency: 5 * ms, Err: rratelimiter.ErrExceedsRate},
		}
		if len(log.requests) != len(want) {
			t.Fatalf("%+v", log.requests)
		}
		for i, got := range log.requests {
			if log.contexts[i].Value(key{}) == nil {
				t.Errorf("request %d came without its context", i)
			}
			if !errors.Is(got.Err, want[i].Err) {
				t.Errorf("request %d: %v", i, got.Err)
			}
			got.Err, want[i].Err = nil, nil
			if want[i].Limiter == "" {
				want[i].Limiter = "{t}a"
			}
			if got != want[i] {
				t.Errorf("request %d: %+v, expected %+v", i, got, want[i])
			}
		}
	})
}

// A limiter with a deny cache asks for details also if the caller does not, and reports the
// caller's method all the same.
func TestRequestObserverSeesTheMethodBesideADenyCache(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		log := &requestLog{}
		l := b.Process(rratelimiter.WithObserver(log)).
			RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(1)), rratelimiter.WithDenyCache(5))
		for range 3 { // granted, refused by Redis, refused by the cache
			if _, err := l.TryAcquire(t.Context(), 1); err != nil {
				t.Error(err)
			}
		}
		if len(log.requests) != 3 {
			t.Fatalf("%+v", log.requests)
		}
		for i, got := range log.requests {
			if got.Method != "TryAcquire" {
				t.Errorf("request %d: %s", i, got.Method)
			}
		}
	})
}

// Callers whose context ends before the reply, or without a call, are not in a CallInfo, but are
// seen as requests once.
func TestRequestObserverSeesUnansweredRequests(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		log := &requestLog{}
		p := b.Process(rratelimiter.WithObserver(log))
		l, other := p.RateLimiter("{t}a", rratelimiter.WithRate(rratelimiter.PerSecond(10))),
			p.RateLimiter("{t}b", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		if _, err := l.Allow(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		log.requests = nil
		resume := p.Wire.Hang()
		ctx, cancel := context.WithTimeout(t.Context(), 100*ms)
		defer cancel()
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() { _, _ = l.Allow(ctx, 1) })
		}
		all.Go(func() { _ = l.Acquire(ctx, 1) })
		all.Go(func() { _, _ = other.AcquireUpTo(ctx, 1) })
		all.Go(func() { _, _ = p.AllowAll(ctx, 1, l, other) })
		all.Wait()
		_, _ = l.Allow(ctx, 1)
		_, _ = p.AllowAll(ctx, 1, l, other)
		resume()
		synctest.Wait()
		if len(log.requests) != 11 {
			t.Errorf("%d requests were seen", len(log.requests))
		}
		for _, info := range log.requests {
			if !errors.Is(info.Err, context.DeadlineExceeded) {
				t.Errorf("%+v", info)
			}
		}
	})
}

// Permits of a cancelled caller count as unclaimed if no request behind it can use them.
func TestObserverSeesUnclaimedPermits(t *testing.T) {
	for behind, unclaimed := range map[int64]int64{5: 1, 7: 6} {
		rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
			log := &rig.Log{}
			p := b.Process(rratelimiter.WithObserver(log))
			l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
			plug := p.Wire.Hang()
			b.Try(l, 1)
			gone := b.Acquire(l, 6)
			b.Acquire(l, behind)
			resume := p.Wire.Hang()
			plug()
			b.SleepTo(10 * ms)
			gone.Cancel()
			synctest.Wait()
			resume()
			synctest.Wait()
			calls := log.All() // the call that follows at once may be reported first
			left := slices.IndexFunc(calls, func(f rratelimiter.CallInfo) bool { return f.Permits == 6 })
			if left < 0 || calls[left].Unclaimed != unclaimed {
				t.Errorf("with %d behind: %+v, expected %d unclaimed", behind, calls, unclaimed)
			}
		})
	}
}

func TestObserversCallAll(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		first, second, plain := &requestLog{}, &requestLog{}, &rig.Log{}
		p := b.Process(rratelimiter.WithObserver(rratelimiter.Observers(first, nil,
			rratelimiter.Observers(plain, second))))
		if ok, err := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(1))).TryAcquire(t.Context(),
			1); !ok ||
			err != nil {
			t.Fatal(ok, err)
		}
		if len(first.All()) != 1 || len(second.All()) != 1 || len(plain.All()) != 1 {
			t.Error("an observer did not see the call")
		}
		for _, l := range []*requestLog{first, second} {
			if len(l.requests) != 1 || !slices.Equal(l.clients, []*rratelimiter.Client{p.Client}) {
				t.Errorf("%+v, %d clients", l.requests, len(l.clients))
			}
		}
		if _, ok := rratelimiter.Observers(plain, &rig.Log{}).(rratelimiter.RequestObserver); ok {
			t.Error("no observer sees requests, but they are reported")
		}
		if o := rratelimiter.Observers(nil, nil); o != nil {
			t.Errorf("no observers: %v", o)
		}
	})
}

// A guardLog is an observer that records decisions of guards.
type guardLog struct {
	rig.Log
	decisions []rratelimiter.GuardInfo
}

func (l *guardLog) Guard(_ context.Context, info rratelimiter.GuardInfo) {
	l.decisions = append(l.decisions, info)
}

func TestObserversForwardDecisionsOfGuards(t *testing.T) {
	first, second := &guardLog{}, &guardLog{}
	for _, plain := range []rratelimiter.Observer{&rig.Log{}, &requestLog{}} {
		c := rratelimiter.NewClient(
			nil, rratelimiter.WithObserver(rratelimiter.Observers(first, plain, rratelimiter.Observers(second, plain))),
		)
		c.Observer().(rratelimiter.GuardObserver).Guard(
			t.Context(), rratelimiter.GuardInfo{Policy: "api", Outcome: "allowed"},
		)
	}
	for _, l := range []*guardLog{first, second} {
		if want := (rratelimiter.GuardInfo{Policy: "api", Outcome: "allowed"}); !slices.Equal(
			l.decisions, []rratelimiter.GuardInfo{want, want},
		) {
			t.Errorf("%+v", l.decisions)
		}
	}
	if o := rratelimiter.NewClient(nil).Observer(); o != nil {
		t.Errorf("without one: %v", o)
	}
}

func TestWaitingCountsBlockedCallers(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l, same := p.RateLimiter("a", rratelimiter.WithRate(rratelimiter.PerSecond(1))),
			p.RateLimiter("a", rratelimiter.WithRate(rratelimiter.PerSecond(1)), rratelimiter.WithServerTime())
		idle := p.RateLimiter("b", rratelimiter.WithRate(rratelimiter.PerSecond(1)))
		b.Granted("the first", b.Acquire(l, 1), 0)
		b.Granted("of another limiter", b.Acquire(idle, 1), 0)
		calls := []*rig.Call{b.Acquire(l, 1), b.Acquire(l, 1), b.Acquire(same, 1)}
		synctest.Wait()
		if w := p.Waiting(); len(w) != 1 || w["a"] != 3 {
			t.Errorf("waiting: %v", w)
		}
		for _, c := range calls {
			c.Cancel()
		}
		synctest.Wait()
		if w := p.Waiting(); len(w) != 0 {
			t.Errorf("waiting, though all have left: %v", w)
		}
	})
}

func TestObserverSeesEachCall(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		log := &rig.Log{}
		p := b.Process(rratelimiter.WithObserver(log))
		l := p.RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		if err := l.SetRate(t.Context(), rratelimiter.PerSecond(11)); err != nil { // another rate than the handle's
			t.Fatal(err)
		}
		p.Wire.There.Store(int64(2 * ms))
		p.Wire.Back.Store(int64(3 * ms))
		resume := p.Wire.Hang()
		plug := b.Acquire(l, 1)
		var all []*rig.Call
		for range 3 {
			all = append(all, b.Acquire(l, 4))
		}
		all = append(all, b.Try(l, 1), b.Acquire(l, 12))
		resume()
		b.SleepTo(100 * ms)
		_ = plug
		all[2].Cancel()
		synctest.Wait()
		b.SleepTo(200 * ms)
		b.Server.Set("{orders}:value", "12")
		if n, err := l.AcquireUpTo(t.Context(), 5); n != 2 || err != nil {
			t.Errorf("AcquireUpTo: %d, %v", n, err)
		}
		b.Server.Del("orders")
		bare := p.RateLimiter("orders")
		if err := bare.Acquire(t.Context(), 1); !errors.Is(err, rratelimiter.ErrNotInitialized) {
			t.Error(err)
		}
		want := []rratelimiter.CallInfo{
			{Callers: 1, Granted: 1, Permits: 1, Waiting: 4, RateMismatch: true},
			{Callers: 5, Granted: 2, Denied: 2, Permits: 8, Waiting: 1, RateMismatch: true},
			{Callers: 1, Granted: 1, Permits: 2, Repaired: "free permits were above the rate", RateMismatch: true},
			{Callers: 1, Denied: 1, Err: rratelimiter.ErrNotInitialized},
		}
		got := log.All()
		if len(got) != len(want) {
			t.Fatalf("%+v", got)
		}
		for i, f := range got {
			if f.Latency != 5*ms {
				t.Errorf("call %d took %v", i, f.Latency)
			}
			if !errors.Is(f.Err, want[i].Err) || (f.Err != nil) != (want[i].Err != nil) {
				t.Errorf("call %d: %v", i, f.Err)
			}
			f.Latency, f.Err, want[i].Err = 0, nil, nil
			want[i].Limiter, want[i].Attempts = "orders", 1
			if f != want[i] {
				t.Errorf("call %d: %+v, expected %+v", i, f, want[i])
			}
		}
	})
}

// Enforcing a rate over another one takes a second attempt.
func TestObserverCountsAttempts(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		log := &rig.Log{}
		p := b.Process(rratelimiter.WithObserver(log))
		if err := p.RateLimiter("l").SetRate(t.Context(), rratelimiter.PerSecond(5)); err != nil {
			t.Fatal(err)
		}
		b.Granted(
			"the caller that enforces",
			b.Acquire(p.RateLimiter("l", rratelimiter.WithEnforcedRate(rratelimiter.PerSecond(10))), 10), 0,
		)
		if f := log.All()[0]; f.Attempts != 2 || f.RateMismatch || f.Permits != 10 {
			t.Errorf("%+v", f)
		}
	})
}
