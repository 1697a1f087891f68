// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"

	"github.com/spf13/cobra"

	"github.com/weftnet/weft/internal/agent/debug"
	"github.com/weftnet/weft/internal/inspect"
	"github.com/weftnet/weft/internal/sandbox"
)

func newStateDB(getenv func(string) string) *cobra.Command {
	s := &sources{getenv: getenv}
	cmd := &cobra.Command{
		Use:   "statedb",
		Short: "Print the network driver's tables on this node, as JSON",
		Long: `Statedb prints the tables of the network driver as this node's agent has them, as one JSON object:
networkdriver-dra-devices has the devices that are there, networkdriver-dra-allocations those
that were prepared for a claim, or are kept because they could not be freed yet.

Exit codes: 0 printed, 1 the agent did not answer or its network driver is off, 2 wrong usage.`,
		Example: `  weft statedb
  weft statedb | jq '{
      inventory: .["networkdriver-dra-devices"] | map({Name, Manager}),
      allocations: .["networkdriver-dra-allocations"] |
        map({DeviceName, Manager, Pool, PodUID, ClaimUID, Config})
    }'`,
		Args: noArgs("; it prints all tables"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if s.kubeconfig != "" {
				return &sandbox.UsageError{Err: errors.New("the tables are the agent's, an API server does not have them: run it on the node")}
			}
			ctx, cancel, err := s.context(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			client := debug.NewClient(cmp.Or(s.socket, defaultSocket))
			defer client.Close()
			return inspect.StateDB(ctx, client, cmd.OutOrStdout())
		},
	}
	s.flags(cmd)
	return cmd
}
