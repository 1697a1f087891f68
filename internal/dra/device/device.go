// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"encoding/json"
	"errors"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/host/kernel"
)

// ManagerType names a kind of device manager, as users write it.
type ManagerType string

// The managers that there are.
const (
	SRIOV ManagerType = "sr-iov"
	Dummy ManagerType = "dummy"
)

// Attributes are a device's attributes as a ResourceSlice has them. Names without a domain
// belong to the driver's.
type Attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute

// Device is one device as its manager sees it now. Its JSON is the Dev of a claim's status
// entry, so that the manager can restore it.
type Device interface {
	// Name is the name in the ResourceSlice, a DNS label, and the key of the inventory.
	Name() string
	// Manager is who looks after it.
	Manager() ManagerType
	// Attributes are those of the device itself; pool and deviceManager are added by who publishes.
	Attributes() Attributes
	// Matches says whether it passes every field of the filter but DeviceManagers.
	Matches(filter *v2alpha1.DeviceFilter) bool
	// Merge gives the device with what prepared knows and discovery cannot see now: the name of
	// a link that is in a pod.
	Merge(prepared Device) Device
	// Check says why it cannot be prepared with this configuration; waiting does not mend it.
	Check(config v2alpha1.DeviceConfig) error
}

// Grouped is a Device that the kernel gives away only together with others.
type Grouped interface {
	// Group names what it is part of ("IOMMU group 7"), "" for nothing. whole says that a pod which has
	// it must be the only one with devices of that group.
	Group() (name string, whole bool)
}

// Saved is what a manager must know to undo what Setup did: the values from before.
type Saved = json.RawMessage

// Manager discovers one kind of device and prepares them. Its methods may be called from several
// goroutines; callers see to it that one device is set up or freed by one caller at a time.
type Manager interface {
	Type() ManagerType
	// Run calls publish with the whole inventory at once, and again whenever it changed, until
	// ctx ends. Errors of one device or PF are reported and never end it.
	Run(ctx context.Context, publish func([]Device)) error
	// RestoreDevice reads a device's JSON, also that of a device which is not there now.
	RestoreDevice(data json.RawMessage) (Device, error)
	// Inspect reads what Setup would change, before anything is changed. Its answer is made durable
	// before Setup is called, and every later call of that allocation is given the same answer.
	Inspect(dev Device, config v2alpha1.DeviceConfig) (Saved, error)
	// Setup makes the device ready for a pod: idempotent, and right whatever an interrupted Setup
	// left. The device that it gives is the prepared one.
	Setup(ctx context.Context, dev Device, config v2alpha1.DeviceConfig, saved Saved) (Device, error)
	// Free undoes Setup, by what Inspect saved: idempotent, and right after any part of Setup. A
	// device that no longer exists is freed.
	Free(ctx context.Context, dev Device, config v2alpha1.DeviceConfig, saved Saved) error
	// Link finds the device's link in a network namespace: by what it is (PCI address, or ifindex),
	// never by name alone. kernel.ErrNoLink: it is not there.
	Link(ns kernel.Namespace, dev Device, saved Saved) (kernel.Link, error)
	// Home is what the link is to be in the host's network namespace when no pod has it.
	Home(dev Device, saved Saved) kernel.LinkState
	// Nodes are the device files that a container needs (/dev/vfio/N): empty for links.
	Nodes(dev Device) []string
}

// Mender is a Manager whose Setup others can undo behind its back, as who has a PF's VFs made anew.
type Mender interface {
	// Mend sets up again what the kernel no longer has as Setup left it, and writes nothing else. It
	// is called before a pod is given the devices, so that it reads no more often than it must.
	Mend(ctx context.Context, rows []Allocation) error
}

// Mend has each of the managers that can mend look at its rows.
func Mend(ctx context.Context, managers map[ManagerType]Manager, rows []Allocation) error {
	var faults []error
	for kind, m := range managers {
		mender, ok := m.(Mender)
		if !ok {
			continue
		}
		var own []Allocation
		for _, row := range rows {
			if row.Manager == kind {
				own = append(own, row)
			}
		}
		if len(own) > 0 {
			faults = append(faults, mender.Mend(ctx, own))
		}
	}
	return errors.Join(faults...)
}

// ErrFreed says that a pod's devices are being taken back, or were: the pod has ended.
var ErrFreed = errors.New("the pod's claimed devices are freed")

// Key names an allocation.
type Key struct {
	Pool    string // the name that the user wrote
	Name    string // the device's
	ShareID string // "" unless the device is shared
}

// Allocation says that a device was prepared for a claim. Rows are never changed, only replaced.
type Allocation struct {
	DeviceName     string
	Manager        ManagerType
	PreparedDevice Device
	Pool           string
	PodUID         types.UID
	ClaimUID       types.UID
	Config         v2alpha1.DeviceConfig
	ShareID        string `json:",omitempty"`

	// What follows is the node's own and not part of the table's dump.
	Claim  types.NamespacedName `json:"-"` // of the claim
	Driver string               `json:"-"` // whom the kubelet asked for it
	Saved  Saved                `json:"-"`
}

// Key is the row's primary key.
func (a Allocation) Key() Key { return Key{Pool: a.Pool, Name: a.DeviceName, ShareID: a.ShareID} }
