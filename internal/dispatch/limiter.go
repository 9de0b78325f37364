package dispatch

import (
	"cmp"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/denycache"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/localgrant"
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
	client   *Client
	name     string
	keyNames [keys.Count]string
	// the same, as arguments of a command; nil: not needed yet
	keyArgs  atomic.Pointer[[keys.Count]any]
	settings Settings
	encoder  protocol.Encoder
	err      error                 // of the options or the name
	local    localgrant.Limiter    // as local decisions see it
	enforced denycache.Rate        // the rate to enforce; zero: none
	queue    atomic.Pointer[queue] // the one used last; it may have been dropped
	set      atomic.Pointer[queue] // that of the last set in which the limiter was the first one
}

// Limiter returns a limiter with a name and the default options.
func (c *Client) Limiter(name string) (*Limiter, error) {
	l := new(Limiter)
	return l, l.Init(c, name, c.config.Defaults, nil)
}

// Init makes l a limiter of the client. It returns err or, if that is nil, what is wrong with the
// name. A limiter with an error must not be used, but by Survey, Collect and Health.
func (l *Limiter) Init(c *Client, name string, s Settings, err error) error {
	l.client, l.name, l.settings = c, name, s
	if s.Lease > 0 && !c.lender.used.Load() {
		c.lender.used.Store(true)
	}
	raw, id := name, c.config.ID
	if c.config.MapName != nil {
		raw = c.config.MapName(name)
	}
	wrong := keys.CheckLength(len(raw), len(id))
	if wrong == nil {
		l.keyNames = keys.Names(raw, id)
		if c.Topology().Clustered() && !keys.SameSlot(l.Keys()) {
			wrong = fmt.Errorf("%w: %s", script.ErrCrossSlotName, Quoted(raw))
		}
	}
	l.err = cmp.Or(err, wrong)
	l.encoder.Init(s.Options, c.identity, c.config.Clock)
	l.local = localgrant.Limiter{
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

// Quoted quotes a name for an error text: on one line, and at most its first 200 bytes.
func Quoted(name string) string {
	const most = 200
	if len(name) <= most {
		return strconv.Quote(name)
	}
	return fmt.Sprintf("%q... (%d bytes)", name[:most], len(name))
}
