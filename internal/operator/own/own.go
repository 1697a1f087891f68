// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package own

import (
	"encoding/json"
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/operator/assign"
)

// The marks of a node configuration that the operator writes.
const (
	// Manager is the operator's name as a field manager, and the value of ManagedBy.
	Manager = "weft-operator"
	// ManagedBy is the label of every object that the operator governs.
	ManagedBy = "app.kubernetes.io/managed-by"
	// Cluster is the annotation that names the cluster configuration.
	Cluster = "networkdriver.cilium.io/cluster-config"
	// Adopted is the annotation that holds the spec of a configuration which was written by hand
	// before a cluster configuration took the node, as JSON.
	Adopted = "networkdriver.cilium.io/adopted-spec"
)

// Owner is the cluster configuration that governs an object; "" when it was written by hand. It goes
// by the annotation, which is Weft's own: the label is one that other tools set, too.
func Owner(o metav1.Object) string { return o.GetAnnotations()[Cluster] }

func labelled(o metav1.Object) bool { return o.GetLabels()[ManagedBy] == Manager }

// Do is what a Step does. The zero value is invalid.
type Do int

// What can be done.
const (
	Nothing Do = iota + 1
	Apply      // write the object, whether it is there or not
	Restore    // put the hand-written spec back, and take the marks away
	Delete
)

func (d Do) String() string {
	switch d {
	case Nothing:
		return "nothing"
	case Apply:
		return "apply"
	case Restore:
		return "restore"
	case Delete:
		return "delete"
	}
	return fmt.Sprintf("step %d", int(d))
}

// Step is what is to be done about the configuration of one node.
type Step struct {
	Do Do
	// Want is the object that Apply and Restore write: name, labels, annotations and spec.
	Want *v2alpha1.CiliumNetworkDriverNodeConfig
	// Adopts says that the object which Apply replaces was written by hand: its spec, with all that
	// it has, is first kept in the annotation Adopted.
	Adopts bool
	// Why tells people.
	Why string
}

// Plan says what is to be done about a node's configuration. The spec is that of the cluster
// configuration that governs it, read only when one does; existing is nil when there is none.
func Plan(d assign.Decision, spec *v2alpha1.CiliumNetworkDriverNodeConfigSpec, existing *v2alpha1.CiliumNetworkDriverNodeConfig) (Step, error) {
	switch d.State {
	case assign.Governed:
		return govern(d, spec, existing), nil
	case assign.Frozen:
		return Step{Do: Nothing, Why: fmt.Sprintf("%s is conflicting or invalid: what its nodes have stays", d.Config)}, nil
	case assign.Unselected, assign.Conflicting, assign.Wrong:
	}
	return release(existing)
}

func govern(d assign.Decision, spec *v2alpha1.CiliumNetworkDriverNodeConfigSpec, existing *v2alpha1.CiliumNetworkDriverNodeConfig) Step {
	want := &v2alpha1.CiliumNetworkDriverNodeConfig{
		TypeMeta: metav1.TypeMeta{APIVersion: v2alpha1.Group + "/" + v2alpha1.Version, Kind: v2alpha1.NodeConfigKind},
		ObjectMeta: metav1.ObjectMeta{
			Name:        d.Node,
			Labels:      map[string]string{ManagedBy: Manager},
			Annotations: map[string]string{Cluster: d.Config},
		},
		Spec: *spec,
	}
	why := fmt.Sprintf("%s governs the node", d.Config)
	switch {
	case existing == nil:
		return Step{Do: Apply, Want: want, Why: why}
	case Owner(existing) == "" && existing.Annotations[Adopted] == "":
		why += ", whose configuration was written by hand and is kept in an annotation"
		return Step{Do: Apply, Want: want, Adopts: true, Why: why}
	default:
		if adopted, ok := existing.Annotations[Adopted]; ok {
			want.Annotations[Adopted] = adopted
		}
	}
	if Owner(existing) == d.Config && labelled(existing) && Same(&existing.Spec, &want.Spec) {
		return Step{Do: Nothing, Why: why}
	}
	return Step{Do: Apply, Want: want, Why: why}
}

// Same says whether two specs mean the same, wherever their defaults were filled in.
func Same(a, b *v2alpha1.CiliumNetworkDriverNodeConfigSpec) bool {
	if equality.Semantic.DeepEqual(a, b) {
		return true
	}
	a, b = a.DeepCopy(), b.DeepCopy()
	a.SetDefaults()
	b.SetDefaults()
	return equality.Semantic.DeepEqual(a, b)
}

// release is for a node that no cluster configuration governs.
func release(existing *v2alpha1.CiliumNetworkDriverNodeConfig) (Step, error) {
	if existing == nil || Owner(existing) == "" {
		return Step{Do: Nothing, Why: "no cluster configuration governs the node"}, nil
	}
	adopted, ok := existing.Annotations[Adopted]
	if !ok {
		return Step{Do: Delete, Why: fmt.Sprintf("%s no longer governs the node", Owner(existing))}, nil
	}
	want := &v2alpha1.CiliumNetworkDriverNodeConfig{
		TypeMeta:   metav1.TypeMeta{APIVersion: v2alpha1.Group + "/" + v2alpha1.Version, Kind: v2alpha1.NodeConfigKind},
		ObjectMeta: metav1.ObjectMeta{Name: existing.Name, Labels: maps.Clone(existing.Labels), Annotations: maps.Clone(existing.Annotations)},
	}
	if err := json.Unmarshal([]byte(adopted), &want.Spec); err != nil {
		return Step{}, fmt.Errorf("annotation %s of %s: %w: the configuration stays as it is", Adopted, existing.Name, err)
	}
	if labelled(existing) {
		delete(want.Labels, ManagedBy)
	}
	delete(want.Annotations, Cluster)
	delete(want.Annotations, Adopted)
	return Step{Do: Restore, Want: want, Why: fmt.Sprintf("%s no longer governs the node, whose configuration was written by hand before", Owner(existing))}, nil
}
