package rratelimiter

import (
	"context"
	"strconv"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/hook"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/lua"
)

// survey.go is for tools that monitor and clean many limiters: a cheap read of the state, a read of the raw keys, and
// the removal of keys that PerClient clients left behind.

var (
	collectScript = script.Load(lua.Files, "collect")
	glanceScript  = script.Load(lua.Files, "glance")
	surveyScript  = script.Load(lua.Files, "survey")
)

// Glance is a cheap State: it changes nothing and costs Redis almost nothing, however many records there are. If there
// are more than 2,000 live or more than 2,000 expired records, it trusts the stored free permits, and exact is false.
// Without a rate the error is ErrNotInitialized.
func (l *Limiter) Glance(ctx context.Context) (s State, exact bool, err error) {
	r, err := l.inspectBy(ctx, glanceScript, "")
	if err != nil {
		return State{}, false, wrap("glance at", l.name, err)
	}
	return readState(r), r[12] == 0, nil
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
	flags := ""
	if own {
		flags = "o"
	}
	reply, err := within(ctx, l, func(ctx context.Context) ([]any, error) {
		return l.client.topology.RunMixed(ctx, new(script.Attempts), surveyScript, true, l.keys(), first, count, flags)
	})
	if err != nil {
		return s, err
	}
	texts := func(part any) (all []string) {
		for _, one := range part.([]any) {
			text, _ := one.(string)
			all = append(all, text)
		}
		return all
	}
	whole := func(part any) int64 {
		n, _ := part.(int64)
		return n
	}
	seconds, _ := strconv.ParseInt(reply[0].(string), 10, 64)
	micros, _ := strconv.ParseInt(reply[1].(string), 10, 64)
	s.At = time.UnixMicro(seconds*1e6 + micros)
	s.Fields = map[string]string{}
	fields := texts(reply[2])
	for i := 0; i+1 < len(fields); i += 2 {
		s.Fields[fields[i]] = fields[i+1]
	}
	s.Own = whole(reply[3]) == 1
	s.Value, _ = reply[4].(string)
	s.Records = int(whole(reply[5]))
	page := texts(reply[6])
	for i := 0; i+1 < len(page); i += 2 {
		score, err := strconv.ParseFloat(page[i+1], 64)
		if err != nil {
			return s, err
		}
		s.Page = append(s.Page, hook.StoredRecord{Member: page[i], Score: score})
	}
	names := [...]string{l.key(), l.keyNames[keys.Value], l.keyNames[keys.Permits]}
	if s.Own {
		names[1], names[2] = l.keyNames[keys.ClientValue], l.keyNames[keys.ClientPermits]
	}
	for i := range s.Keys {
		kind, _ := reply[7+2*i].(string)
		s.Keys[i] = hook.StoredKey{Name: names[i], Type: kind, TTL: max(millis(whole(reply[8+2*i])), 0)}
	}
	return s, nil
}

// collect runs collect.lua (see hook.Collect).
func (l *Limiter) collect(ctx context.Context, idle time.Duration, dry bool) (hook.Collected, error) {
	const operation = "collect the keys of a client of"
	if l.err != nil {
		return 0, wrap(operation, l.name, l.err)
	}
	flags := ""
	if dry {
		flags = "d"
	}
	sent := new(script.Attempts)
	reply, err := within(ctx, l, func(ctx context.Context) ([]int64, error) {
		return l.client.topology.Run(ctx, sent, collectScript, dry, l.keys(), l.now(), idle.Milliseconds(), flags)
	})
	if !dry {
		err = sent.Outcome(err)
	}
	if err != nil {
		return 0, wrap(operation, l.name, err)
	}
	return hook.Collected(reply[0]), nil
}
