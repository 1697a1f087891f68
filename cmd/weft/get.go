// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/weftnet/weft/internal/inspect"
	"github.com/weftnet/weft/internal/kube/rest"
	"github.com/weftnet/weft/internal/sandbox"
)

// getOptions are the flags of all get commands.
type getOptions struct {
	kubeconfig, namespace, output string
	all                           bool
	timeout                       time.Duration
	getenv                        func(string) string
}

func newGet(getenv func(string) string) *cobra.Command {
	o := &getOptions{getenv: getenv}
	cmd := &cobra.Command{
		Use:   "get",
		Short: "List networks, or pods and their interfaces, from an API server",
		Long: `Get lists what the API server knows, and says what it cannot see from there. Files need no
server: weft lint and weft explain.

Exit codes: 0 listed, 1 the server could not be asked, 2 wrong usage.`,
		Example: "  weft get networks -A\n  weft get pods -n web -o yaml",
		Args:    cobra.ArbitraryArgs,
		RunE:    group,
	}
	flags := cmd.PersistentFlags()
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file (default: $KUBECONFIG, else ~/.kube/config)")
	flags.StringVarP(&o.namespace, "namespace", "n", "default", "namespace to list")
	flags.BoolVarP(&o.all, "all-namespaces", "A", false, "list all namespaces")
	flags.StringVarP(&o.output, "output", "o", "table", "table, json or yaml")
	flags.DurationVar(&o.timeout, "timeout", 30*time.Second, "give up after this time")
	cmd.AddCommand(o.list("networks", "List NetworkAttachmentDefinitions, their plugins and how many pods use them",
		"  weft get networks -n web\n  weft get networks -A -o json", o.networks))
	cmd.AddCommand(o.list("pods", "List pods: the networks they ask for, and whether their status has them all",
		"  weft get pods -n web\n  weft get pods -A -o yaml", o.pods))
	return cmd
}

func (o *getOptions) list(what, short, example string, show func(context.Context, *cobra.Command, *rest.Client, string) error) *cobra.Command {
	return &cobra.Command{
		Use: what, Short: short, Example: example, Args: noArgs(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := o.client()
			if err != nil {
				return err
			}
			defer client.Close()
			namespace := o.namespace
			if o.all {
				namespace = ""
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), o.timeout)
			defer cancel()
			return show(ctx, cmd, client, namespace)
		},
	}
}

func (o *getOptions) client() (*rest.Client, error) {
	switch {
	case o.output != "table" && o.output != "json" && o.output != "yaml":
		return nil, &sandbox.UsageError{Err: fmt.Errorf("unknown output %q: table, json or yaml", o.output)}
	case o.timeout <= 0:
		return nil, &sandbox.UsageError{Err: fmt.Errorf("timeout %s is not above 0", o.timeout)}
	case o.namespace == "" && !o.all:
		return nil, &sandbox.UsageError{Err: errors.New("namespace is empty: name one with -n, or -A for all")}
	}
	path := o.kubeconfig
	if path == "" {
		path = o.getenv("KUBECONFIG")
		if files := filepath.SplitList(path); len(files) > 1 {
			return nil, &sandbox.UsageError{Err: fmt.Errorf("$KUBECONFIG names %d files; name one with --kubeconfig", len(files))}
		}
	}
	if home := o.getenv("HOME"); path == "" && home != "" {
		path = filepath.Join(home, ".kube", "config")
	}
	if path == "" {
		return nil, &sandbox.UsageError{Err: errors.New("which server? Name a kubeconfig with --kubeconfig")}
	}
	cfg, err := rest.Load(path)
	if err != nil {
		return nil, &sandbox.UsageError{Err: fmt.Errorf("read kubeconfig %s: %w; name another with --kubeconfig", path, err)}
	}
	return rest.New(cfg), nil
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
