package httplimit

import (
	"context"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// transport.go paces outgoing requests. It does not depend on guards and policies.

// A Transport is a http.RoundTripper that paces the outgoing requests of all processes by a limiter: one permit each.
// It is for one service, or for what else has one limit. Its fields must not change once it is in use. It is safe for
// concurrent use and must not be copied.
//
//	api := &http.Client{
//		Transport: &httplimit.Transport{Limiter: client.RateLimiter("api", rratelimiter.WithRate(rratelimiter.PerSecond(10)))},
//		Timeout:   30 * time.Second, // waiting for the permit included
//	}
//
// A request waits for its permit until its context ends. If that comes first, or the limiter cannot be asked, the
// request is not sent, and the error is that of [rratelimiter.Limiter.Acquire]. A limiter with
// rratelimiter.WithFallback lets requests pass while Redis is away.
//
// If the service responds with status 429, or with status 503 and Retry-After, all requests pause until the service
// accepts requests again. The response goes to the caller, who may send the request again; the Transport does not.
//   - This process sends no request before the pause is over. Requests that are in flight are not interrupted. A
//     request that gets its permit during the pause takes another one afterwards.
//   - Other processes, also those without a Transport and in Java, are held up: this process takes all permits that are
//     free, takes the others as they return, and keeps them. Another process that waits for permits which return can be
//     first to take them, and again an interval later; mostly it is not for long. All of them together never get more
//     than the rate in an interval. One with a Transport stops with the first such response that it gets itself.
//   - When the pause is over, this process gives back in the background what it took. If it ends before, or Redis does
//     not reply within 1 s, the permits return when their interval is over.
//
// In a limiter of type PerClient, the pause applies to this client only.
type Transport struct {
	// Limiter decides when a request is sent. It must not be nil.
	Limiter *rratelimiter.Limiter
	// Base sends the requests; nil is http.DefaultTransport.
	Base http.RoundTripper
	// MaxPause is the longest pause that one response can cause; 0 means 1 minute. Then requests are sent again, and
	// the next response decides.
	MaxPause time.Duration
	// Logger gets one line for each pause in which permits could not be taken or given back. nil is slog.Default().
	Logger *slog.Logger

	mu      sync.Mutex
	until   time.Time // end of the latest pause; guarded by mu
	holding bool      // hold runs; guarded by mu
}

const (
	plainPause = time.Second            // after status 429 without Retry-After
	holdCall   = time.Second            // maximum time of the calls that take permits once
	holdEvery  = time.Millisecond       // minimum time until the next calls, if these took none
	holdAtMost = time.Second            // maximum time until then: permits can be given back elsewhere at any time
	holdEarly  = 5 * time.Millisecond   // time before permits return from which on it asks
	renewAhead = 100 * time.Millisecond // time before the end of a grant when it is renewed; a quarter of it, if that is less
)

// RoundTrip waits for a permit and sends the request. See Transport.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := t.await(r.Context()); err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, err
	}
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	response, err := base.RoundTrip(r)
	if err == nil {
		t.heed(response)
	}
	return response, err
}

// await waits for the end of a pause, and for a permit. A permit that is granted during a pause is not used: all that
// are granted then would be used at once at its end.
func (t *Transport) await(ctx context.Context) error {
	for {
		if err := script.Sleep(ctx, t.pause()); err != nil {
			return err
		}
		if err := t.Limiter.Acquire(ctx, 1); err != nil {
			return err
		}
		if t.pause() <= 0 {
			return nil
		}
	}
}

// pause returns how long the pause lasts; 0 or less if there is none.
func (t *Transport) pause() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Until(t.until)
}

// heed begins or extends a pause if the response asks for one.
func (t *Transport) heed(response *http.Response) {
	pause := after(response.Header.Get("Retry-After"))
	switch response.StatusCode {
	case http.StatusTooManyRequests:
		if pause <= 0 {
			pause = plainPause
		}
	case http.StatusServiceUnavailable:
	default:
		return
	}
	longest := t.MaxPause
	if longest <= 0 {
		longest = time.Minute
	}
	if pause = min(pause, longest); pause <= 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if until := time.Now().Add(pause); until.After(t.until) {
		t.until = until
	}
	if !t.holding {
		t.holding = true
		go t.hold()
	}
}

// after returns the time in a field Retry-After, which has seconds, or a date, which this host's clock is compared with;
// 0 if it has neither.
func after(field string) time.Duration {
	if s, err := strconv.ParseUint(field, 10, 31); err == nil {
		return time.Duration(s) * time.Second
	}
	if date, err := http.ParseTime(field); err == nil {
		return time.Until(date)
	}
	return 0
}

// hold takes all permits until the pause is over, and then gives them back. Before a grant expires, it gives that back
// and takes the permits again: where others wait, they wait until it expires, and would come first then. When permits
// return that others have, it asks a little earlier than others do.
func (t *Transport) hold() {
	type taken struct {
		grant *rratelimiter.Grant
		renew time.Time
	}
	var held []taken
	logged := false
	fails := func(err error) bool {
		if err != nil && !logged {
			t.logger().Warn("permits are not taken, or not given back, for the time that a service asked to wait", "error", err)
			logged = true
		}
		return err != nil
	}
	var rate rratelimiter.Rate // without permits: it is not known
	var due time.Time          // when the next permits return, as far as it is known
	for t.paused() {
		for len(held) > 0 && !time.Now().Before(held[0].renew) {
			err := giveBack(held[0].grant)
			held = held[1:]
			if fails(err) {
				break
			}
		}
		grant, wait, err := t.take(&rate, &due)
		if fails(err) {
			wait = holdAtMost
		}
		if grant != nil {
			held = append(held, taken{grant, time.Now().Add(rate.Interval - min(renewAhead, rate.Interval/4))})
			due = time.Time{}
			continue
		}
		if len(held) > 0 {
			wait = min(wait, time.Until(held[0].renew))
		}
		_ = script.Sleep(context.Background(), min(max(wait, holdEvery), holdAtMost, t.pause()))
	}
	for _, h := range held {
		if fails(giveBack(h.grant)) {
			return
		}
	}
}

// take takes all permits that are free. If none are, it returns the time until it should be called again. It updates rate
// and due, which belong to hold.
func (t *Transport) take(rate *rratelimiter.Rate, due *time.Time) (grant *rratelimiter.Grant, wait time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), holdCall)
	defer cancel()
	if rate.Permits == 0 {
		if *rate, err = t.Limiter.Config(ctx); err != nil {
			return nil, 0, err
		}
	}
	if grant, err = t.Limiter.TakeUpTo(ctx, rate.Permits); grant != nil || err != nil {
		return grant, 0, err
	}
	if !time.Now().Before(*due) {
		var r rratelimiter.Result
		if grant, r, err = t.Limiter.Take(ctx, 1); grant != nil || err != nil {
			return grant, 0, err
		}
		*due = time.Now().Add(r.RetryAfter)
	}
	return nil, time.Until(*due) - holdEarly, nil
}

// giveBack gives all permits of a grant back.
func giveBack(g *rratelimiter.Grant) error {
	ctx, cancel := context.WithTimeout(context.Background(), givingBack)
	defer cancel()
	_, err := g.Return(ctx, g.Permits())
	return err
}

// paused reports whether there is a pause. If there is none, it records that hold ends.
func (t *Transport) paused() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.holding = time.Now().Before(t.until)
	return t.holding
}

func (t *Transport) logger() *slog.Logger {
	if t.Logger != nil {
		return t.Logger
	}
	return slog.Default()
}
