// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/json"
	"errors"
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
	p.podArgs = p.commonArgs()
	common := p.argString(nil, nil)
	if len(common) > maxArgs {
		p.environment("CNI_ARGS", "is of %d bytes, at most %d fit into a plugin's environment", len(common), maxArgs)
	}
	for i := range p.slots {
		s := &p.slots[i]
		if !s.ok {
			continue
		}
		s.Args = common
		if e := s.request; e != nil && (e.MAC != "" || len(e.IPs) > 0) {
			s.Args = p.argString(e, &s.Conf)
			if len(s.Args) > maxArgs && len(common) <= maxArgs {
				key := ".ips"
				if len(e.IPs) == 0 {
					key = ".mac"
				}
				p.slotFault(s, key, "makes CNI_ARGS of %d bytes, at most %d fit into a plugin's environment", len(s.Args), maxArgs)
			}
			p.explainArgs(s)
		}
		p.runtimeConfig(s)
		if s.drawn || s.request != nil && s.request.CNIArgs != nil {
			p.edit(s)
		}
	}
}

// maxArgs is what the kernel takes as one variable of a new process (MAX_ARG_STRLEN, with the
// smallest pages), without "CNI_ARGS=" and the NUL. A plugin that cannot be started for it
// could not be started for its DEL either.
const maxArgs = 128<<10 - len("CNI_ARGS=") - 1

// runtimeConfig collects the capability arguments of a slot: what the kubelet gave, for
// the default network alone, and what is asked for this one, as far as one of its
// plugins declares the capability.
func (p *planner) runtimeConfig(s *slot) {
	p.explainKubelet(s)
	if s.Default {
		for name, value := range p.conf.RuntimeConfig {
			if s.Conf.Declares(name) {
				s.configure(name, value)
			}
		}
	}
	if s.request != nil {
		for _, r := range requests(s.request) {
			switch {
			case !r.asked:
			case s.Conf.Declares(r.capability):
				s.configure(r.capability, encode(r.value))
				p.explainRequest(s, r)
			default:
				p.undeclared(s, r)
			}
		}
	}
	if s.DeviceID != "" && s.Conf.Declares(capDeviceID) {
		s.configure(capDeviceID, netconf.String(s.DeviceID))
	}
	if s.Conf.Declares(capDeviceInfo) && s.RuntimeConfig[capDeviceInfo] == nil {
		s.configure(capDeviceInfo, netconf.String(p.deviceInfoPath(s)))
		p.explainDeviceInfo(s)
	}
}

func (s *slot) configure(capability string, value json.RawMessage) {
	if s.RuntimeConfig == nil {
		s.RuntimeConfig = map[string]json.RawMessage{}
	}
	s.RuntimeConfig[capability] = value
}

// request is something that an element may ask of the plugins of its network.
type request struct {
	asked      bool
	key        string // as users write it
	capability string
	value      any // points to it
}

func requests(e *selection.Element) [6]request {
	return [...]request{
		{len(e.PortMappings) > 0, "portMappings", "portMappings", &e.PortMappings},
		{e.Bandwidth != nil, "bandwidth", "bandwidth", e.Bandwidth},
		{len(e.IPs) > 0, "ips", "ips", &e.IPs},
		{e.MAC != "", "mac", "mac", &e.MAC},
		{e.InfinibandGUID != "", "infiniband-guid", "infinibandGUID", &e.InfinibandGUID},
		{e.DeviceID != "", "deviceID", capDeviceID, &e.DeviceID},
	}
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
	args := &p.merged
	args.raw, args.bare = nil, nil
	if s.request != nil {
		args.raw = s.request.CNIArgs
	}
	var id json.RawMessage
	if s.drawn {
		id = netconf.String(s.DeviceID)
	}
	o := &p.edited
	for i := range s.Conf.Plugins {
		if err := o.Reset(s.Conf.Plugins[i].Conf); err != nil { // it was one when it was read
			p.faults = append(p.faults, fault.New(fault.Internal, p.object, s.from, "edit plugin %d: %w", i, err))
			return
		}
		if s.drawn {
			o.Set("deviceID", id)
			o.Set("pciBusID", id)
		}
		if args.raw != nil {
			if err := args.merge(o); err != nil {
				p.slotFault(s, ".cni-args", "cannot be merged into plugins[%d].args of %s: %w", i, s.Network, err)
			}
		}
		s.Conf.Plugins[i].Conf = o.Bytes()
	}
	p.explainEdit(s)
}

// cniArgs are the cni-args of one element, on their way into several plugins.
type cniArgs struct {
	raw  json.RawMessage
	bare json.RawMessage // "args" of a plugin that has none itself; nil until there is one

	from, args, cni netconf.Object // in work
}

// merge sets every key of the cni-args in args.cni; the other keys of both stay.
func (a *cniArgs) merge(conf *netconf.Object) error {
	raw, ok := conf.Get("args")
	if ok && !netconf.IsNull(raw) {
		merged, err := a.into(raw)
		if err != nil {
			return err
		}
		conf.Set("args", merged)
		return nil
	}
	if a.bare == nil {
		var err error
		if a.bare, err = a.into(json.RawMessage("{}")); err != nil {
			return err
		}
	}
	conf.Set("args", a.bare)
	return nil
}

// into gives the object raw with the cni-args in its key cni.
func (a *cniArgs) into(raw json.RawMessage) (json.RawMessage, error) {
	if err := errors.Join(a.args.Reset(raw), a.from.Reset(a.raw)); err != nil {
		return nil, err
	}
	raw, ok := a.args.Get("cni")
	if !ok || netconf.IsNull(raw) {
		raw = json.RawMessage("{}")
	}
	if err := a.cni.Reset(raw); err != nil {
		return nil, err
	}
	a.cni.Merge(&a.from)
	a.args.Set("cni", a.cni.Bytes())
	return a.args.Bytes(), nil
}

// encode is JSON of a value that always has one (strings, numbers and lists of them).
func encode(v any) json.RawMessage {
	switch v := v.(type) {
	case *string:
		return netconf.String(*v)
	case *[]string:
		return netconf.StringList(*v)
	}
	b, err := json.Marshal(v)
	if err != nil {
		return json.RawMessage("null")
	}
	return b
}
