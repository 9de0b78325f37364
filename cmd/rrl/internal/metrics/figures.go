package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/survey"
	"github.com/rratelimiter/rratelimiter/internal/series"
)

// stateFigures has the metrics of limiters in one scrape.
type stateFigures struct {
	byClient                                               bool
	limit, interval, available, live, records, oldest, ttl *prometheus.GaugeVec
	consistent                                             *prometheus.GaugeVec
}

func newStateFigures(own promauto.Factory, byClient bool) *stateFigures {
	labels := []string{"limiter"}
	if byClient {
		labels = append(labels, "client")
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return own.NewGaugeVec(prometheus.GaugeOpts{Name: "rratelimiter_state_" + name, Help: help}, labels)
	}
	return &stateFigures{
		byClient:  byClient,
		limit:     gauge("limit_permits", "Permits that may be granted in any interval."),
		interval:  gauge("interval_seconds", "The interval of the limit."),
		available: gauge("available_permits", "Permits free now, expired ones counted as free."),
		live: gauge("live_permits",
			"Permits in live records: granted within the last interval, by Go and by Java."),
		records: gauge("records", "Live records, each of one or more grants within the last interval."),
		oldest: gauge("oldest_record_age_seconds",
			"Age of the oldest live record; below 0: it is dated in the future."),
		ttl: gauge("ttl_seconds", "Time until Redis removes the limiter, if it has a TTL."),
		consistent: gauge("consistent", "1 if free permits and records add up to the limit; "+
			"0 if they don't, or the limiter can't be used."),
	}
}

// set sets the metrics of a limiter, or of one of its clients; now is the server's time of the
// read.
func (g *stateFigures) set(one survey.Glance, now time.Time) {
	labels := []string{series.LabelOf(one.Name)}
	if g.byClient {
		labels = append(labels, series.LabelOf(one.Client))
	}
	set := func(metric *prometheus.GaugeVec, value float64) { metric.WithLabelValues(labels...).Set(value) }
	if one.Known {
		set(g.limit, float64(one.Rate.Permits))
		set(g.interval, float64(one.Rate.Interval.Milliseconds())/1e3)
	}
	if ttl := one.TTL.Milliseconds(); ttl > 0 {
		set(g.ttl, float64(ttl)/1e3)
	}
	state := one.State
	if state != nil {
		set(g.available, float64(state.Available))
		set(g.live, float64(state.Used))
		set(g.records, float64(state.Records))
		if state.Records > 0 {
			set(g.oldest, now.Sub(state.Oldest).Seconds())
		}
	}
	switch {
	case one.Fault != "" || state != nil && !state.Consistent:
		set(g.consistent, 0)
	case state != nil:
		set(g.consistent, 1)
	}
}
