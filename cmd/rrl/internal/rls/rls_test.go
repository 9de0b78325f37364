package rls

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/rrltest"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

func TestMain(m *testing.M) { rrltest.Main(m) }

// A running is a server of a file, and a connection to it.
type running struct {
	t     testing.TB
	file  string
	conn  *grpc.ClientConn
	http  string // URL of metrics and probes
	stop  context.CancelFunc
	ended chan error // gets the error of Serve
}

// made returns a server of a file that does not serve yet, and its link to a Redis.
func made(ctx context.Context, t testing.TB, s *redistest.Server, file string, o Options) (*Server, *connect.Link) {
	t.Helper()
	if o.Rules = file; o.Policy == nil {
		o.Policy = &httplimit.Policy{Bound: time.Minute, Failure: httplimit.FailClosed}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	server, err := New(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	link, err := connect.Dial(ctx, connect.Flags{Address: s.URL()}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(link.Close)
	return server, link
}

// start starts a server on a Redis. The hooks are added to its client.
func start(t testing.TB, s *redistest.Server, rules string, o Options, hooks ...redis.Hook) *running {
	t.Helper()
	r := &running{t: t, file: filepath.Join(t.TempDir(), "envoy.yaml"), ended: make(chan error, 1)}
	r.write(rules)
	ctx, stop := context.WithCancel(t.Context())
	r.stop = stop
	t.Cleanup(stop)
	server, link := made(ctx, t, s, r.file, o)
	for _, hook := range hooks {
		there, err := link.Server()
		if err != nil {
			t.Fatal(err)
		}
		there.Redis.AddHook(hook)
	}
	listener, metrics := listen(t), listen(t)
	r.http = "http://" + metrics.Addr().String()
	go func() { r.ended <- server.Serve(ctx, link, listener, metrics) }()
	var err error
	r.conn, err = grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.conn.Close() })
	return r
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

func (r *running) write(rules string) {
	r.t.Helper()
	if err := os.WriteFile(r.file, []byte(rules), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// ask asks for one permit of a user, and returns the code of the response.
func (r *running) ask(user string) (string, error) {
	response, err := ratelimitv3.NewRateLimitServiceClient(r.conn).
		ShouldRateLimit(r.t.Context(), &ratelimitv3.RateLimitRequest{
			Domain: "shop",
			Descriptors: []*ratelimit.RateLimitDescriptor{
				{Entries: []*ratelimit.RateLimitDescriptor_Entry{{Key: "user", Value: user}}},
			},
		})
	return response.GetOverallCode().String(), err
}

func (r *running) answers(want string) {
	r.t.Helper()
	if got, err := r.ask("ann"); err != nil || got != want {
		r.t.Errorf("%s, %v; want %s", got, err, want)
	}
}

// get returns the status and the body of a path.
func (r *running) get(path string) (int, string) {
	r.t.Helper()
	response, err := http.Get(r.http + path)
	if err != nil {
		r.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// awaits waits for a response, for at most a minute.
func (r *running) awaits(path string, status int, part string) {
	r.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		got, text := r.get(path)
		if got == status && strings.Contains(text, part) && strings.Count(text, "\n") == 1 {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("%s is %d %q, want %d %q", path, got, text, status, part)
		}
	}
}

// serves waits until the server answers requests.
func (r *running) serves() {
	r.t.Helper()
	for r.health("") != "SERVING" {
		time.Sleep(time.Millisecond)
	}
}

// health returns what the health service reports of the service.
func (r *running) health(service string) string {
	r.t.Helper()
	health, err := grpc_health_v1.NewHealthClient(r.conn).
		Check(r.t.Context(), &grpc_health_v1.HealthCheckRequest{Service: service})
	if err != nil {
		r.t.Fatal(err)
	}
	return health.Status.String()
}

const oneAnHour = "domains: {shop: [{key: user, rate: 1/h}]}"

func TestServiceHealthAndMetrics(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, oneAnHour, Options{Drain: time.Minute, DenyCache: 10})
		r.awaits("/readyz", 200, "ok")
		r.answers("OK")
		r.answers("OVER_LIMIT")
		r.answers("OVER_LIMIT") // from the deny cache
		for _, service := range []string{"", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"} {
			if got := r.health(service); got != "SERVING" {
				t.Errorf("%q: %s", service, got)
			}
		}
		_, text := r.get("/metrics")
		for _, line := range []string{
			`rratelimiter_guard_decisions_total{outcome="denied",policy=""} 2`,
			`rratelimiter_requests_total{limiter="shop:user",outcome="granted"} 1`,
			`rratelimiter_requests_total{limiter="shop:user",outcome="denied"} 1`,
		} {
			if !strings.Contains(text, "\n"+line+"\n") {
				t.Errorf("no %s in\n%s", line, text)
			}
		}
		r.stop()
		if err := <-r.ended; err != nil {
			t.Error(err)
		}
	})
}

// A file of envoyproxy/ratelimit is served as it is. A rule says whether its values are in metrics.
func TestAFileOfEnvoyproxy(t *testing.T) {
	r := start(t, redistest.Embedded(t), "domain: shop\ndescriptors:\n"+
		"  - {key: user, detailed_metric: true, rate_limit: {unit: hour, requests_per_unit: 1}}\n",
		Options{Drain: time.Minute})
	r.serves()
	r.answers("OK")
	r.answers("OVER_LIMIT")
	const line = `rratelimiter_requests_total{limiter="shop:user=ann",outcome="granted"} 1`
	if _, text := r.get("/metrics"); !strings.Contains(text, "\n"+line+"\n") {
		t.Errorf("no %s in\n%s", line, text)
	}
}

// A server that starts while Redis is away says so, reads new rules, and serves once Redis has
// answered. When Redis is away later, it is not ready.
func TestRedisIsAway(t *testing.T) {
	for _, s := range []*redistest.Server{redistest.Embedded(t), redistest.Real(t)} {
		s.Kill()
		logged := make(chan string, 10)
		r := start(t, s, "domains: {shop: [{key: user, rate: 5/h}]}",
			Options{Drain: time.Minute, Logger: slog.New(slog.NewTextHandler(rrltest.Lines(logged), nil))})
		r.awaits("/healthz", 200, "ok")
		r.awaits("/readyz", 503, "connection refused; is Redis there?")
		if got := r.health(""); got != "NOT_SERVING" {
			t.Errorf("without Redis it is %s", got)
		}
		if _, err := r.ask("ann"); status.Code(err) != codes.Unavailable ||
			!strings.Contains(err.Error(), errNotYet.Error()) {
			t.Errorf("without Redis: %v", err)
		}
		r.write(oneAnHour)
		if line := <-logged; !strings.Contains(line, "new rules are in force") {
			t.Error(line)
		}
		s.Restart()
		r.awaits("/readyz", 200, "ok")
		r.serves()
		r.answers("OK")
		r.answers("OVER_LIMIT")
		s.Kill()
		r.awaits("/readyz", 503, "connection refused")
		r.awaits("/healthz", 200, "ok")
		s.Restart()
		r.awaits("/readyz", 200, "ok")
	}
}

// A server is ready only while Redis takes writes: not beside a replica, whether its master is away
// or not, nor beside a Redis that is out of memory.
func TestReadyWhileRedisTakesWrites(t *testing.T) {
	master, replica := redistest.Real(t), redistest.Real(t)
	r := start(t, replica, oneAnHour, Options{Drain: time.Minute})
	r.awaits("/readyz", 200, "ok")
	host, port, err := net.SplitHostPort(master.Addr)
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(replica.Client().ReplicaOf(t.Context(), host, port).Err())
	r.awaits("/readyz", 503, "READONLY")
	master.Kill()
	r.awaits("/readyz", 503, "READONLY")
	r.awaits("/healthz", 200, "ok")
	must(replica.Client().ReplicaOf(t.Context(), "NO", "ONE").Err())
	r.awaits("/readyz", 200, "ok")
	must(replica.Client().ConfigSet(t.Context(), "maxmemory", "1").Err())
	r.awaits("/readyz", 503, "OOM")
	must(replica.Client().ConfigSet(t.Context(), "maxmemory", "0").Err())
	r.awaits("/readyz", 200, "ok")
	if keys := replica.Client().Keys(t.Context(), "*").Val(); len(keys) > 0 {
		t.Errorf("the probes wrote %q", keys)
	}
}

// A server to which Redis answers is not ready before it can answer requests.
func TestReadyWithTheService(t *testing.T) {
	r := &running{t: t, file: filepath.Join(t.TempDir(), "envoy.yaml")}
	r.write(oneAnHour)
	server, link := made(t.Context(), t, redistest.Embedded(t), r.file, Options{})
	ready := func() string {
		response := httptest.NewRecorder()
		server.handler(t.Context(), link).ServeHTTP(response, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		return response.Body.String()
	}
	if got := ready(); got != errNotYet.Error()+"\n" {
		t.Errorf("without a service: %q", got)
	}
	there, err := link.Server()
	if err != nil {
		t.Fatal(err)
	}
	server.begin(there.Redis)
	if got := ready(); got != "ok\n" {
		t.Errorf("with a service: %q", got)
	}
}

func TestNewRulesWithoutARestart(t *testing.T) {
	s := redistest.Embedded(t)
	logged := make(chan string, 10)
	r := start(
		t, s, oneAnHour, Options{Drain: time.Minute, Logger: slog.New(slog.NewTextHandler(rrltest.Lines(logged), nil))},
	)
	r.serves()
	r.answers("OK")
	r.answers("OVER_LIMIT")
	r.write("domains:\n  shop:\n    - {key: user, rate: 1}\n")
	if line := <-logged; !strings.Contains(line, r.file+":3: shop: rate: ") {
		t.Error(line)
	}
	r.answers("OVER_LIMIT")
	r.write("domains: {shop: [{key: user, rate: 2/h}]}")
	if line := <-logged; !strings.Contains(line, "new rules are in force") {
		t.Error(line)
	}
	r.answers("OK")
	r.answers("OVER_LIMIT")
}

// A hold holds back the commands of a client.
type hold struct{ held, released chan struct{} }

func (h hold) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h hold) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.wait()
		return next(ctx, cmd)
	}
}

func (h hold) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.wait()
		return next(ctx, cmds)
	}
}

func (h hold) wait() {
	select {
	case h.held <- struct{}{}:
	default:
	}
	<-h.released
}

// A connection that sends nothing does not delay the end.
func TestASilentConnectionAtTheEnd(t *testing.T) {
	r := start(t, redistest.Embedded(t), oneAnHour, Options{Drain: 10 * time.Millisecond})
	silent, err := net.Dial("tcp", r.conn.Target())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	r.serves() // by another connection, after the silent one
	r.stop()
	select {
	case err := <-r.ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute): // gRPC waits for two minutes
		t.Error("it waits for a connection that sends nothing")
	}
}

// At the end, a request in flight gets its response. One that takes too long does not.
func TestRequestsInFlightAtTheEnd(t *testing.T) {
	for _, drain := range []time.Duration{time.Minute, time.Millisecond} {
		h := hold{make(chan struct{}, 1), make(chan struct{})}
		r := start(t, redistest.Embedded(t), oneAnHour, Options{Drain: drain}, h)
		r.serves()
		answered := make(chan error)
		go func() {
			_, err := r.ask("ann")
			answered <- err
		}()
		<-h.held
		r.stop()
		if drain == time.Minute {
			for open := true; open; { // until the server takes no more connections
				conn, err := net.Dial("tcp", r.conn.Target())
				if open = err == nil; open {
					conn.Close()
				}
			}
			r.awaits("/healthz", 200, "ok")
			r.awaits("/readyz", 503, "it drains")
			close(h.released)
			if err := <-answered; err != nil {
				t.Errorf("the request in flight: %v", err)
			}
		} else {
			// The call to Redis would end after a second, with another text.
			if err := <-answered; status.Code(err) != codes.Unavailable ||
				strings.Contains(err.Error(), "cannot be checked") {
				t.Errorf("the request that takes too long: %v", err)
			}
			close(h.released)
		}
		if err := <-r.ended; err != nil {
			t.Error(err)
		}
	}
}
