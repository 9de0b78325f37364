package rratelimiter

import (
	"context"
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// script.go runs the scripts of lua/ and makes Go errors of what a server says. It knows nothing of what they do.

//go:embed lua/*.lua lua/shared/*.lua
var luaFiles embed.FS

// A script is one file of lua/, with a shared file in the place of each line "--@include NAME": there alone, so that what
// a rare case needs costs nothing in others.
type script struct {
	text, sha      string
	byName, byText []any // how its commands start
}

var (
	acquireScript    = loadScript("acquire")
	allowAllScript   = loadScript("allowall")
	expireScript     = loadScript("expire")
	probeScript      = loadScript("probe")
	releaseScript    = loadScript("release")
	renameScript     = loadScript("rename")
	setRateScript    = loadScript("setrate")
	stateScript      = loadScript("state")
	trySetRateScript = loadScript("trysetrate")
)

func loadScript(name string) *script {
	text := readLua(name)
	sum := sha1.Sum([]byte(text))
	sha := hex.EncodeToString(sum[:])
	return &script{text: text, sha: sha, byName: []any{"evalsha", sha}, byText: []any{"eval", text}}
}

func readLua(name string) string {
	text, err := luaFiles.ReadFile("lua/" + name + ".lua")
	if err != nil {
		panic(err) // a file that this package was built with
	}
	lines := strings.SplitAfter(string(text), "\n")
	for i, line := range lines {
		if part, found := strings.CutPrefix(strings.TrimSpace(line), "--@include "); found {
			lines[i] = readLua("shared/" + part)
		}
	}
	return strings.Join(lines, "")
}

// A once is a command that the client library must not repeat by itself: it can't know whether Redis served it. What was
// read as its reply stays, though a network error of a pipeline behind it is given to all commands.
type once struct {
	*redis.IntSliceCmd
	read bool
}

func newOnce(ctx context.Context, args []any) once {
	return once{IntSliceCmd: redis.NewIntSliceCmd(ctx, args...)}
}

func (o *once) NoRetry() bool { return true }

// SetErr is called with nil once the reply was read.
func (o *once) SetErr(err error) {
	if !o.read {
		o.read = err == nil
		o.IntSliceCmd.SetErr(err)
	}
}

func (o *once) Clone() redis.Cmder {
	return &once{o.IntSliceCmd.Clone().(*redis.IntSliceCmd), o.read}
}

// An onceInt is the same for a command whose reply is one number.
type onceInt struct{ *redis.IntCmd }

func (o onceInt) NoRetry() bool      { return true }
func (o onceInt) Clone() redis.Cmder { return onceInt{o.IntCmd.Clone().(*redis.IntCmd)} }

// head is how a command starts that runs the script: by its name, or with its text.
func (s *script) head(text bool) []any {
	if text {
		return s.byText
	}
	return s.byName
}

// run runs a script on the server that holds its first key, and repeats that while Redis surely did not serve it, or if it
// may be served twice. The reply is whole numbers alone.
func (c *Client) run(ctx context.Context, t *trail, s *script, twice bool, keys []string, args ...any) ([]int64, error) {
	var reply []int64
	err := c.repeat(ctx, t, twice, func() (err error) {
		reply, err = c.try(ctx, t, s, keys, args...)
		return err
	})
	return reply, err
}

// try is one attempt of run.
func (c *Client) try(ctx context.Context, t *trail, s *script, keys []string, args ...any) ([]int64, error) {
	var cmd once
	err := c.attempt(ctx, t, s, keys, args, func(all []any) redis.Cmder {
		cmd = newOnce(ctx, all)
		return &cmd
	})
	return cmd.Val(), err
}

// attempt is one attempt to run a script by a kind of command: two commands where the server lacks the script.
func (c *Client) attempt(
	ctx context.Context, t *trail, s *script, keys []string, args []any, command func(all []any) redis.Cmder,
) error {
	if t.text == nil {
		t.text = strconv.AppendInt(nil, int64(len(keys)), 10)
	}
	t.begin()
	for text := false; ; text = true {
		all := append(make([]any, 0, 3+len(keys)+len(args)), s.head(text)...)
		all = append(all, t)
		for _, key := range keys {
			all = append(all, key)
		}
		err := c.process(ctx, command(append(all, args...)))
		t.end(err)
		if err == nil || text || !redis.HasErrorPrefix(err, "NOSCRIPT") {
			return err
		}
	}
}

// process runs one command. Its keys follow each other: a cluster client that is not told so asks any node, the first time,
// what it knows of all commands, and waits for that though this node be one that hangs.
func (c *Client) process(ctx context.Context, cmd redis.Cmder) error {
	cmd.SetStepCount(1)
	return serverError(c.rdb.Process(ctx, cmd))
}

// serverError says in our own words what a server refuses.
func serverError(err error) error {
	if err == nil {
		return nil
	}
	if err = scriptError(err); redis.HasErrorPrefix(err, "CROSSSLOT") {
		err = fmt.Errorf("%w: %w", ErrCrossSlotName, err)
	}
	return err
}

// redirected tells whether a node of a cluster answered that it did not serve a command, because another one has or gets its
// keys: the cluster client knows whom to ask then, at once.
func (c *Client) redirected(err error) bool {
	return err != nil && c.clustered() && says(err, "MOVED", "ASK")
}

// A wrapped is the error of a command in a script, on servers before Redis 7.0 and on miniredis: they put it behind words
// of their own, so that its code ("WRONGTYPE") would not be found where redis.HasErrorPrefix looks.
type wrapped struct {
	error
	text string
}

func (w wrapped) Error() string { return w.text }
func (w wrapped) RedisError()   {}
func (w wrapped) Unwrap() error { return w.error }

var inScript = regexp.MustCompile(`(?s)^ERR Error .*?: ?\d+: -?([A-Z]{3,} .*?)(?:\s*stack traceback:.*)?$`)

func scriptError(err error) error {
	if found := inScript.FindStringSubmatch(err.Error()); found != nil {
		return wrapped{err, found[1]}
	}
	return err
}

// within makes one call to Redis, and returns with its answer, when ctx ends, or when the time for a call is over,
// whichever comes first. go-redis can't be told to stop waiting for an answer, so a call that is late goes on by itself
// until its connection gives up.
func within[T any](ctx context.Context, c *Client, call func(context.Context) (T, error)) (T, error) {
	return withinRest(ctx, c, c.callTimeout, call)
}

// withinRest is within for a call that has been under way for a while, with the time that is left.
func withinRest[T any](
	ctx context.Context, c *Client, rest time.Duration, call func(context.Context) (T, error),
) (T, error) {
	type answer struct {
		value T
		err   error
	}
	var none T
	if rest <= 0 {
		return none, errLate(c.callTimeout)
	}
	landed := make(chan answer, 1)
	bounded, cancel := context.WithTimeout(ctx, rest)
	go func() {
		defer cancel()
		value, err := call(bounded)
		landed <- answer{value, err}
	}()
	late := time.NewTimer(rest)
	defer late.Stop()
	var over error
	select {
	case a := <-landed:
		return a.value, a.err
	case <-ctx.Done():
		over = ctx.Err()
	case <-late.C:
		over = errLate(c.callTimeout)
	}
	select {
	case a := <-landed: // just now
		return a.value, a.err
	default:
		return none, over
	}
}

// errUnsent says that Redis was not asked.
var errUnsent = errors.New("rratelimiter: the call was not made, since those before it have no answer")

// unsent is the error of a call that was not made since another one failed.
func unsent(cause error) error {
	if errors.Is(cause, errUnsent) {
		return cause
	}
	return fmt.Errorf("%w: %w", errUnsent, cause)
}

// errLate is the error of a call that has no answer once its time is over.
func errLate(timeout time.Duration) error { return late(timeout) }

type late time.Duration

func (l late) Error() string {
	return fmt.Sprintf("no answer from Redis within %v: %v", time.Duration(l), os.ErrDeadlineExceeded)
}

func (late) Unwrap() error { return os.ErrDeadlineExceeded }

// Notes of a script's answer: the same bits as in lua/shared/names.lua.
const (
	noteMore    = 256  // expired records remain
	noteUnbuilt = 512  // the free permits are to be rebuilt once these are gone
	noteDiffers = 1024 // another rate than the caller's is in force
	noteOther   = 2048 // somebody else than Go clients has live permits
)

var healings = []struct {
	note int64
	text string
}{
	{1, "free permits were missing"},
	{2, "free permits were no whole number"},
	{4, "free permits were negative"},
	{8, "free permits were above the rate"},
	{16, "free permits and expired ones were more than the rate"},
	{32, "free permits were not the rate, without a record"},
	{64, "free permits and records were less than the rate"},
}

// healed tells what a script repaired; "" if nothing.
func healed(notes int64) string {
	var texts []string
	for _, h := range healings {
		if notes&h.note != 0 {
			texts = append(texts, h.text)
		}
	}
	return strings.Join(texts, ", ")
}

// notInitialized makes an error of the status with which a script refuses a configuration.
func notInitialized(status int64) error {
	what := [...]string{
		1: "it has no rate", 2: "its rate is missing", 3: "its interval is missing", 4: "its type is missing",
		5: "its rate is no whole number from 0 on", 6: "its interval is no positive whole number", 7: "its type is neither 0 nor 1",
	}
	return fmt.Errorf("%w: %s", ErrNotInitialized, what[status])
}
