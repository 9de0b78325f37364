package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/survey"
	"github.com/rratelimiter/rratelimiter/internal/series"
)

// export.go is the subcommand export: the keys of limiters as metrics for Prometheus, so that Java's grants are
// included. Limiters are read only during a scrape.

func newExport() *cobra.Command {
	c := &common{whose: true}
	var listen, match string
	var every time.Duration
	var most int
	cmd := c.live(&cobra.Command{
		Use:   "export",
		Short: "Serve metrics for Prometheus, read from the keys",
		Long: `export serves metrics for Prometheus at /metrics: of each limiter the limit and its interval, the free permits, the live
permits and their records, the age of the oldest, the TTL, and whether it adds up. They are read from the keys at each
scrape, by Redis's clock, and include the grants of Java services as well as Go's. It changes nothing.

At most --most limiters have metrics; rratelimiter_export_skipped_limiters counts the others. The permits of PER_CLIENT
limiters belong to each client: --client selects one, all exports each client's, which counts as a limiter. While Redis
is unreachable, rratelimiter_export_up is 0. Every client that can reach the address sees names and figures.`,
		Example: `  rrl export --match 'api:*'
  rrl export --listen :9580 --client all`,
		Args: noArgs,
	}, func(ctx context.Context, s *session, _ []string) error {
		switch {
		case every < 0:
			return fmt.Errorf("--every: %v is no time to wait", every)
		case most < 1:
			return fmt.Errorf("--most: %d limiters are none", most)
		}
		listener, err := net.Listen("tcp", listen)
		if err != nil {
			return fmt.Errorf("--listen: %w", err)
		}
		if err := s.served(fmt.Sprintf("http://%s/metrics", listener.Addr())); err != nil {
			return err
		}
		return serveUntil(ctx, listener, newExporter(ctx, s, match, every, most).handler())
	})
	f := cmd.Flags()
	f.StringVar(&match, "match", "*", "`pattern` of Redis for the limiters' names (* ? [a-z])")
	f.StringVar(&listen, "listen", "127.0.0.1:9580", "`address` of the metrics: host:port")
	f.DurationVar(&every, "every", 30*time.Second, "minimum time between two searches for limiters, which go through all keys")
	f.IntVar(&most, "most", 1000, "maximum `number` of limiters")
	c.addFlags(cmd)
	return cmd
}

// An exporter serves scrapes, one at a time: several Prometheus servers cause no more load on Redis at once.
type exporter struct {
	ctx     context.Context // context of searches, which may take longer than a scrape
	session *session
	pattern string
	every   time.Duration // minimum time between searches
	most    int
	errors  prometheus.Counter

	turn    chan struct{} // semaphore of one token; guards the fields below
	listed  listing
	search  chan listing // receives the result of the running search; nil without one
	failing bool         // the last scrape failed, and that was printed
}

// A listing is the result of a search.
type listing struct {
	at      time.Time // start of the search; zero before the first
	names   []string
	clients map[string][]string // clients with their own state, by limiter
	skipped int
	err     error
}

func newExporter(ctx context.Context, s *session, pattern string, every time.Duration, most int) *exporter {
	return &exporter{
		ctx: ctx, session: s, pattern: pattern, every: every, most: most, turn: make(chan struct{}, 1),
		errors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "rratelimiter_export_errors_total", Help: "Searches for limiters, and looks at one, that failed.",
		}),
	}
}

func (e *exporter) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(out http.ResponseWriter, in *http.Request) {
		ctx, cancel := context.WithTimeout(in.Context(), scrapeTime(in.Header))
		defer cancel()
		promhttp.HandlerFor(e.scrape(ctx), promhttp.HandlerOpts{}).ServeHTTP(out, in)
	})
	return mux
}

// scrapeTime returns the time for a response: most of Prometheus's scrape timeout.
func scrapeTime(h http.Header) time.Duration {
	waits, err := strconv.ParseFloat(h.Get("X-Prometheus-Scrape-Timeout-Seconds"), 64)
	if err != nil || !(waits > 0 && waits < 3600) {
		waits = 10 // its default
	}
	return time.Duration(0.9 * waits * float64(time.Second))
}

// scrape reads all limiters. Limiters that could not be read have no metrics.
func (e *exporter) scrape(ctx context.Context) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(e.errors)
	own := promauto.With(registry)
	up := own.NewGauge(prometheus.GaugeOpts{
		Name: "rratelimiter_export_up", Help: "1 if the search for limiters and all looks at them worked.",
	})
	skipped := own.NewGauge(prometheus.GaugeOpts{
		Name: "rratelimiter_export_skipped_limiters", Help: "Limiters without metrics, as there are more than --most.",
	})
	select {
	case e.turn <- struct{}{}:
		defer func() { <-e.turn }()
	case <-ctx.Done():
		e.errors.Inc()
		return registry
	}
	err := e.find(ctx)
	skipped.Set(float64(e.listed.skipped))
	names := e.listed.names
	if server, single := e.session.Redis.(*redis.Client); single {
		if err == nil {
			err = server.Ping(ctx).Err() // fails at once, where a read would be retried
		}
		if err != nil {
			names = nil
		}
	}
	figures := newStateFigures(own, e.session.client != "")
	// The failure of one limiter must not leave out others, such as those on another node.
	failures, late := survey.Each(ctx, names, func(ctx context.Context, name string) (error, error) {
		return e.look(ctx, name, figures), nil
	})
	failures = slices.DeleteFunc(append(failures, err, late), func(err error) bool { return err == nil })
	e.errors.Add(float64(len(failures)))
	if len(failures) == 0 {
		up.Set(1)
	} else if !e.failing {
		fmt.Fprintln(e.session.errs, "rrl: "+connect.LastDefence(e.session.Explain(failures[0]).Error()))
	}
	e.failing = len(failures) > 0
	return registry
}

// find starts a new search if the last listing is too old. A long search continues in the background, and the last
// listing is used meanwhile.
func (e *exporter) find(ctx context.Context) error {
	if e.search == nil && time.Since(e.listed.at) >= e.every {
		done := make(chan listing, 1)
		e.search = done
		go func() { done <- e.list() }()
	}
	if e.search == nil {
		return nil
	}
	enough := ctx.Done()
	if end, ok := ctx.Deadline(); ok && !e.listed.at.IsZero() {
		half, cancel := context.WithTimeout(ctx, time.Until(end)/2)
		defer cancel()
		enough = half.Done()
	}
	select {
	case found := <-e.search:
		e.search = nil
		if found.err == nil {
			e.listed = found
		}
		return found.err
	case <-enough:
		if e.listed.at.IsZero() {
			return errors.New("the first search for limiters is still under way")
		}
		return nil
	}
}

// list searches for limiters.
func (e *exporter) list() listing {
	s, found := e.session, listing{at: time.Now()}
	names, err := survey.Limiters(e.ctx, s.Redis, e.pattern, nil)
	if err == nil && s.client == survey.Everyone {
		var keys []survey.StateKey
		keys, err = survey.StateKeys(e.ctx, s.Redis, nil)
		found.clients = survey.Clients(keys)
	}
	found.err = err
	room := e.most
	for _, name := range names {
		looks := max(1, len(found.clients[name]))
		n := min(looks, room)
		found.skipped += looks - n
		room -= n
		if n > 0 {
			found.names = append(found.names, name)
		}
		if n < len(found.clients[name]) {
			found.clients[name] = found.clients[name][:n]
		}
	}
	return found
}

// look reads a limiter, or each of its requested clients.
func (e *exporter) look(ctx context.Context, name string, figures *stateFigures) error {
	all, err := survey.Glances(ctx, e.session.Server, name, e.session.client, e.listed.clients[name])
	if err != nil {
		return err
	}
	var now time.Time
	if slices.ContainsFunc(all, func(g survey.Glance) bool { return g.State != nil && g.State.Records > 0 }) {
		if now, err = e.session.serverTime(ctx, name); err != nil {
			return err
		}
	}
	for _, one := range all {
		figures.set(one, now)
	}
	return nil
}

// serverTime returns the clock of the server that has a key.
func (s *session) serverTime(ctx context.Context, key string) (time.Time, error) {
	if cluster, ok := s.Redis.(*redis.ClusterClient); ok {
		master, err := cluster.MasterForKey(ctx, key)
		if err != nil {
			return time.Time{}, err
		}
		return master.Time(ctx).Result()
	}
	return s.Redis.Time(ctx).Result()
}

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
		live:      gauge("live_permits", "Permits in live records: granted within the last interval, by Go and by Java."),
		records:   gauge("records", "Live records: grants within the last interval."),
		oldest:    gauge("oldest_record_age_seconds", "Age of the oldest live record; below 0: it is dated in the future."),
		ttl:       gauge("ttl_seconds", "Time until Redis removes the limiter, where it does not live for ever."),
		consistent: gauge("consistent", "1 if free permits and records add up to the limit; "+
			"0 if they don't, or the limiter can't be used."),
	}
}

// set sets the metrics of a limiter, or of one of its clients; now is the server's time of the read.
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
