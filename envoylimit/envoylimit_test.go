package envoylimit_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/envoylimit"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/httplimit/rules"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/limittest"
)

const shop = `
domains:
  shop:
    - {key: address, rate: 10/s}
    - {key: user, rate: 3/m}
`

// Envoy's limiters have names that Java can write, with the rate of the file and a time to live.
func TestNamesOfLimiters(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		e := serve(t, s, `
domains:
  shop:
    - {key: address, rate: 10/s, descriptors: [{key: method, rate: 3/m}]}
    - {key: path, value: /api/*, shared: true, descriptors: [{key: user id, value: ann*, rate: 1/h}]}
`)
		for _, c := range []struct{ entries, name string }{
			{"address=192.0.2.1", "ratelimit:address=192.0.2.1:shop"},
			{"address=2001:db8::1 method=GET", "ratelimit:address=2001%3Adb8%3A%3A1:method=GET:shop"},
			{"address=", "ratelimit:address=:shop"},
			{"address={a}=", "ratelimit:address=%7Ba%7D%3D:shop"},
			{"address=" + strings.Repeat("x", 200), "ratelimit:address=" + strings.Repeat("x", 64) + "~"},
		} {
			if _, err := e.rpc.ShouldRateLimit(t.Context(), to("shop", of(c.entries))); err != nil {
				t.Fatal(err)
			}
			keys := s.Client().Keys(t.Context(), "ratelimit:*").Val()
			if len(keys) != 1 || !strings.HasPrefix(keys[0], c.name) || len(keys[0]) > 150 {
				t.Errorf("%s: %q, want %s", c.entries, keys, c.name)
			}
			if ttl := s.Client().PTTL(t.Context(), keys[0]).Val(); ttl <= 0 || ttl > 2*time.Minute {
				t.Errorf("%s: its time to live is %v", c.entries, ttl)
			}
			s.Client().FlushDB(t.Context())
		}
		shared := of("path=/api/1")
		shared.Entries = append(shared.Entries, &ratelimit.RateLimitDescriptor_Entry{Key: "user id", Value: "ann b"})
		e.send(to("shop", shared), "OK: OK 0 of 1/HOUR in 1h0m0s")
		if n := s.Client().Exists(t.Context(), "ratelimit:path=/api/*:user+id=ann+b:shop").Val(); n != 1 {
			t.Error(s.Client().Keys(t.Context(), "*").Val())
		}
	})
}

func TestHits(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		e := serve(t, s, shop)
		request := to("shop", of("address=1"), of("user=1"))
		request.HitsAddend = 2
		e.send(request, "OK: OK 8 of 10/SECOND in 1s, OK 1 of 3/MINUTE in 1m0s")
		request.Descriptors[0].HitsAddend = wrapperspb.UInt64(7) // in the place of the request's
		request.Descriptors[1].HitsAddend = wrapperspb.UInt64(1)
		e.send(request, "OK: OK 1 of 10/SECOND in 1s, OK 0 of 3/MINUTE in 1m0s")
		request.Descriptors[1].HitsAddend = wrapperspb.UInt64(0) // is a permit free?
		request.Descriptors[0].HitsAddend = nil
		request.HitsAddend = 1
		e.send(request, "OVER_LIMIT: OK, OVER_LIMIT 0 of 3/MINUTE in 1m0s")
		request.Descriptors[1].Entries[0].Value = "3"
		e.send(request, "OK: OK 0 of 10/SECOND in 1s, OK 3 of 3/MINUTE in 1m0s")
		for _, hits := range []uint64{4, 1 << 63} { // more than the rate: over the limit, and nothing is taken
			e.now = e.now.Add(time.Hour)
			request = to("shop", of("address=1"), of("user=1"))
			request.Descriptors[1].HitsAddend = wrapperspb.UInt64(hits)
			e.send(request, "OVER_LIMIT: OK, OVER_LIMIT 0 of 3/MINUTE")
			e.send(to("shop", of("address=1")), "OK: OK 9 of 10/SECOND in 1s")
		}
		for range 3 {
			e.now = e.now.Add(10 * time.Second)
			_, _ = e.rpc.ShouldRateLimit(t.Context(), to("shop", of("user=2")))
		}
		two := to("shop", of("user=2"))
		two.HitsAddend = 2
		e.send(two, "OVER_LIMIT: OVER_LIMIT 0 of 3/MINUTE in 50s") // the second permit, not the next one
		request.Descriptors[1].IsNegativeHits = true
		e.fails(request, codes.InvalidArgument, "descriptor 1: is_negative_hits is not supported")
	})
}

// fails sends a request and checks the error.
func (e *envoy) fails(r *ratelimitv3.RateLimitRequest, code codes.Code, text string) {
	e.t.Helper()
	response, err := e.rpc.ShouldRateLimit(e.t.Context(), r)
	if s := status.Convert(err); s.Code() != code || !strings.Contains(s.Message(), text) {
		e.t.Errorf("%v: %v, %v; want %v, %s", r, response, err, code, text)
	}
}

func TestRequestsWithoutALimit(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		e := serve(t, s, shop)
		e.send(to("other", of("address=1")), "OK: OK")
		e.send(to("shop", of("color=red")), "OK: OK")
		e.fails(to("", of("address=1")), codes.InvalidArgument, "no domain")
		e.fails(to("shop"), codes.InvalidArgument, "no descriptors")
		e.fails(to("shop", &ratelimit.RateLimitDescriptor{}), codes.InvalidArgument, "Entries")
		e.fails(to("shop", of("=1")), codes.InvalidArgument, "Key")
		if keys := s.Client().Keys(t.Context(), "*").Val(); len(keys) != 0 {
			t.Errorf("%q", keys)
		}
	})
	none := connect(t, envoylimit.New(limittest.New(t).Client(), nil))
	if response, err := none.ShouldRateLimit(t.Context(), to("shop", of("address=1"))); err != nil ||
		shown(response) != "OK: OK" {
		t.Errorf("before SetDomains: %v, %v", response, err)
	}
}

// limited returns a descriptor with an override.
func limited(
	entries string, permits uint32, unit typev3.RateLimitUnit, multiplier uint32,
) *ratelimit.RateLimitDescriptor {
	d := of(entries)
	d.Limit = &ratelimit.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: permits, Unit: unit}
	if multiplier != 1 {
		d.Limit.UnitMultiplier = wrapperspb.UInt32(multiplier)
	}
	return d
}

func TestOverrides(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		e := serve(t, s, `
domains:
  shop:
    - {key: address, rate: 10/s, shadow: true, name: address}
`)
		e.send(to("shop", of("address=1")), "OK: OK 9 of 10/SECOND (address) in 1s")
		// The limiter of the rule with another rate. The rule's shadow does not count.
		e.send(to("shop", limited("address=1", 2, typev3.RateLimitUnit_SECOND, 1)), "OK: OK 0 of 2/SECOND in 1s")
		e.send(
			to("shop", limited("address=1", 2, typev3.RateLimitUnit_SECOND, 1)),
			"OVER_LIMIT: OVER_LIMIT 0 of 2/SECOND in 1s",
		)
		e.send(to("shop", limited("no=rule", 2, typev3.RateLimitUnit_MINUTE, 30)), "OK: OK 1 of 2/30 MINUTE in 30m0s")
		e.send(to("shop", limited("no=unit", 2, typev3.RateLimitUnit_SECOND, 3600)), "OK: OK 1 of 2/HOUR in 1h0m0s")
		e.send(to("shop", limited("no=day", 2, typev3.RateLimitUnit_DAY, 1)), "OK: OK 1 of 2/DAY in 24h0m0s")
		e.send(to("shop", limited("no=month", 2, typev3.RateLimitUnit_MONTH, 1)), "OK: OK 1 of 2/MONTH in 744h0m0s")
		e.send(to("shop", limited("no=year", 2, typev3.RateLimitUnit_YEAR, 1)), "OK: OK 1 of 2/YEAR in 8760h0m0s")
		e.send(to("shop", limited("no=rate", 0, typev3.RateLimitUnit_HOUR, 1)), "OVER_LIMIT: OVER_LIMIT 0 of 0/HOUR")
		e.send(to("other", limited("address=1", 0, typev3.RateLimitUnit_SECOND, 1)), "OK: OK")
		e.fails(to("shop", limited("a=b", 1, typev3.RateLimitUnit_UNKNOWN, 1)), codes.InvalidArgument,
			"the unit is unknown")
		e.fails(to("shop", limited("a=b", 1, 99, 1)), codes.InvalidArgument, "Unit")
		e.fails(to("shop", limited("a=b", 1, typev3.RateLimitUnit_DAY, 106_752)), codes.InvalidArgument,
			"longer than 292 years")
		e.fails(to("shop", limited("a=b", 1, typev3.RateLimitUnit_MONTH, 2)), codes.InvalidArgument,
			"has a unit_multiplier")
		e.fails(to("shop", limited("a=b", 1, typev3.RateLimitUnit_DAY, 0)), codes.InvalidArgument, "UnitMultiplier")
	})
}

// headers returns the header fields of a response.
func headers(r *ratelimitv3.RateLimitResponse) string {
	var all []string
	for _, h := range r.ResponseHeadersToAdd {
		all = append(all, h.Key+": "+h.Value)
	}
	return strings.Join(all, "\n")
}

// Envoy's client gets the header fields of httplimit.
func TestHeaderFields(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		e := serve(t, s, `
domains:
  shop:
    - {key: address, rate: 10/s}
    - {key: user, value: ann*, descriptors: [{key: method, rate: 1/m}]}
    - {key: tenant, rate: 5/h, name: per-tenant}
    - {key: shadow, rate: 1/s, shadow: true}
`)
		request := to("shop", of("address=1"), of("user=ann method=GET"), of("tenant=t"), of("shadow=s"), of("no=rule"))
		const policy = `Ratelimit-Policy: "address";q=10;w=1, "user=ann*,method";q=1;w=60, "per-tenant";q=5;w=3600`
		for _, want := range []string{
			`Ratelimit: "address";r=9;t=1, "user=ann*,method";r=0;t=60, "per-tenant";r=4;t=3600` + "\n" + policy,
			`Ratelimit: "user=ann*,method";r=0;t=60` + "\n" + policy + "\nRetry-After: 60",
		} {
			response, err := e.rpc.ShouldRateLimit(t.Context(), request)
			if err != nil || headers(response) != want {
				t.Errorf("%v, %v\nwant %s", headers(response), err, want)
			}
		}
		response := e.send(to("shop", limited("no=rule", 1, typev3.RateLimitUnit_HOUR, 1)),
			"OK: OK 0 of 1/HOUR in 1h0m0s")
		if got := headers(response); got != `Ratelimit: "no";r=0;t=3600`+"\n"+`Ratelimit-Policy: "no";q=1;w=3600` {
			t.Error(got)
		}
	})
}

// An interval that is no number of seconds has no unit of Envoy.
func TestIntervalsWithoutAUnit(t *testing.T) {
	e := serve(t, redistest.Embedded(t), "domains: {shop: [{key: a, rate: 5/250ms}, {key: b, rate: 5/90s}]}")
	e.send(to("shop", of("a=1")), "OK: OK 4 of 5/UNKNOWN in 1s")
	e.send(to("shop", of("b=1")), "OK: OK 4 of 5/90 SECOND in 1m30s")
}

// New domains keep what was granted before.
func TestNewDomains(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		e := serve(t, s, shop)
		e.send(to("shop", of("user=1")), "OK: OK 2 of 3/MINUTE in 1m0s")
		e.load("domains: {shop: [{key: user, rate: 5/m}]}")
		e.send(to("shop", of("user=1"), of("address=1")), "OK: OK 3 of 5/MINUTE in 1m0s, OK")
		e.load("domains: {}")
		e.send(to("shop", of("user=1")), "OK: OK")
	})
}

// A policy decides about a request whose limits cannot be checked.
func TestRedisIsAway(t *testing.T) {
	s := redistest.Embedded(t)
	s.Mini().Close()
	soon := rratelimiter.WithCallTimeout(10 * time.Millisecond)
	request := to("shop", of("user=1"), of("address=1"))
	serve(t, s, shop, soon).fails(request, codes.Unavailable, "the rate limits cannot be checked")
	serveWith(t, s, patient(httplimit.FailOpen), shop, soon).send(request, "OK: OK, OK")
	local := serveWith(t, s, patient(httplimit.FailLocal), "domains: {shop: [{key: user, rate: 1/h}]}", soon)
	first, err := local.rpc.ShouldRateLimit(t.Context(), to("shop", of("user=1")))
	second, too := local.rpc.ShouldRateLimit(t.Context(), to("shop", of("user=1")))
	if err != nil || too != nil || first.OverallCode != ratelimitv3.RateLimitResponse_OK ||
		second.OverallCode != ratelimitv3.RateLimitResponse_OVER_LIMIT {
		t.Errorf("%v, %v, %v, %v", first, err, second, too)
	}
	// A rule in shadow mode refuses nothing, and fails nothing.
	serve(t, s, "domains: {shop: [{key: user, rate: 1/h, shadow: true}]}", soon).send(to("shop", of("user=1")),
		"OK: OK")
	service := envoylimit.New(rratelimiter.NewClient(s.Client(), soon), nil)
	if _, err := service.ShouldRateLimit(t.Context(), request); err != nil {
		t.Errorf("without domains: %v", err)
	}
	service.SetDomains(
		[]rules.Domain{
			{
				Name:        "shop",
				Descriptors: []rules.Descriptor{{Key: "user", HasRate: true, Rate: rratelimiter.PerHour(1)}},
			},
		},
	)
	if _, err := service.ShouldRateLimit(t.Context(), request); status.Code(err) != codes.Unavailable {
		t.Errorf("by the default policy: %v", err)
	}
}

// In an outage, the log says what Envoy gets, and which setting of Envoy decides.
func TestTheLogOfAnOutage(t *testing.T) {
	s := redistest.Embedded(t)
	s.Mini().Close()
	for failure, want := range map[httplimit.Failure]string{
		httplimit.FailClosed: "requests get UNAVAILABLE, and Envoy lets them pass unless failure_mode_deny is set",
		httplimit.FailOpen:   "requests pass",
	} {
		var logged strings.Builder
		policy := patient(failure)
		policy.Logger = slog.New(slog.NewTextHandler(&logged, nil))
		e := serveWith(t, s, policy, shop, rratelimiter.WithCallTimeout(10*time.Millisecond))
		_, _ = e.rpc.ShouldRateLimit(t.Context(), to("shop", of("user=1")))
		if !strings.Contains(logged.String(), `msg="limits cannot be checked: `+want+`"`) {
			t.Errorf("%s, want %s", logged.String(), want)
		}
	}
}

// Rules in shadow mode wait for Redis as long as the policy says.
func TestTheBoundOfShadow(t *testing.T) {
	silent := make(chan error, 1)
	policy := &httplimit.Policy{
		Bound:   3 * time.Millisecond,
		OnError: func(_ context.Context, err error) { silent <- err },
	}
	s := redistest.Real(t)
	e := serveWith(t, s, policy, "domains: {shop: [{key: user, rate: 1/h, shadow: true}]}")
	s.Pause()
	defer s.Resume()
	e.send(to("shop", of("user=1")), "OK: OK")
	if err := <-silent; err == nil || !strings.Contains(err.Error(), "no answer within 3ms") {
		t.Error(err)
	}
}

func TestACallThatHasEnded(t *testing.T) {
	e := serve(t, redistest.Embedded(t), shop)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := e.service.ShouldRateLimit(ctx, to("shop", of("user=1"))); status.Code(err) != codes.Canceled {
		t.Error(err)
	}
}

// A policy with Shadow counts, and shows nothing.
func TestAPolicyWithShadow(t *testing.T) {
	policy := patient(httplimit.FailClosed)
	policy.Shadow = true
	e := serveWith(t, redistest.Embedded(t), policy, "domains: {shop: [{key: user, rate: 1/h}]}")
	for range 2 {
		response := e.send(to("shop", of("user=1")), "OK: OK 0 of 1/HOUR in 1h0m0s")
		if got := headers(response); got != "" {
			t.Error(got)
		}
	}
	if a, s := policy.Count(httplimit.Allowed), policy.Count(httplimit.Shadowed); a != 1 || s != 1 {
		t.Errorf("%d allowed, %d shadowed", a, s)
	}
}

// A limiter is made once, for all requests that have it.
func TestRequestsShareALimiter(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		made := 0
		count := func(name string) string {
			made++
			return name
		}
		e := serve(t, s, "domains: {shop: [{key: user, rate: 9/h}]}", rratelimiter.WithNameMapper(count))
		for i := range 3 {
			e.send(to("shop", of("user=ann")), fmt.Sprintf("OK: OK %d of 9/HOUR in 1h0m0s", 8-i))
		}
		if made != 1 {
			t.Errorf("%d limiters", made)
		}
		e.load("domains: {shop: [{key: user, rate: 10/h}]}")
		e.send(to("shop", of("user=ann")), "OK: OK 6 of 10/HOUR in 1h0m0s")
		if made != 2 {
			t.Errorf("with a new rate: %d limiters", made)
		}
	})
}

// The calls to Redis that requests need: one for all descriptors of a request, none with a lease or
// from the deny cache.
func TestCallsToRedis(t *testing.T) {
	s := redistest.Real(t)
	e := serve(t, s, `
domains:
  shop:
    - {key: a, rate: 100/h}
    - {key: b, rate: 100/h}
    - {key: leased, rate: 10000/h, lease: 6m}
    - {key: refused, rate: 1/h}
`, rratelimiter.WithLimiterDefaults(rratelimiter.WithDenyCache(10)))
	send := func(times int, r *ratelimitv3.RateLimitRequest) {
		t.Helper()
		for range times {
			if _, err := e.rpc.ShouldRateLimit(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		name   string
		r      *ratelimitv3.RateLimitRequest
		before int // requests before the recording
		calls  int // of 10 requests
	}{
		{"two descriptors", to("shop", of("a=1"), of("b=1")), 1, 10},
		{"a lease", to("shop", of("leased=1")), 100, 0},
		{"a refusal", to("shop", of("refused=1")), 2, 0},
	} {
		send(c.before, c.r)
		monitor := s.Monitor()
		send(10, c.r)
		calls := slices.DeleteFunc(monitor.Stop(), func(c redistest.Command) bool { return c.Name() != "EVALSHA" })
		if len(calls) != c.calls {
			t.Errorf("%s: %d calls, not %d", c.name, len(calls), c.calls)
		}
	}
}

func TestLabel(t *testing.T) {
	for limiter, want := range map[string]string{
		"ratelimit:address=192.0.2.1:shop":                             "shop:address",
		"ratelimit:address=2001%3Adb8%3A%3A1:user+id=a%3Db:method=:sh": "sh:address:user+id:method",
		"ratelimit:shop": "", "ratelimit:192.0.2.1:1s": "", "orders": "", "": "", "x:address=1:shop": "",
	} {
		if got := envoylimit.Label(limiter); got != want {
			t.Errorf("%s: %q, want %q", limiter, got, want)
		}
	}
}

// A rule says which values are in labels.
func TestLabelsWithValues(t *testing.T) {
	server := redistest.Embedded(t)
	e := serve(t, server, `
domains:
  a b:
    - {key: user, rate: 1/h, detailed-metric: true}
    - {key: user, value: "x*", rate: 1/h}
    - {key: path, value: "/a/*", shared: true, value-to-metric: true, descriptors: [{key: method, rate: 1/h}, {key: user, rate: 1/h, detailed-metric: true}]}
    - {key: tenant, descriptors: [{key: id id, rate: 1/h, value-to-metric: true}]}
`)
	for limiter, want := range map[string]string{
		"ratelimit:user=ann:a+b":                 "a+b:user=ann",
		"ratelimit:user=x%3D1:a+b":               "a+b:user",
		"ratelimit:path=/a/*:method=GET:a+b":     "a+b:path=/a/*:method",
		"ratelimit:path=/a/*:user=ann:a+b":       "a+b:path=/a/*:user=ann",
		"ratelimit:path=/b:method=GET:a+b":       "a+b:path:method",
		"ratelimit:tenant=1:id+id=a%3Ab:a+b":     "a+b:tenant:id+id=a%3Ab",
		"ratelimit:user=ann:other":               "other:user",
		"ratelimit:shop":                         "",
		"ratelimit:user=ann:more=1:even=2:a+b":   "a+b:user:more:even",
		"ratelimit:tenant=%zz:id+id=%7E~0af:a+b": "a+b:tenant:id+id=%7E~0af",
	} {
		if got := e.service.Label(limiter); got != want {
			t.Errorf("%s: %q, want %q", limiter, got, want)
		}
	}
	response := e.send(to("a b", of("user=ann")), "OK: OK 0 of 1/HOUR in 1h0m0s")
	if keys := server.Client().Keys(t.Context(), "ratelimit:user=ann:a+b").Val(); len(keys) != 1 {
		t.Errorf("%v: the limiter is not there", response)
	}
}

// The observers see what becomes of requests.
func TestObservers(t *testing.T) {
	o := &outcomes{}
	e := serve(t, redistest.Embedded(t), `
domains:
  shop:
    - {key: user, rate: 1/h}
    - {key: shadow, rate: 1/h, shadow: true}
`, rratelimiter.WithObserver(o))
	for range 2 {
		_, _ = e.rpc.ShouldRateLimit(t.Context(), to("shop", of("user=1")))
		_, _ = e.rpc.ShouldRateLimit(t.Context(), to("shop", of("shadow=1")))
	}
	want := []string{
		"envoy allowed", "envoy allowed", "envoy denied", "envoy shadowed", "envoy unlimited", "envoy unlimited",
	}
	if got := slices.Sorted(slices.Values(o.seen)); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// outcomes records the decisions.
type outcomes struct {
	mu   sync.Mutex
	seen []string // guarded by mu
}

func (*outcomes) Call(rratelimiter.CallInfo) {}

func (o *outcomes) Guard(_ context.Context, info rratelimiter.GuardInfo) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seen = append(o.seen, fmt.Sprint(info.Policy, " ", info.Outcome))
}
