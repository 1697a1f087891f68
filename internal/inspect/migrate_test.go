// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/weftnet/weft/internal/kube/rest"
)

// multusConf is what Multus' daemon writes, with the pod network's file as clusterNetwork.
const multusConf = `{"cniVersion":"1.0.0","name":"multus-cni-network","type":"multus-shim","clusterNetwork":"/host/etc/cni/net.d/10-pods.conflist",
	"capabilities":{"portMappings":true},"cniDir":"/var/lib/cni/multus","logLevel":"panic","daemonSocketDir":"/run/multus/"}`

// newMultusHost is a host with Multus, thick, and one pod that it attached; nothing stands in
// the way of Weft.
func newMultusHost(t *testing.T) *host {
	t.Helper()
	h := newHost(t)
	h.remove("etc/cni/net.d/00-weft.conflist")
	h.remove("opt/cni/bin/weft-cni")
	h.remove("var/lib/weft")
	h.write("etc/cni/net.d/00-multus.conf", multusConf)
	h.write("etc/cni/net.d/multus.d/daemon-config.json", `{"chrootDir":"/hostroot","cniVersion":"1.0.0","socketDir":"/host/run/multus/"}`)
	h.program("multus-shim")
	h.scratch("c1")
	h.cached("c1", "multus-cni-network")
	return h
}

func (h *host) scratch(id string) {
	h.t.Helper()
	conf := base64.StdEncoding.EncodeToString([]byte(primaryConf))
	h.write("var/lib/cni/multus/"+id, `[{"Conf":{},"ConfList":{},"Name":"pods","IsFilterV4Gateway":false,"IsFilterV6Gateway":false,"Bytes":"`+conf+`"}]`)
}

// cached is what the runtime remembers of a container.
func (h *host) cached(id, network string) { h.t.Helper(); h.cachedIn(id, network, "/run/netns/"+id) }

func (h *host) cachedIn(id, network, netns string) {
	h.t.Helper()
	h.write("var/lib/cni/results/"+network+"-"+id+"-eth0", fmt.Sprintf(
		`{"kind":"cniCacheV1","containerId":%q,"networkName":%q,"ifName":"eth0","netns":%q,"cniArgs":[["K8S_POD_NAMESPACE","ns"],["K8S_POD_NAME","old"]]}`, id, network, netns))
}

// multusTo puts other keys into Multus' configuration, as pairs of key and JSON.
func (h *host) multusTo(pairs ...string) {
	h.t.Helper()
	var conf map[string]json.RawMessage
	if err := json.Unmarshal([]byte(multusConf), &conf); err != nil {
		h.t.Fatal(err)
	}
	for i := 0; i < len(pairs); i += 2 {
		conf[pairs[i]] = json.RawMessage(pairs[i+1])
	}
	b, err := json.Marshal(conf)
	if err != nil {
		h.t.Fatal(err)
	}
	h.write("etc/cni/net.d/00-multus.conf", string(b))
}

// published is Weft's configuration, with more keys of it.
func (h *host) published(more string) {
	h.t.Helper()
	h.write("etc/cni/net.d/00-weft.conflist", strings.Replace(ownConf, `"agentSocket":"SOCKET"`, more+`"agentSocket":"/run/weft/agent.sock"`, 1))
}

func TestMigrateLooksAtFiles(t *testing.T) {
	const etc = "etc/cni/net.d/"
	for name, test := range map[string]struct {
		edit  func(h *host)
		wants []string
	}{
		"nothing stands in the way": {wants: []string{
			"ok multus conf: /etc/cni/net.d/00-multus.conf calls multus-shim", "ok multus daemon: daemon-config.json is read",
			"info multus keys: nothing takes the place of cniVersion, name, type, clusterNetwork, capabilities, daemonSocketDir",
			"ok default network: Weft takes /etc/cni/net.d/10-pods.conflist, network pods",
			"info conf name: 00-multus.conf sorts before 00-weft.conflist", "ok multus records: 1 file in /var/lib/cni/multus, 1 of them readable",
			"ok pods from before: 1 pod of", "ok plugins: 3 of 3", "info multus programs: multus-shim is Multus'", "ok multus runs: no daemon",
		}},
		"a node that has changed over": {
			edit: func(h *host) { h.remove(etc + "00-multus.conf"); h.remove(etc + "multus.d"); h.published("") },
			wants: []string{
				"info multus conf: /etc/cni/net.d holds no configuration that calls Multus", "ok multus records: 1 file", "ok pods from before: 1 pod of",
			},
		},
		"Multus' configuration is broken": {
			edit:  func(h *host) { h.write(etc+"00-multus.conf", `{"type":"multus"`) },
			wants: []string{"fault multus conf: file /etc/cni/net.d/00-multus.conf", "warn default network: 00-multus.conf"},
		},
		"two of them": {
			edit:  func(h *host) { h.write(etc+"01-multus.conf", multusConf) },
			wants: []string{"warn multus conf: file /etc/cni/net.d/01-multus.conf: is a second configuration of Multus"},
		},
		"the daemon's configuration is broken": {
			edit:  func(h *host) { h.write(etc+"multus.d/daemon-config.json", `{`) },
			wants: []string{"fault multus daemon: file /etc/cni/net.d/multus.d/daemon-config.json"},
		},
		"keys to take along": {
			edit: func(h *host) { h.multusTo("namespaceIsolation", "true", "globalNamespaces", `"a,b"`) },
			wants: []string{
				"warn multus keys: 00-multus.conf: namespaceIsolation: is true, and Weft is to have it", `warn multus keys: globalNamespaces: is "a,b"`,
			},
		},
		"keys of the daemon": {
			edit: func(h *host) {
				h.write(etc+"multus.d/daemon-config.json", `{"namespaceIsolation":true,"confDir":"/host/etc/cni/multus/net.d","perNodeCertificate":{}}`)
			},
			wants: []string{
				"warn multus keys: daemon-config.json: namespaceIsolation: is true", "warn multus keys: confDir: is /host/etc/cni/multus/net.d, as the daemon's container sees it",
			},
		},
		"keys that Weft has": {
			edit: func(h *host) {
				h.multusTo("namespaceIsolation", "true", "cniDir", `"/data/multus"`)
				h.published(`"namespaceIsolation":true,"cniDir":"/data/multus",`)
			},
			wants: []string{
				"ok multus keys: the same of cniDir, namespaceIsolation", "ok multus records: 0 files in /data/multus",
				"warn pods from before: pod ns/old: (c1) was attached by Multus, which has no record of it",
			},
		},
		"keys that Weft has otherwise": {
			edit: func(h *host) {
				h.multusTo("namespaceIsolation", "true", "multusNamespace", `"multus"`)
				h.published(`"namespaceIsolation":false,`)
			},
			wants: []string{
				"fault multus keys: namespaceIsolation: is true, and Weft's configuration says otherwise", `warn multus keys: multusNamespace: is "multus", and Weft's configuration says otherwise`,
			},
		},
		"a key of nobody's, and a value that is refused": {
			edit: func(h *host) { h.multusTo("allowTryDeleteOnErr", "true", "readinessindicatorfile", `"x"`) },
			wants: []string{
				"warn multus keys: allowTryDeleteOnErr: is no key that Weft knows", `warn multus keys: readinessindicatorfile: is "x", and Weft is to have it`,
				`fault multus keys: readinessindicatorfile: "x" is not absolute`,
			},
		},
		"no primary": {
			edit:  func(h *host) { h.remove(etc + "10-pods.conflist") },
			wants: []string{"fault default network: directory /etc/cni/net.d: has no configuration but those of Multus and Weft"},
		},
		"a primary that runs Multus": {
			edit: func(h *host) {
				h.write(etc+"05-other.conflist", `{"cniVersion":"1.0.0","name":"o","plugins":[{"type":"bridge"},{"type":"multus"}]}`)
			},
			wants: []string{"fault default network: 05-other.conflist", "warn multus conf: 05-other.conflist: is a second configuration"},
		},
		"another primary": {
			edit: func(h *host) {
				h.write(etc+"05-other.conflist", `{"cniVersion":"1.0.0","name":"other","plugins":[{"type":"bridge"}]}`)
			},
			wants: []string{"warn default network: Multus' default network is /host/etc/cni/net.d/10-pods.conflist, Weft takes /etc/cni/net.d/05-other.conflist"},
		},
		"a primary by name": {
			edit:  func(h *host) { h.multusTo("clusterNetwork", `"somewhere"`) },
			wants: []string{"warn default network: Multus' default network is somewhere, which is no file of /etc/cni/net.d"},
		},
		"delegates, thin": {
			edit: func(h *host) {
				h.multusTo("type", `"multus"`, "clusterNetwork", `""`, "delegates", `[`+primaryConf+`,{"cniVersion":"1.0.0","name":"all","type":"bridge"}]`)
			},
			wants: []string{"warn default network: delegates: has 2 networks", "ok default network: Weft takes /etc/cni/net.d/10-pods.conflist"},
		},
		"Multus calls Weft": {
			edit: func(h *host) {
				h.published("")
				h.multusTo("clusterNetwork", `"/host/etc/cni/net.d/00-weft.conflist"`)
			},
			wants: []string{"fault default network: clusterNetwork: leads to Weft's own configuration"},
		},
		"Multus calls Weft, thin": {
			edit: func(h *host) {
				h.published("")
				h.multusTo("type", `"multus"`, "clusterNetwork", `""`, "delegates", `[`+ownConf+`]`)
			},
			wants: []string{"fault default network: delegates[0]: leads to Weft's own configuration"},
		},
		"a file before Weft's": {
			edit: func(h *host) {
				h.write(etc+"00-a.conflist", primaryConf)
			},
			wants: []string{
				"fault conf name: file /etc/cni/net.d/00-a.conflist: sorts before 00-weft.conflist",
				"warn default network: Weft takes /etc/cni/net.d/00-a.conflist",
			},
		},
		"broken records": {
			edit: func(h *host) {
				h.write("var/lib/cni/multus/c2", "")
				h.write("var/lib/cni/multus/c3", `[{"Bytes":`)
				h.write("var/lib/cni/results/torn", `{"kind":`)
			},
			wants: []string{
				"warn multus records: file /var/lib/cni/multus/c2: is broken", "warn multus records: /c3: is broken: read scratch file: unexpected end of JSON input; its pod's DEL undoes 0 attachments",
				"ok multus records: 3 files in /var/lib/cni/multus, 1 of them",
			},
		},
		"a pod without a record": {
			edit: func(h *host) {
				h.cached("c2", "multus-cni-network")
				h.cached("c3", "weft")
				h.cached("c4", "multus-cni-network")
				h.write("var/lib/cni/multus/results/neta-c4-net1", `{"kind":"cniCacheV1","containerId":"c4","ifName":"net1","config":"`+
					base64.StdEncoding.EncodeToString([]byte(`{"name":"neta","type":"bridge"}`))+`"}`)
			},
			wants: []string{
				"warn pods from before: pod ns/old: (c2) was attached by Multus, which has no record", "ok pods from before: 3 pods of Multus",
				"info pods from before: (c4) has no file in /var/lib/cni/multus; 1 attachment",
			},
		},
		"a pod that is gone": {
			edit: func(h *host) {
				h.write("run/netns/c1", "")
				h.link("../run", "var/run")
				h.cachedIn("c2", "multus-cni-network", "/var/run/netns/c2")
			},
			wants: []string{"ok pods from before: 1 pod of"},
		},
		"plugins are missing": {
			edit:  func(h *host) { h.remove("opt/cni/bin/portmap") },
			wants: []string{`fault plugins: "portmap"`, "ok plugins: 2 of 3"},
		},
		"CRI-O": {
			edit:  func(h *host) { h.write("run/crio/crio.sock", "") },
			wants: []string{"warn multus programs: multus-shim: is Multus', and CRI-O deletes a pod by the configuration that attached it"},
		},
		"Multus beside Weft": {
			edit:  func(h *host) { h.published(""); h.write("run/multus/multus.sock", "") },
			wants: []string{"warn multus runs: Multus' DaemonSet: /run/multus/multus.sock is there, and Weft's configuration is published"},
		},
		"SELinux": {
			edit:  func(h *host) { h.write("sys/fs/selinux/enforce", "1") },
			wants: []string{"info selinux: the node enforces SELinux"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newMultusHost(t)
			if test.edit != nil {
				test.edit(h)
			}
			expect(t, Migrate(t.Context(), DoctorOptions{Root: h.dir, Version: version, Now: at}), test.wants...)
		})
	}
}

// Copies of a node's directories are looked at as well as the node.
func TestMigrateLooksAtCopies(t *testing.T) {
	h := newMultusHost(t)
	h.scratch("c2")
	h.write("copy/daemon.json", `{"multusNamespace":"multus"}`)
	c := Migrate(t.Context(), DoctorOptions{
		Root: h.dir, ConfDir: "/etc/cni/net.d", BinDir: "/opt/cni/bin", CNIDir: "/var/lib/cni/multus", DaemonConf: "/copy/daemon.json", Version: version, Now: at,
	})
	expect(t, c, "ok multus records: 2 files", `warn multus keys: file /copy/daemon.json: multusNamespace: is "multus"`)
	i := slices.IndexFunc(c.Checks, func(c Check) bool { return c.Field == "multusNamespace" })
	if i < 0 || c.Checks[i].Object != "file /copy/daemon.json" {
		t.Errorf("object and field are not told: %+v", c.Checks)
	}
	c = Migrate(t.Context(), DoctorOptions{Root: h.dir, DaemonConf: "/copy/none.json", Version: version, Now: at})
	if seen := strings.Join(c.Unseen, "\n"); !strings.Contains(seen, h.dir+"/copy/none.json: ") || !strings.Contains(seen, "networks and pods") {
		t.Errorf("unseen: %q", c.Unseen)
	}
}

// theCluster is an API server with networks and pods.
type theCluster struct {
	nads, pods []string
	selected   string
	err        error
}

func (c *theCluster) Allowed(context.Context, rest.Access, string, ...string) (bool, error) {
	return true, nil
}

func (c *theCluster) List(_ context.Context, r rest.Resource, _ string) ([]rest.Object, error) {
	all := c.nads
	if reflect.DeepEqual(r, rest.Pods()) {
		all = c.pods
	}
	objects := []rest.Object{}
	for _, text := range all {
		var o rest.Object
		if err := json.Unmarshal([]byte(text), &o); err != nil {
			return nil, err
		}
		objects = append(objects, o)
	}
	return objects, c.err
}

func (c *theCluster) Select(ctx context.Context, r rest.Resource, namespace, selector string) ([]rest.Object, error) {
	c.selected = selector
	return c.List(ctx, r, namespace)
}

func TestMigrateAsksForObjects(t *testing.T) {
	nad := func(name, config string) string {
		return fmt.Sprintf(`{"metadata":{"namespace":"ns","name":%q},"spec":{"config":%q}}`, name, config)
	}
	pod := func(name, networks, phase string) string {
		return fmt.Sprintf(`{"metadata":{"namespace":"ns","name":%q,"uid":"u","annotations":{"k8s.v1.cni.cncf.io/networks":%q}},"spec":{},"status":{"phase":%q}}`, name, networks, phase)
	}
	h := newMultusHost(t)
	h.write("etc/cni/multus/net.d/10-filed.conf", `{"cniVersion":"1.0.0","name":"filed","type":"bridge"}`)
	look := func(c *theCluster) *Checkup {
		return Migrate(t.Context(), DoctorOptions{Root: h.dir, Version: version, Now: at, API: c, NodeName: "n1"})
	}
	good := &theCluster{
		nads: []string{nad("neta", `{"cniVersion":"1.0.0","type":"bridge","ipam":{"type":"host-local"}}`), nad("filed", "")},
		pods: []string{pod("a", "neta,filed", "Running"), pod("done", "[null]", "Succeeded"), `{"metadata":{"namespace":"ns","name":"plain"},"spec":{}}`},
	}
	expect(t, look(good), "ok networks: Weft takes 2 of 2", "ok pods: Weft takes 1 of 1", "ok plugins: 3 of 3")
	if good.selected != "spec.nodeName=n1" {
		t.Errorf("pods were selected by %q", good.selected)
	}
	bad := &theCluster{
		nads: []string{nad("neta", `{"type":"a/b"}`), nad("netd", `{"cniVersion":"1.0.0","type":"vlan","ipam":{"type":"dhcp"}}`)},
		pods: []string{pod("a", `[{"name":"netd","interface":"eth0"}]`, "Running")},
	}
	expect(t, look(bad), "fault networks: NetworkAttachmentDefinition ns/neta", "fault pods: pod ns/a", "warn dhcp: /run/cni/dhcp.sock",
		`warn plugins: "vlan"`, `warn plugins: "dhcp"`, "ok networks: Weft takes 1 of 2", "ok pods: Weft takes 0 of 1")
	h.write("run/cni/dhcp.sock", "")
	h.program("dhcp")
	h.program("vlan")
	bad.nads, bad.pods = bad.nads[1:], nil
	expect(t, look(bad), "ok dhcp: /run/cni/dhcp.sock is there")
	c := look(&theCluster{err: context.DeadlineExceeded})
	if seen := strings.Join(c.Unseen, "\n"); !strings.Contains(seen, "networks and pods: context deadline exceeded") {
		t.Errorf("unseen: %q", c.Unseen)
	}
}

// Multus' daemon is seen by its socket, whether somebody listens on it still or not, and on the
// node itself by its process: a warning from when on both publish a configuration.
func TestMigrateSeesWhatRuns(t *testing.T) {
	h := newMultusHost(t)
	says := func(want string) {
		t.Helper()
		var got []string
		for _, c := range Migrate(t.Context(), DoctorOptions{Root: h.dir, Version: version, Now: at}).Checks {
			if c.Check == "multus runs" {
				got = append(got, c.Result+": "+c.Text)
			}
		}
		if len(got) != 1 || !strings.HasPrefix(got[0], want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	says("ok: no daemon")
	h.write("run/multus/x", "")
	l, err := net.Listen("unix", h.path("run/multus/multus.sock"))
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	says("info: /run/multus/multus.sock takes connections: it is to be gone")
	h.published("")
	says("warn: Multus' DaemonSet: /run/multus/multus.sock takes connections, and Weft's configuration is published")
	l.Close() // as one that was killed leaves it
	says("warn: Multus' DaemonSet: /run/multus/multus.sock is there, and Weft's configuration is published")
	h.remove("run/multus")
	says("ok: no daemon")
}

// A program is a script here: the kernel calls its process by the script's name.
func TestMigrateSeesAProcess(t *testing.T) {
	h := newHost(t)
	start := func(name string) (end func()) {
		t.Helper()
		h.write(name, "#!/bin/sh\necho\nread x\n")
		if err := os.Chmod(h.path(name), 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(h.path(name))
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil { // it runs
			t.Fatal(err)
		}
		end = sync.OnceFunc(func() { in.Close(); _ = cmd.Wait() })
		t.Cleanup(end)
		return end
	}
	const other = "weft-nobody"
	if got := processOf(other); got != "" {
		t.Errorf("process %q before there is one", got)
	}
	end := start(other)
	if got := processOf("weft-no-one", other); got != other {
		t.Errorf("process %q, want %q", got, other)
	}
	end()
	if got := processOf(other); got != "" {
		t.Errorf("process %q after its end", got)
	}
	start("multus-daemon")
	m := &migration{doctor: &doctor{Checkup: newCheckup()}} // of this machine
	m.checkWriters()
	if got := m.Checks[0].Text; !strings.Contains(got, "is there: it is to be gone") && !strings.Contains(got, "takes connections") {
		t.Errorf("beside a process multus-daemon: %q", got)
	}
}
