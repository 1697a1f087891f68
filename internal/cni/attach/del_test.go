// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package attach_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weftnet/weft/internal/host/journal"
)

// B52, B55, B56, B59: DEL works from the record alone, and again.
func TestDelNeedsNothingButTheRecord(t *testing.T) {
	r := newRig(t)
	r.nad("default", "neta", r.delegate("pb", "cniVersion", "1.0.0", "result", result("1.0.0", "10.2.0.2/24")))
	r.pod(networks, `[{"name":"neta","mac":"02:00:00:00:00:09"}]`)
	r.ok("ADD")
	add := r.started()[1]
	r.calls()
	if err := os.RemoveAll(r.manifests); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(r.netns); err != nil {
		t.Fatal(err)
	}
	delete(r.conf, "manifests")
	r.conf["kubeconfig"] = filepath.Join(r.dir, "nokubeconfig")
	r.ok("DEL", "CNI_NETNS=", "CNI_ARGS=", "CNI_PATH=")
	del := r.started()[0]
	if del.Netns != "" || del.Args != add.Args || !strings.Contains(del.Args, "MAC=02:00:00:00:00:09") {
		t.Errorf("DEL with netns %q, args %q; ADD had args %q", del.Netns, del.Args, add.Args)
	}
	var conf struct {
		PrevResult struct{ IPs []struct{ Address string } }
	}
	if err := json.Unmarshal([]byte(del.Stdin), &conf); err != nil || len(conf.PrevResult.IPs) != 1 || conf.PrevResult.IPs[0].Address != "10.2.0.2/24" {
		t.Errorf("DEL's conf %s lacks the prevResult", del.Stdin)
	}
	r.wantCalls("pb DEL net1", "pa DEL eth0")
	r.ok("DEL", "CNI_NETNS=")
	r.wantCalls("pa DEL eth0") // B54: what the conf itself names
	r.wantClean()
}

// One that fails does not stop the others; what succeeded is not repeated.
func TestDelGoesOn(t *testing.T) {
	r := newRig(t)
	r.nad("other", "netb", r.delegate("pc", "cniVersion", "1.0.0", "fail",
		map[string]any{"DEL": map[string]any{"code": 5, "msg": "device NOT found", "times": 2}}))
	r.pod(networks, "neta,other/netb")
	r.ok("ADD")
	r.calls()
	e := r.fails(5, "other/netb", "DEL")
	if strings.Contains(strings.ToLower(e.Msg+e.Details), "not found") {
		t.Errorf("containerd takes %q for success", e.Msg)
	}
	r.wantCalls("pc DEL net2", "pb DEL net1", "pa DEL eth0")
	r.fails(5, "other/netb", "DEL")
	r.wantCalls("pc DEL net2")
	r.ok("DEL")
	r.wantCalls("pc DEL net2")
	r.wantClean()
}

// A plugin whose DEL hangs has its share of the time: the others have theirs.
func TestDelGoesOnWhenAPluginHangs(t *testing.T) {
	r := newRig(t)
	r.nad("other", "netb", r.delegate("pc", "cniVersion", "1.0.0", "sleep", map[string]any{"DEL": "10m"}))
	r.pod(networks, strings.Repeat("neta,", 10)+"other/netb")
	r.ok("ADD")
	e := r.fails(104, "other/netb", "DEL")
	if strings.Contains(e.Msg, "defnet") {
		t.Errorf("a network that does not hang failed: %s", e.Msg)
	}
	if left, want := r.files(r.hold), []string{"cid1-net11-pc"}; !slices.Equal(left, want) {
		t.Errorf("left %v, want %v", left, want)
	}
}

// From the third DEL on success is answered, unless retryDeleteOnError; a later call sweeps.
func TestDelGivesUpAndSweeps(t *testing.T) {
	r := newRig(t)
	broken := r.delegate("pb", "cniVersion", "1.0.0", "fail", map[string]any{"DEL": map[string]any{"code": 5, "msg": "no", "times": 4}})
	r.nad("default", "neta", broken)
	r.pod(networks, "neta")
	r.ok("ADD")
	r.calls()
	r.conf["retryDeleteOnError"] = true
	for range 3 {
		r.fails(5, "no", "DEL")
	}
	r.conf["retryDeleteOnError"] = false
	r.ok("DEL")
	if len(r.files(filepath.Join(r.state, "attachments"))) != 1 {
		t.Error("the record is gone though its delegate did not succeed")
	}
	// Later calls, on other sandboxes, get it done.
	r.pod()
	r.await("the sweep has undone the record", func() bool {
		r.ok("ADD", "CNI_CONTAINERID=cid2", "CNI_IFNAME=eth0")
		r.ok("DEL", "CNI_CONTAINERID=cid2")
		return len(r.files(filepath.Join(r.state, "attachments"))) == 0
	})
	r.wantClean()
}

func TestDelWaitsForARunningAdd(t *testing.T) {
	r := newRig(t)
	r.nad("default", "neta", r.delegate("pb", "cniVersion", "1.0.0", "sleep", map[string]any{"ADD": "500ms"}))
	r.pod(networks, "neta")
	add := r.command("ADD")
	var wg sync.WaitGroup
	var a answer
	wg.Go(func() { a = r.finish(add) })
	r.await("pb runs", func() bool { return len(r.started()) == 2 })
	r.ok("DEL")
	wg.Wait()
	if a.status != 0 {
		t.Errorf("ADD: %s", a.stdout)
	}
	r.wantCalls("pa ADD eth0", "pb ADD net1", "pb DEL net1", "pa DEL eth0")
	r.wantClean()
}

// A delegate and its child that outlived their killed weft-cni are ended by DEL.
func TestDelEndsWhatAKilledAddLeft(t *testing.T) {
	for _, session := range []bool{false, true} {
		t.Run(fmt.Sprintf("own session %v", session), func(t *testing.T) {
			r := newRig(t)
			r.nad("default", "neta", r.delegate("pb", "cniVersion", "1.0.0", "session", session,
				"child", map[string]any{"ADD": "1m"}, "sleep", map[string]any{"ADD": "1m"}))
			r.pod(networks, "neta")
			add := r.command("ADD")
			if err := add.Start(); err != nil {
				t.Fatal(err)
			}
			r.await("pb has a child", func() bool {
				calls := r.started()
				return len(calls) == 2 && len(children(t, calls[1].PID)) > 0
			})
			if err := add.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = add.Wait()
			pb := r.started()[1]
			child := children(t, pb.PID)[0]
			if !alive(pb.PID) {
				t.Fatal("the delegate died with weft-cni")
			}
			start := time.Now()
			r.ok("DEL")
			if d := time.Since(start); d > 20*time.Second {
				t.Errorf("DEL took %v", d)
			}
			if alive(pb.PID) || alive(child) {
				t.Error("the delegate or its child is still there")
			}
			r.wantCalls("pa ADD eth0", "pb ADD net1", "pb DEL net1", "pa DEL eth0")
			r.wantClean()
		})
	}
}

// children lists the processes whose parent is pid.
func children(t *testing.T, pid int) []int {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	var out []int
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
			child, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, child)
		}
	}
	return out
}

// A corrupt record goes to quarantine, and what the conf knows is undone.
func TestCorruptRecord(t *testing.T) {
	for name, text := range map[string]string{
		"garbage": "}{\n", "wrong sum": `{"sum":"00000000","body":{"version":1}}` + "\n", "zeros": "\x00\x00\n",
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.pod(networks, "neta")
			r.ok("ADD")
			r.calls()
			r.write(r.record(), text)
			r.ok("DEL")
			r.wantCalls("pa DEL eth0")
			kept := slices.DeleteFunc(r.files(filepath.Join(r.state, "quarantine")), func(name string) bool {
				return strings.HasSuffix(name, ".reason")
			})
			if len(kept) != 1 {
				t.Fatalf("quarantine holds %v", kept)
			}
			if b, _ := os.ReadFile(filepath.Join(r.state, "quarantine", kept[0])); string(b) != text {
				t.Errorf("quarantine holds %q, want %q as it was", b, text)
			}
			r.write(r.record(), text)
			r.ok("ADD")
			r.wantCalls("pa DEL eth0", "pa ADD eth0", "pb ADD net1")
		})
	}
}

// So does what is no file where the record should be: neither ADD nor DEL fails for ever.
func TestNoFileAsRecord(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"folder": func(path string) error { return os.MkdirAll(filepath.Join(path, "in it"), 0o700) },
		"FIFO":   func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"link":   func(path string) error { return os.Symlink("/dev/null", path) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.pod(networks, "neta")
			r.ok("ADD")
			r.ok("DEL")
			r.calls()
			for _, step := range []struct {
				command string
				calls   []string
			}{{"ADD", []string{"pa DEL eth0", "pa ADD eth0", "pb ADD net1"}}, {"DEL", []string{"pa DEL eth0"}}} {
				if err := os.RemoveAll(r.record()); err != nil {
					t.Fatal(err)
				}
				if err := put(r.record()); err != nil {
					t.Fatal(err)
				}
				r.ok(step.command)
				r.wantCalls(step.calls...)
			}
			if kept, err := filepath.Glob(filepath.Join(r.state, "quarantine", "*.jsonl")); err != nil || len(kept) != 2 {
				t.Errorf("quarantine holds %v, %v", kept, err)
			}
		})
	}
}

// A conf that someone broke meanwhile does not keep a pod from being deleted.
func TestDelWithABrokenConf(t *testing.T) {
	r := newRig(t)
	r.pod(networks, "neta")
	r.ok("ADD")
	r.calls()
	r.conf["namespaceIsolation"] = "yes"
	r.ok("DEL")
	r.wantCalls("pb DEL net1", "pa DEL eth0")
	r.fails(7, "namespaceIsolation", "DEL")
	r.wantClean()
}

// After a reboot later calls undo what the runtime never deleted.
func TestSweepAfterAReboot(t *testing.T) {
	r := newRig(t)
	r.pod(networks, "neta")
	r.ok("ADD")
	r.calls()
	rewriteBoot(t, r, "another-boot")
	r.pod()
	r.ok("ADD", "CNI_CONTAINERID=cid2")
	r.await("the old record is undone", func() bool {
		r.ok("DEL", "CNI_CONTAINERID=cid2")
		_, err := os.Stat(r.record())
		return os.IsNotExist(err)
	})
	seen := map[string]bool{}
	for _, e := range r.started() {
		if e.ContainerID == "cid1" {
			seen[e.Type+" "+e.Command+" "+e.IfName] = true
		}
	}
	if !seen["pb DEL net1"] || !seen["pa DEL eth0"] {
		t.Errorf("the sweep called %v", seen)
	}
	r.calls()
	r.wantClean()
}

// GC sweeps as well, on a node where it is the only call that comes.
func TestGCSweeps(t *testing.T) {
	r := newRig(t)
	r.conf["cniVersion"] = "1.1.0"
	r.nad("default", "neta", r.delegate("pb", "cniVersion", "1.0.0", "fail", map[string]any{"DEL": map[string]any{"code": 5, "msg": "no", "times": 3}}))
	r.pod(networks, "neta")
	r.ok("ADD")
	r.fails(5, "no", "DEL")
	r.fails(5, "no", "DEL")
	r.ok("DEL") // gives up: the sweep's from here on
	r.conf["cni.dev/valid-attachments"] = []any{map[string]any{"containerID": "cid1", "ifname": "eth0"}}
	r.await("the record is undone", func() bool {
		r.ok("GC")
		return len(r.files(filepath.Join(r.state, "attachments"))) == 0
	})
	r.wantClean()
}

// rewriteBoot makes the record and the state directory those of an earlier boot: the
// intent alone, since phases may be lost with the power.
func rewriteBoot(t *testing.T, r *rig, boot string) {
	t.Helper()
	store, err := journal.Open(filepath.Join(r.state, "attachments"), "attachment")
	if err != nil {
		t.Fatal(err)
	}
	rec, err := store.Acquire(t.Context(), "cid1-eth0")
	if err != nil {
		t.Fatal(err)
	}
	in := rec.State().Intents[0]
	in.Boot = boot
	if err := rec.Begin(in); err != nil {
		t.Fatal(err)
	}
	if err := rec.Close(); err != nil {
		t.Fatal(err)
	}
	r.write(filepath.Join(r.state, "boot"), boot+"\n")
}

// A pod that Multus attached is deleted through its scratch file, once.
func TestDelTakesOverAMultusScratchFile(t *testing.T) {
	r := newRig(t)
	cni := r.conf["cniDir"].(string)
	entry := func(conf map[string]any, extra map[string]any) map[string]any {
		out := map[string]any{"Conf": conf, "Name": conf["name"], "Bytes": base64.StdEncoding.EncodeToString([]byte(r.json(conf)))}
		maps.Copy(out, extra)
		return out
	}
	second := r.delegate("pb", "cniVersion", "1.0.0", "name", "second")
	r.write(filepath.Join(cni, "cid1"), r.json([]any{
		entry(r.delegate("pa", "cniVersion", "1.0.0", "name", "defnet"), nil),
		entry(second, map[string]any{"ipRequest": []string{"10.2.0.7/24"}}),
		entry(r.delegate("pc", "cniVersion", "1.0.0", "name", "third"), map[string]any{"ifnameRequest": "foo0"}),
	}))
	r.write(filepath.Join(cni, "results", "second-cid1-net1"), r.json(map[string]any{
		"kind": "cniCacheV1", "containerId": "cid1", "ifName": "net1", "networkName": "second",
		"config": base64.StdEncoding.EncodeToString([]byte(r.json(second))),
		"result": result("1.0.0", "10.2.0.7/24"),
	}))
	r.ok("DEL")
	if e := r.started()[1]; !strings.Contains(e.Stdin, "10.2.0.7/24") {
		t.Errorf("pb DEL has no prevResult: %s", e.Stdin)
	}
	r.wantCalls("pc DEL foo0", "pb DEL net1", "pa DEL eth0")
	if left := r.files(cni); len(left) != 1 || len(r.files(filepath.Join(cni, "results"))) != 0 {
		t.Errorf("left of Multus: %v", left)
	}
	r.wantClean()
	r.ok("DEL")
	r.wantCalls("pa DEL eth0")
}

// What Multus forgot in its scratch file and libcni did not in its results is undone; the pod
// network, of which there is no result, by the conf.
func TestDelTakesOverMultusResultsAlone(t *testing.T) {
	r := newRig(t)
	second := r.delegate("pb", "cniVersion", "1.0.0", "name", "second")
	results := filepath.Join(r.conf["cniDir"].(string), "results")
	r.write(filepath.Join(results, "second-cid1-net1"), r.json(map[string]any{
		"kind": "cniCacheV1", "containerId": "cid1", "ifName": "net1", "networkName": "second", "config": []byte(r.json(second)),
	}))
	r.ok("DEL")
	r.wantCalls("pa DEL eth0", "pb DEL net1")
	if left := r.files(results); len(left) != 0 {
		t.Errorf("left of Multus: %v", left)
	}
	r.wantClean()
}
