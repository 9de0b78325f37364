package httplimit

import (
	"net/http"
	"slices"
	"strings"
)

// skip.go has the rules for unlimited requests. ClientAddr.Private is another rule.

// A Rule reports whether it applies to a request.
type Rule func(r *http.Request) bool

// Methods is a rule for requests with one of the methods.
func Methods(methods ...string) Rule {
	return func(r *http.Request) bool { return slices.Contains(methods, r.Method) }
}

// Paths is a rule for requests with exactly one of these paths. If a path in paths ends with a
// slash, the rule also applies to all paths below it. The rule does not apply to a path that
// servers can read differently: with a path parameter (";x"), a backslash, an empty segment, a dot
// segment, an escape that was not needed, such as %2F, or one of %25, %23 and %3F.
func Paths(paths ...string) Rule {
	return func(r *http.Request) bool {
		asked := r.URL.Path
		return plain(r.URL) && slices.ContainsFunc(paths, func(p string) bool {
			return asked == p || strings.HasSuffix(p, "/") && strings.HasPrefix(asked, p)
		})
	}
}
