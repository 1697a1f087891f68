// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/weftnet/weft/internal/agent/debug"
	"github.com/weftnet/weft/internal/inspect"
	"github.com/weftnet/weft/internal/kube/rest"
	"github.com/weftnet/weft/internal/sandbox"
)

// getOptions are the flags of all get commands.
type getOptions struct {
	sources
	namespace, output string
	all               bool
}

func newGet(getenv func(string) string) *cobra.Command {
	o := &getOptions{sources: sources{getenv: getenv}}
	cmd := &cobra.Command{
		Use:   "get",
		Short: "List networks, or pods and their interfaces, from a node's agent or an API server",
		Long: `Get lists what the node's agent knows, where its debug socket is there: every attachment as it
is recorded, and whether the pod's status is written. Elsewhere, and with --kubeconfig, it lists
what the API server knows, and says what it cannot see from there. Files need no server:
weft lint and weft explain.

Exit codes: 0 listed, 1 who was asked gave no answer, 2 wrong usage, or there is nobody to ask: neither
an agent nor a kubeconfig.`,
		Example: "  weft get networks -A\n  weft get pods -n web -o yaml\n  weft get node                  # on a node",
		Args:    cobra.ArbitraryArgs,
		RunE:    group,
	}
	o.flags(cmd)
	flags := cmd.PersistentFlags()
	flags.StringVarP(&o.namespace, "namespace", "n", "default", "namespace to list; of an agent all, unless it is given")
	flags.BoolVarP(&o.all, "all-namespaces", "A", false, "list all namespaces")
	flags.StringVarP(&o.output, "output", "o", "table", "table, json or yaml")
	cmd.AddCommand(o.list("networks", "List NetworkAttachmentDefinitions, their plugins and how many pods use them",
		"  weft get networks -n web\n  weft get networks -A -o json\n  weft get networks --socket /run/weft/debug.sock", o.agentNetworks, o.networks))
	cmd.AddCommand(o.list("pods", "List pods: the networks they ask for or have, and whether their status has them all",
		"  weft get pods -n web\n  weft get pods -A -o yaml\n  weft get pods --kubeconfig ~/.kube/config   # on a node: what the API server knows", o.agentPods, o.pods))
	cmd.AddCommand(o.list("devices", "List network devices: who has them, and of which pool",
		"  weft get devices                    # on a node: also what is not offered\n  weft get devices --kubeconfig ~/.kube/config -o json", o.agentDevices, o.devices))
	cmd.AddCommand(o.list("claims", "List the claims that have network devices, and the devices",
		"  weft get claims\n  weft get claims -A -o yaml", o.agentClaims, o.claims))
	cmd.AddCommand(o.configs(), o.node(), o.vmis())
	return cmd
}

func (o *getOptions) list(what, short, example string, ask func(context.Context, *cobra.Command, *debug.Client, string) error,
	show func(context.Context, *cobra.Command, *rest.Client, string) error,
) *cobra.Command {
	return &cobra.Command{
		Use: what, Short: short, Example: example, Args: noArgs(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			ctx, cancel, err := o.context(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			namespace := o.namespace
			if o.all {
				namespace = ""
			}
			done, err := o.instead(cmd, func(agent *debug.Client) error {
				if !cmd.Flags().Changed("namespace") {
					return ask(ctx, cmd, agent, "")
				}
				return ask(ctx, cmd, agent, namespace)
			})
			if done || err != nil {
				return err
			}
			client, err := o.client()
			if err != nil {
				return err
			}
			defer client.Close()
			return show(ctx, cmd, client, namespace)
		},
	}
}

func (o *getOptions) check() error {
	switch {
	case o.output != "table" && o.output != "json" && o.output != "yaml":
		return &sandbox.UsageError{Err: fmt.Errorf("unknown output %q: table, json or yaml", o.output)}
	case o.namespace == "" && !o.all:
		return &sandbox.UsageError{Err: errors.New("namespace is empty: name one with -n, or -A for all")}
	}
	return nil
}

// node has no counterpart of the API server.
func (o *getOptions) node() *cobra.Command {
	return &cobra.Command{
		Use:   "node",
		Short: "Show the state of this node's agent: readiness with reasons, configuration, counts, versions",
		Long: `Node shows what the agent of this node says of itself. From elsewhere: weft explain node NAME.

Exit codes: 0 the agent answered, 1 it did not, 2 wrong usage.`,
		Example: "  weft get node\n  weft get node -o json --socket /run/weft/debug.sock",
		Args:    noArgs("; another node: weft explain node NAME"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			if o.kubeconfig != "" {
				return &sandbox.UsageError{Err: errors.New("get node asks the agent, not an API server; for that: weft explain node NAME")}
			}
			ctx, cancel, err := o.context(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			client := debug.NewClient(cmp.Or(o.socket, defaultSocket))
			defer client.Close()
			state, err := inspect.AgentNode(ctx, client)
			if err != nil {
				return err
			}
			return o.write(cmd.OutOrStdout(), state, state.WriteTable)
		},
	}
}

func (o *getOptions) agentNetworks(ctx context.Context, cmd *cobra.Command, agent *debug.Client, namespace string) error {
	l, err := inspect.AgentNetworks(ctx, agent, namespace)
	if err != nil {
		return err
	}
	notSeen(cmd.ErrOrStderr(), l.Unseen)
	return o.write(cmd.OutOrStdout(), l, l.WriteTable)
}

func (o *getOptions) agentPods(ctx context.Context, cmd *cobra.Command, agent *debug.Client, namespace string) error {
	l, err := inspect.AgentPods(ctx, agent, namespace)
	if err != nil {
		return err
	}
	notSeen(cmd.ErrOrStderr(), l.Unseen)
	return o.write(cmd.OutOrStdout(), l, l.WriteTable)
}

func (o *getOptions) networks(ctx context.Context, cmd *cobra.Command, client *rest.Client, namespace string) error {
	l, err := inspect.Networks(ctx, client, namespace)
	if err != nil {
		return err
	}
	notSeen(cmd.ErrOrStderr(), l.Unseen)
	return o.write(cmd.OutOrStdout(), l, l.WriteTable)
}

func (o *getOptions) pods(ctx context.Context, cmd *cobra.Command, client *rest.Client, namespace string) error {
	l, err := inspect.Pods(ctx, client, namespace)
	if err != nil {
		return err
	}
	if l.Others > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "weft: pods that ask for no network and have no status, left out: %d\n", l.Others)
	}
	notSeen(cmd.ErrOrStderr(), l.Unseen)
	return o.write(cmd.OutOrStdout(), l, l.WriteTable)
}

func (o *getOptions) agentDevices(ctx context.Context, cmd *cobra.Command, agent *debug.Client, _ string) error {
	l, err := inspect.AgentDevices(ctx, agent)
	if err != nil {
		return err
	}
	notSeen(cmd.ErrOrStderr(), l.Unseen)
	return o.write(cmd.OutOrStdout(), l, l.WriteTable)
}

func (o *getOptions) agentClaims(ctx context.Context, cmd *cobra.Command, agent *debug.Client, namespace string) error {
	l, err := inspect.AgentClaims(ctx, agent, namespace)
	if err != nil {
		return err
	}
	notSeen(cmd.ErrOrStderr(), l.Unseen)
	return o.write(cmd.OutOrStdout(), l, l.WriteTable)
}

// devices have no namespace.
func (o *getOptions) devices(ctx context.Context, cmd *cobra.Command, client *rest.Client, _ string) error {
	l, err := inspect.Devices(ctx, client)
	if err != nil {
		return err
	}
	notSeen(cmd.ErrOrStderr(), l.Unseen)
	return o.write(cmd.OutOrStdout(), l, l.WriteTable)
}

func (o *getOptions) claims(ctx context.Context, cmd *cobra.Command, client *rest.Client, namespace string) error {
	l, err := inspect.Claims(ctx, client, namespace)
	if err != nil {
		return err
	}
	notSeen(cmd.ErrOrStderr(), l.Unseen)
	return o.write(cmd.OutOrStdout(), l, l.WriteTable)
}

// configs are the API server's alone.
func (o *getOptions) configs() *cobra.Command {
	return &cobra.Command{
		Use:     "configs",
		Short:   "List the nodes' configurations of the network driver, and what became of them",
		Example: "  weft get configs --kubeconfig ~/.kube/config\n  weft get configs -o json",
		Args:    noArgs(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			if o.socket != "" {
				return &sandbox.UsageError{Err: errors.New("get configs asks an API server, not an agent: leave --socket out")}
			}
			ctx, cancel, err := o.context(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			client, err := o.client()
			if err != nil {
				return err
			}
			defer client.Close()
			l, err := inspect.Configs(ctx, client)
			if err != nil {
				return err
			}
			notSeen(cmd.ErrOrStderr(), l.Unseen)
			return o.write(cmd.OutOrStdout(), l, l.WriteTable)
		},
	}
}

func notSeen(w io.Writer, texts []string) {
	for _, text := range texts {
		fmt.Fprintf(w, "weft: not seen from here: %s\n", text)
	}
}

func (o *getOptions) write(w io.Writer, v any, table func(io.Writer) error) error {
	if o.output != "yaml" {
		return write(w, o.output, v, table, false)
	}
	b, err := toYAML(v)
	if err == nil {
		_, err = w.Write(b)
	}
	if err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// toYAML writes v as YAML with the keys and the order of its JSON form.
func toYAML(v any) ([]byte, error) {
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return nil, err
	}
	var n yaml.Node
	if err := yaml.Unmarshal([]byte(b.String()), &n); err != nil {
		return nil, err
	}
	plain(&n)
	var out bytes.Buffer
	y := yaml.NewEncoder(&out)
	y.SetIndent(2)
	err := errors.Join(y.Encode(&n), y.Close())
	return out.Bytes(), err
}

// plain takes JSON's brackets and quotes away, where they are not needed.
func plain(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode || len(n.Content) > 0 {
		n.Style = 0
	}
	for _, child := range n.Content {
		plain(child)
	}
}
