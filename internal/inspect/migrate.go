// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/weftnet/weft/internal/cni/confpub"
	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
)

// Migrate looks at a node that is to change over from Multus, or has, and says what stands
// in the way (a fault), what will be different (a warning) and what is well. It changes nothing.
func Migrate(ctx context.Context, o DoctorOptions) *Checkup {
	d := &doctor{DoctorOptions: o, Checkup: newCheckup(), root: hostRoot(o.Root)}
	_ = d.askAgent(ctx) // before the change there is none, and after it doctor says why
	d.readConfs()
	d.choosePaths()
	d.findAliases()
	m := &migration{doctor: d, cniDir: o.CNIDir, needs: needs{}}
	m.readMultus()
	m.readDaemon()
	m.checkKeys()
	m.checkDefaultNetwork()
	m.checkNames()
	m.checkScratch()
	m.checkSandboxes()
	m.checkObjects(ctx)
	m.findPlugins(m.needs)
	m.checkBinaries()
	m.checkWriters()
	m.checkSELinux()
	return m.Checkup
}

// migration is a doctor that knows Multus.
type migration struct {
	*doctor
	file   string          // the configuration of Multus that the runtime takes, "" = none
	keys   *netconf.Object // its keys, with those of the daemon's configuration over them
	from   map[string]string
	cniDir string
	needs  needs
}

// addAt is add for what stands in a field of an object.
func (c *Checkup) addAt(result, check, object, field, text, do string) {
	said := (&fault.Fault{Object: object, Field: field, Text: text}).Error()
	c.Checks = append(c.Checks, Check{Check: check, Result: result, Object: object, Field: field, Text: oneLine(said), Do: do})
}

// readMultus reads Multus' own configurations; the first is the one that counts.
func (m *migration) readMultus() {
	const check = "multus conf"
	m.keys, m.from = &netconf.Object{}, map[string]string{}
	for _, c := range m.files {
		path := filepath.Join(m.ConfDir, c.name)
		switch {
		case c.err != nil && strings.Contains(c.name, "multus"):
			m.addAt(ResultFault, check, "file "+path, "", first(c.err), "mend it, or delete it once nothing reads it: the runtime takes the first file that it can read")
		case !c.multus() || c.alias:
		case m.file != "":
			m.addAt(ResultWarn, check, "file "+path, "", "is a second configuration of Multus, after "+m.file, "delete it with the first one")
		default:
			m.file = path
			if o, err := netconf.ParseObject(c.own.Bytes()); err == nil { // readDaemon edits it
				m.keys = o
			}
			for _, key := range c.own.Keys() {
				m.from[key] = "file " + path
			}
			m.ok(check, "%s calls %s", path, strings.Join(c.types, ", "))
		}
	}
	if m.file == "" {
		m.info(check, "%s holds no configuration that calls Multus", m.ConfDir)
	}
}

// daemonPath is where Multus' daemon looks for its configuration below confDir.
const daemonPath = "multus.d/daemon-config.json"

// readDaemon lays the keys of the daemon's configuration over those of the file.
func (m *migration) readDaemon() {
	const check = "multus daemon"
	path := cmp.Or(m.DaemonConf, filepath.Join(m.ConfDir, daemonPath))
	b, err := m.readFile(path)
	if err != nil {
		if shim, _ := m.keys.Get("type"); string(shim) == `"multus-shim"` || m.DaemonConf != "" {
			m.notSeen("the configuration of Multus' daemon, which has keys of its own: %s%s: %v (it may be in a ConfigMap alone: write it to a file, and name that with --daemon-config)", string(m.root), path, err)
		}
		return
	}
	o, err := netconf.ParseObject(b)
	if err != nil {
		m.addAt(ResultFault, check, "file "+path, "", err.Error(), "mend it: what it says cannot be compared")
		return
	}
	m.ok(check, "%s is read", path)
	for _, key := range o.Keys() {
		value, _ := o.Get(key)
		m.keys.Set(key, value)
		m.from[key] = "file " + path
	}
}

// daemonKeys are those of Multus' daemon and its shim alone; Weft needs nothing like them.
func daemonKeys() []string {
	return []string{
		"chrootDir", "socketDir", "daemonSocketDir", "perNodeCertificate", "connectionLimit", "metricsPort", "enablePprof", "multusConfigFile",
		"cniConfigDir", "multusAutoconfigDir", "multusMasterCNI", "forceCNIVersion", "overrideNetworkName",
	}
}

// checkKeys says of every key what becomes of it.
func (m *migration) checkKeys() {
	const check = "multus keys"
	own := m.weftKeys()
	var idle, carried []string
	for _, key := range m.keys.Keys() {
		raw, _ := m.keys.Get(key)
		switch {
		case slices.Contains(daemonKeys(), key), slices.Contains(ownKeys(), key):
			idle = append(idle, key)
		case !slices.ContainsFunc(netconf.Keys(), func(k netconf.Key) bool { return k.Name == key }):
			m.addAt(ResultWarn, check, m.from[key], key, "is no key that Weft knows, and none of Multus v4.3", "see whether somebody misspelt a key; Weft ignores it with a warning")
		case m.isDefault(key, string(raw)):
		case m.carry(check, key, string(raw), own):
			carried = append(carried, key)
		}
	}
	m.checkValues(check)
	if len(carried) > 0 {
		m.ok(check, "Weft's configuration says the same of %s", strings.Join(carried, ", "))
	}
	if len(idle) > 0 {
		m.info(check, "nothing takes the place of %s: the agent finds or knows these itself", strings.Join(idle, ", "))
	}
}

// ownKeys are those for which the agent needs no counterpart, or that are looked at elsewhere.
func ownKeys() []string {
	return []string{"cniVersion", "name", "type", "capabilities", "kubeconfig", "delegates", "clusterNetwork", "runtimeConfig", "prevResult", "args", "ipam", "dns"}
}

// weftKeys are the keys of Weft's published configuration, nil when there is none.
func (m *migration) weftKeys() *netconf.Object {
	for _, c := range m.files {
		if c.own != nil && c.weft() {
			return c.own
		}
	}
	return nil
}

// isDefault says that a value is what Weft takes when the key is not there.
func (m *migration) isDefault(key, raw string) bool {
	if raw == "null" || raw == `""` {
		return true
	}
	for _, k := range netconf.Keys() {
		if k.Name == key && k.Default != "" {
			return strings.TrimSuffix(strings.Trim(compact(raw), `"`), "/") == k.Default
		}
	}
	return false
}

// compact is JSON without spaces, but for those in strings, of which no value here has any.
func compact(raw string) string { return strings.Join(strings.Fields(raw), "") }

// grave are the keys without which pods get what they should not, or what Multus attached is
// not found again.
func grave() []string { return []string{"namespaceIsolation", "cniDir"} }

// carry says whether Weft's configuration has the key's value; if not, what to do.
func (m *migration) carry(check, key, raw string, own *netconf.Object) bool {
	do := fmt.Sprintf("set cni.%s: %s in the agent's configuration", key, compact(raw))
	if path := strings.Trim(raw, `"`); strings.HasPrefix(path, "/host/") || strings.HasPrefix(path, "/hostroot/") {
		m.addAt(ResultWarn, check, m.from[key], key, "is "+path+", as the daemon's container sees it", "set cni."+key+" in the agent's configuration, to the path that the node knows it under")
		return false
	}
	if own == nil {
		m.addAt(ResultWarn, check, m.from[key], key, "is "+compact(raw)+", and Weft is to have it", do)
		return false
	}
	if have, ok := own.Get(key); ok && compact(string(have)) == compact(raw) {
		return true
	}
	result := ResultWarn
	if slices.Contains(grave(), key) {
		result = ResultFault
	}
	m.addAt(result, check, m.from[key], key, "is "+compact(raw)+", and Weft's configuration says otherwise", do)
	return false
}

// checkValues says what Weft would refuse in a value.
func (m *migration) checkValues(check string) {
	if m.file == "" {
		return
	}
	conf, _, err := netconf.Parse(m.keys.Bytes())
	if conf != nil {
		m.cniDir = cmp.Or(m.cniDir, conf.CNIDir)
	}
	for _, f := range fault.All(err) {
		if !strings.HasPrefix(f.Field, "delegates") {
			m.addAt(ResultFault, check, cmp.Or(m.from[f.Field], "file "+m.file), f.Field, f.Text, "mend it before Weft is to have it")
		}
	}
}

// checkNames says which file the runtime takes when Multus' is gone.
func (m *migration) checkNames() {
	const check = "conf name"
	name := "00-weft.conflist"
	for _, c := range m.files {
		if c.weft() && !c.multus() {
			name = c.name
			break
		}
	}
	for _, c := range m.files {
		switch {
		case c.name >= name:
		case c.multus() && !c.alias:
			m.info(check, "%s sorts before %s: the runtime calls Multus until that file is gone", c.name, name)
		case !c.weft() && !strings.Contains(c.name, "multus"):
			m.addAt(ResultFault, check, "file "+filepath.Join(m.ConfDir, c.name), "", "sorts before "+name+": the runtime takes it, not Weft, when Multus' file is gone",
				"set cni.confName of the agent to a name that comes before it")
		}
	}
}

// checkBinaries looks at who answers to Multus' names.
func (m *migration) checkBinaries() {
	const check = "multus programs"
	crio := slices.ContainsFunc([]string{"/run/crio/crio.sock", "/var/run/crio/crio.sock"}, func(path string) bool {
		_, err := os.Lstat(m.root.path(path))
		return err == nil
	})
	for _, name := range []string{"multus", "multus-shim"} {
		at, err := m.root.program(name, m.BinDir)
		switch {
		case err != nil:
		case m.isWeft([]string{name}):
			m.ok(check, "%s is Weft's", at)
		case crio:
			m.addAt(ResultWarn, check, "file "+at, "", "is Multus', and CRI-O deletes a pod by the configuration that attached it, so by this program",
				"once Multus' DaemonSet is gone from the node, put weft-cni in its place: docs/migrate-from-multus.md")
		default:
			m.info(check, "%s is Multus'; nothing calls it when its configuration is gone", at)
		}
	}
}

// checkWriters looks whether Multus runs beside Weft: both would write network-status and confDir.
func (m *migration) checkWriters() {
	const check, socket = "multus runs", "/run/multus/multus.sock"
	running := ""
	at := m.root.path(socket)
	if _, err := os.Lstat(at); err == nil {
		running = socket + " is there"
	}
	if conn, err := net.DialTimeout("unix", at, time.Second); err == nil {
		conn.Close() //nolint:errcheck // nothing was said
		running = socket + " takes connections"
	}
	if running == "" && m.root.here() {
		if name := processOf("multus-daemon", "thin_entrypoint"); name != "" {
			running = "a process " + name + " is there"
		}
	}
	switch {
	case running == "":
		m.ok(check, "no daemon of Multus is seen")
	case m.weftKeys() != nil:
		m.addAt(ResultWarn, check, "Multus' DaemonSet", "", running+", and Weft's configuration is published: until one is gone, a restart of Multus' pod may make it call Weft",
			"take Multus off this node now: docs/migrate-from-multus.md")
	default:
		m.info(check, "%s: it is to be gone from the node once Weft's configuration is there", running)
	}
}

// processOf is the first of the names that a process of this machine has, "" = none.
func processOf(names ...string) string {
	files, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return ""
	}
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && slices.Contains(names, strings.TrimSpace(string(b))) {
			return strings.TrimSpace(string(b))
		}
	}
	return ""
}

func (m *migration) checkSELinux() {
	b, err := os.ReadFile(m.root.path("/sys/fs/selinux/enforce"))
	if err == nil && strings.TrimSpace(string(b)) == "1" {
		m.info("selinux", "the node enforces SELinux, which was not tried: docs/install.md says what the agent's pod has for it")
	}
}

// checkDefaultNetwork compares what Multus attaches as eth0 with what Weft would.
func (m *migration) checkDefaultNetwork() {
	const check = "default network"
	var files []confpub.File
	for _, c := range m.files {
		path := filepath.Join(m.ConfDir, c.name)
		b, err := m.readFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		files = append(files, confpub.File{Path: path, Data: b, Err: err})
	}
	choice := confpub.Find(files, "")
	for _, err := range choice.Skipped {
		m.add(ResultWarn, check, first(err), "mend or remove it: Weft passes it over")
	}
	switch {
	case errors.Is(choice.Fault, confpub.ErrNone):
		m.addAt(ResultFault, check, "directory "+m.ConfDir, "", "has no configuration but those of Multus and Weft, and the pod network's own is needed",
			"put it back: Multus' rename-conf-file gives it another name")
		return
	case choice.Fault != nil:
		m.add(ResultFault, check, first(choice.Fault), "name the pod network's own file in cni.primaryConf of the agent")
		return
	}
	network, err := netconf.ParseNetwork(choice.Primary, "")
	if err != nil {
		return // Find would have said so
	}
	for _, p := range network.Plugins {
		m.needs.add("the default network", true, p.Type, p.IPAM)
	}
	m.compareDefault(check, choice.Path, network.Name)
}

// What is wrong when Multus calls Weft, and what to do.
const (
	attachedTwice = "leads to Weft's own configuration: each pod would be attached twice"
	takeMultusOff = "Multus chose it when it started after Weft's was there: take Multus off this node"
)

// compareDefault says whether Multus' default network is that of the file that Weft takes.
func (m *migration) compareDefault(check, path, name string) {
	cluster, other, well := text(m.keys, "clusterNetwork"), "", true
	base := filepath.Base(cluster)
	switch {
	case m.file == "":
	case strings.Contains(cluster, "/"):
		if i := slices.IndexFunc(m.files, func(c nodeConf) bool { return c.name == base }); i >= 0 && m.files[i].weft() {
			m.addAt(ResultFault, check, "file "+m.file, "clusterNetwork", attachedTwice, takeMultusOff)
			return
		}
		if base != filepath.Base(path) {
			other = cluster
		}
	case cluster != "":
		if cluster != name {
			other = cluster + ", which is no file of " + m.ConfDir
		}
	default:
		other, well = m.compareDelegates(check, name)
	}
	switch {
	case !well:
	case other != "":
		m.addAt(ResultWarn, check, "file "+m.file, "", fmt.Sprintf("Multus' default network is %s, Weft takes %s, network %s", other, path, name),
			"name the right file in cni.primaryConf of the agent")
	default:
		m.ok(check, "Weft takes %s, network %s", path, name)
	}
}

// compareDelegates says what Multus' first delegate is when it is not the network of that name;
// well is false when it is Weft.
func (m *migration) compareDelegates(check, name string) (other string, well bool) {
	object := "file " + m.file
	raw, _ := m.keys.Get("delegates")
	delegates, err := netconf.Elements(raw)
	if err != nil || len(delegates) == 0 {
		return "", true
	}
	o, err := netconf.Inner(delegates[0])
	if err == nil && slices.Contains(typesOf(o), "weft-cni") {
		m.addAt(ResultFault, check, object, "delegates[0]", attachedTwice, takeMultusOff)
		return "", false
	}
	if len(delegates) > 1 {
		m.addAt(ResultWarn, check, object, "delegates", fmt.Sprintf("has %d networks, and Weft takes the first as the pod network alone", len(delegates)),
			"make NetworkAttachmentDefinitions of the others, and name them in cni.defaultNetworks of the agent")
	}
	if err == nil && text(o, "name") != name {
		return "that of delegates[0], " + fault.Quote(text(o, "name")), true
	}
	return "", true
}
