package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/rrltest"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/snapshot"
)

// servers_test.go runs rrl on each product and release.

func TestDoctorNamesTheServer(t *testing.T) {
	redistest.EachRelease(t, func(t *testing.T) {
		server := redistest.Real(t)
		s := newShop(t, server)
		_, out, _ := s.run("doctor")
		contains(t, out, ": "+server.Version()+", this host's clock is")
		if strings.Contains(out, "ERROR") {
			t.Errorf("a new server: %s", out)
		}
	})
}

// Errors of scripts say what is wrong, and not where in a script.
func TestErrorsOfScripts(t *testing.T) {
	redistest.EachRelease(t, func(t *testing.T) {
		server := redistest.Real(t)
		s := newShop(t, server)
		s.limiter("orders", "20", "60000", "0")
		fails := func(text string) {
			t.Helper()
			code, _, errs := s.run("acquire", "orders")
			if code == 0 || !strings.Contains(errs, text) || strings.Count(errs, "\n") != 1 ||
				strings.Contains(errs, "user_script") ||
				strings.Contains(errs, "Error running") {
				t.Errorf("exit code %d, %q, want %q", code, errs, text)
			}
		}
		s.must(s.rdb.Set(t.Context(), "{orders}:permits", "x", 0).Err())
		fails("WRONGTYPE")
		s.must(s.rdb.Del(t.Context(), "{orders}:permits").Err())
		s.must(s.rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
		fails("OOM")
		s.must(s.rdb.ConfigSet(t.Context(), "maxmemory", "0").Err())
		t.Setenv("RRL_USER", "looker")
		t.Setenv("RRL_PASSWORD", "secret")
		s.must(s.rdb.Do(t.Context(), "acl", "setuser", "looker", "on", ">secret", "~*", "+@all", "-zadd").Err())
		fails("the Redis user has no permission for this")
		s.must(s.rdb.Do(t.Context(), "acl", "setuser", "looker", "+zadd", "-scan").Err())
		s.limiter("pc", "5", "1000", "1")
		// it cannot find the clients, so it changes nothing
		s.fails(1, "no permission", "set", "pc", "50/s")
		if rate := s.rdb.HGet(t.Context(), "pc", "rate").Val(); rate != "5" {
			t.Errorf("the rate is %s", rate)
		}
	})
}

// TestRefusedCommandsAreThoseOfThePage: as the users in docs/security.md, doctor and snapshot.Take
// do their work, and the server's ACL log has the commands that the page names, and no others.
func TestRefusedCommandsAreThoseOfThePage(t *testing.T) {
	page, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "A read-only user")
	text, _, found := strings.Cut(text, "Give this user")
	if !found {
		t.Fatal("docs/security.md has no read-only user")
	}
	rule := regexp.MustCompile(`\+[a-z|]+`).FindAllString(text, -1)
	server := redistest.Real(t)
	s := newShop(t, server)
	s.limiter("orders", "10", "60000", "0")
	s.state("orders", "", "9", -5, rrltest.GoRecord("abc", 1))
	t.Setenv("RRL_USER", "looker")
	t.Setenv("RRL_PASSWORD", "secret")
	for _, test := range []struct {
		add, take, doctor string // commands that are added, and those that are refused
	}{
		{"+info +config|get", "", ""},
		{"+info", "", "config|get"},
		{"-info", "info", "config|get info"},
	} {
		words := []any{"acl", "setuser", "looker", "reset", "on", ">secret", "~*", "resetchannels", "-@all"}
		for _, word := range append(slices.Clone(rule), strings.Fields(test.add)...) {
			words = append(words, word)
		}
		s.must(s.rdb.Do(t.Context(), words...).Err())
		refused := func(what, want string) {
			t.Helper()
			entries, err := s.rdb.ACLLog(t.Context(), 100).Result()
			s.must(err)
			var all []string
			for _, e := range entries {
				if !strings.HasPrefix(e.Object, "client") { // go-redis identifies itself
					all = append(all, e.Object)
				}
			}
			slices.Sort(all)
			if got := strings.Join(slices.Compact(all), " "); got != want {
				t.Errorf("%s, %s: refused are %q, want %q", test.add, what, got, want)
			}
		}
		s.must(s.rdb.Do(t.Context(), "acl", "log", "reset").Err())
		looker := server.Client(func(o *redis.Options) { o.Username, o.Password = "looker", "secret" })
		if got, err := snapshot.Take(t.Context(), looker, "orders"); err != nil || got.Config == nil {
			t.Errorf("%s: %+v, %v", test.add, got, err)
		}
		refused("Take", test.take)
		s.must(s.rdb.Do(t.Context(), "acl", "log", "reset").Err())
		contains(t, s.ok("doctor"), "1 limiter looked at")
		refused("doctor", test.doctor)
	}
}
