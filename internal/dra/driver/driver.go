// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/kubelet"
	"github.com/weftnet/weft/internal/dra/publish"
	"github.com/weftnet/weft/internal/dra/state"
	"github.com/weftnet/weft/internal/host/wake"
)

// Kind is a device manager, and how it takes its part of a configuration. Managers exist, and
// restore and free devices, whether the configuration enables them or not.
type Kind struct {
	Manager   device.Manager
	Configure func(v2alpha1.DeviceManagerConfigs)
}

// Still gives what is left of the devices that claims have under other pools.
type Still = func(context.Context) (map[string]string, error)

// Config says what a driver is made of.
type Config struct {
	Node       string
	StateDir   string
	KubeletDir string
	Client     kubernetes.Interface
	Kinds      []Kind
	Store      *state.Store

	// Plugin prepares claims for the driver of a name.
	Plugin func(driver string) kubeletplugin.DRAPlugin
	// Recover reads what was prepared before, and puts right what a crash left. It is called again,
	// spaced, until it gives no error; what it has done by then counts.
	Recover func(ctx context.Context) error
	// Elsewhere gives the devices of this node that claims have under other pools, see
	// publish.Config, and what looks at those claims again. It is asked at each start of a
	// registration; still is asked for as long as there is one, spaced.
	Elsewhere func(ctx context.Context, driver string) (devices map[string]string, still Still, err error)
	// SetStatus writes the conditions of a configuration. It is called again, spaced, while it
	// gives an error.
	SetStatus func(ctx context.Context, of *v2alpha1.CiliumNetworkDriverNodeConfig, conditions []metav1.Condition) error
	// Observe is told of each look of the publisher; Registered of each change. Nil is fine.
	Observe    func(publish.Outcome)
	Registered func(kubelet.Status)

	Log *slog.Logger
}

// Driver is the network driver of a node.
type Driver struct {
	cfg  Config
	wake wake.Signal // what is wanted changed

	mu            sync.Mutex
	told          bool                                    // Configure was called
	news          *v2alpha1.CiliumNetworkDriverNodeConfig // as the API has it; nil: there is none
	invalid       error                                   // of news
	force         *v2alpha1.CiliumNetworkDriverNodeConfigSpec
	frontName     string                    // the driver that offers devices, or did last
	registrations map[string]kubelet.Status // by driver
	problems      map[string]error          // of managers, by what they concern
	offered       []publish.Problem
	recovering    error
	status        wake.Signal // the status may have changed
}

// New makes a driver; nothing is touched before Run.
func New(cfg Config) *Driver {
	if cfg.Observe == nil {
		cfg.Observe = func(publish.Outcome) {}
	}
	if cfg.Registered == nil {
		cfg.Registered = func(kubelet.Status) {}
	}
	return &Driver{
		cfg: cfg, wake: wake.New(), status: wake.New(), problems: map[string]error{}, registrations: map[string]kubelet.Status{},
	}
}

func (d *Driver) String() string { return "network driver" }

// Configure says what the node's configuration is now; nil: there is none. It does not block, and
// may be called before Run.
func (d *Driver) Configure(news *v2alpha1.CiliumNetworkDriverNodeConfig) {
	var spec *v2alpha1.CiliumNetworkDriverNodeConfigSpec
	var invalid error
	if news != nil {
		spec = news.Spec.DeepCopy()
		spec.SetDefaults()
		invalid = spec.ValidateFor(d.cfg.Node)
	}
	d.mu.Lock()
	d.told, d.news, d.invalid = true, news, invalid
	if invalid == nil {
		d.force = spec
	}
	d.mu.Unlock()
	if invalid != nil {
		d.cfg.Log.Warn("configuration is invalid, the last good one stays in force", "config", news.Name, "generation", news.Generation, "error", invalid)
	}
	d.wake.Raise()
	d.status.Raise()
}

// Report says what is wrong with a thing of a manager, a PF for one; nil: nothing any more.
func (d *Driver) Report(subject string, err error) {
	d.mu.Lock()
	_, had := d.problems[subject]
	if err == nil {
		delete(d.problems, subject)
	} else {
		d.problems[subject] = err
	}
	d.mu.Unlock()
	if had || err != nil {
		d.status.Raise()
	}
}

// inForce is the spec that counts.
func (d *Driver) inForce() *v2alpha1.CiliumNetworkDriverNodeConfigSpec {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.force
}

// Pauses between attempts at what an API server or a disk refused.
const (
	firstPause = time.Second
	lastPause  = time.Minute
)

// insist calls f until it gives no error, and says whether that came before ctx ended.
func insist(ctx context.Context, f func() error, failed func(error, time.Duration)) bool {
	for pause := firstPause; ctx.Err() == nil; pause = min(2*pause, lastPause) {
		err := f()
		if err == nil {
			return true
		}
		failed(err, pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	return false
}

// Run runs the driver until ctx ends.
func (d *Driver) Run(ctx context.Context) error {
	if !d.supported(ctx) {
		<-ctx.Done()
		return nil
	}
	d.load()
	var parts sync.WaitGroup
	defer parts.Wait()
	parts.Go(func() { d.writeStatus(ctx) })
	for _, k := range d.cfg.Kinds {
		parts.Go(func() { d.manage(ctx, k) })
	}
	d.configureKinds()
	if !d.recover(ctx) {
		return nil
	}
	d.serve(ctx)
	return nil
}

func (d *Driver) recover(ctx context.Context) bool {
	set := func(err error) {
		d.mu.Lock()
		d.recovering = err
		d.mu.Unlock()
		d.status.Raise()
	}
	ok := insist(ctx, func() error { return d.cfg.Recover(ctx) }, func(err error, pause time.Duration) {
		d.cfg.Log.Warn("what was prepared before is not known yet", "error", err, "next", pause)
		set(fmt.Errorf("recover what was prepared before: %w", err))
	})
	set(nil)
	return ok
}

// manage runs one manager for as long as the driver runs.
func (d *Driver) manage(ctx context.Context, k Kind) {
	kind := k.Manager.Type()
	report := d.cfg.Store.OnDevices(kind)
	insist(ctx, func() error { return k.Manager.Run(ctx, report) }, func(err error, pause time.Duration) {
		d.cfg.Log.Error("device manager ended", "manager", kind, "error", err, "next", pause)
		d.Report("manager "+string(kind), err)
	})
}

// configureKinds hands each manager its part of the spec in force.
func (d *Driver) configureKinds() {
	var part v2alpha1.DeviceManagerConfigs
	if spec := d.inForce(); spec != nil && spec.DeviceManagerConfigs != nil {
		part = *spec.DeviceManagerConfigs
	}
	for _, k := range d.cfg.Kinds {
		k.Configure(part)
	}
}
