// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Config is the agent's whole configuration. Load and Parse give it complete: every key
// that was not written has its default.
type Config struct {
	NodeName       string
	Kubeconfig     string // "" = in-cluster
	StateDir       string
	SocketDir      string
	MetricsAddress string // "" = no metrics and no health
	PProf          bool
	Log            Log
	CNI            CNI
	NetworkDriver  NetworkDriver
	VMI            VMI

	origins map[string]string // key: where it was written
}

// Log says what is logged, and how.
type Log struct {
	Level  slog.Level
	Format string // json or text
}

// CNI is what the agent does for pods that ask by annotation.
type CNI struct {
	Enabled       bool
	ConfDir       string // where the runtime looks
	ConfName      string // of the published configuration
	PrimaryConf   string // "" = found by content
	BinDir        string
	StatusTimeout time.Duration
	KubeletDir    string
	CRISocket     string
	// Conf are the keys for the published configuration, as JSON.
	Conf map[string]json.RawMessage
}

// NetworkDriver is what the agent does for pods that ask by claim.
type NetworkDriver struct {
	Enabled    bool
	KubeletDir string
	NRISocket  string
	Sysfs      string
}

// VMI is what the agent reports of virtual machines.
type VMI struct {
	Mode         string
	Policy       string
	PodCacheDir  string
	ProcDir      string
	PollInterval time.Duration
}

// Modes of VMI.
const (
	VMIDisabled = "disabled"
	VMIObserve  = "observe"
	VMIPublish  = "publish"
)

// AgentSocket is where the planner listens.
func (c *Config) AgentSocket() string { return filepath.Join(c.SocketDir, "agent.sock") }

// DebugSocket is where inspection listens.
func (c *Config) DebugSocket() string { return filepath.Join(c.SocketDir, "debug.sock") }

// Defaults is a Config in which nothing was written; its NodeName is still to come.
func Defaults() Config {
	return Config{
		StateDir: "/var/lib/weft", SocketDir: "/run/weft", MetricsAddress: "127.0.0.1:9479",
		Log: Log{Level: slog.LevelInfo, Format: "json"},
		CNI: CNI{
			Enabled: true, ConfDir: "/etc/cni/net.d", ConfName: "00-weft.conflist", BinDir: "/opt/cni/bin",
			StatusTimeout: 2 * time.Second, KubeletDir: "/var/lib/kubelet", Conf: map[string]json.RawMessage{},
		},
		NetworkDriver: NetworkDriver{KubeletDir: "/var/lib/kubelet", NRISocket: "/var/run/nri/nri.sock", Sysfs: "/sys"},
		VMI: VMI{
			Mode: VMIDisabled, Policy: "family-merge",
			PodCacheDir: "/var/run/kubevirt-private/network-info-cache", ProcDir: "/proc", PollInterval: 2 * time.Minute,
		},
		origins: map[string]string{},
	}
}

// Overrides are the flags that were given, nil for those that were not, and what stands
// in for a node's name that nobody wrote.
type Overrides struct {
	NodeName            *string
	Kubeconfig          *string
	EnableNetworkDriver *bool
	// FallbackNodeName is NODE_NAME, else the hostname.
	FallbackNodeName string
}

// Fault is one thing wrong with the configuration.
type Fault struct {
	Place string // "agent.yaml:12", "flag --node-name"; "" for what was written nowhere
	Key   string // "cni.confDir"; "" for the file as a whole
	Text  string
}

func (f *Fault) Error() string {
	parts := make([]string, 0, 3)
	for _, s := range []string{f.Place, f.Key, f.Text} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, ": ")
}

// maxBytes bounds the file: a configuration is written by hand.
const maxBytes = 1 << 20

// Load reads the file at path ("" = no file) and puts over it what o has. The error joins
// every *Fault.
func Load(path string, o Overrides) (Config, error) {
	c := Defaults()
	var faults []error
	if path != "" {
		data, err := read(path)
		if err != nil {
			return c, err
		}
		c, faults = decode(path, data)
	}
	c.override(o)
	return c, errors.Join(append(faults, c.validate()...)...)
}

// Parse is Load for bytes; name is what faults call them.
func Parse(name string, data []byte, o Overrides) (Config, error) {
	c, faults := decode(name, data)
	c.override(o)
	return c, errors.Join(append(faults, c.validate()...)...)
}

func read(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, &Fault{Place: path, Text: "cannot be read: " + cause(err)}
	case !info.Mode().IsRegular():
		return nil, &Fault{Place: path, Text: "is no file"}
	case info.Size() > maxBytes:
		return nil, &Fault{Place: path, Text: fmt.Sprintf("has %d bytes, more than %d", info.Size(), maxBytes)}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, &Fault{Place: path, Text: "cannot be read: " + cause(err)}
	}
	return data, nil
}

// cause is err without the path, which the fault has.
func cause(err error) string {
	if e, ok := errors.AsType[*os.PathError](err); ok {
		return e.Err.Error()
	}
	return err.Error()
}

func (c *Config) override(o Overrides) {
	if o.NodeName != nil {
		c.NodeName, c.origins["nodeName"] = *o.NodeName, "flag --node-name"
	}
	if o.Kubeconfig != nil {
		c.Kubeconfig, c.origins["kubeconfig"] = *o.Kubeconfig, "flag --kubeconfig"
	}
	if o.EnableNetworkDriver != nil {
		c.NetworkDriver.Enabled, c.origins["networkDriver.enabled"] = *o.EnableNetworkDriver, "flag --enable-network-driver"
	}
	if c.NodeName == "" {
		c.NodeName = o.FallbackNodeName
	}
}

// Validate says what is wrong with the values: every *Fault, joined.
func (c *Config) Validate() error { return errors.Join(c.validate()...) }

func (c *Config) validate() []error {
	var faults []error
	for _, f := range fields() {
		if f.check == nil {
			continue
		}
		if err := f.check(c); err != nil {
			faults = append(faults, &Fault{c.origins[f.Name], f.Name, err.Error()})
		}
	}
	return append(faults, c.checkConf()...)
}
