// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/test/lab"
)

// runtimeVariable makes the test binary a container runtime of the node: it reads a runtimeCall
// from there and makes it through libcni.
const runtimeVariable = "WEFT_LAB_RUNTIME"

// runtimeCall is one call of a container runtime.
type runtimeCall struct {
	Verb        string // LIST, ADD, CHECK, STATUS or GC
	ContainerID string
	NetNS       string
	Pod         [3]string // of an ADD: namespace, name, UID
	Valid       []string  // container IDs, for GC
}

// callRuntime makes the call with the node's published configuration and the cache that
// containerd has.
func callRuntime(call string) error {
	const confDir, ifName = "/etc/cni/net.d", "eth0"
	var c runtimeCall
	if err := json.Unmarshal([]byte(call), &c); err != nil {
		return err
	}
	files, err := libcni.ConfFiles(confDir, []string{".conflist"})
	if err != nil {
		return err
	}
	if slices.Sort(files); len(files) == 0 {
		return fmt.Errorf("no configuration in %s", confDir)
	}
	list, err := libcni.ConfListFromFile(files[0])
	if err != nil {
		return err
	}
	ctx, cni := context.Background(), libcni.NewCNIConfig([]string{"/opt/cni/bin"}, nil)
	switch c.Verb {
	case "LIST":
		all, err := cni.GetCachedAttachments("")
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(all)
	case "ADD":
		result, err := cni.AddNetworkList(ctx, list, &libcni.RuntimeConf{
			ContainerID: c.ContainerID, NetNS: c.NetNS, IfName: ifName,
			Args: [][2]string{
				{"IgnoreUnknown", "1"},
				{"K8S_POD_NAMESPACE", c.Pod[0]},
				{"K8S_POD_NAME", c.Pod[1]},
				{"K8S_POD_UID", c.Pod[2]},
				{"K8S_POD_INFRA_CONTAINER_ID", c.ContainerID},
			},
		})
		if err != nil {
			return err
		}
		return result.PrintTo(os.Stdout)
	case "CHECK":
		all, err := cni.GetCachedAttachments(c.ContainerID)
		if err != nil {
			return err
		}
		// containerd has lo there as well.
		i := slices.IndexFunc(all, func(a *libcni.NetworkAttachment) bool { return a.Network == list.Name })
		if i < 0 {
			return fmt.Errorf("container %s is not attached", c.ContainerID)
		}
		a := all[i]
		return cni.CheckNetworkList(ctx, list, &libcni.RuntimeConf{
			ContainerID: a.ContainerID, NetNS: a.NetNS, IfName: a.IfName, Args: a.CniArgs, CapabilityArgs: a.CapabilityArgs,
		})
	case "STATUS":
		return cni.GetStatusNetworkList(ctx, list)
	case "GC":
		valid := []types.GCAttachment{}
		for _, id := range c.Valid {
			valid = append(valid, types.GCAttachment{ContainerID: id, IfName: ifName})
		}
		return cni.GCNetworkList(ctx, list, &libcni.GCArgs{ValidAttachments: valid})
	}
	return fmt.Errorf("no verb %q", c.Verb)
}

// runtime makes a call on the node; the error has what libcni said.
func (r *rig) runtime(c runtimeCall) (string, error) {
	r.t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		r.t.Fatal(err)
	}
	// The program need not be a file of the node: the kernel knows it as that of the caller.
	cmd := exec.CommandContext(r.ctx(), "/proc/self/exe")
	cmd.Env, cmd.Dir = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", runtimeVariable + "=" + string(text)}, "/"
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := r.node.StartCommand(cmd); err != nil {
		r.t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", c.Verb, err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// containers are what containerd has attached: pod name to container ID.
func (r *rig) containers() map[string]string {
	r.t.Helper()
	out, err := r.runtime(runtimeCall{Verb: "LIST"})
	if err != nil {
		r.t.Fatal(err)
	}
	var all []libcni.NetworkAttachment
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		r.t.Fatal(err)
	}
	byPod := map[string]string{}
	for _, a := range all {
		for _, arg := range a.CniArgs {
			if arg[0] == "K8S_POD_NAME" {
				byPod[arg[1]] = a.ContainerID
			}
		}
	}
	return byPod
}

// CHECK finds what is wrong with a running pod and nothing else.
func TestCheckAndStatus(t *testing.T) {
	r := newRig(t)
	r.nad("bridge", bridgeConfig)
	r.nad("data", dataConfig)
	r.create("one", "bridge, data")
	pod := r.running("one")
	check := runtimeCall{Verb: "CHECK", ContainerID: r.containers()["one"]}
	if _, err := r.runtime(check); err != nil {
		t.Fatal("a pod that is well: ", err)
	}
	address := r.address(pod, "net1", "10.55.0.")
	r.inNetwork(pod, "ip", "address", "flush", "dev", "net1")
	if _, err := r.runtime(check); err == nil || !containsAll(err.Error(), []string{r.ns + "/bridge", "net1", address}) {
		t.Errorf("an interface without its address: %v", err)
	}
	r.inNetwork(pod, "ip", "address", "add", address+"/24", "dev", "net1")
	if _, err := r.runtime(check); err != nil {
		t.Error("the address is back: ", err)
	}
	r.inNetwork(pod, "ip", "link", "delete", "net2")
	if _, err := r.runtime(check); err == nil || !containsAll(err.Error(), []string{r.ns + "/data", "net2"}) {
		t.Errorf("without an interface: %v", err)
	}
	r.step("CHECK tells what is wrong")

	if _, err := r.runtime(runtimeCall{Verb: "STATUS"}); err != nil {
		t.Error("a node that is well: ", err)
	}
	if _, err := r.node.Exec(t.Context(), "mv", lab.PrimaryConf, "/tmp/primary"); err != nil {
		t.Fatal(err)
	}
	_, errAway := r.runtime(runtimeCall{Verb: "STATUS"})
	if _, err := r.node.Exec(t.Context(), "mv", "/tmp/primary", lab.PrimaryConf); err != nil {
		t.Fatal(err)
	}
	if errAway == nil || !strings.Contains(errAway.Error(), lab.PrimaryConf) {
		t.Errorf("without the primary configuration: %v", errAway)
	}
	if _, err := r.runtime(runtimeCall{Verb: "STATUS"}); err != nil {
		t.Error("the primary configuration is back: ", err)
	}
	r.step("STATUS tells that the primary configuration is away")
	r.remove("one")
}

// GC takes what a runtime forgot, and nothing of what it names.
func TestCollect(t *testing.T) {
	r := newRig(t)
	r.nad("bridge", bridgeConfig)
	r.nad("data", dataConfig)
	r.create("one", "bridge, data")
	pod := r.running("one")
	links, leases := r.links(pod), r.leases()
	id := r.containers()["one"]

	// A runtime that lost its memory of a sandbox after its namespace was gone.
	const forgotten = "e2e-forgotten"
	for _, args := range [][]string{
		{"ip", "netns", "add", forgotten},
		{"rm", "/var/lib/cni/results/weft-" + forgotten + "-eth0"},
		{"ip", "netns", "delete", forgotten},
	} {
		if args[0] == "rm" {
			add := runtimeCall{Verb: "ADD", ContainerID: forgotten, NetNS: "/var/run/netns/" + forgotten, Pod: [3]string{r.ns, "one", string(pod.UID)}}
			if _, err := r.runtime(add); err != nil {
				t.Fatal(err)
			}
			if len(r.leases()) != 2*len(leases) {
				t.Fatalf("leases %q: this would show nothing", r.leases())
			}
		}
		if _, err := r.node.Exec(t.Context(), args...); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.runtime(runtimeCall{Verb: "GC", Valid: []string{id, forgotten}}); err != nil || len(r.leases()) != 2*len(leases) {
		t.Errorf("GC of nothing: %v; leases %q", err, r.leases())
	}
	if _, err := r.runtime(runtimeCall{Verb: "GC", Valid: []string{id}}); err != nil {
		t.Error(err)
	}
	sorted := cmpopts.SortSlices(strings.Compare)
	if d := cmp.Diff(leases, r.leases(), sorted); d != "" {
		t.Errorf("leases after GC (-before +after):\n%s", d)
	}
	if left := r.glob("/var/lib/weft/attachments/" + forgotten + "*"); left != "" {
		t.Errorf("records are left: %s", left)
	}
	if d := cmp.Diff(links, r.links(pod)); d != "" {
		t.Errorf("a pod that was named (-before +after):\n%s", d)
	}
	if _, err := r.runtime(runtimeCall{Verb: "CHECK", ContainerID: id}); err != nil {
		t.Error("a pod that was named: ", err)
	}
	r.remove("one")
}

// glob lists files of the node.
func (r *rig) glob(pattern string) string {
	r.t.Helper()
	out, err := r.node.Exec(r.ctx(), "sh", "-c", "ls -d "+pattern+" 2>/dev/null || true")
	if err != nil {
		r.t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// What weft says on the node is true: of pods what the kernel has, of a plan what will be, of
// the node what is wrong with it.
func TestCommandLine(t *testing.T) {
	r := newRig(t)
	r.nad("bridge", bridgeConfig)
	r.nad("data", dataConfig)
	r.create("one", "bridge, data")
	pod := r.running("one")
	r.settled()
	weft := filepath.Join(r.mountImage(), "weft")

	r.checkGet(weft, pod)
	r.step("weft get is right")
	r.checkExplain(weft)
	r.step("weft explain is right")
	r.checkDoctor(weft)
	r.step("weft doctor is right")
	r.remove("one")
}

// weft runs weft on the node and decodes its JSON; it returns its exit code.
func (r *rig) weft(into any, args ...string) int {
	r.t.Helper()
	cmd := r.node.Command(r.ctx(), append(args, "--output=json")...)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := r.node.StartCommand(cmd); err != nil {
		r.t.Fatal(err)
	}
	err := cmd.Wait()
	if errJSON := json.Unmarshal([]byte(out.String()), into); errJSON != nil {
		r.t.Fatalf("%s: %v, %v: %s%s", strings.Join(args, " "), err, errJSON, out.String(), errs.String())
	}
	return cmd.ProcessState.ExitCode()
}

func (r *rig) checkGet(weft string, pod *corev1.Pod) {
	r.t.Helper()
	var pods struct {
		Pods []struct {
			Name, UID string
			Sandboxes []struct {
				ContainerID string
				Finished    bool
				Attachments []struct {
					Network, Interface, MAC, Phase string
					Addresses                      []string
				}
			}
			NetworkStatus struct{ State string }
		}
	}
	if code := r.weft(&pods, weft, "get", "pods", "--namespace="+r.ns); code != 0 || len(pods.Pods) != 1 || len(pods.Pods[0].Sandboxes) != 1 {
		r.t.Fatalf("weft get pods: exit code %d, %+v", code, pods)
	}
	got := pods.Pods[0]
	if got.Name != pod.Name || got.UID != string(pod.UID) || got.NetworkStatus.State != "written" || !got.Sandboxes[0].Finished ||
		got.Sandboxes[0].ContainerID != r.containers()[pod.Name] {
		r.t.Errorf("weft get pods: %+v", got)
	}
	links := r.links(pod)
	if len(got.Sandboxes[0].Attachments) != len(links) {
		r.t.Errorf("weft get pods shows %d attachments, the kernel has %d", len(got.Sandboxes[0].Attachments), len(links))
	}
	for _, a := range got.Sandboxes[0].Attachments {
		l := links[a.Interface]
		if d := cmp.Diff(l.global(), a.Addresses); d != "" || a.MAC != l.MAC || a.Phase != "done" {
			r.t.Errorf("weft get pods: %+v; the kernel has %+v", a, l)
		}
	}
	var node struct {
		State struct {
			Name  string
			Ready bool
			Conf  struct {
				Path, Primary string
				Published     bool
			}
			Counts struct{ Records, HalfDone, Dead, Quarantined, PendingStatus int }
		}
	}
	code := r.weft(&node, weft, "get", "node")
	s := node.State
	if code != 0 || s.Name != r.node.Name || !s.Ready || !s.Conf.Published || s.Conf.Primary != lab.PrimaryConf ||
		s.Counts != (struct{ Records, HalfDone, Dead, Quarantined, PendingStatus int }{Records: 1}) {
		r.t.Errorf("weft get node: exit code %d, %+v", code, s)
	}
	var networks struct {
		Networks []struct {
			Name, Problem string
			Pods          int
		}
	}
	r.weft(&networks, weft, "get", "networks", "--namespace="+r.ns)
	for _, n := range networks.Networks {
		if n.Pods != 1 || n.Problem != "" {
			r.t.Errorf("weft get networks: %+v", n)
		}
	}
	if len(networks.Networks) != 2 {
		r.t.Errorf("weft get networks: %+v", networks)
	}
}

func (r *rig) checkExplain(weft string) {
	r.t.Helper()
	type plan struct {
		Pods []struct {
			OK          bool
			Attachments []struct{ Interface, Network string }
			Faults      []struct{ Text, Field, Object string }
		}
	}
	var well, ill plan
	code := r.weft(&well, weft, "explain", "pod", r.ns+"/one")
	if code != 0 || len(well.Pods) != 1 || !well.Pods[0].OK || len(well.Pods[0].Attachments) != 3 ||
		well.Pods[0].Attachments[1].Network != r.ns+"/bridge" || well.Pods[0].Attachments[2].Interface != "net2" {
		r.t.Errorf("weft explain: exit code %d, %+v", code, well)
	}
	r.create("waits", "bridge, absent")
	r.event("waits", r.ns+"/absent") // so the agent knows the pod
	code = r.weft(&ill, weft, "explain", "pod", r.ns+"/waits")
	if code != 1 || len(ill.Pods) != 1 || ill.Pods[0].OK || len(ill.Pods[0].Faults) == 0 || !strings.Contains(fmt.Sprint(ill.Pods[0].Faults), r.ns+"/absent") {
		r.t.Errorf("weft explain of a pod that waits: exit code %d, %+v", code, ill)
	}
	r.remove("waits")
}

// checkDoctor compares what the doctor says of the node as it is, and with a fault made by hand.
func (r *rig) checkDoctor(weft string) {
	r.t.Helper()
	type checks struct {
		Checks []struct{ Check, Result, Text, Do string }
	}
	var well, ill checks
	code := r.weft(&well, weft, "doctor")
	for _, c := range well.Checks {
		if c.Result == "fault" || c.Result == "warn" {
			r.t.Errorf("weft doctor of a node that is well: %+v", c)
		}
	}
	if code != 0 || len(well.Checks) < 10 {
		r.t.Errorf("weft doctor of a node that is well: exit code %d, %d checks", code, len(well.Checks))
	}
	for _, args := range [][]string{{"mv", "/opt/cni/bin/macvlan", "/tmp/"}, nil, {"mv", "/tmp/macvlan", "/opt/cni/bin/"}} {
		if args == nil {
			code = r.weft(&ill, weft, "doctor")
			continue
		}
		if _, err := r.node.Exec(r.ctx(), args...); err != nil {
			r.t.Fatal(err)
		}
	}
	var faults []string
	for _, c := range ill.Checks {
		if c.Result == "fault" {
			faults = append(faults, c.Check+": "+c.Text)
		}
	}
	if code != 1 || len(faults) != 1 || !strings.HasPrefix(faults[0], "plugins: ") || !strings.Contains(faults[0], "macvlan") {
		r.t.Errorf("weft doctor of a node without macvlan: exit code %d, faults %q", code, faults)
	}
}
