// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/weftnet/weft/internal/agent/debug"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/kube/rest"
)

// reviewer is an API server that tells rights and networks; *rest.Client is one.
type reviewer interface {
	lister
	Allowed(ctx context.Context, a rest.Access, user string, groups ...string) (bool, error)
}

// DoctorOptions say what is looked at. Paths are those of the host; "" is what the agent
// says, else the published configuration, else the default.
type DoctorOptions struct {
	// Root is where the host's files are mounted, "" for this machine's own. With it nothing
	// that runs is looked at: no agent, no sockets, no mounts.
	Root                                  string
	ConfDir, BinDir, StateDir, KubeletDir string
	Agent                                 agent    // nil = none to ask
	API                                   reviewer // nil = none to ask
	// ServiceAccount, "namespace/name", is whose rights are asked for; "" = those of the API's account.
	ServiceAccount string
	// What Migrate looks at besides: where Multus kept its records ("" = as its configuration
	// says), its daemon's configuration, and whose pods are looked at ("" = those of all nodes).
	CNIDir, DaemonConf, NodeName string
	Version                      string // of this program
	Now                          time.Time
}

// Doctor looks at a node and says what is wrong with it, and what to do. It changes nothing.
func Doctor(ctx context.Context, o DoctorOptions) *Checkup {
	d := &doctor{DoctorOptions: o, Checkup: newCheckup(), root: hostRoot(o.Root)}
	agentErr := d.askAgent(ctx)
	d.readConfs()
	d.choosePaths()
	d.findAliases()
	d.checkAgent(agentErr)
	d.checkOrder()
	d.checkConf()
	d.checkPrimary()
	d.checkPlugins(ctx)
	d.checkPlugin(ctx)
	d.checkSocket()
	d.checkState()
	d.checkRecords()
	d.checkNeighbours()
	d.checkMounts()
	d.checkRights(ctx)
	d.checkDefinitions(ctx)
	d.checkMultus()
	return d.Checkup
}

type doctor struct {
	DoctorOptions
	*Checkup
	root  hostRoot
	state *debug.NodeAnswer // of the agent, nil when it did not answer
	files []nodeConf        // of confDir, in the runtime's order
	own   *netconf.Conf     // the first that is Weft's and right, nil when there is none
}

// Defaults where neither agent nor configuration says.
const (
	defaultConfDir    = "/etc/cni/net.d"
	defaultKubeletDir = "/var/lib/kubelet"
	nriSocket         = "/var/run/nri/nri.sock"
)

// choosePaths fills in what nobody asked for.
func (d *doctor) choosePaths() {
	var paths debug.Paths
	if d.state != nil {
		paths = d.state.State.Paths
	}
	own := d.own
	if own == nil {
		own = netconf.Defaults()
	}
	d.BinDir = cmp.Or(d.BinDir, paths.BinDir, own.BinDir)
	d.StateDir = cmp.Or(d.StateDir, paths.StateDir, own.StateDir)
	d.KubeletDir = cmp.Or(d.KubeletDir, paths.KubeletDir, own.KubeletDir, defaultKubeletDir)
}

// askAgent comes first, since the agent knows the paths.
func (d *doctor) askAgent(ctx context.Context) error {
	if d.Agent == nil {
		return nil
	}
	answer, err := d.Agent.Node(ctx)
	if err != nil {
		return err
	}
	d.state, d.Node = answer, answer.Node
	return nil
}

// checkAgent says how the agent is, or why it did not answer.
func (d *doctor) checkAgent(err error) {
	switch {
	case d.Agent == nil:
		d.notSeen("the agent: its state and the networks in use")
	case errors.Is(err, fs.ErrPermission):
		d.notSeen("the agent: %v (run it as root)", err)
	case errors.Is(err, debug.ErrAway) && d.own != nil && !d.own.AgentSocketSet && (d.own.Kubeconfig != "" || d.own.Manifests != ""):
		d.info("agent", "none listens, and the configuration is one for a node without agent")
	case errors.Is(err, debug.ErrAway):
		d.add(ResultFault, "agent", err.Error(), "see whether the agent's pod runs on this node, and what it logs")
	case err != nil:
		d.add(ResultFault, "agent", err.Error(), "see what the agent logs")
	default:
		d.agentState(d.state)
	}
}

// staleCache is after which time an API server that says nothing is worth a warning: a
// watch alone is renewed more often.
const staleCache = 10 * time.Minute

// agentState adds what an agent says of itself.
func (c *Checkup) agentState(a *debug.NodeAnswer) {
	n := &a.State
	if n.Ready {
		c.ok("agent", "%s is ready, for %s", cmp.Or(n.Versions.Agent, "it"), age(a.Now, n.Started))
	} else {
		c.add(ResultFault, "agent", "is not ready: "+strings.Join(notReady(n.Conditions), "; "), "see what the agent logs; until it is ready, pods with networks wait")
	}
	switch {
	case n.Conf.Fault != "":
		c.add(ResultFault, "agent conf", n.Conf.Path+": "+n.Conf.Fault, "mend that; the agent tries again by itself")
	case !n.Conf.Published:
		c.add(ResultWarn, "agent conf", n.Conf.Path+" is not published", "see the conditions of weft get node")
	}
	if n.Cache.Synced && !n.Cache.LastContact.IsZero() && a.Now.Sub(n.Cache.LastContact) > staleCache {
		c.add(ResultWarn, "agent cache", "the API server was last heard of "+age(a.Now, n.Cache.LastContact)+" ago", "see whether the node reaches the API server; known pods go on meanwhile")
	}
	if n.Counts.PendingStatus > 0 {
		c.add(ResultWarn, "agent status", statuses(n.Counts.PendingStatus)+" to be written", "weft get pods says why, if it stays so")
	}
}

func notReady(conditions []debug.Condition) []string {
	var all []string
	for _, c := range conditions {
		if !c.OK {
			all = append(all, strings.TrimSuffix(c.Name+": "+c.Why, ": "))
		}
	}
	if len(all) == 0 {
		all = []string{"no reason is given"}
	}
	return all
}

// checkPlugin looks at weft-cni itself.
func (d *doctor) checkPlugin(ctx context.Context) {
	at, err := d.root.program("weft-cni", d.BinDir)
	if err != nil {
		d.add(ResultFault, "weft-cni", err.Error(), "run weft-agent install, which the agent's pod does when it starts")
		return
	}
	if info, err := os.Stat(at); err == nil && info.Mode().Perm()&0o022 != 0 {
		d.add(ResultFault, "weft-cni", fmt.Sprintf("%s may be written by others than its owner (mode %#o)", at, info.Mode().Perm()), "chmod 755 it, and see who did that: it runs as root")
	}
	_, version, err := program(at)
	if err == nil && version == unreleased && d.root.here() {
		version = cmp.Or(saidVersion(ctx, at), version)
	}
	want := d.Version
	if d.state != nil {
		want = cmp.Or(d.state.State.Versions.Plugin, d.state.State.Versions.Agent, want)
	}
	switch {
	case err != nil:
		d.add(ResultWarn, "weft-cni", fmt.Sprintf("%s: its version cannot be read: %v", at, err), "run weft-agent install")
	case version != want && version == unreleased && !d.root.here() && d.state == nil:
		d.notSeen("the version of %s: a release says it when it runs, and this is a host's file", at)
	case version != want:
		d.add(ResultWarn, "weft-cni", fmt.Sprintf("%s is of version %s, the agent or this program of %s", at, version, want), "restart the agent, which installs its own")
	default:
		d.ok("weft-cni", "%s is of version %s", at, version)
	}
}

// program says what a Go program was built from, and its version.
func program(path string) (pkg, version string, err error) {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return "", "", err
	}
	return info.Path, cmp.Or(info.Main.Version, unreleased), nil
}

// unreleased is the version of a module that was built from a checkout, as releases are, too: their
// word stands nowhere in the file, so they have to be asked for it.
const unreleased = "(devel)"

// saidVersion is what weft-cni says of itself, "" when it says nothing (one from before could not).
func saidVersion(ctx context.Context, at string) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, at, "--version")
	cmd.Env = []string{} // no CNI_COMMAND
	out, err := cmd.Output()
	version, ok := strings.CutPrefix(strings.TrimSpace(string(out)), "weft-cni ")
	if err != nil || !ok || len(version) > 64 {
		return ""
	}
	return version
}

// checkSocket looks whether the planner is there.
func (d *doctor) checkSocket() {
	if !d.root.here() {
		d.notSeen("what runs: the agent's sockets, mounts, the boot that records are of")
		return
	}
	path := netconf.DefaultAgentSocket
	switch {
	case d.state != nil && d.state.State.Paths.AgentSocket != "":
		path = d.state.State.Paths.AgentSocket
	case d.own != nil:
		path = d.own.AgentSocket
	}
	if d.state == nil && (d.own == nil || !d.own.AgentSocketSet) {
		return // nobody needs it
	}
	if d.own != nil && d.own.AgentSocket != path {
		d.add(ResultFault, "agent socket", fmt.Sprintf("the configuration names %s, the agent listens at %s", d.own.AgentSocket, path), "leave agentSocket out of the cni section of the agent's configuration")
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case errors.Is(err, fs.ErrPermission):
		d.notSeen("the agent's socket: %v (run it as root)", err)
	case err != nil:
		d.add(ResultFault, "agent socket", err.Error(), "see whether the agent's pod runs on this node: an ADD that needs it answers 11 until then")
	default:
		c.Close() //nolint:errcheck // nothing was said
		d.ok("agent socket", "%s takes connections", path)
	}
}

// checkNeighbours looks for the sockets of kubelet and runtime. None of them is needed for
// CNI, so what is missing is only said.
func (d *doctor) checkNeighbours() {
	for _, n := range []struct{ check, path, what string }{
		{"kubelet", filepath.Join(d.KubeletDir, "device-plugins", "kubelet_internal_checkpoint"), "devices for networks are read from it"},
		{"kubelet", filepath.Join(d.KubeletDir, "pod-resources", "kubelet.sock"), "devices of pods"},
		{"kubelet", filepath.Join(d.KubeletDir, "plugins_registry"), "network driver"},
		{"nri", nriSocket, "network driver"},
	} {
		if _, err := os.Stat(d.root.path(n.path)); err != nil {
			d.info(n.check, "%s cannot be seen (%s): %v", n.path, n.what, cause(err))
			continue
		}
		d.info(n.check, "%s is there (%s)", n.path, n.what)
	}
}

func cause(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}

// agentRights are those that deploy/rbac.yaml gives.
func agentRights() []rest.Access {
	var all []rest.Access
	add := func(group, resource, subresource string, verbs ...string) {
		for _, verb := range verbs {
			all = append(all, rest.Access{Verb: verb, Group: group, Resource: resource, Subresource: subresource})
		}
	}
	add("", "pods", "", "get", "list", "watch")
	add("", "pods", "status", "patch")
	add("", "events", "", "create")
	add("k8s.cni.cncf.io", "network-attachment-definitions", "", "get", "list", "watch")
	add("resource.k8s.io", "resourceclaims", "", "get")
	add("resource.k8s.io", "resourceslices", "", "list")
	return all
}

// checkRights asks the API server what the agent's account may do.
func (d *doctor) checkRights(ctx context.Context) {
	if d.API == nil {
		d.notSeen("the agent's rights (name a kubeconfig with --kubeconfig)")
		return
	}
	user, whose, groups := "", "the kubeconfig's account", []string(nil)
	if namespace, name, ok := strings.Cut(d.ServiceAccount, "/"); ok {
		user, whose = "system:serviceaccount:"+namespace+":"+name, "service account "+d.ServiceAccount
		groups = []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"}
	}
	var missing []string
	all := agentRights()
	for _, a := range all {
		allowed, err := d.API.Allowed(ctx, a, user, groups...)
		if err != nil {
			d.notSeen("the rights of %s: %v", whose, err)
			return
		}
		if !allowed {
			missing = append(missing, a.String())
		}
	}
	if len(missing) > 0 {
		d.add(ResultFault, "rights", whose+" may not: "+strings.Join(missing, ", "), "apply deploy/rbac.yaml, or bind its ClusterRole to the account")
		return
	}
	d.ok("rights", "%s may do all %d that the agent does", whose, len(all))
}

// sorted are the keys of a set, in order.
func sorted[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
