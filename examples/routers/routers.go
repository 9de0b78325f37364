// Package routers shows a guard in chi, gin, echo and fiber. Requests are counted by client address
// and by the router's pattern of the route.
package routers

import (
	"net/http"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/gofiber/fiber/v3"
	"github.com/labstack/echo/v5"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/echolimit"
	"github.com/rratelimiter/rratelimiter/fiberlimit"
	"github.com/rratelimiter/rratelimiter/ginlimit"
	"github.com/rratelimiter/rratelimiter/httplimit"
)

// NewGuard limits the requests of each client address to each route to ten per second.
// httplimit.Route reads Request.Pattern. chi (5.2.2 and later) and echo set it; for gin and fiber,
// ginlimit and fiberlimit do.
func NewGuard(client *rratelimiter.Client) *httplimit.Guard {
	return httplimit.New(httplimit.Per(client, "1s", rratelimiter.PerSecond(10),
		httplimit.Join(httplimit.ClientAddr{}.Key, httplimit.Route)))
}

// Chi uses the middleware on routes and not on the whole router, because the pattern is known only
// on routes.
func Chi(guard *httplimit.Guard) http.Handler {
	r := chi.NewRouter()
	r.With(guard.Middleware).Get("/orders/{id}", func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(chi.URLParam(r, "id")))
	})
	return r
}

// Gin uses ginlimit, which sets the pattern.
func Gin(guard *httplimit.Guard) http.Handler {
	r := gin.New()
	r.Use(ginlimit.Middleware(guard))
	r.GET("/orders/:id", func(c *gin.Context) { c.String(http.StatusOK, c.Param("id")) })
	return r
}

// Echo sets the pattern itself.
func Echo(guard *httplimit.Guard) http.Handler {
	e := echo.New()
	e.Use(echolimit.Middleware(guard))
	e.GET("/orders/:id", func(c *echo.Context) error { return c.String(http.StatusOK, c.Param("id")) })
	return e
}

// Fiber uses fiberlimit in the route, because the pattern is known only there.
func Fiber(guard *httplimit.Guard) *fiber.App {
	app := fiber.New()
	app.Get("/orders/:id", fiberlimit.Middleware(guard), func(c fiber.Ctx) error {
		return c.SendString(c.Params("id"))
	})
	return app
}
