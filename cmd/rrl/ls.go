package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
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
		Long: `ls lists the limiters whose name matches a pattern of Redis (* ? [a-z]), or all. It goes through the keys by SCAN, on
all masters of a cluster, and does not block Redis, however many keys there are: a million take a while.

A limiter with more than 2,000 records is not read whole: its figures have a ~, and are exact only if its state is
consistent. The permits of PER_CLIENT limiters belong to each client: --client selects one, all shows a line for each.`,
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
		return fmt.Errorf("%s takes one pattern, in quotes, so that the shell leaves it alone: %s 'api:*'", cmd.CommandPath(), cmd.CommandPath())
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
	Client      string     `json:"client,omitempty"`
	Fault       string     `json:"fault,omitempty"`     // why it can't be used or read
	Available   *int64     `json:"available,omitempty"` // none for a PER_CLIENT limiter without --client
	Used        *int64     `json:"used,omitempty"`
	LiveRecords *int       `json:"live_records,omitempty"`
	Oldest      *time.Time `json:"oldest,omitempty"` // of live records
	Newest      *time.Time `json:"newest,omitempty"`
	TTLMs       int64      `json:"ttl_ms"` // 0: no TTL
	Consistent  *bool      `json:"consistent,omitempty"`
	Exact       bool       `json:"exact"` // false: too many records to read for a list
}

func (s *session) ls(ctx context.Context, pattern string) error {
	p := s.progress(ctx)
	names, err := survey.Limiters(ctx, s.Redis, pattern, p.step)
	var clients map[string][]string
	if err == nil && s.client == everyone {
		var keys []survey.StateKey
		if keys, err = survey.StateKeys(ctx, s.Redis, p.step); err == nil {
			clients = survey.Clients(keys)
		}
	}
	p.done()
	if err != nil {
		return err
	}
	found, err := each(ctx, names, func(ctx context.Context, name string) ([]jsonRow, error) {
		return s.glance(ctx, name, clients[name])
	})
	if err != nil {
		return err
	}
	rows := slices.Concat(found...)
	if s.json {
		for _, row := range rows {
			if err := s.Emit(row); err != nil {
				return err
			}
		}
		return nil
	}
	if len(rows) == 0 {
		s.Say("no limiters")
		return nil
	}
	s.list(rows)
	return nil
}

// glance reads one limiter, or each of its requested clients. A limiter that was removed meanwhile has no row.
func (s *session) glance(ctx context.Context, name string, clients []string) ([]jsonRow, error) {
	shared := s.Limiter(name, "")
	state, exact, err := shared.Glance(ctx)
	row := jsonRow{JSONName: render.NameOf(name), Exact: true}
	if err != nil {
		if !tolerable(err) {
			return nil, err
		}
		row.Fault = reasonOf(err)
		if there, err := shared.Exists(ctx); err == nil && !there {
			return nil, nil
		}
		return []jsonRow{row}, nil
	}
	rate := render.RateOf(state.Rate)
	row.JSONRate, row.TTLMs = &rate, state.TTL.Milliseconds()
	if state.Rate.Type != rratelimiter.PerClient {
		return []jsonRow{row.with(state, exact)}, nil
	}
	switch s.client {
	case "":
		return []jsonRow{row}, nil
	case everyone:
	default:
		clients = []string{s.client}
	}
	var rows []jsonRow
	for _, id := range clients {
		state, exact, err := s.Limiter(name, id).Glance(ctx)
		one := row
		one.Client = id
		switch {
		case err == nil:
			one = one.with(state, exact)
		case tolerable(err):
			one.Fault = reasonOf(err)
		default:
			return nil, err
		}
		rows = append(rows, one)
	}
	if len(rows) == 0 {
		return []jsonRow{row}, nil
	}
	return rows, nil
}

// reasonOf returns why a limiter can't be used.
func reasonOf(err error) string {
	switch {
	case errors.Is(err, rratelimiter.ErrNotInitialized):
		return survey.Reason(err)
	case isWrongType(err):
		return "another program uses a key of it (WRONGTYPE)"
	}
	return render.Visible(connect.Cause(err).Error())
}

// with returns the row with a state.
func (row jsonRow) with(state rratelimiter.State, exact bool) jsonRow {
	row.Available, row.Used, row.LiveRecords = &state.Available, &state.Used, &state.Records
	row.Consistent, row.Exact = &state.Consistent, exact
	if state.Records > 0 {
		oldest, newest := state.Oldest.UTC(), state.Newest.UTC()
		row.Oldest, row.Newest = &oldest, &newest
	}
	return row
}

// list writes rows for people.
func (s *session) list(rows []jsonRow) {
	head := []string{"NAME", "RATE", "TYPE", "FREE", "IN USE", "RECORDS", "TTL", ""}
	t := render.Table{Right: map[int]bool{3: true, 4: true, 5: true}, Rows: [][]string{head}}
	for _, row := range rows {
		name := row.Name
		if row.Base64 == "" { // else it is quoted already
			name = render.Printable(name)
		}
		if row.Client != "" {
			name += " of " + render.Printable(row.Client)
		}
		if row.JSONRate == nil {
			t.Rows = append(t.Rows, []string{name, "?", "", "", "", "", "", s.Paint(render.Bad, row.Fault)})
			continue
		}
		cells := []string{name, strings.Replace(row.Rate, " per client", "", 1), row.Type, "-", "-", "-", render.Lasting(time.Duration(row.TTLMs) * time.Millisecond), ""}
		if row.Available != nil {
			about := ""
			if !row.Exact {
				about = "~"
			}
			cells[3], cells[4], cells[5] = about+render.Thousands(*row.Available), about+render.Thousands(*row.Used), render.Thousands(int64(*row.LiveRecords))
			if *row.Available == 0 {
				cells[3] = s.Paint(render.Warm, cells[3])
			}
			if !*row.Consistent {
				cells[7] = s.Paint(render.Bad, "does not add up: rrl show")
			}
		}
		if row.Fault != "" {
			cells[7] = s.Paint(render.Bad, row.Fault)
		}
		t.Rows = append(t.Rows, cells)
	}
	t.Write(s.Output)
}
