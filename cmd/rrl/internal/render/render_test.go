package render

import (
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/rratelimiter/rratelimiter/internal/span"
)

func TestBar(t *testing.T) {
	for _, c := range []struct {
		part, whole int64
		want        string
	}{
		{0, 10, "...."}, {1, 1000, "#..."}, {5, 10, "##.."}, {999, 1000, "###."}, {10, 10, "####"}, {20, 10, "####"},
		{-1, 10, "...."}, {1, 0, ""},
	} {
		if got := Bar(c.part, c.whole, 4, "#", "."); got != c.want {
			t.Errorf("bar of %d in %d: %q", c.part, c.whole, got)
		}
	}
	if got := Sparks([]int64{0, 1, 4, 8}); got != " ▁▄█" {
		t.Errorf("%q", got)
	}
}

func TestLongLinesAreBrokenBetweenWords(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"  what  as it is", "  what  as it is"},
		{"  what  too long for one line", "  what  too long for\n        one line"},
		{"  what  averyveryverylongword", "  what  averyveryverylongword"},
	} {
		if got := wrapped(c.text, 20, 8); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
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

func TestLongNamesAreCutInTheMiddle(t *testing.T) {
	for _, c := range []struct{ name, want string }{
		{"orders", "orders"}, {"api:orders:1", "api:orders:1"}, {"api:orders:1:of:tenant-7", "api:or…ant-7"},
		{"日本語日本語日本語", "日本語…本語"}, {Printable("a\x1b[31m\u202eb c d e"), `"a\x1b… d e"`},
	} {
		got := Cut(c.name, 12)
		if got != c.want || ansi.StringWidth(got) > 12 {
			t.Errorf("%s is cut to %s, %d cells, want %s", c.name, got, ansi.StringWidth(got), c.want)
		}
	}
	for cells := range 30 { // wherever a wide character is cut
		if got := Cut("x日本語日本語日本語y", cells); ansi.StringWidth(got) > max(cells, 1) {
			t.Errorf("cut to %d cells it is %q, %d cells", cells, got, ansi.StringWidth(got))
		}
	}
}

// Names give way to the width of a terminal first, then notes, then columns of less use. In a pipe
// nothing is cut.
func TestATableFitsItsTerminal(t *testing.T) {
	rows := func() Table {
		return Table{Right: map[int]bool{1: true}, Rows: [][]string{
			{
				"NAME", "FREE", "",
			}, {strings.Repeat("語", 60), "10", ""}, {"short", "1,000", "does not add up"},
			{strings.Repeat("x", 60), "3", ""},
		}}
	}
	var out strings.Builder
	rows().Write(&Output{Out: &out, Width: 50})
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for _, line := range lines {
		if ansi.StringWidth(line) > 50 {
			t.Errorf("%d cells: %s", ansi.StringWidth(line), line)
		}
	}
	if !strings.Contains(lines[2], "short ") || !strings.HasSuffix(lines[2], "1,000  does not add up") ||
		!strings.Contains(lines[1], "…") {
		t.Errorf("%s", out.String())
	}
	out.Reset()
	rows().Write(&Output{Out: &out, Width: 30})
	if got := out.String(); !strings.Contains(got, "\nshort  ") ||
		!strings.Contains(got, "  1,000\n  does not add up\n") {
		t.Errorf("on a narrow terminal\n%s", got)
	}
	out.Reset()
	narrow := rows()
	narrow.Drop = []int{1}
	narrow.Write(&Output{Out: &out, Width: 20})
	if got := out.String(); !strings.HasPrefix(got, "NAME\n") ||
		!strings.Contains(got, "\nshort\n  does not add up\n") {
		t.Errorf("on a very narrow terminal\n%s", got)
	}
	out.Reset()
	rows().Write(&Output{Out: &out})
	if strings.Contains(out.String(), "…") || !strings.Contains(out.String(), strings.Repeat("x", 60)) {
		t.Errorf("in a pipe\n%s", out.String())
	}
}

func TestShellNames(t *testing.T) {
	for name, want := range map[string]string{
		"api:orders-1": "api:orders-1", "": `--quoted '""'`, "a b": "'a b'", "it's": `'it'\''s'`, "a*": "'a*'",
		"größe":  "'größe'",
		"a\x00'": `--quoted '"a\x00'\''"'`, "\xff": `--quoted '"\xff"'`, "-x": `--quoted '"-x"'`,
		"\u202e": `--quoted '"\u202e"'`,
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
