// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
)

// Plugin is the driver of one name, as the kubelet's helper calls it. Claims of several names have
// their records side by side: a claim is freed whatever name it was prepared under.
type Plugin struct {
	claims *Claims
	driver string
}

var _ kubeletplugin.DRAPlugin = (*Plugin)(nil)

// Plugin gives the driver of a name.
func (c *Claims) Plugin(driver string) *Plugin {
	c.lookLater(driver, 0)
	return &Plugin{claims: c, driver: driver}
}

// PrepareResourceClaims prepares the claims side by side: one that cannot be prepared, or takes its
// time, is no other's matter.
func (p *Plugin) PrepareResourceClaims(
	ctx context.Context, claims []*resourceapi.ResourceClaim,
) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := make(map[types.UID]kubeletplugin.PrepareResult, len(claims))
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, claim := range claims {
		all.Go(func() {
			began := time.Now()
			devices, err := p.claims.prepare(ctx, claim, p.driver)
			p.claims.cfg.Observe(Outcome{Call: "prepare", Devices: len(devices), Took: time.Since(began), Err: err})
			if err = short(err); err != nil {
				p.claims.tellFailure(claim, err)
			}
			mu.Lock()
			defer mu.Unlock()
			results[claim.UID] = kubeletplugin.PrepareResult{Err: err, Devices: devices}
		})
	}
	all.Wait()
	return results, nil
}

// tellFailure says to people what the kubelet is told.
func (c *Claims) tellFailure(claim *resourceapi.ResourceClaim, err error) {
	name := types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
	c.cfg.Log.Warn("claim is not prepared", "claim", name.String(), "claim_uid", claim.UID, "error", err)
	c.event(name, claim.UID, corev1.EventTypeWarning, "PrepareFailed", err.Error())
	for _, pod := range claim.Status.ReservedFor {
		if pod.APIGroup == "" && pod.Resource == "pods" {
			c.cfg.Events.Event(corev1.ObjectReference{
				APIVersion: "v1", Kind: "Pod", Namespace: claim.Namespace, Name: pod.Name, UID: pod.UID,
			}, corev1.EventTypeWarning, "PrepareFailed", err.Error())
		}
	}
}

// UnprepareResourceClaims frees the claims side by side.
func (p *Plugin) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := make(map[types.UID]error, len(claims))
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, claim := range claims {
		all.Go(func() {
			began := time.Now()
			n, err := p.claims.unprepare(ctx, claim.UID)
			p.claims.cfg.Observe(Outcome{Call: "unprepare", Devices: n, Took: time.Since(began), Err: err})
			if err = short(err); err != nil {
				p.claims.cfg.Log.Warn("claim is not freed", "claim", claim.String(), "claim_uid", claim.UID, "error", err)
				p.claims.event(claim.NamespacedName, claim.UID, corev1.EventTypeWarning, "UnprepareFailed", err.Error())
			}
			mu.Lock()
			defer mu.Unlock()
			results[claim.UID] = err
		})
	}
	all.Wait()
	return results, nil
}

// HandleError is told what goes wrong in the background of the helper. None of it ends the driver:
// slices are checked before they are published.
func (p *Plugin) HandleError(ctx context.Context, err error, msg string) {
	if errors.Is(err, kubeletplugin.ErrRecoverable) {
		p.claims.cfg.Log.WarnContext(ctx, "kubelet plugin tries again", "about", msg, "error", err)
		return
	}
	p.claims.cfg.Log.ErrorContext(ctx, "kubelet plugin", "about", msg, "error", err)
}

// WatchHealthStatus says that the health of devices is not reported.
func (p *Plugin) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}
