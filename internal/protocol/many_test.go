package protocol

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/record"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// FuzzAcquireMany runs acquiremany.lua itself: what it writes shows what it read.
func FuzzAcquireMany(f *testing.F) {
	const limiters = 3
	client := redistest.Embedded(f).Client()
	ctx := context.Background()
	f.Add(int64(1_700_000_000_123_456), int64(1), int64(10), int64(60_000), byte(0))
	f.Add(int64(1_700_000_000_123_007), int64(7), int64(6), int64(150), byte(1))
	f.Add(int64(1_700_000_000_999_999), int64(math.MaxUint32), int64(1e15-1), int64(199), byte(2))
	f.Add(int64(1_700_000_000_000_000), int64(3), int64(3), int64(200), byte(7))
	f.Fuzz(func(t *testing.T, micros, size, permits, interval int64, bits byte) {
		now := within(micros, 1_000_000, latest)
		rate := Rate{Permits: within(permits, 1, figure-limiters), Interval: within(interval, 1, figure)}
		size = within(size, 1, min(rate.Permits+1, math.MaxUint32-limiters))
		format := record.Format(bits >> 1 & 3)
		identity := record.NewIdentity("client")
		var keys []string
		var encoders [limiters]Encoder
		var requests [limiters]AcquireRequest
		args := []any{NowOfMany(now)}
		client.FlushAll(ctx)
		for i := range limiters {
			names := []string{"", ":value", ":value:me", ":permits", ":permits:me"}
			for _, name := range names {
				keys = append(keys, strconv.Itoa(i)+name)
			}
			own := rate
			own.Permits += int64(i)
			if i < 2 || bits&1 == 0 { // else the last one is not initialized
				client.HSet(ctx, strconv.Itoa(i), "rate", own.Permits, "interval", own.Interval, "type", 0)
			}
			e, r := &encoders[i], &requests[i]
			e.Init(Options{Own: own, Format: format}, identity, nil)
			r.Next(RecentIDs{})
			args = r.ArgsOfMany(args, e, Ask{Groups: []Group{{size, 1}}, Check: bits&8 > 0}, now)
		}
		reply, err := client.Eval(ctx, AcquireManyScript.Text, keys, args...).Int64Slice()
		if err != nil {
			t.Fatal(err)
		}
		for i := range limiters {
			e, r := &encoders[i], &requests[i]
			g, err := r.ReplyOfMany(e, new(script.Attempts), reply, i)
			records := client.ZRangeWithScores(ctx, keys[5*i+3], 0, -1).Val()
			if size > e.Own.Permits || i == 2 && bits&1 > 0 {
				if !errors.Is(err, ErrNotPlain) || len(records) > 0 {
					t.Errorf("limiter %d: %v, %v", i, err, records)
				}
				continue
			}
			free := e.Own.Permits - size
			if err != nil || g.Now != now || g.Rate != e.Own.Permits || g.Interval != Millis(e.Own.Interval) || g.Free != free {
				t.Errorf("limiter %d: %+v, %v", i, g, err)
			}
			if value := client.Get(ctx, keys[5*i+1]).Val(); value != fmt.Sprint(free) {
				t.Errorf("limiter %d has %s free permits, want %d", i, value, free)
			}
			at := e.Dated(now, e.Own.Interval, false)
			if len(records) != 1 || records[0].Member != string(r.member.bytes) || math.Abs(records[0].Score*1000-float64(at)) > 0.5 || g.At != at {
				t.Errorf("limiter %d has %v, want %q at %d", i, records, r.member.bytes, at)
			}
		}
	})
}

// TestPlain: what may share a command.
func TestPlain(t *testing.T) {
	one := Ask{Groups: []Group{{2, 3}}}
	for _, test := range []struct {
		what string
		o    Options
		ask  Ask
		free int64
		want bool
	}{
		{"enough", Options{}, one, 6, true},
		{"too little", Options{}, one, 5, false},
		{"unknown", Options{}, one, -1, false},
		{"two groups", Options{}, Ask{Groups: []Group{{2, 3}, {math.MaxInt64, 1}}}, 6, false},
		{"a check, with details", Options{Own: Rate{Permits: 1, Interval: 1}}, Ask{Groups: one.Groups, Check: true, Detail: true, Strict: 1}, 6, true},
		{"nothing asked", Options{}, Ask{}, 6, false},
		{"up to", Options{}, Ask{Groups: one.Groups, UpTo: true}, 6, false},
		{"a part of the queue", Options{}, Ask{Groups: one.Groups, Partial: true}, 6, false},
		{"a rebuild", Options{}, Ask{Groups: one.Groups, Rebuild: true}, 6, false},
		{"a lease", Options{}, Ask{Groups: one.Groups, Lease: 1}, 6, false},
		{"a granularity", Options{Granularity: time.Second}, one, 6, false},
		{"records of requests", Options{RecordPerRequest: true}, one, 6, false},
		{"the server's time", Options{ServerTime: true}, one, 6, false},
		{"each client", Options{Own: Rate{Type: 1}}, one, 6, false},
		{"a keep-alive", Options{Own: Rate{KeepAlive: 1}}, one, 6, false},
	} {
		if got := test.o.Plain(test.ask, test.free); got != test.want {
			t.Errorf("%s: %v", test.what, got)
		}
	}
}
