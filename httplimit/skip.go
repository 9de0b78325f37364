package httplimit

import (
	"net/http"
	"path"
	"slices"
	"strings"
)

// skip.go knows which requests are free. ClientAddr.Private is a rule, too.

// A Rule tells whether it applies to a request.
type Rule func(r *http.Request) bool

// Methods is a rule for requests with one of the methods.
func Methods(methods ...string) Rule {
	return func(r *http.Request) bool { return slices.Contains(methods, r.Method) }
}

// Paths is a rule for requests with one of the paths, or below one that ends with a slash. A path that a later handler
// would read otherwise ("/static/../orders") does not count.
func Paths(paths ...string) Rule {
	return func(r *http.Request) bool {
		asked := r.URL.Path
		clean := path.Clean(asked)
		if asked != clean && asked != clean+"/" {
			return false
		}
		return slices.ContainsFunc(paths, func(p string) bool {
			return asked == p || strings.HasSuffix(p, "/") && strings.HasPrefix(asked, p)
		})
	}
}
