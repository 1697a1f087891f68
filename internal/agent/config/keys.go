// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weftnet/weft/internal/cni/fault"
)

// Key describes one key for people.
type Key struct {
	Name    string // with the section that it is in: "cni.confDir"
	Default string // "" = none; what is written in words stands in parentheses
	Meaning string
}

// Keys lists every key, in the order of the documentation. The keys of a CNI
// configuration that may stand in the section cni are ConfKeys.
func Keys() []Key {
	fields := fields()
	keys := make([]Key, len(fields))
	for i, f := range fields {
		keys[i] = f.Key
	}
	return keys
}

// field is a key, how its value gets into a Config, and what is asked of the value.
type field struct {
	Key
	set   func(*Config, *yaml.Node) error
	check func(*Config) error // nil = every value is right
}

// fields is the table from which everything here works: what is not in it is unknown.
func fields() []field {
	return slices.Concat(nodeFields(), cniFields(), driverFields(), vmiFields())
}

func nodeFields() []field {
	level := func(c *Config) *slog.Level { return &c.Log.Level }
	format := func(c *Config) *string { return &c.Log.Format }
	node := func(c *Config) *string { return &c.NodeName }
	state := func(c *Config) *string { return &c.StateDir }
	sockets := func(c *Config) *string { return &c.SocketDir }
	kubeconfig := func(c *Config) *string { return &c.Kubeconfig }
	return []field{
		{Key{"nodeName", "(`NODE_NAME`, else the hostname)", "name of this node in Kubernetes"}, text(node), checkNodeName},
		{Key{"kubeconfig", "(in-cluster)", "kubeconfig file for the API server"}, text(kubeconfig), absolute(kubeconfig, true)},
		{Key{"stateDir", "/var/lib/weft", "records and lanes of this node; the published configuration names it to weft-cni"}, text(state), absolute(state, false)},
		{Key{"socketDir", "/run/weft", "directory of agent.sock and debug.sock"}, text(sockets), checkSocketDir},
		{Key{"metricsAddress", "127.0.0.1:9479", "where /metrics, /healthz and /readyz are served; \"\" = nowhere"}, text(func(c *Config) *string { return &c.MetricsAddress }), checkMetricsAddress},
		{Key{"pprof", "false", "serve /debug/pprof beside the metrics"}, flag(func(c *Config) *bool { return &c.PProf }), nil},
		{Key{"log.level", "info", "debug, info, warn or error"}, setLevel(level), nil},
		{Key{"log.format", "json", "json or text"}, text(format), oneOf(format, "json", "text")},
	}
}

func cniFields() []field {
	confDir := func(c *Config) *string { return &c.CNI.ConfDir }
	primary := func(c *Config) *string { return &c.CNI.PrimaryConf }
	binDir := func(c *Config) *string { return &c.CNI.BinDir }
	kubelet := func(c *Config) *string { return &c.CNI.KubeletDir }
	return []field{
		{Key{"cni.enabled", "true", "attach the networks that pods ask for by annotation; without it nothing is published and nobody plans, and devices that pods claim are handed over through the runtime's NRI"}, flag(func(c *Config) *bool { return &c.CNI.Enabled }), checkEnabled},
		{Key{"cni.confDir", "/etc/cni/net.d", "where the runtime looks for its CNI configuration: the primary one is found there, and Weft's is published there"}, text(confDir), absolute(confDir, false)},
		{Key{"cni.confName", "00-weft.conflist", "file name of the published configuration; it must come before every other one"}, text(func(c *Config) *string { return &c.CNI.ConfName }), checkConfName},
		{Key{"cni.primaryConf", "(found by content)", "file of the primary configuration"}, text(primary), absolute(primary, true)},
		{Key{"cni.binDir", "/opt/cni/bin", "directory of the CNI plugins on the host"}, text(binDir), absolute(binDir, false)},
		{Key{"cni.statusTimeout", "2s", "how long an ADD waits until network-status is written; what takes longer is written later"}, setDuration(func(c *Config) *time.Duration { return &c.CNI.StatusTimeout }), checkStatusTimeout},
		{Key{"cni.kubeletDir", "/var/lib/kubelet", "where the kubelet's device checkpoint is"}, text(kubelet), absolute(kubelet, false)},
		{Key{"cni.criSocket", "(none)", "socket of the container runtime; not used by this build"}, text(func(c *Config) *string { return &c.CNI.CRISocket }), checkCRISocket},
	}
}

func driverFields() []field {
	kubelet := func(c *Config) *string { return &c.NetworkDriver.KubeletDir }
	nri := func(c *Config) *string { return &c.NetworkDriver.NRISocket }
	sysfs := func(c *Config) *string { return &c.NetworkDriver.Sysfs }
	return []field{
		{Key{"networkDriver.enabled", "false", "give pods the network devices that they claim"}, flag(func(c *Config) *bool { return &c.NetworkDriver.Enabled }), nil},
		{Key{"networkDriver.kubeletDir", "/var/lib/kubelet", "where the kubelet's plugin directories are"}, text(kubelet), absolute(kubelet, false)},
		{Key{"networkDriver.nriSocket", "/var/run/nri/nri.sock", "socket of the runtime's NRI"}, text(nri), absolute(nri, false)},
		{Key{"networkDriver.sysfs", "/sys", "where sysfs is mounted"}, text(sysfs), absolute(sysfs, false)},
	}
}

func vmiFields() []field {
	mode := func(c *Config) *string { return &c.VMI.Mode }
	policy := func(c *Config) *string { return &c.VMI.Policy }
	cache := func(c *Config) *string { return &c.VMI.PodCacheDir }
	proc := func(c *Config) *string { return &c.VMI.ProcDir }
	return []field{
		{Key{"vmi.mode", "disabled", "interfaces of KubeVirt's virtual machines: observe compares what they are with their status, publish writes it, where no virt-handler does"}, text(mode), oneOf(mode, VMIDisabled, VMIObserve, VMIPublish)},
		{Key{"vmi.policy", "family-merge", "family-merge or pod-authoritative"}, text(policy), oneOf(policy, "family-merge", "pod-authoritative")},
		{Key{"vmi.podCacheDir", "/var/run/kubevirt-private/network-info-cache", "where KubeVirt keeps what it knows of pods' interfaces"}, text(cache), absolute(cache, false)},
		{Key{"vmi.procDir", "/proc", "the host's processes, where launchers' libvirt is found"}, text(proc), absolute(proc, false)},
		{Key{"vmi.pollInterval", "2m", "how often a guest that has an address is asked again, between 1s and 1h; domains' and agents' events are looked at at once"}, setDuration(func(c *Config) *time.Duration { return &c.VMI.PollInterval }), checkPollInterval},
	}
}

// text sets a string.
func text(at func(*Config) *string) func(*Config, *yaml.Node) error {
	return func(c *Config, n *yaml.Node) error {
		s, err := scalar(n)
		if err == nil {
			*at(c) = s
		}
		return err
	}
}

func scalar(n *yaml.Node) (string, error) {
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" {
		return "", fmt.Errorf("is %s, a string is needed", kind(n))
	}
	return n.Value, nil
}

func flag(at func(*Config) *bool) func(*Config, *yaml.Node) error {
	return func(c *Config, n *yaml.Node) error {
		var b bool
		if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool" || n.Decode(&b) != nil {
			return fmt.Errorf("is %s, true or false is needed", kind(n))
		}
		*at(c) = b
		return nil
	}
}

func setLevel(at func(*Config) *slog.Level) func(*Config, *yaml.Node) error {
	levels := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}
	return func(c *Config, n *yaml.Node) error {
		s, err := scalar(n)
		if err != nil {
			return err
		}
		level, ok := levels[s]
		if !ok {
			return fmt.Errorf("%s is none of debug, info, warn and error", fault.Quote(s))
		}
		*at(c) = level
		return nil
	}
}

func setDuration(at func(*Config) *time.Duration) func(*Config, *yaml.Node) error {
	return func(c *Config, n *yaml.Node) error {
		s, err := scalar(n)
		if err != nil {
			return fmt.Errorf("is %s, a duration such as \"2s\" is needed", kind(n))
		}
		d, err := time.ParseDuration(s)
		if err != nil {
			return fmt.Errorf("%s is no duration such as \"2s\"", fault.Quote(s))
		}
		*at(c) = d
		return nil
	}
}

func oneOf(at func(*Config) *string, values ...string) func(*Config) error {
	return func(c *Config) error {
		if s := *at(c); !slices.Contains(values, s) {
			return fmt.Errorf("%s is none of %s", fault.Quote(s), strings.Join(values, ", "))
		}
		return nil
	}
}

// absolute asks for an absolute path: an agent has no directory that a person would know.
func absolute(at func(*Config) *string, optional bool) func(*Config) error {
	return func(c *Config) error {
		switch s := *at(c); {
		case s == "" && optional:
			return nil
		case s == "":
			return errors.New("is empty, an absolute path is needed")
		case !strings.HasPrefix(s, "/"):
			return fmt.Errorf("%s is not absolute", fault.Quote(s))
		case strings.ContainsRune(s, 0):
			return fmt.Errorf("%s is no path", fault.Quote(s))
		}
		return nil
	}
}
