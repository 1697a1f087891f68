// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vmistatus

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
)

// NetworkStatusAnnotation is where a pod's network-status stands.
const NetworkStatusAnnotation = "k8s.v1.cni.cncf.io/network-status"

const (
	defaultPodInterface  = "eth0"
	maxNetworkStatus     = 1 << 20
	maxNetworkStatusNets = 1024
)

// PodNetwork is one element of a pod's network-status.
type PodNetwork struct {
	// Name of the NetworkAttachmentDefinition with its namespace, or of the default network.
	Name string `json:"name"`
	// Interface is the link's name in the pod.
	Interface string `json:"interface"`
	// Default marks the pod's default network.
	Default bool `json:"default"`
	// IPs are its addresses in the pod.
	IPs []string `json:"ips"`
}

// ParseNetworkStatus reads the annotation. An empty one lists nothing; of one that cannot be read
// nothing is used.
func ParseNetworkStatus(text string) ([]PodNetwork, error) {
	if len(text) > maxNetworkStatus {
		return nil, fmt.Errorf("annotation %s: it has %d bytes, more than %d", NetworkStatusAnnotation, len(text), maxNetworkStatus)
	}
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	var all []*PodNetwork
	if err := json.NewDecoder(bytes.NewReader([]byte(text))).Decode(&all); err != nil {
		return nil, fmt.Errorf("annotation %s: %w", NetworkStatusAnnotation, err)
	}
	if !json.Valid([]byte(text)) {
		return nil, fmt.Errorf("annotation %s: there is text after the list", NetworkStatusAnnotation)
	}
	if len(all) > maxNetworkStatusNets {
		return nil, fmt.Errorf("annotation %s: it lists %d networks, more than %d", NetworkStatusAnnotation, len(all), maxNetworkStatusNets)
	}
	networks := make([]PodNetwork, 0, len(all))
	for _, n := range all {
		if n != nil {
			networks = append(networks, *n)
		}
	}
	return networks, nil
}

// UpdateFromPod is virt-controller's part: it applies the launcher pod's network-status to
// vmi.Status.Interfaces, which are only replaced, as a whole, when they say something else than
// before. An annotation that cannot be read is the error; nothing that was known is dropped then.
func UpdateFromPod(vmi *v1.VirtualMachineInstance, pod *corev1.Pod) error {
	interfaces, err := FromPodStatus(vmi, pod)
	if !Equal(vmi.Status.Interfaces, interfaces) {
		vmi.Status.Interfaces = interfaces
	}
	if err != nil {
		return fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// FromPodStatus is what UpdateFromPod makes of the status; it changes nothing.
func FromPodStatus(vmi *v1.VirtualMachineInstance, pod *corev1.Pod) ([]Interface, error) {
	text, there := pod.Annotations[NetworkStatusAnnotation]
	listed, err := ParseNetworkStatus(text)
	c := controller{vmi: vmi, listed: listed, known: there && err == nil, broken: err != nil}
	c.split()
	c.resolve()
	return c.interfaces(), err
}

// ReportOf says which networks have multus-status by the launcher pod's network-status. Networks
// that it does not decide on, the primary one and those of resource claims, keep what they have.
func ReportOf(vmi *v1.VirtualMachineInstance, pod *corev1.Pod) *MultusReport {
	interfaces, err := FromPodStatus(vmi, pod)
	r := &MultusReport{Err: err}
	for i := range interfaces {
		if e := &interfaces[i]; e.Name != "" && ContainsInfoSource(e.InfoSource, SourceMultusStatus) {
			r.Names = append(r.Names, e.Name)
		}
	}
	return r
}

// ResolvePodNetworks finds the elements of a network-status that are those of the VMI's networks, by
// the networks' names: the default one is the primary network's.
func ResolvePodNetworks(vmi *v1.VirtualMachineInstance, listed []PodNetwork) map[string]*PodNetwork {
	c := controller{vmi: vmi, listed: listed, known: true}
	c.split()
	c.resolve()
	found := map[string]*PodNetwork{}
	for i, p := range c.found {
		if p != nil {
			found[c.secondaries[i].Name] = p
		}
	}
	if i := slices.IndexFunc(listed, func(p PodNetwork) bool { return p.Default }); i >= 0 && c.primary != nil {
		found[c.primary.Name] = &listed[i]
	}
	return found
}

// controller is one application of a network-status.
type controller struct {
	vmi    *v1.VirtualMachineInstance
	listed []PodNetwork
	known  bool // the annotation is there and could be read
	broken bool // it is there and could not be read

	primary     *v1.Network
	secondaries []*v1.Network
	found       []*PodNetwork // by index of secondaries; nil: not listed
	taken       []bool        // by index of listed
	hashed      bool          // a secondary has its hashed name
	ordinal     bool          // there are ordinal names
}

func (c *controller) split() {
	c.primary = LookupDefault(c.vmi.Spec.Networks)
	for i := range c.vmi.Spec.Networks {
		if n := &c.vmi.Spec.Networks[i]; n.Multus != nil && !n.Multus.Default {
			c.secondaries = append(c.secondaries, n)
		}
	}
	c.found = make([]*PodNetwork, len(c.secondaries))
	c.taken = make([]bool, len(c.listed))
}

// resolve finds each secondary's element by its own name: the hashed one, the ordinal one where
// the element is of the same NetworkAttachmentDefinition or does not say, any of that
// definition, and last an ordinal one of another where nothing speaks for hashed names.
func (c *controller) resolve() {
	for i := range c.listed {
		c.ordinal = c.ordinal || isOrdinal(c.listed[i].Interface)
	}
	c.find(func(i int, p *PodNetwork) bool { return p.Interface == HashedName(c.secondaries[i].Name) })
	c.hashed = slices.ContainsFunc(c.found, func(p *PodNetwork) bool { return p != nil })
	c.find(func(i int, p *PodNetwork) bool {
		return p.Interface == ordinalName(i) && (p.Name == "" || p.Name == c.definition(i))
	})
	c.find(func(i int, p *PodNetwork) bool { return p.Name == c.definition(i) && !isHashed(p.Interface) })
	if !c.hashed {
		c.find(func(i int, p *PodNetwork) bool { return p.Interface == ordinalName(i) })
	}
}

// find gives each secondary without an element the first free one that is its own.
func (c *controller) find(own func(int, *PodNetwork) bool) {
	for i := range c.secondaries {
		for j := range c.listed {
			p := &c.listed[j]
			if c.found[i] == nil && !c.taken[j] && !p.Default && own(i, p) {
				c.found[i], c.taken[j] = p, true
			}
		}
	}
}

// definition is the qualified name of a secondary's NetworkAttachmentDefinition.
func (c *controller) definition(i int) string {
	name := c.secondaries[i].Multus.NetworkName
	if strings.Contains(name, "/") {
		return name
	}
	return c.vmi.Namespace + "/" + name
}

// interfaces are the primary network, the secondaries and the claims' networks in the order of
// the spec, then what the spec does not have.
func (c *controller) interfaces() []Interface {
	var out []Interface
	if c.primary != nil {
		e, _ := c.previous(c.primary.Name)
		e.Name, e.PodInterfaceName = c.primary.Name, c.primaryName(e.PodInterfaceName)
		out = append(out, e)
	}
	for i := range c.secondaries {
		if e, ok := c.secondary(i); ok {
			out = append(out, e)
		}
	}
	for i := range c.vmi.Spec.Networks {
		n := &c.vmi.Spec.Networks[i]
		if e, had := c.previous(n.Name); had && n != c.primary && (n.Multus == nil || n.Multus.Default) {
			out = append(out, e)
		}
	}
	for i := range c.vmi.Status.Interfaces {
		e := &c.vmi.Status.Interfaces[i]
		if !slices.ContainsFunc(c.vmi.Spec.Networks, func(n v1.Network) bool { return n.Name == e.Name }) {
			out = append(out, cloned(e))
		}
	}
	return out
}

// secondary is a secondary's entry; there is none before Multus reports the network.
func (c *controller) secondary(i int) (Interface, bool) {
	e, had := c.previous(c.secondaries[i].Name)
	e.Name = c.secondaries[i].Name
	found := c.found[i]
	switch {
	case c.broken:
		return e, had
	case found != nil:
		e.InfoSource = AddInfoSource(e.InfoSource, SourceMultusStatus)
		e.PodInterfaceName = found.Interface
	default:
		e.InfoSource = RemoveInfoSource(e.InfoSource, SourceMultusStatus)
	}
	if e.PodInterfaceName == "" {
		e.PodInterfaceName = c.schemeName(i)
	}
	return e, had || found != nil
}

// previous is a copy of what the status has of a network.
func (c *controller) previous(name string) (Interface, bool) {
	var best *Interface
	for i := range c.vmi.Status.Interfaces {
		e := &c.vmi.Status.Interfaces[i]
		if e.Name == name && (best == nil || compareInterfaces(e, best) < 0) {
			best = e
		}
	}
	if best == nil {
		return Interface{}, false
	}
	return cloned(best), true
}

func cloned(e *Interface) Interface {
	c := *e
	c.IPs = slices.Clone(e.IPs)
	return c
}

// primaryName is the primary network's link; without an annotation that can be read it is what
// it was.
func (c *controller) primaryName(before string) string {
	for i := range c.listed {
		if p := &c.listed[i]; p.Default && p.Interface != "" {
			return p.Interface
		}
	}
	if before != "" && !c.known {
		return before
	}
	return defaultPodInterface
}

// schemeName is what a secondary's link would be called.
func (c *controller) schemeName(i int) string {
	if c.ordinal && !c.hashed {
		return ordinalName(i)
	}
	return HashedName(c.secondaries[i].Name)
}

func ordinalName(i int) string { return "net" + strconv.Itoa(i+1) }

func isOrdinal(name string) bool {
	digits, ok := strings.CutPrefix(name, "net")
	return ok && digits != "" && number(digits) == digits
}

const hashedLetters = 11

// HashedName is the name that KubeVirt gives a secondary network's link in the pod.
func HashedName(network string) string {
	sum := sha256.Sum256([]byte(network))
	return "pod" + hex.EncodeToString(sum[:])[:hashedLetters]
}

func isHashed(name string) bool {
	hash, ok := strings.CutPrefix(name, "pod")
	return ok && len(hash) == hashedLetters && strings.Trim(hash, "0123456789abcdef") == ""
}
