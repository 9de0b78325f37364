package faults

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// fallback_test.go stops Redis for limiters with WithFallback, which then decide in the process.

// An outages is an observer that records the local decisions of a process.
type outages struct {
	mu   sync.Mutex
	made []decision
	away map[string]bool // limiters whose last decision was local
}

type decision struct {
	rratelimiter.CallInfo
	at time.Time
}

func (o *outages) Call(f rratelimiter.CallInfo) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.away == nil {
		o.away = map[string]bool{}
	}
	if o.away[f.Limiter] = f.Fallback; f.Fallback {
		o.made = append(o.made, decision{f, time.Now()})
	}
}

// decisions returns all decisions so far, in order.
func (o *outages) decisions() []decision {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.made)
}

// last returns the time of the last local decision.
func (o *outages) last() (at time.Time) {
	for _, d := range o.decisions() {
		at = d.at
	}
	return at
}

// end waits until Redis decides on limiters again, and returns how long that took.
func (o *outages) end(t *testing.T, limiters ...*rratelimiter.Limiter) time.Duration {
	t.Helper()
	began := time.Now()
	for _, l := range limiters {
		eventually(t, "Redis decides on "+l.Name()+" again", func() bool {
			if _, err := l.TryAcquire(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			o.mu.Lock()
			defer o.mu.Unlock()
			return !o.away[l.Name()]
		})
	}
	return time.Since(began)
}

// TestFallback: a Redis that is down costs callers one call's time at most, and no error; the
// process keeps to its fraction of the rate, and Redis decides again soon after it is back.
func TestFallback(t *testing.T) {
	t.Run("hangs", func(t *testing.T) {
		inRounds(t, func(t *testing.T, r *round) {
			fallBack(t, r, func(s *redistest.Server) (back func()) {
				s.Pause()
				return s.Resume
			})
		})
	})
	t.Run("is dead", func(t *testing.T) {
		inRounds(t, func(t *testing.T, r *round) {
			fallBack(t, r, func(s *redistest.Server) (back func()) {
				s.Kill()
				return s.Restart
			})
		})
	})
}

func fallBack(t *testing.T, r *round, takeAway func(*redistest.Server) (back func())) {
	const (
		limiters = 20
		every    = time.Millisecond
		timeout  = 400 * time.Millisecond
		away     = 2 * time.Second
		part     = 10
	)
	rate := rratelimiter.Rate{Permits: 2 * part, Interval: 500 * time.Millisecond}
	server := redistest.Real(t)
	o := &outages{}
	client := rratelimiter.NewClient(server.Client(func(o *redis.Options) { o.DialTimeout = timeout }),
		rratelimiter.WithCallTimeout(timeout), rratelimiter.WithObserver(o),
		rratelimiter.WithLimiterDefaults(rratelimiter.WithRate(rate), rratelimiter.WithFallback(0.5)))
	all := make([]*rratelimiter.Limiter, limiters)
	for i := range all {
		all[i] = client.RateLimiter(fmt.Sprint("fallback:", i))
	}
	var mu sync.Mutex
	granted := make([]calls, limiters)
	once := func(i int) call {
		c := ask(1, func() (bool, error) { return all[i%limiters].TryAcquire(t.Context(), 1) })
		if c.Granted {
			mu.Lock()
			defer mu.Unlock()
			granted[i%limiters] = append(granted[i%limiters], c)
		}
		return c
	}
	before := arrive(every, lasting(away/4), once)
	atRest(t)
	goroutines := runtime.NumGoroutine()

	began := time.Now()
	back := takeAway(server)
	gone := time.Now()
	during := arrive(every, lasting(away), once)
	still := time.Now()
	back()
	returned := time.Now()
	after := arrive(every, lasting(away), once)
	for _, c := range append(append(before, during...), after...).where(failed) {
		t.Fatalf("a caller's error is %v", c.err)
	}
	known := began.Add(2 * timeout)
	later := during.where(func(c call) bool { return c.Start.After(known) })
	late := o.last().Sub(returned)
	t.Logf(
		"before: p99 %v; away: the longest %v, once it was known p99 %v of %d; last decision in the process %v after its return",
		before.percentile(99), during.percentile(100), later.percentile(99), len(later), late,
	)
	r.atMost("the caller that waited longest", during.percentile(100), timeout+slack)
	r.atMost("99 of 100 callers, once it was known that Redis is away", later.percentile(99), quick(before, later)/2)
	r.atMost("the last decision in the process after the return of Redis", late, away-200*time.Millisecond)
	sum := int64(0)
	for _, granted := range granted {
		var local []window.Grant
		for _, c := range granted {
			if c.Start.After(gone) && c.End.Before(still) {
				local = append(local, window.Grant{Permits: c.Permits, Start: c.Start, End: c.End})
			}
		}
		most, _ := window.Largest(local, rate.Interval)
		if sum += most; most > part {
			t.Errorf("the process granted %d permits in a window, of %d", most, part)
		}
	}
	if sum < limiters*part/2 {
		t.Errorf("in the fullest windows the process granted %d permits, of %d", sum, limiters*part)
	}
	atRest(t)
	eventually(t, "all goroutines are gone", func() bool { return runtime.NumGoroutine() <= goroutines+5 })
}

// TestFallbackFromAReplica: a server that became a replica answers reads, and refuses all calls.
// Once that is known, callers send it no more calls, until it is a master again.
func TestFallbackFromAReplica(t *testing.T) {
	t.Parallel()
	inRounds(t, fallBackFromAReplica)
}

func fallBackFromAReplica(t *testing.T, r *round) {
	const (
		every = 2 * time.Millisecond
		away  = 2 * time.Second
		most  = 4 // calls in flight at once
	)
	server := redistest.Real(t)
	admin := server.Client()
	o := &outages{}
	client := rratelimiter.NewClient(server.Client(), rratelimiter.WithObserver(o))
	limiter := client.RateLimiter("replica", rratelimiter.WithRate(ample), rratelimiter.WithFallback(1))
	once := func(int) call { return ask(1, func() (bool, error) { return limiter.TryAcquire(t.Context(), 1) }) }
	before := arrive(every, lasting(away/10), once)
	host, port, err := net.SplitHostPort(redistest.Nowhere(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.ReplicaOf(t.Context(), host, port).Err(); err != nil {
		t.Fatal(err)
	}
	known := time.Now().Add(away / 5)
	during := arrive(every, lasting(away), once)
	if err := admin.ReplicaOf(t.Context(), "no", "one").Err(); err != nil {
		t.Fatal(err)
	}
	returned := o.end(t, limiter)
	for _, c := range append(before, during...) {
		if c.err != nil || !c.Granted {
			t.Fatalf("a caller got %v, %v", c.Granted, c.err)
		}
	}
	asked, later := 0, during.where(func(c call) bool { return c.Start.After(known) })
	for _, d := range o.decisions() {
		if d.Attempts > 0 {
			asked++
		}
	}
	t.Logf("before: p99 %v; a replica: %d of %d calls asked it, the longest took %v, later p99 %v; a master: %v",
		before.percentile(99), asked, len(during), during.percentile(100), later.percentile(99), returned)
	if asked == 0 || asked > most {
		t.Errorf("the replica was asked by %d calls", asked)
	}
	r.atMost("99 of 100 callers, once it was known", later.percentile(99), quick(before, later)/2)
	if returned > callTimeout+slack {
		t.Errorf("%v after it is a master again it does not decide", returned)
	}
}

// TestFallbackByNodes: of three servers one dies and another one hangs. The process decides only on
// their limiters, and callers of the third are not affected.
func TestFallbackByNodes(t *testing.T) {
	t.Parallel()
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		nodes := redistest.Cluster(t, 3, "--cluster-require-full-coverage", "no")
		rdb := nodes.ClusterClient()
		inRounds(t, func(t *testing.T, r *round) {
			fallBackByNodes(t, r, nodes.Servers, rdb, rdb.MasterForKey, nodes.Ready)
		})
	})
	t.Run("ring that keeps its shards", func(t *testing.T) {
		t.Parallel()
		servers := []*redistest.Server{redistest.Real(t), redistest.Real(t), redistest.Real(t)}
		ring := newRing(t, servers, func(o *redis.RingOptions) {
			o.HeartbeatFn = func(context.Context, *redis.Client) bool { return true }
		})
		inRounds(t, func(t *testing.T, r *round) {
			fallBackByNodes(t, r, servers, ring, func(_ context.Context, key string) (*redis.Client, error) {
				return ring.GetShardClientForKey(key)
			}, func() {})
		})
	})
}

func newRing(t *testing.T, servers []*redistest.Server, opts ...func(*redis.RingOptions)) *redis.Ring {
	o := &redis.RingOptions{Addrs: map[string]string{}}
	for i, s := range servers {
		o.Addrs[fmt.Sprint("shard", i)] = s.Addr
	}
	for _, opt := range opts {
		opt(o)
	}
	ring := redis.NewRing(o)
	t.Cleanup(func() { _ = ring.Close() })
	return ring
}

// fallBackByNodes stops two of three servers. way returns which one holds a key, and ready waits
// until all work again after a restart.
func fallBackByNodes(
	t *testing.T, r *round, servers []*redistest.Server, rdb rratelimiter.Redis,
	way func(ctx context.Context, key string) (*redis.Client, error), ready func(),
) {
	const (
		each  = 4 // limiters on a server, one for each method
		every = 2 * time.Millisecond
		away  = 5 * callTimeout / 2
		part  = 10
	)
	rate := rratelimiter.Rate{Permits: 2 * part, Interval: 500 * time.Millisecond}
	o := &outages{}
	client := rratelimiter.NewClient(rdb, rratelimiter.WithObserver(o),
		rratelimiter.WithLimiterDefaults(rratelimiter.WithFallback(0.5)))
	names := 0
	on := func(s *redistest.Server, rate rratelimiter.Rate, count int) (all []*rratelimiter.Limiter) {
		for ; len(all) < count; names++ {
			name := fmt.Sprint("limiter", names)
			if node, err := way(t.Context(), name); err != nil {
				t.Fatal(err)
			} else if node.Options().Addr == s.Addr {
				all = append(all, client.RateLimiter(name, rratelimiter.WithRate(rate)))
			}
		}
		return all
	}
	dead, hung, fine := servers[0], servers[1], servers[2]
	well, pair := on(fine, ample, each), on(fine, ample, 1)[0]
	sick, late := append(on(dead, rate, each), on(hung, rate, each)...), append(on(dead, rate, 5), on(hung, rate, 5)...)
	try := func(i int) call {
		return ask(1, func() (bool, error) { return well[i%each].TryAcquire(t.Context(), 1) })
	}
	before := arrive(every, lasting(away/10), try)
	o.end(t, append(sick, pair)...)

	dead.Kill()
	hung.Pause()
	over := lasting(away)
	var others calls
	got := make([]calls, len(sick))
	var wg sync.WaitGroup
	wg.Go(func() {
		others = arrive(every, over, func(i int) call {
			switch l := well[i%each]; i / each % 3 {
			case 0:
				return try(i)
			case 1:
				return ask(1, func() (bool, error) { return true, second(l.AcquireUpTo(t.Context(), 1)) })
			default:
				return ask(1, func() (bool, error) { return true, second(client.AllowAll(t.Context(), 1, l)) })
			}
		})
	})
	for i, l := range sick {
		ways := [each]func() (permits int64, err error){
			func() (int64, error) { return one(l.TryAcquire(t.Context(), 1)) },
			func() (int64, error) { return l.AcquireUpTo(t.Context(), 2) },
			func() (int64, error) { return 1, l.Acquire(t.Context(), 1) },
			func() (int64, error) {
				results, err := client.AllowAll(t.Context(), 1, pair, l)
				return one(err == nil && results[1].Allowed, err)
			},
		}
		wg.Go(func() {
			got[i] = load(2, 1, 5*time.Millisecond, over, func(int) call {
				var permits int64
				c := ask(0, func() (_ bool, err error) {
					permits, err = ways[i%each]()
					return permits > 0, err
				})
				c.Permits = permits
				return c
			})
		})
	}
	time.Sleep(away * 3 / 4)
	for _, l := range late {
		if ok, err := l.TryAcquire(t.Context(), 1); !ok || err != nil {
			t.Errorf("%s, for the first time: %v, %v", l.Name(), ok, err)
		}
	}
	wg.Wait()
	hung.Resume()
	hangs := o.end(t, sick[each:]...)
	dead.Restart()
	ready()
	dies := o.end(t, sick[:each]...)
	t.Logf(
		"healthy server: p99 %v of %d calls before, %v of %d meanwhile; back to the one that hung within %v, to the dead one %v",
		before.percentile(99), len(before), others.percentile(99), len(others), hangs, dies,
	)

	r.served(t, "on the healthy server", others)
	r.atMost("99 of 100 calls to the healthy server", others.percentile(99), quick(before, others))
	decided, asked := map[string]int{}, map[string]int{}
	for _, d := range o.decisions() {
		decided[d.Limiter]++
		asked[d.Limiter] += d.Attempts
	}
	for _, l := range append(well, pair) {
		if decided[l.Name()] > 0 {
			t.Errorf("the process decided %d times on %s, which is on the healthy server", decided[l.Name()], l.Name())
		}
	}
	for _, l := range late {
		if decided[l.Name()] == 0 || asked[l.Name()] > 0 {
			t.Errorf("%d decisions on %s, for which the server was asked %d times",
				decided[l.Name()], l.Name(), asked[l.Name()])
		}
	}
	for i, l := range sick {
		var grants []window.Grant
		for _, c := range got[i] {
			if c.err != nil {
				t.Fatalf("on a server that is away: %v", c.err)
			}
			grants = append(grants, window.Grant{Permits: c.Permits, Start: c.Start, End: c.End})
		}
		switch most, _ := window.Largest(grants, rate.Interval); {
		case most > part:
			t.Errorf("%s: %d permits were granted in a window, of %d", l.Name(), most, part)
		case most < part/2: // as when the machine holds up the callers; the same in each round is waste
			r.wasSlow("%s: at most %d permits were granted in a window, of %d", l.Name(), most, part)
		}
	}
	if limit := callTimeout + slack; hangs > limit || dies > limit {
		t.Errorf("after %v and %v Redis decides again", hangs, dies)
	}
}

// TestFallbackOnARing: a Ring removes a dead shard, and its limiters start anew on another one,
// until it is back. The process decides until then.
func TestFallbackOnARing(t *testing.T) {
	t.Parallel()
	dead, fine := redistest.Real(t), redistest.Real(t)
	ring := newRing(
		t, []*redistest.Server{dead, fine}, func(o *redis.RingOptions) {
			o.HeartbeatFrequency = 200 * time.Millisecond
		},
	)
	o := &outages{}
	client := rratelimiter.NewClient(ring, rratelimiter.WithObserver(o),
		rratelimiter.WithLimiterDefaults(rratelimiter.WithRate(ample), rratelimiter.WithFallback(0.5)))
	var sick, well *rratelimiter.Limiter
	for i := 0; sick == nil || well == nil; i++ {
		l := client.RateLimiter(fmt.Sprint("limiter", i))
		if shard, err := ring.GetShardClientForKey(l.Name()); err != nil {
			t.Fatal(err)
		} else if shard.Options().Addr == dead.Addr {
			sick = l
		} else {
			well = l
		}
	}
	take := func(l *rratelimiter.Limiter) {
		t.Helper()
		if ok, err := l.TryAcquire(t.Context(), 1); !ok || err != nil {
			t.Error(ok, err)
		}
	}
	there := func(s *redistest.Server) bool {
		t.Helper()
		n, err := s.Client().Exists(t.Context(), sick.Name()).Result()
		if err != nil {
			t.Fatal(err)
		}
		return n == 1
	}
	take(sick)
	take(well)
	dead.Kill()
	take(sick)
	if len(o.decisions()) == 0 {
		t.Error("the process did not decide")
	}
	eventually(t, "another shard decides", func() bool {
		take(sick)
		take(well)
		return there(fine)
	})
	o.end(t, sick)
	dead.Restart()
	eventually(t, "the shard that was dead decides again", func() bool {
		take(sick)
		take(well)
		return there(dead)
	})
	for _, d := range o.decisions() {
		if d.Limiter != sick.Name() {
			t.Errorf("the process decided on %s: %v", d.Limiter, d.Err)
		}
	}
}

// second returns the error of a call and drops its result.
func second[T any](_ T, err error) error { return err }

// one returns the permits of a caller that wanted one.
func one(granted bool, err error) (int64, error) {
	if granted {
		return 1, err
	}
	return 0, err
}
