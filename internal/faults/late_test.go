package faults

import (
	"bytes"
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// late_test.go delivers requests that were given up: an attempt reaches Redis after its own retry
// was answered. It shows the cost, and which setting of the redis client avoids it.

// impatience is the ReadTimeout of redis clients here.
const impatience = 250 * time.Millisecond

// A post, once armed, keeps the next request with a script until it delivers it; or the one after
// it, and delays that one for a moment.
type post struct {
	mu     sync.Mutex
	there  chan struct{} // closed once a request is kept
	keeps  bool
	holds  bool
	kept   []byte
	sender net.Conn
}

func (p *post) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, network, addr)
	return &posted{conn, p}, err
}

// A posted is a connection of a post.
type posted struct {
	net.Conn
	post *post
}

func (c *posted) Write(request []byte) (int, error) {
	c.post.mu.Lock()
	defer c.post.mu.Unlock()
	switch isCall := bytes.Contains(request, []byte("eval")); {
	case isCall && c.post.holds:
		c.post.holds = false
		time.Sleep(10 * time.Millisecond) // less than the time after which other calls are sent
	case isCall && c.post.keeps:
		c.post.keeps, c.post.kept, c.post.sender = false, bytes.Clone(request), c.Conn
		close(c.post.there)
		return len(request), nil
	}
	return c.Conn.Write(request)
}

// SetReadDeadline makes only the kept request time out: on a busy machine other ones may take
// longer than impatience.
func (c *posted) SetReadDeadline(at time.Time) error {
	c.post.mu.Lock()
	defer c.post.mu.Unlock()
	if !at.IsZero() && c.post.sender != c.Conn {
		at = at.Add(20 * time.Second)
	}
	return c.Conn.SetReadDeadline(at)
}

// Close leaves the connection open on which a request is to be delivered.
func (c *posted) Close() error {
	c.post.mu.Lock()
	defer c.post.mu.Unlock()
	if c.post.kept != nil && c.post.sender == c.Conn {
		return nil
	}
	return c.Conn.Close()
}

func (p *post) keep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keeps, p.there = true, make(chan struct{})
}

func (p *post) keepNext() {
	p.keep()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holds = true
}

// deliver sends the kept request to the server.
func (p *post) deliver(t *testing.T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.sender.SetWriteDeadline(time.Time{})
	if _, err := p.sender.Write(p.kept); err != nil {
		t.Error(err)
	}
	p.kept = nil
}

// deliverLater delivers the request after a redis client with that impatience would have given up.
func (p *post) deliverLater(t *testing.T) (delivered *sync.WaitGroup) {
	delivered = new(sync.WaitGroup)
	delivered.Go(func() {
		select {
		case <-p.there:
			time.Sleep(impatience + impatience/2)
			p.deliver(t)
		case <-time.After(10 * time.Second):
			t.Error("nothing was sent")
		}
	})
	return delivered
}

// served waits until the server has replied to the delivered request.
func (p *post) served(t *testing.T) {
	t.Helper()
	_ = p.sender.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := p.sender.Read(make([]byte, 1024)); err != nil {
		t.Errorf("what came late has no answer: %v", err)
	}
	_ = p.sender.Close()
}

// TestAttemptThatComesLate: a connection stalls for longer than the redis client's ReadTimeout, and
// WithCallTimeout is longer. So the call is retried and answered, and then the first attempt is
// executed.
func TestAttemptThatComesLate(t *testing.T) {
	t.Parallel()
	const n = 3
	timeout := 5 * time.Second // of a call
	rate := rratelimiter.PerMinute(20)
	server := redistest.Real(t)
	now := time.Now() // the same for all attempts, so joined records have one time
	try := func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.Limiter) (int64, error) {
		ok, err := l.TryAcquire(ctx, n)
		if !ok {
			return 0, err
		}
		return n, err
	}
	for _, test := range []struct {
		name  string
		opts  []rratelimiter.LimiterOption
		call  func(ctx context.Context, c *rratelimiter.Client, l *rratelimiter.Limiter) (int64, error)
		twice bool // the late attempt takes permits
	}{
		{name: "plain", call: try},
		{
			name: "Allow",
			call: func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.Limiter) (int64, error) {
				result, err := l.Allow(ctx, n)
				if !result.Allowed {
					return 0, err
				}
				return n, err
			},
		},
		{name: "AcquireUpTo", twice: true,
			call: func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.Limiter) (int64, error) {
				return l.AcquireUpTo(ctx, n)
			}},
		{name: "AllowAll",
			call: func(ctx context.Context, c *rratelimiter.Client, l *rratelimiter.Limiter) (int64, error) {
				results, err := c.AllowAll(ctx, n, l)
				if err != nil || !results[0].Allowed {
					return 0, err
				}
				return n, nil
			}},
		{name: "granularity", call: try, twice: true,
			opts: []rratelimiter.LimiterOption{rratelimiter.WithGranularity(time.Second)}},
		{name: "record per request", call: try, twice: true,
			opts: []rratelimiter.LimiterOption{rratelimiter.WithRecordPerRequest()}},
		{
			name:  "server time",
			call:  try,
			twice: true,
			opts:  []rratelimiter.LimiterOption{rratelimiter.WithServerTime()},
		},
	} {
		for _, patient := range []bool{false, true} {
			name := test.name
			if patient {
				name += ", the redis client waits as long as a call may take"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				var p post
				rdb := server.Client(func(o *redis.Options) {
					o.Dialer, o.ReadTimeout = p.dial, impatience
					if patient {
						o.ReadTimeout = timeout
					}
				})
				client := rratelimiter.NewClient(rdb, rratelimiter.WithCallTimeout(timeout),
					rratelimiter.WithClock(func() time.Time { return now }))
				limiter := client.RateLimiter(t.Name(), append(test.opts, rratelimiter.WithRate(rate))...)
				// the server has the script
				if got, err := test.call(t.Context(), client, limiter); got != n || err != nil {
					t.Fatal(got, err)
				}
				p.keep()
				if patient {
					defer p.deliverLater(t).Wait()
				}
				if got, err := test.call(t.Context(), client, limiter); got != n || err != nil {
					t.Fatal(got, err)
				}
				if !patient {
					p.deliver(t)
					p.served(t)
				}
				want := int64(2 * n)
				if test.twice && !patient {
					want += n
				}
				state, err := limiter.State(t.Context())
				if err != nil || state.Used != want || !state.Consistent {
					t.Errorf("%+v, %v; %d permits were granted, %d should be recorded", state, err, 2*n, want)
				}
				later := rratelimiter.NewClient(server.Client(), rratelimiter.WithClock(func() time.Time {
					return time.Now().Add(rate.Interval + time.Second)
				}))
				if free, err := later.RateLimiter(t.Name()).AvailablePermits(t.Context()); free != rate.Permits ||
					err != nil {
					t.Errorf("an interval later %d are free, %v", free, err)
				}
			})
		}
	}
}

// TestAttemptThatComesAfterItsPermitsWereGivenBack: the late attempt finds no record of its retry,
// and takes the permits again. No caller gets them, and they are free again after an interval.
func TestAttemptThatComesAfterItsPermitsWereGivenBack(t *testing.T) {
	t.Parallel()
	const n = 3
	server := redistest.Real(t)
	for name, test := range map[string]struct {
		back func(ctx context.Context, l *rratelimiter.Limiter, g *rratelimiter.Grant) error
		left int64 // permits in use before the late attempt
	}{
		"kept": {func(context.Context, *rratelimiter.Limiter, *rratelimiter.Grant) error { return nil }, n},
		"Return": {func(ctx context.Context, _ *rratelimiter.Limiter, g *rratelimiter.Grant) error {
			return second(g.Return(ctx, n))
		}, 0},
		"Return of one": {func(ctx context.Context, _ *rratelimiter.Limiter, g *rratelimiter.Grant) error {
			return second(g.Return(ctx, 1))
		}, n - 1},
		"Release": {func(ctx context.Context, l *rratelimiter.Limiter, _ *rratelimiter.Grant) error {
			return second(l.Release(ctx, n))
		}, 0},
		"Reset": {func(ctx context.Context, l *rratelimiter.Limiter, _ *rratelimiter.Grant) error {
			return second(l.Reset(ctx))
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var p post
			rdb := server.Client(func(o *redis.Options) { o.Dialer, o.ReadTimeout = p.dial, impatience })
			now := time.Now().Truncate(time.Millisecond)
			clock := func() time.Time { return now }
			limiter := rratelimiter.NewClient(rdb, rratelimiter.WithCallTimeout(5*time.Second),
				rratelimiter.WithClock(clock)).
				RateLimiter(t.Name(), rratelimiter.WithRate(rratelimiter.PerMinute(20)))
			if _, err := limiter.AvailablePermits(t.Context()); err != nil { // the server has the script
				t.Fatal(err)
			}
			p.keep()
			grant, result, err := limiter.Take(t.Context(), n)
			if !result.Allowed || err != nil {
				t.Fatal(result, err)
			}
			if err := test.back(t.Context(), limiter, grant); err != nil {
				t.Fatal(err)
			}
			used := func(want int64) {
				t.Helper()
				if state, err := limiter.State(t.Context()); err != nil || state.Used != want || !state.Consistent {
					t.Errorf("%+v, %v; %d permits should be recorded", state, err, want)
				}
			}
			used(test.left)
			p.deliver(t)
			p.served(t)
			if name == "kept" {
				used(n)
			} else {
				used(test.left + n)
			}
			now = now.Add(time.Minute)
			if free, err := limiter.AvailablePermits(t.Context()); free != 20 || err != nil {
				t.Errorf("an interval later %d are free, %v", free, err)
			}
		})
	}
}

// TestSharedAttemptThatComesLate: one of three callers in one call was refused.
func TestSharedAttemptThatComesLate(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	shared := func() bool {
		var p post
		var flights []rratelimiter.CallInfo
		var mu sync.Mutex
		rdb := server.Client(func(o *redis.Options) { o.Dialer, o.ReadTimeout = p.dial, impatience })
		limiter := rratelimiter.NewClient(rdb, rratelimiter.WithCallTimeout(5*time.Second), rratelimiter.WithObserver(
			observer(func(f rratelimiter.CallInfo) {
				mu.Lock()
				defer mu.Unlock()
				flights = append(flights, f)
			}))).RateLimiter("shared")
		if err := limiter.SetRate(t.Context(), rratelimiter.PerMinute(9)); err != nil {
			t.Fatal(err)
		}
		if _, err := limiter.AvailablePermits(t.Context()); err != nil { // the server has the script
			t.Fatal(err)
		}
		p.keepNext()
		var calling sync.WaitGroup
		for _, n := range []int64{1, 1, 1, 9} {
			calling.Go(func() {
				if ok, err := limiter.TryAcquire(t.Context(), n); err != nil || ok != (n == 1) {
					t.Errorf("%d permits: %v, %v", n, ok, err)
				}
			})
			time.Sleep(time.Millisecond)
		}
		calling.Wait()
		if len(flights) != 2 || flights[1].Callers != 3 || flights[1].Denied != 1 || flights[1].Attempts != 2 {
			return false // a busy machine: they did not share the call
		}
		if state, err := limiter.State(t.Context()); err != nil || state.Used != 3 {
			t.Errorf("%+v, %v, after 3 permits", state, err)
		}
		p.deliver(t)
		p.served(t)
		if state, err := limiter.State(t.Context()); err != nil || state.Used != 5 || !state.Consistent {
			t.Errorf("%+v, %v, after 3 permits and 2 of an attempt that came late", state, err)
		}
		return true
	}
	eventually(t, "three callers share a call", shared)
}

// An observer gets calls.
type observer func(f rratelimiter.CallInfo)

func (o observer) Call(f rratelimiter.CallInfo) { o(f) }

// TestSetRateThatComesLate: the rate that another client has set since is overwritten.
func TestSetRateThatComesLate(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	other := rratelimiter.NewClient(server.Client()).RateLimiter("late")
	if err := other.SetRate(t.Context(), rratelimiter.PerMinute(1)); err != nil { // the server has the script
		t.Fatal(err)
	}
	for _, patient := range []bool{false, true} {
		var p post
		rdb := server.Client(func(o *redis.Options) {
			o.Dialer, o.ReadTimeout = p.dial, impatience
			if patient {
				o.ReadTimeout = 5 * time.Second
			}
		})
		limiter := rratelimiter.NewClient(rdb, rratelimiter.WithCallTimeout(5*time.Second)).RateLimiter("late")
		p.keep()
		if patient {
			defer p.deliverLater(t).Wait()
		}
		if err := limiter.SetRate(t.Context(), rratelimiter.PerMinute(10)); err != nil {
			t.Fatal(err)
		}
		if err := other.SetRate(t.Context(), rratelimiter.PerMinute(5)); err != nil {
			t.Fatal(err)
		}
		want := rratelimiter.PerMinute(5)
		if !patient {
			p.deliver(t)
			p.served(t)
			want = rratelimiter.PerMinute(10)
		}
		if rate, err := other.Config(t.Context()); err != nil || rate != want {
			t.Errorf("the rate is %v, %v, not %v", rate, err, want)
		}
	}
	row{
		section: slow,
		fault: "a connection stalls for longer than the redis client's `ReadTimeout`, " +
			"and `WithCallTimeout` is longer than it",
		sees: "nothing",
		after: "an attempt that is executed after its retry may take permits that no caller gets, for one " +
			"interval: see below",
	}.proves(t, 0)
}
