package httplimit

import (
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// readings.go has the paths that servers can read in the path of a request. Servers differ: some remove path parameters
// (";x"), decode %2F, take a backslash for a slash, resolve dot segments or merge slashes, in different orders. A request
// must not avoid a limit, or be skipped, because a server reads another path than the guard.
//
// No single form of a path is right for all servers: "/a/..;/../b" is /b for Tomcat, and /a/b for a server that knows no
// parameters. If both had one key, all paths /b and /a/b would have it. So a path can have several readings. A plain path
// has one, and most other paths have one, too.

// readings returns the request and, for each other path that a server can read in its path, a copy with that path.
func readings(r *http.Request) []*http.Request {
	all := []*http.Request{r}
	if r.URL == nil || plain(r.URL) {
		return all
	}
	read := readPaths(r.URL)
	if r.URL.RawPath != "" {
		read = append(read, r.URL.RawPath) // chi and echo do not decode it
	}
	for _, p := range read {
		if p != r.URL.Path {
			reading, u := r.WithContext(r.Context()), *r.URL
			u.Path, u.RawPath = p, ""
			reading.URL = &u
			all = append(all, reading)
		}
	}
	return all
}

// plain reports whether all servers read the path u.Path. They can still differ about upper case and a final slash.
func plain(u *url.URL) bool {
	p := u.Path
	return strings.HasPrefix(p, "/") && !strings.ContainsAny(p, `;\%`) && utf8.ValidString(p) && !strings.Contains(p, "//") &&
		(p == "/" || path.Clean(p) == strings.TrimSuffix(p, "/")) && (u.RawPath == "" || u.RawPath == p)
}

// readPaths returns the paths that servers can read, and their normal forms.
func readPaths(u *url.URL) []string {
	all := []string{u.EscapedPath()}
	if u.RawPath != "" {
		all = distinct(append(all, u.RawPath), same) // the client escaped too little; proxies send the other form
	}
	all = distinct(all, same, decode, func(p string) string { return decode(strip(p)) })
	all = distinct(all, same, slashed)
	all = distinct(all, resolve, resolveRFC)
	return distinct(all, same, normal)
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
func servletPath(u *url.URL) string {
	if plain(u) {
		return u.Path
	}
	return normal(resolve(decode(strip(u.EscapedPath()))))
}

// normal returns a path without parameters, escapes, backslashes, empty segments and dot segments. Keys are made of it,
// so that readings count separately only if they are different paths.
func normal(p string) string {
	return resolve(strip(slashed(decodeAll(resolve(strip(p))))))
}

// strip removes the parameters of all segments: each is a semicolon and what follows, up to the next slash.
func strip(p string) string {
	if !strings.Contains(p, ";") {
		return p
	}
	segments := strings.Split(p, "/")
	for i, s := range segments {
		segments[i], _, _ = strings.Cut(s, ";")
	}
	return strings.Join(segments, "/")
}

func slashed(p string) string { return strings.ReplaceAll(p, `\`, "/") }

// decode decodes each escape once.
func decode(p string) string {
	if decoded, err := url.PathUnescape(p); err == nil {
		return decoded
	}
	return p
}

// decodeAll decodes until no escape is left, in one pass: an escape can end only at the last byte that was decoded.
func decodeAll(p string) string {
	if !strings.Contains(p, "%") {
		return p
	}
	done := make([]byte, 0, len(p))
	for i := range len(p) {
		done = append(done, p[i])
		for n := len(done) - 3; n >= 0 && done[n] == '%'; n = len(done) - 3 {
			c, err := strconv.ParseUint(string(done[n+1:]), 16, 8)
			if err != nil {
				break
			}
			done = append(done[:n], byte(c))
		}
	}
	return string(done)
}

// resolve merges slashes, resolves dot segments, and drops a final one, as Tomcat does.
func resolve(p string) string { return resolveDots(p, true) }

// resolveRFC resolves dot segments as in RFC 3986: ".." can remove an empty segment, and a slash replaces a final one.
func resolveRFC(p string) string { return resolveDots(p, false) }

func resolveDots(p string, merge bool) string {
	if strings.HasPrefix(p, "/") && !strings.Contains(p, "//") && !strings.Contains(p, "/.") {
		return p
	}
	var kept []string
	last := ""
	for last = range strings.SplitSeq(strings.TrimPrefix(p, "/"), "/") {
		switch {
		case last == ".." && len(kept) > 0:
			kept = kept[:len(kept)-1]
		case last == "..", last == ".", last == "" && merge:
		default:
			kept = append(kept, last)
		}
	}
	if merge && last == "" || !merge && (last == "." || last == "..") {
		kept = append(kept, "") // the path ends with a slash
	}
	return "/" + strings.Join(kept, "/")
}
