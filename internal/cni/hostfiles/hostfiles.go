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
// it, and the files beside it are used; but a chained plugin is never left out of
// its network, which without it (a firewall, say) would not be what was asked for.
//
// It decides nothing about networks: what it found is judged by plan.
//
// Implements: spec/cni.md 1.8, rule 2; plan.Need.
package hostfiles

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/host/brief"
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
		if conf.ClusterNetwork == "" && conf.PrimaryConf != "" {
			clusterFile = conf.PrimaryConf // of which the delegate is a copy
		}
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
		case name != "" && (network.Name == name || err != nil && named(data, name)):
			// The one that was meant. If it is broken, plan says how.
			if r.use(root, path, data, network, err) {
				return
			}
		case err != nil && !errors.Is(err, netconf.ErrNoPlugins):
			r.skip(path, err)
		case name == "":
			if r.usable(root, path, data, network, err) {
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
	data, err := readRegular(os.Stat, brief.OpenFile, path, plan.MaxConfBytes)
	if err != nil {
		r.warn("file "+path, "", "%v", Cause(err))
		return
	}
	network, broken := netconf.ParseNetwork(data, "file "+path)
	root, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		r.warn("directory "+filepath.Dir(path), "", "%v", Cause(err))
		return
	}
	defer root.Close()
	r.use(root, path, data, network, broken)
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
	for _, c := range r.chained(root, name) {
		if c.err != nil {
			r.warn(object, "", "%v; it is left out", c.err)
			continue
		}
		r.file.Chained = append(r.file.Chained, c.data)
	}
	if len(r.file.Chained) > 0 {
		r.file.Path, r.file.Found = filepath.Join(dir, name), true
	}
}

// usable is use for a conf that nobody named: it must be whole.
func (r *reader) usable(root *os.Root, path string, data []byte, network netconf.Network, broken error) bool {
	if !r.use(root, path, data, network, broken) {
		return false
	}
	if _, err := netconf.ParseFile(data, r.file.Chained, "file "+path); err != nil {
		r.file = plan.File{Need: r.file.Need, Warnings: r.file.Warnings}
		r.skip(path, err)
		return false
	}
	return true
}

// use takes a conf together with its chained plugins. A chained plugin that is
// broken goes along, for plan to refuse; when one cannot be read at all, the conf
// is not taken. broken is what netconf said of the conf itself.
func (r *reader) use(root *os.Root, path string, data []byte, network netconf.Network, broken error) bool {
	// Sub-directories belong to lists alone, as libcni has it.
	list := filepath.Ext(path) == ".conflist" && (broken == nil || errors.Is(broken, netconf.ErrNoPlugins))
	var chain [][]byte
	if list && !network.LoadOnlyInlinedPlugins && dirName(network.Name) {
		for _, c := range r.chained(root, network.Name) {
			switch {
			case c.data == nil:
				r.skip(path, c.err)
				return false
			case c.err != nil:
				r.warn("file "+path, "", "%v", c.err)
			}
			chain = append(chain, c.data)
		}
	}
	r.file.Found, r.file.Path, r.file.Data, r.file.Chained = true, path, data, chain
	return true
}

func (r *reader) skip(path string, err error) {
	w := fault.Warning{Object: "file " + path, Text: err.Error() + "; it is skipped"}
	if fs := fault.All(err); len(fs) > 0 {
		w.Field, w.Text = fs[0].Field, fs[0].Text+"; it is skipped"
	}
	r.file.Warnings = append(r.file.Warnings, w)
}

// chainedFile is one file of a directory of chained plugins; data is nil when it
// cannot be read, err says what is wrong.
type chainedFile struct {
	data []byte
	err  error
}

// chained reads <root>/<dir>/*.conf, sorted by file name. A directory that is not
// there holds none.
func (r *reader) chained(root *os.Root, dir string) []chainedFile {
	info, err := root.Stat(dir)
	switch {
	case os.IsNotExist(err):
		return nil
	case err != nil:
		return []chainedFile{{err: fmt.Errorf("chained plugins in %s: %w", filepath.Join(root.Name(), dir), Cause(err))}}
	case !info.IsDir():
		return nil // a file that happens to have the network's name
	}
	var all []chainedFile
	size := 0
	for _, base := range r.list(root, dir, ".conf") {
		path := filepath.Join(root.Name(), dir, base)
		data, err := ReadRegular(root, filepath.Join(dir, base), plan.MaxConfBytes)
		if size += len(data); err == nil && size > plan.MaxConfBytes {
			data, err = nil, fmt.Errorf("the chain %w (more than %d bytes)", ErrTooLarge, plan.MaxConfBytes)
		}
		if err == nil {
			_, err = netconf.ParseChained([][]byte{data}, "")
		}
		if err != nil {
			err = fmt.Errorf("chained plugin %s: %w", path, Cause(err))
		}
		all = append(all, chainedFile{data: data, err: err})
	}
	return all
}

// list returns the names in dir that end in one of exts, sorted.
func (r *reader) list(root *os.Root, dir string, exts ...string) []string {
	object := "directory " + filepath.Join(root.Name(), dir)
	d, err := brief.OpenIn(root, dir, os.O_RDONLY, 0)
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
