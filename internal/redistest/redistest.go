// Package redistest starts Redis servers on loopback for tests, and records what they execute. It
// does not depend on limiters.
//
// Most tests use Each: the same body runs against the embedded server, against a real redis-server
// with RESP3 and, in make proof, against one of the oldest supported release with RESP2. Tests that
// stop, kill or configure the server get one of their own from Real. All others share one process
// and get a logical database each (Shared, Oldest), which takes less than a millisecond. Cluster
// starts a cluster, and Sentinel a master with replicas and sentinels. Monitor records the commands
// that a real server executes. RealTLS and ClusterTLS start servers that accept only TLS.
//
// A missing redis-server fails a test. Only with go test -short, tests use the embedded server
// alone, and those that need a real one are skipped. RRATELIMITER_REDIS_SERVER names another binary
// than the one in PATH, or one of the Releases that scripts/deps keeps, such as "Valkey 9.1": then
// Each uses that server alone. Use names one for one test. If the named binary has no TLS, tests of
// TLS are skipped. A process started here ends with the test that started it, or with Main. On
// Linux the kernel also ends it when the test binary ends for any reason.
//
// This file has the servers as tests see them; process.go the redis-server process, ports.go its
// port, releases.go the Releases, shared.go the processes that tests share, cluster.go the cluster,
// sentinel.go the sentinels, tls.go the certificates, monitor.go the recording and hook.go hooks of
// redis clients.
package redistest

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/proof"
	"github.com/rratelimiter/rratelimiter/internal/serverinfo"
)

// A Server is a Redis server for one test: embedded, a process of its own, or one database of the
// process that all tests share.
type Server struct {
	Addr string // host:port on loopback
	DB   int    // the database of this test; 0 unless the server is shared
	TLS  *TLS   // what clients need to trust it; nil for a server without TLS

	tb       testing.TB
	mini     *miniredis.Miniredis
	proc     *process
	shared   bool
	protocol int // of clients; 0: the default of go-redis, RESP3
}

// Nowhere returns an address on loopback on which no server listens.
func Nowhere(tb testing.TB) string {
	tb.Helper()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(freePort(false)))
}

// Embedded starts an embedded server, which needs nothing installed. Its keys expire by the clock,
// as on a real one; Mini().SetTime sets that clock.
func Embedded(tb testing.TB) *Server {
	tb.Helper()
	mini := miniredis.NewMiniRedis()
	mini.ClockTTL(true)
	err := errPortTaken
	for attempt := 0; err != nil && attempt < portAttempts; attempt++ {
		err = mini.StartAddr(net.JoinHostPort("127.0.0.1", strconv.Itoa(freePort(false))))
	}
	if err != nil {
		tb.Fatalf("redistest: start the embedded server: %v", err)
	}
	tb.Cleanup(mini.Close)
	return &Server{Addr: mini.Addr(), tb: tb, mini: mini}
}

// Real starts a redis-server of its own for this test, without persistence, and stops it when the
// test ends. More arguments are given to redis-server as they are: "--maxmemory", "10mb".
func Real(tb testing.TB, args ...string) *Server {
	tb.Helper()
	return startReal(tb, nil, args)
}

func startReal(tb testing.TB, secure *TLS, args []string) *Server {
	tb.Helper()
	needsReal(tb)
	proc, err := startProcess(tb.TempDir(), false, secure, args)
	if err != nil {
		failStart(tb, err)
	}
	tb.Cleanup(proc.kill)
	return &Server{Addr: proc.addr, TLS: secure, tb: tb, proc: proc}
}

// Open is Real without a test. If the server is configured to write files, they go to dir. The
// caller must call stop.
func Open(dir string, args ...string) (addr string, stop func(), err error) {
	proc, err := startProcess(dir, false, nil, args)
	if err != nil {
		return "", nil, fmt.Errorf("redistest: %w", err)
	}
	return proc.addr, proc.kill, nil
}

// Each runs the body as subtest "embedded" on a fresh embedded server, as subtest "redis" on an
// empty database of the real server that tests share and, in make proof, as subtest "redis 6.2,
// RESP2" on one of the oldest. They run at the same time, so state that they share must be safe for
// concurrent use. If the environment names a release, the body runs on that alone.
func Each(t *testing.T, body func(t *testing.T, s *Server)) {
	t.Helper()
	if testing.Short() {
		t.Run("embedded", func(t *testing.T) { body(t, Embedded(t)) })
		return
	}
	if _, named := namedRelease(); named {
		t.Run("redis", func(t *testing.T) { body(t, Shared(t)) })
		return
	}
	var group sync.WaitGroup
	run := func(name string, server func(testing.TB) *Server) {
		group.Go(func() { t.Run(name, func(t *testing.T) { body(t, server(t)) }) })
	}
	run("embedded", Embedded)
	run("redis", Shared)
	if proof.Asked() {
		run("redis 6.2, RESP2", Oldest)
	}
	group.Wait()
}

// Use makes the servers that this test starts ones of a release: those of Real, Cluster and
// Sentinel, not Shared.
func Use(t *testing.T, r Release) {
	t.Helper()
	if _, err := r.find(); err != nil {
		t.Fatalf("redistest: %v", err)
	}
	t.Setenv(serverEnv, r.Name)
}

// EachRelease runs the body as subtest "redis" and, in make proof, as a subtest for each of the
// Releases. The servers that a subtest starts are of its release.
func EachRelease(t *testing.T, body func(t *testing.T)) {
	t.Helper()
	t.Run("redis", body)
	if !proof.Asked() {
		return
	}
	for _, r := range Releases {
		t.Run(r.Name, func(t *testing.T) {
			Use(t, r)
			body(t)
		})
	}
}

// Options returns what a client needs to use this server, changed by the opts.
func (s *Server) Options(opts ...func(*redis.Options)) *redis.Options {
	o := &redis.Options{Addr: s.Addr, DB: s.DB, TLSConfig: s.TLS.config(), Protocol: s.protocol}
	for _, opt := range opts {
		opt(o)
	}
	return o
}

// NoDeadlines lets a client wait for each reply. On a busy machine it then makes no call twice,
// which would have another outcome where the second attempt is refused.
func NoDeadlines(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = -2, -2 }

// Client returns a new client of this server, which is closed when the test ends.
func (s *Server) Client(opts ...func(*redis.Options)) *redis.Client {
	client := redis.NewClient(s.Options(opts...))
	s.tb.Cleanup(func() { _ = client.Close() }) // a test may have closed it already
	return client
}

// URL returns the server's address and database as a URL, for other processes.
func (s *Server) URL() string {
	scheme := "redis"
	if s.TLS != nil {
		scheme = "rediss"
	}
	return fmt.Sprintf("%s://%s/%d", scheme, s.Addr, s.DB)
}

// Mini returns the embedded server, nil for a real one.
func (s *Server) Mini() *miniredis.Miniredis { return s.mini }

// IsReal says whether the server is a redis-server process.
func (s *Server) IsReal() bool { return s.proc != nil }

// Pid returns the process id of the redis-server, 0 for an embedded one or one that was killed.
func (s *Server) Pid() int {
	if s.proc == nil {
		return 0
	}
	return s.proc.pid()
}

// Version returns product and version of a real server, such as "Redis 7.0.15", and "miniredis" for
// an embedded one.
func (s *Server) Version() string {
	s.tb.Helper()
	if s.proc == nil {
		return "miniredis"
	}
	client := redis.NewClient(s.Options())
	defer client.Close()
	info, err := client.Info(context.Background(), "server").Result()
	if err != nil {
		s.tb.Fatalf("redistest: version of %s: %v", s.Addr, err)
	}
	return serverinfo.Server(serverinfo.Fields(info))
}

// Pause stops the server as if it hung: connections stay open without replies. It returns when the
// process has stopped.
func (s *Server) Pause() {
	s.tb.Helper()
	s.own("Pause").do(s.tb, (*process).pause)
}

// Resume lets a paused server go on.
func (s *Server) Resume() {
	s.tb.Helper()
	s.own("Resume").do(s.tb, (*process).resume)
}

// Kill ends the server at once, as a crash would. A real server loses its data, an embedded one
// keeps it for Restart.
func (s *Server) Kill() {
	s.tb.Helper()
	if s.mini != nil {
		s.mini.Close()
		return
	}
	s.own("Kill").kill()
}

// Restart kills the server where it still runs and starts it again on the same port, with the same
// arguments.
func (s *Server) Restart() {
	s.tb.Helper()
	if s.mini != nil {
		s.mini.Close()
		if err := s.mini.Restart(); err != nil {
			s.tb.Fatalf("redistest: restart the embedded server: %v", err)
		}
		return
	}
	s.own("Restart").do(s.tb, (*process).restart)
}

// own returns the process if it belongs to this test alone.
func (s *Server) own(action string) *process {
	s.tb.Helper()
	if s.proc == nil || s.shared {
		s.tb.Fatalf("redistest: %s needs a server process of this test's own: use Real", action)
	}
	return s.proc
}

func (p *process) do(tb testing.TB, action func(*process) error) {
	tb.Helper()
	if err := action(p); err != nil {
		tb.Fatalf("redistest: %v", err)
	}
}

// infoField returns the value of a field in the reply of INFO or CLUSTER INFO, "" if it isn't
// there.
func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
