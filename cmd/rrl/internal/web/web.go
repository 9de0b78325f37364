// Package web is the page of rrl serve. It shows live limiters and changes nothing. Updates are
// server-sent events. The package does not parse commands.
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
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/survey"
)

// web.go serves the page and the list of limiters. The page itself is in page/.

//go:embed page
var files embed.FS

// A Site is the page and its events. It is shared by all readers: a limiter that several of them
// have open is polled once.
type Site struct {
	ctx    context.Context
	server *connect.Server
	// whose permits are shown of each PER_CLIENT limiter; "": its card offers the clients
	client  string
	pattern string
	hosts   []string // accepted Host headers, beside its address and localhost

	mu   sync.Mutex
	open map[view]*shown
	gone time.Time // since when Redis has not answered; zero: it has
	last time.Time // when it was last noticed that Redis does not answer
}

// New returns the site of the limiters whose names match a pattern. It ends with ctx. hosts are the
// names by which it is reached, beside its address and localhost. client is as for --client: an id,
// or "" or survey.Everyone, with which the page offers the clients.
func New(ctx context.Context, s *connect.Server, client, pattern string, hosts []string) *Site {
	if client == survey.Everyone {
		client = ""
	}
	return &Site{ctx: ctx, server: s, client: client, pattern: pattern, hosts: hosts, open: map[view]*shown{}}
}

// answers reports whether a request is for this page, by its Host header: a browser sends there the
// address that its user sees, whatever that resolves to.
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
	mux.HandleFunc("GET /clients", w.clients)
	mux.HandleFunc("GET /events", w.events)
	return http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
		h := out.Header()
		h.Set("Content-Security-Policy",
			"default-src 'self'; base-uri 'none'; frame-ancestors 'none'; form-action 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		if !w.answers(in) {
			http.Error(out, "the page is not served under this host name: rrl serve --host NAME allows it",
				http.StatusMisdirectedRequest)
			return
		}
		mux.ServeHTTP(out, in)
	})
}

// away returns since when Redis has not answered: since the first failure that was noticed.
func (w *Site) away() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if w.gone.IsZero() || now.Sub(w.last) > time.Minute { // nobody has asked for a while
		w.gone = now
	}
	w.last = now
	return w.gone
}

// back notes that Redis has answered, on all nodes.
func (w *Site) back() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone = time.Time{}
}
