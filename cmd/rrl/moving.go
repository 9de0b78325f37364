package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
	"github.com/rratelimiter/rratelimiter/snapshot"
)

// moving.go has the subcommands snapshot and restore: the whole state of limiters to a file, and back.

func newSnapshot() *cobra.Command {
	c := &common{}
	var file, note string
	var text bool
	cmd := c.live(&cobra.Command{
		Use:   "snapshot NAME... > FILE",
		Short: "Write the whole state of limiters to a file",
		Long: `snapshot writes the keys of limiters, byte for byte, with the state of all clients: to move them to another server, or
for a bug report. The file is msgpack, one array for each limiter; package snapshot reads and writes it, too.`,
		Example: `  rrl snapshot orders search > limits.msgpack
  rrl snapshot orders --text`,
		Args:              someNames,
		ValidArgsFunction: c.completeMore,
	}, func(ctx context.Context, s *session, args []string) error {
		var data []byte
		for _, arg := range args {
			name, err := s.named(arg)
			if err != nil {
				return err
			}
			taken, err := snapshot.Take(ctx, s.Redis, name, snapshot.WithNote(note))
			if err != nil {
				return err
			}
			if text && !s.json {
				s.Print(taken.String())
				continue
			}
			if s.json {
				if err := s.Emit(pictureOf(taken)); err != nil {
					return err
				}
				continue
			}
			bytes, err := taken.Encode()
			if err != nil {
				return err
			}
			data = append(data, bytes...)
		}
		switch {
		case text || s.json:
			return nil
		case file != "":
			return os.WriteFile(file, data, 0o600)
		case terminal(s.Out):
			return errors.New("this is no text: send it to a file with > or --output, or show it with --text")
		}
		_, err := s.Out.Write(data)
		return err
	})
	cmd.Flags().StringVarP(&file, "output", "o", "", "`file` to write, in place of the standard output")
	cmd.Flags().StringVar(&note, "note", "", "a `text` to store in it, such as its origin")
	cmd.Flags().BoolVar(&text, "text", false, "text for people instead of msgpack; can't be restored")
	c.addFlags(cmd)
	return cmd
}

func newRestore() *cobra.Command {
	c := &common{}
	var file, as string
	var replace, now, dry bool
	cmd := c.live(&cobra.Command{
		Use:   "restore < FILE",
		Short: "Write limiters back from a file that rrl snapshot made",
		Long: `restore writes limiters from a file, each in one step or not at all. A limiter that exists already stays, and the others
are restored; --replace removes it first, with the state of all its clients. If another program uses a key of a limiter,
that limiter is never restored. Grants keep their time, so those of an old file have expired; --now dates them as if the
file were written now. Exit code 1 if one is not restored.`,
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
			return errors.New("there is nothing in the file")
		}
		if as != "" && len(all) > 1 {
			return fmt.Errorf("--as: there are %d limiters in the file", len(all))
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
			texts = append(texts, "there already, and left as they are: "+strings.Join(stay, ", ")+
				"; --replace removes them, --as restores one under another name")
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

// input reads a file; "" and "-" are the standard input, which must not be a terminal.
func input(in io.Reader, file string) ([]byte, error) {
	if file != "" && file != "-" {
		return os.ReadFile(file)
	}
	if terminal(in) {
		return nil, errors.New("there is nothing to read: give a file by < or --file")
	}
	return io.ReadAll(in)
}

// jsonPicture is a snapshot for programs.
type jsonPicture struct {
	render.JSONName
	Note    string      `json:"note,omitempty"`
	Server  string      `json:"server,omitempty"`
	TakenAt time.Time   `json:"taken_at"`
	OneStep bool        `json:"one_step"`
	Fields  [][2]string `json:"fields"` // of the configuration
	TTLMs   int64       `json:"ttl_ms"`
	States  []jsonState `json:"states"` // the shared one first
}

type jsonState struct {
	Client  string       `json:"client,omitempty"`
	Value   *string      `json:"value"`
	Records []jsonRecord `json:"records"`
}

type jsonRecord struct {
	Member []byte  `json:"member"` // base64
	Score  float64 `json:"score"`  // ms since the epoch
}

func pictureOf(s *snapshot.Snapshot) jsonPicture {
	p := jsonPicture{JSONName: render.NameOf(s.Name), Note: s.Note, Server: s.Server, TakenAt: s.TakenAt, OneStep: s.OneStep, Fields: [][2]string{}}
	if s.Config != nil {
		p.TTLMs = s.Config.TTL.Milliseconds()
		for _, f := range s.Config.Fields {
			p.Fields = append(p.Fields, [2]string{f.Name, f.Value})
		}
	}
	for _, state := range append([]snapshot.ClientState{{State: s.Shared}}, s.Clients...) {
		j := jsonState{Client: state.ID, Records: []jsonRecord{}}
		if state.Value != nil {
			j.Value = &state.Value.Text
		}
		if state.Permits != nil {
			for _, r := range state.Permits.Records {
				score := min(max(r.Score, -1e300), 1e300) // JSON has no infinity
				j.Records = append(j.Records, jsonRecord{r.Member, score})
			}
		}
		p.States = append(p.States, j)
	}
	return p
}
