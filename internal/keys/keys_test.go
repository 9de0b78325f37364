package keys

import (
	"strings"
	"testing"
)

// oddNames are names whose Redisson keys are in different slots, except by chance.
var oddNames = []string{"a{b", "a{}b", "a}b", "", "{", "}", "{}", "{}x", "x{"}

// TestKeyNamesAreRedissons lists names as Redisson builds them: its suffixName wraps a name without
// a brace, and adds to one with a brace.
func TestKeyNamesAreRedissons(t *testing.T) {
	tests := []struct {
		name string
		want [Count]string
	}{
		{"rl", [Count]string{"rl", "{rl}:value", "{rl}:value:ID", "{rl}:permits", "{rl}:permits:ID"}},
		{"{tag}x", [Count]string{"{tag}x", "{tag}x:value", "{tag}x:value:ID", "{tag}x:permits", "{tag}x:permits:ID"}},
		{"x{tag}", [Count]string{"x{tag}", "x{tag}:value", "x{tag}:value:ID", "x{tag}:permits", "x{tag}:permits:ID"}},
		{"a{b", [Count]string{"a{b", "a{b:value", "a{b:value:ID", "a{b:permits", "a{b:permits:ID"}},
		{"a{}b", [Count]string{"a{}b", "a{}b:value", "a{}b:value:ID", "a{}b:permits", "a{}b:permits:ID"}},
		{"a}b", [Count]string{"a}b", "{a}b}:value", "{a}b}:value:ID", "{a}b}:permits", "{a}b}:permits:ID"}},
		{"", [Count]string{"", "{}:value", "{}:value:ID", "{}:permits", "{}:permits:ID"}},
		{" ", [Count]string{" ", "{ }:value", "{ }:value:ID", "{ }:permits", "{ }:permits:ID"}},
		{"\x00\xff\r\n", [Count]string{
			"\x00\xff\r\n", "{\x00\xff\r\n}:value", "{\x00\xff\r\n}:value:ID", "{\x00\xff\r\n}:permits",
			"{\x00\xff\r\n}:permits:ID",
		}},
		{
			"заказы",
			[Count]string{"заказы", "{заказы}:value", "{заказы}:value:ID", "{заказы}:permits", "{заказы}:permits:ID"},
		},
	}
	for _, test := range tests {
		if got := Names(test.name, "ID"); got != test.want {
			t.Errorf("keys of %q are %q, want %q", test.name, got, test.want)
		}
	}
}

func TestOddNamesScatterTheirKeys(t *testing.T) {
	for _, name := range oddNames {
		all := Names(name, "ID")
		if SameSlot(all[:]) {
			t.Errorf("the keys of %q lie in one slot", name)
		}
	}
	for _, name := range []string{"rl", "{tag}x", "x{tag}", "{a}{b}", "{a}}", "a{b}c{", "\x00\xff", " ", "заказы"} {
		all := Names(name, "ID")
		if !SameSlot(all[:]) || !SameTag(all[:]) {
			t.Errorf("the keys of %q lie in different slots", name)
		}
	}
}

func TestTagged(t *testing.T) {
	for name, want := range map[string]string{
		"rl":     "{rl}",
		"a{b":    "{a{b}",
		"a}":     "{a}}",
		"{tag}x": "{tag}x",
		"{}x":    "{{}x}",
		"":       "{}",
	} {
		if got := Tagged(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

func FuzzKeyNames(f *testing.F) {
	for _, name := range append(oddNames, "rl", "{tag}x", "x{tag}y", "\x00\xff") {
		f.Add(name, "9d6c5c5e")
	}
	f.Add("rl", "{}")
	f.Fuzz(func(t *testing.T, name, clientID string) {
		all := Names(name, clientID)
		if all[Config] != name {
			t.Fatalf("the configuration of %q is %q", name, all[Config])
		}
		base := strings.TrimSuffix(all[Value], ":value")
		if base != name && base != "{"+name+"}" || (base == name) != strings.Contains(name, "{") {
			t.Fatalf("the value of %q is %q", name, all[Value])
		}
		for i, want := range []string{Config: name, Value: base + ":value", ClientValue: base + ":value:" + clientID,
			Permits: base + ":permits", ClientPermits: base + ":permits:" + clientID} {
			if all[i] != want {
				t.Fatalf("key %d of %q is %q, want %q", i, name, all[i], want)
			}
		}
		one := true
		for _, key := range all {
			if s := Slot(key); s < 0 || s >= 16384 {
				t.Fatalf("slot %d of %q", s, key)
			}
			one = one && Slot(key) == Slot(all[0])
		}
		if SameSlot(all[:]) != one {
			t.Fatalf("SameSlot of %q is %v, but their slots say %v", all, !one, one)
		}
		if SameTag(all[:]) && !one {
			t.Fatalf("%q have one tag and different slots", all)
		}
	})
}

func TestLongKeysAreRefused(t *testing.T) {
	for _, length := range []int{MaxBytes/Count + 1, MaxBytes} {
		if CheckLength(length, len("me")) == nil {
			t.Errorf("a name of %d bytes is accepted", length)
		}
	}
	for _, length := range []int{0, 1 << 20, 100 << 20} {
		if err := CheckLength(length, 36); err != nil {
			t.Errorf("a name of %d bytes: %v", length, err)
		}
	}
	if CheckLength(3, MaxBytes/2) == nil {
		t.Error("a long id is accepted")
	}
}
