package redistest

// This file starts a Redis cluster on loopback.

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const slots = 16384

// clusterLimit bounds the wait until the nodes agree, which takes two to three seconds.
const clusterLimit = 60 * time.Second

// Nodes are the nodes of a cluster; the slots are spread evenly over its masters, in their order.
// Each node is a Server of this test's own: it can be paused, killed and restarted (a master
// without replicas then comes back with its slots, and without its data).
type Nodes struct {
	Servers  []*Server // the masters of the start
	Replicas []*Server // none, or one of each, in the same order

	tb testing.TB
}

// Cluster starts a cluster of masters without replicas and returns when all nodes agree that it
// works. More arguments are given to each redis-server.
func Cluster(tb testing.TB, masters int, args ...string) *Nodes {
	tb.Helper()
	nodes := startNodes(tb, masters, nil, args)
	nodes.Ready()
	return nodes
}

// ReplicatedCluster is a Cluster in which each master has a replica, which takes its place in
// Failover.
func ReplicatedCluster(tb testing.TB, masters int, args ...string) *Nodes {
	tb.Helper()
	args = append(append(replicating(), "--cluster-replica-validity-factor", "0"), args...)
	nodes := startNodes(tb, masters, nil, args)
	nodes.Ready()
	for _, master := range nodes.Servers {
		replica := nodes.start(nil, args)
		nodes.Replicas = append(nodes.Replicas, replica)
		if err := meet(replica, nodes.Servers...); err != nil {
			tb.Fatalf("redistest: cluster node %s: %v", replica.Addr, err)
		}
		nodes.replicate(replica, master)
	}
	nodes.Ready()
	return nodes
}

// startNodes starts masters and makes them meet.
func startNodes(tb testing.TB, masters int, secure *TLS, args []string) *Nodes {
	tb.Helper()
	needsReal(tb)
	if masters < 1 || masters > slots {
		tb.Fatalf("redistest: a cluster of %d masters", masters)
	}
	nodes := &Nodes{tb: tb}
	for range masters {
		nodes.Servers = append(nodes.Servers, nodes.start(secure, args))
	}
	for i, s := range nodes.Servers {
		if err := join(s, i, nodes.Servers); err != nil {
			tb.Fatalf("redistest: cluster node %s: %v", s.Addr, err)
		}
	}
	return nodes
}

// start starts a node that is not connected to any other.
func (n *Nodes) start(secure *TLS, args []string) *Server {
	n.tb.Helper()
	proc, err := startProcess(n.tb.TempDir(), true, secure, append([]string{"--cluster-enabled", "yes"}, args...))
	if err != nil {
		failStart(n.tb, err)
	}
	n.tb.Cleanup(proc.kill)
	return &Server{Addr: proc.addr, TLS: secure, tb: n.tb, proc: proc}
}

// replicate makes a node the replica of another as soon as it has met that one, and waits until it
// has its data.
func (n *Nodes) replicate(replica, master *Server) {
	n.tb.Helper()
	ctx := context.Background()
	own, other := redis.NewClient(replica.Options()), redis.NewClient(master.Options())
	defer own.Close()
	defer other.Close()
	var last error
	for deadline := time.Now().Add(clusterLimit); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		id, err := other.Do(ctx, "cluster", "myid").Text()
		if err == nil {
			err = own.ClusterReplicate(ctx, id).Err()
		}
		if last = err; last == nil {
			break
		}
	}
	if last != nil {
		n.tb.Fatalf("redistest: make %s a replica of %s: %v", replica.Addr, master.Addr, last)
	}
	linked(n.tb, replica)
}

// join gives the i-th node its slots and makes it meet the nodes before it.
func join(s *Server, i int, all []*Server) error {
	ctx := context.Background()
	client := redis.NewClient(s.Options())
	defer client.Close()
	// With different epochs from the start, the nodes need not resolve epoch collisions.
	if err := client.Do(ctx, "cluster", "set-config-epoch", i+1).Err(); err != nil {
		return fmt.Errorf("set the epoch: %w", err)
	}
	first, next := i*slots/len(all), (i+1)*slots/len(all)
	if err := client.ClusterAddSlotsRange(ctx, first, next-1).Err(); err != nil {
		return fmt.Errorf("add slots %d to %d: %w", first, next-1, err)
	}
	return meet(s, all[:i]...)
}

// meet introduces a node to others.
func meet(s *Server, others ...*Server) error {
	client := redis.NewClient(s.Options())
	defer client.Close()
	for _, other := range others {
		host, port, err := net.SplitHostPort(other.Addr)
		if err != nil {
			return err
		}
		if err := client.ClusterMeet(context.Background(), host, port).Err(); err != nil {
			return fmt.Errorf("meet %s: %w", other.Addr, err)
		}
	}
	return nil
}

// all are the nodes, masters first.
func (n *Nodes) all() []*Server { return slices.Concat(n.Servers, n.Replicas) }

// Ready waits until every running node reports that the cluster works and has met all others, as
// after a Restart of one of them.
func (n *Nodes) Ready() {
	n.tb.Helper()
	deadline := time.Now().Add(clusterLimit)
	for _, s := range n.all() {
		if s.Pid() == 0 {
			continue
		}
		client := redis.NewClient(s.Options())
		for {
			info, err := client.ClusterInfo(context.Background()).Result()
			if err == nil && infoField(info, "cluster_state") == "ok" &&
				infoField(info, "cluster_slots_ok") == strconv.Itoa(slots) &&
				infoField(info, "cluster_known_nodes") == strconv.Itoa(len(n.all())) &&
				infoField(info, "cluster_size") == strconv.Itoa(len(n.Servers)) {
				break
			}
			if time.Now().After(deadline) {
				_ = client.Close()
				n.tb.Fatalf("redistest: cluster node %s is not ready after %v: %v\n%s", s.Addr, clusterLimit, err, info)
			}
			time.Sleep(20 * time.Millisecond)
		}
		_ = client.Close()
	}
}

// Addrs returns the addresses of all nodes.
func (n *Nodes) Addrs() []string {
	addrs := make([]string, 0, len(n.all()))
	for _, s := range n.all() {
		addrs = append(addrs, s.Addr)
	}
	return addrs
}

// ClusterClient returns a new client of the whole cluster, which is closed when the test ends.
func (n *Nodes) ClusterClient(opts ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	o := &redis.ClusterOptions{Addrs: n.Addrs(), TLSConfig: n.Servers[0].TLS.config()}
	for _, opt := range opts {
		opt(o)
	}
	client := redis.NewClusterClient(o)
	n.tb.Cleanup(func() { _ = client.Close() }) // a test may have closed it already
	return client
}

// Owner returns the node that holds the slot of a key, as the first node that runs has it.
func (n *Nodes) Owner(key string) *Server {
	n.tb.Helper()
	for _, s := range n.all() {
		if s.Pid() == 0 {
			continue
		}
		addr, err := ownerAddr(s, key)
		if err != nil {
			n.tb.Fatalf("redistest: owner of %q by %s: %v", key, s.Addr, err)
		}
		for _, owner := range n.all() {
			if owner.Addr == addr {
				return owner
			}
		}
	}
	n.tb.Fatalf("redistest: nobody owns %q", key)
	return nil
}

// Failover kills the owner of a key and returns it when its replica has taken its place, as all
// nodes that run have it.
func (n *Nodes) Failover(key string) (killed *Server) {
	n.tb.Helper()
	killed = n.Owner(key)
	killed.Kill()
	n.downAfter(downAfter)
	defer n.downAfter(patience)
	for _, s := range n.all() {
		if s.Pid() == 0 {
			continue
		}
		for deadline := time.Now().Add(clusterLimit); ; time.Sleep(10 * time.Millisecond) {
			addr, err := ownerAddr(s, key)
			if err == nil && addr != killed.Addr {
				break
			}
			if time.Now().After(deadline) {
				n.tb.Fatalf("redistest: %s is not replaced after %v, as %s has it: %v",
					killed.Addr, clusterLimit, s.Addr, err)
			}
		}
	}
	return killed
}

// downAfter sets after how long without a reply a node considers another one down.
func (n *Nodes) downAfter(d time.Duration) {
	n.tb.Helper()
	for _, s := range n.all() {
		if s.Pid() == 0 {
			continue
		}
		client := redis.NewClient(s.Options())
		err := client.ConfigSet(context.Background(), "cluster-node-timeout",
			strconv.FormatInt(d.Milliseconds(), 10)).Err()
		_ = client.Close()
		if err != nil {
			n.tb.Fatalf("redistest: cluster node %s: %v", s.Addr, err)
		}
	}
}

func ownerAddr(s *Server, key string) (string, error) {
	ctx := context.Background()
	client := redis.NewClient(s.Options())
	defer client.Close()
	slot, err := client.ClusterKeySlot(ctx, key).Result()
	if err != nil {
		return "", err
	}
	// SA1019: Redis 6.2 has no CLUSTER SHARDS
	ranges, err := client.ClusterSlots(ctx).Result() //nolint:staticcheck
	if err != nil {
		return "", err
	}
	for _, r := range ranges {
		if r.Start <= int(slot) && int(slot) <= r.End && len(r.Nodes) > 0 {
			return r.Nodes[0].Addr, nil
		}
	}
	return "", fmt.Errorf("slot %d has no node", slot)
}
