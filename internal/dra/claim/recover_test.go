// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/record"
	"github.com/weftnet/weft/internal/host/journal"
)

// crash is what a step panics with when the process is to end there.
type crash struct{}

// crashing runs f, which ends at the n-th step (0 is the first), and says whether it came that far.
func (r *rig) crashing(n int, f func()) (ended bool) {
	step := func(string) {
		if n == 0 {
			panic(crash{})
		}
		n--
	}
	r.hw.step, r.api.step = step, step
	defer func() {
		r.hw.step, r.api.step = func(string) {}, func(string) {}
		if what := recover(); what != nil {
			if _, ours := what.(crash); !ours {
				panic(what)
			}
			ended = true
		}
	}()
	f()
	return false
}

// T-20: wherever a Prepare ends, the next one is as the first, and an Unprepare leaves nothing.
func TestCrashAtEveryStepOfPrepare(t *testing.T) {
	claim := newClaim("c1", "p1", map[string]string{"net0": `{"vlan":1001}`, "net1": `{"vlan":1002}`}, 0, 1)
	steps := 0
	for ; ; steps++ {
		for _, again := range []bool{true, false} {
			r := newRig(t)
			r.hw.vlan[vfName(1)] = 77
			r.api.add(claim)
			ended := r.crashing(steps, func() { _, _ = r.Claims.prepare(t.Context(), claim, driver) })
			r.start(t)
			if again {
				r.mustPrepare(t, claim)
				if diff := cmp.Diff(map[string]int32{vfName(0): 1001, vfName(1): 1002}, r.hw.vlans()); diff != "" {
					t.Errorf("step %d: %s", steps, diff)
				}
				if len(r.api.devices(claim)) != 2 || r.api.writes != 1 {
					t.Errorf("step %d: status %v after %d writes", steps, r.api.devices(claim), r.api.writes)
				}
			}
			r.api.remove(claim)
			if err := r.unprepare(t, claim); err != nil {
				t.Errorf("step %d: %v", steps, err)
			}
			if r.hw.vlan[vfName(1)] != 77 {
				t.Errorf("step %d: VLAN is %d", steps, r.hw.vlan[vfName(1)])
			}
			r.hw.vlan[vfName(1)] = 0
			r.clean(t)
			if !ended && !again {
				if steps < 8 {
					t.Errorf("only %d steps", steps)
				}
				return
			}
		}
	}
}

// Wherever an Unprepare ends, the next start or call ends it.
func TestCrashAtEveryStepOfUnprepare(t *testing.T) {
	claim := newClaim("c1", "p1", map[string]string{"net0": `{"vlan":1001}`, "net1": `{"vlan":1002}`}, 0, 1)
	for steps := 0; ; steps++ {
		r := newRig(t)
		r.api.add(claim)
		r.mustPrepare(t, claim)
		r.hw.pod[vfName(0)] = string(claim.UID)
		r.api.end(claim)
		ended := r.crashing(steps, func() { _, _ = r.Claims.unprepare(t.Context(), claim.UID) })
		r.start(t)
		r.clean(t) // by the start alone
		if err := r.unprepare(t, claim); err != nil {
			t.Errorf("step %d: %v", steps, err)
		}
		if !ended {
			if steps < 6 {
				t.Errorf("only %d steps", steps)
			}
			return
		}
	}
}

func TestRestart(t *testing.T) { // T-21
	r := newRig(t)
	claim := t22()
	r.api.add(claim)
	r.mustPrepare(t, claim)
	before, setups := r.rows.Allocations(), r.hw.count("setup")
	r.start(t)
	if diff := cmp.Diff(before, r.rows.Allocations()); diff != "" {
		t.Error(diff)
	}
	if r.hw.count("setup") != setups {
		t.Error("Setup was run again")
	}
	select {
	case <-r.rows.Initialized():
	default:
		t.Errorf("the tables wait for %v", r.rows.Pending())
	}
	if err := r.unprepare(t, claim); err != nil {
		t.Fatal(err)
	}
	r.clean(t)
}

// A status that a crash has kept from being written is written after the next start.
func TestRestartWritesTheStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		claim := t22()
		r.api.add(claim)
		r.api.set(func() { r.api.err = errors.New("away") })
		r.mustPrepare(t, claim)
		r.start(t) // the API is away at the start, too
		if len(r.rows.Allocations()) != 1 {
			t.Fatal("no row")
		}
		go r.Run(t.Context()) //nolint:errcheck // it gives none
		wait(time.Minute)
		r.api.set(func() { r.api.err = nil })
		wait(3 * lastPause)
		synctest.Wait()
		if len(r.api.devices(claim)) != 1 {
			t.Error("no status")
		}
	})
}

// After a reboot the kubelet does not call again, and the kernel has forgotten.
func TestReboot(t *testing.T) {
	r := newRig(t)
	r.hw.vlan[vfName(0)] = 77 // by an administrator
	claim := t22()
	r.api.add(claim)
	r.mustPrepare(t, claim)
	r.boot = "boot-2"
	clear(r.hw.vlan)
	r.start(t)
	if diff := cmp.Diff(map[string]int32{vfName(0): 1001}, r.hw.vlans()); diff != "" {
		t.Fatal(diff)
	}
	if rows := r.rows.OfPod("uid-p1"); len(rows) != 1 {
		t.Fatalf("rows: %v", rows)
	}
	r.start(t) // and again, in this boot
	if err := r.unprepare(t, claim); err != nil {
		t.Fatal(err)
	}
	r.clean(t) // what was before the reboot is not put back: nobody has set it since
}

// A device that is late after a reboot is waited for, and the pod is told meanwhile.
func TestRebootBeforeTheDeviceIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		claim := t22()
		r.api.add(claim)
		r.mustPrepare(t, claim)
		r.boot = "boot-2"
		clear(r.hw.vlan)
		for _, call := range []string{"inspect", "setup"} { // in two starts
			r.hw.set(func() { clear(r.hw.fault); r.hw.fault[call+" "+vfName(0)] = errors.New("no VF yet") })
			r.start(t)
			if err := r.Ready("uid-p1"); err == nil || !strings.Contains(err.Error(), "no VF yet") {
				t.Errorf("%s: ready: %v", call, err)
			}
			if rows := r.rows.OfPod("uid-p1"); len(rows) != 1 {
				t.Fatalf("%s: rows: %v", call, rows)
			}
			other := newClaim("c2", "p2", nil, 0)
			r.api.add(other)
			if _, ok := errors.AsType[*BusyError](r.prepare(t, other)[other.UID].Err); !ok {
				t.Errorf("%s: the device is given to another claim", call)
			}
		}
		go r.Run(t.Context()) //nolint:errcheck // it gives none
		wait(10 * time.Second)
		r.hw.set(func() { clear(r.hw.fault) })
		wait(2 * lastPause)
		synctest.Wait()
		if err := r.Ready("uid-p1"); err != nil || r.hw.vlans()[vfName(0)] != 1001 {
			t.Errorf("%v, VLANs %v", err, r.hw.vlans())
		}
		if err := r.unprepare(t, claim); err != nil {
			t.Error(err)
		}
		r.clean(t)
	})
}

// What is tried again for days, setting up after a reboot or freeing, does not make its record grow.
func TestRecordDoesNotGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		claim := newClaim("c1", "p1", map[string]string{"net0": `{"vlan":5}`, "net1": `{"vlan":6}`}, 0, 1)
		r.api.add(claim)
		r.mustPrepare(t, claim)
		size := func() int64 {
			info, err := os.Stat(filepath.Join(r.dir, record.Devices, "uid-c1.jsonl"))
			if err != nil {
				t.Fatal(err)
			}
			return info.Size()
		}
		tried := func(call string) {
			t.Helper()
			wait(10 * time.Second)
			before, calls := size(), r.hw.count(call)
			wait(time.Hour)
			if after, again := size(), r.hw.count(call)-calls; after != before || again < 30 {
				t.Errorf("%s: %d bytes more of %d by %d calls", call, after-before, before, again)
			}
		}
		r.boot = "boot-2"
		clear(r.hw.vlan)
		r.hw.set(func() { r.hw.fault["setup "+vfName(1)] = errors.New("no VF yet") })
		r.start(t)
		go r.Run(t.Context()) //nolint:errcheck // it gives none
		tried("setup")
		r.hw.set(func() { clear(r.hw.fault) })
		wait(2 * lastPause)
		if err := r.Ready("uid-p1"); err != nil {
			t.Error(err)
		}
		r.hw.set(func() { r.hw.fault["free "+vfName(0)] = errors.New("PF is gone") })
		if err := r.unprepare(t, claim); err == nil {
			t.Error("it is freed")
		}
		tried("free")
		r.hw.set(func() { r.hw.fault["return uid-c1"] = errors.New("still there") })
		tried("return")
		r.hw.set(func() { clear(r.hw.fault) })
		if err := r.unprepare(t, claim); err != nil {
			t.Error(err)
		}
		r.clean(t)
	})
}

// A power loss may take the line that says that a device was freed; the claim that got it since
// has it.
func TestPowerLossBetweenTwoClaims(t *testing.T) {
	r := newRig(t)
	first, second := t22(), newClaim("c2", "p2", map[string]string{"net0": `{"vlan":9}`}, 0)
	r.api.add(first, second)
	r.mustPrepare(t, first)
	path := filepath.Join(r.dir, "devices", "uid-c1.jsonl")
	saved, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.unprepare(t, first); err != nil {
		t.Fatal(err)
	}
	r.mustPrepare(t, second)
	if err := os.WriteFile(path, saved, 0o600); err != nil {
		t.Fatal(err)
	}
	r.boot = "boot-2"
	clear(r.hw.vlan)
	r.start(t)
	if diff := cmp.Diff(map[string]int32{vfName(0): 9}, r.hw.vlans()); diff != "" {
		t.Error(diff)
	}
	if rows := r.rows.Allocations(); len(rows) != 1 || rows[0].ClaimUID != second.UID {
		t.Errorf("rows: %v", rows)
	}
}

func TestCorruptRecord(t *testing.T) {
	for name, damage := range map[string]func([]byte) []byte{
		"last line":  func(b []byte) []byte { return append(bytes.TrimSuffix(b, []byte("\n")), "x\nx\n"...) },
		"first line": func(b []byte) []byte { return append([]byte("x"), b...) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			bad, good := t22(), newClaim("c2", "p2", nil, 1)
			r.api.add(bad, good)
			r.mustPrepare(t, bad, good)
			path := filepath.Join(r.dir, "devices", "uid-c1.jsonl")
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, damage(b), 0o600); err != nil {
				t.Fatal(err)
			}
			r.start(t)
			// By what is readable of the record, else by the claim's status.
			if rows := r.rows.Allocations(); len(rows) != 2 {
				t.Errorf("rows: %v", rows)
			}
			kept, err := os.ReadDir(filepath.Join(r.dir, "quarantine"))
			if err != nil || len(kept) == 0 {
				t.Errorf("quarantine: %v, %v", kept, err)
			}
			if err := errors.Join(r.unprepare(t, bad), r.unprepare(t, good)); err != nil {
				t.Fatal(err)
			}
			r.clean(t)
		})
	}
}

// A corrupt record of a claim that was half freed is one still: what was freed is another claim's by now, and is
// not freed once more, by this process or, when it is killed at once, the next.
func TestCorruptRecordOfAHalfFreedClaim(t *testing.T) {
	r := newRig(t)
	half := newClaim("c1", "p1", map[string]string{"net0": `{"vlan":5}`, "net1": `{"vlan":6}`}, 0, 1)
	next := newClaim("c2", "p2", map[string]string{"net0": `{"vlan":9}`}, 1)
	r.api.add(half, next)
	r.mustPrepare(t, half)
	r.hw.set(func() { r.hw.fault["free "+vfName(0)] = errors.New("no such luck") })
	if err := r.unprepare(t, half); err == nil {
		t.Fatal("it is freed")
	}
	r.mustPrepare(t, next)
	path := filepath.Join(r.dir, "devices", "uid-c1.jsonl")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(b, "x\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	r.open(t)
	rec, l, err := r.acquire(t.Context(), "uid-c1")
	if err != nil || l.phase != releasing || !cmp.Equal(l.touched, map[int]bool{0: true}) {
		t.Fatalf("it is %+v, %v", l, err)
	}
	if err := rec.Close(); err != nil { // killed
		t.Fatal(err)
	}
	r.start(t)
	if diff := cmp.Diff(map[string]int32{vfName(0): 5, vfName(1): 9}, r.hw.vlans()); diff != "" {
		t.Error(diff)
	}
	r.hw.set(func() { clear(r.hw.fault) })
	if err := r.unprepare(t, half); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int32{vfName(1): 9}, r.hw.vlans()); diff != "" {
		t.Error(diff)
	}
	if err := r.unprepare(t, next); err != nil {
		t.Fatal(err)
	}
	r.clean(t)
}

// A record that is read late, when another claim has its device, frees it at no try.
func TestSupersededIsTriedAgain(t *testing.T) {
	r := newRig(t)
	claim := t22()
	r.api.add(claim)
	r.mustPrepare(t, claim)
	_ = r.Close()
	r.open(t)
	r.hw.set(func() { r.hw.fault["return uid-c1"] = errors.New("no such luck") })
	held := map[use]journal.Key{{device: vfName(0)}: "uid-c2"}
	if err := r.recoverRecord(t.Context(), "uid-c1", held); err == nil {
		t.Fatal("it is freed")
	}
	r.hw.set(func() { clear(r.hw.fault) })
	if err := r.releaseAgain(t.Context(), "uid-c1"); err != nil {
		t.Fatal(err)
	}
	if n := r.hw.count("free"); n != 0 {
		t.Errorf("what another claim has is freed %d times", n)
	}
	if keys, err := r.records.Keys(); err != nil || len(keys) != 0 {
		t.Errorf("records: %v, %v", keys, err)
	}
}

// bySeed is a claim as the seed's driver leaves it: a status, and a pool without the node.
func bySeed(name, pod, data string, dev int) *resourceapi.ResourceClaim {
	c := newClaim(name, pod, nil, dev)
	c.Status.Allocation.Devices.Results[0].Pool = "sriov-pool"
	c.Status.Devices = []resourceapi.AllocatedDeviceStatus{{
		Driver: driver, Pool: "sriov-pool", Device: vfName(dev), Data: rawExtension(data),
		NetworkData: &resourceapi.NetworkDeviceData{InterfaceName: "sriov0"},
	}}
	return c
}

func TestTakeOver(t *testing.T) { // T-54
	r := newRig(t)
	const data = `{"Manager":"SR-IOV","Dev":{"Addr":"0000:03:00.2","PFName":"ens1f0","VFID":0,"KernelIfaceName":"ens1f0v0","New":1},"Config":{"vlan":7}}`
	good := bySeed("c1", "p1", data, 0)
	bad := bySeed("c2", "p2", `{"Manager":"sr-iov","Dev":7}`, 1)
	worse := bySeed("c3", "p3", `{`, 2)
	other := bySeed("c4", "p4", data, 3)
	r.api.add(good, bad, worse, other)
	r.api.set(func() { delete(r.api.pods, "uid-p4") }) // of another node
	r.hw.vlan[vfName(0)] = 7
	r.hw.pod[vfName(0)] = "uid-c1" // it runs
	setups := r.hw.count("setup")
	r.start(t)
	rows := r.rows.OfPod("uid-p1")
	if len(rows) != 1 || rows[0].Pool != "sriov-pool" || rows[0].Config.VLAN != 7 || rows[0].Manager != device.SRIOV {
		t.Errorf("rows: %+v", rows)
	}
	if r.hw.count("setup") != setups {
		t.Error("a device that a pod has was set up again")
	}
	if len(r.rows.OfPod("uid-p4")) != 0 {
		t.Error("a claim of another node was taken over")
	}
	if text := r.api.texts(); !strings.Contains(text, "ResourceClaim c3: NotRecovered") {
		t.Errorf("events: %s", text)
	}
	if err := r.unprepare(t, good); err != nil || len(r.hw.pod) != 0 || len(r.hw.vlans()) != 0 {
		t.Errorf("%v, pods %v, VLANs %v", err, r.hw.pod, r.hw.vlans())
	}
	if r.api.writes != 0 {
		t.Error("a status was written")
	}
}

// What no manager can read is kept from others, and waits.
func TestDisabledManager(t *testing.T) { // T-54
	r := newRig(t)
	r.api.add(bySeed("c1", "p1", `{"Manager":"macvlan","Dev":{"Name":"x"}}`, 0))
	r.start(t)
	rows := r.rows.OfPod("uid-p1")
	if len(rows) != 1 || rows[0].Manager != "macvlan" {
		t.Fatalf("rows: %+v", rows)
	}
	other := newClaim("c2", "p2", nil, 0)
	r.api.add(other)
	if _, ok := errors.AsType[*BusyError](r.prepare(t, other)[other.UID].Err); !ok {
		t.Error("the device is given to another claim")
	}
	var dump bytes.Buffer
	if err := r.rows.Dump(&dump); err != nil || !strings.Contains(dump.String(), `{"Name":"x"}`) && !strings.Contains(dump.String(), `"Name": "x"`) {
		t.Errorf("%v: %s", err, dump.String())
	}
}

// Another driver's claim may have been freed by that driver, with its entry still in the status. It is
// taken over, and freed when the claim is not the pod's any more.
func TestTakeOverOfAFreedClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		claim := bySeed("c1", "p1", `{"Manager":"sr-iov","Dev":{"Addr":"0000:03:00.2"},"Config":{"vlan":7}}`, 0)
		r.api.add(claim)
		r.api.end(claim)
		r.start(t)
		if len(r.rows.Allocations()) != 1 {
			t.Fatal("it was not taken over")
		}
		go r.Run(t.Context()) //nolint:errcheck // it gives none
		wait(2 * goneFor)
		if len(r.rows.Allocations()) != 1 {
			t.Fatal("it was freed while its pod ended")
		}
		r.api.set(func() {
			delete(r.api.pods, "uid-p1")
			r.api.claims[types.NamespacedName{Namespace: "default", Name: "c1"}].Status.ReservedFor = nil
		})
		wait(2 * lastPause)
		synctest.Wait()
		r.clean(t)
	})
}

// Claims that are gone with their pods are freed; those whose pods are there are not.
func TestGoneClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		gone, pod := t22(), newClaim("c2", "p2", map[string]string{"net0": `{"vlan":5}`}, 1)
		r.api.add(gone, pod)
		r.mustPrepare(t, gone, pod)
		r.api.remove(gone)
		r.api.remove(pod)
		r.api.set(func() { r.api.pods["uid-p2"] = &corev1.Pod{} })
		r.start(t)
		if len(r.rows.Allocations()) != 2 {
			t.Fatal("freed at once: the kubelet may still be ending the pod")
		}
		go r.Run(t.Context()) //nolint:errcheck // it gives none
		wait(2 * goneFor)
		synctest.Wait()
		if diff := cmp.Diff(map[string]int32{vfName(1): 5}, r.hw.vlans()); diff != "" {
			t.Error(diff)
		}
		if rows := r.rows.Allocations(); len(rows) != 1 || rows[0].ClaimUID != pod.UID {
			t.Errorf("rows: %v", rows)
		}
	})
}

func TestAllocatedAndUnknown(t *testing.T) { // T-56
	r := newRig(t)
	var log bytes.Buffer
	r.log = &log
	r.api.add(t22())
	r.start(t)
	r.clean(t)
	if n := strings.Count(log.String(), "level=WARN"); n != 1 || !strings.Contains(log.String(), "claim=default/c1 pod_uid=uid-p1 device="+vfName(0)) {
		t.Errorf("%d warnings: %s", n, log.String())
	}
}

// A record that cannot be had at the start keeps its pod waiting, and no other one, and is read as
// soon as it can be.
func TestRecoverUnreadRecord(t *testing.T) {
	r := newRig(t)
	claim := t22()
	r.api.add(claim)
	r.mustPrepare(t, claim)
	_ = r.Close()
	r.open(t)
	// Its lock stays with the open file, as of another process.
	file, err := os.Open(r.records.Path(journal.Key(claim.UID)))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	busy, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := r.recoverRecord(busy, journal.Key(claim.UID), map[use]journal.Key{}); err == nil {
		t.Fatal("the record was had")
	}
	if err := r.Ready("uid-p1"); err == nil || !strings.Contains(err.Error(), "not known yet") {
		t.Errorf("its pod: %v", err)
	}
	if err := r.Ready("uid-p2"); err != nil {
		t.Errorf("another pod: %v", err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.Run(ctx) }()
	for late := time.Now().Add(30 * time.Second); r.Ready("uid-p1") != nil || len(r.rows.OfClaim(claim.UID)) != 1; {
		if time.Now().After(late) {
			t.Fatalf("ready: %v, rows %v", r.Ready("uid-p1"), r.rows.Allocations())
		}
		<-time.After(10 * time.Millisecond)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
