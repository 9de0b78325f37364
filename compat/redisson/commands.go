package redisson

// The calls of RRateLimiter, one method each. They pass things on as they are, also where
// Redisson's answers are odd; what is odd is said in the tests.

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// A Type says who shares a rate.
type Type string

// Redisson's two types of rate.
const (
	Overall   Type = "OVERALL"
	PerClient Type = "PER_CLIENT"
)

// A Rate is what trySetRate and its relatives set, and getConfig tells. Times have the resolution
// of a millisecond.
type Rate struct {
	// Type is Overall when empty.
	Type     Type
	Permits  int64
	Interval time.Duration
	// KeepAlive needs 3.38.0 or later. Config does not tell it: Redisson has no getter.
	KeepAlive time.Duration
	// KeepState is for SetRate and UpdateRate, and needs 4.4.0 or later.
	KeepState bool
}

func (r Rate) words() []string {
	t := r.Type
	if t == "" {
		t = Overall
	}
	words := []string{string(t), strconv.FormatInt(r.Permits, 10), millis(r.Interval)}
	if r.KeepAlive != 0 {
		words = append(words, millis(r.KeepAlive))
	}
	if r.KeepState {
		words = append(words, "keepstate")
	}
	return words
}

// Methods lists what RRateLimiter and all that it extends offer in this version: NAME(TYPE,TYPE)
// for each method, and NAME alone for those of the asynchronous, reactive and Rx forms.
func (p *Process) Methods(ctx context.Context) ([]string, error) {
	return p.do(ctx, nil, "methods")
}

// Guide runs the Java of docs/guide/share-with-java.md, on the limiter "orders".
func (p *Process) Guide(ctx context.Context) error {
	_, err := p.do(ctx, nil, "page", "guide")
	return err
}

// Readme runs the Java of README.md, on the limiter "orders", and answers what its tryAcquire did.
func (p *Process) Readme(ctx context.Context) (bool, error) {
	answer, err := p.do(ctx, nil, "page", "readme")
	return err == nil && slices.Equal(answer, []string{"true"}), err
}

// TrySetRate calls trySetRate: true when there was no rate before.
func (p *Process) TrySetRate(ctx context.Context, name string, rate Rate) (bool, error) {
	return p.bool(ctx, "trysetrate", name, rate.words()...)
}

// SetRate calls setRate.
func (p *Process) SetRate(ctx context.Context, name string, rate Rate) error {
	return p.none(ctx, "setrate", name, rate.words()...)
}

// SetRateMillis calls setRate of type OVERALL with times in milliseconds, which may be too long for
// a time.Duration. A keep-alive other than 0 needs 3.38.0 or later.
func (p *Process) SetRateMillis(ctx context.Context, name string, permits, interval, keepAlive int64) error {
	words := []string{string(Overall), number(permits), number(interval)}
	if keepAlive != 0 {
		words = append(words, number(keepAlive))
	}
	return p.none(ctx, "setrate", name, words...)
}

// UpdateRate calls updateRate (4.4.0 and later): false when the limiter does not exist.
func (p *Process) UpdateRate(ctx context.Context, name string, rate Rate) (bool, error) {
	return p.bool(ctx, "updaterate", name, rate.words()...)
}

// TryAcquire calls tryAcquire(n).
func (p *Process) TryAcquire(ctx context.Context, name string, n int64) (bool, error) {
	return p.bool(ctx, "tryacquire", name, number(n))
}

// TryAcquireTimeout calls tryAcquire(n, timeout).
func (p *Process) TryAcquireTimeout(ctx context.Context, name string, n int64, timeout time.Duration) (bool, error) {
	return p.bool(ctx, "tryacquire", name, number(n), millis(timeout))
}

// Acquire calls acquire(n), which waits without end: the bound is the context (30 s where it has
// none). A call that was given up is interrupted in Java, but what Redisson has begun behind it
// goes on and takes the permits when they are free (seen with 3.13.6, 3.17.5, 3.35.0 and 4.7.0):
// end the Process, or use another name, where that matters.
func (p *Process) Acquire(ctx context.Context, name string, n int64) error {
	return p.none(ctx, "acquire", name, number(n))
}

// Available calls availablePermits.
func (p *Process) Available(ctx context.Context, name string) (int64, error) {
	return p.int(ctx, "available", name)
}

// Config calls getConfig. On a limiter without a rate 3.13.6 to 3.17.5 throw; 3.20.1 and
// later answer OVERALL with 0 permits and an interval of 0.
func (p *Process) Config(ctx context.Context, name string) (Rate, error) {
	answer, err := p.named(ctx, "config", name)
	if err != nil {
		return Rate{}, err
	}
	if len(answer) != 3 {
		return Rate{}, fmt.Errorf("redisson: config answered %q", answer)
	}
	permits, err := strconv.ParseInt(answer[1], 10, 64)
	if err != nil {
		return Rate{}, fmt.Errorf("redisson: config answered %q", answer)
	}
	interval, err := strconv.ParseInt(answer[2], 10, 64)
	if err != nil {
		return Rate{}, fmt.Errorf("redisson: config answered %q", answer)
	}
	return Rate{Type: Type(answer[0]), Permits: permits, Interval: time.Duration(interval) * time.Millisecond}, nil
}

// Release calls release(n) (3.52.0 and later).
func (p *Process) Release(ctx context.Context, name string, n int64) error {
	return p.none(ctx, "release", name, number(n))
}

// Expire calls expire.
func (p *Process) Expire(ctx context.Context, name string, d time.Duration) (bool, error) {
	return p.bool(ctx, "expire", name, millis(d))
}

// A Condition says when ExpireIf is to change anything: Redis's NX, XX, GT, LT.
type Condition string

// The conditions of expireIfSet, expireIfNotSet, expireIfGreater and expireIfLess.
const (
	IfSet     Condition = "set"
	IfNotSet  Condition = "notset"
	IfGreater Condition = "greater"
	IfLess    Condition = "less"
)

// ExpireIf calls one of the conditional expires (in 3.17.5, not in 3.16.8; on Redis 7).
func (p *Process) ExpireIf(ctx context.Context, name string, d time.Duration, when Condition) (bool, error) {
	return p.bool(ctx, "expire", name, millis(d), string(when))
}

// ExpireAt calls expireAt.
func (p *Process) ExpireAt(ctx context.Context, name string, at time.Time) (bool, error) {
	return p.bool(ctx, "expireat", name, number(at.UnixMilli()))
}

// ClearExpire calls clearExpire.
func (p *Process) ClearExpire(ctx context.Context, name string) (bool, error) {
	return p.bool(ctx, "clearexpire", name)
}

// TTL calls remainTimeToLive. The answer is in milliseconds also where it is -1 (no TTL) or
// -2 (no such limiter), so -1 comes back as -1 * time.Millisecond.
func (p *Process) TTL(ctx context.Context, name string) (time.Duration, error) {
	ms, err := p.int(ctx, "ttl", name)
	return time.Duration(ms) * time.Millisecond, err
}

// ExpireTime calls getExpireTime (in 3.17.5, not in 3.16.8; on Redis 7): milliseconds since 1970,
// or -1 or -2 as in TTL.
func (p *Process) ExpireTime(ctx context.Context, name string) (int64, error) {
	return p.int(ctx, "expiretime", name)
}

// Exists calls isExists.
func (p *Process) Exists(ctx context.Context, name string) (bool, error) {
	return p.bool(ctx, "exists", name)
}

// Delete calls delete.
func (p *Process) Delete(ctx context.Context, name string) (bool, error) {
	return p.bool(ctx, "delete", name)
}

// Unlink calls unlink.
func (p *Process) Unlink(ctx context.Context, name string) (bool, error) {
	return p.bool(ctx, "unlink", name)
}

// Touch calls touch.
func (p *Process) Touch(ctx context.Context, name string) (bool, error) {
	return p.bool(ctx, "touch", name)
}

// Rename calls rename.
func (p *Process) Rename(ctx context.Context, name, newName string) error {
	word, err := escape(newName)
	if err != nil {
		return err
	}
	return p.none(ctx, "rename", name, word)
}

// RenameNX calls renamenx.
func (p *Process) RenameNX(ctx context.Context, name, newName string) (bool, error) {
	word, err := escape(newName)
	if err != nil {
		return false, err
	}
	return p.bool(ctx, "renamenx", name, word)
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

// named is do for a command whose first argument is the name of a limiter.
func (p *Process) named(ctx context.Context, command, name string, args ...string) ([]string, error) {
	word, err := escape(name)
	if err != nil {
		return nil, err
	}
	return p.do(ctx, nil, command, append([]string{word}, args...)...)
}

func (p *Process) none(ctx context.Context, command, name string, args ...string) error {
	answer, err := p.named(ctx, command, name, args...)
	if err == nil && len(answer) != 0 {
		err = fmt.Errorf("redisson: %s answered %q", command, answer)
	}
	return err
}

func (p *Process) bool(ctx context.Context, command, name string, args ...string) (bool, error) {
	answer, err := p.named(ctx, command, name, args...)
	if err != nil {
		return false, err
	}
	if len(answer) != 1 || (answer[0] != "true" && answer[0] != "false") {
		return false, fmt.Errorf("redisson: %s answered %q", command, answer)
	}
	return answer[0] == "true", nil
}

func (p *Process) int(ctx context.Context, command, name string, args ...string) (int64, error) {
	answer, err := p.named(ctx, command, name, args...)
	if err != nil {
		return 0, err
	}
	if len(answer) != 1 {
		return 0, fmt.Errorf("redisson: %s answered %q", command, answer)
	}
	n, err := strconv.ParseInt(answer[0], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("redisson: %s answered %q", command, answer)
	}
	return n, nil
}
