package httplimit

import (
	"net/http"
	"strings"

	"github.com/rratelimiter/rratelimiter/internal/keys"
)

// key.go makes the keys of requests. Requests with the same key share a limiter. Keys become parts
// of names in Redis, and clients choose much of their text. So no text may look like another key,
// reach another limiter, or need much memory.

// A Key returns a part of the request, such as the address of its client. Requests with the same
// key share a limiter. If the Key returns "", the request has no key, and the limit does not apply
// to it (see Per and Limit.OrElse). The key becomes part of a limiter's name without changes, so
// use By to make a Key of free text.
type Key func(r *http.Request) string

// By returns a Key that is made of any text in a request, such as the id of its user: "LABEL=text".
// In the text, a space becomes "+", and the characters % + ~ : = { } and all bytes that are not
// printable ASCII become %XX. A text longer than 128 bytes is replaced by its beginning and a hash.
func By(label string, text func(*http.Request) string) Key {
	return func(r *http.Request) string {
		t := text(r)
		if t == "" {
			return ""
		}
		return label + "=" + keys.Escape(t)
	}
}

// Header returns a Key that is made of a header field of the request: "NAME=text". Clients can send
// any value in a header field, so use Header only if the value was verified before, for example an
// API key.
func Header(name string) Key {
	return By(name, func(r *http.Request) string { return r.Header.Get(name) })
}

// Path is a Key: the path of the request's URL as a servlet container reads it, without a final
// slash, escaped as in By. "/x;a", "/%78", "/x%3Fa", "/a/../x", "/a/..;/x" and "/x/" are "/x".
// Upper and lower case count. If servers can read several paths in a spelling, the request has the
// key of one of them, and a Guard also limits the others: "//a/x" is "/a/x", or "/x" for a server
// that takes a for a host. What a router ignores, such as the ending of "/x.json", counts: use
// Route or By then. If your handlers serve paths that clients can choose freely, a client gets
// another limiter for each path: use Route instead.
func Path(r *http.Request) string { return pathKey(servletPath(r)) }

// PathIgnoreCase is Path for servers that ignore upper and lower case in paths: "/X" and "/x" are
// "/x".
func PathIgnoreCase(r *http.Request) string {
	return pathKey(strings.ToLower(strings.ToUpper(servletPath(r)))) // some letters have several lower-case forms
}

func pathKey(p string) string { return "/" + keys.Escape(strings.TrimSuffix(p[1:], "/")) }

// Route is a Key: the pattern of the request's route in Request.Pattern. For the pattern "GET
// /orders/{id}" the key is "GET+/orders/<id>". A http.ServeMux sets Request.Pattern before it calls
// the handler, so the middleware must wrap the handlers of the ServeMux, not the ServeMux. With
// other routers, set Request.Pattern before the middleware. All requests without a pattern share
// the key "-", so they are limited, too.
func Route(r *http.Request) string {
	if r.Pattern == "" {
		return "-"
	}
	return keys.Escape(strings.NewReplacer("{", "<", "}", ">").Replace(r.Pattern))
}

// Join returns a Key that joins several keys with colons: requests share a limiter if all their
// keys are equal. A missing key counts as empty. So a client that leaves out one key does not avoid
// the limit, but gets another limiter with its own permits. A request has no key if all of its keys
// are missing.
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

// First returns a Key that uses the first of several keys that a request has: for example its user,
// or its address if it has no user.
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
