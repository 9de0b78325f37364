package httplimit

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
)

// after.go corrects what a request counts once its response is known.

// CountIf returns the same limit for requests that count only if f is true for their response: for example only failed
// logins. A request takes its permits before it is handled, so at most as many as the rate are handled at a time, and
// gives them back afterwards if f is false.
//
// f gets the status of the response, and its header as it is when the handler has returned. That has also the fields
// that were set too late to be sent. f must return quickly, and may be called at the same time for several requests. The
// status is 500 if the handler panics before it writes, and 101 if it takes over the connection.
//
// [Guard.Middleware] calls f. After [Guard.Check] and [Guard.Decide], which do not see the response, the permits stay
// taken; see [Policy.Settle]. Giving back runs in the background after the handler has returned, for at most 1 s. It
// does not delay the response. Its errors go to Policy.OnError and Policy.Logger. Permits cannot be given back, and
// return when their interval is over:
//   - if the response takes longer than the interval;
//   - if the process ends first, or Redis does not reply within 1 s;
//   - if the policy decided without the limiter (FailLocal);
//   - by limiters that have no method Release, as those of the package classic.
func (l Limit) CountIf(f func(status int, h http.Header) bool) Limit {
	return func(r *http.Request) Claim {
		claim := l(r)
		claim.countIf = f
		return claim
	}
}

// CostAfter returns the same limit for requests whose cost in permits is known after the response: for example the
// tokens of a language model, which the handler sets in a header field. f is called as that of CountIf, and what is
// said there applies. The result of f replaces the permits that the request took before (one, or those of Cost):
//   - If it took more, it gives the difference back, as CountIf does. A cost below 0 is 0.
//   - If it took fewer, it takes the difference from what is free then: without refusing anything, and without waiting.
//     What is not free is not counted. So Cost should return the most that a request can cost.
//
// A limiter that has no method AcquireUpTo grants all of the difference, or nothing. CountIf prevails over CostAfter if
// a limit has both.
func (l Limit) CostAfter(f func(status int, h http.Header) int64) Limit {
	return func(r *http.Request) Claim {
		claim := l(r)
		claim.cost = f
		return claim
	}
}

// settles reports whether the permits of a claim depend on the response.
func (c Claim) settles() bool { return c.countIf != nil || c.cost != nil }

// final returns the permits that the request of a claim costs, by its response.
func (c Claim) final(status int, h http.Header) int64 {
	switch {
	case c.countIf != nil && !c.countIf(status, h):
		return 0
	case c.cost != nil:
		return max(0, c.cost(status, h))
	}
	return c.Permits
}

// settles reports whether a request took permits that depend on its response.
func (d Decision) settles() bool {
	for _, a := range d.Answers {
		if a.settles() && a.Allowed && a.back != nil {
			return true
		}
	}
	return false
}

// Settle corrects what a request counts, by its response: see [Limit.CountIf] and [Limit.CostAfter]. [Guard.Middleware]
// does this. Others call it once for each decision that let a request pass. It calls the functions of the limits, and
// returns; giving back goes on in the background for at most 1 s, also after ctx ends.
func (p *Policy) Settle(ctx context.Context, d Decision, status int, h http.Header) {
	for _, a := range d.Answers {
		if !a.settles() || !a.Allowed || a.back == nil {
			continue
		}
		if n := a.final(status, h); n != a.Permits {
			go p.correct(ctx, a, n)
		}
	}
}

// correct replaces the permits that a request took from a limit by n.
func (p *Policy) correct(ctx context.Context, a Answer, n int64) {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), givingBack)
	defer cancel()
	var err error
	if n < a.Permits {
		err = a.back(bounded, a.Permits-n)
	} else if l, ok := a.Limiter.(interface {
		AcquireUpTo(ctx context.Context, n int64) (int64, error)
	}); ok {
		_, err = l.AcquireUpTo(bounded, n-a.Permits)
	} else {
		_, err = a.Limiter.Allow(bounded, n-a.Permits)
	}
	if err != nil {
		p.report(ctx, fmt.Errorf("limit %q, key %q: after the response: %w", a.Name, a.Key, err))
	}
}

// serve handles a request, and corrects what it counts.
func serve(p *Policy, d Decision, next http.Handler, w http.ResponseWriter, r *http.Request) {
	seen := &recorder{ResponseWriter: w}
	status := http.StatusInternalServerError // if next panics
	defer func() {
		if seen.status != 0 {
			status = seen.status
		}
		p.Settle(r.Context(), d, status, w.Header())
	}()
	next.ServeHTTP(seen, r)
	status = http.StatusOK
}

// A recorder records the status of a response. A http.ResponseController reaches the writer behind it.
type recorder struct {
	http.ResponseWriter
	status int // 0: none yet
}

func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *recorder) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols { // others are informational, and a final one follows
		w.record(status)
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *recorder) Write(b []byte) (int, error) {
	w.record(http.StatusOK)
	return w.ResponseWriter.Write(b)
}

func (w *recorder) record(status int) {
	if w.status == 0 {
		w.status = status
	}
}

// Flush makes the recorder a http.Flusher. It does nothing if the writer behind it is none.
func (w *recorder) Flush() { _ = w.FlushError() }

func (w *recorder) FlushError() error {
	err := http.NewResponseController(w.ResponseWriter).Flush()
	if err == nil {
		w.record(http.StatusOK)
	}
	return err
}

// Hijack makes the recorder a http.Hijacker. It fails if the writer behind it is none.
func (w *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.record(http.StatusSwitchingProtocols)
	}
	return conn, rw, err
}
