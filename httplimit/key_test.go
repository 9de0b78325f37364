package httplimit

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/rratelimiter/rratelimiter/internal/keys"
)

func TestKeys(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "/orders/4%207", nil)
	r.RemoteAddr = "192.0.2.1:80"
	r.Header.Set("X-Api-Key", "a:b {c}")
	r.Pattern = "GET /orders/{id}"
	none := By("user", func(*http.Request) string { return "" })
	user := By("user", func(*http.Request) string { return "ann" })
	for _, c := range []struct {
		name string
		key  Key
		want string
	}{
		{"user", user, "user=ann"},
		{"nobody", none, ""},
		{"header", Header("X-Api-Key"), "X-Api-Key=a%3Ab+%7Bc%7D"},
		{"missing header", Header("X-Tenant"), ""},
		{"path", Path, "/orders/4+7"},
		{"route", Route, "GET+/orders/<id>"},
		{"join", Join(ClientAddr{}.Key, Route, user), "192.0.2.1:GET+/orders/<id>:user=ann"},
		{"join with a part missing", Join(none, user), ":user=ann"},
		{"join without any part", Join(none, none), ""},
		{"first", First(none, user, ClientAddr{}.Key), "user=ann"},
		{"first is missing", First(none, ClientAddr{}.Key), "192.0.2.1"},
		{"all are missing", First(none, none), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.key(r); got != c.want {
				t.Errorf("%q, not %q", got, c.want)
			}
		})
	}
}

func TestRequestWithoutAPatternHasARoute(t *testing.T) {
	if key := Route(httptest.NewRequest(http.MethodGet, "/", nil)); key != "-" {
		t.Error(key)
	}
}

// Handlers serve the same for all of these paths, so they are one path.
func TestPathIsClean(t *testing.T) {
	for asked, want := range map[string]string{
		"*":       "/*",
		"":        "/",
		"/":       "/",
		"//":      "/",
		"/é":      "/%C3%A9",
		"/a/b":    "/a/b",
		"//a":     "/a",
		"/./a":    "/a",
		"/x/../a": "/a",
		"/../a":   "/a", "/a/.": "/a", "/a/": "/a", "//a//b//": "/a/b", "/a/../": "/", "a": "/a",
	} {
		if got := Path(&http.Request{URL: &url.URL{Path: asked}}); got != want {
			t.Errorf("%q: %q, not %q", asked, got, want)
		}
	}
}

func TestLongTextsAreShortened(t *testing.T) {
	key := Header("X-Id")
	seen := map[string]bool{}
	for _, text := range []string{
		strings.Repeat("a", 128),
		strings.Repeat("a", 129),
		strings.Repeat("a", 1e6),
		strings.Repeat("a", 1e6) + "b",
	} {
		r := &http.Request{Header: http.Header{"X-Id": {text}}}
		value := key(r)
		if len(value) > len("X-Id=")+128 {
			t.Errorf("%d bytes of %d", len(value), len(text))
		}
		if seen[value] {
			t.Errorf("two texts are %q", value)
		}
		seen[value] = true
		// A client that sends the shortened form of another client's text does not get its key.
		r.Header.Set("X-Id", strings.TrimPrefix(value, "X-Id="))
		if len(text) > 128 && key(r) == value {
			t.Errorf("%q can be sent", value)
		}
	}
}

// Different texts have different keys, and no text ends its part of a name.
func FuzzKey(f *testing.F) {
	f.Add("a", "b")
	f.Add("a:b", "a%3Ab")
	f.Add("{x}", " +")
	f.Fuzz(func(t *testing.T, a, b string) {
		keyOf := func(text string) string { return By("l", func(*http.Request) string { return text })(nil) }
		if (a == b) != (keyOf(a) == keyOf(b)) {
			t.Errorf("%q and %q: %q and %q", a, b, keyOf(a), keyOf(b))
		}
		if a == "" {
			return
		}
		value := strings.TrimPrefix(keyOf(a), "l=")
		if strings.ContainsAny(value, ":={} ") ||
			strings.ContainsFunc(value, func(c rune) bool { return c < '!' || c > '~' }) {
			t.Errorf("%q: %q", a, value)
		}
		if len(value) > 3*keys.LongestText {
			t.Errorf("%d bytes have %d", len(a), len(value))
		}
	})
}
