package main

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"charm.land/lipgloss/v2"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/survey"
	"github.com/rratelimiter/rratelimiter/internal/hook"
)

// doctor.go is the subcommand doctor: it collects the facts, and prints the findings of doctor_checks.go.

func newDoctor() *cobra.Command {
	c := &common{}
	cmd := c.live(&cobra.Command{
		Use:   "doctor [NAME...]",
		Short: "Check the server, the clocks and the limiters, with advice on each finding",
		Long: `doctor checks the server (version, settings, memory), this host's clock against Redis's, and the limiters of the names
given, or all: whether their figures add up, records that some clients can't read, records dated in the future, and the
state of former clients. It changes nothing, finds the keys by SCAN, and does not block Redis.

A finding is an ERROR if limits are not kept or calls fail, a WARNING if that may happen, a NOTE for information.
Exit code 1 if there is an error or a warning. The clock is this host's: run it on the hosts of your services.`,
		Example: `  rrl doctor
  rrl doctor orders --json`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: c.completeMore,
	}, func(ctx context.Context, s *session, args []string) error {
		var names []string
		for _, arg := range args {
			name, err := s.named(arg)
			if err != nil {
				return err
			}
			names = append(names, name)
		}
		return s.doctor(ctx, names, len(args) == 0)
	})
	c.addFlags(cmd)
	return cmd
}

// A severity is the rank of a finding.
type severity int

const (
	worthKnowing severity = iota
	warning
	fault
)

func (v severity) String() string { return [...]string{"note", "warning", "error"}[v] }

// A finding is a fault, or a note.
type finding struct {
	severity     severity
	code         string // stable
	name, client string // of the limiter; for a server, name is "" and server is set
	about        bool   // about a limiter
	server       string
	text, advice string
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

// leftFor is the time since the last live grant after which doctor calls a client's state orphaned: as in gc.
const leftFor = time.Hour

func (s *session) doctor(ctx context.Context, names []string, everything bool) error {
	var findings []finding
	var clients map[string][]string
	if everything {
		p := s.progress(ctx)
		found, err := survey.Limiters(ctx, s.Redis, "*", p.step)
		var keys []survey.StateKey
		if err == nil {
			keys, err = survey.StateKeys(ctx, s.Redis, p.step)
		}
		p.done()
		if err != nil {
			return err
		}
		if findings, err = s.unowned(ctx, keys, found); err != nil {
			return err
		}
		names, clients = found, survey.Clients(keys)
	}
	looks, err := survey.Each(ctx, names, func(ctx context.Context, name string) (examined, error) {
		if everything {
			return s.examineFound(ctx, name, clients[name])
		}
		return s.examine(ctx, name, s.Limiter(name, "").Clients)
	})
	if err != nil {
		return err
	}
	shortest, kept := time.Duration(0), false
	for _, look := range looks {
		findings = append(findings, look.findings...)
		if look.interval > 0 && (shortest == 0 || look.interval < shortest) {
			shortest = look.interval
		}
		kept = kept || look.kept
	}
	servers, err := s.servers(ctx)
	if err != nil {
		return err
	}
	for _, one := range servers {
		findings = append(findings, one.judge(shortest, kept)...)
	}
	slices.SortStableFunc(findings, func(a, b finding) int {
		return cmp.Or(cmp.Compare(b.severity, a.severity), strings.Compare(a.server, b.server), strings.Compare(a.name, b.name))
	})
	return s.tell(servers, len(names), findings)
}

// tell writes the findings, and fails if one of them is an error or a warning.
func (s *session) tell(servers []host, looked int, findings []finding) error {
	bad := 0
	for _, f := range findings {
		if f.severity > worthKnowing {
			bad++
		}
	}
	if s.json {
		for _, f := range findings {
			j := jsonFinding{f.severity.String(), f.code, nil, f.client, f.server, f.text, f.advice}
			if f.about {
				name := render.NameOf(f.name)
				j.Limiter = &name
			}
			if err := s.Emit(j); err != nil {
				return err
			}
		}
	} else {
		for _, one := range servers {
			s.Say("%s", one.describe())
		}
		s.Say("%s looked at, %s", render.Number(int64(looked), "limiter"), render.Number(int64(len(findings)), "finding"))
		for _, f := range findings {
			s.Say("")
			s.Say("%s", s.headline(f))
			s.Say("         %s", f.text)
			s.Say("         -> %s", f.advice)
		}
	}
	if bad > 0 {
		return exit{1, nil}
	}
	return nil
}

func (s *session) headline(f finding) string {
	style := map[severity]lipgloss.Style{fault: render.Bad, warning: render.Warm, worthKnowing: render.Dim}[f.severity]
	about := f.server
	if f.about {
		about = render.Printable(f.name)
		if f.client != "" {
			about += " of " + render.Printable(f.client)
		}
	}
	level := strings.ToUpper(f.severity.String())
	return s.Paint(style, level) + strings.Repeat(" ", 9-len(level)) + about + "  " + s.Paint(render.Dim, f.code)
}

// An examined has the findings of one limiter.
type examined struct {
	findings []finding
	interval time.Duration // 0: unknown
	kept     bool          // it has a TTL
}

// examineFound checks a limiter that a search has found, with its clients. There are no findings if it was removed
// since.
func (s *session) examineFound(ctx context.Context, name string, clients []string) (examined, error) {
	found, err := s.examine(ctx, name, func(context.Context) ([]string, error) { return clients, nil })
	if errors.Is(err, rratelimiter.ErrNotInitialized) {
		return examined{}, nil
	}
	return found, err
}

// examine checks one limiter, with all its clients.
func (s *session) examine(
	ctx context.Context, name string, clients func(context.Context) ([]string, error),
) (found examined, err error) {
	shared := s.Limiter(name, "")
	view, err := survey.Read(ctx, shared, false, 0)
	if errors.Is(err, rratelimiter.ErrCrossSlotName) {
		found.findings = append(found.findings, crossing(name))
		return found, nil
	}
	if err != nil {
		return found, err
	}
	if view.Keys[0].Type == "none" {
		if view.Keys[1].Type != "none" || view.Keys[2].Type != "none" {
			found.findings = append(found.findings, rateless(name))
			return found, nil
		}
		return found, survey.Absent(name, "")
	}
	found.findings = judge(view)
	if view.Fault != nil {
		return found, nil
	}
	found.interval, found.kept = view.Rate.Interval, view.Keys[0].TTL > 0 || view.Rate.KeepAlive > 0
	if view.Rate.Type != rratelimiter.PerClient {
		return found, s.confirm(ctx, shared, view, &found)
	}
	found.findings = nil // a state without a client
	ids, err := clients(ctx)
	if err != nil {
		return found, err
	}
	left := 0
	for _, id := range ids {
		own := s.Limiter(name, id)
		view, err := survey.Read(ctx, own, true, 0)
		if err != nil {
			return found, err
		}
		found.findings = append(found.findings, judge(view)...)
		if err := s.confirm(ctx, own, view, &found); err != nil {
			return found, err
		}
		what, err := hook.Collect(ctx, own, leftFor, true)
		if err != nil && !survey.Tolerable(err) {
			return found, err
		}
		if err == nil && what == hook.Removed {
			left++
		}
	}
	if left > 0 {
		found.findings = append(found.findings, orphaned(name, left, true))
	}
	return found, nil
}

// confirmable is the number of records that can be read in one step without blocking Redis for long.
const confirmable = 100_000

// confirm checks in one step whether the stored state adds up to the rate, and computes the result of a repair, which
// decides the advice.
func (s *session) confirm(ctx context.Context, l *rratelimiter.Limiter, v *survey.Survey, found *examined) error {
	if v.WrongType() != "" || v.Consistent() || v.Live.Records+v.Expired.Records > confirmable {
		return nil
	}
	would, err := l.Repair(ctx, rratelimiter.DryRun())
	if err == nil && would.Changed {
		if !v.OneStep {
			v.Free, v.Drift, v.OneStep = would.Was, would.Was-would.Free, true
		}
		found.findings = append(found.findings, adding(v, would))
	}
	return err
}

// unowned returns findings for the state keys that belong to no limiter, or to clients of a limiter that is not
// PER_CLIENT.
func (s *session) unowned(ctx context.Context, keys []survey.StateKey, known []string) (all []finding, err error) {
	there, clients, seen := map[string]bool{}, map[string]int{}, map[survey.Owner]bool{}
	for _, name := range known {
		there[name] = true
	}
	for _, key := range keys {
		owner, limiter, err := survey.OwnerOf(ctx, s.Redis, key, there)
		if err != nil {
			return nil, err
		}
		if seen[owner] {
			continue
		}
		seen[owner] = true
		l := s.Limiter(owner.Name, owner.Client)
		switch {
		case limiter && owner.Client == "": // examine sees it
		case limiter:
			if rate, err := l.Config(ctx); err == nil && rate.Type == rratelimiter.PerClient {
				continue // examine sees it
			}
			fallthrough
		case owner.Client != "":
			what, err := hook.Collect(ctx, l, leftFor, true)
			if err != nil && !survey.Tolerable(err) {
				return nil, err
			}
			if err == nil && what == hook.Removed {
				clients[owner.Name]++
			}
		default:
			kind, err := s.Redis.Type(ctx, key.Key).Result()
			if err != nil {
				return nil, err
			}
			if key.Permits && kind == "zset" || !key.Permits && kind == "string" {
				all = append(all, rateless(owner.Name))
			}
		}
	}
	for name, n := range clients {
		all = append(all, orphaned(name, n, there[name]))
	}
	return all, nil
}

// A host is what a server reports about itself.
type host struct {
	where    string
	info     map[string]string // INFO
	settings map[string]string // CONFIG GET; empty if the user may not run it
	ahead    time.Duration     // by how much Redis's clock is ahead of this host's
	error    time.Duration     // bound of the error of ahead
}

// servers returns all masters.
func (s *session) servers(ctx context.Context) ([]host, error) {
	var mu sync.Mutex
	var all []host
	ask := func(ctx context.Context, master *redis.Client) error {
		h := host{where: s.Where, info: map[string]string{}, settings: map[string]string{}}
		if _, cluster := s.Redis.(*redis.ClusterClient); cluster {
			h.where = master.Options().Addr
		}
		for _, section := range []string{"server", "memory", "replication", "persistence", "cluster"} {
			text, _ := master.Info(ctx, section).Result() // not every server has all sections
			for line := range strings.Lines(text) {
				if name, value, found := strings.Cut(strings.TrimSpace(line), ":"); found {
					h.info[name] = render.Visible(value)
				}
			}
		}
		for _, setting := range []string{"cluster-require-full-coverage", "save"} {
			for name, value := range master.ConfigGet(ctx, setting).Val() { // not every user may run it
				h.settings[name] = value
			}
		}
		var err error
		if h.ahead, h.error, err = skew(ctx, master, time.Now); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, h)
		return nil
	}
	var err error
	switch rdb := s.Redis.(type) {
	case *redis.ClusterClient:
		err = rdb.ForEachMaster(ctx, ask)
	case *redis.Client:
		err = ask(ctx, rdb)
	}
	slices.SortFunc(all, func(a, b host) int { return strings.Compare(a.where, b.where) })
	return all, err
}

// skew measures by how much Redis's clock is ahead of this host's, and the bound of the error: half of the shortest of
// some round trips.
func skew(ctx context.Context, rdb *redis.Client, now func() time.Time) (ahead, wrong time.Duration, err error) {
	for i := range 7 {
		began := time.Now()
		before := now()
		theirs, err := rdb.Time(ctx).Result()
		half := time.Since(began) / 2
		if err != nil {
			return 0, 0, err
		}
		if i == 0 || half < wrong {
			ahead, wrong = theirs.Sub(before.Add(half)), half
		}
	}
	return ahead, wrong, nil
}
