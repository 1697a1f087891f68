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

// checkpoint is the part of the file that is read. Its checksum is over the kubelet's
// own in-memory form and cannot be computed here.
// Source: kubernetes pkg/kubelet/cm/devicemanager/checkpoint.
type checkpoint struct {
	Data *struct {
		PodDeviceEntries []struct {
			PodUID       string
			ResourceName string
			// DeviceIDs maps NUMA nodes to IDs; before Kubernetes 1.20 it was the list of IDs.
			DeviceIDs json.RawMessage
		}
	}
}

// Checkpoint reads which devices the kubelet's device manager gave to the pod of that
// UID (for a static pod that is the kubelet's UID, as in K8S_POD_UID, not the mirror
// pod's): resource name to IDs. No file, or no such pod: an empty map. A file that
// cannot be read is a *fault.Fault of code 11, because the kubelet writes it anew with
// every container that it starts.
func Checkpoint(kubeletDir, podUID string) (map[string][]string, error) {
	dir := filepath.Join(kubeletDir, "device-plugins")
	object := "file " + filepath.Join(dir, checkpointFile)
	b, err := readBelow(dir, checkpointFile, MaxCheckpoint)
	if errors.Is(err, fs.ErrNotExist) {
		return map[string][]string{}, nil
	}
	if err == nil {
		var found map[string][]string
		if found, err = parseCheckpoint(b, podUID); err == nil {
			return found, nil
		}
	}
	return nil, fault.New(fault.TryLater, object, "", "read the pod's devices: %w", hostfiles.Cause(err))
}

func parseCheckpoint(b []byte, podUID string) (map[string][]string, error) {
	var c checkpoint
	if err := json.Unmarshal(b, &c); err != nil {
		return nil, err
	}
	if c.Data == nil {
		return nil, errors.New("it has no Data: this is no checkpoint of the device manager")
	}
	found := map[string][]string{}
	for i, e := range c.Data.PodDeviceEntries {
		if e.PodUID != podUID || podUID == "" {
			continue
		}
		ids, err := deviceIDs(e.DeviceIDs)
		if err != nil {
			return nil, fmt.Errorf("Data.PodDeviceEntries[%d].DeviceIDs: %w", i, err)
		}
		if e.ResourceName == "" {
			return nil, fmt.Errorf("Data.PodDeviceEntries[%d].ResourceName is empty", i)
		}
		found[e.ResourceName] = append(found[e.ResourceName], ids...)
	}
	return Merge(found), nil
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
