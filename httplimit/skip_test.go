package httplimit

import (
	"net/http"
	"net/url"
	"testing"
)

func TestRules(t *testing.T) {
	paths := Paths("/healthz", "/static/")
	for asked, want := range map[string]bool{
		"/healthz": true, "/healthz/": false, "/healthz2": false, "/static/": true, "/static/a/b.css": true,
		"/static/a/":        true,
		"/static":           false,
		"/static/../orders": false,
		"/static//a":        false,
		"/./healthz":        false,
		"":                  false,
		"/":                 false,
		"/static/a;b":       false, `/static/a\b`: false, "/static/a%2fb": false, "/static/é": true,
	} {
		if got := paths(&http.Request{URL: &url.URL{Path: asked}}); got != want {
			t.Errorf("path %q: %v", asked, got)
		}
	}
	methods := Methods("OPTIONS", "HEAD")
	for asked, want := range map[string]bool{"OPTIONS": true, "HEAD": true, "GET": false, "options": false} {
		if got := methods(&http.Request{Method: asked}); got != want {
			t.Errorf("method %q: %v", asked, got)
		}
	}
}
