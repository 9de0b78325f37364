package main

import (
	"slices"
	"testing"

	"github.com/rratelimiter/rratelimiter"
)

func TestEachCallOfAScriptIsAGrant(t *testing.T) {
	b := newLab(t, size{scriptCalls: 2})
	b.script = "return redis.call('ZADD', KEYS[4], ARGV[2], ARGV[1] .. ARGV[3])" // in the place of Redisson's
	rows := func(names ...string) (rows []*contender) {
		for _, name := range names {
			rows = append(rows, &contender{name: name})
		}
		return rows
	}
	names := []string{"a", "b", "c"}
	const each = 3 // one call that does not count, and two
	for _, c := range []struct {
		rows   []*contender
		beside rratelimiter.Rate
		suffix []string
	}{
		{rows(rowReturn1, rowBare, rowScript, rowLibrary), rratelimiter.Rate{}, []string{""}},
		{rows(rowBare, rowLibrary), lastingBeside, []string{"", ":minute"}},
	} {
		samples, err := b.scriptTimes(t.Context(), c.rows, scene{b.addr, names, lasting, c.beside})
		if err != nil {
			t.Fatal(err)
		}
		for i, row := range c.rows {
			if s := samples[row]; s.PerCall <= 0 || s.Commands != 2*int64(len(names)) {
				t.Errorf("%s: %+v", row.name, s)
			}
			for _, suffix := range c.suffix {
				limiter := "b:" + string(rune('0'+i)) + suffix
				records := b.rdb.ZCard(t.Context(), permitsKey(limiter)).Val()
				if want := int64(each); row.name != rowReturn1 && records != want {
					t.Errorf("%s: %s has %d records, want %d", row.name, limiter, records, want)
				}
				taken := b.rdb.Get(t.Context(), valueKey(limiter)).Val()
				if row.name == rowBare && taken != "-3" ||
					row.name == rowLibrary && !slices.Contains([]string{"999997", "1999997"}, taken) {
					t.Errorf("%s: the value of %s is %q", row.name, limiter, taken)
				}
			}
		}
	}
}

func TestACallThatFailsIsToldOf(t *testing.T) {
	b := newLab(t, size{scriptCalls: 1})
	b.script = "return redis.error_reply('broken')"
	_, err := b.scriptTimes(
		t.Context(), []*contender{{name: rowScript}}, scene{addr: b.addr, names: []string{"a"}, rate: lasting},
	)
	if err == nil {
		t.Error("no error")
	}
}
