package echolimit_test

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/echolimit"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/routertest"
	"github.com/rratelimiter/rratelimiter/limittest"
)

var errWrongPassword = errors.New("wrong password")

// routes adds the routes of routertest.
func routes(e *echo.Echo) {
	e.GET("/right", func(c *echo.Context) error {
		c.Response().Header().Set("X-Cost", "2")
		return c.String(http.StatusOK, "right")
	})
	e.GET("/wrong", func(c *echo.Context) error { return c.NoContent(http.StatusUnauthorized) })
	e.GET("/error", func(*echo.Context) error { return errWrongPassword })
	e.GET("/nothing", func(*echo.Context) error { return nil })
	e.GET("/panic", func(*echo.Context) error { panic("panic") })
	e.GET("/late", func(c *echo.Context) error { _ = c.String(http.StatusUnauthorized, "late"); panic("late") })
	e.GET("/stream", func(c *echo.Context) error {
		for range 2 {
			httplimit.Charge(c.Request().Context(), 2)
			_, _ = io.WriteString(c.Response(), "part")
			_ = http.NewResponseController(c.Response()).Flush()
		}
		return nil
	})
	e.GET("/hijack", func(c *echo.Context) error {
		conn, _, err := http.NewResponseController(c.Response()).Hijack()
		if err == nil {
			conn.Close()
		}
		return err
	})
}

// newEcho returns an application whose error handler knows the errors of the routes.
func newEcho() *echo.Echo {
	e := echo.New()
	e.Logger = slog.New(slog.DiscardHandler)
	byDefault := e.HTTPErrorHandler
	e.HTTPErrorHandler = func(c *echo.Context, err error) {
		if errors.Is(err, errWrongPassword) {
			err = echo.NewHTTPError(http.StatusUnauthorized, "")
		}
		byDefault(c, err)
	}
	return e
}

func TestMiddleware(t *testing.T) {
	for name, outside := range map[string][]echo.MiddlewareFunc{
		"plain":  {},
		"gzip":   {middleware.Gzip()},
		"logger": {middleware.RequestLogger()},
	} {
		t.Run(name, func(t *testing.T) {
			routertest.Run(t, func(t *testing.T, guard *httplimit.Guard) string {
				e := newEcho()
				e.Use(append(outside, middleware.Recover(), echolimit.Middleware(guard))...)
				routes(e)
				server := httptest.NewServer(e)
				t.Cleanup(server.Close)
				return server.URL
			})
		})
	}
}

func get(e *echo.Echo, method, path string) int {
	w := httptest.NewRecorder()
	e.ServeHTTP(w, httptest.NewRequest(method, path, nil))
	return w.Code
}

// The route is the key, also of a middleware for all routes.
func TestRouteIsTheKey(t *testing.T) {
	guard := httplimit.New(httplimit.Per(limittest.New(t).Client(), "1h", rratelimiter.PerHour(1), httplimit.Route))
	guard.Policy = &httplimit.Policy{Bound: 10 * time.Second}
	e := newEcho()
	e.Use(echolimit.Middleware(guard))
	for _, path := range []string{"/orders/:id", "/users/:id"} {
		e.GET(path, func(c *echo.Context) error { return c.String(http.StatusOK, c.Param("id")) })
	}
	for _, c := range []struct {
		path   string
		status int
	}{{"/orders/7", 200}, {"/orders/8", 429}, {"/users/7", 200}} {
		if code := get(e, http.MethodGet, c.path); code != c.status {
			t.Errorf("%s: %d, not %d", c.path, code, c.status)
		}
	}
}

// A response to HEAD is sent after the middleware of the route has returned.
func TestHeadOfARouteForGet(t *testing.T) {
	guard := httplimit.New(httplimit.Per(limittest.New(t).Client(), "1h", rratelimiter.PerHour(3), nil).
		CountIf(func(status int, _ http.Header) bool { return status == http.StatusUnauthorized }))
	guard.Policy = &httplimit.Policy{Bound: 10 * time.Second}
	e := echo.NewWithConfig(echo.Config{Router: echo.NewRouter(echo.RouterConfig{AutoHandleHEAD: true})})
	e.GET(
		"/", func(c *echo.Context) error {
			return c.String(http.StatusUnauthorized, "wrong")
		}, echolimit.Middleware(guard),
	)
	for i, want := range []int{401, 401, 401, 429} {
		if code := get(e, http.MethodHead, "/"); code != want {
			t.Errorf("request %d: %d, not %d", i+1, code, want)
		}
	}
}

// If another middleware hides the response of echo, that of an error is not seen, and its permits
// stay taken.
func TestHiddenResponse(t *testing.T) {
	limiter := limittest.New(t).Client().RateLimiter("all", rratelimiter.WithRate(rratelimiter.PerHour(3)))
	guard := httplimit.New(
		httplimit.Shared("all", limiter).
			CountIf(func(status int, _ http.Header) bool { return status != http.StatusUnauthorized }),
	)
	guard.Policy = &httplimit.Policy{Bound: 10 * time.Second}
	e := newEcho()
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			was := c.Response()
			defer c.SetResponse(was)
			c.SetResponse(struct{ http.ResponseWriter }{was})
			return next(c)
		}
	}, echolimit.Middleware(guard))
	routes(e)
	for i, want := range []int{401, 401, 401, 429} {
		if code := get(e, http.MethodGet, "/error"); code != want {
			t.Errorf("request %d: %d, not %d", i+1, code, want)
		}
	}
}
