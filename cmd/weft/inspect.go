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

	"github.com/weftnet/weft/internal/agent/debug"
	"github.com/weftnet/weft/internal/inspect"
	"github.com/weftnet/weft/internal/sandbox"
)

// explainOptions are the flags of explain.
type explainOptions struct {
	sources
	files                []string
	conf, binDir, output string
}

func newExplain(getenv func(string) string) *cobra.Command {
	o := &explainOptions{sources: sources{getenv: getenv}}
	cmd := &cobra.Command{
		Use:   "explain [-f FILE…] [pod NAMESPACE/NAME | node NAME | vmi NAMESPACE/NAME]",
		Short: "Show every decision of a pod's plan, and the first thing that would fail",
		Long: `Explain plans pods as a node would, without running anything. It shows every attachment with
the reason for its network, interface name, configuration, capabilities, device and default
route, and where that reason is written.

With -f the pods are those of files or directories (*.yaml, *.yml, *.json). What only a node has
is taken from this machine where it is there, and otherwise said to be not seen. The files of
confDir and the cluster network's can be given with -f.

Without -f the pod is the cluster's. On the pod's node its agent plans it, with all that the node
has; elsewhere, and with --kubeconfig or --conf, the pod and the networks that it names are read
from the API server, and what only the node has is said to be not seen.

explain node says what keeps a node from attaching pods, as far as its agent (on that node) and
the API server show; weft doctor looks at the node's files.

explain vmi shows where each value of a virtual machine's status.interfaces comes from and by which
rule, as the agent of its node knows it, and in what the status that is written is not so.

Exit codes: 0 nothing that can be seen fails, 1 a fault was found, 2 wrong usage.`,
		Example: `  weft explain -f examples/demo
  weft explain -f examples/demo pod default/by-json
  weft explain -f examples/demo --conf /etc/cni/net.d/00-multus.conf -o json
  weft explain -f examples/demo --bin-dir /opt/cni/bin    # are the plugins there?
  weft explain pod default/web                            # of the cluster
  weft explain node worker-1
  weft explain vmi default/web                            # on its node`,
		Args: cobra.ArbitraryArgs,
		RunE: o.run,
	}
	o.flags(cmd)
	inspectFlags(cmd, &o.files, &o.conf, &o.output)
	cmd.Flags().StringVar(&o.binDir, "bin-dir", "", "look for the plugins in these directories, separated by colons")
	return cmd
}

func (o *explainOptions) run(cmd *cobra.Command, args []string) error {
	if err := outputs(o.output); err != nil {
		return err
	}
	if len(o.files) == 0 && len(args) == 2 {
		switch args[0] {
		case "node":
			return o.node(cmd, args[1])
		case "vmi":
			return o.vmi(cmd, args[1])
		}
	}
	pod, err := podArgument(args)
	if err != nil {
		return err
	}
	if len(o.files) == 0 && pod != "" {
		namespace, name, _ := strings.Cut(pod, "/")
		return o.pod(cmd, namespace, name)
	}
	w, err := load(o.files, o.conf, o.output)
	if err != nil {
		return err
	}
	e, err := w.Explain(cmd.Context(), pod, o.binDir)
	if err != nil {
		return err
	}
	if len(e.Pods) == 0 {
		fmt.Fprintln(cmd.ErrOrStderr(), "weft: the files hold no pod")
	}
	return unread(w, write(cmd.OutOrStdout(), o.output, e, e.WriteTable, e.Faulty()))
}

// pod explains a pod of the cluster: by the agent of its node, else from the API server.
func (o *explainOptions) pod(cmd *cobra.Command, namespace, name string) error {
	ctx, cancel, err := o.context(cmd)
	if err != nil {
		return err
	}
	defer cancel()
	if o.conf == "" {
		done, err := o.instead(cmd, func(agent *debug.Client) error {
			e, err := inspect.ExplainByAgent(ctx, agent, namespace, name, o.binDir)
			if err != nil {
				return err
			}
			return write(cmd.OutOrStdout(), o.output, e, e.WriteTable, e.Faulty())
		})
		if done || err != nil {
			return err
		}
	} else if o.socket != "" {
		return &sandbox.UsageError{Err: errors.New("the agent plans with its own configuration: leave out --conf or --socket")}
	}
	client, err := o.client()
	if err != nil {
		return err
	}
	defer client.Close()
	w, err := inspect.Live(client, o.conf)
	if err != nil {
		return &sandbox.UsageError{Err: err}
	}
	if err := w.Fetch(ctx, namespace, name); err != nil {
		return err
	}
	e, err := w.Explain(ctx, namespace+"/"+name, o.binDir)
	if err != nil {
		return err
	}
	return write(cmd.OutOrStdout(), o.output, e, e.WriteTable, e.Faulty())
}

func (o *explainOptions) node(cmd *cobra.Command, name string) error {
	ctx, cancel, err := o.context(cmd)
	if err != nil {
		return err
	}
	defer cancel()
	var state *debug.NodeAnswer
	if agent := o.agent(); agent != nil {
		defer agent.Close()
		if state, err = agent.Node(ctx); err != nil {
			state = nil
			fmt.Fprintf(cmd.ErrOrStderr(), "weft: %v\n", err)
		}
	}
	if state == nil && !o.hasClient() {
		return &sandbox.UsageError{Err: errors.New("who is asked? Name a kubeconfig with --kubeconfig, or on the node the agent's socket with --socket")}
	}
	c := inspect.ExplainNode(ctx, name, state, nil)
	if o.hasClient() {
		client, err := o.client()
		if err != nil {
			return err
		}
		defer client.Close()
		c = inspect.ExplainNode(ctx, name, state, client)
	}
	nobody := len(c.Checks) == 0
	return write(cmd.OutOrStdout(), o.output, c, c.WriteTable, nobody || c.Faulty())
}

func outputs(output string) error {
	if output != "table" && output != "json" {
		return &sandbox.UsageError{Err: fmt.Errorf("unknown output %q: table or json", output)}
	}
	return nil
}

func newLint() *cobra.Command {
	var files []string
	var conf, output string
	cmd := &cobra.Command{
		Use:   "lint -f FILE…",
		Short: "Find all mistakes in networks, pods and CNI configurations",
		Long: `Lint checks files or directories: NetworkAttachmentDefinitions and Pods (*.yaml, *.yml,
*.json), and CNI configurations (*.conf, *.conflist) of Weft or Multus and of other networks.
Pods are checked together with the networks that they name, so give lint all of them. Of the
network driver it checks node and cluster configurations, and the parameters in claims, templates
of claims and device classes. It shows all faults and warnings, each with its file and line.
Directories below a directory, and pod templates (of a Deployment and the like), are not read.

Exit codes: 0 no fault (there may be warnings), 1 a fault was found, 2 wrong usage.`,
		Example: `  weft lint -f examples/demo
  weft lint -f networks.yaml -f pods.yaml --conf 00-multus.conf
  weft lint -f examples/demo -o json`,
		Args: noArgs(": files and directories are named with -f"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			w, err := load(files, conf, output)
			if err != nil {
				return err
			}
			r := w.Lint(cmd.Context())
			fmt.Fprintf(cmd.ErrOrStderr(), "weft: %s\n", r.Summary())
			return unread(w, write(cmd.OutOrStdout(), output, r, r.WriteTable, len(r.Faults) > 0))
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
	return "", &sandbox.UsageError{Err: fmt.Errorf("unknown arguments %q: one pod is named as pod NAMESPACE/NAME, files with -f, and without those a node as node NAME", args)}
}

func load(files []string, conf, output string) (*inspect.World, error) {
	if len(files) == 0 {
		return nil, &sandbox.UsageError{Err: errors.New("which files? Name files or directories with -f")}
	}
	if err := outputs(output); err != nil {
		return nil, err
	}
	w, err := inspect.Load(files, conf)
	if err != nil {
		return nil, &sandbox.UsageError{Err: err}
	}
	return w, nil
}

// unread is err, or, whatever else was found, that some of the files could not be read.
func unread(w *inspect.World, err error) error {
	if files := w.Unread(); files != nil {
		return &sandbox.UsageError{Err: files}
	}
	return err
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
