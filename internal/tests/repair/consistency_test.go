package repair

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
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// consistency_test.go makes free permits and records differ from the rate on a limiter in constant
// use, and counts the permits granted from an interval and one second later on.

// A drift makes the sum of free permits and records differ from the rate.
type drift struct {
	name     string
	before   rratelimiter.Rate
	promised int64 // permits in any interval, once it is repaired
	// happen makes the change and returns the limiter to use from then on. It is called several
	// times, every second time a quarter of an interval later.
	happen func(r *rig.Rig, l *rratelimiter.Limiter) *rratelimiter.Limiter
	times  int // 0: once
}

// javaSets writes what setRate of Redisson 4.7.0 with keepState writes, for a rate with an interval
// of 1 s.
func javaSets(r *rig.Rig, l *rratelimiter.Limiter, rate int64) {
	r.T.Helper()
	ctx := r.T.Context()
	r.Must(r.Redis.ZRemRangeByScore(ctx, rig.Keys(l)[keys.Permits], "-inf", fmt.Sprint(r.Millis()-1000)).Err())
	r.WriteConfig(l, "rate", fmt.Sprint(rate))
	r.WriteValue(l, fmt.Sprint(max(0, rate-live(r, l, 1000))))
}

// javaReleases writes what release of Redisson since 3.52.0 writes.
func javaReleases(r *rig.Rig, l *rratelimiter.Limiter, rate, n int64) {
	r.T.Helper()
	free, err := r.Redis.Get(r.T.Context(), rig.Keys(l)[keys.Value]).Int64()
	r.Must(err)
	r.WriteValue(l, fmt.Sprint(min(rate, free+n)))
}

// a hundred permits a second, both Overall and PerClient.
var (
	hundred    = rratelimiter.PerSecond(100)
	eachClient = rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 100, Interval: time.Second}
)

// sets sets a PerClient rate from another client.
func sets(permits int64, opts ...rratelimiter.SetOption) func(*rig.Rig, *rratelimiter.Limiter) *rratelimiter.Limiter {
	return func(r *rig.Rig, l *rratelimiter.Limiter) *rratelimiter.Limiter {
		other := r.Beside("other").Limiter(l.Name())
		r.SetRate(other, rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: permits, Interval: time.Second},
			opts...)
		return l
	}
}

var drifts = []drift{
	{name: "another client lowers a rate per client", before: eachClient, promised: 20, happen: sets(20)},
	{name: "another client lowers a rate per client and keeps its state", before: eachClient, promised: 20,
		happen: sets(20, rratelimiter.KeepState())},
	{name: "the first of two workers enforces a lower rate per client", before: eachClient, promised: 80,
		happen: func(r *rig.Rig, l *rratelimiter.Limiter) *rratelimiter.Limiter {
			var again *rratelimiter.Limiter
			for _, id := range []string{"first", "me"} {
				again = r.Beside(id).Limiter(l.Name(),
					rratelimiter.WithEnforcedRate(rratelimiter.Rate{Type: rratelimiter.PerClient,
						Permits: 80, Interval: time.Second}))
				r.Try(again, 1)
			}
			return again
		}},
	{name: "Redisson lowers the rate and keeps the state", before: hundred, promised: 20,
		happen: func(r *rig.Rig, l *rratelimiter.Limiter) *rratelimiter.Limiter { javaSets(r, l, 20); return l }},
	{name: "Redisson releases 60 permits", before: hundred, promised: 100,
		happen: func(r *rig.Rig, l *rratelimiter.Limiter) *rratelimiter.Limiter {
			javaReleases(r, l, 100, 60)
			return l
		},
	},
	{name: "Redisson releases 60 permits four times", before: hundred, promised: 100, times: 4,
		happen: func(r *rig.Rig, l *rratelimiter.Limiter) *rratelimiter.Limiter {
			javaReleases(r, l, 100, 60)
			return l
		},
	},
	{name: "a hand adds 60 permits", before: hundred, promised: 100,
		happen: func(r *rig.Rig, l *rratelimiter.Limiter) *rratelimiter.Limiter {
			r.Must(r.Redis.IncrBy(r.T.Context(), rig.Keys(l)[keys.Value], 60).Err())
			return l
		}},
	{name: "another client raises a rate per client with 400 live records", promised: 800,
		before: rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 400, Interval: time.Second},
		happen: sets(800),
	},
}

// loads take as many permits of a limiter as they can, each with other methods, but never more than
// the rate.
var loads = []struct {
	name  string
	every int // steps
	take  func(r *rig.Rig, l *rratelimiter.Limiter, most int64) int64
}{
	{"TryAcquire", 1, func(r *rig.Rig, l *rratelimiter.Limiter, most int64) (got int64) {
		for got < most && r.Try(l, 1) {
			got++
		}
		return got
	}},
	{"Allow of two in bursts", 10, func(r *rig.Rig, l *rratelimiter.Limiter, most int64) (got int64) {
		for got < most {
			result, err := l.Allow(r.T.Context(), 2)
			if r.Must(err); !result.Allowed {
				break
			}
			got += 2
		}
		return got
	}},
	{"AcquireUpTo", 1, func(r *rig.Rig, l *rratelimiter.Limiter, most int64) int64 {
		got, err := l.AcquireUpTo(r.T.Context(), most)
		r.Must(err)
		return got
	}},
	{"AllowAll of two", 1, func(r *rig.Rig, l *rratelimiter.Limiter, most int64) (got int64) {
		for got < most {
			results, err := l.Client().AllowAll(r.T.Context(), 2, l)
			if r.Must(err); !results[0].Allowed {
				break
			}
			got += 2
		}
		return got
	}},
}

// TestWhatIsStoredBesideTheRateDoesNotLast has a continuous load, of which a part expires in each
// step, so free permits plus those that expire at once never exceed the rate.
func TestWhatIsStoredBesideTheRateDoesNotLast(t *testing.T) {
	rig.Long(t)
	const (
		step  = 20 * time.Millisecond
		until = 270 // steps
	)
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for at, drift := range drifts {
			for turn, load := range loads {
				if part := (turn + at) % len(loads); part > 0 && (!s.IsReal() || part%2 == 0) {
					// each drift meets some of the loads; on the embedded server, which runs
					// scripts slowly, one
					continue
				}
				t.Run(drift.name+", "+load.name, func(t *testing.T) {
					r := rig.New(t, s)
					r.Wipe()
					l := r.Limiter("rl")
					r.SetRate(l, drift.before)
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
						r.Advance(step)
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

// TestManyRecordsAreAddedUpInPages has more live records than a script may read.
func TestManyRecordsAreAddedUpInPages(t *testing.T) {
	rig.Long(t)
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
	methods := map[string]func(ctx context.Context, r *rig.Rig, l *rratelimiter.Limiter) error{
		"TryAcquire": func(ctx context.Context, r *rig.Rig, l *rratelimiter.Limiter) error {
			_, err := l.TryAcquire(ctx, rate/4)
			r.Settled(l)
			return err
		},
		"AllowAll": func(ctx context.Context, r *rig.Rig, l *rratelimiter.Limiter) error {
			_, err := r.Client.AllowAll(ctx, rate/4, l)
			r.Settled(l)
			return err
		},
		"AvailablePermits": func(ctx context.Context, _ *rig.Rig, l *rratelimiter.Limiter) error {
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
					r := rig.New(t, s)
					r.Wipe()
					l := r.Limiter("rl")
					r.WriteConfig(l, "rate", state.rate, "interval", "60000", "type", "0")
					if state.value != "" {
						r.WriteValue(l, state.value)
					}
					for i := range 5 { // 13,000 permits, in the end many at one time
						members := make([]string, records/5)
						for j := range members {
							members[j] = rig.MemberOf(fmt.Sprintf("%08d", i*records+j), uint32(1+j%3))
						}
						r.AddRecords(l, r.Millis()-int64(1000*i), members...)
					}
					live := live(r, l, 60000)
					monitor := func() []redistest.Command { return nil }
					if s.IsReal() {
						monitor = redistest.Monitor(t, s.Addr).Stop
					}
					r.Must(call(t.Context(), r, l))
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
					r.Must(err)
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
		r := rig.New(t, s)
		l := r.Limiter("rl")
		r.SetRate(l, rratelimiter.Rate{Permits: 20000, Interval: rig.LongestInterval})
		r.AddRecords(l, r.Millis(), rig.ManyMembers(records)...)
		r.WriteValue(l, "19000")
		r.Try(l, 1)
		r.Settled(l)
		if state, err := l.State(t.Context()); err != nil || !state.Consistent {
			t.Errorf("the state is %+v, %v", state, err)
		}
	})
}

// TestAnotherRateIsCheckedAtOnce has an interval of an hour, so that no other check comes.
func TestAnotherRateIsCheckedAtOnce(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("rl")
		each := func(n int64) rratelimiter.Rate {
			return rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: n, Interval: time.Hour}
		}
		other := r.Beside("other").Limiter("rl")
		r.SetRate(l, each(1200))
		for range 600 { // more records than a refusal adds up
			r.Try(l, 2)
		}
		for _, step := range []struct {
			rate int64
			free int64 // after the call that sees the new rate and the one that checks
		}{{1000, 0}, {1400, 398}} {
			r.SetRate(other, each(step.rate))
			r.Try(l, 2)
			r.Try(l, 2)
			if state, err := l.State(t.Context()); err != nil || !state.Consistent || state.Available != step.free {
				t.Errorf("at %d an hour the state is %+v, %v, want %d free", step.rate, state, err, step.free)
			}
		}
	})
}

// TestACheckOfSeveralLimitersReadsNoMore uses several limiters in one AllowAll, each of which has
// nearly as many records as a check reads.
func TestACheckOfSeveralLimitersReadsNoMore(t *testing.T) {
	s := redistest.Real(t)
	r := rig.New(t, s)
	var limiters []*rratelimiter.Limiter
	for i := range 5 {
		l := r.Limiter(fmt.Sprintf("rl%d", i))
		r.WriteConfig(l, "rate", "5000", "interval", "60000", "type", "0")
		r.WriteValue(l, "3600")
		r.AddRecords(l, r.Millis(), rig.ManyMembers(1500)...)
		limiters = append(limiters, l)
	}
	monitor := redistest.Monitor(t, s.Addr)
	_, err := r.Client.AllowAll(t.Context(), 1, limiters...)
	r.Must(err)
	for _, l := range limiters {
		r.Settled(l)
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
		r := rig.New(t, s)
		l := r.Limiter("rl")
		once := func(happens func()) func(page int) {
			return func(page int) {
				if page == 0 {
					happens()
				}
			}
		}
		remove := func(rank int64) func(page int) {
			return once(func() {
				r.Must(r.Redis.ZRemRangeByRank(t.Context(), rig.Keys(l)[keys.Permits], rank, rank).Err())
			})
		}
		for _, test := range []struct {
			name   string
			happen func(page int) // after a page was read
		}{
			{"nothing", func(int) {}},
			{"a newer record comes", once(func() { r.AddRecords(l, r.Millis()+5, rig.MemberOf("newnewne", 7)) })},
			{
				"a record comes at the time of the newest",
				once(func() { r.AddRecords(l, r.Millis(), rig.MemberOf("~~~~~~~~", 7)) }),
			},
			{
				"a record comes among those that were read",
				once(func() { r.AddRecords(l, r.Millis()-1000, rig.MemberOf("newnewne", 7)) }),
			},
			{
				"a record comes among those that are not",
				once(func() { r.AddRecords(l, r.Millis()-2000, rig.MemberOf("newnewne", 7)) }),
			},
			{"a record comes among those that were read, in two passes of three pages", func(page int) {
				switch record := rig.MemberOf("newnewne", 7); page {
				case 0, 3:
					r.AddRecords(l, r.Millis()-1000, record)
				case 2:
					r.Must(r.Redis.ZRem(t.Context(), rig.Keys(l)[keys.Permits], record).Err())
				}
			}},
			{"a record leaves among those that were read", remove(-3)},
			{"the newest record leaves", remove(-1)},
			{"the oldest record that was read leaves", remove(-1000)},
			{"the oldest record leaves", remove(0)},
			{"a record that was read shrinks", once(func() {
				r.Must(r.Redis.ZRemRangeByRank(t.Context(), rig.Keys(l)[keys.Permits], -600, -600).Err())
				r.AddRecords(l, r.Millis()-599, rig.MemberOf("00002400", 0))
				r.WriteValue(l, "15001")
			})},
			{"the oldest 500 expire", once(func() { r.Advance(57*time.Second + 500*time.Millisecond) })},
			{"all that was not read expires", once(func() { r.Advance(59 * time.Second) })},
		} {
			t.Run(test.name, func(t *testing.T) {
				r.Wipe()
				r.WriteConfig(l, "rate", "20000", "interval", "60000", "type", "0")
				r.WriteValue(l, "15000")
				var records []redis.Z
				for i, member := range rig.ManyMembers(3000) { // one per ms, the last one now
					records = append(records, redis.Z{Score: float64(r.Millis() - 2999 + int64(i)), Member: member})
				}
				r.Must(r.Redis.ZAdd(t.Context(), rig.Keys(l)[keys.Permits], records...).Err())
				var progress protocol.Progress
				for page := range 20 {
					request := protocol.Recount{Now: rig.LimiterCore(l).Now(), Progress: progress}
					reply, err := rig.Core(r.Client).Topology().RunMixed(t.Context(), new(script.Attempts),
						protocol.RecountScript, true, rig.Keys(l), request.Args()...)
					r.Must(err)
					notes, next, err := request.Reply(reply)
					r.Must(err)
					test.happen(page)
					if !notes.Has(protocol.More | protocol.Many) {
						break
					}
					progress = next
				}
				if state, err := l.State(t.Context()); err != nil || !state.Consistent ||
					state.Available+state.Used != 20000 {
					t.Errorf("the state is %+v, %v", state, err)
				}
			})
		}
	})
}

// TestRecountBesideGrants adds up many records while another client writes new ones.
func TestRecountBesideGrants(t *testing.T) {
	rig.Long(t)
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("rl")
		r.WriteConfig(l, "rate", "1000000", "interval", "3600000", "type", "0")
		r.WriteValue(l, "990000")
		records := 20_000
		if !s.IsReal() {
			records = 6_000 // three pages; the embedded server is slow
		}
		r.AddRecords(l, r.Millis()-1000, rig.ManyMembers(records)...)
		ctx, cancel := context.WithCancel(t.Context())
		var load sync.WaitGroup
		for range 3 {
			other := rratelimiter.NewClient(s.Client(), rig.Patient).RateLimiter("rl",
				rratelimiter.WithRecordPerRequest())
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
		err := rig.LimiterCore(l).Recount(t.Context())
		cancel()
		load.Wait()
		r.Must(err)
		r.Must(rig.LimiterCore(l).Recount(t.Context()))
		if state, err := l.State(t.Context()); err != nil || !state.Consistent {
			t.Errorf("the state is %+v, %v", state, err)
		}
	})
}

// TestARefusalFindsForgottenPermits has a rate that was raised manually: the additional permits are
// not in the stored value yet.
func TestARefusalFindsForgottenPermits(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, n := range []int{1, 256, 257} {
			var seen rig.Log
			r := rig.New(t, s, rratelimiter.WithObserver(&seen))
			r.Wipe()
			l := r.Limiter("rl")
			r.WriteConfig(l, "rate", fmt.Sprint(n+10), "interval", "60000", "type", "0")
			r.Try(l, 1) // so that no check adds up the records
			r.Release(l, 1)
			r.WriteValue(l, "0")
			r.AddRecords(l, r.Millis(), rig.ManyMembers(n)...)
			granted := r.Try(l, 10)
			info := seen.Last(t, 2)
			if granted != (n <= 256) || (info.Repaired != "") != granted {
				t.Errorf("with %d records: granted %v, repaired %q", n, granted, info.Repaired)
			}
			if granted {
				results, err := r.Client.AllowAll(t.Context(), 1, l)
				if err != nil || results[0].Allowed {
					t.Errorf("AllowAll: %+v, %v", results, err)
				}
				r.WriteValue(l, "0")
				r.Must(r.Redis.ZRemRangeByRank(t.Context(), rig.Keys(l)[keys.Permits], -1, -1).Err())
				results, err = r.Client.AllowAll(t.Context(), 1, l)
				if err != nil || !results[0].Allowed {
					t.Errorf("AllowAll: %+v, %v", results, err)
				}
			}
		}
		// The value is never lowered: Redisson's release leaves more permits free than the records
		// allow, on purpose. A check removes them from the records.
		r := rig.New(t, s)
		r.Wipe()
		l := r.Limiter("rl")
		r.WriteConfig(l, "rate", "20", "interval", "60000", "type", "0")
		r.WriteValue(l, "6")
		r.AddRecords(l, r.Millis(), rig.MemberOf("released", 18))
		if r.Try(l, 7) || !r.Try(l, 6) {
			t.Error("not exactly the six permits that a Redisson released were granted")
		}
	})
}
