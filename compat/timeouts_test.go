package compat

import (
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/compat/redisson"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// timeouts_test.go: calls that Redisson sends again, because Redis answers later than its timeout.

// Each of these calls takes permits, and all leave one record. The permits without a record never
// return to Java. A refused call of Go brings them back.
func TestRedissonsRepeatedCallsLosePermits(t *testing.T) {
	for _, version := range []string{"3.17.5", "4.7.0"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			server := redistest.Real(t)
			const timeout = 500 * time.Millisecond
			java := redisson.Start(t, version, redisson.Addr(server.Addr), redisson.CommandTimeout(timeout))
			b := &bench{T: t, ctx: t.Context(), rdb: server.Client(), java: java}
			l := b.limiter("repeated")
			want(b, "Go's TrySetRate", true)(l.TrySetRate(b.ctx, rratelimiter.PerHour(20)))
			want(b, "Java's tryAcquire", true)(java.TryAcquire(b.ctx, l.Name(), 1))

			// Redisson repeats a call after its timeout and a pause of 1 to 2 s, three or four
			// times.
			b.must("CLIENT PAUSE", b.rdb.Do(b.ctx, "client", "pause", (4*time.Second).Milliseconds(), "write").Err())
			want(b, "Java's tryAcquire while Redis does not answer", true)(java.TryAcquire(b.ctx, l.Name(), 1))
			state, err := l.State(b.ctx)
			b.must("Go's State", err)
			if free, err := java.Available(b.ctx, l.Name()); err != nil || state.Records != 2 || state.Used != 2 ||
				free >= 18 ||
				state.Consistent {
				t.Fatalf("no permit was lost: %d free (%v), %+v", free, err, state)
			}

			want(b, "Go's TryAcquire", false)(l.TryAcquire(b.ctx, 19))
			want(b, "Java's availablePermits after a refused call of Go", int64(18))(java.Available(b.ctx, l.Name()))
		})
	}
}
