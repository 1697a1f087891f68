// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weftnet/weft/internal/agent/debug"
	"github.com/weftnet/weft/internal/inspect"
	"github.com/weftnet/weft/internal/sandbox"
	"github.com/weftnet/weft/internal/vm/bundle"
	"github.com/weftnet/weft/internal/vm/source"
)

// vmis lists virtual machines.
func (o *getOptions) vmis() *cobra.Command {
	var libvirt string
	cmd := &cobra.Command{
		Use:   "vmis",
		Short: "List virtual machines and their interfaces, as domain, guest, pod and status have them",
		Long: `Vmis lists virtual machines. On a node its agent (vmi.mode observe or publish) says what is known
of them; elsewhere, and with --kubeconfig, their status is shown as it is written. With --libvirt
the running machines of a libvirt of this machine are asked, without Kubernetes. -o wide has more
columns, and below them what is wrong: shared MACs, an agent that is away, addresses that
contradict the pod's, and where the written status differs.

Exit codes: 0 listed, 1 who was asked gave no answer, 2 wrong usage, or there is nobody to ask: neither
an agent nor a kubeconfig.`,
		Example: "  weft get vmis -o wide                   # on a node\n  weft get vmis -A --kubeconfig ~/.kube/config\n  weft get vmis --libvirt qemu:///system",
		Args:    noArgs(""),
	}
	cmd.Flags().StringVar(&libvirt, "libvirt", "", "ask a libvirt of this machine: qemu:///system, qemu:///session, qemu+unix:///system?socket=PATH")
	// In place of the flag of all get commands, which knows no wide.
	cmd.Flags().StringVarP(&o.output, "output", "o", "table", "table, wide, json or yaml")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		wide := o.output == "wide"
		if wide {
			o.output = "table"
		}
		if err := o.check(); err != nil {
			return err
		}
		if libvirt != "" && (o.socket != "" || o.kubeconfig != "") {
			return &sandbox.UsageError{Err: errors.New("--libvirt asks neither an agent nor an API server: which one?")}
		}
		list, err := o.findVMIs(cmd, libvirt)
		if err != nil {
			return err
		}
		notSeen(cmd.ErrOrStderr(), list.Unseen)
		return o.write(cmd.OutOrStdout(), list, list.Table(wide))
	}
	return cmd
}

func (o *getOptions) findVMIs(cmd *cobra.Command, libvirt string) (*inspect.VMIList, error) {
	if libvirt != "" {
		return o.libvirtVMIs(cmd, libvirt)
	}
	namespace := o.namespace
	if o.all {
		namespace = ""
	}
	return o.vmiList(cmd, namespace, "", cmd.Flags().Changed("namespace"))
}

func (o *getOptions) libvirtVMIs(cmd *cobra.Command, uri string) (*inspect.VMIList, error) {
	const perMachine = 10 * time.Second
	local, err := source.ParseLocal(uri, o.getenv("XDG_RUNTIME_DIR"))
	if err != nil {
		return nil, &sandbox.UsageError{Err: err}
	}
	ctx, cancel, err := o.context(cmd)
	if err != nil {
		return nil, err
	}
	defer cancel()
	return inspect.LibvirtVMIs(ctx, local.Dial, local.Name, perMachine)
}

// vmiList asks the agent, else the API server. An agent is asked for all namespaces unless one was
// named.
func (s *sources) vmiList(cmd *cobra.Command, namespace, name string, named bool) (*inspect.VMIList, error) {
	ctx, cancel, err := s.context(cmd)
	if err != nil {
		return nil, err
	}
	defer cancel()
	var list *inspect.VMIList
	done, err := s.instead(cmd, func(agent *debug.Client) (err error) {
		asked := namespace
		if !named {
			asked = ""
		}
		list, err = inspect.AgentVMIs(ctx, agent, asked, name)
		return err
	})
	if done || err != nil {
		return list, err
	}
	client, err := s.client()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return inspect.VMIs(ctx, client, namespace, name)
}

// vmiArgument reads NAMESPACE/NAME.
func vmiArgument(arg string) (namespace, name string, err error) {
	namespace, name, ok := strings.Cut(arg, "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return "", "", &sandbox.UsageError{Err: fmt.Errorf("%q is no NAMESPACE/NAME of a virtual machine", arg)}
	}
	return namespace, name, nil
}

// vmi explains a virtual machine.
func (o *explainOptions) vmi(cmd *cobra.Command, arg string) error {
	namespace, name, err := vmiArgument(arg)
	if err != nil {
		return err
	}
	list, err := o.vmiList(cmd, namespace, name, true)
	if err != nil {
		return err
	}
	e, err := list.Explain(arg)
	if err != nil {
		return err
	}
	if err := write(cmd.OutOrStdout(), o.output, e, e.WriteTable, false); err != nil {
		return err
	}
	if !e.OK {
		return errFound
	}
	return nil
}

// record reads a bundle from the agent, or from a file.
func (s *sources) record(cmd *cobra.Command, args []string, file string) (*bundle.Bundle, error) {
	switch {
	case len(args) == 0:
		return readBundle(cmd, file)
	case file != "":
		return nil, &sandbox.UsageError{Err: errors.New("a virtual machine and a bundle are named: which one?")}
	}
	namespace, name, err := vmiArgument(args[0])
	if err != nil {
		return nil, err
	}
	ctx, cancel, err := s.context(cmd)
	if err != nil {
		return nil, err
	}
	defer cancel()
	agent := debug.NewClient(cmp.Or(s.socket, defaultSocket))
	defer agent.Close()
	text, err := agent.RecordVMI(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	b, err := bundle.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("read what the agent recorded: %w", err)
	}
	return b, nil
}
