// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/weftnet/weft/internal/agent/debug"
	"github.com/weftnet/weft/internal/inspect"
	"github.com/weftnet/weft/internal/inspect/screen"
	"github.com/weftnet/weft/internal/sandbox"
)

// topOptions are the flags of top.
type topOptions struct {
	socket, output string
	interval       time.Duration
	once           bool
	getenv         func(string) string
}

// Bounds of --interval, and of one question.
const (
	minInterval = 200 * time.Millisecond
	topTimeout  = 5 * time.Second
)

func newTop(getenv func(string) string) *cobra.Command {
	o := &topOptions{getenv: getenv}
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch a node: attachments, lanes, calls, devices and the last faults",
		Long: `Top shows what happens on this node as its agent sees it, and draws it anew every now and then until
q or Ctrl-C: which attachments are under way or were made last, how many plugins run and wait for
a lane, how often weft-cni and its plugins were called in the last minute and how long they took,
what is tried again in the background, the network driver's devices, virtual machines, and the
last faults with their pods. An agent that is away is asked again and again.

With --once it prints all of that once. Colours are left out where NO_COLOR is set.

Exit codes: 0 shown, 1 the agent did not answer (with --once) or none can be here, 2 wrong usage.`,
		Example: `  weft top                        # on a node, as root
  weft top --interval 500ms
  weft top --once
  weft top --once -o json | jq '.top.faults'
  kubectl -n kube-system exec -it daemonset/weft-agent -- /weft top`,
		Args: noArgs("; it shows the node that it runs on"),
		RunE: o.run,
	}
	flags := cmd.Flags()
	flags.StringVar(&o.socket, "socket", "", "debug socket of this node's agent (default: "+defaultSocket+")")
	flags.DurationVar(&o.interval, "interval", 2*time.Second, "draw anew after this time")
	flags.BoolVar(&o.once, "once", false, "print it once, without a terminal")
	flags.StringVarP(&o.output, "output", "o", "table", "with --once: table or json")
	return cmd
}

func (o *topOptions) run(cmd *cobra.Command, _ []string) error {
	switch {
	case outputs(o.output) != nil:
		return outputs(o.output)
	case o.output != "table" && !o.once:
		return &sandbox.UsageError{Err: fmt.Errorf("-o %s is for --once", o.output)}
	case o.interval < minInterval:
		return &sandbox.UsageError{Err: fmt.Errorf("--interval %s is less than %s", o.interval, minInterval)}
	}
	if o.socket == "" {
		if _, err := os.Stat(filepath.Dir(defaultSocket)); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("no agent was ever here (%w): top runs on a node, or name the socket with --socket", err)
		}
	}
	client := debug.NewClient(cmp.Or(o.socket, defaultSocket))
	defer client.Close()
	if o.once {
		ctx, cancel := context.WithTimeout(cmd.Context(), topTimeout)
		defer cancel()
		state, err := inspect.AgentTop(ctx, client)
		if err != nil {
			return err
		}
		return write(cmd.OutOrStdout(), o.output, state, state.WriteTable, false)
	}
	out, ok := cmd.OutOrStdout().(*os.File)
	if !ok {
		return &sandbox.UsageError{Err: errors.New("top draws on a terminal: use --once")}
	}
	err := screen.Run(cmd.Context(), os.Stdin, out, o.interval, inspect.Topper(client, topTimeout, o.getenv("NO_COLOR") == ""))
	if errors.Is(err, screen.ErrNoTerminal) {
		return &sandbox.UsageError{Err: fmt.Errorf("%w: use --once", err)}
	}
	return err
}
