package main

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	miniserver "github.com/alicebob/miniredis/v2/server"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/rrltest"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// With any error in an address or of its server, no part of its password may be printed.
func TestPasswordsAreNotPrinted(t *testing.T) {
	closed := "127.0.0.1:1"
	real := redistest.Real(t)
	if err := real.Client().ConfigSet(t.Context(), "requirepass", "another").Err(); err != nil {
		t.Fatal(err)
	}
	echo := echoing(t)
	var group sync.WaitGroup
	for _, args := range [][]string{
		{"demo", "--redis", "redis://:hush1hush2@" + closed},
		{"demo", "--redis", "redis://me:hush1hush2@" + real.Addr},
		{"demo", "--redis", "redis://me:hush1hush2@" + echo},
		{"demo", "--redis", "rediss://me:hush1hush2@" + closed},
		{"demo", "--redis", "redis://me:hush1hush2@" + closed + "," + closed},
		{"demo", "--redis", "redis://me:hush1hush2@" + real.Addr + "," + real.Addr},
		{"demo", "--redis", "unix://me:hush1hush2@/nowhere/redis.sock?db=1"},
		{"demo", "--redis", "unix://me:hush1hush2@/nowhere/redis.sock?db=hush"},
		{"demo", "--redis", "redis://me:hush1hush2@[::1"},
		{"demo", "--redis", "redis://me:hush1hush2@host:port"},
		{"demo", "--redis", "redis://me:hush1\x7fhush2@" + closed},
		{"demo", "--redis", "redis://me:hush1%2Fhush2@" + echo},
		{"demo", "--redis", "redis://me:hush1/hush2@" + closed},
		{"demo", "--redis", "redis://me:12/hush2@" + closed},
		{"demo", "--redis", "redis://me:hush1#hush2@" + closed},
		{"demo", "--redis", "redis://me:hush1?hush2@" + closed},
		{"demo", "--redis", "redis://me:hush1@hush2@" + closed},
		{"demo", "--redis", "redis://me:hush1%zzhush2@" + closed},
		{"demo", "--redis", "redis://me:hush1 hush2@" + closed},
		{"demo", "--redis", "redis://me:hush1,hush2@" + closed},
		{"demo", "--redis", "redis://me:hush1@a:1,b:1/hush2"},
		{"demo", "--redis", "redis://" + closed + "?password=hush1"},
		{"demo", "--redis", "redis://me:hush1@" + closed + "/hush2"},
		{"demo", "--redis", "redis//me:hush1@" + closed},
		{"demo", "--redis", "http://me:hush1@" + closed},
		{"demo", "--redis", "hush1"},
		{"ls", "--redis", "redis://me:hush1hush2@" + echo},
		{"show", "x", "--redis", "redis://me:hush1hush2@" + real.Addr},
		{"show", "x", "--redis", "redis+cluster://me:hush1hush2@" + closed},
		{"ls", "--redis", "redis+sentinel://me:hush1hush2@" + closed + "/x"},
		{"ls", "--redis", "redis+sentinel://me:hush1@" + closed},
		{"ls", "--redis", "redis+other://me:hush1@" + closed},
		{"ls", "--rediss", "redis+cluster://me:hush1@" + closed},
		{"set", "x", "redis+cluster://me:hush1@" + closed},
		{"demo", "redis://me:hush1@" + closed},
		{"redis://me:hush1@" + closed},
		{"demo", "--for", "redis://me:hush1@" + closed},
		{"demo", "--rate", "redis://me:hush1@" + closed},
	} {
		group.Go(func() { // some commands retry for a second
			code, out, errs := rrl(t.Context(), args...)
			if code != 1 || errs == "" || strings.Contains(out+errs, "hush") {
				t.Errorf("%q: exit code %d, output %q, errors %q", args, code, out, errs)
			}
		})
	}
	group.Wait()
}

// echoing is a server that repeats its input, as old servers do with unknown commands.
func echoing(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				bytes := make([]byte, 4096)
				for {
					n, err := conn.Read(bytes)
					if err != nil {
						return
					}
					text := strings.NewReplacer("\r", " ", "\n", " ").Replace(string(bytes[:n]))
					fmt.Fprintf(conn, "-ERR unknown command, with args beginning with: %s\r\n", text)
				}
			}()
		}
	}()
	return listener.Addr().String()
}

// An error in an address names its origin: the flag, or the environment variable.
func TestErrorsNameWhereTheAddressComesFrom(t *testing.T) {
	for _, c := range []struct {
		variable string
		args     []string
		part     string
	}{
		{"hush1", nil, "RRL_REDIS is not an address"},
		{"redis://me:hush1/x@host", nil, "RRL_REDIS is not a valid address"},
		{"redis+sentinel://host", nil, "RRL_REDIS names no master"},
		{"redis://host", []string{"--insecure"}, "the address of RRL_REDIS must begin with rediss://"},
		{"redis://127.0.0.1:1", nil, "The address comes from RRL_REDIS"},
		{"redis://127.0.0.1:1", []string{"--redis", "hush1"}, "--redis is not an address"},
		{"redis://127.0.0.1:1", []string{"--redis", "redis://127.0.0.1:1"}, "connection refused; is Redis there?"},
		{"redis://127.0.0.1:1", []string{"--redis", ""}, "--redis is empty: is a variable not set?"},
	} {
		t.Setenv("RRL_REDIS", c.variable)
		code, out, errs := rrl(t.Context(), append([]string{"ls"}, c.args...)...)
		if code != 1 || out != "" || !strings.Contains(errs, c.part) || strings.Contains(errs, "hush") ||
			strings.Count(errs, "\n") != 1 {
			t.Errorf(
				"RRL_REDIS=%s, %q: exit code %d, output %q, errors %q, want %q", c.variable, c.args, code, out, errs,
				c.part,
			)
		}
	}
}

// The check precedes all calls: a call would be retried for its whole timeout.
func TestAClusterThatIsNotThereIsSaidAtOnce(t *testing.T) {
	code, _, errs := rrl(t.Context(), "show", "x", "--redis", "redis+cluster://127.0.0.1:1")
	if code != 1 || !strings.HasPrefix(errs, "rrl: the cluster of 127.0.0.1:1: dial tcp ") {
		t.Errorf("exit code %d, errors %q", code, errs)
	}
}

func TestPasswordComesFromTheEnvironment(t *testing.T) {
	s := redistest.Real(t)
	if err := s.Client().ConfigSet(t.Context(), "requirepass", "hush1hush2").Err(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		variables []string // name, text
		code      int
		part      string
	}{
		{[]string{"RRL_PASSWORD", "hush1hush2"}, 0, "no limiters"},
		{[]string{"REDISCLI_AUTH", "hush1hush2"}, 0, "no limiters"},
		{[]string{"RRL_USER", "default", "RRL_PASSWORD", "hush1hush2"}, 0, "no limiters"},
		{[]string{"RRL_PASSWORD", "hush1"}, 1, "RRL_PASSWORD"},
		{nil, 1, "set RRL_PASSWORD"},
	} {
		t.Run(fmt.Sprint(c.variables), func(t *testing.T) {
			for i := 0; i < len(c.variables); i += 2 {
				t.Setenv(c.variables[i], c.variables[i+1])
			}
			code, out, errs := rrl(t.Context(), "ls", "--redis", "redis://"+s.Addr)
			if code != c.code || !strings.Contains(out+errs, c.part) || strings.Contains(out+errs, "hush") ||
				strings.Count(out+errs, "\n") != 1 {
				t.Errorf("exit code %d, output %q, errors %q", code, out, errs)
			}
		})
	}
}

func TestTLS(t *testing.T) {
	s := redistest.RealTLS(t, "--tls-auth-clients", "yes")
	ca, cert, key := s.TLS.CAFile, s.TLS.CertFile, s.TLS.KeyFile
	for _, c := range []struct {
		args []string
		code int
		part string
	}{
		{[]string{"--ca", ca, "--cert", cert, "--key", key}, 0, "no limiters"},
		{[]string{"--insecure", "--cert", cert, "--key", key}, 0, "no limiters"},
		{[]string{"--cert", cert, "--key", key}, 1, "give the CA's certificate by --ca"},
		{[]string{"--ca", ca}, 1, "certificate required"},
		{[]string{"--ca", key}, 1, "there is no certificate in"},
		{[]string{"--ca", ca + "x"}, 1, "no such file"},
		{[]string{"--cert", cert}, 1, "belong together"},
	} {
		code, out, errs := rrl(t.Context(), append([]string{"ls", "--redis", "rediss://" + s.Addr}, c.args...)...)
		if code != c.code || !strings.Contains(out+errs, c.part) {
			t.Errorf("%q: exit code %d, output %q, errors %q", c.args, code, out, errs)
		}
	}
	if code, _, errs := rrl(t.Context(), "ls", "--redis", "redis://"+s.Addr, "--insecure"); code != 1 ||
		!strings.Contains(errs, "must begin with rediss://") {
		t.Errorf("exit code %d, errors %q", code, errs)
	}
	if code, _, errs := rrl(t.Context(), "ls", "--redis", "redis://"+s.Addr); code != 1 ||
		!strings.Contains(errs, "does it need TLS?") {
		t.Errorf("without TLS: exit code %d, errors %q", code, errs)
	}
	plain := "rediss://" + redistest.Shared(t).Addr
	if code, _, errs := rrl(t.Context(), "ls", "--redis", plain+"?dial_timeout=50ms"); code != 1 ||
		!strings.Contains(
			errs, "rrl: "+plain+": ",
		) || !strings.Contains(errs, "does it speak TLS? --redis gives another address") {
		t.Errorf("with TLS where there is none: exit code %d, errors %q", code, errs)
	}
}

// The plain address of one node is enough for all commands to use the whole cluster.
func TestCommandsOnACluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.Cluster(t, 3)
	rdb := nodes.ClusterClient()
	client := rrltest.Client(rdb)
	for i := range 12 {
		l := client.RateLimiter(fmt.Sprintf("limiter %02d", i))
		if err := l.SetRate(t.Context(), rratelimiter.PerSecond(5)); err != nil {
			t.Fatal(err)
		}
	}
	if err := rdb.HSet(t.Context(), "a{b", "rate", 1, "interval", 1000, "type", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := rdb.Set(t.Context(), "{limiter 03}:value:one", 5, 0).Err(); err != nil {
		t.Fatal(err)
	}
	s := shop{t: t, s: nodes.Servers[1]}
	if rows := objects(t, s.ok("ls", "--json")); len(rows) != 13 || rows[1]["name"] != "limiter 00" ||
		rows[12]["name"] != "limiter 11" ||
		!strings.Contains(rows[0]["fault"].(string), "different cluster slots") {
		t.Errorf("it lists %v", rows)
	}
	code, out, errs := s.run("doctor")
	version := nodes.Servers[0].Version()
	contains(
		t, out, nodes.Servers[0].Addr+": "+version+", ", nodes.Servers[2].Addr+": "+version+", ",
		"13 limiters looked at",
		"cross-slot", "full-coverage", "orphaned-clients",
	)
	if code != 1 || errs != "" {
		t.Errorf("exit code %d, errors %q", code, errs)
	}
	contains(t, s.ok("gc", "--yes"), `"limiter 03" of one`)
	contains(t, s.ok("rm", "limiter 01", "limiter 02", "limiter 03", "--yes"), `"limiter 02": removed`)
	data := s.ok("snapshot", "limiter 04", "limiter 05")
	if code, out, errs := s.with(data, "restore", "--replace"); code != 0 || strings.Count(out, "restored") != 2 {
		t.Errorf("exit code %d, output %q, errors %q", code, out, errs)
	}
	s.fails(1, "such a name works on a single server only", "show", "a{b")
}

func TestSentinelNamesTheMaster(t *testing.T) {
	s := newShop(t, redistest.Embedded(t))
	s.limiter("orders", "5", "1000", "0")
	host, port, err := net.SplitHostPort(s.s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	sentinel := redistest.Embedded(t)
	if err := sentinel.Mini().Server().Register("SENTINEL", func(c *miniserver.Peer, _ string, args []string) {
		if strings.EqualFold(args[0], "get-master-addr-by-name") && args[1] == "mymaster" {
			c.WriteLen(2)
			c.WriteBulk(host)
			c.WriteBulk(port)
			return
		}
		switch args[1] {
		case "locked":
			c.WriteError("NOAUTH Authentication required.")
		case "wrong":
			c.WriteError("WRONGPASS invalid username-password pair or user is disabled.")
		default:
			c.WriteNull()
		}
	}); err != nil {
		t.Fatal(err)
	}
	code, out, errs := rrl(t.Context(), "ls", "--redis", "redis+sentinel://"+sentinel.Addr+"/mymaster")
	if code != 0 || !strings.Contains(out, "orders  5/s") {
		t.Errorf("exit code %d, output %q, errors %q", code, out, errs)
	}
	const unreachable = "redis: all sentinels specified in configuration are unreachable: "
	where := "rrl: the master %s of the sentinels %s: " + unreachable
	for _, c := range []struct{ address, name, advice string }{
		{sentinel.Addr, "other", "redis: nil; they know no master of this name"},
		{sentinel.Addr, "locked", "; set RRL_SENTINEL_PASSWORD"},
		{sentinel.Addr, "wrong", "; RRL_SENTINEL_PASSWORD is not right"},
		{s.s.Addr, "mymaster", "; is it a sentinel?"},
		{"127.0.0.1:1", "mymaster", "; are they there? --redis gives other addresses"},
	} {
		code, _, errs := rrl(t.Context(), "ls", "--redis", "redis+sentinel://"+c.address+"/"+c.name)
		if code != 1 || !strings.HasPrefix(errs, fmt.Sprintf(where, c.name, c.address)) ||
			!strings.HasSuffix(errs, c.advice+"\n") {
			t.Errorf("of %s at %s: exit code %d, errors %q, want %q", c.name, c.address, code, errs, c.advice)
		}
	}
}
