// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/plan"
)

// explain plays a caller who has every NAD and file at hand.
func (w *world) explain(t *testing.T, refs ...plan.NADRef) (plan.Output, error) {
	t.Helper()
	in := w.input(t)
	in.Explain = true
	in.Devices = w.devices
	in.Files = w.files
	for _, at := range refs {
		in.NADs[at] = w.lookUp(at)
	}
	return plan.Make(in)
}

func TestDecisions(t *testing.T) {
	w := world{
		conf: delegatesPA + `,"namespaceIsolation":true,"globalNamespaces":"other","runtimeConfig":{"portMappings":[]}`,
		networks: `[{"name":"neta","mac":"02:00:00:00:00:01","ips":["10.0.0.5/24"],"default-route":["10.0.0.1"],"cni-args":{"a":1}},
			{"name":"netb","namespace":"other","interface":"data0"}]`,
		nads: map[string]string{
			"default/neta": `{"type":"pb","capabilities":{"mac":true,"portMappings":true}}`,
			"other/netb":   `{"cniVersion":"0.4.0","name":"b","plugins":[{"type":"pc"},{"type":"pd"}]}`,
		},
		resources: map[string]string{"other/netb": "ex.com/vf"},
		devices:   map[string][]string{"ex.com/vf": {"0000:03:02.1", "0000:03:02.0"}},
	}
	out, err := w.explain(t, plan.NADRef{Namespace: "default", Name: "neta"}, plan.NADRef{Namespace: "other", Name: "netb"})
	if err != nil || out.Plan == nil {
		t.Fatalf("output %+v, %v", out, err)
	}
	var got []string
	for _, d := range out.Decisions {
		if d.Reason == "" || d.Value == "" || d.Field != "" && d.Object == "" {
			t.Errorf("incomplete decision %+v", d)
		}
		got = append(got, fmt.Sprintf("%d %s %s | %s | %s", d.Attachment, d.Subject, d.Value, d.Object, d.Field))
	}
	const networks = "pod default/pod-a | annotation k8s.v1.cni.cncf.io/networks"
	want := []string{
		"0 network defnet | configuration m | delegates[0]",
		"0 configuration pa | configuration m | delegates[0]",
		"0 name defnet | configuration m | delegates[0].name",
		"0 cniVersion 1.0.0 | configuration m | delegates[0].cniVersion",
		"0 interface eth0 |  | ",
		"0 runtimeConfig portMappings dropped | configuration m | runtimeConfig.portMappings",
		"1 namespace default | " + networks + "[0]",
		"1 isolation allowed | configuration m | namespaceIsolation",
		"1 network default/neta | " + networks + "[0]",
		"1 configuration pb | NetworkAttachmentDefinition default/neta | spec.config",
		"1 name neta | NetworkAttachmentDefinition default/neta | spec.config",
		"1 cniVersion 1.0.0 | configuration m | cniVersion",
		"1 interface net1 | " + networks + "[0]",
		"1 default-route 10.0.0.1 | " + networks + "[0].default-route[0]",
		"1 CNI_ARGS MAC=02:00:00:00:00:01 | " + networks + "[0].mac",
		"1 CNI_ARGS IP=10.0.0.5/24 | " + networks + "[0].ips",
		"1 runtimeConfig portMappings not given | configuration m | runtimeConfig.portMappings",
		"1 capability ips dropped | " + networks + "[0].ips",
		"1 capability mac | " + networks + "[0].mac",
		"1 cni-args args.cni | " + networks + "[0].cni-args",
		"2 isolation allowed | configuration m | globalNamespaces",
		"2 network other/netb | " + networks + "[1]",
		"2 configuration pc, pd | NetworkAttachmentDefinition other/netb | spec.config",
		"2 name b | NetworkAttachmentDefinition other/netb | spec.config name",
		"2 cniVersion 0.4.0 | NetworkAttachmentDefinition other/netb | spec.config cniVersion",
		"2 interface data0 | " + networks + "[1].interface",
		"2 device 0000:03:02.0 | NetworkAttachmentDefinition other/netb | annotation k8s.v1.cni.cncf.io/resourceName",
		"2 device deviceID, pciBusID | NetworkAttachmentDefinition other/netb | annotation k8s.v1.cni.cncf.io/resourceName",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("decisions (-want +got):\n%s", diff)
	}
}

// With Explain all faults are told; without it those of devices and arguments are not, nor is
// there anything about a network of a namespace that the pod may not use.
func TestExplainTellsEveryFault(t *testing.T) {
	w := world{
		conf:     delegatesPA + `,"namespaceIsolation":true,"strict":true`,
		networks: `[{"name":"neta","mac":"x","ips":["10.0.0.5"]},{"name":"NO"},null,{"name":"gone","interface":"a/b"},{"name":"neta","interface":"eth0"},{"name":"netb","namespace":"other"}]`,
		nads:     map[string]string{"other/netb": `{"type":"p/c"}`},
	}
	out, err := w.explain(t, plan.NADRef{Namespace: "default", Name: "neta"}, plan.NADRef{Namespace: "other", Name: "netb"}, plan.NADRef{Namespace: "default", Name: "gone"})
	if out.Plan != nil {
		t.Error("a plan beside faults")
	}
	var got []string
	for _, f := range fault.All(err) {
		got = append(got, f.Object+" | "+f.Field)
	}
	const networks = "pod default/pod-a | annotation k8s.v1.cni.cncf.io/networks"
	want := []string{
		networks + "[0].mac", networks + "[1].name", networks + "[2]", networks + "[3].interface", networks + "[5]", // the annotation
		networks + "[3]", "NetworkAttachmentDefinition other/netb | spec.config type", // networks
		networks + "[4]",     // eth0 twice
		networks + "[0].ips", // strict: no such capability
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
	_, err = w.make(t)
	got = nil
	for _, f := range fault.All(err) {
		got = append(got, f.Object+" | "+f.Field)
	}
	want = slices.Delete(slices.Clone(want[:len(want)-1]), 6, 7)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("faults without Explain (-want +got):\n%s", diff)
	}
}

func TestExplainPodOfSystemNamespace(t *testing.T) {
	w := world{ns: "kube-system", conf: `"clusterNetwork":"cn","defaultNetworks":["neta"]`, nads: map[string]string{"kube-system/cn": `{"type":"pa"}`}}
	out, err := w.explain(t, plan.NADRef{Namespace: "kube-system", Name: "cn"})
	if err != nil || len(out.Decisions) == 0 {
		t.Fatalf("output %+v, %v", out, err)
	}
	want := plan.Decision{
		Attachment: -1, Subject: plan.SubjectNetwork, Value: "no defaultNetworks", Reason: "namespace kube-system is one of systemNamespaces",
		Object: "configuration m", Field: "systemNamespaces",
	}
	if diff := cmp.Diff(want, out.Decisions[0]); diff != "" {
		t.Errorf("decision (-want +got):\n%s", diff)
	}
}
