package envoylimit_test

import (
	"context"
	"log/slog"
	"testing"

	"google.golang.org/protobuf/types/known/wrapperspb"
	"pgregory.net/rapid"

	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/httplimit/rules"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/rulefiles"
)

// The entries of descriptors for which the generator of files makes rules.
var paths = []string{
	"k=a", "k=ab", "k=b", "remote_address=a", "k=a k=a", "k=ab remote_address=ab", "remote_address=b k=b",
	"k=a k=ab k=b", "remote_address=b k=a remote_address=a",
}

// Domains that the check of a file accepts, the service serves: no request meets an error, whatever
// its hits are.
func TestFilesThatAreAcceptedAreServed(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var failed failures
		policy := patient(httplimit.FailClosed)
		policy.Logger = slog.New(slog.DiscardHandler)
		policy.OnError = func(_ context.Context, err error) { failed.add(err) }
		e := serveWith(t, s, policy, "domains: {shop: []}")
		accepted, refused := 0, 0
		rapid.Check(t, func(rt *rapid.T) {
			text := rulefiles.Domains(func(what string, n int) int { return rapid.IntRange(0, n-1).Draw(rt, what) })
			f, err := rules.ParseFile("envoy.yaml", []byte(text))
			if err != nil {
				refused++
				return
			}
			accepted++
			e.service.SetDomains(f.Domains)
			for _, one := range paths {
				r := to(f.Domains[0].Name, of(one), of(rapid.SampledFrom(paths).Draw(rt, "beside")))
				hits := rapid.SampledFrom([]uint64{1, 0, 2, 5, 6, 1<<32 - 1, 1 << 32, 1<<53 - 1, 1 << 53, 1<<64 - 1})
				r.Descriptors[0].HitsAddend = wrapperspb.UInt64(hits.Draw(rt, "hits"))
				if _, err := e.rpc.ShouldRateLimit(t.Context(), r); err != nil {
					rt.Fatalf("%s%v: %v", text, r, err)
				}
				if errs := failed.take(); errs != nil {
					rt.Fatalf("%s%v: %v", text, r, errs)
				}
			}
		})
		if accepted < refused/12 {
			t.Errorf("%d accepted, %d refused: too few are accepted", accepted, refused)
		}
	})
}
