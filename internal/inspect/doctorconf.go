// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/hostfiles"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/scratch"
	"github.com/weftnet/weft/internal/kube/rest"
)

// nodeConf is one file of confDir.
type nodeConf struct {
	name  string
	types []string        // of its plugins
	own   *netconf.Object // of Weft or Multus, as the plugin would get it
	err   error           // why it is no configuration
	alias bool            // the binary that it calls by Multus' name is Weft's
}

func (c nodeConf) weft() bool { return c.alias || slices.Contains(c.types, "weft-cni") }

func (c nodeConf) multus() bool {
	return slices.Contains(c.types, "multus") || slices.Contains(c.types, "multus-shim")
}

// readConfs reads confDir as runtimes do: *.conf, *.conflist and *.json by their names.
func (d *doctor) readConfs() {
	if d.state != nil {
		d.ConfDir = cmp.Or(d.ConfDir, d.state.State.Paths.ConfDir)
	}
	d.ConfDir = cmp.Or(d.ConfDir, defaultConfDir)
	dir := d.root.path(d.ConfDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			d.notSeen("%s: %v", d.ConfDir, cause(err))
		}
		return
	}
	for _, e := range entries {
		if e.IsDir() || !slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name())) {
			continue
		}
		c := d.readNodeConf(filepath.Join(d.ConfDir, e.Name()))
		d.files = append(d.files, c)
	}
	d.takeOwn()
}

// takeOwn parses the first configuration that is Weft's; checkConf tells what is wrong.
func (d *doctor) takeOwn() {
	for _, c := range d.files {
		if d.own == nil && c.own != nil && c.weft() {
			d.own, _, _ = netconf.Parse(c.own.Bytes())
		}
	}
}

// findAliases looks whether the binary behind Multus' name is Weft's.
func (d *doctor) findAliases() {
	for i := range d.files {
		if c := &d.files[i]; c.multus() {
			c.alias = d.isWeft(c.types)
		}
	}
	d.takeOwn()
}

func (d *doctor) readNodeConf(path string) nodeConf {
	c := nodeConf{name: filepath.Base(path)}
	b, err := d.readFile(path)
	if err != nil {
		c.err = err
		return c
	}
	o, err := netconf.ParseObject(b)
	if err != nil {
		c.err = err
		return c
	}
	c.types = typesOf(o)
	if isOwn(o) {
		c.own = o
		return c
	}
	if own, ok := ownInList(confFile{data: b}, o); ok {
		c.own, c.err = netconf.ParseObject(own.data)
		return c
	}
	if _, err := netconf.ParseNetwork(b, ""); !errors.Is(err, netconf.ErrNoPlugins) {
		c.err = err
	}
	return c
}

// typesOf are the types of a configuration's plugins, in either form.
func typesOf(o *netconf.Object) []string {
	raw, ok := o.Get("plugins")
	if !ok {
		return []string{text(o, "type")}
	}
	plugins, err := netconf.Elements(raw)
	if err != nil {
		return nil
	}
	var types []string
	for _, raw := range plugins {
		if plugin, err := netconf.Inner(raw); err == nil {
			types = append(types, text(plugin, "type"))
		}
	}
	return types
}

// readFile reads a file of the host, which may be anything.
func (d *doctor) readFile(path string) ([]byte, error) {
	at := d.root.path(path)
	root, err := os.OpenRoot(filepath.Dir(at))
	if err != nil {
		return nil, cause(err)
	}
	defer root.Close()
	b, err := hostfiles.ReadRegular(root, filepath.Base(at), netconf.MaxBytes)
	if err != nil {
		return nil, hostfiles.Cause(err)
	}
	return b, nil
}

// checkOrder says which configuration the runtime takes: the first.
func (d *doctor) checkOrder() {
	const check = "conf order"
	at := slices.IndexFunc(d.files, nodeConf.weft)
	switch {
	case len(d.files) == 0:
		d.add(ResultFault, check, d.ConfDir+" holds no configuration: the node has no pod network", "install the cluster's network; the agent follows it")
	case d.files[0].err != nil:
		d.add(ResultFault, check, fmt.Sprintf("%s comes first and is broken: %v", d.files[0].name, first(d.files[0].err)), "mend or remove it: a runtime takes it, or none at all")
	case at == 0:
		d.ok(check, "%s comes first of %s", d.files[0].name, count(len(d.files), "configuration"))
	case at > 0:
		d.add(ResultFault, check, fmt.Sprintf("the runtime takes %s (%s), not %s", d.files[0].name, strings.Join(d.files[0].types, ", "), d.files[at].name),
			"remove it, or set cni.confName of the agent to a name that comes before it")
	default:
		d.add(ResultFault, check, fmt.Sprintf("none is Weft's: the runtime takes %s (%s), and pods get no more than that", d.files[0].name, strings.Join(d.files[0].types, ", ")),
			"see why the agent publishes none: weft get node")
	}
}

// checkConf says what is wrong with Weft's own.
func (d *doctor) checkConf() {
	for _, c := range d.files {
		if c.own == nil || !c.weft() {
			continue
		}
		_, warnings, err := netconf.Parse(c.own.Bytes())
		for _, f := range fault.All(err) {
			d.add(ResultFault, "conf", c.name+": "+f.Error(), "mend it; one that the agent wrote is written anew when the agent restarts")
		}
		for _, w := range warnings {
			d.add(ResultWarn, "conf", fmt.Sprintf("%s: %s", c.name, (&fault.Fault{Object: w.Object, Field: w.Field, Text: w.Text}).Error()), "")
		}
		if err == nil && len(warnings) == 0 {
			d.ok("conf", "%s is right", c.name)
		}
	}
}

// checkPrimary looks at the configuration of the pods' default network.
func (d *doctor) checkPrimary() {
	const check = "primary"
	path := ""
	switch {
	case d.own != nil:
		path = d.own.PrimaryConf
	case d.state != nil:
		path = d.state.State.Conf.Primary
	}
	if path == "" {
		switch {
		case d.own == nil:
		case d.own.ClusterNetwork != "":
			d.info(check, "the default network is %s", d.own.ClusterNetwork)
		case len(d.own.Delegates) > 0:
			d.ok(check, "the default network %s stands in the configuration itself", d.own.Delegates[0].Name)
		}
		return
	}
	const do = "see the cluster network's own agent: STATUS answers 50, so that the node is not ready, until the file is back"
	b, err := d.readFile(path)
	if err != nil {
		d.add(ResultFault, check, fmt.Sprintf("%s: %v", path, err), do)
		return
	}
	network, err := netconf.ParseNetwork(b, "")
	if err != nil {
		d.add(ResultFault, check, fmt.Sprintf("%s: %s", path, first(err)), do)
		return
	}
	d.ok(check, "%s, network %s", path, network.Name)
}

// need is who needs a plugin.
type need struct {
	by    []string
	fault bool // pods of this node need it
}

// needs are the plugins that something needs.
type needs map[string]*need

func (n needs) add(by string, inUse bool, types ...string) {
	for _, t := range types {
		if t == "" {
			continue
		}
		if n[t] == nil {
			n[t] = &need{}
		}
		n[t].by = append(n[t].by, by)
		n[t].fault = n[t].fault || inUse
	}
}

// checkPlugins looks for the plugins of the configuration and of all networks.
func (d *doctor) checkPlugins(ctx context.Context) {
	all := needs{}
	if d.own != nil {
		for _, network := range d.own.Delegates {
			for _, p := range network.Plugins {
				all.add("the default network", true, p.Type, p.IPAM)
			}
		}
	}
	d.networkNeeds(ctx, all.add)
	d.findPlugins(all)
}

// findPlugins says which plugins binDir does not have.
func (d *doctor) findPlugins(needs needs) {
	found := 0
	for _, name := range sorted(needs) {
		n := needs[name]
		_, err := d.root.program(name, d.BinDir)
		if err == nil {
			found++
			continue
		}
		result := ResultWarn
		if n.fault {
			result = ResultFault
		}
		d.add(result, "plugins", fmt.Sprintf("%v; needed by %s", err, some(n.by)), "install it, or change the network: an ADD answers 7")
	}
	if found > 0 {
		d.ok("plugins", "%d of %d that are needed are in %s", found, len(needs), d.BinDir)
	}
}

// some lists a few of all.
func some(all []string) string {
	const few = 3
	all = slices.Compact(all)
	if len(all) > few {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:few], ", "), len(all)-few)
	}
	return strings.Join(all, ", ")
}

// networkNeeds adds the plugins of the NADs, which the agent knows, else the API server.
func (d *doctor) networkNeeds(ctx context.Context, add func(by string, inUse bool, types ...string)) {
	if d.state != nil {
		answer, err := d.Agent.Networks(ctx, "")
		if err != nil {
			d.notSeen("the plugins of the networks: %v", err)
			return
		}
		for _, n := range answer.Networks {
			add(n.Namespace+"/"+n.Name, n.Pods > 0, append(append([]string{}, n.Types...), n.IPAM...)...)
		}
		d.Unseen = append(d.Unseen, leftOut(answer.LeftOut, "network")...)
		return
	}
	if d.API == nil {
		d.notSeen("the plugins of the networks (neither an agent nor --kubeconfig)")
		return
	}
	nads, err := d.API.List(ctx, rest.NADs(), "")
	if err != nil {
		d.notSeen("the plugins of the networks: %v", err)
		return
	}
	for _, nad := range nads {
		n := network(nad)
		add(n.Namespace+"/"+n.Name, false, append(n.Types, n.ipam...)...)
	}
}

// checkMultus looks for what Multus left.
func (d *doctor) checkMultus() {
	const check = "multus"
	for _, c := range d.files {
		if c.multus() && !c.alias {
			d.add(ResultWarn, check, fmt.Sprintf("%s of %s is Multus'", c.name, d.ConfDir), "delete Multus' DaemonSet, then the file: docs/migrate-from-multus.md")
		}
	}
	for _, path := range []string{filepath.Join(d.ConfDir, "multus.d"), "/run/multus/multus.sock"} {
		if _, err := os.Lstat(d.root.path(path)); err == nil {
			d.add(ResultWarn, check, path+" is Multus'", "delete Multus' DaemonSet, then this")
		}
	}
	own := d.own
	if own == nil {
		own = netconf.Defaults()
	}
	left, err := scratch.List(d.root.path(own.CNIDir))
	switch {
	case err != nil:
		d.notSeen("what Multus remembers in %s: %v", own.CNIDir, cause(err))
	case len(left) > 0:
		d.info(check, "%s in %s: Weft's DEL of these sandboxes uses them, and removes them", count(len(left), "file of Multus"), own.CNIDir)
	}
}

// isWeft says that the binary which a configuration of Multus names is Weft's.
func (d *doctor) isWeft(types []string) bool {
	for _, name := range types {
		if at, err := d.root.program(name, d.BinDir); err == nil && (name == "multus" || name == "multus-shim") {
			pkg, _, err := program(at)
			return err == nil && strings.HasSuffix(pkg, "/cmd/weft-cni")
		}
	}
	return false
}
