// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package netstatus makes the k8s.v1.cni.cncf.io/network-status annotation from the
// results of a pod's attachments.
//
// Invariants: every attachment has at least one entry; entries stand in the order of
// the plan, those of one attachment in the order of its result; exactly one entry of a
// pod is its default; an entry says nothing that the result does not say, with one
// exception that the NPWG specification names: results older than 0.3.0 list no
// interfaces, and there the name is the one that the plugin was told to make.
//
// It knows neither the API nor the annotation's other writers. It is pure. Implements
// spec/cni.md rule 9 and 1.14, and section 5 of the NPWG multi-network specification.
package netstatus

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/results"
)

// Entry is one element of the annotation.
type Entry struct {
	// Name is namespace/name of the NetworkAttachmentDefinition, or the network's name.
	Name      string   `json:"name"`
	Interface string   `json:"interface,omitempty"` // name in the pod's namespace
	IPs       []string `json:"ips,omitempty"`       // without prefix length
	MAC       string   `json:"mac,omitempty"`
	MTU       int      `json:"mtu,omitempty"` // bytes
	// Default marks the interface of the pod network.
	Default bool       `json:"default,omitempty"`
	DNS     *types.DNS `json:"dns,omitempty"`
	// DeviceInfo is the content of the device-info file, as it stands.
	DeviceInfo json.RawMessage `json:"device-info,omitempty"`
	// Gateway lists the gateways of the attachment's default routes.
	Gateway []string `json:"gateway,omitempty"`
}

// Build makes the entries of a whole pod. rs and infos go by the plan's attachments; a
// nil or missing result gives the entry that holds the name alone. A plan without the
// pod network (a hot-plug) has no default entry.
func Build(p plan.Plan, rs []*results.Result, infos []json.RawMessage) []Entry {
	all := []Entry{}
	seen := false
	for i, a := range p.Attachments {
		a.Default = a.Default && !seen
		seen = seen || a.Default
		all = append(all, Entries(a, at(rs, i), at(infos, i))...)
	}
	return all
}

func at[T any](s []T, i int) (v T) {
	if i < len(s) {
		v = s[i]
	}
	return v
}

// Entries makes the entries of one attachment: one for each interface that its result
// places in the sandbox, or a single one when it places none there. Gateways and DNS
// belong to the attachment and stand on each entry; device info belongs to one
// device, and stands on the interface that was asked for (else on the first entry).
func Entries(a plan.Attachment, r *results.Result, deviceInfo json.RawMessage) []Entry {
	current := &types100.Result{}
	if r != nil {
		current = r.Current
	}
	entries := interfaces(a, current)
	if r != nil && !listsInterfaces(r.Version) && len(current.IPs) > 0 {
		entries[0].Interface = a.IfName
	}
	owners := owners(current, len(entries))
	for i, ip := range current.IPs {
		if owner := owners[i]; owner >= 0 {
			e := &entries[owner]
			e.IPs = append(e.IPs, ip.Address.IP.String())
		}
	}
	gateways := gateways(current)
	for i := range entries {
		entries[i].Gateway = slices.Clone(gateways)
		if !current.DNS.IsEmpty() {
			entries[i].DNS = current.DNS.Copy()
		}
	}
	if a.Default {
		entries[defaultEntry(current, owners)].Default = true
	}
	if info := bytes.TrimSpace(deviceInfo); json.Valid(info) && string(info) != "null" {
		own := slices.IndexFunc(entries, func(e Entry) bool { return e.Interface == a.IfName })
		entries[max(own, 0)].DeviceInfo = slices.Clone(info)
	}
	return entries
}

func listsInterfaces(version string) bool { return version != "0.1.0" && version != "0.2.0" }

// interfaces makes an entry for each interface in the sandbox, or one without
// interface.
func interfaces(a plan.Attachment, r *types100.Result) []Entry {
	var entries []Entry
	for _, link := range r.Interfaces {
		if link.Sandbox != "" {
			entries = append(entries, Entry{Name: a.Network, Interface: link.Name, MAC: link.Mac, MTU: link.Mtu})
		}
	}
	if len(entries) == 0 {
		return []Entry{{Name: a.Network}}
	}
	return entries
}

// owners gives for each address of a result the entry that it belongs to; -1 for an
// address of the host. An address goes to the interface that it names; one that names
// none, or none that there is, to the last interface in the sandbox. A single
// interface has them all. Where several are listed and none is in the sandbox, the single
// entry has the addresses that name none, or all when every one names one.
func owners(r *types100.Result, entries int) []int {
	entryOf := make([]int, len(r.Interfaces)) // interface index to entry
	next := 0
	for i, link := range r.Interfaces {
		entryOf[i] = -1
		if link.Sandbox != "" {
			entryOf[i] = next
			next++
		}
	}
	namesNone := func(ip *types100.IPConfig) bool {
		return ip.Interface == nil || *ip.Interface < 0 || *ip.Interface >= len(r.Interfaces)
	}
	all := len(r.Interfaces) < 2 || next == 0 && !slices.ContainsFunc(r.IPs, namesNone)
	owners := make([]int, len(r.IPs))
	for i, ip := range r.IPs {
		owners[i] = entries - 1
		if !all && !namesNone(ip) {
			owners[i] = entryOf[*ip.Interface]
		}
	}
	return owners
}

// defaultEntry is the entry of the first address that has a gateway, else the first.
func defaultEntry(r *types100.Result, owners []int) int {
	for i, ip := range r.IPs {
		if ip.Gateway != nil && owners[i] >= 0 {
			return owners[i]
		}
	}
	return 0
}

// gateways lists the gateways of the default routes of the main table. A route that
// names none goes through the gateway of the first address of its family (CNI SPEC,
// routes), if there is one.
func gateways(r *types100.Result) []string {
	var list []string
	for _, route := range r.Routes {
		v4, ok := results.DefaultRoute(route)
		if !ok {
			continue
		}
		gw := route.GW
		for _, ip := range r.IPs {
			if gw == nil && ip.Gateway != nil && (ip.Address.IP.To4() != nil) == v4 {
				gw = ip.Gateway
			}
		}
		if gw != nil && !slices.Contains(list, gw.String()) {
			list = append(list, gw.String())
		}
	}
	return list
}

// Encode writes the annotation, indented as people are used to read it.
func Encode(entries []Entry) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // device info is to stay as it is
	e.SetIndent("", "    ")
	if entries == nil {
		entries = []Entry{}
	}
	_ = e.Encode(entries) // writing strings, numbers and valid JSON to memory cannot fail
	return string(bytes.TrimSpace(b.Bytes()))
}
