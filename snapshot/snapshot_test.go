package snapshot_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/limittest"
	"github.com/rratelimiter/rratelimiter/snapshot"
)

// patient is the call timeout of clients whose time no test judges: a busy machine can hold up a
// call.
var patient = rratelimiter.WithCallTimeout(10 * time.Second)

// used makes a limiter with live records and one client's own keys.
func used(t *testing.T, rdb *redis.Client, name string, r rratelimiter.Rate, clients ...string) {
	t.Helper()
	for _, id := range clients {
		l := rratelimiter.NewClient(rdb, patient, rratelimiter.WithClientID(id)).RateLimiter(name,
			rratelimiter.WithRate(r))
		for n := range int64(3) {
			if ok, err := l.TryAcquire(t.Context(), n+1); !ok || err != nil {
				t.Fatalf("no permits for %s: %v", id, err)
			}
		}
	}
}

func take(t *testing.T, rdb rratelimiter.Redis, name string, opts ...snapshot.TakeOption) *snapshot.Snapshot {
	t.Helper()
	s, err := snapshot.Take(t.Context(), rdb, name, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func restore(t *testing.T, s *snapshot.Snapshot, rdb rratelimiter.Redis, opts ...snapshot.RestoreOption) {
	t.Helper()
	if err := s.Restore(t.Context(), rdb, opts...); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// same compares two snapshots except for the time at which they were taken; TTLs may differ by a
// little.
func same(t *testing.T, got, want *snapshot.Snapshot) {
	t.Helper()
	got, want = copied(t, got), copied(t, want)
	got.TakenAt, got.HostTime, want.TakenAt, want.HostTime = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	a, b := ttls(got), ttls(want)
	for i := range min(len(a), len(b)) {
		if (*a[i] == 0) == (*b[i] == 0) && (*a[i]-*b[i]).Abs() < 10*time.Second {
			*a[i] = *b[i]
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the snapshots differ:\n%v\n%v", got, want)
	}
}

func ttls(s *snapshot.Snapshot) (all []*time.Duration) {
	if s.Config != nil {
		all = append(all, &s.Config.TTL)
	}
	states := []*snapshot.State{&s.Shared}
	for i := range s.Clients {
		states = append(states, &s.Clients[i].State)
	}
	for _, state := range states {
		if state.Value != nil {
			all = append(all, &state.Value.TTL)
		}
		if state.Permits != nil {
			all = append(all, &state.Permits.TTL)
		}
	}
	return all
}

// copied encodes and decodes a snapshot, which must change nothing.
func copied(t *testing.T, s *snapshot.Snapshot) *snapshot.Snapshot {
	t.Helper()
	data, err := s.Encode()
	must(t, err)
	c, err := snapshot.Decode(data)
	must(t, err)
	if !reflect.DeepEqual(c, s) {
		t.Errorf("decoded:\n%v\nencoded:\n%v", c, s)
	}
	return c
}

// dump reads all keys of a server with DUMP.
func dump(t *testing.T, rdb *redis.Client) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, key := range rdb.Keys(t.Context(), "*").Val() {
		kind := rdb.Type(t.Context(), key).Val()
		switch kind {
		case "hash":
			all[key] = fmt.Sprintf("%q", rdb.Do(t.Context(), "hgetall", key).Val())
		case "string":
			all[key] = fmt.Sprintf("%q", rdb.Get(t.Context(), key).Val())
		case "zset":
			all[key] = fmt.Sprintf("%q", rdb.Do(t.Context(), "zrange", key, 0, -1, "withscores").Val())
		default:
			all[key] = kind
		}
		all[key] += fmt.Sprint(rdb.PTTL(t.Context(), key).Val().Round(time.Minute))
	}
	return all
}

func renamed(all map[string]string, from, to string) map[string]string {
	m := map[string]string{}
	for key, value := range all {
		m[strings.Replace(key, from, to, 1)] = value
	}
	return m
}

func TestRestoredIsTheSame(t *testing.T) {
	each(t, func(t *testing.T, rdb *redis.Client) {
		ctx := t.Context()
		used(t, rdb, "whole", rratelimiter.PerHour(10), "A")
		used(t, rdb, "own", rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 10, Interval: time.Hour}, "B", "A")
		used(t, rdb, "mortal", rratelimiter.Rate{Permits: 10, Interval: time.Hour, KeepAlive: 3 * time.Hour}, "A")
		must(t, rdb.HSet(ctx, "fresh", "rate", "5", "interval", "1000", "type", "0").Err())
		must(t, rdb.HSet(ctx, "odd{x", "rate", "nan", "type", "\xff\x00", "", "").Err())
		must(t, rdb.Set(ctx, "odd{x:value", "", time.Hour).Err())
		must(t, rdb.ZAdd(ctx, "odd{x:permits",
			redis.Z{Score: math.Inf(-1), Member: ""}, redis.Z{Score: 0.1 + 0.2, Member: "\x00\xff\xfe"},
			redis.Z{Score: 1.7e308, Member: "z"}, redis.Z{Score: math.Inf(1), Member: "\r\n"},
			redis.Z{Score: 9007199254740993, Member: "\x00\x01"},
			redis.Z{Score: -1.5, Member: strings.Repeat("x", 300)}).Err())
		must(t, rdb.ZAdd(ctx, "{orphan}:permits:*[a]", redis.Z{Score: 1, Member: "m"}).Err())
		must(t, rdb.Set(ctx, "{orphan}:value:*[b]", "7", 0).Err())
		must(t, rdb.Set(ctx, "", "not a limiter's", 0).Err())
		before := dump(t, rdb)
		for _, name := range []string{"whole", "own", "mortal", "fresh", "odd{x", "orphan"} {
			s := take(t, rdb, name, snapshot.WithNote("made by hand"))
			if !s.OneStep || s.Name != name || s.Note != "made by hand" {
				t.Errorf("%q: %v", name, s)
			}
			s = copied(t, s)
			restore(t, s, rdb, snapshot.Replace())
			again := take(t, rdb, name, snapshot.WithNote("made by hand"))
			same(t, again, s)
		}
		if after := dump(t, rdb); !reflect.DeepEqual(after, before) {
			t.Errorf("after:\n%q\nbefore:\n%q", after, before)
		}
	})
}

func TestRestoredUnderAnotherName(t *testing.T) {
	each(t, func(t *testing.T, rdb *redis.Client) {
		used(t, rdb, "old", rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 10, Interval: time.Hour}, "A", "B")
		want := renamed(dump(t, rdb), "old", "new")
		s := take(t, rdb, "old")
		restore(t, s, rdb, snapshot.As("new"))
		got := dump(t, rdb)
		for key := range renamed(want, "new", "old") {
			if got[key] == "" {
				t.Errorf("%q is gone", key)
			}
			delete(got, key)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got:\n%q\nwant:\n%q", got, want)
		}
		l := rratelimiter.NewClient(rdb, patient, rratelimiter.WithClientID("A")).RateLimiter("new")
		if state, err := l.State(t.Context()); err != nil || !state.Consistent || state.Used != 6 ||
			state.Available != 4 {
			t.Errorf("%+v, %v", state, err)
		}
	})
}

func TestRestoreTakesWhatExistsOnlyIfTold(t *testing.T) {
	each(t, func(t *testing.T, rdb *redis.Client) {
		used(t, rdb, "x", rratelimiter.PerHour(10), "A")
		s := take(t, rdb, "x")
		for key, write := range map[string][]any{
			"y": {"hset", "y", "here", "1"}, "{y}:value": {"set", "{y}:value", "here"},
			"{y}:permits":       {"zadd", "{y}:permits", 1, "here"},
			"{y}:value:other":   {"set", "{y}:value:other", "here"},
			"{y}:permits:other": {"zadd", "{y}:permits:other", 1, "here"},
		} {
			must(t, rdb.FlushDB(t.Context()).Err())
			must(t, rdb.Do(t.Context(), write...).Err())
			before := dump(t, rdb)
			if err := s.Restore(t.Context(), rdb, snapshot.As("y")); !errors.Is(err, snapshot.ErrExists) ||
				!strings.Contains(err.Error(), fmt.Sprintf("%q", key)) {
				t.Errorf("%q: %v", key, err)
			}
			if after := dump(t, rdb); !reflect.DeepEqual(after, before) {
				t.Errorf("%q: it left %q", key, after)
			}
			restore(t, s, rdb, snapshot.As("y"), snapshot.Replace())
			got := take(t, rdb, "y")
			got.Name = "x"
			same(t, got, s)
		}
	})
}

func TestRestoreReplacesNoKeyOfAnotherProgram(t *testing.T) {
	each(t, func(t *testing.T, rdb *redis.Client) {
		used(t, rdb, "x", rratelimiter.PerHour(10), "A")
		s := take(t, rdb, "x")
		for _, key := range []string{"y", "{y}:value", "{y}:permits", "{y}:value:other", "{y}:permits:other"} {
			must(t, rdb.FlushDB(t.Context()).Err())
			must(t, rdb.RPush(t.Context(), key, "mine").Err())
			before := dump(t, rdb)
			for _, options := range [][]snapshot.RestoreOption{
				{snapshot.As("y")},
				{snapshot.As("y"), snapshot.Replace()},
			} {
				if err := s.Restore(t.Context(), rdb, options...); !errors.Is(err, snapshot.ErrWrongType) ||
					!strings.Contains(err.Error(), fmt.Sprintf("%q", key)) {
					t.Errorf("%q: %v", key, err)
				}
				if after := dump(t, rdb); !reflect.DeepEqual(after, before) {
					t.Errorf("%q: it left %q", key, after)
				}
			}
		}
	})
}

func TestShiftMovesGrants(t *testing.T) {
	each(t, func(t *testing.T, rdb *redis.Client) {
		used(t, rdb, "x", rratelimiter.PerHour(10), "A")
		s := take(t, rdb, "x")
		for _, c := range []struct {
			option snapshot.RestoreOption
			by     float64
		}{
			{snapshot.Shift(-90 * time.Second), -90_000},
			{snapshot.Shift(1999 * time.Microsecond), 1},
			{snapshot.At(s.TakenAt.Add(48 * time.Hour)), 48 * 3600_000},
		} {
			restore(t, s, rdb, c.option, snapshot.Replace())
			for i, r := range take(t, rdb, "x").Shared.Permits.Records {
				if want := s.Shared.Permits.Records[i]; r.Score != want.Score+c.by ||
					!bytes.Equal(r.Member, want.Member) {
					t.Errorf("%v became %v", want, r)
				}
			}
		}
		// Grants of an old snapshot continue with their remaining time.
		restore(t, s, rdb, snapshot.Shift(-3*time.Hour), snapshot.Replace())
		old := take(t, rdb, "x")
		old.TakenAt = old.TakenAt.Add(-3 * time.Hour)
		l := rratelimiter.NewClient(rdb, patient).RateLimiter("x", rratelimiter.WithServerTime())
		restore(t, old, rdb, snapshot.Replace())
		if state, err := l.State(t.Context()); err != nil || state.Used != 0 {
			t.Errorf("unmoved: %+v, %v", state, err)
		}
		restore(t, old, rdb, snapshot.At(rdb.Time(t.Context()).Val()), snapshot.Replace())
		if state, err := l.State(t.Context()); err != nil || state.Used != 6 || !state.Consistent {
			t.Errorf("moved: %+v, %v", state, err)
		}
	})
}

func TestLifeTimesGoOn(t *testing.T) {
	s := limittest.New(t)
	l := s.Client().RateLimiter("x", rratelimiter.WithRate(rratelimiter.PerHour(10)))
	if ok, err := l.TryAcquire(t.Context(), 1); !ok || err != nil {
		t.Fatal(err)
	}
	for i, key := range []string{"x", "{x}:value", "{x}:permits"} {
		must(t, s.Redis().PExpire(t.Context(), key, time.Duration(i+1)*time.Minute).Err())
	}
	s.Advance(10 * time.Second)
	taken := take(t, s.Redis(), "x")
	s.Advance(time.Hour)
	restore(t, taken, s.Redis())
	for i, key := range []string{"x", "{x}:value", "{x}:permits"} {
		if ttl := s.Redis().PTTL(t.Context(), key).Val(); ttl != time.Duration(i+1)*time.Minute-10*time.Second {
			t.Errorf("%q lives for %v", key, ttl)
		}
	}
	if at := taken.TakenAt; !at.Equal(limittest.Epoch.Add(10 * time.Second)) {
		t.Errorf("taken at %v", at)
	}
	if d := time.Since(taken.HostTime); d < 0 || d > time.Minute {
		t.Errorf("taken %v ago by the host's clock", d)
	}
}

func TestClientsGiven(t *testing.T) {
	each(t, func(t *testing.T, rdb *redis.Client) {
		used(t, rdb, "x", rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 10, Interval: time.Hour}, "A", "B",
			"C")
		for _, c := range []struct {
			opts []snapshot.TakeOption
			want []string
		}{
			{nil, []string{"A", "B", "C"}},
			{[]snapshot.TakeOption{snapshot.WithClients("C", "unknown", "A", "C")}, []string{"A", "C"}},
			{[]snapshot.TakeOption{snapshot.WithClients()}, nil},
		} {
			var got []string
			for _, client := range take(t, rdb, "x", c.opts...).Clients {
				got = append(got, client.ID)
				if client.Value == nil || client.Permits == nil || len(client.Permits.Records) != 3 {
					t.Errorf("%+v", client)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%q, not %q", got, c.want)
			}
		}
	})
}

func TestWrongTypes(t *testing.T) {
	each(t, func(t *testing.T, rdb *redis.Client) {
		for _, key := range []string{"x", "{x}:value", "{x}:permits", "{x}:value:A", "{x}:permits:A"} {
			must(t, rdb.FlushDB(t.Context()).Err())
			must(t, rdb.RPush(t.Context(), key, "here").Err())
			_, err := snapshot.Take(t.Context(), rdb, "x")
			if !errors.Is(err, snapshot.ErrWrongType) ||
				!strings.Contains(err.Error(), fmt.Sprintf("%q is a list", key)) {
				t.Errorf("%q: %v", key, err)
			}
		}
	})
}

func TestNoLimiter(t *testing.T) {
	each(t, func(t *testing.T, rdb *redis.Client) {
		used(t, rdb, "another", rratelimiter.PerHour(10), "A")
		for _, opts := range [][]snapshot.TakeOption{nil, {snapshot.WithClients("A")}} {
			if s, err := snapshot.Take(t.Context(), rdb, "x", opts...); s != nil ||
				!errors.Is(err, snapshot.ErrNotFound) {
				t.Errorf("%v, %v", s, err)
			}
		}
	})
}

// A large limiter is read in parts, which OneStep shows; it is still restored in one step.
func TestLargeLimiter(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	each(t, func(t *testing.T, rdb *redis.Client) {
		ctx := t.Context()
		must(t, rdb.HSet(ctx, "x", "rate", "100000", "interval", "3600000", "type", "0").Err())
		must(t, rdb.Set(ctx, "{x}:value", "77000", 0).Err())
		var want []snapshot.Record
		var batch []redis.Z
		for i := range 23_000 {
			member := fmt.Sprintf("\x08%08d\x01\x00\x00\x00", i*7919%23_000)
			want = append(want, snapshot.Record{Member: []byte(member), Score: float64(1e12 + i/3)})
			batch = append(batch, redis.Z{Score: want[i].Score, Member: member})
			if len(batch) == 1000 {
				must(t, rdb.ZAdd(ctx, "{x}:permits", batch...).Err())
				batch = nil
			}
		}
		slices.SortStableFunc(want, func(a, b snapshot.Record) int {
			if a.Score != b.Score {
				return int(a.Score - b.Score)
			}
			return bytes.Compare(a.Member, b.Member)
		})
		s := take(t, rdb, "x")
		if s.OneStep || !reflect.DeepEqual(s.Shared.Permits.Records, want) {
			t.Fatalf("%d records, one step %v", len(s.Shared.Permits.Records), s.OneStep)
		}
		copied(t, s)
		restore(t, s, rdb, snapshot.As("y"))
		again := take(t, rdb, "y")
		again.Name = "x"
		same(t, again, s)
		if left := rdb.Keys(ctx, "*restore*").Val(); len(left) > 0 {
			t.Errorf("left over: %q", left)
		}

		must(t, rdb.ZRemRangeByRank(ctx, "{x}:permits", 0, 12_999).Err())
		s = take(t, rdb, "x")
		if !s.OneStep || !reflect.DeepEqual(s.Shared.Permits.Records, want[13_000:]) {
			t.Errorf("%d records, one step %v", len(s.Shared.Permits.Records), s.OneStep)
		}
	})
}

func TestManyClients(t *testing.T) {
	each(t, func(t *testing.T, rdb *redis.Client) {
		pipe := rdb.Pipeline()
		pipe.HSet(t.Context(), "x", "rate", "5", "interval", "3600000", "type", "1")
		for i := range 300 {
			pipe.Set(t.Context(), fmt.Sprintf("{x}:value:%04d", i), fmt.Sprint(i), 0)
		}
		_, err := pipe.Exec(t.Context())
		must(t, err)
		s := take(t, rdb, "x")
		if s.OneStep || len(s.Clients) != 300 {
			t.Fatalf("%d clients, one step %v", len(s.Clients), s.OneStep)
		}
		for i, c := range s.Clients {
			if c.ID != fmt.Sprintf("%04d", i) || c.Value.Text != fmt.Sprint(i) {
				t.Fatalf("client %d is %+v", i, c)
			}
		}
		restore(t, s, rdb, snapshot.Replace())
		same(t, take(t, rdb, "x"), s)
	})
}

// lossy is a client whose commands of one kind fail, before or after the server got them.
type lossy struct {
	*redis.Client
	fails func(cmd redis.Cmder) bool
}

var errLost = errors.New("lost")

func (l lossy) Process(ctx context.Context, cmd redis.Cmder) error {
	if l.fails(cmd) {
		return errLost
	}
	return l.Client.Process(ctx, cmd)
}

func TestFailedRestoreLeavesNothing(t *testing.T) {
	each(t, func(t *testing.T, rdb *redis.Client) {
		used(t, rdb, "x", rratelimiter.PerHour(10), "A")
		s := take(t, rdb, "x")
		before := dump(t, rdb)
		broken := lossy{rdb, func(cmd redis.Cmder) bool { return strings.HasPrefix(cmd.Name(), "eval") }}
		if err := s.Restore(t.Context(), broken, snapshot.Replace()); !errors.Is(err, errLost) {
			t.Errorf("%v", err)
		}
		evicted := lossy{rdb, func(cmd redis.Cmder) bool {
			if strings.HasPrefix(cmd.Name(), "eval") {
				for _, key := range rdb.Keys(t.Context(), "*restore*").Val()[:1] {
					rdb.Del(t.Context(), key)
				}
			}
			return false
		}}
		if err := s.Restore(t.Context(), evicted, snapshot.Replace()); err == nil ||
			!strings.Contains(err.Error(), "are gone") {
			t.Errorf("%v", err)
		}
		if after := dump(t, rdb); !reflect.DeepEqual(after, before) {
			t.Errorf("after:\n%q\nbefore:\n%q", after, before)
		}
	})
}

// Prepared keys must not stay for ever if the process dies.
func TestPreparedKeysExpire(t *testing.T) {
	each(t, func(t *testing.T, rdb *redis.Client) {
		used(t, rdb, "x", rratelimiter.PerHour(10), "A")
		died := lossy{
			rdb, func(cmd redis.Cmder) bool { return strings.HasPrefix(cmd.Name(), "eval") || cmd.Name() == "unlink" },
		}
		if err := take(t, rdb, "x").Restore(t.Context(), died, snapshot.Replace()); !errors.Is(err, errLost) {
			t.Errorf("%v", err)
		}
		prepared := rdb.Keys(t.Context(), "*restore*").Val()
		if len(prepared) != 3 {
			t.Errorf("prepared: %q", prepared)
		}
		for _, key := range prepared {
			if ttl := rdb.PTTL(t.Context(), key).Val(); ttl <= 0 {
				t.Errorf("%q lives for %v", key, ttl)
			}
		}
	})
}

func TestServerIsDown(t *testing.T) {
	rdb := redis.NewClient(
		&redis.Options{
			MaxRetries:    -1,
			DialerRetries: 1,
			Dialer: func(context.Context, string, string) (net.Conn, error) {
				return nil, errLost
			},
		},
	)
	defer rdb.Close()
	for _, opts := range [][]snapshot.TakeOption{nil, {snapshot.WithClients()}} {
		if _, err := snapshot.Take(t.Context(), rdb, "x", opts...); !errors.Is(err, errLost) ||
			!strings.Contains(err.Error(), `"x"`) {
			t.Errorf("%v", err)
		}
	}
	s := &snapshot.Snapshot{Name: "x", Shared: snapshot.State{Value: &snapshot.Value{Text: "1"}}}
	if err := s.Restore(t.Context(), rdb); !errors.Is(err, errLost) || !strings.Contains(err.Error(), `"x"`) {
		t.Errorf("%v", err)
	}
}

// On a cluster Take finds the server that holds the limiter; a name whose keys are in different
// slots is refused.
func TestOnCluster(t *testing.T) {
	rdb := redistest.Cluster(t, 3).ClusterClient()
	for _, name := range []string{"x", "y", "a{tag}b"} {
		for _, id := range []string{"A", "B"} {
			l := rratelimiter.NewClient(rdb, patient, rratelimiter.WithClientID(id)).RateLimiter(name,
				rratelimiter.WithRate(rratelimiter.Rate{
					Type:     rratelimiter.PerClient,
					Permits:  10,
					Interval: time.Hour,
				}))
			if ok, err := l.TryAcquire(t.Context(), 1); !ok || err != nil {
				t.Fatal(err)
			}
		}
		s := take(t, rdb, name)
		if len(s.Clients) != 2 {
			t.Errorf("%q: %v", name, s)
		}
		restore(t, s, rdb, snapshot.Replace())
		same(t, take(t, rdb, name), s)
		restore(t, s, rdb, snapshot.As(name+"2"))
		again := take(t, rdb, name+"2")
		again.Name = name
		same(t, again, s)
	}
	for _, opts := range [][]snapshot.TakeOption{nil, {snapshot.WithClients()}} {
		if _, err := snapshot.Take(t.Context(), rdb, "a{b", opts...); !errors.Is(err, rratelimiter.ErrCrossSlotName) {
			t.Errorf("%v", err)
		}
	}
	if err := take(t, rdb, "x").Restore(t.Context(), rdb, snapshot.As("a{b")); !errors.Is(
		err, rratelimiter.ErrCrossSlotName,
	) {
		t.Errorf("%v", err)
	}
}

// addRecords writes a configuration and a set of more records than are read in one step.
func addRecords(t *testing.T, rdb *redis.Client, config, permits, prefix string) {
	t.Helper()
	must(t, rdb.HSet(t.Context(), config, "rate", "100000", "interval", "3600000", "type", "0").Err())
	records := make([]redis.Z, 12_000)
	for i := range records {
		records[i] = redis.Z{Score: float64(i), Member: fmt.Sprint(prefix, i)}
	}
	must(t, rdb.ZAdd(t.Context(), permits, records...).Err())
}

// A cursor of ZSCAN is valid only on the server that returned it. The replica here has other
// records than its master, so that a part read from it shows.
func TestLargeLimiterIsReadFromOneServer(t *testing.T) {
	pairs(t, func(t *testing.T, master, replica *redistest.Server) {
		addRecords(t, master.Client(), "x", "{x}:permits", "m")
		addRecords(t, replica.Client(), "x", "{x}:permits", "r")
		nodes := []redis.ClusterNode{{Addr: master.Addr}, {Addr: replica.Addr}}
		rdb := redis.NewClusterClient(&redis.ClusterOptions{
			RouteRandomly: true,
			ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
				return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: nodes}}, nil
			},
		})
		defer rdb.Close()
		s := take(t, rdb, "x", snapshot.WithClients())
		others := slices.ContainsFunc(s.Shared.Permits.Records, func(r snapshot.Record) bool {
			return r.Member[0] == 'r'
		})
		if n := len(s.Shared.Permits.Records); n != 12_000 || others {
			t.Errorf("%d records, some of them the replica's: %v", n, others)
		}
	})
}

// The keys of a name without a complete hash tag are on the shard of the configuration key, where
// scripts run.
func TestLargeLimiterOnARing(t *testing.T) {
	pairs(t, func(t *testing.T, one, two *redistest.Server) {
		ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": one.Addr, "two": two.Addr}})
		defer ring.Close()
		for _, name := range []string{"a{c", "a{d", "a{e"} {
			shard, err := ring.GetShardClientForKey(name)
			must(t, err)
			addRecords(t, shard, name, name+":permits", "m")
			if s := take(t, ring, name); s.Shared.Permits == nil || len(s.Shared.Permits.Records) != 12_000 {
				t.Errorf("%q: %v", name, s)
			}
		}
	})
}

// Over a Ring, scripts run on the shard of the configuration key, also where the other keys have
// other hash tags.
func TestRestoreOnARing(t *testing.T) {
	pairs(t, func(t *testing.T, one, two *redistest.Server) {
		ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": one.Addr, "two": two.Addr}})
		defer ring.Close()
		used(t, one.Client(), "x", rratelimiter.PerHour(10), "A")
		s := take(t, one.Client(), "x")
		one.Client().FlushDB(t.Context())
		for _, name := range []string{"whole", "a{c", "a{d", "a{e"} {
			if err := s.Restore(t.Context(), ring, snapshot.As(name)); err != nil {
				t.Error(err)
				continue
			}
			again := take(t, ring, name)
			again.Name = "x"
			same(t, again, s)
			if err := s.Restore(t.Context(), ring, snapshot.As(name)); !errors.Is(err, snapshot.ErrExists) {
				t.Errorf("%q: %v", name, err)
			}
		}
		for _, server := range []*redistest.Server{one, two} {
			if left := server.Client().Keys(t.Context(), "*restore*").Val(); len(left) > 0 {
				t.Errorf("left over: %q", left)
			}
		}
	})
}
