// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package orphans decides which records the hands are to be asked about, because their
// sandboxes may be gone without a DEL: after a reboot, a crash, or a DEL that was lost.
//
// It owns the patience: a record of this boot is a suspect only when the API has not known
// its pod, or has known a later sandbox of that pod, in every look for Grace. Nothing else
// is decided here: whether the network namespace is gone is seen, under the record's lock
// and in the host's mount namespace, by "weft-cni apply" (internal/cni/attach).
//
// Invariants: a look that cannot tell begins the patience anew; a suspect is no more than
// that, so a mistake here costs a call and no pod.
//
// It takes values and returns values: no clock, no file, no cluster.
//
// Implements: architecture 4.4 (when a sandbox is an orphan).
package orphans

import (
	"time"

	"github.com/weftnet/weft/internal/host/journal"
)

// Grace is how long the API must not have known a sandbox.
const Grace = 2 * time.Minute

// Knowledge is what the API says of a pod.
type Knowledge int

// What is known of a pod. The zero value never makes a suspect.
const (
	Unsure  Knowledge = iota // the caches are behind, or it is no pod of Kubernetes
	Known                    // it is a pod of the node
	Unknown                  // there is none of that name and UID
)

// Sandbox is one record as it is seen in a look.
type Sandbox struct {
	Key      journal.Key
	Begun    time.Time
	PodUID   string
	Dead     bool // of another boot
	Finished bool // its ADD is over, and nothing is being undone
	Pod      Knowledge
}

type id struct {
	key   journal.Key
	begun time.Time
}

// Judge keeps since when each sandbox has not been known. It is for one goroutine.
type Judge struct{ since map[id]time.Time }

// Look takes in what is seen at a time, of every record, and gives the suspects.
func (j *Judge) Look(now time.Time, all []Sandbox) []Sandbox {
	since := make(map[id]time.Time, len(all))
	latest := latestOf(all)
	var suspects []Sandbox
	for _, s := range all {
		if s.Dead {
			suspects = append(suspects, s)
			continue
		}
		superseded := s.Pod == Known && s.PodUID != "" && latest[s.PodUID].After(s.Begun)
		if s.Pod != Unknown && !superseded {
			continue
		}
		me := id{s.Key, s.Begun}
		first, seen := j.since[me]
		if !seen || now.Before(first) {
			first = now
		}
		since[me] = first
		if now.Sub(first) >= Grace {
			suspects = append(suspects, s)
		}
	}
	j.since = since
	return suspects
}

// latestOf gives for each pod when its latest sandbox that lives was begun: the kubelet
// makes another one only after it has ended those before.
func latestOf(all []Sandbox) map[string]time.Time {
	latest := map[string]time.Time{}
	for _, s := range all {
		if !s.Dead && s.Finished && s.Begun.After(latest[s.PodUID]) {
			latest[s.PodUID] = s.Begun
		}
	}
	return latest
}
