package differential

import (
	"fmt"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/replay"
	"github.com/rratelimiter/rratelimiter/internal/smallscope"
)

// interleavings_test.go runs all interleavings of clients with leases, clients without, and
// Redisson's script, in small scopes. Package smallscope has the search, and a test of the scopes
// without Redisson that need no server.

// foreign returns Redisson's tryAcquire.
func (w wire) foreign(version string) smallscope.Foreign {
	script := w[version][tryAcquire]
	return smallscope.Foreign{
		SHA: script.sha,
		Keys: func(name string) (keys []string) {
			all := keysOf(name, clientID)
			for _, at := range script.keys {
				keys = append(keys, all[at])
			}
			return keys
		},
		Args: func(n, now int64, id uint64) []any {
			text := fmt.Sprintf("%0*x", script.idLength, id)
			return []any{n, now, text[len(text)-script.idLength:]}
		},
	}
}

// No interleaving lets a window of the interval hold more than the rate. least is how many states
// each search must visit.
func TestNoInterleavingExceedsTheRate(t *testing.T) {
	const ms = time.Millisecond
	w := learn(t)
	leased := func(name string, calls, retries int) smallscope.Client {
		return smallscope.Client{
			Name: name, Lease: 2 * ms, Ahead: 1, Callers: []smallscope.Caller{smallscope.Tries(calls, 1)},
			Retries: retries,
		}
	}
	plain := func(permits int64, retries int) smallscope.Client {
		return smallscope.Client{
			Name:    "plain",
			Callers: []smallscope.Caller{smallscope.Tries(1, permits)},
			Retries: retries,
		}
	}
	java := func(version string, permits int64, calls int) []smallscope.Foreign {
		f := w.foreign(version)
		f.Name, f.Sizes, f.Comes = "Redisson "+version, []int64{permits}, calls
		return []smallscope.Foreign{f}
	}
	change := func(f func(c *smallscope.Client), clients ...smallscope.Client) []smallscope.Client {
		f(&clients[0])
		return clients
	}
	waiting := func(callers ...smallscope.Caller) smallscope.Client {
		return smallscope.Client{Name: "waiting", Callers: callers}
	}
	early := smallscope.Times[:3]
	queue := []time.Duration{ms, 2 * ms, 21 * ms, 23 * ms, 27 * ms}
	for _, test := range []struct {
		name    string
		rate    int64
		clients []smallscope.Client
		java    []smallscope.Foreign
		crashes int
		times   []time.Duration // nil: smallscope.Times
		real    bool            // with the bounds of what is taken ahead
		least   int
	}{
		{
			name: "leased, and Redisson twice", least: 72000, rate: 2,
			clients: []smallscope.Client{leased("leased", 2, 0)}, java: java(newest, 1, 2),
		},
		{
			name: "leased, plain and Redisson", least: 30000, times: early, rate: 3,
			clients: []smallscope.Client{leased("leased", 2, 0), plain(1, 0)}, java: java(newest, 3, 1),
		},
		{
			name: "leased, plain and an old Redisson", least: 26000, rate: 2,
			clients: []smallscope.Client{leased("leased", 1, 0), plain(1, 0)}, java: java("3.17.5", 2, 1),
		},
		{
			name: "lost replies beside Redisson", least: 17000, rate: 2,
			clients: []smallscope.Client{leased("leased", 1, 1)}, java: java(newest, 2, 1),
		},
		{
			name: "with its bounds, beside Redisson", least: 29000, real: true, rate: 5,
			clients: []smallscope.Client{leased("leased", 2, 0)}, java: java(newest, 4, 1),
		},
		{
			name: "two leased and Redisson", least: 21000, times: early, rate: 3,
			clients: []smallscope.Client{leased("leased", 1, 0), leased("second", 1, 0)}, java: java(newest, 3, 1),
		},
		{
			name: "two leased and plain", least: 21000, times: early, rate: 3,
			clients: []smallscope.Client{leased("leased", 1, 0), leased("second", 1, 0), plain(3, 0)},
		},
		{
			name: "lost replies", least: 16000, times: early, rate: 2,
			clients: []smallscope.Client{leased("leased", 2, 1), plain(2, 0)},
		},
		{
			name: "a change", least: 19000, times: early, rate: 2,
			clients: change(func(c *smallscope.Client) { c.Changes = 1 }, leased("leased", 2, 0), plain(2, 0)),
		},
		{
			name: "larger leases", least: 29000, times: early, rate: 3,
			clients: change(func(c *smallscope.Client) {
				c.Ahead, c.Callers[0].Sizes = 2, []int64{1, 2}
			}, leased("leased", 2, 0)), java: java(newest, 3, 1),
		},
		{
			name: "crashes and lost replies", least: 5000, times: early, rate: 2, crashes: 1,
			clients: []smallscope.Client{leased("leased", 1, 1), plain(2, 0)},
		},
		{
			name: "callers that wait, and Redisson", least: 50000, rate: 3, times: queue,
			clients: []smallscope.Client{
				waiting(smallscope.Waits(1, 1), smallscope.Waits(1, 2), smallscope.Tries(1, 1)),
			},
			java: java(newest, 2, 1),
		},
		{
			name: "lost replies of both", least: 12000, times: early, rate: 2,
			clients: []smallscope.Client{leased("leased", 1, 1), plain(2, 1)},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := redistest.Real(t)
			rdb := server.Client()
			w.load(t, rdb)
			scope := smallscope.Scope{
				Limiters: []protocol.Rate{{Permits: test.rate, Interval: 20}}, Times: smallscope.Times,
				Clients: test.clients, Foreign: test.java, Crashes: test.crashes,
				Acquire: protocol.AcquireScript, Redis: rdb,
			}
			if !test.real {
				scope.Acquire = replay.Unbounded()
			}
			if test.times != nil {
				scope.Times = test.times
			}
			began := time.Now()
			r, err := smallscope.Explore(t.Context(), scope)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%+v in %v", r, time.Since(began).Round(ms))
			if r.States < test.least || r.Leased == 0 && test.clients[0].Lease > 0 || r.Full == 0 {
				t.Errorf("only %d states were visited", r.States)
			}
		})
	}
}
