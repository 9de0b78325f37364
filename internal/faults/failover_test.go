package faults

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// failover_test.go kills masters that have replicas, and moves slots from node to node.

// copied waits until the replicas of a server have all that was written to it so far: the rest is
// lost with the server. WAIT waits for the writes of its own connection, so that writes a key,
// which must be one of the server's.
func copied(t *testing.T, server *redistest.Server, replicas int, key string) {
	t.Helper()
	conn := server.Client().Conn()
	defer conn.Close()
	if err := conn.Set(t.Context(), key, "", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Wait(t.Context(), replicas, 10*time.Second).Result(); err != nil || int(n) < replicas {
		t.Fatalf("%d replicas have all: %v", n, err)
	}
}

// bounded fails the test if a call failed with an error that a missing or replaced server does not
// cause, or took longer than a call may, beyond the machine's own lateness.
func bounded(t *testing.T, got calls) {
	t.Helper()
	for _, c := range got {
		if c.took() > callTimeout+slack+machine*got.lateness(99) {
			t.Errorf("a call took %v: %v", c.took(), c.err)
		}
		if errors.Is(c.err, rratelimiter.ErrNotInitialized) || errors.Is(c.err, redis.ErrClosed) {
			t.Errorf("while a server is replaced: %v", c.err)
		}
	}
}

// TestSentinelFailover: a client that follows the master works again soon after there is one.
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	servers := redistest.Sentinel(t, 2)
	limiter := rratelimiter.NewClient(servers.Client()).RateLimiter("failover", rratelimiter.WithRate(ample))
	if err := limiter.Acquire(t.Context(), 7); err != nil {
		t.Fatal(err)
	}
	copied(t, servers.Master(), 2, "copied")
	enough := make(chan struct{})
	var got calls
	var loading sync.WaitGroup
	loading.Go(func() {
		got = load(8, 1, 5*time.Millisecond, enough, func(caller int) call {
			if caller%2 == 0 {
				return ask(1, func() (bool, error) { return true, limiter.Acquire(t.Context(), 1) })
			}
			return ask(1, func() (bool, error) { return limiter.TryAcquire(t.Context(), 1) })
		})
	})
	time.Sleep(300 * time.Millisecond)
	died := time.Now()
	servers.Failover()
	replaced := time.Now()
	recovered := firstGrant(t, limiter, replaced)
	time.Sleep(100 * time.Millisecond)
	close(enough)
	loading.Wait()

	bounded(t, got)
	before := 7 + got.where(func(c call) bool { return c.Granted && c.End.Before(died) }).permits()
	state, err := limiter.State(t.Context())
	given, doubtful := 8+got.where(isGranted).where(answered).permits(), got.where(isUnknown).permits()
	t.Logf("replaced after %v; %d calls, %d failed; %d permits recorded, %d granted (%d before), %d of unknown outcome",
		replaced.Sub(died), len(got), len(got.where(failed)), state.Used, given, before, doubtful)
	// Replicas lag behind: only grants of the last moments may be forgotten.
	if err != nil || !state.Consistent || state.Used > given+doubtful || state.Used < given-before+7 {
		t.Errorf("%+v, %v", state, err)
	}
	row{
		section: takeover, fault: "a master dies, Sentinel makes a replica the master",
		sees:   "the connection's error or `ErrOutcomeUnknown`, if there is no new master when the call's time is over",
		within: "back once there is a new master within", limit: callTimeout + slack,
		after: "as on the replica: the last grants before the fault may be forgotten",
	}.proves(t, recovered)
}

// reload is the interval at which the cluster client reloads its nodes.
const reload = 500 * time.Millisecond

// TestClusterFailover: only the limiters of a master that dies are affected, until its replica has
// taken over.
func TestClusterFailover(t *testing.T) {
	t.Parallel()
	inRounds(t, failOver)
}

func failOver(t *testing.T, r *round) {
	const each = 20 // limiters on a node
	// By default a cluster refuses all calls (CLUSTERDOWN) while some of its slots have no master.
	nodes := redistest.ReplicatedCluster(t, 3, "--cluster-require-full-coverage", "no")
	rdb := nodes.ClusterClient(func(o *redis.ClusterOptions) { o.ClusterStateReloadInterval = reload })
	client := rratelimiter.NewClient(rdb)
	dying := nodes.Servers[1]
	sick, well := onNodes(t, client, rdb, dying, each)
	copied(t, dying, 1, "{"+sick[0].Name()+"}copied")
	enough := make(chan struct{})
	var onSick, onWell calls
	var loading sync.WaitGroup
	loading.Go(func() {
		onSick = load(8, 1, 10*time.Millisecond, enough, func(caller int) call {
			return ask(1, func() (bool, error) { return sick[caller].TryAcquire(t.Context(), 1) })
		})
	})
	loading.Go(func() {
		onWell = arrive(5*time.Millisecond, enough, func(i int) call {
			return ask(1, func() (bool, error) { return well[i%len(well)].TryAcquire(t.Context(), 1) })
		})
	})
	time.Sleep(200 * time.Millisecond)
	died := time.Now()
	if killed := nodes.Failover(sick[0].Name()); killed != dying {
		t.Errorf("%s was killed, not %s", killed.Addr, dying.Addr)
	}
	replaced := time.Now()
	last := sick[len(sick)-1]
	recovered := firstGrant(t, last, replaced)
	time.Sleep(100 * time.Millisecond)
	close(enough)
	loading.Wait()

	bounded(t, onSick)
	t.Logf("replaced after %v; on its limiters %d calls, %d failed; on others %d calls, p99 %v",
		replaced.Sub(died), len(onSick), len(onSick.where(failed)), len(onWell), onWell.percentile(99))
	r.served(t, "on another node", onWell)
	r.atMost("half of the calls to other nodes", onWell.percentile(50), callTimeout/4) // a busy machine delays some
	balanced(t, int64(len(well)), onWell, well...)
	for _, l := range sick {
		if state, err := l.State(t.Context()); err != nil || !state.Consistent || state.Used < 1 {
			t.Errorf("%s: %+v, %v", l.Name(), state, err)
		}
	}
	before := onSick.where(func(c call) bool { return c.Granted && c.End.Before(died) }).permits()
	given, doubtful := int64(len(sick))+1+onSick.where(isGranted).permits(), onSick.where(isUnknown).permits()
	if recorded := used(t, sick...); recorded > given+doubtful || recorded < given-before {
		t.Errorf(
			"%d permits recorded, %d granted (%d of them just before), %d of unknown outcome", recorded, given, before,
			doubtful,
		)
	}
	row{
		section: takeover, fault: "a master of a cluster dies, its replica takes over",
		sees: "on limiters of this master: the connection's error or `ErrOutcomeUnknown`, if the replica is not the " +
			"master when the call's time is over; on all other limiters: nothing with " +
			"`cluster-require-full-coverage no`, otherwise `CLUSTERDOWN` shortly before the failover",
		within: "back once the replica is the master within", limit: reload + callTimeout + slack,
		after: "as on the replica; all other limiters exact",
	}.proves(t, recovered)
}

// A slotMove is a load on limiters whose slot moves from node to node, and on limiters of another
// slot.
type slotMove struct {
	moved, others     []*rratelimiter.Limiter
	onMoved, onOthers calls
	took              []time.Duration // each move
}

const (
	inSlot = 10 // limiters in the slot, and so many elsewhere
	moves  = 8
)

// moveUnderLoad moves a slot several times under load, and checks that no grant is lost or doubled.
// A client waits for a call for the given time.
func moveUnderLoad(
	t *testing.T,
	nodes *redistest.Nodes,
	timeout time.Duration,
	move func(t *testing.T, nodes *redistest.Nodes, key string),
) slotMove {
	t.Helper()
	client := rratelimiter.NewClient(nodes.ClusterClient(), rratelimiter.WithCallTimeout(timeout))
	var m slotMove
	for i := range inSlot {
		m.moved = append(m.moved, client.RateLimiter(fmt.Sprint("{moved}:", i), rratelimiter.WithRate(ample)))
		m.others = append(m.others, client.RateLimiter(fmt.Sprint("{stays}:", i), rratelimiter.WithRate(ample)))
	}
	enough := make(chan struct{})
	var loading sync.WaitGroup
	try := func(all []*rratelimiter.Limiter, got *calls) func() {
		return func() {
			*got = load(inSlot, 1, 3*time.Millisecond, enough, func(caller int) call {
				return ask(1, func() (bool, error) { return all[caller].TryAcquire(t.Context(), 1) })
			})
		}
	}
	loading.Go(try(m.moved, &m.onMoved))
	loading.Go(try(m.others, &m.onOthers))
	time.Sleep(100 * time.Millisecond)
	for range moves {
		began := time.Now()
		move(t, nodes, "{moved}")
		took := time.Since(began)
		m.took = append(m.took, took)
		time.Sleep(max(100*time.Millisecond, 2*took)) // calls that met this move end before the next one
	}
	close(enough)
	loading.Wait()

	for _, c := range m.onOthers.where(failed) {
		t.Errorf("in another slot: %v", c.err)
	}
	balanced(t, 0, m.onMoved, m.moved...)
	balanced(t, 0, m.onOthers, m.others...)
	if granted := len(m.onMoved.where(isGranted)); granted < moves*inSlot {
		t.Errorf("%d calls were granted", granted)
	}
	return m
}

// TestSlotsMovedUnderLoad: a slot moves from node to node, and nothing is lost. A slot that is half
// moved runs no script whose keys are not all there, and two of a limiter's five keys never are: so
// a call waits for the end of the move.
func TestSlotsMovedUnderLoad(t *testing.T) {
	t.Parallel()
	nodes := redistest.Cluster(t, 2)
	m := moveUnderLoad(t, nodes, callTimeout, moveSlot)
	said := answers(t, nodes, "MOVED", "ASK", "TRYAGAIN")
	t.Logf(
		"%d calls on what moved, %d failed, p99 %v; %d on others, p99 %v; servers said %v", len(m.onMoved),
		len(m.onMoved.where(failed)), m.onMoved.percentile(99), len(m.onOthers), m.onOthers.percentile(99), said,
	)
	if said["MOVED"] < moves || said["ASK"]+said["TRYAGAIN"] == 0 {
		t.Errorf("calls met too little of %d moves: %v", moves, said)
	}
	// On a busy machine a move can take longer than a call may. Then calls fail, one after the
	// other: by the last TRYAGAIN, or by their timeout, for the last attempt of which a call has
	// half of its time at least.
	most := inSlot
	for _, took := range m.took {
		most += inSlot * int(took/(callTimeout/2))
	}
	if n := len(m.onMoved.where(failed)); n > most {
		t.Errorf("%d calls failed while the slot moved, not %d; the moves took %v", n, most, m.took)
	}
	for _, c := range m.onMoved {
		if c.err != nil && !errors.Is(c.err, rratelimiter.ErrUnavailable) {
			t.Errorf("while the slot moved: %v", c.err)
		}
	}
	row{
		section: takeover, fault: "a slot of a cluster is moved under load (`MOVED`, `ASK`, `TRYAGAIN`)",
		sees:   "calls take longer during the move; if it takes longer than the call timeout, the error `TRYAGAIN` or a timeout",
		within: "99 of 100 calls within", limit: callTimeout + slack,
		after: "exact",
	}.proves(t, m.onMoved.percentile(99))
}

// TestSlotsMovedAtomically: Valkey 9 copies a slot in the background and passes it on as a whole,
// so that no call fails.
func TestSlotsMovedAtomically(t *testing.T) {
	redistest.Use(t, redistest.Valkey91)
	nodes := redistest.Cluster(t, 2)
	// In the last step the node that gives the slot away pauses all writes; a busy machine makes
	// that pause longer than a second.
	m := moveUnderLoad(t, nodes, 20*time.Second, passSlot)
	said := answers(t, nodes, "MOVED", "ASK", "TRYAGAIN")
	t.Logf("%d calls on what moved, p99 %v; servers said %v", len(m.onMoved), m.onMoved.percentile(99), said)
	if said["MOVED"] < moves {
		t.Errorf("calls met too little of %d moves: %v", moves, said)
	}
	for _, c := range m.onMoved.where(failed) {
		t.Errorf("while the slot moved: %v", c.err)
	}
	row{
		section: takeover, fault: "a slot of a cluster is moved under load by `CLUSTER MIGRATESLOTS` (Valkey 9)",
		sees:   "calls on the node that gives the slot away take longer during the last step of the move",
		within: "99 of 100 calls within", limit: callTimeout + slack,
		after: "exact",
	}.proves(t, m.onMoved.percentile(99))
}

// answers returns how often the nodes replied with errors of these kinds.
func answers(t *testing.T, nodes *redistest.Nodes, kinds ...string) map[string]int {
	t.Helper()
	count := map[string]int{}
	for _, server := range nodes.Servers {
		stats, err := server.Client().Info(t.Context(), "errorstats").Result()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(stats) {
			for _, kind := range kinds {
				var n int
				if _, err := fmt.Sscanf(line, "errorstat_"+kind+":count=%d", &n); err == nil {
					count[kind] += n
				}
			}
		}
	}
	return count
}

// do runs a command on a node of a cluster.
func do(t *testing.T, node *redistest.Server, args ...any) string {
	t.Helper()
	reply, err := node.Client().Do(context.WithoutCancel(t.Context()), args...).Text()
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return reply
}

// route returns the slot of a key, the node that has it, and the next node.
func route(t *testing.T, nodes *redistest.Nodes, key string) (slot int, from, to *redistest.Server) {
	t.Helper()
	from = nodes.Owner(key)
	to = nodes.Servers[(slices.Index(nodes.Servers, from)+1)%len(nodes.Servers)]
	n, err := from.Client().ClusterKeySlot(t.Context(), key).Result()
	if err != nil {
		t.Fatal(err)
	}
	return int(n), from, to
}

// moveSlot moves the slot of a key to the next node, as redis-cli does, one limiter's key at a
// time.
func moveSlot(t *testing.T, nodes *redistest.Nodes, key string) {
	t.Helper()
	slot, from, to := route(t, nodes, key)
	fromID, toID := do(t, from, "cluster", "myid"), do(t, to, "cluster", "myid")
	do(t, to, "cluster", "setslot", slot, "importing", fromID)
	do(t, from, "cluster", "setslot", slot, "migrating", toID)
	host, port, err := net.SplitHostPort(to.Addr)
	if err != nil {
		t.Fatal(err)
	}
	for {
		keys, err := from.Client().ClusterGetKeysInSlot(t.Context(), slot, 5).Result()
		if err != nil {
			t.Fatal(err)
		}
		if len(keys) == 0 {
			break
		}
		for _, key := range keys {
			do(t, from, "migrate", host, port, key, 0, 5000)
		}
		time.Sleep(5 * time.Millisecond)
	}
	do(t, to, "cluster", "setslot", slot, "node", toID)
	do(t, from, "cluster", "setslot", slot, "node", toID)
}

// passSlot moves the slot of a key to the next node by CLUSTER MIGRATESLOTS, and waits until both
// nodes know it.
func passSlot(t *testing.T, nodes *redistest.Nodes, key string) {
	t.Helper()
	slot, from, to := route(t, nodes, key)
	do(t, from, "cluster", "migrateslots", "slotsrange", slot, slot, "node", do(t, to, "cluster", "myid"))
	source, target := from.Client(), to.Client()
	eventually(t, "the slot has moved", func() bool {
		return redis.HasErrorPrefix(source.Exists(t.Context(), key).Err(), "MOVED") &&
			target.Exists(t.Context(), key).Err() == nil
	})
}
