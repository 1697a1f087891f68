// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Command lab builds, starts and ends a Kubernetes cluster on this machine.
//
// It holds nothing but the command line and the process that owns a cluster which outlives the
// command that started it; everything else is package lab's.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	ossignal "os/signal"
	"syscall"

	"github.com/weftnet/weft/test/lab"
	"github.com/weftnet/weft/test/lab/box"
)

const usage = `Usage: lab COMMAND

  build                 build and keep every program that a lab runs
  up [--nodes N]        start a cluster with N nodes (1); prints KUBECONFIG=…
  api                   start a control plane alone; prints KUBECONFIG=…
  weft                  install Weft as deploy/ ships it, from the tree as it is now
  exec NODE COMMAND…    run a command on a node
  kubectl ARGUMENTS…    run kubectl
  down                  end the cluster and remove everything of it

K8S_VERSION=1.34 in the environment starts another Kubernetes.
`

func main() {
	box.Init()
	ctx, stop := ossignal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit): // a command that was run for the user, who has seen its output
		os.Exit(exit.ExitCode())
	case err != nil:
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	version := os.Getenv("K8S_VERSION")
	flags := flag.NewFlagSet("lab "+args[0], flag.ExitOnError)
	nodes := flags.Int("nodes", 1, "how many nodes")
	switch args[0] {
	case "build":
		return lab.Build(ctx, version, os.Stderr)
	case "up", ownerCommand:
		flags.Parse(args[1:]) //nolint:errcheck // it ends the process
		if args[0] == ownerCommand {
			return own(ctx, version, *nodes)
		}
		return up(ctx, version, *nodes)
	case "api":
		return up(ctx, version, 0)
	case "weft":
		return tell(ctx, installCommand)
	case "exec":
		if len(args) < 3 {
			return errors.New("exec: name a node and a command")
		}
		return execute(ctx, args[1], args[2:])
	case "kubectl":
		return kubectl(ctx, args[1:])
	case "down":
		return down(ctx)
	default:
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
		return nil
	}
}
