package connect_test

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/rrltest"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// The plain address of a node is that of its cluster, also if the node was away at the start. The
// cluster answers while one of its masters does.
func TestALinkToACluster(t *testing.T) {
	nodes := redistest.Cluster(t, 3)
	nodes.Servers[0].Kill()
	l, err := connect.Dial(t.Context(), connect.Flags{Address: nodes.Addrs()[0], Timeout: time.Minute}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.Ping(t.Context()); err == nil {
		t.Error("a node that is away answers")
	}
	nodes.Servers[0].Restart()
	s, err := l.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if _, cluster := s.Redis.(*redis.ClusterClient); !cluster {
		t.Errorf("it is connected by a %T", s.Redis)
	}
	for i, server := range nodes.Servers {
		if err := l.Ping(t.Context()); err != nil {
			t.Errorf("without %d of 3 masters: %v", i, err)
		}
		if err := l.Writable(t.Context()); i == 0 && err != nil {
			t.Errorf("with all masters it takes no writes: %v", err)
		}
		server.Kill()
	}
	if err := l.Ping(t.Context()); err == nil {
		t.Error("without masters it answers")
	}
}

// A user that may not write the key of the probe, or not by ZADD, is no reason to count a server as
// one that takes no writes.
func TestALinkWithoutThePermissionOfTheProbe(t *testing.T) {
	server := redistest.Real(t)
	if err := server.Client().Do(t.Context(), "ACL", "SETUSER", "default", "resetkeys", "~orders").Err(); err != nil {
		t.Fatal(err)
	}
	l, err := connect.Dial(t.Context(), connect.Flags{Address: server.URL(), Timeout: time.Minute}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.Writable(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestALinkNeedsAnAddressAndAPassword(t *testing.T) {
	locked := redistest.Real(t)
	if err := locked.Client().ConfigSet(t.Context(), "requirepass", "hush").Err(); err != nil {
		t.Fatal(err)
	}
	for address, part := range map[string]string{
		"nowhere":                                     "--redis is not an address",
		locked.URL():                                  "set RRL_PASSWORD",
		"redis://:wrong@" + locked.Addr:               "the password or the user is wrong",
		"redis://nobody:hush@" + locked.Addr:          "the password or the user is wrong",
		"redis://" + redistest.Shared(t).Addr + "/99": "DB index is out of range",
	} {
		if _, err := connect.Dial(t.Context(), connect.Flags{Address: address, Timeout: time.Minute},
			io.Discard); err == nil ||
			!strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v, want %s", address, err, part)
		}
	}
}

// What a server that was away at the start refuses later is told once.
func TestALinkThatIsRefusedLater(t *testing.T) {
	server := redistest.Real(t)
	server.Kill()
	said := make(rrltest.Lines, 10)
	l, err := connect.Dial(t.Context(), connect.Flags{Address: "redis://" + server.Addr + "/99"}, said)
	if err != nil {
		t.Fatal(err)
	}
	server.Restart()
	for _, part := range []string{"Redis does not answer", "DB index is out of range"} {
		if line := <-said; !strings.Contains(line, part) {
			t.Errorf("it says %q, want %q", line, part)
		}
	}
	time.Sleep(2 * time.Second) // two more attempts
	l.Close()
	if len(said) > 0 {
		t.Errorf("it says %q", <-said)
	}
}

func TestALinkToAServerThatHangs(t *testing.T) {
	server := redistest.Real(t)
	server.Pause()
	l, err := connect.Dial(t.Context(), connect.Flags{Address: server.URL(), Timeout: 300 * time.Millisecond},
		io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.Ping(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "no answer within 300ms; is Redis there?") {
		t.Error(err)
	}
	server.Resume()
	if _, err := l.Wait(); err != nil {
		t.Error(err)
	}
}

func TestClosingALinkEndsItsAttempts(t *testing.T) {
	l, err := connect.Dial(t.Context(), connect.Flags{Address: redistest.Nowhere(t)}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if s, err := l.Wait(); err == nil {
		t.Errorf("it is connected to %s", s.Where)
	}
}
