// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package attach_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestVersion(t *testing.T) {
	r := newRig(t)
	var v struct{ SupportedVersions []string }
	if err := json.Unmarshal([]byte(r.ok("VERSION")), &v); err != nil {
		t.Fatal(err)
	}
	if want := []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}; !slices.Equal(v.SupportedVersions, want) {
		t.Errorf("versions %v, want %v", v.SupportedVersions, want)
	}
}

// B61: every attachment is checked, those too old for CHECK are skipped.
func TestCheck(t *testing.T) {
	r := newRig(t)
	r.nad("default", "old", r.delegate("netf", "cniVersion", "0.3.1"))
	r.nad("default", "neta", r.delegate("pb", "cniVersion", "1.0.0", "result", result("1.0.0", "10.2.0.2/24")))
	r.pod(networks, "neta,old,other/netb")
	r.fails(3, "cid1", "CHECK")
	if _, err := os.Stat(r.record()); err == nil {
		t.Error("CHECK left a record")
	}
	r.ok("ADD")
	r.calls()
	r.ok("CHECK")
	if e := r.started()[1]; !strings.Contains(e.Stdin, `10.2.0.2/24`) {
		t.Errorf("CHECK without prevResult: %s", e.Stdin)
	}
	r.wantCalls("pa CHECK eth0", "pb CHECK net1", "pc CHECK net3")
}

// All that is wrong is told, with the code of the first.
func TestCheckTellsAll(t *testing.T) {
	r := newRig(t)
	bad := func(kind, msg string, code int) any {
		return r.delegate(kind, "cniVersion", "1.0.0", "fail", map[string]any{"CHECK": map[string]any{"code": code, "msg": msg}})
	}
	r.nad("default", "neta", bad("pb", "address is gone", 102))
	r.nad("other", "netb", bad("pc", "link is down", 103))
	r.pod(networks, "neta,other/netb")
	r.ok("ADD")
	e := r.fails(102, "address is gone", "CHECK")
	if !strings.Contains(e.Msg, "link is down") {
		t.Errorf("only %q", e.Msg)
	}
}

// B62, and what STATUS of the primary says.
func TestStatus(t *testing.T) {
	status := func(r *rig, d map[string]any) {
		r.conf["cniVersion"] = "1.1.0"
		d["cniVersion"], d["name"] = "1.1.0", "defnet"
		r.conf["delegates"] = []any{d}
	}
	t.Run("passes through", func(t *testing.T) {
		r := newRig(t)
		status(r, r.delegate("pa", "fail", map[string]any{"STATUS": map[string]any{"code": 51, "msg": "few addresses"}}))
		r.fails(51, "few addresses", "STATUS")
		r.wantCalls("pa STATUS ")
		status(r, r.delegate("pa"))
		r.ok("STATUS")
		r.wantCalls("pa STATUS ")
		r.wantClean()
	})
	t.Run("too old for STATUS", func(t *testing.T) {
		r := newRig(t)
		r.conf["cniVersion"] = "1.1.0"
		r.ok("STATUS")
		r.wantCalls()
	})
	t.Run("missing plugin", func(t *testing.T) {
		r := newRig(t)
		status(r, r.delegate("nosuch"))
		r.fails(50, "nosuch", "STATUS")
	})
	t.Run("cluster network names nothing", func(t *testing.T) {
		r := newRig(t)
		status(r, r.delegate("pa"))
		r.conf["clusterNetwork"] = "nothing"
		r.fails(50, "nothing", "STATUS")
		r.conf["clusterNetwork"] = filepath.Join(r.dir, "gone.conflist")
		r.fails(50, "gone.conflist", "STATUS")
		r.write(filepath.Join(r.dir, "broken.conflist"), `{"cniVersion":`)
		r.conf["clusterNetwork"] = filepath.Join(r.dir, "broken.conflist")
		r.fails(50, "broken.conflist", "STATUS")
	})
	t.Run("readiness file", func(t *testing.T) {
		r := newRig(t)
		status(r, r.delegate("pa"))
		r.conf["readinessindicatorfile"] = filepath.Join(r.dir, "ready")
		start := time.Now()
		r.fails(50, "ready", "STATUS")
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("STATUS waited %v", d)
		}
		r.wantCalls()
	})
	t.Run("agent away", func(t *testing.T) {
		r := newRig(t)
		status(r, r.delegate("pa"))
		delete(r.conf, "manifests")
		r.conf["agentSocket"] = filepath.Join(r.dir, "no.sock")
		r.ok("STATUS")
		r.wantCalls("pa STATUS ")
		r.conf["clusterNetwork"] = "nad-of-the-api"
		r.ok("STATUS")
	})
	t.Run("hangs", func(t *testing.T) {
		r := newRig(t)
		status(r, r.delegate("pa", "sleep", map[string]any{"STATUS": "1m"}))
		start := time.Now()
		r.fails(50, "defnet", "STATUS")
		if d := time.Since(start); d > 10*time.Second {
			t.Errorf("STATUS took %v", d)
		}
		if e := r.started()[0]; alive(e.PID) {
			t.Error("the hanging delegate is still there")
		}
	})
}

// valid is what a delegate's GC was told, as "container/ifname".
func valid(t *testing.T, stdin string) []string {
	t.Helper()
	var conf struct {
		Valid []struct{ ContainerID, IfName string } `json:"cni.dev/valid-attachments"`
	}
	if err := json.Unmarshal([]byte(stdin), &conf); err != nil {
		t.Fatal(err)
	}
	out := []string{}
	for _, v := range conf.Valid {
		out = append(out, v.ContainerID+"/"+v.IfName)
	}
	slices.Sort(out)
	return out
}

// GC undoes what the runtime no longer lists; a network's list is by conf name, over
// all NADs that share it and every scratch file.
func TestGC(t *testing.T) {
	r := newRig(t)
	r.conf["cniVersion"] = "1.1.0"
	r.conf["delegates"] = []any{r.delegate("pa", "cniVersion", "1.1.0", "name", "defnet")}
	r.nad("default", "neta", r.delegate("pb", "cniVersion", "1.1.0", "name", "shared"))
	r.nad("other", "netb", r.delegate("pc", "cniVersion", "1.1.0", "name", "shared"))
	r.nad("default", "old", r.delegate("netf", "cniVersion", "1.0.0", "name", "old"))
	r.pod(networks, "neta,old")
	r.ok("ADD")
	r.pod(networks, "other/netb")
	r.ok("ADD", "CNI_CONTAINERID=cid2")
	r.ok("ADD", "CNI_CONTAINERID=cid3")
	scratchConf := r.delegate("pb", "cniVersion", "1.1.0", "name", "shared")
	r.write(filepath.Join(r.conf["cniDir"].(string), "cid4"), r.json([]any{
		map[string]any{"Conf": scratchConf, "Name": "x", "Bytes": []byte(r.json(scratchConf)), "ifnameRequest": "m0"},
	}))
	r.calls()
	r.conf["cni.dev/valid-attachments"] = []any{
		map[string]any{"containerID": "cid1", "ifname": "eth0"},
		map[string]any{"containerID": "cid2", "ifname": "eth0"},
		map[string]any{"containerID": "cid4", "ifname": "eth0"},
	}
	r.ok("GC")
	lists := map[string][]string{}
	var dels []string
	for _, e := range r.started() {
		if e.Command == "GC" {
			lists[e.Type] = valid(t, e.Stdin)
		} else {
			dels = append(dels, e.Type+" "+e.Command+" "+e.ContainerID+"/"+e.IfName)
		}
	}
	if want := []string{"pc DEL cid3/net1", "pa DEL cid3/eth0"}; !slices.Equal(dels, want) {
		t.Errorf("GC ran %v, want %v", dels, want)
	}
	shared := []string{"cid1/net1", "cid2/net1", "cid4/m0"}
	for kind, want := range map[string][]string{"pa": {"cid1/eth0", "cid2/eth0"}, "pb": shared, "pc": shared} {
		if !slices.Equal(lists[kind], want) {
			t.Errorf("%s was told %v, want %v", kind, lists[kind], want)
		}
	}
	if _, told := lists["netf"]; told {
		t.Error("GC of a delegate that is too old for it")
	}
	r.calls()

	r.conf["cni.dev/valid-attachments"] = []any{}
	r.ok("GC")
	r.wantClean()
	if left := r.files(r.conf["cniDir"].(string)); len(left) != 0 && !slices.Equal(left, []string{"results"}) {
		t.Errorf("left of Multus: %v", left)
	}
}

// GC leaves an ADD that is running alone, and the networks with it.
func TestGCWhileAddRuns(t *testing.T) {
	r := newRig(t)
	r.conf["cniVersion"] = "1.1.0"
	r.conf["delegates"] = []any{r.delegate("pa", "cniVersion", "1.1.0", "name", "defnet", "sleep", map[string]any{"ADD": "700ms"})}
	r.conf["cni.dev/valid-attachments"] = []any{}
	r.pod()
	add := r.command("ADD")
	done := make(chan answer, 1)
	go func() { done <- r.finish(add) }()
	r.await("pa runs", func() bool { return len(r.started()) == 1 })
	r.ok("GC")
	if a := <-done; a.status != 0 {
		t.Fatalf("ADD: %s", a.stdout)
	}
	for _, e := range r.started() {
		if e.Command == "DEL" {
			t.Error("GC undid a running ADD")
		}
		if e.Command == "GC" && !slices.Equal(valid(t, e.Stdin), []string{"cid1/eth0"}) {
			t.Errorf("GC was told %v", valid(t, e.Stdin))
		}
	}
}

// A record that another GC or a DEL forgets meanwhile is no fault.
func TestGCAtOnce(t *testing.T) {
	r := newRig(t)
	r.conf["cniVersion"] = "1.1.0"
	r.pod()
	for i := range 20 {
		r.ok("ADD", fmt.Sprintf("CNI_CONTAINERID=many%d", i))
	}
	r.conf["cni.dev/valid-attachments"] = []any{}
	done := make(chan answer)
	for range 4 {
		gc := r.command("GC")
		go func() { done <- r.finish(gc) }()
	}
	for range 4 {
		if a := <-done; a.status != 0 {
			t.Errorf("GC: %s", a.stdout)
		}
	}
	r.ok("GC")
	r.wantClean()
}

// A sandbox that the runtime lists and of which there is neither record nor scratch file keeps
// its address of the pod network, which the runtime itself gave it, and what Multus' result
// files say of it.
func TestGCKeepsWhatNobodyRecorded(t *testing.T) {
	r := newRig(t)
	r.conf["cniVersion"] = "1.1.0"
	r.conf["delegates"] = []any{r.delegate("pa", "cniVersion", "1.1.0", "name", "defnet")}
	neta := r.delegate("pb", "cniVersion", "1.1.0", "name", "neta")
	r.nad("default", "neta", neta)
	r.pod(networks, "neta")
	r.ok("ADD")
	for _, c := range []struct{ id, name string }{{"cid8", "neta-cid8-net1"}, {"cid9", "neta-cid9-net1"}} {
		r.write(filepath.Join(r.conf["cniDir"].(string), "results", c.name), r.json(map[string]any{
			"kind": "cniCacheV1", "containerId": c.id, "ifName": "net1", "networkName": "neta", "config": []byte(r.json(neta)),
		}))
	}
	r.calls()
	r.conf["cni.dev/valid-attachments"] = []any{
		map[string]any{"containerID": "cid1", "ifname": "eth0"},
		map[string]any{"containerID": "plain", "ifname": "eth0"},
		map[string]any{"containerID": "cid8", "ifname": "eth0"},
	}
	r.ok("GC")
	lists := map[string][]string{}
	for _, e := range r.started() {
		if e.Command != "GC" {
			t.Errorf("GC ran %s %s of %s", e.Type, e.Command, e.ContainerID)
			continue
		}
		lists[e.Type] = valid(t, e.Stdin)
	}
	want := map[string][]string{"pa": {"cid1/eth0", "cid8/eth0", "plain/eth0"}, "pb": {"cid1/net1", "cid8/net1"}}
	if d := cmp.Diff(want, lists); d != "" {
		t.Errorf("what the plugins were told (-want +got):\n%s", d)
	}
}

// A torn Multus file of a sandbox that is gone keeps no network from GC; of one that lives it does.
func TestGCWithATornMultusFile(t *testing.T) {
	r := newRig(t)
	r.conf["cniVersion"] = "1.1.0"
	r.conf["delegates"] = []any{r.delegate("pa", "cniVersion", "1.1.0", "name", "defnet")}
	r.conf["cni.dev/valid-attachments"] = []any{}
	torn := filepath.Join(r.conf["cniDir"].(string), "cid9")
	r.write(torn, `[{"Conf":`)
	r.ok("GC")
	r.wantCalls("pa GC ")
	r.conf["cni.dev/valid-attachments"] = []any{map[string]any{"containerID": "cid9", "ifname": "eth0"}}
	r.fails(101, "Multus file "+torn, "GC")
	r.wantCalls()
}

// A plugin whose DEL hangs leaves time for the sandboxes and networks after its own.
func TestGCGoesOn(t *testing.T) {
	r := newRig(t)
	r.conf["cniVersion"] = "1.1.0"
	r.conf["delegates"] = []any{r.delegate("pa", "cniVersion", "1.1.0", "name", "defnet")}
	r.nad("default", "neta", r.delegate("pb", "cniVersion", "1.0.0", "sleep", map[string]any{"DEL": "10m"}))
	r.pod(networks, "neta")
	r.ok("ADD")
	r.pod()
	for i := range 12 {
		r.ok("ADD", fmt.Sprintf("CNI_CONTAINERID=cid2%d", i))
	}
	r.calls()
	r.conf["cni.dev/valid-attachments"] = []any{}
	r.fails(104, "default/neta", "GC")
	if left, want := r.files(r.hold), []string{"cid1-net1-pb"}; !slices.Equal(left, want) {
		t.Errorf("left %v, want %v", left, want)
	}
	if calls := r.calls(); !slices.Contains(calls, "pa GC ") {
		t.Errorf("no network was cleaned: %v", calls)
	}
}

// Rule 2: a list with an entry that can be no attachment is refused, and nothing is undone by it.
func TestGCChecksTheListFirst(t *testing.T) {
	entry := func(containerID, ifName string) map[string]any {
		return map[string]any{"containerID": containerID, "ifname": ifName}
	}
	for name, c := range map[string]struct {
		list  []any
		field string
	}{
		"nothing in it":       {[]any{map[string]any{}}, "cni.dev/valid-attachments[0].containerID"},
		"another directory":   {[]any{entry("../..", "eth0")}, "cni.dev/valid-attachments[0].containerID"},
		"the second":          {[]any{entry("cid1", "eth0"), entry("a/b", "eth0")}, "cni.dev/valid-attachments[1].containerID"},
		"no interface":        {[]any{entry("cid1", "")}, "cni.dev/valid-attachments[0].ifname"},
		"a bad interface":     {[]any{entry("cid1", "a/b")}, "cni.dev/valid-attachments[0].ifname"},
		"a long container ID": {[]any{entry(strings.Repeat("a", 256), "eth0")}, "cni.dev/valid-attachments[0].containerID"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.pod(networks, "neta")
			r.ok("ADD")
			r.calls()
			r.conf["cniVersion"], r.conf["cni.dev/valid-attachments"] = "1.1.0", c.list
			r.fails(7, c.field, "GC")
			r.wantCalls()
			if _, err := os.Stat(r.record()); err != nil {
				t.Error(err)
			}
		})
	}
}

// A container ID of which no record's name can be made is refused by ADD; what it could not have
// made is deleted like any other unknown.
func TestContainerIDsThatCannotBeRecorded(t *testing.T) {
	r := newRig(t)
	r.pod(networks, "neta")
	for _, n := range []int{195, 196, 250, 255} {
		id := "CNI_CONTAINERID=" + strings.Repeat("a", n)
		if n == 195 { // and "-eth0" are the 200 that there are
			r.ok("ADD", id)
			r.ok("CHECK", id)
			r.calls()
			r.ok("DEL", id)
			r.wantCalls("pb DEL net1", "pa DEL eth0")
			continue
		}
		r.fails(4, "CNI_CONTAINERID", "ADD", id)
		r.fails(4, "195 bytes", "CHECK", id)
		r.wantCalls()
		r.ok("DEL", id)
		r.wantCalls("pa DEL eth0")
	}
	r.wantClean()
}
