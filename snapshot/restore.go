package snapshot

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// restore.go writes a limiter into Redis: first under unused names, then, in one step, under its
// own.

var restoreScript = script.Load(luaFiles, "restore")

const (
	prepared    = 10 * time.Minute // TTL of prepared keys that are not renamed
	recordsAdd  = 500              // records in one ZADD
	recordsPipe = 5_000            // records in one pipeline
)

// A RestoreOption changes how a snapshot is restored.
type RestoreOption func(*restoring)

type restoring struct {
	name    string
	replace bool
	shift   func(taken time.Time) time.Duration
}

// As restores the limiter under another name: its configuration key is then name.
func As(name string) RestoreOption {
	return func(r *restoring) { r.name = name }
}

// Replace removes an existing limiter, including the keys of all its clients. If a limiter exists
// and Replace is not given, Restore does nothing and returns ErrExists. A key of another Redis type
// belongs to another program: with or without Replace nothing is done then, and the error is
// ErrWrongType.
func Replace() RestoreOption {
	return func(r *restoring) { r.replace = true }
}

// Shift adds a number of whole ms to the time of every grant, so that its permits return that much
// later.
func Shift(d time.Duration) RestoreOption {
	return func(r *restoring) { r.shift = func(time.Time) time.Duration { return d } }
}

// At adds the time between Snapshot.TakenAt and t (usually time.Now()) to the time of every grant,
// as if the snapshot were taken at t. Without Shift or At, grants keep their time, so those of an
// old snapshot have expired.
func At(t time.Time) RestoreOption {
	return func(r *restoring) { r.shift = t.Sub }
}

// Restore writes the limiter into Redis. rdb is any client of go-redis. Keys get the TTL that they
// had left when the snapshot was taken. Restore searches all keys of the server (SCAN) for client
// keys that a limiter of this name has already.
//
// It is done all at once or not at all, whatever the size: the keys are prepared under unused
// names, and one step renames them. If the reply to this step is lost, Restore returns a network
// error, but the limiter may be restored.
func (s *Snapshot) Restore(ctx context.Context, rdb rratelimiter.Redis, opts ...RestoreOption) error {
	r := restoring{name: s.Name, shift: func(time.Time) time.Duration { return 0 }}
	for _, opt := range opts {
		opt(&r)
	}
	err := s.check()
	if err == nil {
		err = r.restore(ctx, rdb, s)
	}
	if err != nil {
		return fmt.Errorf("restore a snapshot as %q: %w", r.name, err)
	}
	return nil
}

func (r restoring) restore(ctx context.Context, rdb rratelimiter.Redis, s *Snapshot) error {
	ids, err := clientsOf(ctx, rdb, r.name)
	if err != nil {
		return err
	}
	shift := float64(r.shift(s.TakenAt).Milliseconds())
	states := []State{s.Shared}
	own, known := make([]string, 0, len(s.Clients)+len(ids)), map[string]bool{}
	for _, c := range s.Clients {
		own, known[c.ID] = append(own, c.ID), true
		states = append(states, c.State)
	}
	for _, id := range ids {
		if !known[id] {
			own = append(own, id)
		}
	}
	targets := keysOf(r.name, own)

	servers := script.NewTopology(rdb)
	server := servers.Redis() // a cluster client, because that follows slots that move
	if !servers.Clustered() {
		if server, err = servers.Server(ctx, targets[0]); err != nil {
			return err
		}
	}
	p := &preparation{
		servers: servers,
		server:  server,
		prefix:  strings.TrimSuffix(targets[2], "permits") + "restore:" + rand.Text() + ":",
	}
	defer p.discard(ctx)
	if s.Config != nil {
		p.key(1, s.Config.TTL)
		for _, f := range s.Config.Fields {
			p.add(ctx, "hset", f.Name, f.Value)
		}
	}
	for i, state := range states {
		if state.Value != nil {
			p.key(2+2*i, state.Value.TTL)
			p.add(ctx, "set", state.Value.Text)
		}
		if state.Permits != nil {
			p.key(3+2*i, state.Permits.TTL)
			for some := range slices.Chunk(state.Permits.Records, recordsAdd) {
				args := make([]any, 0, 2*len(some))
				for _, record := range some {
					args = append(args, strconv.FormatFloat(record.Score+shift, 'g', -1, 64), record.Member)
				}
				p.add(ctx, "zadd", args...)
			}
		}
	}
	if p.flush(ctx); p.err != nil {
		return p.err
	}
	return p.finish(ctx, targets, r.replace)
}

// A preparation has the keys that become a limiter's.
type preparation struct {
	servers *script.Topology
	server  script.Redis // where the script finds the keys
	prefix  string
	keys    []string
	become  []any // for each key: its index among the limiter's keys, its TTL in ms
	pipe    redis.Pipeliner
	size    int
	err     error
}

// key starts a key.
func (p *preparation) key(target int, ttl time.Duration) {
	p.keys = append(p.keys, p.prefix+strconv.Itoa(len(p.keys)))
	p.become = append(p.become, target, ttl.Milliseconds())
}

// add queues a command for the key that was started last.
func (p *preparation) add(ctx context.Context, command string, args ...any) {
	if p.err != nil {
		return
	}
	if p.pipe == nil {
		p.pipe = p.server.Pipeline()
	}
	key := p.keys[len(p.keys)-1]
	p.pipe.Do(ctx, append([]any{command, key}, args...)...)
	p.pipe.Do(ctx, "pexpire", key, prepared.Milliseconds())
	if p.size += len(args); p.size >= 2*recordsPipe {
		p.flush(ctx)
	}
}

func (p *preparation) flush(ctx context.Context) {
	if p.pipe != nil && p.err == nil {
		_, p.err = p.pipe.Exec(ctx)
	}
	p.pipe, p.size = nil, 0
}

// finish renames the keys to the limiter's.
func (p *preparation) finish(ctx context.Context, targets []string, replace bool) error {
	flags := ""
	if replace {
		flags = "r"
	}
	cmd, err := p.servers.TryAny(ctx, new(script.Attempts), restoreScript, slices.Concat(targets, p.keys),
		append([]any{len(targets), flags}, p.become...)...)
	if err != nil {
		return err
	}
	switch n, err := cmd.Int(); {
	case err != nil:
		return err
	case n < -1:
		return fmt.Errorf("%w: another program uses the key %q", ErrWrongType, targets[-n-2])
	case n < 0:
		return errors.New("the prepared keys are gone: Redis evicted them, or they expired")
	case n > 0:
		return fmt.Errorf("%w: key %q", ErrExists, targets[n-1])
	}
	p.keys = nil
	return nil
}

// discard removes prepared keys that are not used, also after ctx has ended. Keys that it can't
// reach expire.
func (p *preparation) discard(ctx context.Context) {
	if len(p.keys) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	args := []any{"unlink"}
	for _, key := range p.keys {
		args = append(args, key)
	}
	cmd := redis.NewIntCmd(ctx, args...)
	cmd.SetStepCount(1) // as in Topology.Process
	p.server.Process(ctx, cmd)
}
