package routers_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/gofiber/fiber/v3/middleware/adaptor"

	"github.com/rratelimiter/rratelimiter/examples/routers"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/routertest"
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
		"fiber": {
			func(g *httplimit.Guard) http.Handler { return adaptor.FiberApp(routers.Fiber(g)) },
			"ratelimit:192.0.2.1:/orders/%3Aid:1s",
		},
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
			if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "1" ||
				!json.Valid(w.Body.Bytes()) {
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

// chi needs no module of its own: its middleware is that of net/http.
func TestResponsesOfChi(t *testing.T) {
	routertest.Run(t, func(t *testing.T, guard *httplimit.Guard) string {
		r := chi.NewRouter()
		r.Use(recovered, guard.Middleware)
		r.Get("/right", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Cost", "2")
			_, _ = w.Write([]byte("right"))
		})
		r.Get("/wrong", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
		r.Get("/nothing", func(http.ResponseWriter, *http.Request) {})
		r.Get("/panic", func(http.ResponseWriter, *http.Request) { panic("panic") })
		r.Get("/late", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte("late"))
			panic("late")
		})
		r.Get("/stream", func(w http.ResponseWriter, r *http.Request) {
			for range 2 {
				httplimit.Charge(r.Context(), 2)
				_, _ = w.Write([]byte("part"))
				w.(http.Flusher).Flush()
			}
		})
		r.Get("/hijack", func(w http.ResponseWriter, _ *http.Request) {
			if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
				conn.Close()
			}
		})
		server := httptest.NewServer(r)
		t.Cleanup(server.Close)
		return server.URL
	}, "/error") // its handlers return no errors
}

// recovered stands for chi's middleware.Recoverer, which logs the panic.
func recovered(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if recover() != nil {
				w.WriteHeader(http.StatusInternalServerError)
			}
		}()
		next.ServeHTTP(w, r)
	})
}
