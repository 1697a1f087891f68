// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// Fault is something that is wrong with a claim: somebody has to change the claim, its class or
// the node's configuration.
type Fault struct {
	Claim   types.NamespacedName
	Request string // "" when it is about the claim as a whole
	Device  string
	Field   string
	Value   string
	Reason  string
	Err     error // may be nil; it is part of the text
}

func (f *Fault) Error() string {
	var b strings.Builder
	b.WriteString("claim " + f.Claim.String())
	if f.Request != "" {
		b.WriteString(": request " + f.Request)
	}
	if f.Device != "" {
		b.WriteString(": device " + f.Device)
	}
	if f.Field != "" {
		b.WriteString(": " + f.Field)
		if f.Value != "" {
			b.WriteString(" " + strconv.Quote(f.Value))
		}
	}
	if f.Reason != "" {
		b.WriteString(": " + f.Reason)
	}
	if f.Err != nil {
		b.WriteString(": " + f.Err.Error())
	}
	return b.String()
}

// Unwrap gives the cause.
func (f *Fault) Unwrap() error { return f.Err }

// BusyError says that a device is still prepared for another claim. It is tried again until that
// one is freed.
type BusyError struct {
	Claim     types.NamespacedName
	Request   string
	Device    string
	Holder    types.NamespacedName
	HolderUID types.UID
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("claim %s: request %s: device %s is still prepared for claim %s (UID %s): it is free once that claim is unprepared",
		e.Claim, e.Request, e.Device, e.Holder, e.HolderUID)
}

// mostText is how much of an error leaves the node: into logs, events and the kubelet's own.
const mostText = 2048

// cutError is an error of which only the first part is told.
type cutError struct {
	text string
	err  error
}

func (e *cutError) Error() string { return e.text }

// Unwrap gives the whole of it.
func (e *cutError) Unwrap() error { return e.err }

// short cuts what a claim with many faults has to say.
func short(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if len(text) <= mostText {
		return err
	}
	return &cutError{text: fmt.Sprintf("%s… (%d bytes more)", strings.ToValidUTF8(text[:mostText], ""), len(text)-mostText), err: err}
}
