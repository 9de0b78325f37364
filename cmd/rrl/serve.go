package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/feed"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/survey"
)

// serve.go is the subcommand serve: the view of watch as a read-only web page. The page is in web/; it gets its data by
// server-sent events.

//go:embed web
var webFiles embed.FS

func newServe() *cobra.Command {
	c := &common{whose: true}
	var listen string
	var hosts []string
	cmd := c.live(&cobra.Command{
		Use:   "serve [PATTERN]",
		Short: "Serve a web page with live limiters",
		Long: `serve shows limiters on a web page: permits free over time, and grants by second and by client. It changes nothing,
loads nothing from other servers, and polls only the limiters that an open page shows.

The page lists the limiters whose name matches a pattern of Redis (* ? [a-z]), or all. Every client that can reach the
address sees it: outside this machine, put a proxy with authentication in front of it.

It answers requests for the address it listens on, for localhost, and for the names of --host, and refuses all others:
else a foreign page, open in your browser, could read this one under a name of its own (DNS rebinding).`,
		Example: `  rrl serve
  rrl serve 'api:*' --listen 127.0.0.1:9000
  rrl serve --listen :8580 --host limits.example.com`,
		Args:              onePattern,
		ValidArgsFunction: c.complete,
	}, func(ctx context.Context, s *session, args []string) error {
		pattern, err := s.pattern(args)
		if err != nil {
			return err
		}
		listener, err := net.Listen("tcp", listen)
		if err != nil {
			return fmt.Errorf("--listen: %w", err)
		}
		if err := s.served(fmt.Sprintf("http://%s", listener.Addr())); err != nil {
			return err
		}
		name, _, _ := net.SplitHostPort(listen) // no error: the listener has accepted it
		return newSite(ctx, s, pattern, append(hosts, name)).serve(listener)
	})
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:8580", "`address` of the page: host:port")
	cmd.Flags().StringSliceVar(&hosts, "host", nil, "also accept this `name` in the Host header, as a proxy may send it; may be repeated")
	c.addFlags(cmd)
	return cmd
}

// served prints the URL.
func (s *session) served(url string) error {
	if s.json {
		return s.Emit(struct {
			URL string `json:"url"`
		}{url})
	}
	s.Say("%s", url)
	return nil
}

// A site is shared by all readers of the page: a limiter that several of them have open is polled once.
type site struct {
	ctx     context.Context
	session *session
	pattern string
	hosts   []string // accepted Host headers, beside its address and localhost

	mu   sync.Mutex
	open map[string]*shown
}

// shown is a limiter that is open on a page.
type shown struct {
	*feed.Followed
	readers map[chan struct{}]bool // each gets a signal after a poll
	stop    context.CancelFunc
}

func newSite(ctx context.Context, s *session, pattern string, hosts []string) *site {
	return &site{ctx: ctx, session: s, pattern: pattern, hosts: hosts, open: map[string]*shown{}}
}

// answers reports whether a request is for this page, by its Host header: a browser sends there the address that its
// user sees, whatever that resolves to.
func (w *site) answers(in *http.Request) bool {
	host := in.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.Trim(host, "[]"), ".")
	if ip := net.ParseIP(host); ip != nil {
		local, _ := in.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
		if local != nil && ip.Equal(local.IP) || ip.IsLoopback() {
			return true
		}
	}
	return strings.EqualFold(host, "localhost") || host != "" && slices.ContainsFunc(w.hosts, func(name string) bool {
		return strings.EqualFold(host, strings.TrimSuffix(name, "."))
	})
}

// serve serves the page until the site's context ends.
func (w *site) serve(listener net.Listener) error { return serveUntil(w.ctx, listener, w.handler()) }

// serveUntil serves until ctx ends, and all requests with it.
func serveUntil(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: 10 * time.Second,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	ended := context.AfterFunc(ctx, func() {
		soon, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = server.Shutdown(soon)
	})
	defer ended()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (w *site) handler() http.Handler {
	files, err := fs.Sub(webFiles, "web")
	if err != nil {
		panic(err) // the folder is embedded
	}
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(files))
	mux.HandleFunc("GET /limiters", w.list)
	mux.HandleFunc("GET /events", w.events)
	return http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
		h := out.Header()
		h.Set("Content-Security-Policy", "default-src 'self'; base-uri 'none'; frame-ancestors 'none'; form-action 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		if !w.answers(in) {
			http.Error(out, "this name is not the page's: rrl serve --host NAME lets it answer to another one",
				http.StatusMisdirectedRequest)
			return
		}
		mux.ServeHTTP(out, in)
	})
}

// mostListed is the maximum of limiters that the page lists: for more, its user has to search.
const mostListed = 500

// listed is the response with the limiters.
type listed struct {
	Where    string        `json:"where"`
	Limiters []listedEntry `json:"limiters"`
	More     int           `json:"more"` // number of matches that are not listed
}

type listedEntry struct {
	render.JSONName
	Rate      string `json:"rate,omitempty"`
	Permits   int64  `json:"permits"`
	Available int64  `json:"available"`
	Fault     string `json:"fault,omitempty"`
}

// list writes the limiters whose names contain the search text.
func (w *site) list(out http.ResponseWriter, in *http.Request) {
	ctx, s := in.Context(), w.session
	names, err := survey.Limiters(ctx, s.Redis, w.pattern, nil)
	if err != nil {
		http.Error(out, s.Explain(err).Error(), http.StatusBadGateway)
		return
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !strings.Contains(name, in.FormValue("search")) })
	answer := listed{Where: s.Where, Limiters: []listedEntry{}, More: max(len(names)-mostListed, 0)}
	found, err := survey.Each(ctx, names[:len(names)-answer.More], func(ctx context.Context, name string) ([]survey.Glance, error) {
		return survey.Glances(ctx, s.Server, name, s.client, nil)
	})
	if err != nil {
		http.Error(out, s.Explain(err).Error(), http.StatusBadGateway)
		return
	}
	for _, g := range slices.Concat(found...) {
		entry := listedEntry{JSONName: render.NameOf(g.Name), Fault: g.Fault}
		if g.Known {
			entry.Rate = g.Rate.String()
		}
		if g.State != nil {
			entry.Permits, entry.Available = g.Rate.Permits, g.State.Available
		}
		answer.Limiters = append(answer.Limiters, entry)
	}
	out.Header().Set("Content-Type", "application/json")
	out.Header().Set("Cache-Control", "no-store")
	text, err := render.JSON(answer)
	if err != nil {
		http.Error(out, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = out.Write(text) // an error means that the client has disconnected
}

// clientOrNone returns the one client whose permits are shown; "" if there is none.
func (s *session) clientOrNone() string {
	if s.client == survey.Everyone {
		return ""
	}
	return s.client
}

// mostOpen is the maximum of limiters that one reader has open.
const mostOpen = 24

// event is sent to the page for one limiter after a poll: the whole known state at first, then the changes.
type event struct {
	render.JSONName
	Client     string      `json:"client,omitempty"`
	At         int64       `json:"at"` // ms since the epoch, by the server's clock
	Rate       string      `json:"rate,omitempty"`
	Type       string      `json:"type,omitempty"`
	Permits    int64       `json:"permits"`
	IntervalMs int64       `json:"interval_ms"`
	Available  int64       `json:"available"`
	Used       int64       `json:"used"`
	Records    int         `json:"records"`
	TTLMs      int64       `json:"ttl_ms"`
	Consistent bool        `json:"consistent"`
	Partial    bool        `json:"partial,omitempty"`
	Fault      string      `json:"fault,omitempty"`
	Error      string      `json:"error,omitempty"`
	Free       [][2]int64  `json:"free"`   // time in ms, permits free
	Grants     []secondRow `json:"grants"` // replace earlier grants of the same seconds
}

type secondRow struct {
	At int64            `json:"at"` // ms
	By map[string]int64 `json:"by"` // by the tag of the Go client; "java" for Java or unknown
}

func eventOf(v feed.Sight, since time.Time) event {
	e := event{
		JSONName: render.NameOf(v.Name), Client: v.Client, At: v.At.UnixMilli(), Available: v.Free, Used: v.Used, Records: v.Records,
		TTLMs: v.TTL.Milliseconds(), Consistent: v.Consistent, Partial: v.Partial, Fault: v.Fault,
		Free: [][2]int64{}, Grants: []secondRow{},
	}
	if v.Rate.Permits > 0 {
		e.Rate, e.Type = v.Rate.String(), v.Rate.Type.String()
		e.Permits, e.IntervalMs = v.Rate.Permits, v.Rate.Interval.Milliseconds()
	}
	if v.Failed != nil {
		e.Error = v.Failed.Error()
	}
	for _, p := range v.Frees {
		if p.At.After(since) {
			e.Free = append(e.Free, [2]int64{p.At.UnixMilli(), p.Free})
		}
	}
	for _, second := range v.Seconds {
		if second.At.After(since.Add(-5 * time.Second)) { // counts of these seconds may have grown
			e.Grants = append(e.Grants, secondRow{second.At.UnixMilli(), feed.ByWriter(second)})
		}
	}
	return e
}

// events sends the events of the named limiters while the reader is connected.
func (w *site) events(out http.ResponseWriter, in *http.Request) {
	names := in.URL.Query()["name"]
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) == 0 || len(names) > mostOpen {
		http.Error(out, fmt.Sprintf("name 1 to %d limiters", mostOpen), http.StatusBadRequest)
		return
	}
	told := make(chan struct{}, 1)
	var all []*shown
	for _, name := range names {
		n := w.show(name, told)
		defer w.hide(name, n, told)
		all = append(all, n)
	}
	out.Header().Set("Content-Type", "text/event-stream")
	out.Header().Set("Cache-Control", "no-store")
	control := http.NewResponseController(out)
	sent := make([]time.Time, len(all)) // time of the last poll that was sent
	failed := make([]string, len(all))
	for {
		for i, n := range all {
			v := n.Sight()
			e := eventOf(v, sent[i])
			if v.At.Equal(sent[i]) && e.Error == failed[i] {
				continue
			}
			sent[i], failed[i] = v.At, e.Error
			text, err := render.JSON(e)
			if err != nil {
				return
			}
			if _, err := fmt.Fprintf(out, "data: %s\n\n", text); err != nil {
				return
			}
		}
		if control.Flush() != nil {
			return
		}
		select {
		case <-in.Context().Done():
			return
		case <-told:
		}
	}
}

// show starts polling a limiter for one more reader.
func (w *site) show(name string, reader chan struct{}) *shown {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.open[name]
	if n == nil {
		ctx, stop := context.WithCancel(w.ctx)
		n = &shown{readers: map[chan struct{}]bool{}, stop: stop}
		n.Followed = feed.Follow(ctx, w.session.Server, w.session.Limiter(name, w.session.clientOrNone()), w.session.client != "", func() { w.tell(n) })
		w.open[name] = n
	}
	n.readers[reader] = true
	return n
}

// hide removes a reader, and the limiter with its last one.
func (w *site) hide(name string, n *shown, reader chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(n.readers, reader)
	if len(n.readers) == 0 {
		n.stop()
		delete(w.open, name)
	}
}

func (w *site) tell(n *shown) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for reader := range n.readers {
		select {
		case reader <- struct{}{}:
		default: // a signal is pending already
		}
	}
}
