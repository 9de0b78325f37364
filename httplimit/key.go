package httplimit

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"path"
	"strings"
)

// key.go makes the keys of requests: requests with one key share a limiter. Keys become parts of names in Redis, and
// clients choose much of their text: no text may look like another key, reach another limiter, or take much memory.

// A Key returns the part of a request that is counted separately. It returns "" if the request has no such part: then
// the limit does not apply to the request (see Per and Limit.OrElse). The key becomes part of a limiter's name unchanged,
// so a Key made of free text should come from By.
type Key func(r *http.Request) string

// By returns a key of any text in a request, such as the id of its user: "LABEL=text". The text is escaped as in a
// query, where needed, and a text longer than 128 bytes is shortened to a part of it and a hash.
func By(label string, text func(*http.Request) string) Key {
	return func(r *http.Request) string {
		t := text(r)
		if t == "" {
			return ""
		}
		return label + "=" + escape(t)
	}
}

// Header returns a key of a request's header field: "NAME=text". Any client can send any header: use it for a value
// that was verified before, such as an API key.
func Header(name string) Key {
	return By(name, func(r *http.Request) string { return r.Header.Get(name) })
}

// Path is a key: the path of the request's URL, escaped as by By. It is cleaned as a http.ServeMux does it, so that
// "//x", "/./x" and "/a/../x" are "/x", while "/x/" is another path. If clients can choose paths that are served, each
// path gives them another limit: use Route there.
func Path(r *http.Request) string {
	clean := path.Clean("/" + r.URL.Path)
	if clean != "/" && strings.HasSuffix(r.URL.Path, "/") {
		clean += "/"
	}
	return "/" + escape(clean[1:])
}

// Route is a key: the pattern of the request's route ("GET /orders/{id}"), as in Request.Pattern, written
// "GET+/orders/<id>". A http.ServeMux sets it before it calls the handler, so the middleware must be inside; with other
// routers, set Request.Pattern first. All requests without a pattern share the key "-", so they are limited, too.
func Route(r *http.Request) string {
	if r.Pattern == "" {
		return "-"
	}
	return escape(strings.NewReplacer("{", "<", "}", ">").Replace(r.Pattern))
}

// Join joins keys with colons: requests share a limiter if all keys are equal. A key that a request does not have is
// empty there, so a client cannot avoid the limit by leaving out one of several parts. The request has no key if all
// parts are empty.
func Join(keys ...Key) Key {
	return func(r *http.Request) string {
		parts, some := make([]string, len(keys)), false
		for i, key := range keys {
			parts[i] = key(r)
			some = some || parts[i] != ""
		}
		if !some {
			return ""
		}
		return strings.Join(parts, ":")
	}
}

// First returns the first of several keys that a request has: for example its user, else its address.
func First(keys ...Key) Key {
	return func(r *http.Request) string {
		for _, key := range keys {
			if value := key(r); value != "" {
				return value
			}
		}
		return ""
	}
}

const (
	longest = 128 // maximum bytes of a text in a key
	kept    = 64  // bytes kept of a longer text
)

// escape makes a text safe as a part of a name. It leaves no colon, which separates parts, no equals sign, which ends
// labels, no brace, which would choose the cluster slot, no character that is not printable, and bounds the length.
func escape(text string) string {
	if len(text) > longest {
		sum := sha256.Sum256([]byte(text))
		return escape(text[:kept]) + "~" + hex.EncodeToString(sum[:16])
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
