package httplimit

import (
	"bytes"
	"context"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"unicode/utf8"
)

// readings.go has the paths that servers can read in the path of a request. Servers differ: some
// remove path parameters (";x"), decode %2F, take a backslash for a slash, resolve dot segments or
// merge slashes, in different orders. A request must not avoid a limit, or be skipped, because a
// server reads another path than the guard.
//
// No single form of a path is right for all servers: "/a/b/..;/../c" is /c for Tomcat, and /a/b/c
// for a server that knows no parameters. If both had one key, all requests for /c and for /a/b/c
// would have it. So a path can have several readings. A plain path has one, and most other paths
// have few.
//
// What servers read (–: a path of its own; examples/routers tests those in Go):
//
//	server            /login;x  /a%2Fb                /a/../b, /a/%2e%2e/b  //a              case
//	net/http ServeMux –         one segment, a/b      redirects the first   redirects        counts
//	gin               –         /a/b [1]              segments [2]          – [2]            counts
//	echo v4, v5, chi  –         one segment, a%2Fb    segments [3]          – [3]            counts
//	fiber v2, v3      –         one segment [4]       segments              –                ignored [4]
//	Tomcat 10.1 [5]   /login    400 [6]               /b [6]                /a               counts
//	nginx, location   –         /a/b                  /b                    /a [7]           counts
//	Node, new URL     –         one segment, a%2Fb    /b                    /, a is the host counts
//	Express 4, 5      –         one segment, a/b      segments              –                ignored [8]
//	ASP.NET Core      –         one segment, a%2Fb    /b                    –                ignored
//	Rails             –         one segment, a/b      segments              /a               counts
//
//	[1] with UseEscapedPath one segment     [2] with RemoveExtraSlash /b, and /a
//	[3] with chi's CleanPath /b, but %2e%2e is a segment, and /a
//	[4] with UnescapePath /a/b; case counts with CaseSensitive
//	[5] Spring MVC reads the same; Spring Security refuses all but the plain path
//	[6] /a/b with encodedSolidusHandling="decode"; /a/..;/b and /a/..;x/b are /b, too
//	[7] unless merge_slashes is off         [8] unless case sensitive routing is set
//
// For Node, //x/a and /\x/a are /a. nginx and a reverse proxy in Go pass a path on as the client
// sent it. If nginx's proxy_pass has a path, nginx passes on what it reads itself: Tomcat behind it
// then takes %3B for the semicolon of a parameter. With $uri in proxy_pass, the server behind it
// reads /login for /login%3Fx and /login%23x.

const (
	longestPath = 8 << 10 // maximum length in bytes of a path, as it is sent, that is not plain
	mostForms   = 32      // maximum number of forms of a path after a step
)

// steps are what servers do with a path: one of each step, in this order. A proxy and the server
// behind it can share them.
var steps = [][]func(string) string{
	{same, strip}, {same, decode}, {same, strip}, {same, decodeDots, decodeKeepingSlashes}, {same, slashed},
	{same, cut},
	{resolve, resolveRFC}, {same, slashed}, {same, withoutHost},
}

// readAlike reports whether all servers read the path of the request alike.
func readAlike(r *http.Request) bool { return r.URL == nil || plain(r.URL) }

// readings returns a copy of the request for each path that servers can read in its path, if they
// do not read it alike. The first has the path as it is. readings returns none if the path is too
// long, or has too many forms.
func readings(r *http.Request) (all []*http.Request) {
	read := forms(r.URL)
	if read == nil {
		return nil
	}
	add := func(u url.URL, normal string) {
		one := r.WithContext(context.WithValue(r.Context(), reading{}, reading{u, normal}))
		one.URL = &u
		all = append(all, one)
	}
	add(*r.URL, servletPath(r))
	seen := []string{r.URL.Path}
	addPath := func(p, normal string) {
		if slices.Contains(seen, p) {
			return
		}
		seen = append(seen, p)
		u := *r.URL
		u.Path, u.RawPath = p, ""
		add(u, normal)
	}
	for _, p := range read {
		n := normal(p)
		addPath(p, n)
		addPath(n, n)
	}
	return all
}

// A reading is in the context of a copy of a request, under the key reading{}: its URL, and the
// normal form of the path. So each limit need not compute that form again.
type reading struct {
	url    url.URL
	normal string
}

// plain reports whether all servers read the path u.Path. They can still differ about upper case
// and a final slash.
func plain(u *url.URL) bool {
	p := u.Path
	return strings.HasPrefix(p, "/") && !strings.ContainsAny(p, `;\%?#`) && utf8.ValidString(p) &&
		!strings.Contains(p, "//") &&
		(p == "/" || path.Clean(p) == strings.TrimSuffix(p, "/")) && (u.RawPath == "" || u.RawPath == p)
}

// forms returns the paths that servers can read in the path of a URL: first as chi and echo read
// it, without any step. It returns nil if the path is too long, or has too many forms.
func forms(u *url.URL) []string {
	if long(u) {
		return nil
	}
	sent := []string{u.EscapedPath()}
	if u.RawPath != "" && u.RawPath != sent[0] {
		sent = append(sent, u.RawPath) // the client escaped too little; proxies send the other form
	}
	all := sent
	for _, step := range steps {
		if all = distinct(all, step...); len(all) > mostForms {
			return nil
		}
	}
	return distinct(append(sent, all...), same)
}

// long reports whether a path is too long to have several readings.
func long(u *url.URL) bool {
	return max(len(u.Path), len(u.RawPath)) > longestPath || len(u.EscapedPath()) > longestPath
}

// distinct returns all forms of all paths, each once.
func distinct(paths []string, forms ...func(string) string) (all []string) {
	for _, p := range paths {
		for _, form := range forms {
			if f := form(p); !slices.Contains(all, f) {
				all = append(all, f)
			}
		}
	}
	return all
}

func same(p string) string { return p }

// servletPath returns the path that a servlet container reads, in its normal form.
func servletPath(r *http.Request) string {
	if plain(r.URL) {
		return r.URL.Path
	}
	if known, ok := r.Context().Value(reading{}).(reading); ok && known.url == *r.URL {
		return known.normal
	}
	return normal(resolve(decode(strip(r.URL.EscapedPath()))))
}

// normal returns a path without parameters, escapes, backslashes, empty segments and dot segments,
// up to a question mark or number sign. Keys are made of it, so that readings count separately only
// if they are different paths.
func normal(p string) string {
	return resolve(cut(resolve(strip(slashed(decodeAll(strip(p)))))))
}

// strip removes the parameters of all segments: each is a semicolon and what follows, up to the
// next slash.
func strip(p string) string {
	if !strings.Contains(p, ";") {
		return p
	}
	kept, parameter := make([]byte, 0, len(p)), false
	for i := range len(p) {
		switch p[i] {
		case ';':
			parameter = true
		case '/':
			parameter = false
		}
		if !parameter {
			kept = append(kept, p[i])
		}
	}
	return string(kept)
}

func slashed(p string) string { return strings.ReplaceAll(p, `\`, "/") }

// cut returns the path that a server reads if a proxy sends it the decoded path: its query begins
// at a question mark.
func cut(p string) string {
	if end := strings.IndexAny(p, "?#"); end >= 0 {
		return p[:end]
	}
	return p
}

// withoutHost returns the path that a parser of URLs reads: what follows two slashes at the
// beginning is a host.
func withoutHost(p string) string {
	if !strings.HasPrefix(p, "//") {
		return p
	}
	_, rest, _ := strings.Cut(strings.TrimLeft(p, "/"), "/")
	return "/" + rest
}

// decode decodes each escape once.
func decode(p string) string {
	if decoded, err := url.PathUnescape(p); err == nil {
		return decoded
	}
	return p
}

// decodeDots decodes dots only. Parsers of URLs resolve %2E%2E, but do not decode %2F.
func decodeDots(p string) string {
	return strings.ReplaceAll(strings.ReplaceAll(p, "%2e", "."), "%2E", ".")
}

// decodeKeepingSlashes decodes all but slashes, as Kestrel does.
func decodeKeepingSlashes(p string) string {
	return decode(strings.ReplaceAll(strings.ReplaceAll(p, "%2f", "%252f"), "%2F", "%252F"))
}

// decodeAll decodes until no escape is left, in one pass: an escape can end only at the last byte
// that was decoded.
func decodeAll(p string) string {
	if !strings.Contains(p, "%") {
		return p
	}
	done := make([]byte, 0, len(p))
	for i := range len(p) {
		done = append(done, p[i])
		for n := len(done) - 3; n >= 0; n = len(done) - 3 {
			c, ok := unhex(done[n:])
			if !ok {
				break
			}
			done = append(done[:n], c)
		}
	}
	return string(done)
}

// unhex returns the byte of an escape at the beginning of a text.
func unhex(text []byte) (byte, bool) {
	if len(text) < 3 || text[0] != '%' {
		return 0, false
	}
	const digits = "0123456789abcdef0123456789ABCDEF"
	high, low := strings.IndexByte(digits, text[1]), strings.IndexByte(digits, text[2])
	return byte(high%16<<4 | low%16), high >= 0 && low >= 0
}

// resolve merges slashes, resolves dot segments, and drops a final one, as Tomcat does.
func resolve(p string) string { return resolveDots(p, true) }

// resolveRFC resolves dot segments as in RFC 3986: ".." can remove an empty segment, and a final
// dot segment leaves a slash.
func resolveRFC(p string) string { return resolveDots(p, false) }

func resolveDots(p string, merge bool) string {
	if strings.HasPrefix(p, "/") && !strings.Contains(p, "//") && !strings.Contains(p, "/.") {
		return p
	}
	done, last := make([]byte, 0, len(p)+1), ""
	for last = range strings.SplitSeq(strings.TrimPrefix(p, "/"), "/") {
		switch {
		case last == "..":
			done = done[:max(bytes.LastIndexByte(done, '/'), 0)]
		case last == ".", last == "" && merge:
		default:
			done = append(append(done, '/'), last...)
		}
	}
	if len(done) == 0 || merge && last == "" || !merge && (last == "." || last == "..") {
		done = append(done, '/') // the path ends with a slash
	}
	return string(done)
}
