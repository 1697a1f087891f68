// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bundle is the file that holds everything a merge of a virtual machine's interfaces looks
// at, so that a user's report can be replayed anywhere: the VirtualMachineInstance with its previous
// status, the domain's XML, the pod interface cache, what the guest agent reported, the launcher pod.
//
// It owns the file's format, its replay and the pseudonyms for addresses and MACs.
//
// Invariants: a bundle that is too large, too deep, has an unknown key or a value of the wrong type
// is refused, with the field's name; what the domain, the guest or the pod's annotation say may be
// anything, as it may be on a node, and is then that source's fault alone. A replay depends on the
// bundle and nothing else. In an anonymized bundle equal addresses and MACs are still equal,
// however and wherever they are spelled, and a replay takes the same decisions.
//
// It must not read files, sockets or clusters, nor decide anything of a merge: vmistatus does.
//
// Implements: architecture 4.6, 4.7.
package bundle

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/vmistatus"
)

// Limits of a bundle.
const (
	MaxSize  = 16 << 20 // bytes
	maxDepth = 128      // objects and lists within each other
)

// Bundle is a recorded machine.
type Bundle struct {
	// VMI with its previous status.
	VMI *v1.VirtualMachineInstance `json:"vmi"`
	// DomainXML is the libvirt domain; nil: there is none.
	DomainXML *string `json:"domainXML,omitempty"`
	// PodCache has the files of the pod interface cache by network; a missing key: no file.
	PodCache map[string]PodFile `json:"podCache,omitempty"`
	// GuestAgent is the list that guest-network-get-interfaces returned; empty: it never reported.
	GuestAgent json.RawMessage `json:"guestAgent,omitempty"`
	// AgentConnected is true where it is nil.
	AgentConnected *bool `json:"agentConnected,omitempty"`
	// Pod is the launcher; nil: the previous status decides which networks carry multus-status.
	Pod *corev1.Pod `json:"pod,omitempty"`
	// Policy is family-merge where it is empty.
	Policy vmistatus.Policy `json:"policy,omitempty"`
}

// PodFile is one file of the pod interface cache.
type PodFile struct {
	PodIP  string   `json:"podIP,omitempty"`
	PodIPs []string `json:"podIPs,omitempty"`
	// Error says why the file cannot be read.
	Error string `json:"error,omitempty"`
}

// Parse reads a bundle as YAML or JSON. Errors name the field.
func Parse(text []byte) (*Bundle, error) {
	if len(text) > MaxSize {
		return nil, fmt.Errorf("it has more than %d bytes", MaxSize)
	}
	text, err := toJSON(text)
	if err != nil {
		return nil, err
	}
	if err := checkDepth(text); err != nil {
		return nil, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil || fields == nil {
		return nil, errors.New("it is no object with the keys of a bundle")
	}
	b := &Bundle{}
	var faults []error
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		into := b.field(key)
		switch {
		case into == nil:
			faults = append(faults, fmt.Errorf("%s: there is no such key: vmi, domainXML, podCache, guestAgent, agentConnected, pod or policy", key))
		case key == "podCache":
			faults = append(faults, b.podFiles(fields[key])...)
		default:
			if err := json.Unmarshal(fields[key], into); err != nil {
				faults = append(faults, inField(key, err))
			}
		}
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return b, b.check()
}

// toJSON makes JSON of YAML. JSON is taken as it is: what it may hold, YAML may not.
func toJSON(text []byte) ([]byte, error) {
	if json.Valid(text) {
		return text, nil
	}
	documents := yamlv3.NewDecoder(bytes.NewReader(text))
	var first, second yamlv3.Node
	if err := documents.Decode(&first); err == nil {
		if err := documents.Decode(&second); !errors.Is(err, io.EOF) {
			return nil, errors.New("it has several documents, a bundle is one")
		}
	}
	out, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, fmt.Errorf("it is neither JSON nor YAML: %w", err)
	}
	return out, nil
}

// checkDepth refuses what only hurts who reads it.
func checkDepth(text []byte) error {
	depth, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return fmt.Errorf("it is deeper than %d levels", maxDepth)
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return nil
}

// field is where a key's value belongs; nil for an unknown key.
func (b *Bundle) field(key string) any {
	switch key {
	case "vmi":
		return &b.VMI
	case "domainXML":
		return &b.DomainXML
	case "podCache":
		return &b.PodCache
	case "guestAgent":
		return &b.GuestAgent
	case "agentConnected":
		return &b.AgentConnected
	case "pod":
		return &b.Pod
	case "policy":
		return &b.Policy
	}
	return nil
}

func (b *Bundle) podFiles(raw json.RawMessage) []error {
	var files map[string]json.RawMessage
	if err := json.Unmarshal(raw, &files); err != nil {
		return []error{inField("podCache", err)}
	}
	var faults []error
	b.PodCache = map[string]PodFile{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		var f *PodFile
		switch err := json.Unmarshal(files[name], &f); {
		case err != nil:
			faults = append(faults, inField("podCache."+name, err))
		case f != nil:
			b.PodCache[name] = *f
		}
	}
	return faults
}

// inField names the field that a value of the wrong type stands in.
func inField(key string, err error) error {
	wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
	if !ok {
		return fmt.Errorf("%s: %w", key, err)
	}
	if wrong.Field != "" {
		key += "." + wrong.Field
	}
	article := "a"
	if strings.IndexByte("aeiou", wrong.Value[0]) >= 0 {
		article = "an"
	}
	return fmt.Errorf("%s: %s %s cannot be its value", key, article, wrong.Value)
}

func (b *Bundle) check() error {
	switch {
	case b.VMI == nil:
		return errors.New("vmi: it is missing")
	case b.VMI.Kind != "" && b.VMI.Kind != "VirtualMachineInstance":
		return fmt.Errorf("vmi.kind: %q is not VirtualMachineInstance", b.VMI.Kind)
	case b.Pod != nil && b.Pod.Kind != "" && b.Pod.Kind != "Pod":
		return fmt.Errorf("pod.kind: %q is not Pod", b.Pod.Kind)
	}
	switch b.Policy {
	case "", vmistatus.FamilyMerge, vmistatus.PodAuthoritative:
		return nil
	}
	return fmt.Errorf("policy: %q is none of %s, %s", b.Policy, vmistatus.FamilyMerge, vmistatus.PodAuthoritative)
}

// Marshal writes the bundle as YAML, the same bytes for the same bundle.
func (b *Bundle) Marshal() ([]byte, error) {
	out, err := yaml.Marshal(b)
	if err != nil {
		return nil, fmt.Errorf("write bundle: %w", err)
	}
	return out, nil
}

// Input is what a merge of the bundle looks at.
func (b *Bundle) Input() vmistatus.Input {
	in := vmistatus.Input{
		Interfaces: b.VMI.Spec.Domain.Devices.Interfaces,
		Networks:   b.VMI.Spec.Networks,
		Previous:   b.VMI.Status.Interfaces,
		PodCache:   map[string]vmistatus.PodRead{},
		Policy:     b.Policy,
		Explain:    true,
	}
	for name, f := range b.PodCache {
		r := vmistatus.PodRead{PodIP: f.PodIP, PodIPs: f.PodIPs}
		if f.Error != "" {
			r = vmistatus.PodRead{Err: errors.New(f.Error)}
		}
		in.PodCache[name] = r
	}
	if b.Pod != nil {
		in.Multus = vmistatus.ReportOf(b.VMI, b.Pod)
	}
	if b.DomainXML == nil || strings.TrimSpace(*b.DomainXML) == "" {
		return in
	}
	in.Domain = vmistatus.FromXML([]byte(*b.DomainXML))
	if len(b.GuestAgent) > 0 {
		in.Domain.Guest, in.Domain.GuestErr = vmistatus.FromGuest(b.GuestAgent)
	}
	in.Domain.Agent = vmistatus.AgentConnected
	if b.AgentConnected != nil && !*b.AgentConnected {
		in.Domain.Agent = vmistatus.AgentDisconnected
	}
	return in
}
