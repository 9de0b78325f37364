package rig

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// EveryWay returns the methods that acquire n permits of a limiter, by name.
func EveryWay(l *rratelimiter.Limiter) map[string]func(ctx context.Context, n int64) error {
	return map[string]func(ctx context.Context, n int64) error{
		"Allow":      func(ctx context.Context, n int64) error { _, err := l.Allow(ctx, n); return err },
		"TryAcquire": func(ctx context.Context, n int64) error { _, err := l.TryAcquire(ctx, n); return err },
		"TryAcquireTimeout": func(ctx context.Context, n int64) error {
			_, err := l.TryAcquireTimeout(ctx, n, time.Minute)
			return err
		},
		"Acquire":    l.Acquire,
		"AcquireAll": func(ctx context.Context, n int64) error { return l.Client().AcquireAll(ctx, n, l) },
	}
}

// A Kind is how methods end. The names are those of docs/endings.md.
type Kind string

// The kinds.
const (
	AsksOnce  Kind = "ask once"
	WaitsFor  Kind = "wait for a timeout"
	Waits     Kind = "wait"
	TakesUpTo Kind = "up to n"
	Peeks     Kind = "peek"
	Charges   Kind = "charge"
	GivesBack Kind = "give back"
	Reads     Kind = "read"
	Sets      Kind = "set"     // has the same effect if it is repeated
	Changes   Kind = "change"  // has not
	Knows     Kind = "no call" // cannot fail
)

// A Method is one public method, as the tests of all methods call it.
type Method struct {
	Name    string // of the method; behind a comma, an option
	Kind    Kind
	Several bool // it asks several limiters
	Each    bool // it takes a number of permits for each
	Results bool // it returns a Result for each
	Grants  bool // it needs a Grant of each limiter
	Call    func(context.Context, Args) Answer
}

// Args are the arguments of a Method.
type Args struct {
	Client   *rratelimiter.Client
	Limiters []*rratelimiter.Limiter // the methods of a limiter are those of the first
	Permits  []int64                 // of each limiter; the first one if the method takes one number
	Timeout  time.Duration
	Grants   []*rratelimiter.Grant
}

// An Answer is what a Method returned.
type Answer struct {
	Allowed bool // the permits were granted, if the method acquires
	Results []rratelimiter.Result
	Grants  []*rratelimiter.Grant
	Taken   []int64 // permits of each limiter that the caller has now, if any; negative: given back
	Err     error
}

func (a Args) limiter() *rratelimiter.Limiter { return a.Limiters[0] }

func (a Args) n() int64 {
	if len(a.Permits) == 0 {
		return 1
	}
	return a.Permits[0]
}

// granted is the answer of a method that took all permits or none.
func (a Args) granted(allowed bool, err error) Answer {
	answer := Answer{Allowed: allowed, Err: err}
	var partly *rratelimiter.PartlyTakenError
	switch {
	case allowed:
		answer.Taken = a.Permits
	case errors.As(err, &partly):
		answer.Taken = []int64{partly.Taken}
	}
	return answer
}

// decided is granted for a method with results.
func (a Args) decided(err error, results ...rratelimiter.Result) Answer {
	allowed := err == nil
	for _, r := range results {
		allowed = allowed && r.Allowed
	}
	answer := a.granted(allowed, err)
	answer.Results = results
	return answer
}

// charged is the answer of a method that charges: all permits, or none with an error.
func (a Args) charged(err error, results ...rratelimiter.Result) Answer {
	if err != nil {
		return Answer{Err: err}
	}
	return Answer{Allowed: len(a.Permits) == 0 || a.n() > 0, Taken: a.Permits, Results: results}
}

// used returns what was used of a grant: as many permits more than it has as a method is called
// with.
func (a Args) used(i int) int64 {
	if a.Permits[i] < 0 {
		return a.Permits[i]
	}
	return a.Grants[i].Permits() + a.Permits[i]
}

// takesNothing returns a method of a limiter that takes no permits.
func takesNothing[T any](name string, kind Kind, call func(*rratelimiter.Limiter, context.Context) (T, error)) Method {
	return Method{Name: name, Kind: kind, Call: func(ctx context.Context, a Args) Answer {
		_, err := call(a.limiter(), ctx)
		return Answer{Err: err}
	}}
}

// Methods are all methods that make a call, or answer from the state of the process. A test
// compares them with the method sets.
var Methods = []Method{
	{Name: "Allow", Kind: AsksOnce, Results: true, Call: func(ctx context.Context, a Args) Answer {
		r, err := a.limiter().Allow(ctx, a.n())
		if err != nil {
			return a.decided(err)
		}
		return a.decided(nil, r)
	}},
	{Name: "Take", Kind: AsksOnce, Results: true, Call: func(ctx context.Context, a Args) Answer {
		g, r, err := a.limiter().Take(ctx, a.n())
		answer := a.decided(err, r)
		if err != nil {
			answer.Results = nil
		}
		if g != nil {
			answer.Grants = []*rratelimiter.Grant{g}
		}
		return answer
	}},
	{Name: "TryAcquire", Kind: AsksOnce, Call: func(ctx context.Context, a Args) Answer {
		return a.granted(a.limiter().TryAcquire(ctx, a.n()))
	}},
	{Name: "AllowAll", Kind: AsksOnce, Several: true, Results: true, Call: func(ctx context.Context, a Args) Answer {
		results, err := a.Client.AllowAll(ctx, a.n(), a.Limiters...)
		return a.decided(err, results...)
	}},
	{Name: "AllowAllN", Kind: AsksOnce, Several: true, Each: true, Results: true, Call: func(
		ctx context.Context, a Args,
	) Answer {
		results, err := a.Client.AllowAllN(ctx, a.Permits, a.Limiters...)
		return a.decided(err, results...)
	}},
	{Name: "TakeAll", Kind: AsksOnce, Several: true, Each: true, Results: true, Call: func(
		ctx context.Context, a Args,
	) Answer {
		grants, results, err := a.Client.TakeAll(ctx, a.Permits, a.Limiters...)
		answer := a.decided(err, results...)
		answer.Grants = grants
		return answer
	}},
	{Name: "TryAcquireTimeout", Kind: WaitsFor, Call: func(ctx context.Context, a Args) Answer {
		return a.granted(a.limiter().TryAcquireTimeout(ctx, a.n(), a.Timeout))
	}},
	{Name: "TryAcquireAllTimeout", Kind: WaitsFor, Several: true, Call: func(ctx context.Context, a Args) Answer {
		return a.granted(a.Client.TryAcquireAllTimeout(ctx, a.n(), a.Timeout, a.Limiters...))
	}},
	{Name: "Acquire", Kind: Waits, Call: func(ctx context.Context, a Args) Answer {
		err := a.limiter().Acquire(ctx, a.n())
		return a.granted(err == nil, err)
	}},
	{Name: "AcquireAll", Kind: Waits, Several: true, Call: func(ctx context.Context, a Args) Answer {
		err := a.Client.AcquireAll(ctx, a.n(), a.Limiters...)
		return a.granted(err == nil, err)
	}},
	{Name: "AcquireAllN", Kind: Waits, Several: true, Each: true, Call: func(ctx context.Context, a Args) Answer {
		err := a.Client.AcquireAllN(ctx, a.Permits, a.Limiters...)
		return a.granted(err == nil, err)
	}},
	{Name: "AcquireUpTo", Kind: TakesUpTo, Call: func(ctx context.Context, a Args) Answer {
		n, err := a.limiter().AcquireUpTo(ctx, a.n())
		return Answer{Allowed: n > 0, Taken: []int64{n}, Err: err}
	}},
	{Name: "TakeUpTo", Kind: TakesUpTo, Call: func(ctx context.Context, a Args) Answer {
		g, err := a.limiter().TakeUpTo(ctx, a.n())
		if g == nil {
			return Answer{Err: err}
		}
		return Answer{Allowed: true, Taken: []int64{g.Permits()}, Grants: []*rratelimiter.Grant{g}, Err: err}
	}},
	{Name: "Peek", Kind: Peeks, Results: true, Call: func(ctx context.Context, a Args) Answer {
		r, err := a.limiter().Peek(ctx, a.n())
		if err != nil {
			return Answer{Err: err}
		}
		return Answer{Allowed: r.Allowed, Results: []rratelimiter.Result{r}}
	}},
	{Name: "Charge", Kind: Charges, Results: true, Call: func(ctx context.Context, a Args) Answer {
		r, err := a.limiter().Charge(ctx, a.n())
		return a.charged(err, r)
	}},
	{Name: "ChargeAll", Kind: Charges, Several: true, Each: true, Results: true, Call: func(
		ctx context.Context, a Args,
	) Answer {
		results, err := a.Client.ChargeAll(ctx, a.Permits, a.Limiters...)
		return a.charged(err, results...)
	}},
	{Name: "Grant.Settle", Kind: Charges, Grants: true, Call: func(ctx context.Context, a Args) Answer {
		return a.charged(a.Grants[0].Settle(ctx, a.used(0)))
	}},
	{Name: "GrantAll.Settle", Kind: Charges, Several: true, Each: true, Grants: true, Call: func(
		ctx context.Context, a Args,
	) Answer {
		used := make([]int64, len(a.Permits))
		for i := range used {
			used[i] = a.used(i)
		}
		return a.charged(rratelimiter.GrantAll(a.Grants).Settle(ctx, used))
	}},
	{Name: "Release", Kind: GivesBack, Call: func(ctx context.Context, a Args) Answer {
		n, err := a.limiter().Release(ctx, a.n())
		return Answer{Taken: []int64{-n}, Err: err}
	}},
	{Name: "Grant.Return", Kind: GivesBack, Grants: true, Call: func(ctx context.Context, a Args) Answer {
		n, err := a.Grants[0].Return(ctx, a.n())
		return Answer{Taken: []int64{-n}, Err: err}
	}},
	{Name: "GrantAll.Return", Kind: GivesBack, Several: true, Grants: true, Call: func(
		ctx context.Context, a Args,
	) Answer {
		before := make([]int64, len(a.Grants))
		for i, g := range a.Grants {
			before[i] = g.Permits()
		}
		n, err := rratelimiter.GrantAll(a.Grants).Return(ctx)
		taken := make([]int64, len(a.Grants))
		for i, g := range a.Grants {
			taken[i] = max(g.Permits()-before[i], -n) // if the outcome is unknown, n is fewer than all of these
			n += taken[i]
		}
		return Answer{Taken: taken, Err: err}
	}},
	takesNothing("AvailablePermits", Reads, (*rratelimiter.Limiter).AvailablePermits),
	takesNothing("State", Reads, (*rratelimiter.Limiter).State),
	takesNothing("Glance", Reads, func(l *rratelimiter.Limiter, ctx context.Context) (rratelimiter.State, error) {
		s, _, err := l.Glance(ctx)
		return s, err
	}),
	takesNothing("Repair", Reads, func(l *rratelimiter.Limiter, ctx context.Context) (rratelimiter.Repaired, error) {
		return l.Repair(ctx)
	}),
	takesNothing("Clients", Reads, (*rratelimiter.Limiter).Clients),
	takesNothing("Config", Reads, (*rratelimiter.Limiter).Config),
	takesNothing("Exists", Reads, (*rratelimiter.Limiter).Exists),
	takesNothing("TTL", Reads, (*rratelimiter.Limiter).TTL),
	takesNothing("SetRate", Sets, func(l *rratelimiter.Limiter, ctx context.Context) (bool, error) {
		return true, l.SetRate(ctx, newRate)
	}),
	takesNothing("SetRate, KeepState", Sets, func(l *rratelimiter.Limiter, ctx context.Context) (bool, error) {
		return true, l.SetRate(ctx, newRate, rratelimiter.KeepState())
	}),
	takesNothing("UpdateRate", Sets, func(l *rratelimiter.Limiter, ctx context.Context) (bool, error) {
		return l.UpdateRate(ctx, newRate)
	}),
	takesNothing("Expire", Sets, func(l *rratelimiter.Limiter, ctx context.Context) (bool, error) {
		return l.Expire(ctx, time.Hour)
	}),
	takesNothing("ExpireAt", Sets, func(l *rratelimiter.Limiter, ctx context.Context) (bool, error) {
		return l.ExpireAt(ctx, time.Now().Add(time.Hour))
	}),
	takesNothing("TrySetRate", Changes, func(l *rratelimiter.Limiter, ctx context.Context) (bool, error) {
		return l.TrySetRate(ctx, newRate)
	}),
	takesNothing("ClearExpire", Changes, (*rratelimiter.Limiter).ClearExpire),
	takesNothing("Reset", Changes, func(l *rratelimiter.Limiter, ctx context.Context) (rratelimiter.Repaired, error) {
		return l.Reset(ctx)
	}),
	takesNothing("Delete", Changes, (*rratelimiter.Limiter).Delete),
	takesNothing("Rename", Changes, func(l *rratelimiter.Limiter, ctx context.Context) (bool, error) {
		return true, l.Rename(ctx, "{other}")
	}),
	takesNothing("RenameNX", Changes, func(l *rratelimiter.Limiter, ctx context.Context) (bool, error) {
		return l.RenameNX(ctx, "{other}")
	}),
	{Name: "Health", Kind: Knows, Call: func(_ context.Context, a Args) Answer {
		a.limiter().Health()
		return Answer{}
	}},
	{Name: "Redis", Kind: Knows, Call: func(_ context.Context, a Args) Answer {
		a.Client.Redis()
		return Answer{}
	}},
	{Name: "KeyOf", Kind: Knows, Call: func(_ context.Context, a Args) Answer {
		a.Client.KeyOf("name")
		return Answer{}
	}},
	{Name: "Waiting", Kind: Knows, Call: func(_ context.Context, a Args) Answer {
		a.Client.Waiting()
		return Answer{}
	}},
}

// newRate is the rate that methods set.
var newRate = rratelimiter.PerMinute(10)

// EveryMethod returns all methods of a limiter that can fail, by name, and those of its client that
// acquire from it. Those that wait do so for 1 ms, or for as long as it takes.
func EveryMethod(c *rratelimiter.Client, l *rratelimiter.Limiter) map[string]func(context.Context) error {
	a := Args{Client: c, Limiters: []*rratelimiter.Limiter{l}, Permits: []int64{1}, Timeout: time.Millisecond}
	every := map[string]func(context.Context) error{}
	for _, m := range Methods {
		if m.Kind != Knows && !m.Grants {
			every[m.Name] = func(ctx context.Context) error { return m.Call(ctx, a).Err }
		}
	}
	return every
}

// NoCommands returns a hook that fails the test if a command is sent.
func NoCommands(t *testing.T) redis.Hook {
	return redistest.Hook{
		Command: func(_ context.Context, cmd redis.Cmder, _ redis.ProcessHook) error {
			t.Errorf("%v was sent", cmd.Args()[:2])
			return io.ErrUnexpectedEOF
		},
		Pipeline: func(_ context.Context, cmds []redis.Cmder, _ redis.ProcessPipelineHook) error {
			t.Errorf("%d commands were sent", len(cmds))
			return io.ErrUnexpectedEOF
		},
	}
}

// RefusingClient returns a redis client that fails the test if a command is sent.
func RefusingClient(t *testing.T) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: "192.0.2.1:1"})
	t.Cleanup(func() { rdb.Close() })
	rdb.AddHook(NoCommands(t))
	return rdb
}
