package redistest

// This file starts a master, its replicas and the sentinels that watch them, on loopback.

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// MasterName is the name of the master in the sentinels.
const MasterName = "limits"

const (
	sentinels = 3
	quorum    = 2
	// so long a server may not reply, so that a busy machine does not look like a dead master
	patience = 10 * time.Minute
	// but in a failover: after this time without a reply, the first sentinel considers it dead
	downAfter = 500 * time.Millisecond
	// added for each further sentinel, so that the others vote for the first one
	stagger         = 200 * time.Millisecond
	failoverTimeout = time.Second // a failed failover is retried after twice as long
)

// A Watched is a master with replicas, and the sentinels that promote a replica when the master
// fails. The servers belong to this test alone: they can be paused, killed and restarted.
type Watched struct {
	Servers   []*Server // the master of the start, then its replicas
	Sentinels []*Server

	tb testing.TB
}

// Sentinel starts a master with replicas and three sentinels with a quorum of two, and returns when
// all have discovered each other. They replace the master only in Failover and Replaced. args are
// added to those of the master and its replicas.
func Sentinel(tb testing.TB, replicas int, args ...string) *Watched {
	tb.Helper()
	if replicas < 1 {
		tb.Fatalf("redistest: sentinels over %d replicas", replicas)
	}
	w := &Watched{tb: tb}
	args = append(replicating(), args...)
	w.Servers = append(w.Servers, Real(tb, args...))
	host, port, err := net.SplitHostPort(w.Servers[0].Addr)
	if err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	for range replicas {
		w.Servers = append(w.Servers, Real(tb, append(args, "--replicaof", host, port)...))
	}
	for _, replica := range w.Servers[1:] {
		linked(tb, replica)
	}
	for range sentinels {
		proc, err := startSentinel(tb.TempDir(), host, port)
		if err != nil {
			tb.Fatalf("redistest: %v", err)
		}
		tb.Cleanup(proc.kill)
		s := &Server{Addr: proc.addr, tb: tb, proc: proc}
		if err := hurry(s); err != nil {
			tb.Fatalf("redistest: sentinel %s: %v", s.Addr, err)
		}
		w.Sentinels = append(w.Sentinels, s)
	}
	w.Ready()
	return w
}

// replicating returns the arguments of a server that replicates without delay and without a file.
func replicating() []string {
	return []string{"--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"}
}

// linked waits until a replica has the data of its master.
func linked(tb testing.TB, replica *Server) {
	tb.Helper()
	for deadline := time.Now().Add(clusterLimit); ; time.Sleep(10 * time.Millisecond) {
		info, err := replication(replica)
		if err == nil && infoField(info, "master_link_status") == "up" {
			return
		}
		if time.Now().After(deadline) {
			tb.Fatalf("redistest: replica %s has no link after %v: %v\n%s", replica.Addr, clusterLimit, err, info)
		}
	}
}

// hurry makes a sentinel poll every 200 ms instead of every few seconds, and shortens its tilt mode
// (after a pause of a busy machine) from 30 s to 1 s. Before Redis 7.0 this is not supported.
func hurry(s *Server) error {
	_, err := askSentinel(s, func(c *redis.SentinelClient) (string, error) {
		cmd := redis.NewStatusCmd(context.Background(), "sentinel", "debug",
			"info-period", 200, "publish-period", 200, "election-timeout", 1000, "tilt-period", 1000)
		_ = c.Process(context.Background(), cmd)
		return cmd.Result()
	})
	if err != nil && strings.HasPrefix(s.Version(), "Redis 6.") {
		return nil
	}
	return err
}

// startSentinel starts a sentinel, which keeps its state in a file in dir.
func startSentinel(dir, masterHost, masterPort string) (*process, error) {
	binary, err := findServer()
	if err != nil {
		return nil, err
	}
	for range portAttempts {
		port := strconv.Itoa(freePort(false))
		file := filepath.Join(dir, "sentinel-"+port+".conf")
		conf := fmt.Sprintf("port %[2]s\nbind 127.0.0.1\ndir %[3]s\nlogfile \"\"\n"+
			"sentinel monitor %[1]s %[4]s %[5]s %[6]d\n"+
			"sentinel down-after-milliseconds %[1]s %[7]d\nsentinel failover-timeout %[1]s %[8]d\n",
			MasterName, port, dir, masterHost, masterPort, quorum, patience.Milliseconds(),
			failoverTimeout.Milliseconds())
		if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
			return nil, err
		}
		p := &process{
			addr: net.JoinHostPort("127.0.0.1", port), dir: dir,
			args: []string{binary, file, "--sentinel"},
		}
		if err = p.start(); err == nil {
			return p, nil
		}
		p.kill()
		if !errors.Is(err, errPortTaken) {
			return nil, err
		}
	}
	return nil, errPortTaken
}

// downAfter sets after how long without a reply each sentinel considers the master down.
func (w *Watched) downAfter(d, stagger time.Duration) {
	w.tb.Helper()
	for i, s := range w.Sentinels {
		if s.Pid() == 0 {
			continue
		}
		_, err := askSentinel(s, func(c *redis.SentinelClient) (string, error) {
			ms := (d + time.Duration(i)*stagger).Milliseconds()
			return c.Set(context.Background(), MasterName, "down-after-milliseconds",
				strconv.FormatInt(ms, 10)).Result()
		})
		if err != nil {
			w.tb.Fatalf("redistest: sentinel %s: %v", s.Addr, err)
		}
	}
}

// Ready waits until the sentinels have discovered each other and agree on a running master, all
// running replicas are linked to it, and each sentinel has discovered all replicas; for example
// after a Restart of one of them.
func (w *Watched) Ready() {
	w.tb.Helper()
	var last error
	for deadline := time.Now().Add(clusterLimit); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if last = w.settled(); last == nil {
			return
		}
	}
	w.tb.Fatalf("redistest: the sentinels are not ready after %v: %v", clusterLimit, last)
}

// settled returns what Ready still waits for, or nil.
func (w *Watched) settled() error {
	ctx := context.Background()
	master := ""
	for _, s := range w.Sentinels {
		if s.Pid() == 0 {
			continue
		}
		found, err := askSentinel(s, func(c *redis.SentinelClient) (map[string]string, error) {
			return c.Master(ctx, MasterName).Result()
		})
		if err != nil {
			return err
		}
		addr := net.JoinHostPort(found["ip"], found["port"])
		switch {
		case master != "" && addr != master:
			return fmt.Errorf("%s says %s, others %s", s.Addr, addr, master)
		case found["flags"] != "master":
			return fmt.Errorf("%s says of the master that it is %s", s.Addr, found["flags"])
		case found["num-other-sentinels"] != strconv.Itoa(len(w.Sentinels)-1):
			return fmt.Errorf("%s knows %s others", s.Addr, found["num-other-sentinels"])
		case found["num-slaves"] != strconv.Itoa(len(w.Servers)-1):
			return fmt.Errorf("%s knows %s replicas", s.Addr, found["num-slaves"])
		}
		master = addr
	}
	masters := 0
	for _, s := range w.Servers {
		if s.Pid() == 0 {
			continue
		}
		role, err := replication(s)
		switch {
		case err != nil:
			return err
		case infoField(role, "role") == "master" && s.Addr == master:
			masters++
		case infoField(role, "master_host")+":"+infoField(role, "master_port") != master ||
			infoField(role, "master_link_status") != "up":
			return fmt.Errorf("%s is no replica of %s:\n%s", s.Addr, master, role)
		}
	}
	if masters == 0 {
		return fmt.Errorf("the master %s does not run as one", master)
	}
	return nil
}

func replication(s *Server) (string, error) {
	client := redis.NewClient(s.Options())
	defer client.Close()
	return client.Info(context.Background(), "replication").Result()
}

func askSentinel[T any](s *Server, ask func(c *redis.SentinelClient) (T, error)) (T, error) {
	client := redis.NewSentinelClient(&redis.Options{Addr: s.Addr})
	defer client.Close()
	return ask(client)
}

// Addrs returns the addresses of the sentinels.
func (w *Watched) Addrs() []string {
	addrs := make([]string, len(w.Sentinels))
	for i, s := range w.Sentinels {
		addrs[i] = s.Addr
	}
	return addrs
}

// Master returns the master as the first sentinel that runs has it.
func (w *Watched) Master() *Server {
	w.tb.Helper()
	addr, err := w.masterAddr()
	if err != nil {
		w.tb.Fatalf("redistest: master: %v", err)
	}
	for _, s := range w.Servers {
		if s.Addr == addr {
			return s
		}
	}
	w.tb.Fatalf("redistest: the master %s is none of ours", addr)
	return nil
}

func (w *Watched) masterAddr() (string, error) {
	for _, s := range w.Sentinels {
		if s.Pid() == 0 {
			continue
		}
		host, err := askSentinel(s, func(c *redis.SentinelClient) ([]string, error) {
			return c.GetMasterAddrByName(context.Background(), MasterName).Result()
		})
		if err != nil {
			return "", err
		}
		return net.JoinHostPort(host[0], host[1]), nil
	}
	return "", errors.New("no sentinel runs")
}

// Replicas returns all servers but the master.
func (w *Watched) Replicas() []*Server {
	w.tb.Helper()
	master := w.Master()
	var others []*Server
	for _, s := range w.Servers {
		if s != master {
			others = append(others, s)
		}
	}
	return others
}

// Failover kills the master and returns it when the sentinels have made a replica the master, which
// serves writes from then on.
func (w *Watched) Failover() (killed *Server) {
	w.tb.Helper()
	killed = w.Master()
	killed.Kill()
	w.Replaced(killed)
	return killed
}

// Replaced makes the sentinels notice that their master is dead, and waits until they have made
// another server the master, which serves writes from then on.
func (w *Watched) Replaced(old *Server) {
	w.tb.Helper()
	w.downAfter(downAfter, stagger)
	defer w.downAfter(patience, 0)
	var addr, role string
	var err error
	for deadline := time.Now().Add(clusterLimit); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if addr, err = w.masterAddr(); err != nil || addr == old.Addr {
			continue
		}
		for _, s := range w.Servers {
			if s.Addr == addr {
				if role, err = replication(s); err == nil && infoField(role, "role") == "master" {
					return
				}
			}
		}
	}
	w.tb.Fatalf(
		"redistest: %s is not replaced after %v: master is %s, error %v\n%s", old.Addr, clusterLimit, addr, err, role,
	)
}

// Client returns a new client that follows the master, which is closed when the test ends.
func (w *Watched) Client(opts ...func(*redis.FailoverOptions)) *redis.Client {
	o := &redis.FailoverOptions{MasterName: MasterName, SentinelAddrs: w.Addrs()}
	for _, opt := range opts {
		opt(o)
	}
	client := redis.NewFailoverClient(o)
	w.tb.Cleanup(func() { _ = client.Close() }) // a test may have closed it already
	return client
}
