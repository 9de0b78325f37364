package calls

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// commands_test.go tests the commands that Redis and the hooks of the redis client see.

func TestScriptsAreSentAgainAfterTheServerForgotThem(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("{rl}", rratelimiter.WithRate(rratelimiter.PerMinute(100)))
		for method, call := range rig.EveryMethod(r.Client, l) {
			r.SetRate(l, rratelimiter.PerMinute(100))
			r.Must(r.Redis.ScriptFlush(t.Context()).Err())
			if err := call(t.Context()); err != nil {
				t.Errorf("%s after a flush: %v", method, err)
			}
		}
		r.Wipe()
		r.SetRate(l, rratelimiter.PerMinute(100))
		r.Must(r.Redis.ScriptFlush(t.Context()).Err())
		for range 2 {
			if !r.Try(l, 1) {
				t.Fatal("not granted")
			}
		}
		r.SameState(
			l,
			rratelimiter.State{Rate: rratelimiter.PerMinute(100), Available: 98, Used: 2, Records: 2, Oldest: r.Now(),
				Newest: r.Now(), Consistent: true},
		)
	})
}

// TestRedisCallsOfACall counts the Redis calls that acquire.lua documents: each takes Redis about a
// microsecond.
func TestRedisCallsOfACall(t *testing.T) {
	s := redistest.Real(t)
	ctx := t.Context()
	r := rig.New(t, s)
	l, fine := r.Limiter("rl", rratelimiter.WithRate(rratelimiter.PerSecond(10))),
		r.Limiter("rl", rratelimiter.WithGranularity(100*time.Millisecond))
	grant := func(l *rratelimiter.Limiter) func() { return func() { r.Try(l, 1) } }
	// so that the server knows the script
	r.Must(l.Client().RateLimiter("other", rratelimiter.WithRate(rratelimiter.PerSecond(1))).Acquire(ctx, 1))
	for _, step := range []struct {
		name string
		do   func()
		want string
	}{
		{"the first grant", grant(l), "hmget get zcount zcard pttl hset zadd set"},
		{"a grant", grant(l), "hmget get zcount zcard pttl zadd decrby"},
		{"a grant for a waiting caller", func() {
			r.Must(l.Acquire(ctx, 1))
		}, "hmget get zcount zcard pttl zadd decrby"},
		{"a grant to many", func() { r.Try(l, 3) }, "hmget get zcount zcard pttl zadd decrby"},
		{"the first grant of a bucket", grant(fine), "hmget get zrange pttl zrangebyscore zadd incrby"},
		{"another grant of a bucket", grant(fine), "hmget get zrange pttl zrangebyscore zadd zrem incrby"},
		{"a refusal", func() { r.Try(l, 9) }, "hmget get zcount zcard pttl zrange zrange"},
		{"a look", func() { r.Free(l) }, "hmget get zrange zrange pttl"},
		{"a grant with a TTL", func() {
			r.Must(r.Redis.PExpire(ctx, "rl", time.Hour).Err())
			r.Try(l, 1)
		}, "pexpire hmget get zcount zcard pttl zadd decrby pexpire pexpire"},
		{"a grant once all expired", func() {
			r.Must(r.Redis.Persist(ctx, "rl").Err())
			r.Advance(2 * time.Second)
			r.Try(l, 1)
		}, "persist hmget get zcount zcard zrange pttl zadd incrby zremrangebyrank"},
		{"a grant once one expired", func() {
			r.Advance(2 * time.Second)
			r.Try(l, 1)
		}, "hmget get zcount zcard zrange pttl zadd zremrangebyrank"},
		{"a grant with a check", func() {
			r.Advance(600 * time.Millisecond)
			r.Try(l, 1)
			r.Advance(900 * time.Millisecond)
			r.Try(l, 1)
		}, "hmget get zcount zcard pttl zadd decrby hmget get zcount zcard zrange zrange pttl zadd zremrangebyrank"},
	} {
		monitor := redistest.Monitor(t, s.Addr)
		step.do()
		var names []string
		for _, c := range monitor.Stop() {
			if len(c.Args) > 1 && strings.Contains(c.Args[1], "rl") { // the key
				names = append(names, strings.ToLower(c.Args[0]))
			}
		}
		if got := strings.Join(names, " "); got != step.want {
			t.Errorf("%s: %s, want %s", step.name, got, step.want)
		}
	}
}

func TestHooksOfTheRedisClientSeeTheCalls(t *testing.T) {
	rdb := redistest.Embedded(t).Client()
	sent := sentBy(rdb)
	l := rratelimiter.NewClient(rdb, rig.Patient).RateLimiter("hooked",
		rratelimiter.WithRate(rratelimiter.PerMinute(2)))
	for range 2 {
		if ok, err := l.TryAcquire(t.Context(), 1); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	if sent.count("evalsha") != 3 || sent.count("script") != 1 || sent.count("eval") != 0 {
		t.Errorf(
			"the hook saw %v, want the script by its hash, loaded where the server lacks it, and by its hash twice",
			sent.seen,
		)
	}
}

// If a hook does not pass scripts on, and reports no error, the missing reply is an error.
func TestAHookThatSwallowsCalls(t *testing.T) {
	rdb := redistest.Embedded(t).Client()
	rdb.AddHook(redistest.Hook{
		Command:  func(context.Context, redis.Cmder, redis.ProcessHook) error { return nil },
		Pipeline: func(context.Context, []redis.Cmder, redis.ProcessPipelineHook) error { return nil },
	})
	c := rratelimiter.NewClient(rdb, rig.Patient)
	l, ctx := c.RateLimiter("hooked"), t.Context()
	for name, ask := range map[string]func() error{
		"TryAcquire": func() error { _, err := l.TryAcquire(ctx, 1); return err },
		"AllowAll":   func() error { _, err := c.AllowAll(ctx, 1, l, c.RateLimiter("another")); return err },
		"Release":    func() error { _, err := l.Release(ctx, 1); return err },
		"State":      func() error { _, err := l.State(ctx); return err },
		"a recount":  func() error { return rig.LimiterCore(l).Recount(ctx) },
	} {
		if err := ask(); err == nil || !strings.Contains(err.Error(), "no reply") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
