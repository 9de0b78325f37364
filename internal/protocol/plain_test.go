package protocol

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// A plainCase is a limiter of 10 permits a minute, before a call that asks for 2 permits.
type plainCase struct {
	what    string
	own     string           // the caller's rate
	config  string           // the fields and values; "": none
	value   string           // "": none
	records map[string]int64 // ms from now to the score
	ttl     time.Duration    // of all keys; 0: none
	shared  int64            // the status of acquiremany.lua
}

const (
	live, old    = "\x05live1\x03\x00\x00\x00", "\x05old-1\x04\x00\x00\x00"
	ended, ahead = "\x05ended\x01\x00\x00\x00", "\x05ahead\x03\x00\x00\x00"
	kept         = "rate 10 interval 60000 type 0 keepAliveTime 600000"
	own, ownKept = "10 60000 0 0", "10 60000 0 600000"
)

var plainCases = []plainCase{
	{what: "made by this call", own: own},
	{what: "made by this call, kept", own: ownKept},
	{what: "unused", config: "rate 10 interval 60000 type 0"},
	{what: "unused, kept", config: kept},
	{what: "unused, by Redisson 3.38", config: "rate 10 interval 60000 type 0 keepAliveTime 0", own: own},
	{what: "used", config: "rate 10 interval 60000 type 0", value: "7", records: map[string]int64{live: -9000}},
	{
		what: "used, with a TTL", config: "rate 10 interval 60000 type 0", value: "7",
		records: map[string]int64{live: -9000}, ttl: 3 * time.Minute,
	},
	{
		what: "used, kept", config: kept, value: "7", records: map[string]int64{live: -9000}, ttl: 3 * time.Minute,
		own: ownKept,
	},
	{what: "used up by half, kept", config: kept, value: "3", records: map[string]int64{live: -9000, old: -8000}},
	{
		what: "with expired records, kept", config: kept, value: "2",
		records: map[string]int64{ended: -70_000, old: -60_000, live: -59_999}, ttl: 3 * time.Minute,
	},
	{
		what: "with expired records only, kept", config: kept, value: "5",
		records: map[string]int64{ended: -70_000, old: -60_000},
	},
	{what: "with a record ahead, kept", config: kept, value: "7", records: map[string]int64{ahead: 120_000}},
	{
		what: "with a record ahead for longer than the keep-alive", config: kept, value: "7",
		records: map[string]int64{ahead: 20 * 60_000}, shared: 10,
	},
	{
		what:   "kept hardly longer than an interval",
		config: "rate 10 interval 60000 type 0 keepAliveTime 60500",
		shared: 10,
	},
	{
		what: "kept, too few permits", config: kept, value: "1", records: map[string]int64{
			live: -9000, old: -8000, "\x05live2\x02\x00\x00\x00": -7000,
		}, shared: 11,
	},
	{
		what: "kept, refused", config: kept, value: "0", records: map[string]int64{
			live: -9000, old: -8000, "\x05live2\x03\x00\x00\x00": -7000,
		}, ttl: 3 * time.Minute, shared: 11,
	},
	{what: "kept for a time that is no number", config: "rate 10 interval 60000 type 0 keepAliveTime 1e9", shared: 10},
}

// TestPlainGrantWritesWhatTheFullScriptWrites: a plain grant leaves the same configuration, free
// permits, records and TTLs as the general part of acquire.lua, and returns the same figures. The
// same is true of a call that acquire.lua begins as a plain grant. A shared command that makes no
// plain grant writes nothing.
func TestPlainGrantWritesWhatTheFullScriptWrites(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		client, ctx := s.Client(), t.Context()
		const record = "\x05grant\x02\x00\x00\x00"
		keys := []string{"rl", "{rl}:value", "{rl}:value:me", "{rl}:permits", "{rl}:permits:me"}
		type state struct {
			config  map[string]string
			value   string
			records []redis.Z
			ttls    [3]time.Duration
		}
		now := int64(1_700_000_000_123)
		call := func(c plainCase, text string, keys []string, args ...any) (reply []any, before, after state) {
			t.Helper()
			client.FlushAll(ctx)
			if c.config != "" {
				client.HSet(ctx, "rl", strings.Fields(c.config))
			}
			if c.value != "" {
				client.Set(ctx, "{rl}:value", c.value, 0)
			}
			for member, at := range c.records {
				client.ZAdd(ctx, "{rl}:permits", redis.Z{Score: float64(now + at), Member: member})
			}
			stored := []string{"rl", "{rl}:value", "{rl}:permits"}
			for _, key := range stored {
				if c.ttl > 0 {
					client.PExpire(ctx, key, c.ttl)
				}
			}
			read := func() (at state) {
				at.config, at.value = client.HGetAll(ctx, "rl").Val(), client.Get(ctx, "{rl}:value").Val()
				at.records = client.ZRangeWithScores(ctx, "{rl}:permits", 0, -1).Val()
				for i, key := range stored {
					at.ttls[i] = client.PTTL(ctx, key).Val().Round(time.Minute)
				}
				return at
			}
			before = read()
			reply, err := client.Eval(ctx, text, keys, args...).Slice()
			if err != nil {
				t.Fatalf("%s: %v", c.what, err)
			}
			return reply, before, read()
		}
		for _, c := range plainCases {
			for _, flags := range []string{"", "n", "s", "w"} {
				full, _, want := call(c, AcquireScript.Text, keys,
					now, record, 2, flags+"g", c.own, "", "", "", "", "", "", 2, -1)
				plain, _, got := call(c, AcquireScript.Text, keys, now, record, 2, flags, c.own, 2, -1)
				what := fmt.Sprintf("%s, flags %q", c.what, flags)
				if !reflect.DeepEqual(got, want) {
					t.Errorf("%s: acquire.lua wrote\n%v, the full script\n%v", what, got, want)
				}
				sameFigures(t, what, plain, full)
				reply, before, got := call(c, AcquireManyScript.Text, []string{keys[0], keys[1], keys[3]},
					now, 2, record, c.own, flags)
				if reply[0] != c.shared {
					t.Errorf("%s: status %v, want %v", what, reply[0], c.shared)
				}
				if c.shared != 0 {
					want = before
				} else {
					sameFigures(t, what, reply, full)
				}
				if !reflect.DeepEqual(got, want) {
					t.Errorf("%s: acquiremany.lua wrote\n%v, the full script\n%v", what, got, want)
				}
			}
		}
	})
}

// sameFigures compares the status, the rate, the interval and the free permits of two replies, and
// when the next permit returns, if the plain grant tells.
func sameFigures(t *testing.T, what string, plain, full []any) {
	t.Helper()
	told := 4
	if plain[4] != int64(0) {
		told = 5
	}
	if !reflect.DeepEqual(plain[:told], full[:told]) {
		t.Errorf("%s: the reply is %v, of the full script %v", what, plain, full)
	}
}
