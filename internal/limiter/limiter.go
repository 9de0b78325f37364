package limiter

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/breaker"
	"github.com/rratelimiter/rratelimiter/internal/denycache"
	"github.com/rratelimiter/rratelimiter/internal/fallback"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// limiter.go has a limiter: its names, its options, and what is derived from them.

// Settings are the options of a limiter. They are comparable: limiters with equal names and
// settings share one queue.
type Settings struct {
	protocol.Options
	DenyCache int     // most limiters with a cached refusal; 0: no cache
	FallsBack bool    // the process decides while Redis is away
	Fallback  float64 // the fraction of the rate that it grants then, 0 to 1
	FailFast  bool    // a waiting request that cannot be granted before its deadline fails

	Instalments bool // a waiting request may want more permits than the rate
}

// A Limiter is one limiter of a client.
type Limiter struct {
	Settings Settings
	Name     string           // for the user; its keys may have another one
	Local    fallback.Limiter // as local decisions see it
	client   *Client
	queues   Queues
	keyNames [keys.Count]string
	// the same, as arguments of a command; nil: not needed yet
	keyArgs  atomic.Pointer[[keys.Count]any]
	encoder  protocol.Encoder
	err      error          // of the options or the name
	enforced denycache.Rate // the rate to enforce; zero: none
}

// Queues are the queues in which callers of this process wait for a limiter. No method may be
// called while one of them is locked.
type Queues interface {
	// EndLeases ends the leases of the limiter, which this client is about to change, and gives
	// back what is unused of them. It returns when that has happened or ctx ends.
	EndLeases(ctx context.Context)
	// FoundPending is called when a rebuild of the free permits is to be finished.
	FoundPending()
	// Breaker returns the breaker of the limiter, for a Redis client that shows no nodes.
	Breaker() *breaker.Breaker
}

// Init makes l a limiter of the client. It returns err or, if that is nil, what is wrong with the
// name. A limiter with an error must not be used, but by Survey, Collect and Health.
func (l *Limiter) Init(c *Client, q Queues, name string, s Settings, err error) error {
	l.client, l.queues, l.Name, l.Settings = c, q, name, s
	raw, id := name, c.Config.ID
	if c.Config.MapName != nil {
		raw = c.Config.MapName(name)
	}
	wrong := keys.CheckLength(len(raw), len(id))
	if wrong == nil {
		l.keyNames = keys.Names(raw, id)
		if c.Topology().Clustered() && !keys.SameSlot(l.Keys()) {
			wrong = fmt.Errorf("%w: %s", script.ErrCrossSlotName, keys.Quoted(raw))
		}
	}
	l.err = cmp.Or(err, wrong)
	l.encoder.Init(s.Options, c.identity, c.Config.Clock)
	l.Local = fallback.Limiter{
		Key: l.Key(), Own: s.Own.Permits, Interval: protocol.Millis(s.Own.Interval), Fraction: s.Fallback,
	}
	if own := s.Own; s.Enforced {
		l.enforced = denycache.Rate{own.Permits, own.Interval, own.Type, own.KeepAlive}
	}
	return l.err
}

// Clock returns the time by the client's clock.
func (l *Limiter) Clock() time.Time { return l.client.Clock() }

// Now returns the time as an argument of a script.
func (l *Limiter) Now() any { return l.encoder.Now() }

// Encoder returns what the requests of the limiter have in common.
func (l *Limiter) Encoder() *protocol.Encoder { return &l.encoder }
