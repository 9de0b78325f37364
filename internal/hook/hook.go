// Package hook lets packages of this module reach what is behind the types of the root package. The root package sets its
// variables, so a package that uses them must also import the root package.
package hook

import (
	"context"

	"github.com/rratelimiter/rratelimiter/internal/dispatch"
)

// Client returns what is behind a *rratelimiter.Client.
var Client func(client any) *dispatch.Client

// Limiter returns what is behind a *rratelimiter.Limiter.
var Limiter func(limiter any) *dispatch.Limiter

// Allow is the Allow of a *rratelimiter.Limiter. It returns its rratelimiter.Result, and a function that gives back
// exactly the permits that it took, whereas Release gives back the oldest ones.
var Allow func(ctx context.Context, limiter any, n int64) (result any, undo func(context.Context) error, err error)
