package rratelimiter

import "time"

// Health is what this process knows, without a call, about the Redis node of a limiter.
type Health struct {
	Away    bool // the node cannot be reached, or cannot grant permits (see WithFallback)
	Decides bool // this process decides instead of the node (WithFallback)
	// Silence is how long the last call for this limiter has been waiting for its reply; calls for
	// other limiters do not count. It is 0 if the reply has come, if the call has stalled and
	// carries no caller of Acquire or TryAcquireTimeout, and for calls of AllowAll, AcquireAll and
	// AcquireUpTo.
	Silence time.Duration
}

// Health returns the health of the limiter's node. It does not block, and is cheap enough to be
// called for each request. While the node is away, a call of Health starts a probe in the
// background if one is due: first after 100 ms, then less often, down to once per second. So call
// Health repeatedly. If no call of Health and no request comes within 1 s after a probe is due, the
// node no longer counts as away, until a call fails again.
func (l *Limiter) Health() Health { return Health(l.core.Health()) }
