package envoylimit_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/envoylimit"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/httplimit/rules"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Random(m, 1000) }

// patient returns a policy that gives limits much time to reply, so that a busy machine causes no
// failure.
func patient(failure httplimit.Failure) *httplimit.Policy {
	return &httplimit.Policy{Name: "envoy", Bound: 10 * time.Second, Failure: failure}
}

// An envoy is a client of a service, as Envoy is. The clock of the service's limiters stands still
// until the test moves it.
type envoy struct {
	t       testing.TB
	rpc     ratelimitv3.RateLimitServiceClient
	service *envoylimit.Service
	now     time.Time
}

// serve starts a service of the domains in a file.
func serve(t testing.TB, s *redistest.Server, file string, opts ...rratelimiter.Option) *envoy {
	t.Helper()
	return serveWith(t, s, patient(httplimit.FailClosed), file, opts...)
}

func serveWith(
	t testing.TB, s *redistest.Server, policy *httplimit.Policy, file string, opts ...rratelimiter.Option,
) *envoy {
	t.Helper()
	e := &envoy{t: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	opts = append([]rratelimiter.Option{
		rratelimiter.WithClock(func() time.Time { return e.now }), rratelimiter.WithCallTimeout(10 * time.Second),
	}, opts...)
	e.service = envoylimit.New(rratelimiter.NewClient(s.Client(), opts...), policy)
	e.service.SetClock(func() time.Time { return e.now })
	e.load(file)
	e.rpc = connect(t, e.service)
	return e
}

// connect starts a gRPC server of a service, and returns a client of it.
func connect(t testing.TB, service *envoylimit.Service) ratelimitv3.RateLimitServiceClient {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	ratelimitv3.RegisterRateLimitServiceServer(server, service)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return ratelimitv3.NewRateLimitServiceClient(conn)
}

// load sets the domains of a file.
func (e *envoy) load(file string) {
	e.t.Helper()
	f, err := rules.ParseFile("envoy.yaml", []byte(file))
	if err != nil {
		e.t.Fatal(err)
	}
	e.service.SetDomains(f.Domains)
}

// of returns a descriptor with entries such as "user=ann method=GET".
func of(entries string) *ratelimit.RateLimitDescriptor {
	d := &ratelimit.RateLimitDescriptor{}
	for entry := range strings.SplitSeq(entries, " ") {
		key, value, _ := strings.Cut(entry, "=")
		d.Entries = append(d.Entries, &ratelimit.RateLimitDescriptor_Entry{Key: key, Value: value})
	}
	return d
}

// to returns a request for a domain.
func to(domain string, descriptors ...*ratelimit.RateLimitDescriptor) *ratelimitv3.RateLimitRequest {
	return &ratelimitv3.RateLimitRequest{Domain: domain, Descriptors: descriptors}
}

// send sends a request and checks the response: its code, and for each descriptor its code, what is
// left of the limit, and the time until more is.
func (e *envoy) send(r *ratelimitv3.RateLimitRequest, want string) *ratelimitv3.RateLimitResponse {
	e.t.Helper()
	response, err := e.rpc.ShouldRateLimit(e.t.Context(), r)
	if err != nil {
		e.t.Errorf("%v: %v", r, err)
		return nil
	}
	if got := shown(response); got != want {
		e.t.Errorf("%v:\n%s, want\n%s", r, got, want)
	}
	return response
}

// shown returns a response as text, such as "OVER_LIMIT: OVER_LIMIT 0 of 10/SECOND in 1s, OK".
func shown(r *ratelimitv3.RateLimitResponse) string {
	var all []string
	for _, s := range r.Statuses {
		text := s.Code.String()
		if l := s.CurrentLimit; l != nil {
			unit := l.Unit.String()
			if l.UnitMultiplier != nil {
				unit = fmt.Sprint(l.UnitMultiplier.Value, " ", unit)
			}
			text += fmt.Sprintf(" %d of %d/%s", s.LimitRemaining, l.RequestsPerUnit, unit)
			if l.Name != "" {
				text += " (" + l.Name + ")"
			}
		} else if s.LimitRemaining > 0 {
			text += fmt.Sprintf(" %d", s.LimitRemaining)
		}
		if s.DurationUntilReset != nil {
			text += " in " + s.DurationUntilReset.AsDuration().String()
		}
		all = append(all, text)
	}
	return r.OverallCode.String() + ": " + strings.Join(all, ", ")
}
