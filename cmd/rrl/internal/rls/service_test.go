package rls

import (
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// service_test.go tests what the flags of rrl rls set.

// connects waits for an answer to a client with a certificate, or, if want is false, for a
// connection that is refused.
func (r *running) connects(client *redistest.TLS, certificate, want bool) {
	r.t.Helper()
	config := client.Config.Clone()
	config.ServerName = "localhost"
	if !certificate {
		config.Certificates = nil
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		conn, err := grpc.NewClient(r.conn.Target(), grpc.WithTransportCredentials(credentials.NewTLS(config)))
		if err != nil {
			r.t.Fatal(err)
		}
		_, err = grpc_health_v1.NewHealthClient(conn).Check(r.t.Context(), &grpc_health_v1.HealthCheckRequest{})
		conn.Close()
		if (err == nil) == want {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("the connection: %v, want %v", err, want)
		}
	}
}

// The service has a certificate, and clients need one of an authority. New files are in force
// without a restart.
func TestCertificatesAreReadAgain(t *testing.T) {
	first, second := redistest.NewTLS(t), redistest.NewTLS(t)
	o := Options{Drain: time.Millisecond, TLS: TLS{
		Cert:     first.CertFile,
		Key:      first.KeyFile,
		ClientCA: first.CAFile,
		Client:   "localhost",
		Every:    5 * time.Millisecond,
	}}
	if err := o.TLS.Check(); err != nil {
		t.Fatal(err)
	}
	r := start(t, redistest.Embedded(t), oneAnHour, o)
	r.connects(first, true, true)
	r.connects(first, false, false)
	r.connects(second, true, false)
	for from, to := range map[string]string{
		second.CertFile: first.CertFile, second.KeyFile: first.KeyFile, second.CAFile: first.CAFile,
	} {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r.connects(second, true, true)
	r.connects(second, false, false)
}

func TestTheNameInTheCertificateOfAClient(t *testing.T) {
	made := redistest.NewTLS(t)
	r := start(t, redistest.Embedded(t), oneAnHour, Options{Drain: time.Millisecond, TLS: TLS{
		Cert: made.CertFile, Key: made.KeyFile, ClientCA: made.CAFile, Client: "other.example.com", Every: time.Minute,
	}})
	r.connects(made, true, false)
}

func TestFilesOfTLSThatCannotBeUsed(t *testing.T) {
	made := redistest.NewTLS(t)
	for want, bad := range map[string]TLS{
		"--tls-cert and --tls-key are needed together": {Cert: made.CertFile},
		"and for --tls-client-ca":                      {ClientCA: made.CAFile},
		"--tls-client-name needs --tls-client-ca":      {Cert: made.CertFile, Key: made.KeyFile, Client: "a"},
		"--tls-cert, --tls-key: ":                      {Cert: made.CertFile, Key: made.CertFile},
		"--tls-client-ca: no certificate in ": {
			Cert:     made.CertFile,
			Key:      made.KeyFile,
			ClientCA: made.KeyFile,
		},
		"--tls-client-ca: open ": {Cert: made.CertFile, Key: made.KeyFile, ClientCA: made.KeyFile + "x"},
	} {
		if err := bad.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	for _, good := range []TLS{{}, {Every: 1}, {Cert: made.CertFile, Key: made.KeyFile}} {
		if err := good.Check(); err != nil {
			t.Error(err)
		}
	}
}

// After the maximum age of a connection, the client is told to connect again, and does.
func TestConnectionsHaveAMaximumAge(t *testing.T) {
	r := start(t, redistest.Embedded(t), oneAnHour, Options{Drain: time.Millisecond, MaxAge: 10 * time.Millisecond})
	r.serves()
	for state := r.conn.GetState(); state == connectivity.Ready; state = r.conn.GetState() {
		if !r.conn.WaitForStateChange(t.Context(), state) {
			t.Fatal("the connection stays")
		}
	}
	r.answers("OK")
}

// post sends a request as JSON, and returns the answer.
func (r *running) post(body string) (int, http.Header, string) {
	r.t.Helper()
	response, err := http.Post(r.http+"/json", "application/json", strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return response.StatusCode, response.Header, strings.ReplaceAll(string(text), " ", "")
}

const (
	ofAll  = `{"entries": [{"key": "all", "value": "1"}]}`
	askAll = `{"domain": "shop", "descriptors": [` + ofAll + `]}`
	askAnn = `{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}, ` + ofAll + `]}`
)

// The JSON endpoint answers as the service does. The header fields have the names that are set, and
// the figures of the limit that is nearest.
func TestRequestsAsJSONAndNamesOfHeaderFields(t *testing.T) {
	s := redistest.Embedded(t)
	r := start(t, s, "domains: {shop: [{key: user, rate: 1/h}, {key: all, rate: 9/h}]}", Options{
		Drain: time.Minute, JSON: true, Fields: []string{"X-Limit", "X-Remaining", "X-Reset"},
	})
	r.awaits("/readyz", 200, "ok")
	r.serves()
	for i, want := range []struct {
		code int
		part string
	}{{200, `"overallCode":"OK"`}, {429, `"overallCode":"OVER_LIMIT"`}} {
		code, header, body := r.post(askAnn)
		if code != want.code || !strings.Contains(body, want.part) || header.Get("Content-Type") != "application/json" {
			t.Errorf("request %d: %d %s", i, code, body)
		}
		if header.Get("X-Limit") != "1" || header.Get("X-Remaining") != "0" || header.Get("X-Reset") != "3600" ||
			header.Get("RateLimit") != "" || header.Get("Retry-After") != "" {
			t.Errorf("request %d: %v", i, header)
		}
	}
	code, header, body := r.post(strings.Replace(askAll, "shop", "none", 1))
	if code != 200 || header.Get("X-Limit") != "" {
		t.Errorf("%d %v %s", code, header, body)
	}
	for _, bad := range []string{"", "[]", `{"domain": "shop"}`, `{"name": "shop"}`} {
		if code, _, body := r.post(bad); code != 400 {
			t.Errorf("%s: %d %s", bad, code, body)
		}
	}
	s.Kill()
	if code, _, body := r.post(askAnn); code != 503 {
		t.Errorf("without Redis: %d %s", code, body)
	}
}

func TestWithoutTheJSONEndpoint(t *testing.T) {
	r := start(t, redistest.Embedded(t), oneAnHour, Options{Drain: time.Millisecond})
	r.serves()
	if code, _, _ := r.post(askAnn); code != 404 {
		t.Error(code)
	}
}

// In the shadow of the whole service, no request is refused, and each is counted.
func TestTheShadowOfTheService(t *testing.T) {
	r := start(t, redistest.Embedded(t), oneAnHour, Options{
		Drain: time.Millisecond, Fields: []string{"A", "B", "C"},
		Policy: &httplimit.Policy{Name: "envoy", Bound: time.Minute, Failure: httplimit.FailClosed, Shadow: true},
	})
	r.serves()
	r.answers("OK")
	r.answers("OK")
	if _, text := r.get("/metrics"); !strings.Contains(text, `{outcome="shadowed",policy="envoy"} 1`) {
		t.Error(text)
	}
}

// The names in Redis have the prefix, those of quotas, too. The labels of metrics have none.
func TestAPrefixOfNames(t *testing.T) {
	s := redistest.Embedded(t)
	r := start(t, s, "domains: {shop: [{key: user, rate: 1/h}, {key: all, rate: 9/month}]}", Options{
		Drain: time.Millisecond, Prefix: "edge:", JSON: true, NearLimit: 0.8,
	})
	r.serves()
	if code, _, body := r.post(askAnn); code != 200 {
		t.Fatal(code, body)
	}
	for _, pattern := range []string{"edge:ratelimit:user=ann:shop", "edge:ratelimit:all=1:shop::month:*"} {
		if keys := s.Client().Keys(t.Context(), pattern).Val(); len(keys) != 1 {
			t.Errorf("%s: %q of %q", pattern, keys, s.Client().Keys(t.Context(), "*").Val())
		}
	}
	for range 8 {
		r.post(askAll)
	}
	_, text := r.get("/metrics")
	for _, line := range []string{
		`rratelimiter_requests_total{limiter="shop:user",outcome="granted"} 1`,
		// of 1 permit all are above 0.8, rounded down; of 9 those above 7
		`rratelimiter_near_limit_permits_total{limiter="shop:user"} 1`,
		`rratelimiter_near_limit_permits_total{limiter="shop:all"} 2`,
	} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("no %s in\n%s", line, text)
		}
	}
}

// A quota has the metrics of a limiter.
func TestQuotasHaveMetrics(t *testing.T) {
	r := start(t, redistest.Embedded(t), "domains: {shop: [{key: all, rate: 2/month}]}", Options{
		Drain: time.Millisecond, JSON: true, NearLimit: 0.5,
	})
	r.serves()
	for range 3 {
		r.post(askAll)
	}
	_, text := r.get("/metrics")
	for _, line := range []string{
		`rratelimiter_requests_total{limiter="shop:all",outcome="granted"} 2`,
		`rratelimiter_requests_total{limiter="shop:all",outcome="denied"} 1`,
		`rratelimiter_granted_permits_total{limiter="shop:all"} 2`,
		`rratelimiter_calls_total{limiter="shop:all",outcome="ok"} 3`,
		`rratelimiter_near_limit_permits_total{limiter="shop:all"} 1`,
	} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("no %s in\n%s", line, text)
		}
	}
}

// Hits that were used already count near a limit, too: those of a quota, and those in shadow.
func TestPostpaidHitsNearALimit(t *testing.T) {
	r := start(t, redistest.Embedded(t), `domains: {shop: [{key: all, rate: 10/h, postpaid: true},
		{key: user, rate: 10/month, postpaid: true}, {key: team, rate: 10/h, postpaid: true, shadow: true}]}`,
		Options{Drain: time.Millisecond, JSON: true, NearLimit: 0.5})
	r.serves()
	for _, key := range []string{"all", "user", "team"} {
		for range 2 {
			r.post(strings.Replace(strings.Replace(askAll, "all", key, 1), "{", `{"hits_addend": 4, `, 1))
		}
	}
	_, text := r.get("/metrics")
	for _, key := range []string{"all", "user", "team"} {
		if line := `rratelimiter_near_limit_permits_total{limiter="shop:` + key + `"} 3`; !strings.Contains(text,
			"\n"+line+"\n") {
			t.Errorf("no %s in\n%s", line, text)
		}
	}
}

// Each request is a span.
func TestTraces(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	r := start(t, redistest.Embedded(t), oneAnHour, Options{
		Drain: time.Minute, Tracer: trace.NewTracerProvider(trace.WithSpanProcessor(spans)),
	})
	r.serves()
	r.answers("OK")
	r.stop()
	<-r.ended
	for _, span := range spans.Ended() {
		if span.Name() == "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit" {
			return
		}
	}
	t.Errorf("%d spans, and none of the request", len(spans.Ended()))
}
