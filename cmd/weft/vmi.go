// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/weftnet/weft/internal/cni/hostfiles"
	"github.com/weftnet/weft/internal/sandbox"
	"github.com/weftnet/weft/internal/vm/bundle"
)

func newVMI() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "vmi",
		Short: "Replay and record what the interfaces of a virtual machine are made of",
		Example: `  weft vmi record default/web > vm.yaml      # on its node
  weft vmi replay -f vm.yaml --explain`,
		Args: cobra.ArbitraryArgs,
		RunE: group,
	}
	cmd.AddCommand(newVMIReplay(), newVMIRecord())
	return cmd
}

func newVMIReplay() *cobra.Command {
	var file, output string
	var explain bool
	cmd := &cobra.Command{
		Use:   "replay -f BUNDLE",
		Short: "Merge the status of a virtual machine's interfaces from a recorded bundle",
		Long: `Replay computes status.interfaces of a VirtualMachineInstance from a bundle, a YAML or JSON file of
the machine and what was known of it, as the agent does. It asks nobody else. The guest's data is
used whatever its age, and dropped when the bundle says that the agent is not connected.

Exit codes: 0 merged, also with warnings, 1 nothing could be merged, 2 wrong usage.`,
		Example: "  weft vmi replay -f vm.yaml\n  weft vmi replay -f vm.yaml --explain\n  weft vmi replay -f vm.yaml -o json",
		Args:    noArgs("; the bundle is given with -f"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o := getOptions{output: output, namespace: "-"}
			if err := o.check(); err != nil {
				return err
			}
			b, err := readBundle(cmd, file)
			if err != nil {
				return err
			}
			out := b.Replay(explain)
			return o.write(cmd.OutOrStdout(), out, out.WriteTable)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&file, "file", "f", "", "bundle to replay, - for standard input")
	flags.StringVarP(&output, "output", "o", "table", "table, json or yaml")
	flags.BoolVar(&explain, "explain", false, "say of each value which source it is from and which rule chose it")
	return cmd
}

func newVMIRecord() *cobra.Command {
	var file string
	var anonymize bool
	from := &sources{}
	cmd := &cobra.Command{
		Use:   "record NAMESPACE/NAME | -f BUNDLE",
		Short: "Write a bundle for weft vmi replay",
		Long: `Record writes a bundle as YAML to standard output: of a virtual machine of this node, which the
node's agent reads anew from all of its sources, or of a bundle that is there. With --anonymize its IP addresses and MACs have
pseudonyms, the same for the same address everywhere, also in the domain's XML and in annotations;
names stay. A replay of it takes the same decisions.

Exit codes: 0 written, 1 there is nothing to write, 2 wrong usage.`,
		Example: "  weft vmi record default/web > vm.yaml      # on its node\n  weft vmi record -f vm.yaml --anonymize > report.yaml",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := from.record(cmd, args, file)
			if err != nil {
				return err
			}
			return writeBundle(cmd.OutOrStdout(), b, anonymize)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&file, "file", "f", "", "bundle to write again, - for standard input")
	flags.StringVar(&from.socket, "socket", "", "debug socket of this node's agent (default: "+defaultSocket+")")
	flags.DurationVar(&from.timeout, "timeout", 30*time.Second, "give up after this time")
	flags.BoolVar(&anonymize, "anonymize", false, "give addresses and MACs pseudonyms")
	return cmd
}

// writeBundle writes a bundle, on demand with pseudonyms.
func writeBundle(w io.Writer, b *bundle.Bundle, anonymize bool) error {
	if anonymize {
		var err error
		if b, err = bundle.Anonymize(b); err != nil {
			return err
		}
	}
	text, err := b.Marshal()
	if err != nil {
		return err
	}
	if _, err := w.Write(text); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// openRegular opens a file as explain and lint do: a FIFO or a device would be waited for, which
// no signal ends.
func openRegular(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: name, Err: hostfiles.ErrNotRegular}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// readBundle reads no more than a bundle may have.
func readBundle(cmd *cobra.Command, file string) (*bundle.Bundle, error) {
	in := cmd.InOrStdin()
	switch file {
	case "":
		return nil, &sandbox.UsageError{Err: errors.New("no bundle: name one with -f")}
	case "-":
		file = "standard input"
	default:
		f, err := openRegular(file)
		if err != nil {
			return nil, fmt.Errorf("read bundle: %w", err)
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, bundle.MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("read bundle %s: %w", file, err)
	}
	b, err := bundle.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("bundle %s: %s", file, strings.ReplaceAll(err.Error(), "\n", "\nweft: bundle "+file+": "))
	}
	return b, nil
}
