// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/test/lab"
	"github.com/weftnet/weft/test/lab/image"
)

// seedNode is the node's name in the manifests of the network driver's walk-through.
const seedNode = "worker-node-1"

// machineRig is a rig with a node that is a machine of its own, with an SR-IOV card.
type machineRig struct {
	*rig
	machine *lab.Node
	links   []string // of the host, while no pod has any
}

// newMachineRig starts the machine in a cluster whose agents have the driver.
func newMachineRig(t *testing.T) *machineRig {
	t.Helper()
	r := newRig(t)
	r.withDriver()
	return r.startMachine(seedNode)
}

// startMachine adds a machine to the cluster until the test ends.
func (r *rig) startMachine(name string) *machineRig {
	r.t.Helper()
	node, err := r.cp.StartMachine(r.t.Context(), name)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := node.Remove(r.ctx()); err != nil {
			r.t.Error(err)
		}
	})
	r.step("machine %s is ready", node.Name)
	r.patience = 3 * limit // all takes ten times as long there
	m := &machineRig{rig: r, machine: node}
	r.t.Cleanup(m.keepMachineLogs)
	return m
}

// part is a sub-test on the same machine; a part that fails does not stop the others.
func (r *machineRig) part(name string, f func()) {
	outer := r.t
	outer.Run(name, func(t *testing.T) {
		r.t = t
		defer func() {
			if t.Failed() { // the next part's names are the same
				_, err := r.cp.Kubectl(r.ctx(), "", "--namespace="+r.ns, "delete", "pods", "--all", "--timeout=120s")
				r.step("the pods of what failed are deleted: %v", err)
			}
			r.t = outer
		}()
		r.step("%s", name)
		f()
		r.home()
	})
}

// on runs a script on the machine.
func (r *machineRig) on(script string) string {
	r.t.Helper()
	out, err := r.machine.Exec(r.ctx(), "sh", "-c", script)
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

// agent runs a command in the machine's agent.
func (r *machineRig) agent(args ...string) (string, error) {
	pods, err := r.kube.CoreV1().Pods(agentNamespace).List(r.ctx(), metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/component=agent", FieldSelector: "status.phase=Running,spec.nodeName=" + r.machine.Name,
	})
	if err != nil {
		return "", err
	}
	if len(pods.Items) != 1 {
		return "", fmt.Errorf("%d agents on %s", len(pods.Items), r.machine.Name)
	}
	return r.cp.Kubectl(r.ctx(), "", append([]string{"--namespace=" + agentNamespace, "exec", pods.Items[0].Name, "-c", "agent", "--"}, args...)...)
}

// tables are what the driver's own inspection says, through the seed's jq program.
func (r *machineRig) tables() (t struct {
	Inventory   []map[string]any
	Allocations []map[string]any
}, err error,
) {
	program, err := os.ReadFile("../../../internal/dra/state/testdata/seed.jq")
	if err != nil {
		return t, err
	}
	dump, err := r.agent("cilium-dbg", "statedb")
	if err != nil {
		return t, err
	}
	cmd := exec.CommandContext(r.ctx(), "jq", string(program))
	cmd.Stdin = strings.NewReader(dump)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return t, fmt.Errorf("jq: %w\n%s", err, out)
	}
	return t, json.NewDecoder(bytes.NewReader(out)).Decode(&t)
}

// home waits until nothing of the test's is left: no pod has a device, every virtual function is in
// the host under its name, without a VLAN.
func (r *machineRig) home() {
	r.t.Helper()
	r.wait("the devices to be home", func() error {
		t, err := r.tables()
		if err != nil {
			return err
		}
		if len(t.Allocations) > 0 {
			return fmt.Errorf("allocations %v", t.Allocations)
		}
		if left := r.on(leftThere); left != "" {
			return errors.New(left)
		}
		vfs, links := r.vfs()
		if slices.ContainsFunc(vfs, func(vf string) bool { return strings.Contains(vf, "vlan") }) || !slices.Equal(links, r.links) {
			return fmt.Errorf("VFs %q; links %q, not %q", vfs, links, r.links)
		}
		return nil
	})
	claims, err := r.kube.ResourceV1().ResourceClaims(r.ns).List(r.ctx(), metav1.ListOptions{})
	if err != nil || len(claims.Items) > 0 {
		r.t.Errorf("claims left: %v, %v", claims.Items, err)
	}
}

// leftThere lists what belongs to pods: records, namespaces, addresses.
const leftThere = `ls /var/lib/weft/attachments /var/lib/weft/handovers /var/lib/weft/devices /run/netns /var/lib/cni/networks/*/1* 2>/dev/null | grep -v ':$' | grep . || true`

// vfs are the lines that tell what the PF says of its virtual functions, and the host's devices and
// dummy links.
func (r *machineRig) vfs() (vfs, links []string) {
	for line := range strings.Lines(r.on("/usr/bin/ip link show dev " + lab.PF)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "vf ") {
			vfs = append(vfs, line)
		}
	}
	return vfs, strings.Fields(r.on("ls -d /sys/class/net/*/device /sys/class/net/dummy* 2>/dev/null | cut -d/ -f5"))
}

// keepMachineLogs is keepLogs for the machine.
func (r *machineRig) keepMachineLogs() {
	if !r.t.Failed() {
		return
	}
	out, err := r.machine.Exec(r.ctx(), "sh", "-c", `tail -n +1 /var/log/pods/*/*/*.log; ls -laR /var/lib/weft /run/netns; tail -n +1 /var/lib/weft/*/*.jsonl
		/usr/bin/ip -d link; ps; dmesg | tail -n 50`)
	text := fmt.Sprintf("%v\n%s", err, out)
	if err := os.WriteFile(r.machine.Logs+"/machine.txt", []byte(text), 0o644); err != nil {
		r.t.Log(err)
	}
}

// seed are the manifests of the walk-through, as they stand but for names that are wrong there, and
// the image of its application, which is any.
func seed(t *testing.T) (config, objects, pod string) {
	t.Helper()
	content, err := os.ReadFile("../api/testdata/seed.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("sriov-claim-direct", "sriov-claim", "my-dpdk-app:latest", image.BusyboxName).Replace(string(content))
	parts := strings.Split(text, "---\n")
	return parts[0], parts[1] + "---\n" + parts[2], parts[3]
}

// claiming makes a pod be scheduled, with claims made of templates.
func claiming(templates ...string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.NodeName = ""
		pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: seedNode}
		pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN"}}}
		for i, template := range templates {
			name := fmt.Sprintf("claim%d", i)
			pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: name, ResourceClaimTemplateName: &template})
			pod.Spec.Containers[0].Resources.Claims = append(pod.Spec.Containers[0].Resources.Claims, corev1.ResourceClaim{Name: name})
		}
	}
}

// template is a claim template of a class, with the parameters that it gives the driver.
func template(name, class, parameters string) string {
	return fmt.Sprintf(`
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: %s}
spec:
  spec:
    devices:
      requests: [{name: net, exactly: {deviceClassName: %s}}]
      config: [{requests: [net], opaque: {driver: networkdriver.cilium.io, parameters: %s}}]
---
`, name, class, parameters)
}

const (
	sriovClass = "sriov-pool.networkdriver.cilium.io"
	dummyClass = "fast-net.networkdriver.cilium.io"
)

// dummyClassManifest is the seed's class for the other pool.
const dummyClassManifest = `
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: ` + dummyClass + `}
spec:
  selectors: [{cel: {expression: 'device.driver == "networkdriver.cilium.io" && device.attributes["networkdriver.cilium.io"].pool == "fast-net"'}}]
---
`

// withDummies is the seed's configuration with its dummy example added.
func withDummies(config string) string {
	return strings.NewReplacer("  deviceManagerConfigs:\n", "  deviceManagerConfigs:\n    dummy: {enabled: true, count: 3}\n",
		"  pools:\n", "  pools:\n    - {name: fast-net, filter: {deviceManagers: [dummy]}}\n").Replace(config)
}

// A whole node with a real SR-IOV card: from manifests to packets, and back.
func TestMachine(t *testing.T) {
	r := newMachineRig(t)
	config, objects, pod := seed(t)
	own := r.node
	defer func() { r.node = own }()
	r.node = r.machine // what is offered is this node's
	for _, kind := range []string{"ndnc/" + seedNode, "deviceclass/" + sriovClass, "deviceclass/" + dummyClass} {
		t.Cleanup(func() {
			if _, err := r.cp.Kubectl(r.ctx(), "", "delete", "--ignore-not-found", kind); err != nil {
				t.Error(err)
			}
		})
	}
	lab.Apply(t, config)
	devices := []string{"0000-00-14-0", "0000-00-14-2", "0000-00-14-4", "0000-00-14-6"}
	r.offers(1, devices...)
	r.condition("Ready", "True")
	_, r.links = r.vfs()
	lab.Apply(t, objects+"---\n"+dummyClassManifest+template("fast", dummyClass, "{podIfName: fast0}")+template("other", dummyClass, "{podIfName: net1}")+
		template("plain", sriovClass, "{podIfName: plain0}"), "--namespace="+r.ns)

	r.part("walk-through", func() { r.walkThrough(pod) })
	r.part("packets", r.packets)
	lab.Apply(t, withDummies(config))
	r.offers(2, append(slices.Clone(devices), "dummy0", "dummy1", "dummy2")...)
	r.part("the agent is killed between setting up and the claim's status", r.killedBeforeStatus)
	r.part("the hooks are held up", r.hooksHeldUp)
	if full(t) {
		r.part("a pool of three and four pods", r.fourthWaits)
		r.part("claims and networks in a pod", r.claimsAndNetworks)
		r.part("a network takes its device from a claim", r.networkOfClaim)
		r.part("the configuration changes", func() { r.reconfigured(config) })
		r.part("a pod is deleted by force", r.forced)
		r.part("the node is drained", r.drained)
		r.part("the agent is killed between the claim's status and the table", r.killedBeforeRow)
		r.part("the agent is killed between handing over and the pod's start", r.killedBeforeStart)
		r.part("the agent is killed between the sandbox's end and giving back", r.killedBeforeUnprepare)
		r.part("the runtime's hooks are not there", r.withoutHooks)
		r.part("there is nothing but the runtime's hooks", r.hooksAlone)
		r.part("the kubelet is restarted", func() { r.restarted(lab.Kubelet, syscall.SIGTERM) })
		r.part("containerd is restarted", func() { r.restarted(lab.Containerd, syscall.SIGTERM) })
		r.part("containerd is killed", func() { r.restarted(lab.Containerd, syscall.SIGKILL) })
		r.part("the API server is away", r.serverAway)
	}
	r.part("the machine is rebooted", r.rebooted)
}

// walkThrough is the network driver's documented way, with its commands.
func (r *machineRig) walkThrough(pod string) {
	lab.Apply(r.t, pod, "--namespace="+r.ns)
	r.running("dpdk-app")
	r.step("the pod runs")
	if out := r.exec("dpdk-app", "ip", "link", "show", "dev", "sriov0"); !strings.Contains(out, "UP") {
		r.t.Errorf("in the pod: %s", out)
	}
	t, err := r.tables()
	if err != nil {
		r.t.Fatal(err)
	}
	if len(t.Inventory) != 4 || len(t.Allocations) != 1 {
		r.t.Fatalf("tables %v", t)
	}
	claims, err := r.kube.ResourceV1().ResourceClaims(r.ns).List(r.ctx(), metav1.ListOptions{})
	if err != nil || len(claims.Items) != 1 {
		r.t.Fatalf("claims %v, %v", claims, err)
	}
	claim := claims.Items[0]
	device := claim.Status.Allocation.Devices.Results[0].Device
	want := map[string]any{
		"DeviceName": device, "Manager": "sr-iov", "Pool": "sriov-pool", "PodUID": string(r.get("dpdk-app").UID), "ClaimUID": string(claim.UID),
		"Config": map[string]any{"podIfName": "sriov0", "vlan": 1001.0},
	}
	if d := cmp.Diff(want, t.Allocations[0]); d != "" {
		r.t.Errorf("allocation (-want +got):\n%s", d)
	}
	vfs, _ := r.vfs()
	id := slices.Index([]string{"0000-00-14-0", "0000-00-14-2", "0000-00-14-4", "0000-00-14-6"}, device)
	if id < 0 || len(vfs) != 4 || !strings.Contains(vfs[id], "vlan 1001") {
		r.t.Errorf("the PF says of VF %d: %q", id, vfs)
	}
	if len(claim.Status.Devices) != 1 || claim.Status.Devices[0].NetworkData == nil || claim.Status.Devices[0].NetworkData.InterfaceName != "sriov0" {
		r.t.Errorf("the claim says %+v", claim.Status.Devices)
	}
	for _, look := range []struct {
		args string
		want string
	}{
		{"get ciliumnetworkdrivernodeconfigs", seedNode},
		{"get ciliumnetworkdrivernodeconfig worker-node-1 -o yaml", "vfCount: 4"},
		{"get resourceslice", seedNode + "/sriov-pool"},
		{"get resourceclaims -A", claim.Name},
		{"get resourceclaim " + claim.Name + " -n " + r.ns + " -o yaml", "interfaceName: sriov0"},
		{"get resourceclaimtemplates -A", "sriov-claim"},
		{"get deviceclasses", sriovClass},
	} {
		if out := r.kubectl(strings.Fields(look.args)...); !strings.Contains(out, look.want) {
			r.t.Errorf("kubectl %s lacks %q:\n%s", look.args, look.want, out)
		}
	}
	r.kubectl("delete", "pod", "dpdk-app", "--now")
	r.gone("dpdk-app")
	r.step("the pod is gone")
}

// packets go from one pod's device to another's: by the card's own switch, in the VLAN that the PF
// gives both, and not to one in none.
func (r *machineRig) packets() {
	for i, template := range []string{"sriov-claim", "sriov-claim", "plain"} {
		r.create(fmt.Sprint("p", i), "", claiming(template))
	}
	r.running("p0", "p1", "p2")
	r.step("three pods run")
	for i, link := range []string{"sriov0", "sriov0", "plain0"} {
		pod := fmt.Sprint("p", i)
		r.exec(pod, "ip", "address", "add", fmt.Sprintf("10.77.0.%d/24", i+1), "dev", link)
	}
	ping := []string{"--namespace=" + r.ns, "exec", "p0", "--", "timeout", "20", "ping", "-c1", "-W5"}
	r.wait("the answer of the pod in the same VLAN", func() error {
		_, err := r.cp.Kubectl(r.ctx(), "", append(slices.Clone(ping), "10.77.0.2")...)
		return err
	})
	if out, err := r.cp.Kubectl(r.ctx(), "", append(slices.Clone(ping), "10.77.0.3")...); err == nil {
		r.t.Errorf("the pod without the VLAN answers: %s", out)
	}
	r.remove("p0", "p1", "p2")
}

// fourthWaits until one of the three devices is free.
func (r *machineRig) fourthWaits() {
	for i := range 4 {
		r.create(fmt.Sprint("d", i), "", claiming("fast"))
	}
	waiting := ""
	r.wait("three pods to run", func() error {
		var run []string
		waiting = ""
		for i := range 4 {
			pod := r.get(fmt.Sprint("d", i))
			if pod.Status.Phase == corev1.PodRunning {
				run = append(run, pod.Name)
			} else {
				waiting = pod.Name
			}
		}
		if len(run) != 3 {
			return fmt.Errorf("%v run", run)
		}
		return nil
	})
	r.eventOf("default-scheduler", waiting, "cannot allocate all claims")
	first := "d0"
	if waiting == first {
		first = "d1"
	}
	r.remove(first)
	r.running(waiting)
	if out := r.exec(waiting, "ip", "link", "show", "dev", "fast0"); !strings.Contains(out, "UP") {
		r.t.Errorf("in the pod: %s", out)
	}
	r.remove("d0", "d1", "d2", "d3")
}

// claimsAndNetworks: two claims in a pod; a claim and a network, and their names clash.
func (r *machineRig) claimsAndNetworks() {
	r.nad("bridge", bridgeConfig)
	r.create("two", "", claiming("fast", "sriov-claim"))
	r.create("both", "bridge", claiming("sriov-claim"))
	r.create("clash", "bridge", claiming("other")) // net1 is what the first network is called
	r.running("two", "both")
	for pod, links := range map[string][]string{"two": {"fast0", "sriov0"}, "both": {"sriov0", "net1"}} {
		out := r.exec(pod, "ip", "link")
		for _, link := range links {
			if !strings.Contains(out, " "+link) {
				r.t.Errorf("pod %s has no %s:\n%s", pod, link, out)
			}
		}
	}
	r.event("clash", "net1")
	r.remove("clash", "both", "two")
}

// cardNetwork takes what device the pod has of the pool, and has no parameters of its own.
const cardNetwork = `
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata:
  name: card
  annotations: {k8s.v1.cni.cncf.io/resourceName: networkdriver.cilium.io/sriov-pool}
spec:
  config: '{"cniVersion": "1.0.0", "name": "card", "type": "host-device"}'
`

// networkOfClaim: the device of a claim is moved by the network's plugin, under the network's name, and
// it is not moved twice.
func (r *machineRig) networkOfClaim() {
	lab.Apply(r.t, cardNetwork, "--namespace="+r.ns)
	r.create("drawn", "card@drawn0", claiming("sriov-claim"))
	r.has("drawn", "drawn0")
	if out := r.exec("drawn", "ip", "-o", "link"); strings.Contains(out, "sriov0") || strings.Count(out, "\n") != 3 {
		r.t.Errorf("in the pod, beside lo and eth0:\n%s", out)
	}
	r.wait("network-status of drawn", func() error {
		all := r.status(r.get("drawn"))
		if len(all) != 2 || all[1].Interface != "drawn0" || all[1].Name != r.ns+"/card" {
			return fmt.Errorf("it says %+v", all)
		}
		return nil
	})
	if vfs, _ := r.vfs(); !strings.Contains(strings.Join(vfs, "\n"), "vlan 1001") {
		r.t.Errorf("the PF says %q", vfs)
	}
	r.create("less", "card,card", claiming("sriov-claim"))
	r.event("less", "networks[1]", "sriov-pool", "1 for 2 networks")
	r.remove("drawn", "less")
}
