// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/json"
	"net/netip"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/selection"
)

// Annotations and names that users write (spec/cni.md 1.5).
const (
	NetworksAnnotation       = "k8s.v1.cni.cncf.io/networks"
	DefaultNetworkAnnotation = "v1.multus-cni.io/default-network"
	ResourceNameAnnotation   = "k8s.v1.cni.cncf.io/resourceName"
	StatusAnnotation         = "k8s.v1.cni.cncf.io/network-status"
)

// Limits of architecture 4.1; beyond them a plan is refused with code 7.
const (
	MaxNetworks  = selection.MaxElements
	MaxConfBytes = 2 << 20
	// MaxConfs bounds all configurations of a plan together, each counted as often as it is
	// attached: several plans at once have to fit into an agent's memory.
	MaxConfs = 4 << 20
)

// Input is everything that a plan is made from. Make reads nothing else.
type Input struct {
	Conf    *netconf.Conf
	Sandbox Sandbox
	// Pod is nil when there is no Kubernetes (the conf's own delegates and nothing else).
	Pod *Pod
	// LookUp says that NADs can be asked for although there is no pod: STATUS and GC
	// concern the conf's own networks, wherever they are defined.
	LookUp bool
	// NADs holds every NAD that an earlier Output needed, also those that do not exist.
	NADs map[NADRef]NAD
	// Files holds every file that an earlier Output needed.
	Files map[Need]File
	// Devices maps a resource name to the pod's device IDs, sorted; nil = not asked for yet
	// (Output.NeedDevices asks).
	Devices map[string][]string
	// Attached are the attachments that a running pod has, for the plan of a change (hot-plug):
	// what is asked for as before keeps its interface and its device.
	Attached []Attached
	// Reserved are interface names that the pod's DRA devices take.
	Reserved []string
	// Explain asks for Decisions, and for every fault that can be seen, also of devices and
	// arguments beside those of annotations and networks. The plan is the same.
	Explain bool
}

// Sandbox is what the runtime says in CNI_* variables.
type Sandbox struct {
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
	Netns       string `json:"netns"`
	Args        string `json:"args,omitempty"` // CNI_ARGS as given
	Path        string `json:"path,omitempty"` // CNI_PATH as given
}

// Pod is the part of a pod that planning reads.
type Pod struct {
	Namespace   string            `json:"namespace"`
	Name        string            `json:"name"`
	UID         string            `json:"uid,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// NADRef names a NetworkAttachmentDefinition.
type NADRef struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// NAD is the part of a NetworkAttachmentDefinition that planning reads.
type NAD struct {
	Found        bool
	Config       string // spec.config, "" when absent
	ResourceName string // the resourceName annotation
}

// Need names a file of the host that the plan depends on; the hands read it:
//
//	confDir/<name>   the conf in confDir whose JSON "name" is <name>
//	path/<path>      that file, or the first usable conf of that directory
//	chain/<name>     the files of <dir of the cluster network's file>/<name>/
//
// The dir of chain/ is that of the file which answered the cluster network's own need.
type Need string

// File answers a Need.
type File struct {
	Need  Need   `json:"need"`
	Found bool   `json:"found"`
	Path  string `json:"path,omitempty"`
	Data  []byte `json:"data,omitempty"`
	// Chained are the plugin objects of <dir>/<conf name>/*.conf, sorted by file name
	// (for chain/: of the directory itself).
	Chained  [][]byte        `json:"chained,omitempty"`
	Warnings []fault.Warning `json:"warnings,omitempty"`
}

// Output is a finished plan, or what is missing to make it (then Plan is nil). Beside an
// error it holds what is missing to see the other faults, or Decisions and Warnings.
type Output struct {
	Plan        *Plan
	NeedNADs    []NADRef
	NeedFiles   []Need
	NeedDevices bool
	// With Input.Explain: the pod's decisions and then each attachment's, and the warnings
	// that there were also without a plan.
	Decisions []Decision
	Warnings  []fault.Warning
}

// Plan is every attachment of one sandbox, in the order in which they are made.
// Its JSON form is part of the planner protocol and of the records on disk:
// fields are added, never renamed or removed.
type Plan struct {
	PodNamespace string          `json:"podNamespace,omitempty"`
	PodName      string          `json:"podName,omitempty"`
	PodUID       string          `json:"podUID,omitempty"`
	Attachments  []Attachment    `json:"attachments"`
	Warnings     []fault.Warning `json:"warnings,omitempty"`
}

// ConfBytes is how large its configurations are together, as MaxConfs counts them.
func (p *Plan) ConfBytes() int {
	size := 0
	for i := range p.Attachments {
		size += confBytes(&p.Attachments[i])
	}
	return size
}

func confBytes(a *Attachment) int {
	size := 0
	for i := range a.Conf.Plugins {
		size += len(a.Conf.Plugins[i].Conf)
	}
	return size
}

// Attachment is one interface that one plugin chain makes.
type Attachment struct {
	// Network is the name shown in network-status: namespace/name of the NAD, else the conf's name.
	Network string `json:"network"`
	IfName  string `json:"ifName"`
	Default bool   `json:"default,omitempty"` // attachment 0, the pod network
	// Selected: the networks annotation asks for it, with the interface name Asked, "" = with none.
	// Network and Asked, and for equal ones their order, say which one it is when that changes.
	Selected bool            `json:"selected,omitempty"`
	Asked    string          `json:"asked,omitempty"`
	Conf     netconf.Network `json:"conf"`
	// RuntimeConfig holds the capability arguments of this attachment; a plugin gets
	// those of them whose capability it declares.
	RuntimeConfig map[string]json.RawMessage `json:"runtimeConfig,omitempty"`
	// Args is CNI_ARGS for this attachment.
	Args string `json:"args,omitempty"`
	// Gateways are the default routes asked for, at most one a family.
	Gateways []netip.Addr `json:"gateways,omitempty"`
	// DeviceID is the device given to this attachment, ResourceName what it was drawn from.
	DeviceID     string `json:"deviceID,omitempty"`
	ResourceName string `json:"resourceName,omitempty"`
	// Auxiliary marks the auxiliary chain: it starts from an empty result rather than from none.
	Auxiliary bool `json:"auxiliary,omitempty"`
}

// Attached is what a running pod has of an attachment, as its plan said.
type Attached struct {
	Network      string `json:"network"`
	IfName       string `json:"ifName"`
	Selected     bool   `json:"selected,omitempty"`
	Asked        string `json:"asked,omitempty"`
	DeviceID     string `json:"deviceID,omitempty"`
	ResourceName string `json:"resourceName,omitempty"`
}

// Attached is the part of an attachment that a change of the pod's networks starts from.
func (a *Attachment) Attached() Attached {
	return Attached{a.Network, a.IfName, a.Selected, a.Asked, a.DeviceID, a.ResourceName}
}
