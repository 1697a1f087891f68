// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package devices_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/cni/devices"
	"github.com/weftnet/weft/internal/cni/fault"
)

// objects are those of one pod, as an API server has them.
type objects struct {
	Pod    devices.Pod     `json:"pod"`
	Claims []devices.Claim `json:"claims"`
	Slices []devices.Slice `json:"slices"`
}

func read(t testing.TB, text string) objects {
	t.Helper()
	var o objects
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return o
}

const (
	meta = `"metadata":{"namespace":"default","name":"pod-a","uid":"uid-1"}`
	// podOne has the claim that was made for it from a template.
	podOne = `{` + meta + `,"spec":{"nodeName":"n1","resourceClaims":[{"name":"nic","resourceClaimTemplateName":"t"}]},
		"status":{"resourceClaimStatuses":[{"name":"nic","resourceClaimName":"pod-a-nic-x"}]}}`
)

func claim(name, results string) string {
	return `{"metadata":{"namespace":"default","name":"` + name + `"},"status":{"allocation":{"devices":{"results":[` + results + `]}}}}`
}

func result(request, driver, device string) string {
	return `{"request":"` + request + `","driver":"` + driver + `","pool":"n1","device":"` + device + `"}`
}

func slice(driver, pool, list string) string {
	return `{"metadata":{"name":"s"},"spec":{"driver":"` + driver + `","nodeName":"n1","pool":` + pool + `,"devices":[` + list + `]}}`
}

const onePool = `{"name":"n1","generation":1,"resourceSliceCount":1}`

// vf is a device of the driver nic.
func vf(name, resource, id string) string {
	return `{"name":"` + name + `","attributes":{"k8s.cni.cncf.io/resourceName":{"string":"` + resource +
		`"},"k8s.cni.cncf.io/deviceID":{"string":"` + id + `"},"numa":{"int":0}}}`
}

const gpu = `{"name":"gpu-0","attributes":{"model":{"string":"m"}}}`

func all(pod string, claims, published []string) string {
	return `{"pod":` + pod + `,"claims":[` + strings.Join(claims, ",") + `],"slices":[` + strings.Join(published, ",") + `]}`
}

func TestFromClaims(t *testing.T) {
	nic := []string{claim("pod-a-nic-x", result("r", "nic", "vf-1"))}
	one := map[string][]string{"ex.com/vf": {"0000:03:02.1"}}
	for name, c := range map[string]struct {
		text string
		want map[string][]string
	}{
		"one VF": {all(podOne, nic, []string{slice("nic", onePool, vf("vf-0", "ex.com/vf", "0000:03:02.0")+","+vf("vf-1", "ex.com/vf", "0000:03:02.1"))}), one},
		"a GPU is skipped (B34)": {
			all(podOne, []string{claim("pod-a-nic-x", result("g", "gpu", "gpu-0")+","+result("r", "nic", "vf-1"))},
				[]string{slice("gpu", onePool, gpu), slice("nic", onePool, vf("vf-1", "ex.com/vf", "0000:03:02.1"))}), one,
		},
		"sorted, each once": {
			all(podOne, []string{claim("pod-a-nic-x", strings.Join([]string{result("r", "nic", "b"), result("r", "nic", "a"), result("r2", "nic", "b"), result("o", "nic", "o")}, ","))},
				[]string{slice("nic", onePool, strings.Join([]string{vf("a", "ex.com/vf", "1"), vf("b", "ex.com/vf", "2"), vf("o", "ex.com/other", "3")}, ","))}),
			map[string][]string{"ex.com/vf": {"1", "2"}, "ex.com/other": {"3"}},
		},
		"several slices in a pool, older ones count for nothing": {
			all(podOne, nic, []string{
				slice("nic", `{"name":"n1","generation":3,"resourceSliceCount":2}`, vf("vf-1", "ex.com/old", "old")),
				slice("nic", `{"name":"n1","generation":4,"resourceSliceCount":2}`, vf("vf-0", "ex.com/vf", "0000:03:02.0")),
				slice("nic", `{"name":"n1","generation":4,"resourceSliceCount":2}`, vf("vf-1", "ex.com/vf", "0000:03:02.1")),
				slice("nic", `{"name":"n1","generation":2,"resourceSliceCount":1}`, vf("vf-1", "ex.com/old", "older")),
			}), one,
		},
		"a pool of the same name of another driver": {
			all(podOne, nic, []string{slice("other", onePool, vf("vf-1", "ex.com/other", "x")), slice("nic", onePool, vf("vf-1", "ex.com/vf", "0000:03:02.1"))}), one,
		},
		"a claim by its name": {
			all(`{`+meta+`,"spec":{"nodeName":"n1","resourceClaims":[{"name":"nic","resourceClaimName":"pod-a-nic-x"}]}}`, nic,
				[]string{slice("nic", onePool, vf("vf-1", "ex.com/vf", "0000:03:02.1"))}), one,
		},
		"no claim was needed": {
			all(`{`+meta+`,"spec":{"resourceClaims":[{"name":"nic","resourceClaimTemplateName":"t"}]},"status":{"resourceClaimStatuses":[{"name":"nic"}]}}`, nil, nil),
			map[string][]string{},
		},
		"admin access gives no device": {
			all(podOne, []string{claim("pod-a-nic-x", `{"request":"r","driver":"nic","pool":"n1","device":"vf-1","adminAccess":true}`)},
				[]string{slice("nic", onePool, vf("vf-1", "ex.com/vf", "0000:03:02.1"))}), map[string][]string{},
		},
		"a pool that no slice of the node shows": {all(podOne, nic, nil), map[string][]string{}},
		"one attribute of two":                   {all(podOne, nic, []string{slice("nic", onePool, `{"name":"vf-1","attributes":{"k8s.cni.cncf.io/deviceID":{"string":"x"}}}`)}), map[string][]string{}},
		"no claims":                              {all(`{`+meta+`}`, nil, nil), map[string][]string{}},
		"extended resource": {
			all(extendedPod("ex.com/vf", "c0-r0"), []string{claim("ext", result("c0-r0", "nic", "vf-1"))},
				[]string{slice("nic", onePool, vf("vf-1", "ex.com/vf", "0000:03:02.1"))}), one,
		},
		"extended resource, a GPU": {
			all(extendedPod("ex.com/gpu", "c0-r0"), []string{claim("ext", result("c0-r0", "gpu", "gpu-0"))},
				[]string{slice("gpu", onePool, gpu)}), map[string][]string{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := read(t, c.text)
			got, err := devices.FromClaims(&o.Pod, o.Claims, o.Slices)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("devices (-want +got):\n%s", diff)
			}
			slices.Reverse(o.Claims)
			slices.Reverse(o.Slices)
			if again, err := devices.FromClaims(&o.Pod, o.Claims, o.Slices); err != nil || !cmp.Equal(got, again) {
				t.Errorf("in another order: %v, %v", again, err)
			}
		})
	}
}

// extendedPod has an extended resource that a DRA driver backs.
func extendedPod(resource, request string) string {
	return `{` + meta + `,"spec":{"nodeName":"n1"},"status":{"extendedResourceClaimStatus":{"resourceClaimName":"ext",
		"requestMappings":[{"containerName":"c0","resourceName":"` + resource + `","requestName":"` + request + `"}]}}}`
}

func TestFromClaimsFaults(t *testing.T) {
	nic := []string{claim("pod-a-nic-x", result("r", "nic", "vf-1"))}
	ext := []string{claim("ext", result("c0-r0", "nic", "vf-1"))}
	for name, c := range map[string]struct {
		text  string
		code  fault.Code
		words []string
	}{
		"no status of a template's claim": {
			all(`{`+meta+`,"spec":{"resourceClaims":[{"name":"nic","resourceClaimTemplateName":"t"}]}}`, nil, nil),
			fault.TryLater,
			[]string{"pod default/pod-a", "spec.resourceClaims[0]", `"nic" is not made yet`},
		},
		"claim missing":      {all(podOne, nil, nil), fault.TryLater, []string{"ResourceClaim default/pod-a-nic-x", "has no devices yet"}},
		"claim of elsewhere": {all(podOne, []string{`{"metadata":{"namespace":"other","name":"pod-a-nic-x"},"status":{"allocation":{}}}`}, nil), fault.TryLater, []string{"has no devices yet"}},
		"not allocated":      {all(podOne, []string{`{"metadata":{"namespace":"default","name":"pod-a-nic-x"}}`}, nil), fault.TryLater, []string{"status.allocation", "has no devices yet"}},
		"incomplete pool": {
			all(podOne, nic, []string{
				slice("nic", `{"name":"n1","generation":1,"resourceSliceCount":1}`, vf("vf-1", "ex.com/vf", "x")),
				slice("nic", `{"name":"n1","generation":2,"resourceSliceCount":2}`, vf("vf-1", "ex.com/vf", "x")),
			}),
			fault.TryLater,
			[]string{"device nic/n1/vf-1", "1 of 2 ResourceSlices"},
		},
		"device gone":     {all(podOne, nic, []string{slice("nic", onePool, vf("vf-0", "ex.com/vf", "x"))}), fault.TryLater, []string{"device nic/n1/vf-1", "generation 1"}},
		"not a string":    {all(podOne, nic, []string{slice("nic", onePool, `{"name":"vf-1","attributes":{"k8s.cni.cncf.io/deviceID":{"int":7}}}`)}), fault.Config, []string{"device nic/n1/vf-1", "k8s.cni.cncf.io/deviceID", "is no string"}},
		"extended (B34)":  {all(extendedPod("ex.com/vf", "c0-r0"), ext, []string{slice("nic", onePool, vf("vf-1", "ex.com/other", "x"))}), fault.Config, []string{"resourceName", `is "ex.com/other"`, `"ex.com/vf"`}},
		"extended, no ID": {all(extendedPod("ex.com/vf", "c0-r0"), ext, []string{slice("nic", onePool, `{"name":"vf-1","attributes":{"k8s.cni.cncf.io/resourceName":{"string":"ex.com/vf"}}}`)}), fault.Config, []string{"deviceID", "is missing"}},
		"extended, no name": {
			all(extendedPod("ex.com/vf", "c0-r0"), ext, []string{slice("nic", onePool, `{"name":"vf-1","attributes":{"k8s.cni.cncf.io/deviceID":{"string":"x"}}}`)}),
			fault.Config,
			[]string{"resourceName", `is ""`},
		},
		"extended, no such request": {
			all(extendedPod("ex.com/vf", "c0-r1"), ext, nil),
			fault.TryLater,
			[]string{"requestMappings[0]", `"c0-r1"`, `"ext" has no device`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := read(t, c.text)
			got, err := devices.FromClaims(&o.Pod, o.Claims, o.Slices)
			if got != nil {
				t.Errorf("devices %v beside an error", got)
			}
			wantFault(t, err, c.code, c.words...)
		})
	}
}

// What is asked of the API server: the pod's claims once each, and one list of slices at most.
func TestNeeds(t *testing.T) {
	o := read(t, all(`{`+meta+`,"spec":{"nodeName":"n1","resourceClaims":[{"name":"b","resourceClaimName":"shared"},{"name":"a","resourceClaimTemplateName":"t"},
		{"name":"c","resourceClaimName":"shared"},{"name":"d","resourceClaimTemplateName":"t"}]},
		"status":{"resourceClaimStatuses":[{"name":"a","resourceClaimName":"made"},{"name":"d"}],"extendedResourceClaimStatus":{"resourceClaimName":"ext","requestMappings":[]}}}`,
		[]string{
			claim("made", result("r", "nic", "a")+","+result("r", "nic", "b")),
			claim("ext", `{"request":"r","driver":"watcher","pool":"n1","device":"x","adminAccess":true}`),
			`{"metadata":{"namespace":"default","name":"shared"}}`,
			claim("other", result("r", "gpu", "x")),
		}, nil))
	names, err := devices.Claims(&o.Pod)
	if diff := cmp.Diff([]string{"ext", "made", "shared"}, names); err != nil || diff != "" {
		t.Errorf("claims (-want +got), %v:\n%s", err, diff)
	}
	if diff := cmp.Diff([]devices.SliceNeed{{Node: "n1", Driver: "nic"}}, devices.Slices(&o.Pod, o.Claims[:3])); diff != "" {
		t.Errorf("one driver (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]devices.SliceNeed{{Node: "n1"}}, devices.Slices(&o.Pod, o.Claims)); diff != "" {
		t.Errorf("two drivers (-want +got):\n%s", diff)
	}
	if got := devices.Slices(&o.Pod, o.Claims[1:3]); got != nil {
		t.Errorf("no device, but %v is needed", got)
	}
}

func FuzzFromClaims(f *testing.F) {
	f.Add([]byte(all(podOne, []string{claim("pod-a-nic-x", result("r", "nic", "vf-1"))},
		[]string{slice("nic", onePool, vf("vf-1", "ex.com/vf", "x"))})))
	f.Add([]byte(all(extendedPod("ex.com/vf", "c0-r0"), []string{claim("ext", result("c0-r0", "nic", "vf-1"))},
		[]string{slice("nic", `{"name":"n1","generation":-1,"resourceSliceCount":9223372036854775807}`, vf("vf-1", "", ""))})))
	f.Add([]byte(`{"slices":[{"spec":{"devices":[{"attributes":{"k8s.cni.cncf.io/deviceID":null}}]}}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var o objects
		if json.Unmarshal(b, &o) != nil {
			return
		}
		devices.Slices(&o.Pod, o.Claims)
		found, err := devices.FromClaims(&o.Pod, o.Claims, o.Slices)
		if err == nil {
			wantTidy(t, found)
			return
		}
		for _, fa := range fault.All(err) {
			if fa.Code != fault.TryLater && fa.Code != fault.Config || strings.ContainsAny(fa.Error(), "\r\n") {
				t.Errorf("malformed fault: code %d, %v", fa.Code, err)
			}
		}
	})
}
