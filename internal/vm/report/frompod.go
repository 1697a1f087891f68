// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	v1 "kubevirt.io/api/core/v1"

	"github.com/weftnet/weft/vmistatus"
)

// addFromPod gives networks that have no file in the pod interface cache the addresses that
// network-status has for them: without a virt-handler there are no files. What element is whose is
// decided as for multus-status. Of an annotation that cannot be read nothing is used; the merge says
// so of the same text.
func addFromPod(in vmistatus.Input, vmi *v1.VirtualMachineInstance, status string) {
	listed, err := vmistatus.ParseNetworkStatus(status)
	if err != nil {
		return
	}
	for name, p := range vmistatus.ResolvePodNetworks(vmi, listed) {
		if _, ok := in.PodCache[name]; !ok && len(p.IPs) > 0 {
			in.PodCache[name] = vmistatus.PodRead{PodIP: p.IPs[0], PodIPs: p.IPs}
		}
	}
}
