// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/record"
	"github.com/weftnet/weft/internal/cni/scratch"
)

// living is what lives, by conf name, and the containers that it is of.
type living struct {
	byName     map[string][]netconf.ValidAttachment
	containers map[string]bool
}

func (l living) add(network, containerID, ifName string) {
	l.byName[network] = append(l.byName[network], netconf.ValidAttachment{ContainerID: containerID, IfName: ifName})
	l.containers[containerID] = true
}

// liveByName lists the attachments of every record and scratch file by conf name, and
// those that the runtime names and nobody here knows.
func (h *hands) liveByName(podNetwork string) (map[string][]netconf.ValidAttachment, error) {
	live := living{map[string][]netconf.ValidAttachment{}, map[string]bool{}}
	for _, add := range []func(living) error{
		h.liveRecords, h.liveScratch,
		func(live living) error { return h.liveUnknown(live, podNetwork) },
	} {
		if err := add(live); err != nil {
			return nil, err
		}
	}
	return live.byName, nil
}

// liveRecords adds what the records hold. What one that cannot be read holds is not known,
// so nothing may be released then.
func (h *hands) liveRecords(live living) error {
	keys, err := h.store.Keys()
	if err != nil {
		return stateFault("", err)
	}
	for _, key := range keys {
		st, err := h.store.Read(key)
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted since the keys were listed
		}
		if err != nil {
			return stateFault(key, err)
		}
		if len(st.Intents) == 0 {
			continue
		}
		s, err := record.Decode(st, h.boot)
		if err != nil {
			return stateFault(key, err)
		}
		live.containers[s.Body.Sandbox.ContainerID] = true
		for _, a := range s.Attachments {
			if !a.Undone {
				live.add(a.Conf.Name, s.Body.Sandbox.ContainerID, a.IfName)
			}
		}
	}
	return nil
}

// liveScratch adds what Multus' scratch files hold.
func (h *hands) liveScratch(live living) error {
	ids, err := scratch.List(h.conf.CNIDir)
	if err != nil {
		return stateFault("", err)
	}
	for _, id := range ids {
		found, err := scratch.Load(h.conf.CNIDir, id, defaultIfName)
		// Multus leaves torn files behind for good. One whose sandbox is gone holds nothing;
		// gcScratch has told it.
		if err != nil && h.listed(id) {
			return &fault.Fault{Code: fault.State, Object: "Multus file " + filepath.Join(h.conf.CNIDir, id), Text: err.Error(), Err: err}
		}
		for _, a := range found {
			live.add(a.Conf.Name, id, a.IfName)
		}
	}
	return nil
}

// liveUnknown adds the sandboxes of the runtime's list that have neither record nor scratch
// file: the runtime attached them by the pod network's own conf, before Weft came or while
// its conf was away, or Multus lost their scratch file and not its results.
func (h *hands) liveUnknown(live living, podNetwork string) error {
	for _, v := range h.conf.ValidAttachments {
		if live.containers[v.ContainerID] {
			continue
		}
		if podNetwork != "" {
			live.byName[podNetwork] = append(live.byName[podNetwork], v)
		}
		found, err := scratch.Load(h.conf.CNIDir, v.ContainerID, v.IfName)
		if err != nil {
			return stateFault("", fmt.Errorf("sandbox %s: %w", v.ContainerID, err))
		}
		for _, a := range found {
			live.byName[a.Conf.Name] = append(live.byName[a.Conf.Name], netconf.ValidAttachment{ContainerID: v.ContainerID, IfName: a.IfName})
		}
	}
	return nil
}
