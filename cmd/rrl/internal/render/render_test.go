package render

import (
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/span"
)

func TestBar(t *testing.T) {
	for _, c := range []struct {
		part, whole int64
		want        string
	}{{0, 10, "...."}, {1, 1000, "#..."}, {5, 10, "##.."}, {999, 1000, "###."}, {10, 10, "####"}, {20, 10, "####"}, {-1, 10, "...."}, {1, 0, ""}} {
		if got := Bar(c.part, c.whole, 4, "#", "."); got != c.want {
			t.Errorf("bar of %d in %d: %q", c.part, c.whole, got)
		}
	}
	if got := Sparks([]int64{0, 1, 4, 8}); got != " ▁▄█" {
		t.Errorf("%q", got)
	}
}

func TestWords(t *testing.T) {
	for got, want := range map[string]string{
		Thousands(1234567):            "1,234,567",
		Thousands(-123):               "-123",
		Number(1, "permit"):           "1 permit",
		Wait(0):                       "0 ms",
		Wait(1500 * time.Microsecond): "1.5 ms",
		Wait(376 * time.Millisecond):  "376 ms",
		Wait(1234 * time.Millisecond): "1.23 s",
		Wait(12 * time.Second):        "12 s",
		span.Text(time.Minute):        "1m",
		span.Text(90 * time.Second):   "1m30s",
		Printable("orders:é"):         "orders:é",
		Printable("a\x1b[2Jb"):        `"a\x1b[2Jb"`,
		Printable("a b"):              `"a b"`,
	} {
		if got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
}

func TestShellNames(t *testing.T) {
	for name, want := range map[string]string{
		"api:orders-1": "api:orders-1", "": `--quoted '""'`, "a b": "'a b'", "it's": `'it'\''s'`, "a*": "'a*'", "größe": "'größe'",
		"a\x00'": `--quoted '"a\x00'\''"'`, "\xff": `--quoted '"\xff"'`, "-x": `--quoted '"-x"'`, "\u202e": `--quoted '"\u202e"'`,
	} {
		if got := ShellName(name); got != want {
			t.Errorf("%q is written %s, want %s", name, got, want)
		}
	}
	for _, c := range []struct{ name, client, want string }{
		{"a", "one", `a --client one`},
		{"a", "it's", `a --client 'it'\''s'`},
		{"a", "b\n", `--quoted '"a"' --client '"b\n"'`},
		{"a\n", "b c", `--quoted '"a\n"' --client '"b c"'`},
	} {
		if got := ShellNames(c.name, c.client); got != c.want {
			t.Errorf("%q of %q is %s, want %s", c.client, c.name, got, c.want)
		}
	}
}
