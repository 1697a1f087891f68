// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/test/lab"
)

// fullVariable asks for the parts that take too long for every change: make e2e-full.
const fullVariable = "WEFT_E2E_FULL"

// gate is a webhook that the status of claims has to pass.
type gate struct {
	arrived chan struct{} // closed when the first one is there
	open    chan struct{} // closed by release
	once    sync.Once
	opened  sync.Once
}

// wait waits for the first one.
func (g *gate) wait(t *testing.T) {
	t.Helper()
	select {
	case <-g.arrived:
	case <-time.After(limit):
		t.Fatal("the status of the claim is not written")
	}
}

func (g *gate) release() { g.opened.Do(func() { close(g.open) }) }

// ServeHTTP lets everything pass once the gate is open.
func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var review struct {
		Request struct {
			UID string `json:"uid"`
		} `json:"request"`
	}
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	g.once.Do(func() { close(g.arrived) })
	select {
	case <-g.open:
	case <-r.Context().Done():
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":%q,"allowed":true}}`, review.Request.UID)
}

const gateManifest = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: weft-e2e-gate}
webhooks:
  - name: gate.e2e.weft.test
    admissionReviewVersions: [v1]
    sideEffects: None
    failurePolicy: Ignore
    timeoutSeconds: 30
    clientConfig: {url: %s/, caBundle: %s}
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %s}}
    rules: [{apiGroups: [resource.k8s.io], apiVersions: ["*"], resources: [resourceclaims/status], operations: [UPDATE]}]
    matchConditions: [{name: agents, expression: 'request.userInfo.username == "system:serviceaccount:kube-system:weft-agent"'}]
`

// closedGate holds up what agents write into the status of the test's claims.
func (r *machineRig) closedGate() *gate {
	r.t.Helper()
	g := &gate{arrived: make(chan struct{}), open: make(chan struct{})}
	url, authority, end, err := r.cp.Webhook(g)
	if err != nil {
		r.t.Fatal(err)
	}
	lab.Apply(r.t, fmt.Sprintf(gateManifest, url, base64.StdEncoding.EncodeToString(authority), r.ns))
	r.t.Cleanup(func() {
		g.release()
		if _, err := r.cp.Kubectl(r.ctx(), "", "delete", "validatingwebhookconfiguration", "weft-e2e-gate"); err != nil {
			r.t.Error(err)
		}
		if err := end(); err != nil {
			r.t.Error(err)
		}
	})
	return g
}

// signalAgentThere sends the machine's agent a signal.
func (r *machineRig) signalAgentThere(signal string) {
	r.t.Helper()
	r.on("kill -" + signal + " $(pidof weft-agent)")
}

// prepared waits until the claim of a pod is.
func (r *machineRig) prepared(pod string) {
	r.t.Helper()
	r.wait("the claim of "+pod+" to be prepared", func() error {
		claims, err := r.kube.ResourceV1().ResourceClaims(r.ns).List(r.ctx(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, c := range claims.Items {
			if len(c.OwnerReferences) > 0 && c.OwnerReferences[0].Name == pod && len(c.Status.Devices) > 0 {
				return nil
			}
		}
		return errors.New("its status has no devices")
	})
}

// has is running, and the pod must have its device: there is no moment at which it runs without.
func (r *machineRig) has(pod, link string) {
	r.t.Helper()
	r.running(pod)
	if out := r.exec(pod, "ip", "link", "show", "dev", link); !strings.Contains(out, "UP") {
		r.t.Errorf("pod %s runs, and its %s is: %s", pod, link, out)
	}
}

// killedBeforeStatus: the agent dies after it has set up the device, and before the claim says so.
func (r *machineRig) killedBeforeStatus() {
	g := r.closedGate()
	r.create("killed", "", claiming("sriov-claim"))
	g.wait(r.t)
	if vfs, _ := r.vfs(); !strings.Contains(strings.Join(vfs, "\n"), "vlan 1001") {
		r.t.Errorf("the device is not set up yet: %q", vfs)
	}
	r.signalAgentThere("KILL")
	r.step("the agent was killed")
	g.release()
	r.has("killed", "sriov0")
	r.remove("killed")
}

// killedBeforeRow: the claim's status is written, and the agent, which is stopped before, dies without
// having heard of it.
func (r *machineRig) killedBeforeRow() {
	g := r.closedGate()
	r.create("written", "", claiming("sriov-claim"))
	g.wait(r.t)
	r.signalAgentThere("STOP")
	g.release()
	r.prepared("written")
	r.signalAgentThere("KILL")
	r.step("the agent was killed")
	r.has("written", "sriov0")
	r.remove("written")
}

// hooksHeldUp: the agent does not answer anybody for longer than the runtime waits for a hook.
func (r *machineRig) hooksHeldUp() {
	r.create("held", "", claiming("sriov-claim"))
	r.prepared("held")
	r.signalAgentThere("STOP")
	r.step("the agent is stopped")
	deadline := time.After(15 * time.Second)
	for tick := time.NewTicker(time.Second); ; {
		select {
		case <-tick.C:
			if pod := r.get("held"); pod.Status.Phase == corev1.PodRunning {
				r.has("held", "sriov0") // it was handed over before the signal
			}
			continue
		case <-deadline:
		}
		tick.Stop()
		break
	}
	r.signalAgentThere("CONT")
	r.has("held", "sriov0")
	r.remove("held")
}

// rebooted: the machine loses its power with two claims prepared, of which nothing is left in the
// kernel.
func (r *machineRig) rebooted() {
	r.create("vf", "", claiming("sriov-claim"))
	r.create("dummy", "", claiming("fast"))
	r.has("vf", "sriov0")
	r.has("dummy", "fast0")
	if err := r.machine.Reboot(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	r.step("the machine is up again")
	for pod, link := range map[string]string{"vf": "sriov0", "dummy": "fast0"} {
		r.wait("pod "+pod+" to have its device again", func() error {
			out, err := r.cp.Kubectl(r.ctx(), "", "--namespace="+r.ns, "exec", pod, "--", "ip", "link", "show", "dev", link)
			if err == nil && !strings.Contains(out, "UP") {
				err = errors.New(out)
			}
			return err
		})
	}
	if vfs, _ := r.vfs(); !strings.Contains(strings.Join(vfs, "\n"), "vlan 1001") {
		r.t.Errorf("the PF says %q", vfs)
	}
	r.remove("vf", "dummy")
}

// whenCards runs a command on the machine as soon as a test on the number of cards that the host has
// holds; the number is less by one while a pod has one. Nothing but the shell runs until then.
func (r *machineRig) whenCards(test, command string) {
	r.t.Helper()
	cards := 0
	for _, link := range r.links {
		if !strings.HasPrefix(link, "dummy") {
			cards++
		}
	}
	r.on(fmt.Sprintf(`agent=$(pidof weft-agent); i=0
		while set -- /sys/class/net/*/device; ! [ $# %s %d ]; do i=$((i + 1)); [ $i -lt 3000000 ] || exit 1; done
		%s`, test, cards, command))
}

// killedBeforeStart: the agent dies once the device has left the host, before the pod runs.
func (r *machineRig) killedBeforeStart() {
	r.create("early", "", claiming("sriov-claim"))
	r.whenCards("-lt", "kill -KILL $agent")
	r.step("the agent was killed; the pod is %s", r.get("early").Status.Phase)
	r.has("early", "sriov0")
	r.remove("early")
}

// killedBeforeUnprepare: the agent dies once the device is back in the host, before the kubelet has the
// claim unprepared.
func (r *machineRig) killedBeforeUnprepare() {
	r.create("late", "", claiming("sriov-claim"))
	r.has("late", "sriov0")
	if err := r.kube.CoreV1().Pods(r.ns).Delete(r.t.Context(), "late", metav1.DeleteOptions{}); err != nil {
		r.t.Fatal(err)
	}
	r.whenCards("-ge", "kill -KILL $agent")
	r.step("the agent was killed")
	r.gone("late")
}

// withoutHooks: the runtime's socket is away, for an agent that starts; pods get their devices from the
// CNI plugin all the same.
func (r *machineRig) withoutHooks() {
	r.on("mv /var/run/nri/nri.sock /var/run/nri/away")
	r.signalAgentThere("KILL")
	r.create("unhooked", "", claiming("sriov-claim"))
	r.has("unhooked", "sriov0")
	r.on("mv /var/run/nri/away /var/run/nri/nri.sock")
	r.remove("unhooked")
}

// replaceAgentThere replaces the machine's agent, whose process cannot be seen from here.
func (r *machineRig) replaceAgentThere() {
	r.t.Helper()
	r.deleteAgent()
	r.wait("the machine's agent to be ready", func() error {
		pod, err := r.agentPod()
		if err != nil {
			return err
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue && pod.DeletionTimestamp == nil {
				return nil
			}
		}
		return fmt.Errorf("pod %s is %s", pod.Name, pod.Status.Phase)
	})
}

// hooksAlone: weft-cni is not the node's plugin. The hooks give pods what they claim; when they are held
// up nobody can keep a pod from running without, and that is told, on the pod.
func (r *machineRig) hooksAlone() {
	before := r.setConfig("cni: {enabled: false}\nnetworkDriver: {enabled: true}\n")
	defer func() {
		r.setConfig(before)
		r.replaceAgentThere()
	}()
	r.replaceAgentThere()
	r.on("mv /etc/cni/net.d/00-weft.conflist /run/")
	defer r.on("mv /run/00-weft.conflist /etc/cni/net.d/")

	r.create("hooked", "", claiming("sriov-claim"))
	r.has("hooked", "sriov0")
	if left := r.on("ls /var/lib/weft/attachments 2>/dev/null || true"); left != "" {
		r.t.Errorf("the pod has a record: %s", left)
	}
	r.remove("hooked")
	r.home()

	g := r.closedGate()
	r.create("naked", "", claiming("sriov-claim"))
	g.wait(r.t)
	g.release()
	// Its namespace is there before the hook is called. A link in it has the device's name: what is late
	// cannot be mended.
	r.on(`agent=$(pidof weft-agent); i=0
		while set -- /run/netns/*; ! [ -e "$1" ]; do i=$((i + 1)); [ $i -lt 3000000 ] || exit 1; done
		kill -STOP $agent
		until /usr/bin/ip -n ${1##*/} link add sriov0 type dummy 2>/dev/null; do i=$((i + 1)); [ $i -lt 3000000 ] || exit 1; done`)
	r.running("naked")
	r.step("the pod runs without its device")
	r.signalAgentThere("CONT")
	r.event("naked", "runs without a device that it claimed", "sriov0")
	if n := r.metrics()["weft_driver_pods_without_device_total"]; n < 1 {
		r.t.Errorf("the metric says %v", n)
	}
	r.remove("naked")
}

// restarted: a component of the node ends and starts again below running pods, which are then deleted.
func (r *machineRig) restarted(name string, signal syscall.Signal) {
	r.create("lives", "", claiming("sriov-claim"))
	r.has("lives", "sriov0")
	if err := r.machine.End(r.t.Context(), name, signal); err != nil {
		r.t.Fatal(err)
	}
	if err := r.machine.Start(name); err != nil {
		r.t.Fatal(err)
	}
	if name == lab.Containerd {
		if err := r.machine.RuntimeReady(r.t.Context()); err != nil {
			r.t.Fatal(err)
		}
	}
	r.wait("commands in pods to work again", func() error {
		_, err := r.cp.Kubectl(r.ctx(), "", "--namespace="+r.ns, "exec", "lives", "--", "true")
		return err
	})
	r.step("%s runs again", name)
	r.has("lives", "sriov0")
	r.remove("lives")
	r.create("next", "", claiming("sriov-claim"))
	r.has("next", "sriov0")
	r.remove("next")
}

// serverAway: nobody can be asked for a minute; who runs goes on, and who is new comes later.
func (r *machineRig) serverAway() {
	r.create("before", "", claiming("sriov-claim"))
	r.has("before", "sriov0")
	r.create("during", "", claiming("fast"))
	if err := r.cp.End(r.t.Context(), lab.APIServer, syscall.SIGKILL); err != nil {
		r.t.Fatal(err)
	}
	<-time.After(time.Minute)
	if err := r.cp.Start(lab.APIServer); err != nil {
		r.t.Fatal(err)
	}
	if err := r.cp.Ready(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	r.has("before", "sriov0")
	r.has("during", "fast0")
	r.remove("before", "during")
}

// forced: a pod is deleted without waiting for its node, and its device is the next one's.
func (r *machineRig) forced() {
	for i := range 4 { // all there are
		r.create(fmt.Sprint("f", i), "", claiming("sriov-claim"))
	}
	r.running("f0", "f1", "f2", "f3")
	r.kubectl("delete", "pod", "f0", "--force", "--grace-period=0")
	r.create("next", "", claiming("sriov-claim"))
	r.has("next", "sriov0")
	r.remove("next", "f1", "f2", "f3")
}

// drained: a node whose pods are evicted has its devices back.
func (r *machineRig) drained() {
	r.create("drained", "", claiming("sriov-claim", "fast"))
	r.has("drained", "sriov0")
	r.kubectl("drain", seedNode, "--ignore-daemonsets", "--force", "--delete-emptydir-data", "--timeout=180s")
	r.gone("drained")
	r.kubectl("uncordon", seedNode)
}

// reconfigured: while a pod has a device, pools and their numbers change; the pod keeps what it has.
func (r *machineRig) reconfigured(config string) {
	r.create("keeps", "", claiming("sriov-claim"))
	r.has("keeps", "sriov0")
	lab.Apply(r.t, strings.NewReplacer("count: 3", "count: 1", "fast-net", "slow-net").Replace(withDummies(config)))
	r.wait("the other pool to be offered", func() error {
		out, err := r.cp.Kubectl(r.ctx(), "", "get", "resourceslice", "--output=jsonpath={.items[*].spec.pool.name}")
		if err == nil && (!strings.Contains(out, "slow-net") || strings.Contains(out, "fast-net") || !strings.Contains(out, "sriov-pool")) {
			err = errors.New(out)
		}
		return err
	})
	r.has("keeps", "sriov0")
	r.remove("keeps")
	lab.Apply(r.t, withDummies(config))
	r.wait("the pool to be offered again", func() error {
		out, err := r.cp.Kubectl(r.ctx(), "", "get", "resourceslice", "--output=jsonpath={.items[*].spec.pool.name}")
		if err == nil && !strings.Contains(out, "fast-net") {
			err = errors.New(out)
		}
		return err
	})
}

// full says whether the long parts run as well.
func full(t *testing.T) bool {
	t.Helper()
	if os.Getenv(fullVariable) == "" {
		t.Logf("the long parts are for make e2e-full (%s=1)", fullVariable)
		return false
	}
	return true
}
