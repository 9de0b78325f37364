// Package doctor checks limiters, their clients and their server. It returns findings with advice,
// but does not print them. It changes nothing.
package doctor

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/survey"
)

// A Severity is the rank of a finding.
type Severity int

// The ranks, from the lowest.
const (
	Note    Severity = iota // for information
	Warning                 // limits may not be kept, or calls may fail
	Error                   // limits are not kept, or calls fail
)

// String returns the rank as JSON has it.
func (v Severity) String() string { return [...]string{"note", "warning", "error"}[v] }

// A Finding is a fault, or a note.
type Finding struct {
	Severity     Severity
	Code         string // stable
	Name, Client string // of the limiter
	About        bool   // it is about a limiter, else about a server
	Server       string
	Text, Advice string
}

// A Report is the result of doctor.
type Report struct {
	Servers  []string // what each is, in one line
	Limiters int      // number of those that were checked
	Findings []Finding
}

// Named checks limiters that a user names, and the server.
func Named(ctx context.Context, s *connect.Server, names []string) (Report, error) {
	return check(ctx, s, names, nil, func(ctx context.Context, name string) (examined, error) {
		return examine(ctx, s, name, s.Limiter(name, "").Clients)
	})
}

// All checks all limiters, by the names and the keys of states that a search has found, and the
// server.
func All(ctx context.Context, s *connect.Server, names []string, keys []survey.StateKey) (Report, error) {
	findings, err := unowned(ctx, s, keys, names)
	if err != nil {
		return Report{}, err
	}
	clients := survey.Clients(keys)
	return check(ctx, s, names, findings, func(ctx context.Context, name string) (examined, error) {
		return examineFound(ctx, s, name, clients[name])
	})
}

// check adds to findings those of limiters and of the server, the most severe first.
func check(
	ctx context.Context,
	s *connect.Server,
	names []string,
	findings []Finding,
	look func(context.Context, string) (examined, error),
) (Report, error) {
	looks, err := survey.Each(ctx, names, look)
	if err != nil {
		return Report{}, err
	}
	shortest, kept := time.Duration(0), false
	for _, look := range looks {
		findings = append(findings, look.findings...)
		if look.interval > 0 && (shortest == 0 || look.interval < shortest) {
			shortest = look.interval
		}
		kept = kept || look.kept
	}
	servers, err := hosts(ctx, s)
	if err != nil {
		return Report{}, err
	}
	r := Report{Limiters: len(names)}
	for _, one := range servers {
		r.Servers = append(r.Servers, one.describe())
		findings = append(findings, one.judge(shortest, kept)...)
	}
	slices.SortStableFunc(findings, func(a, b Finding) int {
		return cmp.Or(
			cmp.Compare(b.Severity, a.Severity), strings.Compare(a.Server, b.Server), strings.Compare(a.Name, b.Name),
		)
	})
	r.Findings = findings
	return r, nil
}
