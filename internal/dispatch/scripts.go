package dispatch

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// scripts.go runs the scripts that take no permits, and plain commands, for the methods of a
// limiter.

// Read runs a script that changes nothing, and returns its reply.
func (l *Limiter) Read(ctx context.Context, s *script.Script, args ...any) ([]int64, error) {
	sent := new(script.Attempts)
	reply, err := within(ctx, l, func(ctx context.Context) ([]int64, error) {
		return l.client.Topology().Run(ctx, sent, s, true, l.Keys(), args...)
	})
	return reply, sent.Explain(err)
}

// ReadMixed is Read for a reply of any kind.
func (l *Limiter) ReadMixed(ctx context.Context, s *script.Script, args ...any) ([]any, error) {
	sent := new(script.Attempts)
	reply, err := within(ctx, l, func(ctx context.Context) ([]any, error) {
		return l.client.Topology().RunMixed(ctx, sent, s, true, l.Keys(), args...)
	})
	return reply, sent.Explain(err)
}

// Change runs a script that changes the limiter, and returns its reply. An idempotent one may be
// executed twice. The leases of the limiter, and of the others that are given, end. The keys of the
// others follow those of l.
func (l *Limiter) Change(
	ctx context.Context, s *script.Script, idempotent bool, args []any, others ...*Limiter,
) ([]int64, error) {
	keys, ends := l.Keys(), []func(error){l.changing(ctx, l.changed)}
	for _, other := range others {
		keys = append(keys[:len(keys):len(keys)], other.Keys()...)
		ends = append(ends, other.changing(ctx, other.changed))
	}
	return l.change(ctx, s, idempotent, keys, args, ends...)
}

// change runs a script. Then it calls what ends the changes with the error of the call, even if its
// caller is gone.
func (l *Limiter) change(
	ctx context.Context, s *script.Script, idempotent bool, keys []string, args []any, ends ...func(error),
) ([]int64, error) {
	sent := new(script.Attempts)
	reply, err := within(ctx, l, func(ctx context.Context) ([]int64, error) {
		reply, err := l.client.Topology().Run(ctx, sent, s, idempotent, keys, args...)
		for _, end := range ends {
			end(err)
		}
		return reply, err
	})
	return reply, sent.Outcome(err)
}

// Integer runs a command on the configuration key that changes nothing and replies with a number.
func (l *Limiter) Integer(ctx context.Context, command string) (int64, error) {
	return within(ctx, l, func(ctx context.Context) (int64, error) {
		cmd := redis.NewIntCmd(ctx, command, l.Key())
		err := l.client.Topology().Process(ctx, cmd)
		return cmd.Val(), err
	})
}

// Scan calls found for each key on the limiter's server that matches a pattern, perhaps more than
// once.
func (l *Limiter) Scan(ctx context.Context, pattern string, found func(key string)) error {
	server, err := within(ctx, l, func(ctx context.Context) (script.Redis, error) {
		return l.client.Topology().Server(ctx, l.Key())
	})
	if err != nil {
		return err
	}
	for cursor := uint64(0); ; {
		type page struct {
			keys []string
			next uint64
		}
		got, err := within(ctx, l, func(ctx context.Context) (page, error) {
			cmd := redis.NewScanCmd(ctx, nil, "scan", cursor, "match", pattern, "count", 1000)
			err := server.Process(ctx, cmd)
			keys, next := cmd.Val()
			return page{keys, next}, err
		})
		if err != nil {
			return err
		}
		for _, key := range got.keys {
			found(key)
		}
		if cursor = got.next; cursor == 0 {
			return nil
		}
	}
}

// Repair runs repair.lua.
func (l *Limiter) Repair(ctx context.Context, request protocol.Repair) (protocol.Repaired, error) {
	end := func(error) {}
	if !request.Dry {
		end = l.changing(ctx, l.changed)
	}
	request.Now = l.Now()
	sent := new(script.Attempts)
	reply, err := within(ctx, l, func(ctx context.Context) ([]int64, error) {
		reply, err := l.client.Topology().
			Run(ctx, sent, protocol.RepairScript, request.Idempotent(), l.Keys(), request.Args()...)
		end(err)
		return reply, err
	})
	if err = sent.Explain(err); !request.Idempotent() {
		err = sent.Outcome(err)
	}
	if err != nil {
		return protocol.Repaired{}, err
	}
	return request.Reply(reply)
}

// Survey reads the raw content of the limiter's keys, with at most count records from index first
// on, newest first. With own it reads the client's keys, whatever the limiter's type.
func (l *Limiter) Survey(ctx context.Context, first, count int, own bool) (s protocol.Stored, err error) {
	request := protocol.Survey{First: first, Count: count, Own: own}
	var reply []any
	if err = l.err; err == nil {
		if reply, err = l.ReadMixed(ctx, protocol.SurveyScript, request.Args()...); err == nil {
			s, err = request.Reply(reply)
		}
	}
	if err != nil {
		return s, fmt.Errorf("survey %s: %w", Quoted(l.name), err)
	}
	names := [...]string{l.keyNames[keys.Config], l.keyNames[keys.Value], l.keyNames[keys.Permits]}
	if s.Own {
		names[1], names[2] = l.keyNames[keys.ClientValue], l.keyNames[keys.ClientPermits]
	}
	for i := range s.Keys {
		s.Keys[i].Name = names[i]
	}
	return s, nil
}

// Collect removes the client's own value and permits keys if they hold nothing of use. With dry it
// only returns what it would do. Keys with records that counted within the last idle are in use.
func (l *Limiter) Collect(ctx context.Context, idle time.Duration, dry bool) (protocol.Collected, error) {
	request := protocol.Collect{Now: l.Now(), Idle: idle, Dry: dry}
	var reply []int64
	err := l.err
	switch {
	case err != nil:
	case dry:
		reply, err = l.Read(ctx, protocol.CollectScript, request.Args()...)
	default:
		reply, err = l.Change(ctx, protocol.CollectScript, false, request.Args())
	}
	if err != nil {
		return 0, fmt.Errorf("collect the keys of a client of %s: %w", Quoted(l.name), err)
	}
	return request.Reply(reply), nil
}
