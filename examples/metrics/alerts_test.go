package main

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limittest"
	"github.com/rratelimiter/rratelimiter/promlimit"
)

// A sample is a value of a series at a time, as Prometheus stores it.
type sample struct {
	at    int64 // ms
	value float64
}

func (s sample) T() int64                      { return s.at }
func (s sample) ST() int64                     { return 0 } // no start time is known
func (s sample) F() float64                    { return s.value }
func (s sample) H() *histogram.Histogram       { return nil }
func (s sample) FH() *histogram.FloatHistogram { return nil }
func (s sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample           { return s }

// A series has the samples of one metric with one set of labels.
type series struct {
	labels  labels.Labels
	samples []chunks.Sample
}

// A history has all scraped series, by the text of their labels.
type history map[string]*series

func (h history) add(at time.Duration, name string, pairs []*dto.LabelPair, value float64, more ...string) {
	all := append([]string{model.MetricNameLabel, name, "job", "shop"}, more...)
	for _, pair := range pairs {
		if pair.GetValue() != "" {
			all = append(all, pair.GetName(), pair.GetValue())
		}
	}
	set := labels.FromStrings(all...)
	if h[set.String()] == nil {
		h[set.String()] = &series{labels: set}
	}
	found := h[set.String()]
	found.samples = append(found.samples, sample{at.Milliseconds(), value})
}

// find returns the series that match, for the engine.
func (h history) find(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	var chosen []storage.Series
	for _, s := range h {
		if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(s.labels.Get(m.Name)) }) {
			chosen = append(chosen, storage.NewListSeries(s.labels, s.samples))
		}
	}
	return &set{SeriesSet: storage.EmptySeriesSet(), chosen: chosen}
}

// A set is a list of series, as a storage.SeriesSet.
type set struct {
	storage.SeriesSet // the other methods
	chosen            []storage.Series
	at                int
}

func (s *set) Next() bool         { s.at++; return s.at <= len(s.chosen) }
func (s *set) At() storage.Series { return s.chosen[s.at-1] }

// scrape adds the values of a registry at a time.
func (h history) scrape(t *testing.T, at time.Duration, registry *prometheus.Registry) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			switch f.GetType() {
			case dto.MetricType_COUNTER:
				h.add(at, f.GetName(), m.Label, m.Counter.GetValue())
			case dto.MetricType_GAUGE:
				h.add(at, f.GetName(), m.Label, m.Gauge.GetValue())
			case dto.MetricType_HISTOGRAM:
				for _, b := range m.Histogram.Bucket {
					bound := strconv.FormatFloat(b.GetUpperBound(), 'g', -1, 64)
					h.add(at, f.GetName()+"_bucket", m.Label, float64(b.GetCumulativeCount()), "le", bound)
				}
				h.add(at, f.GetName()+"_bucket", m.Label, float64(m.Histogram.GetSampleCount()), "le", "+Inf")
			}
		}
	}
}

// firing returns the alerts whose expressions are true at the end of a history.
func (h history) firing(t *testing.T, end time.Duration) (names []string) {
	t.Helper()
	groups, problems := alerts()
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute})
	stored := &storage.MockQueryable{MockQuerier: &storage.MockQuerier{SelectMockFunction: h.find}}
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			query, err := engine.NewInstantQuery(t.Context(), stored, nil, rule.Expr,
				time.UnixMilli(end.Milliseconds()))
			if err != nil {
				t.Fatal(err)
			}
			result, err := query.Exec(t.Context()).Vector()
			if err != nil {
				t.Fatalf("%s: %v", rule.Alert, err)
			}
			if len(result) > 0 {
				names = append(names, rule.Alert)
			}
			query.Close()
		}
	}
	slices.Sort(names)
	return names
}

// Prometheus reads the metrics every minute for an hour, while the same calls repeat.
func TestAlertsFireWhenTheyShould(t *testing.T) {
	down := errors.New("down")
	good := rratelimiter.CallInfo{
		Callers:  10,
		Granted:  8,
		Denied:   2,
		Permits:  8,
		Attempts: 1,
		Latency:  time.Millisecond,
	}
	for name, c := range map[string]struct {
		more     rratelimiter.CallInfo // in addition to a good call
		blocked  time.Duration
		outcome  string // of a guard, in addition to many good ones
		expected []string
	}{
		"all is well": {good, time.Second, "", nil},
		"calls fail":  {rratelimiter.CallInfo{Denied: 1, Err: down}, 0, "", []string{"RateLimiterCallsFail"}},
		"a reply is lost": {
			rratelimiter.CallInfo{Err: rratelimiter.ErrOutcomeUnknown}, 0, "",
			[]string{"RateLimiterCallsFail", "RateLimiterOutcomeUnknown"},
		},
		"Redis is unavailable": {rratelimiter.CallInfo{Fallback: true}, 0, "", []string{"RateLimiterFallsBack"}},
		"Redis is slow": {
			rratelimiter.CallInfo{Latency: 300 * time.Millisecond}, 0, "", []string{"RateLimiterSlow"},
		},
		"most is refused": {
			rratelimiter.CallInfo{Denied: 5, DenyCacheHits: 5}, 0, "", []string{"RateLimiterRefusesMost"},
		},
		"another rate":   {rratelimiter.CallInfo{RateMismatch: true}, 0, "", []string{"RateLimiterRateMismatch"}},
		"a broken state": {rratelimiter.CallInfo{Repaired: "x"}, 0, "", []string{"RateLimiterRepaired"}},
		"callers are cancelled": {
			rratelimiter.CallInfo{Permits: 2, Unclaimed: 2}, 0, "", []string{"RateLimiterPermitsUnclaimed"},
		},
		"callers wait":            {good, time.Minute, "", []string{"RateLimiterWaitsLong"}},
		"a guard fails open":      {good, 0, "failed open", []string{"RateLimiterGuardFails"}},
		"a guard fails closed":    {good, 0, "failed closed", []string{"RateLimiterGuardFails"}},
		"a guard allows locally":  {good, 0, "allowed locally", []string{"RateLimiterGuardDecidesLocally"}},
		"a guard denies locally":  {good, 0, "denied locally", []string{"RateLimiterGuardDecidesLocally"}},
		"a shadow denies locally": {good, 0, "shadowed locally", []string{"RateLimiterGuardDecidesLocally"}},
		"a guard refuses":         {good, 0, "denied", nil},
	} {
		t.Run(name, func(t *testing.T) {
			metrics := promlimit.New(promlimit.Config{})
			registry := prometheus.NewRegistry()
			registry.MustRegister(metrics)
			h := history{}
			for minute := range 60 {
				metrics.Call(good)
				metrics.Call(c.more)
				metrics.Request(t.Context(), rratelimiter.RequestInfo{Waits: true, Latency: c.blocked})
				for _, outcome := range append(slices.Repeat([]string{"allowed", "unlimited"}, 10), c.outcome) {
					metrics.Guard(t.Context(), rratelimiter.GuardInfo{Policy: "api", Outcome: outcome})
				}
				h.scrape(t, time.Duration(minute)*time.Minute, registry)
			}
			if got := h.firing(t, 59*time.Minute); !slices.Equal(got, c.expected) {
				t.Errorf("alerts: %q, expected %q", got, c.expected)
			}
		})
	}
}

func TestAnAlertFiresWhenAllWait(t *testing.T) {
	server := limittest.New(t)
	metrics := promlimit.New(promlimit.Config{})
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	l := server.Client(rratelimiter.WithObserver(metrics)).RateLimiter("l",
		rratelimiter.WithRate(rratelimiter.PerHour(1)))
	if err := l.Acquire(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error)
	go func() { gone <- l.Acquire(ctx, 1) }()
	server.AwaitWaiting("l", 1)
	h := history{}
	for minute := range 20 {
		h.scrape(t, time.Duration(minute)*time.Minute, registry)
	}
	if got := h.firing(t, 19*time.Minute); !slices.Contains(got, "RateLimiterStuck") {
		t.Errorf("alerts: %q", got)
	}
	cancel()
	<-gone
	h.scrape(t, 20*time.Minute, registry)
	if got := h.firing(t, 20*time.Minute); slices.Contains(got, "RateLimiterStuck") {
		t.Errorf("without waiting callers: %q", got)
	}
}

func TestAlertsFireOnWhatStandsInRedis(t *testing.T) {
	for value, expected := range map[float64][]string{0: {"RateLimiterExportDown", "RateLimiterStateBroken"}, 1: nil} {
		h := history{}
		h.add(time.Hour, "rratelimiter_export_up", nil, value)
		h.add(time.Hour, "rratelimiter_state_consistent", nil, 1, "limiter", "good")
		h.add(time.Hour, "rratelimiter_state_consistent", nil, value, "limiter", "orders")
		if got := h.firing(t, time.Hour); !slices.Equal(got, expected) {
			t.Errorf("of %v, alerts: %q, expected %q", value, got, expected)
		}
	}
}
