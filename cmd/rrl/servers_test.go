package main

import (
	"strings"
	"testing"

	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// servers_test.go runs rrl on each product and release.

func TestDoctorNamesTheServer(t *testing.T) {
	redistest.EachRelease(t, func(t *testing.T) {
		server := redistest.Real(t)
		s := shop{t, server, server.Client()}
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
		s := shop{t, server, server.Client()}
		s.limiter("orders", "20", "60000", "0")
		fails := func(text string) {
			t.Helper()
			code, _, errs := s.run("acquire", "orders")
			if code == 0 || !strings.Contains(errs, text) || strings.Count(errs, "\n") != 1 || strings.Contains(errs, "user_script") ||
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
		s.fails(1, "no permission", "set", "pc", "50/s") // it cannot find the clients, so it changes nothing
		if rate := s.rdb.HGet(t.Context(), "pc", "rate").Val(); rate != "5" {
			t.Errorf("the rate is %s", rate)
		}
	})
}
