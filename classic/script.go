package classic

import (
	"context"
	"embed"
	"fmt"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/lua"
)

// script.go runs the scripts of lua/ and names the keys of algorithms that need two. It does not
// depend on the scripts' content.

//go:embed lua/*.lua
var luaFiles embed.FS

// An operation is a script that takes permits, and the same for Peek: it gives the same reply, and
// changes nothing.
type operation struct{ take, peek *script.Script }

// load returns the operation of the script in a file of lua/, after numbers.lua.
func load(name string) operation {
	take := script.Load(luaFiles, "lua/numbers", "lua/"+name)
	return operation{take, script.New(script.Load(lua.Files, "shared/peek").Text + take.Text)}
}

// run runs a script whose reply has only whole numbers.
func (l *Limiter) run(ctx context.Context, o operation, peek bool, keys []string, args ...any) ([]int64, error) {
	return ask(ctx, o, peek, func(a *script.Attempts, s *script.Script) ([]int64, error) {
		return l.servers.Try(ctx, a, s, keys, args...)
	})
}

// ask makes a call of an operation: once, as it takes permits, unless it is a peek.
func ask[T any](
	ctx context.Context, o operation, peek bool, call func(*script.Attempts, *script.Script) (T, error),
) (T, error) {
	a := new(script.Attempts)
	if peek {
		return within(ctx, func() (T, error) { return call(a, o.peek) })
	}
	return once(ctx, a, func(a *script.Attempts) (T, error) { return call(a, o.take) })
}

// once makes a call that takes permits. Its command has a as an argument. If Redis may have
// executed a call that fails, the error is ErrOutcomeUnknown; a call that is not sent when ctx ends
// never is.
func once[T any](ctx context.Context, a *script.Attempts, call func(a *script.Attempts) (T, error)) (T, error) {
	reply, err := within(ctx, func() (T, error) { return call(a) })
	return reply, a.Outcome(err)
}

// within makes a call, and does not wait for its reply once ctx ends: go-redis would, for its read
// timeout. The call then continues in the background. Unlike script.Await it has no time limit of
// its own.
func within[T any](ctx context.Context, call func() (T, error)) (T, error) {
	if ctx.Done() == nil {
		return call()
	}
	type answer struct {
		value T
		err   error
	}
	done := make(chan answer, 1)
	go func() {
		value, err := call()
		done <- answer{value, err}
	}()
	select {
	case a := <-done:
		return a.value, a.err
	case <-ctx.Done():
	}
	select {
	case a := <-done: // both channels were ready
		return a.value, a.err
	default:
		var none T
		return none, ctx.Err()
	}
}

// pair returns the two keys of a limiter: its name, and the name with a suffix. On a cluster they
// must be in one slot, so a name without a hash tag is made one there; elsewhere the name stays as
// other services use it.
func (l *Limiter) pair(suffix string) []string {
	if !l.servers.Clustered() {
		return []string{l.name, l.name + suffix}
	}
	name := keys.Tagged(l.name)
	return l.together(name, name+suffix)
}

// together returns keys that one call uses. If they may be on different servers, the limiter has an
// error.
func (l *Limiter) together(all ...string) []string {
	if l.err == nil && !l.servers.Reachable(all) {
		l.err = fmt.Errorf("%w: %q", rratelimiter.ErrCrossSlotName, l.name)
	}
	return all
}
