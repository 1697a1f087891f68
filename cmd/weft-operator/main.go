// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Command weft-operator keeps the nodes' configurations of the network driver as the cluster
// configurations say, and judges what is about to be written that Weft reads (architecture 2, 4.5).
//
// It owns flags, the environment and exit codes: 0 fine, 1 something failed, 2 wrong usage, of which
// every fault was told and for which nothing was touched.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/weftnet/weft/internal/host/logs"
	"github.com/weftnet/weft/internal/host/version"
	"github.com/weftnet/weft/internal/operator"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	// The first signal ends the work in order; a second one ends the process.
	context.AfterFunc(ctx, stop)
	h := host{namespace: os.Getenv("POD_NAMESPACE"), stdout: os.Stdout, stderr: os.Stderr}
	os.Exit(h.run(ctx, os.Args[1:])) //nolint:gocritic // stop only matters while running
}

// host is what the command takes from its surroundings.
type host struct {
	namespace      string // POD_NAMESPACE
	stdout, stderr io.Writer
}

// run returns the exit code.
func (h host) run(ctx context.Context, args []string) int {
	o, err := parse(args, h.namespace)
	switch {
	case errors.Is(err, errHelp):
		fmt.Fprint(h.stdout, usage)
		return 0
	case err != nil:
		fmt.Fprintf(h.stderr, "weft-operator: %v\nSee weft-operator --help.\n", err)
		return 2
	case o.version:
		fmt.Fprintln(h.stdout, "weft-operator", version.String())
		return 0
	}
	log := logs.New(h.stderr, o.level, o.format)
	klog.SetSlogLogger(log.With("part", "client-go"))
	op, err := operator.New(o.config, version.String(), log)
	if err != nil {
		for line := range strings.Lines(err.Error()) {
			fmt.Fprintf(h.stderr, "weft-operator: %s\n", strings.TrimSpace(line))
		}
		return 2
	}
	if err := op.Run(ctx); err != nil {
		fmt.Fprintf(h.stderr, "weft-operator: %v\n", err)
		return 1
	}
	return 0
}
