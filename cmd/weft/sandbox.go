// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/weftnet/weft/internal/sandbox"
)

func newSandbox() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sandbox",
		Short: "Run pods as network namespaces: no cluster, no root",
		Long: `Sandbox plays the container runtime's part on this machine. The pods of a directory
of ordinary Kubernetes YAML get network namespaces, and their interfaces from the
real plugins. All of it happens in namespaces of its own: the machine's network and
files are not touched.`,
		Example: "  weft sandbox run -f examples/demo --keep\n  weft sandbox down",
		Args:    cobra.ArbitraryArgs,
		RunE:    group,
	}
	cmd.AddCommand(newSandboxRun(), newSandboxDown(), newSandboxInside())
	return cmd
}

func newSandboxRun() *cobra.Command {
	var opts sandbox.Options
	var binDir, output string
	cmd := &cobra.Command{
		Use:   "run -f DIR",
		Short: "Attach the pods of a directory, show what they got, take everything down",
		Long: `Run reads the Pods and NetworkAttachmentDefinitions of DIR (*.yaml, *.yml, *.json), gives
every pod a network namespace, and has weft-cni attach it as containerd would. It shows
every interface as the kernel has it, and sends packets between pods that share a network.
Then everything is taken down, and it is checked that nothing is left.

The pods' eth0 comes from the first *.conf or *.conflist of DIR, else from a bridge with
10.244.0.0/24 and fd00:10:244::/64. A file there whose type is weft-cni (or multus) is Weft's
own configuration, as on a node: its kubeconfig is left out, and paths in it are those of the
files in DIR that have the same name. DIR/net.d, else DIR, is its confDir. The pretended host
has eth0 and every link that a network names as its master.

Pod templates (of a Deployment and the like) are not pods and are passed over.

Exit codes: 0 every pod got what it asked for, 1 a fault was found, 2 wrong usage.`,
		Example: `  weft sandbox run -f examples/demo
  weft sandbox run -f examples/demo -o json
  weft sandbox run -f examples/demo --cut br-blue    # see the probes fail
  weft sandbox run -f examples/demo --keep           # then: weft sandbox down`,
		Args: noArgs(": the directory is named with -f"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if opts.Dir == "" {
				return &sandbox.UsageError{Err: errors.New("which pods? Name a directory of YAML with -f")}
			}
			if output != "table" && output != "json" {
				return &sandbox.UsageError{Err: fmt.Errorf("unknown output %q: table or json", output)}
			}
			if opts.Timeout <= 0 {
				return &sandbox.UsageError{Err: fmt.Errorf("timeout %s is not above 0", opts.Timeout)}
			}
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find own executable: %w", err)
			}
			opts.Command = []string{"/proc/self/exe", "sandbox", "inside"}
			opts.Stderr = cmd.ErrOrStderr()
			opts.BinDirs = filepath.SplitList(binDir)
			if binDir == "" {
				opts.BinDirs = []string{filepath.Join(filepath.Dir(self), "cni")}
			}
			report, err := sandbox.Run(cmd.Context(), opts)
			if err != nil {
				return err
			}
			if output == "json" { // whoever reads it need not be who has typed it
				fmt.Fprint(cmd.ErrOrStderr(), report.Kept())
			}
			return show(cmd.OutOrStdout(), output, report)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&opts.Dir, "filename", "f", "", "directory of YAML with pods and networks")
	flags.StringVarP(&output, "output", "o", "table", "table or json")
	flags.BoolVar(&opts.Keep, "keep", false, "leave the pods running in the background, until weft sandbox down")
	flags.StringVar(&opts.Cut, "cut", "", "take this link of the pretended host down before the probes")
	flags.DurationVar(&opts.Timeout, "timeout", 5*time.Minute, "stop and take down after this time")
	flags.StringVar(&binDir, "bin-dir", "", "directories of weft-cni and the CNI plugins, separated by colons (default: cni beside weft)")
	stateFlag(cmd, &opts.StateDir)
	return cmd
}

func newSandboxDown() *cobra.Command {
	var state string
	cmd := &cobra.Command{
		Use:     "down",
		Short:   "Take down the sandbox that was kept",
		Example: "  weft sandbox run -f examples/demo --keep\n  weft sandbox down",
		Args:    noArgs(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			report, err := sandbox.Down(cmd.Context(), state)
			if err != nil {
				return err
			}
			if err := report.WriteEnd(cmd.OutOrStdout()); err != nil {
				return err
			}
			return found(report)
		},
	}
	stateFlag(cmd, &state)
	return cmd
}

func stateFlag(cmd *cobra.Command, dir *string) {
	cmd.Flags().StringVar(dir, "state-dir", "", "directory that remembers a kept sandbox (default: in the user's cache)")
}

// newSandboxInside is how the sandbox starts itself in its namespaces.
func newSandboxInside() *cobra.Command {
	return &cobra.Command{
		Use:    "inside",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if os.Getpid() != 1 {
				return &sandbox.UsageError{Err: fmt.Errorf("inside is started by weft sandbox run only")}
			}
			if code := sandbox.Inside(cmd.Context(), cmd.ErrOrStderr()); code != 0 {
				return errFound // was told through the answer
			}
			return nil
		},
	}
}

func show(w io.Writer, output string, r *sandbox.Report) error {
	if output == "json" {
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(r); err != nil {
			return fmt.Errorf("write report: %w", err)
		}
	} else if err := r.WriteTable(w); err != nil {
		return err
	}
	return found(r)
}

func found(r *sandbox.Report) error {
	if !r.OK() {
		return errFound
	}
	return nil
}
