// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/weftnet/weft/test/lab"
)

// kubectl runs kubectl, and wants it to succeed.
func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := lab.Cluster(t).Kubectl(t.Context(), "", args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestOperatorNewerDefinition: fields that a newer definition has and this operator does not know stay
// in a configuration that was written by hand while a cluster configuration governs its node, and all of
// it is there again when none does any more.
func TestOperatorNewerDefinition(t *testing.T) {
	w := newOperatorWorld(t)
	const definition = nodeConfigs + ".cilium.io"
	const spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/"
	field := func(op string) string {
		const value = `, "value": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}`
		patch := `[{"op": "%[1]s", "path": "` + spec + `frob"%[2]s}, {"op": "%[1]s", "path": "` + spec + `pools/items/properties/frob"%[2]s},
			{"op": "%[1]s", "path": "` + spec + `deviceManagerConfigs/properties/frob"%[2]s}]`
		return fmt.Sprintf(patch, op, map[string]string{"add": value}[op])
	}
	kubectl(t, "patch", "crd", definition, "--type=json", "--patch="+field("add"))
	t.Cleanup(func() {
		if _, err := lab.Cluster(t).Kubectl(context0(), "", "patch", "crd", definition, "--type=json", "--patch="+field("remove")); err != nil {
			t.Error(err)
		}
	})
	const hand = `{pools: [{name: hand, frob: {a: 1}}], frob: {a: 1234567890123456}, deviceManagerConfigs: {frob: {b: true}, dummy: {enabled: true, count: 3}}}`
	inTime(t, "the server keeps the field", func() error {
		var err error
		got, createErr := w.nodes.Create(t.Context(), driverConfig(t, nodeConfigKind, "n1", hand), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if createErr != nil {
			return createErr
		}
		if _, ok, _ := unstructured.NestedMap(got.Object, "spec", "frob"); !ok {
			err = errors.New("not yet")
		}
		return err
	})
	w.node("n1", nil)
	before := specText(t, w.make(w.nodes, nodeConfigKind, "n1", hand))
	o := drive(t)
	w.config("c", "")
	w.want("n1", "c c")
	unknown := func(want bool) {
		t.Helper()
		object, err := w.nodes.Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		text := specText(t, object)
		for _, part := range []string{`"frob":{"a":1234567890123456}`, `"deviceManagerConfigs":{"frob":{"b":true}`} {
			if strings.Contains(text, part) != want {
				t.Errorf("%s is there: %t; the spec is %s", part, !want, text)
			}
		}
	}
	unknown(true)
	w.patch(w.nodes, "n1", `{"spec":{"pools":[{"name":"edited"}]}}`)
	w.want("n1", "c c")
	unknown(true)
	w.quiet(o)
	w.delete(w.configs, "c")
	w.want("n1", "hand hand")
	object, err := w.nodes.Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if after := specText(t, object); after != before {
		t.Errorf("put back is %s\nand was %s", after, before)
	}
}

func specText(t *testing.T, o *unstructured.Unstructured) string {
	t.Helper()
	text, err := json.Marshal(o.Object["spec"])
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestOperatorDefinitionGone: CiliumNodes go, all of them, with their definition; until nodes are core
// Nodes again nothing of a node that is one is deleted. One that is none loses what it has.
func TestOperatorDefinitionGone(t *testing.T) {
	w := newOperatorWorld(t)
	ciliumNodes(t)
	var want []string
	for i := range 20 {
		name := fmt.Sprintf("n%02d", i)
		w.node(name, map[string]string{"role": "x"})
		lab.Apply(t, "{apiVersion: cilium.io/v2, kind: CiliumNode, metadata: {name: "+name+", labels: {role: x}}}")
		want = append(want, name, "c c")
	}
	w.node("n20", map[string]string{"role": "x"}) // to which Cilium came not yet
	lab.Apply(t, "{apiVersion: cilium.io/v2, kind: CiliumNode, metadata: {name: alone, labels: {role: x}}}")
	w.config("c", "{matchLabels: {role: x}}")
	o := drive(t, "--look=1s")
	w.want(append(want, "alone", "c c", "n20", "none")...)
	uids := func() map[string]string {
		list, err := w.nodes.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]string{}
		for _, object := range list.Items {
			all[object.GetName()] = string(object.GetUID())
		}
		return all
	}
	before := uids()
	deleted := o.metric("weft_operator_writes_total", `"delete"`)
	kubectl(t, "delete", "crd", "ciliumnodes.cilium.io")
	w.want("n20", "c c", "alone", "none") // nodes are core Nodes
	after := uids()
	for name, uid := range before {
		if name != "alone" && after[name] != uid {
			t.Errorf("the configuration of %s is another one", name)
		}
	}
	if n := o.metric("weft_operator_writes_total", `"delete"`) - deleted; n != 1 {
		t.Errorf("%v were deleted", n)
	}
	// Also without the others': a node that goes for good.
	w.deleteNode("n03")
	w.want("n03", "none")
}
