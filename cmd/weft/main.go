// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Command weft shows and tries what Weft does, on any machine.
//
// It owns the command line: flags, output and exit codes (0 fine, 1 a fault was found,
// 2 wrong usage). What the commands do is in the packages below internal. It must not
// hold logic of its own.
//
// Implements: architecture 4.6.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/host/version"
	"github.com/weftnet/weft/internal/inspect"
	"github.com/weftnet/weft/internal/sandbox"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	// After the first signal everything is taken down; a second one ends at once.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr)) //nolint:gocritic // stop only matters while running
}

// errFound is the error of a command that did what it should and found a fault, which it
// has shown.
var errFound = errors.New("a fault was found")

// run returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot() //nolint:contextcheck // the commands take the context that they are executed with
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	started := false
	root.PersistentPreRun = func(*cobra.Command, []string) { started = true }
	cmd, err := root.ExecuteContextC(ctx)
	_, usage := errors.AsType[*sandbox.UsageError](err)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errFound):
		return 1
	case usage || !started: // cobra's own errors come before a command starts
		fmt.Fprintf(stderr, "weft: %s\nSee %s --help.\n", inspect.Printable(err.Error()), cmd.CommandPath())
		return 2
	}
	fmt.Fprintf(stderr, "weft: %s\n", inspect.Printable(err.Error()))
	return 1
}

func newRoot() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "weft",
		Short:         "Give pods their extra network interfaces, and see what they got",
		Version:       version.String(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Example:       "  weft sandbox run -f examples/demo",
		Args:          cobra.ArbitraryArgs,
		RunE:          group,
	}
	cmd.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	cmd.CompletionOptions.HiddenDefaultCmd = true
	cmd.AddCommand(newSandbox(), newExplain(os.Getenv), newLint(), newGet(os.Getenv), newStateDB(os.Getenv), newTop(os.Getenv), newDoctor(os.Getenv), newVMI())
	return cmd
}
