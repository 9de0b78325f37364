package main

import (
	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/demo"
)

// demo.go is the subcommand demo.

func newDemo() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Let workers and pollers share a limiter, and check that the limit is kept",
		Long:  demo.Help,
		Example: `  rrl demo
  rrl demo --java
  rrl demo --java --release 3.17.5 --rate 5/250ms
  rrl demo --rate 5/250ms --workers 16 --for 10s
  rrl demo --redis redis://localhost:6379 --for 5m
  rrl demo --rate 5000/s --workers 0 --pollers 16 --lease 50ms`,
		Args: noArgs,
	}
	options := demo.Flags(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o, err := options()
		if err != nil {
			return err
		}
		return demo.Run(cmd.Context(), o, cmd.InOrStdin(), cmd.OutOrStdout())
	}
	return cmd
}
