// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package devices_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/test/binaries"
)

// node runs the real weft-cni and weft-planner with recording delegates, a directory of
// manifests, a kubelet's checkpoint and a device plugin's files.
type node struct {
	t    *testing.T
	dir  string
	path string
	conf map[string]any
}

func newNode(t *testing.T) *node {
	t.Helper()
	weft, dir := binaries.Weft(t), t.TempDir()
	n := &node{t: t, dir: dir, path: weft + ":" + binaries.Delegate(t, "pa", "pb", "netf")}
	n.conf = map[string]any{
		"cniVersion": "1.0.0", "name": "m", "type": "weft-cni", "manifests": n.file("manifests"), "stateDir": n.file("state"),
		"cniDir": n.file("multus"), "binDir": n.file("bin"), "confDir": n.file("conf"),
		"kubeletDir": n.file("kubelet"), "deviceInfoDir": n.file("devinfo"),
		"delegates": []any{n.plugin("pa", "name", "defnet")},
	}
	write(t, n.file("netns"), "")
	write(t, n.file("kubelet/device-plugins/kubelet_internal_checkpoint"),
		entries(entry("uid-1", "ex.com/vf", `{"1":["0000:03:02.1"],"0":["0000:03:02.0"]}`)))
	for _, id := range []string{"0000:03:02.0", "0000:03:02.1"} {
		write(t, n.file("devinfo/dp/ex.com-vf-"+id+"-device.json"), infoOf(id))
	}
	n.nad("vf", n.plugin("pb", "capabilities", map[string]any{"deviceID": true, "CNIDeviceInfoFile": true}))
	return n
}

func infoOf(id string) string {
	return `{"type":"pci","version":"1.1.0","pci":{"pci-address":"` + id + `"}}`
}

func (n *node) file(name string) string { return filepath.Join(n.dir, name) }

func (n *node) plugin(kind string, pairs ...any) map[string]any {
	conf := map[string]any{"cniVersion": "1.0.0", "type": kind, "log": n.file("calls")}
	for i := 0; i < len(pairs); i += 2 {
		conf[pairs[i].(string)] = pairs[i+1]
	}
	return conf
}

func (n *node) json(v any) string {
	n.t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		n.t.Fatal(err)
	}
	return string(b)
}

// nad writes the NAD default/name, which draws from ex.com/vf.
func (n *node) nad(name string, conf map[string]any) {
	n.t.Helper()
	write(n.t, n.file("manifests/nad-"+name+".json"), n.json(map[string]any{
		"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
		"metadata": map[string]any{
			"namespace": "default", "name": name,
			"annotations": map[string]string{"k8s.v1.cni.cncf.io/resourceName": "ex.com/vf"},
		},
		"spec": map[string]any{"config": n.json(conf)},
	}))
}

func (n *node) pod(networks string) {
	n.t.Helper()
	write(n.t, n.file("manifests/pod.json"), n.json(map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{
			"namespace": "default", "name": "pod-a",
			"annotations": map[string]string{"k8s.v1.cni.cncf.io/networks": networks},
		},
	}))
}

// run gives the CNI error's code (0: success) and stdout.
func (n *node) run(verb string) (code int, stdout string) {
	n.t.Helper()
	weft, _, _ := strings.Cut(n.path, ":")
	cmd := exec.CommandContext(n.t.Context(), filepath.Join(weft, "weft-cni"))
	cmd.Env = []string{
		"CNI_COMMAND=" + verb, "CNI_CONTAINERID=cid1", "CNI_IFNAME=eth0", "CNI_NETNS=" + n.file("netns"), "CNI_PATH=" + n.path,
		"CNI_ARGS=K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod-a;K8S_POD_UID=uid-1",
	}
	var out, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(n.json(n.conf)), &out, &stderr
	err := cmd.Run()
	if err == nil {
		return 0, out.String()
	}
	var e struct{ Code int }
	if _, ok := errors.AsType[*exec.ExitError](err); !ok || json.Unmarshal(out.Bytes(), &e) != nil {
		n.t.Fatalf("%s: %v\n%s\n%s", verb, err, out.String(), stderr.String())
	}
	return e.Code, out.String()
}

func (n *node) ok(verb string) string {
	n.t.Helper()
	code, out := n.run(verb)
	if code != 0 {
		n.t.Fatalf("%s: %s", verb, out)
	}
	return out
}

// refused says that ADD answers that code and words, and that no delegate was called.
func (n *node) refused(code int, words string) {
	n.t.Helper()
	got, out := n.run("ADD")
	if got != code || !strings.Contains(out, words) {
		n.t.Errorf("ADD answers %d %s, want %d with %q", got, out, code, words)
	}
	if calls := n.calls(); len(calls) > 0 {
		n.t.Errorf("delegates were called: %+v", calls)
	}
}

// call is what a delegate was told about its device, by plugin, command and interface.
type call struct {
	What                 string
	DeviceID, PCIBusID   string
	Capability, InfoFile string // runtimeConfig's deviceID and CNIDeviceInfoFile
}

// calls are the delegates' calls since the last look.
func (n *node) calls() []call {
	n.t.Helper()
	b, err := os.ReadFile(n.file("calls"))
	if err != nil && !os.IsNotExist(err) {
		n.t.Fatal(err)
	}
	var all []call
	for line := range strings.Lines(string(b)) {
		var e struct {
			Command, IfName, Type, Stdin string
			End                          bool
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			n.t.Fatal(err)
		}
		if e.End {
			continue
		}
		var conf struct {
			DeviceID      string `json:"deviceID"`
			PCIBusID      string `json:"pciBusID"`
			RuntimeConfig struct {
				DeviceID          string `json:"deviceID"`
				CNIDeviceInfoFile string
			} `json:"runtimeConfig"`
		}
		if err := json.Unmarshal([]byte(e.Stdin), &conf); err != nil {
			n.t.Fatal(err)
		}
		all = append(all, call{
			What: e.Type + " " + e.Command + " " + e.IfName, DeviceID: conf.DeviceID, PCIBusID: conf.PCIBusID,
			Capability: conf.RuntimeConfig.DeviceID, InfoFile: conf.RuntimeConfig.CNIDeviceInfoFile,
		})
	}
	if err := os.Remove(n.file("calls")); err != nil && !os.IsNotExist(err) {
		n.t.Fatal(err)
	}
	return all
}

// drawn is the call of a delegate that has the device.
func (n *node) drawn(what, network, id string) call {
	ifName := what[strings.LastIndex(what, " ")+1:]
	return call{what, id, id, id, n.file("devinfo/cni/default-" + network + "-cid1_" + ifName)}
}

// B29 and B35: each network's delegates are told its device, the device plugin's file is
// at hand while the pod lives, and DEL is as ADD was, without kubelet and manifests.
func TestDevicesReachDelegates(t *testing.T) {
	n := newNode(t)
	n.pod("vf,vf")
	out := n.ok("ADD")
	want := []call{{What: "pa ADD eth0"}, n.drawn("pb ADD net1", "vf", "0000:03:02.0"), n.drawn("pb ADD net2", "vf", "0000:03:02.1")}
	if diff := cmp.Diff(want, n.calls()); diff != "" {
		t.Errorf("ADD (-want +got):\n%s", diff)
	}
	for file, id := range map[string]string{"default-vf-cid1_net1": "0000:03:02.0", "default-vf-cid1_net2": "0000:03:02.1"} {
		if got := fileText(t, n.file("devinfo/cni/"+file)); got != infoOf(id) {
			t.Errorf("%s has %q", file, got)
		}
	}
	if again := n.ok("ADD"); again != out || len(n.calls()) > 0 {
		t.Errorf("repeated ADD: %s", again)
	}
	for _, dir := range []string{"kubelet", "manifests"} {
		if err := os.RemoveAll(n.file(dir)); err != nil {
			t.Fatal(err)
		}
	}
	n.ok("DEL")
	want = []call{n.drawn("pb DEL net2", "vf", "0000:03:02.1"), n.drawn("pb DEL net1", "vf", "0000:03:02.0"), {What: "pa DEL eth0"}}
	if diff := cmp.Diff(want, n.calls()); diff != "" {
		t.Errorf("DEL (-want +got):\n%s", diff)
	}
	if left := list(t, n.file("devinfo/cni")); len(left) > 0 {
		t.Errorf("device-info files are left: %q", left)
	}
}

// B30, and every other way in which the devices are not there: nothing is run.
func TestTooFewDevices(t *testing.T) {
	n := newNode(t)
	n.pod("vf,vf,vf")
	n.refused(7, "has 2 for 3 networks")
	n.pod("vf")
	write(t, n.file("kubelet/device-plugins/kubelet_internal_checkpoint"), entries()[:20])
	n.refused(11, "kubelet_internal_checkpoint")
	delete(n.conf, "kubeletDir") // not written: another kubelet's devices are not this pod's
	n.refused(7, "has 0 for 1 networks")
}

func TestBrokenDeviceInfo(t *testing.T) {
	n := newNode(t)
	n.pod("vf")
	write(t, n.file("devinfo/dp/ex.com-vf-0000:03:02.0-device.json"), `{"type":"pci"}`)
	n.refused(7, "ex.com-vf-0000:03:02.0-device.json: version: is missing")
	if names := list(t, n.file("devinfo")); !slices.Equal(names, []string{"dp"}) {
		t.Errorf("files %q", names)
	}
}

// A failed ADD leaves no device-info file, neither of the network that failed nor of others.
func TestFailedAddRemovesDeviceInfo(t *testing.T) {
	n := newNode(t)
	n.nad("f", n.plugin("netf", "capabilities", map[string]any{"CNIDeviceInfoFile": true},
		"fail", map[string]any{"ADD": map[string]any{"code": 11, "msg": "no"}}))
	n.pod("vf,f")
	if code, out := n.run("ADD"); code != 11 || !strings.Contains(out, "no") {
		t.Errorf("ADD answers %d %s", code, out)
	}
	if n := len(n.calls()); n != 6 {
		t.Errorf("%d calls, want 3 ADDs and 3 DELs", n)
	}
	if left := list(t, n.file("devinfo/cni")); len(left) > 0 {
		t.Errorf("device-info files are left: %q", left)
	}
}
