// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"bytes"
	"encoding/json"
	goruntime "runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/operator/webhook"
)

func raw(t *testing.T, text string) runtime.RawExtension {
	t.Helper()
	if text == "" {
		return runtime.RawExtension{}
	}
	b, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return runtime.RawExtension{Raw: b}
}

const (
	nad     = "k8s.cni.cncf.io/NetworkAttachmentDefinition"
	node    = "cilium.io/CiliumNetworkDriverNodeConfig"
	cluster = "cilium.io/CiliumNetworkDriverClusterConfig"
	pods    = "/Pod"

	badNAD  = `{metadata: {name: a}, spec: {config: '{"cniVersion": "1.0.0", "plugins": [{"mtu": 1}]}'}}`
	badNode = `{metadata: {name: n1}, spec: {pools: [{name: Bad_Name}, {name: a}, {name: a}]}}`
	badPod  = `{metadata: {name: p, annotations: {k8s.v1.cni.cncf.io/networks: 'a, b/c/d'}}}`
)

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		name, kind, now, before string
		faults                  []string // the beginning of each
		warnings                int
	}{
		{name: "a network", kind: nad, now: `{metadata: {name: a}, spec: {config: '{"cniVersion": "1.0.0", "type": "macvlan", "master": "eth1"}'}}`},
		{name: "a network in a file of the node", kind: nad, now: `{metadata: {name: a}}`},
		{name: "no JSON", kind: nad, now: `{metadata: {name: a}, spec: {config: '{"type": }'}}`, faults: []string{"spec.config: "}},
		{name: "no plugin", kind: nad, now: badNAD, faults: []string{"spec.config plugins[0].type: "}},
		{name: "a spec of another shape", kind: nad, now: `{metadata: {name: a}, spec: {config: 1}}`, faults: []string{"spec: "}},
		{name: "a bad network's labels", kind: nad, now: strings.Replace(badNAD, "name: a", "name: a, labels: {a: b}", 1), before: badNAD},
		{name: "a bad network that goes", kind: nad, now: strings.Replace(badNAD, "name: a", "name: a, deletionTimestamp: '2026-01-02T03:04:05Z'", 1), before: `{metadata: {name: a}}`},
		{name: "a network that turns bad", kind: nad, now: badNAD, before: `{metadata: {name: a}, spec: {config: ''}}`, faults: []string{"spec.config plugins[0].type: "}},

		{name: "a node's configuration", kind: node, now: `{metadata: {name: n1}, spec: {pools: [{name: a, filter: {}}]}}`},
		{name: "every fault of it", kind: node, now: badNode, faults: []string{"spec.pools[0].name: Invalid value", "spec.pools[2].name: Duplicate value"}},
		{name: "a bad one's labels", kind: node, now: strings.Replace(badNode, "name: n1", "name: n1, labels: {a: b}", 1), before: badNode},
		{name: "its number is no number", kind: node, now: `{metadata: {name: n1}, spec: {deviceManagerConfigs: {dummy: {count: x}}}}`, faults: []string{"spec: "}},

		{name: "a cluster configuration", kind: cluster, now: `{metadata: {name: a}, spec: {spec: {}}}`},
		{name: "without a spec", kind: cluster, now: `{metadata: {name: a}, spec: {}}`, faults: []string{"spec.spec: Required value"}},
		{
			name: "T-65: a selector that cannot be read", kind: cluster, now: `{metadata: {name: a}, spec: {spec: {}, nodeSelector: {matchExpressions: [{key: a, operator: Foo}]}}}`,
			faults: []string{`spec.nodeSelector.matchExpressions[0].operator: Invalid value: "Foo"`},
		},

		{name: "a pod", kind: pods, now: `{metadata: {name: p, annotations: {k8s.v1.cni.cncf.io/networks: 'a, b/c@data'}}}`},
		{name: "a pod whose name is still to come", kind: pods, now: `{metadata: {generateName: p-, annotations: {k8s.v1.cni.cncf.io/networks: a}}}`},
		{name: "an annotation that cannot be read", kind: pods, now: badPod, faults: []string{"annotation k8s.v1.cni.cncf.io/networks[1]"}},
		{name: "two default networks", kind: pods, now: `{metadata: {name: p, annotations: {v1.multus-cni.io/default-network: 'a,b'}}}`, faults: []string{"annotation v1.multus-cni.io/default-network: names 2"}},
		{name: "a bad pod's labels", kind: pods, now: strings.Replace(badPod, "name: p", "name: p, labels: {a: b}", 1), before: badPod},
		{name: "a key that nothing reads", kind: pods, now: `{metadata: {name: p, annotations: {k8s.v1.cni.cncf.io/networks: '[{"name": "a", "frob": 1}]'}}}`, warnings: 1},

		{name: "what nobody asked about", kind: "apps/Deployment", now: `{metadata: {name: p}, spec: {config: 1}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			group, kind, _ := strings.Cut(c.kind, "/")
			req := &admissionv1.AdmissionRequest{
				Kind: metav1.GroupVersionKind{Group: group, Kind: kind}, Namespace: "default", Operation: admissionv1.Create, Object: raw(t, c.now), OldObject: raw(t, c.before),
			}
			if c.before != "" {
				req.Operation = admissionv1.Update
			}
			v, err := webhook.Judge(req, true)
			if err != nil {
				t.Fatal(err)
			}
			begins := len(v.Faults) == len(c.faults)
			for i := 0; begins && i < len(v.Faults); i++ {
				begins = strings.HasPrefix(v.Faults[i], c.faults[i])
			}
			if !begins || len(v.Warnings) != c.warnings {
				t.Errorf("verdict %+v; want faults %q and %d warnings", v, c.faults, c.warnings)
			}
		})
	}
}

// TestJudgeLeavesAlone: what is not asked for, or is no writing of the object itself.
func TestJudgeLeavesAlone(t *testing.T) {
	for name, req := range map[string]*admissionv1.AdmissionRequest{
		"pods without the flag": {Kind: metav1.GroupVersionKind{Kind: "Pod"}, Operation: admissionv1.Create, Object: raw(t, badPod)},
		"a deletion":            {Kind: metav1.GroupVersionKind{Group: "cilium.io", Kind: "CiliumNetworkDriverNodeConfig"}, Operation: admissionv1.Delete, OldObject: raw(t, badNode)},
		"a status":              {Kind: metav1.GroupVersionKind{Group: "cilium.io", Kind: "CiliumNetworkDriverNodeConfig"}, Operation: admissionv1.Update, SubResource: "status", Object: raw(t, badNode), OldObject: raw(t, badNode)},
	} {
		v, err := webhook.Judge(req, false)
		if diff := cmp.Diff(webhook.Verdict{}, v); err != nil || diff != "" {
			t.Errorf("%s: %v %s", name, err, diff)
		}
	}
}

// TestJudgeAnything: any bytes give a verdict or an error, and what was as bad before has no faults. (What
// reads them is fuzzed where it is; to instrument all that this room is linked with takes minutes.)
func TestJudgeAnything(t *testing.T) {
	seeds := [][]byte{nil, []byte("null"), []byte("[]"), []byte(`{"spec":7}`), []byte("\xff\xfe"), []byte(`{"metadata":{"name":"a"},"spec":{"spec":null}}`)}
	for _, text := range []string{badNAD, badNode, badPod} {
		whole, err := yaml.YAMLToJSON([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		seeds = append(seeds, whole, whole[:len(whole)/2], bytes.ReplaceAll(whole, []byte(`"`), nil))
	}
	for _, of := range []string{nad, node, cluster, pods} {
		group, kind, _ := strings.Cut(of, "/")
		for _, now := range seeds {
			req := &admissionv1.AdmissionRequest{
				Kind: metav1.GroupVersionKind{Group: group, Kind: kind}, Namespace: "default", Operation: admissionv1.Update,
				Object: runtime.RawExtension{Raw: now}, OldObject: runtime.RawExtension{Raw: []byte(`{}`)},
			}
			v, err := webhook.Judge(req, true)
			if err == nil && !json.Valid(now) {
				t.Errorf("%s %q has the verdict %+v", kind, now, v)
			}
			req.OldObject.Raw = now
			if v, err := webhook.Judge(req, true); err == nil && len(v.Faults) > 0 && json.Valid(now) {
				t.Errorf("%s %q, unchanged, has faults %q", kind, now, v.Faults)
			}
		}
	}
}

// A network of nothing but faults, as large as the API takes one, costs the operator little.
func TestJudgeHostileNetwork(t *testing.T) {
	for name, plugins := range map[string]string{
		"a plugin too many": strings.Repeat("{},", 300_000) + "{}",
		"faults in each":    strings.Repeat(`{"type":"/","ipam":{"type":"/"}},`, netconf.MaxPlugins-1) + "{}",
	} {
		t.Run(name, func(t *testing.T) {
			object, err := json.Marshal(map[string]any{"spec": map[string]string{"config": `{"cniVersion":"1.0.0","name":"x","plugins":[` + plugins + `]}`}})
			if err != nil {
				t.Fatal(err)
			}
			request := &admissionv1.AdmissionRequest{
				Operation: admissionv1.Create, Kind: metav1.GroupVersionKind{Group: "k8s.cni.cncf.io", Kind: "NetworkAttachmentDefinition"},
				Object: runtime.RawExtension{Raw: object},
			}
			var before, after goruntime.MemStats
			goruntime.ReadMemStats(&before)
			v, err := webhook.Judge(request, true)
			goruntime.ReadMemStats(&after)
			if err != nil {
				t.Fatal(err)
			}
			if n := len(v.Faults); n == 0 || n > netconf.MaxFaults+1 {
				t.Errorf("%d faults", n)
			}
			if took, most := after.TotalAlloc-before.TotalAlloc, uint64(8*len(object)+1<<20); took > most {
				t.Errorf("%d KiB were taken for %d", took>>10, len(object)>>10)
			}
		})
	}
}
