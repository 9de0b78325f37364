package rratelimiter

import (
	"context"

	"github.com/rratelimiter/rratelimiter/internal/dispatch"
	"github.com/rratelimiter/rratelimiter/internal/hook"
)

func init() {
	hook.Client = func(client any) *dispatch.Client { return client.(*Client).core }
	hook.Limiter = func(limiter any) *dispatch.Limiter { return &limiter.(*Limiter).core }
	hook.Allow = func(ctx context.Context, limiter any, n int64) (any, func(context.Context) error, error) {
		l, from := limiter.(*Limiter), dispatch.Source{}
		result, err := l.request(ctx, "allow", dispatch.Ask{N: n, Detail: true, Source: &from})
		return result, func(ctx context.Context) error {
			return wrap("release to", l.name, l.core.Undo(ctx, n, from))
		}, err
	}
}
