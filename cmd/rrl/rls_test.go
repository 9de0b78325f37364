package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

func TestRlsPrintsWhereItListens(t *testing.T) {
	s := shop{t: t, s: redistest.Embedded(t)}
	code, out, errs := rrlBeside(t.Context(), func(ctx context.Context, out *tape) {
		out.await(ctx, "grpc://127.0.0.1:")
	}, "rls", "--redis", s.s.URL(), "--rules", "../../httplimit/rules/testdata/envoy.yaml", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0")
	if code != 0 || errs != "" || !strings.HasPrefix(out, "http://127.0.0.1:") ||
		!strings.Contains(out, "/metrics\ngrpc://127.0.0.1:") {
		t.Errorf("%d, %s, %s", code, out, errs)
	}
}

func TestRlsRefusesWhatItCannotDo(t *testing.T) {
	s := shop{t: t, s: redistest.Embedded(t)}
	file := filepath.Join(t.TempDir(), "envoy.yaml")
	const good = "../../httplimit/rules/testdata/envoy.yaml"
	s.fails(1, "--rules is needed", "rls")
	s.fails(1, "--deny-cache: -1 is negative", "rls", "--rules", good, "--deny-cache", "-1")
	s.fails(1, "--listen: ", "rls", "--rules", good, "--listen", "nowhere:no")
	s.fails(1, "--metrics: ", "rls", "--rules", good, "--listen", "127.0.0.1:0", "--metrics", "nowhere:no")
	s.fails(1, "no such file", "rls", "--rules", file)
	if err := os.WriteFile(file, []byte("domains:\n  shop:\n    - {key: user, rate: 1}\n    - {value: x, rate: 1/s}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := s.run("rls", "--rules", file)
	want := file + `:3: shop: rate: "1" is not of the form permits/interval, such as 100/s
` + file + `:4: shop: a descriptor has no field "key"
`
	if code != 1 || out != "" || errs != want {
		t.Errorf("%d, %s, %s", code, out, errs)
	}
}
