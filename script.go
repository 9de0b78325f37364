package rratelimiter

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/lua"
)

// Running Lua scripts, and turning server errors into Go errors. This file does not know what the scripts do.

var (
	acquireScript    = script.Load(lua.Files, "acquire")
	allowAllScript   = script.Load(lua.Files, "allowall")
	deleteScript     = script.Load(lua.Files, "delete")
	expireScript     = script.Load(lua.Files, "expire")
	probeScript      = script.Load(lua.Files, "probe")
	recountScript    = script.Load(lua.Files, "recount")
	releaseScript    = script.Load(lua.Files, "release")
	renameScript     = script.Load(lua.Files, "rename")
	setRateScript    = script.Load(lua.Files, "setrate")
	stateScript      = script.Load(lua.Files, "state")
	trySetRateScript = script.Load(lua.Files, "trysetrate")
)

// within makes one call to Redis for a limiter. It returns the reply, or an error when ctx ends or the call timeout is
// over. The Redis client cannot be made to stop waiting for a reply, so a late call goes on in its goroutine until its
// connection gives up. The end of the call is reported to the breaker of the limiter's node.
func within[T any](ctx context.Context, l *Limiter, call func(context.Context) (T, error)) (T, error) {
	return withinRest(ctx, l, l.client.callTimeout, false, call)
}

// withinRest is within for a call that has begun before, with the time that is left. With orAway it also returns as
// soon as the node is found to be away.
func withinRest[T any](
	ctx context.Context, l *Limiter, rest time.Duration, orAway bool, call func(context.Context) (T, error),
) (T, error) {
	w := make(watched, 1)
	var away <-chan struct{}
	if orAway {
		away = w
	}
	return script.Await(ctx, l.client.callTimeout, rest, away, func(ctx context.Context) (T, error) {
		return watch(ctx, l, w, call)
	})
}

// A watched is a pending call. It gets a value when its node is found to be away.
type watched chan struct{}

func (w watched) NodeAway() {
	select {
	case w <- struct{}{}:
	default:
	}
}

// watch makes a call and registers it with the breaker of the limiter's node. Until the nodes of a cluster are found,
// finding them is registered as a call of its own.
func watch[T any](ctx context.Context, l *Limiter, w watched, call func(context.Context) (T, error)) (T, error) {
	c := l.client
	began, b := time.Now(), c.breakerTo(l)
	b.Begin(w, (*prober)(l))
	if !c.topology.Found() {
		if _, err := c.topology.Node(ctx, l.key()); err == nil {
			b.End(w, true)
			b.Answer(began, (*prober)(l))
			began, b = time.Now(), c.breakerTo(l)
			b.Begin(w, (*prober)(l))
		}
	}
	value, err := call(ctx)
	there := script.IsThere(err)
	b.End(w, there)
	switch {
	case there:
		b.Answer(began, (*prober)(l))
	case ctx.Err() == nil && !script.IsOfSlot(err):
		b.Fail(began)
	}
	return value, err
}

// Notes in a script's reply: the same bits as in lua/shared/base.lua.
const (
	noteMore           = 256  // expired records remain
	noteRebuildPending = 512  // the free permits must be rebuilt once these are removed
	noteRateMismatch   = 1024 // another rate than the caller's is in force
	noteForeignWriter  = 2048 // a live record was not written by a Go client
	noteMany           = 4096 // there are too many live records to add up in one call
)

// repairs are the notes about repairs, with their texts.
var repairs = []struct {
	note int64
	text string
}{
	{1, "free permits were missing"},
	{2, "free permits were no whole number"},
	{4, "free permits were negative"},
	{8, "free permits were above the rate"},
	{16, "free permits and expired ones were more than the rate"},
	{32, "free permits were not the rate, without a record"},
	{64, "free permits and records were less than the rate"},
	{128, "free permits and records were more than the rate"},
}

// repaired returns the texts of the repairs that a script made; "" if it made none.
func repaired(notes int64) string {
	var texts []string
	for _, h := range repairs {
		if notes&h.note != 0 {
			texts = append(texts, h.text)
		}
	}
	return strings.Join(texts, ", ")
}

// notInitialized returns the error for the status with which a script refuses a configuration.
func notInitialized(status int64) error {
	what := [...]string{
		1: "it has no rate", 2: "its rate is missing", 3: "its interval is missing", 4: "its type is missing",
		5: "its rate is no whole number from 0 on", 6: "its interval is no positive whole number", 7: "its type is neither 0 nor 1",
	}
	return fmt.Errorf("%w: %s", ErrNotInitialized, what[status])
}
