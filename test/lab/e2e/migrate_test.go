// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/weftnet/weft/test/lab"
)

// Where Multus' things are on a node.
const (
	multusConf       = confDir + "/00-multus.conf"
	multusDir        = "/var/lib/cni/multus"
	multusKubeconfig = confDir + "/multus.d/multus.kubeconfig"
)

// multusAccount is what Multus may do.
const multusAccount = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: multus, namespace: NAMESPACE}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: multus}
rules:
- {apiGroups: [k8s.cni.cncf.io], resources: [network-attachment-definitions], verbs: [get, list, watch]}
- {apiGroups: [""], resources: [pods], verbs: [get, list, watch, update]}
- {apiGroups: [""], resources: [pods/status], verbs: [get, update]}
- {apiGroups: ["", events.k8s.io], resources: [events], verbs: [create, patch, update]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: multus}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: multus}
subjects:
- {kind: ServiceAccount, name: multus, namespace: NAMESPACE}
`

// multusPlugin stands in for Multus: it attaches each pod to the pod network and to a second one by
// the real plugins, keeps of both what Multus and libcni keep, in their formats, and deletes
// a pod by that alone. Which networks these are stands in files beside its records.
const multusPlugin = `#!/bin/sh
PATH=/usr/sbin:/usr/bin:/sbin:/bin
dir=/var/lib/cni/multus conf=/var/lib/cni/multus-of-test
encode() { base64 -w0 2>/dev/null || busybox base64 -w0; }
call() { CNI_COMMAND=$1 CNI_IFNAME=$2 /opt/cni/bin/bridge < $3; }
cached() { # network, interface, conf, result
	printf '{"kind":"cniCacheV1","containerId":"%s","config":"%s","ifName":"%s","networkName":"%s","netns":"%s","cniArgs":[%s],"result":%s}' \
		"$CNI_CONTAINERID" "$(encode < $3)" "$2" "$1" "$CNI_NETNS" '["IgnoreUnknown","1"]' "$(cat $4)" > "$dir/results/$1-$CNI_CONTAINERID-$2"
}
element() { # name in network-status, conf
	printf '{"Conf":{"cniVersion":"1.0.0","type":"bridge"},"ConfList":{},"Name":"%s","IsFilterV4Gateway":false,"IsFilterV6Gateway":false,"Bytes":"%s"}' "$1" "$(encode < $2)"
}
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["0.3.1","0.4.0","1.0.0"]}' ;;
ADD)
	umask 077; mkdir -p $dir/results
	printf '[%s,%s]' "$(element lab $conf/list)" "$(element "$(cat $conf/name)" $conf/second)" > $dir/$CNI_CONTAINERID
	call ADD eth0 $conf/first > /tmp/eth0-$$ || { cat /tmp/eth0-$$; exit 1; }
	call ADD net1 $conf/second > /tmp/net1-$$ || { cat /tmp/net1-$$; exit 1; }
	cached lab eth0 $conf/list /tmp/eth0-$$; cached bridge net1 $conf/second /tmp/net1-$$
	cat /tmp/eth0-$$; rm /tmp/eth0-$$ /tmp/net1-$$ ;;
DEL)
	[ -f $dir/$CNI_CONTAINERID ] || exit 0
	call DEL net1 $conf/second && call DEL eth0 $conf/first && rm -f $dir/results/*-$CNI_CONTAINERID-* $dir/$CNI_CONTAINERID ;;
esac
`

// gcPlugin attaches nothing and writes down what GC tells it.
const gcPlugin = `#!/bin/sh
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.1.0","supportedVersions":["1.0.0","1.1.0"]}' ;;
ADD) echo '{"cniVersion":"1.1.0"}' ;;
GC) cat > /var/lib/cni/told ;;
esac
`

// A node changes from Multus to Weft as docs/migrate-from-multus.md says, and back, while pods run:
// those that Multus attached go on, keep their addresses through GC, and are deleted without a
// trace, by Weft and by Multus; new ones are Weft's; it does not go before these have.
func TestChangeOver(t *testing.T) { changesOver(t, false) }

// TestChangeOverMultus is the same with the real Multus, which writes what it writes.
func TestChangeOverMultus(t *testing.T) { changesOver(t, true) }

func changesOver(t *testing.T, realOne bool) {
	t.Helper()
	r := newRig(t)
	m := changeOver{rig: r, weft: r.mountImage(), real: realOne}
	defer m.undo()
	m.multus()
	r.create("old-a", "bridge")
	r.create("old-b", "bridge")
	oldB := r.running("old-a", "old-b")
	oldA := r.get("old-a")
	for _, pod := range []*corev1.Pod{oldA, oldB} {
		r.hasNetworks(pod, 1)
		m.status(pod)
		m.keepsStatus(pod)
	}
	if err := r.say(oldA, oldB, r.address(oldB, "net1", "10.93.0."), 10); err != nil {
		t.Fatal(err)
	}
	r.step("Multus has attached two pods")
	m.doctor("before")

	before := r.leases()
	m.change()
	for _, pod := range []*corev1.Pod{oldA, oldB} {
		r.hasNetworks(pod, 1)
	}
	if err := r.say(oldA, oldB, r.address(oldB, "net1", "10.93.0."), 10); err != nil {
		t.Error("pods of Multus, with Weft: ", err)
	}
	m.doctor("after")
	r.nad("told", `{"cniVersion":"1.1.0","name":"bridge","type":"told"}`)
	r.create("new", "bridge,told")
	fresh := r.running("new")
	r.wait("network-status of the new pod", func() error {
		if all := r.status(r.get("new")); len(all) != 3 || len(all[1].IPs) == 0 {
			return fmt.Errorf("it is %+v", all)
		}
		return nil
	})
	if address := r.address(fresh, "net1", "10.93.0."); slices.Contains(before, "bridge/"+address) {
		t.Errorf("the new pod has %s, which is another's", address)
	}
	if err := r.say(fresh, oldA, r.address(oldA, "net1", "10.93.0."), 10); err != nil {
		t.Error("from a pod of Weft to one of Multus: ", err)
	}
	r.step("a pod of Weft's runs beside them")
	m.collect()
	m.keepsStatus(oldA)

	id := r.containers()["old-a"]
	r.remove("old-a")
	r.wait("nothing to be left of a pod of Multus that Weft deleted", func() error { return r.leftovers(r.get("bare"), r.get("old-b"), r.get("new")) })
	if left := r.glob(multusDir + "/" + id + " " + multusDir + "/results/*" + id + "*"); left != "" {
		t.Errorf("left of Multus' records: %s", left)
	}
	r.step("Weft has deleted a pod of Multus'")
	m.back()
	r.hasNetworks(oldB, 1)
	r.remove("old-b", "new")
	r.wait("nothing to be left of a pod of Multus that Multus deleted", func() error { return r.leftovers(r.get("bare")) })
	r.step("Multus has deleted its own")
}

// changeOver is the test's node.
type changeOver struct {
	*rig
	weft string // where Weft's image is mounted
	real bool   // no stand-in
}

// multus makes the node one that has Multus and never had Weft. A pod is there from before both.
func (m *changeOver) multus() {
	m.t.Helper()
	m.noAgents()
	m.wait("nothing is attached", func() error { // the runtime may still repeat a DEL of the test before
		if out, status := m.try(m.weft+"/weft-agent", "uninstall"); status != 0 {
			return fmt.Errorf("uninstall: status %d: %s", status, out)
		}
		return nil
	})
	m.nodeReady(true)
	m.create("bare", "")
	m.running("bare")
	list := m.file(lab.PrimaryConf)
	var primary struct{ Plugins []map[string]any }
	if err := json.Unmarshal([]byte(list), &primary); err != nil {
		m.t.Fatal(err)
	}
	first := primary.Plugins[0]
	first["name"], first["cniVersion"] = "lab", "1.0.0"
	const second = `{"cniVersion":"1.0.0","name":"bridge","type":"bridge","bridge":"chg0","ipam":{"type":"host-local","subnet":"10.93.0.0/24"}}`
	m.nad("bridge", second)
	m.shell("mkdir -p " + multusDir + "-of-test")
	for path, content := range map[string]string{
		multusDir + "-of-test/list": list, multusDir + "-of-test/first": m.json(first), multusDir + "-of-test/second": second,
		multusDir + "-of-test/name": m.ns + "/bridge", "/opt/cni/bin/multus": multusPlugin, "/opt/cni/bin/told": gcPlugin,
	} {
		m.write(path, content)
	}
	m.shell("chmod 755 /opt/cni/bin/multus /opt/cni/bin/told")
	if m.real {
		m.installMultus()
	}
	m.callMultus(list)
}

// installMultus puts the real Multus in the stand-in's place, with an account that may read pods
// and networks and write statuses.
func (m *changeOver) installMultus() {
	m.t.Helper()
	program, err := m.cp.Multus(m.t.Context())
	if err != nil {
		m.t.Fatal(err)
	}
	lab.Apply(m.t, strings.ReplaceAll(multusAccount, "NAMESPACE", m.ns))
	m.t.Cleanup(func() {
		if _, err := m.cp.Kubectl(m.ctx(), "", "delete", "--ignore-not-found", "clusterrole/multus", "clusterrolebinding/multus"); err != nil {
			m.t.Error(err)
		}
	})
	account := api.NewConfig()
	account.Clusters["lab"] = &api.Cluster{Server: m.cp.InsideURL(), CertificateAuthorityData: m.cp.Config().CAData}
	account.AuthInfos["multus"] = &api.AuthInfo{Token: strings.TrimSpace(m.kubectl("create", "token", "multus"))}
	account.Contexts["multus"] = &api.Context{Cluster: "lab", AuthInfo: "multus"}
	account.CurrentContext = "multus"
	kubeconfig, err := clientcmd.Write(*account)
	if err != nil {
		m.t.Fatal(err)
	}
	m.shell("cp " + program + " /opt/cni/bin/multus && chmod 755 /opt/cni/bin/multus && mkdir -p " + filepath.Dir(multusKubeconfig))
	m.write(multusKubeconfig, string(kubeconfig))
}

// callMultus writes the configuration that thin Multus has for the pod network.
func (m *changeOver) callMultus(list string) {
	m.t.Helper()
	m.write(multusConf, m.json(map[string]any{
		"cniVersion": "1.0.0", "name": "multus-cni-network", "type": "multus", "cniDir": multusDir, "binDir": "/opt/cni/bin",
		"capabilities": map[string]bool{"portMappings": true}, "kubeconfig": multusKubeconfig,
		"delegates": []json.RawMessage{json.RawMessage(list)},
	}))
	m.nodeReady(true)
}

func (m *changeOver) json(v any) string {
	m.t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		m.t.Fatal(err)
	}
	return string(b)
}

// status writes network-status as Multus does, where it does not.
func (m *changeOver) status(pod *corev1.Pod) {
	m.t.Helper()
	if m.real {
		return
	}
	m.annotate(pod.Name, statusAnnotation, m.json([]map[string]any{
		{"name": "lab", "interface": "eth0", "ips": []string{pod.Status.PodIP}, "default": true, "dns": struct{}{}},
		{"name": m.ns + "/bridge", "interface": "net1", "ips": []string{m.address(pod, "net1", "10.93.0.")}, "dns": struct{}{}},
	}))
}

// keepsStatus checks that what Multus wrote of a pod stands.
func (m *changeOver) keepsStatus(pod *corev1.Pod) {
	m.t.Helper()
	all := m.rig.status(m.get(pod.Name))
	if len(all) != 2 || all[1].Name != m.ns+"/bridge" || !slices.Equal(all[1].IPs, []string{m.address(pod, "net1", "10.93.0.")}) {
		m.t.Errorf("network-status of pod %s, which Multus wrote, became %+v", pod.Name, all)
	}
}

// doctor checks that nothing stands in the way, and that it sees both pods of Multus.
func (m *changeOver) doctor(when string) {
	m.t.Helper()
	var all struct {
		Checks []struct{ Check, Result, Text string }
	}
	code := m.rig.weft(&all, m.weft+"/weft", "doctor", "--migrate")
	records := false
	for _, c := range all.Checks {
		if c.Result == "fault" || c.Result == "warn" {
			m.t.Errorf("weft doctor --migrate %s the change: %+v", when, c)
		}
		records = records || c.Check == "multus records" && strings.HasPrefix(c.Text, "2 files in "+multusDir+", 2 of them readable")
	}
	if code != 0 || !records {
		m.t.Errorf("weft doctor --migrate %s the change: exit code %d, %+v", when, code, all)
	}
}

// change installs Weft and takes Multus' configuration away as soon as Weft's is there, so that
// no pod is attached by the pod network alone.
func (m *changeOver) change() {
	m.t.Helper()
	done := make(chan error, 1)
	go func() { done <- m.cp.InstallWeft(m.ctx()) }()
	m.wait("Weft's configuration", func() error {
		_, err := m.node.Exec(m.t.Context(), "test", "-s", publishedConf)
		return err
	})
	m.shell("rm " + multusConf)
	if err := <-done; err != nil {
		m.t.Fatal(err)
	}
	m.agentReady()
	m.nodeReady(true)
	m.step("Weft is installed, and Multus' configuration is gone")
}

// collect has the runtime call GC, with the list that it has.
func (m *changeOver) collect() {
	m.t.Helper()
	leases, ids := m.leases(), m.containers()
	names := []string{"bare", "new", "old-a", "old-b"}
	var valid []string
	for _, name := range names {
		valid = append(valid, ids[name])
	}
	if slices.Contains(valid, "") {
		m.t.Fatalf("the runtime has attached %v, want %q among them", ids, names)
	}
	if _, err := m.runtime(runtimeCall{Verb: "GC", Valid: valid}); err != nil {
		m.t.Error("GC: ", err)
	}
	if d := cmp.Diff(leases, m.leases(), cmpopts.SortSlices(strings.Compare)); d != "" {
		m.t.Errorf("leases after GC (-before +after):\n%s", d)
	}
	var told struct {
		Valid []struct{ ContainerID, IfName string } `json:"cni.dev/valid-attachments"`
	}
	if err := json.Unmarshal([]byte(m.file("/var/lib/cni/told")), &told); err != nil {
		m.t.Fatal(err)
	}
	got := fmt.Sprint(told.Valid)
	for _, name := range names[1:] {
		if !strings.Contains(got, "{"+ids[name]+" net1}") {
			m.t.Errorf("GC told the network's plugin %s, without net1 of pod %s (%s)", got, name, ids[name])
		}
	}
	m.step("GC keeps what is of Multus' pods")
}

// back is the way back: Weft does not go while it has a pod, and takes that pod's networks by force.
func (m *changeOver) back() {
	m.t.Helper()
	m.noAgents()
	out, status := m.try(m.weft+"/weft-agent", "uninstall")
	if status != 1 || strings.Contains(out, "/old-b") {
		m.t.Errorf("uninstall with a pod of Weft's: status %d: %s", status, out)
	}
	has(m.t, out, m.ns+"/new", "1 sandbox is still attached by Weft")
	fresh := m.get("new")
	m.hasNetworks(fresh, 1)
	if out, status = m.try(m.weft+"/weft-agent", "uninstall", "--force"); status != 0 {
		m.t.Fatalf("uninstall --force: status %d: %s", status, out)
	}
	if links := m.links(fresh); len(links) > 0 {
		m.t.Errorf("the pod of Weft's still has %v", links)
	}
	m.callMultus(m.file(lab.PrimaryConf))
	m.step("Weft is off the node, and Multus is back")
}

// undo makes the node what other tests expect. A pod that was attached by the pod network alone is
// deleted so.
func (m *changeOver) undo() {
	m.t.Helper()
	m.shell("rm -f " + multusConf)
	m.nodeReady(true)
	m.remove("bare", "old-a", "old-b", "new")
	m.shell("rm -rf /opt/cni/bin/multus /opt/cni/bin/told /var/lib/cni/told " + filepath.Dir(multusKubeconfig) + " " + multusDir + " " + multusDir + "-of-test")
	m.reinstall()
}
