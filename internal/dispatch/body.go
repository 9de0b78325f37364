package dispatch

import (
	"context"
	"errors"

	"github.com/rratelimiter/rratelimiter/internal/exchange"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// Bodies: what a call that takes permits asks of one limiter, or of several. They encode and
// decode; package exchange makes the attempts.

// A batchBody is what the call of a batch asks, of one limiter (singleBody) or of a set
// (allowAllBody).
type batchBody interface {
	exchange.Body
	prepare(b *batch)        // takes over what b asks
	checks(limiter int) bool // reports whether it adds up the records of a limiter
	about(err error) error   // returns err with the limiter that it is about
}

// An acquireBody is a call of acquire.lua for one limiter.
type acquireBody struct {
	limiter *Limiter
	ask     *protocol.BatchAsk
	free    int64 // permits that were free by the last reply; below 0: not known
	request protocol.AcquireRequest
	reply   *protocol.Reply
}

func (b *acquireBody) Script() *script.Script { return protocol.AcquireScript }
func (b *acquireBody) Findable() bool         { return b.limiter.settings.Findable(b.request.Records) }
func (b *acquireBody) TakesOnce() bool        { return !b.ask.UpTo && b.limiter.settings.TakesOnce() }
func (b *acquireBody) Plain() bool            { return b.limiter.settings.Plain(*b.ask, b.free) }
func (b *acquireBody) Joint() bool            { return false }

func (b *acquireBody) Args(args []any, find bool) []any {
	return b.request.Args(args, &b.limiter.encoder, *b.ask, find && (len(b.ask.Groups) > 0 || b.ask.Lease > 0))
}

func (b *acquireBody) Read(a *script.Attempts, reply []int64) (err error) {
	*b.reply, err = b.request.Reply(&b.limiter.encoder, a, reply)
	return err
}

func (b *acquireBody) SharedArgs(args []any, now int64) []any {
	return b.request.ArgsOfMany(args, &b.limiter.encoder, *b.ask, now)
}

func (b *acquireBody) ReadShared(a *script.Attempts, reply []int64, place int) (err error) {
	*b.reply, err = b.request.ReplyOfMany(&b.limiter.encoder, a, reply, place)
	return err
}

func (b *acquireBody) Enforce(ctx context.Context, _ *script.Attempts) error {
	b.request.Sets++
	return b.limiter.enforce(ctx)
}

// A singleBody is the acquireBody of a batch.
type singleBody struct {
	acquireBody
	batch *batch
}

func (b *singleBody) prepare(of *batch) {
	b.batch, b.limiter = of, of.queue.limiters[0]
	b.ask.Check, b.free = b.limiter.unchecked()
	b.request.Next(of.queue.grants)
}

func (b *singleBody) checks(int) bool       { return b.ask.Check }
func (b *singleBody) about(err error) error { return err }

// Enforce sets the limiter's own rate in the place of another one. If no attempt has had an effect,
// the batch may bring a lease afterwards.
func (b *singleBody) Enforce(ctx context.Context, a *script.Attempts) error {
	err := b.acquireBody.Enforce(ctx, a)
	if err == nil && !a.MaybeExecuted() {
		b.batch.queue.look(func(s *schedule.Queue) {
			if !b.limiter.client.lender.changes(b.limiter.Key()) {
				s.Renew(&b.batch.Batch)
			}
		})
	}
	return err
}

// An allowAllBody is a call of allowall.lua for several limiters.
type allowAllBody struct {
	limiters []*Limiter
	request  protocol.AllowAll
	reply    *protocol.Reply
	failed   int // index of the limiter that refused to decide, by the last reply; -1: none did
}

func (b *allowAllBody) prepare(of *batch) {
	q := of.queue
	b.limiters, b.failed = q.limiters, -1
	b.request.Next(len(q.limiters), &of.Ask)
	for i, l := range q.limiters {
		part := &b.request.Parts[i]
		part.Encoder, part.Rebuild = &l.encoder, q.schedule.Rebuild(i)
		part.Check, part.Free = l.unchecked()
	}
}

func (b *allowAllBody) checks(limiter int) bool { return b.request.Parts[limiter].Check }
func (b *allowAllBody) about(err error) error   { return ofMember(err, &b.failed) }

// ofMember tells which limiter of several an error is about, if one of them refused to decide.
// After any other error, an attempt may still be under way and write failed, which is not read
// then.
func ofMember(err error, failed *int) error {
	if (errors.Is(err, script.ErrNotInitialized) || errors.Is(err, script.ErrUntold)) && *failed >= 0 {
		return schedule.MemberError{Limiter: *failed, Err: err}
	}
	return err
}

func (b *allowAllBody) Script() *script.Script           { return protocol.AllowAllScript }
func (b *allowAllBody) Findable() bool                   { return b.request.Findable() }
func (b *allowAllBody) TakesOnce() bool                  { return b.request.TakesOnce() }
func (b *allowAllBody) Plain() bool                      { return b.request.Plain() }
func (b *allowAllBody) Joint() bool                      { return true }
func (b *allowAllBody) Args(args []any, find bool) []any { return b.request.Args(args, find) }

func (b *allowAllBody) Read(a *script.Attempts, reply []int64) (err error) {
	*b.reply, b.failed, err = b.request.Reply(a, reply)
	return err
}

func (b *allowAllBody) SharedArgs(args []any, now int64) []any {
	return b.request.ArgsOfMany(args, now)
}

func (b *allowAllBody) ReadShared(a *script.Attempts, reply []int64, place int) (err error) {
	b.failed = -1
	*b.reply, err = b.request.ReplyOfMany(a, reply, place)
	return err
}

func (b *allowAllBody) Enforce(ctx context.Context, _ *script.Attempts) error {
	b.request.Parts[b.failed].Sets++
	return b.limiters[b.failed].enforce(ctx)
}
