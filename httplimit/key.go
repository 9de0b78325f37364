package httplimit

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"path"
	"strings"
)

// key.go knows how requests are told apart, so that those with one key share a limiter. Keys become parts of names in
// Redis, and clients choose much of what is in them: no text may look like another key, reach another limiter, or take
// much memory.

// A Key gives the part of a request that is counted by itself; "" where the request has no such part. It becomes part of
// a limiter's name as it is, so a Key made of free text should come from By.
type Key func(r *http.Request) string

// By makes a key of any text in a request, such as the id of its user: "LABEL=text". The text is escaped as in a query,
// where needed, and one that is longer than 128 bytes is shortened to a part of it and a hash.
func By(label string, text func(*http.Request) string) Key {
	return func(r *http.Request) string {
		t := text(r)
		if t == "" {
			return ""
		}
		return label + "=" + escape(t)
	}
}

// Header makes a key of a request's header field: "NAME=text". Any client can send any header: use it for what was
// checked before, such as an API key.
func Header(name string) Key {
	return By(name, func(r *http.Request) string { return r.Header.Get(name) })
}

// Path is a key: the path of the request's URL, escaped as by By. It is cleaned as a http.ServeMux does it, so that "//x",
// "/./x" and "/a/../x" are "/x", while "/x/" is another path. Where clients can make up paths that are served, each is a
// limit of its own to them: use Route there.
func Path(r *http.Request) string {
	clean := path.Clean("/" + r.URL.Path)
	if clean != "/" && strings.HasSuffix(r.URL.Path, "/") {
		clean += "/"
	}
	return "/" + escape(clean[1:])
}

// Route is a key: the pattern that the request was routed by ("GET /orders/{id}"), as Request.Pattern has it, written
// "GET+/orders/<id>". A http.ServeMux sets it before it calls the handler, so the middleware must be inside; with other
// routers, set Request.Pattern first. All requests without a pattern share one key.
func Route(r *http.Request) string {
	return escape(strings.NewReplacer("{", "<", "}", ">").Replace(r.Pattern))
}

// Join makes one key of several, with colons between them: requests share a limiter if all keys agree.
func Join(keys ...Key) Key {
	return func(r *http.Request) string {
		parts := make([]string, len(keys))
		for i, key := range keys {
			parts[i] = key(r)
		}
		return strings.Join(parts, ":")
	}
}

// First makes a key of the first of several that a request has: its user, say, else its address.
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
	longest = 128 // bytes of a text in a key
	kept    = 64  // of a longer one
)

// escape makes a text safe as a part of a name: no colon, which separates parts, no equals sign, which ends labels, no
// brace, which would choose the name's place in a cluster, nothing that can't be printed, and no end.
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
