// Package faults tests on real servers what callers of a limiter see while connections stall, nodes
// hang, Redis is dead or there are too many callers, with a limit on the time for which a caller
// may notice it.
//
// This file has the helpers of all tests: a proxy in front of a server, a load of callers with a
// log of their results, and the checks that nothing remains. Each fault has its own file;
// worker_test.go is for tests with several processes.
package faults

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/rratelimiter/rratelimiter"
)

func TestMain(m *testing.M) {
	if words := os.Getenv(workerEnv); words != "" {
		os.Exit(workerMain(words))
	}
	flag.Parse()
	// Most tests with their own server mainly wait, so they can share the processors. (An error
	// means that the flag has another name, and they run a few at a time.)
	_ = flag.Set("test.parallel", "8")
	code := m.Run()
	if code == 0 && (*update || runsAll()) {
		if err := writePage(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// ample is a rate that refuses nothing and forgets nothing within a test, so that Redis keeps a
// record of each grant.
var ample = rratelimiter.PerHour(1_000_000_000)

// A proxy relays connections between clients and a server.
type proxy struct {
	tb    testing.TB
	proxy *toxiproxy.Proxy
}

// The directions of a proxy: requests go up, replies come down.
const (
	requests = "upstream"
	replies  = "downstream"
)

// newProxy starts a proxy of a server, which relays everything.
func newProxy(tb testing.TB, server string) *proxy {
	tb.Helper()
	api := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := toxiproxy.NewProxy(api, "proxy", "127.0.0.1:0", server)
	if err := p.Start(); err != nil {
		tb.Fatalf("start a proxy before %s: %v", server, err)
	}
	tb.Cleanup(p.Stop)
	return &proxy{tb, p}
}

// hold buffers everything in one direction from now on: release delivers it.
func (p *proxy) hold(direction string) (release func()) {
	p.tb.Helper()
	return p.delay(direction, time.Hour, 0)
}

// delay delays everything in one direction from now on, by latency plus or minus a random jitter:
// release ends that.
func (p *proxy) delay(direction string, latency, jitter time.Duration) (release func()) {
	p.tb.Helper()
	toxic, err := json.Marshal(map[string]any{
		"name": direction, "type": "latency", "stream": direction,
		"attributes": map[string]any{"latency": latency.Milliseconds(), "jitter": jitter.Milliseconds()},
	})
	if err != nil {
		p.tb.Error(err)
	}
	if _, err := p.proxy.Toxics.AddToxicJson(bytes.NewReader(toxic)); err != nil {
		p.tb.Errorf("delay the %s of %s: %v", direction, p.proxy.Upstream, err)
	}
	return func() {
		if err := p.proxy.Toxics.RemoveToxic(context.Background(), direction); err != nil {
			p.tb.Errorf("release the %s of %s: %v", direction, p.proxy.Upstream, err)
		}
	}
}

// dialOnce is a dialer whose first connection uses the proxy, and all others connect directly.
func (p *proxy) dialOnce() func(ctx context.Context, network, addr string) (net.Conn, error) {
	var dialled atomic.Int64
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if dialled.Add(1) == 1 {
			addr = p.proxy.Listen
		}
		var dialer net.Dialer
		return dialer.DialContext(ctx, network, addr)
	}
}

// A call is one call of a caller, and its result.
type call struct {
	Permits    int64
	Start, End time.Time
	Granted    bool
	Unknown    bool // ErrOutcomeUnknown

	err  error
	late time.Duration // delay of its start, because the machine was busy
}

func (c call) took() time.Duration { return c.End.Sub(c.Start) }

// ask makes a call and records it.
func ask(permits int64, acquire func() (granted bool, err error)) call {
	c := call{Permits: permits, Start: time.Now()}
	c.Granted, c.err = acquire()
	c.End = time.Now()
	c.Unknown = errors.Is(c.err, rratelimiter.ErrOutcomeUnknown)
	return c
}

// A record of calls, in no order.
type calls []call

// load runs callers that call repeatedly with a pause between: each often times, and at least until
// enough is closed.
func load(callers, often int, pause time.Duration, enough <-chan struct{}, once func(caller int) call) calls {
	logs := make([]calls, callers)
	var wg sync.WaitGroup
	for caller := range callers {
		wg.Go(func() {
			for {
				logs[caller] = append(logs[caller], once(caller))
				if len(logs[caller]) >= often {
					select {
					case <-enough:
						return
					default:
					}
				}
				time.Sleep(pause)
			}
		})
	}
	wg.Wait()
	return slices.Concat(logs...)
}

// arrive starts calls one after the other at fixed times, however long the earlier ones take, so
// that the calls during a stall show its effect. It returns once enough is closed and all calls are
// back.
func arrive(every time.Duration, enough <-chan struct{}, once func(i int) call) (all calls) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	next := time.Now()
	for i := 0; ; i++ {
		select {
		case <-enough:
			wg.Wait()
			return all
		case <-time.After(time.Until(next)):
		}
		late := time.Since(next)
		next = next.Add(every)
		wg.Go(func() {
			c := once(i)
			c.late = late
			mu.Lock()
			defer mu.Unlock()
			all = append(all, c)
		})
	}
}

// lasting returns a channel that is closed after a time.
func lasting(d time.Duration) <-chan struct{} {
	done := make(chan struct{})
	time.AfterFunc(d, func() { close(done) })
	return done
}

// lastingUntil returns a channel that is closed after a time, once so many permits are granted to
// the calls that are passed to counted: a busy machine takes longer, but not 20 s more.
func lastingUntil(d time.Duration, enough int64) (over <-chan struct{}, counted func(call) call) {
	var granted atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		time.Sleep(d)
		for end := time.Now().Add(20 * time.Second); granted.Load() < enough && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
		}
	}()
	return done, func(c call) call {
		if c.Granted {
			granted.Add(c.Permits)
		}
		return c
	}
}

func (all calls) where(chosen func(c call) bool) calls {
	return slices.DeleteFunc(slices.Clone(all), func(c call) bool { return !chosen(c) })
}

func failed(c call) bool    { return c.err != nil }
func answered(c call) bool  { return c.err == nil }
func isGranted(c call) bool { return c.Granted }
func isUnknown(c call) bool { return c.Unknown }

// permits of all calls.
func (all calls) permits() (sum int64) {
	for _, c := range all {
		sum += c.Permits
	}
	return sum
}

// percentile returns the duration that p of a hundred calls did not exceed.
func (all calls) percentile(p int) time.Duration { return percentile(all, p, call.took) }

// lateness returns the same of the delay with which calls began.
func (all calls) lateness(p int) time.Duration {
	return percentile(all, p, func(c call) time.Duration { return c.late })
}

func percentile(all calls, p int, of func(c call) time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.SortedFunc(slices.Values(all), func(a, b call) int { return cmp.Compare(of(a), of(b)) })
	return of(sorted[min(len(sorted)*p/100, len(sorted)-1)])
}

// quick returns the bound of what 99 of 100 callers may notice of a fault elsewhere. It is higher
// on a machine so busy that calls took a good part of it before the fault, or begin late during it,
// but mostly well below a call's timeout, which is the wait of callers that are blocked.
func quick(before, meanwhile calls) time.Duration {
	return min(max(250*time.Millisecond, 4*before.percentile(99)), 600*time.Millisecond) +
		machine*meanwhile.lateness(99)
}

// A round is one of the rounds of a test that judges fractions of a second.
type round struct{ slow []string }

// inRounds runs a test up to three times, until no bound was exceeded in a round: a busy machine
// can hold up all callers of a round, and what keeps callers waiting does so in each. With two busy
// loops beside the tests, that was seen in one round of forty, so a false alarm is one run of tens
// of thousands. All other errors of a round count at once.
func inRounds(t *testing.T, body func(t *testing.T, r *round)) {
	t.Helper()
	const rounds = 3
	for i := 1; ; i++ {
		r := &round{}
		body(t, r)
		if len(r.slow) == 0 {
			return
		}
		if i == rounds {
			t.Errorf("slow in %d rounds: %s", rounds, strings.Join(r.slow, "; "))
			return
		}
		t.Logf("round %d of %d: %s", i, rounds, strings.Join(r.slow, "; "))
	}
}

// wasSlow adds what can come of a busy machine. The test fails if each round has some.
func (r *round) wasSlow(format string, args ...any) {
	r.slow = append(r.slow, fmt.Sprintf(format, args...))
}

// atMost judges how long something took. It returns whether that is within the limit.
func (r *round) atMost(what string, took, limit time.Duration) bool {
	if took > limit {
		r.wasSlow("%s: %v, not %v", what, took, limit)
	}
	return took <= limit
}

// served judges calls that a fault elsewhere must not touch. One without an answer within its time
// was too slow; no other error may be.
func (r *round) served(t *testing.T, what string, all calls) {
	t.Helper()
	for _, c := range all.where(failed) {
		if errors.Is(c.err, os.ErrDeadlineExceeded) {
			r.wasSlow("%s: %v", what, c.err)
		} else {
			t.Errorf("%s: %v", what, c.err)
		}
	}
}

// A worst is the measurement of a row that several subtests make: the longest beyond the machine's
// own lateness.
type worst struct{ took, late time.Duration }

// note adds the measurement of a round, unless the round was slow.
func (w *worst) note(r *round, took, late time.Duration) {
	if len(r.slow) == 0 && (w.took == 0 || took-machine*late > w.took-machine*w.late) {
		*w = worst{took, late}
	}
}

// proves proves a row, unless the measurement exceeds its limit.
func (r *round) proves(t *testing.T, row row, measured time.Duration) {
	t.Helper()
	if r.atMost(row.fault+", "+row.within, measured, row.most()) {
		row.proves(t, measured)
	}
}

// used returns the permits in the records of limiters.
func used(t *testing.T, limiters ...*rratelimiter.Limiter) (sum int64) {
	t.Helper()
	for _, l := range limiters {
		state, err := l.State(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		sum += state.Used
	}
	return sum
}

// ownGoroutines counts the goroutines that run or wait in the library.
func ownGoroutines(t *testing.T) (count int) {
	t.Helper()
	var profile bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
		t.Fatal(err)
	}
	for stack := range strings.SplitSeq(profile.String(), "\n\n") {
		if strings.Contains(stack, "github.com/rratelimiter/rratelimiter.") {
			if i := strings.Index(stack, " @ "); i >= 0 {
				n, _ := strconv.Atoi(stack[strings.LastIndex(stack[:i], "\n")+1 : i])
				count += n
			}
		}
	}
	return count
}

// atRest waits until the library has no call in flight, and no timer that has fired. The test must
// not be parallel.
func atRest(t *testing.T) {
	t.Helper()
	eventually(t, "no goroutine of the library is left", func() bool { return ownGoroutines(t) == 0 })
}

// eventually waits until a condition holds that may take long on a busy machine.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	const limit = 30 * time.Second
	for deadline := time.Now().Add(limit); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}
