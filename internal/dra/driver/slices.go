// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/weftnet/weft/internal/host/wake"
)

// slicesOf reads the slices that the API server has of a driver's devices on this node.
func (d *Driver) slicesOf(ctx context.Context, driver string) (own []resourceapi.ResourceSlice, err error) {
	list, err := d.cfg.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: fields.Set{
		resourceapi.ResourceSliceSelectorDriver: driver, resourceapi.ResourceSliceSelectorNodeName: d.cfg.Node,
	}.String()})
	if err != nil {
		return nil, err
	}
	for _, s := range list.Items {
		if s.Spec.Driver == driver && s.Spec.NodeName != nil && *s.Spec.NodeName == d.cfg.Node {
			own = append(own, s)
		}
	}
	return own, nil
}

// asked is what the API server is to have of one registration. The helper that writes it tells of a refusal
// once, and goes on in silence, so that what there is is compared.
type asked struct {
	kubeletplugin.DRAPlugin

	news    wake.Signal // something else is asked for, or the kubelet knows the driver now
	trouble wake.Signal // the helper was refused something

	mu      sync.Mutex
	devices map[string]bool // "pool/device"; nil: nothing was asked for yet
	refusal error           // the last one
}

func newAsked(plugin kubeletplugin.DRAPlugin) *asked {
	return &asked{DRAPlugin: plugin, news: wake.New(), trouble: wake.New()}
}

// HandleError keeps what the helper is told.
func (a *asked) HandleError(ctx context.Context, err error, msg string) {
	a.mu.Lock()
	a.refusal = fmt.Errorf("%s: %w", msg, err)
	a.mu.Unlock()
	a.trouble.Raise()
	a.DRAPlugin.HandleError(ctx, err, msg)
}

func (a *asked) set(resources resourceslice.DriverResources) {
	devices := map[string]bool{}
	for pool, p := range resources.Pools {
		for _, s := range p.Slices {
			for _, dev := range s.Devices {
				devices[pool+"/"+dev.Name] = true
			}
		}
	}
	a.mu.Lock()
	a.devices = devices
	a.mu.Unlock()
	a.news.Raise()
}

// missing says what of it the API server does not have; nil: it has all of it, and nothing else.
func (a *asked) missing(has []resourceapi.ResourceSlice) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	left, more := maps.Clone(a.devices), 0
	for _, s := range has {
		for _, dev := range s.Spec.Devices {
			key := s.Spec.Pool.Name + "/" + dev.Name
			if !a.devices[key] {
				more++
			}
			delete(left, key)
		}
	}
	if a.devices == nil || len(left) == 0 && more == 0 {
		a.refusal = nil
		return nil
	}
	err := fmt.Errorf("the API server has %d devices too many of this node", more)
	if len(left) > 0 {
		err = fmt.Errorf("the API server does not have %d of %d devices, as %s", len(left), len(a.devices), slices.Min(slices.Collect(maps.Keys(left))))
	}
	return errors.Join(err, a.refusal)
}

// How soon after a publication the API server is asked what it has, and how often while it is not that.
const (
	agreeFirst = 5 * time.Second
	agreeLast  = time.Minute
)

// slicesAre is what Report is told of slices.
func slicesAre(driver string) string { return "slices of " + driver }

// agree sees, after each publication, that the API server has what was asked for, until ctx ends. Later the
// helper makes slices again that somebody has deleted, and it is looked at once more when it may not.
func (d *Driver) agree(ctx context.Context, driver string, a *asked) {
	defer d.Report(slicesAre(driver), nil)
	var again <-chan time.Time
	pause := agreeFirst
	for {
		select {
		case <-a.news:
			again, pause = time.After(agreeFirst), agreeFirst
			continue
		case <-a.trouble:
			if again == nil { // a look that is due is not put off by how often it is told
				again, pause = time.After(agreeFirst), agreeFirst
			}
			continue
		case <-again:
		case <-ctx.Done():
			return
		}
		again = nil
		if !d.knows(driver) {
			continue // nothing is written before: registered has this looked at then
		}
		own, err := d.slicesOf(ctx, driver)
		if err == nil {
			if err = a.missing(own); err == nil {
				d.Report(slicesAre(driver), nil)
				continue
			}
			d.Report(slicesAre(driver), err)
		}
		again, pause = time.After(pause), min(2*pause, agreeLast)
	}
}

// knows says whether the kubelet knows a driver.
func (d *Driver) knows(driver string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.registrations[driver].Registered
}
