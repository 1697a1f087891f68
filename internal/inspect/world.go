// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/hostfiles"
	"github.com/weftnet/weft/internal/cni/manifests"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/plan"
)

// Bounds of what is read.
const (
	maxFiles     = 4096
	maxFileBytes = 16 << 20
)

// World is what explain and lint are given: manifests, and CNI configurations.
type World struct {
	Set *manifests.Set

	files    []string          // in the order in which they were read
	text     map[string][]byte // by file
	problems []manifests.Problem
	own      []confFile // Weft's own configuration, or Multus'
	networks []confFile // those of other networks
	subjects map[string]subject

	conf     *netconf.Conf // the first of own that is right, or the stand-in
	findings []Finding     // of the configurations
	unread   error         // of the files in directories
	unseen   []string      // what was taken for them

	live *live // where pods and NADs are an API server's; nil = they are all in Set
}

// confFile is one CNI configuration.
type confFile struct {
	file   string
	data   []byte
	prefix string // of the fields in data, when the file holds it inside a list
	name   string
	inDir  bool // found in a directory, not named itself
}

// subject is how a field of an object is found in a file.
type subject struct {
	file   string
	line   int                       // of the object, 0 = the file
	marks  map[string]manifests.Mark // of a manifest's values
	values map[string]string
	text   string // of a configuration
	prefix string
}

// Load reads files and directories (their *.yaml, *.yml, *.json, *.conf and *.conflist, not
// those below; the configurations of its net.d, though, which weft sandbox takes for
// confDir). What of a directory cannot be read is left out, see Unread. conf names one more, of Weft or Multus; "" = none. Errors are about what
// cannot be read (wrapping *fs.PathError), and about a conf that is no configuration of
// Weft or Multus.
func Load(paths []string, conf string) (*World, error) {
	w := newWorld()
	if err := w.readConf(conf); err != nil {
		return nil, err
	}
	for _, path := range paths {
		files, err := expand(path)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			err := w.read(file, file != path)
			if err != nil && file == path {
				return nil, err
			}
			w.unread = errors.Join(w.unread, err) // of a directory, the others are checked
		}
	}
	w.index()
	w.configure()
	return w, nil
}

// Unread tells which files of the directories could not be read; nil: none.
func (w *World) Unread() error { return w.unread }

// readConf reads the configuration to plan with; "" = none.
func (w *World) readConf(conf string) error {
	if conf == "" {
		return nil
	}
	if err := w.read(conf, false); err != nil {
		return err
	}
	if _, err := netconf.ParseObject(w.text[conf]); err != nil { // meant to be one: what is wrong is a finding
		w.own, w.networks = []confFile{{file: conf, data: w.text[conf]}}, nil
	}
	if len(w.own) == 0 {
		return fmt.Errorf("read configuration %s: it is none of weft-cni, multus or multus-shim", conf)
	}
	return nil
}

func newWorld() *World {
	w := &World{text: map[string][]byte{}, subjects: map[string]subject{}}
	w.Set = &manifests.Set{Inspect: func(p manifests.Problem) { w.problems = append(w.problems, p) }}
	return w
}

// Counts says what was read, for a summary.
func (w *World) Counts() (files, pods, nads, confs int) {
	return len(w.files), len(w.Set.Pods), len(w.Set.NADs), len(w.own) + len(w.networks)
}

func expand(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	files, err := filesOf(path, ".yaml", ".yml", ".json", ".conf", ".conflist")
	if err != nil {
		return nil, err
	}
	if confDir := filepath.Join(path, "net.d"); isDir(confDir) {
		more, err := filesOf(confDir, ".json", ".conf", ".conflist")
		if err != nil {
			return nil, err
		}
		files = append(files, more...)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("read manifests: %s holds no *.yaml, *.yml, *.json, *.conf or *.conflist; those below it are not read", path)
	}
	if len(files) > maxFiles {
		return nil, fmt.Errorf("read manifests: %s holds %d files, at most %d are read", path, len(files), maxFiles)
	}
	return files, nil
}

func filesOf(dir string, exts ...string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	var files []string
	for _, e := range entries {
		if slices.Contains(exts, filepath.Ext(e.Name())) && !e.IsDir() {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	return files, nil
}

func (w *World) read(file string, inDir bool) error {
	if _, twice := w.text[file]; twice {
		return nil
	}
	root, err := os.OpenRoot(filepath.Dir(file))
	if err != nil {
		return &fs.PathError{Op: "read", Path: file, Err: hostfiles.Cause(err)}
	}
	defer root.Close()
	data, err := hostfiles.ReadRegular(root, filepath.Base(file), maxFileBytes)
	if err != nil {
		return &fs.PathError{Op: "read", Path: file, Err: hostfiles.Cause(err)}
	}
	w.add(file, data, inDir)
	return nil
}

// add takes one file in by what it holds.
func (w *World) add(file string, data []byte, inDir bool) {
	w.files = append(w.files, file)
	w.text[file] = data
	o, err := netconf.ParseObject(data)
	switch ext := filepath.Ext(file); {
	case ext == ".conf" || ext == ".conflist":
	case ext == ".json" && err == nil && !has(o, "kind") && (has(o, "type") || has(o, "plugins")):
	default:
		w.Set.Add(file, data)
		return
	}
	c := confFile{file: file, data: data, inDir: inDir}
	if err == nil {
		c.name = text(o, "name")
		if isOwn(o) {
			w.own = append(w.own, c)
			return
		}
		if own, ok := ownInList(c, o); ok {
			w.own = append(w.own, own)
			return
		}
	}
	w.networks = append(w.networks, c)
}

func isOwn(o *netconf.Object) bool {
	return slices.Contains([]string{"weft-cni", "multus", "multus-shim"}, text(o, "type"))
}

// ownInList finds Weft among the plugins of a list, and gives it what a runtime gives it:
// the list's name and version.
func ownInList(c confFile, list *netconf.Object) (confFile, bool) {
	raw, _ := list.Get("plugins")
	plugins, err := netconf.Elements(raw)
	if err != nil {
		return c, false
	}
	for i, raw := range plugins {
		o, err := netconf.Inner(raw)
		if err != nil || !isOwn(o) {
			continue
		}
		for _, key := range []string{"name", "cniVersion"} {
			if v, ok := list.Get(key); ok {
				o.Set(key, v)
			}
		}
		c.data, c.prefix = o.Bytes(), fmt.Sprintf("plugins[%d]", i)
		return c, true
	}
	return c, false
}

func has(o *netconf.Object, key string) bool {
	_, ok := o.Get(key)
	return ok
}

func text(o *netconf.Object, key string) string {
	raw, _ := o.Get(key)
	s, _ := netconf.Decode[string](raw, "a string")
	return s
}

// index remembers where every object stands, by the name that faults give it.
func (w *World) index() {
	for i := range w.Set.Pods {
		p := &w.Set.Pods[i]
		s := subject{file: p.Place.File, line: p.Place.Line, marks: p.Marks, values: map[string]string{}}
		for key, value := range p.Annotations {
			s.values["metadata.annotations."+key] = value
		}
		w.subjects[podObject(p.Namespace, p.Name)] = s
	}
	for i := range w.Set.NADs {
		n := &w.Set.NADs[i]
		w.subjects[nadObject(n.Ref)] = subject{
			file: n.Place.File, line: n.Place.Line, marks: n.Marks, values: map[string]string{"spec.config": n.Config},
		}
	}
	for _, c := range w.networks {
		w.subjects["file "+c.file] = subject{file: c.file, text: string(c.data)}
	}
}

func podObject(namespace, name string) string { return "pod " + namespace + "/" + name }

func nadObject(ref plan.NADRef) string {
	return "NetworkAttachmentDefinition " + ref.Namespace + "/" + ref.Name
}

// unseen is the type of a plugin that is not known here.
const unseen = "unseen"

// standInDelegates stand for the default network where none is configured, standIn for
// the whole configuration.
const (
	standInDelegates = `[{"name":"pod-network","type":"` + unseen + `"}]`
	standIn          = `{"cniVersion":"1.1.0","name":"weft","type":"weft-cni","delegates":` + standInDelegates + `}`
)

// configure reads Weft's configurations; the first that is right is planned with.
func (w *World) configure() {
	for _, c := range w.own {
		w.configureFrom(c)
	}
	if w.conf != nil {
		return
	}
	w.unseen = append(w.unseen, "the configuration of Weft (none is given): isolation and the like are off, and pod-network stands for the cluster's default network")
	conf, _, err := netconf.Parse([]byte(standIn))
	if err != nil { // it is a constant
		conf = netconf.Defaults()
	}
	w.conf = conf
}

func (w *World) configureFrom(c confFile) {
	conf, warnings, err := netconf.Parse(c.data)
	object := "configuration"
	for _, f := range fault.All(err) {
		object = f.Object
	}
	if conf != nil {
		object = confObject(conf)
	}
	if _, taken := w.subjects[object]; !taken {
		w.subjects[object] = subject{file: c.file, text: string(w.text[c.file]), prefix: c.prefix}
	}
	findings := w.faults(err)
	for _, warning := range warnings {
		findings = append(findings, w.warning(warning))
	}
	completed := false
	if conf == nil {
		if conf = withDefault(c.data); conf != nil {
			completed = true
			if c.inDir { // as weft sandbox takes it
				findings[0].Severity = SeverityWarning
			}
		}
	}
	w.findings = append(w.findings, findings...)
	w.findings = append(w.findings, sourceless(c, conf)...)
	if w.conf == nil && conf != nil {
		w.conf = conf
		if completed {
			w.unseen = append(w.unseen, "the default network (the configuration names none): pod-network stands for it")
		}
	}
}

// sourceless warns of a configuration that leads to no pods and networks. In a directory
// weft sandbox adds manifests, and only one of Multus is certain to come from a node.
func sourceless(c confFile, conf *netconf.Conf) []Finding {
	if conf == nil || conf.Kubeconfig != "" || conf.Manifests != "" || conf.AgentSocketSet {
		return nil
	}
	o, err := netconf.ParseObject(c.data)
	if c.inDir && (err != nil || text(o, "type") == "weft-cni") {
		return nil
	}
	return []Finding{{
		Severity: SeverityWarning, Source: &Source{File: c.file, Line: 1}, Object: confObject(conf),
		Text: "names no source of pods and networks (kubeconfig or manifests): where no agent runs, pods get the default network alone",
	}}
}

// withDefault is a configuration to which nothing is lacking but a default network, with
// the stand-in for that; nil when it is not such a one.
func withDefault(data []byte) *netconf.Conf {
	o, err := netconf.ParseObject(data)
	if err != nil || has(o, "delegates") || text(o, "clusterNetwork") != "" {
		return nil
	}
	o.Set("delegates", []byte(standInDelegates))
	conf, _, err := netconf.Parse(o.Bytes())
	if err != nil {
		return nil
	}
	return conf
}

func confObject(c *netconf.Conf) string {
	if c.Name == "" {
		return "configuration"
	}
	return "configuration " + c.Name
}

// ErrNoPod is the cause when a pod that was asked for is in none of the files.
var ErrNoPod = errors.New("no file holds it")
