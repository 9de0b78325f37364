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

// late_test.go delivers requests that were given up: an attempt reaches Redis after its own repetition was answered. It shows
// what that costs, and which setting of the redis client avoids it.

// A post keeps the next request with a script back, once it is told to, until it is to deliver that.
type post struct {
	mu     sync.Mutex
	keeps  bool
	kept   []byte
	sender net.Conn
}

func (p *post) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, network, addr)
	return &posted{conn, p}, err
}

// A posted is a connection by post.
type posted struct {
	net.Conn
	post *post
}

func (c *posted) Write(request []byte) (int, error) {
	c.post.mu.Lock()
	defer c.post.mu.Unlock()
	if c.post.keeps && bytes.Contains(request, []byte("eval")) {
		c.post.keeps, c.post.kept, c.post.sender = false, bytes.Clone(request), c.Conn
		return len(request), nil
	}
	return c.Conn.Write(request)
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
	p.keeps = true
}

// deliver gives the server what was kept.
func (p *post) deliver(t *testing.T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kept == nil {
		t.Error("nothing was kept")
		return
	}
	_ = p.sender.SetWriteDeadline(time.Time{})
	if _, err := p.sender.Write(p.kept); err != nil {
		t.Error(err)
	}
	p.kept = nil
}

// served waits until the server has answered what was delivered to nobody.
func (p *post) served(t *testing.T) {
	t.Helper()
	_ = p.sender.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := p.sender.Read(make([]byte, 1024)); err != nil {
		t.Errorf("what came late has no answer: %v", err)
	}
	_ = p.sender.Close()
}

// TestAttemptThatComesLate: a connection stalls for longer than the redis client waits, and a call may take longer than that.
// So it is made again, is answered, and then the first attempt is served.
func TestAttemptThatComesLate(t *testing.T) {
	t.Parallel()
	const n = 3
	timeout := 5 * time.Second // of a call
	rate := rratelimiter.PerMinute(20)
	server := redistest.Real(t)
	now := time.Now() // to all attempts: so joined records are of one time
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
		{name: "Allow", call: func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.Limiter) (int64, error) {
			result, err := l.Allow(ctx, n)
			if !result.Allowed {
				return 0, err
			}
			return n, err
		}},
		{name: "AcquireUpTo", twice: true,
			call: func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.Limiter) (int64, error) {
				return l.AcquireUpTo(ctx, n)
			}},
		{name: "AllowAll", twice: true,
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
		{name: "server time", call: try, twice: true, opts: []rratelimiter.LimiterOption{rratelimiter.WithServerTime()}},
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
					o.Dialer, o.ReadTimeout = p.dial, 50*time.Millisecond
					if patient {
						o.ReadTimeout = timeout
					}
				})
				client := rratelimiter.NewClient(rdb, rratelimiter.WithCallTimeout(timeout),
					rratelimiter.WithClock(func() time.Time { return now }))
				limiter := client.RateLimiter(t.Name(), append(test.opts, rratelimiter.WithRate(rate))...)
				if got, err := test.call(t.Context(), client, limiter); got != n || err != nil { // the server has the script
					t.Fatal(got, err)
				}
				p.keep()
				if patient {
					defer time.AfterFunc(150*time.Millisecond, func() { p.deliver(t) }).Stop()
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
				if free, err := later.RateLimiter(t.Name()).AvailablePermits(t.Context()); free != rate.Permits || err != nil {
					t.Errorf("an interval later %d are free, %v", free, err)
				}
			})
		}
	}
}

// TestSetRateThatComesLate: the rate that somebody else has set since is overwritten.
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
			o.Dialer, o.ReadTimeout = p.dial, 50*time.Millisecond
			if patient {
				o.ReadTimeout = 5 * time.Second
			}
		})
		limiter := rratelimiter.NewClient(rdb, rratelimiter.WithCallTimeout(5*time.Second)).RateLimiter("late")
		p.keep()
		if patient {
			defer time.AfterFunc(150*time.Millisecond, func() { p.deliver(t) }).Stop()
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
		section: slow, fault: "a connection stalls for longer than the redis client's `ReadTimeout`, and a call may take longer than that",
		sees: "nothing",
		after: "an attempt that is served after its repetition may take its permits a second time, for nobody, for an interval: " +
			"see below",
	}.proves(t, 0)
}
