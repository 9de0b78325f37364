package smallscope

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/rratelimiter/rratelimiter/internal/deep"
	"github.com/rratelimiter/rratelimiter/internal/netpipe"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/record"
	"github.com/rratelimiter/rratelimiter/internal/replay"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

const ms = time.Millisecond

// scope returns a scope on the embedded server.
func scope(t *testing.T, rate int64, clients ...Client) Scope {
	server := miniredis.NewMiniRedis()
	rdb := redis.NewClient(&redis.Options{
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			pipe, err := server.Dial()
			if err != nil {
				return nil, err
			}
			return netpipe.Conn(pipe), nil
		},
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	t.Cleanup(func() { rdb.Close(); server.Close() })
	if err := rdb.ScriptLoad(t.Context(), protocol.ChargeScript.Text).Err(); err != nil {
		t.Fatal(err)
	}
	return Scope{
		Limiters: []protocol.Rate{{Permits: rate, Interval: 20}}, Times: Times,
		Clients: clients, Acquire: protocol.AcquireScript, Redis: rdb,
		SetTime: server.SetTime,
	}
}

// leased returns a client with leases that makes so many calls.
func leased(name string, calls int) Client {
	return Client{Name: name, Lease: 2 * ms, Ahead: 1, Callers: []Caller{Tries(calls, 1)}}
}

// granular returns a client with a granularity that makes so many calls.
func granular(name string, calls int) Client {
	return Client{Name: name, Granularity: 2 * ms, Callers: []Caller{Tries(calls, 1)}}
}

// plain returns a client without leases that asks once, for so many permits.
func plain(permits int64) Client { return Client{Name: "plain", Callers: []Caller{Tries(1, permits)}} }

// charging returns a client that charges so many permits so often. A debt is two intervals' permits
// at most.
func charging(times int, permits ...int64) []Foreign {
	args := func(n, now int64, id uint64) []any {
		identity, e := record.NewIdentity("charging"), new(protocol.Encoder)
		identity.StartAt(100 * id) // a charge draws many ids
		e.Init(protocol.Options{MaxDebt: 2}, identity, func() time.Time { return time.UnixMilli(now) })
		r := protocol.Charge{Parts: []protocol.ChargePart{{Encoder: e, Permits: n}}}
		return r.Args(nil, false)
	}
	return []Foreign{{
		Name: "charging", Comes: times, Sizes: permits, Charges: true, SHA: protocol.ChargeScript.SHA, Args: args,
		Keys: func(string) []string { return replay.Keys(0) },
	}}
}

// waiting returns a client without leases with these callers.
func waiting(callers ...Caller) Client { return Client{Name: "waiting", Callers: callers} }

// of returns callers of several limiters that want one permit of each.
func of(c Caller, limiters ...int) Caller {
	c.Of, c.Sizes = limiters, []int64{1}
	return c
}

// change returns clients of which the first one is changed.
func change(f func(c *Client), clients ...Client) []Client {
	f(&clients[0])
	return clients
}

// No interleaving lets a window of the interval hold more than the rate, leaves something counted
// for longer than an interval and the time of a lease, or breaks a rule of judge.go. The same for
// other scopes, and beside Redisson's script, is in compat/differential. least is how many states
// each search must visit, so that it cannot become empty.
func TestNoInterleavingBreaksARule(t *testing.T) {
	leaves := Waits(1, 2)
	leaves.Leaves = true
	brief := Waits(1)
	brief.Timeout = 10 * ms
	inTime := Waits(1, 1, 2)
	inTime.Timeout, inTime.Leaves = 20*ms, true
	early := Times[:4]
	// some permits that are granted at the first two return at the others
	queue := []time.Duration{ms, 2 * ms, 21 * ms, 23 * ms}
	for _, test := range []struct {
		name    string
		rate    int64
		clients []Client
		foreign []Foreign
		more    []protocol.Rate // of further limiters
		times   []time.Duration // nil: Times
		crashes int
		real    bool // with the bounds of what is taken ahead
		least   int
	}{
		{
			name: "a set and a single caller", least: 14000, rate: 3, more: []protocol.Rate{{Permits: 1, Interval: 40}},
			times:   []time.Duration{ms, 12 * ms, 41 * ms},
			clients: []Client{waiting(of(Tries(1), 1), of(leaves, 0, 1), Waits(1, 3))},
		},
		{
			name: "a set, a single caller and calls that stall", least: 12000, rate: 3,
			more:  []protocol.Rate{{Permits: 1, Interval: 40}},
			times: []time.Duration{ms, 12 * ms, 41 * ms},
			clients: change(func(c *Client) {
				c.Stalls = true
			}, waiting(of(Tries(1), 1), of(Waits(1), 0, 1), Waits(1, 3))),
		},
		{
			name: "two sets that share a limiter", least: 18000, rate: 1,
			more:    []protocol.Rate{{Permits: 1, Interval: 20}, {Permits: 1, Interval: 40}},
			times:   queue[:3],
			clients: []Client{waiting(of(leaves, 0, 1), of(brief, 0, 2), Tries(1, 1))},
		},
		{
			name: "a single caller with a timeout behind a set", least: 30000, rate: 2,
			more:    []protocol.Rate{{Permits: 3, Interval: 20}},
			times:   queue,
			clients: []Client{waiting(Tries(1, 2), of(Waits(1), 0, 1), inTime)},
		},
		{name: "leased and plain", least: 28000, rate: 5, real: true, clients: []Client{leased("leased", 2), plain(4)}},
		{
			name: "lost replies", least: 17000, rate: 2,
			clients: change(func(c *Client) { c.Retries = 1 }, leased("leased", 1), plain(2)),
		},
		{name: "crashes", least: 4500, rate: 2, crashes: 1, clients: []Client{leased("leased", 1), plain(2)}},
		{
			name: "calls that stall", least: 11000, rate: 3, times: early[:3],
			clients: change(func(c *Client) { c.Stalls = true }, leased("leased", 2), plain(3)),
		},
		{
			name: "a change", least: 20000, rate: 2,
			clients: change(func(c *Client) { c.Changes = 1 }, leased("leased", 1), plain(2)),
		},
		{
			name: "a change while a caller waits", least: 7000, rate: 3, times: early[:1],
			clients: change(func(c *Client) {
				c.Changes = 1
				c.Callers = append(c.Callers, Waits(1, 1))
			}, leased("leased", 2), plain(2)),
		},
		{
			name: "requests that a lease is too small for", least: 10000, rate: 5, times: early[:2],
			clients: change(func(c *Client) { c.Callers[0].Sizes = []int64{1, 2} }, leased("leased", 2), plain(2)),
		},
		{
			name: "a clock that is set back", least: 7000, rate: 2,
			clients: change(func(c *Client) { c.Back = ms }, leased("leased", 1), plain(2)),
		},
		{
			name: "granularity and lost replies", least: 15000, rate: 2,
			clients: change(func(c *Client) { c.Retries = 1 }, granular("granular", 2), plain(2)),
		},
		{
			name: "granularity and calls that stall", least: 15000, rate: 2, times: early[:3],
			clients: change(func(c *Client) { c.Retries = 1; c.Stalls = true }, granular("granular", 2), plain(1)),
		},
		{
			name: "the server's time", least: 11000, rate: 2,
			clients: change(func(c *Client) { c.ByServer = true; c.Back = ms }, leased("leased", 1), plain(2)),
		},
		{
			name: "the server's time and lost replies", least: 12000, rate: 2, times: early,
			clients: change(func(c *Client) { c.ByServer = true; c.Retries = 1 }, leased("leased", 1), plain(2)),
		},
		{
			name: "a caller that waits ends leases", least: 19000, rate: 3,
			clients: change(func(c *Client) {
				c.Callers = append(c.Callers, Waits(1, 2))
			}, leased("leased", 1), plain(3)),
		},
		{
			name: "callers that wait", least: 17000, rate: 3, times: queue[1:],
			clients: []Client{waiting(leaves, Waits(1, 1, 3), Tries(1, 1)), plain(2)},
		},
		{
			name: "callers that wait and calls that stall", least: 12000, rate: 3, times: queue,
			clients: change(func(c *Client) { c.Stalls = true }, waiting(leaves, Waits(1, 3)), plain(2)),
		},
		{
			name:    "callers that try behind one that waits and calls that stall",
			least:   17000,
			rate:    3,
			times:   queue[1:],
			clients: change(func(c *Client) { c.Stalls = true }, waiting(Waits(1, 3), Tries(2, 1)), plain(2)),
		},
		{
			name: "lost replies to callers that wait", least: 9500, rate: 3, times: queue[1:],
			clients: change(func(c *Client) { c.Retries = 1 }, waiting(leaves, Waits(1, 1)), plain(2)),
		},
		{
			name: "callers that wait and calls that stall and fail", least: 25000, rate: 2, times: queue[:2],
			clients: change(func(c *Client) {
				c.Retries, c.Stalls = 1, true
			}, waiting(Waits(1, 2), Waits(1, 1), Tries(1, 1))),
		},
		{
			name: "callers that leave permits to Redisson", least: 16000, rate: 3,
			times:   []time.Duration{ms, 21 * ms, 23 * ms, 27 * ms},
			clients: change(func(c *Client) { c.Redisson = true }, waiting(leaves, leaves, Tries(2, 1))),
		},
		{
			name: "a charge beside a lease", least: 30000, rate: 3,
			clients: []Client{leased("leased", 1)}, foreign: charging(2, 1, 4),
		},
		{
			name: "a charge beside granularity and lost replies", least: 15000, rate: 2,
			clients: change(func(c *Client) { c.Retries = 1 }, granular("granular", 2)), foreign: charging(1, 3),
		},
		{
			name: "charges beside callers that wait", least: 15000, rate: 3,
			times:   []time.Duration{ms, 21 * ms, 41 * ms, 62 * ms},
			clients: []Client{waiting(leaves, Waits(1, 1))}, foreign: charging(2, 4),
		},
		{
			name: "callers with timeouts", least: 6000, rate: 2, times: queue,
			clients: []Client{
				waiting(
					Caller{Kind: schedule.Wait, Of: []int{0}, Sizes: []int64{1, 2}, Comes: 1, Timeout: 20 * ms},
					Waits(1, 1),
				),
				plain(2),
			},
		},
		{
			name: "callers that fail fast", least: 7000, rate: 2, times: queue,
			clients: change(func(c *Client) { c.FailFast = true }, waiting(inTime, Waits(1, 1)), plain(2)),
		},
		{
			name: "a record for each grant", least: 9500, rate: 3, times: queue[1:],
			clients: change(func(c *Client) { c.Each, c.Retries = true, 1 }, waiting(leaves, Waits(1, 1)), plain(2)),
		},
		{
			name: "a caller that takes what is free", least: 4000, rate: 3, times: queue,
			clients: []Client{
				waiting(Waits(1, 2), Caller{Kind: schedule.UpTo, Of: []int{0}, Sizes: []int64{3}, Comes: 1}), plain(2),
			},
		},
		{
			name: "a change while a lease is renewed", least: 9000, rate: 3, times: early[:3],
			clients: change(func(c *Client) { c.Changes = 1 }, leased("leased", 2)),
		},
		{
			name: "a lease beside a set", least: 2500, rate: 3, more: []protocol.Rate{{Permits: 1, Interval: 20}},
			times:   []time.Duration{ms, 2 * ms, 21 * ms},
			clients: change(func(c *Client) { c.Callers = append(c.Callers, of(leaves, 0, 1)) }, leased("leased", 1)),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := scope(t, test.rate, test.clients...)
			s.Limiters = append(s.Limiters, test.more...)
			s.Foreign, s.Crashes = test.foreign, test.crashes
			if test.times != nil {
				s.Times = test.times
			}
			if !test.real {
				s.Acquire = replay.Unbounded()
			}
			began := time.Now()
			r, err := Explore(t.Context(), s)
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

// The search finds what is wrong: with a script that dates records too early, or grants too much,
// it ends with a violation.
func TestASearchFindsFaults(t *testing.T) {
	for _, fault := range []struct {
		name, right, wrong string
		client             Client
	}{
		{
			"a lease is dated at the begin of its bucket", "return math.ceil((lease", "return math.floor((lease",
			leased("leased", 2),
		},
		{"what a lease takes has no record", "left = left - ahead\n", "\n", leased("leased", 2)},
		{"a grant that joins a record replaces it", "taken + held, score)", "taken, score)", granular("granular", 2)},
	} {
		t.Run(fault.name, func(t *testing.T) {
			s := scope(t, 2, fault.client, plain(2))
			right := replay.Unbounded().Text
			wrong := strings.Replace(right, fault.right, fault.wrong, 1)
			s.Acquire = script.New(wrong)
			r, err := Explore(t.Context(), s)
			if wrong == right || !errors.Is(err, deep.ErrViolation) {
				t.Errorf("%+v, %v", r, err)
			}
			t.Log(err)
		})
	}
}
