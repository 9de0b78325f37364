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

// A mode is what a call of an operation does. A charge of no permits is also a peek.
type mode int

const (
	take   mode = 0 // permits, if they are free
	peek   mode = 1 // changes nothing
	charge mode = 2 // counts permits, free or not
)

// args adds the argument that makes a call a charge.
func (m mode) args(args ...any) []any {
	if m&charge != 0 {
		args = append(args, "charge")
	}
	return args
}

// load returns the operation of the script in a file of lua/, after numbers.lua.
func load(name string) operation {
	take := script.Load(luaFiles, "lua/numbers", "lua/"+name)
	return operation{take, script.New(script.Load(lua.Files, "shared/peek").Text + take.Text)}
}

// run runs a script whose reply has only whole numbers.
func (l *Limiter) run(ctx context.Context, o operation, m mode, keys []string, args ...any) ([]int64, error) {
	return ask(ctx, l, o, m, func(ctx context.Context, a *script.Attempts, s *script.Script) ([]int64, error) {
		return l.servers.Try(ctx, a, s, keys, m.args(args...)...)
	})
}

// ask makes a call of an operation: once, as it takes permits, unless it is a peek.
func ask[T any](
	ctx context.Context, l *Limiter, o operation, m mode,
	call func(context.Context, *script.Attempts, *script.Script) (T, error),
) (T, error) {
	a := new(script.Attempts)
	if m&peek != 0 {
		return within(ctx, l, func(ctx context.Context) (T, error) { return call(ctx, a, o.peek) })
	}
	return once(ctx, l, a, func(ctx context.Context) (T, error) { return call(ctx, a, o.take) })
}

// once makes a call that takes permits. Its command has a as an argument. If Redis may have
// executed a call that fails, the error is ErrOutcomeUnknown; a call that is not sent when its time
// is over never is.
func once[T any](
	ctx context.Context, l *Limiter, a *script.Attempts, call func(context.Context) (T, error),
) (T, error) {
	reply, err := within(ctx, l, call)
	return reply, a.Outcome(err)
}

// within makes a call, and does not wait for its reply once ctx ends or the call timeout is over.
// The call then continues in the background. A call whose ctx has ended before is not made.
func within[T any](ctx context.Context, l *Limiter, call func(context.Context) (T, error)) (T, error) {
	if err := ctx.Err(); err != nil {
		var none T
		return none, err
	}
	return script.Await(ctx, l.timeout, l.timeout, nil, call)
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
