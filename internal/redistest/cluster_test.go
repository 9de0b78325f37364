package redistest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestClusterServesAllSlots(t *testing.T) {
	nodes := Cluster(t, 3)
	client := nodes.ClusterClient(func(o *redis.ClusterOptions) { o.ClientName = "somebody" })
	if name := client.ClientGetName(ctx).Val(); name != "somebody" {
		t.Errorf("client is named %q", name)
	}
	for i := range 100 {
		if err := client.Set(ctx, fmt.Sprint("b", i), i, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	// Each key is on the node that Owner returns, and each node owns some.
	keys := map[string]int64{}
	for i := range 100 {
		keys[nodes.Owner(fmt.Sprint("b", i)).Addr]++
	}
	for _, s := range nodes.Servers {
		own := s.Client()
		if n := own.DBSize(ctx).Val(); n != keys[s.Addr] || n == 0 {
			t.Errorf("node %s holds %d keys and owns %d", s.Addr, n, keys[s.Addr])
		}
	}
	if addrs := nodes.Addrs(); len(addrs) != 3 || addrs[2] != nodes.Servers[2].Addr {
		t.Errorf("addresses %v", addrs)
	}
}

func TestClusterNodeComesBackWithItsSlots(t *testing.T) {
	nodes := Cluster(t, 3, "--cluster-node-timeout", "1000")
	client := nodes.ClusterClient()
	owner := nodes.Owner("b")
	owner.Kill()
	if again := nodes.Owner("b"); again != owner {
		t.Errorf("the others say that %s owns the key, not %s", again.Addr, owner.Addr)
	}
	owner.Restart()
	nodes.Ready()
	eventually(t, "the node serves its slots", func() bool { return client.Set(ctx, "b", "value", 0).Err() == nil })
	if got := owner.Client().Get(ctx, "b").Val(); got != "value" {
		t.Errorf("the restarted node holds %q", got)
	}
}

func TestClusterReplicaTakesOver(t *testing.T) {
	t.Parallel()
	nodes := ReplicatedCluster(t, 3)
	client := nodes.ClusterClient(func(o *redis.ClusterOptions) {
		o.ClusterStateReloadInterval = 100 * time.Millisecond
	})
	if err := client.Set(ctx, "b", "value", 0).Err(); err != nil {
		t.Fatal(err)
	}
	owner := nodes.Owner("b")
	master := owner.Client()
	if n := master.Wait(ctx, 1, 10*time.Second).Val(); n != 1 {
		t.Fatalf("%d replicas have the key", n)
	}
	if killed := nodes.Failover("b"); killed != owner {
		t.Errorf("killed %s, not %s", killed.Addr, owner.Addr)
	}
	if heir := nodes.Owner("b"); nodes.Servers[slices.Index(nodes.Replicas, heir)] != owner {
		t.Errorf("%s took over from %s", heir.Addr, owner.Addr)
	}
	eventually(t, "the cluster serves the key", func() bool { return client.Get(ctx, "b").Val() == "value" })
	owner.Restart()
	nodes.Ready()
}
