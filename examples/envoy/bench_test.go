package envoy

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"text/template"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// bench_test.go measures what a decision costs a request. The clients, Envoy, the services and
// Redis share the processors of one machine, so the clients and the service behind Envoy do as
// little as they can.

const (
	connections = 32
	users       = 1000 // clients take turns as these users
	warmUp      = 100 * time.Millisecond
	measured    = time.Second // for each kind of requests, in each round
)

// A kind of requests is measured in turn with the others.
type kind struct {
	Name   string
	Path   string
	Asks   string   // the service that Envoy asks for limits; "": none
	Limits []string // each makes a descriptor
	status string   // of all answers
}

const (
	all  = `[{generic_key: {descriptor_key: all, descriptor_value: a}}]`
	user = `[{request_headers: {header_name: x-user, descriptor_key: user}}]`
)

// kinds has first the requests without a limit, with which the others are compared.
var kinds = []*kind{
	{"no limit", "/none", "", nil, "200"},
	{"a stub decides at once", "/stub", "stub", []string{all}, "200"},
	{"one limit", "/all", "rls", []string{all}, "200"},
	{"one limit, lease", "/leased", "rls", []string{
		`[{generic_key: {descriptor_key: leased, descriptor_value: a}}]`,
	}, "200"},
	{"a limit for each of 1,000 users", "/user", "rls", []string{user}, "200"},
	{"4 limits", "/four", "rls", []string{
		all, user, `[{remote_address: {}}]`, `[{request_headers: {header_name: ":path", descriptor_key: path}}]`,
	}, "200"},
	{"all refused", "/refused", "rls", []string{
		`[{generic_key: {descriptor_key: refused, descriptor_value: a}}]`,
	}, "429"},
	{"all refused, deny cache", "/cached", "caching", []string{
		`[{generic_key: {descriptor_key: refused, descriptor_value: b}}]`,
	}, "429"},
}

const benchRules = `
domains:
  shop:
    - {key: all, rate: 4000000000/10s}
    - {key: user, rate: 4000000000/10s}
    - {key: path, rate: 4000000000/10s}
    - {key: remote_address, rate: 4000000000/10s}
    - {key: leased, rate: 4000000000/10s, lease: 1s}
    - {key: refused, rate: 1/h}
`

// benchConfig is the configuration of Envoy. The filters are as in envoy.yaml, but there is one for
// each service that decides, and paths enable those that they need. A request without a decision
// gets the status 500.
var benchConfig = template.Must(template.New("").Parse(`
{{- $filters := "type.googleapis.com/envoy.extensions.filters"}}
static_resources:
  listeners:
    - name: shop
      address: {socket_address: {address: 127.0.0.1, port_value: {{.Port}}}}
      connection_balance_config: {exact_balance: {}}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": {{$filters}}.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: shop
                use_remote_address: true
                route_config:
                  virtual_hosts:
                    - name: shop
                      domains: ["*"]
                      routes:
                        {{- range .Kinds}}
                        - match: {path: {{.Path}}}
                          route: {cluster: service}
                          {{- if .Asks}}
                          typed_per_filter_config:
                            {{.Asks}}:
                              "@type": {{$filters}}.http.ratelimit.v3.RateLimitPerRoute
                              rate_limits:
                                {{- range .Limits}}
                                - actions: {{.}}
                                {{- end}}
                          {{- end}}
                        {{- end}}
                http_filters:
                  {{- range $name, $port := .Decide}}
                  - name: {{$name}}
                    disabled: true
                    typed_config:
                      "@type": {{$filters}}.http.ratelimit.v3.RateLimit
                      domain: shop
                      timeout: 60s
                      failure_mode_deny: true
                      enable_x_ratelimit_headers: DRAFT_VERSION_03
                      rate_limit_service:
                        transport_api_version: V3
                        grpc_service: {envoy_grpc: {cluster_name: {{$name}}}}
                  {{- end}}
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": {{$filters}}.http.router.v3.Router
  clusters:
    - name: service
      type: STATIC
      load_assignment: {{template "endpoint" .Service}}
    {{- range $name, $port := .Decide}}
    - name: {{$name}}
      type: STATIC
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {http2_protocol_options: {}}
      load_assignment: {{template "endpoint" $port}}
    {{- end}}
{{- define "endpoint"}}
        cluster_name: port-{{.}}
        endpoints:
          - lb_endpoints:
              - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: {{.}}}}}
{{- end}}
`))

// BenchmarkEnvoy measures requests of 32 connections through Envoy with one worker and with two, to
// a service that answers at once, and to one that needs 5 ms, as if it asked a database. Each
// operation is a round: each kind of requests for a second. It prints the medians of the rounds. A
// ratio compares figures of the same round.
//
//	go test -run '^$' -bench Envoy -benchtime 9x ./examples/envoy
func BenchmarkEnvoy(b *testing.B) {
	plain := &world{TB: b, program: build(b), redis: redistest.Real(b), rules: filepath.Join(b.TempDir(), "rules.yaml")}
	if err := os.WriteFile(plain.rules, []byte(benchRules), 0o600); err != nil {
		b.Fatal(err)
	}
	caching := &world{TB: b, program: plain.program, redis: plain.redis, rules: plain.rules}
	plain.rlsAddress, caching.rlsAddress = redistest.Nowhere(b), redistest.Nowhere(b)
	plain.startRls()
	caching.startRls("--deny-cache", "10000")
	stub := plain.startStub()
	m := &measure{
		tb:       b,
		deciders: []int{plain.rls.Process.Pid, caching.rls.Process.Pid, stub.pid},
		redis:    plain.redis.Pid(),
	}
	for _, g := range []*gateway{{workers: 1}, {workers: 2}, {workers: 1, service: 5 * time.Millisecond}} {
		service := plain.serve(g.service)
		config := func() string {
			var text bytes.Buffer
			if err := benchConfig.Execute(&text, map[string]any{
				"Port": port(plain.envoy), "Service": port(service), "Kinds": kinds,
				"Decide": map[string]string{
					"rls": port(plain.rlsAddress), "caching": port(caching.rlsAddress), "stub": port(stub.address),
				},
			}); err != nil {
				b.Fatal(err)
			}
			return text.String()
		}
		envoy := plain.startEnvoy(g.workers, config, func() bool {
			return !slices.ContainsFunc(kinds, func(k *kind) bool {
				return k.Asks != "" && !plain.do("127.0.0.1", "GET", k.Path, "x-user", "ann").decided()
			})
		})
		g.pid = envoy.Process.Pid
		g.connect(b, plain.envoy)
		m.gateways = append(m.gateways, g)
	}
	for b.Loop() {
		for _, g := range m.gateways {
			m.round(g)
		}
	}
	m.print()
}

// serve starts a service that answers each request after a time, and returns its address.
func (w *world) serve(after time.Duration) string {
	w.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for c := (&client{conn: conn}); c.read() == nil; {
					time.Sleep(after)
					if _, err := conn.Write([]byte("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")); err != nil {
						return
					}
				}
			}()
		}
	}()
	return listener.Addr().String()
}

// A stub answers as rrl rls does, and decides nothing. It has a process of its own.
type stub struct {
	ratelimitv3.UnimplementedRateLimitServiceServer
	address string
	pid     int
}

// stubEnv has the address of the stub, in its process.
const stubEnv = "RRATELIMITER_STUB"

func (w *world) startStub() *stub {
	w.Helper()
	s := &stub{address: redistest.Nowhere(w)}
	cmd := exec.CommandContext(w.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), stubEnv+"="+s.address)
	w.run(cmd)
	s.pid = cmd.Process.Pid
	return s
}

// serve serves until the process is killed.
func (s *stub) serve() {
	listener, err := net.Listen("tcp", s.address)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(grpc.NumStreamWorkers(32)) // as rrl rls
	ratelimitv3.RegisterRateLimitServiceServer(server, s)
	log.Fatal(server.Serve(listener))
}

var stubbed = &ratelimitv3.RateLimitResponse{
	OverallCode: ratelimitv3.RateLimitResponse_OK,
	Statuses: []*ratelimitv3.RateLimitResponse_DescriptorStatus{{
		Code: ratelimitv3.RateLimitResponse_OK, LimitRemaining: 3_999_999_999,
		CurrentLimit: &ratelimitv3.RateLimitResponse_RateLimit{
			RequestsPerUnit: 4_000_000_000, Unit: ratelimitv3.RateLimitResponse_RateLimit_SECOND,
		},
		DurationUntilReset: &durationpb.Duration{Seconds: 10},
	}},
	ResponseHeadersToAdd: []*corev3.HeaderValue{
		{Key: "Ratelimit", Value: `"all";r=3999999999;t=10`},
		{Key: "Ratelimit-Policy", Value: `"all";q=4000000000;w=10`},
	},
}

func (*stub) ShouldRateLimit(
	context.Context, *ratelimitv3.RateLimitRequest,
) (*ratelimitv3.RateLimitResponse, error) {
	return stubbed, nil
}

// A client is a connection that has one request at a time. No message has a body.
type client struct {
	conn      net.Conn
	buffer    [8192]byte
	user      int
	times     []time.Duration // of the requests that were decided
	undecided int
}

// read reads a message into the buffer.
func (c *client) read() error {
	for n := 0; ; {
		more, err := c.conn.Read(c.buffer[n:])
		if err != nil {
			return err
		}
		if n += more; bytes.HasSuffix(c.buffer[:n], []byte("\r\n\r\n")) {
			return nil
		}
	}
}

// send sends requests of a kind until a time.
func (c *client) send(k *kind, until time.Time) error {
	c.times, c.undecided = c.times[:0], 0
	request := []byte("GET " + k.Path + " HTTP/1.1\r\nhost: shop\r\nx-user: user-000\r\n\r\n")
	digits := request[len(request)-7:]
	for now := time.Now(); now.Before(until); {
		c.user = (c.user + 1) % users
		digits[0], digits[1], digits[2] = byte('0'+c.user/100), byte('0'+c.user/10%10), byte('0'+c.user%10)
		if _, err := c.conn.Write(request); err != nil {
			return err
		}
		if err := c.read(); err != nil {
			return err
		}
		began := now
		now = time.Now()
		switch status := string(c.buffer[len("HTTP/1.1 "):][:3]); status {
		case k.status:
			c.times = append(c.times, now.Sub(began))
		case "500":
			c.undecided++
		default:
			return fmt.Errorf("%s: status %s", k.Name, status)
		}
	}
	return nil
}

// A gateway is an Envoy, its clients, and what was measured of it.
type gateway struct {
	workers, pid int
	service      time.Duration // how long the service needs for a request
	clients      []*client
	samples      map[*kind][]sample
}

// connect connects the clients to Envoy.
func (g *gateway) connect(tb testing.TB, address string) {
	tb.Helper()
	g.samples = map[*kind][]sample{}
	for i := range connections {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { conn.Close() })
		g.clients = append(g.clients, &client{conn: conn, user: i * users / connections})
	}
}

// load sends requests of a kind on all connections. It returns how long those took that were
// decided, sorted, and how many were not.
func (g *gateway) load(tb testing.TB, k *kind, d time.Duration) (times []time.Duration, undecided int) {
	tb.Helper()
	var group sync.WaitGroup
	until := time.Now().Add(d)
	for _, c := range g.clients {
		group.Go(func() {
			if err := c.send(k, until); err != nil {
				tb.Error(err)
			}
		})
	}
	group.Wait()
	for _, c := range g.clients {
		times, undecided = append(times, c.times...), undecided+c.undecided
	}
	if tb.Failed() {
		tb.FailNow()
	}
	slices.Sort(times)
	return times, undecided
}

// A sample is what was measured in one round.
type sample struct {
	rate, p50, p99, ratio, undecided float64 // times in µs
	// µs of processors for a request
	envoy, decider, redis, rest float64
}

// A measure has the processes that are measured.
type measure struct {
	tb       testing.TB
	gateways []*gateway
	deciders []int
	redis    int
}

func (m *measure) round(g *gateway) {
	bare := 0.0 // p50 without a limit
	for _, k := range kinds {
		g.load(m.tb, k, warmUp)
		before := m.used(g)
		times, undecided := g.load(m.tb, k, measured)
		if len(times) == 0 {
			m.tb.Fatalf("%s: none of %d requests was decided", k.Name, undecided)
		}
		s := m.used(g)
		n := float64(len(times) + undecided)
		s.envoy, s.decider = (s.envoy-before.envoy)/n, (s.decider-before.decider)/n
		s.redis, s.rest = (s.redis-before.redis)/n, (s.rest-before.rest)/n
		s.rate, s.undecided = float64(len(times))/measured.Seconds(), float64(undecided)
		s.p50, s.p99 = micros(times[len(times)/2]), micros(times[len(times)*99/100])
		if k.Asks == "" {
			bare = s.p50
		}
		s.ratio = s.p50 / bare
		g.samples[k] = append(g.samples[k], s)
	}
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// used returns the processor time that the processes have used, in µs.
func (m *measure) used(g *gateway) (s sample) {
	for _, pid := range m.deciders {
		s.decider += m.usedBy(pid)
	}
	s.envoy, s.redis, s.rest = m.usedBy(g.pid), m.usedBy(m.redis), m.usedBy(os.Getpid())
	return s
}

// usedBy returns the processor time that a process has used, in µs. Linux counts it in hundredths
// of a second.
func (m *measure) usedBy(pid int) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		m.tb.Fatal(err)
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')'):])) // the name of the program ends there
	sum := 0
	for _, field := range fields[12:14] { // of the program, and of the kernel for it
		n, err := strconv.Atoi(field)
		if err != nil {
			m.tb.Fatal(err)
		}
		sum += n
	}
	return float64(sum) * 10_000
}

// print prints the medians.
func (m *measure) print() {
	columns := []struct {
		name   string
		digits int
		of     func(sample) float64
	}{
		{"requests/s", 0, func(s sample) float64 { return s.rate }},
		{"p50 µs", 0, func(s sample) float64 { return s.p50 }},
		{"p99 µs", 0, func(s sample) float64 { return s.p99 }},
		{"x no limit", 2, func(s sample) float64 { return s.ratio }},
		{"CPU µs: Envoy", 0, func(s sample) float64 { return s.envoy }},
		{"rls, stub", 0, func(s sample) float64 { return s.decider }},
		{"Redis", 0, func(s sample) float64 { return s.redis }},
		{"clients, service", 0, func(s sample) float64 { return s.rest }},
		{"undecided", 0, func(s sample) float64 { return s.undecided }},
	}
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(out, "\nworkers\tservice\t\t")
	for _, c := range columns {
		fmt.Fprint(out, c.name, "\t")
	}
	fmt.Fprintln(out)
	for _, g := range m.gateways {
		for _, k := range kinds {
			fmt.Fprintf(out, "%d\t%v\t%s\t", g.workers, g.service, k.Name)
			for _, c := range columns {
				var values []float64
				for _, s := range g.samples[k] {
					values = append(values, c.of(s))
				}
				slices.Sort(values)
				fmt.Fprintf(out, "%.*f\t", c.digits, values[len(values)/2])
			}
			fmt.Fprintln(out)
		}
	}
	out.Flush()
}
