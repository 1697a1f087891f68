// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package attach_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/weftnet/weft/internal/host/journal"
)

func TestAddRunsThePlanInOrder(t *testing.T) {
	r := newRig(t)
	r.conf["delegates"] = []any{r.delegate("pa", "cniVersion", "1.0.0", "name", "defnet", "result", result("1.0.0", "10.1.0.2/24"))}
	r.pod(networks, "neta,other/netb@foo0,neta")
	out := r.ok("ADD")
	var printed struct {
		CNIVersion string
		Interfaces []struct{ Name, Sandbox string }
		IPs        []struct{ Address string }
	}
	if err := json.Unmarshal([]byte(out), &printed); err != nil {
		t.Fatal(err)
	}
	if printed.CNIVersion != "1.0.0" || printed.Interfaces[0].Name != "eth0" || printed.IPs[0].Address != "10.1.0.2/24" {
		t.Errorf("printed %s", out)
	}
	for _, e := range r.started() {
		if e.Netns != r.netns || e.ContainerID != "cid1" || !strings.Contains(e.Args, "K8S_POD_NAME=pod-a") {
			t.Errorf("delegate %s got netns %q, container %q, args %q", e.Type, e.Netns, e.ContainerID, e.Args)
		}
	}
	r.wantCalls("pa ADD eth0", "pb ADD net1", "pc ADD foo0", "pb ADD net3")
	r.ok("DEL")
	r.wantCalls("pb DEL net3", "pc DEL foo0", "pb DEL net1", "pa DEL eth0")
	r.wantClean()
}

// B36: the undo reaches every attempted attachment in reverse, the delegate's code stays.
func TestAddFailureUndoesInReverse(t *testing.T) {
	r := newRig(t)
	r.nad("default", "netf", r.delegate("netf", "cniVersion", "1.0.0", "fail",
		map[string]any{"ADD": map[string]any{"code": 11, "msg": "pool is empty", "details": "10.9.0.0/24"}}))
	r.pod(networks, "neta,netf,other/netb")
	e := r.fails(11, "pool is empty", "ADD")
	if e.Details != "10.9.0.0/24" || !strings.Contains(e.Msg, "default/netf") {
		t.Errorf("answer %+v does not name the network, or lost the details", e)
	}
	r.wantCalls("pa ADD eth0", "pb ADD net1", "netf ADD net2", "netf DEL net2", "pb DEL net1", "pa DEL eth0")
	r.wantClean()
}

func TestAddFailureInsideAChain(t *testing.T) {
	r := newRig(t)
	r.nad("default", "neta", map[string]any{"cniVersion": "1.0.0", "plugins": []any{
		r.delegate("pb"),
		r.delegate("netf", "fail", map[string]any{"ADD": map[string]any{"code": 5, "msg": "no"}}),
		r.delegate("pc"),
	}})
	r.pod(networks, "neta")
	r.fails(5, "no", "ADD")
	r.wantCalls("pa ADD eth0", "pb ADD net1", "netf ADD net1",
		"pc DEL net1", "netf DEL net1", "pb DEL net1", "pa DEL eth0")
	r.wantClean()
}

func TestAddUndoneOnABadAnswer(t *testing.T) {
	for name, conf := range map[string]map[string]any{
		"garbage":         {"resultRaw": "}{"},
		"nothing":         {"resultRaw": ""},
		"an array":        {"resultRaw": "[]"},
		"another version": {"resultRaw": `{"cniVersion":"9.9.9"}`},
		"a bad address":   {"resultRaw": `{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.300/24"}]}`},
		"a flood":         {"flood": map[string]any{"ADD": 40 << 20}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			d := r.delegate("pb", "cniVersion", "1.0.0")
			maps.Copy(d, conf)
			r.nad("default", "neta", d)
			r.pod(networks, "neta")
			r.fails(102, "default/neta", "ADD")
			r.wantCalls("pa ADD eth0", "pb ADD net1", "pb DEL net1", "pa DEL eth0")
			r.wantClean()
		})
	}
}

func TestAddUndoneWhenADelegateDies(t *testing.T) {
	r := newRig(t)
	r.nad("default", "neta", r.delegate("pb", "cniVersion", "1.0.0", "crash", map[string]any{"ADD": true}))
	r.pod(networks, "neta")
	r.fails(104, "pb", "ADD")
	r.wantCalls("pa ADD eth0", "pb ADD net1", "pb DEL net1", "pa DEL eth0")
	r.wantClean()
}

// The deadline ends the delegate and its children, and the ADD is undone.
func TestAddTimeout(t *testing.T) {
	for _, session := range []bool{false, true} {
		t.Run(fmt.Sprintf("child in a session of its own %v", session), func(t *testing.T) {
			r := newRig(t)
			r.conf["timeout"] = "3s"
			r.nad("default", "neta", r.delegate("pb", "cniVersion", "1.0.0", "session", session,
				"child", map[string]any{"ADD": "1m"}, "sleep", map[string]any{"ADD": "1m"}))
			r.pod(networks, "neta")
			add := r.command("ADD")
			done := make(chan answer, 1)
			go func() { done <- r.finish(add) }()
			r.await("pb has a child", func() bool {
				calls := r.started()
				return len(calls) == 2 && len(children(t, calls[1].PID)) > 0
			})
			pb := r.started()[1].PID
			left := append(children(t, pb), pb)
			a := <-done
			var e cniError
			if err := json.Unmarshal([]byte(a.stdout), &e); err != nil || e.Code != 11 || !strings.Contains(e.Msg, "default/neta") {
				t.Errorf("ADD answers %s", a.stdout)
			}
			for _, pid := range left {
				if alive(pid) {
					t.Errorf("process %d of the delegate is still there", pid)
				}
			}
			r.wantCalls("pa ADD eth0", "pb ADD net1", "pb DEL net1", "pa DEL eth0")
			r.wantClean()
		})
	}
}

// A daemon that a delegate leaves behind on purpose holds neither record nor lane.
func TestDaemonOfADelegate(t *testing.T) {
	r := newRig(t)
	r.conf["delegateLimit"] = 2
	r.conf["delegates"] = []any{r.delegate("pa", "cniVersion", "1.0.0", "name", "defnet", "session", true,
		"child", map[string]any{"ADD": "1m"})}
	r.pod()
	var daemons []int
	for i := range 3 {
		r.ok("ADD", fmt.Sprintf("CNI_CONTAINERID=c%d", i))
	}
	for _, e := range r.events() {
		if e.Child > 0 {
			daemons = append(daemons, e.Child)
		}
	}
	for i := range 3 {
		r.ok("DEL", fmt.Sprintf("CNI_CONTAINERID=c%d", i))
	}
	r.wantClean()
	for _, pid := range daemons {
		if !alive(pid) {
			t.Errorf("daemon %d was killed", pid)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
	if len(daemons) != 3 {
		t.Errorf("%d daemons, want 3", len(daemons))
	}
}

func TestAddRepeated(t *testing.T) {
	r := newRig(t)
	r.pod(networks, "neta")
	first := r.ok("ADD")
	r.wantCalls("pa ADD eth0", "pb ADD net1")
	if again := r.ok("ADD"); again != first {
		t.Errorf("second ADD answered\n%s\nfirst\n%s", again, first)
	}
	r.wantCalls()
	// Another namespace under the same path is another sandbox.
	r.write(r.netns+".new", "")
	if err := os.Rename(r.netns+".new", r.netns); err != nil {
		t.Fatal(err)
	}
	r.ok("ADD")
	r.wantCalls("pb DEL net1", "pa DEL eth0", "pa ADD eth0", "pb ADD net1")
}

// A warning that nobody reads ends nothing: the runtime may be restarted at any moment.
func TestStderrWithoutReader(t *testing.T) {
	r := newRig(t)
	r.conf["unknownKey"] = true
	r.pod(networks, "neta")
	for _, verb := range []string{"ADD", "CHECK", "DEL"} {
		reader, writer, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		_ = reader.Close()
		cmd := r.command(verb)
		cmd.Stderr = writer
		if out, err := cmd.Output(); err != nil {
			t.Errorf("%s: %v\n%s", verb, err, out)
		}
		_ = writer.Close()
	}
	r.wantCalls("pa ADD eth0", "pb ADD net1", "pa CHECK eth0", "pb CHECK net1", "pb DEL net1", "pa DEL eth0")
	r.wantClean()
}

// A record without attachments that says "done" cannot be answered from: it is replaced.
func TestAddOnARecordOfNothing(t *testing.T) {
	r := newRig(t)
	r.pod()
	r.ok("ADD")
	store, err := journal.Open(filepath.Join(r.state, "attachments"), "attachment")
	if err != nil {
		t.Fatal(err)
	}
	rec, err := store.Acquire(t.Context(), "cid1-eth0")
	if err != nil {
		t.Fatal(err)
	}
	st := rec.State()
	st.Intents[0].Body = []byte(strings.Replace(string(st.Intents[0].Body), `"attachments":[`, `"attachments":[],"was":[`, 1))
	if err := errors.Join(rec.Begin(st.Intents[0]), rec.Append(st.Phases[len(st.Phases)-1]), rec.Close()); err != nil {
		t.Fatal(err)
	}
	if out := r.ok("ADD"); !strings.Contains(out, "cniVersion") {
		t.Errorf("ADD printed %s", out)
	}
	r.wantCalls("pa ADD eth0", "pa ADD eth0")
	r.ok("DEL")
	r.wantClean()
}

func TestAddTwoAtOnce(t *testing.T) {
	r := newRig(t)
	r.nad("default", "neta", r.delegate("pb", "cniVersion", "1.0.0", "sleep", map[string]any{"ADD": "300ms"}))
	r.pod(networks, "neta")
	answers := make([]answer, 4)
	var wg sync.WaitGroup
	for i := range answers {
		cmd := r.command("ADD")
		wg.Go(func() { answers[i] = r.finish(cmd) })
	}
	wg.Wait()
	for _, a := range answers {
		if a.status != 0 || a.stdout != answers[0].stdout {
			t.Errorf("exit %d: %s%s", a.status, a.stdout, a.stderr)
		}
	}
	r.wantCalls("pa ADD eth0", "pb ADD net1")
	r.ok("DEL")
	r.wantClean()
}

// A user's mistake is answered with code 7 before anything runs, and leaves nothing.
func TestAddRefusesBeforeTheFirstDelegate(t *testing.T) {
	big := `{"cniVersion":"1.0.0","type":"pb","x":"` + strings.Repeat("x", 2<<20) + `"}`
	for name, c := range map[string]struct {
		words      string
		annotation string
		nad        any
		conf       map[string]any
	}{
		"annotation not JSON":         {words: networks, annotation: "[{"},
		"annotation no array":         {words: "array", annotation: `{"name":"neta"}`},
		"annotation null element":     {words: networks + "[0]", annotation: "[null]"},
		"annotation control":          {words: networks, annotation: "ne\x00ta\n"},
		"mac of 8 bytes":              {words: "[1].mac", annotation: `[{"name":"neta"},{"name":"neta","mac":"24:8a:07:03:00:8d:ae:2f"}]`},
		"one name twice (B4)":         {words: "dup", annotation: "neta@dup,neta@dup"},
		"eth0 (B5)":                   {words: "eth0", annotation: "neta@eth0"},
		"name of 16":                  {words: "[0].interface", annotation: `[{"name":"neta","interface":"abcdefghijklmnop"}]`},
		"missing NAD":                 {words: `NetworkAttachmentDefinition "default/nope"`, annotation: "nope"},
		"NAD not JSON":                {words: "NetworkAttachmentDefinition default/neta", annotation: "neta", nad: `{"cniVersion":`},
		"NAD empty plugins":           {words: "plugins", annotation: "neta", nad: `{"cniVersion":"1.0.0","plugins":[]}`},
		"NAD type with a slash":       {words: "type", annotation: "neta", nad: `{"cniVersion":"1.0.0","type":"../../bin/sh"}`},
		"NAD of an unknown type":      {words: "plugins[1].type", annotation: "neta", nad: `{"cniVersion":"1.0.0","plugins":[{"type":"pb"},{"type":"nosuch"}]}`},
		"NAD without its IPAM plugin": {words: "ipam.type", annotation: "neta", nad: `{"cniVersion":"1.0.0","type":"bridge","ipam":{"type":"nosuch"}}`},
		"NAD with a path as IPAM":     {words: "ipam.type", annotation: "neta", nad: `{"cniVersion":"1.0.0","type":"pb","ipam":{"type":"../x"}}`},
		"NAD too large":               {words: "default/neta", annotation: "neta", nad: big},
		"257 networks":                {words: "256", annotation: strings.Repeat("neta,", 256) + "neta"},
		"conf key of a wrong type": {
			words: "namespaceIsolation", annotation: "neta",
			conf: map[string]any{"namespaceIsolation": "yes"},
		},
		"isolation": {words: `"other"`, annotation: "other/netb", conf: map[string]any{"namespaceIsolation": true}},
		"no delegates": {
			words: "delegates", annotation: "neta",
			conf: map[string]any{"delegates": nil},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			for k, v := range c.conf {
				r.conf[k] = v
				if v == nil {
					delete(r.conf, k)
				}
			}
			if c.nad != nil {
				r.nad("default", "neta", c.nad)
			}
			r.pod(networks, c.annotation)
			r.fails(7, c.words, "ADD")
			r.wantCalls()
			r.wantClean()
		})
	}
}

func TestConfIsNotJSON(t *testing.T) {
	r := newRig(t)
	for _, conf := range []string{"", "{", "[]", "null", `{"name":"m"}`, "\x00\xff", `{"name":"m","type":"weft-cni","stateDir":7}`} {
		for _, verb := range []string{"ADD", "CHECK", "GC", "STATUS"} {
			cmd := r.command(verb)
			cmd.Stdin = strings.NewReader(conf)
			a := r.finish(cmd)
			var e cniError
			if err := json.Unmarshal([]byte(a.stdout), &e); err != nil || a.status != 1 || e.Code != 7 {
				t.Errorf("%s with conf %q: exit %d, %s", verb, conf, a.status, a.stdout)
			}
		}
	}
}

func TestMissingVariables(t *testing.T) {
	r := newRig(t)
	r.pod()
	for _, c := range []struct{ verb, env, words string }{
		{"ADD", "CNI_CONTAINERID=", "CNI_CONTAINERID"},
		{"ADD", "CNI_CONTAINERID=../x", "CNI_CONTAINERID"},
		{"ADD", "CNI_IFNAME=", "CNI_IFNAME"},
		{"ADD", "CNI_IFNAME=a/b", "CNI_IFNAME"},
		{"ADD", "CNI_NETNS=", "CNI_NETNS"},
		{"CHECK", "CNI_PATH=", "CNI_PATH"},
		{"GC", "CNI_PATH=", "CNI_PATH"},
		{"FLY", "X=", "FLY"},
	} {
		r.fails(4, c.words, c.verb, c.env)
	}
	r.wantCalls()
	r.wantClean()
}

// B42: the answer is in the version that was asked for, whatever the delegate speaks.
func TestAddAnswersInTheAskedVersion(t *testing.T) {
	versions := []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}
	for _, asked := range versions {
		for _, spoken := range versions {
			t.Run(asked+" from "+spoken, func(t *testing.T) {
				r := newRig(t)
				r.conf["cniVersion"] = asked
				answer := any(result(spoken, "10.1.0.2/24"))
				switch spoken {
				case "0.1.0", "0.2.0":
					answer = map[string]any{"cniVersion": spoken, "ip4": map[string]any{"ip": "10.1.0.2/24"}}
				case "0.3.0", "0.3.1", "0.4.0":
					res := result(spoken, "10.1.0.2/24")
					res["ips"].([]any)[0].(map[string]any)["version"] = "4"
					answer = res
				}
				r.conf["delegates"] = []any{r.delegate("pa", "cniVersion", spoken, "name", "defnet", "result", answer)}
				r.pod()
				out := r.ok("ADD")
				var printed struct{ CNIVersion string }
				if err := json.Unmarshal([]byte(out), &printed); err != nil || printed.CNIVersion != asked || !strings.Contains(out, "10.1.0.2/24") {
					t.Errorf("asked %s, printed %s", asked, out)
				}
				r.ok("DEL")
				r.wantCalls("pa ADD eth0", "pa DEL eth0")
				r.wantClean()
			})
		}
	}
}

// A NAD with bytes that a decoder would change reaches the delegate unchanged.
func TestDelegateGetsTheBytesOfTheNAD(t *testing.T) {
	r := newRig(t)
	odd := `"big":123456789012345678901234567890,"f":1.0,"e":1E400,"dup":1,"u":"\u00e9\/"`
	r.nad("default", "neta", `{"cniVersion":"1.0.0","type":"pb","log":"`+r.log+`",`+odd+`}`)
	r.pod(networks, "neta")
	r.ok("ADD")
	for _, e := range r.started() {
		if e.Type == "pb" && !strings.Contains(e.Stdin, odd) {
			t.Errorf("delegate got %s", e.Stdin)
		}
	}
}

func TestManyNetworksAndALargeNAD(t *testing.T) {
	r := newRig(t)
	filler := strings.Repeat("x", 1<<20)
	r.nad("default", "big", map[string]any{"cniVersion": "1.0.0", "type": "pc", "filler": filler, "hold": r.hold})
	r.pod(networks, strings.Repeat("neta,", 199)+"big")
	r.ok("ADD")
	if n := len(r.files(r.hold)); n != 201 {
		t.Errorf("%d attachments, want 201", n)
	}
	r.ok("DEL")
	r.wantClean()
}

func listenAt(t *testing.T, path string) *net.UnixListener {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Without anything that leads to Kubernetes the conf's own delegates are attached.
func TestNoKubernetes(t *testing.T) {
	r := newRig(t)
	delete(r.conf, "manifests")
	r.conf["delegates"] = append(r.conf["delegates"].([]any), r.delegate("pb", "cniVersion", "1.0.0", "name", "second"))
	r.ok("ADD", "CNI_ARGS=")
	r.wantCalls("pa ADD eth0", "pb ADD net1")
	r.ok("DEL", "CNI_ARGS=")
	r.wantCalls("pb DEL net1", "pa DEL eth0")
	r.wantClean()
}

// A plugin that is not known to run its ipam.type may mean something else by it: a warning.
func TestForeignIPAM(t *testing.T) {
	r := newRig(t)
	r.nad("default", "neta", r.delegate("pb", "cniVersion", "1.0.0", "ipam", map[string]any{"type": "nosuch"}))
	r.pod(networks, "neta")
	a := r.run("ADD")
	if a.status != 0 || !strings.Contains(a.stderr, "ipam.type") {
		t.Errorf("exit %d, stderr %s", a.status, a.stderr)
	}
}

// An existing configuration keeps working under Multus' own binary names.
func TestAnswersToMultusNames(t *testing.T) {
	r := newRig(t)
	r.pod(networks, "neta")
	for _, name := range []string{"multus", "multus-shim"} {
		link := filepath.Join(r.dir, name)
		if err := os.Symlink(r.bin, link); err != nil {
			t.Fatal(err)
		}
		r.bin, r.conf["type"] = link, name
		r.ok("ADD")
		r.ok("DEL")
		r.wantCalls("pa ADD eth0", "pb ADD net1", "pb DEL net1", "pa DEL eth0")
	}
	r.wantClean()
}

func TestReadinessFile(t *testing.T) {
	r := newRig(t)
	file := filepath.Join(r.dir, "ready")
	r.conf["readinessindicatorfile"], r.conf["timeout"] = file, "600ms"
	r.pod()
	r.fails(11, "ready", "ADD")
	r.ok("DEL")
	r.calls()
	r.conf["timeout"] = "20s"
	cmd := r.command("ADD")
	var wg sync.WaitGroup
	wg.Go(func() {
		if a := r.finish(cmd); a.status != 0 {
			t.Errorf("ADD: %s", a.stdout)
		}
	})
	r.await("the ADD waits", func() bool { return len(r.files(filepath.Join(r.state, "attachments"))) == 1 })
	r.write(file, "")
	wg.Wait()
	r.wantCalls("pa ADD eth0")
}

// Never more delegates at once than lanes, of which DEL keeps a quarter.
func TestLanes(t *testing.T) {
	r := newRig(t)
	r.conf["delegateLimit"] = 4
	r.conf["delegates"] = []any{r.delegate("pa", "cniVersion", "1.0.0", "name", "defnet", "sleep",
		map[string]any{"ADD": "60ms", "DEL": "60ms"})}
	r.pod()
	most := func(verb string) int {
		var wg sync.WaitGroup
		for i := range 12 {
			cmd := r.command(verb, fmt.Sprintf("CNI_CONTAINERID=c%d", i))
			wg.Go(func() {
				if a := r.finish(cmd); a.status != 0 {
					t.Errorf("%s: %s", verb, a.stdout)
				}
			})
		}
		wg.Wait()
		events := r.events()
		slices.SortStableFunc(events, func(a, b event) int { return int(a.T - b.T) })
		now, peak := 0, 0
		for _, e := range events {
			if e.End {
				now--
			} else {
				now++
			}
			peak = max(peak, now)
		}
		r.calls()
		return peak
	}
	if peak := most("ADD"); peak > 3 || peak < 2 {
		t.Errorf("%d delegates ran at once in ADD, want 2 to 3", peak)
	}
	waited := func(key string) bool {
		b, err := os.ReadFile(filepath.Join(filepath.Dir(r.record()), key))
		return err == nil && bytes.Contains(b, []byte(`{"phase":"attempting","item":0,"plugin":0,"waited":`))
	}
	if !slices.ContainsFunc(r.files(filepath.Dir(r.record())), waited) {
		t.Error("no record says that its call waited for a lane")
	}
	if peak := most("DEL"); peak > 4 || peak < 2 {
		t.Errorf("%d delegates ran at once in DEL, want 2 to 4", peak)
	}
	r.wantClean()
}

// What the runtime's environment says of Go programs' memory is not meant for this one.
func TestADDWithTheRuntimesCollector(t *testing.T) {
	r := newRig(t)
	r.pod(networks, "neta")
	r.ok("ADD", "GOGC=1", "GOMEMLIMIT=1")
	r.wantCalls("pa ADD eth0", "pb ADD net1")
	r.ok("DEL", "GOGC=1", "GOMEMLIMIT=1")
	r.wantClean()
}
