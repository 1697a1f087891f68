// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package devices finds the devices that were given to a pod, and hands device-info
// files on: from the device plugin to the CNI plugins, and back into network-status.
//
// It owns three sources, of which callers Merge what they have: the kubelet's device
// checkpoint (Checkpoint; the agent asks the kubelet itself as well, in the room podresources,
// and compares: ReadCheckpoint), and the allocations of the pod's ResourceClaims with the
// attributes that drivers publish in ResourceSlices (Claims, Slices and FromClaims,
// which are pure: callers get the objects). And it owns the files below deviceInfoDir.
//
// Invariants: every list of devices is sorted and holds each ID once; a device is left
// out only when nothing says that it is a network's; no file is written or removed
// outside <deviceInfoDir>/cni, no symbolic link in the last two steps of a path is
// followed, and nothing larger than its limit is read.
//
// It must not know API clients or how an attachment is made, and links nothing of
// Kubernetes: the objects' types here have the fields that are read. Who gets which
// device is decided by plan.
//
// Implements: spec/cni.md rule 10 (but for pod-resources), section 1.15; NPWG device-info spec 1.1.
package devices

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"

	"github.com/weftnet/weft/internal/cni/hostfiles"
)

// Merge unites maps of resource names to device IDs. The result is never nil, and shares
// nothing with its sources.
func Merge(sources ...map[string][]string) map[string][]string {
	all := map[string][]string{}
	for _, source := range sources {
		for resource, ids := range source {
			all[resource] = append(all[resource], ids...)
		}
	}
	for _, resource := range slices.Collect(maps.Keys(all)) {
		slices.Sort(all[resource])
		all[resource] = slices.Compact(all[resource])
	}
	return all
}

// readBelow reads dir/name, a regular file of at most limit bytes. dir may be reached by
// links (/var/run is one), the file itself must not be one. Absent: fs.ErrNotExist.
func readBelow(dir, name string, limit int64) ([]byte, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close() //nolint:errcheck // nothing was written
	return readRegular(root, name, limit)
}

var errLink = errors.New("is a symbolic link")

func readRegular(root *os.Root, name string, limit int64) ([]byte, error) {
	info, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return nil, errLink
	}
	return hostfiles.ReadRegular(root, name, limit)
}
