package connect

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

func TestAddresses(t *testing.T) {
	for _, c := range []struct{ address, where string }{
		{"redis://localhost", "redis://localhost:6379"},
		{"localhost:7000", "redis://localhost:7000"},
		{"[::1]:7000", "redis://[::1]:7000"},
		{"redis://user:secret@localhost:7000/3", "redis://localhost:7000, database 3"},
		{"rediss://:secret@host:7000", "rediss://host:7000"},
		{"unix://user:secret@/tmp/redis.sock?db=2", "unix:///tmp/redis.sock, database 2"},
		{"redis://user:secret@a:7000,b:7001", "the cluster of a:7000, b:7001"},
		{"rediss://user:secret@a:7000,b:7001/0?read_timeout=1s", "the cluster of a:7000, b:7001"},
	} {
		s, err := To(c.address)
		if err != nil {
			t.Errorf("%s: %v", c.address, err)
			continue
		}
		if s.Where != c.where {
			t.Errorf("%s: %s", c.address, s.Where)
		}
		if strings.Contains(s.Where, "secret") {
			t.Errorf("%s: the password is printed", c.address)
		}
		s.Close()
	}
}

func TestCleanKeepsTheCause(t *testing.T) {
	cause := errors.New("bad secret")
	s := &Server{secrets: []string{"secret"}}
	if err := s.Clean(fmt.Errorf("oops: %w", cause)); err.Error() != "oops: bad ***" || !errors.Is(err, cause) {
		t.Error(err)
	}
	unknown := s.Clean(errors.New("ERR unknown command 'AUTH', with args beginning with: 'me' 'secr"))
	if err := unknown; err.Error() != "ERR unknown command 'AUTH'" {
		t.Error(err)
	}
	if s.Clean(nil) != nil {
		t.Error("an error out of nothing")
	}
}

func TestOtherKindsOfAddresses(t *testing.T) {
	for _, c := range []struct{ address, where string }{
		{"redis+cluster://user:secret@a:7000", "the cluster of a:7000"},
		{"rediss+cluster://a:7000,b:7001", "the cluster of a:7000, b:7001"},
		{
			"redis+sentinel://user:secret@a:26380,b/my%20master/2",
			`the master "my master" of the sentinels a:26380, b:26379, database 2`,
		},
		{"rediss+sentinel://a/mymaster", "the master mymaster of the sentinels a:26379"},
	} {
		s, err := connectBy(c.address, access{password: "secret", sentinelPassword: "secret"})
		if err != nil {
			t.Errorf("%s: %v", c.address, err)
			continue
		}
		if s.Where != c.where || !slices.Contains(s.secrets, "secret") {
			t.Errorf("%s: %s", c.address, s.Where)
		}
		s.Close()
	}
	for address, part := range map[string]string{
		"redis+sentinel://a:26379":       "names no master",
		"redis+sentinel://a:26379/m/x":   "is not a valid address",
		"redis+other://a":                "not an address",
		"unix+cluster:///tmp/x":          "not an address",
		"redis+cluster://a:7000/3":       "is not a valid address",
		"redis+sentinel://me:hush@a:x/m": "",
	} {
		s, err := connectBy(address, access{})
		if err == nil {
			s.Close()
		}
		if part != "" && (err == nil || !strings.Contains(err.Error(), part)) ||
			err != nil && strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: %v, want %q", address, err, part)
		}
	}
}

// What an address does not name is not called: no default takes the place of a host, and no
// character of a password moves it.
func TestAddressesThatNameNoServer(t *testing.T) {
	for _, text := range []string{
		"redis://:hush@/#hush@prod:6380", "redis://user:123#hush@prod", "redis://prod#hush",
		"redis://user:123/hush@prod",
		"redis://user:12?hush@prod",
		"redis://", "redis:///0", "redis://:7000", "redis://user:hush@", "redis://user:hush@:7000", "rediss://",
		"redis+cluster://", "redis+cluster:///0",
		"redis+sentinel:///hush", "redis://,", "redis://a,", "redis://,a:1", "127.0.0.1:7611:1",
		"redis://127.0.0.1:7611:1",
		"::1:7000", "redis://::1", "[::1]",
		"redis://[::1", "redis://[a]", "redis://[1.2.3.4]", "redis://a:0", "redis://a:65536", "redis://a:",
		"redis://a:port",
		"redis://a b", "redis://a%2Fb",
		"unix://host/hush.sock", "unix://", "unix://me:hush@", ":7000", "redis+cluster://a?addr=b:1",
		"redis://a/3?db=2",
		"redis://a\\b", "redis://-a",
		"redis+cluster://u:hush@h1:1,u:hush@h2:2", "redis://h1:1,u:hush@h2:2", "redis+sentinel://u:hush@a,u:hush@b/m",
		"redis://u:hu,sh@a", "redis://u:hush@hush@a",
	} {
		s, err := connectBy(text, access{from: "--redis"})
		if err == nil {
			t.Errorf("%s is %s", text, s.Where)
			s.Close()
		} else if strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// The options of a query hold with each kind of address.
func TestOptionsInAddresses(t *testing.T) {
	for _, text := range []string{
		"redis://a?client_name=me",
		"redis://a/?client_name=me",
		"redis+cluster://a?client_name=me",
		"redis+cluster://a,b/0?client_name=me",
	} {
		s, err := connectBy(text, access{})
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		name := ""
		switch rdb := s.Redis.(type) {
		case *redis.Client:
			name = rdb.Options().ClientName
		case *redis.ClusterClient:
			name = rdb.Options().ClientName
		}
		if name != "me" {
			t.Errorf("%s: the client's name is %q", text, name)
		}
		s.Close()
	}
}

// called returns the addresses that a server's client dials first, before it knows of other nodes.
func called(s *Server) []string {
	if rdb, cluster := s.Redis.(*redis.ClusterClient); cluster {
		return rdb.Options().Addrs
	}
	return []string{s.Redis.(*redis.Client).Options().Addr}
}

// Whatever a user writes as the password, unescaped, the server that is called is the one behind
// the last @, or none. No text has a part of the password.
func FuzzPasswords(f *testing.F) {
	for _, password := range []string{
		"", "#", "@/#", "/", "?", "@evil:1/", "@evil:1?", "@evil:1,", "%zz", "%40", "\\", " ", "[", "]", ":", "\x00",
		"#@", "/@x#", ",", "@evil:1,u:",
	} {
		f.Add("redis", "user", password, "")
		f.Add("redis+cluster", "", password, "/0")
		f.Add("rediss", "u@x", password, "/3?read_timeout=1s")
	}
	f.Fuzz(func(t *testing.T, scheme, user, password, rest string) {
		if !slices.Contains([]string{"redis", "rediss", "redis+cluster", "redis+sentinel"}, scheme) ||
			!slices.Contains([]string{"", "/0", "/3?read_timeout=1s"}, rest) {
			return
		}
		if scheme == "redis+sentinel" {
			rest = "/mymaster" + rest
		}
		const host = "prod.example.com:6380"
		s, err := connectBy(scheme+"://"+user+":hush"+password+"hush@"+host+rest, access{from: "--redis"})
		if err != nil {
			if strings.Contains(err.Error(), "hush") {
				t.Errorf("%v", err)
			}
			return
		}
		defer s.Close()
		if scheme != "redis+sentinel" && !slices.Equal(called(s), []string{host}) {
			t.Errorf("it calls %q", called(s))
		}
		if strings.Contains(s.Where, "hush") || !strings.Contains(s.Where, host) {
			t.Errorf("it is called %s", s.Where)
		}
	})
}

// An address is refused, or what is called stands in it: directly behind the scheme or the last @,
// whole, and with nothing between it and the end but a path and a query.
func FuzzAddresses(f *testing.F) {
	for _, text := range []string{
		"redis://localhost", "localhost:7000", "[::1]:7000", "redis://u:p@a:7000,b:7001/0",
		"redis://:abc@/#def@prod.example.com:6380", "redis://a:1:2",
		"redis://", "redis://@", "redis://a/?db=1", "redis://[fe80::1%25eth0]:1", "rediss://a#b",
		"redis+cluster://a,b?read_timeout=1s", "redis:///a", "::1:7",
		"redis+cluster://u:p1@h1:1,u:p2@h2:2", "redis+cluster://h1:1,u:p@h2:2",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 200 || strings.HasPrefix(text, "unix") || strings.Contains(text, "sentinel") ||
			strings.Contains(text, "=") {
			return // with options, a client may start at once to connect
		}
		s, err := connectBy(text, access{from: "--redis"})
		if err != nil {
			return
		}
		defer s.Close()
		_, rest, found := strings.Cut(text, "://")
		if !found {
			rest = text
		}
		if at := strings.LastIndex(rest, "@"); at >= 0 {
			if strings.ContainsAny(rest[:at], ",@") {
				t.Errorf("%q: there may be a host before the last @", text)
			}
			rest = rest[at+1:]
		}
		rest, _, _ = strings.Cut(rest, "?")
		rest, _, _ = strings.Cut(rest, "/")
		names := strings.Split(rest, ",")
		all := called(s)
		for i, name := range names {
			host, port, err := net.SplitHostPort(all[min(i, len(all)-1)])
			if err != nil || len(all) != len(names) {
				t.Fatalf("%q: it calls %q", text, all)
			}
			if strings.Contains(host, ":") {
				host = "[" + strings.Replace(host, "%", "%25", 1) + "]"
			}
			written, withPort := strings.CutPrefix(name, host)
			if n, err := strconv.Atoi(strings.TrimPrefix(written, ":")); !withPort || host == "" ||
				!(written == "" && port == "6379" && found ||
					written != "" && written[0] == ':' && err == nil && strconv.Itoa(n) == port) {
				t.Errorf("%q: it calls %q", text, all)
			}
		}
	})
}
