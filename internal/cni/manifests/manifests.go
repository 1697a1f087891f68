// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package manifests reads pods and NetworkAttachmentDefinitions from a directory of
// ordinary Kubernetes YAML and JSON, for weft-planner and weft sandbox.
//
// The directory is read as kubectl apply -f DIR reads it: the files *.yaml, *.yml
// and *.json of the directory itself, not of those below it, in the order of their
// names; files of several documents; lists. Kinds other than Pod and
// NetworkAttachmentDefinition are passed over. What stands later replaces what
// stood earlier under the same name.
//
// Invariants: a broken document is a warning that names its file and line, and
// takes nothing else with it (for JSON: nothing before it, since where the next
// value begins is unknown); values are taken as the strings that they are, so that
// spec.config keeps every byte; any bytes end in a Set and warnings, within bounds,
// never in a panic or a hang.
//
// It does not judge what annotations and configurations say: that is plan.
//
// Implements: architecture 4.1 (manifests), spec/cni.md 1.5.
package manifests

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/hostfiles"
	"github.com/weftnet/weft/internal/cni/plan"
)

// Bounds. A file of maxFileBytes holds some ten thousand pods.
const (
	maxFiles     = 4096
	maxFileBytes = 16 << 20
	maxWarnings  = 100
)

// Place is where an object stands.
type Place struct {
	File string // path of the file
	Line int    // first line of the object, from 1
}

func (p Place) String() string { return fmt.Sprintf("%s:%d", p.File, p.Line) }

// Mark is where a value begins.
type Mark struct {
	Line   int // from 1
	Column int // of its first byte, from 1; 0 when all of the value stands on the line
}

// Pod is a pod of the manifests.
type Pod struct {
	plan.Pod
	Place Place
	// With Set.Inspect: where fields are, by their paths ("metadata.annotations.<key>"),
	// the devices that the containers' limits ask for, and whether there are claims.
	Marks  map[string]Mark
	Limits map[string]int
	Claims bool
}

// Problem is something wrong with the manifests themselves.
type Problem struct {
	Place Place
	Field string
	Text  string
	// Skipped says that the document or the object is not in the Set for it.
	Skipped bool
}

// NAD is a NetworkAttachmentDefinition of the manifests.
type NAD struct {
	Ref plan.NADRef
	plan.NAD
	Place Place
	Marks map[string]Mark // as of a Pod
}

// Set is what a directory holds, each in the order of first appearance.
type Set struct {
	Pods     []Pod
	NADs     []NAD
	Warnings []fault.Warning

	// Inspect, when set, is told every problem, of which Warnings then has none, and what
	// is read has Marks.
	Inspect func(Problem)

	pods map[plan.NADRef]int // namespace and name → index in Pods
	nads map[plan.NADRef]int
	more int // warnings beyond maxWarnings
}

// Read reads a directory. It fails (*fault.Fault, code 7) only when the directory
// itself cannot be read.
func Read(dir string) (*Set, error) {
	object := "manifests directory " + dir
	d, err := hostfiles.OpenDir(dir)
	if err != nil {
		return nil, &fault.Fault{Code: fault.Config, Object: object, Text: "cannot be opened: " + hostfiles.Cause(err).Error(), Err: err}
	}
	defer d.Close() //nolint:errcheck // nothing was written
	names, err := list(d)
	if err != nil {
		return nil, &fault.Fault{Code: fault.Config, Object: object, Text: "cannot be read: " + hostfiles.Cause(err).Error(), Err: err}
	}
	s := &Set{}
	if len(names) > maxFiles {
		s.warn(object, "", "only the first %d of %d files are read", maxFiles, len(names))
		names = names[:maxFiles]
	}
	for _, name := range names {
		path := filepath.Join(dir, name)
		data, err := d.ReadRegular(name, maxFileBytes)
		if err != nil {
			s.warn("file "+path, "", "%v; it is skipped", hostfiles.Cause(err))
			continue
		}
		s.Add(path, data)
	}
	s.finish()
	return s, nil
}

func list(d *hostfiles.Dir) ([]string, error) {
	names, err := d.Names()
	names = slices.DeleteFunc(names, func(n string) bool {
		return !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(n))
	})
	slices.Sort(names)
	return names, err
}

// Add reads one file's bytes into the set; file is only a name for messages.
func (s *Set) Add(file string, data []byte) {
	p := &parser{set: s, file: file}
	p.parse(data)
}

// finish says how many warnings there was no room for.
func (s *Set) finish() {
	if s.more > 0 {
		s.Warnings = append(s.Warnings, fault.Warning{Object: "manifests", Text: fmt.Sprintf("%d more warnings", s.more)})
		s.more = 0
	}
}

func (s *Set) warn(object, field, format string, args ...any) {
	if len(s.Warnings) >= maxWarnings {
		s.more++
		return
	}
	s.Warnings = append(s.Warnings, fault.Warning{Object: object, Field: field, Text: fmt.Sprintf(format, args...)})
}

// problem warns of something that stands at pl.
func (s *Set) problem(pl Place, skipped bool, field, format string, args ...any) {
	if s.Inspect != nil {
		s.Inspect(Problem{Place: pl, Field: field, Text: fmt.Sprintf(format, args...), Skipped: skipped})
		return
	}
	s.warn("file "+pl.String(), field, format, args...)
}

func (s *Set) addPod(p Pod) {
	key := plan.NADRef{Namespace: p.Namespace, Name: p.Name}
	if i, ok := s.pods[key]; ok {
		s.problem(p.Place, false, "", "pod %s/%s stands at %s as well; this one is used", p.Namespace, p.Name, s.Pods[i].Place)
		s.Pods[i] = p
		return
	}
	if s.pods == nil {
		s.pods = map[plan.NADRef]int{}
	}
	s.pods[key] = len(s.Pods)
	s.Pods = append(s.Pods, p)
}

func (s *Set) addNAD(n NAD) {
	if i, ok := s.nads[n.Ref]; ok {
		s.problem(n.Place, false, "", "NetworkAttachmentDefinition %s/%s stands at %s as well; this one is used",
			n.Ref.Namespace, n.Ref.Name, s.NADs[i].Place)
		s.NADs[i] = n
		return
	}
	if s.nads == nil {
		s.nads = map[plan.NADRef]int{}
	}
	s.nads[n.Ref] = len(s.NADs)
	s.NADs = append(s.NADs, n)
}

// Pod returns a pod; the error is a *fault.Fault of code 11 when there is none of
// that name (yet). The caller may change what it gets.
func (s *Set) Pod(namespace, name string) (*plan.Pod, error) {
	i, ok := s.pods[plan.NADRef{Namespace: namespace, Name: name}]
	if !ok {
		return nil, fault.New(fault.TryLater, "pod "+namespace+"/"+name, "", "is not known yet: no manifest holds it")
	}
	pod := s.Pods[i].Pod
	pod.Annotations = maps.Clone(pod.Annotations)
	return &pod, nil
}

// NAD returns a NAD; Found is false when there is none of that name.
func (s *Set) NAD(ref plan.NADRef) plan.NAD {
	if i, ok := s.nads[ref]; ok {
		return s.NADs[i].NAD
	}
	return plan.NAD{}
}
