package soak

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// strikes_test.go has the faults, and waits after each until all clients are back.

// A striker causes the faults.
type striker struct {
	t       *testing.T
	server  *redistest.Server
	proxy   *proxy
	judge   *judge
	limits  []limit
	random  *rand.Rand
	admin   *redis.Client
	clients []*client
	wrong   atomic.Int64 // ns by which the clock of one Go client is wrong
	tally   map[string]*toll
}

// A toll is the effect of one fault, over all its strikes.
type toll struct {
	times   int
	longest time.Duration // until all clients were back
	last    string        // the client that took longest
}

// strikes are all faults; the flag marks those that remove a limiter's state, or let a client get
// more than the rate.
var strikes = []struct {
	name    string
	forgets bool
	strike  func(s *striker)
}{
	{"killed, restarted empty", true, func(s *striker) {
		s.server.Kill()
		s.sleep(50, 800)
		s.server.Restart()
	}},
	{"hung", false, func(s *striker) {
		s.server.Pause()
		s.sleep(100, 2000)
		s.server.Resume()
	}},
	{"scripts flushed", false, func(s *striker) {
		for range 20 {
			s.must("script", "flush")
			s.sleep(5, 20)
		}
	}},
	{"a key evicted", true, func(s *striker) {
		name := s.limits[s.random.IntN(len(s.limits))].name
		value, permits := "{"+name+"}:value", "{"+name+"}:permits"
		keys := [][]any{{"del", name}, {"del", permits}, {"del", value}}
		if *java {
			// Redisson treats a limiter without a value as a fresh one, whatever is recorded, and
			// so grants twice the rate under a continuous load.
			keys[2] = append(keys[2], permits)
		}
		s.must(keys[s.random.IntN(len(keys))]...)
	}},
	{"clients killed", false, func(s *striker) {
		for range 3 {
			s.killClients()
			s.sleep(20, 200)
		}
	}},
	{"a replica of nobody", false, func(s *striker) { // READONLY
		s.must("replicaof", "127.0.0.1", "1")
		s.sleep(100, 1000)
		s.must("replicaof", "no", "one")
	}},
	{"out of memory", false, func(s *striker) { // OOM
		s.must("config", "set", "maxmemory", "1")
		s.sleep(100, 1000)
		s.must("config", "set", "maxmemory", "0")
	}},
	{"a clock was wrong", true, func(s *striker) { // which lets others be granted more, or this client
		s.wrong.Store(int64(time.Duration(s.random.IntN(4000)-2000) * time.Millisecond))
		s.sleep(100, 1000)
		s.wrong.Store(0)
	}},
	{"slow", false, func(s *striker) {
		release := s.proxy.poison("latency", map[string]any{"latency": 100, "jitter": 80})
		s.sleep(300, 1500)
		release()
	}},
	{"connections cut", false, func(s *striker) {
		for range 3 {
			release := s.proxy.poison("reset_peer", map[string]any{"timeout": 0})
			s.sleep(20, 300)
			release()
			s.sleep(20, 200)
		}
	}},
}

// strikeUntil causes faults until its context ends: each at least once, in a soak of some minutes.
func (s *striker) strikeUntil(ctx context.Context) {
	s.tally = map[string]*toll{}
	s.sleep(300, 500)
	for order := s.random.Perm(len(strikes)); ctx.Err() == nil; {
		if len(order) == 0 {
			order = s.random.Perm(len(strikes))
		}
		f := strikes[order[0]]
		order = order[1:]
		if f.forgets {
			s.judge.end()
		}
		f.strike(s)
		struck := time.Now()
		back, last := s.back(ctx, struck)
		if ctx.Err() != nil {
			return
		}
		s.t.Logf(
			"%s until %s, all back after %v, %s last", f.name, struck.Format("15:04:05.000"),
			back.Round(time.Millisecond), last,
		)
		if s.tally[f.name] == nil {
			s.tally[f.name] = &toll{}
		}
		tally := s.tally[f.name]
		if tally.times++; back > tally.longest {
			tally.longest, tally.last = back, last
		}
		if f.forgets {
			rest(ctx, s.judge.settled())
			s.judge.begin()
		}
		rest(ctx, time.Duration(s.random.IntN(1500))*time.Millisecond)
	}
}

// back waits until all clients got a grant since a time, and returns how long that took, and which
// client was the last.
func (s *striker) back(ctx context.Context, since time.Time) (took time.Duration, last string) {
	last = s.clients[0].name
	for time.Since(since) < comebackIn {
		missing := ""
		for _, c := range s.clients {
			if c.last.Load() <= since.UnixNano() {
				missing = c.name
			}
		}
		if missing == "" || ctx.Err() != nil {
			return time.Since(since), last
		}
		last = missing
		time.Sleep(5 * time.Millisecond)
	}
	s.t.Errorf("%s was granted nothing within %v", last, comebackIn)
	return comebackIn, last
}

// comeback fails the test unless each limiter has all its permits free at the end.
func (s *striker) comeback() {
	time.Sleep(s.judge.settled())
	setter := rratelimiter.NewClient(s.admin)
	for _, l := range s.limits {
		limiter := setter.RateLimiter(l.name, rratelimiter.WithRate(l.rate))
		free, err := limiter.AvailablePermits(s.t.Context())
		if err != nil || free != l.rate.Permits {
			s.t.Errorf("%s, once all is over: %d of %d are free, %v", l.name, free, l.rate.Permits, err)
		}
		if state, err := limiter.State(s.t.Context()); err != nil || !state.Consistent {
			s.t.Errorf("%s, once all is over: %+v, %v", l.name, state, err)
		}
	}
}

// sleep sleeps for a random time between two, in ms.
func (s *striker) sleep(least, most int) {
	time.Sleep(time.Duration(least+s.random.IntN(most-least)) * time.Millisecond)
}

// must runs a command of an administrator.
func (s *striker) must(args ...any) {
	if err := s.admin.Do(context.Background(), args...).Err(); err != nil {
		s.t.Errorf("%v: %v", args, err)
	}
}

// killClients closes the connections of all clients but the monitoring ones.
func (s *striker) killClients() {
	ctx := context.Background()
	list, err := s.admin.ClientList(ctx).Result()
	if err != nil {
		s.t.Errorf("list the clients: %v", err)
		return
	}
	for line := range strings.Lines(list) {
		fields := map[string]string{}
		for _, field := range strings.Fields(line) {
			key, value, _ := strings.Cut(field, "=")
			fields[key] = value
		}
		if !strings.Contains(fields["flags"], "O") && fields["cmd"] != "client" {
			_ = s.admin.Do(ctx, "client", "kill", "id", fields["id"]).Err() // it may be closed already
		}
	}
}

func (s *striker) report() string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "survived\ttimes\tall clients back after, at most\tthe last")
	for _, f := range strikes {
		if tally := s.tally[f.name]; tally != nil {
			fmt.Fprintf(w, "%s\t%d\t%v\t%s\n", f.name, tally.times, tally.longest.Round(time.Millisecond), tally.last)
		}
	}
	_ = w.Flush()
	return text.String()
}

// A proxy relays connections between some of the clients and the server.
type proxy struct {
	t     *testing.T
	proxy *toxiproxy.Proxy
}

func newProxy(t *testing.T, server string) *proxy {
	t.Helper()
	api := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := toxiproxy.NewProxy(api, "proxy", "127.0.0.1:0", server)
	if err := p.Start(); err != nil {
		t.Fatalf("start a proxy before %s: %v", server, err)
	}
	t.Cleanup(p.Stop)
	return &proxy{t, p}
}

func (p *proxy) addr() string { return p.proxy.Listen }

// poison disturbs the replies from now on, until release is called.
func (p *proxy) poison(kind string, attributes map[string]any) (release func()) {
	toxic, err := json.Marshal(
		map[string]any{"name": kind, "type": kind, "stream": "downstream", "attributes": attributes},
	)
	if err == nil {
		_, err = p.proxy.Toxics.AddToxicJson(bytes.NewReader(toxic))
	}
	if err != nil {
		p.t.Errorf("%s: %v", kind, err)
		return func() {}
	}
	return func() {
		if err := p.proxy.Toxics.RemoveToxic(context.Background(), kind); err != nil {
			p.t.Errorf("end %s: %v", kind, err)
		}
	}
}

// rest sleeps for a time, or until a context ends.
func rest(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
