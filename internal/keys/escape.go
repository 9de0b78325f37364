package keys

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// escape.go makes parts of limiters' names from texts that clients choose.

const (
	LongestText = 128 // maximum bytes of a text that Escape keeps whole; each becomes at most three
	kept        = 64  // bytes kept of a longer text
)

// Escape makes a text safe as a part of a name, and bounds its length. The result has no colon
// (separates parts), no equals sign (ends labels), no brace (chooses the cluster slot), and no
// character that is not printable ASCII.
func Escape(text string) string {
	if len(text) > LongestText {
		sum := sha256.Sum256([]byte(text))
		return Escape(text[:kept]) + "~" + hex.EncodeToString(sum[:16])
	}
	var b strings.Builder
	for i := range len(text) {
		switch c := text[i]; {
		case c == ' ':
			b.WriteByte('+')
		case c < ' ' || c > '~' || strings.IndexByte("%+~:={}", c) >= 0:
			b.WriteByte('%')
			b.WriteString(strings.ToUpper(hex.EncodeToString([]byte{c})))
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}
