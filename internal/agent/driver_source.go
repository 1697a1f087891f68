// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/internal/cni/devices"
	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/informed"
	"github.com/weftnet/weft/internal/cni/wire"
	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/handover"
	"github.com/weftnet/weft/internal/dra/record"
	"github.com/weftnet/weft/internal/host/journal"
	"github.com/weftnet/weft/internal/host/wake"
	"github.com/weftnet/weft/internal/kube/informers"
)

func (d *networkDriver) made() *rooms {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rooms
}

var errNotRecovered = errors.New("what was prepared before the agent's start is not known yet")

// unknown says whether something was prepared that is not known yet. Once all is known no file is
// looked for any more.
func (d *networkDriver) unknown() bool {
	if closed(d.recovered) {
		return false
	}
	keys, err := journal.List(filepath.Join(d.cfg.StateDir, record.Devices))
	return err == nil && len(keys) > 0
}

// source is the planner's: pods and networks of the caches, and the devices that pods claimed.
type source struct {
	*informed.Source
	d     *networkDriver
	alone func(podUID string) error // says that another pod has a claim of it
}

// sourceOf is the planner's source for one request, whose time ctx has.
func sourceOf(ctx context.Context, s *informed.Source, d *networkDriver) source {
	return source{Source: s, d: d, alone: func(podUID string) error { return d.alone(ctx, handover.Sandbox{PodUID: podUID}) }}
}

// Prepared implements planner.Handing.
func (s source) Prepared(podUID string) ([]string, error) {
	if r := s.d.made(); r != nil {
		if err := s.alone(podUID); err != nil {
			return nil, err
		}
		return r.handover.Prepared(podUID)
	}
	if s.d.unknown() {
		return nil, errNotRecovered
	}
	return nil, nil
}

// Handover implements planner.Handing.
func (s source) Handover(ctx context.Context, req wire.HandoverRequest) error {
	pod := fmt.Sprintf("pod %s/%s", req.PodNamespace, req.PodName)
	r := s.d.made()
	if r == nil {
		return fault.New(fault.TryLater, pod, "", "claimed devices: %v", errNotRecovered)
	}
	_, err := hands{s.d, r}.Attach(ctx, handover.Sandbox{
		PodUID: req.PodUID, ID: req.Sandbox.ContainerID, Namespace: req.Sandbox.Netns, Reserved: req.IfNames,
	})
	if err != nil {
		return &fault.Fault{Code: fault.TryLater, Object: pod, Text: "claimed devices: " + err.Error(), Err: err}
	}
	return nil
}

// awaitRecovery waits, as long as for the caches, until it is known what was prepared before.
func (d *networkDriver) awaitRecovery(ctx context.Context) error {
	if d.unknown() && !await(ctx, d.recovered) {
		return errNotRecovered
	}
	return nil
}

// hands are the hand-over as the runtime and the planner call it.
type hands struct {
	d *networkDriver
	r *rooms
}

// Attach implements what nri asks for.
func (h hands) Attach(ctx context.Context, s handover.Sandbox) ([]handover.Given, error) {
	if err := h.d.alone(ctx, s); err != nil {
		return nil, err
	}
	return h.r.handover.Attach(ctx, s)
}

// alone is elsewhere of a sandbox that is about to start, for a cache that is behind.
func (d *networkDriver) alone(ctx context.Context, s handover.Sandbox) error {
	return alone(ctx, s, func() error { return d.elsewhere(s.PodUID) }, func() bool {
		synced := closed(d.cluster.Synced())
		if !synced {
			d.log.WarnContext(ctx, "pods are not known yet: whether another pod has a claim of this one is not looked at", "pod_uid", s.PodUID)
		}
		return synced
	})
}

// A cache that is behind is waited for, for less than a hook may take.
const (
	seenWithin = 800 * time.Millisecond
	seenPause  = 10 * time.Millisecond
)

// alone asks whether another pod has a claim of a sandbox's pod, and waits for a cache that does not know
// that one yet. It lets through what the caches cannot know: a static pod, which claims nothing, one that
// runs though the API has it no more, and all pods while the API server is away since the start.
func alone(ctx context.Context, s handover.Sandbox, look func() error, synced func() bool) error {
	for late := time.Now().Add(seenWithin); ; {
		err := look()
		switch noPod := errors.Is(err, errUnseenPod); {
		case !noPod && !errors.Is(err, errUnseenClaim):
			return err
		case noPod && (s.Static || s.Yields || !synced()):
			return nil
		case !time.Now().Before(late):
			return err
		}
		if !wake.Pause(ctx, seenPause) {
			return errors.Join(err, context.Cause(ctx))
		}
	}
}

// Detach implements what nri asks for.
func (h hands) Detach(ctx context.Context, sandboxID string) error {
	return h.r.handover.Detach(ctx, sandboxID)
}

// Nodes implements what nri asks for.
func (h hands) Nodes(ctx context.Context, podUID string) ([]string, error) {
	return h.r.handover.Nodes(ctx, podUID)
}

// elsewhere says that a claim of the pod is prepared for another one: the kubelet prepares a claim
// once, and the second pod would start without its devices. It asks the caches alone.
func (d *networkDriver) elsewhere(podUID string) error {
	return elsewhere(d.store.Allocations(), d.cluster.PodByUID, podUID)
}

// elsewhere is asked about every pod of the node by every hook, and most pods claim nothing: a pod is
// looked up only where another one has something, and what it claims is read only if it claims.
func elsewhere(prepared []device.Allocation, lookUp func(uid string) (*informers.Pod, bool), podUID string) error {
	holders := map[types.NamespacedName]types.UID{}
	for _, a := range prepared {
		if a.PodUID != "" && string(a.PodUID) != podUID {
			holders[a.Claim] = a.PodUID
		}
	}
	if len(holders) == 0 {
		return nil
	}
	row, ok := lookUp(podUID)
	if !ok {
		return fmt.Errorf("whether another pod has a claim of it cannot be told: %w", errUnseenPod)
	}
	maps.DeleteFunc(holders, func(claim types.NamespacedName, _ types.UID) bool { return claim.Namespace != row.Namespace })
	if row.Claims == nil || len(holders) == 0 {
		return nil
	}
	names, unseen := claimsOf(row)
	for _, name := range names {
		claim := types.NamespacedName{Namespace: row.Namespace, Name: name}
		if holder, held := holders[claim]; held {
			return fmt.Errorf("claim %s is prepared for the pod of UID %s, and a device can be in one pod only: delete one of the two", claim, holder)
		}
	}
	return unseen
}

// What the cache does not know yet of a pod.
var (
	errUnseenPod   = errors.New("the pod is not seen yet")
	errUnseenClaim = errors.New("a claim of the pod is not seen yet")
)

// claimsOf names the claims of a pod that the cache knows, and says when there are others.
func claimsOf(row *informers.Pod) ([]string, error) {
	var pod devices.Pod
	if json.Unmarshal(row.Claims, &pod) != nil {
		return nil, nil //nolint:nilerr // the API server's own
	}
	names, err := devices.Claims(&pod)
	if err == nil {
		return names, nil
	}
	for _, c := range pod.Spec.ResourceClaims { // those that it names itself
		if c.ResourceClaimName != nil {
			names = append(names, *c.ResourceClaimName)
		}
	}
	return names, fmt.Errorf("%w: %w", errUnseenClaim, err)
}

// own implements informed.Options.Own: what was prepared for a pod, as a NAD draws it.
func (d *networkDriver) own(podUID string) (drawn map[string][]string, name string) {
	d.mu.Lock()
	if d.rooms != nil {
		name = d.rooms.driver.Name()
	}
	d.mu.Unlock()
	drawn = map[string][]string{}
	for _, row := range d.store.OfPod(types.UID(podUID)) {
		id := row.PreparedDevice.Attributes()[devices.DeviceIDAttribute]
		driver := cmp.Or(row.Driver, name) // it may have had another name when it was prepared
		if id.StringValue == nil || driver == "" {
			continue
		}
		resource := driver + "/" + row.Pool
		drawn[resource] = append(drawn[resource], *id.StringValue)
	}
	for _, ids := range drawn {
		slices.Sort(ids)
	}
	return drawn, name
}
