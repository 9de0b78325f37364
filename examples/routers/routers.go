// Package routers shows a guard in chi, gin and echo: requests are counted by client address and route, as the router
// names it.
package routers

import (
	"net/http"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/labstack/echo/v4"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
)

// NewGuard limits the requests of each client address to each route to ten a second. httplimit.Route reads
// Request.Pattern, which chi sets by itself (5.2.2 and later), and the others don't.
func NewGuard(client *rratelimiter.Client) *httplimit.Guard {
	return httplimit.New(httplimit.Per(client, "1s", rratelimiter.PerSecond(10),
		httplimit.Join(httplimit.ClientAddr{}.Key, httplimit.Route)))
}

// Chi uses the middleware on routes, whose patterns are known there, and not on the whole router.
func Chi(guard *httplimit.Guard) http.Handler {
	r := chi.NewRouter()
	r.With(guard.Middleware).Get("/orders/{id}", func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(chi.URLParam(r, "id")))
	})
	return r
}

// Gin must be told to stop.
func Gin(guard *httplimit.Guard) http.Handler {
	r := gin.New()
	r.Use(func(c *gin.Context) {
		c.Request.Pattern = c.FullPath()
		if !guard.Check(c.Writer, c.Request) {
			c.Abort()
		}
	})
	r.GET("/orders/:id", func(c *gin.Context) { c.String(http.StatusOK, c.Param("id")) })
	return r
}

// Echo stops where the next handler is not called.
func Echo(guard *httplimit.Guard) http.Handler {
	e := echo.New()
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			c.Request().Pattern = c.Path()
			if !guard.Check(c.Response(), c.Request()) {
				return nil
			}
			return next(c)
		}
	})
	e.GET("/orders/:id", func(c echo.Context) error { return c.String(http.StatusOK, c.Param("id")) })
	return e
}
