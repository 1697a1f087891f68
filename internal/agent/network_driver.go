// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/agent/config"
	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/informed"
	"github.com/weftnet/weft/internal/cni/wire"
	"github.com/weftnet/weft/internal/dra/claim"
	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/driver"
	"github.com/weftnet/weft/internal/dra/dummy"
	"github.com/weftnet/weft/internal/dra/handover"
	"github.com/weftnet/weft/internal/dra/handover/nri"
	"github.com/weftnet/weft/internal/dra/record"
	"github.com/weftnet/weft/internal/dra/sriov"
	"github.com/weftnet/weft/internal/dra/state"
	"github.com/weftnet/weft/internal/host/journal"
	"github.com/weftnet/weft/internal/host/kernel"
	"github.com/weftnet/weft/internal/kube/claims"
	"github.com/weftnet/weft/internal/kube/informers"
	"github.com/weftnet/weft/internal/kube/nodeconfig"
)

// machine is the kernel, as the network driver needs it: *kernel.Machine, or a test's.
type machine interface {
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
	SetVF(pf kernel.PCIAddr, vf int, change kernel.VFChange) error
	NamespaceID(path string) (uint64, error)
	Watch(ctx context.Context, changed func()) error
}

// networkDriver is the part of the agent that serves claims. What of it cannot be made is tried
// again: nothing of it ends the agent.
type networkDriver struct {
	cfg     config.Config
	cluster *informers.Cluster
	log     *slog.Logger
	store   *state.Store
	open    func(sysfs string) (machine, error)

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
	records  *sriov.Records
}

func newNetworkDriver(cfg config.Config, cluster *informers.Cluster, log *slog.Logger) (*networkDriver, error) {
	store, err := state.New(log, device.SRIOV, device.Dummy)
	if err != nil {
		return nil, fmt.Errorf("make the tables: %w", err)
	}
	return &networkDriver{
		cfg: cfg, cluster: cluster, log: log, store: store, recovered: make(chan struct{}),
		open: func(sysfs string) (machine, error) { return kernel.Open(sysfs) },
	}, nil
}

func (d *networkDriver) String() string { return "network driver" }

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
		timer := time.NewTimer(retryMaking)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
	return nil
}

// run runs the rooms, and ends them in the order in which they need each other.
func (d *networkDriver) run(ctx context.Context, r *rooms) {
	d.mu.Lock()
	d.rooms = r
	d.mu.Unlock()
	var parts sync.WaitGroup
	for _, part := range []component{r.driver, r.follower, r.claims, r.events, r.handover, r.nri} {
		parts.Go(func() {
			if err := part.Run(ctx); err != nil && ctx.Err() == nil {
				d.log.Error("part of the network driver ended", "part", part.String(), "error", err)
			}
		})
	}
	parts.Wait()
	if err := errors.Join(r.handover.Close(), r.claims.Close(), r.records.Close()); err != nil {
		d.log.Warn("records of the network driver are not closed", "error", err)
	}
}

// make makes the rooms.
func (d *networkDriver) make() (*rooms, error) {
	host, err := d.open(d.cfg.NetworkDriver.Sysfs)
	if err != nil {
		return nil, err
	}
	api, err := kubernetes.NewForConfig(d.cluster.Conn())
	if err != nil {
		return nil, fmt.Errorf("make API client: %w", err)
	}
	r := &rooms{events: claims.NewEvents(api, d.cfg.NodeName, d.log)}
	if r.records, err = sriov.OpenRecords(d.cfg.StateDir); err != nil {
		return nil, err
	}
	vfs, dummies := d.makeManagers(r, host)
	r.handover, err = handover.New(handover.Config{
		StateDir: d.cfg.StateDir, Managers: r.managers, Store: d.store, Kernel: host, Known: d.recovered,
		Ready: func(pod types.UID) error { return r.claims.Ready(pod) }, Log: d.log,
	})
	if err != nil {
		return nil, errors.Join(err, r.records.Close())
	}
	asked := claims.New(api, d.cfg.NodeName)
	r.claims, err = claim.New(claim.Config{
		Node: d.cfg.NodeName, Driver: v2alpha1.DefaultDriverName, StateDir: d.cfg.StateDir, Managers: r.managers, Store: d.store,
		API: asked, Events: r.events, Handover: r.handover, Log: d.log,
	})
	if err != nil {
		return nil, errors.Join(err, r.handover.Close(), r.records.Close())
	}
	r.driver = driver.New(driver.Config{
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
		Log: d.log,
	})
	r.follower, err = nodeconfig.New(nodeconfig.Config{Node: d.cfg.NodeName, Conn: d.cluster.Conn(), Changed: r.driver.Configure, Log: d.log})
	if err != nil {
		return nil, errors.Join(err, r.claims.Close(), r.handover.Close(), r.records.Close())
	}
	r.nri = nri.New(nri.Config{
		Socket: d.cfg.NetworkDriver.NRISocket, Name: v2alpha1.DefaultDriverName, Hands: r.handover,
		Without: func(namespace, name, uid string, err error) {
			r.events.Event(corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: name, UID: types.UID(uid)},
				corev1.EventTypeWarning, "WithoutDevice", "the pod runs without a device that it claimed: "+err.Error())
		}, Log: d.log,
	})
	return r, nil
}

// makeManagers makes the device managers: a new kind of device is one more here.
func (d *networkDriver) makeManagers(r *rooms, host machine) (*sriov.Manager, *dummy.Manager) {
	report := func(kind string) func(string, error) {
		return func(subject string, err error) {
			name := kind
			if subject != "" {
				name += " " + subject
			}
			r.driver.Report(name, err)
		}
	}
	vfs := sriov.New(sriov.Config{Kernel: host, Provisioned: r.records, InUse: d.inUse, Report: report("PF"), Log: d.log})
	dummies := dummy.New(dummy.Config{Kernel: host, Prepared: d.preparedDummies, Report: report("dummy"), Log: d.log})
	r.managers = map[device.ManagerType]device.Manager{device.SRIOV: vfs, device.Dummy: dummies}
	return vfs, dummies
}

// recover knows what was prepared before: claims, then what their pods have.
func (d *networkDriver) recover(ctx context.Context, r *rooms) error {
	if err := r.claims.Recover(ctx); err != nil {
		return err
	}
	if err := r.handover.Recover(ctx); err != nil {
		d.log.Warn("devices of sandboxes that are gone are not home yet", "error", err)
	}
	d.store.Restored()
	d.once.Do(func() { close(d.recovered) })
	return nil
}

func valueOf[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// inUse says what has a VF that sysfs does not show.
func (d *networkDriver) inUse(addr kernel.PCIAddr) (bool, string) {
	for _, row := range d.store.Allocations() {
		if vf, ok := row.PreparedDevice.(sriov.Device); ok && vf.Addr == addr {
			return true, "claim " + row.Claim.String()
		}
	}
	return false, ""
}

func (d *networkDriver) preparedDummies() (names []string) {
	for _, row := range d.store.Allocations() {
		if row.Manager == device.Dummy {
			names = append(names, row.DeviceName)
		}
	}
	return names
}

func (d *networkDriver) made() *rooms {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rooms
}

var errNotRecovered = errors.New("what was prepared before the agent's start is not known yet")

// hasRecords says whether any claim was prepared: without, there is nothing to wait for.
func (d *networkDriver) hasRecords() bool {
	keys, err := journal.List(filepath.Join(d.cfg.StateDir, record.Devices))
	return err == nil && len(keys) > 0
}

// source is the planner's: pods and networks of the caches, and the devices that pods claimed.
type source struct {
	*informed.Source
	d *networkDriver
}

// Prepared implements planner.Handing.
func (s source) Prepared(podUID string) ([]string, error) {
	if r := s.d.made(); r != nil {
		return r.handover.Prepared(podUID)
	}
	if s.d.hasRecords() {
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
	_, err := r.handover.Attach(ctx, handover.Sandbox{
		PodUID: req.PodUID, ID: req.Sandbox.ContainerID, Namespace: req.Sandbox.Netns,
	})
	if err != nil {
		return &fault.Fault{Code: fault.TryLater, Object: pod, Text: "claimed devices: " + err.Error(), Err: err}
	}
	return nil
}

// awaitRecovery waits, as long as for the caches, until it is known what was prepared before.
func (d *networkDriver) awaitRecovery(ctx context.Context) error {
	if !d.hasRecords() {
		return nil
	}
	timer := time.NewTimer(syncWait)
	defer timer.Stop()
	select {
	case <-d.recovered:
		return nil
	case <-timer.C:
		return errNotRecovered
	case <-ctx.Done():
		return ctx.Err()
	}
}
