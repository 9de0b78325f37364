package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/survey"
)

// ls.go is the subcommand ls: all limiters of a server.

func newLs() *cobra.Command {
	c := &common{whose: true}
	cmd := c.live(&cobra.Command{
		Use:     "ls [PATTERN]",
		Aliases: []string{"list"},
		Short:   "List limiters with their free and used permits",
		Long: `ls lists the limiters whose name matches PATTERN (as in Redis: * ? [a-z]), or all. It searches all keys by SCAN, on all
masters of a cluster. That does not block Redis, but takes a while if there are millions of keys.

If a limiter has more than 2,000 live or more than 2,000 expired records, ls does not read them all. Its figures then
have a ~: ls computes them from the stored number of free permits, so they are wrong if that number is wrong. In a
PER_CLIENT limiter each client has its own permits: --client ID shows those of one client, --client all has a line for
each client.

A hash that has the fields of a limiter and others may belong to another program: ls names the others.

On a terminal, names that are too long for its width are cut in the middle, and a narrow terminal gets fewer columns. A
pipe and --json get whole names and all columns.`,
		Example: `  rrl ls
  rrl ls 'api:*' --json | jq -r 'select(.available == 0) | .name'`,
		Args:              onePattern,
		ValidArgsFunction: c.complete,
	}, func(ctx context.Context, s *session, args []string) error {
		pattern, err := s.pattern(args)
		if err != nil {
			return err
		}
		return s.ls(ctx, pattern)
	})
	c.addFlags(cmd)
	return cmd
}

// onePattern accepts a pattern or no argument.
func onePattern(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return fmt.Errorf(
			"%s takes one pattern, in quotes, so that the shell leaves it alone: %s 'api:*'", cmd.CommandPath(),
			cmd.CommandPath(),
		)
	}
	return nil
}

// pattern returns the pattern of the arguments; * without one.
func (s *session) pattern(args []string) (string, error) {
	if len(args) == 0 {
		return "*", nil
	}
	return s.named(args[0])
}

// jsonRow is the output of ls for a limiter.
type jsonRow struct {
	render.JSONName
	*render.JSONRate
	Client string `json:"client,omitempty"`
	Fault  string `json:"fault,omitempty"` // why it can't be used or read
	// none for a PER_CLIENT limiter without --client
	Available   *int64     `json:"available,omitempty"`
	Used        *int64     `json:"used,omitempty"`
	LiveRecords *int       `json:"live_records,omitempty"`
	Oldest      *time.Time `json:"oldest,omitempty"` // of live records
	Newest      *time.Time `json:"newest,omitempty"`
	TTLMs       int64      `json:"ttl_ms"` // 0: no TTL
	Consistent  *bool      `json:"consistent,omitempty"`
	Exact       bool       `json:"exact"` // false: too many records to read for a list
	// fields that no limiter has: the hash may belong to another program
	OtherFields []string `json:"other_fields,omitempty"`
}

func (s *session) ls(ctx context.Context, pattern string) error {
	p := s.progress(ctx)
	names, err := survey.Limiters(ctx, s.Redis, pattern, p.step)
	var clients map[string][]string
	if err == nil && s.client == survey.Everyone {
		var keys []survey.StateKey
		if keys, err = survey.StateKeys(ctx, s.Redis, p.step); err == nil {
			clients = survey.Clients(keys)
		}
	}
	p.done()
	if err != nil {
		return err
	}
	found, err := survey.Each(ctx, names, func(ctx context.Context, name string) ([]survey.Glance, error) {
		return survey.Glances(ctx, s.Server, name, s.client, clients[name])
	})
	if err != nil {
		return err
	}
	others, err := survey.OtherFields(ctx, s.Redis, names...)
	if err != nil {
		return err
	}
	fields := map[string][]string{} // of other programs, by the name of the limiter
	for i, name := range names {
		fields[name] = others[i]
	}
	all := slices.Concat(found...)
	if s.json {
		for _, g := range all {
			row := rowOf(g)
			row.OtherFields = fields[g.Name]
			if err := s.Emit(row); err != nil {
				return err
			}
		}
		return nil
	}
	if len(all) == 0 {
		s.Say("no limiters")
		return nil
	}
	s.list(all, fields)
	return nil
}

// rowOf returns a limiter for --json.
func rowOf(g survey.Glance) jsonRow {
	row := jsonRow{
		JSONName: render.NameOf(g.Name), Client: g.Client, Fault: g.Fault, TTLMs: g.TTL.Milliseconds(), Exact: g.Exact,
	}
	if g.Known {
		rate := render.RateOf(g.Rate)
		row.JSONRate = &rate
	}
	if g.State == nil {
		return row
	}
	row.Available, row.Used, row.LiveRecords = &g.State.Available, &g.State.Used, &g.State.Records
	row.Consistent = &g.State.Consistent
	if g.State.Records > 0 {
		oldest, newest := g.State.Oldest.UTC(), g.State.Newest.UTC()
		row.Oldest, row.Newest = &oldest, &newest
	}
	return row
}

// list writes limiters for people. others has the fields of other programs, by the names of the
// limiters.
func (s *session) list(all []survey.Glance, others map[string][]string) {
	head := []string{"NAME", "RATE", "TYPE", "FREE", "IN USE", "RECORDS", "TTL", ""}
	t := render.Table{Right: map[int]bool{3: true, 4: true, 5: true}, Drop: []int{5, 6, 2}, Rows: [][]string{head}}
	for _, g := range all {
		name := render.Printable(g.Name)
		if g.Client != "" {
			name += " of " + render.Printable(g.Client)
		}
		if !g.Known {
			cells := []string{name, "?", "", "", "", "", "", s.Paint(render.Bad, g.Fault)}
			t.Rows = append(t.Rows, s.withOthers(cells, others[g.Name]))
			continue
		}
		rate := strings.Replace(g.Rate.String(), " per client", "", 1)
		cells := []string{name, rate, g.Rate.Type.String(), "", "", "", render.Lasting(g.TTL), ""}
		switch {
		case g.State == nil && s.client == "":
			cells[7] = s.Paint(render.Dim, "by client: rrl ls --client all")
		case g.State == nil:
			cells[7] = s.Paint(render.Dim, "no client has used it lately")
		default:
			about := ""
			if !g.Exact {
				about = "~"
			}
			cells[3], cells[4] = about+render.Thousands(g.State.Available), about+render.Thousands(g.State.Used)
			cells[5] = render.Thousands(int64(g.State.Records))
			if g.State.Available == 0 {
				cells[3] = s.Paint(render.Warm, cells[3])
			}
			if !g.State.Consistent {
				cells[7] = s.Paint(render.Bad, "does not add up: rrl show")
			}
		}
		if g.Fault != "" {
			cells[7] = s.Paint(render.Bad, g.Fault)
		}
		t.Rows = append(t.Rows, s.withOthers(cells, others[g.Name]))
	}
	t.Write(s.Output)
}

// withOthers adds fields of another program to the last cell of a row.
func (s *session) withOthers(cells, fields []string) []string {
	if len(fields) == 0 {
		return cells
	}
	last := &cells[len(cells)-1]
	if *last != "" {
		*last += "; "
	}
	*last += s.Paint(render.Warm, "also has "+fieldsText(fields))
	return cells
}

// fieldsText returns the names of fields of another program, but not of more than ten.
func fieldsText(fields []string) string {
	var names []string
	for _, field := range fields[:min(10, len(fields))] {
		names = append(names, render.Printable(field))
	}
	text := "fields of another program: " + strings.Join(names, ", ")
	if more := len(fields) - len(names); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
