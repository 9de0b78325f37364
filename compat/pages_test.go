package compat

import (
	"testing"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/compat/redisson"
)

// pages_test.go: the Java that the README and the guide begin with, next to the Go that they say it shares a limit with.
// That it is the same Java, line by line, is for the tests of examples/guide.

func javaOfThePages(f *mixed) {
	for _, java := range []*redisson.Process{f.old, f.recent} {
		for _, page := range []struct {
			name    string
			permits int64 // that its Java takes
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
			f.Run(java.Version()+" "+page.name, func(t *testing.T) { sharesOrders(f.in(t).beside(java), page.permits, page.run) })
		}
	}
}

// sharesOrders: of the 100 permits a second that Java sets, Go has those that Java did not take. Where the machine stood
// still until these were free again, it is done anew.
func sharesOrders(b *bench, taken int64, page func(t *testing.T) error) {
	orders := b.client(rratelimiter.WithCallTimeout(patience)).RateLimiter("orders")
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
