package main

import (
	"maps"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/serverinfo"
)

func TestInfoIsRead(t *testing.T) {
	fields := serverinfo.Fields(
		"# CPU\r\nused_cpu_sys:1.25\r\n\r\n# Commandstats\r\ncmdstat_evalsha:calls=42,usec=7,usec_per_call=0.17\r\n",
	)
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

func TestRatesAreThoseOfSetRate(t *testing.T) {
	b := newLab(t, quick)
	rates := scene{names: []string{"a", "b"}, rate: unlimited, beside: unlimitedBeside}
	if err := b.setScene(t.Context(), rates); err != nil {
		t.Fatal(err)
	}
	client := rratelimiter.NewClient(b.rdb)
	for _, part := range []scene{rates, rates.others()} {
		for _, name := range part.names {
			if err := client.RateLimiter("model").SetRate(t.Context(), part.rate); err != nil {
				t.Fatal(err)
			}
			got, want := b.rdb.HGetAll(t.Context(), name).Val(), b.rdb.HGetAll(t.Context(), "model").Val()
			if len(want) == 0 || !maps.Equal(got, want) {
				t.Errorf("%s is %v, SetRate writes %v", name, got, want)
			}
		}
	}
	if n := b.rdb.DBSize(t.Context()).Val(); n != 5 {
		t.Errorf("%d keys, want 5", n)
	}
}
