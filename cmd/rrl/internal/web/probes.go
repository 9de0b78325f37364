package web

import (
	"context"
	"io"
	"net/http"
	"strings"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
)

// probes.go answers the probes of an orchestrator, such as Kubernetes.

// Probe adds two paths to mux. /healthz answers 200: the process serves. /readyz answers 200 if
// ready returns nil, or else 503 with its error in one line.
func Probe(mux *http.ServeMux, ready func(ctx context.Context) error) {
	mux.HandleFunc("GET /healthz", ok)
	mux.HandleFunc("GET /readyz", func(out http.ResponseWriter, in *http.Request) {
		if err := ready(in.Context()); err != nil {
			line := strings.Join(strings.Fields(connect.LastDefence(err.Error())), " ")
			http.Error(out, line, http.StatusServiceUnavailable)
			return
		}
		ok(out, in)
	})
}

func ok(out http.ResponseWriter, _ *http.Request) {
	_, _ = io.WriteString(out, "ok\n") // an error means that the client has disconnected
}
