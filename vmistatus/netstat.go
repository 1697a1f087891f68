// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vmistatus

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
)

// PodCache reads what was stored of a pod's interface. Its error is one of fs.ErrNotExist when
// there is no file, anything else when there is one that cannot be read. It is called by several
// goroutines at once. Package podcache has the one for KubeVirt's files.
type PodCache interface {
	Read(vmi types.UID, network string) (PodRead, error)
}

// NetStat keeps status.interfaces of the machines of a node. It may be used by several goroutines
// at once, also of several controllers, which should share one.
//
// What was once read of a pod is not read again until the machine has another pod, the interface
// is absent or the machine is torn down. Only a read that gave addresses is kept, so a file that
// comes later, or can be read later, is seen at the next call.
type NetStat struct {
	cache  PodCache
	policy Policy

	mu       sync.Mutex
	teardown uint64 // how many there were: a read that a teardown overtook is not kept
	volatile map[types.UID]map[podNetwork]PodRead
}

// podNetwork is, with the machine's UID, the key of a read.
type podNetwork struct {
	pod     string // UIDs of the machine's pods on its node
	network string
}

// Option changes a NetStat.
type Option func(*NetStat)

// WithPolicy has another policy than FamilyMerge.
func WithPolicy(p Policy) Option { return func(s *NetStat) { s.policy = p } }

// NewNetStat makes a NetStat that reads pods' interfaces from cache; nil knows nothing of pods.
func NewNetStat(cache PodCache, options ...Option) *NetStat {
	s := &NetStat{cache: cache, policy: FamilyMerge, volatile: map[types.UID]map[podNetwork]PodRead{}}
	for _, o := range options {
		o(s)
	}
	return s
}

// UpdateStatus brings vmi.Status.Interfaces up to date; a nil domain leaves them as they are.
// They are only replaced, as a whole, when they say something else than before (see Equal).
// An error tells which sources could not be read; the status is up to date nevertheless, with
// their last good values.
func (s *NetStat) UpdateStatus(vmi *v1.VirtualMachineInstance, domain *Domain) error {
	if domain == nil {
		return nil
	}
	r := s.Compute(vmi, domain, nil)
	if !Equal(vmi.Status.Interfaces, r.Interfaces) {
		vmi.Status.Interfaces = r.Interfaces
	}
	var unread []error
	for _, w := range r.Warnings {
		if w.Code == SourceUnreadable {
			unread = append(unread, errors.New(w.Text))
		}
	}
	if len(unread) > 0 {
		return fmt.Errorf("vmi %s/%s: %w", vmi.Namespace, vmi.Name, errors.Join(unread...))
	}
	return nil
}

// Compute is UpdateStatus with the whole result, and without changing vmi. Multus may be nil.
func (s *NetStat) Compute(vmi *v1.VirtualMachineInstance, domain *Domain, multus *MultusReport) Result {
	in := Input{
		Interfaces: vmi.Spec.Domain.Devices.Interfaces,
		Networks:   vmi.Spec.Networks,
		Previous:   vmi.Status.Interfaces,
		Domain:     domain,
		Multus:     multus,
		Policy:     s.policy,
	}
	if domain != nil {
		in.PodCache = s.readPods(vmi)
		defer s.evict(vmi)
	}
	return Merge(in)
}

// Teardown forgets what was read of the machine's pods.
func (s *NetStat) Teardown(vmi *v1.VirtualMachineInstance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.teardown++
	delete(s.volatile, vmi.UID)
}

// Cached says whether a network of the machine's present pod is not read again.
func (s *NetStat) Cached(vmi *v1.VirtualMachineInstance, network string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.volatile[vmi.UID][podNetwork{podsOf(vmi), network}]
	return ok
}

// readPods reads every interface of the spec. No lock is held over a read.
func (s *NetStat) readPods(vmi *v1.VirtualMachineInstance) map[string]PodRead {
	if s.cache == nil {
		return nil
	}
	pods := podsOf(vmi)
	reads := make(map[string]PodRead, len(vmi.Spec.Domain.Devices.Interfaces))
	for i := range vmi.Spec.Domain.Devices.Interfaces {
		name := vmi.Spec.Domain.Devices.Interfaces[i].Name
		if r, ok := s.readPod(vmi.UID, podNetwork{pods, name}); ok {
			reads[name] = r
		}
	}
	return reads
}

func (s *NetStat) readPod(uid types.UID, key podNetwork) (PodRead, bool) {
	s.mu.Lock()
	r, ok := s.volatile[uid][key]
	teardown := s.teardown
	s.mu.Unlock()
	if ok {
		return r, true
	}
	r, err := s.cache.Read(uid, key.network)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return PodRead{}, false
	case err != nil:
		return PodRead{Err: err}, true
	case !r.hasAddress():
		return r, true
	}
	r.PodIPs = slices.Clone(r.PodIPs)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.teardown != teardown {
		return r, true // it may be of a pod that is gone
	}
	if s.volatile[uid] == nil {
		s.volatile[uid] = map[podNetwork]PodRead{}
	}
	s.volatile[uid][key] = r
	return r, true
}

// evict forgets interfaces that are absent or no longer in the spec, and other pods.
func (s *NetStat) evict(vmi *v1.VirtualMachineInstance) {
	pods := podsOf(vmi)
	keep := map[string]bool{}
	for i := range vmi.Spec.Domain.Devices.Interfaces {
		e := &vmi.Spec.Domain.Devices.Interfaces[i]
		keep[e.Name] = e.State != v1.InterfaceStateAbsent
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.volatile[vmi.UID] {
		if !keep[key.network] || key.pod != pods {
			delete(s.volatile[vmi.UID], key)
		}
	}
	if len(s.volatile[vmi.UID]) == 0 {
		delete(s.volatile, vmi.UID)
	}
}

// podsOf are the UIDs of the machine's pods on its node; one more or less is another pod.
func podsOf(vmi *v1.VirtualMachineInstance) string {
	var uids []string
	for uid, node := range vmi.Status.ActivePods {
		if node == vmi.Status.NodeName || vmi.Status.NodeName == "" {
			uids = append(uids, string(uid))
		}
	}
	slices.Sort(uids)
	return strings.Join(uids, "\x00")
}
