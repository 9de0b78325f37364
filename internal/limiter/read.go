package limiter

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// read.go runs scripts and plain commands that change nothing.

// Read runs a script that changes nothing, and returns its reply.
func (l *Limiter) Read(ctx context.Context, s *script.Script, args ...any) ([]int64, error) {
	sent := new(script.Attempts)
	reply, err := l.run(ctx, sent, s, true, l.Keys(), args)
	return reply, sent.Explain(err)
}

// readMixed is Read for a reply of any kind.
func (l *Limiter) readMixed(ctx context.Context, s *script.Script, args ...any) ([]any, error) {
	sent := new(script.Attempts)
	reply, err := within(ctx, l, func(ctx context.Context) ([]any, error) {
		return l.client.Topology().RunMixed(ctx, sent, s, true, l.Keys(), args...)
	})
	return reply, sent.Explain(err)
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
		cmd, err := within(ctx, l, func(ctx context.Context) (*redis.ScanCmd, error) {
			cmd := redis.NewScanCmd(ctx, nil, "scan", cursor, "match", pattern, "count", 1000)
			return cmd, server.Process(ctx, cmd)
		})
		if err != nil {
			return err
		}
		var page []string
		page, cursor = cmd.Val()
		for _, key := range page {
			found(key)
		}
		if cursor == 0 {
			return nil
		}
	}
}

// Survey reads the raw content of the limiter's keys, with at most count records from index first
// on, newest first. With own it reads the client's keys, whatever the limiter's type.
func (l *Limiter) Survey(ctx context.Context, first, count int, own bool) (s protocol.Stored, err error) {
	request := protocol.Survey{First: first, Count: count, Own: own}
	var reply []any
	if err = l.err; err == nil {
		if reply, err = l.readMixed(ctx, protocol.SurveyScript, request.Args()...); err == nil {
			s, err = request.Reply(reply)
		}
	}
	if err != nil {
		return s, fmt.Errorf("survey %s: %w", keys.Quoted(l.Name), err)
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
