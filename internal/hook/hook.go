// Package hook lets packages of this module reach what the root package does not export. The root package sets its
// variables (hook.go there), so a package that uses them must also import the root package.
package hook

import (
	"context"
	"time"
)

// Keys returns the keys of the limiter with a mapped name: config, value, one client's value, permits, one client's
// permits.
var Keys func(name, clientID string) [5]string

// Alone marks the server of a *rratelimiter.Client as one that Redisson cannot reach. Call it before the client is
// used.
var Alone func(client any)

// RedissonHere returns whether Redisson has used a rate limiter on the server of a *rratelimiter.Limiter.
var RedissonHere func(ctx context.Context, limiter any) bool

// Wake makes all waiting callers of a *rratelimiter.Client retry now.
var Wake func(client any)

// Allow is the Allow of a *rratelimiter.Limiter. It returns its rratelimiter.Result, and a function that gives back
// exactly the permits that it took, whereas Release gives back the oldest ones.
var Allow func(ctx context.Context, limiter any, n int64) (result any, undo func(context.Context) error, err error)

// Look returns what goes on in a *rratelimiter.Client on the limiters with a name, or on all of them with "".
var Look func(client any, limiter string) Calls

// Silence returns how long the last call sent for a *rratelimiter.Limiter has had no reply; 0: none is in flight. A
// stalled call counts only if it carries the first waiting caller.
var Silence func(limiter any) time.Duration

// Away returns whether the node that serves a *rratelimiter.Limiter is known to be away: it refused the last calls, or
// has answered none for a while. It does not block. While the node is away, Away starts a probe in the background, at
// most every 100 ms to 1 s, so a caller that skips its own call must call Away each time. The state is forgotten after
// about 1 s without a call of Away.
var Away func(ctx context.Context, limiter any) bool

// DecidesLocally returns whether the process can decide on a *rratelimiter.Limiter while its node is away: it has
// WithFallback, and its rate is known.
var DecidesLocally func(limiter any) bool

// FormatOf returns the format of a record, a rratelimiter.RecordFormat, and the length of its ids (bytes). The ids of a
// Go client with a granularity are ShareLength longer.
var FormatOf func(member []byte) (format, idLength int, known bool)

// ShareLength is the number of bytes in an id that hold a call's share of a record that other calls join.
const ShareLength = 4

// Survey reads the raw content of a *rratelimiter.Limiter's keys, with at most count records from index first on,
// newest first. With own it reads the keys of the limiter's client, whatever the limiter's type.
var Survey func(ctx context.Context, limiter any, first, count int, own bool) (Stored, error)

// Stored is the content of a limiter's keys, not validated.
type Stored struct {
	Fields  map[string]string // of the configuration; empty if there is none
	Own     bool              // Value and records are those of the limiter's client
	At      time.Time         // time of the server's clock
	Value   string            // the free permits
	Keys    [3]StoredKey      // configuration, value, records
	Records int               // total number of records
	Page    []StoredRecord    // the records asked for, newest first
}

// StoredKey is one key of a limiter.
type StoredKey struct {
	Name string
	Type string        // as Redis's TYPE returns it: "none" if the key does not exist
	TTL  time.Duration // 0: none
}

// StoredRecord is a member of the permits set, with its score (ms).
type StoredRecord struct {
	Member string
	Score  float64
}

// Collect removes a client's own value and permits keys if they hold nothing of use. With dry it only returns what it
// would do. Keys with records that counted within the last idle are in use.
var Collect func(ctx context.Context, limiter any, idle time.Duration, dry bool) (Collected, error)

// Collected is the outcome of Collect.
type Collected int64

// The outcomes for the pair of keys.
const (
	InUse     Collected = iota // there are records that count, or counted within the last idle
	Removed                    // or, with dry, would be removed
	Temporary                  // the keys have a TTL
	Gone                       // there are none
	Foreign                    // kept: another program uses one of the keys
)

// Calls is what goes on in a client at one time.
type Calls struct {
	Waiting int           // waiting callers, including those whose call is in flight
	Flying  bool          // a call is in flight, or about to be sent
	Next    time.Duration // by the last replies, the time until the first waiting caller is served; 0: no caller waits
}
