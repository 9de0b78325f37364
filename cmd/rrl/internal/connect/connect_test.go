package connect

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
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
	if s.Clean(nil) != nil {
		t.Error("an error out of nothing")
	}
}

func TestOtherKindsOfAddresses(t *testing.T) {
	for _, c := range []struct{ address, where string }{
		{"redis+cluster://user:secret@a:7000", "the cluster of a:7000"},
		{"rediss+cluster://a:7000,b:7001", "the cluster of a:7000, b:7001"},
		{"redis+sentinel://user:secret@a:26380,b/my%20master/2", `the master "my master" of the sentinels a:26380, b:26379, database 2`},
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
		if part != "" && (err == nil || !strings.Contains(err.Error(), part)) || err != nil && strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: %v, want %q", address, err, part)
		}
	}
}
