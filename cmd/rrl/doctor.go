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
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/survey"
	"github.com/rratelimiter/rratelimiter/internal/hook"
)

// doctor.go is the subcommand doctor: it gathers what there is to know, and shows what doctor_checks.go makes of it.

func newDoctor() *cobra.Command {
	c := &common{}
	cmd := c.live(&cobra.Command{
		Use:   "doctor [NAME...]",
		Short: "Look for what is wrong with the server, the clocks and the limiters, and say what to do",
		Long: `doctor looks at the server (version, settings, memory), at this host's clock against Redis's, and at the limiters of the
names given, all without a name: whether their figures add up, who writes records that others can't read, what is dated
in the future, what clients have left. It changes nothing, goes through the keys by SCAN, and holds nobody up.

A finding is an ERROR where limits are not kept or calls fail, a WARNING where that may happen, a NOTE where it is good to
know. Exit code 1 if there is an error or a warning. The clock is this host's: run it on the hosts of your services.`,
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
	c.flags(cmd)
	return cmd
}

// A severity tells how bad a finding is.
type severity int

const (
	worthKnowing severity = iota
	warning
	fault
)

func (v severity) String() string { return [...]string{"note", "warning", "error"}[v] }

// A finding is something that is wrong, or good to know.
type finding struct {
	severity     severity
	code         string // stable
	name, client string // of the limiter it is about; name "" and server set where it is about a server
	about        bool   // it is about a limiter
	server       string
	text, advice string
}

type jsonFinding struct {
	Severity string    `json:"severity"` // error, warning, note
	Code     string    `json:"code"`
	Limiter  *jsonName `json:"limiter,omitempty"`
	Client   string    `json:"client,omitempty"`
	Server   string    `json:"server,omitempty"`
	Text     string    `json:"text"`
	Advice   string    `json:"advice"`
}

// leftFor is how long a client's state must have said nothing for doctor to call it orphaned: as in gc.
const leftFor = time.Hour

func (s *session) doctor(ctx context.Context, names []string, everything bool) error {
	var findings []finding
	var clients map[string][]string
	if everything {
		p := s.progress(ctx)
		found, err := survey.Limiters(ctx, s.rdb, "*", p.step)
		var keys []survey.StateKey
		if err == nil {
			keys, err = survey.StateKeys(ctx, s.rdb, p.step)
		}
		p.done()
		if err != nil {
			return err
		}
		var broken []string
		if findings, broken, err = s.unowned(ctx, keys, found); err != nil {
			return err
		}
		names, clients = append(found, broken...), survey.Clients(keys)
	}
	looks, err := each(ctx, names, func(ctx context.Context, name string) (examined, error) {
		if everything {
			return s.examineFound(ctx, name, clients[name])
		}
		return s.examine(ctx, name, s.limiter(name, "").Clients)
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

// tell writes the findings, and fails if one of them is bad.
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
				name := nameOf(f.name)
				j.Limiter = &name
			}
			if err := s.emit(j); err != nil {
				return err
			}
		}
	} else {
		for _, one := range servers {
			s.say("%s", one.describe())
		}
		s.say("%s looked at, %s", number(int64(looked), "limiter"), number(int64(len(findings)), "finding"))
		for _, f := range findings {
			s.say("")
			s.say("%s", s.headline(f))
			s.say("         %s", f.text)
			s.say("         -> %s", f.advice)
		}
	}
	if bad > 0 {
		return exit{1, nil}
	}
	return nil
}

func (s *session) headline(f finding) string {
	style := map[severity]lipgloss.Style{fault: bad, warning: warm, worthKnowing: dim}[f.severity]
	about := f.server
	if f.about {
		about = printable(f.name)
		if f.client != "" {
			about += " of " + printable(f.client)
		}
	}
	level := strings.ToUpper(f.severity.String())
	return s.paint(style, level) + strings.Repeat(" ", 9-len(level)) + about + "  " + s.paint(dim, f.code)
}

// An examined is what there is to say about one limiter.
type examined struct {
	findings []finding
	interval time.Duration // 0: none that is known
	kept     bool          // it has a life time
}

// examineFound looks at a limiter that a search has found, with its clients. There is nothing to say of one that is gone
// by now.
func (s *session) examineFound(ctx context.Context, name string, clients []string) (examined, error) {
	found, err := s.examine(ctx, name, func(context.Context) ([]string, error) { return clients, nil })
	if errors.Is(err, rratelimiter.ErrNotInitialized) {
		return examined{}, nil
	}
	return found, err
}

// examine looks at one limiter, with all its clients.
func (s *session) examine(
	ctx context.Context, name string, clients func(context.Context) ([]string, error),
) (found examined, err error) {
	shared := s.limiter(name, "")
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
		return found, absent(name, "")
	}
	found.findings = judge(view)
	if view.Fault != nil {
		return found, nil
	}
	found.interval, found.kept = view.Rate.Interval, view.Keys[0].TTL > 0 || view.Rate.KeepAlive > 0
	if view.Rate.Type != rratelimiter.PerClient {
		return found, s.confirm(ctx, shared, view, &found)
	}
	found.findings = nil // the state of a client that is nobody's
	ids, err := clients(ctx)
	if err != nil {
		return found, err
	}
	left := 0
	for _, id := range ids {
		own := s.limiter(name, id)
		view, err := survey.Read(ctx, own, true, 0)
		if err != nil {
			return found, err
		}
		found.findings = append(found.findings, judge(view)...)
		if err := s.confirm(ctx, own, view, &found); err != nil {
			return found, err
		}
		what, err := hook.Collect(ctx, own, leftFor, true)
		if err != nil && !tolerable(err) {
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

// confirmable is how many records can be read in one step without holding anybody up.
const confirmable = 100_000

// confirm asks again about a limiter that was read in several steps, in one.
func (s *session) confirm(ctx context.Context, l *rratelimiter.Limiter, v *survey.Survey, found *examined) error {
	if v.OneStep || v.Consistent() || v.Live.Records+v.Expired.Records > confirmable {
		return nil
	}
	sum, err := l.Repair(ctx, rratelimiter.DryRun())
	if err == nil && sum.Changed {
		v.Free, v.Drift, v.OneStep = sum.Was, sum.Was-sum.Free, true
		found.findings = append(found.findings, adding(v)...)
	}
	return err
}

// unowned looks among the keys that hold state for such as belong to no limiter, or to clients of one that has none for
// clients. It also names limiters that are not among the known ones, since a part of their configuration is missing.
func (s *session) unowned(ctx context.Context, keys []survey.StateKey, known []string) (all []finding, broken []string, err error) {
	there, clients, seen := map[string]bool{}, map[string]int{}, map[survey.Owner]bool{}
	for _, name := range known {
		there[name] = true
	}
	for _, key := range keys {
		owner, limiter, err := s.ownerOf(ctx, key, there)
		if err != nil {
			return nil, nil, err
		}
		if seen[owner] {
			continue
		}
		seen[owner] = true
		l := s.limiter(owner.Name, owner.Client)
		switch {
		case limiter && owner.Client == "":
			if _, found := slices.BinarySearch(known, owner.Name); !found {
				broken = append(broken, owner.Name)
			}
		case limiter:
			if rate, err := l.Config(ctx); err == nil && rate.Type == rratelimiter.PerClient {
				continue // examine sees it
			}
			fallthrough
		case owner.Client != "":
			what, err := hook.Collect(ctx, l, leftFor, true)
			if err != nil && !tolerable(err) {
				return nil, nil, err
			}
			if err == nil && what == hook.Removed {
				clients[owner.Name]++
			}
		default:
			kind, err := s.rdb.Type(ctx, key.Key).Result()
			if err != nil {
				return nil, nil, err
			}
			if key.Permits && kind == "zset" || !key.Permits && kind == "string" {
				all = append(all, rateless(owner.Name))
			}
		}
	}
	for name, n := range clients {
		all = append(all, orphaned(name, n, there[name]))
	}
	return all, broken, nil
}

// A host is a server, as far as it tells.
type host struct {
	where    string
	info     map[string]string // INFO
	settings map[string]string // CONFIG GET; empty where we may not ask
	ahead    time.Duration     // how far Redis's clock is ahead of this host's
	error    time.Duration     // by how much that may be wrong
}

// servers asks all masters.
func (s *session) servers(ctx context.Context) ([]host, error) {
	var mu sync.Mutex
	var all []host
	ask := func(ctx context.Context, master *redis.Client) error {
		h := host{where: s.where, info: map[string]string{}, settings: map[string]string{}}
		if _, cluster := s.rdb.(*redis.ClusterClient); cluster {
			h.where = master.Options().Addr
		}
		for _, section := range []string{"server", "memory", "replication", "persistence", "cluster"} {
			text, _ := master.Info(ctx, section).Result() // not every server has them all
			for line := range strings.Lines(text) {
				if name, value, found := strings.Cut(strings.TrimSpace(line), ":"); found {
					h.info[name] = value
				}
			}
		}
		for _, setting := range []string{"cluster-require-full-coverage", "save"} {
			for name, value := range master.ConfigGet(ctx, setting).Val() { // nor may everybody ask
				h.settings[name] = value
			}
		}
		var err error
		if h.ahead, h.error, err = skew(ctx, master, s.now); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, h)
		return nil
	}
	var err error
	switch rdb := s.rdb.(type) {
	case *redis.ClusterClient:
		err = rdb.ForEachMaster(ctx, ask)
	case *redis.Client:
		err = ask(ctx, rdb)
	}
	slices.SortFunc(all, func(a, b host) int { return strings.Compare(a.where, b.where) })
	return all, err
}

// skew measures how far Redis's clock is ahead of this host's, and by how much that may be wrong: half of the shortest
// round trip of some.
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
