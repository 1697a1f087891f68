// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package debug

import (
	"encoding/json"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/plan"
)

// Plan is a pod's plan, explained.
type Plan struct {
	Decisions []Decision `json:"decisions"`
	// Attachments is empty when the pod has no plan; Faults say why.
	Attachments []Planned       `json:"attachments"`
	Faults      []Fault         `json:"faults"`
	Warnings    []fault.Warning `json:"warnings"`
}

// Decision is plan.Decision.
type Decision struct {
	// Attachment is the index in Attachments; -1 when it concerns the whole pod.
	Attachment int    `json:"attachment"`
	Subject    string `json:"subject"`
	Value      string `json:"value"`
	Reason     string `json:"reason"`
	Object     string `json:"object,omitempty"`
	Field      string `json:"field,omitempty"`
}

// Planned is plan.Attachment, without its configuration.
type Planned struct {
	Network       string                     `json:"network"`
	Interface     string                     `json:"interface"`
	Plugins       []string                   `json:"plugins"`
	IPAM          []string                   `json:"ipam"`
	RuntimeConfig map[string]json.RawMessage `json:"runtimeConfig,omitempty"`
	Args          string                     `json:"args,omitempty"`
	Gateways      []string                   `json:"gateways,omitempty"`
	Device        string                     `json:"device,omitempty"`
}

// Fault is fault.Fault; Code is the CNI error code.
type Fault struct {
	Code   uint   `json:"code"`
	Object string `json:"object,omitempty"`
	Field  string `json:"field,omitempty"`
	Text   string `json:"text"`
}

// newPlan takes what planner.Explain gives.
func newPlan(out plan.Output, err error) Plan {
	p := Plan{Decisions: []Decision{}, Attachments: []Planned{}, Faults: []Fault{}, Warnings: append([]fault.Warning{}, out.Warnings...)}
	for _, d := range out.Decisions {
		p.Decisions = append(p.Decisions, Decision{
			Attachment: d.Attachment, Subject: string(d.Subject), Value: d.Value, Reason: d.Reason, Object: d.Object, Field: d.Field,
		})
	}
	for _, f := range fault.All(err) {
		p.Faults = append(p.Faults, Fault{Code: uint(f.Code), Object: f.Object, Field: f.Field, Text: fault.Bound(f.Text, fault.MaxText)})
	}
	if err != nil && len(p.Faults) == 0 { // an error that names no code is a fault of Weft
		p.Faults = append(p.Faults, Fault{Code: uint(fault.Internal), Text: fault.Bound(err.Error(), fault.MaxText)})
	}
	if out.Plan == nil {
		if len(p.Faults) == 0 {
			p.Faults = append(p.Faults, Fault{Code: uint(fault.Internal), Text: "there is neither a plan nor a reason"})
		}
		return p
	}
	for i := range out.Plan.Attachments {
		p.Attachments = append(p.Attachments, planned(&out.Plan.Attachments[i]))
	}
	return p
}

func planned(a *plan.Attachment) Planned {
	p := Planned{
		Network: a.Network, Interface: a.IfName, Plugins: []string{}, IPAM: []string{},
		RuntimeConfig: a.RuntimeConfig, Args: a.Args, Device: a.DeviceID,
	}
	for _, plugin := range a.Conf.Plugins {
		p.Plugins = append(p.Plugins, plugin.Type)
		if plugin.IPAM != "" {
			p.IPAM = append(p.IPAM, plugin.IPAM)
		}
	}
	for _, g := range a.Gateways {
		p.Gateways = append(p.Gateways, g.String())
	}
	return p
}
