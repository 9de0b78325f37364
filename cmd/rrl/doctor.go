package main

import (
	"context"
	"strings"

	"charm.land/lipgloss/v2"
	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/doctor"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/survey"
)

// doctor.go is the subcommand doctor.

func newDoctor() *cobra.Command {
	c := &common{}
	cmd := c.live(&cobra.Command{
		Use:   "doctor [NAME...]",
		Short: "Check the server, the clocks and the limiters, with advice on each finding",
		Long: `doctor checks the server (version, settings, memory), compares this host's clock with Redis's, and checks the given
limiters, or all: whether free permits and records add up (not if a limiter, or a client of it, has more than 100,000
records), whether some clients can't read some records, whether records are dated in the future, and whether former
clients left state. It changes nothing. Without a NAME, and for a PER_CLIENT limiter, it searches all keys by SCAN,
which does not block Redis.

A finding is an ERROR if limits are not kept or calls fail, a WARNING if that may happen or if former clients left keys,
a NOTE for information. The exit code is 1 if there is an error or a warning. doctor knows only the clock of the host on
which it runs: run it on the hosts of your services.`,
		Example: `  rrl doctor
  rrl doctor orders --json`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: c.completeMore,
	}, func(ctx context.Context, s *session, args []string) error {
		names, err := s.allNamed(args)
		if err != nil {
			return err
		}
		found, err := s.doctor(ctx, names)
		if err != nil {
			return err
		}
		return s.tell(found)
	})
	c.addFlags(cmd)
	return cmd
}

type jsonFinding struct {
	Severity string           `json:"severity"` // error, warning, note
	Code     string           `json:"code"`
	Limiter  *render.JSONName `json:"limiter,omitempty"`
	Client   string           `json:"client,omitempty"`
	Server   string           `json:"server,omitempty"`
	Text     string           `json:"text"`
	Advice   string           `json:"advice"`
}

// doctor checks the named limiters, or all if none is named, and the server.
func (s *session) doctor(ctx context.Context, names []string) (doctor.Report, error) {
	if len(names) > 0 {
		return doctor.Named(ctx, s.Server, names)
	}
	p := s.progress(ctx)
	found, err := survey.Limiters(ctx, s.Redis, "*", p.step)
	var keys []survey.StateKey
	if err == nil {
		keys, err = survey.StateKeys(ctx, s.Redis, p.step)
	}
	p.done()
	if err != nil {
		return doctor.Report{}, err
	}
	return doctor.All(ctx, s.Server, found, keys)
}

// tell writes the findings, and fails if one of them is an error or a warning.
func (s *session) tell(r doctor.Report) error {
	bad := 0
	for _, f := range r.Findings {
		if f.Severity > doctor.Note {
			bad++
		}
	}
	if s.json {
		for _, f := range r.Findings {
			j := jsonFinding{f.Severity.String(), f.Code, nil, f.Client, f.Server, f.Text, f.Advice}
			if f.About {
				name := render.NameOf(f.Name)
				j.Limiter = &name
			}
			if err := s.Emit(j); err != nil {
				return err
			}
		}
	} else {
		for _, one := range r.Servers {
			s.Say("%s", one)
		}
		s.Say("%s looked at, %s",
			render.Number(int64(r.Limiters), "limiter"), render.Number(int64(len(r.Findings)), "finding"))
		for _, f := range r.Findings {
			s.Say("")
			s.Say("%s", s.headline(f))
			s.Say("         %s", f.Text)
			s.Say("         -> %s", f.Advice)
		}
	}
	if bad > 0 {
		return exit{1, nil}
	}
	return nil
}

func (s *session) headline(f doctor.Finding) string {
	style := map[doctor.Severity]lipgloss.Style{
		doctor.Error:   render.Bad,
		doctor.Warning: render.Warm,
		doctor.Note:    render.Dim,
	}[f.Severity]
	about := f.Server
	if f.About {
		about = render.Printable(f.Name)
		if f.Client != "" {
			about += " of " + render.Printable(f.Client)
		}
	}
	level := strings.ToUpper(f.Severity.String())
	return s.Paint(style, level) + strings.Repeat(" ", 9-len(level)) + about + "  " + s.Paint(render.Dim, f.Code)
}
