// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weftnet/weft/internal/cni/manifests"
	"github.com/weftnet/weft/internal/cni/netconf"
)

// clusterBridge is the bridge of the generated pod network.
const clusterBridge = "cni0"

// wants is what networks expect of the host that they are used on.
type wants struct {
	masters  []string // links that must exist, sorted, without duplicates
	bridges  []string // bridges that plugins make and, by their design, leave
	dataDirs []string // where host-local keeps addresses
	// kinds maps "namespace/name" of a NAD, and the name of a file's network, to the kinds of link that its plugins make.
	kinds map[string][]string
}

// pluginConf holds those keys of plugins that concern the host.
type pluginConf struct {
	Type   string `json:"type"`
	Master string `json:"master"`
	Device string `json:"device"`
	Bridge string `json:"bridge"`
	IPAM   struct {
		Type    string `json:"type"`
		DataDir string `json:"dataDir"`
	} `json:"ipam"`
}

// linkKinds says which kind of link a standard plugin makes.
func linkKinds() map[string]string {
	return map[string]string{
		"bridge": "bridge", "ptp": "veth", "macvlan": "macvlan", "ipvlan": "ipvlan", "vlan": "vlan",
		"dummy": "dummy", "vrf": "vrf", "bond": "bond", "bandwidth": "ifb",
	}
}

// findWants reads the configurations of NADs and of the node's files. A broken NAD wants
// nothing: what is wrong with it is shown by the pods that use it.
func findWants(nads []manifests.NAD, files []netconf.Network) wants {
	w := wants{kinds: map[string][]string{}}
	masters, bridges := map[string]bool{"eth0": true}, map[string]bool{}
	dataDirs := map[string]bool{"/var/lib/cni/networks": true}
	note := func(network netconf.Network) (kinds []string) {
		for _, p := range network.Plugins {
			var conf pluginConf
			if json.Unmarshal(p.Conf, &conf) != nil {
				continue
			}
			masters[conf.Master] = true
			if p.Type == "host-device" {
				masters[conf.Device] = true
			}
			if p.Type == "bridge" {
				if conf.Bridge == "" {
					conf.Bridge = clusterBridge // the plugin's default, too
				}
				bridges[conf.Bridge] = true
			}
			if conf.IPAM.DataDir != "" {
				dataDirs[conf.IPAM.DataDir] = true
			}
			if kind := linkKinds()[p.Type]; kind != "" {
				kinds = append(kinds, kind)
			}
		}
		return kinds
	}
	for _, network := range files {
		// A NAD without spec.config gets the file of its name: the kinds are found under both.
		w.kinds[network.Name] = note(network)
	}
	for _, nad := range nads {
		name := fmt.Sprintf("%s/%s", nad.Ref.Namespace, nad.Ref.Name)
		if network, err := netconf.ParseNetwork([]byte(nad.Config), name); err == nil {
			w.kinds[name] = note(network)
		} else if strings.TrimSpace(nad.Config) == "" {
			w.kinds[name] = w.kinds[nad.Ref.Name]
		}
	}
	// A master that a bridge plugin makes appears with its bridge, not before.
	maps.DeleteFunc(masters, func(name string, _ bool) bool { return name == "" || name == "lo" || bridges[name] })
	w.masters = slices.Sorted(maps.Keys(masters))
	w.bridges = slices.Sorted(maps.Keys(bridges))
	w.dataDirs = slices.Sorted(maps.Keys(dataDirs))
	return w
}

// allKinds lists every kind that some network needs, sorted.
func (w wants) allKinds() []string {
	all := map[string]bool{}
	for _, kinds := range w.kinds {
		for _, k := range kinds {
			all[k] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// lacking names the NADs of networks that need one of the missing kinds, as a remark for
// people: "" when there are none.
func (w wants) lacking(networks []string, missing []string) string {
	var all []string
	for _, network := range networks {
		for _, kind := range w.kinds[network] {
			if slices.Contains(missing, kind) {
				all = append(all, fmt.Sprintf("network %s needs links of kind %s, which the running kernel does not have", network, kind))
			}
		}
	}
	return strings.Join(all, "; ")
}
