package redistest

// This file hands out the databases of one redis-server process to all tests of a test binary, and
// those of one of the oldest supported release.

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// databases is the number of tests that can use a shared server at once.
const databases = 64

// takeLimit bounds the wait for a database, so that a test that takes more than there are fails
// with a clear message and not by the timeout of the whole binary.
const takeLimit = 2 * time.Minute

// A pool is a process whose databases tests share.
type pool struct {
	find     func() (string, error)
	protocol int // of the clients: RESP2 or RESP3

	mu    sync.Mutex
	proc  *process
	admin *redis.Client
	spare chan int // databases that no test uses
}

var (
	shared = &pool{find: findServer, protocol: 3}
	oldest = &pool{find: Redis62.find, protocol: 2}
)

// Shared returns an empty database of the one redis-server that all tests of this test binary
// share. It belongs to the test alone until the test ends. State that is not kept by database is
// shared: the script cache (SCRIPT FLUSH), CONFIG, pub/sub, and Monitor, whose commands have their
// DB. Kill, Pause and Restart fail the test; use Real for them.
func Shared(tb testing.TB) *Server {
	tb.Helper()
	return shared.take(tb)
}

// Oldest is Shared with a redis-server of the oldest supported release, and clients that use RESP2.
func Oldest(tb testing.TB) *Server {
	tb.Helper()
	return oldest.take(tb)
}

func (p *pool) take(tb testing.TB) *Server {
	tb.Helper()
	needsReal(tb)
	p.start(tb)
	var db int
	select {
	case db = <-p.spare:
	case <-time.After(takeLimit):
		tb.Fatalf("redistest: all %d databases of the shared server are in use", databases)
	}
	tb.Cleanup(func() { p.spare <- db })
	ctx := context.Background()
	if _, err := p.admin.Pipelined(ctx, func(c redis.Pipeliner) error {
		c.Do(ctx, "select", db)
		c.FlushDB(ctx)
		return nil
	}); err != nil {
		tb.Fatalf("redistest: empty database %d of %s: %v", db, p.proc.addr, err)
	}
	return &Server{Addr: p.proc.addr, DB: db, tb: tb, proc: p.proc, shared: true, protocol: p.protocol}
}

// start starts the process at the first call.
func (p *pool) start(tb testing.TB) {
	tb.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.proc != nil {
		return
	}
	binary, err := p.find()
	if err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	proc, err := launch(binary, os.TempDir(), false, nil, nil) // it writes nothing
	if err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	p.proc = proc
	p.admin = redis.NewClient(&redis.Options{Addr: proc.addr})
	p.spare = make(chan int, databases)
	for db := range databases {
		p.spare <- db
	}
}

func (p *pool) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.proc != nil {
		_ = p.admin.Close()
		p.proc.kill()
	}
}

// Main runs the tests of a package, ends the shared servers, and exits. A package that uses Shared,
// Oldest or Each calls it from its TestMain:
//
//	func TestMain(m *testing.M) { redistest.Main(m) }
//
// On Linux the shared servers also end without it.
func Main(m *testing.M) {
	code := m.Run()
	shared.stop()
	oldest.stop()
	os.Exit(code)
}
