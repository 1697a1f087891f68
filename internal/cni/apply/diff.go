// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"bytes"
	"maps"
	"slices"

	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/record"
)

// Diff is the difference between what a running pod has and what it is to have.
type Diff struct {
	// All is what the record is to list: what the pod keeps and what it is to get, in the order
	// of the plan, then what it is to lose. Attach and Detach are indices into it.
	All            []record.Attachment
	Attach, Detach []int
	// Changed says what is asked for otherwise than it is there, and stays as it is.
	Changed []string
}

// Nothing says whether there is nothing to do.
func (d *Diff) Nothing() bool { return len(d.Attach) == 0 && len(d.Detach) == 0 }

// Additions are the attachments that are to be made.
func (d *Diff) Additions() []plan.Attachment {
	all := make([]plan.Attachment, 0, len(d.Attach))
	for _, i := range d.Attach {
		all = append(all, d.All[i].Attachment)
	}
	return all
}

// Attached is what a pod has, as the plan of a change starts from.
func Attached(s *record.Sandbox) []plan.Attached {
	var all []plan.Attached
	for i := range s.Attachments {
		if a := &s.Attachments[i]; a.Done && !a.Undone {
			all = append(all, a.Attached())
		}
	}
	return all
}

// Difference compares the record of a running pod with a plan that was made from Attached: in
// it, what is asked for as before has the interface that it has. The pod network and the
// configuration's own networks are as they are; only what the annotation asks for changes.
func Difference(s *record.Sandbox, p *plan.Plan) *Diff {
	d := &Diff{}
	kept := make([]bool, len(s.Attachments))
	keep := func(i int) {
		if kept[i] = true; s.Attachments[i].Pending() {
			d.All = append(d.All, s.Attachments[i])
		}
	}
	for i := range s.Attachments {
		if a := &s.Attachments[i]; !a.Selected && !a.Auxiliary {
			keep(i)
		}
	}
	for i := range p.Attachments {
		want := &p.Attachments[i]
		if !want.Selected {
			continue
		}
		if j := has(s, want); j >= 0 {
			d.compare(&s.Attachments[j].Attachment, want)
			keep(j)
			continue
		}
		d.Attach = append(d.Attach, len(d.All))
		d.All = append(d.All, record.Attachment{Attachment: *want})
	}
	for i := range s.Attachments {
		switch a := &s.Attachments[i]; {
		case kept[i]:
		case a.Auxiliary:
			keep(i)
		case a.Pending():
			d.Detach = append(d.Detach, len(d.All))
			d.All = append(d.All, *a)
		}
	}
	return d
}

// has finds what is attached as it is wanted; -1: it is not.
func has(s *record.Sandbox, want *plan.Attachment) int {
	return slices.IndexFunc(s.Attachments, func(a record.Attachment) bool {
		return a.Done && !a.Undone && a.Selected && a.Network == want.Network && a.Asked == want.Asked && a.IfName == want.IfName
	})
}

// compare notes what is asked for otherwise of an attachment that stays.
func (d *Diff) compare(had, want *plan.Attachment) {
	if what := changed(had, want); what != "" {
		d.Changed = append(d.Changed, "network "+want.Network+", interface "+want.IfName+": "+what+
			" of a running pod does not change: it stays as it is until the network is removed and asked for again")
	}
}

// changed names the first thing that is asked for otherwise than before, "" for none. What the
// network itself says may have changed as well; a running pod is not asked about that.
func changed(had, want *plan.Attachment) string {
	for _, capability := range slices.Sorted(maps.Keys(want.RuntimeConfig)) {
		if before, ok := had.RuntimeConfig[capability]; ok && !bytes.Equal(before, want.RuntimeConfig[capability]) {
			return capability
		}
	}
	switch {
	case had.Args != want.Args:
		return "CNI_ARGS (mac or ips)"
	case !slices.Equal(had.Gateways, want.Gateways):
		return "default-route"
	}
	return ""
}
