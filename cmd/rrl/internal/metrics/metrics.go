// Package metrics exports the state of limiters in Redis to Prometheus. It does not parse commands.
package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/survey"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/web"
)

// Options say which limiters are exported.
type Options struct {
	// whose permits are exported of a PER_CLIENT limiter: "", an id, or survey.Everyone
	Client  string
	Pattern string        // of Redis, for the names
	Every   time.Duration // minimum time between two searches for limiters
	Most    int           // maximum number of limiters
}

// An Exporter serves scrapes, one at a time: several Prometheus servers cause no more load on Redis
// at once.
type Exporter struct {
	ctx    context.Context // context of searches, which may take longer than a scrape
	link   *connect.Link
	errs   io.Writer // where the first failure is printed
	errors prometheus.Counter
	Options

	turn    chan struct{}   // semaphore of one token; guards the fields below
	server  *connect.Server // nil until it has answered
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

// New returns an exporter of a server's limiters. Searches for limiters end with ctx. The first
// failure after a success is written to errs.
func New(ctx context.Context, link *connect.Link, o Options, errs io.Writer) *Exporter {
	return &Exporter{
		ctx: ctx, link: link, errs: errs, Options: o, turn: make(chan struct{}, 1),
		errors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "rratelimiter_export_errors_total",
			Help: "Failed searches for limiters, and failed reads of a limiter.",
		}),
	}
}

// Handler returns the handler of scrapes, at /metrics, of probes (web.Probe), and of a page at /
// that links to them. Limiters are read only during a scrape. It is ready while Redis answers.
func (e *Exporter) Handler() http.Handler {
	mux := http.NewServeMux()
	web.Probe(mux, e.link.Ping)
	mux.HandleFunc("GET /{$}", func(out http.ResponseWriter, _ *http.Request) {
		out.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(out, front) // an error means that the client has disconnected
	})
	mux.HandleFunc("GET /metrics", func(out http.ResponseWriter, in *http.Request) {
		ctx, cancel := context.WithTimeout(in.Context(), scrapeTime(in.Header))
		defer cancel()
		promhttp.HandlerFor(e.scrape(ctx), promhttp.HandlerOpts{}).ServeHTTP(out, in)
	})
	return mux
}

const front = `<!doctype html>
<html lang="en">
<title>rrl export</title>
<p>rrl export: <a href="metrics">metrics of limiters</a>, for Prometheus; <a href="healthz">healthz</a> and
<a href="readyz">readyz</a>, for probes.</p>
</html>
`

// scrapeTime returns the time for a response: most of Prometheus's scrape timeout.
func scrapeTime(h http.Header) time.Duration {
	waits, err := strconv.ParseFloat(h.Get("X-Prometheus-Scrape-Timeout-Seconds"), 64)
	if err != nil || !(waits > 0 && waits < 3600) {
		waits = 10 // its default
	}
	return time.Duration(0.9 * waits * float64(time.Second))
}

// scrape reads all limiters. Limiters that could not be read have no metrics.
func (e *Exporter) scrape(ctx context.Context) *prometheus.Registry {
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
	var err error
	if e.server == nil {
		if e.server, err = e.link.Server(); err != nil {
			e.errors.Inc()
			e.failing = true // connect.Dial has printed it
			return registry
		}
	}
	err = e.find(ctx)
	skipped.Set(float64(e.listed.skipped))
	names := e.listed.names
	if server, single := e.server.Redis.(*redis.Client); single {
		if err == nil {
			err = server.Ping(ctx).Err() // fails at once, where a read would be retried
		}
		if err != nil {
			names = nil
		}
	}
	figures := newStateFigures(own, e.Client != "")
	// The failure of one limiter must not leave out others, such as those on another node.
	failures, late := survey.Each(ctx, names, func(ctx context.Context, name string) (error, error) {
		return e.look(ctx, name, figures), nil
	})
	failures = slices.DeleteFunc(append(failures, err, late), func(err error) bool { return err == nil })
	e.errors.Add(float64(len(failures)))
	if len(failures) == 0 {
		up.Set(1)
	} else if !e.failing {
		fmt.Fprintln(e.errs, "rrl: "+connect.LastDefence(e.server.Explain(failures[0]).Error()))
	}
	e.failing = len(failures) > 0
	return registry
}

// find starts a new search if the last listing is too old. A long search continues in the
// background, and the last listing is used meanwhile.
func (e *Exporter) find(ctx context.Context) error {
	if e.search == nil && time.Since(e.listed.at) >= e.Every {
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
func (e *Exporter) list() listing {
	s, found := e.server, listing{at: time.Now()}
	names, err := survey.Limiters(e.ctx, s.Redis, e.Pattern, nil)
	if err == nil && e.Client == survey.Everyone {
		var keys []survey.StateKey
		keys, err = survey.StateKeys(e.ctx, s.Redis, nil)
		found.clients = survey.Clients(keys)
	}
	found.err = err
	room := e.Most
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
func (e *Exporter) look(ctx context.Context, name string, figures *stateFigures) error {
	all, err := survey.Glances(ctx, e.server, name, e.Client, e.listed.clients[name])
	if err != nil {
		return err
	}
	var now time.Time
	if slices.ContainsFunc(all, func(g survey.Glance) bool { return g.State != nil && g.State.Records > 0 }) {
		if now, err = serverTime(ctx, e.server, name); err != nil {
			return err
		}
	}
	for _, one := range all {
		figures.set(one, now)
	}
	return nil
}

// serverTime returns the clock of the server that has a key.
func serverTime(ctx context.Context, s *connect.Server, key string) (time.Time, error) {
	if cluster, ok := s.Redis.(*redis.ClusterClient); ok {
		master, err := cluster.MasterForKey(ctx, key)
		if err != nil {
			return time.Time{}, err
		}
		return master.Time(ctx).Result()
	}
	return s.Redis.Time(ctx).Result()
}
