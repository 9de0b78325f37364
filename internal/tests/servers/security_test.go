package servers

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// security_test.go runs limiters as a user with exactly the permissions in docs/security.md, and
// over TLS.

// denied returns the contents of the server's ACL LOG, without the commands with which go-redis
// identifies itself at the start of a connection.
func denied(t *testing.T, s *redistest.Server) (objects []string) {
	t.Helper()
	entries, err := s.Client().ACLLog(t.Context(), 100).Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Object, "client") {
			objects = append(objects, e.Reason+" "+e.Object)
		}
	}
	return objects
}

// noPermission returns whether an error is the server's refusal of a command or a key, in a script
// or outside, in any version.
func noPermission(err error) bool {
	var answer redis.Error
	if !errors.As(err, &answer) || errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
		return false
	}
	return strings.Contains(err.Error(), "NOPERM") || strings.Contains(err.Error(), "ACL failure") ||
		strings.Contains(err.Error(), "can't run this command") || strings.Contains(err.Error(), "can't access")
}

// exercise uses everything of a limiter that the rule is for, so that every command in the scripts
// is executed.
func exercise(ctx context.Context, rdb rratelimiter.Redis, name string) error {
	at := time.Now()
	c := rratelimiter.NewClient(
		rdb, rig.Patient, rratelimiter.WithClientID("me"), rratelimiter.WithClock(func() time.Time { return at }),
	)
	var failed []error
	must := func(err error) {
		if err != nil && !errors.Is(err, rratelimiter.ErrExceedsRate) {
			failed = append(failed, err)
		}
	}
	for _, kind := range []rratelimiter.RateType{rratelimiter.Overall, rratelimiter.PerClient} {
		rate := rratelimiter.Rate{Type: kind, Permits: 10, Interval: time.Second}
		own, plain := c.RateLimiter(name, rratelimiter.WithRate(rate)), c.RateLimiter(name)
		joined := c.RateLimiter(name, rratelimiter.WithGranularity(100*time.Millisecond))
		if _, err := plain.Delete(ctx); err != nil {
			return err
		}
		for _, l := range []*rratelimiter.Limiter{own, joined, joined, plain} { // sets the rate, joins records
			_, err := l.Allow(ctx, 2)
			must(err)
			at = at.Add(time.Millisecond)
		}
		_, err := plain.Release(ctx, 3) // shrinks a record
		must(err)
		_, err = c.AllowAll(ctx, 2, plain, joined)
		must(err)
		_, err = c.AllowAll(ctx, 9, plain)
		must(err)
		_, err = plain.AcquireUpTo(ctx, 20)
		must(err)
		at = at.Add(700 * time.Millisecond)
		for _, n := range []int64{10, 3} { // is refused with a RetryAfter
			_, err = plain.Allow(ctx, n)
			must(err)
		}
		at = at.Add(400 * time.Millisecond) // some expire; one call has granted and refused callers
		var q protocol.AcquireRequest
		ask := protocol.BatchAsk{Groups: rig.Groups(3, 1, 9, 1), Detail: true}
		for _, again := range []bool{false, true} { // and is retried
			sent := new(script.Attempts)
			reply, err := rig.Core(c).
				Topology().
				Try(ctx, sent, protocol.AcquireScript, rig.Keys(plain),
					q.Args(nil, rig.LimiterCore(plain).Encoder(), ask, again)...)
			if must(err); err == nil {
				_, err = q.Reply(rig.LimiterCore(plain).Encoder(), sent, reply)
				must(err)
			}
		}
		_, err = rig.Core(c).Topology().RunMixed(ctx, new(script.Attempts), protocol.RecountScript, true,
			rig.Keys(plain),
			rig.LimiterCore(plain).Now(), "newest", "oldest", 2, 2) // continues the recount of the records
		must(err)
		at = at.Add(time.Minute)
		_, err = plain.AvailablePermits(ctx)
		must(err)
		methods := rig.EveryMethod(c, plain)
		for _, leave := range []string{"Acquire", "Clients", "Rename", "RenameNX"} {
			delete(methods, leave)
		}
		for _, method := range []string{"SetRate", "SetRate, KeepState", "Allow", "UpdateRate", "TrySetRate"} {
			must(methods[method](ctx))
		}
		keep := rate
		keep.KeepAlive = time.Hour
		must(plain.SetRate(ctx, keep))
		must(plain.SetRate(ctx, rate)) // clears the reservation-alive
		for _, method := range []string{"State", "Config", "Exists", "TTL", "Expire", "Allow", "ClearExpire"} {
			must(methods[method](ctx))
		}
		_, err = c.RateLimiter(name, rratelimiter.WithServerTime()).State(ctx)
		must(err)
		_, err = plain.ExpireAt(ctx, time.Now().Add(time.Hour))
		must(err)
		_, err = plain.Delete(ctx)
		must(err)
		_, err = plain.TrySetRate(ctx, keep)
		must(err)
		rig.LimiterCore(plain).RedissonHere(ctx) // as while callers wait
		_, err = plain.Delete(ctx)
		must(err)
	}
	must(rdb.Process(ctx, redis.NewStatusCmd(ctx, "ping")))
	return errors.Join(failed...)
}

func TestTheRuleOfThePageIsEnough(t *testing.T) {
	s := redistest.Real(t)
	rdb := rig.As(t, s, rig.ACLRule(t))
	for _, name := range []string{"orders", "orders:eu", "orders{tag}", "orders\n\x00"} {
		if err := exercise(t.Context(), rdb, name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	if objects := denied(t, s); len(objects) > 0 {
		t.Errorf("refused: %q", objects)
	}
	// The additions, for the uses that need them.
	l := rratelimiter.NewClient(rdb, rig.Patient).RateLimiter("orders",
		rratelimiter.WithRate(rratelimiter.PerSecond(1)))
	if _, err := l.Allow(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	clients := func() error { _, err := l.Clients(t.Context()); return err }
	rename := func() error { return l.Rename(t.Context(), "orders{orders}2") }
	for use, do := range map[string]func() error{
		"`Clients`": clients, "`Rename`": rename,
		"another database": func() error { return rdb.Do(t.Context(), "select", 3).Err() },
		"a name":           func() error { return rdb.Do(t.Context(), "client", "setname", "me").Err() },
	} {
		if err := do(); !noPermission(err) {
			t.Errorf("%s without what the page adds: %v", use, err)
		}
		more := rig.As(t, s, rig.ACLRule(t, use))
		plain := rdb
		rdb, l = more, rratelimiter.NewClient(more, rig.Patient).RateLimiter("orders")
		if err := do(); err != nil {
			t.Errorf("%s with what the page adds: %v", use, err)
		}
		rdb = plain
		rig.As(t, s, rig.ACLRule(t))
		l = rratelimiter.NewClient(rdb, rig.Patient).RateLimiter("orders",
			rratelimiter.WithRate(rratelimiter.PerSecond(1)))
		if _, err := l.Allow(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
	}
}

// A read-only user has the permissions in docs/security.md, and can change nothing.
func TestTheRuleOfReadOnlyUsers(t *testing.T) {
	page, err := os.ReadFile("../../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "A read-only user")
	_, text, _ = strings.Cut(text, "needs")
	text, _, _ = strings.Cut(text, "for `rrl`")
	rule := []any{"ACL", "SETUSER", "limiter", "on", ">secret", "resetchannels", "~orders*", "~{orders*}:*", "-@all"}
	for _, word := range strings.Fields(strings.ReplaceAll(text, "`", " ")) {
		if strings.HasPrefix(word, "+") {
			rule = append(rule, word)
		}
	}
	s := redistest.Real(t)
	owner := rratelimiter.NewClient(s.Client(), rig.Patient).
		RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerMinute(10)))
	rig.MustTry(t, owner, 3, true)
	rdb := rig.As(t, s, rule)
	l := rratelimiter.NewClient(rdb, rig.Patient).RateLimiter("orders")
	methods := rig.EveryMethod(l.Client(), l)
	for _, method := range []string{"Peek", "State", "Glance", "Config", "TTL", "Exists", "Clients"} {
		if err := methods[method](t.Context()); err != nil {
			t.Errorf("%s: %v", method, err)
		}
		delete(methods, method)
	}
	if _, err := rig.LimiterCore(l).Survey(t.Context(), 0, 10, false); err != nil {
		t.Errorf("what rrl reads: %v", err)
	}
	take, err := os.ReadFile("../../../snapshot/take.lua")
	if err != nil {
		t.Fatal(err)
	}
	if err := rdb.Eval(t.Context(), string(take), []string{"orders", "{orders}:value", "{orders}:permits"},
		100).Err(); err != nil {
		t.Errorf("a snapshot: %v", err)
	}
	if err := rdb.ZScan(t.Context(), "{orders}:permits", 0, "", 10).Err(); err != nil {
		t.Errorf("a large snapshot: %v", err)
	}
	for method, call := range methods {
		if err := call(t.Context()); !noPermission(err) && method != "AvailablePermits" &&
			method != "Repair" { // nothing to repair
			t.Errorf("%s: %v", method, err)
		}
	}
	if free, err := owner.AvailablePermits(t.Context()); free != 7 || err != nil {
		t.Errorf("%d are free, %v", free, err)
	}
}

// Each command in the rule is needed: without it a call fails, or Redis refuses a command whose
// error is ignored.
func TestTheRuleOfThePageIsNotMoreThanEnough(t *testing.T) {
	s := redistest.Real(t)
	rule := rig.ACLRule(t)
	for i, word := range rule {
		if !strings.HasPrefix(word.(string), "+") {
			continue
		}
		without := slices.Delete(slices.Clone(rule), i, i+1)
		rdb := rig.As(t, s, without)
		if err := s.Client().ScriptFlush(t.Context()).Err(); err != nil { // otherwise scripts are not loaded
			t.Fatal(err)
		}
		if word == "+eval" {
			rdb.AddHook(forgetful(s.Client()))
		}
		if err := exercise(t.Context(), rdb, "orders"); err == nil && len(denied(t, s)) == 0 {
			t.Errorf("nothing needs %s", word)
		}
		s.Client().FlushAll(t.Context())
	}
}

// forgetful returns a hook by which a server loses each script as soon as it is loaded. So it is
// with SCRIPT FLUSH, and while a slot moves to a node that has no scripts yet.
func forgetful(admin *redis.Client) redis.Hook {
	return redistest.Hook{Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		err := next(ctx, cmd)
		if cmd.Name() == "script" {
			admin.ScriptFlush(ctx)
		}
		return err
	}}
}

func TestTheRuleOfThePageKeepsFromAllElse(t *testing.T) {
	s := redistest.Real(t)
	admin := s.Client()
	rdb := rig.As(t, s, rig.ACLRule(t))
	if err := admin.MSet(t.Context(), "billing", "x", "{billing}:value", "x", "order", "x").Err(); err != nil {
		t.Fatal(err)
	}
	c := rratelimiter.NewClient(rdb, rig.Patient)
	for _, name := range []string{"billing", "order", "{x}orders", "{orders", "", "*"} {
		for method, call := range rig.EveryMethod(c,
			c.RateLimiter(name, rratelimiter.WithRate(rratelimiter.PerSecond(1)))) {
			if method == "RenameNX" || method == "Rename" || method == "Clients" {
				continue // refused for the command
			}
			if err := call(t.Context()); !noPermission(err) {
				t.Errorf("%s of %q: %v", method, name, err)
			}
		}
	}
	for _, words := range [][]any{
		{"get", "billing"}, {"set", "billing", "y"}, {"unlink", "order"}, {"hset", "billing", "rate", 1},
		{"exists", "orders", "billing"},
		{"eval", "return redis.call('GET', KEYS[1])", 1, "billing"},
		{"eval", "return redis.call('GET', 'billing')", 1, "orders"},
		{"eval", "return redis.call('GET', 'billing')", 0}, {"eval", "return redis.call('FLUSHALL')", 0},
		{"eval", "return redis.call('KEYS', '*')", 0}, {"eval", "return redis.call('PUBLISH', 'orders', 'x')", 0},
		{"keys", "*"}, {"scan", 0}, {"randomkey"}, {"dbsize"}, {"flushall"}, {"flushdb"}, {"select", 1}, {"info"},
		{"monitor"},
		{"config", "get", "*"}, {"config", "set", "requirepass", "x"}, {"acl", "list"}, {"acl", "whoami"},
		{"client", "list"},
		{"client", "kill", "type", "normal"}, {"script", "flush"}, {"script", "kill"}, {"function", "list"},
		{"shutdown"}, {"save"}, {"replicaof", "no", "one"}, {"slowlog", "get"}, {"publish", "orders", "x"},
		{"subscribe", "orders"}, {"psubscribe", "*"}, {"dump", "orders"}, {"copy", "orders", "billing"},
		{"rename", "orders", "ordersx"},
		{"sort", "orders", "by", "x"}, {"object", "encoding", "orders"}, {"memory", "usage", "orders"}, {"wait", 0, 1},
		{"module", "list"},
		{"migrate", "127.0.0.1", 1, "orders", 0, 1}, {"swapdb", 0, 1}, {"move", "orders", 1}, {"expire", "orders", 1},
		{"append", "orders", "x"},
		{"del", "orders"}, {"xadd", "orders", "*", "a", "b"}, {"lpush", "orders", "a"}, {"sadd", "orders", "a"},
		{"mget", "orders"},
	} {
		if err := rdb.Do(t.Context(), words...).Err(); !noPermission(err) &&
			!strings.Contains(err.Error(), "unknown command") {
			t.Errorf("%v: %v", words, err)
		}
	}
	if got := admin.MGet(t.Context(), "billing", "{billing}:value", "order").Val(); fmt.Sprint(got) != "[x x x]" ||
		admin.DBSize(t.Context()).Val() != 3 {
		t.Errorf("something outside changed: %v", got)
	}
	// Every command of the server, except those that every user may send.
	commands, err := admin.Do(t.Context(), "command").Slice()
	if err != nil {
		t.Fatal(err)
	}
	allowed := map[string]bool{
		"auth": true, "hello": true, "quit": true, "reset": true, "debug": true,
	} // DEBUG is off for all
	for _, word := range rig.ACLRule(t) {
		if name, found := strings.CutPrefix(word.(string), "+"); found {
			name, _, _ = strings.Cut(name, "|")
			allowed[name] = true
		}
	}
	for _, command := range commands {
		name, arity := command.([]any)[0].(string), command.([]any)[1].(int64)
		if allowed[name] {
			continue
		}
		words := []any{name}
		for range max(arity, -arity) - 1 {
			words = append(words, "orders")
		}
		if err := rdb.Do(t.Context(), words...).Err(); !noPermission(err) &&
			!strings.Contains(err.Error(), "unknown subcommand") {
			t.Errorf("%v: %v", words, err)
		}
	}
}

// On a cluster, with the additions in docs/security.md for clusters.
func TestTheRuleOfThePageOnACluster(t *testing.T) {
	for name, start := range map[string]func(testing.TB, int, ...string) *redistest.Nodes{
		"plain": redistest.Cluster,
		"TLS":   redistest.ClusterTLS,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nodes := start(t, 3)
			rule := rig.ACLRule(t, "a cluster")
			for _, s := range nodes.Servers {
				rig.As(t, s, rule)
			}
			rdb := nodes.ClusterClient(func(o *redis.ClusterOptions) { o.Username, o.Password = "limiter", "secret" })
			for i := range 6 {
				if err := exercise(t.Context(), rdb, fmt.Sprint("orders", i)); err != nil {
					t.Error(err)
				}
			}
			if err := rdb.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
				return node.Do(ctx, "asking").Err() // needed while a slot moves to another node
			}); err != nil {
				t.Error(err)
			}
			for _, s := range nodes.Servers {
				if objects := denied(t, s); len(objects) > 0 {
					t.Errorf("refused: %q", objects)
				}
			}
			if _, err := rratelimiter.NewClient(rdb, rig.Patient).RateLimiter("billing").Allow(t.Context(),
				1); !noPermission(
				err,
			) {
				t.Error(err)
			}
		})
	}
}

// If a connection is refused, the error has the cause, and is not ErrOutcomeUnknown.
func TestRefusedConnectionsHaveCauses(t *testing.T) {
	secure := redistest.RealTLS(t)
	closed := redistest.Real(t)
	if err := closed.Client().ConfigSet(t.Context(), "requirepass", "hush").Err(); err != nil {
		t.Fatal(err)
	}
	noRetry := func(o *redis.Options) { o.MaxRetries, o.DialerRetries = -1, 1 }
	var unknown *tls.CertificateVerificationError
	for what, c := range map[string]struct {
		rdb   *redis.Client
		right func(error) bool
	}{
		"an unknown authority": {
			secure.Client(noRetry, func(o *redis.Options) { o.TLSConfig = &tls.Config{} }),
			func(err error) bool { return errors.As(err, &unknown) },
		},
		"another host's certificate": {
			secure.Client(noRetry, func(o *redis.Options) { o.TLSConfig.ServerName = "redis.example.com" }),
			func(err error) bool { return errors.As(err, &unknown) },
		},
		"a wrong password": {
			closed.Client(noRetry, func(o *redis.Options) { o.Password = "hush1hush2" }),
			func(err error) bool { return redis.HasErrorPrefix(err, "WRONGPASS") },
		},
	} {
		l := rratelimiter.NewClient(c.rdb, rig.Patient).
			RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerSecond(1)))
		for method, call := range rig.EveryMethod(l.Client(), l) {
			err := call(t.Context())
			if err == nil || !c.right(err) || errors.Is(err, rratelimiter.ErrOutcomeUnknown) ||
				strings.Contains(err.Error(), "hush") {
				t.Errorf("%s, %s: %v", what, method, err)
			}
		}
	}
}
