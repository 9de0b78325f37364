package feed

import (
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/rrltest"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

func TestMain(m *testing.M) { rrltest.Main(m) }

// at returns a server as rrl has it.
func at(t *testing.T, s *redistest.Server) *connect.Server {
	t.Helper()
	on, err := connect.To(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(on.Close)
	return on
}

// A Java client's record, written by the test: feeds read only its score and its last bytes.
func javaRecord(t *testing.T, s *redistest.Server, name string, at time.Time, permits uint32) {
	t.Helper()
	member, err := rratelimiter.PackRecord(rratelimiter.Redisson317, []byte("\xfe\x01rstuvw"), permits)
	if err != nil {
		t.Fatal(err)
	}
	z := redis.Z{Score: float64(at.UnixMilli()), Member: string(member)}
	if err := s.Client().ZAdd(t.Context(), "{"+name+"}:permits", z).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestAFeedTellsWhatIsFreeAndWhoWasGrantedHowMuch(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		client := rrltest.Client(s.Client(), rratelimiter.WithLimiterDefaults(rratelimiter.WithServerTime()))
		l := client.RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerMinute(100)))
		f := New(at(t, s).Limiter("orders", ""), false)
		if k, err := f.Look(t.Context()); err != nil || k.Fault != "it has no rate" {
			t.Fatalf("without a limiter: %+v, %v", k, err)
		}
		for range 3 {
			if err := l.Acquire(t.Context(), 5); err != nil {
				t.Fatal(err)
			}
			k, err := f.Look(t.Context())
			if err != nil || k.Fault != "" {
				t.Fatalf("%+v, %v", k, err)
			}
		}
		javaRecord(t, s, "orders", time.Now(), 7)
		k, err := f.Look(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if k.Rate != rratelimiter.PerMinute(100) || k.Used != 22 || k.Records != 4 || k.Consistent || k.Partial {
			t.Errorf("%+v", k)
		}
		var sum, java int64
		for _, second := range f.Seconds(time.Time{}) {
			sum += second.Permits
			java += second.By[""]
		}
		if sum != 22 || java != 7 {
			t.Errorf("%d permits in all, %d of Java; want 22 and 7, however often it looked", sum, java)
		}
		if tags, _ := Writers(f.Seconds(time.Time{})); len(tags) != 2 || tags[1] != "" {
			t.Errorf("writers %q: one Go client, then Java", tags)
		}
		if frees := f.Frees(time.Time{}); len(frees) != 4 || frees[0].Free != 95 || frees[2].Free != 85 {
			t.Errorf("free %v", frees)
		}
	})
}

func TestWhatWasReleasedOrHasExpiredStaysCounted(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rate := rratelimiter.Rate{Permits: 10, Interval: 2 * time.Second}
		client := rrltest.Client(s.Client(), rratelimiter.WithLimiterDefaults(rratelimiter.WithServerTime()))
		l := client.RateLimiter("orders", rratelimiter.WithRate(rate))
		f := New(at(t, s).Limiter("orders", ""), false)
		if _, err := l.TryAcquire(t.Context(), 4); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Look(t.Context()); err != nil {
			t.Fatal(err)
		}
		if f.Every() >= rate.Interval/2 {
			t.Errorf("a look each %v does not see all of an interval of %v", f.Every(), rate.Interval)
		}
		if _, err := l.Release(t.Context(), 4); err != nil {
			t.Fatal(err)
		}
		time.Sleep(f.slot) // repeated grants in the same slot can't be distinguished
		if err := l.Acquire(t.Context(), 10); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Look(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := l.Acquire(t.Context(), 10); err != nil { // waits until the ten permits before have expired
			t.Fatal(err)
		}
		k, err := f.Look(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var sum int64
		for _, second := range f.Seconds(time.Time{}) {
			sum += second.Permits
		}
		if sum != 24 || k.Used != 10 {
			t.Errorf("%d granted in all, %d in use; want 24 and 10", sum, k.Used)
		}
	})
}

// Polls at their pace leave no gap; a pause does, from which on less is known than its length.
func TestAFeedKnowsWhatItHasSeen(t *testing.T) {
	f, at := New(nil, false), time.Unix(1_700_000_000, 0)
	f.every = 400 * time.Millisecond
	const back = 800 * time.Millisecond
	for _, ms := range []int{0, 400, 900, 9000, 9400} {
		f.cover(at.Add(time.Duration(ms)*time.Millisecond), back)
	}
	want := []Span{
		{at.Add(-back), at.Add(900 * time.Millisecond)},
		{at.Add(9*time.Second - back), at.Add(9400 * time.Millisecond)},
	}
	if !slices.Equal(f.Seen(), want) {
		t.Errorf("seen %v, want %v", f.Seen(), want)
	}
	f.forget(at.Add(5 * time.Second))
	if !slices.Equal(f.Seen(), want[1:]) {
		t.Errorf("after some time %v, want %v", f.Seen(), want[1:])
	}
}

func TestMoreThanAFeedReadsIsSaid(t *testing.T) {
	s := redistest.Shared(t)
	client := rrltest.Client(s.Client(), rratelimiter.WithLimiterDefaults(rratelimiter.WithServerTime()))
	l := client.RateLimiter("orders")
	if _, err := l.TrySetRate(t.Context(), rratelimiter.PerMinute(1_000_000)); err != nil {
		t.Fatal(err)
	}
	for range 5 { // a look reads the last 2 s, of which a busy machine may leave too little
		now, pipe := time.Now(), s.Client().Pipeline()
		for i := range most + 2000 {
			id := []byte{1, 2, 3, 4, 5, byte(i), byte(i >> 8), byte(i >> 16)}
			member, err := rratelimiter.PackRecord(rratelimiter.Redisson317, id, 1)
			if err != nil {
				t.Fatal(err)
			}
			pipe.ZAdd(t.Context(), "{orders}:permits", redis.Z{Score: float64(now.UnixMilli()), Member: string(member)})
		}
		if _, err := pipe.Exec(t.Context()); err != nil {
			t.Fatal(err)
		}
		k, err := New(at(t, s).Limiter("orders", ""), false).Look(t.Context())
		if err == nil && k.Partial {
			return
		}
		if took := time.Since(now); err != nil || took < 1500*time.Millisecond {
			t.Fatalf("%+v, %v after %v: partial", k, err, took)
		}
	}
	t.Error("no look was in time")
}

// watch numbers seconds by the server's clock; if it took this host's clock during an outage,
// seconds would be lost after it.
func TestWhileRedisIsAwayTheServersClockGoesOn(t *testing.T) {
	s := redistest.Embedded(t)
	server := time.Now().Add(-time.Hour)
	s.Mini().SetTime(server)
	client := rrltest.Client(s.Client(), rratelimiter.WithLimiterDefaults(rratelimiter.WithServerTime()))
	if err := client.RateLimiter("orders").SetRate(t.Context(), rratelimiter.PerMinute(100)); err != nil {
		t.Fatal(err)
	}
	on := at(t, s)
	f := &Followed{feed: New(on.Limiter("orders", ""), false)}
	for _, away := range []bool{false, true} {
		if away {
			s.Mini().SetError("ERR away")
		}
		f.look(t.Context(), on)
		v := f.Sight()
		if (v.Failed != nil) != away || v.Now.Sub(server).Abs() > 10*time.Minute {
			t.Errorf("away: %v: %v, failed: %v; want %v", away, v.Now, v.Failed, server)
		}
	}
}
