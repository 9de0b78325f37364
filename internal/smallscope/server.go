package smallscope

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// name is that of the limiter.
const name = "small"

// A store is what Redis holds, but the configuration.
type store struct {
	value   string // "" where there is none
	records []redis.Z
}

// scores returns the records as package window takes them.
func (s store) scores() (all []window.Score) {
	for _, r := range s.records {
		member := r.Member.(string)
		permits := binary.LittleEndian.Uint32([]byte(member[len(member)-4:]))
		all = append(all, window.Score{Permits: int64(permits), At: int64(math.Round(r.Score * 1000))})
	}
	return all
}

// freeAt returns when records stop to count so that others hold at most so many permits; zero: they
// hold no more.
func (s store) freeAt(most int64, interval time.Duration) time.Time {
	for _, r := range slices.Backward(s.scores()) {
		if most -= r.Permits; most < 0 {
			return time.UnixMicro(r.At).Add(interval)
		}
	}
	return time.Time{}
}

// An execution is a command on a store, at a time where the script asks for it.
type execution struct {
	store, command int
	at             int
}

// A ran is what an execution did: indexes in search.stores and search.replies.
type ran struct{ store, reply int }

// A command is one execution of a script, with its arguments as they are sent.
type command struct {
	sha  string
	keys []string
	args []any
}

// command returns the number of a command.
func (s *search) command(sha string, keys []string, args []any) int {
	for i, arg := range args {
		switch arg := arg.(type) {
		case []byte:
			args[i] = string(arg)
		default:
			args[i] = fmt.Sprint(arg)
		}
	}
	return s.commands.of(command{sha, keys, args})
}

// load loads the scripts. Foreign ones are loaded already.
func (s *search) load() {
	for _, script := range []string{s.Acquire.Text, protocol.ReleaseScript.Text, protocol.SetRateScript.Text} {
		if err := s.Redis.ScriptLoad(s.ctx, script).Err(); err != nil {
			panic(serverError{err})
		}
	}
}

// run executes a command on a store. What it did before, on the same one, is known.
func (s *search) run(w *world, number int) ran {
	what, before, c := execution{w.store, number, -1}, &s.stores.all[w.store], &s.commands.all[number]
	if c.args[0] == "" {
		what.at = w.at
		s.SetTime(s.now(w))
	}
	if known, found := s.ran[what]; found {
		return known
	}
	all := keys.Names(name, "")
	p := s.Redis.Pipeline()
	p.Del(s.ctx, all[keys.Config], all[keys.Value], all[keys.Permits])
	p.HSet(s.ctx, all[keys.Config], "rate", s.Rate, "interval", s.Interval.Milliseconds(), "type", "0")
	if before.value != "" {
		p.Set(s.ctx, all[keys.Value], before.value, 0)
	}
	if len(before.records) > 0 {
		p.ZAdd(s.ctx, all[keys.Permits], before.records...)
	}
	done := p.EvalSha(s.ctx, c.sha, c.keys, c.args...)
	value, records := p.Get(s.ctx, all[keys.Value]), p.ZRangeWithScores(s.ctx, all[keys.Permits], 0, -1)
	_, _ = p.Exec(s.ctx)
	for _, cmd := range []redis.Cmder{done, value, records} {
		if err := cmd.Err(); err != nil && err != redis.Nil {
			panic(serverError{err})
		}
	}
	after := ran{s.stores.of(store{value.Val(), records.Val()}), s.replies.of(done.Val())}
	s.ran[what] = after
	s.result.Scripts++
	return after
}

// figures returns the reply of one of the scripts of this module.
func figures(reply any) []int64 {
	list := reply.([]any)
	all := make([]int64, len(list))
	for i, n := range list {
		all[i] = n.(int64)
	}
	return all
}

// keysOf returns the keys of the limiter for a client.
func keysOf(id string) []string {
	all := keys.Names(name, id)
	return slices.Clone(all[:])
}

// A numbered holds values without repetition, each under a number.
type numbered[T any] struct {
	all    []T
	number map[string]int
}

// of returns the number of a value.
func (n *numbered[T]) of(value T) int {
	key := fmt.Sprintf("%#v", value)
	at, known := n.number[key]
	if !known {
		if n.number == nil {
			n.number = map[string]int{}
		}
		at = len(n.all)
		n.number[key] = at
		n.all = append(n.all, value)
	}
	return at
}
