package manage

import (
	"strings"
	"testing"
)

// A fault names its line, in one line.
func TestReadLimitsNamesTheLineOfAFault(t *testing.T) {
	for text, part := range map[string]string{
		"limits: {a: 5/s, b: -1/s}":           "line 1: b: rratelimiter: invalid rate",
		"limits:\n  a: {rate: 5/s, burst: 3}": `line 2: a: unknown field "burst"`,
		"limits:\n  a: 5/s\n  a: 6/s":         "line 3: a is there already, in line 2",
		"rates: {}":                           "the entries must be under limits",
		"limits: [a]":                         "limits must have an entry for each limiter",
		"":                                    "it is empty",
		"limits:\n  a: {rate: 5/h, keep-alive: 1s}": "keep-alive 1s is shorter than the interval",
		"\t":                   "it is empty",
		"limits:\n  a: [5/s\n": "yaml: line 3: did not find expected",
		"limits: {a: 5/s}\n---\nlimits: {b: 5/s}":                            "line 2: the file has a second document",
		"limits:\n  a:\n    rate: 5/s\n    reset: no way\n    per-client: x": "into bool; line 5: cannot construct",
		"limits: {~: 5/s}":                       "line 1: this is not a name",
		"limits: {a: {rate: 5/s, reset: maybe}}": "a: line 1: cannot construct !!str `maybe` into bool",

		"limits:\n  a:\n    rate: 5/s per client\n    per-client: false": "line 4: per-client is false, " +
			"but the rate \"5/s per client\" is per client",

		"limits:\n  a:\n    keep-alive: 2h\n    rate: 5/s keep-alive 1h": "line 3: keep-alive is given twice",
		"limits:\n  a:\n    keep-alive: 0s\n    rate: 5/s keep-alive 1h": "line 3: keep-alive is given twice",
	} {
		all, err := ReadLimits([]byte(text))
		if err == nil || !strings.Contains(err.Error(), part) || strings.Contains(err.Error(), "\n") {
			t.Errorf("of %q it reads %v (%v), want %q in one line", text, all, err, part)
		}
	}
}

func TestReadLimitsKeepsTheOrderOfTheFile(t *testing.T) {
	all, err := ReadLimits([]byte("limits: {b: 5/s per client, a: {rate: 7/h, keep-alive: 2h, reset: true}}"))
	if err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	if b := all[0]; b.Name != "b" || b.Rate.String() != "5/s per client" || !*b.PerClient || b.Reset {
		t.Errorf("%+v", b)
	}
	if a := all[1]; a.Name != "a" || a.Rate.String() != "7/h keep-alive 2h" || *a.PerClient || !a.Reset {
		t.Errorf("%+v", a)
	}
}
