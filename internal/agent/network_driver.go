// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/agent/config"
	"github.com/weftnet/weft/internal/agent/metrics"
	"github.com/weftnet/weft/internal/agent/readiness"
	"github.com/weftnet/weft/internal/agent/recent"
	"github.com/weftnet/weft/internal/cni/observe"
	"github.com/weftnet/weft/internal/dra/claim"
	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/driver"
	"github.com/weftnet/weft/internal/dra/dummy"
	"github.com/weftnet/weft/internal/dra/handover"
	"github.com/weftnet/weft/internal/dra/handover/nri"
	"github.com/weftnet/weft/internal/dra/kubelet"
	"github.com/weftnet/weft/internal/dra/publish"
	"github.com/weftnet/weft/internal/dra/sriov"
	"github.com/weftnet/weft/internal/dra/state"
	"github.com/weftnet/weft/internal/host/kernel"
	"github.com/weftnet/weft/internal/kube/claims"
	"github.com/weftnet/weft/internal/kube/informers"
	"github.com/weftnet/weft/internal/kube/nodeconfig"
)

// Machine is the kernel, as the network driver needs it: *kernel.Machine, or one in memory.
type Machine interface {
	Functions() ([]kernel.Function, error)
	Function(addr kernel.PCIAddr) (kernel.Function, error)
	SetNumVFs(pf kernel.PCIAddr, n int) error
	Links(ns kernel.Namespace) ([]kernel.Link, error)
	Link(ns kernel.Namespace, name string) (kernel.Link, error)
	LinkByIndex(ns kernel.Namespace, index int) (kernel.Link, error)
	LinkOf(ns kernel.Namespace, addr kernel.PCIAddr) (kernel.Link, error)
	Move(from kernel.Namespace, index int, to kernel.Namespace, name string) (kernel.Link, error)
	SetUp(ns kernel.Namespace, index int, up bool) error
	Rename(ns kernel.Namespace, index int, name string) error
	Restore(ns kernel.Namespace, index int, want kernel.LinkState) (kernel.Link, error)
	AddDummy(ns kernel.Namespace, name string) (kernel.Link, error)
	Remove(ns kernel.Namespace, index int) error
	VF(pf kernel.PCIAddr, vf int) (kernel.VF, error)
	VFs(pf kernel.PCIAddr) (map[int]kernel.VF, error)
	SetVF(pf kernel.PCIAddr, vf int, change kernel.VFChange) error
	NamespaceID(path string) (uint64, error)
	Watch(ctx context.Context, changed func()) error
	Close() error
}

// networkDriver is the part of the agent that serves claims. What of it cannot be made is tried
// again: nothing of it ends the agent.
type networkDriver struct {
	cfg     config.Config
	version string
	cluster *informers.Cluster
	records *observe.Observer
	ready   *readiness.Machine
	numbers *metrics.Driver
	recent  *recent.Recent
	log     *slog.Logger
	store   *state.Store
	ends    *ends
	open    func(sysfs string) (Machine, error)

	recovered chan struct{} // closed once what was prepared before is known
	once      sync.Once

	mu    sync.Mutex
	rooms *rooms // nil until they are made
}

// rooms are what is made of the files and the API.
type rooms struct {
	claims   *claim.Claims
	events   *claims.Events
	handover *handover.Handover
	driver   *driver.Driver
	follower *nodeconfig.Follower
	nri      *nri.Plugin
	managers map[device.ManagerType]device.Manager
	made     *sriov.Records
	host     Machine
}

// newNetworkDriver makes the driver of an agent, whose other parts are made. It touches nothing.
func newNetworkDriver(a *Agent, log *slog.Logger) (*networkDriver, error) {
	store, err := state.New(log, device.SRIOV, device.Dummy)
	if err != nil {
		return nil, fmt.Errorf("make the tables: %w", err)
	}
	d := &networkDriver{
		cfg: a.cfg, version: a.version, cluster: a.cluster, records: a.observer, ready: a.ready, recent: a.recent, log: log, store: store,
		ends: newEnds(a.observer), recovered: make(chan struct{}),
		open: func(sysfs string) (Machine, error) { return kernel.Open(sysfs) },
	}
	d.numbers = a.metrics.Driver(metrics.DriverSources{Devices: d.devices})
	return d, nil
}

func (d *networkDriver) String() string { return "network driver" }

// OnMachine has the network driver, where it is on, work on a machine in memory in place of the one
// that sysfs shows, so that agents of several nodes can run in one process. It comes before Run.
func (a *Agent) OnMachine(m Machine) {
	if a.driver != nil {
		a.driver.open = func(string) (Machine, error) { return m, nil }
	}
}

// retryMaking is the pause after rooms could not be made: the state directory or sysfs is missing.
const retryMaking = 30 * time.Second

// Run serves claims until ctx ends.
func (d *networkDriver) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		r, err := d.make()
		if err == nil {
			d.run(ctx, r)
			return nil
		}
		d.log.Error("network driver does not start", "error", err, "next", retryMaking)
		d.ready.Set(readiness.NetworkDriver, false, err.Error())
		pause(ctx, retryMaking)
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// run runs the rooms. One that ends by itself, which none should, is run again.
func (d *networkDriver) run(ctx context.Context, r *rooms) {
	d.mu.Lock()
	d.rooms = r
	d.mu.Unlock()
	var parts sync.WaitGroup
	for _, part := range []component{
		r.driver, r.follower, r.claims, r.events, r.handover, r.nri,
		task{"ends of sandboxes", func(ctx context.Context) error { return d.ends.run(ctx, r.handover, d.log) }},
	} {
		parts.Go(func() {
			for ctx.Err() == nil {
				err := part.Run(ctx)
				if ctx.Err() != nil {
					return
				}
				d.log.Error("part of the network driver ended", "part", part.String(), "error", err, "next", retryMaking)
				pause(ctx, retryMaking)
			}
		})
	}
	parts.Wait()
	d.close(r.handover, r.claims, r.made, r.host)
}

// close lets rooms go that have ended.
func (d *networkDriver) close(all ...io.Closer) {
	for _, c := range all {
		if err := c.Close(); err != nil {
			d.log.Warn("network driver does not let go", "error", err)
		}
	}
}

// make makes the rooms.
func (d *networkDriver) make() (r *rooms, err error) {
	api, err := kubernetes.NewForConfig(d.cluster.Conn())
	if err != nil {
		return nil, fmt.Errorf("make API client: %w", err)
	}
	r = &rooms{events: claims.NewEvents(api, d.cfg.NodeName, d.log)}
	var open []io.Closer
	defer func() {
		if err != nil {
			d.close(open...)
		}
	}()
	if r.host, err = d.open(d.cfg.NetworkDriver.Sysfs); err != nil {
		return nil, err
	}
	open = append(open, r.host)
	if r.made, err = sriov.OpenRecords(d.cfg.StateDir); err != nil {
		return nil, err
	}
	open = append(open, r.made)
	vfs, dummies := d.makeManagers(r)
	r.handover, err = handover.New(handover.Config{
		StateDir: d.cfg.StateDir, Managers: r.managers, Store: d.store, Kernel: r.host, Known: d.recovered,
		Ready:   func(pod types.UID) error { return r.claims.Ready(pod) },
		Observe: func(operation string, _ int, took time.Duration, err error) { d.called(operation, took, err) }, Log: d.log,
	})
	if err != nil {
		return nil, err
	}
	open = append(open, r.handover)
	asked := claims.New(api, d.cfg.NodeName)
	r.claims, err = claim.New(claim.Config{
		Node: d.cfg.NodeName, Driver: v2alpha1.DefaultDriverName, StateDir: d.cfg.StateDir, Managers: r.managers, Store: d.store,
		API: asked, Events: r.events, Handover: r.handover, Log: d.log,
		Observe: func(o claim.Outcome) { d.called(o.Call, o.Took, o.Err) },
	})
	if err != nil {
		return nil, err
	}
	open = append(open, r.claims)
	r.driver = d.makeDriver(r, api, asked, vfs, dummies)
	r.follower, err = nodeconfig.New(nodeconfig.Config{Node: d.cfg.NodeName, Conn: d.cluster.Conn(), Changed: r.driver.Configure, Log: d.log})
	if err != nil {
		return nil, err
	}
	r.nri = nri.New(nri.Config{
		Socket: d.cfg.NetworkDriver.NRISocket, Name: v2alpha1.DefaultDriverName, Hands: hands{d, r}, Known: d.recovered,
		Without: d.without(r), Connected: d.connected(r), Log: d.log,
	})
	return r, nil
}

// makeDriver makes what registers and offers.
func (d *networkDriver) makeDriver(r *rooms, api kubernetes.Interface, asked *claims.Client, vfs *sriov.Manager, dummies *dummy.Manager) *driver.Driver {
	return driver.New(driver.Config{
		Node: d.cfg.NodeName, StateDir: d.cfg.StateDir, KubeletDir: d.cfg.NetworkDriver.KubeletDir, Client: api, Store: d.store,
		Kinds: []driver.Kind{
			{Manager: vfs, Configure: func(c v2alpha1.DeviceManagerConfigs) { vfs.Configure(valueOf(c.SRIOV)) }},
			{Manager: dummies, Configure: func(c v2alpha1.DeviceManagerConfigs) { dummies.Configure(valueOf(c.Dummy)) }},
		},
		Plugin:    func(name string) kubeletplugin.DRAPlugin { return r.claims.Plugin(name) },
		Recover:   func(ctx context.Context) error { return d.recover(ctx, r) },
		Elsewhere: asked.Elsewhere,
		SetStatus: func(ctx context.Context, of *v2alpha1.CiliumNetworkDriverNodeConfig, all []metav1.Condition) error {
			return r.follower.SetStatus(ctx, of, all)
		},
		Observe:    func(o publish.Outcome) { d.numbers.Published(o.Devices, o.Published, o.Took, o.Err) },
		Registered: d.registered,
		Log:        d.log,
	})
}

// connected notes that the runtime's NRI comes and goes. Where weft-cni does not hand devices over it
// is the only way that they have, and the configuration's status says that it is missing.
func (d *networkDriver) connected(r *rooms) func(bool) {
	note := func(there bool) {
		d.numbers.Runtime(there)
		var err error
		if !there && !d.cfg.CNI.Enabled {
			err = fmt.Errorf("it is not there: pods would start without their devices (NRI has to be enabled in the runtime, with the socket %s)", d.cfg.NetworkDriver.NRISocket)
		}
		r.driver.Report("the runtime's NRI", err)
	}
	note(false)
	return note
}

// without tells of a pod that runs without a device that it claimed.
func (d *networkDriver) without(r *rooms) func(namespace, name, uid string, err error) {
	return func(namespace, name, uid string, err error) {
		d.numbers.WithoutDevice()
		r.events.Event(corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: name, UID: types.UID(uid)},
			corev1.EventTypeWarning, "WithoutDevice", "the pod runs without a device that it claimed: "+err.Error())
	}
}

// makeManagers makes the device managers: a new kind of device is one more here.
func (d *networkDriver) makeManagers(r *rooms) (*sriov.Manager, *dummy.Manager) {
	report := func(kind string) func(string, error) {
		return func(subject string, err error) {
			name := kind
			if subject != "" {
				name += " " + subject
			}
			r.driver.Report(name, err)
		}
	}
	vfs := sriov.New(sriov.Config{
		Kernel: r.host, Provisioned: r.made, InUse: d.inUse, Report: report("PF"), Log: d.log,
		Observe: func(_ int, took time.Duration) { d.numbers.Scanned(string(device.SRIOV), took) },
	})
	dummies := dummy.New(dummy.Config{Kernel: r.host, Prepared: d.preparedDummies, Report: report("dummy"), Log: d.log})
	r.managers = map[device.ManagerType]device.Manager{device.SRIOV: vfs, device.Dummy: dummies}
	return vfs, dummies
}

// recover knows what was prepared before: claims, then what their pods have.
func (d *networkDriver) recover(ctx context.Context, r *rooms) error {
	if err := r.claims.Recover(ctx); err != nil {
		d.ready.Set(readiness.NetworkDriver, false, err.Error())
		return err
	}
	if err := r.handover.Recover(ctx); err != nil {
		d.log.Warn("devices of sandboxes that are gone are not home yet", "error", err)
	}
	d.once.Do(func() { close(d.recovered) })
	d.ready.Set(readiness.NetworkDriver, true, "")
	return nil
}

// registered notes how the registration stands. Attempts that are still to come are no reason to
// call the agent not ready: the kubelet is restarting, perhaps.
func (d *networkDriver) registered(s kubelet.Status) {
	d.numbers.Registered(s.Registered)
	switch {
	case s.Registered:
		d.ready.Set(readiness.NetworkDriver, true, "")
	case s.Degraded:
		d.ready.Set(readiness.NetworkDriver, false, fmt.Sprintf("the kubelet does not know the driver after %d attempts: %v", s.Attempts, s.Err))
	}
}

func valueOf[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
