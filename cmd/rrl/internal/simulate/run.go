package simulate

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/classic"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// run.go runs a trace through algorithms on a virtual clock, and measures. Each has its own
// embedded server, on the same clock; a real server only measures the memory of the keys.

// An asker is any limiter.
type asker interface {
	Allow(ctx context.Context, n int64) (rratelimiter.Result, error)
	Peek(ctx context.Context, n int64) (rratelimiter.Result, error)
	Charge(ctx context.Context, n int64) (rratelimiter.Result, error)
}

// ask makes a request for n permits. If they are charged, it passes as long as one is free.
func (t *trace) ask(ctx context.Context, l asker, n int64) (rratelimiter.Result, error) {
	if !t.charged {
		return l.Allow(ctx, n)
	}
	result, err := l.Peek(ctx, 1)
	if err == nil && result.Allowed {
		if _, err = l.Charge(ctx, n); errors.Is(err, rratelimiter.ErrDebtBound) {
			err = nil
		}
	}
	return result, err
}

// A setting has the parameters of an algorithm's limiter.
type setting struct {
	rdb   redis.UniversalClient
	rate  rratelimiter.Rate
	now   func() time.Time
	clock classic.Option
}

const limitName = "limit" // the name of each limiter

// An algorithm makes its limiter for a rate; the limiter's methods return an error for a rate that
// it does not support.
type algorithm struct {
	name string
	make func(s setting) asker
}

var algorithms = []algorithm{
	{"rratelimiter", func(s setting) asker {
		client := rratelimiter.NewClient(s.rdb, rratelimiter.WithClock(s.now),
			rratelimiter.WithCallTimeout(time.Minute))
		return client.RateLimiter(limitName, rratelimiter.WithRate(s.rate))
	}},
	{"fixed-window", func(s setting) asker { return classic.NewFixedWindow(s.rdb, limitName, s.rate, s.clock) }},
	{"window-keys", func(s setting) asker { return classic.NewWindowKeys(s.rdb, limitName, s.rate, s.clock) }},
	{"list-window", func(s setting) asker { return classic.NewListWindow(s.rdb, limitName, s.rate, s.clock) }},
	{"cursor-window", func(s setting) asker { return classic.NewCursorWindow(s.rdb, limitName, s.rate, s.clock) }},
	{"sliding-log", func(s setting) asker { return classic.NewSlidingLog(s.rdb, limitName, s.rate, s.clock) }},
	{"sub-windows", func(s setting) asker {
		parts := int64(10) // or the next fewer that are whole milliseconds
		for parts > 2 && s.rate.Interval.Milliseconds()%parts != 0 {
			parts--
		}
		return classic.NewSubWindows(s.rdb, limitName, s.rate, int(parts), s.clock)
	}},
	{"two-counters", func(s setting) asker { return classic.NewTwoCounters(s.rdb, limitName, s.rate, s.clock) }},
	{"token-bucket", func(s setting) asker {
		// The smallest steps of whole seconds and whole tokens.
		tokens, seconds := s.rate.Permits, int64(s.rate.Interval/time.Second)
		divisor := gcd(tokens, seconds)
		p := classic.Tokens{
			Capacity: s.rate.Permits, PerStep: tokens / divisor, Step: s.rate.Interval / time.Duration(divisor),
		}
		return classic.NewTokenBucket(s.rdb, limitName, p, s.clock)
	}},
	{"gateway-bucket", func(s setting) asker {
		every := s.rate.Interval / time.Duration(s.rate.Permits)
		if rest := every % time.Millisecond; rest > 0 && every > time.Millisecond {
			every += time.Millisecond - rest // round up, towards the slower rate
		}
		p := classic.Gateway{Every: every, Capacity: s.rate.Permits, Interval: s.rate.Interval}
		return classic.NewGatewayBucket(s.rdb, limitName, p, s.clock)
	}},
	{"leaky-bucket", func(s setting) asker {
		return classic.NewLeakyBucket(s.rdb, limitName, s.rate, s.rate.Permits, s.clock)
	}},
	{
		"leaky-queue",
		func(s setting) asker { return classic.NewLeakyQueue(s.rdb, limitName, s.rate, s.rate.Permits, s.clock) },
	},
	{"gcra", func(s setting) asker {
		return classic.NewGCRA(s.rdb, limitName, s.rate, s.rate.Permits, s.clock)
	}},
	{"smooth-bursty", func(s setting) asker {
		return classic.NewSmoothBursty(float64(s.rate.Permits)/s.rate.Interval.Seconds(), s.clock)
	}},
	{"smooth-warming-up", func(s setting) asker {
		return classic.NewSmoothWarmingUp(float64(s.rate.Permits)/s.rate.Interval.Seconds(), s.rate.Interval, s.clock)
	}},
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// Algorithms returns the names of algorithms.
func Algorithms() (all []string) {
	for _, a := range algorithms {
		all = append(all, a.name)
	}
	return all
}

// An outcome is the result of one algorithm on one trace: first with callers that give up when they
// are refused, then with callers that wait in a queue.
type outcome struct {
	Algorithm string  `json:"algorithm"`
	Fault     string  `json:"fault,omitempty"` // why it does not support this rate
	Offered   int64   `json:"offered"`
	Granted   int64   `json:"granted"`
	Largest   int64   `json:"largestWindow"` // permits in any interval
	Commands  float64 `json:"commandsPerPermit"`
	Calls     float64 `json:"callsPerPermit"` // round trips
	Memory    int64   `json:"memoryBytes"`    // the maximum memory of the keys
	MeanWait  float64 `json:"meanWaitSeconds"`
	MaxWait   float64 `json:"longestWaitSeconds"`
	Bins      []int64 `json:"grantedPerStep"`

	grants []arrival
}

// A simulation is a trace with the results of algorithms.
type simulation struct {
	Trace    string    `json:"trace"`
	About    string    `json:"about"`
	Rate     string    `json:"rate"`
	Seconds  float64   `json:"seconds"`
	Step     float64   `json:"stepSeconds"`
	Weighed  string    `json:"memoryBy"`
	Bins     []int64   `json:"offeredPerStep"`
	Outcomes []outcome `json:"algorithms"`

	trace trace
}

func simulate(ctx context.Context, t trace, which []algorithm, weigh scale) (simulation, error) {
	if t.step == 0 {
		t.step = niceStep(t.length)
	}
	s := simulation{
		Trace: t.name, About: t.about, Rate: t.rate.String(), Seconds: t.length.Seconds(), Step: t.step.Seconds(),
		Weighed: weigh.name, Bins: bins(t, t.arrivals), trace: t,
	}
	for _, a := range which {
		o, err := measure(ctx, t, a, weigh)
		if err != nil {
			return s, fmt.Errorf("%s: %w", a.name, err)
		}
		s.Outcomes = append(s.Outcomes, o)
	}
	return s, nil
}

// niceStep divides a length into at most 60 steps of a round number.
func niceStep(length time.Duration) time.Duration {
	for unit := time.Millisecond; ; unit *= 10 {
		for _, factor := range []time.Duration{1, 2, 5} {
			if length <= 60*factor*unit {
				return factor * unit
			}
		}
	}
}

func bins(t trace, arrivals []arrival) []int64 {
	sums := make([]int64, (t.length+t.step-1)/t.step)
	for _, a := range arrivals {
		if i := int(a.at / t.step); i < len(sums) {
			sums[i] += a.n
		}
	}
	return sums
}

// measure runs one algorithm through a trace, twice.
func measure(ctx context.Context, t trace, a algorithm, weigh scale) (outcome, error) {
	o := outcome{Algorithm: a.name}
	for _, r := range t.arrivals {
		o.Offered += r.n
	}
	if fault, err := o.leaving(ctx, t, a, weigh); err != nil || fault != nil {
		if fault != nil {
			o.Fault = fault.Error()
			o.Bins = bins(t, nil)
		}
		return o, err
	}
	if err := o.waiting(ctx, t, a); err != nil {
		return o, err
	}
	o.Bins = bins(t, o.grants)
	return o, nil
}

// leaving is the run in which callers give up. fault is an unsupported rate, err any other error.
func (o *outcome) leaving(ctx context.Context, t trace, a algorithm, weigh scale) (fault, err error) {
	w, err := newWorld(t.rate)
	if err != nil {
		return nil, err
	}
	defer w.close()
	l := a.make(w.setting())
	// The first call loads scripts; its permits are removed afterwards.
	if _, err := l.Allow(ctx, 1); err != nil {
		return err, nil
	}
	w.mini.FlushAll()
	l = a.make(w.setting())
	before, calls := w.mini.CommandCount(), w.calls.Load()

	var log []window.Grant
	var weighed time.Duration
	commands := 0
	for i, r := range t.arrivals {
		w.set(r.at)
		result, err := t.ask(ctx, l, r.n)
		if err != nil {
			return nil, err
		}
		if result.Allowed {
			o.Granted += r.n
			o.grants = append(o.grants, r)
			at := w.now()
			log = append(log, window.Grant{Permits: r.n, Start: at, End: at})
		}
		if last := i == len(t.arrivals)-1; last || t.arrivals[i+1].at >= weighed {
			commands += w.mini.CommandCount() - before
			memory, err := weigh.weigh(ctx, w.look)
			if err != nil {
				return nil, err
			}
			o.Memory = max(o.Memory, memory)
			weighed = r.at + t.step
			before = w.mini.CommandCount()
		}
	}
	o.Largest, _ = window.Largest(log, t.rate.Interval)
	if o.Granted > 0 {
		o.Commands = float64(commands) / float64(o.Granted)
		o.Calls = float64(w.calls.Load()-calls) / float64(o.Granted)
	}
	return nil, nil
}

// waiting is the run in which callers wait, in one queue, and retry after RetryAfter.
func (o *outcome) waiting(ctx context.Context, t trace, a algorithm) error {
	w, err := newWorld(t.rate)
	if err != nil {
		return err
	}
	defer w.close()
	l := a.make(w.setting())
	var at, sum time.Duration
	for _, r := range t.arrivals {
		at = max(at, r.at)
		for {
			w.set(at)
			result, err := t.ask(ctx, l, r.n)
			if err != nil {
				return err
			}
			if result.Allowed {
				break
			}
			at += max(time.Millisecond, result.RetryAfter)
		}
		wait := at - r.at
		sum += wait
		o.MaxWait = max(o.MaxWait, wait.Seconds())
	}
	o.MeanWait = sum.Seconds() / float64(max(1, len(t.arrivals)))
	return nil
}

// A world is a server, and a clock that stands still until it is set.
type world struct {
	mini  *miniredis.Miniredis
	rdb   *redis.Client // counted
	look  *redis.Client // not counted
	rate  rratelimiter.Rate
	nanos atomic.Int64
	calls atomic.Int64 // commands and pipelines sent
}

// dawn is the start of an hour, and so of every window that divides one; it is ahead of all clocks.
var dawn = time.Date(2036, time.January, 1, 12, 0, 0, 0, time.UTC)

func newWorld(rate rratelimiter.Rate) (*world, error) {
	w := &world{mini: miniredis.NewMiniRedis(), rate: rate}
	w.mini.ClockTTL(true)
	if err := w.mini.Start(); err != nil {
		return nil, err
	}
	// Connections without deadlines, so that no call is repeated, and counted twice, on a busy
	// machine.
	w.rdb = redis.NewClient(&redis.Options{
		Addr:            w.mini.Addr(),
		DisableIdentity: true,
		ReadTimeout:     -2,
		WriteTimeout:    -2,
	})
	w.look = redis.NewClient(w.rdb.Options())
	w.rdb.AddHook((*counter)(w))
	w.set(0)
	return w, nil
}

func (w *world) close() {
	w.rdb.Close()
	w.look.Close()
	w.mini.Close()
}

func (w *world) set(at time.Duration) {
	now := dawn.Add(at)
	w.nanos.Store(now.UnixNano())
	w.mini.SetTime(now)
}

func (w *world) now() time.Time { return time.Unix(0, w.nanos.Load()) }

func (w *world) setting() setting {
	return setting{rdb: w.rdb, rate: w.rate, now: w.now, clock: classic.WithClock(w.now)}
}

// A counter is a hook that counts round trips.
type counter world

func (c *counter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.calls.Add(1)
		return next(ctx, cmd)
	}
}

func (c *counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.calls.Add(1)
		return next(ctx, cmds)
	}
}

// A scale returns the memory of all keys of a server.
type scale struct {
	name  string
	weigh func(ctx context.Context, rdb *redis.Client) (int64, error)
}

// sizes measures names and values as they are stored, without the overhead of a server.
var sizes = scale{"size of keys and values", func(ctx context.Context, rdb *redis.Client) (sum int64, err error) {
	all, err := copies(ctx, rdb)
	for key, command := range all {
		sum += int64(len(key))
		for _, part := range command[2:] {
			sum += int64(len(fmt.Sprint(part)))
		}
	}
	return sum, err
}}

// copies returns all keys, as the commands that write them.
func copies(ctx context.Context, rdb *redis.Client) (map[string][]any, error) {
	keys, err := rdb.Keys(ctx, "*").Result()
	if err != nil {
		return nil, err
	}
	all := map[string][]any{}
	for _, key := range keys {
		var command []any
		kind, err := rdb.Type(ctx, key).Result()
		switch {
		case err != nil:
		case kind == "string":
			var value string
			value, err = rdb.Get(ctx, key).Result()
			command = []any{"set", key, value}
		case kind == "hash":
			var fields map[string]string
			fields, err = rdb.HGetAll(ctx, key).Result()
			command = []any{"hset", key}
			for field, value := range fields {
				command = append(command, field, value)
			}
		case kind == "list":
			var values []string
			values, err = rdb.LRange(ctx, key, 0, -1).Result()
			command = []any{"rpush", key}
			for _, value := range values {
				command = append(command, value)
			}
		case kind == "zset":
			var members []redis.Z
			members, err = rdb.ZRangeWithScores(ctx, key, 0, -1).Result()
			command = []any{"zadd", key}
			for _, m := range members {
				command = append(command, fmt.Sprintf("%.0f", m.Score), m.Member)
			}
		default:
			err = fmt.Errorf("a key of type %s", kind)
		}
		if err != nil {
			return nil, err
		}
		all[key] = command
	}
	return all, nil
}

// memoryUsage measures copies of the keys on a real server with MEMORY USAGE, under unused names,
// and removes them.
func memoryUsage(real redis.UniversalClient) scale {
	return scale{"MEMORY USAGE", func(ctx context.Context, rdb *redis.Client) (int64, error) {
		all, err := copies(ctx, rdb)
		if err != nil {
			return 0, err
		}
		prefix := "rrl:" + strings.ToLower(rand.Text()[:8]) + ":"
		var sum int64
		for key, command := range all {
			command[1] = prefix + key
			usage := redis.NewIntCmd(ctx, "memory", "usage", command[1], "samples", 0)
			usage.SetFirstKeyPos(2)
			pipe := real.Pipeline()
			pipe.Do(ctx, command...)
			pipe.Do(ctx, "pexpire", command[1], time.Minute.Milliseconds()) // in case the process dies here
			pipe.Process(ctx, usage)
			pipe.Del(ctx, prefix+key)
			if _, err := pipe.Exec(ctx); err != nil {
				return 0, err
			}
			sum += usage.Val()
		}
		return sum, nil
	}}
}
