package main

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
	"github.com/rratelimiter/rratelimiter/snapshot"
)

// snapshot.go is the subcommand snapshot: the whole state of limiters to a file.

func newSnapshot() *cobra.Command {
	c := &common{}
	var file, note string
	var text bool
	cmd := c.live(&cobra.Command{
		Use:   "snapshot NAME... > FILE",
		Short: "Write the whole state of limiters to a file",
		Long: `snapshot writes the keys of limiters, byte for byte, with the state of all clients. Use it to move limiters to another
server, or for a bug report. The file is msgpack, one array for each limiter. The Go package snapshot reads and writes
the same format.`,
		Example: `  rrl snapshot orders search > limits.msgpack
  rrl snapshot orders --text`,
		Args:              someNames,
		ValidArgsFunction: c.completeMore,
	}, func(ctx context.Context, s *session, args []string) error {
		if file != "" && (text || s.json) {
			return errors.New("--output is for a snapshot that can be restored: it excludes --text and --json")
		}
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
			return errors.New("a snapshot is not text: write it to a file with > or --output, or show it with --text")
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
	p := jsonPicture{
		JSONName: render.NameOf(s.Name), Note: s.Note, Server: s.Server, TakenAt: s.TakenAt, OneStep: s.OneStep,
		Fields: [][2]string{},
	}
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
