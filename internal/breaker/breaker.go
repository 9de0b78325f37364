// Package breaker decides whether a node can be reached, and when to probe it again. It knows which
// calls have no reply yet, and when that means that the node is away. Package exchange decides what
// follows for the calls.
package breaker

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// While a node is away, the pause between probes grows from shortestOutage to longestOutage.
const (
	shortestOutage = 100 * time.Millisecond
	longestOutage  = time.Second
)

// A node that answers nothing for longestSilence while calls to it are in flight is probed. If it
// answers neither the probe nor another call for as long again, it is away. If half the call
// timeout is less, that counts instead.
const longestSilence = 250 * time.Millisecond

// A Breaker tells whether a node can be reached. It is broken while the node is away. Then a probe
// on behalf of no caller checks now and then whether the node is back. If Ask is not called for
// longestOutage after the end of a pause, the breaker is no longer broken. The zero Breaker is
// ready for use.
type Breaker struct {
	answered atomic.Int64 // start of the latest call that was answered, ns since epoch; 0: none was
	broken   atomic.Bool  // the node is away; set under mu, cleared without it, too
	wanted   atomic.Bool  // Ask was called; before that nothing is probed because of silence

	mu      sync.Mutex    // guards the fields below
	until   time.Time     // end of the pause before the next probe
	pause   time.Duration // its length before jitter
	probing bool          // a probe is in flight, or about to be

	calls map[Pending]struct{} // in flight
	last  Prober               // of the last call
	// since when calls are in flight and none was answered; zero: no reply is due
	quiet     time.Time
	suspected time.Time   // when the node was probed because of that; zero: it was not
	checked   time.Time   // when it was last checked whether the node refuses a connection
	watching  bool        // the timer runs
	timer     *time.Timer // calls look
}

// A Pending is a call in flight.
type Pending interface {
	// NodeAway is called in a goroutine of its own when the node is found to be away.
	NodeAway()
	// Sent reports whether the call was written to a connection. It is called with the mutex of the
	// Breaker held.
	Sent() bool
}

// A Prober is one on whose behalf a Breaker checks whether its node is back.
type Prober interface {
	// Probe makes one call, and reports whether the node of b can be reached.
	Probe(b *Breaker) bool
	// Refused reports whether the node refuses a connection, and there is no idle one.
	Refused() bool
	// NodeBack is called in a goroutine of its own once the node is no longer away.
	NodeBack()
	// Timeout is how long one call may take.
	Timeout() time.Duration
}

// epoch is the origin of Breaker.answered.
var epoch = time.Now()

// Answer notes that the node answered a call that began at a time. If b was broken, it is no
// longer.
func (b *Breaker) Answer(began time.Time, p Prober) {
	if at, last := int64(began.Sub(epoch)), b.answered.Load(); at > last || last == 0 {
		b.answered.Store(at)
	}
	if b.broken.Load() && b.broken.Swap(false) {
		go p.NodeBack()
	}
}

// Stalled notes that a call takes much longer than usual. If no call in flight has a connection,
// and the node refuses one, it is away: the call itself fails only after the Redis client has
// dialled several times. A node with connections may still serve them. This is checked at most once
// in longestOutage.
func (b *Breaker) Stalled(p Prober) {
	began := time.Now()
	b.mu.Lock()
	due := b.wanted.Load() && !b.broken.Load() && began.Sub(b.checked) >= longestOutage && !b.connected()
	if due {
		b.checked = began
	}
	b.mu.Unlock()
	if !due || !p.Refused() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if answered := b.quiet.IsZero() || b.quiet.After(began); !answered && !b.connected() {
		b.lose()
	}
}

// connected reports whether a call in flight has a connection. b.mu is held.
func (b *Breaker) connected() bool {
	for call := range b.calls {
		if call.Sent() {
			return true
		}
	}
	return false
}

// Silent reports whether no call that began after a time was answered.
func (b *Breaker) Silent(since time.Time) bool {
	last := b.answered.Load()
	return last == 0 || last <= int64(since.Sub(epoch))
}

// Begin adds a call that is about to be written.
func (b *Breaker) Begin(call Pending, p Prober) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.calls == nil {
		b.calls = map[Pending]struct{}{}
	}
	b.calls[call] = struct{}{}
	if b.last = p; b.quiet.IsZero() {
		b.quiet = time.Now()
	}
	b.watch()
}

// End removes a call, and notes whether the node answered it. An unanswered call proves nothing:
// its caller may have gone, for example.
func (b *Breaker) End(call Pending, answered bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.calls, call)
	if answered {
		b.heard()
	}
	b.forget()
}

// forget forgets the silence of a node that is away once no call is in flight: the next call has a
// silence of its own. b.mu is held.
func (b *Breaker) forget() {
	if b.broken.Load() && len(b.calls) == 0 {
		b.quiet, b.suspected = time.Time{}, time.Time{}
	}
}

// heard notes that the node answered just now. b.mu is held.
func (b *Breaker) heard() {
	b.quiet, b.suspected = time.Time{}, time.Time{}
	if len(b.calls) > 0 {
		b.quiet = time.Now()
		b.watch()
	}
}

// watch starts the timer if the node owes a reply and Ask was called. b.mu is held.
func (b *Breaker) watch() {
	if b.watching || b.quiet.IsZero() || !b.wanted.Load() {
		return
	}
	b.watching = true
	wait := time.Until(b.quiet.Add(b.patience()))
	if b.timer == nil {
		b.timer = time.AfterFunc(wait, b.look)
	} else {
		b.timer.Reset(wait)
	}
}

// patience returns for how long a node may owe a reply before it is probed, and then again before
// it is away. b.mu is held.
func (b *Breaker) patience() time.Duration { return min(longestSilence, b.last.Timeout()/2) }

// look is called by the timer. When the node has been silent for patience it is probed; after
// patience again it is away.
func (b *Breaker) look() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.watching = false
	patience := b.patience()
	switch {
	case b.quiet.IsZero():
		return
	case time.Since(b.quiet) < patience:
		b.watch()
		return
	case b.suspected.IsZero():
		b.suspected = time.Now()
		b.watching = true
		b.timer.Reset(patience)
		if !b.probing && !b.broken.Load() { // while it is broken, Ask decides when to probe
			b.probing = true
			go b.probe(b.last)
		}
		return
	}
	b.lose()
}

// lose breaks b, unless a failed call did, and calls NodeAway of the calls in flight. b.mu is held.
func (b *Breaker) lose() {
	if b.suspected = (time.Time{}); !b.broken.Load() {
		b.snap()
	}
	for call := range b.calls {
		go call.NodeAway()
	}
}

// snap breaks b and begins the first pause. b.mu is held.
func (b *Breaker) snap() {
	b.rest(shortestOutage)
	b.broken.Store(true)
	b.forget()
}

// Ask reports whether b is broken, and if so, how long to wait before asking again. If a probe is
// due, it starts one in the background.
func (b *Breaker) Ask(p Prober) (broken bool, retry time.Duration) {
	if !b.wanted.Load() {
		b.mu.Lock()
		b.wanted.Store(true)
		b.watch()
		b.mu.Unlock()
	}
	if !b.broken.Load() {
		return false, 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if retry = time.Until(b.until); retry < -longestOutage && !b.probing {
		b.broken.Store(false)
	}
	broken = b.broken.Load()
	if broken && retry <= 0 && !b.probing {
		b.probing = true
		go b.probe(p)
	}
	return broken, max(retry, shortestOutage/10)
}

// Broken reports whether the node is away. Unlike Ask it starts nothing.
func (b *Breaker) Broken() bool { return b.broken.Load() }

// Fail notes that a call that began at a time was not answered. That breaks b, unless a call that
// began later was answered.
func (b *Breaker) Fail(began time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.Silent(began) && !b.broken.Load() {
		b.snap()
	}
}

// Retry returns how long to wait before asking again, at least a tenth of shortestOutage.
func (b *Breaker) Retry() time.Duration {
	if !b.broken.Load() {
		return shortestOutage
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return max(time.Until(b.until), shortestOutage/10)
}

// rest begins a pause, up to a fifth shorter at random. b.mu is held.
func (b *Breaker) rest(pause time.Duration) {
	b.pause = pause
	b.until = time.Now().Add(pause - rand.N(pause/5))
}

// probe makes one probe and notes its result.
func (b *Breaker) probe(p Prober) {
	began, reached := time.Now(), p.Probe(b)
	b.mu.Lock()
	b.probing = false
	switch {
	case reached:
		b.heard()
	case b.broken.Load():
		b.rest(min(2*b.pause, longestOutage))
	case !b.suspected.IsZero():
		b.lose()
	}
	b.mu.Unlock()
	if reached {
		b.Answer(began, p)
	}
}
