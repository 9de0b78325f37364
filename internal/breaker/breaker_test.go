package breaker

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const ms = time.Millisecond

// A node answers the probes that begin while it is up after a millisecond. The others take the
// timeout.
type node struct {
	up, refuses          atomic.Bool
	probes, backs, dials atomic.Int32
}

func (n *node) Refused() bool {
	n.dials.Add(1)
	return n.refuses.Load()
}

func (n *node) Timeout() time.Duration { return time.Second }
func (n *node) NodeBack()              { n.backs.Add(1) }

func (n *node) Probe(*Breaker) bool {
	n.probes.Add(1)
	if !n.up.Load() {
		time.Sleep(n.Timeout())
		return false
	}
	time.Sleep(ms)
	return true
}

// A call is told when its node is away.
type call struct{ told, sent atomic.Bool }

func (c *call) NodeAway()  { c.told.Store(true) }
func (c *call) Sent() bool { return c.sent.Load() }

func expect(t *testing.T, what string, b *Breaker, broken bool) {
	t.Helper()
	synctest.Wait()
	if b.Broken() != broken {
		t.Errorf("%s: broken is %v", what, b.Broken())
	}
}

func TestSilentNodeIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Breaker
		n, c := &node{}, &call{}
		b.Ask(n)
		b.Begin(c, n)
		time.Sleep(499 * ms)
		expect(t, "before 500 ms", &b, false)
		if n.probes.Load() != 1 || c.told.Load() {
			t.Errorf("%d probes, told %v; expected one probe at 250 ms", n.probes.Load(), c.told.Load())
		}
		time.Sleep(ms)
		expect(t, "after 500 ms", &b, true)
		if !c.told.Load() {
			t.Error("the call in flight was not told")
		}
		b.End(c, false)
		n.up.Store(true)
		time.Sleep(time.Second) // the first probe ends
		if broken, retry := b.Ask(n); !broken || retry <= 0 {
			t.Errorf("broken %v, retry %v", broken, retry)
		}
		time.Sleep(ms)
		expect(t, "after a probe", &b, false)
		if n.backs.Load() != 1 {
			t.Errorf("NodeBack was called %d times", n.backs.Load())
		}
	})
}

// A stalled call without a connection shows at once that its node refuses connections.
func TestNodeThatRefusesConnectionsIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Breaker
		n, c := &node{}, &call{}
		n.up.Store(true)
		n.refuses.Store(true)
		b.Begin(c, n)
		if b.Stalled(n); n.dials.Load() != 0 {
			t.Errorf("%d dials though nobody asks", n.dials.Load())
		}
		b.Ask(n)
		c.sent.Store(true)
		if b.Stalled(n); n.dials.Load() != 0 {
			t.Errorf("%d dials beside a call that has a connection", n.dials.Load())
		}
		c.sent.Store(false)
		n.refuses.Store(false)
		b.Stalled(n)
		expect(t, "it accepts connections", &b, false)
		n.refuses.Store(true)
		b.Stalled(n)
		if expect(t, "at once again", &b, false); n.dials.Load() != 1 {
			t.Errorf("%d dials within a second", n.dials.Load())
		}
		time.Sleep(time.Second) // it answers the probes
		b.Stalled(n)
		if expect(t, "it refuses connections", &b, true); !c.told.Load() {
			t.Error("the call in flight was not told")
		}
		if b.Stalled(n); n.dials.Load() != 2 {
			t.Errorf("%d dials, also while it is away", n.dials.Load())
		}
	})
}

// A node that refuses a connection is there if it has answered meanwhile, or may still answer.
func TestNodeThatAnswersBesideARefusalIsThere(t *testing.T) {
	for what, meanwhile := range map[string]func(b *Breaker, stalled, other *call){
		"all calls are answered": func(b *Breaker, stalled, other *call) {
			b.End(stalled, true)
			b.End(other, true)
		},
		"the other call is answered":      func(b *Breaker, _, other *call) { b.End(other, true) },
		"the stalled call was sent after": func(_ *Breaker, stalled, _ *call) { stalled.sent.Store(true) },
	} {
		synctest.Test(t, func(t *testing.T) {
			var b Breaker
			n, stalled, other := &node{}, &call{}, &call{}
			b.Ask(n)
			b.Begin(stalled, n)
			b.Begin(other, n)
			time.Sleep(20 * ms)
			b.Stalled(refusing{n, func() { meanwhile(&b, stalled, other) }})
			expect(t, what, &b, false)
			b.End(stalled, true)
			b.End(other, true)
			time.Sleep(time.Minute)
		})
	}
}

// A refusing node refuses connections, and something happens meanwhile.
type refusing struct {
	*node
	meanwhile func()
}

func (r refusing) Refused() bool {
	time.Sleep(ms)
	r.meanwhile()
	return true
}

func TestNodeThatAnswersIsThere(t *testing.T) {
	for what, answer := range map[string]func(b *Breaker, n *node){
		"a probe": func(_ *Breaker, n *node) { n.up.Store(true) },
		"another call": func(b *Breaker, n *node) {
			time.Sleep(400 * ms)
			other := &call{}
			b.Begin(other, n)
			b.End(other, true)
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			var b Breaker
			n, c := &node{}, &call{}
			b.Ask(n)
			b.Begin(c, n)
			answer(&b, n)
			time.Sleep(499 * ms)
			expect(t, what, &b, false)
			b.End(c, true)
			time.Sleep(10 * time.Second)
			expect(t, what+", with no call in flight", &b, false)
		})
	}
}

// Nothing is probed because of silence where nobody asks.
func TestSilenceMattersOnlyToWhoAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Breaker
		n := &node{}
		b.Begin(&call{}, n)
		time.Sleep(time.Minute)
		expect(t, "without Ask", &b, false)
		if n.probes.Load() != 0 {
			t.Errorf("%d probes", n.probes.Load())
		}
	})
}

func TestFailBreaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Breaker
		n := &node{}
		began := time.Now()
		time.Sleep(ms)
		later := time.Now()
		b.Answer(later, n)
		b.Fail(began)
		expect(t, "a later call was answered", &b, false)
		time.Sleep(ms)
		b.Fail(time.Now())
		expect(t, "no later call was answered", &b, true)
		b.Answer(time.Now(), n)
		expect(t, "answered again", &b, false)
	})
}

// Probes of a node that stays away become rarer, down to one a second, and end when nobody asks any
// more.
func TestProbesOfANodeThatStaysAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Breaker
		n := &node{}
		b.Fail(time.Now())
		for range 1000 {
			b.Ask(n)
			time.Sleep(10 * ms)
		}
		// each takes a second, and the pause before it at most one
		if probes := n.probes.Load(); probes < 5 || probes > 9 {
			t.Errorf("%d probes in 10 s", probes)
		}
		expect(t, "while it is asked", &b, true)
		probes := n.probes.Load()
		time.Sleep(time.Minute)
		if n.probes.Load() != probes {
			t.Errorf("%d probes although nobody asks", n.probes.Load()-probes)
		}
		if broken, _ := b.Ask(n); broken {
			t.Error("broken after a minute without a probe")
		}
	})
}

// The silence before a failure is not that of a later call.
func TestSilenceEndsWithAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Breaker
		n, c := &node{}, &call{}
		b.Ask(n)
		b.Begin(c, n)
		b.End(c, false)
		b.Fail(time.Now())
		time.Sleep(3 * time.Second)
		if broken, _ := b.Ask(n); broken {
			t.Fatal("broken though nobody asked for more than a second")
		}
		b.Begin(c, n)
		time.Sleep(ms)
		b.End(c, true)
		synctest.Wait()
		if probes := n.probes.Load(); probes != 0 {
			t.Errorf("%d probes", probes)
		}
	})
}
