package faults

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// restart_test.go kills a server, starts it again with or without its data, and closes the redis
// client.

// callTimeout is the default bound of a call, including retries.
const callTimeout = time.Second

// slack is added to a limit for a busy machine.
const slack = 2 * time.Second

// TestRestartEmptyWithRate: the limiter works again with the server, without manual repair.
func TestRestartEmptyWithRate(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	limiter := rratelimiter.NewClient(server.Client()).RateLimiter("restart", rratelimiter.WithRate(ample))
	enough := make(chan struct{})
	var got calls
	var granted atomic.Int64
	var loading sync.WaitGroup
	loading.Go(func() {
		got = load(8, 1, time.Millisecond, enough, func(int) call {
			c := ask(1, func() (bool, error) { return true, limiter.Acquire(t.Context(), 1) })
			if c.err == nil {
				granted.Add(1)
			}
			return c
		})
	})
	eventually(t, "permits are granted", func() bool { return granted.Load() > 50 })
	died := time.Now()
	server.Kill()
	time.Sleep(300 * time.Millisecond)
	server.Restart()
	back := time.Now()
	recovered := firstGrant(t, limiter, back)
	meanwhile := granted.Load()
	eventually(t, "permits are granted again", func() bool { return granted.Load() > meanwhile+50 })
	close(enough)
	loading.Wait()

	t.Logf("%d calls, %d of them failed", len(got), len(got.where(failed)))
	var before, after int64
	for _, c := range got {
		if c.took() > callTimeout+slack {
			t.Errorf("a call took %v", c.took())
		}
		switch {
		case c.err != nil:
			noServer(t, c)
		case c.End.Before(died):
			before++
		case c.Start.After(back):
			after++
		}
	}
	if before == 0 || after == 0 {
		t.Errorf("%d granted before, %d after", before, after)
	}
	state, err := limiter.State(t.Context())
	// Earlier grants are forgotten, and new ones are recorded: at least 1 above, and after.
	if err != nil || !state.Consistent || state.Used < after+1 || state.Used > int64(len(got))+1-before ||
		state.Rate != ample {
		t.Errorf("%+v, %v; %d were granted since", state, err, after)
	}
	row{
		section: gone, fault: "killed and restarted empty, `WithRate`",
		sees: "nothing, if Redis is back before the call's time is over; else the connection's error, or " +
			"`ErrOutcomeUnknown` if the request was sent",
		within: "back after the restart within", limit: callTimeout + slack,
		after: "new: the rate is set again, earlier grants are forgotten",
	}.proves(t, recovered)
}

// firstGrant waits for the first permit since a time, and returns how long that took.
func firstGrant(t *testing.T, l *rratelimiter.Limiter, since time.Time) time.Duration {
	t.Helper()
	eventually(t, "a permit is granted", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
		defer cancel()
		ok, err := l.TryAcquire(ctx, 1)
		return ok && err == nil
	})
	return time.Since(since)
}

// noServer fails the test unless a call's error is one that a missing server causes.
func noServer(t *testing.T, c call) {
	t.Helper()
	var answer redis.Error
	if errors.As(c.err, &answer) || errors.Is(c.err, rratelimiter.ErrNotInitialized) ||
		errors.Is(c.err, redis.ErrClosed) {
		t.Errorf("a call to a server that is down: %v", c.err)
	}
}

// TestRestartEmptyWithoutRate: waiting callers get ErrNotInitialized.
func TestRestartEmptyWithoutRate(t *testing.T) {
	t.Parallel()
	const waiting = 50
	server := redistest.Real(t)
	setRate(t, server, "restart", rratelimiter.PerHour(1))
	limiter := rratelimiter.NewClient(server.Client()).RateLimiter("restart")
	if err := limiter.Acquire(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	var got calls
	var loading sync.WaitGroup
	loading.Go(func() {
		got = load(waiting, 1, 0, lasting(0), func(int) call {
			return ask(1, func() (bool, error) { return true, limiter.Acquire(t.Context(), 1) })
		})
	})
	time.Sleep(300 * time.Millisecond) // all of them have a wait of an hour
	server.Restart()
	back := time.Now()
	loading.Wait()
	c := ask(1, func() (bool, error) { return limiter.TryAcquire(t.Context(), 1) })
	for _, c := range append(calls{c}, got...) {
		if !errors.Is(c.err, rratelimiter.ErrNotInitialized) || c.Unknown {
			t.Errorf("a caller who waited has %v", c.err)
		}
	}
	if exists, err := limiter.Exists(t.Context()); exists || err != nil {
		t.Errorf("the limiter exists: %v, %v", exists, err)
	}
	row{
		section: gone, fault: "killed and restarted empty, no `WithRate`",
		sees: "`ErrNotInitialized`; a waiting caller at its next poll: after 1 s, in a long wait after up to " +
			"15 s",
		within: "for all callers that had waited for 0.3 s, within",
		limit:  time.Second + callTimeout + slack,
		after:  "no limiter, until a rate is set",
	}.proves(t, got.last().Sub(back))
}

// last returns the end of the last call.
func (all calls) last() (last time.Time) {
	for _, c := range all {
		if c.End.After(last) {
			last = c.End
		}
	}
	return last
}

// A closer is a redis client that can be closed.
type closer interface {
	rratelimiter.Redis
	Close() error
}

// TestRedisClientClosed: waiting callers get the error at once.
func TestRedisClientClosed(t *testing.T) {
	t.Parallel()
	const waiting = 200
	server := redistest.Real(t)
	nodes := redistest.Cluster(t, 1)
	type closing struct {
		what    string
		rdb     closer
		limiter *rratelimiter.Limiter
		got     calls
		loading sync.WaitGroup
	}
	tests := []*closing{{what: "one server", rdb: server.Client()}, {what: "cluster", rdb: nodes.ClusterClient()}}
	for _, test := range tests {
		test.limiter = rratelimiter.NewClient(test.rdb).RateLimiter("closed",
			rratelimiter.WithRate(rratelimiter.PerHour(1)))
		if err := test.limiter.Acquire(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		test.loading.Go(func() {
			test.got = load(waiting, 1, 0, lasting(0), func(int) call {
				return ask(1, func() (bool, error) { return true, test.limiter.Acquire(t.Context(), 1) })
			})
		})
	}
	time.Sleep(1300 * time.Millisecond) // their first poll is after 1 s, the next one 2 s later
	var worst time.Duration
	for _, test := range tests {
		closed := time.Now()
		if err := test.rdb.Close(); err != nil {
			t.Error(err)
		}
		test.loading.Wait()
		worst = max(worst, test.got.last().Sub(closed))
		for _, c := range test.got {
			if !errors.Is(c.err, redis.ErrClosed) || c.Unknown || c.End.Before(closed) {
				t.Errorf("%s: %v, unknown: %v", test.what, c.err, c.Unknown)
			}
		}
		if c := ask(1, func() (bool, error) { return test.limiter.TryAcquire(t.Context(), 1) }); !errors.Is(
			c.err, redis.ErrClosed,
		) {
			t.Errorf("%s, afterwards: %v", test.what, c.err)
		}
	}
	row{
		section: own, fault: "the redis client is closed while callers wait",
		sees: "all waiting callers get `redis.ErrClosed`", within: "after the close within", limit: time.Second,
		after: "unchanged",
	}.proves(t, worst)
}

// TestLoading: a server that reads its data from disk replies LOADING.
func TestLoading(t *testing.T) {
	t.Parallel()
	// The server takes a millisecond for a key, and looks at its clients each two megabytes.
	const keys, size = 1500, 8 << 10
	server := redistest.Real(t, "--dbfilename", "dump.rdb", "--rdbcompression", "no", "--key-load-delay", "1000")
	admin := server.Client()
	limiter := rratelimiter.NewClient(server.Client()).RateLimiter("loading", rratelimiter.WithRate(ample))
	if err := limiter.Acquire(t.Context(), 7); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		value := make([]byte, size)
		for i := range keys {
			p.Set(t.Context(), fmt.Sprint("filler:", i), value, 0)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := admin.Save(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	server.Restart()
	done := make(chan struct{})
	var got calls
	var loading sync.WaitGroup
	loading.Go(func() {
		got = load(4, 1, 5*time.Millisecond, done, func(int) call {
			return ask(1, func() (bool, error) { return limiter.TryAcquire(t.Context(), 1) })
		})
	})
	eventually(
		t, "the server has loaded its data", func() bool { return admin.Get(t.Context(), "filler").Err() == redis.Nil },
	)
	loaded := time.Now()
	recovered := firstGrant(t, limiter, loaded)
	close(done)
	loading.Wait()
	refused := 0
	for _, c := range got {
		if redis.HasErrorPrefix(c.err, "LOADING") && !c.Unknown {
			refused++
		} else if c.err != nil {
			noServer(t, c) // a connection from before
		}
		if c.took() > callTimeout+slack {
			t.Errorf("a call took %v", c.took())
		}
	}
	t.Logf("%d of %d calls met a server that loads", refused, len(got))
	if refused == 0 && got.percentile(100) < 500*time.Millisecond {
		t.Error("no caller got LOADING")
	}
	state, err := limiter.State(t.Context())
	if err != nil || !state.Consistent {
		t.Errorf("%+v, %v", state, err)
	}
	balanced(t, 7+1, got, limiter)
	row{
		section: refuses, fault: "`LOADING`: restarted, and reads its data from disk",
		sees:   "the error `LOADING`, unless the data is loaded before the call's time is over",
		within: "back once it is loaded within",
		limit:  callTimeout + slack, after: "as it was saved; later changes are lost",
	}.proves(t, recovered)
}
