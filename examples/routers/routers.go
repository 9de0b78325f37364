// Package routers shows a guard in chi, gin and echo. Requests are counted by client address and by the router's
// pattern of the route.
package routers

import (
	"net/http"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/labstack/echo/v4"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
)

// NewGuard limits the requests of each client address to each route to ten per second. httplimit.Route reads
// Request.Pattern. chi sets it (5.2.2 and later); for gin and echo, the middleware must set it.
func NewGuard(client *rratelimiter.Client) *httplimit.Guard {
	return httplimit.New(httplimit.Per(client, "1s", rratelimiter.PerSecond(10),
		httplimit.Join(httplimit.ClientAddr{}.Key, httplimit.Route)))
}

// Chi uses the middleware on routes and not on the whole router, because the pattern is known only on routes.
func Chi(guard *httplimit.Guard) http.Handler {
	r := chi.NewRouter()
	r.With(guard.Middleware).Get("/orders/{id}", func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(chi.URLParam(r, "id")))
	})
	return r
}

// Gin calls Abort for a refused request; otherwise gin runs the remaining handlers.
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

// Echo does not call the next handler for a refused request.
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
