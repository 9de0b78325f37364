package retry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/limiter"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/record"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// retry_test.go breaks connections at chosen points, and checks that a call still takes effect
// once.

// dated returns the time at which a grant of now is stored, under a rate with an interval of a
// minute.
func dated(r *rig.Rig, l *rratelimiter.Limiter) time.Time {
	return time.UnixMicro(rig.LimiterCore(l).Encoder().Dated(1000*r.Millis(), 60000, false))
}

// given returns the number of callers granted in each group.
func given(g protocol.Reply, groups []protocol.Group) (given []int64) {
	for i := range groups {
		given = append(given, g.Granted(i, groups[i]))
	}
	return given
}

var lossyCalls = []struct {
	name   string
	ask    protocol.BatchAsk
	opts   []rratelimiter.LimiterOption
	given  []int64 // of 100 permits a minute
	used   int64
	member int // records
}{
	{"granted whole", protocol.BatchAsk{Groups: rig.Groups(7, 3)}, nil, []int64{3}, 21, 1},
	{"granted in part", protocol.BatchAsk{Groups: rig.Groups(40, 2, 30, 3, 3, 9)}, nil, []int64{2, 0, 6}, 98, 1},
	{
		"granted in part, with waits", protocol.BatchAsk{Groups: rig.Groups(40, 2, 30, 3, 3, 9), Detail: true}, nil,
		[]int64{2, 0, 6}, 98, 1,
	},
	{
		"a queue that is blocked", protocol.BatchAsk{Groups: rig.Groups(40, 2, 30, 3, 3, 9), Strict: 2}, nil,
		[]int64{2, 0, 0}, 80,
		1,
	},
	{
		"a queue that goes on", protocol.BatchAsk{Groups: rig.Groups(7, 3, 5, 2), Strict: 1, Partial: true}, nil,
		[]int64{3, 0},
		21, 1,
	},
	{
		"permits are kept free", protocol.BatchAsk{Groups: rig.Groups(40, 0, 30, 2, 3, 9), Strict: 1}, nil,
		[]int64{0, 2, 0},
		60,
		1,
	},
	{
		"permits are kept free behind others", protocol.BatchAsk{Groups: rig.Groups(30, 2, 40, 0, 3, 9), Strict: 2},
		nil,
		[]int64{2, 0, 0}, 60, 1,
	},
	{
		"more than the rate beside others",
		protocol.BatchAsk{Groups: rig.Groups(101, 1, 60, 2)},
		nil,
		[]int64{-1, 1},
		60,
		1,
	},
	{"what is free", protocol.BatchAsk{Groups: rig.Groups(250, 1), UpTo: true}, nil, []int64{100}, 100, 1},
	{
		"nothing", protocol.BatchAsk{Groups: rig.Groups(60, 1, 101, 1)},
		[]rratelimiter.LimiterOption{rratelimiter.WithRate(rratelimiter.Rate{Permits: 50, Interval: time.Minute})},
		[]int64{1, -1}, 60, 1,
	},
	{"a record per request", protocol.BatchAsk{Groups: rig.Groups(40, 2, 30, 3, 3, 9)},
		[]rratelimiter.LimiterOption{rratelimiter.WithRecordPerRequest()}, []int64{2, 0, 6}, 98, 8},
	{
		"a record per request, and permits are kept free",
		protocol.BatchAsk{Groups: rig.Groups(40, 0, 30, 2, 3, 9), Strict: 1},
		[]rratelimiter.LimiterOption{rratelimiter.WithRecordPerRequest()}, []int64{0, 2, 0}, 60, 2,
	},
	{"by the server's clock", protocol.BatchAsk{Groups: rig.Groups(7, 3, 90, 1)},
		[]rratelimiter.LimiterOption{rratelimiter.WithServerTime()}, []int64{3, 0}, 21, 1},
	{
		"joined to a record", protocol.BatchAsk{Groups: rig.Groups(7, 3)},
		[]rratelimiter.LimiterOption{rratelimiter.WithGranularity(6 * time.Second)}, []int64{3}, 21, 1,
	},
	{"joined to a record in part", protocol.BatchAsk{Groups: rig.Groups(7, 3, 90, 1)},
		[]rratelimiter.LimiterOption{rratelimiter.WithGranularity(6 * time.Second)}, []int64{3, 0}, 21, 1},
}

// TestLostReplyTakesNothingTwice: the call is retried at a later time, and its callers get the
// grants of the first attempt, whatever other clients did in between.
func TestLostReplyTakesNothingTwice(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for i, test := range lossyCalls {
			for _, format := range []rratelimiter.RecordFormat{
				rratelimiter.Redisson317,
				[]rratelimiter.RecordFormat{
					rratelimiter.Redisson313,
					rratelimiter.Redisson316,
					rratelimiter.Redisson321,
				}[i%3],
			} {
				r := rig.New(t, s)
				r.Wipe()
				c, tap := r.Tapped()
				l := c.RateLimiter("rl", append(test.opts, rratelimiter.WithRecordFormat(format))...)
				r.SetRate(l, rratelimiter.PerMinute(100))
				r.ToBucket(6*time.Second, 10*time.Millisecond)
				if format == rratelimiter.Redisson313 && rig.Settings(l).RecordPerRequest {
					continue // its ids repeat too soon
				}
				r.Free(l) // so that the server's time is known
				tap.Requests()
				other := r.Limiter("rl")
				tap.Plan(rig.Plan{Cut: true, Then: func() {
					r.Advance(500 * time.Millisecond)
					if free := 100 - test.used; free > 1 {
						r.Try(other, free-1)
					}
				}}, rig.Plan{Cut: true})
				g, err := rig.OneCall(t.Context(), l, test.ask)
				what := fmt.Sprintf("%s, %v", test.name, format)
				if err != nil || !slices.Equal(given(g, test.ask.Groups), test.given) {
					t.Errorf("%s: granted %v, %v, want %v", what, given(g, test.ask.Groups), err, test.given)
				}
				if n := tap.Requests(); n != 3 {
					t.Errorf("%s: %d requests", what, n)
				}
				state, err := l.State(t.Context())
				r.Must(err)
				want := test.used + max(100-test.used-1, 0)
				if state.Used != want || !state.Consistent || g.First.Free != 100-want {
					t.Errorf("%s: %+v, and %d free are reported, not %d used", what, state, g.First.Free, want)
				}
				var own int64
				for _, m := range r.Members(l) {
					record, err := rratelimiter.UnpackRecord([]byte(m.Member))
					r.Must(err)
					if int64(record.Permits) == max(100-test.used-1, 0) && int64(m.Score) == r.Millis() {
						continue // of the other client
					}
					own++
					if !rig.Settings(l).ServerTime && int64(m.Score) != dated(r, l).UnixMilli() {
						t.Errorf("%s: dated %v ms before the answer", what, r.Millis()-int64(m.Score))
					}
				}
			}
		}
	})
}

// TestLostRequestIsMadeAgain: a request that did not arrive is executed when its retry arrives.
func TestLostRequestIsMadeAgain(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, lost := range []rig.Plan{{Lost: true}, {Half: true}} {
			r := rig.New(t, s)
			r.Wipe()
			log := &rig.Log{}
			c, tap := r.Tapped(rratelimiter.WithObserver(log))
			l := c.RateLimiter("rl", rratelimiter.WithRate(rratelimiter.PerMinute(10)))
			rig.MustTry(t, l, 1, true)
			tap.Plan(lost)
			rig.MustTry(t, l, 3, true)
			r.SameState(
				l,
				rratelimiter.State{Rate: rratelimiter.PerMinute(10), Available: 6, Used: 4, Records: 2, Oldest: r.Now(),
					Newest: r.Now(), Consistent: true},
			)
			if f := log.All()[1]; f.Attempts != 2 || f.Err != nil || f.Permits != 3 {
				t.Errorf("%+v", f)
			}
		}
	})
}

// TestRepliesThatWereReadCount: if a pipeline breaks, only the calls whose replies did not arrive
// are retried.
func TestRepliesThatWereReadCount(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, part := range []int{0, 5} { // of the fourth reply
			r := rig.New(t, s)
			r.Wipe()
			c, tap := r.Tapped()
			const limiters = 9
			var all []*rratelimiter.Limiter
			for i := range limiters {
				all = append(all, c.RateLimiter(fmt.Sprint("rl", i), rratelimiter.WithRate(rratelimiter.PerMinute(10))))
			}
			rig.Core(c).Tune(limiter.Tuning{Patience: time.Minute, RunsInFlight: 1})
			first := c.RateLimiter("first", rratelimiter.WithRate(rratelimiter.PerMinute(10)))
			tap.Requests()
			tap.Plan(rig.Plan{Then: func() { // the other calls wait for its slot
				rig.Soon(t, "the batches", func() bool { return rig.Core(c).Inspect().Queued == limiters })
			}}, rig.Plan{Cut: true, Replies: 3, Part: part})
			var asked sync.WaitGroup
			asked.Go(func() { rig.MustTry(t, first, 1, true) })
			rig.Soon(t, "the first call", func() bool { return rig.Core(c).Inspect().InFlight == 1 })
			for i, l := range all {
				asked.Go(func() { rig.MustTry(t, l, int64(1+i%3), true) })
			}
			asked.Wait()
			if n := tap.Requests(); n != 1+1+limiters-3 {
				t.Errorf("%d requests", n)
			}
			for i, l := range all {
				if s := rig.State(t, l); s.Used != int64(1+i%3) || !s.Consistent {
					t.Errorf("limiter %d: %+v", i, s)
				}
			}
		}
	})
}

// TestGrantThatExpiredUnanswered: if the expired record was already removed, permits are taken
// again; otherwise its record counts from now on.
func TestGrantThatExpiredUnanswered(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for name, meanwhile := range map[string]func(r *rig.Rig, l *rratelimiter.Limiter){
			"counted back": func(r *rig.Rig, l *rratelimiter.Limiter) { r.Free(l) },
			"still there":  func(*rig.Rig, *rratelimiter.Limiter) {},
			"released": func(r *rig.Rig, l *rratelimiter.Limiter) {
				r.Advance(-time.Minute)
				r.Release(l, 7)
				r.Advance(time.Minute)
			},
			"set anew": func(r *rig.Rig, l *rratelimiter.Limiter) { r.SetRate(l, rratelimiter.PerMinute(10)) },
		} {
			for _, opts := range [][]rratelimiter.LimiterOption{
				nil,
				{rratelimiter.WithRecordPerRequest()},
				{rratelimiter.WithGranularity(100 * time.Millisecond)},
			} {
				r := rig.New(t, s)
				r.Wipe()
				c, tap := r.Tapped()
				l, other := c.RateLimiter("rl", opts...), r.Limiter("rl")
				r.SetRate(l, rratelimiter.PerMinute(10))
				r.Try(other, 3)
				r.Advance(30 * time.Second)
				tap.Plan(rig.Plan{Cut: true, Then: func() {
					r.Advance(time.Minute)
					r.Advance(100 * time.Millisecond)
					meanwhile(r, other)
				}})
				if ok, err := l.TryAcquire(t.Context(), 4); !ok || err != nil {
					t.Errorf("%s, %+v: %v, %v", name, rig.Settings(l), ok, err)
				}
				state, err := l.State(t.Context())
				r.Must(err)
				at := dated(r, l)
				if state.Used != 4 || state.Available != 6 || !state.Consistent || !state.Oldest.Equal(at) ||
					state.Records != 1 {
					t.Errorf("%s: %+v at %v", name, state, r.Now())
				}
			}
		}
	})
}

// TestGrantThatWasReleasedInPart: the permits were given back by other callers, not by those of the
// call.
func TestGrantThatWasReleasedInPart(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, opts := range [][]rratelimiter.LimiterOption{
			nil,
			{rratelimiter.WithRecordPerRequest()},
			{rratelimiter.WithGranularity(time.Second)},
		} {
			r := rig.New(t, s)
			r.Wipe()
			c, tap := r.Tapped()
			l := c.RateLimiter("rl", append(opts, rratelimiter.WithRate(rratelimiter.PerMinute(10)))...)
			tap.Plan(rig.Plan{Cut: true, Then: func() { r.Release(r.Limiter("rl"), 1) }})
			if _, err := l.TryAcquire(t.Context(), 4); !errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
				t.Errorf("%v", err)
			}
			if s := rig.State(t, l); s.Used != 3 || !s.Consistent {
				t.Errorf("%+v", s)
			}
			r.Release(l, 3)
			tap.Plan(rig.Plan{Cut: true, Then: func() { r.Release(r.Limiter("rl"), 1) }})
			if results, err := c.AllowAll(t.Context(), 4, l); !errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
				t.Errorf("AllowAll: %+v, %v", results, err)
			}
			if s := rig.State(t, l); s.Used != 3 || !s.Consistent {
				t.Errorf("AllowAll: %+v", s)
			}
		}
	})
}

// TestGrantByAClockThatWentBack: if the server's clock goes back a little, its earlier grant is
// still found.
func TestGrantByAClockThatWentBack(t *testing.T) {
	s := redistest.Embedded(t) // whose clock can be set
	r := rig.New(t, s)
	c, tap := r.Tapped()
	l := c.RateLimiter("rl", rratelimiter.WithServerTime(), rratelimiter.WithRate(rratelimiter.PerMinute(10)))
	at := time.Now()
	s.Mini().SetTime(at)
	r.Try(l, 1)
	s.Mini().SetTime(at.Add(-900 * time.Millisecond))
	tap.Plan(rig.Plan{Cut: true})
	if ok, err := l.TryAcquire(t.Context(), 4); !ok || err != nil {
		t.Error(ok, err)
	}
	if s := rig.State(t, l); s.Used != 5 || !s.Consistent {
		t.Errorf("%+v", s)
	}
}

// TestAttemptsByAClockThatWentBack: the second attempt is executed at an earlier time than the
// first, and the third finds it.
func TestAttemptsByAClockThatWentBack(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		c, tap := r.Tapped()
		one, two := c.RateLimiter("one"), c.RateLimiter("two")
		r.SetRate(one, rratelimiter.PerMinute(100))
		r.SetRate(two, rratelimiter.PerMinute(100))
		back := func() {
			tap.Plan(
				rig.Plan{Lost: true, Then: func() { r.Advance(-2 * time.Second) }},
				rig.Plan{Cut: true, Then: func() { r.Advance(time.Second) }},
			)
		}
		back()
		if n, err := one.AcquireUpTo(t.Context(), 60); n != 60 || err != nil {
			t.Errorf("%d permits, %v", n, err)
		}
		back()
		if result, err := c.AllowAll(t.Context(), 20, one, two); err != nil || !result[0].Allowed {
			t.Errorf("%+v, %v", result, err)
		}
		if one, two := rig.State(t, one), rig.State(t, two); one.Used != 80 || two.Used != 20 {
			t.Errorf("%+v, %+v", one, two)
		}
	})
}

// TestIDsThatStartAgainAtZero: the ids of a batch are those of its client, also where their counter
// starts again.
func TestIDsThatStartAgainAtZero(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		c, tap := r.Tapped()
		l := c.RateLimiter("rl", rratelimiter.WithRecordPerRequest())
		r.SetRate(l, rratelimiter.PerMinute(10))
		rig.Core(c).Identity().StartAt(1<<24 - 3)
		tap.Plan(rig.Plan{Cut: true})
		ask := protocol.BatchAsk{Groups: rig.Groups(1, 6)}
		if g, err := rig.OneCall(t.Context(), l, ask); err != nil || g.Granted(0, ask.Groups[0]) != 6 {
			t.Errorf("%+v, %v", g, err)
		}
		if s := rig.State(t, l); s.Used != 6 || s.Records != 6 {
			t.Errorf("%+v", s)
		}
	})
}

// TestRetryDatesItsWholeRecord: with a granularity the retry raises the score of a record that also
// holds the permits of an earlier call, so those permits return late, too: by as much time as the
// retry took.
func TestRetryDatesItsWholeRecord(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		c, tap := r.Tapped()
		l := c.RateLimiter("rl", rratelimiter.WithGranularity(time.Second))
		r.SetRate(l, rratelimiter.PerMinute(10))
		r.ToBucket(time.Second, 10*time.Millisecond)
		r.Try(l, 3)
		tap.Plan(rig.Plan{Cut: true, Then: func() { r.Advance(5 * time.Second) }})
		if ok, err := l.TryAcquire(t.Context(), 2); !ok || err != nil {
			t.Errorf("%v, %v", ok, err)
		}
		at := dated(r, l)
		r.SameState(
			l,
			rratelimiter.State{
				Rate:       rratelimiter.PerMinute(10),
				Available:  5,
				Used:       5,
				Records:    1,
				Oldest:     at,
				Newest:     at,
				Consistent: true,
			},
		)
	})
}

// TestShareThatCannotBeDetermined: once a later call has joined the record, the grant of the
// earlier attempt cannot be determined. The retry takes nothing, and the error is
// ErrOutcomeUnknown.
func TestShareThatCannotBeDetermined(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		c, tap := r.Tapped()
		d := rratelimiter.WithGranularity(time.Second)
		l, later := c.RateLimiter("rl", d), r.Limiter("rl", d)
		r.SetRate(l, rratelimiter.PerMinute(10))
		r.ToBucket(time.Second, 10*time.Millisecond)
		tap.Plan(rig.Plan{Cut: true, Then: func() { r.Try(later, 3) }})
		if _, err := l.TryAcquire(t.Context(), 2); !errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
			t.Errorf("%v", err)
		}
		at := dated(r, l)
		r.SameState(
			l,
			rratelimiter.State{
				Rate:       rratelimiter.PerMinute(10),
				Available:  5,
				Used:       5,
				Records:    1,
				Oldest:     at,
				Newest:     at,
				Consistent: true,
			},
		)
	})
}

// TestRecordThatWasThereBefore: a call that never arrived is not confused by the record of earlier
// calls.
func TestRecordThatWasThereBefore(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, format := range []rratelimiter.RecordFormat{
			rratelimiter.Redisson316,
			rratelimiter.Redisson317,
			rratelimiter.Redisson321,
		} {
			r := rig.New(t, s)
			r.Wipe()
			c, tap := r.Tapped()
			l := c.RateLimiter("rl", rratelimiter.WithGranularity(time.Second), rratelimiter.WithRecordFormat(format),
				rratelimiter.WithRate(rratelimiter.PerMinute(100)))
			r.ToBucket(time.Second, 10*time.Millisecond)
			at := dated(r, l)
			for _, before := range []func() error{
				func() error { _, err := l.TryAcquire(t.Context(), 2); return err },
				func() error { _, err := l.AcquireUpTo(t.Context(), 2); return err },
				func() error { _, err := l.AcquireUpTo(t.Context(), 2); return err },
			} {
				tap.Plan()
				r.Must(before())
				tap.Plan(rig.Plan{Lost: true})
				rig.MustTry(t, l, 3, true)
			}
			r.SameState(l,
				rratelimiter.State{Rate: rratelimiter.PerMinute(100), Available: 85, Used: 15, Records: 1, Oldest: at,
					Newest: at, Consistent: true})
		}
	})
}

// TestTooManyRecordsToLookThrough: an attempt behind more records than the script searches is not
// found.
func TestTooManyRecordsToLookThrough(t *testing.T) {
	rig.Long(t)
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for records, found := range map[int]bool{19_000: true, 20_001: false} {
			r := rig.New(t, s)
			r.Wipe()
			c, tap := r.Tapped()
			l := c.RateLimiter("rl")
			r.SetRate(l, rratelimiter.PerMinute(100_000))
			r.AddRecords(l, r.Millis(), rig.ManyMembers(records)...)
			r.WriteValue(l, fmt.Sprint(100_000-records)) // otherwise they are added up first
			tap.Plan(rig.Plan{Lost: true})
			ok, err := l.TryAcquire(t.Context(), 2)
			if ok != found || (err == nil) != found || !found && !errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
				t.Errorf("behind %d records: %v, %v", records, ok, err)
			}
			if s := rig.State(t, l); s.Used != int64(records)+map[bool]int64{true: 2}[found] {
				t.Errorf("behind %d records: %+v", records, s)
			}
		}
	})
}

// TestOvertakenAttemptTakesNothing: the first attempt arrives after its retry was executed.
func TestOvertakenAttemptTakesNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("rl", rratelimiter.WithRate(rratelimiter.PerMinute(10)))
		var q protocol.AcquireRequest
		ask := protocol.BatchAsk{Groups: rig.Groups(2, 2)}
		early := q.Args(nil, rig.LimiterCore(l).Encoder(), ask, false)
		early[1] = string(early[1].([]byte))
		r.Advance(10 * time.Millisecond)
		late := q.Args(nil, rig.LimiterCore(l).Encoder(), ask, true)
		early[0] = r.Millis() - 10
		for i, args := range [][]any{late, early} {
			reply, err := rig.Core(l.Client()).Topology().Run(t.Context(), new(script.Attempts),
				protocol.AcquireScript, false, rig.Keys(l), args...)
			if err != nil || reply[0] != []int64{0, 9}[i] {
				t.Errorf("attempt %d: %v, %v", i, reply, err)
			}
		}
		r.SameState(
			l,
			rratelimiter.State{Rate: rratelimiter.PerMinute(10), Available: 6, Used: 4, Records: 1, Oldest: r.Now(),
				Newest: r.Now(), Consistent: true},
		)
	})
}

// TestOvertakenSharedCommandTakesNothing is the same for a command that several limiters share.
func TestOvertakenSharedCommandTakesNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("rl", rratelimiter.WithRate(rratelimiter.PerMinute(10)))
		r.SetRate(l, rratelimiter.PerMinute(10))
		encoder, ask := rig.LimiterCore(l).Encoder(), protocol.BatchAsk{Groups: rig.Groups(2, 2)}
		now := r.Now().UnixMicro()
		var q protocol.AcquireRequest
		early := append([]any{protocol.NowOfMany(now)}, q.ArgsOfMany(nil, encoder, ask, now)...)
		early[2] = string(early[2].([]byte)) // the next attempt uses its memory
		r.Advance(10 * time.Millisecond)
		names := rig.Keys(l)
		run := func(s *script.Script, on []string, args []any, want int64) {
			t.Helper()
			if reply, err := rig.Core(l.Client()).Topology().Run(t.Context(), new(script.Attempts), s, false, on,
				args...); err != nil ||
				reply[0] != want {
				t.Errorf("%v, %v", reply, err)
			}
		}
		run(protocol.AcquireScript, names, q.Args(nil, encoder, ask, true), 0)
		run(protocol.AcquireManyScript, []string{names[keys.Config], names[keys.Value], names[keys.Permits]}, early, 10)
		r.SameState(
			l,
			rratelimiter.State{Rate: rratelimiter.PerMinute(10), Available: 6, Used: 4, Records: 1, Oldest: r.Now(),
				Newest: r.Now(), Consistent: true},
		)
	})
}

// TestOvertakenAttemptOfAllowAllTakesNothing is the same for AllowAll.
func TestOvertakenAttemptOfAllowAllTakesNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		rate := rratelimiter.PerMinute(10)
		limiters := []*rratelimiter.Limiter{
			r.Limiter("a", rratelimiter.WithRate(rate)), r.Limiter("b", rratelimiter.WithRate(rate)),
		}
		var q protocol.AllowAll
		q.Next(len(limiters),
			&protocol.BatchAsk{
				Groups: []protocol.Group{{Permits: protocol.Permits{First: 1, Rest: []int64{2}}, Count: 2}},
			})
		var keys []string
		for i, l := range limiters {
			q.Parts[i].Encoder = rig.LimiterCore(l).Encoder()
			keys = append(keys, rig.Keys(l)...)
		}
		early := q.Args(nil, false)
		for i, arg := range early {
			if bytes, is := arg.([]byte); is {
				early[i] = string(bytes) // the next attempt uses their memory
			}
		}
		r.Advance(10 * time.Millisecond)
		for i, args := range [][]any{q.Args(nil, true), early} {
			reply, err := rig.Core(r.Client).
				Topology().
				Run(t.Context(), new(script.Attempts), protocol.AllowAllScript, false, keys, args...)
			if err != nil || reply[0] != []int64{0, 9}[i] {
				t.Errorf("attempt %d: %v, %v", i, reply, err)
			}
		}
		for i, l := range limiters {
			used := int64(2 + 2*i)
			r.SameState(
				l,
				rratelimiter.State{
					Rate:       rate,
					Available:  10 - used,
					Used:       used,
					Records:    1,
					Oldest:     r.Now(),
					Newest:     r.Now(),
					Consistent: true,
				},
			)
		}
	})
}

// TestTemporaryErrorsOfServers: a call is retried if the server did not execute it, and its outcome
// is not unknown.
func TestTemporaryErrorsOfServers(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		c, tap := r.Tapped()
		l := c.RateLimiter("rl", rratelimiter.WithRate(rratelimiter.PerHour(1000)))
		for i, text := range []string{
			"LOADING Redis is loading the dataset in memory", "READONLY You can't write against a read only replica.",
			"MASTERDOWN Link with MASTER is down", "CLUSTERDOWN The cluster is down", "TRYAGAIN Multiple keys request",
			"NOREPLICAS Not enough good replicas to write.", "ERR max number of clients reached",
		} {
			for name, call := range rig.EveryMethod(c, l) {
				if i > 0 && name != "TryAcquire" {
					continue // one rule for all
				}
				r.Must(l.SetRate(t.Context(), rratelimiter.PerHour(1000)))
				tap.Requests()
				tap.Plan(rig.Plan{Answer: "-" + text + "\r\n"}, rig.Plan{Answer: "-" + text + "\r\n"})
				err := call(t.Context())
				if n := tap.Requests(); err != nil && n > 0 || n != 0 && n < 3 {
					t.Errorf("%s: %s: %d requests, %v", text, name, n, err)
				}
				tap.Plan()
			}
		}
	})
}

// TestNonIdempotentCallsAreNotRetried: calls whose second execution replies differently are not
// retried.
func TestNonIdempotentCallsAreNotRetried(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		c, tap := r.Tapped()
		l, fresh := c.RateLimiter("rl"), c.RateLimiter("fresh")
		ctx := t.Context()
		for name, call := range map[string]func() error{
			"TrySetRate":  func() error { _, err := fresh.TrySetRate(ctx, rratelimiter.PerHour(10)); return err },
			"Release":     func() error { _, err := l.Release(ctx, 1); return err },
			"Delete":      func() error { _, err := l.Delete(ctx); return err },
			"Rename":      func() error { return l.Rename(ctx, "other") },
			"RenameNX":    func() error { _, err := l.RenameNX(ctx, "other"); return err },
			"ClearExpire": func() error { _, err := l.ClearExpire(ctx); return err },
			"Expire if":   func() error { _, err := l.Expire(ctx, time.Hour, rratelimiter.IfNotSet); return err },
			"Expire now":  func() error { _, err := l.Expire(ctx, 0); return err },
			"Expire soon": func() error { _, err := l.Expire(ctx, time.Second); return err },
			"ExpireAt if": func() error {
				_, err := l.ExpireAt(ctx, r.Now().Add(time.Hour), rratelimiter.IfNotSet)
				return err
			},
			"ExpireAt, past": func() error {
				_, err := l.ExpireAt(ctx, r.Now().Add(-time.Minute))
				return err
			},
			"ExpireAt, soon": func() error {
				_, err := l.ExpireAt(ctx, r.Now().Add(time.Second))
				return err
			},
		} {
			r.Wipe()
			r.Must(l.SetRate(ctx, rratelimiter.PerHour(10)))
			rig.MustTry(t, l, 5, true)
			for _, p := range []rig.Plan{{Cut: true}, {Lost: true}} {
				tap.Requests()
				tap.Plan(p)
				if err := call(); !errors.Is(err, rratelimiter.ErrOutcomeUnknown) || !errors.Is(err, io.EOF) {
					t.Errorf("%s: %v", name, err)
				}
				if n := tap.Requests(); n != 1 {
					t.Errorf("%s: %d requests", name, n)
				}
			}
		}
		for name, call := range map[string]func() error{
			"SetRate": func() error { return l.SetRate(ctx, rratelimiter.PerHour(10)) },
			"UpdateRate": func() error {
				_, err := l.UpdateRate(ctx, rratelimiter.PerHour(10), rratelimiter.KeepState())
				return err
			},
			"State":            func() error { _, err := l.State(ctx); return err },
			"Config":           func() error { _, err := l.Config(ctx); return err },
			"AvailablePermits": func() error { _, err := l.AvailablePermits(ctx); return err },
			"Expire":           func() error { _, err := l.Expire(ctx, time.Hour); return err },
			"ExpireAt":         func() error { _, err := l.ExpireAt(ctx, r.Now().Add(time.Hour)); return err },
		} {
			r.Must(l.SetRate(ctx, rratelimiter.PerHour(10)))
			tap.Requests()
			tap.Plan(rig.Plan{Cut: true}, rig.Plan{Lost: true})
			if err := call(); err != nil || tap.Requests() != 3 {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// TestAllowAllIsMadeAgain: the first attempt was granted by all limiters or by none.
func TestAllowAllIsMadeAgain(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for name, opts := range map[string][]rratelimiter.LimiterOption{
			"plain":       nil,
			"joined":      {rratelimiter.WithGranularity(time.Second)},
			"server time": {rratelimiter.WithServerTime()},
			"enforced":    {rratelimiter.WithEnforcedRate(rratelimiter.PerMinute(10))},
		} {
			for _, lost := range []rig.Plan{{Cut: true}, {Lost: true}} {
				r := rig.New(t, s)
				r.Wipe()
				c, tap := r.Tapped()
				a, b := c.RateLimiter("a", opts...),
					c.RateLimiter("b", rratelimiter.WithRate(rratelimiter.PerMinute(20)))
				r.SetRate(a, rratelimiter.PerMinute(10))
				lost.Then = func() { r.Advance(300 * time.Millisecond) }
				tap.Plan(lost)
				results, err := c.AllowAll(t.Context(), 4, a, b)
				if err != nil || !results[0].Allowed || !results[1].Allowed || results[0].Remaining != 6 ||
					results[1].Remaining != 16 {
					t.Errorf("%s: %+v, %v", name, results, err)
				}
				for _, l := range []*rratelimiter.Limiter{a, b} {
					state, err := l.State(t.Context())
					r.Must(err)
					at := dated(r, l)
					if state.Used != 4 || !state.Consistent || state.Records != 1 ||
						!rig.Settings(l).ServerTime && !state.Oldest.Equal(at) {
						t.Errorf("%s: %+v at %v", name, state, r.Now())
					}
				}
			}
		}

		// The record has gone from one limiter but not from the other, so the call's outcome is
		// unknown.
		r := rig.New(t, s)
		r.Wipe()
		c, tap := r.Tapped()
		short, long := c.RateLimiter("short", rratelimiter.WithRate(rratelimiter.PerSecond(10))),
			c.RateLimiter("long", rratelimiter.WithRate(rratelimiter.PerMinute(10)))
		tap.Plan(rig.Plan{Cut: true, Then: func() { r.Advance(time.Second); r.Free(r.Limiter("short")) }})
		if _, err := c.AllowAll(t.Context(), 2, short, long); !errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
			t.Errorf("%v", err)
		}
		r.SameState(long, rratelimiter.State{Rate: rratelimiter.PerMinute(10), Available: 8, Used: 2, Records: 1,
			Oldest: r.Now().Add(-time.Second), Newest: r.Now().Add(-time.Second), Consistent: true})
	})
}

// TestCallThatWasNeverSent: no server listens, so the outcome is never unknown, however long it
// takes to find out.
func TestCallThatWasNeverSent(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Nowhere(t)})
	defer rdb.Close()
	for _, timeout := range []time.Duration{50 * time.Millisecond, 600 * time.Millisecond} {
		c := rratelimiter.NewClient(rdb, rratelimiter.WithCallTimeout(timeout))
		var all sync.WaitGroup
		for name, call := range rig.EveryMethod(c, c.RateLimiter("rl")) {
			all.Go(func() {
				if err := call(t.Context()); errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
					t.Errorf("%s within %v: %v", name, timeout, err)
				}
			})
		}
		all.Wait()
	}
}

// A caller whose context ends at the moment of the reply may have changed something, so it gets
// ErrOutcomeUnknown.
func TestCancelAtTheReplyIsOutcomeUnknown(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		harmless := map[string]bool{ // these change nothing, or have the same effect when repeated
			"AvailablePermits": true, "Peek": true, "State": true, "Glance": true, "Repair": true, "Clients": true,
			"Config": true, "Exists": true,
			"TTL": true,
		}
		for name := range rig.EveryMethod(nil, nil) {
			r := rig.New(t, s)
			r.Wipe()
			r.SetRate(r.Limiter("{rl}"), rratelimiter.PerMinute(10))
			ctx, cancel := context.WithCancel(t.Context())
			gone := make(chan struct{})
			rdb := s.Client()
			r.Must(rdb.Ping(ctx).Err()) // so that there is a connection
			rdb.AddHook(redistest.Hook{
				Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
					err := next(ctx, cmd)
					if err == nil && cmd.Name() != "script" { // which loads it
						cancel() // before the caller gets the reply
						<-gone
					}
					return err
				},
			})
			c := rratelimiter.NewClient(rdb, rratelimiter.WithCallTimeout(20*time.Second))
			err := rig.EveryMethod(c, c.RateLimiter("{rl}"))[name](ctx)
			close(gone)
			if !errors.Is(err, context.Canceled) || errors.Is(err, rratelimiter.ErrOutcomeUnknown) == harmless[name] {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// TestIDThatWasTaken: if an older grant has the same bytes as the record, the attempt wrote a
// different record, which cannot be identified.
func TestIDThatWasTaken(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		c, tap := r.Tapped()
		l := c.RateLimiter("rl")
		r.SetRate(l, rratelimiter.PerMinute(10))
		rig.Core(c).Identity().StartAt(41)
		r.AddRecords(
			l, r.Millis()-1000,
			string(rig.Core(c).Identity().AppendPrefix(nil, record.Redisson317, 1))+"\x02\x00\x00\x00",
		)
		r.Free(r.Limiter("rl"))
		rig.Core(c).Identity().StartAt(41)
		tap.Plan(rig.Plan{Cut: true})
		if _, err := l.TryAcquire(t.Context(), 2); !errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
			t.Errorf("%v", err)
		}
		if s := rig.State(t, l); s.Used != 4 || s.Records != 2 || !s.Consistent {
			t.Errorf("%+v", s)
		}
	})
}

// TestLostReplyOverOtherClients: the rules are the same for all types of redis clients.
func TestLostReplyOverOtherClients(t *testing.T) {
	nodes := redistest.Cluster(t, 2)
	tap := &rig.Tap{}
	cluster := nodes.ClusterClient(func(o *redis.ClusterOptions) { o.Dialer = tap.Dial })
	single := redistest.Shared(t)
	ring := redis.NewRing(&redis.RingOptions{
		Addrs: map[string]string{"one": single.Addr}, DB: single.DB,
		NewClient: func(o *redis.Options) *redis.Client { o.Dialer = tap.Dial; return redis.NewClient(o) },
	})
	t.Cleanup(func() { _ = ring.Close() })
	for name, rdb := range map[string]rratelimiter.Redis{
		"cluster":        cluster,
		"auto-pipeliner": rig.AutoPipelined(t, cluster),
		"ring":           ring,
	} {
		c := rratelimiter.NewClient(rdb, rig.Patient)
		l, other := c.RateLimiter("{"+name+"}", rratelimiter.WithRate(rratelimiter.PerHour(100))),
			c.RateLimiter("{"+name+"}2", rratelimiter.WithRate(rratelimiter.PerHour(100)))
		if _, err := c.AllowAll(t.Context(), 1, l, other); err != nil { // so that no call is two
			t.Fatal(err)
		}
		rig.MustTry(t, l, 1, true)
		for _, plan := range []rig.Plan{
			{Cut: true},
			{Lost: true},
			{Answer: "-TRYAGAIN later\r\n"},
			{Answer: "-CLUSTERDOWN for now\r\n"},
		} {
			tap.Requests()
			tap.Plan(plan)
			rig.MustTry(t, l, 2, true)
			if n := tap.Requests(); n != 2 {
				t.Errorf("%s: %+v: %d requests", name, plan, n)
			}
			tap.Plan(plan)
			if results, err := c.AllowAll(t.Context(), 3, l, other); err != nil || !results[0].Allowed {
				t.Errorf("%s: %+v: %+v, %v", name, plan, results, err)
			}
		}
		if s := rig.State(t, l); s.Used != 2+4*(2+3) || !s.Consistent {
			t.Errorf("%s: %+v", name, s)
		}
		if s := rig.State(t, other); s.Used != 1+4*3 || !s.Consistent {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// When the time for a call is over, the error also has the cause of the last failed attempt.
func TestARefusedConnectionIsNamedWhenTheTimeIsOver(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", DialerRetries: 1}) // no server listens there
	t.Cleanup(func() { _ = rdb.Close() })
	l := rratelimiter.NewClient(rdb, rratelimiter.WithCallTimeout(300*time.Millisecond)).RateLimiter("l",
		rratelimiter.WithRate(rratelimiter.PerSecond(1)))
	const attempts = 10 // a busy machine may have no time to dial
	var err error
	for i := 0; i < attempts && !errors.Is(err, syscall.ECONNREFUSED); i++ {
		if _, err = l.TryAcquire(t.Context(), 1); errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
			t.Errorf("the error is %v", err)
		}
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the last error is %v", err)
	}
}
