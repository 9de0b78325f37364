package dispatch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/exchange"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/limiter"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// A gate is a Redis client that holds calls back while it is shut.
type gate struct {
	*redis.Client
	calls atomic.Int64
	mu    sync.RWMutex // held for writing while the gate is shut
}

func (g *gate) Process(ctx context.Context, cmd redis.Cmder) error {
	g.calls.Add(1)
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.Client.Process(ctx, cmd)
}

// A pair is two limiters of a client behind a gate, and what its observer saw.
type pair struct {
	t        *testing.T
	client   *Client
	gate     *gate
	rdb      *redis.Client
	limiters []*Limiter
	now      atomic.Int64 // µs
	mu       sync.Mutex   // guards seen
	seen     []limiter.CallInfo
}

// newPair returns two limiters with rates per minute, whose scripts are loaded.
func newPair(t *testing.T, s *redistest.Server, a, b int64, options func(*limiter.Settings)) *pair {
	p := &pair{t: t, rdb: s.Client()}
	p.rdb.FlushAll(t.Context())
	for _, script := range []*script.Script{protocol.AllowAllScript, protocol.AcquireManyScript} {
		if err := p.rdb.ScriptLoad(t.Context(), script.Text).Err(); err != nil {
			t.Fatal(err)
		}
	}
	p.gate = &gate{Client: p.rdb}
	p.now.Store(1_700_000_000_000_000)
	p.client = New(limiter.Config{
		Redis:       p.gate,
		ID:          "me",
		Clock:       func() time.Time { return time.UnixMicro(p.now.Load()) },
		CallTimeout: 20 * time.Second,
		Observe: func(c limiter.CallInfo) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.seen = append(p.seen, c)
		},
	})
	p.client.Tune(limiter.Tuning{Patience: time.Minute}) // a gate that is shut is no stall
	for i, permits := range []int64{a, b} {
		settings := limiter.Settings{Options: protocol.Options{Own: protocol.Rate{Permits: permits, Interval: 60_000}}}
		if options != nil {
			options(&settings)
		}
		name, l := string(rune('a'+i)), &Limiter{}
		l.Init(p.client, name, settings, nil)
		p.limiters = append(p.limiters, l)
	}
	return p
}

// An asked is a pending AllowAll, and then its outcome.
type asked struct {
	results []Result
	err     error
	done    chan struct{}
}

// ask calls AllowAll in the background, and returns once the request is queued or in flight.
func (p *pair) ask(ctx context.Context, permits ...int64) *asked {
	p.t.Helper()
	a, before := &asked{done: make(chan struct{})}, p.queued()
	go func() {
		defer close(a.done)
		a.results, _, a.err = p.client.ServeAll(ctx, permits, &Ask{Detail: true}, p.limiters)
	}()
	for start := time.Now(); p.queued() == before; time.Sleep(100 * time.Microsecond) {
		if time.Since(start) > 10*time.Second {
			p.t.Fatal("the request is not queued")
		}
	}
	return a
}

// queued returns how many requests are queued or in flight.
func (p *pair) queued() (n int) {
	s := p.client.enterSet(p.limiters, &request{})
	defer s.exit()
	if b := s.schedule.InFlight(); b != nil {
		n = b.Requests()
	}
	return n + s.schedule.Trying()
}

// calls returns what the observer sees of the shared call that takes so many permits, for each
// limiter.
func (p *pair) calls(permits int64) (seen []limiter.CallInfo) {
	p.t.Helper()
	for start := time.Now(); ; time.Sleep(100 * time.Microsecond) {
		p.mu.Lock()
		seen = slices.DeleteFunc(slices.Clone(p.seen), func(c limiter.CallInfo) bool {
			return c.Permits.Granted != permits
		})
		p.mu.Unlock()
		if len(seen) == len(p.limiters) {
			return seen
		}
		if time.Since(start) > 10*time.Second {
			p.t.Fatalf("of a call for %d permits, seen is %+v", permits, seen)
		}
	}
}

// shut shuts the gate, and returns a request that is in flight behind it.
func (p *pair) shut() *asked {
	p.gate.mu.Lock()
	return p.ask(p.t.Context(), 1, 1)
}

func (a *asked) want(t *testing.T, what string, allowed bool, remaining [2]int64, waits [2]bool) {
	t.Helper()
	<-a.done
	if a.err != nil {
		t.Errorf("%s: %v", what, a.err)
		return
	}
	for i, r := range a.results {
		if r.Allowed != allowed || r.Remaining != remaining[i] || r.RetryAfter > 0 != waits[i] {
			t.Errorf(
				"%s, limiter %d: %+v, want allowed %v, %d remaining, a wait %v", what, i, r, allowed, remaining[i],
				waits[i],
			)
		}
	}
}

// Callers who ask while a call is in flight share the next one: sizes are groups in order, each
// caller is granted by all limiters or by none, and the results are those of calls one after the
// other.
func TestAllowAllShares(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := newPair(t, s, 11, 8, nil)
		first := p.shut()
		four := [2]*asked{p.ask(t.Context(), 4, 4), p.ask(t.Context(), 4, 4)}
		two := p.ask(t.Context(), 2, 2)
		uneven := p.ask(t.Context(), 5, 1)
		over := p.ask(t.Context(), 1, 9)
		one := p.ask(t.Context(), 1, 1)
		p.gate.mu.Unlock()
		first.want(t, "first", true, [2]int64{10, 7}, [2]bool{})
		four[0].want(t, "four", true, [2]int64{6, 3}, [2]bool{})
		four[1].want(t, "four again", false, [2]int64{3, 0}, [2]bool{true, true})
		two.want(t, "two", true, [2]int64{4, 1}, [2]bool{})
		uneven.want(t, "uneven", false, [2]int64{3, 0}, [2]bool{true, true})
		one.want(t, "one", true, [2]int64{3, 0}, [2]bool{})
		if <-over.done; over.err != error(schedule.MemberError{Limiter: 1, Err: schedule.ErrExceedsRate}) {
			t.Errorf("more than a rate: %#v", over.err)
		}
		if calls := p.gate.calls.Load(); calls != 2 {
			t.Errorf("%d calls", calls)
		}
		second := p.calls(7)
		callers := func(denied int) limiter.Callers { return limiter.Callers{Carried: 6, Granted: 3, Denied: denied} }
		for i, want := range []limiter.CallInfo{
			{Limiter: "a", Callers: callers(2), Permits: limiter.Permits{Granted: 7}, Attempts: 1},
			{Limiter: "b", Callers: callers(3), Permits: limiter.Permits{Granted: 7}, Attempts: 1},
		} {
			if second[i].Latency = 0; second[i] != want {
				t.Errorf("seen is %+v, want %+v", second[i], want)
			}
		}
		for i, want := range []int64{8, 8} {
			if got := p.recorded(i); got != want {
				t.Errorf("limiter %d has records of %d permits, want %d", i, got, want)
			}
		}
	})
}

// recorded returns the permits in the records of a limiter.
func (p *pair) recorded(i int) (sum int64) {
	all, err := p.rdb.ZRange(p.t.Context(), p.limiters[i].Keys()[keys.Permits], 0, -1).Result()
	if err != nil {
		p.t.Fatal(err)
	}
	for _, m := range all {
		end := m[len(m)-4:]
		sum += int64(end[0]) | int64(end[1])<<8 | int64(end[2])<<16 | int64(end[3])<<24
	}
	return sum
}

// With WithRecordPerRequest, each grant of a shared call has a record of its own in that limiter.
func TestAllowAllSharesWithARecordForEach(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := newPair(t, s, 100, 5, func(o *limiter.Settings) { o.RecordPerRequest = o.Own.Permits == 100 })
		all := []*asked{p.shut()}
		for range 6 {
			all = append(all, p.ask(t.Context(), 2, 1))
		}
		p.gate.mu.Unlock()
		for i, a := range all {
			if <-a.done; a.err != nil || a.results[0].Allowed != (i < 5) {
				t.Errorf("request %d: %+v, %v", i, a.results, a.err)
			}
		}
		for i, want := range []int64{5, 2} {
			if got := p.rdb.ZCard(t.Context(), p.limiters[i].Keys()[keys.Permits]).Val(); got != want {
				t.Errorf("limiter %d has %d records, want %d", i, got, want)
			}
		}
		for i, want := range []int64{9, 5} {
			if got := p.recorded(i); got != want {
				t.Errorf("limiter %d has records of %d permits, want %d", i, got, want)
			}
		}
	})
}

// A caller who leaves before its call takes nothing. One who leaves while it is in flight does not
// know the outcome, and what it was granted is unclaimed.
func TestAllowAllIsLeft(t *testing.T) {
	p := newPair(t, redistest.Embedded(t), 10, 10, nil)
	p.gate.mu.Lock()
	gone := errors.New("gone")
	inFlight, leave := context.WithCancelCause(t.Context())
	first := p.ask(inFlight, 1, 1)
	queued, leaveQueue := context.WithCancelCause(t.Context())
	second := p.ask(queued, 2, 2)
	third := p.ask(t.Context(), 3, 3)
	leave(gone)
	leaveQueue(gone)
	if <-first.done; !errors.Is(first.err, script.ErrOutcomeUnknown) || !errors.Is(first.err, context.Canceled) {
		t.Errorf("in flight: %v", first.err)
	}
	if <-second.done; second.err != context.Canceled {
		t.Errorf("queued: %v", second.err)
	}
	p.gate.mu.Unlock()
	third.want(t, "third", true, [2]int64{6, 6}, [2]bool{})
	for _, c := range p.calls(1) {
		if c.Callers.Carried != 1 || c.Callers.Granted != 0 || c.Permits.Unclaimed != 1 {
			t.Errorf("of the call that was left, seen is %+v", c)
		}
	}
}

// However many callers ask, all limiters together grant what the smallest of them has, in few
// calls, and a set that nobody asks any more is idle.
func TestAllowAllGrantsTheRate(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const callers, each = 50, 20
		p := newPair(t, s, 1000, 700, nil)
		var granted [2]atomic.Int64
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				for range each {
					n := int64(1 + i%3)
					results, _, err := p.client.ServeAll(t.Context(), []int64{n, 1}, &Ask{Detail: true}, p.limiters)
					if err != nil {
						t.Error(err)
						return
					}
					if results[0].Allowed != results[1].Allowed {
						t.Errorf("one of two allowed: %+v", results)
					}
					if results[0].Allowed {
						granted[0].Add(n)
						granted[1].Add(1)
					}
				}
			})
		}
		all.Wait()
		for i := range granted {
			if got := p.recorded(i); got != granted[i].Load() {
				t.Errorf("limiter %d granted %d permits and has records of %d", i, granted[i].Load(), got)
			}
		}
		if a, b := granted[0].Load(), granted[1].Load(); a > 1000 || b > 700 || a < 998 && b < 700 {
			t.Errorf("granted are %d of 1000 and %d of 700", a, b)
		}
		if calls := p.gate.calls.Load(); calls > callers*each/2 {
			t.Errorf("%d calls for %d requests", calls, callers*each)
		}
		for start := time.Now(); p.client.Inspect().Busy > 0; time.Sleep(time.Millisecond) { // the queue may linger
			if time.Since(start) > 10*time.Second {
				t.Fatal("the set is in use")
			}
		}
	})
}

// If the connection breaks after a shared call was executed, its next attempt finds what was
// granted: nothing is taken twice, and who was refused asks again.
func TestAllowAllIsFoundAgain(t *testing.T) {
	for _, options := range []func(*limiter.Settings){
		nil,
		func(o *limiter.Settings) { o.RecordPerRequest = true },
		func(o *limiter.Settings) { o.Granularity = time.Second },
	} {
		redistest.Each(t, func(t *testing.T, s *redistest.Server) {
			p := newPair(t, s, 10, 8, options)
			p.client.Exchange = exchange.New(&loser{gate: p.gate, lost: 2}, 20*time.Second, p.client.Config.Clock)
			p.client.Tune(limiter.Tuning{Patience: time.Minute})
			all := []*asked{p.shut()}
			for range 5 {
				all = append(all, p.ask(t.Context(), 2, 2))
			}
			p.gate.mu.Unlock()
			for i, a := range all {
				if <-a.done; a.err != nil || a.results[0].Allowed != (i < 4) {
					t.Errorf("request %d: %+v, %v", i, a.results, a.err)
				}
			}
			for i, want := range []int64{7, 7} {
				if got := p.recorded(i); got != want {
					t.Errorf("limiter %d has records of %d permits, want %d", i, got, want)
				}
			}
		})
	}
}

// A loser loses the reply to one call, counted from 1.
type loser struct {
	*gate
	lost, seen int64
}

func (l *loser) Process(ctx context.Context, cmd redis.Cmder) error {
	err := l.gate.Process(ctx, cmd)
	if atomic.AddInt64(&l.seen, 1) == l.lost {
		err = fmt.Errorf("read: %w", context.DeadlineExceeded)
		*cmd.(*script.Command) = script.NewCommand(ctx, cmd.Args())
		cmd.SetErr(err)
	}
	return err
}

// A caller that is granted learns when all permits are free, also if its call left expired records
// and so has no answer yet for another caller.
func TestAllowAllResetWhereExpiredRecordsRemain(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := newPair(t, s, 10_000, 10_000, nil)
		const expired = 4500
		records, names := make([]redis.Z, expired), p.limiters[0].Keys()
		for i := range records {
			records[i] = redis.Z{Score: 1_600_000_000_000, Member: fmt.Sprintf("\x08%08d\x01\x00\x00\x00", i)}
		}
		p.rdb.ZAdd(t.Context(), names[keys.Permits], records...)
		p.rdb.Set(t.Context(), names[keys.Value], 10_000-expired, 0)
		p.shut() // removes 2000 records
		one := p.ask(t.Context(), 1, 1)
		most := p.ask(t.Context(), 10_000, 10_000)
		p.gate.mu.Unlock()
		one.want(t, "one", true, [2]int64{9498, 9998}, [2]bool{})
		most.want(t, "most", false, [2]int64{9998, 9998}, [2]bool{true, true})
		for i, r := range one.results {
			if r.ResetAfter != time.Minute {
				t.Errorf("limiter %d is free after %v, want 1m", i, r.ResetAfter)
			}
		}
	})
}

// If a call times out, the requests that are queued behind it fail with it, and are counted with
// its callers.
func TestAllowAllFailsTheQueue(t *testing.T) {
	p := newPair(t, redistest.Embedded(t), 10, 10, nil)
	p.client.Exchange = exchange.New(p.gate, time.Second, p.client.Config.Clock)
	p.client.Tune(limiter.Tuning{Patience: time.Minute})
	defer p.gate.mu.Unlock()
	for i, a := range []*asked{p.shut(), p.ask(t.Context(), 2, 2), p.ask(t.Context(), 3, 3)} {
		if <-a.done; !errors.Is(a.err, os.ErrDeadlineExceeded) {
			t.Errorf("request %d: %v", i, a.err)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.seen) != 2 { // one for each limiter
		t.Errorf("%d calls were seen: %+v", len(p.seen), p.seen)
	}
	for _, c := range p.seen {
		if c.Callers.Carried != 3 || c.Callers.Denied != 3 {
			t.Errorf("%d callers, %d of them denied, want 3", c.Callers.Carried, c.Callers.Denied)
		}
	}
}
