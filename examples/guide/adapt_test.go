package guide

import (
	"context"
	"errors"
	"testing"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/ratelimit"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/adapt"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// x/time/rate has no interface, so programs write their own.
var (
	_ interface {
		Wait(ctx context.Context) error
	} = (*rate.Limiter)(nil)
	_ interface {
		Wait(ctx context.Context) error
	} = (*adapt.Limiter)(nil)
)

func TestLimiterInOtherLibraries(t *testing.T) {
	limiter := limittest.New(t).Client().RateLimiter("api", rratelimiter.WithRate(rratelimiter.PerHour(2)))
	unary := ratelimit.UnaryServerInterceptor(adapt.New(limiter))
	var kubernetes flowcontrol.RateLimiter = adapt.New(limiter) // of a rest.Config

	call := func() error {
		_, err := unary(t.Context(), nil, &grpc.UnaryServerInfo{}, func(context.Context, any) (any, error) {
			return nil, nil
		})
		return err
	}
	if err := call(); err != nil {
		t.Error(err)
	}
	if err := kubernetes.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	if err := call(); status.Code(err) != codes.ResourceExhausted {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := kubernetes.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
