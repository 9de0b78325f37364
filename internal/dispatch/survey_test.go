package dispatch_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/dispatch"
	"github.com/rratelimiter/rratelimiter/internal/limiter"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// A rig makes limiters with a clock that the test moves, and writes their keys.
type rig struct {
	t   *testing.T
	ctx context.Context
	rdb *redis.Client
	c   *dispatch.Client
	ms  atomic.Int64 // the time of its clock
}

func newRig(t *testing.T, s *redistest.Server) *rig {
	r := &rig{t: t, ctx: t.Context(), rdb: s.Client()}
	r.ms.Store(time.Now().UnixMilli())
	clock := func() time.Time { return time.UnixMilli(r.ms.Load()) }
	r.c = dispatch.New(limiter.Config{Redis: r.rdb, ID: "me", Clock: clock, CallTimeout: 20 * time.Second})
	return r
}

func (r *rig) limiter(name string) *dispatch.Limiter {
	l := &dispatch.Limiter{}
	l.Init(r.c, name, limiter.Settings{}, nil)
	return l
}

// must stops the test if a command that prepares or inspects the state fails.
func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// setRate sets a rate of ten permits a minute for each client.
func (r *rig) setRate(l *dispatch.Limiter) {
	r.t.Helper()
	_, err := l.SetRate(r.ctx, protocol.SetRate{Rate: protocol.Rate{Type: 1, Permits: 10, Interval: 60_000}})
	r.must(err)
}

func TestSurveyReadsWhatIsStored(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		l := r.limiter("rl")
		none, err := l.Survey(r.ctx, 0, 10, false)
		r.must(err)
		if len(none.Fields) > 0 || none.Records > 0 || none.Keys[0] != (protocol.StoredKey{Name: "rl", Type: "none"}) {
			t.Errorf("of nothing it reads %+v", none)
		}
		r.must(r.rdb.HSet(r.ctx, "rl", "rate", "ten", "odd", "\x00\xff").Err())
		r.must(r.rdb.Set(r.ctx, "{rl}:value", "much", 0).Err())
		r.must(r.rdb.ZAdd(r.ctx, "{rl}:permits",
			redis.Z{Score: 1, Member: "a"}, redis.Z{Score: 1, Member: "b"},
			redis.Z{Score: 2, Member: "\x00\xff"}).Err())
		got, err := l.Survey(r.ctx, 0, 2, false)
		r.must(err)
		if got.Fields["rate"] != "ten" || got.Fields["odd"] != "\x00\xff" || got.Value != "much" || got.Own ||
			got.Records != 3 ||
			!slices.Equal(got.Page, []protocol.StoredRecord{{Member: "\x00\xff", Score: 2}, {Member: "b", Score: 1}}) ||
			time.Since(got.At).Abs() > time.Minute ||
			got.Keys[2] != (protocol.StoredKey{Name: "{rl}:permits", Type: "zset"}) {
			t.Errorf("it reads %+v", got)
		}
		rest, err := l.Survey(r.ctx, 2, 2, false)
		if err != nil || len(rest.Page) != 1 || rest.Page[0] != (protocol.StoredRecord{Member: "a", Score: 1}) {
			t.Errorf("the second page is %+v, %v", rest, err)
		}
		own, err := l.Survey(r.ctx, 0, 2, true)
		if err != nil || !own.Own || own.Records != 0 || own.Keys[1].Name != "{rl}:value:me" {
			t.Errorf("the client's pair is %+v, %v", own, err)
		}
		r.must(r.rdb.RPush(r.ctx, "{wrong}:value", "x").Err())
		r.must(r.rdb.PExpire(r.ctx, "{wrong}:value", time.Hour).Err())
		wrong, err := r.limiter("wrong").Survey(r.ctx, 0, 2, false)
		if err != nil || wrong.Keys[1].Type != "list" || wrong.Keys[1].TTL < 59*time.Minute {
			t.Errorf("of a wrong type it reads %+v, %v", wrong, err)
		}
	})
}

func TestCollectRemovesOnlyUnusedKeys(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		l := r.limiter("rl")
		r.setRate(l)
		pair := []string{"{rl}:value:me", "{rl}:permits:me"}
		collect := func(dry bool, want protocol.Collected) {
			t.Helper()
			if got, err := l.Collect(r.ctx, time.Hour, dry); err != nil || got != want {
				t.Errorf("%v, %v; want %v", got, err, want)
			}
		}
		collect(false, protocol.Gone)
		_, _, err := l.Serve(r.ctx, &dispatch.Ask{N: 3})
		r.must(err)
		r.ms.Add(time.Hour.Milliseconds() + time.Minute.Milliseconds() - 1)
		collect(false, protocol.InUse)
		r.ms.Add(1)
		collect(false, protocol.Temporary)
		for _, key := range pair {
			r.must(r.rdb.Persist(r.ctx, key).Err())
		}
		collect(true, protocol.Removed)
		if r.rdb.Exists(r.ctx, pair...).Val() != 2 {
			t.Error("a dry run has removed something")
		}
		collect(false, protocol.Removed)
		if r.rdb.Exists(r.ctx, pair...).Val() != 0 || r.rdb.Exists(r.ctx, "rl").Val() != 1 {
			t.Error("the wrong keys were removed")
		}
	})
}

func TestCollectLeavesKeysOfAnotherProgram(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, key := range []string{"{rl}:value:me", "{rl}:permits:me"} {
			r := newRig(t, s)
			r.must(r.rdb.FlushDB(r.ctx).Err())
			l := r.limiter("rl")
			r.setRate(l)
			r.must(r.rdb.RPush(r.ctx, key, "mine").Err())
			for _, dry := range []bool{true, false} {
				if got, err := l.Collect(r.ctx, time.Hour, dry); err != nil || got != protocol.Foreign {
					t.Errorf("with a list in %s: %v, %v", key, got, err)
				}
			}
			stored := r.rdb.Keys(r.ctx, "*").Val()
			slices.Sort(stored)
			if !slices.Equal(stored, []string{"rl", key}) || r.rdb.HLen(r.ctx, "rl").Val() != 3 ||
				!slices.Equal(r.rdb.LRange(r.ctx, key, 0, -1).Val(), []string{"mine"}) ||
				r.rdb.PTTL(r.ctx, key).Val() > 0 || r.rdb.PTTL(r.ctx, "rl").Val() > 0 {
				t.Errorf("collect with a list in %s leaves %q", key, stored)
			}
		}
		r := newRig(t, s)
		r.must(r.rdb.FlushDB(r.ctx).Err())
		l := r.limiter("rl")
		for value, want := range map[string]protocol.Collected{
			"12.50": protocol.InUse, "": protocol.InUse, "007": protocol.InUse, "1e3": protocol.InUse,
			"12345678901234567": protocol.InUse,
			"7":                 protocol.Removed, "0": protocol.Removed, "-3": protocol.Removed,
			"1000000000000000": protocol.Removed,
		} {
			r.must(r.rdb.Set(r.ctx, "{rl}:value:me", value, 0).Err())
			for _, dry := range []bool{true, false} {
				if got, err := l.Collect(r.ctx, time.Hour, dry); err != nil || got != want {
					t.Errorf("with the value %q: %v, %v; want %v", value, got, err, want)
				}
			}
		}
	})
}
