// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/device/devicetest"
	"github.com/weftnet/weft/internal/dra/state"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newStore(t testing.TB, managers ...device.ManagerType) *state.Store {
	t.Helper()
	s, err := state.New(slog.New(slog.DiscardHandler), managers...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// rig is a running publisher, in a synctest bubble.
type rig struct {
	*Publisher
	store *state.Store

	mu       sync.Mutex         // a sleep orders no memory
	calls    []map[string][]int // what was handed on, in sizes
	times    []time.Time        // of that, all of them
	outcomes []Outcome
	fail     error
	log      bytes.Buffer
}

// start runs a publisher until the test's bubble ends.
func start(t *testing.T, store *state.Store) *rig {
	t.Helper()
	r := &rig{store: store}
	r.Publisher = New(Options{
		Store: store,
		Publish: func(_ context.Context, res resourceslice.DriverResources) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.calls, r.times = append(r.calls, sizes(res)), append(r.times, time.Now())
			return r.fail
		},
		Observe: func(o Outcome) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.outcomes = append(r.outcomes, o)
		},
		Log: slog.New(slog.NewTextHandler(&r.log, nil)),
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return r
}

// expect waits until the publisher sleeps, and compares what it handed on since the last time.
func (r *rig) expect(t *testing.T, what string, want ...map[string][]int) {
	t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if d := cmp.Diff(want, r.calls); d != "" {
		t.Errorf("%s: handed on (-want +got):\n%s", what, d)
	}
	r.calls = nil
}

func TestPublisherFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore(t, device.Dummy)
		r := start(t, store)
		config := Config{Driver: driver, Node: "n1", Pools: everything("a")}
		report := store.OnDevices(device.Dummy)
		row := device.Allocation{DeviceName: "dummy2", Manager: device.Dummy, Pool: "a", PreparedDevice: dummies(3)[2]}

		r.Set(config)
		r.expect(t, "nothing before the tables are initialized")
		report(dummies(2))
		r.expect(t, "nor before the allocations are restored")
		store.Restored()
		r.expect(t, "initialized", map[string][]int{"n1/a": {2}})
		report(dummies(2))
		r.expect(t, "the same devices")
		report(dummies(3))
		r.expect(t, "one more", map[string][]int{"n1/a": {3}})
		r.Set(config)
		r.expect(t, "the same configuration")
		store.Put(row)
		r.expect(t, "an allocation changes no slice")
		report(dummies(2))
		r.expect(t, "T-57: one that is prepared stays")
		store.Remove(row.Key())
		r.expect(t, "until it is freed", map[string][]int{"n1/a": {2}})

		config.Pools = everything("a", "b")
		r.Set(config)
		r.expect(t, "another pool", map[string][]int{"n1/a": {2}, "n1/b": {0}})
		r.Set(Config{Driver: driver, Node: "n1"})
		r.expect(t, "the configuration was deleted", map[string][]int{})
		r.Set(Config{Driver: driver, Node: "n1"})
		r.expect(t, "deleted is deleted")
	})
}

func TestWithoutConfigurationNothingIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore(t)
		store.Restored()
		r := start(t, store)
		store.OnDevices(device.Dummy)(dummies(1))
		r.expect(t, "devices, no configuration")
		if len(r.outcomes) > 0 {
			t.Errorf("%d outcomes", len(r.outcomes))
		}
	})
}

// TestEndsBeforeInitialization: the tables may never be, and Run ends all the same.
func TestEndsBeforeInitialization(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { start(t, newStore(t, device.Dummy)) })
}

func TestRefusedIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore(t)
		store.Restored()
		store.OnDevices(device.Dummy)(dummies(1))
		r := start(t, store)
		fail := func(err error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.fail = err
		}
		fail(errors.New("no such node"))
		begin := time.Now()
		one := map[string][]int{"n1/a": {1}}
		r.Set(Config{Driver: driver, Node: "n1", Pools: everything("a")})
		r.expect(t, "first", one)
		time.Sleep(30 * time.Second) //nolint:forbidigo // of the bubble's clock
		r.expect(t, "in half a minute", one, one, one, one)
		var tries []time.Duration
		for _, at := range r.times {
			tries = append(tries, at.Sub(begin))
		}
		want := []time.Duration{0, 1 * time.Second, 3 * time.Second, 7 * time.Second, 15 * time.Second}
		if d := cmp.Diff(want, tries); d != "" {
			t.Errorf("tries (-want +got):\n%s", d)
		}
		store.OnDevices(device.Dummy)(dummies(2))
		r.expect(t, "a change is tried at once", map[string][]int{"n1/a": {2}})
		fail(nil)
		time.Sleep(2 * time.Minute) //nolint:forbidigo // of the bubble's clock
		r.expect(t, "mended: once, then nothing", map[string][]int{"n1/a": {2}})
		fail(errors.New("again"))
		store.OnDevices(device.Dummy)(dummies(1))
		r.expect(t, "refused", one)
		store.OnDevices(device.Dummy)(dummies(2))
		fail(nil)
		r.expect(t, "nobody knows what is in force after a refusal", map[string][]int{"n1/a": {2}})
		last := r.outcomes[len(r.outcomes)-1]
		if last.Err != nil || !last.Published || last.Devices["a"] != 2 {
			t.Errorf("last outcome is %+v", last)
		}
	})
}

// TestPauses: they grow to a minute, and start anew after a success.
func TestPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore(t)
		store.Restored()
		r := start(t, store)
		refuse := func(err error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.fail, r.calls, r.times = err, nil, nil
		}
		pauses := func() (all []time.Duration) {
			r.mu.Lock()
			defer r.mu.Unlock()
			for i := range len(r.times) - 1 {
				all = append(all, r.times[i+1].Sub(r.times[i]).Round(time.Second))
			}
			return all
		}
		check := func(what string, seconds ...int) {
			t.Helper()
			var want []time.Duration
			for _, s := range seconds {
				want = append(want, time.Duration(s)*time.Second)
			}
			if d := cmp.Diff(want, pauses()); d != "" {
				t.Errorf("%s: pauses (-want +got):\n%s", what, d)
			}
		}
		refuse(errors.New("no"))
		r.Set(Config{Driver: driver, Node: "n1", Pools: everything("a")})
		time.Sleep(5 * time.Minute) //nolint:forbidigo // of the bubble's clock
		check("five minutes", 1, 2, 4, 8, 16, 32, 60, 60, 60)
		refuse(nil)
		time.Sleep(2 * time.Minute) //nolint:forbidigo // of the bubble's clock
		refuse(errors.New("no"))
		r.Set(Config{Driver: driver, Node: "n1", Pools: everything("b")})
		time.Sleep(10 * time.Second) //nolint:forbidigo // of the bubble's clock
		check("after a success", 1, 2, 4)
	})
}

// TestAnotherDriver: what one driver's name allows, another's may not.
func TestAnotherDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore(t)
		store.Restored()
		// No resource name fits beside a pool's name of that length, so it does not tell the drivers apart.
		pools := everything(strings.Repeat("p", 62))
		store.OnDevices(device.SRIOV)([]device.Device{vf("v", device.Attributes{"a": text("1"), "other.io/a": text("2")})})
		r := start(t, store)
		r.Set(Config{Driver: driver, Node: "n1", Pools: pools})
		r.expect(t, "a driver", map[string][]int{"n1/" + pools[0].Name: {1}})
		r.Set(Config{Driver: "other.io", Node: "n1", Pools: pools})
		r.expect(t, "one that has that attribute twice", map[string][]int{"n1/" + pools[0].Name: {0}})
	})
}

// TestProblemsAreToldOnce: each when it appears, and again when it comes back.
func TestProblemsAreToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore(t)
		store.Restored()
		report := store.OnDevices(device.Dummy)
		r := start(t, store)
		r.Set(Config{Driver: driver, Node: "n1", Pools: everything("b", "a")})
		logged := func(what string, want ...string) {
			t.Helper()
			synctest.Wait()
			var got []string
			for line := range strings.Lines(r.log.String()) {
				if strings.Contains(line, "not offered as it should be") {
					_, line, _ = strings.Cut(strings.TrimSpace(line), "level=")
					got = append(got, line)
				}
			}
			r.log.Reset()
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s: logged (-want +got):\n%s", what, d)
			}
		}
		conflict := func(name string) string {
			return `ERROR msg="not offered as it should be" kind=conflict pool=a device=` + name +
				` reason="it matches the filters of several pools: [\"a\" \"b\"]"`
		}
		logged("no devices")
		report(dummies(1))
		logged("one", conflict("dummy0"))
		report(dummies(2))
		logged("another", conflict("dummy1"))
		report(nil)
		logged("none")
		if o := r.outcomes[len(r.outcomes)-1]; len(o.Problems) != 0 {
			t.Errorf("problems %q of no device", problemTexts(o.Problems))
		}
		store.Put(device.Allocation{DeviceName: "dummy0", Manager: device.Dummy, Pool: "old", PreparedDevice: dummies(1)[0]})
		logged("of a pool that is gone: no fault",
			`ERROR msg="not offered as it should be" kind=conflict pool="" device=dummy0 reason="it matches the filters of several pools: [\"a\" \"b\"]"`,
			`INFO msg="not offered as it should be" kind=pool_gone pool=old device=dummy0 reason="it was prepared from a pool that is not offered any more"`)
	})
}

// many are n devices as the SR-IOV manager has them.
func many(n int) []device.Device {
	all := make([]device.Device, n)
	for i := range all {
		addr := fmt.Sprintf("0000:%02x:%02x.%d", i/256, i/8%32, i%8)
		name := strings.NewReplacer(":", "-", ".", "-").Replace(addr)
		all[i] = devicetest.Device{ID: name, Kind: device.SRIOV, Addr: addr, PFName: "ens1f0", Attrs: device.Attributes{
			"driver": text("mlx5_core"), "vendor": text("0x15b3"), "deviceID": text("0x101e"), "pfName": text("ens1f0"),
			"kernelIfName": text(fmt.Sprint("ens1f0v", i)), "resource.kubernetes.io/pciBusID": text(addr),
			"resource.kubernetes.io/pcieRoot": text("pci0000:00"), "k8s.cni.cncf.io/deviceID": text(addr),
			"resource.kubernetes.io/numaNode": text("0"),
		}}
	}
	return all
}

// BenchmarkUnchanged is one look at 1,024 devices that are as they were: it must take less than
// 10 ms, and write nothing.
func BenchmarkUnchanged(b *testing.B) {
	store := newStore(b)
	store.Restored()
	store.OnDevices(device.SRIOV)(many(1024))
	writes := 0
	p := New(Options{Store: store, Log: slog.New(slog.DiscardHandler), Publish: func(context.Context, resourceslice.DriverResources) error {
		writes++
		return nil
	}})
	c := Config{Driver: driver, Node: "n1", Pools: everything("sriov-pool")}
	var l last
	p.look(b.Context(), c, &l)
	for b.Loop() {
		p.look(b.Context(), c, &l)
	}
	if writes != 1 || total(count("n1", l.resources)) != 1024 {
		b.Errorf("%d writes of %d devices", writes, total(count("n1", l.resources)))
	}
	b.ReportMetric(float64(writes-1)/float64(b.N), "writes/op")
}
