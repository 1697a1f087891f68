// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/hostfiles"
)

// MaxCheckpoint is the largest checkpoint that is read, in bytes. Each container's
// share is a few kilobytes (its device plugin's answer), and a node has some hundred.
const MaxCheckpoint = 32 << 20

const checkpointFile = "kubelet_internal_checkpoint"

// Held is what the kubelet's device manager gave to the pods of the node, by their UIDs. A
// nil *Held, of a node without the file, holds nothing.
type Held struct {
	object  string
	entries []heldEntry
}

// heldEntry is the part of an entry that is read. The file's checksum is over the kubelet's
// own in-memory form and cannot be computed here.
// Source: kubernetes pkg/kubelet/cm/devicemanager/checkpoint.
type heldEntry struct {
	PodUID       string
	ResourceName string
	// DeviceIDs maps NUMA nodes to IDs; before Kubernetes 1.20 it was the list of IDs.
	DeviceIDs heldIDs
}

// heldIDs are what an entry has, or why that cannot be read: what is broken about a pod is no fault
// of another one.
type heldIDs struct {
	all []string
	err error
}

// UnmarshalJSON reads either shape, once for all who ask.
func (i *heldIDs) UnmarshalJSON(raw []byte) error {
	i.all, i.err = deviceIDs(raw)
	return nil
}

// Checkpoint reads which devices the kubelet's device manager gave to the pod of that
// UID (for a static pod that is the kubelet's UID, as in K8S_POD_UID, not the mirror
// pod's): resource name to IDs. No file, or no such pod: an empty map. A file that
// cannot be read is a *fault.Fault of code 11, because the kubelet writes it anew with
// every container that it starts.
func Checkpoint(kubeletDir, podUID string) (map[string][]string, error) {
	held, err := ReadCheckpoint(kubeletDir)
	if err != nil {
		return nil, err
	}
	return held.Of(podUID)
}

// ReadCheckpoint reads what all pods of the node were given. No file: nil. Errors are those
// of Checkpoint.
func ReadCheckpoint(kubeletDir string) (*Held, error) {
	dir := filepath.Join(kubeletDir, "device-plugins")
	held := &Held{object: "file " + filepath.Join(dir, checkpointFile)}
	b, err := readBelow(dir, checkpointFile, MaxCheckpoint)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		held.entries, err = parseCheckpoint(b)
	}
	if err != nil {
		return nil, held.fault(err)
	}
	return held, nil
}

func (h *Held) fault(err error) error {
	return fault.New(fault.TryLater, h.object, "", "read the pod's devices: %w", hostfiles.Cause(err))
}

func parseCheckpoint(b []byte) ([]heldEntry, error) {
	var c struct {
		Data *struct{ PodDeviceEntries []heldEntry }
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return nil, err
	}
	if c.Data == nil {
		return nil, errors.New("it has no Data: this is no checkpoint of the device manager")
	}
	return c.Data.PodDeviceEntries, nil
}

// Of are the devices of the pod of that UID, as Checkpoint gives them.
func (h *Held) Of(podUID string) (map[string][]string, error) {
	found := map[string][]string{}
	if h == nil || podUID == "" {
		return found, nil
	}
	for i, e := range h.entries {
		if e.PodUID != podUID {
			continue
		}
		if err := e.DeviceIDs.err; err != nil {
			return nil, h.fault(fmt.Errorf("Data.PodDeviceEntries[%d].DeviceIDs: %w", i, err))
		}
		if e.ResourceName == "" {
			return nil, h.fault(fmt.Errorf("Data.PodDeviceEntries[%d].ResourceName is empty", i))
		}
		found[e.ResourceName] = append(found[e.ResourceName], e.DeviceIDs.all...)
	}
	return Merge(found), nil
}

// ByAnother says whether a device is another pod's, and not that of this UID. What is broken
// about other pods is theirs: it says nothing.
func (h *Held) ByAnother(podUID, resource, id string) bool {
	another := false
	if h == nil {
		return false
	}
	for _, e := range h.entries {
		if e.ResourceName != resource || !slices.Contains(e.DeviceIDs.all, id) {
			continue
		}
		if e.PodUID == podUID {
			return false
		}
		another = true
	}
	return another
}

// deviceIDs reads either shape; the NUMA node makes no difference here.
func deviceIDs(raw json.RawMessage) ([]string, error) {
	var ids []string
	var err error
	if len(raw) > 0 && raw[0] == '{' {
		var byNode map[string][]string
		err = json.Unmarshal(raw, &byNode)
		for _, more := range byNode {
			ids = append(ids, more...)
		}
	} else if len(raw) > 0 {
		err = json.Unmarshal(raw, &ids)
	}
	if err != nil {
		return nil, err
	}
	if slices.Contains(ids, "") {
		return nil, errors.New("a device ID is empty")
	}
	return ids, nil
}
