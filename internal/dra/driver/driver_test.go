// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package driver_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/device/devicetest"
	"github.com/weftnet/weft/internal/dra/driver"
	"github.com/weftnet/weft/internal/dra/kubelet/kubelettest"
	"github.com/weftnet/weft/internal/dra/state"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

// manager offers as many dummies as it is told to.
type manager struct {
	device.Manager // the rest is not called

	mu    sync.Mutex
	count int
	wake  chan struct{}
}

func (m *manager) Type() device.ManagerType { return device.Dummy }

func (m *manager) configure(c v2alpha1.DeviceManagerConfigs) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count = 0
	if c.Dummy != nil && c.Dummy.Enabled {
		m.count = c.Dummy.Count
	}
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (m *manager) Run(ctx context.Context, publish func([]device.Device)) error {
	for {
		m.mu.Lock()
		devices := []device.Device{}
		for i := range m.count {
			devices = append(devices, devicetest.Device{ID: fmt.Sprint("dummy", i), Kind: device.Dummy})
		}
		m.mu.Unlock()
		publish(devices)
		select {
		case <-m.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// plugin is never asked to prepare anything here.
type plugin struct{ kubeletplugin.DRAPlugin }

func (plugin) HandleError(context.Context, error, string) {}

type rig struct {
	t       *testing.T
	kubelet *kubelettest.Kubelet
	client  *fake.Clientset
	dir     string
	driver  *driver.Driver
	store   *state.Store
	stop    func()

	mu         sync.Mutex
	conditions []metav1.Condition
	statusErr  error
	recover    error
	recovered  int
	elsewhere  error
	gone       bool // the claim that has dummy1 under another pool
}

const node = "n1"

func start(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	r.run()
	return r
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{
		t: t, kubelet: kubelettest.Start(t), dir: t.TempDir(),
		client: kubelettest.API(node),
	}
	r.version("37")
	return r
}

func (r *rig) version(minor string) {
	r.client.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = &version.Info{Major: "1", Minor: minor, GitVersion: "v1." + minor}
}

// run starts a driver with the state that is there; stop ends it.
func (r *rig) run() {
	r.t.Helper()
	store, err := state.New(slog.New(slog.DiscardHandler), device.Dummy)
	if err != nil {
		r.t.Fatal(err)
	}
	m := &manager{wake: make(chan struct{}, 1)}
	r.store = store
	r.driver = driver.New(driver.Config{
		Node: node, StateDir: r.dir, KubeletDir: r.kubelet.Dir(), Client: r.client, Store: store,
		Kinds:  []driver.Kind{{Manager: m, Configure: m.configure}},
		Plugin: func(string) kubeletplugin.DRAPlugin { return plugin{} },
		Recover: func(context.Context) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.recovered++
			if r.recover == nil {
				store.Restored()
			}
			return r.recover
		},
		Elsewhere: func(context.Context, string) (map[string]string, driver.Still, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			return map[string]string{"dummy1": "old"}, r.still, r.elsewhere
		},
		SetStatus: func(_ context.Context, _ *v2alpha1.CiliumNetworkDriverNodeConfig, conditions []metav1.Condition) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.statusErr == nil {
				r.conditions = conditions
			}
			return r.statusErr
		},
		Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- r.driver.Run(ctx) }()
	var once sync.Once
	r.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				r.t.Error(err)
			}
		})
	}
	r.t.Cleanup(r.stop)
}

// config is a configuration with that many dummies in one pool.
func config(generation int64, driverName string, count int, pools ...string) *v2alpha1.CiliumNetworkDriverNodeConfig {
	c := &v2alpha1.CiliumNetworkDriverNodeConfig{
		ObjectMeta: metav1.ObjectMeta{Name: node, UID: types.UID("config"), Generation: generation},
		Spec: v2alpha1.CiliumNetworkDriverNodeConfigSpec{
			DriverName:           driverName,
			DeviceManagerConfigs: &v2alpha1.DeviceManagerConfigs{Dummy: &v2alpha1.DummyConfig{Enabled: true, Count: count}},
		},
	}
	for _, name := range pools {
		c.Spec.Pools = append(c.Spec.Pools, v2alpha1.DevicePool{Name: name, Filter: &v2alpha1.DeviceFilter{}})
	}
	return c
}

// eventually waits until got says want.
func eventually[T any](t *testing.T, what string, got func() T, want func(T) bool) {
	t.Helper()
	for late := time.Now().Add(30 * time.Second); ; {
		v := got()
		if want(v) {
			return
		}
		if time.Now().After(late) {
			t.Fatalf("%s is %v", what, v)
		}
		<-time.After(3 * time.Millisecond)
	}
}

// offered waits until the API has these devices of these pools: "driver n1/pool: dummy0".
func (r *rig) offered(want ...string) {
	r.t.Helper()
	eventually(r.t, "what is offered", func() (all []string) {
		list, err := r.client.ResourceV1().ResourceSlices().List(r.t.Context(), metav1.ListOptions{})
		if err != nil {
			r.t.Fatal(err)
		}
		for _, s := range list.Items {
			var names []string
			for _, d := range s.Spec.Devices {
				names = append(names, d.Name)
			}
			all = append(all, strings.TrimSpace(s.Spec.Driver+" "+s.Spec.Pool.Name+": "+strings.Join(names, " ")))
		}
		slices.Sort(all)
		return all
	}, func(got []string) bool { return slices.Equal(got, want) })
}

// condition waits until a condition has a status and reason and its message holds a text.
func (r *rig) condition(kind string, status metav1.ConditionStatus, reason, text string) {
	r.t.Helper()
	eventually(r.t, "condition "+kind, func() metav1.Condition {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, c := range r.conditions {
			if c.Type == kind {
				return c
			}
		}
		return metav1.Condition{}
	}, func(c metav1.Condition) bool {
		return c.Status == status && c.Reason == reason && strings.Contains(c.Message, text)
	})
}

// T-57: what the configuration says holds without a restart.
func TestLiveConfiguration(t *testing.T) {
	r := start(t)
	eventually(t, "recovered", r.recoveries, func(n int) bool { return n == 1 })
	r.kubelet.WaitFor() // nobody asked for a driver yet
	r.driver.Configure(config(1, "", 3, "fast"))
	r.kubelet.WaitFor(v2alpha1.DefaultDriverName)
	// dummy1 is allocated under a pool of somebody else.
	r.offered("networkdriver.cilium.io n1/fast: dummy0 dummy2")
	r.condition("Accepted", metav1.ConditionTrue, "Valid", "")
	r.condition("Ready", metav1.ConditionTrue, "Ready", "")

	r.driver.Configure(config(2, "", 4, "fast", "slow"))
	r.offered("networkdriver.cilium.io n1/fast: dummy0 dummy2 dummy3", "networkdriver.cilium.io n1/slow:")
	r.condition("Ready", metav1.ConditionFalse, "Devices", "dummy0")

	// Another pool, since the tracker of objects does not keep two drivers' slices apart.
	r.driver.Configure(config(3, "other.example.com", 1, "third"))
	r.kubelet.WaitFor("other.example.com")
	eventually(t, "slices", r.drivers, func(d []string) bool { return slices.Contains(d, "other.example.com") })

	r.driver.Configure(nil)
	eventually(t, "offered", r.drivers, func(d []string) bool { return !slices.Contains(d, "other.example.com") })
	r.kubelet.WaitFor("other.example.com") // what was prepared can still be given back
}

func (r *rig) still(context.Context) (map[string]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone {
		return nil, nil
	}
	return map[string]string{"dummy1": "old"}, nil
}

// A device that a claim has under another pool is offered once that claim is gone, without a restart.
func TestElsewhereNoMore(t *testing.T) {
	r := start(t)
	r.driver.Configure(config(1, "", 3, "fast"))
	r.offered("networkdriver.cilium.io n1/fast: dummy0 dummy2")
	r.mu.Lock()
	r.gone = true
	r.mu.Unlock()
	r.offered("networkdriver.cilium.io n1/fast: dummy0 dummy1 dummy2")
}

func (r *rig) recoveries() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.recovered
}

// drivers are those that have slices.
func (r *rig) drivers() (names []string) {
	list, err := r.client.ResourceV1().ResourceSlices().List(r.t.Context(), metav1.ListOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, s := range list.Items {
		names = append(names, s.Spec.Driver)
	}
	return names
}

// T-17: an invalid configuration leaves the last good one in force, also after a restart.
func TestInvalidConfiguration(t *testing.T) {
	r := start(t)
	r.driver.Configure(config(1, "", 1, "fast"))
	r.offered("networkdriver.cilium.io n1/fast: dummy0")
	invalid := config(2, "", 1, "fast", "fast")
	r.driver.Configure(invalid)
	r.condition("Accepted", metav1.ConditionFalse, "Invalid", `spec.pools[1]`)
	r.offered("networkdriver.cilium.io n1/fast: dummy0")

	r.stop()
	r.kubelet.WaitFor()
	r.kubelet.Restart()
	for _, slice := range r.slices() {
		if err := r.client.ResourceV1().ResourceSlices().Delete(t.Context(), slice, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	r.run()
	r.driver.Configure(invalid)
	r.offered("networkdriver.cilium.io n1/fast: dummy0")
	r.condition("Accepted", metav1.ConditionFalse, "Invalid", `spec.pools[1]`)

	// Deleted is not the same as invalid.
	r.driver.Configure(nil)
	r.offered()
	eventually(t, "file", func() error {
		_, err := os.Stat(filepath.Join(r.dir, "networkdriver.json"))
		return err
	}, func(err error) bool { return errors.Is(err, os.ErrNotExist) })
}

func (r *rig) slices() (names []string) {
	list, err := r.client.ResourceV1().ResourceSlices().List(r.t.Context(), metav1.ListOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, s := range list.Items {
		names = append(names, s.Name)
	}
	return names
}

// A file that is torn counts as none.
func TestTornFile(t *testing.T) {
	r := newRig(t)
	if err := os.WriteFile(filepath.Join(r.dir, "networkdriver.json"), []byte(`{"pools":[{`), 0o600); err != nil {
		t.Fatal(err)
	}
	r.run()
	eventually(t, "recovered", r.recoveries, func(n int) bool { return n == 1 })
	r.driver.Configure(config(1, "", 1, "fast"))
	r.offered("networkdriver.cilium.io n1/fast: dummy0")
}

// The kubelet hears of the driver when what was prepared before is known, and not before.
func TestRecoveryFirst(t *testing.T) {
	r := newRig(t)
	r.recover = errors.New("the API server is away")
	r.run()
	r.driver.Configure(config(1, "", 1, "fast"))
	r.condition("Ready", metav1.ConditionFalse, "Recovering", "the API server is away")
	r.kubelet.WaitFor()
	r.mu.Lock()
	r.recover = nil
	r.mu.Unlock()
	r.kubelet.WaitFor(v2alpha1.DefaultDriverName)
	r.condition("Ready", metav1.ConditionTrue, "Ready", "")
}

// What was prepared before a configuration went away can be given back after a restart, too.
func TestAllocationsWithoutConfiguration(t *testing.T) {
	r := newRig(t)
	r.recover = errors.New("not yet")
	r.run()
	eventually(t, "recovered", r.recoveries, func(n int) bool { return n >= 1 })
	r.store.Put(device.Allocation{DeviceName: "dummy0", Manager: device.Dummy, Pool: "fast", ClaimUID: "c", PreparedDevice: devicetest.Device{ID: "dummy0"}})
	r.driver.Configure(nil)
	r.mu.Lock()
	r.recover = nil
	r.mu.Unlock()
	r.kubelet.WaitFor(v2alpha1.DefaultDriverName)
	r.offered()
}

func TestProblemsShow(t *testing.T) {
	r := start(t)
	r.driver.Configure(config(1, "", 1, "fast"))
	r.condition("Ready", metav1.ConditionTrue, "Ready", "")
	r.driver.Report("PF ens1f0", errors.New("it can have 7 VFs, not 9"))
	r.condition("Ready", metav1.ConditionFalse, "Devices", "PF ens1f0: it can have 7 VFs, not 9")
	r.driver.Report("PF ens1f0", nil)
	r.condition("Ready", metav1.ConditionTrue, "Ready", "")
}

// A status that is refused is written later.
func TestStatusRefused(t *testing.T) {
	r := newRig(t)
	r.statusErr = errors.New("forbidden")
	r.run()
	r.driver.Configure(config(1, "", 1, "fast"))
	r.offered("networkdriver.cilium.io n1/fast: dummy0")
	r.mu.Lock()
	r.statusErr = nil
	r.mu.Unlock()
	r.condition("Ready", metav1.ConditionTrue, "Ready", "")
}

func TestRefusedByKubelet(t *testing.T) {
	r := newRig(t)
	r.kubelet.Refuse("another driver has that name")
	r.run()
	r.driver.Configure(config(1, "", 1, "fast"))
	r.condition("Ready", metav1.ConditionFalse, "NotRegistered", "another driver has that name")
	r.offered()
	r.kubelet.Refuse("")
	r.offered("networkdriver.cilium.io n1/fast: dummy0")
}

// T-59: an old Kubernetes turns the driver off, and nothing else.
func TestOldKubernetes(t *testing.T) {
	r := newRig(t)
	r.version("33+")
	r.run()
	r.driver.Configure(config(1, "", 1, "fast"))
	r.stop()
	if r.recovered != 0 {
		t.Error("an old Kubernetes was worked with")
	}
	r.kubelet.WaitFor()
}

// row puts a dummy that a claim has by a driver of a name.
func (r *rig) row(driver string) (key device.Key) {
	a := device.Allocation{
		DeviceName: "dummy0", Manager: device.Dummy, Pool: "fast", ClaimUID: "c", Driver: driver, PreparedDevice: devicetest.Device{ID: "dummy0"},
	}
	r.store.Put(a)
	return a.Key()
}

// What was prepared under another name can be given back under it: its sockets stay until all of it
// is, and offer nothing.
func TestDriverNameChanged(t *testing.T) {
	r := start(t)
	r.driver.Configure(config(1, "a.example.com", 3, "fast"))
	r.kubelet.WaitFor("a.example.com")
	key := r.row("a.example.com")
	r.driver.Configure(config(2, "b.example.com", 3, "third"))
	r.kubelet.WaitFor("a.example.com", "b.example.com")
	eventually(t, "drivers that offer", r.drivers, func(d []string) bool { return slices.Equal(d, []string{"b.example.com"}) })
	r.condition("Ready", metav1.ConditionTrue, "Ready", "")

	// And back, while claims of the one are there.
	r.driver.Configure(config(3, "a.example.com", 3, "fourth"))
	r.kubelet.WaitFor("a.example.com")
	eventually(t, "drivers that offer", r.drivers, func(d []string) bool { return slices.Equal(d, []string{"a.example.com"}) })
	r.condition("Ready", metav1.ConditionTrue, "Ready", "")
	r.driver.Configure(config(4, "b.example.com", 3, "fifth"))
	r.kubelet.WaitFor("a.example.com", "b.example.com")

	r.store.Remove(key)
	r.kubelet.WaitFor("b.example.com")
}

// The name outlives the configuration, and the process.
func TestDriverNameOfRecords(t *testing.T) {
	for name, news := range map[string]*v2alpha1.CiliumNetworkDriverNodeConfig{
		"no configuration":  nil,
		"of another driver": config(1, "b.example.com", 3, "fast"),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.recover = errors.New("not yet")
			r.run()
			eventually(t, "recovered", r.recoveries, func(n int) bool { return n >= 1 })
			key := r.row("a.example.com")
			r.driver.Configure(news)
			r.mu.Lock()
			r.recover = nil
			r.mu.Unlock()
			if news == nil {
				r.kubelet.WaitFor("a.example.com")
				return
			}
			r.kubelet.WaitFor("a.example.com", "b.example.com")
			r.store.Remove(key)
			r.kubelet.WaitFor("b.example.com")
		})
	}
}

// The status does not say that devices are offered while nothing is.
func TestNothingOfferedShows(t *testing.T) {
	r := newRig(t)
	r.elsewhere = errors.New("resourceclaims is forbidden")
	r.run()
	r.driver.Configure(config(1, "", 3, "fast"))
	r.condition("Ready", metav1.ConditionFalse, "Devices", "resourceclaims is forbidden")
	r.mu.Lock()
	r.elsewhere = nil
	r.mu.Unlock()
	r.condition("Ready", metav1.ConditionTrue, "Ready", "")
}

// Nor does it while the API server refuses them, which it says once they are tried; and what it said goes when
// they are there.
func TestRefusedSlicesShow(t *testing.T) {
	r := newRig(t)
	var refuse atomic.Bool
	refuse.Store(true)
	r.client.PrependReactor("create", "resourceslices", func(clienttesting.Action) (bool, runtime.Object, error) {
		if refuse.Load() {
			return true, nil, errors.New("admission says no")
		}
		return false, nil, nil
	})
	r.run()
	r.driver.Configure(config(1, "", 3, "fast"))
	r.condition("Ready", metav1.ConditionFalse, "Devices", "does not have 2 of 2 devices, as n1/fast/dummy0")
	r.condition("Ready", metav1.ConditionFalse, "Devices", "admission says no")
	refuse.Store(false)
	r.condition("Ready", metav1.ConditionTrue, "Ready", "")
	r.offered("networkdriver.cilium.io n1/fast: dummy0 dummy2")
}
