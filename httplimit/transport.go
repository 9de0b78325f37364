package httplimit

import (
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/pace"
)

// transport.go limits the rate of outgoing requests. It does not depend on guards and policies.

// A Transport is an http.RoundTripper that limits the rate of outgoing requests. All processes that
// use the same limiter share this rate. Each request takes one permit of a limiter. Use one
// Transport for each service or other destination that has a limit. The fields of a Transport must
// not change after its first use. A Transport is safe for concurrent use and must not be copied.
//
//	limiter := client.RateLimiter("api", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
//	api := &http.Client{
//		Transport: &httplimit.Transport{Limiter: limiter},
//		Timeout:   30 * time.Second, // waiting for the permit included
//	}
//
// A request waits for its permit until its context ends. If the context ends first, or if Redis
// cannot be reached, the request is not sent. The error wraps that of the context, or is the error
// of [rratelimiter.Limiter.Acquire]. If the limiter has rratelimiter.WithFallback, the process
// grants its fraction of the rate while Redis is unreachable; a fraction of 0 grants nothing.
//
// If the service responds with status 429, or with status 503 and Retry-After, all requests pause
// until the time that the service has set, and after a status 429 for at least 1 s. The caller gets
// the response. The Transport does not send the request again, but the caller may.
//   - This process sends no request until the pause is over. Requests in flight are not
//     interrupted. If a request gets its permit during the pause, it takes another permit after the
//     pause.
//   - Other processes find no permits, even if they have no Transport, and also in Java: this
//     process takes and keeps all permits that are free or become free. When permits return,
//     callers that already wait in another process can get them first, before this process takes
//     them. This can repeat every interval, but it usually ends after a few intervals. All
//     processes together never get more than the rate in an interval. Another process with a
//     Transport pauses itself after the first such response that it gets.
//   - When the pause is over, this process gives back its permits in the background. If the process
//     ends first, or if Redis does not reply within 1 s, the permits return when their interval is
//     over.
//
// With a limiter of type PerClient, the pause applies only to this client.
type Transport struct {
	// Limiter decides when a request is sent. It must not be nil.
	Limiter *rratelimiter.Limiter
	// Base sends the requests. nil means http.DefaultTransport.
	Base http.RoundTripper
	// MaxPause is the longest pause that one response can cause; 0 means 1 minute. After the pause,
	// requests are sent again, and the next response can start another pause.
	MaxPause time.Duration
	// Logger gets one line for each pause in which permits could not be taken or given back. nil
	// means slog.Default().
	Logger *slog.Logger

	once  sync.Once
	pacer *pace.Pacer // set by once
}

// leastPause is the pause after status 429, unless MaxPause is less.
const leastPause = time.Second

// RoundTrip waits for a permit and sends the request. See Transport.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	t.once.Do(func() { t.pacer = pace.New(t.Limiter, t.MaxPause, t.Logger) })
	if err := t.pacer.Await(r.Context()); err != nil {
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
		t.pacer.Pause(pauseOf(response))
	}
	return response, err
}

// pauseOf returns the pause that a response asks for; 0 or less if it asks for none.
func pauseOf(response *http.Response) time.Duration {
	pause := after(response.Header.Get("Retry-After"))
	switch response.StatusCode {
	case http.StatusTooManyRequests:
		return max(pause, leastPause)
	case http.StatusServiceUnavailable:
		return pause
	}
	return 0
}

// after returns the time in a field Retry-After: seconds, or the time from this host's clock to a
// date. It returns 0 if the field has neither.
func after(field string) time.Duration {
	if s, err := strconv.ParseUint(field, 10, 31); err == nil || errors.Is(err, strconv.ErrRange) {
		return time.Duration(s) * time.Second // s is 1<<31 - 1 if the number is too large
	}
	if date, err := http.ParseTime(field); err == nil {
		return time.Until(date)
	}
	return 0
}
