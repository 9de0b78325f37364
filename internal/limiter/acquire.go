package limiter

import (
	"context"
	"errors"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// acquire.go has the calls that take permits, of one limiter and of several. It encodes and
// decodes; package exchange makes the attempts.

// An Acquire is a call of acquire.lua for one limiter: an exchange.Body.
type Acquire struct {
	Limiter *Limiter
	Ask     *protocol.BatchAsk
	Free    int64 // permits that were free by the last reply; below 0: not known
	Request protocol.AcquireRequest
	Reply   *protocol.Reply
}

func (b *Acquire) Script() *script.Script { return protocol.AcquireScript }
func (b *Acquire) Findable() bool         { return b.Limiter.Settings.Findable(b.Request.Records) }
func (b *Acquire) TakesOnce() bool        { return !b.Ask.UpTo && b.Limiter.Settings.TakesOnce() }
func (b *Acquire) Plain() bool            { return b.Limiter.Settings.Plain(*b.Ask, b.Free) }
func (b *Acquire) Joint() bool            { return false }

func (b *Acquire) Args(args []any, find bool) []any {
	return b.Request.Args(args, &b.Limiter.encoder, *b.Ask, find && (len(b.Ask.Groups) > 0 || b.Ask.Lease > 0))
}

func (b *Acquire) Read(a *script.Attempts, reply []int64) (err error) {
	*b.Reply, err = b.Request.Reply(&b.Limiter.encoder, a, reply)
	return err
}

func (b *Acquire) SharedArgs(args []any, now int64) []any {
	return b.Request.ArgsOfMany(args, &b.Limiter.encoder, *b.Ask, now)
}

func (b *Acquire) ReadShared(a *script.Attempts, reply []int64, place int) (err error) {
	*b.Reply, err = b.Request.ReplyOfMany(&b.Limiter.encoder, a, reply, place)
	return err
}

// About returns err: it is about the only limiter.
func (b *Acquire) About(err error) error { return err }

// Enforce sets the limiter's own rate in the place of another one.
func (b *Acquire) Enforce(ctx context.Context, _ *script.Attempts) error {
	b.Request.Sets++
	return b.Limiter.Enforce(ctx)
}

// An AllowAll is a call of allowall.lua for several limiters: an exchange.Body, but for Enforce.
type AllowAll struct {
	Request protocol.AllowAll
	Reply   *protocol.Reply
	Failed  int // index of the limiter that refused to decide, by the last reply; -1: none did
}

func (b *AllowAll) Script() *script.Script           { return protocol.AllowAllScript }
func (b *AllowAll) Findable() bool                   { return b.Request.Findable() }
func (b *AllowAll) TakesOnce() bool                  { return b.Request.TakesOnce() }
func (b *AllowAll) Plain() bool                      { return b.Request.Plain() }
func (b *AllowAll) Joint() bool                      { return true }
func (b *AllowAll) Args(args []any, find bool) []any { return b.Request.Args(args, find) }

func (b *AllowAll) Read(a *script.Attempts, reply []int64) (err error) {
	*b.Reply, b.Failed, err = b.Request.Reply(a, reply)
	return err
}

func (b *AllowAll) SharedArgs(args []any, now int64) []any { return b.Request.ArgsOfMany(args, now) }

func (b *AllowAll) ReadShared(a *script.Attempts, reply []int64, place int) (err error) {
	b.Failed = -1
	*b.Reply, err = b.Request.ReplyOfMany(a, reply, place)
	return err
}

// About returns err with the limiter that it is about.
func (b *AllowAll) About(err error) error { return ofMember(err, &b.Failed) }

// ofMember tells which limiter of several an error is about, if one of them refused to decide.
// After any other error, an attempt may still be under way and write failed, which is not read
// then.
func ofMember(err error, failed *int) error {
	if (errors.Is(err, script.ErrNotInitialized) || errors.Is(err, script.ErrUntold)) && *failed >= 0 {
		return schedule.MemberError{Limiter: *failed, Err: err}
	}
	return err
}
