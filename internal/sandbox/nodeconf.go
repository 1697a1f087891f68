// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/libcni"

	"github.com/weftnet/weft/internal/cni/hostfiles"
	"github.com/weftnet/weft/internal/cni/netconf"
)

// nodeFiles is what the directory holds of a node's configuration directories.
type nodeFiles struct {
	dir     string
	confDir string     // for NADs without spec.config: its sub-directory net.d, else dir itself
	own     *confFile  // Weft's own configuration, nil when the sandbox writes one
	pods    string     // the pod network, "" when the sandbox makes one
	all     []confFile // besides Weft's own
	faults  []error    // files that cannot be read
}

type confFile struct {
	path string
	data []byte
}

// findFiles looks at *.conf and *.conflist of dir, in the order of their names: the first of
// Weft's own type is its configuration, the first other one is the pod network.
func findFiles(dir string) (*nodeFiles, error) {
	f := &nodeFiles{dir: dir, confDir: dir}
	files, err := f.read(dir)
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		switch own := isOwn(file.data); {
		case own && f.own == nil:
			f.own = &file
		case !own && f.pods == "":
			f.pods = file.path
			fallthrough
		default:
			f.all = append(f.all, file)
		}
	}
	if sub := filepath.Join(dir, "net.d"); isDir(sub) {
		f.confDir = sub
		files, err = f.read(sub)
		f.all = append(f.all, files...)
	}
	return f, err
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// read reads the files of a directory that hold configurations, sorted.
func (f *nodeFiles) read(dir string) ([]confFile, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("find configurations: %w", err)
	}
	defer root.Close()
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("find configurations: %w", err)
	}
	var files []confFile
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); e.IsDir() || ext != ".conf" && ext != ".conflist" {
			continue
		}
		path := filepath.Join(dir, e.Name())
		data, err := hostfiles.ReadRegular(root, e.Name(), netconf.MaxBytes)
		if err != nil {
			f.faults = append(f.faults, fmt.Errorf("file %s: %w", path, hostfiles.Cause(err)))
			continue
		}
		files = append(files, confFile{path, data})
	}
	return files, nil
}

// isOwn tells whether a configuration is Weft's: one of its plugins has a name that weft-cni
// answers to. What is no configuration is not.
func isOwn(data []byte) bool {
	_, plugins, err := asList(data)
	return err == nil && slices.ContainsFunc(plugins, isWeft)
}

func isWeft(plugin *netconf.Object) bool {
	raw, _ := plugin.Get("type")
	var name string
	return json.Unmarshal(raw, &name) == nil && slices.Contains([]string{"weft-cni", "multus", "multus-shim"}, name)
}

// asList reads a configuration in either form as a list and its plugins.
func asList(data []byte) (list *netconf.Object, plugins []*netconf.Object, err error) {
	o, err := netconf.ParseObject(data)
	if err != nil {
		return nil, nil, err
	}
	raw, ok := o.Get("plugins")
	if !ok {
		list, err = netconf.ParseObject([]byte("{}"))
		if err == nil {
			inherit(list, o)
		}
		return list, []*netconf.Object{o}, err
	}
	elements, err := netconf.Elements(raw)
	if err != nil {
		return nil, nil, fmt.Errorf("plugins %w", err)
	}
	for at, e := range elements {
		plugin, err := netconf.Inner(e)
		if err != nil {
			return nil, nil, fmt.Errorf("plugins[%d] %w", at, err)
		}
		inherit(plugin, o)
		plugins = append(plugins, plugin)
	}
	return o, plugins, nil
}

// inherit takes over what a list says for its plugins, and a plugin alone for its list.
func inherit(to, from *netconf.Object) {
	for _, key := range []string{"cniVersion", "name"} {
		if value, ok := from.Get(key); ok {
			to.Set(key, value)
		}
	}
}

// runtimeConf is the configuration that the runtime calls weft-cni with: the directory's own,
// at home in the sandbox, else the one that the node's agent would publish.
func (f *nodeFiles) runtimeConf(binDir string) (*libcni.NetworkConfigList, error) {
	conf := confFile{"of the sandbox", []byte(`{"cniVersion":"1.1.0","name":"weft","type":"weft-cni",` +
		`"capabilities":{"` + annotationsCapability + `":true}}`)}
	if f.own != nil {
		conf = *f.own
	}
	list, plugins, err := asList(conf.data)
	if err != nil {
		return nil, fmt.Errorf("read configuration %s: %w", conf.path, err)
	}
	all := make([]json.RawMessage, 0, len(plugins))
	for _, plugin := range plugins {
		if isWeft(plugin) {
			f.moveIn(plugin, binDir)
		}
		all = append(all, plugin.Bytes())
	}
	raw, err := json.Marshal(all)
	if err != nil {
		return nil, fmt.Errorf("encode configuration %s: %w", conf.path, err)
	}
	list.Set("plugins", raw)
	network, err := libcni.NetworkConfFromBytes(list.Bytes())
	if err != nil {
		return nil, fmt.Errorf("read configuration %s: %w", conf.path, err)
	}
	return network, nil
}

// moveIn changes those keys that name the node's places: binaries and records are the
// sandbox's, pods and networks come from the directory, and a file that the directory has
// stands for the node's of the same name. There is neither an agent nor an API server.
func (f *nodeFiles) moveIn(plugin *netconf.Object, binDir string) {
	for key, value := range map[string]string{
		"type": "weft-cni", "binDir": binDir, "stateDir": stateDir, "manifests": f.dir, "confDir": f.confDir,
	} {
		plugin.Set(key, netconf.String(value))
	}
	plugin.Delete("kubeconfig")
	plugin.Delete("agentSocket")
	for _, key := range []string{"clusterNetwork", "readinessindicatorfile"} {
		raw, _ := plugin.Get(key)
		var path string
		if json.Unmarshal(raw, &path) == nil {
			plugin.Set(key, netconf.String(f.here(path)))
		}
	}
	raw, _ := plugin.Get("defaultNetworks")
	if names, err := netconf.Strings(raw); err == nil {
		for i, name := range names {
			names[i] = f.here(name)
		}
		if list, err := json.Marshal(names); err == nil {
			plugin.Set("defaultNetworks", list)
		}
	}
	_, cluster := plugin.Get("clusterNetwork")
	if _, delegates := plugin.Get("delegates"); !cluster && !delegates {
		plugin.Set("clusterNetwork", netconf.String(f.podFile()))
	}
}

// here is the directory's file of the same name as an absolute path of a node, where it has one.
func (f *nodeFiles) here(path string) string {
	if !filepath.IsAbs(path) {
		return path
	}
	if own := filepath.Join(f.dir, filepath.Base(path)); exists(own) {
		return own
	}
	return path
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// podFile is the file of the pod network.
func (f *nodeFiles) podFile() string {
	if f.pods != "" {
		return f.pods
	}
	return clusterFile
}

// networks are those of all files, and those inside Weft's own configuration. Broken ones
// are left out: what is wrong with them is shown by who uses them.
func (f *nodeFiles) networks(own *libcni.NetworkConfigList) []netconf.Network {
	var all []netconf.Network
	for _, file := range f.all {
		if network, err := netconf.ParseNetwork(file.data, file.path); err == nil {
			all = append(all, network)
		}
	}
	for _, p := range own.Plugins {
		if conf, _, err := netconf.Parse(p.Bytes); err == nil {
			all = append(all, conf.Delegates...)
		}
	}
	return all
}
