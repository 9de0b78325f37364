package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/survey"
)

// completion.go lets shells complete the names of limiters. Who presses Tab gets what can be found in a moment, or nothing.

const glimpse = 500 * time.Millisecond

// complete lists names of limiters that begin as the last argument does.
func (c *common) complete(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	const nothingElse = cobra.ShellCompDirectiveNoFileComp
	if len(args) > 0 {
		return nil, nothingElse
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), glimpse)
	defer cancel()
	s, err := c.open(ctx)
	if err != nil {
		return nil, nothingElse
	}
	defer s.close()
	names, _ := survey.Limiters(ctx, s.rdb, literal(begun)+"*", nil) // as far as it got
	return names, nothingElse
}

// literal makes of a text a pattern that matches it alone.
func literal(text string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(text)
}
