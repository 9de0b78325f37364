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

// Look tells what goes on in a *rratelimiter.Client, on the limiters with a name, or on all of them with "".
var Look func(client any, limiter string) Calls

// Calls is what goes on in a client at one time.
type Calls struct {
	Waiting int           // callers who wait, those included whose call is in the air
	Flying  bool          // a call is in the air
	Next    time.Duration // after the last answers, how long the one who is served first has to wait; 0: nobody waits
}
