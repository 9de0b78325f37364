package rratelimiter_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// consistency_test.go makes free permits and records differ from the rate on a limiter in constant use, and counts the
// permits granted from an interval and one second later on.

// A drift makes the sum of free permits and records differ from the rate.
type drift struct {
	name     string
	before   rratelimiter.Rate
	promised int64 // permits in any interval, once it is repaired
	// happen makes the change and returns the limiter to use from then on. It is called several times, every second
	// time a quarter of an interval later.
	happen func(r *rig, l *rratelimiter.Limiter) *rratelimiter.Limiter
	times  int // 0: once
}

// javaSets writes what setRate of Redisson 4.7.0 with keepState writes, for a rate with an interval of 1 s.
func (r *rig) javaSets(l *rratelimiter.Limiter, rate int64) {
	r.t.Helper()
	ctx := r.t.Context()
	r.must(r.rdb.ZRemRangeByScore(ctx, keysOf(l)[keys.Permits], "-inf", fmt.Sprint(r.ms()-1000)).Err())
	r.config(l, "rate", fmt.Sprint(rate))
	r.set(l, fmt.Sprint(max(0, rate-r.live(l, 1000))))
}

// javaReleases writes what release of Redisson since 3.52.0 writes.
func (r *rig) javaReleases(l *rratelimiter.Limiter, rate, n int64) {
	r.t.Helper()
	free, err := r.rdb.Get(r.t.Context(), keysOf(l)[keys.Value]).Int64()
	r.must(err)
	r.set(l, fmt.Sprint(min(rate, free+n)))
}

// a hundred permits a second, both Overall and PerClient.
var (
	hundred    = rratelimiter.PerSecond(100)
	eachClient = rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 100, Interval: time.Second}
)

// sets sets a PerClient rate from another client.
func sets(permits int64, opts ...rratelimiter.SetOption) func(*rig, *rratelimiter.Limiter) *rratelimiter.Limiter {
	return func(r *rig, l *rratelimiter.Limiter) *rratelimiter.Limiter {
		other := rratelimiter.NewClient(r.server.Client(), rratelimiter.WithClientID("other"), rratelimiter.WithClock(r.now), patient)
		r.setRate(other.RateLimiter(l.Name()), rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: permits, Interval: time.Second}, opts...)
		return l
	}
}

var drifts = []drift{
	{name: "another client lowers a rate per client", before: eachClient, promised: 20, happen: sets(20)},
	{name: "another client lowers a rate per client and keeps its state", before: eachClient, promised: 20,
		happen: sets(20, rratelimiter.KeepState())},
	{name: "the first of two workers enforces a lower rate per client", before: eachClient, promised: 80,
		happen: func(r *rig, l *rratelimiter.Limiter) *rratelimiter.Limiter {
			var again *rratelimiter.Limiter
			for _, id := range []string{"first", "me"} {
				client := rratelimiter.NewClient(r.server.Client(), rratelimiter.WithClientID(id), rratelimiter.WithClock(r.now), patient)
				again = client.RateLimiter(l.Name(), rratelimiter.WithEnforcedRate(rratelimiter.Rate{Type: rratelimiter.PerClient,
					Permits: 80, Interval: time.Second}))
				_, err := again.TryAcquire(r.t.Context(), 1)
				r.must(err)
			}
			return again
		}},
	{name: "Redisson lowers the rate and keeps the state", before: hundred, promised: 20,
		happen: func(r *rig, l *rratelimiter.Limiter) *rratelimiter.Limiter { r.javaSets(l, 20); return l }},
	{name: "Redisson releases 60 permits", before: hundred, promised: 100,
		happen: func(r *rig, l *rratelimiter.Limiter) *rratelimiter.Limiter { r.javaReleases(l, 100, 60); return l }},
	{name: "Redisson releases 60 permits four times", before: hundred, promised: 100, times: 4,
		happen: func(r *rig, l *rratelimiter.Limiter) *rratelimiter.Limiter { r.javaReleases(l, 100, 60); return l }},
	{name: "a hand adds 60 permits", before: hundred, promised: 100,
		happen: func(r *rig, l *rratelimiter.Limiter) *rratelimiter.Limiter {
			r.must(r.rdb.IncrBy(r.t.Context(), keysOf(l)[keys.Value], 60).Err())
			return l
		}},
	{name: "another client raises a rate per client with 400 live records", promised: 800,
		before: rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 400, Interval: time.Second}, happen: sets(800)},
}

// loads take as many permits of a limiter as they can, each with other methods, but never more than the rate.
var loads = []struct {
	name  string
	every int // steps
	take  func(r *rig, l *rratelimiter.Limiter, most int64) int64
}{
	{"TryAcquire", 1, func(r *rig, l *rratelimiter.Limiter, most int64) (got int64) {
		for got < most && r.try(l, 1) {
			got++
		}
		return got
	}},
	{"Allow of two in bursts", 10, func(r *rig, l *rratelimiter.Limiter, most int64) (got int64) {
		for got < most {
			result, err := l.Allow(r.t.Context(), 2)
			if r.must(err); !result.Allowed {
				break
			}
			got += 2
		}
		return got
	}},
	{"AcquireUpTo", 1, func(r *rig, l *rratelimiter.Limiter, most int64) int64 {
		got, err := l.AcquireUpTo(r.t.Context(), most)
		r.must(err)
		return got
	}},
	{"AllowAll of two", 1, func(r *rig, l *rratelimiter.Limiter, most int64) (got int64) {
		for got < most {
			results, err := l.Client().AllowAll(r.t.Context(), 2, l)
			if r.must(err); !results[0].Allowed {
				break
			}
			got += 2
		}
		return got
	}},
}

// TestWhatIsStoredBesideTheRateDoesNotLast has a continuous load, of which a part expires in each step, so free permits
// plus those that expire at once never exceed the rate.
func TestWhatIsStoredBesideTheRateDoesNotLast(t *testing.T) {
	long(t)
	const (
		step  = 20 * time.Millisecond
		until = 270 // steps
	)
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for at, drift := range drifts {
			for turn, load := range loads {
				if !s.IsReal() && (turn+at)%len(loads) != 0 {
					continue // the embedded server runs scripts slowly
				}
				t.Run(drift.name+", "+load.name, func(t *testing.T) {
					r := newRig(t, s)
					r.wipe()
					l := r.limiter("rl")
					r.setRate(l, drift.before)
					happened, right := 0, until
					grants := make([]int64, until)
					for i := range until {
						if happened < max(1, drift.times) && i == 75+25*happened/2 {
							l = drift.happen(r, l)
							happened++
							right = i + 100 // an interval and a second
						}
						most := int64(1000)
						if i < 50 {
							most = drift.before.Permits / 50 * int64(load.every)
						}
						if i%load.every == 0 {
							grants[i] = load.take(r, l, most)
						}
						r.advance(step)
					}
					var most, all int64
					for i := right; i+50 <= until; i++ {
						var sum int64
						for _, n := range grants[i : i+50] {
							sum += n
						}
						most = max(most, sum)
					}
					for _, n := range grants[until-50:] {
						all += n
					}
					if most > drift.promised || all < drift.promised*8/10 {
						t.Errorf("%d a second were granted, at most %d, of %d", all, most, drift.promised)
					}
					if state, err := l.State(t.Context()); err != nil || !state.Consistent {
						t.Errorf("the state is %+v, %v", state, err)
					}
				})
			}
		}
	})
}

// settled waits until no background recount runs.
func (r *rig) settled(l *rratelimiter.Limiter) {
	r.t.Helper()
	for {
		if !rratelimiter.ClientCore(l.Client()).Inspect().Recounting {
			return
		}
		if r.t.Context().Err() != nil {
			r.t.Fatal("the records are still being added up")
		}
		time.Sleep(time.Millisecond)
	}
}

// TestManyRecordsAreAddedUpInPages has more live records than a script may read.
func TestManyRecordsAreAddedUpInPages(t *testing.T) {
	long(t)
	const records, rate = 6500, 20000
	states := []struct {
		name, rate, value string
		free              int64 // free permits afterwards; -1: rate minus records
	}{
		{"a release by Redisson", "20000", "8996", 8996}, // a part of the last record stays
		{"a release of more than a script sheds", "20000", "19000", 19000},
		{"a rate lowered by Redisson", "5000", "0", 0},
		{"a rate raised", "30000", "7000", -1},
		{"a value that is missing", "20000", "", -1},
		{"a value above the rate", "20000", "20001", -1},
		{"in order", "20000", "7000", -1},
	}
	methods := map[string]func(ctx context.Context, r *rig, l *rratelimiter.Limiter) error{
		"TryAcquire": func(ctx context.Context, r *rig, l *rratelimiter.Limiter) error {
			_, err := l.TryAcquire(ctx, rate/4)
			r.settled(l)
			return err
		},
		"AllowAll": func(ctx context.Context, r *rig, l *rratelimiter.Limiter) error {
			_, err := r.client.AllowAll(ctx, rate/4, l)
			r.settled(l)
			return err
		},
		"AvailablePermits": func(ctx context.Context, _ *rig, l *rratelimiter.Limiter) error {
			_, err := l.AvailablePermits(ctx)
			return err
		},
	}
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for at, state := range states {
			for turn, method := range slices.Sorted(maps.Keys(methods)) {
				if !s.IsReal() && (turn+at)%len(methods) != 0 {
					continue // the embedded server is slow with many records
				}
				call := methods[method]
				t.Run(state.name+", "+method, func(t *testing.T) {
					r := newRig(t, s)
					r.wipe()
					l := r.limiter("rl")
					r.config(l, "rate", state.rate, "interval", "60000", "type", "0")
					if state.value != "" {
						r.set(l, state.value)
					}
					for i := range 5 { // 13,000 permits, in the end many at one time
						members := make([]string, records/5)
						for j := range members {
							members[j] = memberOf(fmt.Sprintf("%08d", i*records+j), uint32(1+j%3))
						}
						r.add(l, r.ms()-int64(1000*i), members...)
					}
					live := r.live(l, 60000)
					monitor := func() []redistest.Command { return nil }
					if s.IsReal() {
						monitor = redistest.Monitor(t, s.Addr).Stop
					}
					r.must(call(t.Context(), r, l))
					read := 0
					for _, c := range monitor() {
						switch name := strings.ToLower(c.Args[0]); {
						case strings.HasPrefix(name, "eval"):
							read = 0
						case name == "zrange" && len(c.Args) >= 4 && !strings.HasPrefix(c.Args[3], "-"):
							first, _ := strconv.Atoi(c.Args[2])
							last, _ := strconv.Atoi(c.Args[3])
							read += last - first + 1
						}
						if read > 2000+800 { // a plain grant that fails and a refusal read some more
							t.Fatalf("a script reads %d records", read)
						}
					}
					after, err := l.State(t.Context())
					r.must(err)
					free := state.free
					if free < 0 {
						free = after.Rate.Permits - live
					}
					if taken := free - after.Available; !after.Consistent || taken != 0 && taken != rate/4 {
						t.Errorf("the state is %+v, %d were free", after, free)
					}
				})
			}
		}
	})
}

// TestManyRecordsOfTheLongestInterval: times that follow from the longest interval do not overflow.
func TestManyRecordsOfTheLongestInterval(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const records = 2500
		r := newRig(t, s)
		l := r.limiter("rl")
		r.setRate(l, rratelimiter.Rate{Permits: 20000, Interval: longestInterval})
		r.add(l, r.ms(), many(records)...)
		r.set(l, "19000")
		r.try(l, 1)
		r.settled(l)
		if state, err := l.State(t.Context()); err != nil || !state.Consistent {
			t.Errorf("the state is %+v, %v", state, err)
		}
	})
}

// TestAnotherRateIsCheckedAtOnce has an interval of an hour, so that no other check comes.
func TestAnotherRateIsCheckedAtOnce(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		l := r.limiter("rl")
		each := func(n int64) rratelimiter.Rate {
			return rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: n, Interval: time.Hour}
		}
		other := rratelimiter.NewClient(s.Client(), rratelimiter.WithClientID("other"), rratelimiter.WithClock(r.now), patient).RateLimiter("rl")
		r.setRate(l, each(1200))
		for range 600 { // more records than a refusal adds up
			r.try(l, 2)
		}
		for _, step := range []struct {
			rate int64
			free int64 // after the call that sees the new rate and the one that checks
		}{{1000, 0}, {1400, 398}} {
			r.setRate(other, each(step.rate))
			r.try(l, 2)
			r.try(l, 2)
			if state, err := l.State(t.Context()); err != nil || !state.Consistent || state.Available != step.free {
				t.Errorf("at %d an hour the state is %+v, %v, want %d free", step.rate, state, err, step.free)
			}
		}
	})
}

// TestACheckOfSeveralLimitersReadsNoMore uses several limiters in one AllowAll, each of which has nearly as many
// records as a check reads.
func TestACheckOfSeveralLimitersReadsNoMore(t *testing.T) {
	s := redistest.Real(t)
	r := newRig(t, s)
	var limiters []*rratelimiter.Limiter
	for i := range 5 {
		l := r.limiter(fmt.Sprintf("rl%d", i))
		r.config(l, "rate", "5000", "interval", "60000", "type", "0")
		r.set(l, "3600")
		r.add(l, r.ms(), many(1500)...)
		limiters = append(limiters, l)
	}
	monitor := redistest.Monitor(t, s.Addr)
	_, err := r.client.AllowAll(t.Context(), 1, limiters...)
	r.must(err)
	for _, l := range limiters {
		r.settled(l)
		if state, err := l.State(t.Context()); err != nil || !state.Consistent || state.Available != 3599 {
			t.Errorf("the state is %+v, %v", state, err)
		}
	}
	read := 0
	for _, c := range monitor.Stop() {
		switch name := strings.ToLower(c.Args[0]); {
		case strings.HasPrefix(name, "eval"):
			read = 0
		case name == "zrange" && c.Args[3] != "4999": // State reads all
			first, _ := strconv.Atoi(c.Args[2])
			last, _ := strconv.Atoi(c.Args[3])
			if read += last - first + 1; read > 2600 {
				t.Fatalf("a script reads %d records", read)
			}
		}
	}
}

// TestRecountSeesWhatHappensBetweenItsPages changes the records after the first page was read.
func TestRecountSeesWhatHappensBetweenItsPages(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		l := r.limiter("rl")
		remove := func(rank int64) func() {
			return func() { r.must(r.rdb.ZRemRangeByRank(t.Context(), keysOf(l)[keys.Permits], rank, rank).Err()) }
		}
		for _, test := range []struct {
			name   string
			happen func()
		}{
			{"nothing", func() {}},
			{"a newer record comes", func() { r.add(l, r.ms()+5, memberOf("newnewne", 7)) }},
			{"a record comes at the time of the newest", func() { r.add(l, r.ms(), memberOf("~~~~~~~~", 7)) }},
			{"a record comes among those that were read", func() { r.add(l, r.ms()-100, memberOf("newnewne", 7)) }},
			{"a record comes among those that are not", func() { r.add(l, r.ms()-2000, memberOf("newnewne", 7)) }},
			{"a record leaves among those that were read", remove(-3)},
			{"the newest record leaves", remove(-1)},
			{"the oldest record that was read leaves", remove(-1000)},
			{"the oldest record leaves", remove(0)},
			{"a record that was read shrinks", func() {
				r.must(r.rdb.ZRemRangeByRank(t.Context(), keysOf(l)[keys.Permits], -600, -600).Err())
				r.add(l, r.ms()-599, memberOf("00002400", 0))
				r.set(l, "15001")
			}},
			{"the oldest 500 expire", func() { r.advance(57*time.Second + 500*time.Millisecond) }},
			{"all that was not read expires", func() { r.advance(59 * time.Second) }},
		} {
			t.Run(test.name, func(t *testing.T) {
				r.wipe()
				r.config(l, "rate", "20000", "interval", "60000", "type", "0")
				r.set(l, "15000")
				var records []redis.Z
				for i, member := range many(3000) { // one per ms, the last one now
					records = append(records, redis.Z{Score: float64(r.ms() - 2999 + int64(i)), Member: member})
				}
				r.must(r.rdb.ZAdd(t.Context(), keysOf(l)[keys.Permits], records...).Err())
				var progress protocol.Progress
				for page := range 20 {
					request := protocol.Recount{Now: rratelimiter.LimiterCore(l).Now(), Progress: progress}
					reply, err := rratelimiter.ClientCore(r.client).Topology().RunMixed(t.Context(), new(script.Attempts),
						protocol.RecountScript, true, keysOf(l), request.Args()...)
					r.must(err)
					notes, next, err := request.Reply(reply)
					r.must(err)
					if page == 0 {
						test.happen()
					}
					if !notes.Has(protocol.More | protocol.Many) {
						break
					}
					progress = next
				}
				if state, err := l.State(t.Context()); err != nil || !state.Consistent || state.Available+state.Used != 20000 {
					t.Errorf("the state is %+v, %v", state, err)
				}
			})
		}
	})
}

// TestRecountBesideGrants adds up many records while another client writes new ones.
func TestRecountBesideGrants(t *testing.T) {
	long(t)
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		l := r.limiter("rl")
		r.config(l, "rate", "1000000", "interval", "3600000", "type", "0")
		r.set(l, "990000")
		records := 20_000
		if !s.IsReal() {
			records = 6_000 // three pages; the embedded server is slow
		}
		r.add(l, r.ms()-1000, many(records)...)
		ctx, cancel := context.WithCancel(t.Context())
		var load sync.WaitGroup
		for range 3 {
			other := rratelimiter.NewClient(s.Client(), patient).RateLimiter("rl", rratelimiter.WithRecordPerRequest())
			load.Go(func() {
				for ctx.Err() == nil {
					if _, err := other.TryAcquire(t.Context(), 2); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		// Every client checks at its first call on the limiter, this one too.
		err := rratelimiter.LimiterCore(l).Recount(t.Context())
		cancel()
		load.Wait()
		r.must(err)
		r.must(rratelimiter.LimiterCore(l).Recount(t.Context()))
		if state, err := l.State(t.Context()); err != nil || !state.Consistent {
			t.Errorf("the state is %+v, %v", state, err)
		}
	})
}

// TestARefusalFindsForgottenPermits has a rate that was raised manually: the additional permits are not in the stored
// value yet.
func TestARefusalFindsForgottenPermits(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, n := range []int{1, 256, 257} {
			var seen log
			r := newRig(t, s, rratelimiter.WithObserver(&seen))
			r.wipe()
			l := r.limiter("rl")
			r.config(l, "rate", fmt.Sprint(n+10), "interval", "60000", "type", "0")
			r.try(l, 1) // so that no check adds up the records
			r.release(l, 1)
			r.set(l, "0")
			r.add(l, r.ms(), many(n)...)
			granted := r.try(l, 10)
			info := seen.last(t, 2)
			if granted != (n <= 256) || (info.Repaired != "") != granted {
				t.Errorf("with %d records: granted %v, repaired %q", n, granted, info.Repaired)
			}
			if granted {
				results, err := r.client.AllowAll(t.Context(), 1, l)
				if err != nil || results[0].Allowed {
					t.Errorf("AllowAll: %+v, %v", results, err)
				}
				r.set(l, "0")
				r.must(r.rdb.ZRemRangeByRank(t.Context(), keysOf(l)[keys.Permits], -1, -1).Err())
				results, err = r.client.AllowAll(t.Context(), 1, l)
				if err != nil || !results[0].Allowed {
					t.Errorf("AllowAll: %+v, %v", results, err)
				}
			}
		}
		// The value is never lowered: Redisson's release leaves more permits free than the records allow, on purpose. A
		// check removes them from the records.
		r := newRig(t, s)
		r.wipe()
		l := r.limiter("rl")
		r.config(l, "rate", "20", "interval", "60000", "type", "0")
		r.set(l, "6")
		r.add(l, r.ms(), memberOf("released", 18))
		if r.try(l, 7) || !r.try(l, 6) {
			t.Error("not exactly the six permits that a Redisson released were granted")
		}
	})
}
