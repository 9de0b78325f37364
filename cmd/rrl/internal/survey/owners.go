package survey

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
)

// ForeignKeys returns the keys of a limiter, or of a client of it, that another program uses.
func ForeignKeys(ctx context.Context, l *connect.Limiter, own bool) ([]Foreign, error) {
	view, err := Read(ctx, l, own, 0)
	if err != nil {
		return nil, err
	}
	keys := view.Foreign()
	if own && len(keys) > 0 && keys[0].Key == view.Keys[0].Name {
		keys = keys[1:] // the configuration is not part of a client's state
	}
	return keys, nil
}

// OwnerOf returns the owner of a key: an existing limiter, if there is one, else the limiter whose
// name is wrapped as most names are. It notes in there which names are those of limiters.
func OwnerOf(ctx context.Context, rdb redis.UniversalClient, key StateKey, there map[string]bool) (Owner, bool, error) {
	for _, owner := range key.Owners {
		exists, known := there[owner.Name]
		if !known {
			var err error
			if exists, err = IsLimiter(ctx, rdb, owner.Name); err != nil {
				return owner, false, err
			}
			there[owner.Name] = exists
		}
		if exists {
			return owner, true, nil
		}
	}
	return key.Owners[0], false, nil
}

// IsLimiter reports whether a key is the configuration of a limiter, possibly a broken one.
func IsLimiter(ctx context.Context, rdb redis.UniversalClient, name string) (bool, error) {
	found, err := AreLimiters(ctx, rdb, name)
	return err == nil && found[0], err
}
