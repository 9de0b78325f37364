package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/survey"
)

// completion.go lets shells complete the names of limiters, and the ids of their clients, with what
// a short search finds.

var glimpse = 500 * time.Millisecond // tests have more time

// complete lists names of limiters that begin with the first argument.
func (c *common) complete(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.completeMore(cmd, args, begun)
}

// completeMore lists names of limiters that begin with the last argument, without those that are
// given already.
func (c *common) completeMore(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	return c.found(cmd, args, begun, func(ctx context.Context, s *session) ([]string, error) {
		return survey.Limiters(ctx, s.Redis, literal(begun)+"*", nil)
	})
}

// completeClient lists the ids of clients of the limiter in the first argument.
func (c *common) completeClient(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	return c.found(cmd, nil, begun, func(ctx context.Context, s *session) ([]string, error) {
		if len(args) == 0 {
			return []string{survey.Everyone}, nil
		}
		ids, err := s.Limiter(args[0], "").Clients(ctx)
		return append(ids, survey.Everyone), err
	})
}

// found lists the results of a short search that begin with a text and can be written unquoted on a
// command line.
func (c *common) found(
	cmd *cobra.Command, but []string, begun string, search func(context.Context, *session) ([]string, error),
) ([]string, cobra.ShellCompDirective) {
	const nothingElse = cobra.ShellCompDirectiveNoFileComp
	ctx, cancel := context.WithTimeout(cmd.Context(), glimpse)
	defer cancel()
	if err := readEnvironment(cmd); err != nil {
		return nil, nothingElse
	}
	s, err := c.open(ctx)
	if err != nil {
		return nil, nothingElse
	}
	defer s.Close()
	all, _ := search(ctx, s)
	return slices.DeleteFunc(all, func(one string) bool {
		return !strings.HasPrefix(one, begun) || slices.Contains(but, one) ||
			strings.HasPrefix(render.ShellName(one), "--quoted ")
	}), nothingElse
}

// literal returns a pattern that matches only a text.
func literal(text string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(text)
}
