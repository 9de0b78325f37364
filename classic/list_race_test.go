package classic_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/classic"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// All callers of the first moment see no list; each then makes it, and passes.
func TestListWindowFirstHitIsNoRace(t *testing.T) {
	onServers(t, func(b *bench) {
		const callers, limit = 16, 3
		passed := 0
		for range callers {
			b.holds(0, "llen", "naive") // every caller reads the length ...
		}
		for range callers { // ... before any caller writes
			if _, err := b.rdb.TxPipelined(b.Context(), func(p redis.Pipeliner) error {
				p.RPush(b.Context(), "naive", "naive")
				p.Expire(b.Context(), "naive", time.Second)
				return nil
			}); err != nil {
				b.Fatal(err)
			}
			passed++
		}
		equal(b, "the usual form", passed, callers)

		// The same with the list window, whose transactions wait until every caller has read.
		gate := &gate{UniversalClient: b.rdb, all: make(chan struct{})}
		gate.missing.Store(callers)
		var granted atomic.Int64
		var asking sync.WaitGroup
		for range callers {
			asking.Go(func() {
				r, err := classic.NewListWindow(gate, "ours", rratelimiter.PerSecond(limit)).Allow(b.Context(), 1)
				if err != nil {
					b.Error(err)
				}
				if r.Allowed {
					granted.Add(1)
				}
			})
		}
		asking.Wait()
		equal(b, "ours", granted.Load(), limit)
		b.holds(limit, "llen", "ours")
		b.lives("ours", time.Second)
	})
}

// A gate blocks transactions until a number of callers have one.
type gate struct {
	redis.UniversalClient
	missing atomic.Int64
	all     chan struct{}
}

func (g *gate) TxPipeline() redis.Pipeliner {
	if g.missing.Add(-1) == 0 {
		close(g.all)
	}
	<-g.all
	return g.UniversalClient.TxPipeline()
}

// RPUSHX on a list that has just expired adds nothing: in the usual form that request passes and is
// not counted.
func TestListWindowCountsAHitAsTheWindowEnds(t *testing.T) {
	onServers(t, func(b *bench) {
		b.do("rpush", "ip", "ip")
		b.do("pexpire", "ip", 1000)
		rdb := &between{UniversalClient: b.rdb, then: func() { b.do("del", "ip") }}
		b.granted(classic.NewListWindow(rdb, "ip", tenPerSecond), 2)
		b.holds(2, "llen", "ip")
		b.lives("ip", time.Second)
	})
}

// A between runs a function after the first pipeline and before the next command.
type between struct {
	redis.UniversalClient
	then func()
}

func (w *between) Process(ctx context.Context, cmd redis.Cmder) error {
	if w.then != nil {
		w.then()
		w.then = nil
	}
	return w.UniversalClient.Process(ctx, cmd)
}

// The client library does not repeat a command that adds elements, alone or in a transaction.
func TestListWindowCountsAHitOnceIfItsAnswerIsLost(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var cut atomic.Bool
		rdb := s.Client(func(o *redis.Options) {
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, network, addr)
				return &lossy{conn, &cut}, err
			}
		})
		const calls = 3
		l := classic.NewListWindow(cutting{rdb, &cut}, "ip", rratelimiter.PerHour(100))
		for range calls {
			// A connection for commands that are in no pipeline: the reply to a change is lost, not
			// that of its handshake.
			if err := rdb.Ping(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			if _, err := l.Allow(t.Context(), 1); !errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
				t.Error(err)
			}
		}
		if length, err := rdb.LLen(t.Context(), "ip").Result(); err != nil || length > calls {
			t.Error(length, err)
		}
	})
}

// A cutting client loses the replies to commands that change a list.
type cutting struct {
	redis.UniversalClient
	cut *atomic.Bool
}

func (c cutting) TxPipeline() redis.Pipeliner {
	c.cut.Store(true)
	return c.UniversalClient.TxPipeline()
}

func (c cutting) Process(ctx context.Context, cmd redis.Cmder) error {
	c.cut.Store(true)
	return c.UniversalClient.Process(ctx, cmd)
}
