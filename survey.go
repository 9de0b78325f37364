package rratelimiter

import (
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/hook"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// survey.go is for tools that monitor and clean many limiters: a cheap read of the state, a read of the raw keys, and
// the removal of keys that PerClient clients left behind.

// Glance is a cheap State: it changes nothing and costs Redis almost nothing, however many records there are. If there
// are more than 2,000 live or more than 2,000 expired records, it trusts the stored free permits, and exact is false.
// Without a rate the error is ErrNotInitialized.
func (l *Limiter) Glance(ctx context.Context) (s State, exact bool, err error) {
	r, err := l.read(ctx, protocol.GlanceScript, false)
	if err != nil {
		return State{}, false, wrap("glance at", l.name, err)
	}
	return stateOf(r), !r.Estimate, nil
}

// survey runs survey.lua (see hook.Survey).
func (l *Limiter) survey(ctx context.Context, first, count int, own bool) (hook.Stored, error) {
	s, err := l.stored(ctx, first, count, own)
	return s, wrap("survey", l.name, err)
}

func (l *Limiter) stored(ctx context.Context, first, count int, own bool) (s hook.Stored, err error) {
	if l.err != nil {
		return s, l.err
	}
	request := protocol.Survey{First: first, Count: count, Own: own}
	reply, err := within(ctx, l, func(ctx context.Context) ([]any, error) {
		return l.client.topology.RunMixed(ctx, new(script.Attempts), protocol.SurveyScript, true, l.keys(), request.Args()...)
	})
	if err != nil {
		return s, err
	}
	stored, err := request.Reply(reply)
	if err != nil {
		return s, err
	}
	s = hook.Stored{
		Fields: stored.Fields, Own: stored.Own, At: stored.At, Value: stored.Value, Records: stored.Records,
	}
	for _, r := range stored.Page {
		s.Page = append(s.Page, hook.StoredRecord(r))
	}
	names := [...]string{l.key(), l.keyNames[keys.Value], l.keyNames[keys.Permits]}
	if s.Own {
		names[1], names[2] = l.keyNames[keys.ClientValue], l.keyNames[keys.ClientPermits]
	}
	for i, key := range stored.Keys {
		s.Keys[i] = hook.StoredKey{Name: names[i], Type: key.Type, TTL: key.TTL}
	}
	return s, nil
}

// collect runs collect.lua (see hook.Collect).
func (l *Limiter) collect(ctx context.Context, idle time.Duration, dry bool) (hook.Collected, error) {
	const operation = "collect the keys of a client of"
	if l.err != nil {
		return 0, wrap(operation, l.name, l.err)
	}
	request := protocol.Collect{Now: l.encoder.Now(), Idle: idle, Dry: dry}
	sent := new(script.Attempts)
	reply, err := within(ctx, l, func(ctx context.Context) ([]int64, error) {
		return l.client.topology.Run(ctx, sent, protocol.CollectScript, dry, l.keys(), request.Args()...)
	})
	if !dry {
		err = sent.Outcome(err)
	}
	if err != nil {
		return 0, wrap(operation, l.name, err)
	}
	return hook.Collected(request.Reply(reply)), nil
}
