// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package attach_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weftnet/weft/internal/cni/apply"
	"github.com/weftnet/weft/internal/cni/record"
	"github.com/weftnet/weft/internal/host/journal"
	"github.com/weftnet/weft/internal/host/kernel"
	"github.com/weftnet/weft/internal/host/kernel/kerneltest"
)

// begun is when the rig's record was.
func (r *rig) begun() time.Time {
	r.t.Helper()
	return r.journaled().Intents[0].Time
}

// journaled is the rig's record as the journal has it.
func (r *rig) journaled() journal.State {
	r.t.Helper()
	store, err := journal.Open(filepath.Join(r.state, "attachments"), record.Kind)
	if err != nil {
		r.t.Fatal(err)
	}
	defer store.Close()
	st, err := store.Read("cid1-eth0")
	if err != nil {
		r.t.Fatal(err)
	}
	return st
}

func (r *rig) results() string { return filepath.Join(r.dir, "results") }

// order is weft-cni apply with an order about the rig's record.
func (r *rig) order(task apply.Task) *exec.Cmd {
	r.t.Helper()
	return r.give(apply.Order{
		Version: apply.Version, Task: task, Conf: []byte(r.json(r.conf)), Key: "cid1-eth0", Begun: r.begun(), ResultsDir: r.results(),
	})
}

func (r *rig) give(o apply.Order) *exec.Cmd {
	cmd := exec.CommandContext(r.t.Context(), r.bin, "apply")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.Stdin = strings.NewReader(r.json(o))
	return cmd
}

// obeys has an order carried out that must be answered so.
func (r *rig) obeys(cmd *exec.Cmd, want apply.Outcome) apply.Answer {
	r.t.Helper()
	a := r.finish(cmd)
	var answer apply.Answer
	if err := json.Unmarshal([]byte(a.stdout), &answer); a.status != 0 || err != nil {
		r.t.Fatalf("apply: exit %d: %v\n%s\n%s", a.status, err, a.stdout, a.stderr)
	}
	if answer.Outcome != want {
		r.t.Fatalf("apply answers %q (%s), want %q", answer.Outcome, answer.Reason, want)
	}
	return answer
}

// A DEL that was lost: what ADD made is undone, last first, and what the runtime's library
// and the device plugins left of it is removed.
func TestAnOrphanIsUndone(t *testing.T) {
	r := newRig(t)
	info := filepath.Join(r.dir, "devinfo")
	r.conf["deviceInfoDir"] = info
	r.nad("default", "neta", r.delegate("pb", "cniVersion", "1.0.0", "capabilities", map[string]any{"CNIDeviceInfoFile": true}))
	r.pod(networks, "neta")
	r.ok("ADD")
	r.calls()
	left := filepath.Join(info, "cni", "default-neta-cid1_net1")
	r.write(left, `{"type":"vdpa","version":"1.1.0"}`)
	cached, other := filepath.Join(r.results(), "m-cid1-eth0"), filepath.Join(r.results(), "m-cid10-eth0")
	r.write(cached, "{}")
	r.write(other, "{}")

	r.obeys(r.order(apply.Undo), apply.Kept)
	r.wantCalls()
	if err := os.Remove(r.netns); err != nil {
		t.Fatal(err)
	}
	r.obeys(r.order(apply.Undo), apply.Done)
	r.wantCalls("pb DEL net1", "pa DEL eth0")
	r.wantClean()
	for path, there := range map[string]bool{left: false, cached: false, other: true} {
		if _, err := os.Stat(path); (err == nil) != there {
			t.Errorf("%s: there should be one: %v, %v", path, there, err)
		}
	}
}

// An orphan whose undoing fails stays recorded, and the next order goes on where it ended.
func TestAnOrphanThatFailsIsTriedAgain(t *testing.T) {
	r := newRig(t)
	r.nad("default", "neta", r.delegate("pb", "cniVersion", "1.0.0", "fail", map[string]any{"DEL": map[string]any{"code": 77, "msg": "busy"}}))
	r.pod(networks, "neta")
	r.ok("ADD")
	order := r.order(apply.Undo)
	again := r.order(apply.Undo)
	if err := os.Remove(r.netns); err != nil {
		t.Fatal(err)
	}
	r.calls()
	if a := r.finish(order); a.status != 1 || !strings.Contains(a.stdout, `"code": 77`) {
		t.Fatalf("apply: exit %d\n%s", a.status, a.stdout)
	}
	r.wantCalls("pb DEL net1", "pa DEL eth0")
	if a := r.finish(again); a.status != 1 {
		t.Fatalf("apply: exit %d\n%s", a.status, a.stdout)
	}
	r.wantCalls("pb DEL net1")
}

// A pod that lives is kept, whatever the one who orders believes.
func TestALivingPodIsNoOrphan(t *testing.T) {
	kerneltest.Need(t)
	r := newRig(t)
	r.netns = kerneltest.NetnsThatGoes(t)
	r.pod(networks, "neta")
	r.ok("ADD")
	r.calls()

	t.Run("its namespace is there", func(t *testing.T) {
		r.obeys(r.order(apply.Undo), apply.Kept)
	})
	// As in a container into which the host's mounts are not propagated: there the namespace
	// is not, or is the empty file below the mount.
	for name, script := range map[string]string{
		"without mount propagation":  `umount "$1" && exec "$2" apply`,
		"its folder is another one":  `mount -t tmpfs none "$(dirname "$1")" && exec "$2" apply`,
		"the namespace is seen here": `exec "$2" apply`,
	} {
		t.Run(name, func(t *testing.T) {
			cmd := r.order(apply.Undo)
			cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", script, "sh", r.netns, r.bin}
			cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
			r.obeys(cmd, apply.Unsure)
		})
	}
	t.Run("from another network namespace", func(t *testing.T) {
		cmd := r.order(apply.Undo)
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET}
		r.obeys(cmd, apply.Unsure)
	})
	t.Run("another sandbox has its key by now", func(t *testing.T) {
		r.obeys(r.give(apply.Order{
			Version: apply.Version, Task: apply.Undo, Conf: []byte(r.json(r.conf)), Key: "cid1-eth0", Begun: r.begun().Add(-time.Second),
		}), apply.Gone)
	})
	r.wantCalls()
	r.ok("CHECK")
	r.calls()

	if err := kernel.RemoveNetns(r.netns); err != nil {
		t.Fatal(err)
	}
	r.obeys(r.order(apply.Undo), apply.Done)
	r.wantCalls("pb DEL net1", "pa DEL eth0")
	r.wantClean()
}

// After a reboot nothing lives; but it is undone only where a runtime has run Weft since,
// since from elsewhere DEL might find other address pools than ADD did.
func TestAnOrphanOfAnotherBoot(t *testing.T) {
	r := newRig(t)
	r.pod(networks, "neta")
	r.ok("ADD")
	rewriteBoot(t, r, "another-boot")
	r.calls()
	r.obeys(r.order(apply.Undo), apply.Unsure)
	r.wantCalls()
	r.write(filepath.Join(r.state, "boot"), journal.BootID()+"\n") // else this ADD sweeps it
	r.ok("ADD", "CNI_CONTAINERID=cid2")
	r.calls()
	r.obeys(r.order(apply.Undo), apply.Done)
	r.wantCalls("pb DEL net1", "pa DEL eth0")
}

// A record that somebody is at work on is theirs, and one that is not there nobody's.
func TestAnOrphanInUse(t *testing.T) {
	r := newRig(t)
	r.nad("default", "neta", r.delegate("pb", "cniVersion", "1.0.0", "sleep", map[string]any{"ADD": "2s"}))
	r.pod(networks, "neta")
	add := r.command("ADD")
	if err := add.Start(); err != nil {
		t.Fatal(err)
	}
	r.await("the second plugin runs", func() bool { return len(r.started()) == 2 })
	later := r.order(apply.Undo)
	r.obeys(r.order(apply.Undo), apply.Busy)
	if err := add.Wait(); err != nil {
		t.Fatal(err)
	}
	r.ok("DEL")
	r.obeys(later, apply.Gone)
	r.wantCalls("pa ADD eth0", "pb ADD net1", "pb DEL net1", "pa DEL eth0")
}

func TestBadOrders(t *testing.T) {
	r := newRig(t)
	for name, tt := range map[string]struct{ stdin, want string }{
		"nothing":         {"", "order"},
		"no JSON":         {"{", "order"},
		"a later version": {`{"version":99,"task":"undo","key":"a-b","begun":"2026-01-02T03:04:05Z"}`, "version 99"},
		"no task":         {`{"version":1,"key":"a-b","begun":"2026-01-02T03:04:05Z"}`, "task"},
		"no begin":        {`{"version":1,"task":"undo","key":"a-b"}`, "begin"},
		"a path for key":  {`{"version":1,"task":"undo","key":"../b","begun":"2026-01-02T03:04:05Z"}`, "key"},
		"a broken conf":   {`{"version":1,"task":"undo","key":"a-b","begun":"2026-01-02T03:04:05Z","conf":"e30="}`, "conf"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), r.bin, "apply")
			cmd.Stdin = strings.NewReader(tt.stdin)
			if a := r.finish(cmd); a.status != 1 || !strings.Contains(a.stdout, tt.want) {
				t.Errorf("exit %d, want 1 and %q\n%s", a.status, tt.want, a.stdout)
			}
		})
	}
}
