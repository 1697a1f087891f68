// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package netconf

import (
	"encoding/json"
	"time"
)

// Conf is Weft's own CNI configuration, as the runtime gives it on stdin
// (architecture 4.1). Defaults are filled in; Raw is what was given.
type Conf struct {
	CNIVersion string
	Name       string
	Type       string

	ConfDir                string
	BinDir                 string
	CNIDir                 string
	Kubeconfig             string
	ClusterNetwork         string
	Delegates              []Network
	DefaultNetworks        []string
	NamespaceIsolation     bool
	GlobalNamespaces       []string
	SystemNamespaces       []string
	MultusNamespace        string
	ReadinessIndicatorFile string
	RetryDeleteOnError     bool
	AuxiliaryCNIChainName  string
	Capabilities           map[string]bool
	RuntimeConfig          map[string]json.RawMessage // what the kubelet asks for; values byte for byte
	Log                    Log

	AgentSocket    string // default filled in
	AgentSocketSet bool   // written in the conf
	Manifests      string
	StateDir       string
	Timeout        time.Duration
	DelegateLimit  int // 0: the default, which depends on the machine's CPUs
	Strict         bool
	KubeletDir     string // default filled in
	KubeletDirSet  bool   // written in the conf
	DeviceInfoDir  string
	PrimaryConf    string // where the delegates come from, as STATUS has to know

	PrevResult       json.RawMessage   // CHECK, DEL
	ValidAttachments []ValidAttachment // GC: cni.dev/valid-attachments
	Raw              []byte
}

// NamesCluster says whether the conf has a cluster network rather than a list of delegates:
// clusterNetwork, or delegates that the agent took from primaryConf.
func (c *Conf) NamesCluster() bool { return c.ClusterNetwork != "" || c.PrimaryConf != "" }

// Log says where warnings and errors go besides stderr.
type Log struct {
	File       string
	Level      string // debug, verbose, error, panic, as users of Multus write them
	ToStderr   bool
	MaxAge     int
	MaxSize    int
	MaxBackups int
	Compress   bool
}

// ValidAttachment is one entry of cni.dev/valid-attachments.
type ValidAttachment struct {
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifname"`
}

// Network is one CNI configuration as a list of plugins, whichever of the two
// forms (conf, conflist) it was written in.
type Network struct {
	Name         string   `json:"name"`
	CNIVersion   string   `json:"cniVersion"`
	DisableCheck bool     `json:"disableCheck,omitempty"`
	DisableGC    bool     `json:"disableGC,omitempty"`
	Plugins      []Plugin `json:"plugins"`
	// LoadOnlyInlinedPlugins switches sub-directory loading off.
	LoadOnlyInlinedPlugins bool `json:"loadOnlyInlinedPlugins,omitempty"`
}

// Plugin is one plugin of a Network. Conf holds the object's bytes as they were
// written (in JSON: base64), but for keys that were set on purpose through Object.
type Plugin struct {
	Type string `json:"type"`
	// IPAM is ipam.type: the plugin that this one runs for addresses, "" when it names none.
	IPAM         string          `json:"ipam,omitempty"`
	Capabilities map[string]bool `json:"capabilities,omitempty"`
	Conf         []byte          `json:"conf"`
}
