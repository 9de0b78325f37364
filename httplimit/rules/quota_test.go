package rules

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// A witness is an observer that keeps what it sees, without durations.
type witness struct{ seen []any }

func (w *witness) Call(info rratelimiter.CallInfo) {
	info.Latency = 0
	w.seen = append(w.seen, info)
}

func (w *witness) Request(_ context.Context, info rratelimiter.RequestInfo) {
	info.Latency = 0
	w.seen = append(w.seen, info)
}

// saw checks what was seen since the last time. Of an error only its kind is compared.
func (w *witness) saw(t *testing.T, kind error, want ...any) {
	t.Helper()
	for i, one := range w.seen {
		switch info := one.(type) {
		case rratelimiter.CallInfo:
			if !errors.Is(info.Err, kind) {
				t.Errorf("%v is not %v", info.Err, kind)
			}
			info.Err = nil
			w.seen[i] = info
		case rratelimiter.RequestInfo:
			if !errors.Is(info.Err, kind) {
				t.Errorf("%v is not %v", info.Err, kind)
			}
			info.Err = nil
			w.seen[i] = info
		}
	}
	if !reflect.DeepEqual(w.seen, want) {
		t.Errorf("seen %+v, want %+v", w.seen, want)
	}
	w.seen = nil
}

// The observer of the client sees requests to a quota as those to a limiter.
func TestObserversSeeQuotas(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		w := &witness{}
		client := rratelimiter.NewClient(s.Client(), rratelimiter.WithObserver(w))
		quota := Quota{Permits: 5, Period: "year"}.Limiter(client, "ratelimit:ann:mails")
		ask := func(ctx context.Context, n int64) { _, _ = quota.Allow(ctx, n) }
		charge := quota.(interface {
			Charge(ctx context.Context, n int64) (rratelimiter.Result, error)
		})
		call := rratelimiter.CallInfo{Limiter: "ratelimit:ann:mails", Callers: 1, Attempts: 1}
		request := rratelimiter.RequestInfo{Limiter: "ratelimit:ann:mails", Method: "Allow", Permits: 3}

		granted, got := call, request
		granted.Granted, granted.Permits, got.Granted = 1, 3, 3
		ask(t.Context(), 3)
		w.saw(t, nil, granted, got)

		denied := call
		denied.Denied = 1
		ask(t.Context(), 3)
		w.saw(t, nil, denied, request)

		charged, counted := rratelimiter.CallInfo{Limiter: call.Limiter, Attempts: 1, Charged: 7}, request
		counted.Method, counted.Permits, counted.Granted = "Charge", 7, 7
		if _, err := charge.Charge(t.Context(), 7); err != nil {
			t.Fatal(err)
		}
		w.saw(t, nil, charged, counted)

		more := request
		more.Permits = 6
		denied.Attempts = 0
		ask(t.Context(), 6)
		w.saw(t, rratelimiter.ErrExceedsRate, denied, more)

		gone, cancel := context.WithCancel(t.Context())
		cancel()
		ask(gone, 3)
		w.saw(t, context.Canceled, request)
	})
}

// Without an answer of Redis, the request has failed, and its call counts as denied.
func TestObserversSeeThatAQuotaHasNoAnswer(t *testing.T) {
	for _, s := range []*redistest.Server{redistest.Embedded(t), redistest.Real(t)} {
		w := &witness{}
		client := rratelimiter.NewClient(s.Client(), rratelimiter.WithObserver(w))
		quota := Quota{Permits: 5, Period: "year"}.Limiter(client, "ratelimit:mails")
		s.Kill()
		_, _ = quota.Allow(t.Context(), 3)
		w.saw(t, rratelimiter.ErrUnavailable,
			rratelimiter.CallInfo{Limiter: "ratelimit:mails", Callers: 1, Denied: 1, Attempts: 1},
			rratelimiter.RequestInfo{Limiter: "ratelimit:mails", Method: "Allow", Permits: 3})
	}
}

// A quota needs no observer, and no observer of requests.
func TestQuotasWithoutAnObserverOfRequests(t *testing.T) {
	s := redistest.Embedded(t)
	calls := 0
	for _, o := range []rratelimiter.Observer{nil, callsOnly(func() { calls++ })} {
		client := rratelimiter.NewClient(s.Client(), rratelimiter.WithObserver(o))
		quota := Quota{Permits: 5, Period: "month", Zone: time.UTC}.Limiter(client, "a")
		if r, err := quota.Allow(t.Context(), 1); err != nil || !r.Allowed {
			t.Error(r, err)
		}
	}
	if calls != 1 {
		t.Errorf("%d calls were seen", calls)
	}
}

type callsOnly func()

func (c callsOnly) Call(rratelimiter.CallInfo) { c() }
