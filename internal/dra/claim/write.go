// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/internal/host/journal"
)

// writeStatus writes what a prepared claim's status is to say, unless it says so. That it cannot be
// written is told and mended later, and is no reason to keep a pod from its devices.
func (c *Claims) writeStatus(ctx context.Context, claim *resourceapi.ResourceClaim, l life) {
	within, cancel := context.WithTimeout(ctx, statusTime)
	defer cancel()
	err := c.writeOnce(within, claim, l)
	if err == nil {
		return
	}
	name := nameOf(l.body)
	c.cfg.Log.Warn("status of a claim is not written, it is tried again", "claim", name.String(), "claim_uid", l.body.UID, "error", err)
	message := "The devices are prepared, but the claim's status does not say so yet"
	if mayNot(err) { // before the error's text, which may be cut
		message += " (since Kubernetes 1.36 a driver needs the verbs associated-node:update and :patch on resourceclaims/driver, as in Weft's manifests)"
	}
	c.event(name, claim.UID, corev1.EventTypeWarning, "StatusNotWritten", message+": "+err.Error())
	c.writeLater(name, claim.UID, firstPause)
}

// mayNot says that a right is missing: to write claims' statuses at all, which is answered by 403, or
// the driver's entries in them, which is a value that is forbidden, in an answer of 422.
func mayNot(err error) bool {
	if apierrors.IsForbidden(err) {
		return true
	}
	const entries = "status.devices"
	var status apierrors.APIStatus // no error by itself, which errors.AsType would ask for
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool {
		return c.Type == metav1.CauseTypeForbidden && strings.HasPrefix(c.Field, entries)
	})
}

// writeOnce sees to it that the status has our entries, by at most one write that succeeds.
func (c *Claims) writeOnce(ctx context.Context, claim *resourceapi.ResourceClaim, l life) error {
	var entries []resourceapi.AllocatedDeviceStatus
	var faults []error
	for i, d := range l.body.Devices {
		e, err := entry(l.body.Driver, d, l.prepared[i], claim.Generation)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		entries = append(entries, e)
	}
	if !merge(claim.DeepCopy(), entries) {
		return errors.Join(faults...)
	}
	began := time.Now()
	err := c.cfg.API.WriteStatus(ctx, claim, func(fresh *resourceapi.ResourceClaim) bool {
		// Nothing is said of a claim that has lost the allocation meanwhile.
		return fresh.UID == claim.UID && sameDevices(l.body, fresh, l.body.Driver) && merge(fresh, entries)
	})
	c.cfg.Observe(Outcome{Call: "status", Devices: len(entries), Took: time.Since(began), Err: err})
	if apierrors.IsNotFound(err) {
		err = nil // the claim has gone, and the kubelet will say so
	}
	return errors.Join(append(faults, err)...)
}

func (c *Claims) writeLater(name types.NamespacedName, uid types.UID, after time.Duration) {
	c.remote.add(statusKey(uid), after, func(ctx context.Context) error { return c.writeAgain(ctx, name, uid) })
}

// writeAgain writes the status of a claim that is still prepared. No lock is needed: a record that
// is read while it changes is read again at the next try, and the API refuses what is not allocated.
func (c *Claims) writeAgain(ctx context.Context, name types.NamespacedName, uid types.UID) error {
	ctx, cancel := context.WithTimeout(ctx, statusTime)
	defer cancel()
	state, err := c.records.Read(journal.Key(uid))
	if err != nil {
		return nil //nolint:nilerr // no record, or none that says what was prepared
	}
	l, err := lifeOf(state, c.cfg.Boot)
	if err != nil || l.phase != ready {
		return nil //nolint:nilerr // nor does such a one
	}
	claim, err := c.cfg.API.Claim(ctx, name)
	if apierrors.IsNotFound(err) || err == nil && claim.UID != uid {
		return nil
	}
	if err == nil {
		err = c.writeOnce(ctx, claim, l)
	}
	if err != nil {
		err = fmt.Errorf("write the status of claim %s: %w", name, err)
		c.cfg.Log.DebugContext(ctx, "status of a claim is not written yet", "claim", name.String(), "claim_uid", uid, "error", err)
	}
	return err
}
