// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/device/devicetest"
	"github.com/weftnet/weft/internal/dra/state"
	"github.com/weftnet/weft/internal/host/kernel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	node   = "n1"
	driver = "networkdriver.cilium.io"
)

// hardware is what outlives the agent: VLANs of VFs by device, and where their links are. It is the
// manager of those VFs and the hand-over as well.
type hardware struct {
	mu    sync.Mutex
	vlan  map[string]int32
	pod   map[string]string // by device: the claim whose pod has its link
	fault map[string]error  // by "call device"
	calls map[string]int    // by call
	// step is called before and after everything that touches something. It may panic.
	step func(what string)
}

func newHardware() *hardware {
	return &hardware{
		vlan: map[string]int32{}, pod: map[string]string{}, fault: map[string]error{}, calls: map[string]int{}, step: func(string) {},
	}
}

const vfs = 4

func vfName(i int) string { return fmt.Sprintf("0000-03-00-%d", i+2) }

func vf(i int) devicetest.Device {
	return devicetest.Device{
		ID: vfName(i), Kind: device.SRIOV, Addr: fmt.Sprintf("0000:03:00.%d", i+2), Driver: "mlx5_core", Vendor: "0x15b3",
		DeviceID: "0x101e", PFName: "ens1f0", VFID: i, KernelIfaceName: fmt.Sprintf("ens1f0v%d", i),
	}
}

func (h *hardware) call(what, dev string) error {
	h.step("before " + what)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls[what]++
	return h.fault[what+" "+dev]
}

func (h *hardware) set(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

func (h *hardware) count(what string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.calls[what]
}

func (h *hardware) vlans() map[string]int32 {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := map[string]int32{}
	for name, v := range h.vlan {
		if v != 0 {
			all[name] = v
		}
	}
	return all
}

func (h *hardware) Type() device.ManagerType                         { return device.SRIOV }
func (h *hardware) Run(context.Context, func([]device.Device)) error { return nil }

func (h *hardware) RestoreDevice(data json.RawMessage) (device.Device, error) {
	var d devicetest.Device
	if err := json.Unmarshal(data, &d); err != nil {
		return nil, err
	}
	if d.Addr == "" {
		return nil, errors.New("Addr is missing")
	}
	d.ID, d.Kind = strings.NewReplacer(":", "-", ".", "-").Replace(d.Addr), device.SRIOV
	return d, nil
}

type fakeSaved struct{ VLAN int32 }

func (h *hardware) Inspect(dev device.Device, _ v2alpha1.DeviceConfig) (device.Saved, error) {
	if err := h.call("inspect", dev.Name()); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return json.Marshal(fakeSaved{h.vlan[dev.Name()]})
}

func (h *hardware) Setup(_ context.Context, dev device.Device, config v2alpha1.DeviceConfig, _ device.Saved) (device.Device, error) {
	err := h.call("setup", dev.Name())
	if err != nil {
		return nil, err
	}
	h.set(func() {
		if config.VLAN != 0 {
			h.vlan[dev.Name()] = config.VLAN
		}
	})
	h.step("after setup")
	return dev, nil
}

func (h *hardware) Free(_ context.Context, dev device.Device, config v2alpha1.DeviceConfig, saved device.Saved) error {
	if err := h.call("free", dev.Name()); err != nil {
		return err
	}
	var s fakeSaved
	if len(saved) > 0 {
		if err := json.Unmarshal(saved, &s); err != nil {
			return err
		}
	}
	h.set(func() {
		if config.VLAN != 0 {
			h.vlan[dev.Name()] = s.VLAN
		}
	})
	h.step("after free")
	return nil
}

func (h *hardware) Link(_ kernel.Namespace, dev device.Device, _ device.Saved) (kernel.Link, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.pod[dev.Name()] != "" {
		return kernel.Link{}, kernel.ErrNoLink
	}
	d := dev.(devicetest.Device)
	return kernel.Link{Name: d.KernelIfaceName, MAC: mac(d.VFID)}, nil
}

func mac(i int) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 0, byte(i)} }

func (h *hardware) Home(dev device.Device, _ device.Saved) kernel.LinkState {
	d := dev.(devicetest.Device)
	return kernel.LinkState{Name: d.KernelIfaceName, MAC: mac(d.VFID)}
}

func (h *hardware) Nodes(device.Device) []string { return nil }

// Return is the hand-over's.
func (h *hardware) Return(_ context.Context, claimUID, _ string) error {
	if err := h.call("return", claimUID); err != nil {
		return err
	}
	h.set(func() {
		for dev, uid := range h.pod {
			if uid == claimUID {
				delete(h.pod, dev)
			}
		}
	})
	h.step("after return")
	return nil
}

// cluster is the API, and what was told to users.
type cluster struct {
	mu      sync.Mutex
	claims  map[types.NamespacedName]*resourceapi.ResourceClaim
	pods    map[types.UID]*corev1.Pod
	writes  int // that changed something
	err     error
	hang    bool
	latency time.Duration
	step    func(string)
	told    []string
}

func newCluster() *cluster {
	return &cluster{claims: map[types.NamespacedName]*resourceapi.ResourceClaim{}, pods: map[types.UID]*corev1.Pod{}, step: func(string) {}}
}

func (a *cluster) wait(ctx context.Context) error {
	a.mu.Lock()
	hang, latency, err := a.hang, a.latency, a.err
	a.mu.Unlock()
	if hang {
		<-ctx.Done()
		return ctx.Err()
	}
	if latency > 0 {
		select {
		case <-time.After(latency):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}

func notFound(name string) error {
	return apierrors.NewNotFound(schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceclaims"}, name)
}

func (a *cluster) Claim(ctx context.Context, name types.NamespacedName) (*resourceapi.ResourceClaim, error) {
	if err := a.wait(ctx); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.claims[name]; c != nil {
		return c.DeepCopy(), nil
	}
	return nil, notFound(name.Name)
}

func (a *cluster) WriteStatus(ctx context.Context, claim *resourceapi.ResourceClaim, change func(*resourceapi.ResourceClaim) bool) error {
	a.step("before status")
	if err := a.wait(ctx); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.claims[types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}]
	if c == nil {
		return notFound(claim.Name)
	}
	if change(c) {
		a.writes++
	}
	a.step("after status")
	return nil
}

func (a *cluster) OfNode(ctx context.Context) (claims []*resourceapi.ResourceClaim, pods map[types.UID]*corev1.Pod, err error) {
	if err := a.wait(ctx); err != nil {
		return nil, nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	pods = map[types.UID]*corev1.Pod{}
	for uid, pod := range a.pods {
		pods[uid] = pod.DeepCopy()
	}
	for _, c := range a.claims {
		claims = append(claims, c.DeepCopy())
	}
	return claims, pods, nil
}

func (a *cluster) Event(about corev1.ObjectReference, _, reason, message string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.told = append(a.told, about.Kind+" "+about.Name+": "+reason+": "+message)
}

func (a *cluster) texts() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return strings.Join(a.told, "\n")
}

func (a *cluster) set(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
}

// add has the cluster know a claim, and its pod as one of the node's.
func (a *cluster) add(claims ...*resourceapi.ResourceClaim) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range claims {
		a.claims[types.NamespacedName{Namespace: c.Namespace, Name: c.Name}] = c.DeepCopy()
		for _, r := range c.Status.ReservedFor {
			a.pods[r.UID] = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: r.Name, UID: r.UID}}
		}
	}
}

func (a *cluster) remove(c *resourceapi.ResourceClaim) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.claims, types.NamespacedName{Namespace: c.Namespace, Name: c.Name})
	for _, r := range c.Status.ReservedFor {
		delete(a.pods, r.UID)
	}
}

func (a *cluster) devices(c *resourceapi.ResourceClaim) []resourceapi.AllocatedDeviceStatus {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.claims[types.NamespacedName{Namespace: c.Namespace, Name: c.Name}].DeepCopy().Status.Devices
}

// rig is an agent on a node. start is its restart.
type rig struct {
	*Claims
	plugin *Plugin
	dir    string
	boot   string
	hw     *hardware
	api    *cluster
	rows   *state.Store
	log    io.Writer
}

func newRig(t testing.TB) *rig {
	t.Helper()
	r := &rig{dir: t.TempDir(), boot: "boot-1", hw: newHardware(), api: newCluster(), log: io.Discard}
	r.start(t)
	return r
}

func (r *rig) start(t testing.TB) {
	t.Helper()
	r.open(t)
	if err := r.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.plugin = r.Plugin(driver)
}

func (r *rig) open(t testing.TB) {
	t.Helper()
	log := slog.New(slog.NewTextHandler(r.log, nil))
	var err error
	if r.rows, err = state.New(log, device.SRIOV); err != nil {
		t.Fatal(err)
	}
	var found []device.Device
	for i := range vfs {
		found = append(found, vf(i))
	}
	r.rows.OnDevices(device.SRIOV)(found)
	r.Claims, err = New(Config{
		Node: node, Driver: driver, StateDir: r.dir, Boot: r.boot,
		Managers: map[device.ManagerType]device.Manager{device.SRIOV: r.hw},
		Store:    r.rows, API: r.api, Events: r.api, Handover: r.hw, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
}

// newClaim makes an allocated claim c of pod p: each device is a request "net<i>" of pool sriov-pool.
func newClaim(name, pod string, config map[string]string, devices ...int) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), Generation: 1},
		Status: resourceapi.ResourceClaimStatus{
			Allocation:  &resourceapi.AllocationResult{},
			ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: pod, UID: types.UID("uid-" + pod)}},
		},
	}
	for i, d := range devices {
		request := fmt.Sprintf("net%d", i)
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Request: request, Driver: driver, Pool: node + "/sriov-pool", Device: vfName(d),
		})
		if text := config[request]; text != "" {
			addConfig(c, resourceapi.AllocationConfigSourceClaim, driver, text, request)
		}
	}
	return c
}

func addConfig(c *resourceapi.ResourceClaim, source resourceapi.AllocationConfigSource, driver, text string, requests ...string) {
	c.Status.Allocation.Devices.Config = append(c.Status.Allocation.Devices.Config, resourceapi.DeviceAllocationConfiguration{
		Source: source, Requests: requests,
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(text)},
		}},
	})
}

// t22 is the claim of T-22: VF 0 in VLAN 1001, called sriov0.
func t22() *resourceapi.ResourceClaim {
	return newClaim("c1", "p1", map[string]string{"net0": `{"vlan":1001,"podIfName":"sriov0"}`}, 0)
}

func rawExtension(text string) *runtime.RawExtension { return &runtime.RawExtension{Raw: []byte(text)} }

// end has the claim's pod deleted, while its containers end.
func (a *cluster) end(c *resourceapi.ResourceClaim) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range c.Status.ReservedFor {
		a.pods[r.UID].DeletionTimestamp = new(metav1.Now())
	}
}
