package compat

import (
	"testing"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/compat/redisson"
)

// pages_test.go runs the Java code at the start of the README and the guide next to the Go code
// that shares its limit. The tests of examples/guide check that it is the same Java code, line by
// line.

func javaOfThePages(f *mixed) {
	for _, java := range []*redisson.Process{f.old, f.recent} {
		for _, page := range []struct {
			name    string
			permits int64 // the permits that the page's Java code takes
			run     func(t *testing.T) error
		}{
			{"share-with-java.md", 1, func(t *testing.T) error { return java.Guide(t.Context()) }},
			{"README.md", 2, func(t *testing.T) error {
				allowed, err := java.Readme(t.Context())
				if err == nil && !allowed {
					t.Error("its tryAcquire is refused")
				}
				return err
			}},
		} {
			f.Run(
				java.Version()+" "+page.name, func(t *testing.T) {
					sharesOrders(f.in(t).beside(java), page.permits, page.run)
				},
			)
		}
	}
}

// sharesOrders: of the 100 permits per second that Java sets, Go is granted those that Java did not
// take. If the machine stalled until these were free again, the test starts again.
func sharesOrders(b *bench, taken int64, page func(t *testing.T) error) {
	orders := b.client().RateLimiter("orders")
	b.eventually("Java and Go have the same 100 permits", patience, func() bool {
		_, err := orders.Delete(b.ctx)
		b.must("Go's Delete", err)
		b.must("Java", page(b.T))
		want(b, "Go's Config", rratelimiter.PerSecond(100))(orders.Config(b.ctx))
		more, err := orders.TryAcquire(b.ctx, 100-taken+1)
		b.must("Go's TryAcquire", err)
		rest, err := orders.TryAcquire(b.ctx, 100-taken)
		b.must("Go's TryAcquire", err)
		return !more && rest
	})
}
