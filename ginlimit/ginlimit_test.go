package ginlimit_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/ginlimit"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/routertest"
	"github.com/rratelimiter/rratelimiter/limittest"
)

var errWrongPassword = errors.New("wrong password")

// routes adds the routes of routertest.
func routes(router *gin.Engine) {
	router.GET("/right", func(c *gin.Context) { c.Header("X-Cost", "2"); c.String(http.StatusOK, "right") })
	router.GET("/wrong", func(c *gin.Context) { c.Status(http.StatusUnauthorized) })
	router.GET("/error", func(c *gin.Context) { _ = c.Error(errWrongPassword) })
	router.GET("/nothing", func(*gin.Context) {})
	router.GET("/panic", func(*gin.Context) { panic("panic") })
	router.GET("/late", func(c *gin.Context) { c.String(http.StatusUnauthorized, "late"); panic("late") })
	router.GET("/stream", func(c *gin.Context) {
		for range 2 {
			httplimit.Charge(c.Request.Context(), 2)
			_, _ = c.Writer.WriteString("part")
			c.Writer.Flush()
		}
	})
	router.GET("/hijack", func(c *gin.Context) {
		if conn, _, err := c.Writer.Hijack(); err == nil {
			conn.Close()
		}
	})
}

// respond returns the middleware that turns errors into responses: in several ways, of which each
// writes.
func respond(write func(c *gin.Context)) gin.HandlerFunc {
	return func(c *gin.Context) {
		if c.Next(); c.Errors.Last() != nil && errors.Is(c.Errors.Last(), errWrongPassword) {
			write(c)
		}
	}
}

func TestMiddleware(t *testing.T) {
	gin.SetMode(gin.TestMode)
	recovered := gin.RecoveryWithWriter(io.Discard)
	for name, write := range map[string]func(c *gin.Context){
		"body":   func(c *gin.Context) { c.JSON(http.StatusUnauthorized, gin.H{}) },
		"text":   func(c *gin.Context) { c.Status(http.StatusUnauthorized); _, _ = c.Writer.WriteString("wrong") },
		"header": func(c *gin.Context) { c.AbortWithStatus(http.StatusUnauthorized) },
		"flush": func(c *gin.Context) {
			c.Status(http.StatusUnauthorized)
			_ = http.NewResponseController(c.Writer).Flush()
		},
	} {
		for _, outside := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				routertest.Run(t, func(t *testing.T, guard *httplimit.Guard) string {
					router := gin.New()
					chain := []gin.HandlerFunc{recovered, respond(write), ginlimit.Middleware(guard)}
					if !outside {
						chain[1], chain[2] = chain[2], chain[1]
					}
					router.Use(chain...)
					routes(router)
					server := httptest.NewServer(router)
					t.Cleanup(server.Close)
					return server.URL
				})
			})
		}
	}
}

// The route is the key, also of a middleware for all routes.
func TestRouteIsTheKey(t *testing.T) {
	gin.SetMode(gin.TestMode)
	guard := httplimit.New(httplimit.Per(limittest.New(t).Client(), "1h", rratelimiter.PerHour(1), httplimit.Route))
	guard.Policy = &httplimit.Policy{Bound: 10 * time.Second}
	router := gin.New()
	router.Use(ginlimit.Middleware(guard))
	for _, path := range []string{"/orders/:id", "/users/:id"} {
		router.GET(path, func(c *gin.Context) { c.String(http.StatusOK, c.Param("id")) })
	}
	for _, c := range []struct {
		path   string
		status int
	}{{"/orders/7", 200}, {"/orders/8", 429}, {"/users/7", 200}, {"/none", 404}, {"/nothing", 429}} {
		w := httptest.NewRecorder()
		router.ServeHTTP(w, httptest.NewRequest(http.MethodGet, c.path, nil))
		if w.Code != c.status {
			t.Errorf("%s: %d, not %d", c.path, w.Code, c.status)
		}
	}
}
