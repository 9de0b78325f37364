// Package web is the page of rrl serve: live limiters, read-only, by server-sent events. It knows nothing of commands.
package web

import (
	"context"
	"embed"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/survey"
)

// web.go serves the page and the list of limiters. The page itself is in page/.

//go:embed page
var files embed.FS

// A Site is the page and its events. It is shared by all readers: a limiter that several of them have open is polled once.
type Site struct {
	ctx     context.Context
	server  *connect.Server
	client  string // whose permits are shown of a PER_CLIENT limiter: "", an id, or survey.Everyone
	pattern string
	hosts   []string // accepted Host headers, beside its address and localhost

	mu   sync.Mutex
	open map[string]*shown
}

// New returns the site of the limiters whose names match a pattern. It ends with ctx. hosts are the names by which it
// is reached, beside its address and localhost.
func New(ctx context.Context, s *connect.Server, client, pattern string, hosts []string) *Site {
	return &Site{ctx: ctx, server: s, client: client, pattern: pattern, hosts: hosts, open: map[string]*shown{}}
}

// answers reports whether a request is for this page, by its Host header: a browser sends there the address that its
// user sees, whatever that resolves to.
func (w *Site) answers(in *http.Request) bool {
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

// Serve serves the page until the site's context ends.
func (w *Site) Serve(listener net.Listener) error { return Serve(w.ctx, listener, w.handler()) }

// Serve serves until ctx ends, and all requests with it.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
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

func (w *Site) handler() http.Handler {
	page, err := fs.Sub(files, "page")
	if err != nil {
		panic(err) // the folder is embedded
	}
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(page))
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
func (w *Site) list(out http.ResponseWriter, in *http.Request) {
	ctx, s := in.Context(), w.server
	names, err := survey.Limiters(ctx, s.Redis, w.pattern, nil)
	if err != nil {
		http.Error(out, s.Explain(err).Error(), http.StatusBadGateway)
		return
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !strings.Contains(name, in.FormValue("search")) })
	answer := listed{Where: s.Where, Limiters: []listedEntry{}, More: max(len(names)-mostListed, 0)}
	found, err := survey.Each(ctx, names[:len(names)-answer.More], func(ctx context.Context, name string) ([]survey.Glance, error) {
		return survey.Glances(ctx, s, name, w.client, nil)
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
