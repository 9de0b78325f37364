package smallscope

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

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

// key returns a text that differs for different stores.
func (s store) key() string {
	var b strings.Builder
	b.WriteString(s.value)
	for _, r := range s.records {
		fmt.Fprintf(&b, " %s %q", strconv.FormatFloat(r.Score, 'f', -1, 64), r.Member)
	}
	return b.String()
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

// sum returns the permits in the records, and the highest score.
func (s store) sum() (permits int64, last float64) {
	for i, r := range s.scores() {
		permits += r.Permits
		last = max(last, s.records[i].Score)
	}
	return permits, last
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
	return s.commands.of(fmt.Sprintf("%s %q %q", sha, keys, args), command{sha, keys, args})
}

// load loads the scripts. Foreign ones are loaded already.
func (s *search) load() error {
	for _, script := range []string{s.Acquire.Text, s.Release.Text, protocol.SetRateScript.Text} {
		if err := s.Redis.ScriptLoad(s.ctx, script).Err(); err != nil {
			return err
		}
	}
	return nil
}

// run executes a command on a store. What it did before, on the same one, is known.
func (s *search) run(w *world, number int) (ran, error) {
	what, before, c := execution{w.store, number, -1}, &s.stores.all[w.store], &s.commands.all[number]
	if c.args[0] == "" {
		what.at = w.at
		s.SetTime(s.now(w))
	}
	if known, found := s.ran[what]; found {
		return known, nil
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
			return ran{}, err
		}
	}
	stored := store{value.Val(), records.Val()}
	after := ran{s.stores.of(stored.key(), stored), s.replies.of(fmt.Sprint(done.Val()), done.Val())}
	s.ran[what] = after
	s.result.Scripts++
	return after, nil
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
