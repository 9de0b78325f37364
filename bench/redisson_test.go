package main

import (
	"errors"
	"testing"
)

func TestAScriptIsReadOffTheWire(t *testing.T) {
	b := newLab(t, quick)
	const text = "local q = \"quoted, with a \\t\"\n\nreturn redis.call('zadd', KEYS[1], 1, ARGV[1])"
	for name, call := range map[string]func() error{
		"as a whole":   func() error { return b.rdb.Eval(t.Context(), text, []string{"key"}, "\x00\xff").Err() },
		"to be loaded": func() error { return b.rdb.ScriptLoad(t.Context(), text).Err() },
	} {
		got, err := capture(t.Context(), b.addr, func() error {
			return errors.Join(b.rdb.Ping(t.Context()).Err(), call())
		})
		if err != nil || got != text {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
