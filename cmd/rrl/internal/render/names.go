package render

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
)

// names.go escapes names: for terminals, for JSON, and for shells.

// Printable returns a name without characters that a terminal may interpret.
func Printable(name string) string {
	odd := func(r rune) bool { return r <= ' ' || r == '"' || r == '\\' || r >= 0x7f && !unicode.IsPrint(r) }
	if name == "" || !utf8.ValidString(name) || strings.ContainsFunc(name, odd) {
		return strconv.Quote(name)
	}
	return name
}

// Cut shortens a text to a number of cells on a terminal. It leaves out the middle: names often
// share their beginning.
func Cut(text string, cells int) string {
	width := ansi.StringWidth(text)
	if width <= cells {
		return text
	}
	end := (cells - 1) / 2
	last := ansi.TruncateLeft(text, width-end, "")
	if ansi.StringWidth(last) > end { // a wide character stands where it is cut
		last = ansi.TruncateLeft(text, width-end+1, "")
	}
	return ansi.Truncate(text, cells-1-end, "") + "…" + last
}

// Visible replaces characters that a terminal may interpret, or does not show, with JSON escapes,
// and bytes that are not UTF-8 with the replacement character.
func Visible(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// ShellName returns a name as an argument for a shell and rrl.
func ShellName(name string) string { return ShellNames(name, "") }

// ShellNames returns the name of a limiter, and the id of a client of it unless that is "", as
// arguments for a shell and rrl.
func ShellNames(name, client string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
			strings.ContainsRune("_-.:/@+=,", r)
	}
	other := func(r rune) bool { return !plain(r) }
	inQuotes := func(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
	odd := func(text string) bool {
		return !utf8.ValidString(text) || strings.HasPrefix(text, "-") ||
			strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
	}
	argument := func(text string) string {
		if strings.ContainsFunc(text, other) {
			return inQuotes(text)
		}
		return text
	}
	quoted := ""
	if name == "" || odd(name) || odd(client) {
		quoted, argument = "--quoted ", func(text string) string { return inQuotes(strconv.Quote(text)) }
	}
	if client != "" {
		return quoted + argument(name) + " --client " + argument(client)
	}
	return quoted + argument(name)
}
