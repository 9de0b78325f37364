// Package echolimit guards the routes of echo v5 with a guard of httplimit.
//
//	e := echo.New()
//	e.Use(middleware.Recover(), echolimit.Middleware(guard))
package echolimit

import (
	"net/http"

	"github.com/labstack/echo/v5"

	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/response"
)

// Middleware returns a middleware that lets requests pass, or responds to them as
// [httplimit.Guard.Admit] does. The key [httplimit.Route] is the path of the route, such as
// "/orders/:id", which echo sets as Request.Pattern; without a route, and in Echo.Pre, it is "-".
// With a nil guard all requests pass.
//
// The permits that depend on the response (CountIf, CostAfter) are corrected with the status that
// is sent. If a handler returns an error, this is the status that the error handler of the
// application writes later; if another middleware has replaced the response by a writer without
// Unwrap, the permits stay taken then. If the handler panics before it writes, the status is 500.
// If it takes over the connection, the status is 101. Handlers can call [httplimit.Charge] with the
// context of c.Request.
func Middleware(guard *httplimit.Guard) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			switch d := guard.Admit(c.Response(), c.Request()); {
			case !d.Outcome.Passed():
				return nil
			case d.Settles():
				return serve(guard, d, c, next)
			}
			return next(c)
		}
	}
}

// serve calls next, and corrects the permits of the request.
func serve(guard *httplimit.Guard, d httplimit.Decision, c *echo.Context, next echo.HandlerFunc) (err error) {
	if ctx := httplimit.NewContext(c.Request().Context(), d); ctx != c.Request().Context() {
		c.SetRequest(c.Request().WithContext(ctx))
	}
	r, seen := c.Request(), &response.Recorder{ResponseWriter: c.Response()}
	settle := func(status int) { guard.ActivePolicy().Settle(r.Context(), d, status, seen.Header()) }
	panics, late := true, false
	if sent, unseen := echo.UnwrapResponse(c.Response()); unseen == nil {
		sent.Before(func() {
			if late {
				settle(sent.Status)
			}
		})
	}
	c.SetResponse(seen)
	defer func() {
		c.SetResponse(seen.ResponseWriter)
		switch {
		case seen.Status != 0:
			settle(seen.Status)
		case panics:
			settle(http.StatusInternalServerError)
		case err == nil:
			settle(http.StatusOK)
		default:
			late = true // the error handler writes the response
		}
	}()
	err = next(c)
	panics = false
	return err
}
