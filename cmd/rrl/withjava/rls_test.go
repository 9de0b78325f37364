package withjava

import (
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/compat/redisson"
	"github.com/rratelimiter/rratelimiter/envoylimit"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/httplimit/rules"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// What the service of rrl rls grants to Envoy is missing for Java, and the reverse.
func TestEnvoyAndJavaShareALimit(t *testing.T) {
	const name = "ratelimit:user=ann:shop"
	for _, release := range []string{"3.17.5", "4.7.0"} {
		t.Run(release, func(t *testing.T) {
			server := redistest.Real(t)
			java := redisson.Start(t, release, redisson.Addr(server.Addr))
			client := rratelimiter.NewClient(server.Client(), rratelimiter.WithCallTimeout(time.Minute))
			service := envoylimit.New(client, &httplimit.Policy{Bound: time.Minute, Failure: httplimit.FailClosed})
			service.SetDomains([]rules.Domain{{Name: "shop", Descriptors: []rules.Descriptor{
				{Key: "user", HasRate: true, Rate: rratelimiter.PerHour(5)},
			}}})
			ann := &ratelimit.RateLimitDescriptor{
				Entries: []*ratelimit.RateLimitDescriptor_Entry{{Key: "user", Value: "ann"}},
			}
			envoy := func(hits uint32, want ratelimitv3.RateLimitResponse_Code) {
				t.Helper()
				response, err := service.ShouldRateLimit(t.Context(), &ratelimitv3.RateLimitRequest{
					Domain: "shop", Descriptors: []*ratelimit.RateLimitDescriptor{ann}, HitsAddend: hits,
				})
				if err != nil || response.OverallCode != want {
					t.Errorf("%d permits for Envoy: %v, %v, want %v", hits, response, err, want)
				}
			}
			acquire := func(n int64, want bool) {
				t.Helper()
				if got, err := java.TryAcquire(t.Context(), name, n); err != nil || got != want {
					t.Errorf("%d permits for Java: %v, %v, want %v", n, got, err, want)
				}
			}
			envoy(2, ratelimitv3.RateLimitResponse_OK)
			acquire(4, false)
			acquire(2, true)
			envoy(2, ratelimitv3.RateLimitResponse_OVER_LIMIT)
			envoy(1, ratelimitv3.RateLimitResponse_OK)
			acquire(1, false)
			if free, err := java.Available(t.Context(), name); err != nil || free != 0 {
				t.Errorf("%d are free for Java, %v", free, err)
			}
		})
	}
}
