package main

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/survey"
	"github.com/rratelimiter/rratelimiter/internal/hook"
)

// gc.go is the subcommand gc: what clients of PER_CLIENT limiters leave behind.

func newGc() *cobra.Command {
	c := &common{}
	var idle time.Duration
	var yes bool
	cmd := c.live(&cobra.Command{
		Use:   "gc",
		Short: "Remove what clients that are gone have left of PER_CLIENT limiters",
		Long: `gc removes the two keys of a client that has not been granted anything for an interval and --idle more, or of which no
record is left. They say that all its permits are free, which is what no keys say, too: so nothing is lost, even if the
client comes back, and nobody has to be stopped. Keys of Go clients leave by themselves and are let be; Redisson's stay
for ever.

It goes through all keys by SCAN and holds nobody up. Without --yes it only says what it would remove.`,
		Example: `  rrl gc
  rrl gc --idle 24h --yes`,
		Args: noArgs,
	}, func(ctx context.Context, s *session, _ []string) error {
		if idle < 0 {
			return errors.New("--idle must not be negative")
		}
		return s.gc(ctx, idle, yes)
	})
	cmd.Flags().DurationVar(&idle, "idle", time.Hour, "for how long, after the last grant has expired, a client must not have been granted anything")
	cmd.Flags().BoolVar(&yes, "yes", false, "do it, instead of saying what would be done")
	c.flags(cmd)
	return cmd
}

// jsonCollected is what gc writes of each pair of keys that goes.
type jsonCollected struct {
	jsonName
	Client  string `json:"client"`
	Limiter bool   `json:"limiter"` // false: there is none of the name
	Removed bool   `json:"removed"` // false: would be, in a dry run
}

func (s *session) gc(ctx context.Context, idle time.Duration, yes bool) error {
	gone, err := s.leftovers(ctx, idle, !yes)
	if err != nil {
		return err
	}
	for _, one := range gone {
		switch {
		case s.json:
			if err := s.emit(jsonCollected{nameOf(one.Name), one.Client, one.limiter, yes}); err != nil {
				return err
			}
		case one.limiter:
			s.say("%s of %s", printable(one.Name), printable(one.Client))
		default:
			s.say("%s of %s, without a limiter", printable(one.Name), printable(one.Client))
		}
	}
	if s.json {
		return nil
	}
	switch {
	case len(gone) == 0:
		s.say("nothing to remove")
	case yes:
		s.say("Removed the state of %s.", number(int64(len(gone)), "client"))
	default:
		s.say("The state of %s can go. Nothing was changed. --yes does it.", number(int64(len(gone)), "client"))
	}
	return nil
}

// A leftover is a client's pair of keys that says nothing.
type leftover struct {
	survey.Owner
	limiter bool // there is one of the name
}

// leftovers finds them, and removes them unless it is dry.
func (s *session) leftovers(ctx context.Context, idle time.Duration, dry bool) ([]leftover, error) {
	p := s.progress(ctx)
	keys, err := survey.StateKeys(ctx, s.rdb, p.step)
	p.done()
	if err != nil {
		return nil, err
	}
	seen := map[survey.Owner]bool{}
	there := map[string]bool{}
	var gone []leftover
	for _, key := range keys {
		owner, limiter, err := s.ownerOf(ctx, key, there)
		if err != nil {
			return nil, err
		}
		if owner.Client == "" || seen[owner] {
			continue
		}
		seen[owner] = true
		what, err := hook.Collect(ctx, s.limiter(owner.Name, owner.Client), idle, dry)
		if err != nil {
			if tolerable(err) {
				continue
			}
			return nil, err
		}
		if what == hook.Removed {
			gone = append(gone, leftover{owner, limiter})
		}
	}
	return gone, nil
}

// ownerOf decides whose a key is: a limiter's that is there, if there is one, else the one whose name is wrapped as names
// mostly are.
func (s *session) ownerOf(ctx context.Context, key survey.StateKey, there map[string]bool) (survey.Owner, bool, error) {
	for _, owner := range key.Owners {
		exists, known := there[owner.Name]
		if !known {
			var err error
			if exists, err = s.isLimiter(ctx, owner.Name); err != nil {
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

// isLimiter tells whether a key is the configuration of a limiter, be it a broken one: a hash of which at most one of the
// fields that make a rate is missing.
func (s *session) isLimiter(ctx context.Context, name string) (bool, error) {
	fields, err := s.rdb.HMGet(ctx, name, "rate", "interval", "type").Result()
	if redis.HasErrorPrefix(err, "WRONGTYPE") {
		return false, nil
	}
	found := 0
	for _, field := range fields {
		if field != nil {
			found++
		}
	}
	return found >= 2, err
}
