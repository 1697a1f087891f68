// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Command weft-agent is the brain of a node: it plans for weft-cni, writes network-status
// and publishes the node's CNI configuration (architecture 2, 4.4). It also puts weft-cni
// on the host and takes it away again.
//
// It owns flags, the environment and exit codes: 0 fine, 1 something failed, 2 wrong usage
// or configuration, of which every fault was told and for which nothing was touched.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/weftnet/weft/internal/agent"
	"github.com/weftnet/weft/internal/agent/config"
	"github.com/weftnet/weft/internal/cni/install"
	"github.com/weftnet/weft/internal/host/logs"
	"github.com/weftnet/weft/internal/host/version"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	// The first signal ends the work in order; a second one ends the process.
	context.AfterFunc(ctx, stop)
	h := host{nodeName: os.Getenv("NODE_NAME"), hostname: os.Hostname, stdout: os.Stdout, stderr: os.Stderr}
	os.Exit(h.run(ctx, os.Args[1:])) //nolint:gocritic // stop only matters while running
}

// host is what the command takes from its surroundings.
type host struct {
	nodeName       string // NODE_NAME
	hostname       func() (string, error)
	stdout, stderr io.Writer
}

// run returns the exit code.
func (h host) run(ctx context.Context, args []string) int {
	o, err := parse(args)
	switch {
	case errors.Is(err, errHelp):
		fmt.Fprint(h.stdout, usage)
		return 0
	case err != nil:
		fmt.Fprintf(h.stderr, "weft-agent: %v\nSee weft-agent --help.\n", err)
		return 2
	case o.version:
		fmt.Fprintln(h.stdout, "weft-agent", version.String())
		return 0
	}
	o.overrides.FallbackNodeName = h.fallback()
	cfg, err := config.Load(o.config, o.overrides)
	if err != nil {
		return h.faults(err)
	}
	switch o.command {
	case "check-config":
		fmt.Fprintln(h.stdout, "the configuration is fine")
		return 0
	case "install":
		err = h.install(ctx, cfg, o)
	case "uninstall":
		err = install.Uninstall(ctx, places(cfg, o), h.stderr)
	default:
		log := logs.New(h.stderr, cfg.Log.Level, cfg.Log.Format)
		klog.SetSlogLogger(log.With("part", "client-go"))
		a, ferr := agent.New(cfg, version.String(), log)
		if ferr != nil {
			return h.faults(ferr)
		}
		err = a.Run(ctx)
	}
	if err != nil {
		fmt.Fprintf(h.stderr, "weft-agent: %v\n", err)
		return 1
	}
	return 0
}
