package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
)

// rows.go defines the contenders. Each Go contender has a go-redis client with its defaults, except
// for longer timeouts for a machine under load, or a client of rueidis (rueidis.go); Redisson has
// its own client with its defaults.

// A contender is a row of the tables.
type contender struct {
	name string
	java bool
	open func(ctx context.Context, b *lab, s scene) (runner, error)
	rate rratelimiter.Rate // in the place of the scene's; zero: the scene's
	warm time.Duration     // in the place of the size's; 0: the size's
}

// A scene is the input of a contender: the address of the server, and limiters with their rate. In
// a scene of pairs each limiter has another one beside it, and a request asks both.
type scene struct {
	addr   string
	names  []string
	rate   rratelimiter.Rate
	beside rratelimiter.Rate // of the other limiters; the zero Rate if there are no pairs
}

func (s scene) pairs() bool { return s.beside.Permits > 0 }

// others returns the scene of the other limiters of the pairs.
func (s scene) others() scene {
	o := scene{addr: s.addr, names: make([]string, len(s.names)), rate: s.beside}
	for i, name := range s.names {
		o.names[i] = name + ":minute"
	}
	return o
}

// A runner is a contender that is connected and ready.
type runner interface {
	run(ctx context.Context, w work) (counts, error)
	wait(ctx context.Context, callers int, arrive time.Duration) (counts, error)
	close()
}

// Names of the rows.
const (
	rowPing        = "bare PING"
	rowReturn1     = `EVALSHA "return 1"`
	rowRedisRate   = "redis_rate v10"
	rowGCRA        = "rueidis, GCRA script"
	rowMultiplexed = "rueidis, Redisson's script"
	rowScript      = "Redisson's script, from Go"
	rowBare        = "the calls of a grant alone"
	rowLibrary     = "this library"
	rowPerRequest  = "this library, record per request"
	rowGranularity = "this library, granularity"
	rowDenyCache   = "this library, deny cache"
	rowAuto        = "this library, AutoPipeline"
	rowProcesses   = "this library, 20 processes"
	rowLease       = "this library, lease"
	rowShared      = "this library, 8 processes"
	rowSharedLease = "this library, 8 processes, lease"
	rowBeside      = "this library, 2 processes"
	rowBesideLease = "this library, 2 processes, lease"
	rowServer      = "bare server"
	rowRefusing    = "bare server that answers 429"
)

// buckets is the default number of granularities in an interval, for rows with a granularity.
const buckets = 50

// contenders returns rows by their names.
func contenders(names ...string) []*contender {
	all := map[string]*contender{
		rowPing:        goRow(rowPing, openPing),
		rowReturn1:     goRow(rowReturn1, openReturn1),
		rowRedisRate:   goRow(rowRedisRate, openRedisRate),
		rowGCRA:        rueidisRow(rowGCRA, openGCRA),
		rowMultiplexed: rueidisRow(rowMultiplexed, openRueidisScript),
		rowScript:      goRow(rowScript, openScript),
		rowAuto:        goRow(rowAuto, openAuto),
	}
	for name, option := range map[string]option{
		rowLibrary: nil,
		rowPerRequest: func(rratelimiter.Rate) rratelimiter.LimiterOption {
			return rratelimiter.WithRecordPerRequest()
		},
		rowGranularity: granularity(buckets),
		rowDenyCache:   func(rratelimiter.Rate) rratelimiter.LimiterOption { return rratelimiter.WithDenyCache(1024) },
	} {
		all[name] = libraryRow(name, option)
	}
	rows := make([]*contender, len(names))
	for i, name := range names {
		rows[i] = all[name]
	}
	return rows
}

// leaseRow returns a row with leases, of a limiter with its own rate, since a lease is a small part
// of the interval.
func leaseRow(rate rratelimiter.Rate, lease, warm time.Duration) *contender {
	c := libraryRow(rowLease, withLease(lease))
	c.rate, c.warm = rate, warm
	return c
}

func withLease(d time.Duration) option {
	return func(rratelimiter.Rate) rratelimiter.LimiterOption { return rratelimiter.WithLease(d) }
}

// pairRows returns the rows of a scene of pairs.
func pairRows() []*contender {
	return []*contender{
		goRow(rowPing, openPing),
		goRow(rowRedisRate, inTurn(openRedisRate)),
		rueidisRow(rowGCRA, inTurn(openGCRA)),
		goRow(rowLibrary, allowAll(nil)),
	}
}

// An option returns the limiter option of a row of this library, for a rate.
type option func(rratelimiter.Rate) rratelimiter.LimiterOption

func granularity(buckets time.Duration) option {
	return func(r rratelimiter.Rate) rratelimiter.LimiterOption {
		return rratelimiter.WithGranularity(r.Interval / buckets)
	}
}

func (o option) of(r rratelimiter.Rate) []rratelimiter.LimiterOption {
	if o == nil {
		return nil
	}
	return []rratelimiter.LimiterOption{o(r)}
}

// goRunner sends requests from this process.
type goRunner struct {
	crew *crew
	ask  asker
	end  func() // closes the client
}

func (r goRunner) run(ctx context.Context, w work) (counts, error) { return r.crew.run(ctx, w, r.ask) }
func (r goRunner) close()                                          { r.end() }
func (r goRunner) wait(ctx context.Context, callers int, arrive time.Duration) (counts, error) {
	return r.crew.once(ctx, callers, arrive, r.ask)
}

// An opener makes an asker from a client of Redis.
type opener[C any] func(ctx context.Context, b *lab, s scene, client C) (asker, error)

// goRow returns a contender with a client of go-redis.
func goRow(name string, open opener[*redis.Client]) *contender {
	return &contender{name: name, open: func(ctx context.Context, b *lab, s scene) (runner, error) {
		rdb := redis.NewClient(&redis.Options{Addr: s.addr, PoolTimeout: patience})
		ask, err := open(ctx, b, s, rdb)
		if err != nil {
			_ = rdb.Close()
			return nil, err
		}
		return goRunner{b.crew, ask, func() { _ = rdb.Close() }}, nil
	}}
}

func openPing(_ context.Context, _ *lab, _ scene, rdb *redis.Client) (asker, error) {
	return func(ctx context.Context, _ int, _ int64, _ bool) (bool, error) {
		return true, rdb.Ping(ctx).Err()
	}, nil
}

func openReturn1(ctx context.Context, _ *lab, s scene, rdb *redis.Client) (asker, error) {
	sha, err := rdb.ScriptLoad(ctx, "return 1").Result()
	return func(ctx context.Context, limiter int, _ int64, _ bool) (bool, error) {
		return true, rdb.EvalSha(ctx, sha, s.names[limiter:limiter+1]).Err()
	}, err
}

// openRedisRate converts the rate to redis_rate's form: the permits are both the burst and the rate
// per interval.
func openRedisRate(_ context.Context, _ *lab, s scene, rdb *redis.Client) (asker, error) {
	limiter := redis_rate.NewLimiter(rdb)
	limit := redis_rate.Limit{Rate: int(s.rate.Permits), Burst: int(s.rate.Permits), Period: s.rate.Interval}
	return func(ctx context.Context, i int, n int64, _ bool) (bool, error) {
		result, err := limiter.AllowN(ctx, s.names[i], limit, int(n))
		if err != nil {
			return false, err
		}
		return result.Allowed > 0, nil
	}, nil
}

// openScript calls Redisson's script as Redisson does.
func openScript(ctx context.Context, b *lab, s scene, rdb *redis.Client) (asker, error) {
	sha, err := rdb.ScriptLoad(ctx, b.script).Result()
	if err != nil {
		return nil, err
	}
	keys := make([][]string, len(s.names))
	for i, name := range s.names {
		keys[i] = scriptKeys(name)
	}
	return func(ctx context.Context, i int, n int64, _ bool) (bool, error) {
		now, id := scriptArgs()
		err := rdb.EvalSha(ctx, sha, keys[i], n, now, id[:]).Err()
		if err == redis.Nil {
			return true, nil
		}
		return false, err
	}, nil
}

// scriptKeys returns the keys of Redisson's script.
func scriptKeys(name string) []string {
	return []string{name, valueKey(name), valueKey(name) + ":bench", permitsKey(name), permitsKey(name) + ":bench"}
}

// scriptArgs returns the arguments of Redisson's script that follow the permits: the time in ms,
// and a random id.
func scriptArgs() (now int64, id [16]byte) {
	rand.Read(id[:])
	return time.Now().UnixMilli(), id
}

func valueKey(name string) string   { return "{" + name + "}:value" }
func permitsKey(name string) string { return "{" + name + "}:permits" }

func openLibrary(ctx context.Context, _ *lab, s scene, rdb *redis.Client) (asker, error) {
	return library(ctx, rratelimiter.NewClient(rdb), s, nil)
}

// libraryRow returns the contender of this library with an option.
func libraryRow(name string, o option) *contender {
	return goRow(name, func(ctx context.Context, _ *lab, s scene, rdb *redis.Client) (asker, error) {
		return library(ctx, rratelimiter.NewClient(rdb), s, o)
	})
}

func openAuto(ctx context.Context, _ *lab, s scene, rdb *redis.Client) (asker, error) {
	auto, err := rdb.AutoPipeline()
	if err != nil {
		return nil, err
	}
	return library(ctx, rratelimiter.NewClient(auto), s, nil)
}

// inTurn makes an asker of pairs from an opener for single limiters. It asks the second limiter if
// the first one grants.
func inTurn[C any](open opener[C]) opener[C] {
	return func(ctx context.Context, b *lab, s scene, client C) (asker, error) {
		first, err := open(ctx, b, s, client)
		if err != nil {
			return nil, err
		}
		second, err := open(ctx, b, s.others(), client)
		return func(ctx context.Context, i int, n int64, wait bool) (bool, error) {
			granted, err := first(ctx, i, n, wait)
			if !granted || err != nil {
				return false, err
			}
			return second(ctx, i, n, wait)
		}, err
	}
}

// allowAll asks both limiters of a pair, with an option, by AllowAll or, if callers wait, by
// AcquireAll.
func allowAll(o option) opener[*redis.Client] {
	return func(ctx context.Context, _ *lab, s scene, rdb *redis.Client) (asker, error) {
		client := rratelimiter.NewClient(rdb)
		first, err := limiters(ctx, client, s, o)
		if err != nil {
			return nil, err
		}
		second, err := limiters(ctx, client, s.others(), o)
		return func(ctx context.Context, i int, n int64, wait bool) (bool, error) {
			if wait {
				return true, client.AcquireAll(ctx, n, first[i], second[i])
			}
			results, err := client.AllowAll(ctx, n, first[i], second[i])
			return err == nil && results[0].Allowed, err
		}, err
	}
}

func library(ctx context.Context, client *rratelimiter.Client, s scene, o option) (asker, error) {
	all, err := limiters(ctx, client, s, o)
	return func(ctx context.Context, i int, n int64, wait bool) (bool, error) {
		if wait {
			return true, all[i].Acquire(ctx, n)
		}
		return all[i].TryAcquire(ctx, n)
	}, err
}

// limiters returns the limiters of a scene with an option.
func limiters(ctx context.Context, client *rratelimiter.Client, s scene, o option) ([]*rratelimiter.Limiter, error) {
	all := make([]*rratelimiter.Limiter, len(s.names))
	for i, name := range s.names {
		all[i] = client.RateLimiter(name, o.of(s.rate)...)
	}
	if _, err := all[0].Config(ctx); err != nil {
		return nil, fmt.Errorf("the first limiter: %w", err)
	}
	return all, nil
}
