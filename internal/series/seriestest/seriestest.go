// Package seriestest has the tests that promlimit and otellimit share, because both export the same
// metrics.
package seriestest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// An Exporter is an observer of limiters, and a way to read its metrics.
type Exporter interface {
	rratelimiter.RequestObserver
	rratelimiter.GuardObserver
	// Values returns the metrics that are not zero. The keys are names without prefix, unit and
	// suffix, with the labels that are not empty: "requests{limiter=a,outcome=granted}". A
	// histogram has the number of its values, and with the key "NAME.sum{...}" their sum.
	Values(t *testing.T) map[string]float64
}

// Run runs the tests, each with new exporters.
func Run(t *testing.T, start func(t *testing.T, label func(limiter string) string, mostLabels int) Exporter) {
	for name, test := range map[string]func(*testing.T, func(label func(string) string, most int) Exporter){
		"calls": calls, "requests": requests, "labels": labels, "guards": guards,
	} {
		t.Run(name, func(t *testing.T) {
			test(t, func(label func(string) string, most int) Exporter { return start(t, label, most) })
		})
	}
}

// expect checks that an exporter has these metrics and no others.
func expect(t *testing.T, what string, e Exporter, want map[string]float64) {
	t.Helper()
	if got := e.Values(t); !maps.Equal(got, want) {
		t.Errorf("%s:\n%v, expected\n%v", what, got, want)
	}
}

// calls: what is counted of a call.
func calls(t *testing.T, start func(func(string) string, int) Exporter) {
	down := errors.New("down")
	for name, c := range map[string]struct {
		info rratelimiter.CallInfo
		want map[string]float64
	}{
		"a call for many": {
			rratelimiter.CallInfo{
				Callers:       9,
				Granted:       4,
				Denied:        3,
				Permits:       12,
				Unclaimed:     2,
				Latency:       2 * time.Millisecond,
				Attempts:      1,
				DenyCacheHits: 5,
				Leased:        20, Returned: 8, Void: 3,
			},
			map[string]float64{
				"calls{outcome=ok}": 1, "call.duration{}": 1, "call.duration.sum{}": 0.002, "call.attempts{}": 1,
				"call.requests{}":           9,
				"requests{outcome=granted}": 4, "requests{outcome=denied}": 3, "requests{outcome=cached}": 5,
				"decisions{by=redis}": 7, "decisions{by=cache}": 5, "granted.permits{}": 12, "unclaimed.permits{}": 2,
				"lease.permits{outcome=taken}":    20,
				"lease.permits{outcome=returned}": 8,
				"lease.permits{outcome=void}":     3,
			},
		},
		"a failure": {
			rratelimiter.CallInfo{Callers: 3, Denied: 2, Attempts: 2, Err: down},
			map[string]float64{
				"calls{outcome=failed}": 1,
				"call.duration{}":       1,
				"call.attempts{}":       2,
				"call.requests{}":       3,
			},
		},
		"a doubt": {
			rratelimiter.CallInfo{
				Callers: 2,
				Denied:  2,
				Err:     fmt.Errorf("%w: %w", rratelimiter.ErrOutcomeUnknown, down),
			},
			map[string]float64{"calls{outcome=unknown}": 1, "call.duration{}": 1, "call.requests{}": 2},
		},
		"more than the rate": {
			rratelimiter.CallInfo{Callers: 1, Denied: 1, Err: fmt.Errorf("%w: 7", rratelimiter.ErrExceedsRate)},
			map[string]float64{
				"calls{outcome=ok}": 1, "call.duration{}": 1, "call.requests{}": 1, "requests{outcome=denied}": 1,
				"decisions{by=redis}": 1,
			},
		},
		"a failure, decided by the process": {
			rratelimiter.CallInfo{Granted: 1, Denied: 2, Permits: 3, Attempts: 1, Fallback: true, Err: down},
			map[string]float64{
				"calls{outcome=failed}": 1, "call.duration{}": 1, "call.attempts{}": 1, "fallbacks{}": 1,
				"decisions{by=fallback}":    3,
				"requests{outcome=granted}": 1, "requests{outcome=denied}": 2, "granted.permits{}": 3,
			},
		},
		"a decision of the process without a call": {
			rratelimiter.CallInfo{Callers: 3, Granted: 1, Denied: 2, Permits: 3, Fallback: true},
			map[string]float64{
				"fallbacks{}": 1, "decisions{by=fallback}": 3,
				"requests{outcome=granted}": 1, "requests{outcome=denied}": 2, "granted.permits{}": 3,
			},
		},
		"a repair": {
			rratelimiter.CallInfo{Repaired: "free permits were missing"},
			map[string]float64{"calls{outcome=ok}": 1, "call.duration{}": 1, "repaired{}": 1},
		},
		"another rate": {
			rratelimiter.CallInfo{RateMismatch: true},
			map[string]float64{"calls{outcome=ok}": 1, "call.duration{}": 1, "rate.mismatches{}": 1},
		},
	} {
		e := start(nil, 0)
		expect(t, "before "+name, e, nil)
		e.Call(c.info)
		expect(t, name, e, c.want)
	}
}

// requests: what is counted of a request. A request without a reply counts once, by its caller's
// context.
func requests(t *testing.T, start func(func(string) string, int) Exporter) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	unknown := fmt.Errorf("%w: %w", rratelimiter.ErrOutcomeUnknown, context.Canceled)
	for name, c := range map[string]struct {
		ctx  context.Context
		info rratelimiter.RequestInfo
		want map[string]float64
	}{
		"granted by a call, which counts it": {t.Context(), rratelimiter.RequestInfo{Permits: 3, Granted: 3}, nil},
		"granted by a lease": {
			t.Context(), rratelimiter.RequestInfo{Permits: 3, Granted: 3, Leased: true},
			map[string]float64{"requests{outcome=granted}": 1, "decisions{by=lease}": 1, "granted.permits{}": 3},
		},
		"charged": {
			t.Context(), rratelimiter.RequestInfo{Method: "Charge", Permits: 30, Granted: 30},
			map[string]float64{"charged.permits{}": 30},
		},
		"charged by a lease": {
			t.Context(), rratelimiter.RequestInfo{Method: "ChargeAll", Permits: 3, Granted: 3, Leased: true},
			map[string]float64{"charged.permits{}": 3},
		},
		"charged up to the bound": {
			t.Context(), rratelimiter.RequestInfo{Method: "Charge", Permits: 30, Granted: 7,
				Err: rratelimiter.ErrDebtBound},
			map[string]float64{"charged.permits{}": 7},
		},
		"too large": {t.Context(), rratelimiter.RequestInfo{Err: rratelimiter.ErrExceedsRate}, nil},
		"in vain": {
			t.Context(), rratelimiter.RequestInfo{Waits: true, Err: &rratelimiter.NotInTimeError{}},
			map[string]float64{"wait.duration{}": 1},
		},
		"no time left": {
			over, rratelimiter.RequestInfo{Err: context.Canceled}, map[string]float64{"requests{outcome=failed}": 1},
		},
		"Redis fails": {
			t.Context(), rratelimiter.RequestInfo{Waits: true, Latency: 2 * time.Second, Err: errors.New("down")},
			map[string]float64{"requests{outcome=failed}": 1, "wait.duration{}": 1, "wait.duration.sum{}": 2},
		},
		"a doubt": {
			over, rratelimiter.RequestInfo{Waits: true, Err: unknown},
			map[string]float64{"requests{outcome=failed}": 1, "wait.duration{}": 1},
		},
		"gone while in line": {
			over, rratelimiter.RequestInfo{Waits: true, Err: context.Canceled},
			map[string]float64{"requests{outcome=left}": 1, "wait.duration{}": 1},
		},
	} {
		e := start(nil, 0)
		e.Request(c.ctx, c.info)
		expect(t, name, e, c.want)
	}
}

// labels: limiters with the same label are counted together, so are those whose labels are too
// many. Waiting callers count while they wait.
func labels(t *testing.T, start func(func(string) string, int) Exporter) {
	server := limittest.New(t)
	e := start(func(limiter string) string {
		kind, _, _ := strings.Cut(limiter, ":")
		return kind
	}, 2)
	client := server.Client(rratelimiter.WithObserver(e))
	for _, name := range []string{"a:1", "a:2", "b", "c", "d"} {
		l := client.RateLimiter(name, rratelimiter.WithRate(rratelimiter.PerMinute(1)))
		if err := l.Acquire(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
	}
	ended := make(chan error)
	ctx, cancel := context.WithCancel(t.Context())
	waiting := []string{"a:1", "c", "d"}
	for _, name := range waiting {
		go func() { ended <- client.RateLimiter(name).Acquire(ctx, 1) }()
		server.AwaitWaiting(name, 1)
	}
	of := func(name string) map[string]float64 {
		all := e.Values(t)
		maps.DeleteFunc(all, func(key string, _ float64) bool { return !strings.HasPrefix(key, name+"{") })
		return all
	}
	granted := map[string]float64{
		"granted.permits{limiter=a}": 2, "granted.permits{limiter=b}": 1, "granted.permits{limiter=other}": 2,
	}
	if got := of("granted.permits"); !maps.Equal(got, granted) {
		t.Errorf("granted: %v", got)
	}
	if got := of("waiting.requests"); !maps.Equal(
		got, map[string]float64{"waiting.requests{limiter=a}": 1, "waiting.requests{limiter=other}": 2},
	) {
		t.Errorf("waiting: %v", got)
	}
	cancel()
	for range waiting {
		<-ended
	}
	if got := of("waiting.requests"); len(got) > 0 {
		t.Errorf("callers that have gone still wait: %v", got)
	}
}

// guards: decisions are counted by outcome and policy. Policies are bounded as labels are, and
// unknown outcomes are not counted.
func guards(t *testing.T, start func(func(string) string, int) Exporter) {
	e := start(nil, 2)
	for policy, n := range map[string]int{"": 3, "api": 2} {
		for range n {
			e.Guard(t.Context(),
				rratelimiter.GuardInfo{Policy: policy, Outcome: "failed open", Err: errors.New("down")})
		}
	}
	e.Guard(t.Context(), rratelimiter.GuardInfo{Policy: "one more", Outcome: "allowed"})
	e.Guard(t.Context(), rratelimiter.GuardInfo{Policy: "api", Outcome: "of a later version"})
	expect(t, "guards", e, map[string]float64{
		"guard.decisions{outcome=failed open}": 3, "guard.decisions{outcome=failed open,policy=api}": 2,
		"guard.decisions{outcome=allowed,policy=other}": 1,
	})
}
