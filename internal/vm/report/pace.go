// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"time"

	v1 "kubevirt.io/api/core/v1"

	"github.com/weftnet/weft/internal/vm/source"
	"github.com/weftnet/weft/vmistatus"
)

// change is how much a status that is to be written says that the object's does not.
type change uint8

const (
	unchanged change = iota
	minor
	major // of what others act on
)

// changeOf compares statuses. Which interfaces of the spec there are, their links and the address that each
// is reached by are what others act on.
func changeOf(before, after []vmistatus.Interface) change {
	if vmistatus.Equal(before, after) {
		return unchanged
	}
	type reach struct{ link, ip string }
	had := map[string]reach{}
	for i := range before {
		had[before[i].Name] = reach{before[i].LinkState, before[i].IP}
	}
	delete(had, "") // what only the guest knows
	for i := range after {
		e := &after[i]
		if e.Name == "" {
			continue
		}
		if was, ok := had[e.Name]; !ok || was != (reach{e.LinkState, e.IP}) {
			return major
		}
		delete(had, e.Name)
	}
	if len(had) > 0 {
		return major
	}
	return minor
}

// writes spaces the writes of a status, which a guest can cause, and notices another writer: when what
// was written is replaced, over and over, it is given way to for longer and longer.
type writes struct {
	at       time.Time // of the last one
	over     string    // the version of the object that it changed
	last     []vmistatus.Interface
	replaced int
	pace     source.Pace
	reserve  source.Pace // for what is major while the other has nothing left
	refusals int         // since the last one
	failed   time.Time   // when the last of them was
}

// newWrites: a few writes are done at once, as when a machine starts or has been quiet, and then one each
// half minute. Each writes all that is known then, so the last change is never left out.
func newWrites() writes {
	const every, burst, reserve = 30 * time.Second, 5, 3
	return writes{pace: source.Pace{Every: every, Burst: burst}, reserve: source.Pace{Every: every, Burst: reserve}}
}

const (
	firstWait = 5 * time.Second
	lastWait  = 10 * time.Minute
	// patience is how often a value is written again at once: the sources change, too.
	patience = 3
)

// tries notes that a write was tried.
func (w *writes) tries(what change, now time.Time) {
	if what == major && w.pace.Wait(now) > 0 {
		w.reserve.Done(now)
		return
	}
	w.pace.Done(now)
}

// refused notes that the API server refused one.
func (w *writes) refused(now time.Time) {
	w.refusals++
	w.failed = now
}

// wrote notes a write.
func (w *writes) wrote(over string, value []vmistatus.Interface, now time.Time) {
	w.at, w.over, w.last, w.refusals = now, over, value, 0
}

// wait is how long to wait before the status of an object may be written.
func (w *writes) wait(vmi *v1.VirtualMachineInstance, what change, now time.Time) time.Duration {
	differs := what != unchanged
	if w.over != "" && w.over == vmi.ResourceVersion {
		return retry // the watch is behind the write
	}
	if w.last != nil && differs && !vmistatus.Equal(vmi.Status.Interfaces, w.last) {
		w.replaced++
		w.last = nil // it is counted once
	}
	if now.Sub(w.at) > 2*lastWait {
		w.replaced = 0
	}
	if !differs {
		w.refusals = 0
	}
	wait := w.pace.Wait(now)
	if what == major {
		wait = min(wait, w.reserve.Wait(now))
	}
	if w.refusals > 0 {
		wait = max(wait, w.failed.Add(growing(w.refusals-1)).Sub(now))
	}
	if w.replaced >= patience {
		wait = max(wait, w.at.Add(growing(w.replaced-patience)).Sub(now))
	}
	return wait
}

// growing is the pause after the nth time.
func growing(n int) time.Duration {
	const doublings = 7
	if n < doublings {
		return firstWait << n
	}
	return lastWait
}
