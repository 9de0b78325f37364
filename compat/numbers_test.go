package compat

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/compat/redisson"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// numbers_test.go: numbers that Redisson accepts, and Go does not, on a limiter of both.

func TestNumbersThatOnlyRedissonAccepts(t *testing.T) {
	server := redistest.Real(t)
	for _, version := range []string{"3.17.5", "4.7.0"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			java := redisson.Start(t, version, redisson.Addr(server.Addr))
			for name, run := range map[string]func(b *bench, name string){
				"negative timeouts": negativeTimeouts, "negative requests": negativeRequests, "long times": longTimes,
				"negative rate": negativeRate,
			} {
				t.Run(name, func(t *testing.T) {
					run(&bench{T: t, ctx: t.Context(), rdb: server.Client(), java: java}, "numbers:"+version+":"+name)
				})
			}
		})
	}
}

// negativeTimeouts: a timeout of 0 is one try. So is a negative one in Go. Redisson waits without a
// limit: 4.7.0 for -1 ms, 3.17.5 for any negative timeout.
func negativeTimeouts(b *bench, name string) {
	const enough = time.Second // to tell a wait from a try
	for _, ms := range []int64{0, -1, -2, -60_000} {
		timeout, name := time.Duration(ms)*time.Millisecond, fmt.Sprint(name, ms)
		l := b.limiter(name)
		want(b, "Go's TrySetRate", true)(l.TrySetRate(b.ctx, rratelimiter.PerHour(1)))
		want(b, "Go's TryAcquire", true)(l.TryAcquire(b.ctx, 1))
		want(b, "Go's TryAcquireTimeout", false)(l.TryAcquireTimeout(b.ctx, 1, timeout))
		ctx, cancel := context.WithTimeout(b.ctx, enough)
		got, err := b.java.TryAcquireTimeout(ctx, name, 1, timeout)
		cancel()
		if ms == -1 || ms < 0 && b.java.Version() == "3.17.5" {
			if !errors.Is(err, context.DeadlineExceeded) {
				b.Errorf("Java's tryAcquire with a timeout of %d ms does not wait: %v, %v", ms, got, err)
			}
		} else if got ||
			err != nil && !errors.Is(err, context.DeadlineExceeded) { // a busy machine may need the time for one try
			b.Errorf("Java's tryAcquire with a timeout of %d ms: %v, %v", ms, got, err)
		}
	}
}

// negativeRequests: Redisson grants a request for -n permits and has n permits more than the rate.
// The first call of Go corrects that, and then both grant the rate.
func negativeRequests(b *bench, name string) {
	for _, n := range []int64{1, 1 << 31} {
		name := fmt.Sprint(name, n)
		want(b, "Java's trySetRate", true)(
			b.java.TrySetRate(b.ctx, name, redisson.Rate{Permits: 10, Interval: 30 * 24 * time.Hour}),
		)
		want(b, "Java's tryAcquire of a negative number", true)(b.java.TryAcquire(b.ctx, name, -n))
		want(b, "Java's availablePermits", 10+n)(b.java.Available(b.ctx, name))
		l := b.limiter(name)
		_, err := l.TryAcquire(b.ctx, 3)
		b.must("Go's TryAcquire", err)
		want(b, "Java's availablePermits after a call of Go", int64(7))(b.java.Available(b.ctx, name))
		want(b, "Java's tryAcquire", true)(b.java.TryAcquire(b.ctx, name, 7))
		want(b, "Java's tryAcquire of more than the rate", false)(b.java.TryAcquire(b.ctx, name, 1))
		want(b, "Go's TryAcquire of more than the rate", false)(l.TryAcquire(b.ctx, 1))
		state, err := l.State(b.ctx)
		b.must("Go's State", err)
		if !state.Consistent || state.Used != 10 || state.Records != 2 {
			b.Errorf("the state is %+v", state)
		}
	}
}

// longTimes: intervals and keep-alives of more ms than a time.Duration holds.
func longTimes(b *bench, name string) {
	const longest = math.MaxInt64 / time.Millisecond * time.Millisecond
	for _, ms := range []int64{1e15 - 1, 1e15, 1e17, 1e18, math.MaxInt64} {
		name := fmt.Sprint(name, ms)
		both := func(what string, keepAlive time.Duration) {
			l := b.limiter(name)
			want(b, what+": Java's tryAcquire", true)(b.java.TryAcquire(b.ctx, name, 2))
			want(b, what+": Go's TryAcquire", true)(l.TryAcquire(b.ctx, 2))
			want(b, what+": Java's availablePermits", int64(1))(b.java.Available(b.ctx, name))
			want(b, what+": Go's TryAcquire of too many", false)(l.TryAcquire(b.ctx, 2))
			want(b, what+": Java's tryAcquire of the last one", true)(b.java.TryAcquire(b.ctx, name, 1))
			want(b, what+": Go's Release", int64(3))(l.Release(b.ctx, 3))
			want(b, what+": Java's availablePermits after Go's Release", int64(3))(b.java.Available(b.ctx, name))
			config, err := l.Config(b.ctx)
			b.must(what+": Go's Config", err)
			if keepAlive == 0 && config.Interval != longest || config.KeepAlive != keepAlive {
				b.Errorf("%s: the rate is %v", what, config)
			}
		}
		b.must("Java's setRate", b.java.SetRateMillis(b.ctx, name, 5, ms, 0))
		both(fmt.Sprintf("interval of %d ms", ms), 0)
		if b.java.Version() == "3.17.5" || ms == math.MaxInt64 { // Redis refuses that as a TTL
			continue
		}
		b.must("Java's setRate with a keep-alive", b.java.SetRateMillis(b.ctx, name, 5, 60_000, ms))
		both(fmt.Sprintf("keep-alive of %d ms", ms), longest)
	}
}

// negativeRate: as a rate of 0, it refuses every request of both.
func negativeRate(b *bench, name string) {
	b.must("Java's setRate", b.java.SetRateMillis(b.ctx, name, -3, 60_000, 0))
	l := b.limiter(name)
	if ok, err := l.TryAcquire(b.ctx, 1); ok || !errors.Is(err, rratelimiter.ErrExceedsRate) {
		b.Errorf("Go's TryAcquire: %v, %v", ok, err)
	}
	failure := (*redisson.Error)(nil)
	if ok, err := b.java.TryAcquire(b.ctx, name, 1); ok || !errors.As(err, &failure) {
		b.Errorf("Java's tryAcquire: %v, %v", ok, err)
	}
}
