// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package planner

import (
	"context"
	"strings"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/wire"
)

// PodRef names one pod, and not a later one of the same name.
type PodRef struct{ Namespace, Name, UID string }

func (p PodRef) String() string { return "pod " + p.Namespace + "/" + p.Name }

// Event is what a pod's owner is told.
type Event struct {
	Reason  string // one of the Reason constants
	Message string // one line, bounded
}

// Reasons of events; all of them are warnings. NoNetworkFound is what users of Multus
// know, the last is the counterpart of its AddedInterface.
const (
	ReasonNoNetwork  = "NoNetworkFound"     // a NAD that the pod names does not exist
	ReasonInvalid    = "InvalidNetworks"    // nothing was attached: annotation, NAD, isolation, devices
	ReasonFailed     = "FailedAddInterface" // attaching failed, and was undone
	ReasonQuestioned = "QuestionableNetworks"
)

// maxMessage bounds an event's message, in bytes: the API server takes no more.
const maxMessage = 1 << 10

// Reporter is a Source that can tell users how an ADD went. A Source that is none is
// asked for plans only.
type Reporter interface {
	Source
	// Annotate sets an annotation of the pod to what value makes of its present one
	// ("" = absent), and of no newer one: value is called again when another writer was
	// quicker. The error is a *fault.Fault: 11 also for a pod that is gone.
	Annotate(ctx context.Context, pod PodRef, annotation string, value func(old string) string) error
	// Tell tells an event, soon and if it can; nothing waits for it.
	Tell(pod PodRef, e Event)
}

// Message is a CNI error as the text of an event.
func Message(e *wire.Error) string {
	text := e.Msg
	if !strings.Contains(text, e.Details) { // a plugin's are in its text already
		text += "; " + e.Details
	}
	return fault.Bound(text, maxMessage)
}
