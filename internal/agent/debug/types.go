// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package debug

import (
	"context"
	"errors"
	"time"

	"github.com/weftnet/weft/internal/cni/netstatus"
	"github.com/weftnet/weft/internal/cni/plan"
)

// Version is that of the JSON. It changes only when a field changes its meaning.
const Version = 1

// View is what the agent shows. Its methods are called from several goroutines, take no
// lock that work is done under, and give values that nobody changes afterwards. Nil lists
// are fine.
type View interface {
	Node() Node
	// Pods gives the pods of this node that have a record or ask for networks, sorted by
	// namespace and name. A record whose pod is not known (any more) has its pod as well.
	Pods() []Pod
	// Networks gives the NADs of the cache, and those that attachments of this node name
	// and that are gone, sorted by namespace and name.
	Networks() []Network
	// Explain plans a pod of this node as the planner would now, with plan.Input.Explain.
	// The error is ErrNoPod when the cache does not hold the pod, else *fault.Faults.
	Explain(ctx context.Context, namespace, name string) (plan.Output, error)
}

// ErrNoPod says that the agent does not know the pod: it is not on its node, or not yet.
var ErrNoPod = errors.New("no such pod on the agent's node")

// Head is what every answer begins with.
type Head struct {
	Version int `json:"version"`
	// Node is the name of the agent's node.
	Node string `json:"node"`
	// Now is the agent's time, for the age of the other times.
	Now time.Time `json:"now"`
}

// NodeAnswer answers /v1/node.
type NodeAnswer struct {
	Head
	State Node `json:"state"`
}

// PodsAnswer answers /v1/pods. LeftOut counts the pods that the answer had no room for.
type PodsAnswer struct {
	Head
	Pods    []Pod `json:"pods"`
	LeftOut int   `json:"leftOut"`
}

// NetworksAnswer answers /v1/networks. LeftOut counts as in PodsAnswer.
type NetworksAnswer struct {
	Head
	Networks []Network `json:"networks"`
	LeftOut  int       `json:"leftOut"`
}

// PlanAnswer answers /v1/explain.
type PlanAnswer struct {
	Head
	Plan Plan `json:"plan"`
}

// Node is the agent's state as a whole.
type Node struct {
	// Name is the node's; the head of every answer repeats it.
	Name string `json:"name"`
	// Started is when the agent started.
	Started time.Time `json:"started"`
	// Ready says that all conditions are true.
	Ready bool `json:"ready"`
	// Conditions are those of readiness, in the order of the start.
	Conditions []Condition `json:"conditions"`
	Conf       Conf        `json:"conf"`
	Cache      Cache       `json:"cache"`
	Counts     Counts      `json:"counts"`
	Versions   Versions    `json:"versions"`
	Paths      Paths       `json:"paths"`
}

// Condition is one thing that readiness needs.
type Condition struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Why says what it waits for or what failed; may be "" when OK.
	Why string `json:"why,omitempty"`
	// Since is when OK last changed; zero when that is not known.
	Since time.Time `json:"since,omitzero"`
}

// Conf is the CNI configuration that the agent publishes.
type Conf struct {
	// Path is the published file, also while it is not there.
	Path string `json:"path"`
	// Published says that the file is there as the agent wrote it.
	Published bool `json:"published"`
	// Primary is the file whose network is the pods' default network, "" when there is none.
	Primary string `json:"primary,omitempty"`
	// Fault is why the file is not published or not up to date, "" when nothing is wrong.
	Fault string `json:"fault,omitempty"`
}

// Cache is what the agent holds of the API server.
type Cache struct {
	// Synced says that pods and networks were once listed in full.
	Synced bool `json:"synced"`
	// LastContact is when the API server was last heard of; zero = never.
	LastContact time.Time `json:"lastContact,omitzero"`
}

// Counts are numbers of things on this node.
type Counts struct {
	Pods     int `json:"pods"`     // in the cache
	Networks int `json:"networks"` // in the cache
	Records  int `json:"records"`  // of sandboxes, all of them
	// HalfDone are records whose ADD or DEL is under way or was broken off.
	HalfDone int `json:"halfDone"`
	// Dead are records whose sandbox is gone: of another boot, or without its namespace.
	Dead int `json:"dead"`
	// Quarantined are records that could not be read and were put aside.
	Quarantined int `json:"quarantined"`
	// Newer are records of a later version of Weft, which are left alone.
	Newer int `json:"newer"`
	// PendingStatus are pods whose network-status is still to be written.
	PendingStatus int `json:"pendingStatus"`
}

// Versions of the programs.
type Versions struct {
	Agent string `json:"agent"`
	// Plugin is that of weft-cni as the agent installs it; "" when the agent cannot tell.
	Plugin string `json:"plugin,omitempty"`
}

// Paths are directories and sockets as the host sees them.
type Paths struct {
	ConfDir     string `json:"confDir"`
	BinDir      string `json:"binDir"`
	StateDir    string `json:"stateDir"`
	KubeletDir  string `json:"kubeletDir"`
	AgentSocket string `json:"agentSocket"`
}

// Pod is one pod of the node.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	// Known says that the API server has the pod; else there is only a record of it.
	Known bool `json:"known"`
	// Sandboxes are the pod's records, the newest last.
	Sandboxes     []Sandbox     `json:"sandboxes"`
	NetworkStatus NetworkStatus `json:"networkStatus"`
}

// Sandbox is one record.
type Sandbox struct {
	ContainerID string `json:"containerID"`
	// Interface is that of the pod network (CNI_IFNAME).
	Interface string `json:"interface"`
	Netns     string `json:"netns,omitempty"`
	// Created is when the ADD began.
	Created time.Time `json:"created,omitzero"`
	// Finished says that the ADD succeeded and nothing was begun to be undone.
	Finished bool `json:"finished"`
	// Dead says that the sandbox is gone: of another boot, or without its namespace.
	Dead bool `json:"dead,omitempty"`
	// Deletes counts the DEL calls that were begun.
	Deletes     int          `json:"deletes,omitempty"`
	Attachments []Attachment `json:"attachments"`
	// Fault is why the record cannot be read, "" when it can.
	Fault string `json:"fault,omitempty"`
}

// Attachment is one interface of a sandbox.
type Attachment struct {
	// Network is namespace/name of the NAD, else the configuration's name.
	Network   string `json:"network"`
	Interface string `json:"interface"`
	// Default marks the pod network.
	Default bool `json:"default,omitempty"`
	// Plugins are the types of the chain.
	Plugins []string `json:"plugins"`
	// MAC and Addresses (with prefix length) are those of the chain's result; empty before it.
	MAC       string   `json:"mac,omitempty"`
	Addresses []string `json:"addresses"`
	Device    string   `json:"device,omitempty"`
	Phase     Phase    `json:"phase"`
	// Since is when that phase began; zero when that is not known.
	Since time.Time `json:"since,omitzero"`
	// Fault is what the last plugin that failed answered, "" when none did.
	Fault string `json:"fault,omitempty"`
}

// Phase is what has become of an attachment.
type Phase string

// The phases. A DEL that failed leaves undoing.
const (
	PhasePlanned    Phase = "planned"    // recorded; no plugin was started
	PhaseAttempting Phase = "attempting" // a plugin runs, or was broken off
	PhaseDone       Phase = "done"
	PhaseUndoing    Phase = "undoing"
	PhaseUndone     Phase = "undone"
)

// NetworkStatus is how a pod's network-status annotation stands to its records.
type NetworkStatus struct {
	State StatusState `json:"state"`
	// Since is when that state began; zero when that is not known.
	Since time.Time `json:"since,omitzero"`
	// Desired are the entries that the records ask for, when the annotation lacks them.
	Desired []netstatus.Entry `json:"desired,omitempty"`
	// Written is the annotation as it stands, when it differs from Desired.
	Written string `json:"written,omitempty"`
	// Fault is what the last try to write it met, "" when none failed.
	Fault string `json:"fault,omitempty"`
}

// StatusState is the state of a NetworkStatus.
type StatusState string

// The states.
const (
	StatusNone    StatusState = "none"    // nothing to write: no finished record, or no pod
	StatusPending StatusState = "pending" // to be written
	StatusWritten StatusState = "written" // the annotation has all that the records say
)

// Network is a NetworkAttachmentDefinition.
type Network struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Types are those of its plugins, their IPAM plugins not among them; empty when its
	// configuration is in a file.
	Types []string `json:"types"`
	// IPAM are the types of its IPAM plugins.
	IPAM []string `json:"ipam"`
	// Resource is what devices for it are drawn from.
	Resource string `json:"resource,omitempty"`
	// Pods counts those of this node that have an attachment to it.
	Pods int `json:"pods"`
	// Gone says that it is in use, and the API server has it no more.
	Gone bool `json:"gone,omitempty"`
	// Problem is why no pod can be attached to it.
	Problem string `json:"problem,omitempty"`
}
