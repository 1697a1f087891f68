// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/record"
	"github.com/weftnet/weft/internal/host/journal"
)

// first says whether a driver's claims were not looked for yet.
func (c *Claims) first(driver string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.adopted[driver]
	c.adopted[driver] = true
	return !was
}

// lookLater has a driver's claims looked for by Run, once.
func (c *Claims) lookLater(driver string, after time.Duration) {
	if c.first(driver) {
		c.addLook(driver, after)
	}
}

func (c *Claims) addLook(driver string, after time.Duration) {
	c.remote.add("look "+driver, after, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, listTime)
		defer cancel()
		err := c.look(ctx, driver)
		if err != nil {
			c.cfg.Log.DebugContext(ctx, "claims of the node's pods are not known yet", "error", err)
		}
		return err
	})
}

// look reads the claims of the node's pods: what another driver has prepared is taken over, a
// status that is missing is written, and what nobody has any more is freed.
func (c *Claims) look(ctx context.Context, driver string) error {
	claims, pods, err := c.cfg.API.OfNode(ctx)
	if pods == nil {
		return err
	}
	known := map[types.UID]bool{}
	for _, claim := range claims {
		known[claim.UID] = true
		if fault := c.adopt(ctx, claim, driver, pods); fault != nil {
			name := types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
			c.cfg.Log.Warn("claim is not taken over, the others are", "claim", name.String(), "claim_uid", claim.UID, "error", fault)
			c.event(name, claim.UID, corev1.EventTypeWarning, "NotRecovered", fault.Error())
		}
	}
	if err != nil {
		return err // claims that were not read are not gone
	}
	return c.findGone(ctx, known, pods)
}

// adopt looks at one claim of a pod of the node.
func (c *Claims) adopt(ctx context.Context, claim *resourceapi.ResourceClaim, driver string, pods map[types.UID]*corev1.Pod) error {
	results := ours(claim, driver)
	pod, err := consumer(claim)
	if len(results) == 0 || err == nil && pods[pod] == nil {
		return nil //nolint:nilerr // it concerns the driver, or this node, in nothing
	}
	rec, l, acquired := c.acquire(ctx, claim.UID)
	if acquired != nil {
		return acquired
	}
	defer rec.Close() //nolint:errcheck // what counts is on the disk
	if l.phase != none {
		if l.phase == ready && sameDevices(l.body, claim, driver) {
			c.writeLater(nameOf(l.body), claim.UID, 0) // writes nothing when it is there
		}
		return nil
	}
	if err != nil {
		return err
	}
	if freed(pods[pod], results, c.cfg.Node) {
		return nil
	}
	body, prepared, unreadable := readStatus(claim, results, c.cfg.Node, driver)
	if len(body.Devices) == 0 {
		if unreadable != nil {
			return unreadable
		}
		for _, r := range results {
			c.cfg.Log.Warn("claim of a pod is allocated, and neither the node nor its status knows that it was prepared",
				"claim", nameOf(body).String(), "pod_uid", pod, "device", r.Device)
		}
		return nil
	}
	body.PodUIDs = []string{string(pod)}
	return errors.Join(c.takeOver(ctx, rec, body, prepared), unreadable)
}

// freed says whether a claim without a record is one that was freed, rather than one that another
// driver prepared: an entry stays in the status until the claim is deallocated. What was allocated
// under a pool of this driver's had a record, and the kubelet frees nothing of a pod that goes on.
func freed(pod *corev1.Pod, results []resourceapi.DeviceRequestAllocationResult, node string) bool {
	_, named := device.UserPool(node, results[0].Pool)
	return named && (pod.DeletionTimestamp != nil || ended(pod))
}

func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// readStatus makes the body of a record from what a claim's status says. A device whose entry
// cannot be read is left out, and told.
func readStatus(
	claim *resourceapi.ResourceClaim, results []resourceapi.DeviceRequestAllocationResult, node, driver string,
) (record.Claim, []record.Prepared, error) {
	body := record.Claim{Namespace: claim.Namespace, Name: claim.Name, UID: string(claim.UID), Driver: driver, Kept: true}
	var all []record.Prepared
	var faults []error
	for _, r := range results {
		d := record.Device{Request: r.Request, Slice: r.Pool, Name: r.Device}
		if r.ShareID != nil {
			d.ShareID = string(*r.ShareID)
		}
		key := resourceapi.AllocatedDeviceStatus{Driver: driver, Pool: r.Pool, Device: r.Device, ShareID: &d.ShareID}
		for _, e := range claim.Status.Devices {
			if !sameDevice(e, key) {
				continue
			}
			manager, dev, config, err := readEntry(e)
			pool, ok := userPool(node, r.Pool)
			if err == nil && !ok {
				err = fmt.Errorf("device %s: pool %q is no pool of node %s", r.Device, r.Pool, node)
			}
			if err != nil {
				faults = append(faults, fmt.Errorf("claim %s: %w", nameOf(body), err))
				continue
			}
			d.Manager, d.Dev, d.Config, d.Pool = string(manager), dev, config, pool
			prepared := record.Prepared{Dev: dev}
			if n := e.NetworkData; n != nil {
				prepared.IfName, prepared.MAC = n.InterfaceName, n.HardwareAddress
			}
			body.Devices, all = append(body.Devices, d), append(all, prepared)
		}
	}
	return body, all, errors.Join(faults...)
}

// takeOver records a claim that was prepared without a record. A device whose link is at home is set up
// again, which changes nothing that is right: the node may have been started since. Links that
// are away are in a pod, and left alone.
func (c *Claims) takeOver(ctx context.Context, rec *journal.Record, body record.Claim, prepared []record.Prepared) error {
	uid := types.UID(body.UID)
	for _, a := range c.cfg.Store.Allocations() {
		for _, u := range uses(body) {
			if err := taken(u, "", []use{{claim: a.Claim, uid: a.ClaimUID, device: a.DeviceName, share: a.ShareID}}); err != nil {
				return err
			}
		}
	}
	if err := begin(rec, body, c.cfg.Boot); err != nil {
		return fmt.Errorf("record claim %s: %w", nameOf(body), err)
	}
	// The kubelet may have freed it already, and will then not ask for that again.
	c.remote.add(goneKey(uid), goneFor, func(ctx context.Context) error {
		gone, err := c.freeGone(ctx, uid)
		if err == nil && !gone {
			err = errStill
		}
		return err
	})
	if c.allHome(body) {
		l, err := lifeOf(rec.State(), c.cfg.Boot)
		if err == nil {
			_, err = c.setUpAgain(ctx, rec, l)
		}
		if err != nil {
			c.notReady(l, err)
		}
		return nil
	}
	for i, d := range body.Devices {
		result, err := json.Marshal(prepared[i])
		if err == nil {
			err = rec.Append(journal.Phase{Phase: journal.Done, Item: i, Result: result})
		}
		if err != nil {
			return fmt.Errorf("record device %s of claim %s: %w", d.Name, nameOf(body), err)
		}
	}
	if err := rec.Append(journal.Phase{Phase: journal.Done, Item: journal.WholeCall}); err != nil {
		return fmt.Errorf("record claim %s: %w", nameOf(body), err)
	}
	l, err := lifeOf(rec.State(), c.cfg.Boot)
	if err != nil {
		return err
	}
	c.putRows(l)
	c.cfg.Log.Info("claim that another driver has prepared is taken over", "claim", nameOf(body).String(), "claim_uid", body.UID, "devices", len(body.Devices))
	return nil
}

// allHome says whether the links of all devices are in the host's network namespace.
func (c *Claims) allHome(body record.Claim) bool {
	for _, d := range body.Devices {
		m, dev, err := c.restore(d, d.Dev)
		if err != nil {
			return false
		}
		if _, err := m.Link(host(), dev, d.Saved); err != nil {
			return false
		}
	}
	return true
}

// findGone finds records of claims that are gone, with their pods, and that the kubelet will perhaps
// never ask to free.
func (c *Claims) findGone(ctx context.Context, known map[types.UID]bool, pods map[types.UID]*corev1.Pod) error {
	keys, err := c.records.Keys()
	if err != nil {
		return err
	}
	var faults []error
	for _, key := range keys {
		uid := types.UID(key)
		state, err := c.records.Read(key)
		if known[uid] || err != nil {
			continue
		}
		l, err := lifeOf(state, c.cfg.Boot)
		if err != nil || l.phase == none {
			continue
		}
		gone, err := c.isGone(ctx, l, pods)
		if err != nil {
			faults = append(faults, err)
		}
		if gone {
			c.remote.add(goneKey(uid), goneFor, func(ctx context.Context) error {
				_, err := c.freeGone(ctx, uid)
				return err
			})
		}
	}
	return errors.Join(faults...)
}

var errStill = errors.New("claim is still there")

// isGone says whether a claim is no more, or not reserved for its pod any more, and the pod has
// ended.
func (c *Claims) isGone(ctx context.Context, l life, pods map[types.UID]*corev1.Pod) (bool, error) {
	if pod := pods[podOf(l.body)]; pod != nil && !ended(pod) {
		return false, nil
	}
	claim, err := c.cfg.API.Claim(ctx, nameOf(l.body))
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("look for claim %s: %w", nameOf(l.body), err)
	}
	reserved := slices.ContainsFunc(claim.Status.ReservedFor, func(r resourceapi.ResourceClaimConsumerReference) bool {
		return r.UID == podOf(l.body)
	})
	return claim.UID != types.UID(l.body.UID) || !reserved, nil
}

// freeGone frees a claim that was gone, if it is still, and says whether there is no more to do.
func (c *Claims) freeGone(ctx context.Context, uid types.UID) (bool, error) {
	within, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	state, err := c.records.Read(journal.Key(uid))
	if err != nil {
		return true, nil //nolint:nilerr // it was freed, or says nothing
	}
	l, err := lifeOf(state, c.cfg.Boot)
	if err != nil || l.phase == none {
		return true, nil //nolint:nilerr // it says nothing
	}
	_, pods, err := c.cfg.API.OfNode(within)
	if pods == nil {
		return false, err
	}
	if gone, err := c.isGone(within, l, pods); err != nil || !gone {
		return false, err
	}
	c.cfg.Log.InfoContext(ctx, "claim is gone with its pod, and is freed without the kubelet's call", "claim", nameOf(l.body).String(), "claim_uid", uid)
	_, err = c.unprepare(ctx, uid)
	return err == nil, err
}
