// Package replay has a client and a server as values, for searches through all orders of events
// (package smallscope). The client owns real queues, and does what they say, as packages dispatch
// and limiter do: each of these steps happens at once, and a failed call is one error. The server
// executes the real scripts on what it held at any time, and remembers what they did.
//
// This file has the server, client.go the client and its queues, call.go its calls.
package replay

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// A Server is a Redis server with limiters. It is not safe for concurrent use.
type Server struct {
	Redis    *redis.Client
	Acquire  *script.Script      // what calls for one limiter execute
	Limiters []protocol.Rate     // what is configured
	SetTime  func(now time.Time) // sets the clock; nil: no script reads it
	Scripts  int                 // different executions of a script so far

	clock    time.Time // of the client that makes a call
	stores   numbered[[]Content]
	commands numbered[command]
	known    map[execution]effect
}

// A Store is what Redis holds of all limiters, but the configuration.
type Store int

// A Content is what a Store has of one limiter.
type Content struct {
	Value   string // "" where there is none
	Records []redis.Z
}

// A Command is one execution of a script with its arguments; 0: none.
type Command int

type command struct {
	sha  string
	keys []string
	args []any
}

// A numbered holds values without repetition, each under a number from 1 on.
type numbered[T any] struct {
	all     []T
	numbers map[string]int
}

func (n *numbered[T]) of(number int) T { return n.all[number-1] }

func (n *numbered[T]) number(value T) int {
	text := fmt.Sprintf("%#v", value)
	if n.numbers[text] == 0 {
		if n.numbers == nil {
			n.numbers = map[string]int{}
		}
		n.all = append(n.all, value)
		n.numbers[text] = len(n.all)
	}
	return n.numbers[text]
}

// An execution is a command on a store, at a time if the script reads the clock.
type execution struct {
	on   Store
	what Command
	at   time.Time
}

// An effect is the store after an execution, and the reply.
type effect struct {
	after Store
	reply any
}

// Name returns the name of a limiter.
func Name(limiter int) string { return fmt.Sprint("small", limiter) }

// Keys returns the keys of some limiters. Those of a single client are not used.
func Keys(limiters ...int) (all []string) {
	for _, l := range limiters {
		names := keys.Names(Name(l), "")
		all = append(all, names[:]...)
	}
	return all
}

// Load loads the scripts that a Client executes.
func (s *Server) Load(ctx context.Context) error {
	for _, of := range []*script.Script{
		s.Acquire, protocol.AllowAllScript, protocol.ReleaseScript, protocol.SetRateScript,
	} {
		if err := s.Redis.ScriptLoad(ctx, of.Text).Err(); err != nil {
			return err
		}
	}
	return nil
}

// Empty returns the Store without grants.
func (s *Server) Empty() Store { return Store(s.stores.number(make([]Content, len(s.Limiters)))) }

// Contents returns what is stored of each limiter.
func (s *Server) Contents(of Store) []Content { return s.stores.of(int(of)) }

// Scores returns the records as package window takes them, the oldest one first.
func (c *Content) Scores() (all []window.Score) {
	for _, r := range c.Records {
		member := r.Member.(string)
		permits := binary.LittleEndian.Uint32([]byte(member[len(member)-4:]))
		all = append(all, window.Score{Permits: int64(permits), At: int64(math.Round(r.Score * 1000))})
	}
	return all
}

// Free returns how many permits of a limiter are free at a time.
func (s *Server) Free(of Store, limiter int, now time.Time) int64 {
	rate := s.Limiters[limiter]
	free := rate.Permits
	for _, r := range s.Contents(of)[limiter].Scores() {
		if time.UnixMicro(r.At).Add(protocol.Millis(rate.Interval)).After(now) {
			free -= r.Permits
		}
	}
	return free
}

// Command returns the command for a script.
func (s *Server) Command(sha string, keys []string, args []any) Command {
	for i, arg := range args {
		switch arg := arg.(type) {
		case []byte:
			args[i] = string(arg)
		default:
			args[i] = fmt.Sprint(arg)
		}
	}
	return Command(s.commands.number(command{sha, keys, args}))
}

// Forgets reports whether a command is a change, which forgets the grants of limiter 0.
func (s *Server) Forgets(c Command) bool {
	return s.commands.of(int(c)).sha == protocol.SetRateScript.SHA
}

// Args returns the arguments of a command.
func (s *Server) Args(c Command) []any { return s.commands.of(int(c)).args }

// Run executes a command at a time, and returns the Store after it, and the reply. The error is one
// of the server.
func (s *Server) Run(ctx context.Context, on Store, what Command, now time.Time) (after Store, reply any, err error) {
	e := execution{on: on, what: what}
	if s.Args(what)[0] == "" {
		e.at = now
		s.SetTime(now)
	}
	done, found := s.known[e]
	if !found {
		if done, err = s.execute(ctx, e); err != nil {
			return on, nil, err
		}
		if s.known == nil {
			s.known = map[execution]effect{}
		}
		s.known[e] = done
		s.Scripts++
	}
	return done.after, done.reply, nil
}

func (s *Server) execute(ctx context.Context, e execution) (effect, error) {
	p := s.Redis.Pipeline()
	for l, before := range s.Contents(e.on) {
		names, rate := Keys(l), s.Limiters[l]
		p.Del(ctx, names...)
		p.HSet(ctx, names[keys.Config], "rate", rate.Permits, "interval", rate.Interval, "type", rate.Type)
		if before.Value != "" {
			p.Set(ctx, names[keys.Value], before.Value, 0)
		}
		if len(before.Records) > 0 {
			p.ZAdd(ctx, names[keys.Permits], before.Records...)
		}
	}
	c := s.commands.of(int(e.what))
	done := p.EvalSha(ctx, c.sha, c.keys, c.args...)
	values, records := make([]*redis.StringCmd, len(s.Limiters)), make([]*redis.ZSliceCmd, len(s.Limiters))
	for l := range s.Limiters {
		names := Keys(l)
		values[l] = p.Get(ctx, names[keys.Value])
		records[l] = p.ZRangeWithScores(ctx, names[keys.Permits], 0, -1)
	}
	all, _ := p.Exec(ctx)
	for _, cmd := range all {
		if err := cmd.Err(); err != nil && err != redis.Nil {
			return effect{}, err
		}
	}
	after := make([]Content, len(s.Limiters))
	for l := range after {
		after[l] = Content{values[l].Val(), records[l].Val()}
	}
	return effect{Store(s.stores.number(after)), done.Val()}, nil
}

// Unbounded returns acquire.lua without the bounds of what it takes ahead, which are a matter of
// fairness: of few permits it would take none.
func Unbounded() *script.Script {
	const line = "ahead = ahead * 8 >= math.min(most, tenth) and ahead or 0\n"
	before, after, found := strings.Cut(protocol.AcquireScript.Text, line)
	if !found {
		panic("acquire.lua has no line " + line)
	}
	return script.New(before + "ahead = math.max(0, math.min(most, left))\n" + after)
}
