package render

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/rratelimiter/rratelimiter"
)

// json.go has the parts of JSON that several commands write. The names of fields are part of the
// interface: add to them, never change them.

// JSON returns an object as JSON, with an escape for each character that a terminal may interpret
// or does not show: the package json leaves C1 controls and those of bidirectional text unescaped.
func JSON(object any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(object); err != nil {
		return nil, err
	}
	return []byte(Visible(strings.TrimSuffix(b.String(), "\n"))), nil
}

// JSONName is the name of a limiter, or the id of a client, which need not be UTF-8.
type JSONName struct {
	Name   string `json:"name"`
	Base64 string `json:"name_base64,omitempty"` // where the name is not UTF-8; name is quoted then
}

// NameOf returns a name for JSON.
func NameOf(name string) JSONName {
	if utf8.ValidString(name) {
		return JSONName{Name: name}
	}
	return JSONName{strconv.Quote(name), base64.StdEncoding.EncodeToString([]byte(name))}
}

// JSONRate is a rate, in the fields that all commands use for it.
type JSONRate struct {
	Rate        string `json:"rate"` // as ParseRate reads it
	Permits     int64  `json:"permits"`
	IntervalMs  int64  `json:"interval_ms"`
	Type        string `json:"type"` // OVERALL or PER_CLIENT
	KeepAliveMs int64  `json:"keep_alive_ms"`
}

// RateOf returns a rate for JSON.
func RateOf(r rratelimiter.Rate) JSONRate {
	return JSONRate{r.String(), r.Permits, r.Interval.Milliseconds(), r.Type.String(), r.KeepAlive.Milliseconds()}
}
