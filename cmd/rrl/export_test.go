package main

import (
	"net"
	"strings"
	"testing"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

func TestExportRefusesWhatItCannotDo(t *testing.T) {
	s := newShop(t, redistest.Embedded(t))
	s.fails(1, "--every: -1s is negative", "export", "--every", "-1s")
	s.fails(1, "--most: 0 must be at least 1", "export", "--most", "0")
	s.fails(1, "--listen: ", "export", "--listen", "nowhere:no")
}

// The URL of a listener on all addresses is one that the page answers.
func TestServedOnAllAddresses(t *testing.T) {
	for address, want := range map[string]string{"127.0.0.1:0": "http://127.0.0.1:", "[::1]:0": "http://[::1]:", ":0": "http://localhost:"} {
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
		if err := s.served("http", listener.Addr(), "/metrics"); err != nil || !strings.HasPrefix(out.String(), want) || !strings.HasSuffix(out.String(), "/metrics\n") {
			t.Errorf("%s: %q, %v", address, out.String(), err)
		}
	}
}
