package classic

import (
	"context"
	"crypto/sha1"
	"crypto/tls"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"net"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
)

// script.go runs the scripts of lua/ and names the keys of algorithms that need two. It does not depend on the scripts'
// content.

//go:embed lua/*.lua
var luaFiles embed.FS

// A script is a file of lua/, after numbers.lua.
type script struct{ text, sha string }

func loadScript(name string) *script {
	text := readLua("numbers") + readLua(name)
	sum := sha1.Sum([]byte(text))
	return &script{text: text, sha: hex.EncodeToString(sum[:])}
}

func readLua(name string) string {
	text, err := luaFiles.ReadFile("lua/" + name + ".lua")
	if err != nil {
		panic(err) // the files are embedded
	}
	return string(text)
}

// A noRetryCmd is a command that the client library must not retry, since it takes permits each time.
type noRetryCmd struct{ *redis.Cmd }

func (o noRetryCmd) NoRetry() bool      { return true }
func (o noRetryCmd) Clone() redis.Cmder { return noRetryCmd{o.Cmd.Clone().(*redis.Cmd)} }

// eval runs a script on the server that holds its keys.
func (l *Limiter) eval(ctx context.Context, s *script, keys []string, args ...any) (*redis.Cmd, error) {
	all := make([]any, 0, 3+len(keys)+len(args))
	all = append(all, "evalsha", s.sha, len(keys))
	for _, key := range keys {
		all = append(all, key)
	}
	all = append(all, args...)
	for {
		cmd := noRetryCmd{redis.NewCmd(ctx, all...)}
		cmd.SetFirstKeyPos(3)
		err := l.process(ctx, cmd)
		if err == nil {
			return cmd.Cmd, nil
		}
		if all[0] == "evalsha" && redis.HasErrorPrefix(err, "NOSCRIPT") {
			all[0], all[1] = "eval", s.text
			continue
		}
		return nil, outcome(err)
	}
}

// process runs a command, and does not wait for its reply once ctx ends: go-redis would, for its read timeout.
func (l *Limiter) process(ctx context.Context, cmd redis.Cmder) error {
	return within(ctx, func() error { return l.rdb.Process(ctx, cmd) })
}

// exec is process for the commands of a pipeline.
func exec(ctx context.Context, pipe redis.Pipeliner) error {
	return within(ctx, func() error {
		_, err := pipe.Exec(ctx)
		return err
	})
}

// within makes a call. If ctx ends first, the call continues in the background, and its results must not be read.
func within(ctx context.Context, call func() error) error {
	if ctx.Done() == nil {
		return call()
	}
	done := make(chan error, 1)
	go func() { done <- call() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done: // both channels were ready
		return err
	default:
		return ctx.Err()
	}
}

// run runs a script whose reply has only whole numbers.
func (l *Limiter) run(ctx context.Context, s *script, keys []string, args ...any) ([]int64, error) {
	cmd, err := l.eval(ctx, s, keys, args...)
	if err != nil {
		return nil, err
	}
	return cmd.Int64Slice()
}

// outcome wraps the error of a call that takes permits in ErrOutcomeUnknown if Redis may have executed the call.
func outcome(err error) error {
	if !maybeExecuted(err) {
		return err
	}
	return fmt.Errorf("%w: %w", rratelimiter.ErrOutcomeUnknown, err)
}

// maybeExecuted reports whether Redis may have executed a call that returned this error of go-redis. It did not if the
// server replied with an error, or the request was never sent; a call without an error has a known outcome.
func maybeExecuted(err error) bool {
	if err == nil {
		return false // and avoids the allocations below
	}
	var answer redis.Error
	var network *net.OpError
	var certificate *tls.CertificateVerificationError // nothing is sent to a server that is not trusted
	var plain tls.RecordHeaderError                   // nor to a server without TLS
	return !errors.As(err, &answer) && !errors.Is(err, redis.ErrClosed) && !errors.Is(err, redis.ErrPoolTimeout) &&
		!errors.Is(err, redis.ErrPoolExhausted) && !(errors.As(err, &network) && network.Op == "dial") &&
		!errors.As(err, &certificate) && !errors.As(err, &plain)
}

// pairName returns the name of two keys: the name, and the name with a suffix. On a cluster they must be in one slot,
// so a name without a hash tag is made one there; elsewhere the name stays as other services use it.
func pairName(rdb rratelimiter.Redis, name string) (string, error) {
	if _, cluster := rdb.(*redis.ClusterClient); !cluster || tagged(name) {
		return name, nil
	}
	if whole := "{" + name + "}"; tagged(whole) {
		return whole, nil
	}
	return name, fmt.Errorf("%w: %q", rratelimiter.ErrCrossSlotName, name)
}

// tagged reports whether a key has a hash tag.
func tagged(key string) bool { return keys.Tag(key) != key }
