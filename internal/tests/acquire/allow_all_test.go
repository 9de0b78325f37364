package acquire

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

func TestAllowAllIsAllOrNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		ctx := t.Context()
		a, b, c := r.Limiter("a"), r.Limiter("b"), r.Limiter("c", rratelimiter.WithRate(rratelimiter.PerHour(5)))
		r.SetRate(a, rratelimiter.PerMinute(10))
		r.SetRate(b, rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 6, Interval: time.Minute})
		granted := r.Now()
		results, err := r.Client.AllowAll(ctx, 4, a, b, c)
		want := []rratelimiter.Result{
			result(true, 10, 6, 0, time.Minute, time.Minute), result(true, 6, 2, 0, time.Minute, time.Minute),
			result(true, 5, 1, 0, time.Hour, time.Hour),
		}
		if err != nil || !slices.Equal(results, want) {
			t.Errorf("%+v, %v; want %+v", results, err, want)
		}
		r.Advance(time.Second)
		before := r.Dump()
		results, err = r.Client.AllowAll(ctx, 2, a, b, c)
		want = []rratelimiter.Result{
			result(false, 10, 6, 0, 59*time.Second, 59*time.Second),
			result(false, 6, 2, 0, 59*time.Second, 59*time.Second),
			result(false, 5, 1, 3599*time.Second, 3599*time.Second, 3599*time.Second),
		}
		if err != nil || !slices.Equal(results, want) {
			t.Errorf("%+v, %v; want %+v", results, err, want)
		}
		r.Unchanged(before, "an AllowAll that was refused")

		// Whichever limiter refuses, at any place in the list.
		results, err = r.Client.AllowAll(ctx, 2, c, b, a)
		slices.Reverse(want)
		if err != nil || !slices.Equal(results, want) {
			t.Errorf("%+v, %v; want %+v", results, err, want)
		}
		r.Unchanged(before, "an AllowAll that the first one refused")

		// Names that have the same permits are refused.
		if _, err := r.Client.AllowAll(ctx, 1, b, a, r.Limiter("{a}")); !errors.Is(err, rratelimiter.ErrInvalidOption) {
			t.Errorf("one state by two names: %v", err)
		}
		r.Unchanged(before, "an AllowAll of one state by two names")

		// A limiter that is listed twice is asked for twice the permits.
		results, err = r.Client.AllowAll(ctx, 1, a, b, a, r.Limiter("a"), b)
		want = []rratelimiter.Result{
			result(true, 10, 3, 0, 59*time.Second, time.Minute), result(true, 6, 0, 0, 59*time.Second, time.Minute),
			result(true, 10, 3, 0, 59*time.Second, time.Minute), result(true, 10, 3, 0, 59*time.Second, time.Minute),
			result(true, 6, 0, 0, 59*time.Second, time.Minute),
		}
		if err != nil || !slices.Equal(results, want) {
			t.Errorf("%+v, %v; want %+v", results, err, want)
		}
		r.SameState(
			a,
			rratelimiter.State{
				Rate: rratelimiter.PerMinute(10), Available: 3, Used: 7, Records: 2, Oldest: granted, Newest: r.Now(),
				Consistent: true,
			},
		)

		before = r.Dump()
		for _, test := range []struct {
			name     string
			n        int64
			limiters []*rratelimiter.Limiter
			want     error
			named    string
		}{
			{"more than the rate", 7, []*rratelimiter.Limiter{a, b}, rratelimiter.ErrExceedsRate, `"b"`},
			{"more than the rate in sum", 6, []*rratelimiter.Limiter{a, a}, rratelimiter.ErrExceedsRate, `"a"`},
			{
				"more than can be counted",
				math.MaxInt64,
				[]*rratelimiter.Limiter{a, a},
				rratelimiter.ErrExceedsRate,
				`"a"`,
			},
			{
				"more than can be counted, around to one", math.MaxInt64/3 + 1,
				[]*rratelimiter.Limiter{a, a, a, a, a, a},
				rratelimiter.ErrExceedsRate, `"a"`,
			},
			{
				"not initialised",
				1,
				[]*rratelimiter.Limiter{a, r.Limiter("none"), b},
				rratelimiter.ErrNotInitialized,
				`"none"`,
			},
		} {
			results, err := r.Client.AllowAll(ctx, test.n, test.limiters...)
			if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.named) || results != nil {
				t.Errorf("%s: %+v, %v", test.name, results, err)
			}
			r.Unchanged(before, test.name)
		}
	})
}

// held is a redis client that holds releases back. Its type does not show that it has one server.
type held struct {
	rratelimiter.Redis
	came chan struct{} // one for each release
	free chan struct{} // closed: they go on
}

func (h held) Process(ctx context.Context, cmd redis.Cmder) error {
	if args := cmd.Args(); len(args) > 1 && args[1] == protocol.ReleaseScript.SHA {
		h.came <- struct{}{}
		<-h.free
		ctx = context.WithoutCancel(ctx) // it was in flight
	}
	return h.Redis.Process(ctx, cmd)
}

func TestAllowAllInOrderIsUndoneWithoutItsCaller(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		h := held{s.Client(), make(chan struct{}, 10), make(chan struct{})}
		c := rratelimiter.NewClient(h, rratelimiter.WithCallTimeout(20*time.Second))
		ctx, cancel := context.WithCancel(t.Context())
		a, b, full, last := c.RateLimiter("a", rratelimiter.WithRate(rratelimiter.PerHour(5))), c.RateLimiter(
			"b", rratelimiter.WithRate(rratelimiter.PerHour(5)),
		),
			c.RateLimiter("full", rratelimiter.WithRate(rratelimiter.PerHour(5))), c.RateLimiter(
				"last", rratelimiter.WithRate(rratelimiter.PerHour(5)),
			)
		if ok, err := full.TryAcquire(ctx, 5); !ok || err != nil {
			t.Fatal(ok, err)
		}
		answer := make(chan error)
		go func() {
			_, err := c.AllowAll(ctx, 2, a, b, full, last)
			answer <- err
		}()
		<-h.came
		<-h.came // both at once
		cancel()
		if err := <-answer; !errors.Is(err, rratelimiter.ErrOutcomeUnknown) || !errors.Is(err, context.Canceled) {
			t.Errorf("AllowAll whose caller went: %v", err)
		}
		close(h.free)
		for _, l := range []*rratelimiter.Limiter{a, b} {
			for n := int64(0); n != 5; time.Sleep(time.Millisecond) {
				var err error
				if n, err = l.AvailablePermits(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}

		results, err := c.AllowAll(t.Context(), 2, a, b, full, last)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 2 {
			if want := (rratelimiter.Result{Limit: 5, Remaining: 5}); results[i] != want {
				t.Errorf("before the one that refused: %+v, want %+v", results[i], want)
			}
		}
		if results[2].RetryAfter == 0 || results[2].ResetAfter == 0 || results[3] != (rratelimiter.Result{}) {
			t.Errorf("the one that refused, and those behind: %+v", results[2:])
		}
	})
}

func TestAllowAllNTakesItsOwnNumberOfEach(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		ctx := t.Context()
		requests, tokens := r.Limiter("requests", rratelimiter.WithRate(rratelimiter.PerMinute(3))), r.Limiter(
			"tokens", rratelimiter.WithRate(rratelimiter.PerMinute(1000)),
		)
		results, err := r.Client.AllowAllN(ctx, []int64{1, 700}, requests, tokens)
		want := []rratelimiter.Result{
			result(true, 3, 2, 0, time.Minute, time.Minute), result(true, 1000, 300, 0, time.Minute, time.Minute),
		}
		if err != nil || !slices.Equal(results, want) {
			t.Errorf("%+v, %v; want %+v", results, err, want)
		}
		results, err = r.Client.AllowAllN(ctx, []int64{1, 301}, requests, tokens)
		want = []rratelimiter.Result{
			result(false, 3, 2, 0, time.Minute, time.Minute),
			result(false, 1000, 300, time.Minute, time.Minute, time.Minute),
		}
		if err != nil || !slices.Equal(results, want) {
			t.Errorf("%+v, %v; want %+v", results, err, want)
		}
		// A limiter that is listed twice is asked for the sum.
		results, err = r.Client.AllowAllN(ctx, []int64{100, 1, 200}, tokens, requests, tokens)
		want = []rratelimiter.Result{
			result(true, 1000, 0, 0, time.Minute, time.Minute), result(true, 3, 1, 0, time.Minute, time.Minute),
			result(true, 1000, 0, 0, time.Minute, time.Minute),
		}
		if err != nil || !slices.Equal(results, want) {
			t.Errorf("%+v, %v; want %+v", results, err, want)
		}
		before := r.Dump()
		for _, permits := range [][]int64{{1}, {1, 1, 1}, {1, 0}, {-1, 1}, nil} {
			if results, err := r.Client.AllowAllN(ctx, permits, requests, tokens); !errors.Is(
				err, rratelimiter.ErrInvalidPermits,
			) ||
				results != nil {
				t.Errorf("%d of two limiters: %+v, %v", permits, results, err)
			}
		}
		r.Unchanged(before, "what can't be asked")
	})
}

// A refused caller must not keep other callers' permits in use longer than without its request.
func TestAllowAllInOrderGivesBackWhatItTook(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, test := range []struct {
			name    string
			options []rratelimiter.LimiterOption
		}{
			{"plain", nil},
			{"a record each", []rratelimiter.LimiterOption{rratelimiter.WithRecordPerRequest()}},
			{"granularity", []rratelimiter.LimiterOption{rratelimiter.WithGranularity(500 * time.Millisecond)}},
		} {
			r := rig.New(t, s)
			r.Wipe()
			c := rratelimiter.NewClient(
				struct{ rratelimiter.Redis }{s.Client()}, rratelimiter.WithClock(r.Now),
				rratelimiter.WithCallTimeout(20*time.Second),
			)
			all, full := c.RateLimiter(
				"all",
				append(test.options, rratelimiter.WithRate(rratelimiter.PerMinute(20)))...), c.RateLimiter(
				"full",
				rratelimiter.WithRate(rratelimiter.PerHour(1)),
			)
			take := func(l *rratelimiter.Limiter, n int64) {
				if ok, err := l.TryAcquire(t.Context(), n); !ok || err != nil {
					t.Fatal(ok, err)
				}
			}
			take(full, 1)
			take(all, 3)
			r.Advance(time.Second)
			take(all, 2)                        // just when other callers ask
			inUse := func() map[float64]int64 { // by the time of the grant
				sums := map[float64]int64{}
				for _, m := range r.Members(all) {
					sums[m.Score] += rig.PermitsOf(m.Member)
				}
				return sums
			}
			before := inUse()
			for range 3 {
				if results, err := c.AllowAllN(t.Context(), []int64{4, 1}, all, full); err != nil ||
					results[1].RetryAfter == 0 {
					t.Fatalf("%+v, %v", results, err)
				}
			}
			if got, free := inUse(), r.Free(all); !maps.Equal(got, before) || len(got) != 2 || free != 15 {
				t.Errorf("%s: in use are %v, before %v; %d are free", test.name, got, before, free)
			}
		}
	})
}

func TestAllowAllIsObserved(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var observer rig.Log
		r := rig.New(t, s, rratelimiter.WithObserver(&observer))
		ctx := t.Context()
		a, b := r.Limiter("a", rratelimiter.WithRate(rratelimiter.PerMinute(9))), r.Limiter(
			"b", rratelimiter.WithEnforcedRate(rratelimiter.PerMinute(8)),
		)
		r.SetRate(a, rratelimiter.PerMinute(5))
		first := r.Limiter("loads the scripts", rratelimiter.WithRate(rratelimiter.PerMinute(1)))
		for range 2 { // a plain grant, and a refusal
			if _, err := r.Client.AllowAll(ctx, 1, first); err != nil {
				t.Fatal(err)
			}
		}
		r.SetRate(b, rratelimiter.PerMinute(6))
		r.WriteValue(a, "7")
		tests := []struct {
			n    int64
			want [2]rratelimiter.CallInfo
			err  error
		}{
			{2, [2]rratelimiter.CallInfo{
				{
					Limiter:      "a",
					Callers:      1,
					Granted:      1,
					Permits:      2,
					Attempts:     3,
					Repaired:     "free permits were above the rate",
					RateMismatch: true,
				},
				// no plain grant, another rate, granted
				{Limiter: "b", Callers: 1, Granted: 1, Permits: 2, Attempts: 3},
			}, nil},
			{4, [2]rratelimiter.CallInfo{
				{Limiter: "a", Callers: 1, Denied: 1, Attempts: 1, RateMismatch: true},
				{Limiter: "b", Callers: 1, Attempts: 1}, // it would have allowed
			}, nil},
			{6, [2]rratelimiter.CallInfo{
				{Limiter: "a", Callers: 1, Denied: 1, Attempts: 1, RateMismatch: true},
				{Limiter: "b", Callers: 1, Attempts: 1}, // it would have allowed
			}, rratelimiter.ErrExceedsRate},
		}
		for _, test := range tests {
			before := len(observer.All())
			if _, err := r.Client.AllowAll(ctx, test.n, a, b); !errors.Is(err, test.err) {
				t.Errorf("%d permits: %v, want %v", test.n, err, test.err)
			}
			calls := observer.All()[before:]
			if len(calls) != 2 {
				t.Fatalf("%d permits: %d calls were seen", test.n, len(calls))
			}
			for i, got := range calls {
				if got.Latency <= 0 {
					t.Errorf("%d permits: %+v", test.n, got)
				}
				if got.Latency = 0; got != test.want[i] {
					t.Errorf("%d permits: %+v, want %+v", test.n, got, test.want[i])
				}
			}
		}
	})
}

func TestAllowAllAcrossACluster(t *testing.T) {
	rdb := redistest.Cluster(t, 3).ClusterClient()
	ctx := t.Context()
	at := time.Now().Truncate(time.Millisecond)
	var calls atomic.Int64
	rdb.OnNewNode(func(node *redis.Client) { node.AddHook(rig.CountScripts(&calls)) })
	c := rratelimiter.NewClient(
		rdb, rratelimiter.WithClock(func() time.Time { return at }), rratelimiter.WithCallTimeout(20*time.Second),
	)
	// Names in one slot with different tags.
	twin := ""
	for i := 0; twin == ""; i++ {
		if name := fmt.Sprint("twin", i); keys.Slot(name) == keys.Slot("a") {
			twin = name
		}
	}
	for _, test := range []struct {
		name  string
		names []string
		one   bool // in one script
	}{
		{"one tag", []string{"{t}a", "{t}b", "{t}c"}, true},
		{"one slot", []string{"a", twin}, true},
		{"anywhere", []string{"a", "b", "c", "d"}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			var limiters []*rratelimiter.Limiter
			for i, name := range test.names {
				l := c.RateLimiter(name, rratelimiter.WithRate(rratelimiter.PerMinute(int64(20-i))))
				if _, err := l.Delete(ctx); err != nil {
					t.Fatal(err)
				}
				if ok, err := l.TryAcquire(ctx, 5); !ok || err != nil {
					t.Fatal(ok, err)
				}
				limiters = append(limiters, l)
			}
			free := func() (all []int64) {
				for _, l := range limiters {
					n, err := l.AvailablePermits(ctx)
					if err != nil {
						t.Fatal(err)
					}
					all = append(all, n)
				}
				return all
			}
			calls.Store(0)
			results, err := c.AllowAll(ctx, 5, limiters...)
			if err != nil || slices.ContainsFunc(results, func(r rratelimiter.Result) bool { return !r.Allowed }) {
				t.Fatalf("%+v, %v", results, err)
			}
			if got := calls.Load(); test.one != (got <= 2) { // EVALSHA, twice if the server did not have the script
				t.Errorf("it took %d scripts", got)
			}
			before := free()
			results, err = c.AllowAll(ctx, before[len(before)-1]+1, limiters...)
			if err != nil || slices.ContainsFunc(results, func(r rratelimiter.Result) bool { return r.Allowed }) {
				t.Errorf("%+v, %v; want that none is allowed", results, err)
			}
			for i, result := range results {
				if result.Remaining != before[i] {
					t.Errorf("%s has %d permits left, its result says %d", test.names[i], before[i], result.Remaining)
				}
			}
			if after := free(); !slices.Equal(before, after) {
				t.Errorf("a refusal left %v of %v permits", after, before)
			}
			if results[len(results)-1].RetryAfter != time.Minute || results[0].RetryAfter != 0 {
				t.Errorf("the results are %+v", results)
			}
			for name, ask := range map[string]func() error{
				"ErrExceedsRate": func() error { _, err := c.AllowAll(ctx, 21, limiters...); return err },
				"ErrNotInitialized": func() error {
					_, err := c.AllowAll(ctx, 1, append(limiters, c.RateLimiter(test.names[0]+"none"))...)
					return err
				},
			} {
				want := map[string]error{
					"ErrExceedsRate":    rratelimiter.ErrExceedsRate,
					"ErrNotInitialized": rratelimiter.ErrNotInitialized,
				}[name]
				if err := ask(); !errors.Is(err, want) {
					t.Errorf("%v, want %s", err, name)
				}
				if after := free(); !slices.Equal(before, after) {
					t.Errorf("%s left %v of %v permits", name, after, before)
				}
			}
		})
	}
}
