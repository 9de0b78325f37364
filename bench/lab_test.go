package main

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/serverinfo"
)

func TestInfoIsRead(t *testing.T) {
	fields := serverinfo.Fields("# CPU\r\nused_cpu_sys:1.25\r\n\r\n# Commandstats\r\ncmdstat_evalsha:calls=42,usec=7,usec_per_call=0.17\r\n")
	if fields["used_cpu_sys"] != "1.25" {
		t.Errorf("used_cpu_sys is %q", fields["used_cpu_sys"])
	}
	if n := calls(fields["cmdstat_evalsha"]); n != 42 {
		t.Errorf("%d calls, want 42", n)
	}
	if n := calls(fields["cmdstat_eval"]); n != 0 {
		t.Errorf("%d calls of a command that was never called", n)
	}
}

func TestCommandsAreCountedNotThoseInScripts(t *testing.T) {
	b := newLab(t, quick)
	before, err := b.read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const script = "redis.call('PING') return redis.call('SET', KEYS[1], 1)"
	for range 2 {
		if err := b.rdb.Eval(t.Context(), script, []string{"key"}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := redis.NewScript(script).EvalSha(t.Context(), b.rdb, []string{"key"}).Err(); err != nil {
		t.Fatal(err)
	}
	b.rdb.Ping(t.Context())
	after, err := b.read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var s Sample
	if s.spend(before, after, &contender{name: rowLibrary}); s.Commands != 3 || s.RedisCPU < 0 {
		t.Errorf("%+v, want 3 commands", s)
	}
}

func TestClearLeavesNoScript(t *testing.T) {
	b := newLab(t, quick)
	sha := b.rdb.ScriptLoad(t.Context(), "return 1").Val()
	b.rdb.Set(t.Context(), "key", 1, 0)
	if err := b.clear(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b.rdb.ScriptExists(t.Context(), sha).Val()[0] || b.rdb.DBSize(t.Context()).Val() != 0 {
		t.Error("a script or a key is left")
	}
}

func TestSetRatesSetsEachOnce(t *testing.T) {
	b := newLab(t, quick)
	names := []string{"a", "b", "c"}
	if err := b.setRates(t.Context(), names, unlimited); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if rate := b.rdb.HGet(t.Context(), name, "rate").Val(); rate != "1000000000" {
			t.Errorf("the rate of %s is %q", name, rate)
		}
	}
}
