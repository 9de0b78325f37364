package guide

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limittest"
)

func deploy(ctx context.Context, client *rratelimiter.Client) error {
	orders := client.RateLimiter("orders")
	return orders.SetRate(ctx, rratelimiter.PerSecond(200), rratelimiter.KeepState())
}

func use(ctx context.Context, client *rratelimiter.Client) error {
	orders := client.RateLimiter("orders")
	err := orders.Acquire(ctx, 1)
	if errors.Is(err, rratelimiter.ErrNotInitialized) {
		slog.Error("nobody has set a rate for orders", "err", err)
	}
	return err
}

func TestTheOwnerSetsTheRate(t *testing.T) {
	client := limittest.New(t).Client()
	if err := use(t.Context(), client); !errors.Is(err, rratelimiter.ErrNotInitialized) {
		t.Errorf("without a rate: %v", err)
	}
	if err := deploy(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	if err := use(t.Context(), client); err != nil {
		t.Error(err)
	}
}

func whoeverComesFirst(client *rratelimiter.Client) *rratelimiter.Limiter {
	return client.RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerSecond(100)))
}

type mismatches struct{}

func (mismatches) Call(info rratelimiter.CallInfo) {
	if info.RateMismatch {
		slog.Warn("another rate is in force", "limiter", info.Limiter)
	}
}

func watched(rdb *redis.Client) *rratelimiter.Client {
	return rratelimiter.NewClient(rdb, rratelimiter.WithObserver(mismatches{}))
}

func TestARateThatIsThereWins(t *testing.T) {
	var text strings.Builder
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&text, nil)))
	defer slog.SetDefault(before)
	client := watched(limittest.New(t).Redis())
	if err := deploy(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	orders := whoeverComesFirst(client)
	if err := orders.Acquire(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if rate, err := orders.Config(t.Context()); rate.Permits != 200 || err != nil {
		t.Errorf("%v, %v", rate, err)
	}
	if !strings.Contains(text.String(), "another rate is in force") {
		t.Errorf("logged: %s", &text)
	}
}

func oneDeployment(client *rratelimiter.Client) *rratelimiter.Limiter {
	return client.RateLimiter("orders", rratelimiter.WithEnforcedRate(rratelimiter.PerSecond(300)))
}

func TestAnEnforcedRateReplacesTheOther(t *testing.T) {
	client := limittest.New(t).Client()
	if err := deploy(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	orders := oneDeployment(client)
	if err := orders.Acquire(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if rate, err := orders.Config(t.Context()); rate.Permits != 300 || err != nil {
		t.Errorf("%v, %v", rate, err)
	}
}
