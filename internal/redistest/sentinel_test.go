package redistest

import (
	"testing"
	"time"
)

func TestSentinelsReplaceTheirMaster(t *testing.T) {
	t.Parallel()
	w := Sentinel(t, 2)
	client := w.Client()
	if w.Master() != w.Servers[0] || len(w.Replicas()) != 2 || len(w.Addrs()) != sentinels {
		t.Fatalf("master %s, %d replicas, sentinels %v", w.Master().Addr, len(w.Replicas()), w.Addrs())
	}
	if err := client.Set(ctx, "key", "value", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if n := client.Wait(ctx, 2, 10*time.Second).Val(); n != 2 {
		t.Fatalf("%d replicas have the key", n)
	}
	killed := w.Failover()
	if killed != w.Servers[0] || w.Master() == killed {
		t.Errorf("killed %s, and the master is %s", killed.Addr, w.Master().Addr)
	}
	eventually(t, "the client follows", func() bool { return client.Set(ctx, "other", "value", 0).Err() == nil })
	if got := client.Get(ctx, "key").Val(); got != "value" {
		t.Errorf("after the failover the key holds %q", got)
	}
	// It comes back as a replica of its successor.
	killed.Restart()
	w.Ready()
	if got := killed.Client().Get(ctx, "key").Val(); got != "value" {
		t.Errorf("the former master holds %q", got)
	}
}
