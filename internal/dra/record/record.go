// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"encoding/json"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/host/kernel"
)

// Kinds of record, which are the names of their folders in the state directory as well.
const (
	Devices   = "devices"
	Handovers = "handovers"
)

// Claim is the body of the intent to prepare a claim. Its phases name an item of Devices.
type Claim struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	UID       string   `json:"uid"`
	PodUIDs   []string `json:"podUIDs"` // those that the claim is reserved for
	Driver    string   `json:"driver"`
	Devices   []Device `json:"devices"`
	// Kept says that the kubelet may believe the claim prepared: it was so before a reboot, or
	// another driver did it. Half of it is finished at a start, and not undone.
	Kept bool `json:"kept,omitempty"`
}

// Prepared is the result of the done phase of one of a claim's devices.
type Prepared struct {
	Dev    json.RawMessage `json:"dev"`              // the device as it was prepared
	IfName string          `json:"ifName,omitempty"` // what the claim's status says of its link
	MAC    string          `json:"mac,omitempty"`
}

// Device is one device of a claim: the allocation result, and what is needed to undo it.
type Device struct {
	Request string                `json:"request"`
	Pool    string                `json:"pool"`      // the user's name for it
	Slice   string                `json:"slicePool"` // the name in ResourceSlices and results
	Name    string                `json:"name"`      // in the ResourceSlice
	ShareID string                `json:"shareID,omitempty"`
	Manager string                `json:"manager"`
	Dev     json.RawMessage       `json:"dev"` // the device as its manager saw it
	Config  v2alpha1.DeviceConfig `json:"config"`
	Saved   json.RawMessage       `json:"saved,omitempty"` // what the manager's Inspect gave
}

// Handover is the body of the intent to move devices into a sandbox. Its phases name an item
// of Links.
type Handover struct {
	PodUID    string           `json:"podUID"`
	SandboxID string           `json:"sandboxID"`
	Namespace kernel.Namespace `json:"namespace"`
	Links     []Link           `json:"links"`
	// Salvaged says that it was written out of a broken record: without a phase, too, every link counts as
	// attempted.
	Salvaged bool `json:"salvaged,omitempty"`
}

// Link is one link that is to be moved.
type Link struct {
	ClaimUID string           `json:"claimUID"`
	Pool     string           `json:"pool"`
	Device   string           `json:"device"`
	ShareID  string           `json:"shareID,omitempty"`
	Manager  string           `json:"manager"`
	Dev      json.RawMessage  `json:"dev"`
	Saved    json.RawMessage  `json:"saved,omitempty"`
	PCI      kernel.PCIAddr   `json:"pci,omitempty"` // "" when it is no PCI device
	Index    int              `json:"index"`         // its ifindex when it was moved
	Home     kernel.LinkState `json:"home"`          // what it gets back
	PodName  string           `json:"podName"`       // its name in the pod
}
