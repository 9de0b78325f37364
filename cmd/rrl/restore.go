package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
	"github.com/rratelimiter/rratelimiter/snapshot"
)

// restore.go is the subcommand restore: limiters from a file of rrl snapshot.

func newRestore() *cobra.Command {
	c := &common{}
	var file, as string
	var replace, now, dry bool
	cmd := c.live(&cobra.Command{
		Use:   "restore < FILE",
		Short: "Write limiters back from a file that rrl snapshot made",
		Long: `restore writes limiters from a file, each in one step or not at all. It skips a limiter that exists already; --replace
removes that one first, with the state of all its clients. It also skips a limiter if another program uses one of its
keys. The exit code is 1 if a limiter is not restored.

Grants keep their time, so those of an old file have expired. --now dates them as if the file were written now.`,
		Example: `  rrl restore < limits.msgpack
  rrl restore --file limits.msgpack --as orders-copy --now`,
		Args: noArgs,
	}, func(ctx context.Context, s *session, _ []string) error {
		data, err := input(s.in, file)
		if err != nil {
			return err
		}
		if bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) {
			return errors.New("this is JSON: restore takes what snapshot writes without --json")
		}
		all, err := snapshot.DecodeAll(data)
		if err != nil {
			return err
		}
		if len(all) == 0 {
			return errors.New("the file is empty")
		}
		if as != "" && len(all) > 1 {
			return fmt.Errorf("--as: the file has %d limiters, and must have one", len(all))
		}
		var stay []string
		var used []error
		for _, one := range all {
			var options []snapshot.RestoreOption
			name := one.Name
			if as != "" {
				if name, err = s.named(as); err != nil {
					return err
				}
				options = append(options, snapshot.As(name))
			}
			if replace {
				options = append(options, snapshot.Replace())
			}
			if now {
				options = append(options, snapshot.At(time.Now()))
			}
			if dry {
				err = s.restorable(ctx, name, replace)
			} else {
				err = one.Restore(ctx, s.Redis, options...)
			}
			switch {
			case errors.Is(err, snapshot.ErrExists):
				stay = append(stay, render.Printable(name))
				continue
			case errors.Is(err, snapshot.ErrWrongType):
				used = append(used, err)
				continue
			case err != nil:
				return err
			}
			if s.json {
				err = s.Emit(struct {
					render.JSONName
					TakenAt  time.Time `json:"taken_at"`
					Restored bool      `json:"restored"`
				}{render.NameOf(name), one.TakenAt, !dry})
				if err != nil {
					return err
				}
				continue
			}
			what := "restored"
			if dry {
				what = "to be restored"
			}
			s.Say("%s: %s, taken %s", render.Printable(name), what, one.TakenAt.Format(time.RFC3339))
		}
		var texts []string
		if len(stay) > 0 {
			texts = append(texts, "these exist, and were not restored: "+strings.Join(stay, ", ")+
				"; --replace replaces them, --as restores one under another name")
		}
		for _, err := range used {
			texts = append(texts, err.Error())
		}
		if len(texts) > 0 {
			return errors.New(strings.Join(texts, "; "))
		}
		return nil
	})
	cmd.Flags().StringVarP(&file, "file", "f", "", "`file` to read, in place of the standard input")
	cmd.Flags().StringVar(&as, "as", "", "restore the one limiter in the file under this `name`")
	cmd.Flags().BoolVar(&replace, "replace", false, "replace an existing limiter")
	cmd.Flags().BoolVar(&now, "now", false, "date grants as if the file were written now")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only print what would be restored")
	c.addFlags(cmd)
	return cmd
}

// restorable returns the error that a restore of a limiter would return.
func (s *session) restorable(ctx context.Context, name string, replace bool) error {
	_, err := snapshot.Take(ctx, s.Redis, name)
	switch {
	case errors.Is(err, snapshot.ErrNotFound):
		return nil
	case err == nil && !replace:
		return snapshot.ErrExists
	}
	return err
}
