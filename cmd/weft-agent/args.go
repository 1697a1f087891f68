// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/weftnet/weft/internal/agent/config"
	"github.com/weftnet/weft/internal/cni/install"
)

const usage = `weft-agent is the brain of a node: it plans the networks of pods for weft-cni, writes
their network-status and publishes the node's CNI configuration.

  weft-agent [run] [flags]           run until SIGTERM
  weft-agent check-config [flags]    tell every fault of the configuration
  weft-agent install [flags]         put weft-cni into cni.binDir
  weft-agent uninstall [flags]       take the published configuration and weft-cni away

Examples:
  weft-agent --config /etc/weft/agent.yaml
  weft-agent check-config --config agent.yaml
  weft-agent --kubeconfig /etc/kubernetes/kubelet.conf --node-name node-1
  weft-agent install --config /etc/weft/agent.yaml
  weft-agent uninstall --config /etc/weft/agent.yaml --force

Flags:
  --config FILE            YAML, see docs/configuration.md; without it every key has its default
  --node-name NAME         comes before nodeName of the file; else NODE_NAME, else the hostname
  --kubeconfig FILE        comes before kubeconfig of the file; else the pod's service account
  --enable-network-driver  comes before networkDriver.enabled of the file
                           (also: --enable-cilium-network-driver)
  --source FILE            install: the weft-cni to put there, instead of the one beside weft-agent
  --force                  uninstall: first detach what pods still have; without it they keep it
                           and nothing is taken away
  --help                   show this text
  --version                show the version

Exit codes: 0 fine, 1 something failed, 2 wrong usage or configuration; then every fault was
told and nothing was touched.
`

// errHelp: the usage was asked for.
var errHelp = errors.New("help")

// options are what the command line says.
type options struct {
	command   string
	config    string
	overrides config.Overrides
	source    string
	force     bool
	version   bool
}

func parse(args []string) (options, error) {
	o := options{command: "run"}
	commands := []string{"run", "check-config", "install", "uninstall"}
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		if args[0] == "help" {
			return o, errHelp
		}
		if !slices.Contains(commands, args[0]) {
			return o, fmt.Errorf("unknown command %q; there are %s", args[0], strings.Join(commands, ", "))
		}
		o.command, args = args[0], args[1:]
	}
	flags := flag.NewFlagSet("weft-agent", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Usage = func() {}
	nodeName, kubeconfig := flags.String("node-name", "", ""), flags.String("kubeconfig", "", "")
	var driver bool
	for _, name := range []string{"enable-network-driver", "enable-cilium-network-driver"} {
		flags.BoolVar(&driver, name, false, "")
	}
	flags.StringVar(&o.config, "config", "", "")
	flags.StringVar(&o.source, "source", "", "")
	flags.BoolVar(&o.force, "force", false, "")
	flags.BoolVar(&o.version, "version", false, "")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			err = errHelp
		}
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	var err error
	flags.Visit(func(f *flag.Flag) {
		switch f.Name {
		case "node-name":
			o.overrides.NodeName = nodeName
		case "kubeconfig":
			o.overrides.Kubeconfig = kubeconfig
		case "enable-network-driver", "enable-cilium-network-driver":
			o.overrides.EnableNetworkDriver = &driver
		case "source", "force":
			if of := map[string]string{"source": "install", "force": "uninstall"}[f.Name]; of != o.command {
				err = fmt.Errorf("flag --%s belongs to weft-agent %s", f.Name, of)
			}
		}
	})
	return o, err
}

// fallback is the node's name when nobody wrote one: NODE_NAME, else the hostname in the
// form in which the kubelet takes it.
func (h host) fallback() string {
	if h.nodeName != "" {
		return h.nodeName
	}
	name, err := h.hostname()
	if err != nil {
		return ""
	}
	return strings.ToLower(strings.TrimSpace(name))
}

// faults tells every fault of the configuration, one a line.
func (h host) faults(err error) int {
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintf(h.stderr, "weft-agent: %s\n", strings.TrimSpace(line))
	}
	return 2
}

func (h host) install(ctx context.Context, cfg config.Config, o options) error {
	changed, err := install.Install(ctx, places(cfg, o))
	switch {
	case err != nil:
		return err
	case changed:
		fmt.Fprintf(h.stderr, "put %s into %s\n", install.Plugin, cfg.CNI.BinDir)
	default:
		fmt.Fprintf(h.stderr, "%s in %s is this one already\n", install.Plugin, cfg.CNI.BinDir)
	}
	return nil
}

// places are where the configuration says that things are.
func places(cfg config.Config, o options) install.Options {
	return install.Options{
		ConfDir: cfg.CNI.ConfDir, ConfName: cfg.CNI.ConfName, BinDir: cfg.CNI.BinDir, StateDir: cfg.StateDir,
		AgentSocket: cfg.AgentSocket(), Source: o.source, Force: o.force,
	}
}
