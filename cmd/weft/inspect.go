// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weftnet/weft/internal/inspect"
	"github.com/weftnet/weft/internal/sandbox"
)

func newExplain() *cobra.Command {
	var files []string
	var conf, binDir, output string
	cmd := &cobra.Command{
		Use:   "explain -f FILE… [pod NAMESPACE/NAME]",
		Short: "Show every decision of a pod's plan, and the first thing that would fail",
		Long: `Explain plans the pods of files or directories (*.yaml, *.yml, *.json) as a node would,
without a cluster and without running anything. It shows every attachment with the reason
for its network, interface name, configuration, capabilities, device and default route,
and where that reason is written.

What only a node has is taken from this machine where it is there, and otherwise
said to be not seen. The files of confDir and the cluster network's can be given with -f.

Exit codes: 0 nothing that can be seen fails, 1 a fault was found, 2 wrong usage.`,
		Example: `  weft explain -f examples/demo
  weft explain -f examples/demo pod default/by-json
  weft explain -f examples/demo --conf /etc/cni/net.d/00-multus.conf -o json
  weft explain -f examples/demo --bin-dir /opt/cni/bin    # are the plugins there?`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			pod, err := podArgument(args)
			if err != nil {
				return err
			}
			w, err := load(cmd, files, conf, output)
			if err != nil {
				return err
			}
			e, err := w.Explain(cmd.Context(), pod, binDir)
			if err != nil {
				return err
			}
			if len(e.Pods) == 0 {
				fmt.Fprintln(cmd.ErrOrStderr(), "weft: the files hold no pod")
			}
			return write(cmd.OutOrStdout(), output, e, e.WriteTable, e.Faulty())
		},
	}
	inspectFlags(cmd, &files, &conf, &output)
	cmd.Flags().StringVar(&binDir, "bin-dir", "", "look for the plugins in these directories, separated by colons")
	return cmd
}

func newLint() *cobra.Command {
	var files []string
	var conf, output string
	cmd := &cobra.Command{
		Use:   "lint -f FILE…",
		Short: "Find all mistakes in networks, pods and CNI configurations",
		Long: `Lint checks files or directories: NetworkAttachmentDefinitions and Pods (*.yaml, *.yml,
*.json), and CNI configurations (*.conf, *.conflist) of Weft or Multus and of other networks.
Pods are checked together with the networks that they name, so give lint all of them. It shows
all faults and warnings, each with its file and line. Directories below a directory, and pod
templates (of a Deployment and the like), are not read.

Exit codes: 0 no fault (there may be warnings), 1 a fault was found, 2 wrong usage.`,
		Example: `  weft lint -f examples/demo
  weft lint -f networks.yaml -f pods.yaml --conf 00-multus.conf
  weft lint -f examples/demo -o json`,
		Args: noArgs(": files and directories are named with -f"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			w, err := load(cmd, files, conf, output)
			if err != nil {
				return err
			}
			r := w.Lint(cmd.Context())
			fmt.Fprintf(cmd.ErrOrStderr(), "weft: %s\n", r.Summary())
			return write(cmd.OutOrStdout(), output, r, r.WriteTable, len(r.Faults) > 0)
		},
	}
	inspectFlags(cmd, &files, &conf, &output)
	return cmd
}

func inspectFlags(cmd *cobra.Command, files *[]string, conf, output *string) {
	cmd.Flags().StringArrayVarP(files, "filename", "f", nil, "file or directory; may be given several times")
	cmd.Flags().StringVar(conf, "conf", "", "CNI configuration of Weft or Multus to plan with (default: the first among the files)")
	cmd.Flags().StringVarP(output, "output", "o", "table", "table or json")
}

func podArgument(args []string) (string, error) {
	switch {
	case len(args) == 0:
		return "", nil
	case len(args) == 2 && args[0] == "pod" && strings.Contains(args[1], "/"):
		return args[1], nil
	}
	return "", &sandbox.UsageError{Err: fmt.Errorf("unknown arguments %q: one pod is named as pod NAMESPACE/NAME, files with -f", args)}
}

func load(cmd *cobra.Command, files []string, conf, output string) (*inspect.World, error) {
	if len(files) == 0 {
		return nil, &sandbox.UsageError{Err: errors.New("which files? Name files or directories with -f")}
	}
	if output != "table" && output != "json" {
		return nil, &sandbox.UsageError{Err: fmt.Errorf("unknown output %q: table or json", output)}
	}
	w, err := inspect.Load(files, conf)
	if err != nil {
		return nil, &sandbox.UsageError{Err: err}
	}
	return w, nil
}

// write shows what was found; faulty makes the exit code 1.
func write(w io.Writer, output string, v any, table func(io.Writer) error, faulty bool) error {
	var err error
	if output == "json" {
		encoder := json.NewEncoder(w)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		err = encoder.Encode(v)
	} else {
		err = table(w)
	}
	switch {
	case err != nil:
		return fmt.Errorf("write output: %w", err)
	case faulty:
		return errFound
	}
	return nil
}
