package faults

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// once_test.go cuts connections thousands of times, before, during and after requests and replies,
// and counts the permits that callers got and those that Redis has recorded.

// The ways in which a cutter ends a connection. A request that was sent whole is executed before
// its client can repeat it: late_test.go has those that arrive after their own repetition.
const (
	beforeTheRequest = iota
	inTheRequest
	beforeTheReply
	inTheReply
	waysToCut
	anyWayToCut = waysToCut
)

var ways = [waysToCut]string{"before the request", "in the request", "before the reply", "in the reply"}

// A cutter is a proxy that ends connections at random while it has cuts left.
type cutter struct {
	server   string
	listener net.Listener
	odds     float64       // of a request to be cut
	hold     time.Duration // time for which a client waits for the reply that was cut
	budget   *atomic.Int64 // cuts left
	only     int           // the way of all cuts; anyWayToCut: random
	ended    atomic.Int64  // when a client could first notice the latest cut, in ns since 1970

	mu     sync.Mutex
	random *rand.Rand
	count  [waysToCut]int
}

func newCutter(t *testing.T, server string, random *rand.Rand, budget *atomic.Int64, odds float64) *cutter {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{server: server, listener: listener, odds: odds, budget: budget, random: random, only: anyWayToCut}
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			accepting.Go(func() { c.serve(conn) })
		}
	})
	t.Cleanup(func() { _ = listener.Close(); accepting.Wait() })
	return c
}

// client returns a redis client behind the cutter that sends almost nothing but the test's
// commands.
func (c *cutter) client(t *testing.T, opts ...func(*redis.Options)) *redis.Client {
	o := &redis.Options{Addr: c.listener.Addr().String(), DisableIdentity: true, Protocol: 2, PoolSize: 100}
	for _, opt := range opts {
		opt(o)
	}
	rdb := redis.NewClient(o)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// roll returns the way in which a request is cut; -1 lets it pass.
func (c *cutter) roll(request []byte) (way int, reset bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !bytes.Contains(request, []byte("eval")) || c.random.Float64() >= c.odds {
		return -1, false
	}
	if c.budget.Add(-1) < 0 {
		return -1, false
	}
	if way = c.only; way == anyWayToCut {
		way = c.random.IntN(waysToCut)
	}
	c.count[way]++
	return way, c.random.IntN(2) == 0
}

func (c *cutter) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", c.server)
	if err != nil {
		return
	}
	defer server.Close()
	var cut atomic.Int64 // 1 + the way in which the next reply is cut
	reset := func(is bool) {
		if is {
			_ = client.(*net.TCPConn).SetLinger(0)
		}
	}
	go func() {
		defer client.Close()
		defer server.Close()
		reply := make([]byte, 64<<10)
		for {
			n, err := server.Read(reply)
			switch way := cut.Load() - 1; {
			case err != nil:
				return
			case way == inTheReply:
				_, _ = client.Write(reply[:n/2])
				fallthrough
			case way == beforeTheReply:
				c.wait()
				return
			}
			if _, err := client.Write(reply[:n]); err != nil {
				return
			}
		}
	}()
	request := make([]byte, 64<<10)
	for {
		n, err := client.Read(request)
		if err != nil {
			return
		}
		way, abruptly := c.roll(request[:n])
		reset(abruptly)
		send := request[:n]
		switch way {
		case beforeTheRequest:
			c.wait()
			return
		case inTheRequest:
			send = send[:n/2]
		case beforeTheReply, inTheReply:
			cut.Store(int64(way) + 1)
		}
		_, err = server.Write(send)
		if way == inTheRequest {
			c.wait()
			return
		}
		if err != nil {
			return
		}
	}
}

// wait blocks for the time for which a client waits for a reply that was cut.
func (c *cutter) wait() {
	time.Sleep(c.hold)
	c.ended.Store(time.Now().UnixNano())
}

// total returns the sum of all cutters' cuts.
func total(cutters []*cutter) (sum int, text string) {
	var each [waysToCut]int
	for _, c := range cutters {
		c.mu.Lock()
		for way, n := range c.count {
			each[way] += n
			sum += n
		}
		c.mu.Unlock()
	}
	var parts []string
	for way, n := range each {
		parts = append(parts, fmt.Sprintf("%d %s", n, ways[way]))
	}
	return sum, strings.Join(parts, ", ")
}

// A cutMode describes the use of the limiters whose connections are cut.
type cutMode struct {
	name string
	cuts int
	opts []rratelimiter.LimiterOption
	// doubtful: callers may get ErrOutcomeUnknown. In other modes none does, as long as there is
	// time to retry the call.
	doubtful bool
	all      bool // with AllowAll
	each     bool // each process has the whole rate
	scarce   bool // demand exceeds the rate: calls are refused, or granted in part
}

// TestManyCuts: whatever is cut, each permit is taken once. Only callers that got ErrOutcomeUnknown
// may have taken permits without a grant.
func TestManyCuts(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	server := redistest.Real(t)
	var mu sync.Mutex
	var worst time.Duration
	var all sync.WaitGroup
	for i, mode := range []cutMode{
		{name: "plain", cuts: 800},
		{name: "scarce", cuts: 400, scarce: true},
		{name: "by the server's clock", cuts: 500, opts: []rratelimiter.LimiterOption{rratelimiter.WithServerTime()}},
		{
			name: "a record per request",
			cuts: 600,
			opts: []rratelimiter.LimiterOption{rratelimiter.WithRecordPerRequest()},
		},
		{name: "joined records", cuts: 800, doubtful: true,
			opts: []rratelimiter.LimiterOption{rratelimiter.WithGranularity(10 * time.Second)}},
		{name: "all of several", cuts: 400, all: true},
		{name: "each process for itself", cuts: 400, each: true},
		{
			name: "an old format", cuts: 400,
			opts: []rratelimiter.LimiterOption{rratelimiter.WithRecordFormat(rratelimiter.Redisson313)},
		},
	} {
		all.Go(func() { // half of what they do is to wait
			t.Run(mode.name, func(t *testing.T) {
				took := manyCuts(t, server.Addr, rand.New(rand.NewPCG(seed, uint64(i))), mode)
				mu.Lock()
				defer mu.Unlock()
				worst = max(worst, took)
			})
		})
	}
	all.Wait()
	row{
		section: slow, fault: "connections are cut before or during a request, or before or during its reply",
		sees: "nothing: a retry detects whether the call was executed. `ErrOutcomeUnknown` if no retry succeeds " +
			"within the call's time, and with `WithGranularity` if later calls are in the same record",
		within: "with 4 of 10 requests cut, half of the calls within", limit: callTimeout + slack,
		after: "exact: each grant is recorded once. The only other records are of callers with `ErrOutcomeUnknown`",
	}.proves(t, worst)
}

// manyCuts returns the median duration of calls.
func manyCuts(t *testing.T, addr string, random *rand.Rand, mode cutMode) time.Duration {
	const processes, limiters, callers, odds = 12, 3, 4, 0.4 // callers of each limiter in each process
	const patience = 30 * time.Second                        // the call's time
	var budget atomic.Int64
	budget.Store(int64(mode.cuts))
	direct := redis.NewClient(&redis.Options{Addr: addr})
	defer direct.Close()
	name := func(i int) string { return fmt.Sprint(t.Name(), ":", i) }
	rate := ample
	if mode.each {
		rate.Type = rratelimiter.PerClient
	}
	if mode.scarce {
		rate.Permits = 100
	}
	// The clients of the processes. A record of the old format shows one byte of its client's hash,
	// and a counter of two bytes with a random start: clients that share the byte may make the same
	// ids. These do not share it.
	var ids []string
	for i := range processes {
		ids = append(ids, fmt.Sprint(i+1))
	}
	apart := ids // clients whose records count apart
	if !mode.each {
		apart = ids[:1]
	}
	onlookers := make([][]*rratelimiter.Limiter, limiters)
	for i := range limiters {
		for _, id := range apart {
			onlooker := rratelimiter.NewClient(direct, rratelimiter.WithClientID(id),
				rratelimiter.WithCallTimeout(time.Minute)) // the machine may pause for a second
			onlookers[i] = append(onlookers[i], onlooker.RateLimiter(name(i)))
		}
		if err := onlookers[i][0].SetRate(t.Context(), rate); err != nil {
			t.Fatal(err)
		}
	}
	var cutters []*cutter
	var mu sync.Mutex
	var got calls
	granted, doubtful := make([]int64, limiters), make([]int64, limiters)
	refused, inPart, failures := 0, 0, map[string]int{}
	var attempts counter
	var load sync.WaitGroup
	if mode.scarce {
		load.Go(func() { // what is free is gone at once, so it becomes a bit more again and again
			for rate := rate; budget.Load() > 0; rate.Permits += 10 {
				for _, l := range onlookers {
					if err := l[0].SetRate(t.Context(), rate, rratelimiter.KeepState()); err != nil {
						t.Error(err)
						return
					}
				}
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	for process := range processes {
		c := newCutter(t, addr, rand.New(rand.NewPCG(random.Uint64(), 0)), &budget, odds)
		cutters = append(cutters, c)
		client := rratelimiter.NewClient(c.client(t), rratelimiter.WithClientID(ids[process]),
			rratelimiter.WithCallTimeout(patience), rratelimiter.WithObserver(&attempts))
		var mine []*rratelimiter.Limiter
		for i := range limiters {
			mine = append(mine, client.RateLimiter(name(i), mode.opts...))
		}
		for i, l := range mine {
			for caller := range callers {
				load.Go(func() {
					for k := int64(caller); budget.Load() > 0; k++ {
						n, asked, upTo := 1+k%3, []int{i}, !mode.all && k%6 == 1
						var given int64
						once := ask(n, func() (ok bool, err error) {
							switch {
							case mode.all:
								asked = []int{0, 1, 2}
								results, err := client.AllowAll(t.Context(), n, mine...)
								return err == nil && results[0].Allowed, err
							case upTo:
								given, err = l.AcquireUpTo(t.Context(), n)
								return given == n, err
							case k%6 == 2:
								result, err := l.Allow(t.Context(), n)
								return result.Allowed, err
							case k%6 == 3 || mode.scarce:
								return l.TryAcquire(t.Context(), n)
							case k%6 == 4:
								return l.TryAcquireTimeout(t.Context(), n, time.Minute)
							}
							err = l.Acquire(t.Context(), n)
							return err == nil, err
						})
						if once.Granted {
							given = n
						}
						mu.Lock()
						got = append(got, once)
						for _, i := range asked {
							granted[i] += given
							if once.Unknown {
								doubtful[i] += n
							}
						}
						switch {
						case once.Unknown && (mode.doubtful || once.took() >= patience):
						case once.err != nil:
							failures[once.err.Error()]++
						case given == 0 && upTo:
							inPart++ // also where callers wait for the answer to a call that was cut
						case given == 0:
							refused++
						case given < n:
							inPart++
						}
						mu.Unlock()
					}
				})
			}
		}
	}
	start := time.Now()
	load.Wait()
	sum, text := total(cutters)
	if sum != mode.cuts {
		t.Errorf("%d cuts, not %d", sum, mode.cuts)
	}
	t.Logf("%d cuts (%s) in %v; %d calls, repeated %d times; %d refused, %d granted in part or nothing",
		sum, text, time.Since(start).Round(time.Millisecond), len(got), attempts.more.Load(), refused, inPart)
	for text, n := range failures {
		t.Errorf("%d times %s", n, text)
	}
	if mode.scarce != (refused > 0) || mode.scarce && inPart == 0 {
		t.Errorf("%d calls were refused, %d granted in part", refused, inPart)
	}
	for i, l := range onlookers {
		recorded, records := int64(0), map[string]bool{}
		for k, l := range l {
			state, err := l.State(t.Context())
			if err != nil || !state.Consistent {
				t.Errorf("limiter %d: %+v, %v", i, state, err)
			}
			recorded += state.Used
			key := "{" + name(i) + "}:permits"
			if mode.each {
				key += ":" + ids[k]
			}
			members, err := direct.ZRange(t.Context(), key, 0, -1).Result()
			if err != nil {
				t.Fatal(err)
			}
			for _, member := range members {
				record, err := rratelimiter.UnpackRecord([]byte(member))
				if id := key + string(record.ID); err != nil || records[id] {
					t.Errorf("limiter %d: the record %x is there twice (%v)", i, record.ID, err)
				} else {
					records[id] = true
				}
			}
		}
		t.Logf(
			"limiter %d: %d permits granted, %d recorded in %d records, %d of unknown outcome", i, granted[i], recorded,
			len(records), doubtful[i],
		)
		if recorded < granted[i] || recorded > granted[i]+doubtful[i] || recorded == 0 {
			t.Errorf("limiter %d: %d permits granted, %d recorded, %d of unknown outcome",
				i, granted[i], recorded, doubtful[i])
		}
	}
	return got.percentile(50)
}

// A counter is an observer that counts the attempts beyond the first.
type counter struct{ more atomic.Int64 }

func (c *counter) Call(f rratelimiter.CallInfo) { c.more.Add(int64(f.Attempts - 1)) }

// TestRepeatedLater: an attempt is lost, and the next one is made when the record of the first, if
// there is one, has expired (a second later, with an interval of 100 ms) or soon will. Its grant
// then counts from the retry on: it was made after the client could detect the cut, and before the
// caller got the reply. Another caller that takes everything free from then on gets no more than
// the rest.
func TestRepeatedLater(t *testing.T) {
	t.Parallel()
	const n = 7
	rate := rratelimiter.Rate{Permits: 20, Interval: 100 * time.Millisecond}
	server := redistest.Real(t)
	var all sync.WaitGroup
	defer all.Wait()
	for _, hold := range []time.Duration{time.Second, 60 * time.Millisecond} {
		for _, forgotten := range []bool{false, true} { // what expired meanwhile was counted back by others
			for _, opts := range [][]rratelimiter.LimiterOption{nil, {rratelimiter.WithRecordPerRequest()}} {
				for way, what := range ways {
					name := fmt.Sprintf("%v %s, forgotten %v, %d options", hold, what, forgotten, len(opts))
					all.Go(func() { // they wait, nearly all the time
						t.Run(name, func(t *testing.T) {
							repeatedLater(t, server, rate, n, way, hold, forgotten, opts)
						})
					})
				}
			}
		}
	}
}

func repeatedLater(
	t *testing.T, server *redistest.Server, rate rratelimiter.Rate, n int64, way int, hold time.Duration,
	forgotten bool,
	opts []rratelimiter.LimiterOption,
) {
	var budget atomic.Int64
	c := newCutter(t, server.Addr, rand.New(rand.NewPCG(1, 1)), &budget, 1)
	c.hold, c.only = hold, way
	direct := server.Client()
	others := rratelimiter.NewClient(direct, rratelimiter.WithCallTimeout(20*time.Second)).RateLimiter(t.Name())
	if err := others.SetRate(t.Context(), rate); err != nil {
		t.Fatal(err)
	}
	limiter := rratelimiter.NewClient(c.client(t), rratelimiter.WithCallTimeout(20*time.Second)).
		RateLimiter(t.Name(), opts...)
	// the server has the script, so it serves the first attempt
	if _, err := others.AvailablePermits(t.Context()); err != nil {
		t.Fatal(err)
	}
	budget.Store(1)
	stop := make(chan struct{})
	var looking sync.WaitGroup
	if forgotten {
		looking.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(20 * time.Millisecond):
				}
				if _, err := others.AvailablePermits(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	asked := time.Now()
	ok, err := limiter.TryAcquire(t.Context(), n)
	back := time.Now()
	close(stop)
	looking.Wait()
	cut := time.Unix(0, c.ended.Load())
	if !ok || err != nil || !cut.After(asked) || !cut.Before(back) {
		t.Fatalf("%v, %v, asked at %v, cut at %v, back at %v", ok, err, asked, cut, back)
	}
	grants := []window.Grant{{Permits: n, Start: cut, End: back}}
	for time.Since(back) < 2*rate.Interval {
		start := time.Now()
		got, err := others.AcquireUpTo(t.Context(), rate.Permits)
		if err != nil {
			t.Fatal(err)
		}
		grants = append(grants, window.Grant{Permits: got, Start: start, End: time.Now()})
		time.Sleep(3 * time.Millisecond)
	}
	if most, at := window.Largest(grants, rate.Interval); most > rate.Permits {
		t.Errorf("%d permits in the window from %v, of %d", most, at, rate.Permits)
	}
}

// TestBlindRepetitionTakesTwice shows what limiters prevent: go-redis retries a command whose reply
// was lost, up to three times by default, although Redis may have executed it already. A script
// that takes permits then takes them twice without an error: the caller gets one reply.
func TestBlindRepetitionTakesTwice(t *testing.T) {
	const cuts, callers = 300, 20
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	server := redistest.Real(t)
	var budget atomic.Int64
	budget.Store(cuts)
	c := newCutter(t, server.Addr, rand.New(rand.NewPCG(seed, 0)), &budget, 0.3)
	rdb := c.client(t, func(o *redis.Options) { o.MaxRetries = 3 })
	take := redis.NewScript(`return redis.call('INCRBY', KEYS[1], ARGV[1])`)
	if err := take.Load(t.Context(), server.Client()).Err(); err != nil {
		t.Fatal(err)
	}
	var granted, failed atomic.Int64
	var load sync.WaitGroup
	for range callers {
		load.Go(func() {
			for budget.Load() > 0 {
				if err := take.EvalSha(context.Background(), rdb, []string{"taken"}, 1).Err(); err != nil {
					failed.Add(1)
				} else {
					granted.Add(1)
				}
			}
		})
	}
	load.Wait()
	taken, err := server.Client().Get(t.Context(), "taken").Int64()
	if err != nil {
		t.Fatal(err)
	}
	_, text := total([]*cutter{c})
	t.Logf("%s; %d permits granted, %d calls failed, %d permits taken", text, granted.Load(), failed.Load(), taken)
	if taken <= granted.Load()+failed.Load() {
		t.Errorf(
			"%d permits were granted, %d calls failed, and no more than that were taken: %d", granted.Load(),
			failed.Load(),
			taken,
		)
	}
}
