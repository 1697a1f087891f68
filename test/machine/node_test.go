// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weftnet/weft/internal/cni/netstatus"
	"github.com/weftnet/weft/internal/cni/record"
	"github.com/weftnet/weft/internal/cni/results"
	"github.com/weftnet/weft/internal/host/journal"
	"github.com/weftnet/weft/internal/host/kernel"
	"github.com/weftnet/weft/internal/host/kernel/kerneltest"
	"github.com/weftnet/weft/test/binaries"
)

// callLimit is far beyond what a call takes, also where a processor is emulated.
const callLimit = 3 * time.Minute

// node is a node without a cluster: what weft-cni reads and keeps lies in one directory.
type node struct {
	t    *testing.T
	dir  string
	weft string
	path string // CNI_PATH
	conf map[string]any
	// devices are the entries of the kubelet's checkpoint.
	devices []any
}

// pod is a pod and one sandbox of it.
type pod struct {
	name, sandbox, netns string
}

// newNode makes a node in a directory, or finds what an earlier one left there. Its pod network is a
// pair of links a pod: it leaves nothing on the host.
func newNode(t *testing.T, dir string, plugins ...string) *node {
	t.Helper()
	needMachine(t)
	weft := binaries.Weft(t)
	n := &node{
		t: t, dir: dir, weft: filepath.Join(weft, "weft-cni"),
		path: strings.Join(append([]string{weft, binaries.Plugins(t)}, plugins...), ":"),
	}
	n.conf = map[string]any{
		"cniVersion": "1.1.0", "name": "machine", "type": "weft-cni",
		"manifests": n.at("manifests"), "stateDir": n.at("state"), "cniDir": n.at("multus"),
		"binDir": n.at("nobin"), "confDir": n.at("conf"), "kubeletDir": n.at("kubelet"),
		"delegates": []any{n.ipam("pods", "10.77.0.0/24", map[string]any{"type": "ptp"})},
	}
	must(t, os.MkdirAll(n.at("manifests"), 0o700))
	return n
}

func (n *node) at(path string) string { return filepath.Join(n.dir, path) }

func (n *node) write(path string, v any) {
	n.t.Helper()
	b, err := json.Marshal(v)
	must(n.t, err)
	must(n.t, os.MkdirAll(filepath.Dir(n.at(path)), 0o700))
	must(n.t, os.WriteFile(n.at(path), b, 0o600))
}

// ipam makes a plugin's configuration one with addresses of host-local.
func (n *node) ipam(name, subnet string, conf map[string]any) map[string]any {
	return named(name, n.addresses(map[string]any{"subnet": subnet}, conf))
}

func (n *node) addresses(span, conf map[string]any) map[string]any {
	conf = maps.Clone(conf)
	conf["ipam"] = map[string]any{"type": "host-local", "dataDir": n.at("data"), "ranges": []any{[]any{span}}}
	return conf
}

func named(name string, conf map[string]any) map[string]any {
	conf = maps.Clone(conf)
	conf["cniVersion"], conf["name"] = "1.1.0", name
	return conf
}

// nad writes a NetworkAttachmentDefinition; resource is that of its devices, or "".
func (n *node) nad(name string, config map[string]any, resource string) {
	n.t.Helper()
	text, err := json.Marshal(config)
	must(n.t, err)
	metadata := map[string]any{"namespace": "default", "name": name}
	if resource != "" {
		metadata["annotations"] = map[string]any{"k8s.v1.cni.cncf.io/resourceName": resource}
	}
	n.write("manifests/nad-"+name+".json", map[string]any{
		"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
		"metadata": metadata, "spec": map[string]any{"config": string(text)},
	})
}

// pod writes a pod that asks for networks, and gives it a sandbox.
func (n *node) pod(name, networks string) pod {
	n.t.Helper()
	n.write("manifests/pod-"+name+".json", map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{
			"namespace": "default", "name": name, "uid": "uid-" + name,
			"annotations": map[string]any{"k8s.v1.cni.cncf.io/networks": networks},
		},
	})
	return pod{name: name, sandbox: "sandbox-" + name, netns: kerneltest.NetnsThatGoes(n.t)}
}

// sees opens the pod's namespace for a moment.
func (p pod) sees(t *testing.T, f func(*kernel.Netns)) {
	t.Helper()
	ns, err := kernel.OpenNetns(p.netns)
	must(t, err)
	defer ns.Close()
	f(ns)
}

func (p pod) links(t *testing.T) map[string]kernel.Link {
	t.Helper()
	all := map[string]kernel.Link{}
	p.sees(t, func(ns *kernel.Netns) {
		links, err := ns.Links()
		must(t, err)
		for _, l := range links {
			all[l.Name] = l
		}
	})
	return all
}

// command prepares a call, as a runtime makes it. valid are the sandboxes that GC is told.
func (n *node) command(ctx context.Context, verb string, p pod, valid ...pod) *exec.Cmd {
	n.t.Helper()
	conf := maps.Clone(n.conf)
	cmd := exec.CommandContext(ctx, n.weft)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "CNI_COMMAND=" + verb, "CNI_PATH=" + n.path}
	if verb == "GC" {
		list := []any{}
		for _, v := range valid {
			list = append(list, map[string]any{"containerID": v.sandbox, "ifname": "eth0"})
		}
		conf["cni.dev/valid-attachments"] = list
	} else {
		cmd.Env = append(cmd.Env, "CNI_CONTAINERID="+p.sandbox, "CNI_IFNAME=eth0", "CNI_NETNS="+p.netns,
			"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME="+p.name+
				";K8S_POD_INFRA_CONTAINER_ID="+p.sandbox+";K8S_POD_UID=uid-"+p.name)
	}
	stdin, err := json.Marshal(conf)
	must(n.t, err)
	cmd.Stdin = bytes.NewReader(stdin)
	return cmd
}

// call makes a call and gives what it printed, and an error when it was refused.
func (n *node) call(verb string, p pod, valid ...pod) (string, error) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), callLimit)
	defer cancel()
	cmd := n.command(ctx, verb, p, valid...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	start := time.Now()
	err := cmd.Run()
	n.t.Logf("%s %s: %.2fs %s", verb, p.name, time.Since(start).Seconds(), bytes.TrimSpace(stderr.Bytes()))
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
		return stdout.String(), fmt.Errorf("%s of %s: %s", verb, p.name, stdout.String())
	}
	must(n.t, err)
	return stdout.String(), nil
}

func (n *node) ok(verb string, p pod, valid ...pod) string {
	n.t.Helper()
	out, err := n.call(verb, p, valid...)
	must(n.t, err)
	return out
}

// refused makes a call that must be answered by an error with those words.
func (n *node) refused(verb string, p pod, words string) {
	n.t.Helper()
	if _, err := n.call(verb, p); err == nil || !strings.Contains(err.Error(), words) {
		n.t.Errorf("%s of %s ends with %v, want an error with %q", verb, p.name, err, words)
	}
}

// status computes the pod's network-status from its record, as all do who report it.
func (n *node) status(p pod) []netstatus.Entry {
	n.t.Helper()
	store, err := journal.Open(n.at("state/attachments"), record.Kind)
	must(n.t, err)
	state, err := store.Read(journal.Key(p.sandbox + "-eth0"))
	must(n.t, err)
	view, err := record.Decode(state, journal.BootID())
	must(n.t, err)
	var answers []*results.Result
	for _, a := range view.Attachments {
		r, err := results.Parse(a.Result, a.Conf.CNIVersion)
		must(n.t, err)
		answers = append(answers, r)
	}
	return netstatus.Build(view.Body.Plan, answers, make([]json.RawMessage, len(answers)))
}

// wantStatus compares what is reported of an interface with what the kernel has, and gives its link.
func (n *node) wantStatus(p pod, ifName, network string) kernel.Link {
	n.t.Helper()
	l, found := p.links(n.t)[ifName]
	if !found {
		n.t.Fatalf("pod %s has no %s, but %v", p.name, ifName, slices.Sorted(maps.Keys(p.links(n.t))))
	}
	all := n.status(p)
	i := slices.IndexFunc(all, func(e netstatus.Entry) bool { return e.Interface == ifName })
	if i < 0 {
		n.t.Fatalf("network-status of %s has no %s: %+v", p.name, ifName, all)
	}
	e := all[i]
	if e.Name != network || e.MAC != "" && e.MAC != l.MAC.String() || e.Default {
		n.t.Errorf("network-status is %+v, for %+v of network %s", e, l, network)
	}
	if len(e.IPs) == 0 || !l.Up {
		n.t.Errorf("network-status is %+v for %+v: no address, or not up", e, l)
	}
	for _, ip := range e.IPs {
		if !slices.ContainsFunc(l.Addrs, func(a netip.Prefix) bool { return a.Addr().String() == ip }) {
			n.t.Errorf("network-status has address %s, the interface %v", ip, l.Addrs)
		}
	}
	return l
}

// leases are the addresses that host-local has given, by network.
func (n *node) leases() map[string][]string {
	n.t.Helper()
	all := map[string][]string{}
	paths, err := filepath.Glob(n.at("data/*/*"))
	must(n.t, err)
	for _, path := range paths {
		if addr, err := netip.ParseAddr(filepath.Base(path)); err == nil {
			network := filepath.Base(filepath.Dir(path))
			all[network] = append(all[network], addr.String())
		}
	}
	return all
}

// records lists the sandboxes that are on record.
func (n *node) records() []string {
	n.t.Helper()
	paths, err := filepath.Glob(n.at("state/attachments/*.jsonl"))
	must(n.t, err)
	var all []string
	for _, path := range paths {
		all = append(all, strings.TrimSuffix(filepath.Base(path), "-eth0.jsonl"))
	}
	return all
}

// wantNothing checks that nothing is left of any pod, in the given pods' namespaces either.
func (n *node) wantNothing(pods ...pod) {
	n.t.Helper()
	for _, p := range pods {
		if left := slices.Sorted(maps.Keys(p.links(n.t))); !slices.Equal(left, []string{"lo"}) {
			n.t.Errorf("left in pod %s: %v", p.name, left)
		}
	}
	if left := n.leases(); len(left) > 0 {
		n.t.Errorf("left: addresses %v", left)
	}
	for _, dir := range []string{"attachments", "sweep", "quarantine"} {
		left, err := filepath.Glob(n.at("state/" + dir + "/*"))
		if err != nil || len(left) > 0 {
			n.t.Errorf("left: %v, %v", left, err)
		}
	}
}
