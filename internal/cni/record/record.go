// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package record says what the journal's lines mean for CNI attachments: the
// body of an intent, and the view of one sandbox that intents and phases add up to.
//
// It owns the JSON form of Body, which later versions must be able to read:
// fields are added, never renamed or removed.
//
// Invariants: a Sandbox never forgets an attachment whose delegate may have run.
// What was planned in another boot counts as attempted, since phases are written
// without waiting for the disk.
//
// It must not know files, locks or processes (internal/host/journal does), nor how
// an attachment is made (internal/cni/chain) or undone (internal/cni/attach).
//
// Implements: architecture 4.3; spec/cni.md rules 4 and 5.
package record

import (
	"encoding/json"
	"fmt"

	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/host/journal"
)

// Version is the version of the intent that this package writes.
const Version = 1

// Kind is the journal kind of an attachment record.
const Kind = "attachment"

// Body is the body of an intent: everything that undoing needs, so that DEL,
// CHECK and GC work with no API server, no agent and no network namespace.
type Body struct {
	Sandbox plan.Sandbox `json:"sandbox"`
	// NetnsID identifies the namespace (device and inode of its file), so that
	// a repeated ADD notices a new namespace under an old path. "" = unknown.
	NetnsID string `json:"netnsID,omitempty"`
	// NetnsUnique is the number that the kernel gave this namespace and no other since it was
	// booted, where it tells (Linux 6.18): it gives out inodes again. 0 = unknown.
	NetnsUnique uint64 `json:"netnsUnique,omitempty"`
	// Host identifies the mount and network namespaces in which the runtime ran Weft: what
	// is not seen from there is not known to be gone. "" = unknown.
	Host string `json:"host,omitempty"`
	// ConfName is the name of Weft's own conf, CNIVersion the version that was asked for.
	ConfName   string `json:"confName"`
	CNIVersion string `json:"cniVersion"`
	// Scratch is the Multus scratch directory that this record was taken over from, "" otherwise.
	// All of such a record was attempted, by Multus: the intent says it, because a kill
	// after it must not make Weft forget what it took over.
	Scratch string `json:"scratch,omitempty"`
	// Taken are the results that were taken over with it, one an attachment; null = none.
	Taken []json.RawMessage `json:"taken,omitempty"`
	// Displaced are those of the attachments' default routes, one an attachment; null = none is known.
	Displaced []*Displaced `json:"displaced,omitempty"`
	// Plugged: the pod was running when this was planned. What has a result in Taken it had
	// already, the others are added to it: the ADD is over, whatever becomes of them.
	Plugged bool `json:"plugged,omitempty"`
	// Half, of a Plugged body, are the attachments that were begun to be made or undone before,
	// and not to the end: they are to be undone.
	Half []int `json:"half,omitempty"`
	// Former, of a Plugged body, are what the pod had in the past, for who reports what it has.
	Former []Former  `json:"former,omitempty"`
	Plan   plan.Plan `json:"plan"`
}

// Former is an attachment that was detached from a running pod.
type Former struct {
	Network string `json:"network"`
	IfName  string `json:"ifName"`
}

// MaxFormer bounds the former attachments that a record names.
const MaxFormer = 256

// Displaced is what the default routes of an attachment take the place of, to be put back
// when it goes before the pod does.
type Displaced struct {
	// Result is the attachment's own, where the phase is the first to tell it.
	Result json.RawMessage `json:"result,omitempty"`
	// Defaults are the routes, and what results said of them, as internal/cni/attach writes them.
	// None: they are back, or others have inherited them.
	Defaults json.RawMessage `json:"defaults,omitempty"`
}

// Attachment is one planned attachment and what has become of it.
type Attachment struct {
	plan.Attachment
	Attempted bool   // a delegate of it may have run
	Done      bool   // ADD answered with Result
	Undone    bool   // every plugin answered DEL with success
	Result    []byte // the chain's last result, with route edits
	// Displaced is what its default routes take the place of; nil when that is not known.
	Displaced *Displaced
}

// Pending reports whether undoing has something to do.
func (a *Attachment) Pending() bool { return a.Attempted && !a.Undone }

// Present reports whether the attachment is part of a finished sandbox. What a running pod was
// to get besides (plugged) is so only once it was made, and until it is begun to be undone.
func (a *Attachment) Present(plugged bool) bool { return !a.Undone && (a.Done || !plugged) }

// Sandbox is one record, read.
type Sandbox struct {
	Key         journal.Key
	Boot        string
	Body        Body
	Attachments []Attachment
	// Finished: the whole ADD succeeded and was not begun to be undone.
	Finished bool
	// Deletes counts the DEL calls that began on this record.
	Deletes int
}

// Decode reads a record. boot is the running boot's ID. A state without an intent
// is an error; callers look at State.Empty first.
func Decode(st journal.State, boot string) (*Sandbox, error) {
	if len(st.Intents) == 0 {
		return nil, fmt.Errorf("decode record: no intent")
	}
	in := st.Intents[len(st.Intents)-1]
	s := &Sandbox{Key: in.Key, Boot: in.Boot}
	if err := json.Unmarshal(in.Body, &s.Body); err != nil {
		return nil, fmt.Errorf("decode record %s: %w", in.Key, err)
	}
	s.Attachments = make([]Attachment, len(s.Body.Plan.Attachments))
	for i, a := range s.Body.Plan.Attachments {
		s.Attachments[i] = Attachment{Attachment: a, Attempted: in.Boot != boot || s.Body.Scratch != ""}
		if i < len(s.Body.Taken) && len(s.Body.Taken[i]) > 0 && string(s.Body.Taken[i]) != "null" {
			a := &s.Attachments[i]
			a.Attempted, a.Done, a.Result = true, true, s.Body.Taken[i]
		}
		if i < len(s.Body.Displaced) {
			s.Attachments[i].Displaced = s.Body.Displaced[i]
		}
	}
	for _, i := range s.Body.Half {
		if i >= 0 && i < len(s.Attachments) {
			s.Attachments[i].Attempted, s.Attachments[i].Done = true, false
		}
	}
	s.Finished = s.Body.Plugged
	for _, p := range st.Phases {
		s.apply(p)
	}
	s.Finished = s.Finished && s.answered()
	return s, nil
}

// answered reports whether every attachment that is there has a result. Of a record that
// says "done" otherwise, lines are missing: its ADD is to be undone and done again.
func (s *Sandbox) answered() bool {
	for i := range s.Attachments {
		if a := &s.Attachments[i]; a.Present(s.Body.Plugged) && len(a.Result) == 0 {
			return false
		}
	}
	return len(s.Attachments) > 0
}

func (s *Sandbox) apply(p journal.Phase) {
	switch {
	case p.Item == journal.WholeCall && p.Phase == journal.Done:
		s.Finished = true
	case p.Item == journal.WholeCall && p.Phase == journal.Undoing:
		s.Finished = false
		if string(p.Result) == deleting {
			s.Deletes++
		}
	case p.Item < 0 || p.Item >= len(s.Attachments):
	default:
		s.Attachments[p.Item].apply(p)
	}
}

func (a *Attachment) apply(p journal.Phase) {
	switch p.Phase {
	case journal.Attempting:
		a.Attempted = true
	case journal.Done:
		a.Attempted, a.Done, a.Result = true, true, p.Result
	case journal.Undoing:
		a.Done = false
	case journal.Undone:
		a.Undone = true
	case journal.Displacing:
		// One that cannot be read is none that is known. The line is whole, so a later version wrote it.
		var d Displaced
		if json.Unmarshal(p.Result, &d) != nil {
			return
		}
		a.Attempted, a.Displaced = true, &d
		if len(d.Result) > 0 {
			a.Result = d.Result
		}
	case journal.Started: // tells whom to end, see journal.State.LastStarted
	}
}

// deleting marks the phase that a DEL of the runtime begins with, so that those can be counted.
const deleting = `{"command":"DEL"}`

// UndoPhase is the phase that begins undoing the whole record. ofRuntime: because the
// runtime said DEL, rather than after a failed ADD, for GC or in the sweep.
func UndoPhase(ofRuntime bool) journal.Phase {
	p := journal.Phase{Phase: journal.Undoing, Item: journal.WholeCall}
	if ofRuntime {
		p.Result = json.RawMessage(deleting)
	}
	return p
}
