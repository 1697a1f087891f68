// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/selection"
)

// Make plans all attachments of one sandbox. It answers a Plan, or what is missing for
// one, or every fault that can be seen so far (*fault.Fault, joined); faults and what is
// missing to see the rest of them may come together. It changes nothing in its input, and
// the Plan shares configuration bytes with it.
func Make(in Input) (Output, error) {
	p := &planner{in: in, conf: in.Conf, nads: make(map[NADRef]*resolved, len(in.NADs))}
	p.object = p.confObject()
	if in.Pod != nil {
		p.object = "pod " + in.Pod.Namespace + "/" + in.Pod.Name
	}
	stages := [][]func(){
		{p.checkSandbox, p.readAnnotations},   // what can be seen without asking for anything
		{p.resolve, p.match, p.name, p.route}, // networks, known or not yet
		{p.assignDevices, p.bound, p.finish},  // attachments
	}
	for i, stage := range stages {
		for _, step := range stage {
			step()
		}
		if len(p.faults) > 0 && !in.Explain {
			p.out.NeedDevices = false // who draws which is not known yet
			if i > 0 || !p.onlyConfig() {
				return p.out, errors.Join(p.faults...)
			}
		}
		if p.missing() {
			return p.out, errors.Join(p.faults...)
		}
	}
	if in.Explain {
		p.out.Decisions, p.out.Warnings = p.sorted(), p.warnings
	}
	if len(p.faults) > 0 {
		return p.out, errors.Join(p.faults...)
	}
	p.out.Plan = p.plan()
	return p.out, nil
}

// planner carries one call of Make from stage to stage.
type planner struct {
	in     Input
	conf   *netconf.Conf
	object string // whose mistake it is, where it is the asker's

	args     []pair               // CNI_ARGS, each name once
	podArgs  []pair               // what all attachments get of them, and of the pod
	def      *selection.Element   // the default-network annotation's
	asked    []selection.Element  // the networks annotation's
	nads     map[NADRef]*resolved // each decoded once, however often it is named
	slots    []slot
	made     []Attachment // the slots' own, in one piece as the plan has them
	out      Output
	warnings []fault.Warning
	faults   []error

	decisions []decision // with Explain

	// memory that is used again
	parser netconf.Parser
	edited netconf.Object
	merged cniArgs
	pairs  []pair
}

// slot is an attachment on its way.
type slot struct {
	*Attachment
	from     string             // what asks for it, for messages: "annotation …/networks[2]"
	request  *selection.Element // nil when the configuration asks for it
	ok       bool               // the network was read; never false once a plan is made
	resource string             // resource name to draw a device from, "" = none
	drawn    bool               // DeviceID was drawn from it
	attached *Attached          // what the running pod has of it, nil = nothing
}

func (p *planner) fault(field, format string, args ...any) {
	p.faults = append(p.faults, fault.New(fault.Config, p.object, field, format, args...))
}

// onlyConfig says that whoever wrote something has to mend all of the faults, so that more of
// that kind change nothing about the code.
func (p *planner) onlyConfig() bool {
	return !slices.ContainsFunc(p.faults, func(err error) bool {
		f, ok := errors.AsType[*fault.Fault](err)
		return !ok || f.Code != fault.Config
	})
}

func (p *planner) confFault(field, format string, args ...any) {
	p.faults = append(p.faults, fault.New(fault.Config, p.confObject(), field, format, args...))
}

func (p *planner) confObject() string { return strings.TrimSpace("configuration " + p.conf.Name) }

// slotFault is a fault of what asks for a slot: the pod, or the configuration.
func (p *planner) slotFault(s *slot, field, format string, args ...any) {
	if s.request == nil {
		p.confFault(s.from+field, format, args...)
	} else {
		p.fault(s.from+field, format, args...)
	}
}

func (p *planner) warn(field, format string, args ...any) {
	p.warnings = append(p.warnings, fault.Warning{Object: p.object, Field: field, Text: fmt.Sprintf(format, args...)})
}

func (p *planner) missing() bool {
	return len(p.out.NeedNADs) > 0 || len(p.out.NeedFiles) > 0 || p.out.NeedDevices
}

// maxWarnings bounds what an annotation full of unknown keys can make everybody carry.
const maxWarnings = 64

func (p *planner) plan() *Plan {
	plan := &Plan{Attachments: p.made, Warnings: p.warnings}
	if pod := p.in.Pod; pod != nil {
		plan.PodNamespace, plan.PodName, plan.PodUID = pod.Namespace, pod.Name, pod.UID
		if plan.PodUID == "" {
			plan.PodUID, _ = p.arg(argUID)
		}
	}
	if more := len(plan.Warnings) - maxWarnings; more > 0 {
		plan.Warnings = append(plan.Warnings[:maxWarnings:maxWarnings],
			fault.Warning{Object: p.object, Text: fmt.Sprintf("%d more warnings are left out", more)})
	}
	return plan
}
