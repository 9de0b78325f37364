package fiberlimit_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/recover"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fiberlimit"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/routertest"
	"github.com/rratelimiter/rratelimiter/limittest"
)

var errWrongPassword = errors.New("wrong password")

// newApp returns an application whose error handler knows the errors of the routes.
func newApp() *fiber.App {
	return fiber.New(fiber.Config{ErrorHandler: func(c fiber.Ctx, err error) error {
		if errors.Is(err, errWrongPassword) {
			return c.Status(http.StatusUnauthorized).SendString("wrong")
		}
		return fiber.DefaultErrorHandler(c, err)
	}})
}

// serve starts a server of an application, and returns its address.
func serve(t *testing.T, app *fiber.App) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go app.Listener(listener, fiber.ListenConfig{DisableStartupMessage: true})
	t.Cleanup(func() {
		if err := app.Shutdown(); err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

func TestMiddleware(t *testing.T) {
	routertest.Run(t, func(t *testing.T, guard *httplimit.Guard) string {
		app := newApp()
		app.Use(recover.New(), fiberlimit.Middleware(guard))
		app.Get("/right", func(c fiber.Ctx) error { c.Set("X-Cost", "2"); return c.SendString("right") })
		app.Get("/wrong", func(c fiber.Ctx) error { return c.SendStatus(http.StatusUnauthorized) })
		app.Get("/error", func(fiber.Ctx) error { return errWrongPassword })
		app.Get("/nothing", func(fiber.Ctx) error { return nil })
		app.Get("/panic", func(fiber.Ctx) error { panic("panic") })
		app.Get("/stream", func(c fiber.Ctx) error {
			ctx := c.Context()
			return c.SendStreamWriter(func(w *bufio.Writer) {
				for range 2 {
					httplimit.Charge(ctx, 2)
					_, _ = w.WriteString("part")
					_ = w.Flush()
				}
			})
		})
		app.Get("/hijack", func(c fiber.Ctx) error {
			c.RequestCtx().Hijack(func(net.Conn) {})
			return nil
		})
		return "http://" + serve(t, app)
	}, "/late") // fiber writes the response at the end, so that a panic replaces it
}

// If the error handler itself fails, the status is 500.
func TestErrorHandlerThatFails(t *testing.T) {
	statuses := make(chan int, 1)
	guard := patient(
		httplimit.Per(limittest.New(t).Client(), "all", rratelimiter.PerHour(9), nil).
			CountIf(func(status int, _ http.Header) bool {
				statuses <- status
				return true
			}),
	)
	app := fiber.New(fiber.Config{ErrorHandler: func(_ fiber.Ctx, err error) error { return err }})
	app.Get("/", fiberlimit.Middleware(guard), func(fiber.Ctx) error { return errWrongPassword })
	wantResponse(t, serve(t, app), "GET / HTTP/1.1\r\nHost: a\r\n\r\n", http.StatusInternalServerError)
	if status := <-statuses; status != http.StatusInternalServerError {
		t.Errorf("status %d", status)
	}
}

func patient(limits ...httplimit.Limit) *httplimit.Guard {
	guard := httplimit.New(limits...)
	guard.Policy = &httplimit.Policy{Bound: 10 * time.Second, Failure: httplimit.FailClosed}
	return guard
}

// wantResponse sends a request as it is, and checks the status of the response.
func wantResponse(t *testing.T, addr, request string, status int) http.Header {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(request)); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != status {
		t.Errorf("%q: %d, not %d", request, response.StatusCode, status)
	}
	return response.Header
}

// A middleware in a route sees the path of the route.
func TestRouteIsTheKey(t *testing.T) {
	guard := patient(httplimit.Per(limittest.New(t).Client(), "1h", rratelimiter.PerHour(1), httplimit.Route))
	app := newApp()
	for _, path := range []string{"/orders/:id", "/users/:id"} {
		app.Get(path, fiberlimit.Middleware(guard), func(c fiber.Ctx) error { return c.SendString(c.Params("id")) })
	}
	addr := serve(t, app)
	for _, c := range []struct {
		path   string
		status int
	}{{"/orders/7", 200}, {"/orders/8", 429}, {"/users/7", 200}} {
		wantResponse(t, addr, fmt.Sprintf("GET %s HTTP/1.1\r\nHost: a\r\n\r\n", c.path), c.status)
	}
}

// Limits see what net/http would give them, also of requests that net/http would refuse.
func TestLimitsSeeTheRequest(t *testing.T) {
	seen := make(chan string, 2) // a path of which servers read two is seen twice
	guard := patient(func(r *http.Request) httplimit.Claim {
		addr := httplimit.ClientAddr{
			Trusted: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8")},
		}
		seen <- fmt.Sprint(r.Method, " ", r.URL.Path, " ", r.RequestURI, " ", r.Host, " ", addr.Key(r), " ",
			r.ContentLength, " ", r.Header.Values("Host"))
		return httplimit.Claim{}
	})
	app := newApp()
	app.Use(fiberlimit.Middleware(guard))
	app.All("/*", func(c fiber.Ctx) error { return c.SendStatus(http.StatusOK) })
	addr := serve(t, app)
	head := "Host: shop.example\r\nX-Forwarded-For: 192.0.2.1\r\nX-Forwarded-For: 10.0.0.1\r\n"
	for _, c := range []struct{ request, want string }{
		{
			"POST /a%20b?c=d HTTP/1.1\r\n" + head + "Content-Length: 3\r\n\r\nabc",
			"POST /a b /a%20b?c=d shop.example 192.0.2.1 3 []",
		},
		{"GET /%zz?c=d HTTP/1.1\r\n" + head + "\r\n", "GET /%zz /%zz?c=d shop.example 192.0.2.1 0 []"},
	} {
		wantResponse(t, addr, c.request, http.StatusOK)
		if first := <-seen; first != c.want {
			t.Errorf("limits see %q, not %s", first, c.want)
		}
	}
}

// fiber uses the memory of a request again for the next one, and a guard keeps keys longer.
func TestKeysOutliveTheirRequest(t *testing.T) {
	users, keys := []string{"ann", "bob", "eve"}, make(chan string, 3)
	guard := patient(func(r *http.Request) httplimit.Claim {
		keys <- r.Header.Get("X-User")
		return httplimit.Claim{}
	})
	app := newApp()
	app.Use(fiberlimit.Middleware(guard))
	app.Get("/", func(c fiber.Ctx) error { return c.SendStatus(http.StatusOK) })
	addr := serve(t, app)
	for _, user := range users {
		request, err := http.NewRequest(http.MethodGet, "http://"+addr, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("X-User", user)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, response.Body) // so that the next request has the same connection
		response.Body.Close()
	}
	for _, want := range users {
		if key := <-keys; key != want {
			t.Errorf("key %q, not %q", key, want)
		}
	}
}

// A guard in the application and another one in a route both describe their limits, and leave
// cookies as they are.
func TestTwoGuards(t *testing.T) {
	client := limittest.New(t).Client()
	app := newApp()
	app.Use(
		func(c fiber.Ctx) error {
			c.Cookie(&fiber.Cookie{Name: "a", Value: "1"})
			c.Cookie(&fiber.Cookie{Name: "b", Value: "2"})
			return c.Next()
		},
		fiberlimit.Middleware(patient(httplimit.Per(client, "one", rratelimiter.PerHour(2), nil))),
	)
	app.Get("/", fiberlimit.Middleware(patient(httplimit.Per(client, "two", rratelimiter.PerHour(1), nil))),
		func(c fiber.Ctx) error { return c.SendStatus(http.StatusOK) })
	h := wantResponse(t, serve(t, app), "GET / HTTP/1.1\r\nHost: a\r\n\r\n", http.StatusOK)
	if got := fmt.Sprint(h.Values("RateLimit")); got != `["one";r=1;t=3600 "two";r=0;t=3600]` {
		t.Errorf("RateLimit: %s", got)
	}
	if cookies := h.Values("Set-Cookie"); len(cookies) != 2 || cookies[0][:3] != "a=1" || cookies[1][:3] != "b=2" {
		t.Errorf("cookies %q", cookies)
	}
}
