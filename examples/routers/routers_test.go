package routers_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/rratelimiter/rratelimiter/examples/routers"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/limittest"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.TestMode)
	os.Exit(m.Run())
}

func TestRouters(t *testing.T) {
	for name, c := range map[string]struct {
		router func(*httplimit.Guard) http.Handler
		key    string
	}{
		"chi":  {routers.Chi, "ratelimit:192.0.2.1:/orders/<id>:1s"},
		"gin":  {routers.Gin, "ratelimit:192.0.2.1:/orders/%3Aid:1s"},
		"echo": {routers.Echo, "ratelimit:192.0.2.1:/orders/%3Aid:1s"},
	} {
		t.Run(name, func(t *testing.T) {
			s := limittest.New(t)
			guard := routers.NewGuard(s.Client())
			guard.Policy = &httplimit.Policy{Bound: 10 * time.Second, Failure: httplimit.FailClosed}
			h := c.router(guard)
			get := func(path string) *httptest.ResponseRecorder {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
				return w
			}
			for range 10 {
				if w := get("/orders/7"); w.Code != http.StatusOK || w.Body.String() != "7" {
					t.Fatalf("%d %q", w.Code, w.Body)
				}
			}
			// Another order number is the same route. The response is only the guard's.
			w := get("/orders/8")
			if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "1" || !json.Valid(w.Body.Bytes()) {
				t.Errorf("%d %q", w.Code, w.Body)
			}
			if s.Redis().Exists(t.Context(), c.key).Val() != 1 {
				t.Errorf("keys %v", s.Redis().Keys(t.Context(), "*").Val())
			}
			s.Advance(time.Second)
			if w := get("/orders/8"); w.Code != http.StatusOK || w.Body.String() != "8" {
				t.Errorf("a second later: %d %q", w.Code, w.Body)
			}
		})
	}
}
