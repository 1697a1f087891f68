// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/weftnet/weft/internal/cni/manifests"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/selection"
)

// Report is what lint shows: both lists by file and line, each finding once.
type Report struct {
	Faults   []Finding `json:"faults"`
	Warnings []Finding `json:"warnings"`
	Checked  Checked   `json:"checked"`
}

// Checked counts what was looked at.
type Checked struct {
	Files          int `json:"files"`
	Pods           int `json:"pods"`
	Networks       int `json:"networks"`       // NetworkAttachmentDefinitions
	Configurations int `json:"configurations"` // CNI configurations in files of their own
}

// Lint finds all that is wrong with the files: with each of them, with every pod together
// with the networks that it names, and with what is for the network driver.
func (w *World) Lint(ctx context.Context) *Report {
	l := linter{World: w, seen: map[Finding]bool{}}
	for _, p := range w.problems {
		l.add(w.problem(p))
	}
	l.add(w.findings...)
	for _, c := range w.networks {
		_, err := netconf.ParseNetwork(c.data, "file "+c.file)
		l.add(w.faults(err)...)
	}
	for _, nad := range w.Set.NADs {
		l.nad(ctx, nad)
	}
	l.plan(ctx, nil) // what every pod would meet
	for i := range w.Set.Pods {
		l.plan(ctx, &w.Set.Pods[i])
		l.keys(&w.Set.Pods[i])
	}
	l.driver()
	return l.report()
}

type linter struct {
	*World
	found []Finding
	seen  map[Finding]bool // without Source, since that is a pointer
}

// plan adds what a plan finds, but for what it finds with the objects of drop.
func (l *linter) plan(ctx context.Context, pod *manifests.Pod, drop ...string) {
	out, _, err := l.run(ctx, pod)
	findings := l.faults(err)
	for _, v := range out.Warnings {
		findings = append(findings, l.warning(v))
	}
	l.add(slices.DeleteFunc(findings, func(f Finding) bool { return slices.Contains(drop, f.Object) })...)
}

// add takes findings that are new: several pods may lead to one.
func (l *linter) add(findings ...Finding) {
	for _, f := range findings {
		key := f
		key.Source = nil
		if f.Object == "document" && f.Source != nil {
			key.Text += f.Source.String()
		}
		if !l.seen[key] {
			l.seen[key] = true
			l.found = append(l.found, f)
		}
	}
}

// nad looks at a NetworkAttachmentDefinition through a pod of its namespace that names
// it: what a plan finds with it is what there is to find.
func (l *linter) nad(ctx context.Context, nad manifests.NAD) {
	object := nadObject(nad.Ref)
	names := map[string]error{"metadata.name": selection.ObjectName(nad.Ref.Name), "metadata.namespace": selection.Namespace(nad.Ref.Namespace)}
	bad := false
	for _, field := range []string{"metadata.namespace", "metadata.name"} {
		if err := names[field]; err != nil {
			bad = true
			l.add(Finding{Severity: SeverityFault, Source: l.source(object, field, "", -1), Object: object, Field: field, Text: err.Error()})
		}
	}
	if bad {
		return // no pod can name it
	}
	resource := strings.TrimSpace(nad.ResourceName)
	l.plan(ctx, &manifests.Pod{
		Pod: plan.Pod{
			Namespace: nad.Ref.Namespace, Name: "lint",
			Annotations: map[string]string{plan.NetworksAnnotation: nad.Ref.Namespace + "/" + nad.Ref.Name},
		},
		Limits: map[string]int{resource: plan.MaxNetworks},
	}, podObject(nad.Ref.Namespace, "lint"))
}

// keys warns of annotations that nothing reads, though their prefix says that they ask for
// networks: a misspelt key leaves the pod without them, and nobody is told.
func (l *linter) keys(pod *manifests.Pod) {
	const oldStatus = "k8s.v1.cni.cncf.io/networks-status" // written by old versions of Multus
	known := []string{plan.NetworksAnnotation, plan.DefaultNetworkAnnotation, plan.StatusAnnotation, oldStatus}
	for _, key := range slices.Sorted(maps.Keys(pod.Annotations)) {
		prefix, _, _ := strings.Cut(key, "/")
		if (prefix != "k8s.v1.cni.cncf.io" && prefix != "v1.multus-cni.io") || slices.Contains(known, key) {
			continue
		}
		object, field := podObject(pod.Namespace, pod.Name), "annotation "+key
		l.add(Finding{
			Severity: SeverityWarning, Source: l.source(object, field, "", -1), Object: object, Field: field,
			Text: "is no annotation of pods that Weft knows; it has no effect",
		})
	}
}

func (l *linter) report() *Report {
	r := &Report{Faults: []Finding{}, Warnings: []Finding{}}
	r.Checked.Files, r.Checked.Pods, r.Checked.Networks, r.Checked.Configurations = l.Counts()
	slices.SortStableFunc(l.found, func(a, b Finding) int {
		var none Source
		at, bt := &none, &none // what stands in no file comes first
		if a.Source != nil {
			at = a.Source
		}
		if b.Source != nil {
			bt = b.Source
		}
		return cmp.Or(cmp.Compare(at.File, bt.File), cmp.Compare(at.Line, bt.Line))
	})
	for _, f := range l.found {
		if f.Severity == SeverityFault {
			r.Faults = append(r.Faults, f)
		} else {
			r.Warnings = append(r.Warnings, f)
		}
	}
	return r
}
