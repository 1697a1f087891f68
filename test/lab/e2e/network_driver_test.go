// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/test/lab"
	"github.com/weftnet/weft/test/lab/image"
)

// overlay is what an administrator writes who wants components.
const overlay = `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [%[1]s]
components: [%[2]s]
`

// withDriver installs deploy/ with deploy/network-driver.
func (r *rig) withDriver() {
	r.t.Helper()
	lab.InstallCRDs(r.t)
	r.with("network-driver")
}

// with installs deploy/ with components, as they are shipped. At the test's end the agents are again
// those of deploy/ alone, with its rights.
func (r *rig) with(components ...string) { r.t.Helper(); r.overlaid("", components...) }

// overlaid is with for who changes something besides, in the words of a kustomization.
func (r *rig) overlaid(change string, components ...string) {
	r.t.Helper()
	wd, err := os.Getwd()
	if err != nil {
		r.t.Fatal(err)
	}
	deploy := filepath.Join(wd, "../../../deploy")
	from, err := filepath.Rel(r.cp.Dir, deploy)
	if err != nil {
		r.t.Fatal(err)
	}
	var folders, rights []string
	for _, c := range components {
		folders = append(folders, from+"/"+c)
		if file := filepath.Join(deploy, c, "rbac.yaml"); exists(file) {
			rights = append(rights, "--filename="+file)
		}
	}
	own := filepath.Join(r.cp.Dir, "kustomization.yaml") // in a folder of its own there would be a step more
	if err := os.WriteFile(own, append(fmt.Appendf(nil, overlay, from, strings.Join(folders, ", ")), change...), 0o600); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := r.cp.InstallWeft(r.ctx()); err != nil {
			r.t.Error(err)
		}
		if len(rights) == 0 {
			return
		}
		if _, err := r.cp.Kubectl(r.ctx(), "", append([]string{"delete", "--ignore-not-found"}, rights...)...); err != nil {
			r.t.Error(err)
		}
	})
	for _, args := range [][]string{
		{"apply", "--kustomize=" + r.cp.Dir},
		{"--namespace=" + agentNamespace, "rollout", "status", "daemonset/" + agentName, "--timeout=180s"},
	} {
		if _, err := r.cp.Kubectl(r.t.Context(), "", args...); err != nil {
			r.t.Fatal(err)
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// nodeConfig has a pool for dummy links, of which there is a number.
const nodeConfig = `
apiVersion: cilium.io/v2alpha1
kind: CiliumNetworkDriverNodeConfig
metadata: {name: %s}
spec:
  deviceManagerConfigs: {sriov: {enabled: true}, dummy: {enabled: %t, count: 3}}
  pools: [{name: trial, filter: {deviceManagers: [dummy]}}]
`

const dummyClaim = `
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: weft-e2e}
spec:
  selectors: [{cel: {expression: 'device.driver == "networkdriver.cilium.io" && device.attributes["networkdriver.cilium.io"].pool == "trial"'}}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: net}
spec:
  spec:
    devices:
      requests: [{name: net, exactly: {deviceClassName: weft-e2e}}]
      config: [{requests: [net], opaque: {driver: networkdriver.cilium.io, parameters: {podIfName: trial0}}}]
---
apiVersion: v1
kind: Pod
metadata: {name: claims}
spec:
  terminationGracePeriodSeconds: 0
  resourceClaims: [{name: net, resourceClaimTemplateName: net}]
  containers: [{name: main, image: %s, resources: {claims: [{name: net}]}}]
`

// The driver registers with the kubelet under the rights and privileges that deploy/ gives it, offers
// what its configuration says, and says what it cannot; a pod that claims what is not there waits; a
// pod with networks does not notice; without a configuration nothing is offered.
func TestNetworkDriver(t *testing.T) {
	r := newRig(t)
	r.withDriver()
	lab.Apply(t, fmt.Sprintf(nodeConfig, r.node.Name, false))
	t.Cleanup(func() {
		if _, err := r.cp.Kubectl(r.ctx(), "", "delete", "--ignore-not-found", "ndnc", r.node.Name); err != nil {
			t.Error(err)
		}
	})
	r.offers(1)
	r.step("the pool is offered, without devices")
	r.condition("Accepted", "True")
	r.condition("Ready", "True")

	lab.Apply(t, fmt.Sprintf(nodeConfig, r.node.Name, true))
	lab.Apply(t, fmt.Sprintf(dummyClaim, image.BusyboxName), "--namespace="+r.ns)
	t.Cleanup(func() {
		if _, err := r.cp.Kubectl(r.ctx(), "", "delete", "deviceclass", "weft-e2e"); err != nil {
			t.Error(err)
		}
	})
	if _, err := r.node.Exec(t.Context(), "sh", "-c", "ip link add weft-try type dummy && ip link delete weft-try"); err != nil {
		r.condition("Ready", "False", "dummy", "not supported")
		r.eventOf("default-scheduler", "claims", "cannot allocate all claims")
		r.step("the pod waits: this kernel has no dummy links")
	} else {
		r.offers(1, "dummy0", "dummy1", "dummy2")
		r.hasDevice("claims")
	}
	r.nad("bridge", bridgeConfig)
	r.create("beside", "bridge")
	r.running("beside")
	r.remove("beside", "claims")

	if _, err := r.cp.Kubectl(t.Context(), "", "delete", "ndnc", r.node.Name); err != nil {
		t.Fatal(err)
	}
	r.offers(0)
}

// hasDevice waits until the pod runs with its device, and the tables show it.
func (r *rig) hasDevice(pod string) {
	r.t.Helper()
	r.running(pod)
	if out := r.exec(pod, "ip", "link", "show", "dev", "trial0"); !strings.Contains(out, "UP") {
		r.t.Errorf("the device in the pod: %s", out)
	}
	tables, err := r.cp.Kubectl(r.t.Context(), "", "--namespace="+agentNamespace, "exec", "daemonset/"+agentName, "--", "/weft", "statedb")
	if err != nil || !strings.Contains(tables, `"trial0"`) {
		r.t.Errorf("tables: %v\n%s", err, tables)
	}
	r.step("the pod has its device")
}

// eventOf is event for those of another component.
func (r *rig) eventOf(component, pod string, parts ...string) {
	r.t.Helper()
	r.anyEvent(func(e corev1.Event) bool {
		return e.Source.Component == component || e.ReportingController == component
	}, pod, parts)
}

// condition waits until the node's configuration has a condition whose message has all the parts.
func (r *rig) condition(kind, status string, parts ...string) {
	r.t.Helper()
	r.wait("condition "+kind+"="+status, func() error {
		text, err := r.cp.Kubectl(r.t.Context(), "", "get", "ndnc", r.node.Name, `--output=jsonpath={range .status.conditions[?(@.type=="`+kind+`")]}{.status} {.reason} {.message}{end}`)
		if err == nil && (!strings.HasPrefix(text, status+" ") || !containsAll(text, parts)) {
			err = fmt.Errorf("it says %q", text)
		}
		return err
	})
}

// offers waits until the node has so many slices, with exactly these devices.
func (r *rig) offers(count int, want ...string) {
	r.t.Helper()
	r.wait(fmt.Sprintf("the node to offer %q in %d slices", want, count), func() error {
		list, err := r.kube.ResourceV1().ResourceSlices().List(r.t.Context(), metav1.ListOptions{FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + r.node.Name})
		if err != nil {
			return err
		}
		var names []string
		for _, s := range list.Items {
			for _, d := range s.Spec.Devices {
				names = append(names, d.Name)
			}
		}
		if slices.Sort(names); len(list.Items) != count || !slices.Equal(names, want) {
			return fmt.Errorf("it offers %q in %d slices", names, len(list.Items))
		}
		return nil
	})
}
