package guide

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/adaptor"
	fiberrecover "github.com/gofiber/fiber/v3/middleware/recover"
	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/echolimit"
	"github.com/rratelimiter/rratelimiter/fiberlimit"
	"github.com/rratelimiter/rratelimiter/ginlimit"
	"github.com/rratelimiter/rratelimiter/grpclimit"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// routers have the lines of docs/guide/routers.md. Each responds to /login with 401.
var routers = map[string]func(guard *httplimit.Guard) http.Handler{
	"net/http": func(guard *httplimit.Guard) http.Handler {
		mux := http.NewServeMux()
		mux.HandleFunc("/login", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusUnauthorized)
		})
		handler := guard.Middleware(mux)
		return handler
	},
	"chi": func(guard *httplimit.Guard) http.Handler {
		router := chi.NewRouter()
		router.Use(guard.Middleware)
		router.Get("/login", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
		return router
	},
	"gin": func(guard *httplimit.Guard) http.Handler {
		router := gin.New()
		router.Use(gin.Recovery(), ginlimit.Middleware(guard))
		router.GET("/login", func(c *gin.Context) { c.Status(http.StatusUnauthorized) })
		return router
	},
	"echo": func(guard *httplimit.Guard) http.Handler {
		e := echo.New()
		e.Use(middleware.Recover(), echolimit.Middleware(guard))
		e.GET("/login", func(*echo.Context) error { return echo.ErrUnauthorized })
		return e
	},
	"fiber": func(guard *httplimit.Guard) http.Handler {
		app := fiber.New()
		app.Use(fiberrecover.New(), fiberlimit.Middleware(guard))
		app.Get("/login", func(fiber.Ctx) error { return fiber.ErrUnauthorized })
		return adaptor.FiberApp(app)
	},
	"another": func(guard *httplimit.Guard) http.Handler {
		login := func(http.ResponseWriter, *http.Request) int { return http.StatusUnauthorized }
		return ownRouter(guard, login)
	},
}

// ownRouter stands for a router whose handlers return the status of the response.
func ownRouter(guard *httplimit.Guard, handle func(http.ResponseWriter, *http.Request) int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		d := guard.Admit(w, r)
		if !d.Outcome.Passed() {
			return // the response is written
		}
		status := http.StatusInternalServerError // if the handler panics
		defer func() { guard.ActivePolicy().Settle(r.Context(), d, status, w.Header()) }()
		status = handle(w, r)
		w.WriteHeader(status)
	}
}

func TestFailedLoginsCountInEachRouter(t *testing.T) {
	gin.SetMode(gin.TestMode)
	for name, router := range routers {
		guard := httplimit.New(httplimit.Per(limittest.New(t).Client(), "failed logins", rratelimiter.PerHour(3), nil).
			CountIf(func(status int, _ http.Header) bool { return status == http.StatusUnauthorized }))
		guard.Policy = &httplimit.Policy{Bound: patience}
		h := router(guard)
		for i, want := range []int{401, 401, 401, 429} {
			w := httptest.NewRecorder()
			if h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/login", nil)); w.Code != want {
				t.Errorf("%s, request %d: %d, not %d", name, i+1, w.Code, want)
			}
		}
	}
}

func TestGRPCInBothDirections(t *testing.T) {
	client := limittest.New(t).Client()
	guard := httplimit.New(httplimit.Per(client, "1h", rratelimiter.PerHour(1), nil))
	guard.Policy = &httplimit.Policy{Bound: patience}
	unary, stream := grpclimit.Unary(guard), grpclimit.Stream(guard)
	server := grpc.NewServer(grpc.UnaryInterceptor(unary), grpc.StreamInterceptor(stream))
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go server.Serve(listener)
	defer server.Stop()
	target, plain := listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials())
	limiter := client.RateLimiter("api", rratelimiter.WithRate(rratelimiter.PerHour(10)))
	pacer := &grpclimit.Pacer{Limiter: limiter}
	conn, err := grpc.NewClient(target, plain, grpc.WithUnaryInterceptor(pacer.Unary),
		grpc.WithStreamInterceptor(pacer.Stream))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// the third waits for the hour to pass
	for i, want := range []codes.Code{codes.OK, codes.ResourceExhausted, codes.DeadlineExceeded} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if want == codes.DeadlineExceeded {
			ctx, cancel = context.WithTimeout(t.Context(), 10*time.Millisecond)
		}
		_, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		if cancel(); status.Code(err) != want {
			t.Errorf("call %d: %v, not %v", i+1, err, want)
		}
	}
}

// Each line of code in the table of the page is a line of this file.
func TestLinesOfTheRoutersAreTested(t *testing.T) {
	file, rows := linesOf(t, "routers_test.go"), 0
	for i, line := range file {
		file[i] = strings.NewReplacer("\t", "", "fiberrecover.", "recover.").Replace(line)
	}
	for _, row := range linesOf(t, pages+"/routers.md") {
		code := regexp.MustCompile("^\\|[^|]*\\| `(.*?)` \\|").FindStringSubmatch(row)
		if code == nil {
			continue
		}
		if rows++; !slices.Contains(file, code[1]) {
			t.Errorf("not in a test: %s", code[1])
		}
	}
	if rows != 8 {
		t.Errorf("%d rows", rows)
	}
}
