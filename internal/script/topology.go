package script

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/keys"
)

// Redis is the part of a go-redis client that runs scripts.
type Redis interface {
	Process(ctx context.Context, cmd redis.Cmder) error
	Pipeline() redis.Pipeliner
}

// A Topology is the servers behind a Redis client, as far as its type shows them.
type Topology struct {
	rdb     Redis
	cluster *redis.ClusterClient // nil: rdb is none
	ring    *redis.Ring          // nil: rdb is none
	found   atomic.Bool          // the nodes of the cluster were found at least once
}

// NewTopology returns the topology of a Redis client.
func NewTopology(rdb Redis) *Topology {
	t := &Topology{rdb: rdb}
	t.cluster, _ = rdb.(*redis.ClusterClient)
	t.ring, _ = rdb.(*redis.Ring)
	return t
}

// Redis returns the Redis client.
func (t *Topology) Redis() Redis { return t.rdb }

// Clustered reports whether the keys of one script must be in one cluster slot.
func (t *Topology) Clustered() bool { return t.cluster != nil }

// Found reports whether the nodes are known: those of a cluster may have to be found first.
func (t *Topology) Found() bool { return t.cluster == nil || t.found.Load() }

// Hidden reports whether there may be several servers and a pipeline cannot be sent to one of them:
// the client is a Ring, or an AutoPipeliner.
func (t *Topology) Hidden() bool { return t.pipeliner() || t.ring != nil }

// pipeliner reports whether the client is an AutoPipeliner. The go-redis that go.mod requires has
// none, so it is recognized by a method that no other client has.
func (t *Topology) pipeliner() bool {
	_, is := t.rdb.(interface{ IsBlocking() bool })
	return is
}

// Single returns the client if it is certain that it is one of a single server; else nil.
func (t *Topology) Single() *redis.Client {
	client, _ := t.rdb.(*redis.Client)
	return client
}

// OneStep reports whether one script can use all the keys that a function returns for certain.
func (t *Topology) OneStep(of func() []string) bool {
	if t.Single() != nil {
		return true
	}
	all := of()
	return t.Reachable(all) && (t.Clustered() || keys.SameTag(all))
}

// Reachable reports whether one script can use all the keys, as far as the type of the Redis client
// shows how it distributes them.
func (t *Topology) Reachable(all []string) bool {
	switch {
	case t.cluster != nil:
		return keys.SameSlot(all)
	case t.ring != nil:
		return keys.SameTag(all)
	}
	return true
}

// Node returns the node of a cluster that serves a key. It may make a call until nodes were found
// once.
func (t *Topology) Node(ctx context.Context, key string) (*redis.Client, error) {
	node, err := t.cluster.MasterForKey(ctx, key)
	if err == nil && !t.found.Load() {
		t.found.Store(true)
	}
	return node, err
}

// KnownNode returns the node of a cluster or the shard of a Ring that serves a key, without a call;
// nil if it is not known, or the client shows no nodes.
func (t *Topology) KnownNode(key string) *redis.Client {
	switch {
	case t.cluster != nil && t.found.Load(): // from then on MasterForKey does not block
		if node, err := t.cluster.MasterForKey(context.Background(), key); err == nil {
			return node
		}
	case t.ring != nil:
		if shard, err := t.ring.GetShardClientForKey(key); err == nil {
			return shard
		}
	}
	return nil
}

// idle is how long a probe may take to get a connection that is idle.
const idle = 10 * time.Millisecond

// Refuses reports whether the node that serves keys refuses a connection, and the Redis client has
// no idle one, as far as the type of the client shows the node. It dials once, through the hooks of
// the client, which may lead to another address. If that is refused, it runs a probe: a node may
// serve its connections though it accepts no new one.
func (t *Topology) Refuses(ctx context.Context, probe *Script, keys []string) bool {
	node, _ := t.rdb.(*redis.Client)
	if node == nil {
		node = t.KnownNode(keys[0])
	}
	if node == nil {
		return false
	}
	connection := node.Subscribe(ctx) // to no channel: ReceiveTimeout dials, and only once
	defer connection.Close()
	if _, err := connection.ReceiveTimeout(ctx, 1); !isRefusal(err) {
		return false
	}
	// no deadline, which could end a connection
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer time.AfterFunc(idle, cancel).Stop()
	var a Attempts
	_, err := t.Try(ctx, &a, probe, keys)
	return err != nil && !IsAnswer(err) && !a.MaybeExecuted()
}

// Server returns a client of the one server that holds a key, or the Redis client itself where its
// type does not show the servers.
func (t *Topology) Server(ctx context.Context, key string) (Redis, error) {
	switch {
	case t.cluster != nil:
		return t.cluster.MasterForKey(ctx, key)
	case t.ring != nil:
		return t.ring.GetShardClientForKey(key)
	}
	return t.rdb, nil
}

// Redirected reports whether a node of a cluster refused a command because another node has, or
// gets, its keys. The call can be repeated at once by Process: the cluster client follows the reply
// to that node. It reports false for other clients, which follow no reply. Exception: an
// AutoPipeliner, which may send its commands to a cluster client.
func (t *Topology) Redirected(err error) bool {
	return err != nil && (t.Clustered() || t.pipeliner()) && Says(err, "MOVED", "ASK")
}

// Reload makes a cluster client reload its nodes after an attempt that no node answered.
func (t *Topology) Reload(ctx context.Context, err error) {
	if t.cluster != nil && !IsAnswer(err) {
		t.cluster.ReloadState(ctx)
	}
}
