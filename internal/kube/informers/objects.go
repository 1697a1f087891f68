// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package informers

import (
	"encoding/json"
	"fmt"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// Pod is what is kept of a pod. It is not to be changed.
type Pod struct {
	Namespace, Name, UID string
	ResourceVersion      string
	// Annotations are those of KeptAnnotations that the pod has.
	Annotations map[string]string
	HostNetwork bool
	Terminal    bool // Succeeded or Failed
	Deleting    bool
	// Claims is the JSON of a core/v1 Pod with no more than what its ResourceClaims depend
	// on (name, node, claims and their statuses); nil when it has none.
	Claims []byte

	annotated bool // metadata.annotations is not empty
}

// Ref names the pod.
func (p *Pod) Ref() Ref { return Ref{p.Namespace, p.Name, p.UID} }

func (p *Pod) id() (Ref, string) { return p.Ref(), p.ResourceVersion }

func (p Pod) unversioned() Pod {
	p.ResourceVersion = ""
	return p
}

// NAD is what is kept of a NetworkAttachmentDefinition. It is not to be changed.
type NAD struct {
	Namespace, Name, UID string
	ResourceVersion      string
	Config               string            // spec.config, "" when absent
	Broken               string            // why spec.config cannot be read, "" when it can
	Annotations          map[string]string // the resourceName, when there is one
	Deleting             bool
	// Large is how many bytes Config and Annotations have, where those are more than MaxKept, or were
	// more than MaxAllKept with those of others. A row of the caches has no Config then, nor
	// Annotations that are large themselves; LiveNAD has both.
	Large int
	// Outline is what Config.Outline says of Config, where Large is set.
	Outline string
}

// How many bytes of a NAD are kept, and of all together: every node keeps those of the whole
// cluster, and nobody need use one.
const (
	MaxKept    = 64 << 10
	MaxAllKept = 16 << 20
)

const (
	// maxOutline bounds NAD.Outline, in bytes; a longer one is left out.
	maxOutline = 1 << 10
	// maxResource is more than the name of any resource has.
	maxResource = 512
)

func (n *NAD) size() int { return len(n.Config) + len(n.Annotations[resourceName]) }

func (n *NAD) id() (Ref, string) { return Ref{n.Namespace, n.Name, n.UID}, n.ResourceVersion }

func (n NAD) unversioned() NAD {
	n.ResourceVersion = ""
	return n
}

const resourceName = "k8s.v1.cni.cncf.io/resourceName"

// KeptAnnotations are the annotations of pods that are kept: those that users of networks
// write, network-status, and what tells a static pod's mirror.
func KeptAnnotations() []string {
	return []string{
		"k8s.v1.cni.cncf.io/networks",
		"v1.multus-cni.io/default-network",
		"k8s.v1.cni.cncf.io/network-status",
		"kubernetes.io/config.source",
		"kubernetes.io/config.hash",
	}
}

// pick is the part of all that has the keys; nil when there is none.
func pick(all map[string]string, keys ...string) map[string]string {
	var picked map[string]string
	for _, k := range keys {
		if v, ok := all[k]; ok {
			if picked == nil {
				picked = map[string]string{}
			}
			picked[k] = v
		}
	}
	return picked
}

// trimPod makes a row of a *corev1.Pod.
func trimPod(o any) (*Pod, error) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return nil, fmt.Errorf("trim pod: it is a %T", o)
	}
	return &Pod{
		Namespace: unique.Make(p.Namespace).Value(), Name: p.Name, UID: string(p.UID), ResourceVersion: p.ResourceVersion,
		Annotations: pick(p.Annotations, KeptAnnotations()...), annotated: len(p.Annotations) > 0,
		HostNetwork: p.Spec.HostNetwork,
		Terminal:    p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed,
		Deleting:    p.DeletionTimestamp != nil,
		Claims:      claims(p),
	}, nil
}

func claims(p *corev1.Pod) []byte {
	if len(p.Spec.ResourceClaims) == 0 && p.Status.ExtendedResourceClaimStatus == nil {
		return nil
	}
	part := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}}
	part.Spec.NodeName, part.Spec.ResourceClaims = p.Spec.NodeName, p.Spec.ResourceClaims
	part.Status.ResourceClaimStatuses = p.Status.ResourceClaimStatuses
	part.Status.ExtendedResourceClaimStatus = p.Status.ExtendedResourceClaimStatus
	b, err := json.Marshal(part)
	if err != nil {
		return nil // plain values: cannot fail
	}
	return b
}

// trimNAD makes a row of a *nadObject.
func trimNAD(o any) (*NAD, error) {
	n, ok := o.(*nadObject)
	if !ok {
		return nil, fmt.Errorf("trim NetworkAttachmentDefinition: it is a %T", o)
	}
	row := &NAD{
		Namespace: unique.Make(n.Namespace).Value(), Name: n.Name, UID: string(n.UID), ResourceVersion: n.ResourceVersion,
		Config: n.Spec.Config.text, Broken: n.Spec.Config.broken, Annotations: pick(n.Annotations, resourceName),
		Deleting: n.DeletionTimestamp != nil,
	}
	if size := row.size(); size > MaxKept {
		row.Large = size
	}
	return row, nil
}

// trimmer says what the caches keep of NADs.
type trimmer struct{ outline func(config string) string }

// trim is trimNAD for the caches.
func (t trimmer) trim(o any) (*NAD, error) {
	row, err := trimNAD(o)
	if err == nil && row.Large > 0 {
		row = t.shrink(row)
	}
	return row, err
}

// shrink is a row without what LiveNAD reads anew.
func (t trimmer) shrink(row *NAD) *NAD {
	resource := len(row.Annotations[resourceName])
	if row.Config == "" && resource <= maxResource {
		return row
	}
	small := *row
	small.Large, small.Config = row.size(), ""
	if resource > maxResource {
		small.Annotations = nil
	}
	if t.outline != nil {
		if said := t.outline(row.Config); len(said) <= maxOutline {
			small.Outline = said
		}
	}
	return &small
}

func (t trimmer) budget() budget[NAD] { return budget[NAD]{MaxAllKept, (*NAD).size, t.shrink} }

// The API versions that are spoken.
//
//nolint:gochecknoglobals // constants, but for their type
var (
	coreV1     = schema.GroupVersion{Version: "v1"}
	nadV1      = schema.GroupVersion{Group: "k8s.cni.cncf.io", Version: "v1"}
	resourceV1 = schema.GroupVersion{Group: "resource.k8s.io", Version: "v1"}
)

// newScheme knows the few types that are read; the whole of client-go's scheme would be
// megabytes of memory.
func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	s.AddKnownTypes(coreV1, &corev1.Pod{}, &corev1.PodList{})
	s.AddKnownTypeWithName(nadV1.WithKind("NetworkAttachmentDefinition"), &nadObject{})
	s.AddKnownTypeWithName(nadV1.WithKind("NetworkAttachmentDefinitionList"), &nadList{})
	for _, gv := range []schema.GroupVersion{coreV1, nadV1} {
		metav1.AddToGroupVersion(s, gv)
	}
	return s
}

// nadObject is what is read of a NetworkAttachmentDefinition.
type nadObject struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              nadSpec `json:"spec"`
}

// nadSpec is spec. One NAD whose spec is no object, or whose config is no text, must not keep all
// others from being read: definitions may be without a schema.
type nadSpec struct{ Config configText }

// UnmarshalJSON never fails. It reads as client-go does: Config is not config.
func (s *nadSpec) UnmarshalJSON(b []byte) error {
	*s = nadSpec{}
	var members struct {
		Config configText `json:"config"`
	}
	if utiljson.Unmarshal(b, &members) == nil {
		s.Config = members.Config
	} else {
		s.Config.broken = "cannot be read, as spec is no object"
	}
	return nil
}

// configText is spec.config.
type configText struct{ text, broken string }

// UnmarshalJSON never fails.
func (c *configText) UnmarshalJSON(b []byte) error {
	*c = configText{}
	if err := json.Unmarshal(b, &c.text); err != nil {
		c.broken = "is no text"
	}
	return nil
}

// DeepCopyObject implements runtime.Object.
func (n *nadObject) DeepCopyObject() runtime.Object {
	c := *n
	n.DeepCopyInto(&c.ObjectMeta)
	return &c
}

type nadList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []nadObject `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *nadList) DeepCopyObject() runtime.Object {
	c := *l
	c.Items = make([]nadObject, len(l.Items))
	for i := range l.Items {
		c.Items[i] = *l.Items[i].DeepCopyObject().(*nadObject)
	}
	return &c
}
