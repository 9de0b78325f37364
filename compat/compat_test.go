// Package compat proves that this library and real Redissons share limiters: matrix_test.go for the releases in the table
// of COMPATIBILITY.md, methods_test.go for its table of methods, contention_test.go for many processes at once,
// suite_test.go for what Redisson tests of itself.
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

// A bench is one Redis, one Redisson of some version and this library, side by side.
type bench struct {
	*testing.T
	ctx  context.Context
	rdb  *redis.Client
	java *redisson.Process
}

// client makes a Go client of the bench; most checks need a limiter alone.
func (b *bench) client(opts ...rratelimiter.Option) *rratelimiter.Client {
	return rratelimiter.NewClient(b.rdb, opts...)
}

// want fails the check unless an answer is the one expected.
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

// must fails the check on an error.
func (b *bench) must(what string, err error) {
	b.Helper()
	if err != nil {
		b.Fatalf("%s: %v", what, err)
	}
}

// eventually waits until something holds, for checks on real time.
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
