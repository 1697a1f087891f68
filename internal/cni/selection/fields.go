// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
)

// key is one key of an element and how its value, never null, gets into it.
type key struct {
	name string
	set  func(e *Element, raw json.RawMessage) error
}

// keys are those of spec/cni.md 1.7. interfaceRequest comes after interface, because it
// counts only where that is absent.
func keys() []key {
	return []key{
		{"name", text(func(e *Element) *string { return &e.Name })},
		{"namespace", text(func(e *Element) *string { return &e.Namespace })},
		{"interface", text(func(e *Element) *string { return &e.Interface })},
		{"interfaceRequest", setInterfaceRequest},
		{"ips", setIPs},
		{"mac", setMAC},
		{"infiniband-guid", setGUID},
		{"deviceID", text(func(e *Element) *string { return &e.DeviceID })},
		{"cni-args", setCNIArgs},
		{"default-route", setDefaultRoute},
		{"ipam-claim-reference", text(func(e *Element) *string { return &e.IPAMClaimReference })},
		{"portMappings", nil}, // these two have keys of their own to warn of
		{"bandwidth", nil},
	}
}

func names(keys []key) []string {
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = k.name
	}
	return names
}

// object reads one element of the JSON form.
func (p *parser) object(i int, o *netconf.Object) {
	field := "[" + strconv.Itoa(i) + "]"
	p.elements = append(p.elements, Element{Index: i})
	e := &p.elements[len(p.elements)-1]
	p.known(p.values, o, field, p.names)
	for _, k := range p.keys {
		raw, ok := p.values[k.name]
		if !ok || k.set == nil {
			continue
		}
		if err := k.set(e, raw); err != nil {
			p.fault(field+"."+k.name, "%w", err)
		}
	}
	if e.CNIArgs != nil {
		p.repeated(field+".cni-args", e.CNIArgs)
	}
	if raw, ok := p.values["portMappings"]; ok {
		e.PortMappings = p.portMappings(field+".portMappings", raw)
	}
	if raw, ok := p.values["bandwidth"]; ok {
		e.Bandwidth = p.bandwidth(field+".bandwidth", raw)
	}
	if e.IPAMClaimReference != "" {
		p.warn(field+".ipam-claim-reference", "has no effect: Weft does not use IPAMClaims")
	}
	if e.IPs != nil && len(e.IPs) == 0 {
		p.warn(field+".ips", "asks for nothing; it counts as absent")
	}
	p.splitName(e, field)
	p.checkNames(e, field, ".namespace", ".name", ".interface")
}

// known maps the known keys in values and warns of the others.
func (p *parser) known(values map[string]json.RawMessage, o *netconf.Object, field string, names []string) {
	netconf.Known(values, o, names, func(key, text string) { p.warn(field+"."+key, "%s", text) })
}

// splitName takes "namespace/name" in the key name apart.
func (p *parser) splitName(e *Element, field string) {
	ns, name, ok := strings.Cut(e.Name, "/")
	if !ok || strings.Contains(name, "/") {
		return
	}
	if e.Namespace != "" && e.Namespace != ns {
		p.fault(field+".name", "%s has another namespace than the key namespace, %s", fault.Quote(e.Name), fault.Quote(e.Namespace))
	}
	e.Namespace, e.Name, e.SplitName = ns, name, true
}

func text(at func(*Element) *string) func(*Element, json.RawMessage) error {
	return func(e *Element, raw json.RawMessage) (err error) {
		*at(e), err = netconf.Decode[string](raw, "a string")
		return err
	}
}

func setInterfaceRequest(e *Element, raw json.RawMessage) error {
	name, err := netconf.Decode[string](raw, "a string")
	if err == nil && e.Interface == "" {
		e.Interface = name
	}
	return err
}

func setIPs(e *Element, raw json.RawMessage) error {
	list, err := netconf.Strings(raw)
	if err != nil {
		return err
	}
	for i, s := range list {
		var err error
		if strings.Contains(s, "/") {
			_, err = netip.ParsePrefix(s)
		} else {
			_, err = netip.ParseAddr(s)
		}
		if err != nil || strings.Contains(s, "%") {
			return fmt.Errorf("[%d] %s is no IP address, with or without a prefix length", i, fault.Quote(s))
		}
	}
	e.IPs = list
	return nil
}

func setMAC(e *Element, raw json.RawMessage) error {
	s, err := netconf.Decode[string](raw, "a string")
	if err != nil || s == "" {
		return err
	}
	mac, err := hardwareAddress(s, 6)
	switch {
	case err != nil:
		return fmt.Errorf("%s %w", fault.Quote(s), err)
	case mac[0]&1 == 1:
		return fmt.Errorf("%s is a group address, no interface can have it", fault.Quote(s))
	case mac == [maxAddress]byte{}:
		return fmt.Errorf("%s is no address that an interface can have", fault.Quote(s))
	}
	e.MAC = s
	return nil
}

func setGUID(e *Element, raw json.RawMessage) error {
	s, err := netconf.Decode[string](raw, "a string")
	if err != nil || s == "" {
		return err
	}
	if _, err := hardwareAddress(s, 8); err != nil {
		return fmt.Errorf("%s %w", fault.Quote(s), err)
	}
	e.InfinibandGUID = s
	return nil
}

func setCNIArgs(e *Element, raw json.RawMessage) error {
	if err := netconf.CheckObject(raw); err != nil {
		return err
	}
	e.CNIArgs = raw
	return nil
}

// repeated warns of keys of cni-args that are written twice. What is inside them is the plugin's.
func (p *parser) repeated(field string, raw json.RawMessage) {
	o, err := netconf.Inner(raw)
	if err != nil {
		return
	}
	times := map[string]int{}
	for _, key := range o.Keys() {
		if times[key]++; times[key] == 2 {
			p.warn(field+"."+fault.Bound(key, maxShown), "is written twice; the last one counts")
		}
	}
}

// maxShown bounds a key of cni-args in a warning.
const maxShown = 64

func setDefaultRoute(e *Element, raw json.RawMessage) error {
	list, err := netconf.Strings(raw)
	if err != nil {
		return err
	}
	gateways := make([]netip.Addr, 0, len(list))
	for i, s := range list {
		addr, err := netip.ParseAddr(s)
		if err != nil || addr.Zone() != "" {
			return fmt.Errorf("[%d] %s is no IP address", i, fault.Quote(s))
		}
		if addr = addr.Unmap(); addr.IsUnspecified() || addr.IsMulticast() || addr.IsLoopback() {
			return fmt.Errorf("[%d] %s cannot be a gateway", i, fault.Quote(s))
		}
		gateways = append(gateways, addr)
	}
	e.DefaultRoute = gateways
	return nil
}

// portMappings reads the list of that name; absent protocols are TCP, as in Kubernetes.
func (p *parser) portMappings(field string, raw json.RawMessage) []PortMapping {
	elements, err := netconf.Elements(raw)
	if err != nil {
		p.fault(field, "%w", err)
		return nil
	}
	var all []PortMapping
	for i, raw := range elements {
		field := fmt.Sprintf("%s[%d]", field, i)
		o, err := netconf.Inner(raw)
		if err != nil {
			p.fault(field, "%w", err)
			continue
		}
		all = append(all, p.portMapping(field, o))
	}
	return all
}

func (p *parser) portMapping(field string, o *netconf.Object) PortMapping {
	m := PortMapping{Protocol: "tcp"}
	values := map[string]json.RawMessage{}
	p.known(values, o, field, []string{"hostPort", "containerPort", "protocol", "hostIP"})
	m.HostPort = p.port(field+".hostPort", values["hostPort"])
	m.ContainerPort = p.port(field+".containerPort", values["containerPort"])
	if raw, ok := values["protocol"]; ok {
		s, err := netconf.Decode[string](raw, "a string")
		if s = strings.ToLower(s); err != nil {
			p.fault(field+".protocol", "%w", err)
		} else if s != "tcp" && s != "udp" && s != "sctp" && s != "" {
			p.fault(field+".protocol", "%s is none of tcp, udp and sctp", fault.Quote(s))
		} else if s != "" {
			m.Protocol = s
		}
	}
	if raw, ok := values["hostIP"]; ok {
		s, err := netconf.Decode[string](raw, "a string")
		if err != nil {
			p.fault(field+".hostIP", "%w", err)
		} else if addr, err := netip.ParseAddr(s); s != "" && (err != nil || addr.Zone() != "") {
			p.fault(field+".hostIP", "%s is no IP address", fault.Quote(s))
		}
		m.HostIP = s
	}
	return m
}

func (p *parser) port(field string, raw json.RawMessage) uint16 {
	if raw == nil {
		p.fault(field, "is missing, a port is needed")
		return 0
	}
	port, err := netconf.Decode[uint16](raw, "a port from 1 to 65535")
	if err == nil && port == 0 {
		err = errors.New("is 0, a port from 1 to 65535 is needed")
	}
	if err != nil {
		p.fault(field, "%w", err)
	}
	return port
}

func (p *parser) bandwidth(field string, raw json.RawMessage) *Bandwidth {
	o, err := netconf.Inner(raw)
	if err != nil {
		p.fault(field, "%w", err)
		return nil
	}
	var b Bandwidth
	at := []struct {
		name string
		to   *uint64
	}{
		{"ingressRate", &b.IngressRate},
		{"ingressBurst", &b.IngressBurst},
		{"egressRate", &b.EgressRate},
		{"egressBurst", &b.EgressBurst},
	}
	values := map[string]json.RawMessage{}
	p.known(values, o, field, []string{"ingressRate", "ingressBurst", "egressRate", "egressBurst"})
	for _, k := range at {
		if raw, ok := values[k.name]; ok {
			if *k.to, err = netconf.Decode[uint64](raw, "a whole number of bits that is not negative"); err != nil {
				p.fault(field+"."+k.name, "%w", err)
			}
		}
	}
	return &b
}
