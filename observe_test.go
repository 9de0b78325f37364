package rratelimiter

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A requestLog is an observer that also records requests and clients.
type requestLog struct {
	log
	mu       sync.Mutex
	requests []RequestInfo
	contexts []context.Context
	clients  []*Client
}

func (l *requestLog) Request(ctx context.Context, info RequestInfo) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests = append(l.requests, info)
	l.contexts = append(l.contexts, ctx)
}

func (l *requestLog) Watch(c *Client) { l.clients = append(l.clients, c) }

func TestRequestObserverSeesEachRequest(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		log := &requestLog{}
		p := b.process(WithObserver(log))
		p.wire.there.Store(int64(2 * ms))
		p.wire.back.Store(int64(3 * ms))
		type key struct{}
		ctx := context.WithValue(t.Context(), key{}, true)
		l, other := p.RateLimiter("{t}a", WithRate(PerSecond(10))), p.RateLimiter("{t}b", WithRate(PerSecond(100)))
		try := func(_ any, err error) {
			if err != nil {
				t.Error(err)
			}
		}
		try(l.Allow(ctx, 4))                            // until 5 ms
		try(l.TryAcquire(ctx, 7))                       // until 10
		try(l.TryAcquireTimeout(ctx, 3, 3*time.Second)) // until 15
		try(l.AcquireUpTo(ctx, 5))                      // until 20
		try(nil, l.Acquire(ctx, 2))                     // refused at 22, the first one's permits return at 1002
		try(p.AllowAll(ctx, 1, l, other))
		if err := l.Acquire(ctx, 11); !errors.Is(err, ErrExceedsRate) {
			t.Error(err)
		}
		want := []RequestInfo{
			{Method: "Allow", Permits: 4, Granted: 4, Latency: 5 * ms},
			{Method: "TryAcquire", Permits: 7, Latency: 5 * ms},
			{Method: "TryAcquireTimeout", Waits: true, Permits: 3, Granted: 3, Latency: 5 * ms},
			{Method: "AcquireUpTo", Permits: 5, Granted: 3, Latency: 5 * ms},
			{Method: "Acquire", Waits: true, Permits: 2, Granted: 2, Latency: 985 * ms},
			{Method: "AllowAll", Permits: 1, Granted: 1, Latency: 15 * ms}, // its script has to be loaded
			{Limiter: "{t}b", Method: "AllowAll", Permits: 1, Granted: 1, Latency: 15 * ms},
			{Method: "Acquire", Waits: true, Permits: 11, Latency: 5 * ms, Err: ErrExceedsRate},
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

// Callers whose context ends before the reply, or without a call, are not in a CallInfo, but are seen as requests once.
func TestRequestObserverSeesUnansweredRequests(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		log := &requestLog{}
		p := b.process(WithObserver(log))
		l, other := p.RateLimiter("{t}a", WithRate(PerSecond(10))), p.RateLimiter("{t}b", WithRate(PerSecond(10)))
		if _, err := l.Allow(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		log.requests = nil
		resume := p.wire.hang()
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
		inBubble(t, func(t *testing.T, b *bubble) {
			log := &log{}
			p := b.process(WithObserver(log))
			l := p.RateLimiter("l", WithRate(PerSecond(10)))
			plug := p.wire.hang()
			b.try(l, 1)
			gone := b.acquire(l, 6)
			b.acquire(l, behind)
			resume := p.wire.hang()
			plug()
			b.sleepTo(10 * ms)
			gone.end()
			synctest.Wait()
			resume()
			synctest.Wait()
			if calls := log.all(); len(calls) < 2 || calls[1].Permits != 6 || calls[1].Unclaimed != unclaimed {
				t.Errorf("with %d behind: %+v, expected %d unclaimed", behind, calls, unclaimed)
			}
		})
	}
}

func TestObserversCallAll(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		first, second, plain := &requestLog{}, &requestLog{}, &log{}
		p := b.process(WithObserver(Observers(first, nil, Observers(plain, second))))
		if ok, err := p.RateLimiter("l", WithRate(PerSecond(1))).TryAcquire(t.Context(), 1); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if len(first.all()) != 1 || len(second.all()) != 1 || len(plain.all()) != 1 {
			t.Error("an observer did not see the call")
		}
		for _, l := range []*requestLog{first, second} {
			if len(l.requests) != 1 || !slices.Equal(l.clients, []*Client{p.Client}) {
				t.Errorf("%+v, %d clients", l.requests, len(l.clients))
			}
		}
		if _, ok := Observers(plain, &log{}).(RequestObserver); ok {
			t.Error("no observer sees requests, but they are reported")
		}
		if o := Observers(nil, nil); o != nil {
			t.Errorf("no observers: %v", o)
		}
	})
}

// A guardLog is an observer that records decisions of guards.
type guardLog struct {
	log
	decisions []GuardInfo
}

func (l *guardLog) Guard(_ context.Context, info GuardInfo) { l.decisions = append(l.decisions, info) }

func TestObserversForwardDecisionsOfGuards(t *testing.T) {
	first, second := &guardLog{}, &guardLog{}
	for _, plain := range []Observer{&log{}, &requestLog{}} {
		c := NewClient(nil, WithObserver(Observers(first, plain, Observers(second, plain))))
		c.Observer().(GuardObserver).Guard(t.Context(), GuardInfo{Policy: "api", Outcome: "allowed"})
	}
	for _, l := range []*guardLog{first, second} {
		if want := (GuardInfo{Policy: "api", Outcome: "allowed"}); !slices.Equal(l.decisions, []GuardInfo{want, want}) {
			t.Errorf("%+v", l.decisions)
		}
	}
	if o := NewClient(nil).Observer(); o != nil {
		t.Errorf("without one: %v", o)
	}
}

func TestWaitingCountsBlockedCallers(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		l, same := p.RateLimiter("a", WithRate(PerSecond(1))), p.RateLimiter("a", WithRate(PerSecond(1)), WithServerTime())
		idle := p.RateLimiter("b", WithRate(PerSecond(1)))
		b.granted("the first", b.acquire(l, 1), 0)
		b.granted("of another limiter", b.acquire(idle, 1), 0)
		calls := []*call{b.acquire(l, 1), b.acquire(l, 1), b.acquire(same, 1)}
		synctest.Wait()
		if w := p.Waiting(); len(w) != 1 || w["a"] != 3 {
			t.Errorf("waiting: %v", w)
		}
		for _, c := range calls {
			c.end()
		}
		synctest.Wait()
		if w := p.Waiting(); len(w) != 0 {
			t.Errorf("waiting, though all have left: %v", w)
		}
	})
}
