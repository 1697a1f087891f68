// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hostfiles reads the configuration files of the host that a plan needs:
// those of confDir, the cluster network's, and the directories of chained plugins
// beside them.
//
// Invariants: only what the configuration names is read, whatever a planner asks
// for; a symbolic link that leads out of a configured directory is refused; only
// regular files are opened, so that a FIFO or a device never hangs a call; sizes
// and numbers are bounded. A file that is broken or refused is a warning that names
// it, and the files beside it are used; but a configuration one of whose chained
// plugins is broken is not used at all, because a network without a part of its
// chain (its firewall, say) is not the one that was asked for.
//
// It decides nothing about networks: what it found is judged by plan.
//
// Implements: spec/cni.md 1.8, rule 2; plan.Need.
package hostfiles

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/plan"
)

// maxFiles bounds how many candidates of one directory are looked at.
const maxFiles = 1024

// Read answers need. It never fails: what is wrong is in the Warnings, and Found
// is false when nothing usable was there. clusterFile is the Path of the answer
// to the cluster network's own need, "" when that is no file.
func Read(conf *netconf.Conf, need plan.Need, clusterFile string) plan.File {
	r := &reader{file: plan.File{Need: need}}
	kind, rest, _ := strings.Cut(string(need), "/")
	switch kind {
	case "confDir":
		r.inDir(conf.ConfDir, rest)
	case "path":
		r.path(conf, rest)
	case "chain":
		r.chain(clusterFile, rest)
	default:
		r.warn("need "+fault.Quote(string(need)), "", "a planner asks for what this version cannot read")
	}
	return r.file
}

// reader collects one answer.
type reader struct {
	file plan.File
}

func (r *reader) warn(object, field, format string, args ...any) {
	r.file.Warnings = append(r.file.Warnings, fault.Warning{Object: object, Field: field, Text: fmt.Sprintf(format, args...)})
}

// inDir looks for the conf of that name in dir, or takes the first usable one
// when name is "".
func (r *reader) inDir(dir, name string) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		r.warn("directory "+dir, "", "%v", Cause(err))
		return
	}
	defer root.Close()
	for _, base := range r.list(root, ".", ".conf", ".conflist", ".json") {
		path := filepath.Join(dir, base)
		data, err := ReadRegular(root, base, plan.MaxConfBytes)
		if err != nil {
			r.warn("file "+path, "", "%v; it is skipped", Cause(err))
			continue
		}
		network, err := netconf.ParseNetwork(data, "file "+path)
		switch {
		case err != nil && (name == "" || !named(data, name)):
			r.skip(path, err)
		case err != nil: // the one that was meant: plan says what is wrong with it
			r.found(path, data)
			return
		case name == "" || network.Name == name:
			if r.use(root, path, data, network) {
				return
			}
		}
	}
}

// path reads what clusterNetwork or defaultNetworks names by a path: a file, or a directory.
func (r *reader) path(conf *netconf.Conf, path string) {
	if !filepath.IsAbs(path) {
		path = "/" + path // path/etc/x and path//etc/x are the same need
	}
	same := func(s string) bool { return filepath.IsAbs(s) && filepath.Clean(s) == filepath.Clean(path) }
	if !same(conf.ClusterNetwork) && !slices.ContainsFunc(conf.DefaultNetworks, same) {
		r.warn("file "+path, "", "a planner asks for it and the configuration names no such absolute path")
		return
	}
	path = filepath.Clean(path)
	info, err := os.Stat(path)
	if err != nil {
		r.warn("file "+path, "", "%v", Cause(err))
		return
	}
	if info.IsDir() {
		r.inDir(path, "")
		return
	}
	// The administrator named this very file: a link is followed wherever it leads.
	data, err := readRegular(os.Stat, os.OpenFile, path, plan.MaxConfBytes)
	if err != nil {
		r.warn("file "+path, "", "%v", Cause(err))
		return
	}
	network, err := netconf.ParseNetwork(data, "file "+path)
	if err != nil {
		r.found(path, data)
		return
	}
	root, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		r.warn("directory "+filepath.Dir(path), "", "%v", Cause(err))
		return
	}
	defer root.Close()
	r.use(root, path, data, network)
}

// chain reads the plugins of the auxiliary chain, in a directory beside the
// cluster network's file. The chain is an addition to that network: a broken
// file is left out, and the others are used.
func (r *reader) chain(clusterFile, name string) {
	object := "auxiliary chain " + fault.Quote(name)
	if clusterFile == "" {
		r.warn(object, "", "the cluster network is no file, so there is no directory beside it")
		return
	}
	if !dirName(name) {
		r.warn(object, "", "the name cannot be that of a directory")
		return
	}
	dir := filepath.Dir(clusterFile)
	root, err := os.OpenRoot(dir)
	if err != nil {
		r.warn("directory "+dir, "", "%v", Cause(err))
		return
	}
	defer root.Close()
	plugins, faults := r.chained(root, name)
	for _, err := range faults {
		r.warn(object, "", "%v; it is left out", err)
	}
	r.file.Path, r.file.Chained, r.file.Found = filepath.Join(dir, name), plugins, len(plugins) > 0
}

// use takes a conf together with its chained plugins, unless one of those is broken.
func (r *reader) use(root *os.Root, path string, data []byte, network netconf.Network) bool {
	// Sub-directories belong to lists alone, as libcni has it.
	if filepath.Ext(path) == ".conflist" && !network.LoadOnlyInlinedPlugins && dirName(network.Name) {
		plugins, faults := r.chained(root, network.Name)
		if len(faults) > 0 {
			r.skip(path, faults[0])
			return false
		}
		r.file.Chained = plugins
	}
	r.found(path, data)
	return true
}

func (r *reader) found(path string, data []byte) {
	r.file.Found, r.file.Path, r.file.Data = true, path, data
}

func (r *reader) skip(path string, err error) {
	w := fault.Warning{Object: "file " + path, Text: err.Error() + "; it is skipped"}
	if fs := fault.All(err); len(fs) > 0 {
		w.Field, w.Text = fs[0].Field, fs[0].Text+"; it is skipped"
	}
	r.file.Warnings = append(r.file.Warnings, w)
}

// chained reads the plugin objects of <root>/<dir>/*.conf, sorted by file name,
// and says what is wrong with each that is unusable. A directory that is not
// there holds none.
func (r *reader) chained(root *os.Root, dir string) (plugins [][]byte, faults []error) {
	if _, err := root.Lstat(dir); err != nil {
		if os.IsNotExist(err) {
			return nil, nil
		}
		return nil, []error{fmt.Errorf("chained plugins of %s: %w", filepath.Join(root.Name(), dir), Cause(err))}
	}
	size := 0
	for _, base := range r.list(root, dir, ".conf") {
		path := filepath.Join(root.Name(), dir, base)
		data, err := ReadRegular(root, filepath.Join(dir, base), plan.MaxConfBytes)
		if err != nil {
			faults = append(faults, fmt.Errorf("chained plugin %s: %w", path, Cause(err)))
			continue
		}
		if err := plugin(data, path); err != nil {
			faults = append(faults, err)
			continue
		}
		if size += len(data); size > plan.MaxConfBytes {
			faults = append(faults, fmt.Errorf("chained plugin %s: the chain is larger than %d bytes", path, plan.MaxConfBytes))
			break
		}
		plugins = append(plugins, data)
	}
	return plugins, faults
}

// plugin tells why data is not one plugin object.
func plugin(data []byte, path string) error {
	network, err := netconf.ParseNetwork(data, "chained plugin "+path)
	if err != nil {
		return err
	}
	if o, err := netconf.ParseObject(data); err == nil {
		if _, list := o.Get("plugins"); list || len(network.Plugins) != 1 {
			return fmt.Errorf("chained plugin %s: a list of plugins stands where one plugin belongs", path)
		}
	}
	return nil
}

// list returns the names in dir that end in one of exts, sorted.
func (r *reader) list(root *os.Root, dir string, exts ...string) []string {
	object := "directory " + filepath.Join(root.Name(), dir)
	d, err := root.Open(dir)
	if err != nil {
		r.warn(object, "", "%v", Cause(err))
		return nil
	}
	defer d.Close()
	all, err := d.Readdirnames(-1)
	if err != nil {
		r.warn(object, "", "%v", Cause(err))
	}
	names := slices.DeleteFunc(all, func(n string) bool { return !slices.Contains(exts, filepath.Ext(n)) })
	slices.Sort(names)
	if len(names) > maxFiles {
		r.warn(object, "", "only the first %d of %d files are looked at", maxFiles, len(names))
		names = names[:maxFiles]
	}
	return names
}

// named tells whether a conf that is otherwise broken has this name.
func named(data []byte, name string) bool {
	o, err := netconf.ParseObject(data)
	if err != nil {
		return false
	}
	raw, ok := o.Get("name")
	return ok && string(raw) == `"`+name+`"`
}

// dirName tells whether a network's name can be that of a directory: CNI's own rule for names.
func dirName(name string) bool {
	for i, c := range []byte(name) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && (i == 0 || !strings.ContainsRune("_.-", rune(c))) {
			return false
		}
	}
	return name != ""
}
