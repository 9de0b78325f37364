package options

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

const ms = time.Millisecond

// Settings are the options of a limiter, as a story draws them.
type settings struct {
	rate rratelimiter.Rate // in force
	rows []string          // the options that are set, in the order in which they are given

	granularity, lease time.Duration
	format             rratelimiter.RecordFormat
	cached             int
	debt               int
	fraction           float64
}

// Has reports whether an option is set.
func (s *settings) has(option string) bool { return slices.Contains(s.rows, option) }

func (s settings) String() string {
	text := s.rate.String()
	for _, name := range s.rows {
		text += " " + strings.TrimPrefix(name, "With")
		if value := rowOf(name).value; value != nil {
			text += fmt.Sprintf("(%v)", value(&s))
		}
	}
	return text
}

// Options returns the options of a limiter.
func (s *settings) options() (opts []rratelimiter.LimiterOption) {
	for _, name := range s.rows {
		opts = append(opts, rowOf(name).option(s))
	}
	return opts
}

// A row is an option of a limiter.
type row struct {
	name   string
	option func(s *settings) rratelimiter.LimiterOption
	// draws a value; wild: also one that the option refuses. nil: the option has no value
	draw  func(t *rapid.T, s *settings, wild bool)
	value func(s *settings) any
	// reports whether the option refuses its value or another option. nil: it refuses nothing
	refuses func(s *settings) bool
}

// limiterRows are all options of a limiter.
var limiterRows = []row{
	{
		name:   "WithRate",
		option: func(s *settings) rratelimiter.LimiterOption { return rratelimiter.WithRate(s.rate) },
	},
	{
		name:   "WithEnforcedRate",
		option: func(s *settings) rratelimiter.LimiterOption { return rratelimiter.WithEnforcedRate(s.rate) },
	},
	{
		name:   "WithServerTime",
		option: func(*settings) rratelimiter.LimiterOption { return rratelimiter.WithServerTime() },
	},
	{
		name:   "WithRecordFormat",
		option: func(s *settings) rratelimiter.LimiterOption { return rratelimiter.WithRecordFormat(s.format) },
		draw: func(t *rapid.T, s *settings, wild bool) {
			all := rig.Formats
			if wild {
				all = append(slices.Clone(all), -1, rratelimiter.RecordFormat(len(rig.Formats)))
			}
			s.format = one(t, "format", all)
		},
		value:   func(s *settings) any { return s.format },
		refuses: func(s *settings) bool { return !slices.Contains(rig.Formats, s.format) },
	},
	{
		name:   "WithRecordPerRequest",
		option: func(*settings) rratelimiter.LimiterOption { return rratelimiter.WithRecordPerRequest() },
		refuses: func(s *settings) bool {
			return s.has("WithGranularity") || s.has("WithLease")
		},
	},
	{
		name:    "WithGranularity",
		option:  func(s *settings) rratelimiter.LimiterOption { return rratelimiter.WithGranularity(s.granularity) },
		draw:    func(t *rapid.T, s *settings, wild bool) { s.granularity = part(t, s, wild) },
		value:   func(s *settings) any { return s.granularity },
		refuses: func(s *settings) bool { return refusesPart(s, s.granularity) || s.has("WithLease") },
	},
	{
		name:   "WithLease",
		option: func(s *settings) rratelimiter.LimiterOption { return rratelimiter.WithLease(s.lease) },
		draw:   func(t *rapid.T, s *settings, wild bool) { s.lease = part(t, s, wild) },
		value:  func(s *settings) any { return s.lease },
		refuses: func(s *settings) bool {
			return refusesPart(s, s.lease) || s.has("WithRecordFormat") && s.format == rratelimiter.Redisson313
		},
	},
	{
		name:   "WithDenyCache",
		option: func(s *settings) rratelimiter.LimiterOption { return rratelimiter.WithDenyCache(s.cached) },
		draw: func(t *rapid.T, s *settings, wild bool) {
			all := []int{1, 2, 1000}
			if wild {
				all = append(all, 0, -1)
			}
			s.cached = one(t, "cached", all)
		},
		value:   func(s *settings) any { return s.cached },
		refuses: func(s *settings) bool { return s.cached < 1 },
	},
	{
		name:   "WithMaxDebt",
		option: func(s *settings) rratelimiter.LimiterOption { return rratelimiter.WithMaxDebt(s.debt) },
		draw: func(t *rapid.T, s *settings, wild bool) {
			all := []int{0, 1, 2, 1000}
			if wild {
				all = append(all, -1, 1001)
			}
			s.debt = one(t, "debt", all)
		},
		value:   func(s *settings) any { return s.debt },
		refuses: func(s *settings) bool { return s.debt < 0 || s.debt > 1000 },
	},
	{
		name:   "WithFailFast",
		option: func(*settings) rratelimiter.LimiterOption { return rratelimiter.WithFailFast() },
	},
	{
		name:   "WithInstalments",
		option: func(*settings) rratelimiter.LimiterOption { return rratelimiter.WithInstalments() },
	},
	{
		name:   "WithFallback",
		option: func(s *settings) rratelimiter.LimiterOption { return rratelimiter.WithFallback(s.fraction) },
		draw: func(t *rapid.T, s *settings, wild bool) {
			all := []float64{0, 1, 0.5, 0.01}
			if wild {
				all = append(all, -0.01, 1.01)
			}
			s.fraction = one(t, "fraction", all)
		},
		value:   func(s *settings) any { return s.fraction },
		refuses: func(s *settings) bool { return s.fraction < 0 || s.fraction > 1 },
	},
}

// limiterOptions are their names. Those that change which requests are served, and when, stand
// there more often.
var limiterOptions []string

func init() {
	for _, r := range limiterRows {
		limiterOptions = append(limiterOptions, r.name)
	}
	limiterOptions = append(
		limiterOptions, "WithFailFast", "WithInstalments", "WithFailFast", "WithInstalments", "WithDenyCache",
		"WithFallback",
	)
}

// clientRows are all options of a client. A story gives each one that it draws to all its clients.
var clientRows = map[string]func(s *story) rratelimiter.Option{
	"WithClientID":   func(*story) rratelimiter.Option { return rratelimiter.WithClientID("me") },
	"WithNameMapper": func(*story) rratelimiter.Option { return rratelimiter.WithNameMapper(mapped) },
	"WithClock": func(*story) rratelimiter.Option {
		return rratelimiter.WithClock(func() time.Time { return time.Now().Truncate(ms) })
	},
	"WithCallTimeout": func(*story) rratelimiter.Option { return rratelimiter.WithCallTimeout(500 * ms) },
	"WithObserver":    func(*story) rratelimiter.Option { return rratelimiter.WithObserver(new(rig.Log)) },
	"WithLimiterDefaults": func(s *story) rratelimiter.Option {
		return rratelimiter.WithLimiterDefaults(s.limiters[0].options()...)
	},
}

func mapped(name string) string { return name + ":mapped" }

// part draws the length of a granularity or a lease: the bound, a tenth of the interval, and what
// is on both sides of it.
func part(t *rapid.T, s *settings, wild bool) time.Duration {
	tenth := s.rate.Interval / 10
	all := []time.Duration{ms, 2 * ms, tenth / 2, tenth}
	if wild {
		all = append(all, -ms, 0, time.Microsecond, tenth+ms, s.rate.Interval, tenth-time.Microsecond)
	} else {
		all = slices.DeleteFunc(all, func(d time.Duration) bool { return d < ms || d > tenth || d%ms != 0 })
	}
	if len(all) == 0 {
		return ms
	}
	return one(t, "length", all)
}

func refusesPart(s *settings, d time.Duration) bool {
	own := s.has("WithRate") || s.has("WithEnforcedRate")
	return d <= 0 || d%ms != 0 || own && d > s.rate.Interval/10
}

func rowOf(name string) row {
	return limiterRows[slices.IndexFunc(limiterRows, func(r row) bool { return r.name == name })]
}

// Refused returns the name of an option that refuses its value or another option; "" if none does.
func (s *settings) refused() string {
	for _, name := range s.rows {
		if refuses := rowOf(name).refuses; refuses != nil && refuses(s) {
			return name
		}
	}
	return ""
}

// drawOptions draws up to four options of a limiter with a rate. wild: also some that are refused.
func drawOptions(t *rapid.T, rate rratelimiter.Rate, wild bool) settings {
	s := settings{rate: rate, cached: 1}
	for range one(t, "options", []int{2, 3, 4, 2, 1, 0}) {
		r := rowOf(one(t, "option", limiterOptions))
		if s.has(r.name) {
			continue
		}
		before := s
		s.rows = append(slices.Clone(s.rows), r.name)
		if r.draw != nil {
			r.draw(t, &s, wild)
		}
		if !wild && s.refused() != "" {
			s = before
		}
	}
	return s
}

// TestEveryOptionHasARow: a new option is added to the table in the commit that adds it.
func TestEveryOptionHasARow(t *testing.T) {
	rows := map[string]bool{}
	for _, r := range limiterRows {
		rows[r.name] = true
	}
	for name := range clientRows {
		rows[name] = true
	}
	found := map[string]bool{}
	for name, doc := range rig.Docs(t, "../../..") {
		if !strings.HasPrefix(name, "With") || strings.Contains(name, ".") {
			continue
		}
		if found[name] = true; !rows[name] {
			t.Errorf("%s has no row: the generator of option sets learns it in the same commit", name)
		}
		if rig.TooLong(doc) {
			t.Errorf("the godoc of %s has more than 15 lines", name)
		}
	}
	for name := range rows {
		if !found[name] {
			t.Errorf("%s has a row and is no option", name)
		}
	}
}

// TestEachOptionSaysWhatItIsNotCombinedWith: of two options that are refused together, the godoc of
// each names the other.
func TestEachOptionSaysWhatItIsNotCombinedWith(t *testing.T) {
	client := rratelimiter.NewClient(rig.RefusingClient(t))
	refuses := func(s settings, names ...string) bool {
		s.rows = names
		return errors.Is(rig.OptionsError(client.RateLimiter("rl", s.options()...)), rratelimiter.ErrInvalidOption)
	}
	docs, names := rig.Docs(t, "../../.."), []string{}
	for _, r := range limiterRows {
		names = append(names, r.name)
	}
	sets := rig.Refused(names, func(set ...string) bool {
		for _, format := range rig.Formats {
			for _, part := range []time.Duration{ms, 100 * ms, 101 * ms} {
				s := settings{
					rate:        rratelimiter.PerSecond(10),
					granularity: part,
					lease:       part,
					format:      format,
					cached:      1,
					debt:        1,
					fraction:    1,
				}
				alone := slices.ContainsFunc(set, func(one string) bool { return refuses(s, one) })
				if !alone && refuses(s, set...) {
					return true
				}
			}
		}
		return false
	})
	if len(sets) == 0 {
		t.Fatal("nothing is refused")
	}
	for _, set := range sets {
		for i, one := range set {
			if others := slices.Delete(slices.Clone(set), i, i+1); !rig.SaysNotWith(docs[one], others...) {
				t.Errorf("the godoc of %s does not say that it cannot be combined with %v", one, others)
			}
		}
	}
}
