// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

// network-status says what the pod has, kubectl shows it, and it costs the API server one write:
// nothing is read when a pod starts, and nothing at all is asked when it ends.
func TestStatus(t *testing.T) {
	r := newRig(t)
	r.nad("bridge", bridgeConfig)
	r.nad("data", dataConfig)
	r.create("first", "bridge, data")
	r.running("first") // the agent knows the networks by now
	r.settled()
	before := r.requests()
	written := r.writes("counted")
	r.create("counted", "bridge, data@cable")
	pod := r.running("counted")
	r.settled()
	if d := cmp.Diff(map[string]float64{patchStatus: 1}, asked(before, r.requests())); d != "" {
		t.Errorf("requests of an ADD (-want +got):\n%s", d)
	}
	if got := written(); len(got) != 1 {
		t.Errorf("network-status was written %d times: %q", len(got), got)
	}
	r.step("one pod write for an ADD")

	if d := cmp.Diff(r.wantStatus(pod, "lab", "eth0", r.ns+"/bridge", "net1", r.ns+"/data", "cable"), r.status(pod)); d != "" {
		t.Errorf("network-status (-kernel +annotation):\n%s", d)
	}
	description := r.kubectl("describe", "pod", "counted")
	for _, want := range []string{statusAnnotation, r.ns + "/bridge", `"interface": "cable"`, "Normal  Started"} {
		if !strings.Contains(strings.ReplaceAll(description, `":"`, `": "`), want) {
			t.Errorf("kubectl describe lacks %q:\n%s", want, description)
		}
	}
	if strings.Contains(description, "Warning") {
		t.Errorf("kubectl describe warns of a pod that is well:\n%s", description)
	}
	r.step("kubectl shows it")

	before = r.requests()
	r.remove("counted", "first")
	r.wait("the records to go", func() error { return r.leftovers() })
	r.settled()
	if d := cmp.Diff(map[string]float64{}, asked(before, r.requests())); d != "" {
		t.Errorf("requests of two DELs (-want +got):\n%s", d)
	}
	r.step("no request for a DEL")
}

// patchStatus is how the agent counts a write of network-status.
const patchStatus = `weft_apiserver_requests_total{resource="pods/status",verb="patch"}`

// asked is what was asked of the API server in between. Watches end and are begun again after
// minutes, whatever happens.
func asked(before, after map[string]float64) map[string]float64 {
	diff := map[string]float64{}
	for name, n := range after {
		if n != before[name] && !strings.Contains(name, `verb="watch"`) {
			diff[name] = n - before[name]
		}
	}
	return diff
}

// settled waits until the agent has no status left to write.
func (r *rig) settled() {
	r.t.Helper()
	r.wait("the agent to be done", func() error {
		if n, ok := r.metrics()["weft_reconcile_pending"]; !ok || n != 0 {
			return fmt.Errorf("%v statuses are pending", n)
		}
		return nil
	})
}

// writes watches a pod, and tells what its network-status was, in order: the API server's
// word for how often it was written.
func (r *rig) writes(pod string) func() []string {
	r.t.Helper()
	w, err := r.kube.CoreV1().Pods(r.ns).Watch(r.t.Context(), metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", pod).String(),
	})
	if err != nil {
		r.t.Fatal(err)
	}
	all, done := []string{}, make(chan struct{})
	go func() {
		defer close(done)
		last := ""
		for e := range w.ResultChan() {
			p, ok := e.Object.(*corev1.Pod)
			if ok && p.Annotations[statusAnnotation] != last {
				last = p.Annotations[statusAnnotation]
				all = append(all, last)
			}
		}
	}()
	return func() []string { w.Stop(); <-done; return all }
}

// wantStatus makes network-status from what the kernel has: of pairs of a network's name and an
// interface's.
func (r *rig) wantStatus(pod *corev1.Pod, pairs ...string) (want []netStatus) {
	r.t.Helper()
	links, said := r.links(pod), map[string]int{}
	for _, s := range r.status(pod) {
		said[s.Interface] = s.MTU
	}
	for pair := range slices.Chunk(pairs, 2) {
		l, ok := links[pair[1]]
		if !ok {
			r.t.Fatalf("pod %s has no %s", pod.Name, pair[1])
		}
		s := netStatus{Name: pair[0], Interface: l.Name, MAC: l.MAC}
		if said[l.Name] != 0 { // which only some plugins tell
			s.MTU = l.MTU
		}
		for _, a := range l.global() {
			address, _, _ := strings.Cut(a, "/")
			s.IPs = append(s.IPs, address)
		}
		if l.Name == "eth0" {
			s.Default = true
		}
		for _, family := range []string{"-4", "-6"} {
			for _, to := range r.defaultRoutes(pod, family) {
				if to.Device == l.Name {
					s.Gateway = append(s.Gateway, to.Gateway)
				}
			}
		}
		want = append(want, s)
	}
	if len(links) != len(want) {
		r.t.Errorf("pod %s has other interfaces than %v: %v", pod.Name, pairs, links)
	}
	return want
}

// Addresses, MACs, both families and default routes are what the annotation asks for, as the
// kernel has them in the pod.
func TestAddresses(t *testing.T) {
	r := newRig(t)
	r.nad("plant", `{"cniVersion":"1.0.0","type":"macvlan","master":"data","mode":"bridge","capabilities":{"ips":true,"mac":true},"ipam":{"type":"static"}}`)
	r.nad("dual", `{"cniVersion":"1.0.0","type":"bridge","bridge":"e2e1","ipam":{"type":"host-local","ranges":[[{"subnet":"10.58.1.0/24"}],[{"subnet":"fd00:58:1::/64"}]]}}`)
	r.nad("uplink", `{"cniVersion":"1.0.0","type":"bridge","bridge":"e2e2","isGateway":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.58.2.0/24"}],[{"subnet":"fd00:58:2::/64"}]]}}`)
	r.create("fixed", `[{"name":"plant","interface":"plant0","ips":["10.58.0.10/24","fd00:58::10/64"],"mac":"02:00:0a:3a:00:0a"},
		{"name":"dual"},{"name":"uplink","default-route":["10.58.2.1","fd00:58:2::1"]}]`)
	pod := r.running("fixed")
	links := r.links(pod)
	if d := cmp.Diff([]string{"10.58.0.10/24", "fd00:58::10/64"}, links["plant0"].global()); d != "" {
		t.Error("plant0: ", d)
	}
	if mac := links["plant0"].MAC; mac != "02:00:0a:3a:00:0a" {
		t.Errorf("plant0 has the MAC %s", mac)
	}
	for name, prefixes := range map[string][]string{"net2": {"10.58.1.", "fd00:58:1:"}, "net3": {"10.58.2.", "fd00:58:2:"}} {
		got := links[name].global()
		if len(got) != 2 || !strings.HasPrefix(got[0], prefixes[0]) || !strings.HasPrefix(got[1], prefixes[1]) {
			t.Errorf("%s has %q, not one of each of %q", name, got, prefixes)
		}
	}
	for family, gateway := range map[string]string{"-4": "10.58.2.1", "-6": "fd00:58:2::1"} {
		if d := cmp.Diff([]route{{Destination: "default", Gateway: gateway, Device: "net3"}}, r.defaultRoutes(pod, family)); d != "" {
			t.Errorf("default route (%s): %s", family, d)
		}
	}
	r.exec("fixed", "ping", "-c1", "-W5", r.node.Address) // by the default route, which has no other
	want := r.wantStatus(pod, "lab", "eth0", r.ns+"/plant", "plant0", r.ns+"/dual", "net2", r.ns+"/uplink", "net3")
	if d := cmp.Diff(want, r.status(pod)); d != "" {
		t.Errorf("network-status (-kernel +annotation):\n%s", d)
	}
	r.remove("fixed")
}

// A pod whose networks are wrong waits, an event says what is wrong where it is, and the pod
// starts once that is mended. Nothing of it was attached before.
func TestMended(t *testing.T) {
	r := newRig(t)
	r.nad("bridge", bridgeConfig)
	r.nad("broken", `{"cniVersion":"1.0.0","type":`)
	r.nad("pluginless", `{"cniVersion":"1.0.0","type":"e2e-nobody"}`)
	nobody := r.create("gone", "gone")
	for _, name := range []string{"broken", "pluginless"} {
		r.create(name, "bridge, "+name)
	}
	r.create("annotated", `[{"name":"bridge","ips":"10.55.0.7"}]`)
	want := map[string][]string{
		"gone":       {r.ns + "/gone", "k8s.v1.cni.cncf.io/networks[0]"},
		"broken":     {r.ns + "/broken", "spec.config"},
		"pluginless": {r.ns + "/pluginless", "e2e-nobody"},
		"annotated":  {"k8s.v1.cni.cncf.io/networks[0].ips", "an array is needed"},
	}
	for name, parts := range want {
		e := r.event(name, parts...)
		r.step("%s waits: %s: %s", name, e.Reason, e.Message)
		if !strings.Contains(r.kubectl("describe", "pod", name), parts[0]) {
			t.Errorf("kubectl describe pod %s lacks %q", name, parts[0])
		}
	}
	for name := range want {
		if p := r.get(name); p.Status.Phase != corev1.PodPending || len(r.status(p)) != 0 {
			t.Errorf("pod %s is %s and has the status %v", name, p.Status.Phase, r.status(p))
		}
	}
	r.nad("gone", bridgeConfig)
	r.nad("broken", dataConfig)
	r.nad("pluginless", dataConfig)
	r.annotate("annotated", networksAnnotation, "bridge")
	for name := range want {
		r.running(name)
		r.step("%s runs", name)
	}
	if p := r.get("gone"); p.UID != nobody.UID {
		t.Error("the pod was made anew")
	}
	r.remove("gone", "broken", "pluginless", "annotated")
}

// annotate sets an annotation of a pod.
func (r *rig) annotate(pod, key, value string) {
	r.t.Helper()
	r.kubectl("annotate", "--overwrite", "pod", pod, key+"="+value)
}

// A pod that names a network of a forbidden namespace waits and is told which it may use; it
// starts once its annotation names one of those, or once the network is allowed.
func TestForbidden(t *testing.T) {
	r := newRig(t)
	other := r.otherNamespace()
	r.configure("cni:\n  namespaceIsolation: true\n")
	r.nad("bridge", bridgeConfig)
	r.nadIn(other, "theirs", bridgeConfig)
	r.create("changed", "bridge, "+other+"/theirs")
	r.create("allowed", other+"/theirs")
	for _, name := range []string{"changed", "allowed"} {
		e := r.event(name, other, r.ns, networksAnnotation)
		r.step("%s waits: %s", name, e.Message)
	}
	r.annotate("changed", networksAnnotation, "bridge")
	r.running("changed")
	r.configure("cni:\n  namespaceIsolation: true\n  globalNamespaces: default," + other + "\n")
	r.running("allowed")
	r.remove("changed", "allowed")
}

// What is taken down is what was attached, whatever the network says by then.
func TestChangedNetworks(t *testing.T) {
	r := newRig(t)
	r.nad("changed", `{"cniVersion":"1.0.0","name":"before","type":"bridge","bridge":"e2e3","ipam":{"type":"host-local","subnet":"10.59.0.0/24"}}`)
	r.nad("broken", `{"cniVersion":"1.0.0","name":"whole","type":"bridge","bridge":"e2e3","ipam":{"type":"host-local","subnet":"10.59.1.0/24"}}`)
	r.nad("deleted", dataConfig)
	r.create("pod", "changed, broken, deleted")
	pod := r.running("pod")
	if err := r.leftovers(pod); err != nil {
		t.Error("a running pod: ", err)
	}
	leases := r.leases()
	for _, network := range []string{"before", "whole", "deleted"} {
		if !slices.ContainsFunc(leases, func(l string) bool { return strings.HasPrefix(l, network+"/10.5") }) {
			t.Fatalf("no lease of %s in %q: this would show nothing", network, leases)
		}
	}
	r.nad("changed", `{"cniVersion":"1.0.0","name":"after","type":"macvlan","master":"data"}`)
	r.nad("broken", `{"type":"e2e-nobody"`)
	r.noNAD("deleted")
	r.create("new", "changed")
	r.running("new") // so the agent has seen all that
	before := r.links(pod)
	r.remove("pod", "new")
	r.wait("the pods to leave nothing", func() error {
		if left := r.leases(); len(left) > 0 {
			return fmt.Errorf("leases %q", left)
		}
		return r.leftovers()
	})
	if len(before) != 4 {
		t.Errorf("a change of its networks changed a running pod: %v", before)
	}
}

// leases are those of host-local on the node: network/address.
func (r *rig) leases() (all []string) {
	r.t.Helper()
	out, err := r.node.Exec(r.t.Context(), "find", "/var/lib/cni/networks", "-type", "f")
	if err != nil {
		r.t.Fatal(err)
	}
	for line := range strings.Lines(out) {
		network, address, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "/var/lib/cni/networks/"), "/")
		if isAddress(address) {
			all = append(all, network+"/"+address)
		}
	}
	return all
}

// otherNamespace makes a second namespace, which goes with the test.
func (r *rig) otherNamespace() string {
	r.t.Helper()
	name := r.ns + "-other"
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := r.kube.CoreV1().Namespaces().Create(r.t.Context(), ns, metav1.CreateOptions{}); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if _, err := r.cp.Kubectl(r.ctx(), "", "delete", "namespace", name, "--wait=false"); err != nil {
			r.t.Error(err)
		}
	})
	return name
}
