package main

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

func TestExportRefusesWhatItCannotDo(t *testing.T) {
	s := newShop(t, redistest.Embedded(t))
	s.fails(1, "--every: -1s is negative", "export", "--every", "-1s")
	s.fails(1, "--most: 0 must be at least 1", "export", "--most", "0")
	s.fails(1, "--listen: ", "export", "--listen", "nowhere:no")
	s.fails(1, "--redis is not an address", "export", "--listen", "127.0.0.1:0", "--redis", "nowhere")
}

// The URL of a listener on all addresses is one that the page answers.
func TestServedOnAllAddresses(t *testing.T) {
	for address, want := range map[string]string{
		"127.0.0.1:0": "http://127.0.0.1:",
		"[::1]:0":     "http://[::1]:",
		":0":          "http://localhost:",
	} {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			if address == "[::1]:0" {
				continue // a machine without IPv6
			}
			t.Fatal(err)
		}
		defer listener.Close()
		var out strings.Builder
		s := &session{common: &common{}, Output: &render.Output{Out: &out}}
		if err := s.served("http", listener.Addr(), "/metrics"); err != nil || !strings.HasPrefix(out.String(), want) ||
			!strings.HasSuffix(out.String(), "/metrics\n") {
			t.Errorf("%s: %q, %v", address, out.String(), err)
		}
	}
}

// export and rls start while Redis is away, say so, and work once it is back.
func TestServersStartWhileRedisIsAway(t *testing.T) {
	for _, server := range []*redistest.Server{redistest.Embedded(t), redistest.Real(t)} {
		for _, args := range [][]string{
			{"export", "--listen", "127.0.0.1:0"},
			{
				"rls", "--rules", "../../httplimit/rules/testdata/envoy.yaml", "--listen", "127.0.0.1:0", "--metrics",
				"127.0.0.1:0",
			},
		} {
			server.Kill()
			code, _, errs := rrlBeside(t.Context(), func(ctx context.Context, out *tape) {
				out.await(ctx, "/metrics\n")
				url, _, _ := strings.Cut(out.String(), "/metrics\n")
				awaitStatus(ctx, t, url+"/healthz", http.StatusOK)
				awaitStatus(ctx, t, url+"/readyz", http.StatusServiceUnavailable)
				awaitStatus(ctx, t, url+"/metrics", http.StatusOK)
				server.Restart()
				awaitStatus(ctx, t, url+"/readyz", http.StatusOK)
			}, append(args, "--redis", server.URL())...)
			first, second, _ := strings.Cut(errs, "\n")
			if code != 0 ||
				!strings.HasPrefix(first, "rrl: Redis does not answer, another attempt follows each second: ") ||
				!strings.HasSuffix(second, server.Addr+" answers\n") || strings.Count(second, "\n") != 1 {
				t.Errorf("%q: exit code %d, %s", args, code, errs)
			}
		}
	}
}

// awaitStatus waits for a status of a URL, until ctx ends, or for a minute.
func awaitStatus(ctx context.Context, t *testing.T, url string, want int) {
	t.Helper()
	got := 0
	for deadline := time.Now().Add(time.Minute); got != want && ctx.Err() == nil &&
		time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if response, err := http.Get(url); err == nil {
			response.Body.Close()
			got = response.StatusCode
		}
	}
	if got != want {
		t.Errorf("%s: status %d, want %d", url, got, want)
	}
}
