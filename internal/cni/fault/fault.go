// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fault is how the rooms of internal/cni say what is wrong: a CNI error
// code, the object, the field in it, and a text for the person who has to mend it.
//
// Invariants: a Fault's text is one line, its quotations are bounded and
// printable whatever bytes a user supplied, and it never says "not found"
// (containerd reads those words in a DEL error as success).
//
// It imports the standard library only, and knows nothing of CNI's wire form:
// the one function that maps a Fault to a CNI error is at the edge, in attach.
//
// Implements: spec/cni.md rule 2; architecture 4.1 (error codes).
package fault

// Code is a CNI error code (CNI SPEC section 5). The zero value is invalid.
type Code uint

// The codes that Weft itself answers. Delegates' codes are passed through.
const (
	// Environment: a CNI_* variable is missing or malformed.
	Environment Code = 4
	// Config: somebody must change something (annotation, NAD, configuration).
	Config Code = 7
	// TryLater: time may mend it.
	TryLater Code = 11
	// Unavailable and Limited are STATUS answers.
	Unavailable Code = 50
	Limited     Code = 51
	// Codes of Weft's own, described in docs/errors.md.
	Internal Code = 100 // a fault of Weft itself
	State    Code = 101 // the state directory cannot be read or written
	Result   Code = 102 // a delegate's answer is no CNI result
	Routes   Code = 103 // a default route could not be set, or read back
	Delegate Code = 104 // a delegate could not be started, was killed, or exited without a CNI error
)

// Fault is one thing wrong with one object.
type Fault struct {
	Code Code
	// Object is what carries the fault: "pod default/web", "NetworkAttachmentDefinition default/neta",
	// "configuration m", "file /etc/cni/multus/net.d/10-a.conf".
	Object string
	// Field is the path inside the object, "" when the whole object is meant:
	// "annotation k8s.v1.cni.cncf.io/networks[2].mac", "spec.config plugins[0].type".
	Field string
	// Text says what is wrong, quoting what it cites with Quote.
	Text string
	// Err is the cause, if there is one.
	Err error
}

// Warning is something worth telling that stops nothing.
type Warning struct {
	Object string `json:"object"`
	Field  string `json:"field,omitempty"`
	Text   string `json:"text"`
}
