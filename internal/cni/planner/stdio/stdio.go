// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package stdio is the edge of a planner that is a program: flags, stdin, stdout and
// the exit code.
//
// Invariants: nothing but help, version and answers goes to stdout; it ends with its
// input. It knows neither plans nor sources.
//
// Implements: architecture 4.2 (the same JSON on stdio).
package stdio

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime/debug"

	"github.com/weftnet/weft/internal/cni/wire"
)

// Program is what a planner says of itself.
type Program struct {
	Name  string
	Usage string // the text of --help
}

// Run returns the exit code: 0 served until the end of stdin, 1 could not, 2 wrong usage.
func (p Program) Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer,
	answer func(context.Context, wire.Request) wire.Response,
) int {
	flags := flag.NewFlagSet(p.Name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	version := flags.Bool("version", false, "")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		_, _ = io.WriteString(stdout, p.Usage)
		return 0
	case err != nil || flags.NArg() > 0:
		if err == nil {
			err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
		}
		fmt.Fprintf(stderr, "%s: %v; see %s --help\n", p.Name, err, p.Name)
		return 2
	case *version:
		fmt.Fprintf(stdout, "%s %s, planner protocol %s\n", p.Name, buildVersion(), wire.KnownVersions())
		return 0
	}
	err = wire.Serve(stdin, stdout, func(req wire.Request) wire.Response { return answer(ctx, req) })
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", p.Name, err)
		return 1
	}
	return 0
}

func buildVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
