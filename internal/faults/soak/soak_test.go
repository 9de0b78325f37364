// Package soak loads limiters with Go and Java clients while random faults of their Redis occur one
// after the other, and checks all the time that no window holds more than the rate and that all
// clients get grants again.
//
// As a part of all tests it takes a few seconds, with only Go clients. make soak takes ten minutes,
// with Java; RUN='-minutes 2' sets the minutes.
//
// This file has the load and the report; strikes_test.go the faults, judge_test.go the checks.
package soak

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/compat/redisson"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

var (
	minutes = flag.Float64("minutes", 0, "how long it takes; 0: a few seconds")
	java    = flag.Bool("java", false, "with Redisson clients")
	seed    = flag.Uint64("seed", 0, "of what strikes when; 0: another one each time")
)

const (
	briefly     = 4 * time.Second
	patience    = 2 * time.Second // of a Go caller
	late        = 2 * time.Second // added to that for a busy machine
	comebackIn  = 30 * time.Second
	perGo       = 6               // goroutines of a Go client on a limiter
	perJava     = 3               // threads of a Java client on a limiter
	callTimeout = 5 * time.Second // of Java clients, for a command
)

var javaVersions = []string{"3.17.5", "4.7.0"}

// A limit is what all clients share under one name.
type limit struct {
	name string
	rate rratelimiter.Rate
	opts []rratelimiter.LimiterOption // of Go clients
	// joined: records are replaced by larger ones, which are not grants of their own, so their
	// scores can't be checked.
	joined bool
}

func limits() []limit {
	rate := func(permits int64, interval time.Duration) rratelimiter.Rate {
		return rratelimiter.Rate{Permits: permits, Interval: interval}
	}
	return []limit{
		{name: "soak:fast", rate: rate(20, 200*time.Millisecond)},
		{name: "soak:slow", rate: rate(100, time.Second)},
		{name: "soak:each", rate: rate(50, 500*time.Millisecond),
			opts: []rratelimiter.LimiterOption{rratelimiter.WithRecordPerRequest()}},
		{name: "soak:joined", rate: rate(60, time.Second), joined: true,
			opts: []rratelimiter.LimiterOption{rratelimiter.WithGranularity(50 * time.Millisecond)}},
	}
}

// A client is one user of the limits. The time of its last grant, on any limit, shows whether it is
// back.
type client struct {
	name   string
	last   atomic.Int64 // ns since 1970
	grants atomic.Int64
	denied atomic.Int64
	failed atomic.Int64

	mu     sync.Mutex
	errors map[string]int
}

// note counts an error by its text, without the parts that vary: at its end, and in Java at the
// beginning.
func (c *client) note(err error) {
	c.failed.Add(1)
	text := err.Error()
	var thrown *redisson.Error
	switch {
	case errors.Is(err, rratelimiter.ErrOutcomeUnknown):
		text = "outcome unknown"
	case errors.Is(err, rratelimiter.ErrNotInitialized), strings.Contains(text, "is not initialized"):
		text = "not initialized"
	case errors.Is(err, context.DeadlineExceeded):
		text = "the caller's deadline"
	case errors.As(err, &thrown):
		all := words(thrown.Message)
		text = thrown.Class[strings.LastIndexByte(thrown.Class, '.')+1:] + ": " +
			strings.Join(all[:min(len(all), 12)], " ")
	default:
		all := words(text)
		text = strings.Join(all[max(0, len(all)-5):], " ")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.errors == nil {
		c.errors = map[string]int{}
	}
	c.errors[text]++
}

// words returns the words of a text, without figures, addresses and braces.
func words(text string) []string {
	fields := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \t,;:[](){}/", r) })
	return slices.DeleteFunc(fields, func(f string) bool { return strings.ContainsAny(f, "0123456789@=") })
}

func (c *client) granted(end time.Time) {
	c.grants.Add(1)
	for {
		last := c.last.Load()
		if end.UnixNano() <= last || c.last.CompareAndSwap(last, end.UnixNano()) {
			return
		}
	}
}

func TestSoak(t *testing.T) {
	length := time.Duration(*minutes * float64(time.Minute))
	if length == 0 {
		length = briefly
	}
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	t.Logf("%v, -seed %d", length, *seed)
	if *java {
		if err := redisson.Build(t.Context(), javaVersions...); err != nil {
			t.Fatal(err)
		}
	}
	server := redistest.Real(t)
	detour := newProxy(t, server.Addr)
	all := limits()
	j := newJudge(t, server, all)
	s := &striker{
		t: t, server: server, proxy: detour, judge: j, limits: all,
		random: rand.New(rand.NewPCG(*seed, 0)), admin: server.Client(),
	}
	setter := rratelimiter.NewClient(server.Client())
	for _, l := range all {
		if err := setter.RateLimiter(l.name).SetRate(t.Context(), l.rate); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithTimeout(t.Context(), length)
	defer stop()
	var clients []*client
	var loading sync.WaitGroup
	// one client of each kind straight, the other through the proxy
	addrs := []string{server.Addr, detour.addr()}
	for i, addr := range addrs {
		c := &client{name: fmt.Sprint("Go ", i+1)}
		clients = append(clients, c)
		rdb := server.Client(func(o *redis.Options) { o.Addr = addr })
		var opts []rratelimiter.Option
		if i == 0 {
			opts = append(
				opts, rratelimiter.WithClock(func() time.Time { return time.Now().Add(time.Duration(s.wrong.Load())) }),
			)
		}
		loading.Go(func() { runGo(ctx, t, c, rratelimiter.NewClient(rdb, opts...), j, all) })
	}
	if *java {
		for i, version := range javaVersions {
			c := &client{name: "Java " + version}
			clients = append(clients, c)
			process := redisson.Start(t, version, redisson.Addr(addrs[i]), redisson.CommandTimeout(callTimeout))
			loading.Go(func() { runJava(ctx, t, c, process, j, all, length) })
		}
	}
	s.clients = clients
	s.strikeUntil(ctx)
	loading.Wait()
	j.end()
	s.comeback() // of the limiters: all is free again
	t.Log("\n" + s.report() + "\n" + j.report() + "\n" + reportOf(clients))
}

// runGo uses every method, for 1 to 4 permits, until its time is over.
func runGo(ctx context.Context, t *testing.T, c *client, gos *rratelimiter.Client, j *judge, all []limit) {
	var wg sync.WaitGroup
	for _, l := range all {
		limiter := gos.RateLimiter(l.name, append(slices.Clone(l.opts), rratelimiter.WithRate(l.rate))...)
		for range perGo {
			wg.Go(func() {
				for ctx.Err() == nil {
					n := 1 + rand.Int64N(4)
					start := time.Now()
					ok, err := anyWay(ctx, limiter, n)
					end := time.Now()
					if took := end.Sub(start); took > patience+late {
						t.Errorf("%s: a call with %v took %v: %v", c.name, patience, took, err)
					}
					switch {
					case ok:
						c.granted(end)
						j.granted(l.name, window.Grant{Permits: n, Start: start, End: end})
					case ctx.Err() != nil:
					case err != nil:
						c.note(err)
						time.Sleep(20 * time.Millisecond)
					default:
						c.denied.Add(1)
						time.Sleep(rand.N(40 * time.Millisecond))
					}
				}
			})
		}
	}
	wg.Wait()
}

// anyWay acquires permits with a random method, and returns whether all were granted.
func anyWay(ctx context.Context, l *rratelimiter.Limiter, n int64) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	switch rand.IntN(4) {
	case 0:
		result, err := l.Allow(ctx, n)
		return result.Allowed, err
	case 1:
		return l.TryAcquire(ctx, n)
	case 2:
		return l.TryAcquireTimeout(ctx, n, rand.N(patience/2))
	default:
		err := l.Acquire(ctx, n)
		return err == nil, err
	}
}

// runJava lets threads of a Java client acquire on each limit, every second limit blocked.
func runJava(
	ctx context.Context, t *testing.T, c *client, process *redisson.Process, j *judge, all []limit,
	length time.Duration,
) {
	var wg sync.WaitGroup
	for i, l := range all {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), length+time.Minute)
			defer cancel()
			result, err := process.Run(ctx, l.name, redisson.Work{
				Blocked: i%2 == 0, Threads: perJava, For: length, Min: 1, Max: 4, Pause: 20 * time.Millisecond,
				Grace: 10 * time.Second,
				OnGrant: func(g redisson.Grant) {
					c.granted(g.End)
					j.granted(l.name, window.Grant{Permits: g.Permits, Start: g.Start, End: g.End})
				},
			})
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
				return
			}
			c.denied.Add(result.Denied)
			for _, fault := range result.Faults {
				c.note(fault)
			}
		})
	}
	wg.Wait()
}

func reportOf(clients []*client) string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "client\tgranted\trefused\tfailed\twith")
	for _, c := range clients {
		var kinds []string
		for kind, n := range c.errors {
			kinds = append(kinds, fmt.Sprintf("%d %s", n, kind))
		}
		slices.Sort(kinds)
		fmt.Fprintf(
			w, "%s\t%d\t%d\t%d\t%s\n", c.name, c.grants.Load(), c.denied.Load(), c.failed.Load(),
			strings.Join(kinds, "; "),
		)
	}
	_ = w.Flush()
	return text.String()
}

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(m.Run())
}
