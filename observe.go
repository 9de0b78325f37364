package rratelimiter

import (
	"context"
	"time"
)

// observe.go is what observers can be, beside the Observer that sees calls: several at once, and ones that see each request
// or the client itself.

// A RequestObserver is an [Observer] that sees each request, too, once, when it has its answer or ends without one: what is
// true of one caller, such as its time in line and its context, where a call is of many. A caller whose context ends before
// a call lands is no part of that call's [FlightInfo], but seen here. It is called by the callers themselves, many at once.
type RequestObserver interface {
	Observer
	Request(ctx context.Context, info RequestInfo)
}

// RequestInfo describes one request: a call of one of a limiter's methods that ask for permits. AllowAll is a request to each
// of its limiters: by "AllowAll" where they are asked in one step, else by "Allow". In one step, Granted is 0 and Err
// nil for one that would have allowed, too, where another refuses; FlightInfo.Denied is of those that refuse.
type RequestInfo struct {
	Limiter string        // name
	Method  string        // "Acquire", "TryAcquireTimeout", "TryAcquire", "Allow", "AcquireUpTo" or "AllowAll"
	Waits   bool          // the method waits for permits
	Permits int64         // asked for
	Granted int64         // of them
	Latency time.Duration // from asking to the answer
	Err     error         // as the caller has it; nil mostly
}

// A watcher is an observer that wants to know the clients it is an observer of.
type watcher interface{ Watch(*Client) }

// observed tells the observer, if there is one, whom it sees.
func (c *Client) observed() {
	c.requestObserver, _ = c.observer.(RequestObserver)
	if w, ok := c.observer.(watcher); ok {
		w.Watch(c)
	}
}

// Observers makes one observer of several, which are told in order. Those that are nil are left out.
func Observers(all ...Observer) Observer {
	var some observers
	requests := false
	for _, o := range all {
		if o != nil {
			some = append(some, o)
			_, ok := o.(RequestObserver)
			requests = requests || ok
		}
	}
	switch {
	case len(some) == 0:
		return nil
	case len(some) == 1:
		return some[0]
	case requests:
		return requestObservers{some}
	}
	return some
}

type observers []Observer

func (all observers) Flight(info FlightInfo) {
	for _, o := range all {
		o.Flight(info)
	}
}

func (all observers) Watch(c *Client) {
	for _, o := range all {
		if w, ok := o.(watcher); ok {
			w.Watch(c)
		}
	}
}

type requestObservers struct{ observers }

func (all requestObservers) Request(ctx context.Context, info RequestInfo) {
	for _, o := range all.observers {
		if o, ok := o.(RequestObserver); ok {
			o.Request(ctx, info)
		}
	}
}

// Waiting tells how many callers are blocked now, by the names of their limiters.
func (c *Client) Waiting() map[string]int {
	waiting := map[string]int{}
	for _, ln := range c.lines.list(func(*Limiter) bool { return true }) {
		ln.mu.Lock()
		if ln.waiting > 0 {
			waiting[ln.limiter.name] += ln.waiting
		}
		ln.mu.Unlock()
	}
	return waiting
}

// request is the one way by which whole requests are made.
func (l *Limiter) request(ctx context.Context, operation string, a ask) (Result, error) {
	if l.client.requestObserver == nil {
		return l.serve(ctx, operation, a)
	}
	started := time.Now()
	result, err := l.serve(ctx, operation, a)
	info := RequestInfo{
		Limiter: l.name, Method: a.method(), Waits: a.waits, Permits: a.n, Latency: time.Since(started), Err: err,
	}
	if result.Allowed {
		info.Granted = a.n
	}
	l.client.tell(ctx, info)
	return result, err
}

// tell tells the observer, if it wants to know, of a request.
func (c *Client) tell(ctx context.Context, info RequestInfo) {
	if c.requestObserver != nil {
		c.requestObserver.Request(ctx, info)
	}
}

// method names the method of a limiter that asks so.
func (a ask) method() string {
	switch {
	case a.waits && a.until.IsZero():
		return "Acquire"
	case a.waits:
		return "TryAcquireTimeout"
	case a.detail:
		return "Allow"
	}
	return "TryAcquire"
}
