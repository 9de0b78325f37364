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
		"/login":               {"/login"},
		"/login/":              {"/login"},
		"/login;0":             {"/login"},
		"/login;a=1;b":         {"/login"},
		"/login;a%2Fb":         {"/login", "/login/b"},
		"/;x/login":            {"/login", "/"},
		"/login%3Bx":           {"/login"},
		"/%6cogin":             {"/login"},
		"/%256cogin":           {"/login"},
		"/%25256cogin":         {"/login"},
		"/login%2F":            {"/login"},
		"/login%5C":            {"/login"},
		`/x\..\login`:          {"/login"},
		"/x/%5c../login":       {"/login", "/x/login"},
		"//login":              {"/login", "/"}, // login is a host for a parser of URLs
		"/./login/.":           {"/login"},
		"/x/../login":          {"/login"},
		"/x/%2e%2E/login":      {"/login"},
		"/static/..;/login":    {"/login"},
		"/static/..;x=1/login": {"/login"},
		"/a%2fb/../login":      {"/a/login", "/login"},
		// Tomcat, and a server that knows no parameters
		"/a/b/..;/../c":                {"/c", "/a/b/c"},
		"/x%5cy/%2e%2e/login":          {"/login", "/x/login"}, // a backslash is a slash, or not
		"/a//../b":                     {"/b", "/a/b"},         // slashes are merged, or not
		"/a%2Fb/%2e%2e/login":          {"/login", "/a/login"},
		"/a%2Fb/.%2E/login":            {"/login", "/a/login"},
		`/a%2Fb\%2e%2e/login`:          {"/login", "/a/login"},
		`/a%5Ca\%2e%2e/login`:          {"/login", "/a/login"},
		"/a%252Fb/%252e%252e/login":    {"/login", "/a/login"}, // a proxy decodes it before
		"//x/login":                    {"/x/login", "/login"},
		"/.//x/login":                  {"/x/login", "/login"}, // a proxy resolves it before
		`/\x/login`:                    {"/x/login", "/login"},
		"/%5Cx/../login":               {"/login", "/"},
		"//x":                          {"/x", "/"},
		"/login%3Fx":                   {"/login"},
		"/login%23x":                   {"/login"},
		"/login#x":                     {"/login"},
		"/login%253Fx":                 {"/login"},
		"/a%3F/../login":               {"/login", "/a"},
		"/a%2Fb/..;x/login":            {"/login", "/a/login"}, // Tomcat with encodedSolidusHandling="passthrough"
		"/LOGIN":                       {"/LOGIN"},
		"/caf%C3%A9/%20x":              {"/caf%C3%A9/+x"},
		"/caf%c3%a9":                   {"/caf%C3%A9"},
		"/" + strings.Repeat("a", 200): {Path(sent(t, "/"+strings.Repeat("a", 200)))},
	} {
		if got := keysOf(sent(t, path), Path); !slices.Equal(sorted(got), sorted(want)) {
			t.Errorf("%s: %q, not %q", path, got, want)
		}
		read := distinct(distinct(forms(sent(t, path).URL), normal), pathKey) // what limits of the program see
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
			"/static/a.css":            true,
			"/static/":                 true,
			"/static/a%20b.css":        true,
			"/static/%C3%A9":           true,
			"/static/a(1).css":         true,
			"/static/.a/..b":           true,
			"/static/..;/login":        false,
			"/static/..;x/login":       false,
			"/static/%2e%2e/login":     false,
			"/static/.%2e/login":       false,
			"/static/%252e%252e/login": false, "/static/..%2flogin": false, "/static/..%5clogin": false,
			`/static/..\login`:    false,
			"/static/..%3b/login": false, "/static/../login": false, "/static/x/../../login": false,
			"/static//../../login": false,
			"/%73tatic/login":      false, "/static/../stati%2563/login": false, "/;/static/../login": false,
			"/static;x/../login":                false,
			"/static/a%2fb/%2e%2e/%2e%2e/login": false, "//x/static/../login": false, "//static/login": false,
			`/\static/login`:        false,
			"/login%3F/../static/a": false, "/login%23/../static/a": false,
		} {
			if got := keysOf(sent(t, path), Path, rule) == nil; got != want {
				t.Errorf("%s, path %q: skipped: %v", name, path, got)
			}
		}
	}
	// The paths of these are below /static/ in all readings, but they are not clean.
	for _, path := range []string{
		"/static/a;x", "/static/a%2eb", "/static/a%2fb", "/static/a%5cb", "/static/a%3bb", "/static//a", "/static/./a",
		"/static/%25", "/static/%ff", "/static/a%3fb", "/static/a%23b",
	} {
		if keysOf(sent(t, path), Path, Paths("/static/")) == nil {
			t.Errorf("%q is skipped", path)
		}
	}
	// A rule that does not depend on the path skips all paths.
	if keys := keysOf(sent(t, "/a/b/..;/../c"), Path, Methods(http.MethodGet)); keys != nil {
		t.Errorf("counted by %q", keys)
	}
}

// A limit of the program that applies to one path applies to all its spellings. The most permits
// count.
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
		return Claim{
			Name:    "l",
			Limiter: Named(client, strings.ReplaceAll(r.URL.Path, "/", "_"), "", rratelimiter.PerSecond(9)).Limiter,
		}
	})
	guard.Policy = &Policy{Bound: time.Minute}
	if d := guard.Decide(r); len(d.Answers) != 3 { // as it is, /login, and /a/b/login
		t.Errorf("%+v", d.Answers)
	}
	// Other fields of the request are in each reading.
	r.Host, r.Header = "shop.example", http.Header{"X-Key": {"k"}}
	if keys := keysOf(r, func(r *http.Request) string { return r.Host + r.Header.Get("X-Key") }); !slices.Equal(
		keys, []string{"shop.examplek"},
	) {
		t.Errorf("%q", keys)
	}
}

// If the readings of a path have one limiter and different rates, the strictest rate counts.
func TestStrictestRateOfTheReadingsCounts(t *testing.T) {
	client := limittest.New(t).Client()
	for name, rates := range map[string][2]rratelimiter.Rate{ // of /admin, and of all other paths
		"0":                {rratelimiter.PerSecond(0), rratelimiter.PerMinute(100)},
		"lower":            {rratelimiter.PerMinute(10), rratelimiter.PerSecond(1)},
		"the same, slower": {rratelimiter.PerSecond(1), rratelimiter.PerMinute(60)},
	} {
		rateOf := func(path string) rratelimiter.Rate {
			if path == "/admin" {
				return rates[0]
			}
			return rates[1]
		}
		ours := PerFunc(client, name, func(r *http.Request) rratelimiter.Rate { return rateOf(r.URL.Path) }, byAddr)
		other := func(r *http.Request) Claim { return Claim{Name: name, Limiter: open{}, Rate: rateOf(r.URL.Path)} }
		for _, limit := range []Limit{ours, other} {
			for _, path := range []string{"/admin;x", "//admin", "/a/b/..;/../admin", "/admin/."} {
				limit := limit.Cost(func(r *http.Request) int64 { return int64(len(r.URL.Path)) })
				claims := patient(limit).claims(nil, sent(t, path))
				if len(claims) != 1 || claims[0].Rate.Permits != rates[0].Permits ||
					claims[0].Permits != int64(len(path)) {
					t.Errorf("%s, %s: %+v", name, path, claims)
				}
			}
		}
		if rates[0].Permits == 0 {
			wantCodes(t, patient(ours).Middleware(ok), "192.0.2.1", "/admin;x", 429, 429)
		}
	}
}

// The limits of a request do not compute the normal form of a reading again, unless they change its
// URL.
func TestNormalFormIsComputedOnce(t *testing.T) {
	for _, r := range readings(sent(t, `/a\..;/%2e%2e/b%3Fc`)) {
		if n := testing.AllocsPerRun(10, func() { servletPath(r) }); n != 0 {
			t.Errorf("%q: %v allocations", r.URL.Path, n)
		}
		if r.URL.Path = "/c;x"; servletPath(r) != "/c" {
			t.Errorf("%q", servletPath(r))
		}
	}
}

// A path that is not plain is refused if it is too long, or if it has too many readings, also while
// Redis is away.
func TestPathThatCannotBeRead(t *testing.T) {
	long := "/" + strings.Repeat("a", longestPath-1)
	path := Limit(func(r *http.Request) Claim {
		return Claim{Name: "l", Key: Path(r), Limiter: fixed{err: rratelimiter.ErrUnavailable}}
	})
	for _, guard := range []*Guard{New(path), New(path, path)} {
		guard.Policy, guard.XRateLimit, guard.Skip = &Policy{Logger: quiet, Wait: time.Minute}, true, []Rule{
			Methods(http.MethodGet),
		}
		for path, want := range map[string]int{
			long + "a": 200, long[:longestPath-2] + ";x": 200, long + ";": 414, long[:longestPath-2] + "%3B": 414,
			long[:longestPath-2] + "%25":                 414,
			`/a\b//c;d/%2e%2e/%252fe%3b/..%5cf%3Fg/../h`: 400,
		} {
			w := httptest.NewRecorder()
			if guard.Middleware(ok).ServeHTTP(w, sent(t, path)); w.Code != want || len(w.Header()) > 2 && want != 200 {
				t.Errorf("%d bytes: %d, not %d\n%s", len(path), w.Code, want, headerText(w.Header()))
			}
		}
		d := guard.Decide(sent(t, long+";"))
		if d.Outcome != Denied || !slices.Equal(d.Refused(), []string{"path"}) {
			t.Errorf("%v: %q", d.Outcome, d.Refused())
		}
		guard.Policy.Shadow = true
		if d := guard.Decide(sent(t, long+";")); d.Outcome != Shadowed {
			t.Errorf("%v with Shadow", d.Outcome)
		}
		guard.SetLimits()
		if d := guard.Decide(sent(t, long+";")); d.Outcome != Unlimited {
			t.Errorf("%v without limits", d.Outcome)
		}
	}
}

// A Guard decides on requests without a URL, and on paths of any kind.
func TestRequestsWithoutAPath(t *testing.T) {
	if keys := keysOf(&http.Request{}, func(*http.Request) string { return "k" }); len(keys) != 1 {
		t.Errorf("%q", keys)
	}
	for _, u := range []*url.URL{
		{},
		{Path: "*"},
		{Path: "a"},
		{Path: "/%zz;"},
		{Path: "/b", RawPath: "/%zz"},
		{Path: "/b", RawPath: "/c"},
	} {
		if keys := keysOf(&http.Request{URL: u}, Path); len(keys) == 0 || !strings.HasPrefix(keys[0], "/") {
			t.Errorf("%+v: %q", u, keys)
		}
	}
}

// The time for the readings of a path grows with its length only.
func BenchmarkReadings(b *testing.B) {
	for name, path := range map[string]string{
		"plain": "/orders/7", "parameter": "/orders/7;x=1", "long": strings.Repeat("/a;%252e%5c", 700),
		"hostile": strings.Repeat(`/a;%25%2f..\`, 680),
		"nested":  "/%" + strings.Repeat("25", 4000) + "41", "too long": strings.Repeat("/a;%252e%5c", 90_000),
	} {
		b.Run(name, func(b *testing.B) {
			r := &http.Request{URL: &url.URL{Path: decode(path), RawPath: path}}
			b.SetBytes(int64(len(path)))
			for b.Loop() {
				if !readAlike(r) {
					readings(r)
				}
			}
		})
	}
}

// A normal form is its own only reading. So a limit that sees a reading counts by the key of that
// reading.
func FuzzReadings(f *testing.F) {
	for _, path := range []string{
		"/a/..;/b", "/%252e%5c;/../x", "//a//../b/.", `/\..\%2f`, "/%;4/1", "/%%341", "/a;b%2fc/d", "/..", "*",
	} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		if len(path) > longestPath/4 { // its escaped form can be too long
			return
		}
		u, err := url.ParseRequestURI(path)
		if err != nil {
			u = &url.URL{Path: path}
		}
		r := &http.Request{URL: u}
		all := distinct(forms(u), same, normal)
		if all == nil {
			if d := New(func(*http.Request) Claim { return Claim{} }).Decide(r); !d.unreadable() {
				t.Errorf("%q has too many forms, but is %v", path, d.Outcome)
			}
			return
		}
		if !slices.Contains(all, servletPath(r)) {
			t.Errorf("%q: %q lacks %q", path, all, servletPath(r))
		}
		for _, p := range distinct(all, normal) {
			if q := normal(p); q != p || p[0] != '/' || strings.ContainsAny(p, `;\?#`) || strings.Contains(p, "//") ||
				strings.Contains(p+"/", "/../") {
				t.Errorf("%q: %q, %q", path, p, q)
			}
			if again := distinct(forms(&url.URL{Path: p}), normal); len(again) != 1 || again[0] != p {
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
