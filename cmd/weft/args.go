// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weftnet/weft/internal/sandbox"
)

// group is a command that only has commands below it: alone it shows them.
func group(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	cmd.SuggestionsMinimumDistance = max(1, len(args[0])/3) // letters
	hint := ""
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		hint = "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return &sandbox.UsageError{Err: fmt.Errorf("unknown command %q for %q%s", args[0], cmd.CommandPath(), hint)}
}

// noArgs refuses arguments; hint says what may be meant by them.
func noArgs(hint string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > 0 {
			return &sandbox.UsageError{Err: fmt.Errorf("unknown argument %q%s", args[0], hint)}
		}
		return nil
	}
}
