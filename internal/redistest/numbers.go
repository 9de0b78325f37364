package redistest

// This file finds scripts that give numbers to commands.

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// onlyText comes before the text of a script, in its first line. Scores are exempt. So are ranks,
// which are too low for an exponent.
const onlyText = `local redis = setmetatable({ call = function(command, ...)
for i = 1, not string.find(command, 'RANGE') and command ~= 'ZADD' and command ~= 'ZCOUNT' and select('#', ...) or 0 do
if type((select(i, ...))) == 'number' then error(command .. ' gets a number: ' .. select(i, ...)) end
end
return redis.call(command, ...) end }, { __index = redis }) `

var onlyTextLine = strings.ReplaceAll(onlyText, "\n", " ")

// OnlyText returns a hook for a client. A script that the client sends fails if it gives a number
// to a command that needs a whole one. Redis 7.2.0 to 7.2.4 write a number of a script with an
// exponent if it has many zeros: with 1e8, HSET stores "1e+8", and INCRBY and PEXPIRE fail
// (redis#13113). A script gives them text.
func OnlyText() redis.Hook {
	c := &changer{names: map[string]string{}}
	return Hook{
		Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			defer c.change(cmd)()
			return next(ctx, cmd)
		},
		Pipeline: func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
			for _, cmd := range cmds {
				defer c.change(cmd)()
			}
			return next(ctx, cmds)
		},
	}
}

// A changer changes the scripts that a client sends.
type changer struct {
	mu    sync.Mutex
	names map[string]string // SHA-1 of the changed script, by the SHA-1 of the loaded one
}

func sum(text string) string {
	all := sha1.Sum([]byte(text))
	return hex.EncodeToString(all[:])
}

// change changes the arguments of a command, and returns a function that restores them.
func (c *changer) change(cmd redis.Cmder) (restore func()) {
	args, at, to := cmd.Args(), 0, ""
	switch cmd.Name() {
	case "eval":
		at, to = 1, onlyTextLine+args[1].(string)
	case "evalsha":
		c.mu.Lock()
		at, to = 1, c.names[args[1].(string)]
		c.mu.Unlock()
		if to == "" {
			to = sum("not loaded by this client")
		}
	case "script":
		if text, isText := args[len(args)-1].(string); strings.EqualFold(args[1].(string), "load") && isText {
			at, to = 2, onlyTextLine+text
			c.mu.Lock()
			c.names[sum(text)] = sum(to)
			c.mu.Unlock()
		}
	}
	if at == 0 {
		return func() {}
	}
	before := args[at]
	args[at] = to
	return func() { args[at] = before }
}
