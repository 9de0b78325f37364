package rig

import (
	"context"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/script"
)

// A Served is a server that grants every request at once and keeps no state. While it is away, it
// refuses connections.
type Served struct {
	redis.Pipeliner
	Away *atomic.Bool // nil: never
}

// Process grants.
func (s Served) Process(_ context.Context, cmd redis.Cmder) error {
	if s.Away != nil && s.Away.Load() {
		cmd.SetErr(ErrRefused)
		return ErrRefused
	}
	cmd.(*script.Command).SetVal([]int64{0, 10, 1000, 9, 0, 0})
	return nil
}

// Pipeline returns a pipeline of the server.
func (s Served) Pipeline() redis.Pipeliner { return &pile{Served: s} }

type pile struct {
	Served
	cmds []redis.Cmder
}

func (p *pile) Process(_ context.Context, cmd redis.Cmder) error {
	p.cmds = append(p.cmds, cmd)
	return nil
}

func (p *pile) Exec(ctx context.Context) (cmds []redis.Cmder, err error) {
	for _, cmd := range p.cmds {
		err = p.Served.Process(ctx, cmd)
	}
	return p.cmds, err
}
