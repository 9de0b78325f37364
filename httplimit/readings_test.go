package httplimit

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// An open Allower allows all.
type open struct{}

func (open) Allow(context.Context, int64) (rratelimiter.Result, error) {
	return rratelimiter.Result{Allowed: true}, nil
}

// sent returns a request with a path as it is on the wire.
func sent(t *testing.T, path string) *http.Request {
	t.Helper()
	u, err := url.ParseRequestURI(path)
	if err != nil {
		t.Fatal(err)
	}
	return &http.Request{Method: http.MethodGet, URL: u, Header: http.Header{}}
}

// keysOf returns the keys that a guard counts a request by; none if it is skipped.
func keysOf(r *http.Request, key Key, skip ...Rule) (keys []string) {
	guard := New(func(r *http.Request) Claim { return Claim{Name: "l", Key: key(r), Limiter: open{}} })
	guard.Policy, guard.Skip = &Policy{Bound: time.Minute}, skip
	for _, a := range guard.Decide(r).Answers {
		keys = append(keys, a.Key)
	}
	return keys
}

// Each reading of a path counts, and equal ones count once.
func TestEachReadingCounts(t *testing.T) {
	for path, want := range map[string][]string{
		"/login":                       {"/login"},
		"/login/":                      {"/login"},
		"/login;0":                     {"/login"},
		"/login;a=1;b":                 {"/login"},
		"/login;a%2Fb":                 {"/login", "/login/b"},
		"/;x/login":                    {"/login"},
		"/login%3Bx":                   {"/login"},
		"/%6cogin":                     {"/login"},
		"/%256cogin":                   {"/login"},
		"/%25256cogin":                 {"/login"},
		"/login%2F":                    {"/login"},
		"/login%5C":                    {"/login"},
		`/x\..\login`:                  {"/login"},
		"/x/%5c../login":               {"/login", "/x/login"},
		"//login":                      {"/login"},
		"/./login/.":                   {"/login"},
		"/x/../login":                  {"/login"},
		"/x/%2e%2E/login":              {"/login"},
		"/static/..;/login":            {"/login"},
		"/static/..;x=1/login":         {"/login"},
		"/a%2fb/../login":              {"/a/login", "/login"},
		"/a/b/..;/../c":                {"/c", "/a/b/c"},       // Tomcat, and a server that knows no parameters
		"/x%5cy/%2e%2e/login":          {"/login", "/x/login"}, // a backslash is a slash, or not
		"/a//../b":                     {"/b", "/a/b"},         // slashes are merged, or not
		"/LOGIN":                       {"/LOGIN"},
		"/caf%C3%A9/%20x":              {"/caf%C3%A9/+x"},
		"/caf%c3%a9":                   {"/caf%C3%A9"},
		"/" + strings.Repeat("a", 200): {Path(sent(t, "/"+strings.Repeat("a", 200)))},
	} {
		if got := keysOf(sent(t, path), Path); !slices.Equal(sorted(got), sorted(want)) {
			t.Errorf("%s: %q, not %q", path, got, want)
		}
		read := distinct(distinct(readPaths(sent(t, path).URL), normal), pathKey) // what limits of the program see
		if !slices.Equal(sorted(read), sorted(want)) {
			t.Errorf("%s: the readings are %q, not %q", path, read, want)
		}
	}
}

func sorted(texts []string) []string { return slices.Sorted(slices.Values(texts)) }

func TestCaseCanBeIgnored(t *testing.T) {
	for _, path := range []string{"/login/É", "/LOGIN/é", "/Login;x/%c3%89", "/lo\u212aIN/é"} {
		want := "/login/%C3%A9"
		if strings.Contains(path, "\u212a") { // the Kelvin sign
			want = "/lokin/%C3%A9"
		}
		if got := keysOf(sent(t, path), PathIgnoreCase); !slices.Equal(got, []string{want}) {
			t.Errorf("%s: %q", path, got)
		}
	}
}

// A request is skipped only if no server can read a path that is not skipped.
func TestNothingIsSkippedByAnUncleanPath(t *testing.T) {
	mine := func(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/static/") } // a rule of the program
	for name, rule := range map[string]Rule{"Paths": Paths("/static/"), "own rule": mine} {
		for path, want := range map[string]bool{
			"/static/a.css": true, "/static/": true, "/static/a%20b.css": true, "/static/%C3%A9": true, "/static/a(1).css": true, "/static/.a/..b": true,
			"/static/..;/login": false, "/static/..;x/login": false, "/static/%2e%2e/login": false, "/static/.%2e/login": false,
			"/static/%252e%252e/login": false, "/static/..%2flogin": false, "/static/..%5clogin": false, `/static/..\login`: false,
			"/static/..%3b/login": false, "/static/../login": false, "/static/x/../../login": false, "/static//../../login": false,
			"/%73tatic/login": false, "/static/../stati%2563/login": false, "/;/static/../login": false, "/static;x/../login": false,
		} {
			if got := keysOf(sent(t, path), Path, rule) == nil; got != want {
				t.Errorf("%s, path %q: skipped: %v", name, path, got)
			}
		}
	}
	// The paths of these are below /static/ in all readings, but they are not clean.
	for _, path := range []string{"/static/a;x", "/static/a%2eb", "/static/a%2fb", "/static/a%5cb", "/static/a%3bb", "/static//a", "/static/./a", "/static/%25", "/static/%ff"} {
		if keysOf(sent(t, path), Path, Paths("/static/")) == nil {
			t.Errorf("%q is skipped", path)
		}
	}
	// A rule that does not depend on the path skips all paths.
	if keys := keysOf(sent(t, "/a/b/..;/../c"), Path, Methods(http.MethodGet)); keys != nil {
		t.Errorf("counted by %q", keys)
	}
}

// A limit of the program that applies to one path applies to all its spellings. The most permits count.
func TestOwnLimitsSeeEachReading(t *testing.T) {
	r := sent(t, "/a/b/..;/../login")
	limit := Limit(func(r *http.Request) Claim {
		if r.URL.Path != "/login" {
			return Claim{}
		}
		return Claim{Name: "l", Limiter: open{}, Rate: rratelimiter.PerSecond(99)}
	}).OrElse(func(*http.Request) Claim {
		return Claim{Name: "l", Limiter: open{}, Permits: 1, Rate: rratelimiter.PerSecond(99)}
	}).
		Cost(func(r *http.Request) int64 { return int64(len(r.URL.Path)) })
	d := New(limit).Decide(r)
	if len(d.Answers) != 1 || d.Answers[0].Permits != 17 {
		t.Errorf("%+v", d.Answers)
	}
	if r.URL.Path != "/a/b/..;/../login" {
		t.Errorf("the request was changed: %q", r.URL.Path)
	}
	// Two limits with one name and key both count, as for a plain path.
	if d := New(limit, limit).Decide(r); len(d.Answers) != 2 {
		t.Errorf("%+v", d.Answers)
	}
	// Two paths with a limiter of the library each, which have one name and key here, both count.
	client := limittest.New(t).Client()
	guard := New(func(r *http.Request) Claim {
		return Claim{Name: "l", Limiter: Named(client, strings.ReplaceAll(r.URL.Path, "/", "_"), "", rratelimiter.PerSecond(9)).Limiter}
	})
	guard.Policy = &Policy{Bound: time.Minute}
	if d := guard.Decide(r); len(d.Answers) != 3 { // as it is, /login, and /a/b/login
		t.Errorf("%+v", d.Answers)
	}
	// Other fields of the request are in each reading.
	r.Host, r.Header = "shop.example", http.Header{"X-Key": {"k"}}
	if keys := keysOf(r, func(r *http.Request) string { return r.Host + r.Header.Get("X-Key") }); !slices.Equal(keys, []string{"shop.examplek"}) {
		t.Errorf("%q", keys)
	}
}

// A Guard decides on requests without a URL, and on paths of any kind.
func TestRequestsWithoutAPath(t *testing.T) {
	if keys := keysOf(&http.Request{}, func(*http.Request) string { return "k" }); len(keys) != 1 {
		t.Errorf("%q", keys)
	}
	for _, u := range []*url.URL{{}, {Path: "*"}, {Path: "a"}, {Path: "/%zz;"}, {Path: "/b", RawPath: "/%zz"}, {Path: "/b", RawPath: "/c"}} {
		if keys := keysOf(&http.Request{URL: u}, Path); len(keys) == 0 || !strings.HasPrefix(keys[0], "/") {
			t.Errorf("%+v: %q", u, keys)
		}
	}
}

// The time for the readings of a path grows with its length only.
func BenchmarkReadings(b *testing.B) {
	for name, path := range map[string]string{
		"plain": "/orders/7", "parameter": "/orders/7;x=1", "long": strings.Repeat("/a;%252e%5c", 6000), "nested": "/%" + strings.Repeat("25", 30_000) + "41",
	} {
		b.Run(name, func(b *testing.B) {
			r := httptest.NewRequest(http.MethodGet, path, nil)
			b.SetBytes(int64(len(path)))
			for b.Loop() {
				readings(r)
			}
		})
	}
}

// A normal form is its own only reading. So a limit that sees a reading counts by the key of that reading.
func FuzzReadings(f *testing.F) {
	for _, path := range []string{"/a/..;/b", "/%252e%5c;/../x", "//a//../b/.", `/\..\%2f`, "/%;4/1", "/%%341", "/a;b%2fc/d", "/..", "*"} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		u, err := url.ParseRequestURI(path)
		if err != nil {
			u = &url.URL{Path: path}
		}
		r := &http.Request{URL: u}
		all := readPaths(u)
		if !slices.Contains(all, servletPath(u)) {
			t.Errorf("%q: %q lacks %q", path, all, servletPath(u))
		}
		for _, p := range distinct(all, normal) {
			if q := normal(p); q != p || p[0] != '/' || strings.ContainsAny(p, `;\`) || strings.Contains(p, "//") || strings.Contains(p+"/", "/../") {
				t.Errorf("%q: %q, %q", path, p, q)
			}
			if again := distinct(readPaths(&url.URL{Path: p}), normal); len(again) != 1 || again[0] != p {
				t.Errorf("%q: the reading %q has the readings %q", path, p, again)
			}
		}
		if plain(u) && !slices.Equal(distinct(all, normal), []string{u.Path}) {
			t.Errorf("%q is plain, but has the readings %q", path, all)
		}
		if keys := keysOf(r, Path); !slices.Contains(keys, Path(r)) || len(keys) > len(all)+1 {
			t.Errorf("%q: counted by %q", path, keys)
		}
	})
}
