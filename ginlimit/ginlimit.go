// Package ginlimit guards the routes of gin with a guard of httplimit.
//
//	router := gin.New()
//	router.Use(gin.Recovery(), ginlimit.Middleware(guard))
package ginlimit

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/rratelimiter/rratelimiter/httplimit"
)

// Middleware returns a handler that lets requests pass, or responds to them as
// [httplimit.Guard.Admit] does and aborts the chain. It sets Request.Pattern to the path of the
// route, such as "/orders/:id", for the key [httplimit.Route]; without a route the pattern is "".
// With a nil guard all requests pass.
//
// The permits that depend on the response (CountIf, CostAfter) are corrected with the status that
// is sent. If the chain ends with c.Errors and without a response, this is the status that a
// handler outside of this one, such as an error handler, writes later; if no handler writes a body
// or a header, the permits stay taken. If the chain panics before it writes, the status is 500. If
// a handler takes over the connection, it is c.Writer.Status, usually 200. Handlers can call
// [httplimit.Charge] with the context of c.Request.
func Middleware(guard *httplimit.Guard) gin.HandlerFunc {
	return func(c *gin.Context) {
		c.Request.Pattern = c.FullPath()
		switch d := guard.Admit(c.Writer, c.Request); {
		case !d.Outcome.Passed():
			c.Abort()
		case d.Settles():
			serve(guard, d, c)
		}
	}
}

// serve runs the rest of the chain, and corrects the permits of the request.
func serve(guard *httplimit.Guard, d httplimit.Decision, c *gin.Context) {
	if ctx := httplimit.NewContext(c.Request.Context(), d); ctx != c.Request.Context() {
		c.Request = c.Request.WithContext(ctx)
	}
	r, panics := c.Request, true
	settle := func(status int) { guard.ActivePolicy().Settle(r.Context(), d, status, c.Writer.Header()) }
	defer func() {
		switch status := c.Writer.Status(); {
		case c.Writer.Written():
			settle(status)
		case panics:
			settle(http.StatusInternalServerError)
		case len(c.Errors) > 0 && status == http.StatusOK:
			c.Writer = &writer{ResponseWriter: c.Writer, settle: settle}
		default:
			settle(status)
		}
	}()
	c.Next()
	panics = false
}

// A writer calls settle with the status of the response before it writes it.
type writer struct {
	gin.ResponseWriter
	settle func(status int)
}

// Unwrap is for http.ResponseController.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *writer) WriteHeaderNow() {
	if !w.Written() {
		w.settle(w.Status())
	}
	w.ResponseWriter.WriteHeaderNow()
}

func (w *writer) Write(b []byte) (int, error) {
	w.WriteHeaderNow()
	return w.ResponseWriter.Write(b)
}

func (w *writer) WriteString(s string) (int, error) {
	w.WriteHeaderNow()
	return w.ResponseWriter.WriteString(s)
}

func (w *writer) Flush() {
	w.WriteHeaderNow()
	w.ResponseWriter.Flush()
}
