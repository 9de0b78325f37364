package survey

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
)

// glance.go reads limiters for a list: quickly, and many at a time.

// A Glance is what a list shows of a limiter, or of one client of it.
type Glance struct {
	Name, Client string // Client is "" where all share the state, or none is asked for
	Fault        string // why it can't be used or read
	Known        bool   // Rate and TTL are known, which some faults prevent
	Rate         rratelimiter.Rate
	TTL          time.Duration       // 0: none
	State        *rratelimiter.State // nil after a fault, and of a PER_CLIENT limiter without a client
	Exact        bool                // false: it has too many records to read them all for a list
}

// Glances reads one limiter, or each of its requested clients: client is "", an id, or Everyone for
// those of clients. The result is empty if the limiter was removed meanwhile.
func Glances(ctx context.Context, s *connect.Server, name, client string, clients []string) ([]Glance, error) {
	shared := s.Limiter(name, "")
	state, exact, err := shared.Glance(ctx)
	g := Glance{Name: name, Exact: true}
	if err != nil {
		if !Tolerable(err) {
			return nil, err
		}
		g.Fault = reasonOf(err)
		if there, err := shared.Exists(ctx); err == nil && !there {
			return nil, nil
		}
		if g.Rate, err = shared.Config(ctx); err == nil {
			g.Known = true
			g.TTL, _ = shared.TTL(ctx) // none, if it has just gone
		}
		return []Glance{g}, nil
	}
	g.Known, g.Rate, g.TTL = true, state.Rate, state.TTL
	if state.Rate.Type != rratelimiter.PerClient {
		g.State, g.Exact = &state, exact
		return []Glance{g}, nil
	}
	switch client {
	case "":
		return []Glance{g}, nil
	case Everyone:
	default:
		clients = []string{client}
	}
	var all []Glance
	for _, id := range clients {
		state, exact, err := s.Limiter(name, id).Glance(ctx)
		one := g
		one.Client = id
		switch {
		case err == nil:
			one.State, one.Exact = &state, exact
		case Tolerable(err):
			one.Fault = reasonOf(err)
		default:
			return nil, err
		}
		all = append(all, one)
	}
	if len(all) == 0 {
		return []Glance{g}, nil
	}
	return all, nil
}

// reasonOf returns why a limiter can't be used.
func reasonOf(err error) string {
	switch {
	case errors.Is(err, rratelimiter.ErrNotInitialized):
		return Reason(err)
	case IsWrongType(err):
		return "another program uses a key of it (WRONGTYPE)"
	}
	return render.Visible(connect.Cause(err).Error())
}

// Everyone is the value of --client for all clients.
const Everyone = "all"

// Each calls do for every name, at most 16 at a time, and returns the results in order.
func Each[T any](ctx context.Context, names []string, do func(context.Context, string) (T, error)) ([]T, error) {
	found := make([]T, len(names))
	whole := ctx
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var group sync.WaitGroup
	for first := range lookers {
		group.Go(func() {
			for i := first; i < len(names) && ctx.Err() == nil; i += lookers {
				one, err := do(ctx, names[i])
				if err != nil {
					stop(err)
				}
				found[i] = one
			}
		})
	}
	group.Wait()
	if ctx.Err() != nil {
		return nil, cmp.Or(whole.Err(), context.Cause(ctx))
	}
	return found, nil
}

// lookers is the number of names in work at a time.
const lookers = 16
