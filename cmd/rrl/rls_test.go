package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

func TestRlsPrintsWhereItListens(t *testing.T) {
	s := shop{t: t, s: redistest.Embedded(t)}
	code, out, errs := rrlBeside(t.Context(), func(ctx context.Context, out *tape) {
		out.await(ctx, "grpc://127.0.0.1:")
	}, "rls", "--redis", s.s.URL(), "--rules", "../../httplimit/rules/testdata/envoy.yaml", "--listen", "127.0.0.1:0",
		"--metrics", "127.0.0.1:0")
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
	s.fails(1, "--max-connection-age: -1s is negative", "rls", "--rules", good, "--max-connection-age", "-1s")
	s.fails(1, "--near-limit: 0 is not a share", "rls", "--rules", good, "--near-limit", "0")
	s.fails(1, "--near-limit: 1.1 is not a share", "rls", "--rules", good, "--near-limit", "1.1")
	s.fails(1, "--near-limit: NaN is not a share", "rls", "--rules", good, "--near-limit", "NaN")
	for _, names := range []string{"A,B", "A,,C", "A,B,A", "A,B,c d", "A,B,c:"} {
		s.fails(1, "--header-names: three names are needed", "rls", "--rules", good, "--header-names", names)
	}
	s.fails(1, "--json-endpoint needs --metrics", "rls", "--rules", good, "--json-endpoint")
	s.fails(1, "--tls-cert and --tls-key are needed together", "rls", "--rules", good, "--tls-cert", "a")
	s.fails(1, "--traces: the address of a collector is such as", "rls", "--rules", good, "--traces", "collector:4318")
	s.fails(1, "--listen: ", "rls", "--rules", good, "--listen", "nowhere:no")
	s.fails(1, "--metrics: ", "rls", "--rules", good, "--listen", "127.0.0.1:0", "--metrics", "nowhere:no")
	s.fails(1, "no such file", "rls", "--rules", file)
	if err := os.WriteFile(file, []byte("domains:\n  shop:\n    - {key: user, rate: 1}\n    - {value: x, rate: 1/s}\n"),
		0o600); err != nil {
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

// A service can be set by variables alone, as in a container. It sends traces to a collector.
func TestRlsIsSetByVariables(t *testing.T) {
	asked := make(chan string, 100)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, in *http.Request) {
		select {
		case asked <- in.Method + " " + in.URL.Path:
		default:
		}
	}))
	defer collector.Close()
	certificate := redistest.NewTLS(t)
	for name, value := range map[string]string{
		"RRL_RULES":              "../../httplimit/rules/testdata/envoyproxy",
		"RRL_REDIS":              redistest.Embedded(t).URL(),
		"RRL_LISTEN":             "127.0.0.1:0",
		"RRL_TLS_CERT":           certificate.CertFile,
		"RRL_TLS_KEY":            certificate.KeyFile,
		"RRL_TRACES":             collector.URL,
		"RRL_SHADOW":             "true",
		"RRL_MAX_CONNECTION_AGE": "1h", "RRL_PREFIX": "edge:", "RRL_HEADER_NAMES": "A,B,C", "RRL_NEAR_LIMIT": "0.5",
	} {
		t.Setenv(name, value)
	}
	code, _, errs := rrlBeside(t.Context(), func(ctx context.Context, out *tape) {
		out.await(ctx, "grpcs://127.0.0.1:")
		_, address, _ := strings.Cut(strings.TrimSpace(out.String()), "grpcs://")
		safe := credentials.NewTLS(certificate.Config)
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(safe))
		if err == nil {
			_, err = grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
			conn.Close()
		}
		if err != nil {
			t.Error(err)
		}
	}, "rls")
	if code != 0 || errs != "" {
		t.Errorf("%d, %s", code, errs)
	}
	select {
	case got := <-asked:
		if got != "POST /v1/traces" {
			t.Error(got)
		}
	default:
		t.Error("the collector got no trace")
	}
}
