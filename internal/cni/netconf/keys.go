// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package netconf

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/weftnet/weft/internal/cni/fault"
)

// Key describes one key of Weft's configuration for people.
type Key struct {
	Name    string
	Default string // "" = none; what is written in words stands in parentheses
	Meaning string
}

// Keys lists every key that Weft knows, in the order of the documentation.
func Keys() []Key {
	fields := fields()
	keys := make([]Key, len(fields))
	for i, f := range fields {
		keys[i] = f.Key
	}
	return keys
}

// Defaults of keys, where a caller has to name them.
const (
	DefaultAgentSocket = "/run/weft/agent.sock"
	DefaultStateDir    = "/var/lib/weft"
	DefaultCNIDir      = "/var/lib/cni/multus"
	DefaultTimeout     = 90 * time.Second

	defaultConfDir         = "/etc/cni/multus/net.d"
	defaultBinDir          = "/opt/cni/bin"
	defaultMultusNamespace = "kube-system"
	defaultKubeletDir      = "/var/lib/kubelet"
	defaultDeviceInfoDir   = "/var/run/k8s.cni.cncf.io/devinfo"
	defaultLogLevel        = "panic"
)

// field is a key and how its value gets into a Conf. A null value never arrives here.
type field struct {
	Key
	set func(*Conf, json.RawMessage) error
}

// fields is the table from which Parse works: what is not here is unknown.
func fields() []field {
	return append(append(cniFields(), multusFields()...), weftFields()...)
}

func cniFields() []field {
	return []field{
		{Key{"cniVersion", "0.1.0", "CNI version of the configuration and of the result"}, text(func(c *Conf) *string { return &c.CNIVersion })},
		{Key{"name", "", "name of the network"}, text(func(c *Conf) *string { return &c.Name })},
		{Key{"type", "", "file name of the plugin: weft-cni, or multus or multus-shim in configurations from before"}, text(func(c *Conf) *string { return &c.Type })},
		{
			Key{"capabilities", "", "runtime arguments to ask the runtime for; they are handed to the default network"},
			decode("an object of booleans", func(c *Conf) *map[string]bool { return &c.Capabilities }),
		},
		{
			Key{"runtimeConfig", "", "written by the runtime: values of the capabilities"},
			decode("an object", func(c *Conf) *map[string]json.RawMessage { return &c.RuntimeConfig }),
		},
		{Key{"prevResult", "", "written by the runtime: the result of ADD, for CHECK and DEL"}, setPrevResult},
		{
			Key{"cni.dev/valid-attachments", "", "written by the runtime: the attachments that GC keeps"},
			decode("an array of objects", func(c *Conf) *[]ValidAttachment { return &c.ValidAttachments }),
		},
		{Key{"cni.dev/attachments", "", "older name of cni.dev/valid-attachments"}, setOldAttachments},
		{Key{"args", "", "accepted, without effect"}, ignore("an object")},
		{Key{"ipam", "", "accepted, without effect"}, ignore("an object")},
		{Key{"dns", "", "accepted, without effect"}, ignore("an object")},
	}
}

func multusFields() []field {
	return []field{
		{Key{"confDir", defaultConfDir, "directory of the configurations of NetworkAttachmentDefinitions without spec.config"}, path(func(c *Conf) *string { return &c.ConfDir })},
		{Key{"binDir", defaultBinDir, "directory that is searched for plugins before CNI_PATH"}, path(func(c *Conf) *string { return &c.BinDir })},
		{Key{"cniDir", DefaultCNIDir, "where Multus kept its records; attachments found there are honoured by DEL"}, path(func(c *Conf) *string { return &c.CNIDir })},
		{Key{"kubeconfig", "", "kubeconfig file for work without an agent"}, path(func(c *Conf) *string { return &c.Kubeconfig })},
		{
			Key{"clusterNetwork", "", "the default network: a NetworkAttachmentDefinition in multusNamespace, else the name of a configuration in confDir; with a slash, an absolute path of a file or a directory"},
			text(func(c *Conf) *string { return &c.ClusterNetwork }),
		},
		{Key{"delegates", "", "configurations to attach, the first as the default network; ignored when clusterNetwork is set"}, nil},
		{
			Key{"defaultNetworks", "", "networks that every pod outside systemNamespaces gets besides, looked up as clusterNetwork is; only with clusterNetwork"},
			texts(func(c *Conf) *[]string { return &c.DefaultNetworks }),
		},
		{Key{"namespaceIsolation", "false", "pods may name networks of their own and of globalNamespaces only"}, flag(func(c *Conf) *bool { return &c.NamespaceIsolation })},
		{Key{"globalNamespaces", "default", "comma-separated namespaces whose networks every pod may name; setting it removes the default"}, setGlobalNamespaces},
		{Key{"systemNamespaces", "[\"kube-system\"]", "namespaces whose pods get no defaultNetworks"}, texts(func(c *Conf) *[]string { return &c.SystemNamespaces })},
		{
			Key{"multusNamespace", defaultMultusNamespace, "namespace of clusterNetwork, defaultNetworks and of default-network annotations that name none"},
			text(func(c *Conf) *string { return &c.MultusNamespace }),
		},
		{Key{"readinessindicatorfile", "", "file whose absence means that the default network is not ready"}, path(func(c *Conf) *string { return &c.ReadinessIndicatorFile })},
		{Key{"retryDeleteOnError", "false", "DEL is an error until everything is deleted"}, flag(func(c *Conf) *bool { return &c.RetryDeleteOnError })},
		{
			Key{"auxiliaryCNIChainName", "", "name of a directory beside the cluster network's file, whose plugins are run as a chain of their own after all networks"},
			setAuxiliary,
		},
		{Key{"logFile", "", "file for warnings and errors"}, path(func(c *Conf) *string { return &c.Log.File })},
		{Key{"logLevel", defaultLogLevel, "panic, error, verbose or debug"}, setLogLevel},
		{Key{"logToStderr", "true", "write the log to stderr as well"}, flag(func(c *Conf) *bool { return &c.Log.ToStderr })},
		{Key{"logOptions", "{\"maxAge\":5,\"maxSize\":100,\"maxBackups\":5,\"compress\":true}", "rotation of logFile: days, megabytes, files, compression"}, setLogOptions},
	}
}

func weftFields() []field {
	return []field{
		{Key{"agentSocket", DefaultAgentSocket, "socket of the node's agent; when written, the agent is needed"}, setAgentSocket},
		{Key{"manifests", "", "directory of YAML (NetworkAttachmentDefinitions, Pods), for work without an API server"}, path(func(c *Conf) *string { return &c.Manifests })},
		{Key{"stateDir", DefaultStateDir, "records and lanes"}, path(func(c *Conf) *string { return &c.StateDir })},
		{Key{"timeout", "90s", "deadline of ADD, as a Go duration"}, setTimeout},
		{Key{"delegateLimit", "(2 × CPUs, at least 4)", "plugins that may run at once on the node; a quarter of them, at least one, is kept for DEL"}, setDelegateLimit},
		{Key{"strict", "false", "follow the NPWG specification where common practice is looser"}, flag(func(c *Conf) *bool { return &c.Strict })},
		{Key{"kubeletDir", defaultKubeletDir, "where the kubelet's device checkpoint is"}, setKubeletDir},
		{Key{"deviceInfoDir", defaultDeviceInfoDir, "device-info files"}, path(func(c *Conf) *string { return &c.DeviceInfoDir })},
		{
			Key{"primaryConf", "", "written by the agent: the file that the delegates were taken from, which makes them the cluster network (defaultNetworks, auxiliaryCNIChainName); STATUS is 50 while it is missing or broken, no other verb reads it"},
			path(func(c *Conf) *string { return &c.PrimaryConf }),
		},
	}
}

// Defaults is a Conf with every default in it, for work that has no configuration.
func Defaults() *Conf {
	return &Conf{
		CNIVersion: "0.1.0",
		ConfDir:    defaultConfDir, BinDir: defaultBinDir, CNIDir: DefaultCNIDir,
		GlobalNamespaces: []string{"default"},
		SystemNamespaces: []string{"kube-system"},
		MultusNamespace:  defaultMultusNamespace,
		Log:              Log{Level: defaultLogLevel, ToStderr: true, MaxAge: 5, MaxSize: 100, MaxBackups: 5, Compress: true},
		AgentSocket:      DefaultAgentSocket, StateDir: DefaultStateDir, Timeout: DefaultTimeout,
		KubeletDir: defaultKubeletDir, DeviceInfoDir: defaultDeviceInfoDir,
	}
}

// decode makes a setter for any type; want names it for the message.
func decode[T any](want string, at func(*Conf) *T) func(*Conf, json.RawMessage) error {
	return func(c *Conf, raw json.RawMessage) error {
		v, err := Decode[T](raw, want)
		if err == nil {
			*at(c) = v
		}
		return err
	}
}

func flag(at func(*Conf) *bool) func(*Conf, json.RawMessage) error {
	return decode("true or false", at)
}

// text sets a string; "" leaves the default, as with Multus.
func text(at func(*Conf) *string) func(*Conf, json.RawMessage) error {
	return func(c *Conf, raw json.RawMessage) error {
		s, err := Decode[string](raw, "a string")
		if err == nil && s != "" {
			*at(c) = s
		}
		return err
	}
}

// path is text for a file: absolute, because nobody knows the directory that a
// runtime starts plugins in.
func path(at func(*Conf) *string) func(*Conf, json.RawMessage) error {
	return func(c *Conf, raw json.RawMessage) error {
		before := *at(c)
		if err := text(at)(c, raw); err != nil {
			return err
		}
		switch s := *at(c); {
		case s == before:
			return nil
		case !strings.HasPrefix(s, "/"):
			return fmt.Errorf("%s is not absolute", fault.Quote(s))
		case strings.ContainsRune(s, 0):
			return fmt.Errorf("%s is no path", fault.Quote(s))
		}
		return nil
	}
}

// texts sets a list of strings.
func texts(at func(*Conf) *[]string) func(*Conf, json.RawMessage) error {
	return func(c *Conf, raw json.RawMessage) error {
		list, err := Strings(raw)
		if err == nil {
			*at(c) = list
		}
		return err
	}
}

// Strings reads an array of strings, none of them null.
func Strings(raw json.RawMessage) ([]string, error) {
	if err := checkArray(raw); err != nil {
		return nil, err
	}
	list := []string{}
	for i := skipSpace(raw, 1); raw[i] != ']'; {
		end := skipValue(raw, i)
		s, err := Decode[string](raw[i:end], "a string")
		if err == nil && IsNull(raw[i:end]) {
			err = errors.New("is null, a string is needed")
		}
		if err != nil {
			return nil, fmt.Errorf("[%d] %w", len(list), err)
		}
		list = append(list, s)
		i = skipComma(raw, end)
	}
	return list, nil
}

func ignore(want string) func(*Conf, json.RawMessage) error {
	return func(_ *Conf, raw json.RawMessage) error {
		_, err := Decode[map[string]json.RawMessage](raw, want)
		return err
	}
}

func setPrevResult(c *Conf, raw json.RawMessage) error {
	c.PrevResult = raw
	return ignore("an object")(c, raw)
}

func setOldAttachments(c *Conf, raw json.RawMessage) error {
	list, err := Decode[[]ValidAttachment](raw, "an array of objects")
	if err == nil && c.ValidAttachments == nil {
		c.ValidAttachments = list
	}
	return err
}

func setGlobalNamespaces(c *Conf, raw json.RawMessage) error {
	s, err := Decode[string](raw, "a string of comma-separated namespaces")
	if err != nil || s == "" {
		return err
	}
	c.GlobalNamespaces = []string{}
	for ns := range strings.SplitSeq(s, ",") {
		if ns = strings.TrimSpace(ns); ns != "" {
			c.GlobalNamespaces = append(c.GlobalNamespaces, ns)
		}
	}
	return nil
}

func setAuxiliary(c *Conf, raw json.RawMessage) error {
	name, err := Decode[string](raw, "a string")
	if err != nil || name == "" {
		return err
	}
	if err := NetworkName(name); err != nil {
		return fmt.Errorf("%s %w", fault.Quote(name), err)
	}
	c.AuxiliaryCNIChainName = name
	return nil
}

func setLogLevel(c *Conf, raw json.RawMessage) error {
	s, err := Decode[string](raw, "a string")
	if err != nil || s == "" {
		return err
	}
	switch level := strings.ToLower(s); level {
	case "panic", "error", "verbose", "debug":
		c.Log.Level = level
		return nil
	}
	return warning(fmt.Sprintf("%s is none of panic, error, verbose and debug; %s is used", fault.Quote(s), defaultLogLevel))
}

func setLogOptions(c *Conf, raw json.RawMessage) error {
	o, err := Inner(raw)
	if err != nil {
		return err
	}
	var unknown []string
	for _, key := range o.Keys() {
		value, _ := o.Get(key)
		if IsNull(value) {
			continue
		}
		switch strings.ToLower(key) {
		case "maxage":
			err = natural(value, &c.Log.MaxAge)
		case "maxsize":
			err = natural(value, &c.Log.MaxSize)
		case "maxbackups":
			err = natural(value, &c.Log.MaxBackups)
		case "compress":
			c.Log.Compress, err = Decode[bool](value, "true or false")
		default:
			unknown = append(unknown, fault.Quote(key))
		}
		if err != nil {
			return fmt.Errorf("%s %w", key, err)
		}
	}
	if unknown != nil {
		return warning("has keys that Weft does not know: " + strings.Join(unknown, ", "))
	}
	return nil
}

func setAgentSocket(c *Conf, raw json.RawMessage) error {
	if err := path(func(c *Conf) *string { return &c.AgentSocket })(c, raw); err != nil {
		return err
	}
	c.AgentSocketSet = string(raw) != `""`
	return nil
}

func setKubeletDir(c *Conf, raw json.RawMessage) error {
	if err := path(func(c *Conf) *string { return &c.KubeletDir })(c, raw); err != nil {
		return err
	}
	c.KubeletDirSet = string(raw) != `""`
	return nil
}

func setTimeout(c *Conf, raw json.RawMessage) error {
	s, err := Decode[string](raw, `a Go duration such as "90s"`)
	if err != nil || s == "" {
		return err
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return fmt.Errorf("%s is no positive Go duration such as \"90s\"", fault.Quote(s))
	}
	c.Timeout = d
	return nil
}

func setDelegateLimit(c *Conf, raw json.RawMessage) error { return natural(raw, &c.DelegateLimit) }

// natural reads a whole number that is not negative.
func natural(raw json.RawMessage, to *int) error {
	n, err := Decode[int](raw, "a whole number")
	if err == nil && n < 0 {
		err = fmt.Errorf("is %d, it cannot be negative", n)
	}
	if err == nil {
		*to = n
	}
	return err
}
