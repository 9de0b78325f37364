package classic

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// NewListWindow returns a fixed window that is a list, and needs no script: the second pattern of
// the documentation of INCR.
//
// Model: the first permit opens a window of one interval; each permit adds an element to the list,
// whose length is the count. When the list expires a new window begins.
//
// Layout: key is the list: LLEN is the count, RPUSHX adds to it while it exists, and it lives until
// the window ends. The usual form has a race: after EXISTS has returned 0, it makes the list with
// RPUSH and EXPIRE in a MULTI, so all callers that see 0 pass, however many there are. Here a list
// with a TTL is made under another key, {key}:unique, and RENAMENX renames it: one caller succeeds,
// the others add to its list. Each request adds elements of its own, so that a request above the
// limit removes only these. Charge makes the list at most as long as the limit, which refuses as
// much as a longer one. If a list has no TTL, or a TTL longer than ten intervals, its TTL is set to
// one interval.
//
// Cost: some 20 bytes for each permit of a window; two round trips for a grant, three if several
// callers begin a window. It works on a cluster: the second list has a hash tag that keeps it in
// the slot of key, unless key is empty or has a } and no tag. The client must have the method
// TxPipeline, as all clients of go-redis have.
//
// Weakness: at most 2 x Permits in any interval, as in any fixed window. While a request over the
// limit takes its elements back, another may be refused needlessly.
func NewListWindow(rdb rratelimiter.Redis, key string, rate rratelimiter.Rate, opts ...Option) *Limiter {
	tx, able := rdb.(transactor)
	fault := checkRate(rate)
	if fault == nil && rdb != nil && !able {
		fault = invalidOption("a redis client without transactions")
	}
	w := listWindow{newLimiter(rdb, key, rate.Permits, rate.Permits, opts, fault), tx, rate}
	w.together(key, w.beside(""))
	w.try = w.take
	return w.Limiter
}

// times is the maximum TTL of a list in intervals: TIMES in lua/numbers.lua.
const times = 10

type transactor interface{ TxPipeline() redis.Pipeliner }

type listWindow struct {
	*Limiter
	tx   transactor
	rate rratelimiter.Rate
}

func (w listWindow) take(ctx context.Context, n int64, m mode) (rratelimiter.Result, int64, error) {
	token := unique()
	for {
		count, life, err := w.look(ctx, m)
		if err != nil {
			return rratelimiter.Result{}, 0, err
		}
		adds := n
		switch {
		case count+n <= w.limit:
		case m&charge != 0 && count < w.limit:
			adds = w.limit - count
		case m&charge != 0:
			return w.result(count+n, life), n, nil
		default:
			return w.result(count, life), 0, nil
		}
		if m&peek != 0 && count == 0 {
			life = w.rate.Interval.Milliseconds() // of the list that Allow makes
		}
		if m&peek != 0 {
			return w.result(count+n, life), n, nil
		}
		if count == 0 {
			made, err := w.open(ctx, token, adds)
			if err != nil {
				return rratelimiter.Result{}, 0, err
			}
			if made {
				return w.result(n, w.rate.Interval.Milliseconds()), n, nil
			}
		}
		count, err = w.push(ctx, token, adds)
		if err != nil {
			return rratelimiter.Result{}, 0, err
		}
		switch {
		case count == 0: // the window ended between the two calls
		case m == take && count > w.limit:
			if err := w.process(ctx, redis.NewIntCmd(ctx, "lrem", w.name, 0, token)); err != nil {
				return rratelimiter.Result{}, 0, script.Unknown(err) // its elements may count
			}
			return w.result(count-n, life), 0, nil
		default:
			return w.result(count-adds+n, life), n, nil
		}
	}
}

// look returns the length of the list and its TTL (ms), and sets the TTL of a list without a valid
// one, unless this is a peek.
func (w listWindow) look(ctx context.Context, m mode) (count, life int64, err error) {
	pipe := w.servers.Redis().Pipeline()
	length, left := pipe.LLen(ctx, w.name), pipe.Do(ctx, "pttl", w.name)
	if _, err := within(ctx, w.Limiter, pipe.Exec); err != nil {
		return 0, 0, err
	}
	if life, err = left.Int64(); err != nil {
		return 0, 0, err
	}
	if interval := w.rate.Interval.Milliseconds(); life == -1 || life > times*interval {
		if life = interval; m&peek == 0 {
			err = w.process(ctx, redis.NewBoolCmd(ctx, "pexpire", w.name, life))
		}
	}
	return length.Val(), max(0, life), err
}

// process runs a command that may be executed more than once, and in the background when its time
// is over.
func (w listWindow) process(ctx context.Context, cmd redis.Cmder) error {
	_, err := within(ctx, w.Limiter, func(ctx context.Context) (any, error) { return nil, w.servers.Process(ctx, cmd) })
	return err
}

// beside returns the key under which a list is made.
func (w listWindow) beside(token string) string { return keys.Tagged(w.name) + ":" + token }

// open makes the list, with its TTL, and returns false if it exists already.
func (w listWindow) open(ctx context.Context, token string, n int64) (bool, error) {
	a := script.NewAttempts(token)
	return once(ctx, w.Limiter, a, func(ctx context.Context) (bool, error) {
		beside, pipe := w.beside(token), w.tx.TxPipeline()
		_ = pipe.Process(ctx, adding(ctx, "rpush", beside, a, n))
		pipe.PExpire(ctx, beside, w.rate.Interval)
		made := pipe.RenameNX(ctx, beside, w.name)
		pipe.Del(ctx, beside)
		_, err := pipe.Exec(ctx)
		a.End(err)
		return made.Val(), err
	})
}

// push adds to the list and returns its length, 0 if there is no list.
func (w listWindow) push(ctx context.Context, token string, n int64) (int64, error) {
	a := script.NewAttempts(token)
	return once(ctx, w.Limiter, a, func(ctx context.Context) (int64, error) {
		cmd := adding(ctx, "rpushx", w.name, a, n)
		err := w.servers.Process(ctx, cmd)
		a.End(err)
		if err != nil {
			return 0, err
		}
		return cmd.Int64()
	})
}

func (w listWindow) result(count, life int64) rratelimiter.Result {
	return counted(w.limit, []int64{0, count, life})
}

// adding returns a command that adds n elements to a list.
func adding(ctx context.Context, command, key string, token *script.Attempts, n int64) script.AnyCommand {
	all := append(make([]any, 0, 2+n), command, key)
	for range n {
		all = append(all, token)
	}
	return script.NewAnyCommand(ctx, all)
}
