// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/device/devicetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newStore(t testing.TB, managers ...device.ManagerType) *Store {
	t.Helper()
	s, err := New(slog.New(slog.DiscardHandler), managers...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func vf(name, link string) devicetest.Device {
	return devicetest.Device{ID: name, Kind: device.SRIOV, Driver: "mlx5_core", KernelIfaceName: link}
}

func dummy(name string) devicetest.Device {
	return devicetest.Device{ID: name, Kind: device.Dummy, KernelIfaceName: name}
}

func alloc(pool, name string, claim, pod types.UID) device.Allocation {
	return device.Allocation{
		DeviceName: name, Manager: device.SRIOV, PreparedDevice: vf(name, "link-"+name),
		Pool: pool, ClaimUID: claim, PodUID: pod,
	}
}

// inventory is a short text of the inventory.
func inventory(s *Store) []string {
	var all []string
	for _, r := range s.Devices() {
		all = append(all, fmt.Sprintf("%s %s %s", r.Name, r.Manager, r.Dev.(devicetest.Device).KernelIfaceName))
	}
	return all
}

func keys(all []device.Allocation) []string {
	var texts []string
	for _, a := range all {
		texts = append(texts, strings.TrimSuffix(a.Pool+"/"+a.DeviceName+"/"+a.ShareID, "/"))
	}
	return texts
}

func check(t *testing.T, what string, want, got []string) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestInventoryFollowsItsManager(t *testing.T) {
	s := newStore(t)
	sriov, dummies := s.OnDevices(device.SRIOV), s.OnDevices(device.Dummy)
	dummies([]device.Device{dummy("dummy1"), dummy("dummy0")})
	sriov([]device.Device{vf("0000-03-00-3", "b"), vf("0000-03-00-2", "a")})
	check(t, "both managers", []string{"0000-03-00-2 sr-iov a", "0000-03-00-3 sr-iov b", "dummy0 dummy dummy0", "dummy1 dummy dummy1"}, inventory(s))
	sriov([]device.Device{vf("0000-03-00-3", "c")})
	check(t, "one gone, one renamed", []string{"0000-03-00-3 sr-iov c", "dummy0 dummy dummy0", "dummy1 dummy dummy1"}, inventory(s))
	sriov(nil)
	check(t, "a manager without devices", []string{"dummy0 dummy dummy0", "dummy1 dummy dummy1"}, inventory(s))
	if _, ok := s.Device("0000-03-00-3"); ok {
		t.Error("a device that is gone is still found")
	}
	if d, ok := s.Device("dummy1"); !ok || d.Name() != "dummy1" {
		t.Errorf("dummy1 is %v, %t", d, ok)
	}
}

func TestWrongReports(t *testing.T) {
	var logged bytes.Buffer
	s, err := New(slog.New(slog.NewTextHandler(&logged, nil)))
	if err != nil {
		t.Fatal(err)
	}
	s.OnDevices(device.SRIOV)([]device.Device{nil, vf("a", "first"), vf("a", "second"), dummy("d")})
	check(t, "rows", []string{"a sr-iov first"}, inventory(s))
	if n := strings.Count(logged.String(), "level=ERROR"); n != 3 {
		t.Errorf("%d errors were logged, want 3:\n%s", n, logged.String())
	}
}

// TestOneNameOfTwoManagers: the row is one's, and the other's once the first has it no more.
func TestOneNameOfTwoManagers(t *testing.T) {
	s := newStore(t)
	s.OnDevices(device.SRIOV)([]device.Device{vf("x", "of-sriov")})
	s.OnDevices(device.Dummy)([]device.Device{dummy("x")})
	check(t, "both", []string{"x dummy x"}, inventory(s))
	s.OnDevices(device.SRIOV)([]device.Device{vf("x", "of-sriov")})
	check(t, "again", []string{"x dummy x"}, inventory(s))
	s.OnDevices(device.Dummy)(nil)
	check(t, "one", []string{"x sr-iov of-sriov"}, inventory(s))
}

// T-19: the name of a link that is in a pod stays in its row, whichever of discovery and
// allocation comes first, and goes with the last allocation.
func TestMergeWithPrepared(t *testing.T) {
	s := newStore(t)
	sriov := s.OnDevices(device.SRIOV)
	hidden := []device.Device{vf("v", "")}

	s.Put(alloc("p", "v", "c1", "p1"))
	sriov(hidden)
	check(t, "prepared first", []string{"v sr-iov link-v"}, inventory(s))
	s.Remove(device.Key{Pool: "p", Name: "v"})
	check(t, "freed", []string{"v sr-iov "}, inventory(s))
	s.Put(alloc("p", "v", "c1", "p1"))
	check(t, "discovered first", []string{"v sr-iov link-v"}, inventory(s))

	other := alloc("q", "v", "c2", "p2")
	other.Manager = device.Dummy
	other.PreparedDevice = dummy("v")
	s.Put(other)
	s.Remove(device.Key{Pool: "p", Name: "v"})
	check(t, "another manager's allocation says nothing", []string{"v sr-iov "}, inventory(s))
}

func TestAllocations(t *testing.T) {
	s := newStore(t)
	shared := alloc("p", "b", "c3", "p2")
	shared.ShareID = "s1"
	for _, a := range []device.Allocation{alloc("q", "a", "c2", "p2"), alloc("p", "c", "c1", "p1"), shared, alloc("p", "b", "c1", "p1")} {
		s.Put(a)
	}
	check(t, "all", []string{"p/b", "p/b/s1", "p/c", "q/a"}, keys(s.Allocations()))
	check(t, "of claim", []string{"p/b", "p/c"}, keys(s.OfClaim("c1")))
	check(t, "of a claim whose UID begins like another's", nil, keys(s.OfClaim("c")))
	check(t, "of pod", []string{"p/b/s1", "q/a"}, keys(s.OfPod("p2")))
	check(t, "of device", []string{"p/b", "p/b/s1"}, keys(s.OfDevice("b")))
	s.OnDevices(device.SRIOV)(nil)
	check(t, "no inventory touches them", []string{"p/b", "p/b/s1", "p/c", "q/a"}, keys(s.Allocations()))

	moved := alloc("p", "c", "c9", "p9")
	s.Put(moved)
	check(t, "of the claim that had it", []string{"p/b"}, keys(s.OfClaim("c1")))
	if got, ok := s.Allocation(moved.Key()); !ok || got.ClaimUID != "c9" {
		t.Errorf("allocation is %v, %t", got, ok)
	}
	s.Remove(shared.Key())
	s.Remove(shared.Key())
	check(t, "without the share", []string{"p/b", "p/c", "q/a"}, keys(s.Allocations()))
}

// TestChanged: what changes nothing wakes nobody, what changes something can be read when the
// channel is closed.
func TestChanged(t *testing.T) {
	s := newStore(t, device.SRIOV)
	a := alloc("p", "v", "c1", "p1")
	for _, step := range []struct {
		name string
		do   func()
		want bool
	}{
		{"first report, empty: it is initialized", func() { s.OnDevices(device.SRIOV)(nil) }, true},
		{"empty again", func() { s.OnDevices(device.SRIOV)(nil) }, false},
		{"device", func() { s.OnDevices(device.SRIOV)([]device.Device{vf("v", "x")}) }, true},
		{"same device", func() { s.OnDevices(device.SRIOV)([]device.Device{vf("v", "x")}) }, false},
		{"attribute", func() {
			d := vf("v", "x")
			d.VFID = 7
			s.OnDevices(device.SRIOV)([]device.Device{d})
		}, true},
		{"allocation", func() { s.Put(a) }, true},
		{"same allocation", func() { s.Put(alloc("p", "v", "c1", "p1")) }, false},
		{"remove nothing", func() { s.Remove(device.Key{Pool: "q", Name: "v"}) }, false},
		{"remove", func() { s.Remove(a.Key()) }, true},
		{"restored", s.Restored, true},
		{"restored again", s.Restored, false},
	} {
		c := s.Changed()
		step.do()
		if got := closed(c); got != step.want {
			t.Errorf("%s: changed is %t, want %t", step.name, got, step.want)
		}
	}
}

func TestInitialized(t *testing.T) {
	s := newStore(t, device.SRIOV, device.Dummy, device.SRIOV)
	pending := func(want ...string) {
		t.Helper()
		check(t, "pending", want, s.Pending())
		if got := closed(s.Initialized()); got != (len(want) == 0) {
			t.Errorf("initialized is %t with %q pending", got, want)
		}
		txn := s.db.ReadTxn()
		devices, _ := s.devices.Initialized(txn)
		allocations, _ := s.allocations.Initialized(txn)
		if (devices && allocations) != (len(want) == 0) {
			t.Errorf("tables are initialized: %t and %t, with %q pending", devices, allocations, want)
		}
	}
	pending("device-manager-dummy", "device-manager-sr-iov", "restore")
	s.Restored()
	pending("device-manager-dummy", "device-manager-sr-iov")
	s.OnDevices(device.Dummy)([]device.Device{dummy("dummy0")})
	pending("device-manager-sr-iov")
	s.OnDevices(device.SRIOV)(nil)
	pending()
	s.OnDevices("later")(nil) // a manager that the configuration enabled afterwards
	pending()
}

func TestNoManagersWaitForRestoreOnly(t *testing.T) {
	s := newStore(t)
	if closed(s.Initialized()) {
		t.Error("initialized before the allocations were restored")
	}
	s.Restored()
	if !closed(s.Initialized()) {
		t.Error("not initialized")
	}
}

// seedStore has what the example of the seed has: one prepared VF.
func seedStore(t *testing.T) *Store {
	t.Helper()
	s := newStore(t)
	dev := devicetest.Device{
		ID: "0000-03-00-1", Kind: device.SRIOV, Addr: "0000:03:00.1", Driver: "mlx5_core", Vendor: "0x15b3",
		DeviceID: "0x101e", PFName: "ens1f0", VFID: 1, KernelIfaceName: "ens1f0v1",
	}
	s.OnDevices(device.SRIOV)([]device.Device{dev})
	a := device.Allocation{
		DeviceName: "0000-03-00-1", Manager: device.SRIOV, PreparedDevice: dev, Pool: "sriov-pool",
		PodUID: "a1b2c3d4-...", ClaimUID: "e5f6a7b8-...",
		Claim: types.NamespacedName{Namespace: "default", Name: "not-shown"}, Saved: device.Saved(`{"not":"shown"}`),
	}
	config := []byte(`{"podIfName": "sriov0", "vlan": 1001}`)
	if err := json.Unmarshal(config, &a.Config); err != nil {
		t.Fatal(err)
	}
	s.Put(a)
	return s
}

// T-67: the rows have the keys of the seed, in its order.
func TestDump(t *testing.T) {
	var b bytes.Buffer
	if err := seedStore(t).Dump(&b); err != nil {
		t.Fatal(err)
	}
	const dev = `{"Addr":"0000:03:00.1","Driver":"mlx5_core","Vendor":"0x15b3","DeviceID":"0x101e","PFName":"ens1f0","VFID":1,"KernelIfaceName":"ens1f0v1"}`
	want := `{"networkdriver-dra-devices":[{"Name":"0000-03-00-1","Manager":"sr-iov","Dev":` + dev + `}],` +
		`"networkdriver-dra-allocations":[{"DeviceName":"0000-03-00-1","Manager":"sr-iov","PreparedDevice":` + dev +
		`,"Pool":"sriov-pool","PodUID":"a1b2c3d4-...","ClaimUID":"e5f6a7b8-...","Config":{"podIfName":"sriov0","vlan":1001}}]}`
	var got bytes.Buffer
	if err := json.Compact(&got, b.Bytes()); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got.String()); d != "" {
		t.Errorf("dump (-want +got):\n%s", d)
	}
}

func TestDumpOfEmptyTables(t *testing.T) {
	var b bytes.Buffer
	if err := newStore(t).Dump(&b); err != nil {
		t.Fatal(err)
	}
	var got map[string][]json.RawMessage
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string][]json.RawMessage{DevicesTable: {}, AllocationsTable: {}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("dump (-want +got):\n%s", d)
	}
}

// T-67: the seed's command, as it stands there, prints the seed's example, word for word.
func TestDumpThroughJQ(t *testing.T) {
	jq, err := exec.LookPath("jq")
	if err != nil {
		if os.Getenv("WEFT_CI") != "" {
			t.Fatal(err)
		}
		t.Skip("jq is not installed")
	}
	program, err := os.ReadFile("testdata/seed.jq")
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/seed.json")
	if err != nil {
		t.Fatal(err)
	}
	var dump bytes.Buffer
	if err := seedStore(t).Dump(&dump); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), jq, string(program))
	cmd.Stdin = &dump
	got, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("jq: %v\n%s", err, got)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("output (-want +got):\n%s", d)
	}
}

// TestReadersAndWriters: a reader never sees a device whose allocation of the same
// transaction it does not see.
func TestReadersAndWriters(t *testing.T) {
	s := newStore(t, device.SRIOV)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for !closed(stop) {
				devices, allocations := s.Snapshot()
				// A freed device loses the name of its link in the transaction that removes its allocation.
				for _, r := range devices {
					prepared := slices.ContainsFunc(allocations, func(a device.Allocation) bool { return a.DeviceName == r.Name })
					if link := r.Dev.(devicetest.Device).KernelIfaceName; (link != "") != prepared {
						t.Errorf("%s has link %q and prepared is %t", r.Name, link, prepared)
						return
					}
				}
			}
		})
	}
	s.OnDevices(device.SRIOV)([]device.Device{vf("a", ""), vf("b", "")})
	for range 200 {
		s.Put(alloc("p", "a", "c", "p"))
		s.Put(alloc("p", "b", "c", "p"))
		s.Remove(device.Key{Pool: "p", Name: "a"})
		s.OnDevices(device.SRIOV)([]device.Device{vf("a", ""), vf("b", "")})
		s.Remove(device.Key{Pool: "p", Name: "b"})
	}
	close(stop)
	wg.Wait()
}

// TestStoreAgainstModel: after any sequence of reports and allocations the tables are what two
// maps would be.
func TestStoreAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, err := New(slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		name, pool := rapid.SampledFrom([]string{"a", "a-1", "b", "c"}), rapid.SampledFrom([]string{"p", "q"})
		found := map[string]devicetest.Device{}
		rows := map[device.Key]device.Allocation{}
		t.Repeat(map[string]func(*rapid.T){
			"report": func(t *rapid.T) {
				clear(found)
				var all []device.Device
				for _, n := range rapid.SliceOfDistinct(name, rapid.ID).Draw(t, "names") {
					d := vf(n, rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "link"))
					found[n] = d
					all = append(all, d)
				}
				s.OnDevices(device.SRIOV)(all)
			},
			"put": func(t *rapid.T) {
				a := alloc(pool.Draw(t, "pool"), name.Draw(t, "name"), types.UID(rapid.SampledFrom([]string{"c1", "c2"}).Draw(t, "claim")), "p")
				a.Config = v2alpha1.DeviceConfig{PodIfName: "net1"}
				s.Put(a)
				rows[a.Key()] = a
			},
			"remove": func(t *rapid.T) {
				k := device.Key{Pool: pool.Draw(t, "pool"), Name: name.Draw(t, "name")}
				s.Remove(k)
				delete(rows, k)
			},
			"": func(t *rapid.T) {
				want := map[string]string{}
				for n, d := range found {
					want[n] = d.KernelIfaceName
					for k := range rows {
						if k.Name == n && d.KernelIfaceName == "" {
							want[n] = "link-" + n
						}
					}
				}
				got := map[string]string{}
				for _, r := range s.Devices() {
					got[r.Name] = r.Dev.(devicetest.Device).KernelIfaceName
				}
				if d := cmp.Diff(want, got); d != "" {
					t.Fatalf("inventory (-want +got):\n%s", d)
				}
				kept := map[device.Key]device.Allocation{}
				for _, a := range s.Allocations() {
					kept[a.Key()] = a
				}
				if d := cmp.Diff(rows, kept); d != "" {
					t.Fatalf("allocations (-want +got):\n%s", d)
				}
			},
		})
	})
}

// BenchmarkSameReport is a re-scan of 1,024 devices that found nothing new.
func BenchmarkSameReport(b *testing.B) {
	s := newStore(b)
	scan := func() []device.Device {
		all := make([]device.Device, 1024)
		for i := range all {
			all[i] = vf(fmt.Sprintf("0000-03-%02x-%d", i/8, i%8), fmt.Sprint("ens1f0v", i))
		}
		return all
	}
	report := s.OnDevices(device.SRIOV)
	report(scan())
	again, changed := scan(), s.Changed()
	for b.Loop() {
		report(again)
	}
	if closed(changed) {
		b.Error("the same devices are a change")
	}
}
