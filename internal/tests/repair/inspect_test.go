package repair

import (
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// inspect_test.go tests the methods that only read: State, Glance, Clients.

func TestStateOnlyReads(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		minute := rratelimiter.PerMinute(20)
		crowd := func(live int) map[string]int64 {
			records := map[string]int64{rig.MemberOf("expired", 11): 60000}
			for n := range live {
				records[rig.MemberOf(fmt.Sprintf("%08d", n), 1)] = 0
			}
			return records
		}
		tests := []struct {
			name    string
			value   string
			records map[string]int64   // ms ago
			want    rratelimiter.State // Oldest and Newest: ms ago, as time.UnixMilli
		}{
			{"fresh", "", nil, rratelimiter.State{Available: 20, Consistent: true}},
			{"all free", "20", nil, rratelimiter.State{Available: 20, Consistent: true}},
			{"drifted, no record", "19", nil, rratelimiter.State{Available: 20}},
			{"live", "13", map[string]int64{rig.MemberOf("aaaaaaaa", 4): 1000, rig.MemberOf("bbbbbbbb", 3): 10},
				rratelimiter.State{
					Available:  13,
					Used:       7,
					Records:    2,
					Oldest:     time.UnixMilli(1000),
					Newest:     time.UnixMilli(10),
					Consistent: true,
				}},
			{
				"live and expired",
				"13",
				map[string]int64{rig.MemberOf("aaaaaaaa", 4): 60000, rig.MemberOf("bbbbbbbb", 3): 59999},
				rratelimiter.State{
					Available:  17,
					Used:       3,
					Records:    1,
					Oldest:     time.UnixMilli(59999),
					Newest:     time.UnixMilli(59999),
					Consistent: true,
				},
			},
			{"expired", "13", map[string]int64{rig.MemberOf("aaaaaaaa", 4): 60000, rig.MemberOf("bbbbbbbb", 3): 70000},
				rratelimiter.State{Available: 20, Consistent: true}},
			{
				"expired and drifted", "10",
				map[string]int64{rig.MemberOf("aaaaaaaa", 4): 60000, rig.MemberOf("bbbbbbbb", 3): 70000},
				rratelimiter.State{Available: 20},
			},
			{
				"expired and missing",
				"",
				map[string]int64{rig.MemberOf("aaaaaaaa", 4): 60000},
				rratelimiter.State{Available: 20},
			},
			{"too low", "10", map[string]int64{rig.MemberOf("aaaaaaaa", 4): 0},
				rratelimiter.State{
					Available: 16,
					Used:      4,
					Records:   1,
					Oldest:    time.UnixMilli(0),
					Newest:    time.UnixMilli(0),
				}},
			{"released by Redisson", "20", map[string]int64{rig.MemberOf("aaaaaaaa", 4): 0},
				rratelimiter.State{
					Available: 20,
					Used:      4,
					Records:   1,
					Oldest:    time.UnixMilli(0),
					Newest:    time.UnixMilli(0),
				}},
			{"missing", "", map[string]int64{rig.MemberOf("aaaaaaaa", 4): 0},
				rratelimiter.State{
					Available: 16,
					Used:      4,
					Records:   1,
					Oldest:    time.UnixMilli(0),
					Newest:    time.UnixMilli(0),
				}},
			{"in the future", "16", map[string]int64{rig.MemberOf("aaaaaaaa", 4): -5000},
				rratelimiter.State{
					Available:  16,
					Used:       4,
					Records:    1,
					Oldest:     time.UnixMilli(-5000),
					Newest:     time.UnixMilli(-5000),
					Consistent: true,
				}},
			{"negative", "-1", crowd(256),
				rratelimiter.State{Used: 256, Records: 256, Oldest: time.UnixMilli(0), Newest: time.UnixMilli(0)}},
			{"negative, and more records than a call adds up", "-1", crowd(257),
				rratelimiter.State{
					Available: 10,
					Used:      257,
					Records:   257,
					Oldest:    time.UnixMilli(0),
					Newest:    time.UnixMilli(0),
				}},
		}
		for _, test := range tests {
			for _, kind := range []rratelimiter.RateType{rratelimiter.Overall, rratelimiter.PerClient} {
				r := rig.New(t, s)
				r.Wipe()
				l := r.Limiter("rl")
				value, permits := keys.Value, keys.Permits
				if kind == rratelimiter.PerClient {
					value, permits = keys.ClientValue, keys.ClientPermits
				}
				r.WriteConfig(l, "rate", "20", "interval", "60000", "type", fmt.Sprint(int(kind)))
				if test.value != "" {
					r.Must(r.Redis.Set(t.Context(), rig.Keys(l)[value], test.value, 0).Err())
				}
				for member, ago := range test.records {
					r.Must(
						r.Redis.ZAdd(t.Context(), rig.Keys(l)[permits],
							redis.Z{Score: float64(r.Millis() - ago), Member: member}).Err(),
					)
				}
				want := test.want
				want.Rate = minute
				want.Rate.Type = kind
				if want.Records > 0 {
					want.Oldest = time.UnixMilli(r.Millis() - want.Oldest.UnixMilli())
					want.Newest = time.UnixMilli(r.Millis() - want.Newest.UnixMilli())
				}
				before := r.Dump()
				r.SameState(l, want)
				if rate, err := l.Config(t.Context()); rate != want.Rate || err != nil {
					t.Errorf("Config: %v, %v", rate, err)
				}
				r.Unchanged(before, "looking")
				if free := r.Free(l); free != want.Available {
					t.Errorf("%s, %v: %d are free, but State said %d", test.name, kind, free, want.Available)
				}
			}
		}
	})
}

func TestStateOfManyRecords(t *testing.T) {
	rig.Long(t)
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, n := range []int{4999, 5000, 5001, 12000} {
			r := rig.New(t, s)
			r.Wipe()
			l := r.Limiter("rl")
			r.WriteConfig(l, "rate", "20000", "interval", "60000", "type", "0")
			r.WriteValue(l, fmt.Sprint(20000-n))
			r.AddRecords(l, r.Millis(), rig.ManyMembers(n)...)
			r.SameState(l,
				rratelimiter.State{Rate: rratelimiter.PerMinute(20000), Available: int64(20000 - n), Used: int64(n),
					Records: n, Oldest: r.Now(), Newest: r.Now(), Consistent: true})
			r.Must(r.Redis.Del(t.Context(), rig.Keys(l)[keys.Value]).Err())
			if free := r.Free(l); free != int64(20000-n) {
				t.Errorf("rebuilt from %d records, %d are free", n, free)
			}
		}
	})
}

func TestGlanceSeesWhatStateSees(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, state := range brokenStates() {
			if state.real && !s.IsReal() || state.want != "" {
				continue
			}
			r := rig.New(t, s)
			l := r.Limiter("rl")
			state.make(r, l)
			before := r.Dump()
			want, err := l.State(t.Context())
			r.Must(err)
			if got, exact, err := l.Glance(t.Context()); err != nil || !exact || got != want {
				t.Errorf("%s: Glance says %+v, %v; State %+v", state.name, got, err, want)
			}
			r.Unchanged(before, state.name+": a glance")
		}
	})
}

// A glance at many records reads few of them and still returns the free permits: it trusts the
// stored value.
func TestGlanceOfManyRecords(t *testing.T) {
	s := redistest.Shared(t)
	r := rig.New(t, s)
	r.Wipe()
	l := r.Limiter("rl")
	r.SetRate(l, rratelimiter.PerMinute(10_000))
	for _, c := range []struct {
		live, expired int
		value         string
		want          rratelimiter.State
	}{
		{2500, 0, "7500", rratelimiter.State{Available: 7500, Used: 2500, Records: 2500, Consistent: true}},
		{2500, 10, "7490", rratelimiter.State{Available: 7500, Used: 2500, Records: 2500, Consistent: true}},
		{10, 2500, "7490", rratelimiter.State{Available: 9990, Used: 10, Records: 10, Consistent: true}},
		{10, 2500, "none", rratelimiter.State{Available: 9990, Used: 10, Records: 10}},
		{2500, 2500, "5000", rratelimiter.State{Available: 5000, Used: 5000, Records: 2500, Consistent: true}},
		{2500, 2500, "none", rratelimiter.State{Available: 0, Used: 10000, Records: 2500}},
	} {
		r.Must(r.Redis.Del(t.Context(), rig.Keys(l)[keys.Permits]).Err())
		all := rig.ManyMembers(c.live + c.expired)
		r.AddRecords(l, r.Millis(), all[:c.live]...)
		if c.expired > 0 {
			r.AddRecords(l, r.Millis()-60_000, all[c.live:]...)
		}
		r.WriteValue(l, c.value)
		c.want.Rate, c.want.Oldest, c.want.Newest = rratelimiter.PerMinute(10_000), r.Now(), r.Now()
		got, exact, err := l.Glance(t.Context())
		if got.Oldest.Equal(r.Now()) && got.Newest.Equal(r.Now()) {
			got.Oldest, got.Newest = r.Now(), r.Now()
		}
		if err != nil || exact || got != c.want {
			t.Errorf("%d live, %d expired, %s stored: %+v, %v", c.live, c.expired, c.value, got, err)
		}
	}
}

func TestClientsFindsTheirOwnNameAlone(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		for _, name := range []string{"a*b", "a?b", "a[x]b", "axb", `a\b`} {
			for i, id := range []string{"one", "two:three", "{four}"} {
				all := keys.Names(name, id)
				if i != 1 {
					r.Must(r.Redis.Set(t.Context(), all[keys.ClientValue], "1", 0).Err())
				}
				if i != 0 {
					r.Must(r.Redis.ZAdd(t.Context(), all[keys.ClientPermits], redis.Z{Member: "m"}).Err())
				}
			}
		}
		r.Must(r.Redis.Set(t.Context(), "{axb}:value:mine", "1", 0).Err())
		for _, name := range []string{"a*b", "a?b", "a[x]b", "axb", `a\b`} {
			want := []string{"one", "two:three", "{four}"}
			if name == "axb" {
				want = []string{"mine", "one", "two:three", "{four}"}
			}
			if ids, err := r.Limiter(name).Clients(t.Context()); !slices.Equal(ids, want) || err != nil {
				t.Errorf("the clients of %q are %q, %v", name, ids, err)
			}
		}
		if ids, err := r.Limiter("none").Clients(t.Context()); len(ids) != 0 || err != nil {
			t.Errorf("the clients without state are %q, %v", ids, err)
		}
	})
}

func TestClientsOnARing(t *testing.T) {
	c := rratelimiter.NewClient(rig.NewRing(t), rratelimiter.WithClientID("me"), rig.Patient)
	for i := range 20 {
		l := c.RateLimiter(
			fmt.Sprint("rl", i),
			rratelimiter.WithRate(rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 5,
				Interval: time.Minute}),
		)
		if _, err := l.TryAcquire(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		if ids, err := l.Clients(t.Context()); !slices.Equal(ids, []string{"me"}) || err != nil {
			t.Errorf("the clients of %s are %v, %v", l.Name(), ids, err)
		}
	}
}

func TestClientsOfAClusterThatHangs(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs:       []string{silent.Addr().String()},
		ReadTimeout: time.Minute,
	})
	defer rdb.Close()
	started := time.Now()
	_, err = rratelimiter.NewClient(rdb, rratelimiter.WithCallTimeout(50*time.Millisecond)).
		RateLimiter("rl").
		Clients(t.Context())
	if took := time.Since(started); err == nil || took > 10*time.Second { // the Redis client waits for a minute
		t.Errorf("the answer came after %v: %v", took, err)
	}
}
