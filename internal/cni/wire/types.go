// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import "github.com/weftnet/weft/internal/cni/plan"

// Version is the newest protocol version; the one before it is answered as well.
const Version = 1

// MaxMessage bounds one message, in bytes.
const MaxMessage = 32 << 20

// VerbPlan asks for the plan of an ADD.
const VerbPlan = "plan"

// Request is what the hands send.
type Request struct {
	Version   int          `json:"version"`
	RequestID string       `json:"requestID"`
	Verb      string       `json:"verb"`
	Plan      *PlanRequest `json:"plan,omitempty"`
}

// PlanRequest is the body of VerbPlan.
type PlanRequest struct {
	Conf    []byte       `json:"conf"` // Weft's conf, byte for byte
	Sandbox plan.Sandbox `json:"sandbox"`
	// Annotations are those that the runtime gave (io.kubernetes.cri.pod-annotations); nil = none given.
	Annotations map[string]string `json:"annotations,omitempty"`
	Files       []plan.File       `json:"files,omitempty"`
}

// Response is what the planner answers: exactly one of Plan, Need and Error.
type Response struct {
	Version   int         `json:"version"`
	RequestID string      `json:"requestID"`
	Plan      *plan.Plan  `json:"plan,omitempty"`
	Need      []plan.Need `json:"need,omitempty"`
	Error     *Error      `json:"error,omitempty"`
}

// Error is a CNI error on the wire.
type Error struct {
	Code    uint   `json:"code"`
	Msg     string `json:"msg"`
	Details string `json:"details,omitempty"`
}
