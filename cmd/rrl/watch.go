package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"charm.land/lipgloss/v2"
	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/feed"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/survey"
)

// watch.go is the subcommand watch: live limiters on a terminal; without a terminal, a line a
// second.

func newWatch() *cobra.Command {
	c := &common{whose: true}
	var length time.Duration
	cmd := c.live(&cobra.Command{
		Use:   "watch NAME...",
		Short: "Watch limiters live: permits free over time, and grants by second and by client",
		Long: `watch shows two figures of each second: the fewest free permits, and the permits granted. It reads grants from their
records in Redis, so it includes Java's. It changes nothing. For each limiter it makes 2 calls a second, or up to 20 if
the interval is shorter than 2.5 s, and one more for every 1,000 new records. If the limiter's interval is below 200 ms,
watch counts only a part of the grants.

If the output is not a terminal, watch writes one line for each second and limiter, with the free permits at the last
poll.`,
		Example: `  rrl watch orders
  rrl watch orders payments --for 10s --json | jq .granted`,
		Args:              someNames,
		ValidArgsFunction: c.completeMore,
	}, func(ctx context.Context, s *session, args []string) error {
		if length < 0 {
			return fmt.Errorf("--for must not be negative")
		}
		return s.watch(ctx, args, length)
	})
	cmd.Flags().DurationVar(&length, "for", 0, "duration; 0: until Ctrl-C")
	c.addFlags(cmd)
	return cmd
}

func (s *session) watch(ctx context.Context, args []string, length time.Duration) error {
	s.Quiet()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all []*feed.Followed
	polled := make(chan struct{}, 1)
	changed := func() {
		select {
		case polled <- struct{}{}:
		default:
		}
	}
	for _, arg := range args {
		name, err := s.named(arg)
		if err != nil {
			return err
		}
		limiters, err := s.followable(ctx, name)
		if err != nil {
			return err
		}
		for _, l := range limiters {
			all = append(all, feed.Follow(ctx, s.Server, l, s.client != "", changed))
		}
	}
	if length > 0 {
		time.AfterFunc(length, cancel)
	}
	if s.json || !terminal(s.Out) {
		return s.watchPlain(ctx, all, polled)
	}
	return render.NewScreen(func(width, height int) []string {
		var sights []feed.Sight
		for _, f := range all {
			sights = append(sights, f.Sight())
		}
		return watchFrame(sights, s.Where, width, height)
	}).Run(ctx, s.in, s.Out)
}

// jsonSecond is the output of watch for a limiter each second.
type jsonSecond struct {
	render.JSONName
	*render.JSONRate
	Client      string    `json:"client,omitempty"`
	At          time.Time `json:"at"`              // end of the second, by the server's clock
	Fault       string    `json:"fault,omitempty"` // why the rate can't be used
	Error       string    `json:"error,omitempty"` // why the poll failed
	Available   int64     `json:"available"`
	Used        int64     `json:"used"`
	LiveRecords int       `json:"live_records"`
	Granted     *int64    `json:"granted"` // in the second; null: it was not seen
	// by the tag of the Go client; "java" for Java or unknown
	GrantedBy  map[string]int64 `json:"granted_by"`
	TTLMs      int64            `json:"ttl_ms"`
	Consistent bool             `json:"consistent"`
	Partial    bool             `json:"partial,omitempty"` // some grants were not read
}

func secondOf(v feed.Sight, at int64) jsonSecond {
	j := jsonSecond{
		JSONName:    render.NameOf(v.Name),
		Client:      v.Client,
		At:          time.Unix(at+1, 0).UTC(),
		Fault:       v.Fault,
		Available:   v.Free,
		Used:        v.Used,
		LiveRecords: v.Records, GrantedBy: map[string]int64{}, TTLMs: v.TTL.Milliseconds(), Consistent: v.Consistent,
		Partial: v.Partial,
	}
	if v.Failed != nil {
		j.Error = v.Failed.Error()
	}
	if v.Rate.Interval > 0 {
		rate := render.RateOf(v.Rate)
		j.JSONRate = &rate
	}
	if second, seen := v.Second(at); seen {
		j.Granted, j.GrantedBy = &second.Permits, feed.ByWriter(second)
	}
	return j
}

// watchPlain writes each whole second of each limiter once, as soon as it is known: first the one
// before the first poll.
func (s *session) watchPlain(ctx context.Context, all []*feed.Followed, polled <-chan struct{}) error {
	written := make([]int64, len(all)) // the last second
	for {
		for i, f := range all {
			v := f.Sight()
			first, last := due(v, written[i])
			for at := first; at <= last; at++ {
				if err := s.watchSecond(v, at); err != nil {
					return err
				}
				written[i] = at
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-polled:
		}
	}
}

// due returns the seconds to write after a poll (written: the last one written so far; first >
// last: none). Polls are mostly a second apart, or a little more, so at most one second falls
// between two of them.
func due(v feed.Sight, written int64) (first, last int64) {
	last = v.Now.Unix() - 1
	switch {
	case v.Now.IsZero():
		return 1, 0 // not polled yet
	case written == 0, last < written-1: // the first poll, or the clock was set back
		return last, last
	}
	return max(written+1, last-1), last
}

// watchSecond writes one second of a limiter.
func (s *session) watchSecond(v feed.Sight, at int64) error {
	if s.json {
		return s.Emit(secondOf(v, at))
	}
	s.Say("%s  %s", time.Unix(at+1, 0).UTC().Format("15:04:05"), watchLine(v, at))
	return nil
}

// watchLine formats one second as a line of plain text.
func watchLine(v feed.Sight, at int64) string {
	switch {
	case v.Failed != nil:
		return fmt.Sprintf("%s: %v", render.Printable(v.Name), v.Failed)
	case v.Fault != "":
		return fmt.Sprintf("%s: %s", render.Printable(v.Name), v.Fault)
	}
	line := fmt.Sprintf("%s %v [%s] %d free, %d in use",
		render.Printable(title(v)), v.Rate, render.Bar(v.Free, v.Rate.Permits, 20, "#", "."), v.Free, v.Used)
	if second, seen := v.Second(at); seen {
		line += fmt.Sprintf(", %d granted in the last second", second.Permits)
	}
	return line
}

// title returns the name of a limiter, with the client whose permits are shown.
func title(v feed.Sight) string {
	if v.Client != "" {
		return v.Name + " " + v.Client
	}
	return v.Name
}

// Lines of a limiter in the view: all of them, and if many share a terminal only the first one.
const watchLines = 6

// watchFrame draws limiters for a terminal of a size.
func watchFrame(sights []feed.Sight, where string, width, height int) []string {
	now := time.Now()
	if len(sights) > 0 && !sights[0].Now.IsZero() {
		now = sights[0].Now
	}
	lines := []string{
		render.Edges(render.Strong.Render("rrl watch")+"  "+where, now.UTC().Format("15:04:05")+" UTC", width), "",
	}
	room := (height - len(lines) - 1) / max(len(sights), 1)
	for i, v := range sights {
		if len(lines) >= height-2 && i < len(sights)-1 {
			lines = append(lines, render.Dim.Render(fmt.Sprintf("%d more", len(sights)-i)))
			break
		}
		block := watchBlock(v, width)
		if room < watchLines {
			block = block[:1]
		} else {
			block = append(block, "")
		}
		lines = append(lines, block...)
	}
	lines = lines[:min(len(lines), max(height-1, 0))]
	return render.Fit(append(lines, render.Dim.Render("q stops")), width, height)
}

// watchBlock draws one limiter.
func watchBlock(v feed.Sight, width int) []string {
	// headed puts the name before a text, cut so that the text fits, too.
	headed := func(text string) string {
		name := render.Cut(render.Printable(title(v)), max(width-2-lipgloss.Width(text), 16))
		return render.Strong.Render(name) + "  " + text
	}
	switch {
	case v.Failed != nil:
		name := render.Cut(render.Printable(title(v)), width/2)
		failure := lipgloss.Wrap(render.Strong.Render(name)+"  "+render.Bad.Render(v.Failed.Error()), width, "")
		return strings.Split(failure, "\n")
	case v.At.IsZero():
		return []string{headed("")}
	case v.Fault != "":
		return []string{headed(render.Warm.Render(v.Fault))}
	}
	cells := render.BarCells(width)
	use := render.Good
	if v.Free == 0 {
		use = render.Warm
	}
	free, granted := v.Columns(cells)
	labelled := func(label, chart, figure string) string {
		return fmt.Sprintf("%-*s%s  %s", render.LabelCells, label, chart, figure)
	}
	state := fmt.Sprintf("%s in %s", render.Number(v.Used, "permit"), render.Number(int64(v.Records), "record"))
	if v.TTL > 0 {
		state += ", gone in " + render.Lasting(v.TTL)
	}
	first := fmt.Sprintf("%v  %s  %s of %s free", v.Rate, use.Render(render.Bar(v.Free, v.Rate.Permits, 20, "█", "░")),
		render.Thousands(v.Free), render.Thousands(v.Rate.Permits))
	if !v.Consistent {
		first += "  " + render.Warm.Render("does not add up: see rrl show")
	}
	second, mean := "–", "–"
	if last, seen := v.LastSecond(); seen {
		second = render.Thousands(last.Permits)
	}
	if known, seen := v.Mean(10); seen {
		mean = fmt.Sprintf("%.1f", known)
	}
	second += " last second, " + mean + " a second"
	if v.Partial {
		second += ", and more"
	}
	return []string{
		headed(first),
		labelled("fewest free",
			use.Render(render.Heights(free, v.Rate.Permits, -1)), "of "+render.Thousands(v.Rate.Permits)),
		labelled("grants", render.Sparks(granted), second),
		labelled("in use", state, ""),
		labelled("granted to", grantedTo(v, width-render.LabelCells), ""),
	}
}

// grantedTo lists who was granted permits, who got most first, as far as they fit.
func grantedTo(v feed.Sight, width int) (list string) {
	writers, permits := feed.Writers(v.Seconds)
	for i, tag := range writers {
		longer := list + fmt.Sprintf("%s %s", survey.Writer{Tag: tag}.Text(), render.Thousands(permits[tag]))
		if rest := len(writers) - i - 1; rest > 0 {
			longer += ", "
			if lipgloss.Width(longer) > width-len("1,000 more") {
				return list + fmt.Sprintf("%d more", rest+1)
			}
		}
		list = longer
	}
	return list
}

// followable returns the limiters to follow under a name: those of each client, if these are
// requested.
func (s *session) followable(ctx context.Context, name string) ([]*connect.Limiter, error) {
	limiters, err := s.states(ctx, name)
	if errors.Is(err, rratelimiter.ErrNotInitialized) && strings.ContainsAny(name, "*?[") {
		err = fmt.Errorf("%w: watch takes names, not a pattern", err)
	}
	if err == nil && len(limiters) == 0 {
		err = fmt.Errorf("no client of %s has state: nobody has used it yet, or not for a while",
			render.Printable(name))
	}
	return limiters, err
}
