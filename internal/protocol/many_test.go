package protocol

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/record"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// within returns v, or, if that is out of bounds, a number that is not.
func within(v, low, high int64) int64 {
	if v < low || v > high {
		return low + int64(uint64(v)%uint64(high-low+1))
	}
	return v
}

const (
	latest = 1 << 51  // µs since the epoch: up to here a double of ms is exact to the µs
	figure = 1e15 - 1 // longer numbers are none in a configuration
)

// FuzzAcquireMany runs acquiremany.lua itself: what it writes shows what it read. Three calls ask
// one limiter each, a fourth one asks two.
func FuzzAcquireMany(f *testing.F) {
	const singles, limiters = 3, 5
	client := redistest.Embedded(f).Client()
	ctx := context.Background()
	f.Add(int64(1_700_000_000_123_456), int64(1), int64(10), int64(60_000), byte(0))
	f.Add(int64(1_700_000_000_123_007), int64(7), int64(6), int64(150), byte(1))
	f.Add(int64(1_700_000_000_999_999), int64(math.MaxUint32), int64(1e15-1), int64(199), byte(2))
	f.Add(int64(1_700_000_000_000_000), int64(3), int64(3), int64(200), byte(7))
	f.Add(int64(1_700_000_000_000_000), int64(2), int64(1), int64(200), byte(16))
	f.Fuzz(func(t *testing.T, micros, size, permits, interval int64, bits byte) {
		now := within(micros, 1_000_000, latest)
		rate := Rate{Permits: within(permits, 1, figure-limiters), Interval: within(interval, 1, figure)}
		size = within(size, 1, min(rate.Permits+1, math.MaxUint32-limiters))
		format := record.Format(bits >> 1 & 3)
		identity := record.NewIdentity("client")
		var keys, args []any
		var encoders [limiters]Encoder
		var requests [singles]AcquireRequest
		missing := func(i int) bool { return i == 2 && bits&1 > 0 || i == 4 && bits&16 > 0 } // gets its configuration
		client.FlushAll(ctx)
		for i := range limiters {
			name := strconv.Itoa(i)
			keys = KeysOfMany(keys,
				[]any{name, name + ":value", name + ":value:me", name + ":permits", name + ":permits:me"})
			own := rate
			own.Permits += int64(i)
			if !missing(i) {
				client.HSet(ctx, name, "rate", own.Permits, "interval", own.Interval, "type", 0)
			}
			encoders[i].Init(Options{Own: own, Format: format}, identity, nil)
		}
		args = append(args, NowOfMany(now))
		for i := range requests {
			requests[i].Next(RecentIDs{})
			args = requests[i].ArgsOfMany(
				args, &encoders[i],
				BatchAsk{Groups: []Group{{Permits: Permits{First: size}, Count: 1}}, Check: bits&8 > 0}, now,
			)
		}
		ask := BatchAsk{Groups: []Group{{Permits: Permits{First: size, Rest: []int64{1}}, Count: 1}}}
		var joint AllowAll
		joint.Next(limiters-singles, &ask)
		for i := range joint.Parts {
			joint.Parts[i].Encoder, joint.Parts[i].Check = &encoders[singles+i], bits&8 > 0
		}
		args = joint.ArgsOfMany(args, now)
		all := append(append([]any{"eval", AcquireManyScript.Text, len(keys)}, keys...), args...)
		cmd := script.NewCommand(ctx, all)
		if err := client.Process(ctx, &cmd); err != nil {
			t.Fatal(err)
		}
		refusal := func(tooFew bool) error {
			if tooFew {
				return ErrNotNow
			}
			return nil
		}
		check := func(i int, m *argBuffer, n int64, refused error, g Member, err error) {
			t.Helper()
			name, own := strconv.Itoa(i), encoders[i].Own
			records := client.ZRangeWithScores(ctx, name+":permits", 0, -1).Val()
			if refused != nil {
				if !errors.Is(err, refused) || len(records) > 0 {
					t.Errorf("limiter %d: %v, %v", i, err, records)
				}
				return
			}
			free, at := own.Permits-n, encoders[i].Dated(now, own.Interval, false)
			reset := Micros(at - now + own.Interval*1000)
			want := Member{
				Now:        now,
				Origin:     record.NoOrigin,
				Rate:       own.Permits,
				Interval:   Millis(own.Interval),
				Free:       free,
				NextAfter:  reset,
				ResetAfter: reset, At: at,
			}
			if err != nil || g != want {
				t.Errorf("limiter %d: %+v, %v, want %+v", i, g, err, want)
			}
			if c := client.HGetAll(ctx, name).Val(); len(c) != 3 || c["rate"] != fmt.Sprint(own.Permits) ||
				c["interval"] != fmt.Sprint(own.Interval) || c["type"] != "0" {
				t.Errorf("limiter %d has the configuration %v", i, c)
			}
			if value := client.Get(ctx, name+":value").Val(); value != fmt.Sprint(free) {
				t.Errorf("limiter %d has %s free permits, want %d", i, value, free)
			}
			if len(records) != 1 || records[0].Member != string(m.bytes) ||
				math.Abs(records[0].Score*1000-float64(at)) > 0.5 {
				t.Errorf("limiter %d has %v, want %q at %d", i, records, m.bytes, at)
			}
		}
		for i := range requests {
			g, err := requests[i].ReplyOfMany(&encoders[i], new(script.Attempts), cmd.Val(), i)
			check(i, &requests[i].member, size, refusal(size > encoders[i].Own.Permits), g.First, err)
		}
		g, err := joint.ReplyOfMany(new(script.Attempts), cmd.Val(), singles)
		if err != nil {
			g.Members = Same(limiters-singles, Member{})
		}
		for i, n := range []int64{size, 1} {
			check(singles+i, &joint.Parts[i].member, n, refusal(size > encoders[singles].Own.Permits), *g.Of(i), err)
		}
	})
}

// TestSharedCommandWithATakenID: a record that exists has another owner. A call of which nothing is
// written yet then has no effect. A call that has written the record of its first limiter takes the
// next id.
func TestSharedCommandWithATakenID(t *testing.T) {
	client := redistest.Embedded(t).Client()
	ctx := t.Context()
	const now = 1_700_000_000_123_456
	for taken := range 3 { // limiter 0 is asked alone, 1 and 2 together
		client.FlushAll(ctx)
		var e Encoder
		e.Init(
			Options{Own: Rate{Permits: 10, Interval: 60_000}, Format: record.Redisson317}, record.NewIdentity("client"),
			nil,
		)
		var single AcquireRequest
		single.Next(RecentIDs{})
		ask := BatchAsk{Groups: []Group{{Permits: Permits{First: 1, Rest: []int64{2}}, Count: 1}}}
		var joint AllowAll
		joint.Next(2, &ask)
		joint.Parts[0].Encoder, joint.Parts[1].Encoder = &e, &e
		args := single.ArgsOfMany([]any{NowOfMany(now)}, &e,
			BatchAsk{Groups: []Group{{Permits: Permits{First: 3}, Count: 1}}}, now)
		args = joint.ArgsOfMany(args, now)
		var keys []any
		for i := range 3 {
			name := strconv.Itoa(i)
			keys = KeysOfMany(keys, []any{name, name + ":value", nil, name + ":permits", nil})
			client.HSet(ctx, name, "rate", 10, "interval", 60_000, "type", 0)
			if i == taken {
				member := string([][]byte{
					single.member.bytes,
					joint.Parts[0].member.bytes,
					joint.Parts[1].member.bytes,
				}[i])
				client.ZAdd(ctx, name+":permits", redis.Z{Score: now/1000 - 1, Member: member})
				client.Set(ctx, name+":value", 10-[]int{3, 1, 2}[i], 0)
			}
		}
		cmd := script.NewCommand(ctx,
			append(append([]any{"eval", AcquireManyScript.Text, len(keys)}, keys...), args...))
		if err := client.Process(ctx, &cmd); err != nil {
			t.Fatal(err)
		}
		_, alone := single.ReplyOfMany(&e, new(script.Attempts), cmd.Val(), 0)
		_, together := joint.ReplyOfMany(new(script.Attempts), cmd.Val(), 1)
		if (alone == nil) != (taken != 0) || (together == nil) != (taken != 1) {
			t.Errorf("taken of limiter %d: %v, %v", taken, alone, together)
		}
		var records []int64
		for i := range 3 {
			records = append(records, client.ZCard(ctx, strconv.Itoa(i)+":permits").Val())
		}
		if want := [][]int64{{1, 1, 1}, {1, 1, 0}, {1, 1, 2}}[taken]; !slices.Equal(records, want) {
			t.Errorf("taken of limiter %d: %v records, want %v", taken, records, want)
		}
	}
}

// TestSharedCommandTellsTheNextPermit: a grant that asks for it, and leaves at most half of the
// permits, learns when the next permit of its limiter returns.
func TestSharedCommandTellsTheNextPermit(t *testing.T) {
	client := redistest.Embedded(t).Client()
	ctx := t.Context()
	const now, minute = 1_700_000_000_000_000, time.Minute
	for _, next := range []bool{false, true} {
		client.FlushAll(ctx)
		var e Encoder
		e.Init(
			Options{Own: Rate{Permits: 10, Interval: minute.Milliseconds()}, Format: record.Redisson317},
			record.NewIdentity("client"), nil,
		)
		var single AcquireRequest
		single.Next(RecentIDs{})
		ask := BatchAsk{Groups: []Group{{Permits: Permits{First: 1}, Count: 1}}}
		var joint AllowAll
		joint.Next(1, &ask)
		joint.Parts[0].Encoder = &e
		args := single.ArgsOfMany([]any{NowOfMany(now)}, &e,
			BatchAsk{Groups: []Group{{Permits: Permits{First: 1}, Count: 1}}, Next: next},
			now)
		args = joint.ArgsOfMany(args, now)
		var keys []any
		for _, name := range []string{"0", "1"} {
			keys = KeysOfMany(keys, []any{name, name + ":value", nil, name + ":permits", nil})
			client.HSet(ctx, name, "rate", 10, "interval", minute.Milliseconds(), "type", 0)
			client.ZAdd(ctx, name+":permits", redis.Z{Score: now/1000 - 20_000, Member: "\x08earlier1\x07\x00\x00\x00"})
			client.Set(ctx, name+":value", 3, 0)
		}
		cmd := script.NewCommand(ctx,
			append(append([]any{"eval", AcquireManyScript.Text, len(keys)}, keys...), args...))
		if err := client.Process(ctx, &cmd); err != nil {
			t.Fatal(err)
		}
		want := map[bool]time.Duration{false: minute, true: minute - 20*time.Second}[next]
		if g, err := single.ReplyOfMany(&e, new(script.Attempts), cmd.Val(), 0); err != nil || g.First.Free != 2 ||
			g.First.NextAfter != want {
			t.Errorf("asked for: %v: %+v, %v, want %v", next, g, err, want)
		}
		if g, err := joint.ReplyOfMany(new(script.Attempts), cmd.Val(), 1); err != nil ||
			g.First.NextAfter != minute-20*time.Second {
			t.Errorf("AllowAll: %+v, %v", g, err) // it always asks
		}
	}
}

// TestPlain: what may share a command.
func TestPlain(t *testing.T) {
	one := BatchAsk{Groups: []Group{{Permits: Permits{First: 2}, Count: 3}}}
	for _, test := range []struct {
		what string
		o    Options
		ask  BatchAsk
		free int64
		want bool
	}{
		{"enough", Options{}, one, 6, true},
		{"too little", Options{}, one, 5, false},
		{"unknown", Options{}, one, -1, false},
		{
			"two groups",
			Options{},
			BatchAsk{
				Groups: []Group{
					{Permits: Permits{First: 2}, Count: 3},
					{Permits: Permits{First: math.MaxInt64}, Count: 1},
				},
			},
			6,
			false,
		},
		{
			"a check, with details", Options{Own: Rate{Permits: 1, Interval: 1}},
			BatchAsk{Groups: one.Groups, Check: true, Detail: true, Strict: 1}, 6, true,
		},
		{"nothing asked", Options{}, BatchAsk{}, 6, false},
		{
			"a group that keeps permits free",
			Options{},
			BatchAsk{Groups: []Group{{Permits: Permits{First: 1}}, {Permits: Permits{First: 1}, Count: 1}}},
			6,
			false,
		},
		{"up to", Options{}, BatchAsk{Groups: one.Groups, UpTo: true}, 6, false},
		{"a part of the queue", Options{}, BatchAsk{Groups: one.Groups, Partial: true}, 6, false},
		{"a rebuild", Options{}, BatchAsk{Groups: one.Groups, Rebuild: true}, 6, false},
		{"a lease", Options{}, BatchAsk{Groups: one.Groups, Lease: 1}, 6, false},
		{"a granularity", Options{Granularity: time.Second}, one, 6, false},
		{"records of requests", Options{RecordPerRequest: true}, one, 6, false},
		{"the server's time", Options{ServerTime: true}, one, 6, false},
		{"each client", Options{Own: Rate{Type: 1}}, one, 6, false},
		{"a keep-alive", Options{Own: Rate{Interval: 60_000, KeepAlive: 61_001}}, one, 6, true},
		{"a keep-alive that may be lengthened", Options{Own: Rate{Interval: 60_000, KeepAlive: 61_000}}, one, 6, false},
	} {
		if got := test.o.Plain(test.ask, test.free); got != test.want {
			t.Errorf("%s: %v", test.what, got)
		}
	}
}
