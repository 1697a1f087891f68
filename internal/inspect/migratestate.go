// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weftnet/weft/internal/cni/hostfiles"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/scratch"
	"github.com/weftnet/weft/internal/kube/rest"
)

// runtimeCache is where containerd and CRI-O keep what they attached, by libcni.
const runtimeCache = "/var/lib/cni/results"

// checkScratch reads what Multus remembers of the pods that it attached, as a DEL will.
func (m *migration) checkScratch() {
	const check = "multus records"
	m.cniDir = cmp.Or(m.cniDir, netconf.DefaultCNIDir)
	if m.own != nil && m.file == "" {
		m.cniDir = cmp.Or(m.CNIDir, m.own.CNIDir)
	}
	dir := m.root.path(m.cniDir)
	ids, err := scratch.List(dir)
	if err != nil {
		m.notSeen("what Multus remembers in %s: %v", m.cniDir, cause(err))
		return
	}
	bad := 0
	for _, id := range ids {
		if found, err := scratch.Load(dir, id, "eth0"); err != nil {
			bad++
			m.addAt(ResultWarn, check, "file "+filepath.Join(m.cniDir, id), "", fmt.Sprintf("is broken: %v; its pod's DEL undoes %s", err, count(len(found), "attachment")),
				"delete its pod while Multus is there, or look for addresses that stay behind")
		}
	}
	m.ok(check, "%s in %s, %d of them readable: Weft deletes those pods by them", count(len(ids), "file"), m.cniDir, len(ids)-bad)
}

// cachedSandbox is what a runtime keeps of one that it attached.
type cachedSandbox struct {
	Kind        string
	ContainerID string
	NetworkName string
	IfName      string
	Netns       string
	CNIArgs     [][2]string `json:"cniArgs"`
}

func (s *cachedSandbox) pod() string {
	args := map[string]string{}
	for _, pair := range s.CNIArgs {
		args[pair[0]] = pair[1]
	}
	return args["K8S_POD_NAMESPACE"] + "/" + args["K8S_POD_NAME"]
}

// checkSandboxes looks for pods that the runtime had Multus attach, and that Multus forgot.
func (m *migration) checkSandboxes() {
	const check = "pods from before"
	names := []string{"multus-cni-network"}
	if name := text(m.keys, "name"); name != "" {
		names = append(names, name)
	}
	dir := m.root.path(m.cniDir)
	known := map[string]bool{}
	ids, _ := scratch.List(dir) // checkScratch tells its error
	for _, id := range ids {
		known[id] = true
	}
	all, err := readCache(m.root.path(runtimeCache))
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			m.notSeen("what the runtime attached (%s): %v", runtimeCache, cause(err))
		}
		return
	}
	of := 0
	for _, s := range all {
		if !slices.Contains(names, s.NetworkName) || m.gone(s.Netns) {
			continue
		}
		of++
		if known[s.ContainerID] {
			continue
		}
		found, err := scratch.Load(dir, s.ContainerID, s.IfName)
		if err == nil && len(found) > 0 {
			m.info(check, "pod %s (%s) has no file in %s; %s are known from its results", s.pod(), s.ContainerID, m.cniDir, count(len(found), "attachment"))
			continue
		}
		m.addAt(ResultWarn, check, "pod "+s.pod(), "", fmt.Sprintf("(%s) was attached by Multus, which has no record of it in %s: its pod network alone will be deleted", s.ContainerID, m.cniDir),
			"delete the pod while Multus is there; if it is one that Multus gave no networks, nothing is lost")
	}
	m.ok(check, "%s of Multus in the runtime's memory", count(of, "pod"))
}

// gone says that a network namespace is no more: what the runtime remembers of a sandbox outlives
// it when it was deleted under another configuration. Where no namespace can be seen at all,
// none is known to be gone.
func (m *migration) gone(netns string) bool {
	at := m.root.path(netns)
	if _, err := os.Stat(filepath.Dir(at)); netns == "" || err != nil {
		return false
	}
	_, err := os.Lstat(at)
	return errors.Is(err, fs.ErrNotExist)
}

// maxCached bounds a file of the runtime's memory.
const maxCached = 16 << 20

// readCache reads the runtime's memory. What is torn is left out: libcni tears it at times.
func readCache(dir string) ([]cachedSandbox, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	names, err := fs.Glob(root.FS(), "*")
	var all []cachedSandbox
	for _, name := range names {
		var s cachedSandbox
		b, err := hostfiles.ReadRegular(root, name, maxCached)
		if err == nil && json.Unmarshal(b, &s) == nil && s.Kind == "cniCacheV1" {
			all = append(all, s)
		}
	}
	return all, err
}

// checkObjects has lint look at the cluster's networks and at this node's pods.
func (m *migration) checkObjects(ctx context.Context) {
	if m.API == nil {
		m.notSeen("networks and pods, and whether Weft takes them (name a kubeconfig with --kubeconfig)")
		return
	}
	w := m.world()
	nads, err := m.API.List(ctx, rest.NADs(), "")
	if err != nil {
		m.notSeen("networks and pods: %v", err)
		return
	}
	dhcp := false
	for _, nad := range nads {
		n := network(nad)
		m.needs.add(n.Namespace+"/"+n.Name, false, append(n.Types, n.ipam...)...)
		dhcp = dhcp || slices.Contains(n.ipam, "dhcp")
		w.Set.Add("networks.json", withKind(nad.Raw, "k8s.cni.cncf.io/v1", "NetworkAttachmentDefinition"))
	}
	m.checkDHCP(dhcp)
	pods := m.pods(ctx)
	for _, pod := range pods {
		w.Set.Add("pods.json", withKind(pod.Raw, "v1", "Pod"))
	}
	w.problems = nil // an object that the server took has none that matter
	w.index()
	w.configure()
	w.findings = nil // checkKeys tells them
	m.lint(ctx, w, len(nads), len(pods))
}

// world has what Multus' configuration says of pods' networks, with any default network, and the
// node's files for networks without a configuration of their own.
func (m *migration) world() *World {
	w := newWorld()
	dir := m.root.path(cmp.Or(text(m.keys, "confDir"), netconf.Defaults().ConfDir))
	conf, err := netconf.ParseObject([]byte(standIn))
	if err != nil { // it is a constant
		return w
	}
	for _, key := range []string{"namespaceIsolation", "globalNamespaces", "systemNamespaces", "multusNamespace"} {
		if raw, ok := m.keys.Get(key); ok {
			conf.Set(key, raw)
		}
	}
	conf.Set("confDir", netconf.String(dir))
	conf.Set("agentSocket", netconf.String(netconf.DefaultAgentSocket))
	w.add("multus.conf", conf.Bytes(), true)
	files, err := filesOf(dir, ".conf", ".conflist", ".json")
	if err != nil {
		return w // the networks that need them say so
	}
	for _, path := range files[:min(len(files), maxFiles)] {
		_ = w.read(path, true) // of one that cannot be read the networks that need it say so
	}
	return w
}

// withKind adds what an object in a list does not say of itself.
func withKind(raw json.RawMessage, version, kind string) []byte {
	o, err := netconf.ParseObject(raw)
	if err != nil {
		return raw
	}
	o.Set("apiVersion", netconf.String(version))
	o.Set("kind", netconf.String(kind))
	return o.Bytes()
}

// pods are those of this node that ask for networks, of all nodes when its name is not known.
func (m *migration) pods(ctx context.Context) []rest.Object {
	api, selects := m.API.(selecter)
	node := cmp.Or(m.NodeName, m.Node)
	var all []rest.Object
	var err error
	if node != "" && selects {
		all, err = api.Select(ctx, rest.Pods(), "", "spec.nodeName="+node)
	} else {
		all, err = m.API.List(ctx, rest.Pods(), "")
	}
	if err != nil {
		m.notSeen("pods, and whether Weft takes what they ask for: %v", err)
		return nil
	}
	return slices.DeleteFunc(all, func(o rest.Object) bool {
		var body struct{ Status struct{ Phase string } }
		asks := o.Meta.Annotations[plan.NetworksAnnotation] != "" || o.Meta.Annotations[plan.DefaultNetworkAnnotation] != ""
		return !asks || json.Unmarshal(o.Raw, &body) != nil || body.Status.Phase == "Succeeded" || body.Status.Phase == "Failed"
	})
}

// lint shows what lint finds, each thing once.
func (m *migration) lint(ctx context.Context, w *World, nads, pods int) {
	report := w.Lint(ctx)
	refused := map[string]bool{}
	for _, f := range report.Faults {
		check, do := "networks", "mend the network: pods that name it would not start; weft lint -f FILE shows the place"
		if strings.HasPrefix(f.Object, "pod ") {
			check, do = "pods", "mend the pod's template before the change: it runs until it is deleted, and its next one would not start"
		}
		refused[f.Object] = true
		m.addAt(ResultFault, check, f.Object, f.Field, f.Text, do)
	}
	for _, f := range report.Warnings {
		if strings.HasPrefix(f.Object, "pod ") || strings.HasPrefix(f.Object, "Network") {
			m.info("lint", "%s: %s", cmp.Or(strings.TrimSpace(f.Object+" "+f.Field), "lint"), f.Text)
		}
	}
	for _, of := range []struct {
		check, prefix string
		total         int
	}{{"networks", "NetworkAttachmentDefinition ", nads}, {"pods", "pod ", pods}} {
		bad := 0
		for object := range refused {
			if strings.HasPrefix(object, of.prefix) {
				bad++
			}
		}
		m.ok(of.check, "Weft takes %d of %d", of.total-bad, of.total)
	}
}

// checkDHCP looks for the daemon of the dhcp plugin, which networks need whoever attaches them.
func (m *migration) checkDHCP(needed bool) {
	const socket = "/run/cni/dhcp.sock"
	if !needed {
		return
	}
	if _, err := os.Lstat(m.root.path(socket)); err != nil {
		m.addAt(ResultWarn, "dhcp", "file "+socket, "", "is not there, and networks have their addresses by dhcp", "run the dhcp plugin's daemon on the node; a DaemonSet of Multus' manifests may have done so")
		return
	}
	m.ok("dhcp", "%s is there", socket)
}
