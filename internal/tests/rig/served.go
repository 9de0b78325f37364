package rig

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/script"
)

// A Served is a server that grants every request at once and keeps no state.
type Served struct{ redis.Pipeliner }

// Process grants.
func (Served) Process(_ context.Context, cmd redis.Cmder) error {
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

func (p *pile) Exec(ctx context.Context) ([]redis.Cmder, error) {
	for _, cmd := range p.cmds {
		_ = p.Served.Process(ctx, cmd)
	}
	return p.cmds, nil
}
