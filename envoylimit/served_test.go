package envoylimit_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rratelimiter/rratelimiter/httplimit/rules"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// What the check of a file accepts, the service serves: no request meets an error, and the first
// one passes unless its rate is 0. The values are at their edges: 4294967295 is the most permits,
// and 2562047h the longest interval.
func TestWhatACheckAcceptsIsServed(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		e := serve(t, s, "domains: {}")
		accepted, refused := 0, 0
		for _, permits := range []string{"0", "1", "10", "-1", "1.5", "4294967295", "4294967296", "9007199254740991"} {
			for _, span := range []string{"s", "0s", "1ms", "0.5ms", "250ms", "d", "1281024h", "2562047h", "2562048h"} {
				for _, lease := range []string{
					"", "0s", "1ms", "25ms", "100ms", "101ms", "0.5ms", "256204h42m", "2562047h",
				} {
					for _, rest := range []string{"", ", shadow: true", ", value: 'a*', shared: true"} {
						rate := permits + "/" + span
						file := fmt.Sprintf("domains: {shop: [{key: k, rate: %s%s", rate, rest)
						if lease != "" {
							file += ", lease: " + lease
						}
						f, err := rules.ParseFile("f", []byte(file+"}]}"))
						if err != nil {
							refused++
							continue
						}
						accepted++
						s.Client().FlushDB(t.Context())
						e.service.SetDomains(f.Domains)
						never := permits == "0" && !strings.Contains(rest, "shadow")
						for i := range 3 {
							response, err := e.rpc.ShouldRateLimit(t.Context(), to("shop", of("k=abc")))
							if err != nil {
								t.Fatalf("%s: %v", file, err)
							}
							if over := response.OverallCode == ratelimitv3.RateLimitResponse_OVER_LIMIT; i == 0 &&
								over != never {
								t.Errorf("%s: %s", file, shown(response))
							}
						}
					}
				}
			}
		}
		if accepted < 100 || refused < 100 {
			t.Errorf("%d accepted, %d refused: too few of a kind", accepted, refused)
		}
	})
}

// Each override is served, or the request is invalid: Envoy chooses it, and no file has it.
func TestOverridesAtTheirEdges(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		e := serve(t, s, "domains: {shop: [{key: k, rate: unlimited}]}")
		for _, permits := range []uint32{0, 1, 10, math.MaxUint32} {
			for unit := range typev3.RateLimitUnit_name {
				for _, times := range []uint32{
					0, 1, 146, 147, 292, 293, 106_751, 106_752, 2_562_047, 2_562_048, math.MaxUint32,
				} {
					s.Client().FlushDB(t.Context())
					response, err := e.rpc.ShouldRateLimit(
						t.Context(), to("shop", limited("k=a", permits, typev3.RateLimitUnit(unit), times)),
					)
					if status.Code(err) == codes.InvalidArgument {
						continue
					}
					if err != nil {
						t.Fatalf("%d per %d x unit %d: %v", permits, times, unit, err)
					}
					over := response.OverallCode == ratelimitv3.RateLimitResponse_OVER_LIMIT
					if over != (permits == 0) {
						t.Errorf("%d per %d x unit %d: %s", permits, times, unit, shown(response))
					}
				}
			}
		}
	})
}
