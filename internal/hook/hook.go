// Package hook is the back door through which packages of this module reach what the root package does not export. The
// root package fills it in (hook.go there); whoever uses it imports the root package, too.
package hook

import (
	"context"
	"time"
)

// Keys names the keys of the limiter with a raw name: config, value, one client's value, permits, one client's permits.
var Keys func(name, clientID string) [5]string

// Alone tells a *rratelimiter.Client, before it is used, that its server is one that no Redisson can reach.
var Alone func(client any)

// RedissonHere tells whether Redisson has used a rate limiter on the server of a *rratelimiter.Limiter.
var RedissonHere func(ctx context.Context, limiter any) bool

// Wake lets all callers who wait in a *rratelimiter.Client ask again, now.
var Wake func(client any)

// Allow is the Allow of a *rratelimiter.Limiter, with its rratelimiter.Result, and a way to give back what it took: those
// permits, where Release gives back the oldest.
var Allow func(ctx context.Context, limiter any, n int64) (result any, undo func(context.Context) error, err error)

// Look tells what goes on in a *rratelimiter.Client, on the limiters with a name, or on all of them with "".
var Look func(client any, limiter string) Calls

// Silence tells how long those who wait in line for a *rratelimiter.Limiter have had no answer to the last call that departed;
// 0: none is in the air.
var Silence func(limiter any) time.Duration

// FormatOf tells the format of a record, a rratelimiter.RecordFormat, and how long ids are in it, of which a Go client's with
// a granularity are ShareLength longer.
var FormatOf func(member []byte) (format, idLength int, known bool)

// ShareLength is how many bytes of an id tell a call's share of a record that others join.
const ShareLength = 4

// Survey reads what is stored of a *rratelimiter.Limiter: all but its records, and so many of these, from one on, counted
// from the newest. With own it is the pair of keys of the limiter's client, whatever the limiter's type.
var Survey func(ctx context.Context, limiter any, first, count int, own bool) (Stored, error)

// Stored is what Redis holds of a limiter, unjudged.
type Stored struct {
	Fields  map[string]string // of the configuration; empty where there is none
	Own     bool              // value and records are those of the limiter's client
	At      time.Time         // by the server's clock
	Value   string            // the free permits
	Keys    [3]StoredKey      // configuration, value, records
	Records int               // all there are
	Page    []StoredRecord    // newest first
}

// StoredKey is a key of a limiter.
type StoredKey struct {
	Name string
	Type string        // as Redis says: "none" where there is no such key
	TTL  time.Duration // 0: none
}

// StoredRecord is a member of the records, with its score.
type StoredRecord struct {
	Member string
	Score  float64
}

// Collect removes a client's own pair of keys if nothing is lost by that, or, with dry, tells whether it would: see
// Collected and what follows it.
var Collect func(ctx context.Context, limiter any, idle time.Duration, dry bool) (Collected, error)

// Collected is what became of a client's pair of keys.
type Collected int64

// What becomes of a pair.
const (
	InUse     Collected = iota // it has records that still count, or did a short while ago
	Removed                    // or would be
	Temporary                  // it leaves by itself
	Gone                       // there is none
)

// Calls is what goes on in a client at one time.
type Calls struct {
	Waiting int           // callers who wait, those included whose call is in the air
	Flying  bool          // a call is in the air, or about to depart
	Next    time.Duration // after the last answers, how long the one who is served first has to wait; 0: nobody waits
}
