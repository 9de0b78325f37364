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
	"github.com/rratelimiter/rratelimiter/internal/hashtag"
)

// script.go runs the scripts of lua/ and names the keys of algorithms that need two. It knows nothing of what scripts do.

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
		panic(err) // a file that this package was built with
	}
	return string(text)
}

// A once is a command that the client library must not repeat by itself, since it takes permits each time.
type once struct{ *redis.Cmd }

func (o once) NoRetry() bool      { return true }
func (o once) Clone() redis.Cmder { return once{o.Cmd.Clone().(*redis.Cmd)} }

// eval runs a script on the server that holds its keys.
func (l *Limiter) eval(ctx context.Context, s *script, keys []string, args ...any) (*redis.Cmd, error) {
	all := make([]any, 0, 3+len(keys)+len(args))
	all = append(all, "evalsha", s.sha, len(keys))
	for _, key := range keys {
		all = append(all, key)
	}
	all = append(all, args...)
	for {
		cmd := once{redis.NewCmd(ctx, all...)}
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

// process runs a command, and does not wait for its answer once ctx ends: go-redis would, for its read timeout.
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

// within makes a call, which goes on by itself when ctx ends: then nobody may look at what it reads.
func within(ctx context.Context, call func() error) error {
	if ctx.Done() == nil {
		return call()
	}
	landed := make(chan error, 1)
	go func() { landed <- call() }()
	select {
	case err := <-landed:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-landed: // just now
		return err
	default:
		return ctx.Err()
	}
}

// run runs a script whose reply is whole numbers alone.
func (l *Limiter) run(ctx context.Context, s *script, keys []string, args ...any) ([]int64, error) {
	cmd, err := l.eval(ctx, s, keys, args...)
	if err != nil {
		return nil, err
	}
	return cmd.Int64Slice()
}

// outcome gives the error of a call that takes permits what its caller must know: that Redis may have served it.
func outcome(err error) error {
	if !doubtful(err) {
		return err
	}
	return fmt.Errorf("%w: %w", rratelimiter.ErrOutcomeUnknown, err)
}

// doubtful tells whether Redis may have served a call, given its error as go-redis gives it. There is no doubt where the call
// did not fail, the server answered, or the request never went out.
func doubtful(err error) bool {
	if err == nil {
		return false // and nothing of what follows takes memory
	}
	var answer redis.Error
	var network *net.OpError
	var certificate *tls.CertificateVerificationError // a client that trusts no server says nothing to it
	var plain tls.RecordHeaderError                   // nor one that meets a server without TLS
	return !errors.As(err, &answer) && !errors.Is(err, redis.ErrClosed) && !errors.Is(err, redis.ErrPoolTimeout) &&
		!errors.Is(err, redis.ErrPoolExhausted) && !(errors.As(err, &network) && network.Op == "dial") &&
		!errors.As(err, &certificate) && !errors.As(err, &plain)
}

// pairName is the name under which two keys, the name and the name with something after it, are kept. On a cluster they
// have to lie in one slot, so a name without a hash tag becomes one there; elsewhere it stays as services have it.
func pairName(rdb rratelimiter.Redis, name string) (string, error) {
	if _, cluster := rdb.(*redis.ClusterClient); !cluster || tagged(name) {
		return name, nil
	}
	if whole := "{" + name + "}"; tagged(whole) {
		return whole, nil
	}
	return name, fmt.Errorf("%w: %q", rratelimiter.ErrCrossSlotName, name)
}

// tagged tells whether a key has a hash tag.
func tagged(key string) bool { return hashtag.Of(key) != key }
