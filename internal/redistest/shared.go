package redistest

// This file hands out the databases of one redis-server process to all tests of a test binary.

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// databases is how many tests can use the shared server at once.
const databases = 64

// takeLimit bounds the wait for a database, so that a test that takes more than there are fails with a
// clear message and not by the timeout of the whole binary.
const takeLimit = 2 * time.Minute

var shared struct {
	mu    sync.Mutex
	proc  *process
	admin *redis.Client
	spare chan int // databases that no test uses
}

// Shared returns an empty database of the one redis-server that all tests of this test binary share. It
// belongs to the test alone until the test ends. What is not kept by database is shared: the script
// cache (SCRIPT FLUSH), CONFIG, pub/sub, and Monitor, whose commands carry their DB. Kill, Pause and
// Restart fail the test; use Real for those.
func Shared(tb testing.TB) *Server {
	tb.Helper()
	addr, proc, admin := sharedProcess(tb)
	var db int
	select {
	case db = <-shared.spare:
	case <-time.After(takeLimit):
		tb.Fatalf("redistest: all %d databases of the shared server are in use", databases)
	}
	tb.Cleanup(func() { shared.spare <- db })
	ctx := context.Background()
	if _, err := admin.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Do(ctx, "select", db)
		p.FlushDB(ctx)
		return nil
	}); err != nil {
		tb.Fatalf("redistest: empty database %d of %s: %v", db, addr, err)
	}
	return &Server{Addr: addr, DB: db, tb: tb, proc: proc, shared: true}
}

// sharedProcess starts the shared server at the first call.
func sharedProcess(tb testing.TB) (string, *process, *redis.Client) {
	tb.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.proc == nil {
		proc, err := startProcess(os.TempDir(), false, nil, nil) // it writes nothing
		if err != nil {
			tb.Fatalf("redistest: %v", err)
		}
		shared.proc = proc
		shared.admin = redis.NewClient(&redis.Options{Addr: proc.addr})
		shared.spare = make(chan int, databases)
		for db := range databases {
			shared.spare <- db
		}
	}
	return shared.proc.addr, shared.proc, shared.admin
}

// Main runs the tests of a package, ends the shared server, and exits. A package that uses Shared or
// Each calls it from its TestMain:
//
//	func TestMain(m *testing.M) { redistest.Main(m) }
//
// On Linux the shared server also ends without it.
func Main(m *testing.M) {
	code := m.Run()
	shared.mu.Lock()
	if shared.proc != nil {
		_ = shared.admin.Close()
		shared.proc.kill()
	}
	shared.mu.Unlock()
	os.Exit(code)
}
