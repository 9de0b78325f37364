package httplimit

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// transport.go limits the rate of outgoing requests. It does not depend on guards and policies.

// A Transport is an http.RoundTripper that limits the rate of outgoing requests. All processes that use the same limiter
// share this rate. Each request takes one permit of a limiter. Use one Transport for each service or other destination that
// has a limit. The fields of a Transport must not change after its first use. A Transport is safe for concurrent use and
// must not be copied.
//
//	api := &http.Client{
//		Transport: &httplimit.Transport{Limiter: client.RateLimiter("api", rratelimiter.WithRate(rratelimiter.PerSecond(10)))},
//		Timeout:   30 * time.Second, // waiting for the permit included
//	}
//
// A request waits for its permit until its context ends. If the context ends first, or if Redis cannot be reached, the
// request is not sent. The error wraps that of the context, or is the error of [rratelimiter.Limiter.Acquire]. If the
// limiter has rratelimiter.WithFallback, the process grants its fraction of the rate while Redis is unreachable; a fraction
// of 0 grants nothing.
//
// If the service responds with status 429, or with status 503 and Retry-After, all requests pause until the time that
// the service has set, and after a status 429 for at least 1 s. The caller gets the response. The Transport does not send
// the request again, but the caller may.
//   - This process sends no request until the pause is over. Requests in flight are not interrupted. If a request gets
//     its permit during the pause, it takes another permit after the pause.
//   - Other processes find no permits, even if they have no Transport, and also in Java: this process takes and keeps all
//     permits that are free or become free. When permits return, callers that already wait in another process can get them
//     first, before this process takes them. This can repeat every interval, but it usually ends after a few intervals. All
//     processes together never get more than the rate in an interval. Another process with a Transport pauses itself after
//     the first such response that it gets.
//   - When the pause is over, this process gives back its permits in the background. If the process ends first, or if
//     Redis does not reply within 1 s, the permits return when their interval is over.
//
// With a limiter of type PerClient, the pause applies only to this client.
type Transport struct {
	// Limiter decides when a request is sent. It must not be nil.
	Limiter *rratelimiter.Limiter
	// Base sends the requests. nil means http.DefaultTransport.
	Base http.RoundTripper
	// MaxPause is the longest pause that one response can cause; 0 means 1 minute. After the pause, requests are sent
	// again, and the next response can start another pause.
	MaxPause time.Duration
	// Logger gets one line for each pause in which permits could not be taken or given back. nil means slog.Default().
	Logger *slog.Logger

	mu      sync.Mutex
	until   time.Time // end of the latest pause; guarded by mu
	holding bool      // hold is running; guarded by mu
}

const (
	leastPause = time.Second            // after status 429, unless MaxPause is less
	holdCall   = time.Second            // maximum time of the calls of take
	holdEvery  = time.Millisecond       // minimum time until the next take, if one took no permits
	holdAtMost = time.Second            // maximum time until then, because permits can be given back at any time
	holdEarly  = 5 * time.Millisecond   // take is called this long before permits return
	renewAhead = 100 * time.Millisecond // a grant is renewed this long before its end, at most a quarter of the interval
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

// await waits for the end of a pause, and for a permit. A permit that is granted during a pause is not used: otherwise
// all requests with such permits would be sent at once at the end of the pause.
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

// pause returns the time until the end of the pause; 0 or less if there is no pause.
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
		pause = max(pause, leastPause)
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

// after returns the time in a field Retry-After: seconds, or the time from this host's clock to a date. It returns 0 if
// the field has neither.
func after(field string) time.Duration {
	if s, err := strconv.ParseUint(field, 10, 31); err == nil || errors.Is(err, strconv.ErrRange) {
		return time.Duration(s) * time.Second // s is 1<<31 - 1 if the number is too large
	}
	if date, err := http.ParseTime(field); err == nil {
		return time.Until(date)
	}
	return 0
}

// hold takes all permits until the pause is over, and then gives them back. Before one of its grants expires, hold
// gives the grant back and takes the permits again: other processes wait until the grant expires, and would be first to
// take the permits then. Before permits of other processes return, hold calls take a little earlier than other
// processes would.
func (t *Transport) hold() {
	type taken struct {
		grant *rratelimiter.Grant
		renew time.Time
	}
	var held []taken
	logged := false
	fails := func(err error) bool {
		if err != nil && !logged {
			t.logger().Warn("permits could not be taken or given back for a pause that a service requested", "error", err)
			logged = true
		}
		return err != nil
	}
	var rate rratelimiter.Rate // Unlimited: not known
	var due time.Time          // time at which the next permits return; zero: not known
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

// take takes all free permits. If no permit is free, it returns the time until take should be called again. It updates
// rate and due, which belong to hold.
func (t *Transport) take(rate *rratelimiter.Rate, due *time.Time) (grant *rratelimiter.Grant, wait time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), holdCall)
	defer cancel()
	if rate.Permits == 0 { // not known, or no request can be sent anyway
		if *rate, err = t.Limiter.Config(ctx); err != nil || rate.Permits == 0 {
			return nil, holdAtMost, err
		}
	}
	if grant, err = t.Limiter.TakeUpTo(ctx, rate.Permits); grant != nil || err != nil {
		return grant, 0, err
	}
	if !time.Now().Before(*due) {
		var r rratelimiter.Result
		grant, r, err = t.Limiter.Take(ctx, 1)
		if errors.Is(err, rratelimiter.ErrExceedsRate) { // the rate has become 0
			*rate = rratelimiter.Rate{}
			return nil, holdAtMost, nil
		}
		if grant != nil || err != nil {
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

// paused reports whether there is a pause. If there is no pause, it records that hold ends.
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
