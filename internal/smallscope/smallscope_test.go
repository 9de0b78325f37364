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

	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/roomy"
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
			return roomy.Conn(pipe), nil
		},
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	t.Cleanup(func() { rdb.Close(); server.Close() })
	return Scope{
		Rate: rate, Interval: 20 * ms, Times: Times,
		Clients: clients, Acquire: protocol.AcquireScript, Release: protocol.ReleaseScript, Redis: rdb, SetTime: server.SetTime,
	}
}

// leased returns a client with leases that makes so many calls.
func leased(name string, calls int) Client {
	return Client{Name: name, Lease: 2 * ms, Ahead: []int64{1}, Sizes: []int64{1}, Calls: calls}
}

// granular returns a client with a granularity that makes so many calls.
func granular(name string, calls int) Client {
	return Client{Name: name, Granularity: 2 * ms, Sizes: []int64{1}, Calls: calls}
}

// plain returns a client without leases that asks once, for so many permits.
func plain(permits int64) Client { return Client{Name: "plain", Sizes: []int64{permits}, Calls: 1} }

// change returns clients of which the first one is changed.
func change(f func(c *Client), clients ...Client) []Client {
	f(&clients[0])
	return clients
}

// No interleaving lets a window of the interval hold more than the rate, or leaves something counted for longer than an
// interval and the time of a lease. The same for larger scopes, and beside Redisson's script, is in compat/differential.
// least is how many states each search must visit, so that it cannot become empty.
func TestNoInterleavingExceedsTheRate(t *testing.T) {
	for _, test := range []struct {
		name    string
		rate    int64
		clients []Client
		crashes int
		real    bool // with the bounds of what is taken ahead
		least   int
	}{
		{name: "leased and plain", least: 16000, rate: 5, real: true, clients: []Client{leased("leased", 2), plain(4)}},
		{name: "lost replies", least: 9000, rate: 2, clients: change(func(c *Client) { c.Retries = 1 }, leased("leased", 1), plain(2))},
		{name: "crashes", least: 38000, rate: 2, crashes: 1, clients: []Client{leased("leased", 2), plain(2)}},
		{name: "calls that stall", least: 27000, rate: 3, clients: change(func(c *Client) { c.Stalls = true }, leased("leased", 2), plain(3))},
		{name: "leases that end early", least: 26000, rate: 3, clients: change(func(c *Client) { c.Ends = 1 }, leased("leased", 2), plain(3))},
		{name: "a clock that is set back", least: 41000, rate: 2, clients: change(func(c *Client) { c.Back = ms }, leased("leased", 2), plain(2))},
		{name: "granularity and lost replies", least: 13000, rate: 2, clients: change(func(c *Client) { c.Retries = 1 }, granular("granular", 2), plain(2))},
		{name: "granularity and calls that stall", least: 86000, rate: 2, clients: change(func(c *Client) { c.Retries = 1; c.Stalls = true }, granular("granular", 2), plain(1))},
		{name: "the server's time", least: 5000, rate: 2, clients: change(func(c *Client) { c.ByServer = true; c.Back = ms }, leased("leased", 1), plain(2))},
		{name: "the server's time and lost replies", least: 13000, rate: 2, clients: change(func(c *Client) { c.ByServer = true; c.Retries = 1 }, leased("leased", 1), plain(2))},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := scope(t, test.rate, test.clients...)
			s.Crashes = test.crashes
			if !test.real {
				s.Acquire = Unbounded()
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

// The search finds what is wrong: with a script that dates records too early, or grants too much, it ends with a violation.
func TestASearchFindsFaults(t *testing.T) {
	for _, fault := range []struct {
		name, right, wrong string
		client             Client
	}{
		{"a lease is dated at the begin of its bucket", "return math.ceil((lease", "return math.floor((lease", leased("leased", 2)},
		{"what a lease takes has no record", "left = left - ahead\n", "\n", leased("leased", 2)},
		{"a grant that joins a record replaces it", "taken + held, score)", "taken, score)", granular("granular", 2)},
	} {
		t.Run(fault.name, func(t *testing.T) {
			s := scope(t, 2, fault.client, plain(2))
			right := Unbounded().Text
			wrong := strings.Replace(right, fault.right, fault.wrong, 1)
			s.Acquire = script.New(wrong)
			r, err := Explore(t.Context(), s)
			if wrong == right || !errors.Is(err, ErrViolation) {
				t.Errorf("%+v, %v", r, err)
			}
			t.Log(err)
		})
	}
}
