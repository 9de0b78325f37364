package protocol

import (
	"io/fs"
	"math"
	"strings"
	"testing"

	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// fragment returns the text of a fragment of the scripts.
func fragment(t *testing.T, name string) string {
	text, err := fs.ReadFile(lua.Files, "shared/"+name+".lua")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestFlagsAreThoseOfScripts evaluates the flags that the scripts share.
func TestFlagsAreThoseOfScripts(t *testing.T) {
	want := map[string]rune{
		"ENFORCE": flagEnforce, "REBUILD": flagRebuild, "CHECK": flagCheck, "WHOLE_SCORES": flagWholeScores,
		"RECORD_EACH": flagRecordEach, "SERVER_TIME": flagServerTime, "NEXT": flagNext, "DETAIL": flagDetail,
		"UP_TO":       flagUpTo,
		"STRICT_ONLY": flagStrictOnly,
		"APART":       flagApart,
		"JOINT":       flagJoint,
		"GENERAL":     flagGeneral,
	}
	text := fragment(t, "flags")
	if n := strings.Count(text, "\nlocal "); n != len(want) {
		t.Errorf("the scripts have %d flags, %d here", n, len(want))
	}
	client := redistest.Embedded(t).Client()
	for name, letter := range want {
		if got, err := client.Eval(t.Context(), text+"return "+name, nil).Text(); got != string(letter) || err != nil {
			t.Errorf("%s is %q in the scripts, %q here: %v", name, got, letter, err)
		}
	}
}

// TestNotesAreThoseOfScripts evaluates the constants that the scripts share.
func TestNotesAreThoseOfScripts(t *testing.T) {
	const fractions = 200 // FRACTIONS_BELOW
	want := map[string]int64{
		"MORE": int64(More), "REBUILD_PENDING": int64(RebuildPending), "RATE_MISMATCH": int64(RateMismatch),
		"FOREIGN_WRITER": int64(ForeignWriter), "MANY": int64(Many),
		"MAX_NUMBER": MostPermits, "MAX_RECORD": math.MaxUint32, "FRACTIONS_BELOW": fractions,
		"MAX_EXPIRED": 2000, "MAX_ADDED": 256, // only scripts use these
	}
	for i, name := range []string{"MISSING", "GARBLED", "NEGATIVE", "ABOVE", "DRIFTED", "EMPTY", "LOW", "HIGH"} {
		want[name] = int64(repairs[i].note)
	}
	client := redistest.Embedded(t).Client()
	for name, value := range want {
		if got, err := client.Eval(t.Context(), fragment(t, "base")+"\nreturn "+name, nil).Int64(); got != value ||
			err != nil {
			t.Errorf("%s is %d in the scripts, %d here: %v", name, got, value, err)
		}
	}
	var o Options
	if o.Dated(1, fractions-1, false) != 1 || o.Dated(1, fractions, false) != 1000 {
		t.Error("Dated has fractions of a ms with other intervals than scripts")
	}
}

func TestMillisAsText(t *testing.T) {
	for micros, want := range map[int64]string{
		0: "0", 1: "0.001", 12_030: "12.030", 5000: "5", 1_700_000_000_123_456: "1700000000123.456",
		-1: "0", -1999: "-1", -5000: "-5", // before 1970, whole ms are precise enough
	} {
		if got := millisText(micros); got != want {
			t.Errorf("%d µs are %q, want %q", micros, got, want)
		}
	}
}
