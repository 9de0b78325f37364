package routers_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/labstack/echo/v5"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
)

// spellings_test.go checks the limits of paths with real routers, and with models of servers that
// are not in Go: whatever a router takes for one route is counted together, and a path is skipped
// only if no router takes it for another route.

// A server returns the route and the values that it finds for a request; "" if it does not serve
// the request.
type server func(r *http.Request) string

// The routes of all servers.
const (
	login  = "/login"
	order  = "/orders/{id}"
	static = "/static/{rest...}"
	other  = "/{any...}"
)

// answered returns what the handler of a router wrote.
func answered(h http.Handler) server {
	return func(r *http.Request) string {
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r.Clone(context.Background())); w.Code != http.StatusOK {
			return ""
		}
		return w.Body.String()
	}
}

func found(route string, value string) string { return route + " " + value }

func serveMux() server {
	mux := http.NewServeMux()
	for _, route := range []string{login, order, static, other} {
		mux.HandleFunc(route, func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, found(route, r.PathValue("id")+r.PathValue("rest")+r.PathValue("any")))
		})
	}
	return answered(mux)
}

func ginRouter(options ...func(*gin.Engine)) server {
	router := gin.New()
	for _, option := range options {
		option(router)
	}
	for pattern, route := range map[string]string{login: login, "/orders/:id": order, "/static/*rest": static} {
		router.GET(
			pattern, func(c *gin.Context) {
				c.String(http.StatusOK, "%s", found(route, c.Param("id")+c.Param("rest")))
			},
		)
	}
	return answered(router)
}

func echoRouter() server {
	router := echo.New()
	for pattern, route := range map[string]string{
		login:         login,
		"/orders/:id": order,
		"/static/*":   static,
		"/*":          other,
	} {
		router.GET(
			pattern, func(c *echo.Context) error {
				return c.String(http.StatusOK, found(route, c.Param("id")+c.Param("*")))
			},
		)
	}
	return answered(router)
}

func chiRouter(middlewares ...func(http.Handler) http.Handler) server {
	router := chi.NewRouter()
	router.Use(middlewares...)
	for pattern, route := range map[string]string{
		login:          login,
		"/orders/{id}": order,
		"/static/*":    static,
		"/*":           other,
	} {
		router.Get(pattern, func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, found(route, chi.URLParam(r, "id")+chi.URLParam(r, "*")))
		})
	}
	return answered(router)
}

// routed returns the route of a path that a model has read.
func routed(p string) string {
	if id, ok := strings.CutPrefix(p, "/orders/"); ok && id != "" && !strings.Contains(id, "/") {
		return found(order, id)
	}
	if rest, ok := strings.CutPrefix(p, "/static/"); ok {
		return found(static, rest)
	}
	if p == login {
		return found(login, "")
	}
	return found(other, p)
}

// resolved merges slashes and resolves dot segments; "" if the path leaves the root.
func resolved(p string) string {
	depth := 0
	for segment := range strings.SplitSeq(p, "/") {
		switch segment {
		case "", ".":
		case "..":
			if depth--; depth < 0 {
				return ""
			}
		default:
			depth++
		}
	}
	clean := path.Clean("/" + p)
	if clean != "/" && strings.HasSuffix(p, "/") {
		clean += "/"
	}
	return clean
}

// tomcat is a model of Tomcat 10.1, which was compared with it. It removes parameters, decodes,
// resolves, and then matches. It refuses %2F and backslashes, unless lax.
func tomcat(sent string, lax bool) string {
	segments := strings.Split(sent, "/")
	for i, s := range segments {
		segments[i], _, _ = strings.Cut(s, ";")
	}
	p := strings.Join(segments, "/")
	refused := sent == "" || strings.ContainsAny(sent, "\\\"<>^`{|}") ||
		!lax && strings.Contains(strings.ToLower(p), "%2f")
	p, err := url.PathUnescape(p)
	if refused || err != nil || !lax && strings.Contains(p, `\`) || strings.Contains(p, "\x00") {
		return ""
	}
	return resolved(strings.ReplaceAll(p, `\`, "/"))
}

// nginx is a model of nginx, which decodes, resolves, and then matches.
func nginx(sent string) string {
	p, err := url.PathUnescape(sent)
	if err != nil || strings.Contains(p, "\x00") {
		return ""
	}
	return resolved(p)
}

// decodingNginx is a model of what a server reads behind nginx with $uri in proxy_pass, which
// escapes nothing.
func decodingNginx(sent string) string { return withoutQuery(nginx(sent)) }

// whatwg is a model of new URL(sent, "http://shop.example").pathname, which was compared with Node.
// Any host will do.
func whatwg(sent string) string {
	p := withoutQuery(sent)
	if p == "" {
		return ""
	}
	if p = strings.ReplaceAll(p, `\`, "/"); strings.HasPrefix(p, "//") {
		_, rest, _ := strings.Cut(strings.TrimLeft(p, "/"), "/")
		p = "/" + rest
	}
	p = withoutDots(p, "%2e")
	var b strings.Builder
	for i := range len(p) {
		if c := p[i]; c <= ' ' || c > '~' || strings.IndexByte("\"<>^`{}", c) >= 0 {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// withoutDots resolves dot segments as in RFC 3986. A dot can also be spelled as another text, in
// any case.
func withoutDots(p, dot string) string {
	kept := []string{}
	segments := strings.Split(strings.TrimPrefix(p, "/"), "/")
	for i, s := range segments {
		dots := strings.ReplaceAll(strings.ToLower(s), dot, ".")
		if dots == ".." {
			kept = kept[:max(len(kept)-1, 0)]
		}
		if dots != "." && dots != ".." {
			kept = append(kept, s)
		} else if i == len(segments)-1 {
			kept = append(kept, "")
		}
	}
	return "/" + strings.Join(kept, "/")
}

// envoy is a model of Envoy with normalize_path, which keeps escaped slashes and empty segments.
func envoy(sent string) string {
	return withoutDots(strings.ReplaceAll(withoutQuery(sent), `\`, "/"), "%2e")
}

// kestrel is a model of the server of ASP.NET Core. It decodes all but slashes, and then resolves.
func kestrel(sent string) string {
	p, err := url.PathUnescape(solidus.Replace(sent))
	if err != nil || strings.Contains(p, "\x00") {
		return ""
	}
	return unslashed(withoutDots(p, "."))
}

// solidus escapes an escaped slash once more, so that it is still escaped after the path was
// decoded.
var solidus = strings.NewReplacer("%2f", "%252f", "%2F", "%252F")

// withoutQuery returns what a server reads that gets a decoded path from a proxy.
func withoutQuery(p string) string {
	if end := strings.IndexAny(p, "?#"); end >= 0 {
		return p[:end]
	}
	return p
}

func model(read func(sent string) string) server {
	return func(r *http.Request) string {
		if p := read(r.URL.EscapedPath()); p != "" { // as a proxy in Go sends it
			return routed(p)
		}
		return ""
	}
}

// direct is a model of a server that gets what the client sent, while the guard decides elsewhere.
func direct(read func(sent string) string) server {
	return func(r *http.Request) string {
		if p := read(r.RequestURI); p != "" && !strings.Contains(r.RequestURI, " ") {
			return routed(p)
		}
		return ""
	}
}

var servers = sync.OnceValue(func() map[string]server {
	return map[string]server{ // after TestMain
		"net/http":                       serveMux(),
		"gin":                            ginRouter(),
		"gin with RemoveExtraSlash":      ginRouter(func(e *gin.Engine) { e.RemoveExtraSlash = true }),
		"gin with UseEscapedPath":        ginRouter(func(e *gin.Engine) { e.UseEscapedPath = true }),
		"echo":                           echoRouter(),
		"chi":                            chiRouter(),
		"chi with CleanPath":             chiRouter(middleware.CleanPath),
		"chi with StripSlashes":          chiRouter(middleware.StripSlashes),
		"Tomcat":                         model(func(sent string) string { return tomcat(sent, false) }),
		"Tomcat that allows %2F and %5C": model(func(sent string) string { return tomcat(sent, true) }),
		"nginx":                          model(nginx),
		"Tomcat behind a path of nginx": model(func(sent string) string {
			return tomcat(reescaped(nginx(sent)), true)
		}),
		"Spring 5 on Tomcat": model(func(sent string) string { return unslashed(tomcat(sent, false)) }),
		"Tomcat that keeps %2F": model(func(sent string) string {
			return tomcat(solidus.Replace(sent), true)
		}),
		"Node":                           model(whatwg),
		"Node, as sent":                  direct(whatwg),
		"Node behind Envoy":              direct(func(sent string) string { return whatwg(envoy(sent)) }),
		"Tomcat behind Envoy":            direct(func(sent string) string { return tomcat(envoy(sent), true) }),
		"Kestrel":                        model(kestrel),
		"a server behind decoding nginx": model(decodingNginx),
		"Node behind decoding nginx":     model(func(sent string) string { return whatwg(decodingNginx(sent)) }),
		"Tomcat behind decoding nginx":   model(func(sent string) string { return tomcat(decodingNginx(sent), true) }),
	}
})

// reescaped returns a path as nginx sends it on: of the characters that it decoded, it does not
// escape the semicolon.
func reescaped(p string) string {
	return strings.NewReplacer("%", "%25", "?", "%3F", "#", "%23", " ", "%20").Replace(p)
}

// unslashed returns a path without its final slash.
func unslashed(p string) string {
	if len(p) > 1 {
		return strings.TrimSuffix(p, "/")
	}
	return p
}

// request returns a request as a server in Go reads it; nil if it refuses the target.
func request(target string) *http.Request {
	u, err := url.ParseRequestURI(target)
	if err != nil || u.Host != "" || !strings.HasPrefix(target, "/") {
		return nil
	}
	return &http.Request{
		Method:     http.MethodGet,
		URL:        u,
		Host:       "shop.example",
		Header:     http.Header{},
		RequestURI: target,
	}
}

// An open limiter allows all.
type open struct{}

func (open) Allow(context.Context, int64) (rratelimiter.Result, error) {
	return rratelimiter.Result{Allowed: true}, nil
}

// limiters returns the keys of the limiters that count a request; none if it is skipped.
func limiters(r *http.Request, key httplimit.Key, skip ...httplimit.Rule) (keys []string) {
	guard := httplimit.New(func(r *http.Request) httplimit.Claim {
		k := key(r)
		if k == "" {
			return httplimit.Claim{}
		}
		return httplimit.Claim{Name: "l", Key: k, Limiter: open{}}
	})
	guard.Policy, guard.Skip = &httplimit.Policy{Bound: time.Minute}, skip
	d := guard.Decide(r)
	if !d.Outcome.Passed() {
		return []string{refused}
	}
	for _, a := range d.Answers {
		keys = append(keys, a.Key)
	}
	return keys
}

// refused is the only key of a request whose path has too many readings: no server gets it.
const refused = "refused"

// checkSpellings compares two spellings of paths with each server.
func checkSpellings(t *testing.T, one, two string) {
	a, b := request(one), request(two)
	if a == nil || b == nil {
		return
	}
	onlyLogin := func(r *http.Request) string { // a limit of the program, for one path
		if strings.TrimSuffix(r.URL.Path, "/") == login {
			return login
		}
		return ""
	}
	ours := func(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/static/") } // a rule of the program
	keys, others := limiters(a, httplimit.Path), limiters(b, httplimit.Path)
	if keys[0] == refused || others[0] == refused {
		return
	}
	skipped := limiters(a, httplimit.Path, httplimit.Paths("/static/")) == nil
	skippedByOurs := limiters(a, httplimit.Path, ours) == nil
	for name, server := range servers() {
		found, too := server(a), server(b)
		switch {
		case found == "":
			continue
		case found == too && !slices.ContainsFunc(keys, func(k string) bool { return slices.Contains(others, k) }):
			t.Errorf("%s serves %q for %q and %q, which count as %q and %q", name, found, one, two, keys, others)
		case found == login+" " && !slices.Contains(keys, login):
			t.Errorf("%s serves %q for %q, which counts as %q", name, found, one, keys)
		case found == login+" " && limiters(a, onlyLogin) == nil:
			t.Errorf("%s serves %q for %q, to which the limit of %s does not apply", name, found, one, login)
		}
		// The rules are also for /static/ itself, which servers that ignore the final slash take
		// for /static.
		if (skipped || skippedByOurs) && !strings.HasPrefix(found, static) && found != other+" /static" &&
			found != other+" static" {
			t.Errorf("%s serves %q for %q, which is skipped (%v, %v)", name, found, one, skipped, skippedByOurs)
		}
	}
}

// The table in httplimit/readings.go says this.
func TestWhatServersRead(t *testing.T) {
	const refused = "" // or redirected, by the server
	targets := []string{
		"/orders/7;x", "/orders/a%2Fb", "/x/../login", "/x/%2e%2e/login", "//login", "/LOGIN", "/login/",
		"/static/..;/login",
	}
	for name, want := range map[string][]string{
		"net/http": {
			order + " 7;x", order + " a/b", refused, other + " x/../login", refused, other + " LOGIN",
			other + " login/",
			static + " ..;/login",
		},
		"gin": {order + " 7;x", refused, refused, refused, refused, refused, refused, static + " /..;/login"},
		"gin with RemoveExtraSlash": {
			order + " 7;x", refused, login + " ", login + " ", login + " ", refused, refused, static + " /..;/login",
		},
		"gin with UseEscapedPath": {
			order + " 7;x", order + " a/b", refused, refused, refused, refused, refused, static + " /..;/login",
		},
		"echo": {
			order + " 7;x", order + " a%2Fb", other + " x/../login", other + " x/%2e%2e/login", other + " /login",
			other + " LOGIN", other + " login/",
			static + " ..;/login",
		},
		"chi": {
			order + " 7;x", order + " a%2Fb", other + " x/../login", other + " x/%2e%2e/login", other + " /login",
			other + " LOGIN", other + " login/",
			static + " ..;/login",
		},
		"chi with CleanPath": {
			order + " 7;x", order + " a%2Fb", login + " ", other + " x/%2e%2e/login", login + " ", other + " LOGIN",
			login + " ",
			static + " ..;/login",
		},
		"Tomcat": {
			order + " 7", refused, login + " ", login + " ", login + " ", other + " /LOGIN", other + " /login/",
			login + " ",
		},
		"Node": {
			order + " 7;x", order + " a%2Fb", login + " ", login + " ", other + " /", other + " /LOGIN",
			other + " /login/",
			static + " ..;/login",
		},
		"Kestrel": {
			order + " 7;x", order + " a%2Fb", login + " ", login + " ", other + " //login", other + " /LOGIN",
			login + " ",
			static + " ..;/login",
		},
		"nginx": {
			order + " 7;x", other + " /orders/a/b", login + " ", login + " ", login + " ", other + " /LOGIN",
			other + " /login/",
			static + " ..;/login",
		},
	} {
		for i, target := range targets {
			if got := servers()[name](request(target)); got != want[i] {
				t.Errorf("%s, %s: %q, not %q", name, target, got, want[i])
			}
		}
	}
}

// pieces are what clients can add to a path.
var pieces = []string{
	";x", ";", ";a%2fb", "%3bx", ";%2f..", "/.", "/%2e", "/y/..", "/y/..;", "/y/%2e%2e", "/y/.%2E;z", "/", "%2f", "%5c",
	`\`, "/y%2fz/..",
	`/y\z/..`, "/y%5c..", "/y/%252e%252e", "/y%252fz/..", "/..", "//..", "/;/..", "%25", "/static", "/login",
	"/orders/7",
	"..;",
	"%3fx", "%23x", "#/..", "/%2e%2e", `\%2e%2e`, "/.//x", "//x", `\x`,
}

// edited returns a path with changes: each pair of bytes is a place and a change.
func edited(p string, changes []byte) string {
	for ; len(changes) >= 2 && len(p) < 200; changes = changes[2:] {
		at, what := int(changes[0])%(len(p)+1), int(changes[1])
		switch rest := p[at:]; {
		case what < 192:
			p = p[:at] + pieces[what%len(pieces)] + rest
		case rest == "":
		case what < 224: // escaped
			p = p[:at] + fmt.Sprintf("%%%02x", rest[0]) + rest[1:]
		case what < 240: // escaped twice
			p = p[:at] + fmt.Sprintf("%%25%02X", rest[0]) + rest[1:]
		case len(rest) > 2 && rest[0] == '%': // decoded
			if c, err := url.PathUnescape(rest[:3]); err == nil {
				p = p[:at] + c + rest[3:]
			}
		default:
			p = p[:at] + rest[1:]
		}
	}
	return p
}

func FuzzSpellings(f *testing.F) {
	for _, p := range []string{
		"/login", "/login;0", "/login;a%2fb", "/login/", "/x/..;/login", "/x/%2e%2e/login", "/static/..;/login",
		"/static/..%2flogin", "/%6cogin",
		"/orders/7", "/orders/7;x", "/orders/%37", "/orders/..;/login", "/static/a;x", "/a;b%2fc/d",
		"/static/%2e%2e/login",
		"/static/..%5clogin",
		"/x1%2fy/../login", "/x1%2fy/%2e%2e/login", "/x1%252fy/%2e%2e/login", "/login%3ba%252fb", `/x1/y\../../login`,
		"/x1%5cy/%2e%2e/login", "/%73tatic/login", "/x%2541", "/x%41",
		"/a/..;/../b", "/a//../login", "/login/.", "/login/..", "/./login", "//login", "/static/", "/static/;x",
		"/static/../stati%2563/7;x",
		"/a%2fb/%2e%2e/login", `/a%5cb\.%2e/login`, "/a%252fb/%252e%252e/login", "/a%2fb/..;x/login", "//x/login",
		`/\x/login`, "/.//x/login", "//static/../login",
		"/login%3fx", "/login%23x", "/login#x", "/login%253fx", "/static%3f/../login", "/static/x%3f/../../login",
		"/static%253f%252F../login", "/static/%252E./stati%2563/7",
		`/\x/y/..z\x/%2e%2e/%2e%2e/login`, "/x1%2fy/y%5c../%2e%2e/login", "/login%252Fa/..;",
		"/orders/y%252fz/..%3bx/7",
	} {
		f.Add(p, []byte{})
		f.Add(p, []byte{1, 200, 4, 230})
	}
	for i := range pieces {
		f.Add("/static/login/7", []byte{7, byte(i)})
		f.Add("/orders/7", []byte{0, byte(i), 5, byte(i + 3)})
	}
	f.Fuzz(func(t *testing.T, p string, changes []byte) {
		changed := edited(p, changes)
		checkSpellings(t, p, changed)
		checkSpellings(t, changed, login)
		checkSpellings(t, changed, "/orders/7")
	})
}
