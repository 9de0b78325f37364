// Package compat tests that this library and real Redissons share limiters: matrix_test.go runs the
// releases in the table of numbers.md, methods_test.go its table of methods, contention_test.go
// many processes at once, and suite_test.go the behaviours that Redisson's own tests cover.
package compat

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/compat/redisson"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

func TestMain(m *testing.M) {
	if words := os.Getenv(workerEnv); words != "" {
		os.Exit(workerMain(words))
	}
	redistest.Main(m)
}

// A bench is one Redis, one Redisson of some version and a Go client.
type bench struct {
	*testing.T
	ctx  context.Context
	rdb  *redis.Client
	java *redisson.Process
}

// client creates a Go client whose calls may take long, as the machine may be busy; most checks
// need only a limiter of it.
func (b *bench) client(opts ...rratelimiter.Option) *rratelimiter.Client {
	return rratelimiter.NewClient(b.rdb,
		append([]rratelimiter.Option{rratelimiter.WithCallTimeout(patience)}, opts...)...)
}

// want fails the check unless the result is the expected one.
func want[T comparable](b *bench, what string, expected T) func(got T, err error) {
	return func(got T, err error) {
		b.Helper()
		if err != nil {
			b.Fatalf("%s: %v", what, err)
		}
		if got != expected {
			b.Fatalf("%s: got %v, want %v", what, got, expected)
		}
	}
}

// must fails the check if err is not nil.
func (b *bench) must(what string, err error) {
	b.Helper()
	if err != nil {
		b.Fatalf("%s: %v", what, err)
	}
}

// eventually waits in real time until the condition holds.
func (b *bench) eventually(what string, within time.Duration, holds func() bool) {
	b.Helper()
	deadline := time.Now().Add(within)
	for !holds() {
		if time.Now().After(deadline) {
			b.Fatalf("not within %v: %s", within, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
