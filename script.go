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

// Running Lua scripts, and turning server errors into Go errors. This file does not know what the scripts do.

//go:embed lua/*.lua lua/shared/*.lua
var luaFiles embed.FS

// A script is one file of lua/. A line "--@include NAME" is replaced by a file of lua/shared at that place only, so
// that code for a rare case costs nothing elsewhere.
type script struct {
	text, sha      string
	byName, byText []any // first arguments of EVALSHA and EVAL
}

var (
	acquireScript    = loadScript("acquire")
	allowAllScript   = loadScript("allowall")
	deleteScript     = loadScript("delete")
	expireScript     = loadScript("expire")
	probeScript      = loadScript("probe")
	recountScript    = loadScript("recount")
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
		panic(err) // the file is embedded in this package
	}
	lines := strings.SplitAfter(string(text), "\n")
	for i, line := range lines {
		if part, found := strings.CutPrefix(strings.TrimSpace(line), "--@include "); found {
			lines[i] = readLua("shared/" + part)
		}
	}
	return strings.Join(lines, "")
}

// A noRetryCmd is a command that the Redis client must not retry by itself, because that does not know whether Redis
// executed it. A reply that was read stays, although the Redis client sets the network error of a later command in a
// pipeline on all of its commands.
type noRetryCmd struct {
	*redis.IntSliceCmd
	read bool
}

func newNoRetryCmd(ctx context.Context, args []any) noRetryCmd {
	return noRetryCmd{IntSliceCmd: redis.NewIntSliceCmd(ctx, args...)}
}

func (o *noRetryCmd) NoRetry() bool { return true }

// SetErr is called with nil once the reply is read.
func (o *noRetryCmd) SetErr(err error) {
	if !o.read {
		o.read = err == nil
		o.IntSliceCmd.SetErr(err)
	}
}

func (o *noRetryCmd) Clone() redis.Cmder {
	return &noRetryCmd{o.IntSliceCmd.Clone().(*redis.IntSliceCmd), o.read}
}

// head returns the first arguments of a command that runs the script: by its SHA-1, or with its text.
func (s *script) head(text bool) []any {
	if text {
		return s.byText
	}
	return s.byName
}

// run runs a script on the server that holds its first key. It retries while Redis surely did not execute the script,
// or if that is idempotent. The reply must consist of integers.
func (c *Client) run(ctx context.Context, t *attempts, s *script, idempotent bool, keys []string, args ...any) ([]int64, error) {
	var reply []int64
	err := c.retry(ctx, t, idempotent, func() (err error) {
		reply, err = c.try(ctx, t, s, keys, args...)
		return err
	})
	return reply, err
}

// try makes one attempt of run.
func (c *Client) try(ctx context.Context, t *attempts, s *script, keys []string, args ...any) ([]int64, error) {
	var cmd noRetryCmd
	err := c.attempt(ctx, t, s, keys, args, func(all []any) redis.Cmder {
		cmd = newNoRetryCmd(ctx, all)
		return &cmd
	})
	return cmd.Val(), err
}

// attempt makes one attempt to run a script by a kind of command. That takes two commands if the server lacks the
// script.
func (c *Client) attempt(
	ctx context.Context, t *attempts, s *script, keys []string, args []any, command func(all []any) redis.Cmder,
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

// process runs one command. SetStepCount tells that its keys are adjacent: without it, a cluster client first asks any
// node for the table of commands, and blocks if that node hangs.
func (c *Client) process(ctx context.Context, cmd redis.Cmder) error {
	cmd.SetStepCount(1)
	return serverError(c.rdb.Process(ctx, cmd))
}

// serverError turns a server's error into one of this package where there is one.
func serverError(err error) error {
	if err == nil {
		return nil
	}
	if err = scriptError(err); redis.HasErrorPrefix(err, "CROSSSLOT") {
		err = fmt.Errorf("%w: %w", ErrCrossSlotName, err)
	}
	return err
}

// redirected reports whether a node of a cluster refused a command because another node has, or gets, its keys. The
// cluster client then knows that node, so the call can be repeated at once.
func (c *Client) redirected(err error) bool {
	return err != nil && c.clustered() && says(err, "MOVED", "ASK")
}

// A wrapped is the error of a command in a script on Redis before 7.0 and on miniredis, without the words that these
// put before it: redis.HasErrorPrefix looks for the code ("WRONGTYPE") at the start. An error that a script detects
// itself has the same form, with a nil error inside.
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

// within makes one call to Redis for a limiter. It returns the reply, or an error when ctx ends or the call timeout is
// over. The Redis client cannot be made to stop waiting for a reply, so a late call goes on in its goroutine until its
// connection gives up. The end of the call is reported to the breaker of the limiter's node.
func within[T any](ctx context.Context, l *Limiter, call func(context.Context) (T, error)) (T, error) {
	return withinRest(ctx, l, l.client.callTimeout, false, call)
}

// withinRest is within for a call that has begun before, with the time that is left. With orAway it also returns as
// soon as the node is found to be away.
func withinRest[T any](
	ctx context.Context, l *Limiter, rest time.Duration, orAway bool, call func(context.Context) (T, error),
) (T, error) {
	w := make(watched, 1)
	var away <-chan struct{}
	if orAway {
		away = w
	}
	return await(ctx, l.client.callTimeout, rest, away, func(ctx context.Context) (T, error) {
		return watch(ctx, l, w, call)
	})
}

// A watched is a pending call. It gets a value when its node is found to be away.
type watched chan struct{}

func (w watched) NodeAway() {
	select {
	case w <- struct{}{}:
	default:
	}
}

// watch makes a call and registers it with the breaker of the limiter's node. Until the nodes of a cluster are found,
// finding them is registered as a call of its own.
func watch[T any](ctx context.Context, l *Limiter, w watched, call func(context.Context) (T, error)) (T, error) {
	c := l.client
	began, b := time.Now(), c.breakerTo(l)
	b.Begin(w, (*prober)(l))
	if cluster, ok := c.rdb.(*redis.ClusterClient); ok && !c.found.Load() {
		if _, err := c.nodeOf(ctx, cluster, l); err == nil {
			b.End(w, true)
			b.Answer(began, (*prober)(l))
			began, b = time.Now(), c.breakerTo(l)
			b.Begin(w, (*prober)(l))
		}
	}
	value, err := call(ctx)
	there := isThere(err)
	b.End(w, there)
	switch {
	case there:
		b.Answer(began, (*prober)(l))
	case ctx.Err() == nil && !isOfSlot(err):
		b.Fail(began)
	}
	return value, err
}

// reserve is how long before its end a call stops waiting for a connection, so that it can return why there is none; at
// most a twentieth of its time.
const reserve = 20 * time.Millisecond

// await makes a call in a goroutine. It returns the reply, or an error when ctx ends, when rest is over, or when away
// receives. The timeout is the time that the call had in all.
func await[T any](
	ctx context.Context, timeout, rest time.Duration, away <-chan struct{}, call func(context.Context) (T, error),
) (T, error) {
	type answer struct {
		value T
		err   error
	}
	var none T
	if rest <= 0 {
		return none, failure(ctx, timeout, late(timeout))
	}
	began := time.Now()
	done := make(chan answer, 1)
	bounded, cancel := context.WithTimeout(ctx, rest-min(rest/20, reserve))
	go func() {
		defer cancel()
		value, err := call(bounded)
		done <- answer{value, err}
	}()
	over := time.NewTimer(rest)
	defer over.Stop()
	var err error
	select {
	case a := <-done:
		return a.value, failure(ctx, timeout, a.err)
	case <-ctx.Done():
		err = ctx.Err()
	case <-over.C:
		err = late(timeout)
	case <-away:
		err = late(timeout - rest + time.Since(began).Round(time.Millisecond))
	}
	select {
	case a := <-done: // at the same time
		return a.value, failure(ctx, timeout, a.err)
	default:
		return none, failure(ctx, timeout, err)
	}
}

// errUnsent means that Redis was not asked.
var errUnsent = errors.New("the call was not made because all its callers were cancelled")

// A late is the error of a call that had no reply for this long.
type late time.Duration

func (l late) Error() string { return fmt.Sprintf("no answer within %v", time.Duration(l)) }

func (late) Unwrap() error { return os.ErrDeadlineExceeded }

// Notes in a script's reply: the same bits as in lua/shared/base.lua.
const (
	noteMore           = 256  // expired records remain
	noteRebuildPending = 512  // the free permits must be rebuilt once these are removed
	noteRateMismatch   = 1024 // another rate than the caller's is in force
	noteForeignWriter  = 2048 // a live record was not written by a Go client
	noteMany           = 4096 // there are too many live records to add up in one call
)

// repairs are the notes about repairs, with their texts.
var repairs = []struct {
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
	{128, "free permits and records were more than the rate"},
}

// repaired returns the texts of the repairs that a script made; "" if it made none.
func repaired(notes int64) string {
	var texts []string
	for _, h := range repairs {
		if notes&h.note != 0 {
			texts = append(texts, h.text)
		}
	}
	return strings.Join(texts, ", ")
}

// notInitialized returns the error for the status with which a script refuses a configuration.
func notInitialized(status int64) error {
	what := [...]string{
		1: "it has no rate", 2: "its rate is missing", 3: "its interval is missing", 4: "its type is missing",
		5: "its rate is no whole number from 0 on", 6: "its interval is no positive whole number", 7: "its type is neither 0 nor 1",
	}
	return fmt.Errorf("%w: %s", ErrNotInitialized, what[status])
}
