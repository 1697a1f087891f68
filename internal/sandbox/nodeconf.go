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
		switch own := len(ownPlugins(file.data)) > 0; {
		case own && f.own == nil:
			f.own = &file
		case !own && f.pods == "":
			f.pods = file.path
			fallthrough
		default:
			f.all = append(f.all, file)
		}
	}
	sub := filepath.Join(dir, "net.d")
	if info, err := os.Stat(sub); err != nil || !info.IsDir() {
		return f, nil
	}
	f.confDir = sub
	files, err = f.read(sub)
	f.all = append(f.all, files...)
	return f, err
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

// ownPlugins gives the objects of a configuration whose type is one of the names that weft-cni
// answers to; none for what is no configuration.
func ownPlugins(data []byte) (own []*netconf.Object) {
	o, err := netconf.ParseObject(data)
	if err != nil {
		return nil
	}
	objects := []*netconf.Object{o}
	if list, ok := o.Get("plugins"); ok {
		objects = nil
		elements, err := netconf.Elements(list)
		if err != nil {
			return nil
		}
		for _, e := range elements {
			if plugin, err := netconf.Inner(e); err == nil {
				objects = append(objects, plugin)
			}
		}
	}
	for _, plugin := range objects {
		raw, _ := plugin.Get("type")
		var name string
		if json.Unmarshal(raw, &name) == nil && slices.Contains([]string{"weft-cni", "multus", "multus-shim"}, name) {
			own = append(own, plugin)
		}
	}
	return own
}

// runtimeConf is the configuration that the runtime calls weft-cni with: the directory's own,
// at home in the sandbox, else the one that the node's agent would publish.
func (f *nodeFiles) runtimeConf(binDir string) (*libcni.NetworkConfigList, error) {
	plugin, err := netconf.ParseObject([]byte(`{"cniVersion":"1.1.0","name":"weft","type":"weft-cni","capabilities":{"` + annotationsCapability + `":true}}`))
	if err != nil {
		return nil, fmt.Errorf("make configuration: %w", err)
	}
	if f.own != nil {
		plugin = ownPlugins(f.own.data)[0]
		if err := inherit(plugin, f.own.data); err != nil {
			return nil, fmt.Errorf("read configuration %s: %w", f.own.path, err)
		}
	}
	f.moveIn(plugin, binDir)
	conf, err := libcni.NetworkPluginConfFromBytes(plugin.Bytes())
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	list, err := libcni.ConfListFromConf(conf)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return list, nil
}

// inherit gives a plugin what a list says for all of its plugins.
func inherit(plugin *netconf.Object, file []byte) error {
	list, err := netconf.ParseObject(file)
	if err != nil {
		return err
	}
	for _, key := range []string{"cniVersion", "name"} {
		if value, ok := list.Get(key); ok {
			plugin.Set(key, value)
		}
	}
	return nil
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
