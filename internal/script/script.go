// Package script runs Lua scripts on any topology of servers. Each call takes effect at most once.
// The package knows which failed attempts may be repeated, whether Redis may have executed a call
// that failed, and which errors callers get. It does not know what the scripts do.
package script

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"io/fs"
	"strings"

	"github.com/redis/go-redis/v9"
)

// A Script is the text of a Lua script.
type Script struct {
	Text, SHA      string
	byName, byText []any // first arguments of EVALSHA and EVAL
}

// New returns the script with a text.
func New(text string) *Script {
	sum := sha1.Sum([]byte(text))
	sha := hex.EncodeToString(sum[:])
	return &Script{Text: text, SHA: sha, byName: []any{"evalsha", sha}, byText: []any{"eval", text}}
}

// Load returns the script in the files NAME.lua, one after the other. A line "--@include NAME" in
// one is replaced by the file shared/NAME.lua at that place only, so that code for a rare case
// costs nothing elsewhere. The files must exist: they are embedded.
func Load(files fs.FS, names ...string) *Script {
	var text string
	for _, name := range names {
		text += read(files, name)
	}
	return New(text)
}

func read(files fs.FS, name string) string {
	text, err := fs.ReadFile(files, name+".lua")
	if err != nil {
		panic(err)
	}
	lines := strings.SplitAfter(string(text), "\n")
	for i, line := range lines {
		if part, found := strings.CutPrefix(strings.TrimSpace(line), "--@include "); found {
			lines[i] = read(files, "shared/"+part)
		}
	}
	return strings.Join(lines, "")
}

// Supply sends the commands of one or more calls of a script, also to a server that lacks it. send
// sends the commands that have no reply yet, and reports whether the server lacks the script for
// one of them. They name the script by its SHA-1. If the server lacks it, load loads it, and they
// are sent again. A script that is loaded stays: from Redis 7.4 on, and on Valkey, the server
// removes scripts that it knows only from EVAL once there are more than 500 of these. If the script
// cannot be loaded, or is lacking afterwards, one of the commands carries its text.
func Supply(load func() error, send func(text bool) (lacking bool)) {
	if !send(false) {
		return
	}
	text := load() != nil
	for send(text) {
		text = true
	}
}

// Lacking reports whether a server did not run a script because it lacks it.
func Lacking(err error) bool { return err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") }

// Head returns the first arguments of a command that runs the script: by its SHA-1, or with its
// text.
func (s *Script) Head(text bool) []any {
	if text {
		return s.byText
	}
	return s.byName
}

// A Command runs a script whose reply consists of integers. The Redis client must not retry it by
// itself, because that does not know whether Redis executed it. A reply without an error that was
// read stays, although the Redis client sets the network error of a later command in a pipeline on
// all of its commands.
type Command struct {
	*redis.IntSliceCmd
	read bool
}

// NewCommand returns a command with all its arguments.
func NewCommand(ctx context.Context, args []any) Command {
	return Command{IntSliceCmd: redis.NewIntSliceCmd(ctx, args...)}
}

// NoRetry tells the Redis client not to retry the command.
func (c *Command) NoRetry() bool { return true }

// SetErr is called with nil once the reply is read.
func (c *Command) SetErr(err error) {
	if !c.read {
		c.read = err == nil
		c.IntSliceCmd.SetErr(err)
	}
}

// errNoReply means that the reply of a script is empty.
var errNoReply = Said("ERR there is no reply: a hook of the Redis client, or a proxy, does not pass the call on")

// Reply returns the reply, which is not empty, or the error of the command.
func (c *Command) Reply() ([]int64, error) { return replied(c.Val(), ServerError(c.Err())) }

// replied returns the reply and the error of a command, and errNoReply if there is neither.
func replied[T any](reply []T, err error) ([]T, error) {
	if err == nil && len(reply) == 0 {
		err = errNoReply
	}
	return reply, err
}

// Clone returns a copy.
func (c *Command) Clone() redis.Cmder {
	return &Command{c.IntSliceCmd.Clone().(*redis.IntSliceCmd), c.read}
}

// An AnyCommand is a command with a reply of any kind. As with a Command, the Redis client must not
// retry it by itself.
type AnyCommand struct{ *redis.Cmd }

// NewAnyCommand returns a command with all its arguments.
func NewAnyCommand(ctx context.Context, args []any) AnyCommand {
	return AnyCommand{redis.NewCmd(ctx, args...)}
}

// NoRetry tells the Redis client not to retry the command.
func (AnyCommand) NoRetry() bool { return true }

// Clone returns a copy.
func (c AnyCommand) Clone() redis.Cmder { return AnyCommand{c.Cmd.Clone().(*redis.Cmd)} }
