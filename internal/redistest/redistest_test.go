package redistest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rratelimiter/rratelimiter/internal/proof"
)

// childEnv selects the role of this test binary when a test starts it as a child.
const childEnv = "REDISTEST_CHILD"

func TestMain(m *testing.M) { Main(m) }

var ctx = context.Background()

func TestEachGivesAnEmptyServerOfEachKind(t *testing.T) {
	t.Setenv(serverEnv, "")
	var mu sync.Mutex
	kinds := map[string]bool{}
	for range 3 { // data of one round must not be there in the next
		Each(t, func(t *testing.T, s *Server) {
			client := s.Client()
			if n, err := client.DBSize(ctx).Result(); err != nil || n != 0 {
				t.Errorf("a fresh server holds %d keys (%v)", n, err)
			}
			if err := client.Set(ctx, "key", "value", 0).Err(); err != nil {
				t.Error(err)
			}
			if (s.Mini() == nil) != s.IsReal() || (s.Pid() != 0) != s.IsReal() ||
				(s.Version() == "miniredis") == s.IsReal() {
				t.Errorf("real %v, but pid %d, version %q, embedded %v", s.IsReal(), s.Pid(), s.Version(), s.Mini())
			}
			opts, err := redis.ParseURL(s.URL())
			if err != nil || opts.Addr != s.Addr || opts.DB != s.DB {
				t.Errorf("URL %s does not name %s, database %d (%v)", s.URL(), s.Addr, s.DB, err)
			}
			_, kind, _ := strings.Cut(t.Name(), "/")
			kind, _, _ = strings.Cut(kind, "#")
			_, resp3 := client.Do(ctx, "hgetall", "none").Val().(map[any]any)
			mu.Lock()
			defer mu.Unlock()
			kinds[fmt.Sprintf("%s: real %v, RESP3 %v", kind, s.IsReal(), resp3)] = true
			if strings.Contains(kind, "6.2") && !strings.HasPrefix(s.Version(), "Redis 6.2.") {
				t.Errorf("%s is a %s", kind, s.Version())
			}
		})
	}
	want := []string{"embedded: real false, RESP3 true", "redis: real true, RESP3 true"}
	if proof.Asked() {
		want = append(want, "redis_6.2,_RESP2: real true, RESP3 false")
	}
	if got := slices.Sorted(maps.Keys(kinds)); !slices.Equal(got, want) {
		t.Errorf("ran as %q, want %q", got, want)
	}
}

func TestEachUsesANamedReleaseAlone(t *testing.T) {
	t.Setenv(serverEnv, Valkey91.Name)
	var kinds []string
	Each(t, func(t *testing.T, s *Server) {
		kinds = append(
			kinds, fmt.Sprintf("%s, real %v",
				strings.TrimPrefix(t.Name(), "TestEachUsesANamedReleaseAlone/"), s.IsReal()),
		)
	})
	if want := []string{"redis, real true"}; !slices.Equal(kinds, want) {
		t.Errorf("ran as %q, want %q", kinds, want)
	}
}

func TestClientTakesOptionsAndIsClosedWithTheTest(t *testing.T) {
	var client *redis.Client
	t.Run("inner", func(t *testing.T) {
		client = Shared(t).Client(func(o *redis.Options) { o.ClientName = "somebody" })
		if name := client.ClientGetName(ctx).Val(); name != "somebody" {
			t.Errorf("client is named %q", name)
		}
	})
	if err := client.Ping(ctx).Err(); !errors.Is(err, redis.ErrClosed) {
		t.Errorf("after its test the client answers with %v", err)
	}
}

func TestSharedGivesEachParallelTestItsOwnDatabase(t *testing.T) {
	var mu sync.Mutex
	inUse := map[int]bool{}
	pids := map[int]bool{}
	t.Run("group", func(t *testing.T) {
		for i := range 3 * databases {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				s := Shared(t)
				mu.Lock()
				if inUse[s.DB] {
					t.Errorf("database %d is used twice", s.DB)
				}
				inUse[s.DB] = true
				pids[s.Pid()] = true
				mu.Unlock()
				t.Cleanup(func() {
					mu.Lock()
					delete(inUse, s.DB)
					mu.Unlock()
				})
				client := s.Client()
				if n := client.Incr(ctx, "count").Val(); n != 1 {
					t.Errorf("database %d was not empty: %d", s.DB, n)
				}
			})
		}
	})
	if len(pids) != 1 {
		t.Errorf("%d server processes, want one", len(pids))
	}
}

func TestRealTakesArguments(t *testing.T) {
	s := Real(t, "--maxmemory", "10mb")
	client := s.Client()
	if got := client.ConfigGet(ctx, "maxmemory").Val()["maxmemory"]; got != "10485760" {
		t.Errorf("maxmemory is %q", got)
	}
	for name, want := range map[string]string{"save": "", "appendonly": "no"} {
		if got, ok := client.ConfigGet(ctx, name).Val()[name]; !ok || got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if version := s.Version(); !strings.Contains(version, ".") {
		t.Errorf("version %q", version)
	}
	host, _, err := net.SplitHostPort(s.Addr)
	if err != nil || host != "127.0.0.1" {
		t.Errorf("listens at %s, not on loopback (%v)", s.Addr, err)
	}
	if _, err := os.FindProcess(s.Pid()); err != nil || client.Info(ctx, "server").Val() == "" ||
		infoField(client.Info(ctx, "server").Val(), "process_id") != strconv.Itoa(s.Pid()) {
		t.Errorf("pid %d is not the server's", s.Pid())
	}
}

func TestRealEndsWithItsTest(t *testing.T) {
	var addr string
	t.Run("inner", func(t *testing.T) { addr = Real(t).Addr })
	if _, err := servingPid(addr, nil); err == nil {
		t.Errorf("%s still answers", addr)
	}
}

func TestPausedServerHangsAndGoesOn(t *testing.T) {
	s := Real(t)
	client := s.Client(func(o *redis.Options) { o.ContextTimeoutEnabled = true; o.MaxRetries = -1 })
	if err := client.Set(ctx, "key", "value", 0).Err(); err != nil {
		t.Fatal(err)
	}
	s.Pause()
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	var timeout net.Error
	if err := client.Ping(short).Err(); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("a paused server answers with %v, want a timeout", err)
	}
	s.Resume()
	if got, err := client.Get(ctx, "key").Result(); got != "value" {
		t.Errorf("after Resume: %q (%v)", got, err)
	}
	s.Pause() // a paused server must not hold up the end of the test
}

func TestKillAndRestartOnTheSamePort(t *testing.T) {
	for name, start := range map[string]func(testing.TB) *Server{
		"embedded": Embedded,
		"redis":    func(tb testing.TB) *Server { return Real(tb) },
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			client := s.Client(func(o *redis.Options) { o.MaxRetries, o.DialerRetries = -1, 1 })
			if err := client.Set(ctx, "key", "value", 0).Err(); err != nil {
				t.Fatal(err)
			}
			first := s.Pid()
			for range 3 {
				s.Kill()
				s.Kill() // once more does nothing
				if err := client.Ping(ctx).Err(); err == nil {
					t.Error("a killed server answers")
				}
				if s.Pid() != 0 {
					t.Errorf("a killed server has pid %d", s.Pid())
				}
				s.Restart()
				eventually(t, "the client gets through again", func() bool { return client.Ping(ctx).Err() == nil })
			}
			s.Restart() // while it runs
			eventually(t, "the client gets through again", func() bool { return client.Ping(ctx).Err() == nil })
			if s.IsReal() && (s.Pid() == 0 || s.Pid() == first) {
				t.Errorf("pid %d before and %d after a restart", first, s.Pid())
			}
			if kept := client.Exists(ctx, "key").Val() == 1; kept == s.IsReal() {
				t.Errorf("the key is kept: %v", kept)
			}
		})
	}
}

func TestAPortThatIsTakenIsSeen(t *testing.T) {
	s := Real(t)
	twin := &process{addr: s.Addr, dir: t.TempDir(), args: s.proc.args}
	if err := twin.start(); !errors.Is(err, errPortTaken) {
		t.Errorf("got %v, want %v: the answer of another server was taken for its own", err, errPortTaken)
	}
	twin.kill()
}

func TestFailuresSayWhatToDo(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "no-such-server")
	for _, c := range []struct {
		name string
		env  string
		run  func(tb testing.TB)
		want []string
	}{
		{"no redis-server", missing, func(tb testing.TB) { Real(tb) },
			[]string{missing, "apt-get install -y redis-server", "brew install redis", serverEnv}},
		{"no redis-server for a cluster", missing, func(tb testing.TB) { Cluster(tb, 3) }, []string{"apt-get install"}},
		{"not a redis-server", "false", func(tb testing.TB) { Real(tb) }, []string{"ended at once"}},
		{
			"a wrong argument", "", func(tb testing.TB) { Real(tb, "--no-such-option", "1") },
			[]string{"ended at once", "no-such-option"},
		},
		{"a cluster of nothing", "", func(tb testing.TB) { Cluster(tb, 0) }, []string{"0 masters"}},
		{"sentinels over nothing", "", func(tb testing.TB) { Sentinel(tb, 0) }, []string{"0 replicas"}},
		{"kill what is shared", "", func(tb testing.TB) { Shared(tb).Kill() }, []string{"use Real"}},
		{"pause what is shared", "", func(tb testing.TB) { Shared(tb).Pause() }, []string{"use Real"}},
		{"restart what is shared", "", func(tb testing.TB) { Shared(tb).Restart() }, []string{"use Real"}},
		{"pause an embedded server", "", func(tb testing.TB) { Embedded(tb).Pause() }, []string{"use Real"}},
		{"resume a killed server", "", func(tb testing.TB) {
			s := Real(tb)
			s.Kill()
			s.Resume()
		}, []string{"does not run"}},
		{
			"version of a killed server", "", func(tb testing.TB) { s := Real(tb); s.Kill(); s.Version() },
			[]string{"version of 127.0.0.1"},
		},
		{
			"monitor an embedded server", "", func(tb testing.TB) { Monitor(tb, Embedded(tb).Addr) },
			[]string{"MONITOR is answered with"},
		},
		{"monitor nothing", "", func(tb testing.TB) { Monitor(tb, "127.0.0.1:1") }, []string{"monitor 127.0.0.1:1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv(serverEnv, c.env)
			failure, failed := fatal(t, c.run)
			if !failed {
				t.Fatal("did not fail")
			}
			for _, want := range c.want {
				if !strings.Contains(failure, want) {
					t.Errorf("the failure does not say %q:\n%s", want, failure)
				}
			}
		})
	}
}

func TestReleasesAreWhatTheySay(t *testing.T) {
	other := filepath.Join(t.TempDir(), "redis-server")
	if err := os.WriteFile(other, []byte("#!/bin/sh\necho Redis server v=7.0.15 sha=00000000:0\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, binary := range map[string]string{
		"none":            filepath.Join(t.TempDir(), "no-such-server"),
		"another release": other,
	} {
		t.Run(name, func(t *testing.T) {
			for _, r := range Releases {
				t.Setenv(r.env, binary)
				_, err := r.find()
				if err == nil {
					t.Fatalf("took %s for %s", binary, r.Name)
				}
				for _, want := range []string{binary, "scripts/deps " + r.target, r.env} {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("the failure does not say %q:\n%v", want, err)
					}
				}
			}
		})
	}
}

func TestEachReleaseStartsIt(t *testing.T) {
	var started []string
	EachRelease(t, func(t *testing.T) {
		started = append(started, Real(t).Version())
	})
	if want := proof.Or(1+len(Releases), 1); len(started) != want {
		t.Fatalf("started %q", started)
	}
	for i := range started[1:] {
		r := Releases[i]
		if !strings.HasPrefix(started[1+i], r.Name+".") {
			t.Errorf("started %s for %s", started[1+i], r.Name)
		}
	}
}

// A server without TLS is named, not its log. Where the environment names it, the test is skipped.
func TestServerWithoutTLS(t *testing.T) {
	without := filepath.Join(t.TempDir(), "redis-server")
	if err := os.WriteFile(without, []byte("#!/bin/sh\necho '# Failed finding TLS support.'\nexit 1\n"),
		0o755); err != nil {
		t.Fatal(err)
	}
	t.Run("named", func(t *testing.T) {
		t.Setenv(serverEnv, without)
		for kind, start := range map[string]func(tb testing.TB){
			"one": func(tb testing.TB) { RealTLS(tb) }, "a cluster": func(tb testing.TB) { ClusterTLS(tb, 3) },
		} {
			if skipped, failed := fatal(t, start); failed || !strings.Contains(skipped, "skipped: redistest: ") {
				t.Errorf("%s: not skipped, but %s", kind, skipped)
			}
		}
	})
	t.Run("in PATH", func(t *testing.T) {
		t.Setenv(serverEnv, "")
		t.Setenv("PATH", filepath.Dir(without)+string(os.PathListSeparator)+os.Getenv("PATH"))
		if failure, failed := fatal(t, func(tb testing.TB) { RealTLS(tb) }); !failed ||
			!strings.Contains(failure, "built without TLS") {
			t.Errorf("failed: %v, %s", failed, failure)
		}
	})
}

func TestTheEnvironmentNamesTheServer(t *testing.T) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "redis-server-of-mine")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	t.Setenv(serverEnv, link)
	if s := Real(t); s.proc.args[0] != link {
		t.Errorf("runs %s, not %s", s.proc.args[0], link)
	}
}

// A test binary that is killed, that panics or that just ends leaves no server behind, neither its
// own nor the shared one.
func TestServersEndWithTheTestBinary(t *testing.T) {
	for _, end := range []string{"is killed", "exits", "panics", "passes"} {
		if runtime.GOOS != "linux" && end != "passes" {
			continue // only the kernel can do it; process_unix.go says so
		}
		t.Run(end, func(t *testing.T) {
			child := exec.Command(os.Args[0], "-test.run=^TestChild$", "-test.v")
			child.Env = append(os.Environ(), childEnv+"="+end, "TMPDIR="+t.TempDir())
			out, err := child.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := child.Start(); err != nil {
				t.Fatal(err)
			}
			var addrs []string
			lines := bufio.NewScanner(out)
			for lines.Scan() {
				if addr, ok := strings.CutPrefix(lines.Text(), "serving at "); ok {
					addrs = append(addrs, addr)
					if _, err := servingPid(addr, nil); err != nil && end == "is killed" {
						t.Errorf("%s does not answer while the child lives: %v", addr, err)
					}
				}
				if len(addrs) == 2 && end == "is killed" {
					if err := child.Process.Kill(); err != nil {
						t.Error(err)
					}
				}
			}
			if err := child.Wait(); (err == nil) != (end == "passes") {
				t.Errorf("the child ended with %v", err)
			}
			if len(addrs) != 2 {
				t.Fatalf("the child named %d servers", len(addrs))
			}
			for _, addr := range addrs {
				eventually(t, addr+" is gone", func() bool { _, err := servingPid(addr, nil); return err != nil })
			}
		})
	}
}

// TestChild is the test binary of TestServersEndWithTheTestBinary. On its own it starts and ends as
// one that passes.
func TestChild(t *testing.T) {
	own, common := Real(t), Shared(t)
	for _, s := range []*Server{own, common} {
		if err := s.Client().Ping(ctx).Err(); err != nil {
			t.Fatal(err)
		}
		fmt.Println("serving at " + s.Addr)
	}
	switch os.Getenv(childEnv) {
	case "is killed":
		time.Sleep(time.Minute)
		t.Fatal("nobody killed the child")
	case "exits":
		os.Exit(3)
	case "panics":
		done := make(chan struct{})
		go func() { panic("as a test does that runs into its timeout") }()
		<-done
	}
}

// A fakeTB takes the place of a test that fails.
type fakeTB struct {
	testing.TB
	failure string
	failed  bool
}

func (f *fakeTB) Helper() {}

func (f *fakeTB) Fatalf(format string, args ...any) {
	f.failure, f.failed = fmt.Sprintf(format, args...), true
	runtime.Goexit()
}

func (f *fakeTB) Skipf(format string, args ...any) {
	f.failure = "skipped: " + fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// fatal runs something as a test and returns how it failed, or why it was skipped. What it starts
// ends with t.
func fatal(t *testing.T, run func(tb testing.TB)) (failure string, failed bool) {
	t.Helper()
	fake := &fakeTB{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		run(fake)
	}()
	<-done
	return fake.failure, fake.failed
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it does not come about that %s", what)
		}
	}
}

func TestOpenServesUntilItIsStopped(t *testing.T) {
	addr, stop, err := Open(t.TempDir(), "--maxmemory", "10mb")
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	client := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
	defer client.Close()
	if limit := client.ConfigGet(t.Context(), "maxmemory").Val()["maxmemory"]; limit != "10485760" {
		t.Errorf("maxmemory is %q", limit)
	}
	stop()
	if err := client.Ping(t.Context()).Err(); err == nil {
		t.Error("a server that was stopped answers")
	}
}
