package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/doctor"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/survey"
	"github.com/rratelimiter/rratelimiter/internal/span"
)

// show.go is the subcommand show: the whole state of one limiter.

func newShow() *cobra.Command {
	c := &common{whose: true}
	cmd := c.live(&cobra.Command{
		Use:        "show NAME",
		SuggestFor: []string{"get", "info", "describe"},
		Short:      "Show one limiter: its rate, its grants by time and by writer, and whether they add up",
		Long: `show prints the state of a limiter in Redis. It reads every record, some at a time, and changes nothing.

Records of Go clients contain the client's tag; all others are Java's, or of unknown origin. The time axis goes from
one interval ago to now. Records of Go clients that are dated ahead may be leases (WithLease), of which a part is
unused. Free permits and permits in records must add up to the rate: if they don't, rrl doctor has advice. Of a
PER_CLIENT limiter it shows a line for each client; --client ID shows one of them in full.

If no call on the limiter works, because its rate can't be used or another program uses one of its keys, show says so
and exits with code 1.`,
		Example: `  rrl show orders
  rrl show orders --client 2f6c8a5e-8a37-4a55-9d0e-1b6f4a0c9a11
  rrl show orders --json | jq .available`,
		Args:              oneName,
		ValidArgsFunction: c.complete,
	}, func(ctx context.Context, s *session, args []string) error {
		name, err := s.named(args[0])
		if err != nil {
			return err
		}
		return s.show(ctx, name)
	})
	c.addFlags(cmd)
	return cmd
}

// axis is the number of parts of the time axis.
const axis = 60

// axis returns the number of parts of the time axis: fewer on a narrow terminal.
func (s *session) axis() int {
	if s.json || s.Width == 0 {
		return axis
	}
	return min(axis, max(s.Width-render.LabelCells, 8))
}

func (s *session) show(ctx context.Context, name string) error {
	shared := s.Limiter(name, "")
	rate, err := shared.Config(ctx)
	perClient := err == nil && rate.Type == rratelimiter.PerClient
	if s.client != "" && err == nil && !perClient {
		return fmt.Errorf("%s is not a PER_CLIENT limiter: leave --client out", render.Printable(name))
	}
	one := s.client != "" && s.client != survey.Everyone
	switch {
	case one:
		shared = s.Limiter(name, s.client)
	case perClient:
		return s.showClients(ctx, shared, rate)
	}
	view, err := survey.Read(ctx, shared, one, s.axis())
	if err != nil {
		return err
	}
	if view.Fault != nil && view.Client != "" && !one {
		return s.showClients(ctx, shared, rate) // of type PER_CLIENT, with another fault
	}
	if view.Empty() {
		return survey.Absent(name, "")
	}
	if view.RetryAfter, err = retryAfter(ctx, shared, view); err != nil {
		return err
	}
	if s.json {
		err = s.Emit(viewOf(view))
	} else {
		s.describe(view)
	}
	if err != nil {
		return err
	}
	return unusable(view)
}

// retryAfter returns the time until a permit is free; nil if none ever is.
func retryAfter(ctx context.Context, l *connect.Limiter, v *survey.Survey) (*time.Duration, error) {
	if v.Fault != nil || v.WrongType() != "" || v.Rate.Permits == 0 {
		return nil, nil
	}
	result, err := l.Peek(ctx, 1)
	return &result.RetryAfter, err
}

// unusable returns exit code 1 if no call works on a limiter. What was printed says why.
func unusable(views ...*survey.Survey) error {
	for _, v := range views {
		if v.Fault != nil || v.WrongType() != "" {
			return exit{code: 1}
		}
	}
	return nil
}

// jsonView is the output of show for a limiter, or for one client of it.
type jsonView struct {
	render.JSONName
	*render.JSONRate
	Client         string            `json:"client,omitempty"`
	Fault          string            `json:"fault,omitempty"` // why the rate can't be used
	Fields         map[string]string `json:"fields"`          // of the configuration, as stored
	Value          *string           `json:"value"`           // free permits as stored; null: none
	Available      int64             `json:"available"`
	Debt           int64             `json:"debt"`
	RetryAfterMs   *int64            `json:"retry_after_ms,omitempty"` // until a permit is free
	Used           int64             `json:"used"`
	LiveRecords    int               `json:"live_records"`
	ExpiredRecords int               `json:"expired_records"`
	ExpiredPermits int64             `json:"expired_permits"`
	// of Go clients that may hold unused permits of leases
	AheadRecords  int          `json:"ahead_records"`
	AheadPermits  int64        `json:"ahead_permits"`
	FutureRecords int          `json:"future_records"`
	FuturePermits int64        `json:"future_permits"`
	Oldest        *time.Time   `json:"oldest,omitempty"` // of live records
	Newest        *time.Time   `json:"newest,omitempty"`
	ServerTime    time.Time    `json:"server_time"`
	TTLMs         int64        `json:"ttl_ms"` // 0: no TTL
	StateTTLMs    int64        `json:"state_ttl_ms"`
	Consistent    bool         `json:"consistent"`
	Drift         int64        `json:"drift"`    // free permits plus all records minus the rate
	OneStep       bool         `json:"one_step"` // everything was read at one instant
	Writers       []jsonWriter `json:"writers"`
	Formats       []jsonFormat `json:"formats"`
	Guess         string       `json:"redisson_guess,omitempty"`
	// live permits by time of grant, oldest first, an interval in all
	Axis []int64 `json:"axis"`
}

type jsonWriter struct {
	Tag     string `json:"go_client,omitempty"` // "": Java or unknown
	Records int    `json:"records"`
	Permits int64  `json:"permits"`
}

type jsonFormat struct {
	Format       string `json:"format"`
	GoRecords    int    `json:"go_records"`
	OtherRecords int    `json:"other_records"`
}

func viewOf(v *survey.Survey) jsonView {
	j := jsonView{
		JSONName:    render.NameOf(v.Name),
		Client:      v.Client,
		Fields:      v.Fields,
		Available:   v.Available,
		Debt:        v.Debt,
		Used:        v.Live.Permits,
		LiveRecords: v.Live.Records, ExpiredRecords: v.Expired.Records, ExpiredPermits: v.Expired.Permits,
		AheadRecords: v.Open.Records, AheadPermits: v.Open.Permits, FutureRecords: v.Future.Records,
		FuturePermits: v.Future.Permits, ServerTime: v.At.UTC(),
		TTLMs: v.Keys[0].TTL.Milliseconds(), StateTTLMs: v.Keys[1].TTL.Milliseconds(),
		Consistent: v.Fault == nil && v.Consistent(),
		Drift:      v.Drift,
		OneStep:    v.OneStep,
		Axis:       v.Bins,
		Guess:      v.Guess(),
		Writers:    []jsonWriter{}, Formats: []jsonFormat{},
	}
	if v.Fault != nil {
		j.Fault = survey.Reason(v.Fault)
	} else {
		rate := render.RateOf(v.Rate)
		j.JSONRate = &rate
	}
	if wrong := v.WrongType(); wrong != "" {
		j.Fault, j.Consistent = wrong, false
	}
	if v.Keys[1].Type == "string" {
		j.Value = &v.Value
	}
	if v.RetryAfter != nil {
		ms := v.RetryAfter.Milliseconds()
		j.RetryAfterMs = &ms
	}
	if v.Live.Records > 0 {
		oldest, newest := v.Oldest.UTC(), v.Newest.UTC()
		j.Oldest, j.Newest = &oldest, &newest
	}
	for _, w := range v.Writers {
		j.Writers = append(j.Writers, jsonWriter{w.Tag, w.Records, w.Permits})
	}
	for _, f := range v.Forms {
		j.Formats = append(j.Formats, jsonFormat{formText(f), f.Go.Records, f.Others.Records})
	}
	return j
}

func formText(f survey.Form) string {
	if f.Odd != "" {
		return f.Odd
	}
	return f.Format.String()
}

// describe writes a limiter for people.
func (s *session) describe(v *survey.Survey) {
	line := func(what, format string, args ...any) {
		text := strings.TrimRight(fmt.Sprintf("%-12s%s", what, fmt.Sprintf(format, args...)), " ")
		s.Say("%s", text)
	}
	s.Say("%s", s.Paint(render.Strong, render.Printable(v.Name)))
	if v.Client != "" {
		line("client", "%s", render.Printable(v.Client))
	}
	if wrong := v.WrongType(); wrong != "" {
		line("WRONG", "%s", s.Paint(render.Bad, wrong+": no call works"))
		if v.Fault == nil {
			line("rate", "%v, %v", v.Rate, v.Rate.Type)
		}
		return
	}
	if v.Fault != nil {
		line("rate", "%s: %s", s.Paint(render.Bad, "none that can be used"), survey.Reason(v.Fault))
		for _, name := range slices.Sorted(maps.Keys(v.Fields)) {
			line("", "%s = %s", render.Printable(name), render.Printable(v.Fields[name]))
		}
		if records := v.Live.Records + v.Expired.Records; v.Value != "" || records > 0 {
			line(
				"state", "%s stored as free, %s in %s", render.Printable(v.Value),
				render.Number(v.Live.Permits+v.Expired.Permits, "permit"), render.Number(int64(records), "record"),
			)
		}
		return
	}
	refuses := ""
	if v.Rate.Permits == 0 {
		refuses = ": every request is refused"
	}
	line("rate", "%v, %v%s", v.Rate, v.Rate.Type, refuses)
	for _, field := range v.Shortened() {
		line("", "%s", s.Paint(render.Warm, field))
	}
	line("TTL", "%s", ttlText(v))
	inJava := ""
	if v.Readable && v.OneStep && v.Drift != 0 {
		inJava = s.Paint(render.Bad, " for Go, "+render.Thousands(v.Free+v.Expired.Permits)+" for Java")
	}
	line("free", "%s  %s of %s%s", render.Bar(v.Available, v.Rate.Permits, 20, "█", "░"),
		render.Thousands(v.Available), render.Thousands(v.Rate.Permits), inJava)
	if v.RetryAfter != nil && *v.RetryAfter > 0 {
		line("", "the next permit is free in %s", render.Lasting(*v.RetryAfter))
	}
	if v.Debt > 0 {
		line("owed", "%s: more were used than the rate has, or it was lowered", render.Number(v.Debt, "permit"))
	}
	line(
		"in use", "%s in %s", render.Number(v.Live.Permits, "permit"),
		render.Number(int64(v.Live.Records), "live record"),
	)
	if v.Live.Records > 0 {
		line("", "granted from %s to %s", render.Ago(v.Oldest, v.At), render.Ago(v.Newest, v.At))
		line("by time", "%s", render.Sparks(v.Bins))
		line("", "%-*s%s", len(v.Bins)-3, span.Text(v.Rate.Interval)+" ago", "now")
	}
	if v.Open.Records > 0 {
		line("ahead", "%s in %s of Go clients, dated up to %s:", render.Number(v.Open.Permits, "permit"),
			render.Number(int64(v.Open.Records), "record"), render.Ago(v.OpenUntil, v.At))
		line("", "with WithLease, some of them may be unused (WithGranularity dates records so, too)")
	}
	for i, w := range v.Writers {
		what := ""
		if i == 0 {
			what = "by writer"
		}
		line(what, "%-20s%s in %s", w.Text(), render.Number(w.Permits, "permit"),
			render.Number(int64(w.Records), "record"))
	}
	for i, f := range v.Forms {
		what := ""
		if i == 0 {
			what = "format"
		}
		writers := ""
		switch {
		case f.Others.Records == 0:
			writers = ", all written by Go"
		case f.Go.Records > 0:
			writers = fmt.Sprintf(", %s written by Go", render.Thousands(int64(f.Go.Records)))
		}
		line(what, "%s: %s%s", formText(f), render.Number(int64(f.Go.Records+f.Others.Records), "record"), writers)
	}
	if groups := v.Readers(); len(groups) == 1 {
		line("read by", "%s", groups[0])
	}
	if guess := v.Guess(); guess != "" {
		line("Redisson", "%s", guess)
	}
	if v.Expired.Records > 0 {
		line("expired", "%s in %s, free again from the next use on",
			render.Number(v.Expired.Permits, "permit"), render.Number(int64(v.Expired.Records), "record"))
	}
	if v.Future.Records > 0 {
		line("future", "%s", s.Paint(render.Warm, fmt.Sprintf(
			"%s in %s, the last one dated %s: a clock is wrong", render.Number(v.Future.Permits, "permit"),
			render.Number(int64(v.Future.Records), "record"), render.Ago(v.Farthest, v.At),
		)))
	}
	switch {
	case v.Consistent() && v.Keys[1].Type == "none":
		line("adds up", "yes: no grant is stored, and all permits are free")
	case v.Consistent():
		line("adds up", "%s", s.Paint(render.Good, fmt.Sprintf("yes: %s stored as free + %s in records = %s",
			render.Thousands(v.Free), render.Thousands(v.Live.Permits+v.Expired.Permits),
			render.Thousands(v.Rate.Permits))))
	case !v.OneStep:
		line(
			"adds up", "unknown: the records were read in several steps; rrl doctor checks up to 100,000 records in one step",
		)
	default:
		line("adds up", "%s", s.Paint(render.Bad, "NO: "+doctor.WrongSum(v)))
		line("", "rrl doctor %s says what to do", render.ShellName(v.Name))
	}
}

// ttlText formats the TTL of a limiter.
func ttlText(v *survey.Survey) string {
	switch ttl := v.Keys[0].TTL; {
	case ttl == 0:
		return "none"
	case v.Rate.KeepAlive == 0:
		return "gone in " + render.Lasting(ttl)
	default:
		return "gone in " + render.Lasting(ttl) + " unless it is used"
	}
}

// showClients writes a line for each client of a PER_CLIENT limiter.
func (s *session) showClients(ctx context.Context, shared *connect.Limiter, rate rratelimiter.Rate) error {
	ids, err := s.clientsOf(ctx, shared.Name())
	if err != nil {
		return err
	}
	var views []*survey.Survey
	for _, id := range ids {
		view, err := survey.Read(ctx, s.Limiter(shared.Name(), id), true, s.axis())
		if err != nil {
			return err
		}
		views = append(views, view)
	}
	if s.json && len(views) > 0 {
		for _, view := range views {
			if err := s.Emit(viewOf(view)); err != nil {
				return err
			}
		}
		return unusable(views...)
	}
	config, err := survey.Read(ctx, shared, false, s.axis())
	if err != nil {
		return err
	}
	if s.json {
		j := viewOf(config) // its configuration only
		j.Client = ""
		if err := s.Emit(j); err != nil {
			return err
		}
		return unusable(config)
	}
	if config.Fault != nil {
		config.Client = ""
		s.describe(config)
	} else {
		s.Say("%s", s.Paint(render.Strong, render.Printable(shared.Name())))
		s.Say("%-12s%v", "rate", rate)
		s.Say("%-12s%s", "TTL", ttlText(config))
	}
	if len(views) == 0 {
		s.Say("%-12snone has state: nobody has used it yet, or not for a while", "clients")
		return unusable(config)
	}
	s.Say("")
	t := render.Table{
		Right: map[int]bool{1: true, 2: true}, Drop: []int{2, 4},
		Rows: [][]string{{"CLIENT", "FREE", "RECORDS", "LAST USE", "TTL", "ADDS UP"}},
	}
	for _, v := range views {
		last, sum := "-", "yes"
		if v.Live.Records > 0 {
			last = render.Ago(v.Newest, v.At)
		}
		free, records := render.Thousands(v.Available), v.Live.Records
		switch {
		case v.Fault != nil:
			free, sum, records = "?", "?", records+v.Expired.Records
		case !v.Consistent() && !v.OneStep:
			sum = "unknown"
		case !v.Consistent():
			sum = s.Paint(render.Bad, "NO")
		}
		t.Rows = append(t.Rows, []string{
			render.Printable(v.Client), free, render.Thousands(int64(records)), last, render.Lasting(v.Keys[1].TTL),
			sum,
		})
	}
	t.Write(s.Output)
	return unusable(append(views, config)...)
}

// oneName accepts the name of one limiter.
func oneName(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return fmt.Errorf("%s needs the name of a limiter; see %s --help", cmd.CommandPath(), cmd.CommandPath())
	case len(args) > 1:
		return fmt.Errorf("%s takes one name; see %s --help", cmd.CommandPath(), cmd.CommandPath())
	}
	return nil
}
