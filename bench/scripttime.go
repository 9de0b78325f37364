package main

import (
	"context"
	"encoding"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
)

// scripttime.go measures how long Redis takes for one call of a script. The rows send their calls
// in small batches in turn, each batch in one pipeline, so that all rows find the machine, the
// client and the caches of Redis alike.

// scriptBatch is the number of calls of a row before the next row's turn.
const scriptBatch = 200

// Rates of which no record expires during a sample, so that each call is a plain grant.
var (
	lasting       = rratelimiter.PerMinute(1e6)
	lastingBeside = rratelimiter.PerMinute(2e6)
)

// scriptTimes measures rows in turn.
func (b *lab) scriptTimes(ctx context.Context, rows []*contender, s scene) (map[*contender]Sample, error) {
	if err := b.clear(ctx); err != nil {
		return nil, err
	}
	next := make([]call, len(rows))
	for i, c := range rows {
		own := s
		own.names = make([]string, len(s.names))
		for at, name := range s.names {
			own.names[at] = name + ":" + strconv.Itoa(i)
		}
		if err := b.setScene(ctx, own); err != nil {
			return nil, err
		}
		rdb := redis.NewClient(&redis.Options{Addr: s.addr})
		defer rdb.Close()
		var err error
		if next[i], err = rowCalls[c.name](ctx, rdb, b.script, own); err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
	}
	times := make([][]float64, len(rows))
	for round := range 1 + b.scriptCalls { // the first one, in which all limiters are new, does not count
		for first := 0; first < len(s.names); first += scriptBatch {
			for i, c := range rows {
				took, err := b.batchTime(ctx, next[i], first, min(first+scriptBatch, len(s.names)))
				if err != nil {
					return nil, fmt.Errorf("%s: %w", c.name, err)
				}
				if round > 0 {
					times[i] = append(times[i], took)
				}
			}
		}
	}
	samples := map[*contender]Sample{}
	n := int64(b.scriptCalls * len(s.names))
	for i, c := range rows {
		samples[c] = Sample{Requests: n, Permits: n, Commands: n, PerCall: median(times[i])}
	}
	return samples, nil
}

// batchTime sends a call for each limiter from first to before end, and returns how long Redis took
// for one, in µs.
func (b *lab) batchTime(ctx context.Context, next call, first, end int) (float64, error) {
	pipe := b.rdb.Pipeline()
	for i := first; i < end; i++ {
		args, err := next(ctx, i)
		if err != nil {
			return 0, err
		}
		pipe.Do(ctx, args...)
	}
	if err := b.rdb.ConfigResetStat(ctx).Err(); err != nil {
		return 0, err
	}
	cmds, _ := pipe.Exec(ctx)
	for _, cmd := range cmds {
		if err := cmd.Err(); err != nil && err != redis.Nil {
			return 0, err
		}
	}
	info, err := b.info(ctx, "commandstats")
	if err != nil {
		return 0, err
	}
	stat := info["cmdstat_evalsha"]
	if n := calls(stat); n != int64(end-first) {
		return 0, fmt.Errorf("INFO counts %d calls, not %d", n, end-first)
	}
	return strconv.ParseFloat(statField(stat, "usec_per_call"), 64)
}

// A call returns the arguments of the EVALSHA of a row for a limiter, with the current time.
type call func(ctx context.Context, limiter int) ([]any, error)

// rowCalls makes the calls of the rows. A row has a client of its own.
var rowCalls = map[string]func(ctx context.Context, rdb *redis.Client, redissons string, s scene) (call, error){
	rowReturn1: callReturn1,
	rowBare:    callBare,
	rowScript:  callScript,
	rowLibrary: callLibrary,
}

func callReturn1(ctx context.Context, rdb *redis.Client, _ string, s scene) (call, error) {
	sha, err := rdb.ScriptLoad(ctx, "return 1").Result()
	return func(_ context.Context, i int) ([]any, error) {
		return []any{"evalsha", sha, 1, s.names[i]}, nil
	}, err
}

func callScript(ctx context.Context, rdb *redis.Client, redissons string, s scene) (call, error) {
	sha, err := rdb.ScriptLoad(ctx, redissons).Result()
	return func(_ context.Context, i int) ([]any, error) {
		args := []any{"evalsha", sha, 5}
		for _, key := range scriptKeys(s.names[i]) {
			args = append(args, key)
		}
		now, id := scriptArgs()
		return append(args, 1, now, id[:]), nil
	}, err
}

// bareCalls makes the calls to Redis of a plain grant, for each limiter, and nothing else.
//
//	KEYS  five a limiter, as in the scripts of this library
//	ARGV  1 now (ms), 2 a record
const bareCalls = `local call, now, record = redis.call, ARGV[1], ARGV[2]
local past = tonumber(now) - 60000
for key = 0, #KEYS - 5, 5 do
  call('HMGET', KEYS[key + 1], 'rate', 'interval', 'type', 'keepAliveTime')
  call('GET', KEYS[key + 2])
  call('ZCARD', KEYS[key + 4])
  call('ZCOUNT', KEYS[key + 4], '-inf', past)
  call('PTTL', KEYS[key + 1])
  call('ZADD', KEYS[key + 4], 'NX', now, record)
  call('DECRBY', KEYS[key + 2], '1')
end
return { 0, 1, 1, 1 }`

// callBare makes bareCalls: with the keys of this library, the time, and records of the same
// length.
func callBare(ctx context.Context, rdb *redis.Client, _ string, s scene) (call, error) {
	sha, err := rdb.ScriptLoad(ctx, bareCalls).Result()
	return func(_ context.Context, i int) ([]any, error) {
		names := []string{s.names[i]}
		if s.pairs() {
			names = append(names, s.others().names[i])
		}
		args := []any{"evalsha", sha, 5 * len(names)}
		for _, name := range names {
			for _, key := range scriptKeys(name) {
				args = append(args, key)
			}
		}
		_, id := scriptArgs()
		now := strconv.FormatFloat(float64(time.Now().UnixMicro())/1000, 'f', 3, 64)
		return append(args, now, "\x08"+string(id[:8])+"\x01\x00\x00\x00"), nil
	}, err
}

// callLibrary makes the calls of this library, which sends them to a rehearsal: TryAcquire, or
// AllowAll of a pair.
func callLibrary(ctx context.Context, rdb *redis.Client, _ string, s scene) (call, error) {
	r := &rehearsal{replies: map[any][]int64{}}
	rdb.AddHook(r)
	open := openLibrary
	if s.pairs() {
		open = allowAll(nil)
	}
	ask, err := open(ctx, nil, s, rdb)
	if err != nil {
		return nil, err
	}
	for range 2 { // AllowAll first needs to know what is free
		if _, err := ask(ctx, 0, 1, false); err != nil {
			return nil, err
		}
	}
	r.on = true
	return func(ctx context.Context, i int) ([]any, error) {
		_, err := ask(ctx, i, 1, false)
		return r.args, err
	}, nil
}

// A rehearsal is a hook of a Redis client that keeps the scripts of this library from being sent,
// once it is on. It replies to each what Redis replied to the last call of the same script before.
type rehearsal struct {
	on      bool
	replies map[any][]int64 // by the SHA-1 of the script
	args    []any           // of the last call that was not sent
}

func (*rehearsal) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*rehearsal) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next // a single caller needs none
}

func (r *rehearsal) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		script, ok := cmd.(interface {
			Val() []int64
			SetVal([]int64)
		})
		if !ok || cmd.Name() != "evalsha" && cmd.Name() != "eval" {
			return next(ctx, cmd)
		}
		if !r.on {
			err := next(ctx, cmd)
			r.replies[cmd.Args()[1]] = slices.Clone(script.Val())
			return err
		}
		script.SetVal(slices.Clone(r.replies[cmd.Args()[1]]))
		var err error
		r.args, err = written(cmd.Args())
		return err
	}
}

// written returns the arguments of a command as texts, as the client would write them. They may be
// in memory that the library uses again.
func written(args []any) ([]any, error) {
	texts := make([]any, len(args))
	for i, arg := range args {
		switch arg := arg.(type) {
		case encoding.BinaryMarshaler:
			text, err := arg.MarshalBinary()
			if err != nil {
				return nil, err
			}
			texts[i] = string(text)
		case []byte:
			texts[i] = string(arg)
		default:
			texts[i] = fmt.Sprint(arg)
		}
	}
	return texts, nil
}
