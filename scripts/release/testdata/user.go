// Command user is the program of somebody who uses all that users can.
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/gin-gonic/gin"
	"github.com/gofiber/fiber/v3"
	"github.com/labstack/echo/v5"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/adapt"
	"github.com/rratelimiter/rratelimiter/classic"
	"github.com/rratelimiter/rratelimiter/echolimit"
	"github.com/rratelimiter/rratelimiter/envoylimit"
	"github.com/rratelimiter/rratelimiter/fiberlimit"
	"github.com/rratelimiter/rratelimiter/ginlimit"
	"github.com/rratelimiter/rratelimiter/grpclimit"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/httplimit/rules"
	"github.com/rratelimiter/rratelimiter/limittest"
	"github.com/rratelimiter/rratelimiter/otellimit"
	"github.com/rratelimiter/rratelimiter/promlimit"
	"github.com/rratelimiter/rratelimiter/snapshot"
)

func main() {
	server := limittest.Start()
	defer server.Close()
	metrics := promlimit.New(promlimit.Config{})
	prometheus.MustRegister(metrics)
	traces, err := otellimit.New(otellimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	client := server.Client(rratelimiter.WithObserver(rratelimiter.Observers(metrics, traces)))
	orders := client.RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerSecond(1)))
	guard := httplimit.New(
		httplimit.Shared("orders", orders),
		httplimit.Shared("bucket", classic.NewGCRA(server.Redis(), "bucket", rratelimiter.PerSecond(5), 5)),
	)
	grpc.NewServer(grpc.UnaryInterceptor(grpclimit.Unary(guard)))
	gin.New().Use(ginlimit.Middleware(guard))
	echo.New().Use(echolimit.Middleware(guard))
	fiber.New().Use(fiberlimit.Middleware(guard))
	if err := adapt.New(client.RateLimiter("api", rratelimiter.WithRate(rratelimiter.PerSecond(1)))).Wait(
		context.Background()); err != nil {
		log.Fatal(err)
	}
	handler := guard.Middleware(http.NotFoundHandler())
	for range 2 {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequest("GET", "/", nil))
		fmt.Println(answer.Code)
	}
	limits, err := rules.Parse("limits.yaml", []byte("limits: {all: {key: all, rate: 1/s}}"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(limits[0].Name, limits[0].Rate)
	envoylimit.New(client, nil).SetDomains([]rules.Domain{{Name: "shop"}})
	taken, err := snapshot.Take(context.Background(), server.Redis(), orders.Name())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(taken)
}
