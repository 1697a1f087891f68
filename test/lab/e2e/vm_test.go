// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/weftnet/weft/test/lab"
	"github.com/weftnet/weft/test/lab/guest"
	"github.com/weftnet/weft/test/lab/held"
	"github.com/weftnet/weft/test/lab/vm"
)

// vmName is the machine of these tests.
const vmName = "web"

// publishes is what an administrator changes for virtual machines, beside the components.
const publishes = `patches:
  - patch: |
      apiVersion: v1
      kind: ConfigMap
      metadata: {name: weft-agent, namespace: kube-system}
      data: {agent.yaml: "vmi: {mode: publish}"}
`

// vmObject is a machine on a node, in a pod.
const vmObject = `
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata:
  namespace: %[1]s
  name: ` + vmName + `
  labels: {kubevirt.io/nodeName: %[2]s}
spec:
  domain: {devices: {interfaces: [{name: default, masquerade: {}}, {name: red, bridge: {}}]}}
  networks: [{name: default, pod: {}}, {name: red, multus: {networkName: red}}]
status: {phase: Running, nodeName: %[2]s, activePods: {%[3]s: %[2]s}}
`

// vmEntry is an entry of status.interfaces, as far as it is the same each time.
type vmEntry struct {
	Name          string `json:"name"`
	MAC           string `json:"mac"`
	IP            string `json:"ipAddress"`
	InterfaceName string `json:"interfaceName"`
	InfoSource    string `json:"infoSource"`
	LinkState     string `json:"linkState"`
}

// A machine in a pod like KubeVirt's, on a node with Weft as it is shipped: the agent finds libvirt
// by itself and writes what domain, guest and network-status say; another agent finds the same and
// writes nothing; and the pod ends as any other.
func TestVirtualMachine(t *testing.T) {
	r := newRig(t)
	r.servesVMIs()
	r.nad("red", bridgeConfig)
	nics := []guest.NIC{{Name: "default", MAC: "02:00:00:00:00:01"}, {Name: "red", MAC: "02:00:00:00:00:02"}}
	pod := r.launcher(nics...)
	r.overlaid(publishes, "vmi", "vmi/publish") // libvirt starts meanwhile
	r.agentReady()
	pod = r.running(pod.Name)
	r.boot(pod)
	lab.Apply(t, fmt.Sprintf(vmObject, r.ns, r.node.Name, pod.UID))
	r.step("the machine boots")

	var red string
	for _, s := range r.status(r.get(pod.Name)) {
		if s.Name == r.ns+"/red" && len(s.IPs) == 1 {
			red = s.IPs[0]
		}
	}
	want := []vmEntry{
		{"default", nics[0].MAC, pod.Status.PodIP, "eth0", "domain, guest-agent", "up"},
		{"red", nics[1].MAC, red, "eth1", "domain, guest-agent, multus-status", "up"},
	}
	r.wait("the status", func() error {
		if d := cmp.Diff(want, r.vmStatus()); d != "" {
			return fmt.Errorf("(-want +got):\n%s", d)
		}
		return nil
	})
	if out := r.kubectl("get", "vmi", vmName); !strings.Contains(out, pod.Status.PodIP) {
		t.Errorf("kubectl get vmi does not show %s:\n%s", pod.Status.PodIP, out)
	}
	r.agentShows(func(m vmShown) bool {
		return m.Pod == pod.Name && m.State == "running" && m.Agent == "connected" && m.Fault == ""
	})
	r.step("its status is written")

	version := r.vm().GetResourceVersion()
	r.replaceAgent()
	r.agentShows(func(m vmShown) bool { return m.State == "running" && m.Agent == "connected" && len(m.Differs) == 0 })
	if now := r.vm().GetResourceVersion(); now != version {
		t.Errorf("another agent changed the object from version %s to %s: %+v", version, now, r.vmStatus())
	}
	r.step("another agent says the same")

	r.endsByItself(pod)
	r.step("the pod has ended")
	r.letGo(pod)
	r.agentShows(func(m vmShown) bool { return m.Pod == "" && m.State == "unknown" && m.Fault != "" })
	r.kubectl("delete", "vmi", vmName)
	r.wait("the machine to be forgotten", func() error {
		if all := r.shownVMs(); len(all) > 0 {
			return fmt.Errorf("there is %+v", all)
		}
		return nil
	})
}

// servesVMIs has the API server know virtual machines, until the test's end.
func (r *rig) servesVMIs() {
	r.t.Helper()
	const file = "../vmi/testdata/crd.yaml"
	for _, args := range [][]string{
		{"apply", "--filename=" + file},
		{"wait", "--for=condition=Established", "--timeout=60s", "--filename=" + file},
	} {
		r.kubectl(args...)
	}
	r.t.Cleanup(func() {
		if _, err := r.cp.Kubectl(r.ctx(), "", "delete", "--filename="+file); err != nil {
			r.t.Error(err)
		}
	})
}

// launcher makes a pod with libvirt in it that has what is needed for a machine with such NICs. It
// does not wait. Its programs are the node's, which are the machine's: no image has their size.
func (r *rig) launcher(nics ...guest.NIC) *corev1.Pod {
	r.t.Helper()
	dir := r.guestFiles()
	domain := guest.Domain(r.ns+"_"+vmName, nics...)
	if err := os.WriteFile(filepath.Join(r.cp.Dir, "images/guest/boot/domain.xml"), []byte(domain), 0o644); err != nil {
		r.t.Fatal(err)
	}
	return r.create("virt-launcher-"+vmName, "red", func(p *corev1.Pod) {
		p.Labels = map[string]string{"kubevirt.io": "virt-launcher"}
		p.Annotations["kubevirt.io/domain"] = vmName
		p.Spec.TerminationGracePeriodSeconds = new(int64(grace / time.Second))
		c := &p.Spec.Containers[0]
		c.Name = "compute"
		c.SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
		c.Command = []string{"/bin/sh", "-c", monitor}
		c.Env = []corev1.EnvVar{{Name: "PATH", Value: "/usr/sbin:/usr/bin:/bin"}} // where libvirt looks for QEMU
		mount := func(name, at string, from corev1.VolumeSource) {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: from})
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: at, ReadOnly: from.HostPath != nil})
		}
		for i, m := range [][2]string{
			{"root/usr", "/usr"},
			{"root/lib", "/lib"},
			{"root/lib64", "/lib64"},
			{"root/etc/libvirt", "/etc/libvirt"},
			{"root/etc/passwd", "/etc/passwd"},
			{"root/etc/group", "/etc/group"},
			{"boot", "/weft"},
		} {
			mount(fmt.Sprint("files", i), m[1], corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir + "/" + m[0]}})
		}
		// As KubeVirt does. In memory it is a mount, which the pod's end has to undo.
		memory := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}
		mount("libvirt-runtime", "/run/libvirt", memory)
		mount("orders", "/run/weft", memory)
	})
}

// monitor is a launcher's first process. It takes the place of KubeVirt's: what QEMU leaves becomes
// its child, and libvirt waits long for one that nobody has waited for.
const monitor = `mkdir -p /var/lib/libvirt/qemu /var/log/libvirt/qemu /var/cache/libvirt/qemu
/bin/busybox ln -s /run /var/run
/usr/sbin/libvirtd &
trap "kill $!" TERM
wait $!
wait $!`

// guestFiles puts libvirt's files and those that a guest boots where the node sees them, and returns
// where. They are links: nothing is copied, and nobody writes to them.
func (r *rig) guestFiles() string {
	r.t.Helper()
	cache, err := lab.Cache()
	if err != nil {
		r.t.Fatal(err)
	}
	root, err := guest.Root(r.t.Context(), cache, os.Stderr)
	if err != nil {
		r.t.Fatal(err)
	}
	dir := filepath.Join(r.cp.Dir, "images/guest")
	for _, d := range []string{"root", "boot"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			r.t.Fatal(err)
		}
	}
	r.t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			r.t.Error(err)
		}
	})
	if out, err := exec.CommandContext(r.t.Context(), "cp", "-al", root+"/usr", root+"/lib", root+"/lib64", root+"/etc", dir+"/root").CombinedOutput(); err != nil {
		r.t.Fatalf("link libvirt's files: %v: %s", err, out)
	}
	if err := guest.Boot(r.t.Context(), vm.Store{Dir: filepath.Join(cache, "vm"), Progress: os.Stderr}, root, dir+"/boot"); err != nil {
		r.t.Fatal(err)
	}
	return "/lab/images/guest"
}

// boot starts the machine once libvirt is there.
func (r *rig) boot(pod *corev1.Pod) {
	r.t.Helper()
	r.wait("libvirt", func() error {
		_, err := r.cp.Kubectl(r.t.Context(), "", "--namespace="+r.ns, "exec", pod.Name, "--", "/usr/bin/virsh", "-q", "version")
		return err
	})
	r.exec(pod.Name, "/usr/bin/virsh", "-q", "create", "/weft/domain.xml")
}

// vm is the machine's object.
func (r *rig) vm() *unstructured.Unstructured {
	r.t.Helper()
	client, err := dynamic.NewForConfig(r.cp.Config())
	if err != nil {
		r.t.Fatal(err)
	}
	vmis := client.Resource(schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachineinstances"})
	object, err := vmis.Namespace(r.ns).Get(r.t.Context(), vmName, metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return object
}

// vmStatus is what stands in it.
func (r *rig) vmStatus() (all []vmEntry) {
	r.t.Helper()
	interfaces, _, err := unstructured.NestedSlice(r.vm().Object, "status", "interfaces")
	if err != nil {
		r.t.Fatal(err)
	}
	text, err := json.Marshal(interfaces)
	if err := errors.Join(err, json.Unmarshal(text, &all)); err != nil {
		r.t.Fatal(err)
	}
	return all
}

// vmShown is a machine as weft get vmis shows it.
type vmShown struct {
	Namespace, Name, Pod, State, Agent, Fault string
	Differs                                   []string
}

// shownVMs are those that weft shows in the agent's pod.
func (r *rig) shownVMs() []vmShown {
	r.t.Helper()
	pod, err := r.agentPod()
	if err != nil {
		r.t.Fatal(err)
	}
	out, err := r.cp.Kubectl(r.t.Context(), "", "--namespace="+agentNamespace, "exec", pod.Name, "--container=agent", "--", "/weft", "get", "vmis", "--output=json")
	var list struct {
		VMIs []vmShown `json:"vmis"`
	}
	if err := errors.Join(err, json.Unmarshal([]byte(out), &list)); err != nil {
		r.t.Fatalf("weft get vmis: %v\n%s", err, out)
	}
	return list.VMIs
}

// agentShows waits until it shows the one machine, as wanted.
func (r *rig) agentShows(wanted func(vmShown) bool) {
	r.t.Helper()
	r.wait("weft get vmis", func() error {
		all := r.shownVMs()
		if len(all) != 1 || all[0].Namespace != r.ns || all[0].Name != vmName || !wanted(all[0]) {
			return fmt.Errorf("it shows %+v", all)
		}
		return nil
	})
}

// grace is the time that a launcher's pod is given to end.
const grace = time.Minute

// endsByItself deletes the pod, which is gone within its time, and whose program was not killed at
// the end of it.
func (r *rig) endsByItself(pod *corev1.Pod) {
	r.t.Helper()
	pods := r.kube.CoreV1().Pods(r.ns)
	changes, err := pods.Watch(r.t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + pod.Name})
	if err != nil {
		r.t.Fatal(err)
	}
	defer changes.Stop()
	if err := pods.Delete(r.t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), grace)
	defer cancel()
	for {
		select {
		case <-ctx.Done():
			r.t.Fatalf("pod %s is there after %s; its last event: %s", pod.Name, grace, r.lastEvent(pod.Name))
		case e, ok := <-changes.ResultChan():
			if !ok {
				r.t.Fatal("the watch of the pod has ended")
			}
			if e.Type != watch.Deleted {
				continue
			}
			last, _ := e.Object.(*corev1.Pod)
			for _, c := range last.Status.ContainerStatuses {
				if c.State.Terminated == nil || c.State.Terminated.ExitCode != 0 {
					r.t.Errorf("container %s of the pod ended with %+v", c.Name, c.State)
				}
			}
			return
		}
	}
}

// letGo waits until nothing of a pod's is in use: no process has its mounts, and the agent has no
// thread and no file in namespaces that are not its own.
func (r *rig) letGo(pod *corev1.Pod) {
	r.t.Helper()
	r.wait("the pod to be let go", func() error {
		if err := held.Mounts(string(pod.UID)); err != nil {
			return err
		}
		return held.Foreign(r.agentPID())
	})
}
