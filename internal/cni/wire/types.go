// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/json"

	"github.com/weftnet/weft/internal/cni/plan"
)

// Version is the newest protocol version; the one before it is answered as well.
const Version = 1

// MaxMessage bounds one message, in bytes.
const MaxMessage = 32 << 20

// Verbs of a Request.
const (
	VerbPlan     = "plan"     // asks for the plan of an ADD
	VerbApply    = "apply"    // asks for the plan of a running pod whose networks may have changed
	VerbHandover = "handover" // asks for the pod's claimed devices, after the delegates
	VerbReport   = "report"   // says how the ADD went
)

// Request is what the hands send.
type Request struct {
	Version   int    `json:"version"`
	RequestID string `json:"requestID"`
	Verb      string `json:"verb"`
	// TimeoutMS is how long the hands wait for the answer, in milliseconds; 0 = not said.
	TimeoutMS int64            `json:"timeoutMS,omitempty"`
	Plan      *PlanRequest     `json:"plan,omitempty"`     // the body of VerbPlan
	Apply     *PlanRequest     `json:"apply,omitempty"`    // the body of VerbApply
	Handover  *HandoverRequest `json:"handover,omitempty"` // the body of VerbHandover
	Report    *ReportRequest   `json:"report,omitempty"`   // the body of VerbReport
}

// HandoverRequest is the body of VerbHandover: the delegates are done, and the devices that the
// pod claimed are to be moved into its sandbox; all of them, or the ADD fails.
type HandoverRequest struct {
	Conf         []byte       `json:"conf"` // Weft's conf, byte for byte
	Sandbox      plan.Sandbox `json:"sandbox"`
	PodNamespace string       `json:"podNamespace,omitempty"`
	PodName      string       `json:"podName,omitempty"`
	PodUID       string       `json:"podUID,omitempty"` // as in the plan
	// IfNames are the interfaces that the plan gave the pod.
	IfNames []string `json:"ifNames,omitempty"`
}

// PlanRequest is the body of VerbPlan and of VerbApply.
type PlanRequest struct {
	Conf    []byte       `json:"conf"` // Weft's conf, byte for byte
	Sandbox plan.Sandbox `json:"sandbox"`
	// Annotations are those that the runtime gave (io.kubernetes.cri.pod-annotations); nil = none given.
	Annotations map[string]string `json:"annotations,omitempty"`
	Files       []plan.File       `json:"files,omitempty"`
	// Attached, of VerbApply: what the pod has.
	Attached []plan.Attached `json:"attached,omitempty"`
}

// ReportRequest is the body of VerbReport: the results of an ADD, which the planner
// writes down where users look (network-status), or, with Error, why it failed and was
// undone, which the planner tells them by an event.
type ReportRequest struct {
	Conf         []byte       `json:"conf"` // Weft's conf, byte for byte
	Sandbox      plan.Sandbox `json:"sandbox"`
	PodNamespace string       `json:"podNamespace,omitempty"`
	PodName      string       `json:"podName,omitempty"`
	PodUID       string       `json:"podUID,omitempty"` // as in the plan
	// Attachments are those of the plan, in its order.
	Attachments []ReportAttachment `json:"attachments,omitempty"`
	Error       *Error             `json:"error,omitempty"`
}

// ReportAttachment is one attachment that was made.
type ReportAttachment struct {
	Network    string          `json:"network"` // as in the plan
	IfName     string          `json:"ifName"`
	Default    bool            `json:"default,omitempty"`
	CNIVersion string          `json:"cniVersion,omitempty"` // of the network; read when the result names none
	Result     []byte          `json:"result,omitempty"`     // the CNI result, with the routes as they are now
	DeviceInfo json.RawMessage `json:"deviceInfo,omitempty"` // content of the device-info file
}

// Response is what the planner answers. To a request for a plan: exactly one of Plan, Need
// and Error. To a hand-over and to a report: Done or Error.
type Response struct {
	Version   int        `json:"version"`
	RequestID string     `json:"requestID"`
	Plan      *plan.Plan `json:"plan,omitempty"`
	// Report, beside Plan: the planner wants a report when the ADD is over.
	Report bool `json:"report,omitempty"`
	// Handover, beside Plan: the pod claimed devices, which are to be asked for.
	Handover bool        `json:"handover,omitempty"`
	Need     []plan.Need `json:"need,omitempty"`
	Done     bool        `json:"done,omitempty"` // the devices are there; the report has arrived where users look
	Error    *Error      `json:"error,omitempty"`
	// Written is called once the answer was written, or could not be.
	Written func() `json:"-"`
}

// Error is a CNI error on the wire.
type Error struct {
	Code    uint   `json:"code"`
	Msg     string `json:"msg"`
	Details string `json:"details,omitempty"`
}
