package fallback

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/netpipe"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// With every method, and however short the callers' deadlines are, a server that hangs counts as
// away within a second. From then on the process answers acquiring requests at once.
func TestSilenceIsNoticedBehindShortDeadlines(t *testing.T) {
	for _, names := range [][2]string{{"{l}", "{l}2"}, {"l", "other"}} { // AllowAll in one step, and in order
		for name, method := range methodsThatAcquire(names[1]) {
			t.Run(fmt.Sprint(name, " of ", names), func(t *testing.T) {
				rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
					p := b.Process(
						rratelimiter.WithLimiterDefaults(
							rratelimiter.WithRate(rratelimiter.PerHour(1_000_000)), rratelimiter.WithFallback(1),
						),
					)
					l := p.RateLimiter(names[0])
					if err := method(t.Context(), l); err != nil {
						t.Fatal(err)
					}
					defer b.End(p.Wire.Hang())
					var first time.Duration
					for at := time.Duration(0); at < 3*time.Second; at += 50 * ms {
						b.SleepTo(at)
						ctx, cancel := context.WithTimeout(t.Context(), 20*ms)
						err := method(ctx, l)
						cancel()
						took := time.Since(b.Start) - at
						switch {
						case err == nil && took == 0 && first == 0:
							first = at
						case at >= time.Second && (err != nil || took > 0):
							t.Fatalf("at %v: %v after %v", at, err, took)
						}
					}
					t.Logf("decided in the process from %v on", first)
				})
			})
		}
	}
}

// methodsThatAcquire are the methods that WithFallback decides. AllowAll and AcquireAll use a
// second limiter, other.
func methodsThatAcquire(other string) map[string]func(ctx context.Context, l *rratelimiter.Limiter) error {
	return map[string]func(ctx context.Context, l *rratelimiter.Limiter) error{
		"Allow": func(ctx context.Context, l *rratelimiter.Limiter) error {
			_, err := l.Allow(ctx, 1)
			return err
		},
		"TryAcquire": func(ctx context.Context, l *rratelimiter.Limiter) error {
			_, err := l.TryAcquire(ctx, 1)
			return err
		},
		"Acquire": func(ctx context.Context, l *rratelimiter.Limiter) error { return l.Acquire(ctx, 1) },
		"AcquireUpTo": func(ctx context.Context, l *rratelimiter.Limiter) error {
			_, err := l.AcquireUpTo(ctx, 1)
			return err
		},
		"AllowAll": func(ctx context.Context, l *rratelimiter.Limiter) error {
			_, err := l.Client().AllowAll(ctx, 1, l, l.Client().RateLimiter(other))
			return err
		},
		"AcquireAll": func(ctx context.Context, l *rratelimiter.Limiter) error {
			return l.Client().AcquireAll(ctx, 1, l, l.Client().RateLimiter(other))
		},
	}
}

// Calls that end at their callers' deadline while they wait for a connection do not count as
// answered.
func TestSilenceOfAServerThatCantBeDialled(t *testing.T) {
	for name, method := range methodsThatAcquire("{l}2") {
		t.Run(name, func(t *testing.T) {
			rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
				rdb := redis.NewClient(&redis.Options{
					Addr: "127.0.0.1:6379",
					Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
						<-ctx.Done()
						return nil, ctx.Err()
					},
					MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
				})
				defer rdb.Close()
				c := rratelimiter.NewClient(
					rdb,
					rratelimiter.WithLimiterDefaults(
						rratelimiter.WithRate(rratelimiter.PerHour(1_000_000)), rratelimiter.WithFallback(1),
					),
				)
				l := c.RateLimiter("{l}")
				for at := time.Duration(0); at < 3*time.Second; at += 50 * ms {
					b.SleepTo(at)
					ctx, cancel := context.WithTimeout(t.Context(), 20*ms)
					err := method(ctx, l)
					cancel()
					if took := time.Since(b.Start) - at; at >= time.Second && (err != nil || took > 0) {
						t.Errorf("at %v: %v after %v", at, err, took)
						break
					}
				}
				b.SleepTo(time.Minute)
			})
		})
	}
}

// A failed call shows that its node is away, but does not end the other calls in flight: the
// process decides those after the node has been silent.
func TestSilenceBehindACallThatFails(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process(
			rratelimiter.WithLimiterDefaults(rratelimiter.WithRate(rratelimiter.PerHour(1000)),
				rratelimiter.WithFallback(1)),
		)
		resume := p.Wire.Hang()
		hung := b.Try(p.RateLimiter("hung"), 1)
		b.SleepTo(100 * ms)
		p.Wire.Fail(rig.ErrRefused)
		b.Granted("another one", b.Try(p.RateLimiter("refused"), 1), 100*ms)
		b.SleepTo(499 * ms)
		b.Waits("the one in flight", hung)
		b.SleepTo(500 * ms)
		b.Granted("the one in flight", hung, 500*ms)
		b.End(resume)
	})
}

// Unanswered calls of methods that the process cannot decide show that the server hangs, too, even
// without WithFallback.
func TestSilenceOfEveryMethodIsNoticed(t *testing.T) {
	everyName := func(c *rratelimiter.Client, l *rratelimiter.Limiter) (names []string) {
		for name := range rig.EveryMethod(c, l) {
			names = append(names, name)
		}
		return names
	}
	var names []string
	{
		c := rratelimiter.NewClient(rig.RefusingClient(t))
		names = everyName(c, c.RateLimiter("l"))
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
				p := b.Process()
				l := p.RateLimiter("{other}l")
				if err := l.SetRate(t.Context(), rratelimiter.PerHour(1000)); err != nil {
					t.Fatal(err)
				}
				if l.Health().Away {
					t.Fatal("away before")
				}
				defer b.End(p.Wire.Hang())
				method := rig.EveryMethod(p.Client, l)[name]
				for range 3 {
					ctx, cancel := context.WithTimeout(t.Context(), 20*ms)
					if err := method(ctx); !errors.Is(err, context.DeadlineExceeded) &&
						!strings.HasSuffix(name, "Timeout") {
						t.Fatal(err)
					}
					cancel()
				}
				b.SleepTo(900 * ms)
				if !l.Health().Away {
					t.Error("the server is not known to be away")
				}
			})
		})
	}
}

// The probe decides: neither a lost call nor a slow script makes a server count as away.
func TestAServerThatAnswersIsNotAway(t *testing.T) {
	t.Run("a lost call", func(t *testing.T) {
		rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
			p := b.Process()
			l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
			defer b.End(p.Wire.Hang())
			b.Try(l, 1)
			p.Wire.PassNew()
			for at := time.Duration(0); at < 3*time.Second; at += 10 * ms {
				b.SleepTo(at)
				if l.Health().Away {
					t.Fatalf("away at %v", at)
				}
			}
		})
	})
	t.Run("slow answers", func(t *testing.T) {
		rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
			p := b.Process()
			l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
			p.Wire.There.Store(int64(450 * ms))
			for at := time.Duration(0); at < 10*time.Second; at += 10 * ms {
				b.SleepTo(at)
				if at%time.Second == 0 {
					b.Try(l, 1)
				}
				if l.Health().Away {
					t.Fatalf("away at %v", at)
				}
			}
		})
	})
}

// No probe is sent unless the state of the node has been queried, and nothing runs without calls.
func TestSilenceIsProbedOnlyWhenQueried(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		b.Granted("before", b.Try(l, 1), 0)
		resume := p.Wire.Hang()
		b.Try(l, 1)
		b.SleepTo(5 * time.Second)
		if n := p.Wire.Calls(); n != 2 {
			t.Errorf("%d calls for two", n)
		}
		resume()
		synctest.Wait()
		l.Health()
		b.Granted("afterwards", b.Try(l, 1), 5*time.Second)
		before := p.Wire.Calls()
		b.SleepTo(time.Minute)
		if n := p.Wire.Calls(); n != before {
			t.Errorf("%d calls without calls of the test", n-before)
		}
	})
}

// A node that was away and not queried for a while is probed at the next query.
func TestANodeThatIsBackIsNotAway(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		l.Health()
		resume := p.Wire.Hang()
		b.Try(l, 1)
		b.SleepTo(600 * ms)
		if !l.Health().Away {
			t.Fatal("it is not away")
		}
		resume()
		synctest.Wait()
		b.SleepTo(700 * ms)
		if l.Health().Away {
			t.Error("it is away, though it answered the call and the probe")
		}
	})
}

// Permits of a call in flight when the caller's context ended are given back, too.
func TestAllowAllInOrderGivesBackWhatArrivesLate(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process(rratelimiter.WithLimiterDefaults(rratelimiter.WithRate(rratelimiter.PerHour(100))))
		all := []*rratelimiter.Limiter{p.RateLimiter("x"), p.RateLimiter("y"), p.RateLimiter("z")}
		for name, way := range map[string]*atomic.Int64{"there": &p.Wire.There, "back": &p.Wire.Back} {
			way.Store(int64(100 * ms))
			for _, after := range []time.Duration{50 * ms, 150 * ms, 250 * ms} { // in the call of x, of y and of z
				ctx, cancel := context.WithTimeout(t.Context(), after)
				began := time.Now()
				_, err := p.AllowAll(ctx, 7, all...)
				cancel()
				if !errors.Is(err, rratelimiter.ErrOutcomeUnknown) || !errors.Is(err, context.DeadlineExceeded) ||
					time.Since(began) != after {
					t.Errorf("%s, %v: %v after %v", name, after, err, time.Since(began))
				}
				b.SleepTo(time.Since(b.Start) + 2*time.Second)
			}
			way.Store(0)
			for _, l := range all {
				if s := rig.State(t, l); s.Used != 0 || !s.Consistent {
					t.Errorf("%s: %s: %+v", name, l.Name(), s)
				}
			}
		}
		if results, err := p.AllowAll(t.Context(), 7, all...); err != nil || !results[2].Allowed {
			t.Error(results, err)
		}
	})
}

// A server that answers calls is not away, whatever the address in the options does, and even if it
// accepts no new connection.
func TestAServerThatAnswersSlowlyIsNotAway(t *testing.T) {
	for name, opens := range map[string]int32{"behind a dial hook": 100, "without new connections": 1} {
		t.Run(name, func(t *testing.T) {
			rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
				rdb := redis.NewClient(&redis.Options{
					Addr: "127.0.0.1:1",
					Dialer: func(context.Context, string, string) (net.Conn, error) {
						return nil, rig.ErrRefused
					},
					MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
				})
				tunnel := &tunnel{server: b.Server}
				tunnel.left.Store(opens)
				rdb.AddHook(tunnel)
				defer rdb.Close()
				c := rratelimiter.NewClient(rdb,
					rratelimiter.WithLimiterDefaults(rratelimiter.WithRate(rratelimiter.PerHour(1000)),
						rratelimiter.WithFallback(1)))
				l, other := c.RateLimiter("l"), c.RateLimiter("other")
				away := 0
				for i := range 20 {
					tunnel.delay.Store(int64(i % 5 / 4 * 60 * int(ms)))
					b.Try(l, 1)
					b.Try(other, 1)
					for range 30 {
						time.Sleep(10 * ms)
						if l.Health().Away {
							away++
						}
					}
				}
				b.SleepTo(time.Minute)
				tunnel.delay.Store(0)
				if n := rig.State(t, l).Used + rig.State(t, other).Used; away > 0 || opens > 1 && n != 40 {
					t.Errorf("%d of 40 permits used in Redis, away for %d ms", n, 10*away)
				}
			})
		})
	}
}

// A tunnel is a hook that dials a server by another way, so often. The replies take a time.
type tunnel struct {
	server *miniredis.Miniredis
	left   atomic.Int32
	delay  atomic.Int64 // ns
}

func (u *tunnel) DialHook(redis.DialHook) redis.DialHook {
	return func(context.Context, string, string) (net.Conn, error) {
		if u.left.Add(-1) < 0 {
			return nil, rig.ErrRefused
		}
		pipe, err := u.server.Dial()
		return delayed{netpipe.Conn(pipe), &u.delay}, err
	}
}

func (*tunnel) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (*tunnel) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A delayed connection delays replies.
type delayed struct {
	net.Conn
	delay *atomic.Int64
}

func (d delayed) Read(b []byte) (int, error) {
	n, err := d.Conn.Read(b)
	time.Sleep(time.Duration(d.delay.Load()))
	return n, err
}
