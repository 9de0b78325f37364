// Package fiberlimit guards the routes of fiber v3 with a guard of httplimit.
//
//	app := fiber.New()
//	app.Use(recover.New(), fiberlimit.Middleware(guard))
package fiberlimit

import (
	"net/http"
	"net/url"

	"github.com/gofiber/fiber/v3"

	"github.com/rratelimiter/rratelimiter/httplimit"
)

// Middleware returns a handler that lets requests pass, or responds to them as
// [httplimit.Guard.Admit] does. With a nil guard all requests pass. Limits and rules see a copy of
// the request without its body, in the form of net/http, with the context of fiber.Ctx.Context. Its
// Pattern, for the key [httplimit.Route], is the path of the route that has the middleware. So use
// the middleware in the route: app.Get("/orders/:id", fiberlimit.Middleware(guard), get). With
// app.Use, the pattern is the prefix of Use. For limits by path use [httplimit.PathIgnoreCase],
// unless the application is CaseSensitive.
//
// The permits that depend on the response (CountIf, CostAfter) are corrected with the status of the
// response. If such a request ends with an error, Middleware calls the error handler of the
// application to get this status, as the middleware logger of fiber does, and returns nil: handlers
// outside of it do not get the error. If the handler panics, the status is 500. Handlers can call
// [httplimit.Charge] with c.Context. fiber streams a body after the handlers have returned: what is
// charged while it does (with a context from before) adds to the cost of CostAfter.
func Middleware(guard *httplimit.Guard) fiber.Handler {
	return func(c fiber.Ctx) error {
		w := &writer{c, header(c)}
		d := guard.Admit(w, request(c))
		w.send()
		switch {
		case !d.Outcome.Passed():
			return nil
		case d.Settles():
			return serve(guard, d, c)
		}
		return c.Next()
	}
}

// serve runs the rest of the chain, and corrects the permits of the request.
func serve(guard *httplimit.Guard, d httplimit.Decision, c fiber.Ctx) error {
	c.SetContext(httplimit.NewContext(c.Context(), d))
	status := http.StatusInternalServerError // if the chain panics
	defer func() { guard.ActivePolicy().Settle(c.Context(), d, status, header(c)) }()
	if err := c.Next(); err != nil {
		if err = c.App().ErrorHandler(c, err); err != nil {
			c.Status(http.StatusInternalServerError) // as fiber does
		}
	}
	status = c.Response().StatusCode()
	return nil
}

// request returns a copy of the request as limits see it: fiber uses the memory of a request again
// after its response, and a guard keeps keys longer. If net/http would refuse the target of the
// request, the path is what the client sent.
func request(c fiber.Ctx) *http.Request {
	from := c.RequestCtx()
	target := string(from.RequestURI())
	u, err := url.ParseRequestURI(target)
	if err != nil {
		u = &url.URL{Path: string(from.URI().PathOriginal())}
	}
	r := &http.Request{
		Method: string(from.Method()), URL: u, RequestURI: target, Host: string(from.Host()), Header: http.Header{},
		Body:          http.NoBody,
		ContentLength: int64(from.Request.Header.ContentLength()), RemoteAddr: from.RemoteAddr().String(),
		TLS:   from.TLSConnectionState(),
		Proto: string(from.Request.Header.Protocol()), Pattern: c.FullPath(),
	}
	if from.Request.Header.ContentLength() == -2 { // fasthttp: no field Content-Length; -1: chunks
		r.ContentLength = 0
	}
	for name, value := range from.Request.Header.All() {
		r.Header.Add(string(name), string(value))
	}
	r.Header.Del("Host") // as in net/http
	return r.WithContext(c.Context())
}

// header returns a copy of the response header.
func header(c fiber.Ctx) http.Header {
	h := http.Header{}
	for name, value := range c.Response().Header.All() {
		h.Add(string(name), string(value))
	}
	return h
}

// A writer writes the response of a guard to that of fiber. The header is sent by send.
type writer struct {
	c      fiber.Ctx
	header http.Header
}

func (w *writer) Header() http.Header               { return w.header }
func (w *writer) WriteHeader(status int)            { w.c.Status(status) }
func (w *writer) Write(b []byte) (n int, err error) { return w.c.Write(b) }

// send sets the fields of the response header. There may be one from before, such as the field
// RateLimit of another guard, which this guard has extended.
func (w *writer) send() {
	to := &w.c.Response().Header
	for name := range w.header { // all of them first: Del changes the order of other fields
		to.Del(name)
	}
	for name, values := range w.header {
		for _, value := range values {
			to.Add(name, value)
		}
	}
}
