package endings

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/limiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// inUse is how many permits of each limiter are in use before a call.
const inUse = 2

// A cell is one method that ends in one way, with one option.
type cell struct {
	*testing.T
	method rig.Method
	option option

	// waits until something has happened, which it checks
	until  func(what string, is func() bool)
	tap    *rig.Tap
	away   atomic.Bool // the server cannot be reached
	alone  bool        // the process may decide: what it grants is in no record
	rdb    *redis.Client
	admin  *redis.Client // past the tap
	client *rratelimiter.Client
	args   rig.Args
	used   map[string]bounds // permits in use by limiter, as callers were told
	held   atomic.Int64      // calls whose reply is held back
	gate   chan struct{}     // closed: their replies come
}

// bounds are the smallest and the largest number that is right.
type bounds struct{ least, most int64 }

// newCell returns a cell on a server; dial is nil for a real one.
func newCell(
	t *testing.T, m rig.Method, o option, options *redis.Options,
	dial func(context.Context, string, string) (net.Conn, error), until func(string, func() bool),
) *cell {
	c := &cell{T: t, method: m, option: o, until: until, used: map[string]bounds{}, gate: make(chan struct{})}
	c.tap = &rig.Tap{Over: func(ctx context.Context, network, addr string) (net.Conn, error) {
		switch {
		case c.away.Load():
			return nil, rig.ErrRefused
		case dial != nil:
			return dial(ctx, network, addr)
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}}
	redistest.NoDeadlines(options)
	past := *options
	if dial != nil {
		past.Dialer = dial
	}
	options.Dialer = c.tap.Dial
	options.ConnMaxLifetime = time.Nanosecond // so that each call notices that the server is away
	c.rdb, c.admin = redis.NewClient(options), redis.NewClient(&past)
	t.Cleanup(func() { _, _ = c.rdb.Close(), c.admin.Close() })
	var of rratelimiter.Redis = c.rdb
	timeout := rratelimiter.WithCallTimeout(20 * time.Second)
	if dial != nil {
		timeout = rratelimiter.WithCallTimeout(time.Second)
	}
	if o.apart {
		of = struct{ rratelimiter.Redis }{c.rdb}
	}
	c.client = rratelimiter.NewClient(of, timeout)
	rig.Core(c.client).Tune(limiter.Tuning{Patience: time.Minute, Linger: time.Minute})
	c.args = rig.Args{Client: c.client, Timeout: 10 * time.Second}
	if m.Several {
		c.asks("{t}a", "{t}b")
	} else {
		c.asks("{other}a")
	}
	return c
}

// asks makes the limiters that are asked for one permit each.
func (c *cell) asks(names ...string) {
	var limiters []*rratelimiter.Limiter
	for _, name := range names {
		if c.option.apart && c.method.Several {
			name = name[len("{t}"):]
		}
		limiters = append(limiters, c.client.RateLimiter(name, c.option.opts...))
	}
	c.args.Limiters, c.args.Permits = limiters, nil
	for range limiters {
		c.args.Permits = append(c.args.Permits, 1)
	}
}

// prepare sets the rate of the limiters that are asked, and uses permits. It calls the method once
// for other limiters: so the server knows the script, and a call is no more than one request.
func (c *cell) prepare() {
	c.setRates(c.args.Limiters)
	c.use(inUse)
	warm := c.args
	warm.Limiters = nil
	for _, l := range c.args.Limiters {
		warm.Limiters = append(warm.Limiters, c.client.RateLimiter(l.Name()+"warm", c.option.opts...))
	}
	c.setRates(warm.Limiters)
	if c.method.Grants {
		warm.Grants, c.args.Grants = c.take(warm), c.take(c.args)
		for _, l := range c.args.Limiters {
			c.grant(l, 1)
		}
	}
	c.must(c.method.Call(context.Background(), warm).Err)
	c.must(c.admin.Del(context.Background(), "{other}").Err())
}

func (c *cell) must(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

// setRates writes the rate of limiters.
func (c *cell) setRates(limiters []*rratelimiter.Limiter) {
	c.pipelined(limiters, func(ctx context.Context, p redis.Pipeliner, names []string) {
		p.HSet(
			ctx, names[keys.Config], "rate", rate.Permits, "interval", rate.Interval.Milliseconds(), "type",
			int(c.option.of),
		)
	})
}

// use takes n more permits of each limiter, as another process would.
func (c *cell) use(n int64) {
	c.pipelined(c.args.Limiters, func(ctx context.Context, p redis.Pipeliner, names []string) {
		value, permits := names[keys.Value], names[keys.Permits]
		if c.option.of == rratelimiter.PerClient {
			value, permits = names[keys.ClientValue], names[keys.ClientPermits]
		}
		p.SetNX(ctx, value, rate.Permits, 0)
		p.DecrBy(ctx, value, n)
		member := rig.MemberOf(fmt.Sprintf("%08d", n), uint32(n))
		p.ZAdd(ctx, permits, redis.Z{Score: float64(time.Now().UnixMilli()), Member: member})
	})
	for _, l := range c.args.Limiters {
		c.grant(l, n)
	}
}

// pipelined sends commands for each limiter, past the tap.
func (c *cell) pipelined(
	limiters []*rratelimiter.Limiter, do func(ctx context.Context, p redis.Pipeliner, names []string),
) {
	_, err := c.admin.Pipelined(context.Background(), func(p redis.Pipeliner) error {
		for _, l := range limiters {
			do(context.Background(), p, rig.Keys(l))
		}
		return nil
	})
	c.must(err)
}

func (c *cell) take(a rig.Args) []*rratelimiter.Grant {
	grants, _, err := c.client.TakeAll(context.Background(), a.Permits, a.Limiters...)
	c.must(err)
	return grants
}

// distinct are the limiters that are asked, each once.
func (c *cell) distinct() (limiters []*rratelimiter.Limiter) {
	seen := map[string]bool{}
	for _, l := range c.args.Limiters {
		if l != nil && !seen[l.Name()] {
			limiters = append(limiters, l)
			seen[l.Name()] = true
		}
	}
	return limiters
}

// grant notes that a caller was told that it has n permits of a limiter.
func (c *cell) grant(l *rratelimiter.Limiter, n int64) {
	b := c.used[l.Name()]
	c.used[l.Name()] = bounds{b.least + n, b.most + n}
}

// A call is one call of the method, in a goroutine of its own.
type call struct {
	cell   *cell
	args   rig.Args
	cancel context.CancelFunc
	ended  chan rig.Answer
}

// start calls the method.
func (c *cell) start() *call { return c.startCall(c.method, c.args) }

// startFirst calls a method that the method of the cell may be queued behind.
func (c *cell) startFirst(name, ofSeveral string, n int64) *call {
	if c.method.Several {
		name = ofSeveral
	}
	args := c.args
	args.Permits = nil
	for range args.Limiters {
		args.Permits = append(args.Permits, n)
	}
	for _, m := range rig.Methods {
		if m.Name == name {
			return c.startCall(m, args)
		}
	}
	panic(name)
}

func (c *cell) startCall(m rig.Method, args rig.Args) *call {
	ctx, cancel := context.WithCancel(context.Background())
	c.Cleanup(cancel)
	started := &call{cell: c, args: args, cancel: cancel, ended: make(chan rig.Answer, 1)}
	go func() {
		var answer rig.Answer
		defer func() {
			if reason := recover(); reason != nil {
				c.Errorf("%s panics: %v\n%s", m.Name, reason, debug.Stack())
				answer.Err = errPanic
			}
			started.ended <- answer
		}()
		answer = m.Call(ctx, args)
	}()
	return started
}

var errPanic = errors.New("it panics")

// end waits until the call has ended, and counts what its caller was told.
func (c *call) end() rig.Answer {
	answer := <-c.ended
	for i, l := range c.args.Limiters {
		if l == nil {
			continue
		}
		b, n := c.cell.used[l.Name()], int64(0)
		if i < len(answer.Taken) {
			n = answer.Taken[i]
		}
		b.most += n
		if !c.cell.alone || n < 0 {
			b.least += n
		}
		if errors.Is(answer.Err, rratelimiter.ErrOutcomeUnknown) && i < len(c.args.Permits) {
			if n = c.args.Permits[i]; c.cell.method.Kind == rig.GivesBack {
				b.least -= n
			} else if b.most += n; c.cell.option.name == "WithLease" {
				b.most += rate.Permits / 4 // the lease that the call takes
			}
		}
		c.cell.used[l.Name()] = b
	}
	return answer
}

// ask calls the method and waits until it has ended.
func (c *cell) ask() rig.Answer { return c.start().end() }

// hold holds back the replies of the next calls until open. They are executed.
func (c *cell) hold() {
	plan := rig.Plan{Then: func() {
		c.held.Add(1)
		<-c.gate
	}}
	c.tap.Plan(plan, plan, plan, plan)
}

func (c *cell) open() { close(c.gate) }

// inFlight waits until the reply of a call is held back.
func (c *cell) inFlight() {
	c.until("the call in flight", func() bool { return c.held.Load() > 0 })
}

// queued waits until a further call stands behind the one in flight.
func (c *cell) queued() {
	time.Sleep(ms) // on a real server, it does no harm if the call comes later
	c.until("the call in the queue", func() bool { return true })
}

// waiting waits until a caller waits for permits, and no call is in flight.
func (c *cell) waiting() {
	c.until("the caller that waits", func() bool {
		if c.option.apart && c.method.Several {
			return true // it is in no queue
		}
		now := rig.Core(c.client).Look("")
		return now.Waiting == 1 && !now.InFlight
	})
}

// judge compares an answer with what the documentation says.
func (c *cell) judge(a rig.Answer, want string) {
	if a.Err == errPanic {
		return
	}
	if why := c.differs(a, want); why != "" {
		c.Errorf("%s expected, but %s: %+v", want, why, a)
	}
	c.until("the end of all calls", func() bool { return !rig.Core(c.client).Look("").InFlight })
	for _, l := range c.distinct() {
		c.judgeRecords(l)
	}
}

var sentinels = map[string]error{
	"ErrNotInitialized": rratelimiter.ErrNotInitialized, "ErrExceedsRate": rratelimiter.ErrExceedsRate,
	"ErrInvalidPermits": rratelimiter.ErrInvalidPermits, "ErrInvalidRate": rratelimiter.ErrInvalidRate,
	"ErrInvalidOption": rratelimiter.ErrInvalidOption, "unknown": rratelimiter.ErrOutcomeUnknown,
	"ErrUnavailable": rratelimiter.ErrUnavailable, "ErrCrossSlotName": rratelimiter.ErrCrossSlotName,
	"ctx.Err()": context.Canceled, "context.DeadlineExceeded": context.DeadlineExceeded,
	"redis.ErrClosed": redis.ErrClosed,
}

// differs says how an answer is not what was expected; "" if it is.
func (c *cell) differs(a rig.Answer, want string) string {
	said := map[string]bool{}
	for _, word := range strings.Split(want, ", ") {
		said[word] = true
	}
	said["granted"] = said["granted"] || said["counted"]
	fails := !said["granted"] && !said["refused"] && !said["answered"]
	for name, err := range sentinels {
		if errors.Is(a.Err, err) != said[name] {
			return fmt.Sprintf("%s: %v", name, !said[name])
		}
		delete(said, name)
	}
	taken := int64(0)
	for _, n := range a.Taken {
		taken += n
	}
	switch {
	case fails != (a.Err != nil):
		return "there is another error or none"
	case said["WRONGTYPE"] != redis.HasErrorPrefix(a.Err, "WRONGTYPE"):
		return "WRONGTYPE or not"
	case said["granted"] && (!a.Allowed || c.method.Kind != rig.Peeks && taken < int64(len(c.args.Limiters))):
		return "nothing was granted"
	case !said["granted"] && (a.Allowed || taken > 0):
		return "something was granted"
	case !fails && c.method.Results && len(a.Results) != len(c.args.Limiters), fails && len(a.Results) > 0:
		return "the number of results"
	case (len(a.Grants) > 0) != (a.Allowed && strings.HasPrefix(c.method.Name, "Take") && len(c.args.Limiters) > 0):
		return "the number of grants"
	}
	for _, r := range a.Results {
		if r.Allowed != a.Allowed && c.method.Kind != rig.Charges {
			return "the results differ"
		}
	}
	return ""
}

// judgeRecords compares the records of a limiter with what callers were told.
func (c *cell) judgeRecords(l *rratelimiter.Limiter) {
	ctx := context.Background()
	names := rig.Keys(l)
	sum := int64(0)
	for i, key := range []string{names[keys.Permits], names[keys.ClientPermits]} {
		both := c.admin.TxPipeline() // permits may come back meanwhile
		records := both.ZRange(ctx, key, 0, -1)
		value := both.Get(ctx, []string{names[keys.Value], names[keys.ClientValue]}[i])
		_, _ = both.Exec(ctx)
		members, err := records.Result()
		if redis.HasErrorPrefix(err, "WRONGTYPE") {
			return
		}
		c.must(err)
		for _, m := range members {
			sum += rig.PermitsOf(m)
		}
		if free, err := value.Int64(); err == nil && free+sum != rate.Permits && c.method.Kind != rig.Sets {
			c.Errorf("%s: %d free permits are stored, and %d in records", l.Name(), free, sum)
		}
	}
	want := c.used[l.Name()]
	if k := c.method.Kind; k == rig.Sets || k == rig.Changes {
		want.least = 0
	}
	sum -= rig.LimiterCore(l).Leased()
	if sum < want.least || sum > want.most {
		c.Errorf("%d permits of %s are taken, but callers were told of %+v", sum, l.Name(), want)
	}
}

// works checks that the limiters answer afterwards.
func (c *cell) works() {
	if len(c.args.Limiters) == 0 || c.closed() {
		return
	}
	l := c.args.Limiters[0]
	c.must(c.admin.Del(context.Background(), rig.Keys(l)...).Err())
	c.setRates([]*rratelimiter.Limiter{l})
	if _, err := l.Allow(context.Background(), 1); err != nil {
		c.Errorf("the next call: %v", err)
	}
	if n := c.client.Waiting(); len(n) > 0 {
		c.Errorf("callers still wait: %v", n)
	}
}

// inBubble runs a cell on the embedded server. A goroutine that stays fails it.
func inBubble(t *testing.T, m rig.Method, o option, run func(c *cell)) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		b.ShareScripts()
		defer b.End(func() {}) // what goes on in the background ends before
		run(newCell(t, m, o, b.Options(nil), b.Dial, func(what string, is func() bool) {
			t.Helper()
			if synctest.Wait(); !is() {
				t.Fatalf("%s did not happen", what)
			}
		}))
	})
}

// onRedis runs a cell on a real server.
func onRedis(t *testing.T, m rig.Method, o option, run func(c *cell)) {
	run(newCell(t, m, o, redistest.Shared(t).Options(), nil, func(what string, is func() bool) {
		t.Helper()
		rig.Soon(t, what, is)
	}))
}
