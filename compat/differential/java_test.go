package differential

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/compat/redisson"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// java_test.go captures the scripts that running Redissons send, and sends them itself.

// versions are the compared Redisson versions: the most used old one, the last without a
// keep-alive, and the newest.
var versions = []string{"3.17.5", "3.35.0", "4.7.0"}

const newest = "4.7.0"

// A kind is a method of RRateLimiter.
type kind string

const (
	trySetRate  kind = "trySetRate"
	setRate     kind = "setRate"
	setRateArgs kind = "setRate(args)" // with keepState, since 4.4.0
	updateRate  kind = "updateRate"
	tryAcquire  kind = "tryAcquire"
	available   kind = "availablePermits"
	release     kind = "release"
)

// Methods that only this library has.
const (
	acquireUpTo kind = "AcquireUpTo"
	look        kind = "State"
)

// has reports whether a version of Redisson has a method.
func has(version string, k kind) bool {
	return version == newest || k != setRateArgs && k != updateRate && k != release
}

// knowsKeepAlive reports whether a version supports keep-alives.
func knowsKeepAlive(version string) bool { return version == newest }

// A javaScript is the script that Redisson sends for a method.
type javaScript struct {
	text, sha string
	keys      []int // indexes of its keys in keysOf
	idLength  int   // length of the random id, in characters; only tryAcquire has one
}

// wire holds the scripts by version and method.
type wire map[string]map[kind]javaScript

var learned struct {
	sync.Once
	wire
	err error
}

// learn starts one Redisson of each version, captures the scripts of all methods, and checks that
// their arguments are those that send uses.
func learn(t *testing.T) wire {
	t.Helper()
	learned.Do(func() {
		if learned.err = redisson.Build(context.Background(), versions...); learned.err != nil {
			return
		}
		seen := wire{}
		for _, version := range versions {
			// Each version needs its own server: a script that one version has loaded is not sent
			// as text by another.
			seen[version] = watch(t, version)
		}
		learned.wire = seen
	})
	if learned.err != nil {
		t.Fatal(learned.err)
	}
	if learned.wire == nil {
		t.Fatal("the scripts of Redisson could not be captured: see the first test that needed them")
	}
	return learned.wire
}

func watch(t *testing.T, version string) map[kind]javaScript {
	t.Helper()
	const name, interval, alive = "watched", time.Minute, 2 * time.Minute
	server := redistest.Real(t)
	java, err := redisson.Open(t.Context(), version, redisson.Addr(server.Addr))
	if err != nil {
		t.Fatal(err)
	}
	defer java.Close()
	ctx, rate := t.Context(), redisson.Rate{Permits: 9, Interval: interval}
	expected := []string{"9", "60000", "0"}
	kept := rate
	kept.KeepState = true
	if knowsKeepAlive(version) {
		rate.KeepAlive, kept.KeepAlive = alive, alive
		expected = append(expected, "120000")
	}
	scripts := map[kind]javaScript{}
	texts := map[string]string{} // by hash: a script is sent once, and two methods may share it
	for _, call := range []struct {
		kind kind
		do   func() error
		args []string // "now" and "id" stand for what changes
	}{
		{trySetRate, func() error { _, err := java.TrySetRate(ctx, name, rate); return err }, expected},
		{setRate, func() error { return java.SetRate(ctx, name, rate) }, expected},
		{
			setRateArgs, func() error { return java.SetRate(ctx, name, kept) },
			append(expected[:len(expected):len(expected)], "now", "1", "0"),
		},
		{
			updateRate, func() error { _, err := java.UpdateRate(ctx, name, kept); return err },
			append(expected[:len(expected):len(expected)], "now", "1", "1"),
		},
		{tryAcquire, func() error { _, err := java.TryAcquire(ctx, name, 3); return err }, []string{"3", "now", "id"}},
		{available, func() error { _, err := java.Available(ctx, name); return err }, []string{"now"}},
		{release, func() error { return java.Release(ctx, name, 2) }, []string{"2"}},
	} {
		if !has(version, call.kind) {
			continue
		}
		monitor := redistest.Monitor(t, server.Addr)
		if err := call.do(); err != nil {
			t.Fatalf("%s of Redisson %s: %v", call.kind, version, err)
		}
		script, args := scriptOf(t, monitor.Stop(), texts, keysOf(name, java.ID()))
		if len(args) != len(call.args) {
			t.Fatalf("%s of Redisson %s sends %q, not %q", call.kind, version, args, call.args)
		}
		for i, arg := range args {
			switch call.args[i] {
			case "now":
				at, err := strconv.ParseInt(arg, 10, 64)
				if err != nil || time.Since(time.UnixMilli(at)).Abs() > time.Minute {
					t.Fatalf("%s of Redisson %s sends %q for the time", call.kind, version, arg)
				}
			case "id":
				script.idLength = len(arg)
			case arg:
			default:
				t.Fatalf("%s of Redisson %s sends %q, not %q", call.kind, version, args, call.args)
			}
		}
		scripts[call.kind] = script
	}
	return scripts
}

// scriptOf returns the one script that was sent, as text or by its hash.
func scriptOf(
	t *testing.T, commands []redistest.Command, texts map[string]string, keys []string,
) (javaScript, []string) {
	t.Helper()
	var script javaScript
	var args []string
	for _, c := range commands {
		switch {
		case c.Lua:
		case c.Name() == "SCRIPT" && len(c.Args) == 3:
			texts[hash(c.Args[2])] = c.Args[2]
		case c.Name() == "EVAL", c.Name() == "EVALSHA":
			if c.Name() == "EVAL" {
				texts[hash(c.Args[1])] = c.Args[1]
				script.sha = hash(c.Args[1])
			} else {
				script.sha = c.Args[1]
			}
			n, err := strconv.Atoi(c.Args[2])
			if err != nil {
				t.Fatal(err)
			}
			script.keys = nil
			for _, key := range c.Args[3 : 3+n] {
				at := -1
				for i, k := range keys {
					if k == key {
						at = i
					}
				}
				if at < 0 {
					t.Fatalf("Redisson sends the key %q, none of %q", key, keys)
				}
				script.keys = append(script.keys, at)
			}
			args = c.Args[3+n:]
		}
	}
	script.text = texts[script.sha]
	if script.text == "" {
		t.Fatalf("no script among %d commands", len(commands))
	}
	return script, args
}

func hash(text string) string {
	sum := sha1.Sum([]byte(text))
	return hex.EncodeToString(sum[:])
}

// keysOf returns the five keys of a limiter whose name has no braces, in the order that every
// script of this library expects.
func keysOf(name, client string) []string {
	return []string{name, "{" + name + "}:value", "{" + name + "}:value:" + client,
		"{" + name + "}:permits", "{" + name + "}:permits:" + client}
}

// load loads all scripts into a server.
func (w wire) load(t *testing.T, rdb *redis.Client) {
	t.Helper()
	for _, scripts := range w {
		for _, s := range scripts {
			if err := rdb.ScriptLoad(t.Context(), s.text).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A call is a method with its arguments.
type call struct {
	kind kind
	n    int64 // permits, for tryAcquire, acquireUpTo and release
	rate config
	keep bool // keep the state, for setRateArgs and updateRate
}

func (c call) String() string {
	switch c.kind {
	case tryAcquire, release, acquireUpTo:
		return fmt.Sprintf("%s(%d)", c.kind, c.n)
	case available, look:
		return string(c.kind)
	}
	text := fmt.Sprintf("%s(%s)", c.kind, c.rate)
	if c.keep {
		text += " keeping the state"
	}
	return text
}

// send sends the script of a call as the given Redisson version does at time now (ms). The random
// id of a record is made from id.
func (w wire) send(
	ctx context.Context, p redis.Pipeliner, version string, c call, name string, now int64, id uint64,
) *redis.Cmd {
	script := w[version][c.kind]
	all := keysOf(name, clientID)
	keys := make([]string, len(script.keys))
	for i, at := range script.keys {
		keys[i] = all[at]
	}
	var args []any
	switch c.kind {
	case tryAcquire:
		text := fmt.Sprintf("%0*x", script.idLength, id)
		args = []any{c.n, now, text[len(text)-script.idLength:]}
	case available:
		args = []any{now}
	case release:
		args = []any{c.n}
	default:
		args = []any{c.rate.rate, c.rate.interval, c.rate.kind}
		if knowsKeepAlive(version) {
			args = append(args, c.rate.keepAlive)
		}
		switch c.kind {
		case setRateArgs:
			args = append(args, now, flagOf(c.keep), 0)
		case updateRate:
			args = append(args, now, flagOf(c.keep), 1)
		}
	}
	return p.EvalSha(ctx, script.sha, keys, args...)
}

func flagOf(b bool) int {
	if b {
		return 1
	}
	return 0
}

// understand converts a reply into an answer.
func understand(c call, cmd *redis.Cmd) answer {
	value, err := cmd.Result()
	if err == redis.Nil {
		err, value = nil, nil
	}
	if err != nil {
		switch {
		case strings.Contains(err.Error(), "not initialized"):
			return answer{failure: uninitialized}
		case strings.Contains(err.Error(), "exceed defined rate"):
			return answer{failure: exceeds}
		}
		return answer{failure: err.Error()}
	}
	number := int64(-1)
	switch v := value.(type) {
	case int64:
		number = v
	case string:
		number, err = strconv.ParseInt(v, 10, 64)
		if err != nil {
			return answer{failure: fmt.Sprintf("answered %q", v)}
		}
	}
	switch c.kind {
	case tryAcquire:
		if value == nil {
			return answer{granted: true}
		}
		return answer{wait: number}
	case available:
		return answer{amount: number}
	case trySetRate, updateRate:
		return answer{granted: number == 1}
	}
	return answer{granted: true}
}
