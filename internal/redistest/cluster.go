package redistest

// This file starts a Redis cluster of masters on loopback.

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const slots = 16384

// clusterLimit bounds the wait until the nodes agree, which takes two to three seconds.
const clusterLimit = 60 * time.Second

// Nodes are the masters of a cluster; the slots are spread evenly in their order. Each node is a Server
// of this test's own: it can be paused, killed and restarted (it then comes back with its slots, and
// without its data).
type Nodes struct {
	Servers []*Server

	tb testing.TB
}

// Cluster starts a cluster of masters without replicas and returns when all nodes agree that it works.
// More arguments are given to each redis-server.
func Cluster(tb testing.TB, masters int, args ...string) *Nodes {
	tb.Helper()
	return startCluster(tb, masters, nil, args)
}

func startCluster(tb testing.TB, masters int, secure *TLS, args []string) *Nodes {
	tb.Helper()
	if masters < 1 || masters > slots {
		tb.Fatalf("redistest: a cluster of %d masters", masters)
	}
	nodes := &Nodes{tb: tb}
	for range masters {
		proc, err := startProcess(tb.TempDir(), true, secure, append([]string{"--cluster-enabled", "yes"}, args...))
		if err != nil {
			tb.Fatalf("redistest: %v", err)
		}
		tb.Cleanup(proc.kill)
		nodes.Servers = append(nodes.Servers, &Server{Addr: proc.addr, TLS: secure, tb: tb, proc: proc})
	}
	for i, s := range nodes.Servers {
		if err := join(s, i, nodes.Servers); err != nil {
			tb.Fatalf("redistest: cluster node %s: %v", s.Addr, err)
		}
	}
	nodes.Ready()
	return nodes
}

// join gives the i-th node its slots and makes it meet the nodes before it.
func join(s *Server, i int, all []*Server) error {
	ctx := context.Background()
	client := redis.NewClient(s.Options())
	defer client.Close()
	// Epochs that differ from the start spare the nodes to settle them.
	if err := client.Do(ctx, "cluster", "set-config-epoch", i+1).Err(); err != nil {
		return fmt.Errorf("set the epoch: %w", err)
	}
	first, next := i*slots/len(all), (i+1)*slots/len(all)
	if err := client.ClusterAddSlotsRange(ctx, first, next-1).Err(); err != nil {
		return fmt.Errorf("add slots %d to %d: %w", first, next-1, err)
	}
	for _, other := range all[:i] {
		host, port, err := net.SplitHostPort(other.Addr)
		if err != nil {
			return err
		}
		if err := client.ClusterMeet(ctx, host, port).Err(); err != nil {
			return fmt.Errorf("meet %s: %w", other.Addr, err)
		}
	}
	return nil
}

// Ready waits until every node says that the cluster works and knows all others, as after a Restart of
// one of them.
func (n *Nodes) Ready() {
	n.tb.Helper()
	deadline := time.Now().Add(clusterLimit)
	for _, s := range n.Servers {
		client := redis.NewClient(s.Options())
		for {
			info, err := client.ClusterInfo(context.Background()).Result()
			if err == nil && infoField(info, "cluster_state") == "ok" &&
				infoField(info, "cluster_slots_ok") == strconv.Itoa(slots) &&
				infoField(info, "cluster_known_nodes") == strconv.Itoa(len(n.Servers)) &&
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
	addrs := make([]string, len(n.Servers))
	for i, s := range n.Servers {
		addrs[i] = s.Addr
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
	for _, s := range n.Servers {
		if s.Pid() == 0 {
			continue
		}
		addr, err := ownerAddr(s, key)
		if err != nil {
			n.tb.Fatalf("redistest: owner of %q by %s: %v", key, s.Addr, err)
		}
		for _, owner := range n.Servers {
			if owner.Addr == addr {
				return owner
			}
		}
	}
	n.tb.Fatalf("redistest: nobody owns %q", key)
	return nil
}

func ownerAddr(s *Server, key string) (string, error) {
	ctx := context.Background()
	client := redis.NewClient(s.Options())
	defer client.Close()
	slot, err := client.ClusterKeySlot(ctx, key).Result()
	if err != nil {
		return "", err
	}
	ranges, err := client.ClusterSlots(ctx).Result() //lint:ignore SA1019 Redis 6.2 has no CLUSTER SHARDS
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
