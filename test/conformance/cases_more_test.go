// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"encoding/json"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/weftnet/weft/internal/kube/kubetest"
	. "github.com/weftnet/weft/test/conformance"
)

const (
	checkpoint = "kubelet/device-plugins/kubelet_internal_checkpoint"
	infoOf0    = `{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:03:02.0"}}`
	vf         = `{"cniVersion":"1.0.0","type":"pb","capabilities":{"deviceID":true,"CNIDeviceInfoFile":true}}`
)

// devicesOf is the kubelet's checkpoint; ids is DeviceIDs as it stands in the file.
func devicesOf(ids string) string {
	return `{"Data":{"PodDeviceEntries":[{"PodUID":"uid-1","ContainerName":"c","ResourceName":"ex.com/vf","DeviceIDs":` + ids +
		`,"AllocResp":""}],"RegisteredDevices":{"ex.com/vf":["0000:03:02.0","0000:03:02.1"]}},"Checksum":1}`
}

// handed are the cases of what delegates are given.
func handed() []kase {
	device := func(number, variant, ids, annotation string, s ...step) kase {
		return kase{
			number: number, variant: variant, nads: map[string]string{"default/vf": vf}, resources: map[string]string{"default/vf": "ex.com/vf"},
			files: map[string]string{checkpoint: devicesOf(ids)}, networks: &annotation, steps: s,
			conf: `"kubeletDir":"$DIR/kubelet"`,
		}
	}
	two := step{
		verb: "ADD", calls: []string{ok1, "pb ADD net1", "pb ADD net2"},
		gets: map[string]string{"pb ADD net1 deviceID": `"0000:03:02.0"`, "pb ADD net2 deviceID": `"0000:03:02.1"`},
	}
	b30 := device("B30", "", `{"0":["0000:03:02.0"],"1":["0000:03:02.1"]}`, "vf,vf,vf", told(refused("ex.com/vf", "has 2 for 3 networks")))
	b30.multus = "attaches the third without a device"
	b32 := device("B32", "", `["0000:03:02.1","0000:03:02.0"]`, "vf,vf", two)
	b32.multus = "cannot read the older form"
	b35 := device("B35", "", `{"0":["0000:03:02.0"]}`, "vf", step{
		verb: "ADD", calls: []string{ok1, "pb ADD net1"},
		gets:   map[string]string{"pb ADD net1 runtimeConfig": `{"CNIDeviceInfoFile":"$DIR/devinfo/cni/default-vf-cid1_net1","deviceID":"0000:03:02.0"}`},
		status: `[{"name":"defnet","default":true},{"name":"default/vf","device-info":` + infoOf0 + `}]`,
	}, step{verb: "DEL", calls: []string{"pb DEL net1", "pa DEL eth0"}, also: func(t *testing.T, r *Rig, _ Outcome) {
		t.Helper()
		if left := r.Left(); len(left) > 0 {
			t.Errorf("left after DEL: %v", left)
		}
	}})
	b35.files["devinfo/dp/ex.com-vf-0000:03:02.0-device.json"] = infoOf0
	caps := map[string]string{"default/neta": `{"cniVersion":"1.0.0","type":"pb","capabilities":{"portMappings":true}}`}
	return []kase{
		{
			number: "B27", nads: caps, networks: new("neta"),
			conf: `"capabilities":{"portMappings":true},"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]},` +
				`"delegates":[{"cniVersion":"1.0.0","name":"defnet","type":"pa","capabilities":{"portMappings":true}}]`,
			steps: []step{{
				verb: "ADD", calls: []string{ok1, "pb ADD net1"},
				gets: map[string]string{
					"pa ADD eth0 runtimeConfig": `{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}`,
					"pb ADD net1 runtimeConfig": "",
				},
			}},
			multus: "gives the pod's host ports to pb as well",
		},
		{
			number: "B28", networks: new("neta"), steps: []step{{
				verb: "ADD", env: []string{"CNI_ARGS=" + Args("default", "pod-a", "uid-1") + ";FOO=a=b;"}, calls: []string{ok1, "pb ADD net1"},
				gets: map[string]string{
					"pa ADD eth0 CNI_ARGS": Args("default", "pod-a", "uid-1") + ";FOO=a=b",
					"pb ADD net1 CNI_ARGS": Args("default", "pod-a", "uid-1") + ";FOO=a=b",
				},
			}},
			multus: "thick: drops FOO, refuses the value and the last semicolon; thin: gives every pair twice",
		},
		device("B29", "", `{"1":["0000:03:02.1"],"0":["0000:03:02.0"]}`, "vf,vf", two, step{
			do: "the same again", verb: "ADD", calls: []string{}, requests: &[]string{},
		}),
		b30, b32, claims(), claimMismatch(), extendedMismatch(), b35,
	}
}

// claimObjects are a claim with a GPU, which has no CNI attributes, and a VF.
func claimObjects(resource string) string {
	return `
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {namespace: default, name: claim-a, uid: claim-uid}
status:
  reservedFor: [{resource: pods, name: pod-a, uid: uid-1}]
  allocation:
    devices:
      results:
      - {request: gpu, driver: gpu.ex.com, pool: node-a, device: gpu-0}
      - {request: vf, driver: vf.ex.com, pool: node-a, device: vf-0}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: node-a-gpu}
spec:
  driver: gpu.ex.com
  nodeName: node-a
  pool: {name: node-a, generation: 1, resourceSliceCount: 1}
  devices: [{name: gpu-0, attributes: {model: {string: big}}}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: node-a-vf}
spec:
  driver: vf.ex.com
  nodeName: node-a
  pool: {name: node-a, generation: 1, resourceSliceCount: 1}
  devices:
  - name: vf-0
    attributes:
      k8s.cni.cncf.io/deviceID: {string: "0000:03:02.0"}
      k8s.cni.cncf.io/resourceName: {string: ` + resource + `}
`
}

func claims() kase {
	return kase{
		number: "B34", only: Kubeconfig, networks: new("vf"), objects: claimObjects("ex.com/vf"),
		nads: map[string]string{"default/vf": vf}, resources: map[string]string{"default/vf": "ex.com/vf"},
		pod: `{"spec":{"nodeName":"node-a","resourceClaims":[{"name":"net","resourceClaimTemplateName":"net"}]},` +
			`"status":{"resourceClaimStatuses":[{"name":"net","resourceClaimName":"claim-a"}]}}`,
		steps: []step{{
			verb: "ADD", calls: []string{ok1, "pb ADD net1"}, gets: map[string]string{"pb ADD net1 deviceID": `"0000:03:02.0"`},
			requests: &[]string{
				"get pods default/pod-a", "get network-attachment-definitions default/vf", "get resourceclaims default/claim-a",
				"list resourceslices", "patch pods/status default/pod-a",
			},
		}},
	}
}

func claimMismatch() kase {
	k := claims()
	k.variant, k.objects = "another resource", claimObjects("ex.com/other")
	k.steps = []step{told(refused("ex.com/vf", "has 0 for 1 networks"))}
	k.multus = "attaches without a device"
	return k
}

func extendedMismatch() kase {
	k := claims()
	k.variant = "extended resource, another name"
	k.pod = `{"spec":{"nodeName":"node-a"},"status":{"extendedResourceClaimStatus":{"resourceClaimName":"claim-a",` +
		`"requestMappings":[{"containerName":"c","resourceName":"ex.com/other","requestName":"vf"}]}}}`
	k.steps = []step{told(refused("device vf.ex.com/node-a/vf-0", "ex.com/other", "ex.com/vf"))}
	return k
}

// result is a delegate's result with one interface in the sandbox.
func result(ifName, more string) string {
	return `"result":{"cniVersion":"1.0.0","interfaces":[{"name":"` + ifName + `","mac":"02:00:00:00:00:01","sandbox":"${CNI_NETNS}"}],` + more + `}`
}

func failures() []kase {
	failing := map[string]string{
		"default/netf": `{"cniVersion":"1.0.0","type":"netf","fail":{"ADD":{"code":11,"msg":"pool is empty","details":"10.9.0.0/24"}}}`,
		"default/netc": `{"cniVersion":"1.0.0","type":"pc"}`,
	}
	mirror := map[string]string{"kubernetes.io/config.source": "file", "kubernetes.io/config.hash": "static-1"}
	return []kase{
		{
			number: "B36", nads: failing, networks: new("neta,netf,netc"), steps: []step{{
				verb: "ADD", code: 11, words: []string{"default/netf", "pool is empty", "10.9.0.0/24"}, event: "FailedAddInterface",
				calls: []string{ok1, "pb ADD net1", "netf ADD net2", "netf DEL net2", "pb DEL net1", "pa DEL eth0"},
			}},
			multus: "answers code 999",
		},
		{
			number: "B39", only: Kubeconfig, networks: new("neta"), conf: `"timeout":"2s"`, steps: []step{{
				do: "every patch of pods/status is answered 409",
				act: func(r *Rig) {
					r.API.Inject(kubetest.Fault{Verb: "patch", Resource: "pods", Status: 409})
				},
				verb: "ADD", code: 11, words: []string{"pod default/pod-a", "annotation " + StatusAnnotation, "409"}, event: "FailedAddInterface",
				calls: []string{ok1, "pb ADD net1", "pb DEL net1", "pa DEL eth0"}, hurry: true, requests: nil,
			}},
			multus: "five quick tries, then an error without undoing",
		},
		{
			number: "B39", variant: "409 three times", only: Kubeconfig, networks: new("neta"), steps: []step{{
				do: "three patches of pods/status are answered 409",
				act: func(r *Rig) {
					r.API.Inject(kubetest.Fault{Verb: "patch", Resource: "pods", Status: 409, Times: 3})
				},
				verb: "ADD", calls: []string{ok1, "pb ADD net1"}, status: `[{"name":"defnet","default":true},{"name":"default/neta"}]`,
				requests: &[]string{
					"get pods default/pod-a", "get network-attachment-definitions default/neta", "patch pods/status default/pod-a",
					"get pods default/pod-a", "patch pods/status default/pod-a", "get pods default/pod-a", "patch pods/status default/pod-a",
					"get pods default/pod-a", "patch pods/status default/pod-a",
				},
			}},
			multus: "the same, with five tries at most",
		},
		{
			number: "B40", noPod: true, steps: []step{{verb: "ADD", code: 11, words: []string{"pod", "default/pod-a"}, calls: []string{}}},
			multus: "success with made-up addresses (0.0.0.0/0)",
		},
		{
			number: "B41", networks: new("neta"), steps: []step{{
				verb: "ADD", env: []string{"CNI_ARGS=" + Args("default", "pod-a", "uid-2")}, code: 11, words: []string{"uid-1", "uid-2"}, calls: []string{},
				requests: &[]string{"get pods default/pod-a", "get pods default/pod-a"},
			}},
		},
		{
			number: "B41", variant: "mirror pod", networks: new("neta"), notes: mirror, steps: []step{{
				verb: "ADD", env: []string{"CNI_ARGS=" + Args("default", "pod-a", "static-1")}, calls: []string{ok1, "pb ADD net1"},
			}},
		},
		{
			number: "B41", variant: "another mirror pod", networks: new("neta"), notes: mirror, steps: []step{{
				verb: "ADD", env: []string{"CNI_ARGS=" + Args("default", "pod-a", "static-2")}, code: 11, words: []string{"static-2"}, calls: []string{},
				requests: &[]string{"get pods default/pod-a", "get pods default/pod-a"},
			}},
			multus: "accepts any UID for a static pod",
		},
		{
			number: "B42",
			conf: `"delegates":[{"cniVersion":"0.3.1","name":"defnet","type":"pa","result":{"cniVersion":"0.3.1",` +
				`"interfaces":[{"name":"eth0","sandbox":"$DIR/netns"}],"ips":[{"version":"4","address":"10.1.0.2/24","interface":0}]}}]`,
			steps: []step{{
				verb: "ADD", calls: []string{ok1},
				prints: `{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"$DIR/netns"}],"ips":[{"address":"10.1.0.2/24","interface":0}]}`,
				status: `[{"name":"defnet","interface":"eth0","ips":["10.1.0.2"],"default":true}]`,
			}},
			multus: "thin: prints version 0.3.1",
		},
		{
			number: "B43", only: Kubeconfig,
			conf: `"delegates":[{"cniVersion":"1.0.0","name":"defnet","type":"pa","result":{"cniVersion":"1.0.0",` +
				`"interfaces":[{"name":"eth0","sandbox":"${CNI_NETNS}"},{"name":"eth1","sandbox":"${CNI_NETNS}"}],` +
				`"ips":[{"address":"10.1.0.2/24","interface":0},{"address":"10.3.0.2/24","gateway":"10.3.0.1","interface":1}]}}]`,
			steps: []step{{
				verb: "ADD", calls: []string{ok1},
				status: `[{"name":"defnet","interface":"eth0","ips":["10.1.0.2"]},{"name":"defnet","interface":"eth1","ips":["10.3.0.2"],"default":true}]`,
			}},
		},
		{
			number: "B45", only: Kubeconfig, nads: map[string]string{"default/neta": `{"cniVersion":"1.0.0","type":"pb","resultRaw":"{}"}`}, networks: new("neta"),
			steps:  []step{{verb: "ADD", calls: []string{ok1, "pb ADD net1"}, status: `[{"name":"defnet","default":true},{"name":"default/neta"}]`}},
			multus: "no entry",
		},
		{
			number: "B47", only: Kubeconfig, name: "kube-system", networks: new("neta"),
			steps:  []step{{verb: "ADD", calls: []string{ok1, "pb ADD net1"}, status: `[{"name":"defnet","default":true},{"name":"default/neta"}]`}},
			multus: "writes no status",
		},
	}
}

// routeCases run in a real namespace: eth0 and net1 are there, the delegates say what they hold.
func routeCases() []kase {
	const (
		eth4, eth6 = "default via 10.1.0.1 dev eth0 metric 0", "default via fd01::1 dev eth0 metric 1024"
		net4, net6 = "default via 10.2.0.1 dev net1 metric 0", "default via fd02::1 dev net1 metric 1024"
		own        = "default via 10.2.0.1 dev net1 metric 100"
	)
	conf := `"delegates":[{"cniVersion":"1.0.0","name":"defnet","type":"pa",` + result("eth0",
		`"ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1","interface":0},{"address":"fd01::2/64","gateway":"fd01::1","interface":0}],`+
			`"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]`) + `}]`
	nads := map[string]string{"default/neta": `{"cniVersion":"1.0.0","type":"pb",` + result("net1",
		`"ips":[{"address":"10.2.0.2/24","interface":0},{"address":"fd02::2/64","interface":0}]`) + `}`}
	route := func(number, variant, list string, s step) kase {
		return kase{
			number: number, variant: variant, routes: true, conf: conf, nads: nads,
			networks: new(`[{"name":"neta","default-route":` + list + `}]`), steps: []step{s},
		}
	}
	both := []string{ok1, "pb ADD net1"}
	b38 := route("B38", "", `["192.0.2.1"]`, step{
		verb: "ADD", code: 103, words: []string{"default/neta", "default-route 192.0.2.1"}, event: "FailedAddInterface",
		calls: []string{ok1, "pb ADD net1", "pb DEL net1", "pa DEL eth0"}, defaults: []string{eth4, eth6},
	})
	b38.multus = "an error without undoing"
	b48 := route("B48", "", `["10.2.0.1"]`, step{verb: "ADD", calls: both, defaults: []string{net4, eth6}})
	b48.multus = "eth0 keeps its default; older releases also lost the one of IPv6"
	b49 := route("B49", "", `["10.2.0.1","fd02::1"]`, step{verb: "ADD", calls: both, defaults: []string{net4, net6}})
	b49.steps = append(b49.steps, step{verb: "CHECK", calls: []string{"pa CHECK eth0", "pb CHECK net1"}, defaults: []string{net4, net6}, also: func(t *testing.T, r *Rig, o Outcome) {
		t.Helper()
		if eth0 := given(t, r, o, "pa CHECK eth0 prevResult"); strings.Contains(eth0, `"dst":"0.0.0.0/0"`) || strings.Contains(eth0, `"dst":"::/0"`) {
			t.Errorf("eth0's prevResult still has a default route: %s", eth0)
		}
		net1 := given(t, r, o, "pb CHECK net1 prevResult")
		for _, want := range []string{`"gw":"10.2.0.1"`, `"gw":"fd02::1"`} {
			if !strings.Contains(net1, want) {
				t.Errorf("net1's prevResult lacks %s: %s", want, net1)
			}
		}
	}})
	b49.multus = "eth0 keeps both"
	b50 := route("B50", "", `[]`, step{
		do: "pb installs a default of its own", act: func(r *Rig) { ownDefault(r.T, r.Netns) },
		verb: "ADD", calls: both, defaults: []string{eth4, own, eth6},
	})
	b50.multus = "at times none is left"
	all := []kase{b38, b48, b49, b50}
	twice := func(a, b string) *string {
		return new(`[{"name":"neta","default-route":["` + a + `"]},{"name":"neta","default-route":["` + b + `"]}]`)
	}
	return append(all,
		kase{number: "B51", networks: twice("10.2.0.1", "10.2.0.9"), steps: []step{told(refused(networks+"[1].default-route[0]", networks+"[0]", "IPv4"))}},
		kase{
			number: "B51", variant: "families, strict", conf: `"strict":true`, networks: twice("10.2.0.1", "fd02::1"),
			steps: []step{told(refused(networks+"[1].default-route", networks+"[0]"))}, multus: "allows it",
		},
	)
}

func deletions() []kase {
	full := []string{"pb DEL net1", "pa DEL eth0"}
	none := &[]string{}
	twoCases := []kase{
		{number: "B52", networks: new("neta"), steps: []step{
			add(ok1, "pb ADD net1"),
			{verb: "DEL", calls: full},
			{do: "the same again", verb: "DEL", calls: []string{"pa DEL eth0"}},
			{do: "the pod is deleted", act: deletePod, verb: "DEL", calls: []string{"pa DEL eth0"}},
		}},
		{
			number: "B54", noPod: true, steps: []step{{verb: "DEL", calls: []string{"pa DEL eth0"}}},
			multus: "calls nobody",
		},
	}
	return append(twoCases, []kase{
		{
			number: "B55", only: Kubeconfig, networks: new("neta"), steps: []step{add(ok1, "pb ADD net1"), {
				do: "the kubeconfig is removed", act: func(r *Rig) {
					var path string
					if err := json.Unmarshal(r.Conf["kubeconfig"], &path); err != nil {
						r.T.Fatal(err)
					}
					if err := os.Remove(path); err != nil {
						r.T.Fatal(err)
					}
				},
				verb: "DEL", calls: full,
			}},
			multus: "fails before it reads its cache",
		},
		{
			number: "B56", only: Kubeconfig, networks: new("neta"), steps: []step{add(ok1, "pb ADD net1"), {
				do: "the API server hangs", act: func(r *Rig) { r.API.Inject(kubetest.Fault{Hang: true}) },
				verb: "DEL", calls: full, requests: nil, also: noRequests,
			}},
			multus: "waits 2.7 s for the pod",
		},
		{
			number: "B58", networks: new("neta"), steps: []step{add(ok1, "pb ADD net1"), {
				do: "the configuration changes to an agent that is not there",
				act: func(r *Rig) {
					r.Set(`{"manifests":null,"kubeconfig":null,"agentSocket":"$DIR/no.sock"}`)
				},
				verb: "DEL", calls: full,
			}},
			multus: "thick: answers success and does nothing",
		},
		{number: "B59", networks: new("neta"), steps: []step{add(ok1, "pb ADD net1"), {
			verb: "DEL", env: []string{"CNI_NETNS="}, calls: full,
		}}},
		{number: "B59", variant: "path gone", networks: new("neta"), steps: []step{add(ok1, "pb ADD net1"), {
			do: "the namespace is removed", act: func(r *Rig) {
				if err := os.Remove(r.Netns); err != nil {
					r.T.Fatal(err)
				}
			},
			verb: "DEL", calls: full, gets: map[string]string{"pb DEL net1 CNI_NETNS": ""}, requests: none,
		}}},
	}...)
}

func noRequests(t *testing.T, _ *Rig, o Outcome) {
	t.Helper()
	if len(o.Requests) > 0 {
		t.Errorf("requests %q", o.Requests)
	}
}

func deletePod(r *Rig) {
	if r.API != nil {
		r.API.Delete("pods", "default", "pod-a")
		return
	}
	if err := os.Remove(r.At("manifests/pod-default-pod-a.json")); err != nil {
		r.T.Fatal(err)
	}
}

func verbs() []kase {
	const conf11 = `"cniVersion":"1.1.0","delegates":[{"cniVersion":"1.1.0","name":"defnet","type":"pa"}]`
	old := map[string]string{"default/old": `{"cniVersion":"0.3.1","type":"pd"}`}
	status := func(variant, conf string, words ...string) kase {
		return kase{
			number: "B62", variant: variant, conf: conf11 + "," + conf, noPod: true, only: Manifests,
			steps: []step{{verb: "STATUS", code: 50, words: words, calls: []string{}}},
		}
	}
	nothing := status("", `"delegates":null,"clusterNetwork":"nothing"`, "cluster network", "nothing")
	nothing.multus = "panics"
	nothing.only = ""
	readiness := status("readiness file absent", `"readinessindicatorfile":"$DIR/ready"`, "readinessindicatorfile", "$DIR/ready")
	readiness.multus = "waits 45 s"
	return []kase{
		{
			number: "B61", nads: old, networks: new("neta,old"), steps: []step{
				add(ok1, "pb ADD net1", "pd ADD net2"), {verb: "CHECK", calls: []string{"pa CHECK eth0", "pb CHECK net1"}},
			},
			multus: "checks pa alone, or nobody",
		},
		nothing, readiness,
		{
			number: "B67", only: Manifests, noPod: true,
			conf:   `"delegateLimit":8,"delegates":[{"cniVersion":"1.0.0","name":"defnet","type":"pa","sleep":{"ADD":"30ms"}}]`,
			steps:  []step{{do: "100 ADDs at once, of 100 pods", act: hundred, verb: "DEL", env: []string{"CNI_CONTAINERID=c-0"}, calls: []string{"pa DEL eth0"}}},
			multus: "thin: no limit; thick: connectionLimit, which holds up DEL and health as well",
		},
	}
}

// hundred runs 100 ADDs at once with a delegateLimit of 8. A pod that asks for nothing, so
// that what is counted are delegates.
func hundred(r *Rig) {
	r.T.Helper()
	r.Pod("default", "pod-a", "uid-1", nil, nil)
	outcomes := make([]int, 100)
	var all sync.WaitGroup
	for i := range outcomes {
		cmd := r.Command("ADD", "CNI_CONTAINERID=c-"+itoa(i))
		all.Go(func() {
			if out, err := cmd.CombinedOutput(); err != nil {
				r.T.Errorf("ADD of c-%d: %v: %s", i, err, out)
			}
		})
	}
	all.Wait()
	calls := r.Events()
	if running := atOnce(calls); running > 8 || running < 2 {
		r.T.Errorf("%d delegates ran at once, want at most 8 and more than one", running)
	}
	if len(calls) != 200 {
		r.T.Errorf("%d lines of calls, want 100 starts and ends", len(calls))
	}
	for i := 1; i < len(outcomes); i++ {
		if o := r.Call("DEL", "CNI_CONTAINERID=c-"+itoa(i)); o.Status != 0 {
			r.T.Errorf("DEL of c-%d: %s", i, o.Stdout)
		}
	}
}

// further are inputs of section 1 that made Multus panic or lose something, and that
// section 3 does not number.
func further() []kase {
	cached := func(text string) kase {
		return kase{
			number: "1.11", variant: "scratch file " + text, noPod: true, only: Manifests, files: map[string]string{"multus/cid1": text},
			steps: []step{{verb: "DEL", calls: []string{"pa DEL eth0"}}}, multus: "panics, exit status 2",
		}
	}
	return []kase{
		{number: "1.6", variant: "[null]", networks: new("[null]"), steps: []step{told(refused(networks + "[0]"))}, multus: "panics, exit status 2"},
		{
			number: "1.6", variant: "null", networks: new("null"), nads: map[string]string{"default/null": `{"cniVersion":"1.0.0","type":"pc"}`},
			steps: []step{{verb: "ADD", calls: []string{ok1, "pc ADD net1"}, warn: "null is read as the name", event: "QuestionableNetworks"}},
		},
		{number: "1.6", variant: "[]", networks: new("[]"), steps: []step{add(ok1)}},
		{
			number: "1.8", variant: "no plugins", networks: new("neta"), nads: map[string]string{"default/neta": `{"cniVersion":"1.0.0","plugins":[]}`},
			steps: []step{told(refused("NetworkAttachmentDefinition default/neta", "spec.config plugins", "is empty"))}, multus: "panics",
		},
		{number: "1.9", variant: "automatic name", networks: new("neta@net2,neta"), steps: []step{told(refused(networks+"[1]", `"net2"`, networks+"[0]"))}, multus: "gives net2 to both"},
		{number: "1.10", variant: "NAD missing", networks: new("gone"), steps: []step{{verb: "ADD", code: 7, words: []string{networks + "[0]", `"default/gone"`, "does not exist"}, calls: []string{}, event: "NoNetworkFound"}}},
		cached("[]"), cached("null"),
	}
}
