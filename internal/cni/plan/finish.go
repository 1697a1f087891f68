// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/selection"
)

// Capabilities that Weft has a value for.
const (
	capDeviceID   = "deviceID"
	capDeviceInfo = "CNIDeviceInfoFile"
)

// finish gives every slot its arguments and its edits of the configuration.
func (p *planner) finish() {
	common := p.argString(nil, nil)
	for i := range p.slots {
		s := &p.slots[i]
		if !s.ok {
			continue
		}
		s.Args = common
		if e := s.request; e != nil && (e.MAC != "" || len(e.IPs) > 0) {
			s.Args = p.argString(e, &s.Conf)
			p.explainArgs(s)
		}
		p.runtimeConfig(s)
		if s.drawn || s.request != nil && s.request.CNIArgs != nil {
			p.edit(s)
		}
	}
}

// runtimeConfig collects the capability arguments of a slot: what the kubelet gave, for
// the default network alone, and what is asked for this one, as far as one of its
// plugins declares the capability.
func (p *planner) runtimeConfig(s *slot) {
	config := map[string]json.RawMessage{}
	p.explainKubelet(s)
	if s.Default {
		for name, value := range p.conf.RuntimeConfig {
			if s.Conf.Declares(name) {
				config[name] = value
			}
		}
	}
	if s.request != nil {
		for _, r := range requests(s.request) {
			if s.Conf.Declares(r.capability) {
				config[r.capability] = encode(r.value)
				p.explainRequest(s, r)
			} else {
				p.undeclared(s, r)
			}
		}
	}
	if s.DeviceID != "" && s.Conf.Declares(capDeviceID) {
		config[capDeviceID] = netconf.String(s.DeviceID)
	}
	if s.Conf.Declares(capDeviceInfo) && config[capDeviceInfo] == nil {
		config[capDeviceInfo] = netconf.String(p.deviceInfoPath(s))
		p.explainDeviceInfo(s)
	}
	if len(config) > 0 {
		s.RuntimeConfig = config
	}
}

// request is something that an element asks of the plugins of its network.
type request struct {
	key        string // as users write it
	capability string
	value      any
}

func requests(e *selection.Element) []request {
	var all []request
	if len(e.PortMappings) > 0 {
		all = append(all, request{"portMappings", "portMappings", e.PortMappings})
	}
	if e.Bandwidth != nil {
		all = append(all, request{"bandwidth", "bandwidth", e.Bandwidth})
	}
	if len(e.IPs) > 0 {
		all = append(all, request{"ips", "ips", e.IPs})
	}
	if e.MAC != "" {
		all = append(all, request{"mac", "mac", e.MAC})
	}
	if e.InfinibandGUID != "" {
		all = append(all, request{"infiniband-guid", "infinibandGUID", e.InfinibandGUID})
	}
	if e.DeviceID != "" {
		all = append(all, request{"deviceID", capDeviceID, e.DeviceID})
	}
	return all
}

// undeclared tells that no plugin takes a request. The specification makes that an
// error; many plugins read the legacy CNI_ARGS instead, so it is one only under strict.
func (p *planner) undeclared(s *slot, r request) {
	if r.capability == capDeviceID && s.drawn {
		return // every plugin finds the drawn device in its configuration
	}
	p.explainUndeclared(s, r)
	const text = "is asked for, and no plugin of %s declares the capability %s"
	if p.conf.Strict {
		p.slotFault(s, "."+r.key, text, s.Network, r.capability)
	} else {
		p.warn(s.from+"."+r.key, text, s.Network, r.capability)
	}
}

// maxFileName is what every file system takes.
const maxFileName = 255

// deviceInfoPath is where the plugins of a slot may write their device-info, whether or
// not the slot has a device: some plugins make one themselves.
func (p *planner) deviceInfoPath(s *slot) string {
	file := strings.ReplaceAll(s.Network, "/", "-") + "-" + p.in.Sandbox.ContainerID + "_" + s.IfName
	if len(file) > maxFileName {
		p.slotFault(s, "", "would need a device-info file with a name of %d bytes, at most %d are allowed", len(file), maxFileName)
	}
	return strings.TrimSuffix(p.conf.DeviceInfoDir, "/") + "/cni/" + file
}

// edit puts the drawn device and the cni-args into every plugin of the chain.
func (p *planner) edit(s *slot) {
	s.Conf.Plugins = slices.Clone(s.Conf.Plugins) // other slots share them
	for i := range s.Conf.Plugins {
		o, err := netconf.Inner(s.Conf.Plugins[i].Conf)
		if err != nil { // it was one when it was read
			p.faults = append(p.faults, fault.New(fault.Internal, p.object, s.from, "edit plugin %d: %w", i, err))
			return
		}
		if s.drawn {
			id := netconf.String(s.DeviceID)
			o.Set("deviceID", id)
			o.Set("pciBusID", id)
		}
		if s.request != nil && s.request.CNIArgs != nil {
			if err := mergeArgs(o, s.request.CNIArgs); err != nil {
				p.slotFault(s, ".cni-args", "cannot be merged into plugins[%d].args of %s: %w", i, s.Network, err)
			}
		}
		s.Conf.Plugins[i].Conf = o.Bytes()
	}
	p.explainEdit(s)
}

// mergeArgs sets every key of cniArgs in args.cni; the other keys of both stay.
func mergeArgs(conf *netconf.Object, cniArgs json.RawMessage) error {
	from, err := netconf.Inner(cniArgs)
	if err != nil {
		return err
	}
	args, err := inner(conf, "args")
	if err != nil {
		return err
	}
	cni, err := inner(args, "cni")
	if err != nil {
		return err
	}
	for _, key := range from.Keys() {
		value, _ := from.Get(key)
		cni.Set(key, value)
	}
	args.Set("cni", cni.Bytes())
	conf.Set("args", args.Bytes())
	return nil
}

// inner is the object under a key, an empty one where there is none.
func inner(o *netconf.Object, key string) (*netconf.Object, error) {
	raw, ok := o.Get(key)
	if !ok || netconf.IsNull(raw) {
		raw = json.RawMessage("{}")
	}
	return netconf.Inner(raw)
}

// encode is JSON of a value that always has one (strings, numbers and lists of them).
func encode(v any) json.RawMessage {
	if s, ok := v.(string); ok {
		return netconf.String(s)
	}
	b, err := json.Marshal(v)
	if err != nil {
		return json.RawMessage("null")
	}
	return b
}
