package main

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

func TestAddresses(t *testing.T) {
	for _, c := range []struct{ address, where string }{
		{"redis://localhost", "redis://localhost:6379"},
		{"redis://user:secret@localhost:7000/3", "redis://localhost:7000, database 3"},
		{"rediss://:secret@host:7000", "rediss://host:7000"},
		{"unix://user:secret@/tmp/redis.sock?db=2", "unix:///tmp/redis.sock, database 2"},
		{"redis://user:secret@a:7000,b:7001", "the cluster of a:7000, b:7001"},
		{"rediss://user:secret@a:7000,b:7001/0?read_timeout=1s", "the cluster of a:7000, b:7001"},
	} {
		s, err := connect(c.address)
		if err != nil {
			t.Errorf("%s: %v", c.address, err)
			continue
		}
		if s.where != c.where {
			t.Errorf("%s: %s", c.address, s.where)
		}
		if java := javaSnippet(s, "x", perSecond(5), 1); strings.Contains(s.where+java, "secret") {
			t.Errorf("%s: the password is printed", c.address)
		}
		s.close()
	}
}

// Whatever is wrong with an address or its server, no part of its password may be printed.
func TestPasswordsAreNotPrinted(t *testing.T) {
	closed := "127.0.0.1:1"
	real := redistest.Real(t)
	if err := real.Client().ConfigSet(t.Context(), "requirepass", "another").Err(); err != nil {
		t.Fatal(err)
	}
	echo := echoing(t)
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
		{"demo", "redis://me:hush1@" + closed},
		{"redis://me:hush1@" + closed},
		{"demo", "--for", "redis://me:hush1@" + closed},
		{"demo", "--rate", "redis://me:hush1@" + closed},
	} {
		code, out, errs := rrl(t.Context(), args...)
		if code != 1 || errs == "" || strings.Contains(out+errs, "hush") {
			t.Errorf("%q: exit code %d, output %q, errors %q", args, code, out, errs)
		}
	}
}

// echoing is a server that repeats what it is sent, as old servers do with commands that they don't know.
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

func TestCleanKeepsTheCause(t *testing.T) {
	cause := errors.New("bad secret")
	s := &server{secrets: []string{"secret"}}
	if err := s.clean(fmt.Errorf("oops: %w", cause)); err.Error() != "oops: bad ***" || !errors.Is(err, cause) {
		t.Error(err)
	}
	if s.clean(nil) != nil {
		t.Error("an error out of nothing")
	}
}
