// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/spf13/cobra"

	"github.com/weftnet/weft/internal/agent/debug"
	"github.com/weftnet/weft/internal/host/kernel"
	"github.com/weftnet/weft/internal/host/version"
	"github.com/weftnet/weft/internal/inspect"
	"github.com/weftnet/weft/internal/sandbox"
)

func newDoctor(getenv func(string) string) *cobra.Command {
	s := &sources{getenv: getenv}
	var o inspect.DoctorOptions
	var output, nic string
	var migrate bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this node, and say what to do about what is wrong",
		Long: `Doctor looks at the node that it runs on: which configuration the runtime takes, whether it and
the default network's are right, the plugins of all networks, weft-cni and its version, the agent
and its sockets, the state directory and its records, the sockets of kubelet and runtime, mounts,
what Multus left; with a kubeconfig (--kubeconfig, else $KUBECONFIG) the rights of an account.
It changes nothing. What it may not look into it says: run it as root.

Paths are what flags say, else the agent, else the published configuration, else the defaults. With
--root all of them, those of flags too, are below it.

With --migrate it looks at a node with Multus on it instead, before or during the change to Weft, or
at copies of its directories: which of Multus' settings have to be taken along, which file becomes
the pod network's, what Multus remembers of its pods, with a kubeconfig networks and pods that
Weft would refuse. A fault stands in the way; a warning will be different.

With --nic it describes a network card instead, for a report about SR-IOV: kernel, driver, switch
mode, and its virtual functions as sysfs and as the card show them.

Exit codes: 0 no fault (there may be warnings), 1 a fault was found, 2 wrong usage.`,
		Example: `  weft doctor
  weft doctor -o json
  weft doctor --migrate --kubeconfig admin.conf --node NODE
  weft doctor --migrate --root /host --daemon-config /etc/cni/multus-daemon.json -o json
  weft doctor --nic ens1f0
  weft doctor --root /host                    # a host's files, mounted there
  weft doctor --conf-dir /etc/kubernetes/cni/net.d --bin-dir /usr/libexec/cni
  weft doctor --kubeconfig admin.conf --service-account kube-system/weft-agent`,
		Args: noArgs("; another node: weft explain node NAME"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkDoctor(s, &o, output); err != nil {
				return err
			}
			if err := checkMigrate(migrate, nic, o); err != nil {
				return err
			}
			if nic != "" {
				return doctorNIC(cmd, o, nic, output)
			}
			look := inspect.Doctor
			if migrate {
				look = inspect.Migrate
			}
			return doctor(cmd, s, o, output, look)
		},
	}
	s.flags(cmd)
	flags := cmd.Flags()
	doctorFlags(cmd, &o)
	flags.BoolVar(&migrate, "migrate", false, "look at what a change from Multus would meet")
	flags.StringVar(&nic, "nic", "", "describe the network card of this interface, and nothing else")
	flags.StringVarP(&output, "output", "o", "table", "table or json")
	return cmd
}

// doctorFlags say where things are.
func doctorFlags(cmd *cobra.Command, o *inspect.DoctorOptions) {
	flags := cmd.Flags()
	flags.StringVar(&o.Root, "root", "", "where the root directory of the host is mounted (default: this machine's own)")
	flags.StringVar(&o.ConfDir, "conf-dir", "", "directory of the runtime's CNI configurations")
	flags.StringVar(&o.BinDir, "bin-dir", "", "directories of the plugins, separated by colons")
	flags.StringVar(&o.StateDir, "state-dir", "", "state directory of Weft")
	flags.StringVar(&o.KubeletDir, "kubelet-dir", "", "directory of the kubelet")
	flags.StringVar(&o.ServiceAccount, "service-account", "", "whose rights are asked for, as NAMESPACE/NAME (default: the kubeconfig's account)")
	flags.StringVar(&o.CNIDir, "cni-dir", "", "with --migrate: where Multus keeps its records (default: as its configuration says)")
	flags.StringVar(&o.DaemonConf, "daemon-config", "", "with --migrate: the configuration of Multus' daemon, like all of these below --root (default: multus.d/daemon-config.json of conf-dir)")
	flags.StringVar(&o.NodeName, "node", "", "with --migrate: whose pods are looked at (default: those of all nodes)")
}

// doctorNIC describes a card of this machine: links and what a card says of its virtual functions are
// not among a host's files.
func doctorNIC(cmd *cobra.Command, o inspect.DoctorOptions, nic, output string) error {
	if o.Root != "" {
		return &sandbox.UsageError{Err: errors.New("a card is that of the machine that this runs on: leave out --root")}
	}
	const sysfs = "/sys"
	machine, err := kernel.Open(sysfs)
	if err != nil {
		return err
	}
	defer machine.Close()
	report, err := inspect.LookAtNIC(machine, sysfs, nic)
	if err != nil {
		return err
	}
	return write(cmd.OutOrStdout(), output, report, report.WriteTable, false)
}

func checkDoctor(s *sources, o *inspect.DoctorOptions, output string) error {
	usage := func(format string, args ...any) error {
		return &sandbox.UsageError{Err: fmt.Errorf(format, args...)}
	}
	if err := outputs(output); err != nil {
		return err
	}
	if o.Root != "" {
		if info, err := os.Stat(o.Root); err != nil || !info.IsDir() {
			return usage("root %q is no directory", o.Root)
		}
		if o.Root = filepath.Clean(o.Root); o.Root == "/" {
			o.Root = ""
		}
	}
	if o.Root != "" && s.socket != "" {
		return usage("files below --root belong to a host that is looked at without its agent: leave out --socket")
	}
	for name, path := range map[string]string{"conf-dir": o.ConfDir, "state-dir": o.StateDir, "kubelet-dir": o.KubeletDir, "cni-dir": o.CNIDir, "daemon-config": o.DaemonConf} {
		if path != "" && !filepath.IsAbs(path) {
			return usage("%s %q is no absolute path", name, path)
		}
	}
	return checkAccount(s, o.ServiceAccount)
}

func checkMigrate(migrate bool, nic string, o inspect.DoctorOptions) error {
	switch {
	case migrate && nic != "":
		return &sandbox.UsageError{Err: errors.New("--migrate looks at a node and --nic at a card: which one?")}
	case !migrate && o.CNIDir+o.DaemonConf+o.NodeName != "":
		return &sandbox.UsageError{Err: errors.New("--cni-dir, --daemon-config and --node are for --migrate")}
	}
	return nil
}

func checkAccount(s *sources, account string) error {
	if account == "" {
		return nil
	}
	if !regexp.MustCompile(`^[a-z0-9.-]+/[a-z0-9.-]+$`).MatchString(account) {
		return &sandbox.UsageError{Err: fmt.Errorf("service account %q is not of the form NAMESPACE/NAME", account)}
	}
	if s.kubeconfig == "" && s.getenv("KUBECONFIG") == "" {
		return &sandbox.UsageError{Err: errors.New("which server has that service account? Name a kubeconfig with --kubeconfig")}
	}
	return nil
}

func doctor(cmd *cobra.Command, s *sources, o inspect.DoctorOptions, output string, look func(context.Context, inspect.DoctorOptions) *inspect.Checkup) error {
	ctx, cancel, err := s.context(cmd)
	if err != nil {
		return err
	}
	defer cancel()
	if o.Root == "" {
		path := s.socket
		if path == "" {
			path = defaultSocket
		}
		client := debug.NewClient(path)
		defer client.Close()
		o.Agent = client
	}
	if s.kubeconfig != "" || s.getenv("KUBECONFIG") != "" {
		client, err := s.client()
		if err != nil {
			return err
		}
		defer client.Close()
		o.API = client
	}
	o.Version, o.Now = version.String(), time.Now()
	c := look(ctx, o)
	fmt.Fprintf(cmd.ErrOrStderr(), "weft: %s\n", c.Summary())
	return write(cmd.OutOrStdout(), output, c, c.WriteTable, c.Faulty())
}
