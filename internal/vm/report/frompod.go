// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"encoding/json"
	"strings"

	v1 "kubevirt.io/api/core/v1"

	"github.com/weftnet/weft/vmistatus"
)

// element is one of network-status, as far as addresses go.
type element struct {
	Name      string   `json:"name"`
	Interface string   `json:"interface"`
	IPs       []string `json:"ips"`
	Default   bool     `json:"default"`
}

// addFromPod gives networks that have no file in the pod interface cache the addresses that
// network-status has for them: without a virt-handler there are no files. What of the annotation
// cannot be read is left out; the merge says so of the same text.
func addFromPod(in vmistatus.Input, vmi *v1.VirtualMachineInstance, status string) {
	var all []element
	if status == "" || json.Unmarshal([]byte(status), &all) != nil {
		return
	}
	primary := vmistatus.LookupDefault(in.Networks)
	for i := range in.Networks {
		n := &in.Networks[i]
		if _, ok := in.PodCache[n.Name]; ok {
			continue
		}
		if e := elementOf(all, n, vmi.Namespace, primary != nil && primary.Name == n.Name); e != nil && len(e.IPs) > 0 {
			in.PodCache[n.Name] = vmistatus.PodRead{PodIP: e.IPs[0], PodIPs: e.IPs}
		}
	}
}

// elementOf finds a network's element: the default one, else that of its link's name, else the only
// one of its definition.
func elementOf(all []element, n *v1.Network, namespace string, primary bool) *element {
	var found *element
	for i := range all {
		e := &all[i]
		switch {
		case primary:
			if e.Default {
				return e
			}
		case e.Default || n.Multus == nil:
		case e.Interface == vmistatus.HashedName(n.Name):
			return e
		case qualified(e.Name, namespace) == qualified(n.Multus.NetworkName, namespace):
			if found != nil {
				return nil // which of them is not known
			}
			found = e
		}
	}
	return found
}

func qualified(name, namespace string) string {
	if strings.Contains(name, "/") {
		return name
	}
	return namespace + "/" + name
}
