package manage

import (
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/survey"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// remove.go removes limiters and what clients left.

// Removed is what a removal has removed.
type Removed struct {
	Any     bool // there was anything
	Clients int  // clients whose state was removed
	Left    []survey.Foreign
}

// Remove removes a limiter, with the state of clients. Keys of another program stay.
func Remove(ctx context.Context, s *connect.Server, name string, clients []string) (Removed, error) {
	var gone Removed
	var err error
	if gone.Any, gone.Left, err = removeState(ctx, s.Limiter(name, ""), false); err != nil {
		return gone, err
	}
	for _, id := range clients {
		there, left, err := removeState(ctx, s.Limiter(name, id), true)
		if err != nil {
			return gone, err
		}
		if there {
			gone.Any = true
			gone.Clients++
		}
		gone.Left = append(gone.Left, left...)
	}
	return gone, nil
}

// removeState removes a limiter, or the own state of its client, and returns whether there was any
// and which keys stay.
func removeState(ctx context.Context, l *connect.Limiter, own bool) (bool, []survey.Foreign, error) {
	found, err := l.Delete(ctx)
	if !survey.IsWrongType(err) {
		return found, nil, err
	}
	left, err := survey.ForeignKeys(ctx, l, own)
	return found, left, err
}

// A Leftover is a client's pair of keys without live grants, or with a key of another program.
type Leftover struct {
	survey.Owner
	Limiter bool // a limiter of the name exists
	Left    []survey.Foreign
}

// Leftovers finds those among keys of states, and removes the ones without live grants unless dry
// is set. A client must have had no live grant for the time idle.
func Leftovers(
	ctx context.Context, s *connect.Server, keys []survey.StateKey, idle time.Duration, dry bool,
) ([]Leftover, error) {
	seen := map[survey.Owner]bool{}
	there := map[string]bool{}
	var gone []Leftover
	for _, key := range keys {
		owner, limiter, err := survey.OwnerOf(ctx, s.Redis, key, there)
		if err != nil {
			return nil, err
		}
		if owner.Client == "" || seen[owner] {
			continue
		}
		seen[owner] = true
		l := s.Limiter(owner.Name, owner.Client)
		what, err := l.Collect(ctx, idle, dry)
		if err != nil {
			if survey.Tolerable(err) {
				continue
			}
			return nil, err
		}
		switch what {
		case protocol.Removed:
			gone = append(gone, Leftover{owner, limiter, nil})
		case protocol.Foreign:
			stays, err := survey.ForeignKeys(ctx, l, true)
			if err != nil {
				return nil, err
			}
			gone = append(gone, Leftover{owner, limiter, stays})
		}
	}
	return gone, nil
}
