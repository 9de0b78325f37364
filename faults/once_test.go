package faults

import (
	"bytes"
	"context"
	"errors"
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

// once_test.go cuts connections thousands of times, before, in the midst of and after what is said on them, and counts the
// permits: those that callers were granted, and those that Redis has recorded.

// The ways in which a cutter ends a connection.
const (
	beforeTheRequest = iota
	inTheRequest
	atOnceAfterTheRequest // served or not
	beforeTheReply
	inTheReply
	waysToCut
	anyWayToCut = waysToCut
)

var ways = [waysToCut]string{
	"before the request", "in the request", "right after the request", "before the reply", "in the reply",
}

// A cutter stands between clients and a server, and ends connections at random, as long as it has cuts left.
type cutter struct {
	server   string
	listener net.Listener
	odds     float64       // of a request to be cut
	hold     time.Duration // how long a client waits in vain for the reply that was cut
	budget   *atomic.Int64 // cuts left
	only     int           // the way in which all are cut; anyWayToCut: drawn
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

// client is a redis client behind the cutter that says next to nothing but what it is told to.
func (c *cutter) client(t *testing.T, opts ...func(*redis.Options)) *redis.Client {
	o := &redis.Options{Addr: c.listener.Addr().String(), DisableIdentity: true, Protocol: 2, PoolSize: 100}
	for _, opt := range opts {
		opt(o)
	}
	rdb := redis.NewClient(o)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// roll decides what becomes of a request; -1 lets it pass.
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
	var cut atomic.Int64 // the way in which the next reply is cut, and 1
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
			case way == beforeTheReply, way == atOnceAfterTheRequest:
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
		case beforeTheReply, inTheReply, atOnceAfterTheRequest:
			cut.Store(int64(way) + 1)
		}
		_, err = server.Write(send)
		if way == inTheRequest || way == atOnceAfterTheRequest {
			c.wait()
			return
		}
		if err != nil {
			return
		}
	}
}

// wait keeps a client waiting for what it will not get.
func (c *cutter) wait() {
	time.Sleep(c.hold)
	c.ended.Store(time.Now().UnixNano())
}

// total adds up what cutters did.
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

// TestTenThousandCuts: whatever is cut, each permit is taken once. Whoever got an error that says so is in doubt, nobody
// else.
func TestTenThousandCuts(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	server := redistest.Real(t)
	for i, test := range []struct {
		name string
		cuts int
		opts []rratelimiter.LimiterOption
		all  bool // by AllowAll
	}{
		{"plain", 4000, nil, false},
		{"by the server's clock", 1500, []rratelimiter.LimiterOption{rratelimiter.WithServerTime()}, false},
		{"a record per request", 1500, []rratelimiter.LimiterOption{rratelimiter.WithRecordPerRequest()}, false},
		{"joined records", 2000, []rratelimiter.LimiterOption{rratelimiter.WithGranularity(10 * time.Second)}, false},
		{"all of several", 1000, nil, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			manyCuts(t, server.Addr, rand.New(rand.NewPCG(seed, uint64(i))), test.cuts, test.all, test.opts)
		})
	}
}

func manyCuts(t *testing.T, addr string, random *rand.Rand, cuts int, all bool, opts []rratelimiter.LimiterOption) {
	const processes, limiters, callers, odds = 12, 3, 4, 0.4 // callers of each limiter in each process
	var budget atomic.Int64
	budget.Store(int64(cuts))
	direct := redis.NewClient(&redis.Options{Addr: addr})
	defer direct.Close()
	name := func(i int) string { return fmt.Sprint(t.Name(), ":", i) }
	var servers []*rratelimiter.Limiter
	for i := range limiters {
		l := rratelimiter.NewClient(direct).RateLimiter(name(i))
		if err := l.SetRate(t.Context(), ample); err != nil {
			t.Fatal(err)
		}
		servers = append(servers, l)
	}
	var cutters []*cutter
	var mu sync.Mutex
	granted, doubtful := make([]int64, limiters), make([]int64, limiters)
	calls, failures := 0, map[string]int{}
	var attempts counter
	var load sync.WaitGroup
	for range processes {
		c := newCutter(t, addr, rand.New(rand.NewPCG(random.Uint64(), 0)), &budget, odds)
		cutters = append(cutters, c)
		client := rratelimiter.NewClient(c.client(t), rratelimiter.WithCallTimeout(10*time.Second),
			rratelimiter.WithObserver(&attempts))
		var mine []*rratelimiter.Limiter
		for i := range limiters {
			mine = append(mine, client.RateLimiter(name(i), opts...))
		}
		for i, l := range mine {
			for caller := range callers {
				load.Go(func() {
					for k := int64(caller); budget.Load() > 0; k++ {
						n := 1 + k%3
						got, asked := n, []int{i}
						var err error
						switch {
						case all:
							asked = []int{0, 1, 2}
							var results []rratelimiter.Result
							if results, err = client.AllowAll(t.Context(), n, mine...); err == nil && !results[0].Allowed {
								t.Error("refused")
							}
						case k%2 == 0:
							err = l.Acquire(t.Context(), n)
						case k%5 == 1:
							got, err = l.AcquireUpTo(t.Context(), n)
						default:
							_, err = l.TryAcquire(t.Context(), n)
						}
						mu.Lock()
						calls++
						for _, i := range asked {
							switch {
							case err == nil:
								granted[i] += got
							case errors.Is(err, rratelimiter.ErrOutcomeUnknown):
								doubtful[i] += n
							}
						}
						if err != nil {
							failures[err.Error()]++
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
	if sum != cuts {
		t.Errorf("%d cuts, not %d", sum, cuts)
	}
	t.Logf("%d cuts (%s) in %v; %d calls, repeated %d times", sum, text, time.Since(start).Round(time.Millisecond), calls, attempts.more.Load())
	for text, n := range failures {
		if !strings.Contains(text, rratelimiter.ErrOutcomeUnknown.Error()) {
			t.Errorf("%d times %s", n, text)
		}
	}
	for i, l := range servers {
		state, err := l.State(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("limiter %d: %d permits granted, %d recorded in %d records, %d in doubt", i, granted[i], state.Used, state.Records, doubtful[i])
		if state.Used < granted[i] || state.Used > granted[i]+doubtful[i] || !state.Consistent {
			t.Errorf("limiter %d: %d permits granted, %d in doubt: %+v", i, granted[i], doubtful[i], state)
		}
		ids := map[string]bool{}
		members, err := direct.ZRange(t.Context(), "{"+name(i)+"}:permits", 0, -1).Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, member := range members {
			record, err := rratelimiter.UnpackRecord([]byte(member))
			if err != nil || ids[string(record.ID)] {
				t.Errorf("limiter %d: the record %x is there twice (%v)", i, record.ID, err)
			}
			ids[string(record.ID)] = true
		}
	}
}

// A counter is an observer that counts the attempts beyond the first.
type counter struct{ more atomic.Int64 }

func (c *counter) Flight(f rratelimiter.FlightInfo) { c.more.Add(int64(f.Attempts - 1)) }

// TestRepeatedLater: an attempt is lost, and the next one is made when the record of the first, if there is one, has expired
// (a second later, with an interval of 100 ms) or soon will. What is granted then counts from then on: it was granted
// after the client could know of the cut, and before the caller had the answer. Whoever asks for all there is, again and
// again from then on, gets no more than the rest.
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
						t.Run(name, func(t *testing.T) { repeatedLater(t, server, rate, n, way, hold, forgotten, opts) })
					})
				}
			}
		}
	}
}

func repeatedLater(
	t *testing.T, server *redistest.Server, rate rratelimiter.Rate, n int64, way int, hold time.Duration, forgotten bool,
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
	limiter := rratelimiter.NewClient(c.client(t), rratelimiter.WithCallTimeout(20*time.Second)).RateLimiter(t.Name(), opts...)
	if _, err := others.AvailablePermits(t.Context()); err != nil { // the server has the script, so it serves the first attempt
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

// TestBlindRepetitionTakesTwice shows what the limiters' calls are spared: go-redis repeats a command whose reply was lost,
// up to three times by default, and can't know that Redis has served it already. A script that takes permits takes them
// twice then, and nothing tells: the caller gets one answer, without an error.
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
		t.Errorf("%d permits were granted, %d calls failed, and no more than that were taken: %d", granted.Load(), failed.Load(), taken)
	}
}
