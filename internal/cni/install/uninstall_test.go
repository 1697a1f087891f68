// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/cni/confpub"
	"github.com/weftnet/weft/internal/cni/install"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/test/binaries"
	"github.com/weftnet/weft/test/crash/ptrace"
)

// host is a node with Weft on it: the real weft-cni, a recording pod network "pa", the
// published conf.
type host struct {
	*testing.T
	install.Options
	dir, log, netns string
	out             bytes.Buffer
}

func installed(t *testing.T) *host {
	t.Helper()
	o := newHost(t)
	h := &host{T: t, Options: o, dir: filepath.Dir(o.BinDir)}
	h.log, h.netns = filepath.Join(h.dir, "calls"), filepath.Join(h.dir, "netns")
	h.Source = filepath.Join(binaries.Weft(t), "weft-cni")
	must(t, os.WriteFile(h.netns, nil, 0o600))
	must(t, os.Remove(o.BinDir))
	must(t, os.Rename(binaries.Delegate(t, "pa"), o.BinDir))
	must(t, os.Symlink(h.Source, o.BinDir+"/weft-cni")) // quicker than a copy
	h.primary(nil)
	return h
}

// primary writes the pod network's conf, with more keys, and publishes Weft's.
func (h *host) primary(more map[string]any) {
	h.Helper()
	plugin := map[string]any{"type": "pa", "log": h.log}
	maps.Copy(plugin, more)
	b, err := json.Marshal(map[string]any{"cniVersion": "1.1.0", "name": "defnet", "plugins": []any{plugin}})
	must(h.T, err)
	path := h.ConfDir + "/10-pa.conflist"
	must(h.T, os.WriteFile(path, b, 0o600))
	b, err = confpub.Render(confpub.Options{
		ConfDir: h.ConfDir, PrimaryConf: path, AgentSocket: h.AgentSocket, StateDir: h.StateDir, BinDir: h.BinDir,
	}, b)
	must(h.T, err)
	must(h.T, os.WriteFile(h.published(), b, 0o600))
}

func (h *host) published() string { return h.ConfDir + "/00-weft.conflist" }

// add starts a pod as the runtime does, with the pod's annotations.
func (h *host) add(pod string) {
	h.Helper()
	b, err := os.ReadFile(h.published())
	must(h.T, err)
	var list struct{ Plugins []json.RawMessage }
	must(h.T, json.Unmarshal(b, &list))
	o, err := netconf.ParseObject(list.Plugins[0])
	must(h.T, err)
	o.Set("name", netconf.String("weft"))
	o.Set("cniVersion", netconf.String("1.1.0"))
	o.Set("runtimeConfig", json.RawMessage(`{"io.kubernetes.cri.pod-annotations":{}}`))
	cmd := exec.CommandContext(h.Context(), h.BinDir+"/weft-cni")
	cmd.Env = []string{
		"CNI_COMMAND=ADD", "CNI_CONTAINERID=c-" + pod, "CNI_IFNAME=eth0", "CNI_NETNS=" + h.netns, "CNI_PATH=" + h.BinDir,
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + pod + ";K8S_POD_UID=uid-" + pod,
	}
	cmd.Stdin = bytes.NewReader(o.Bytes())
	if out, err := cmd.CombinedOutput(); err != nil {
		h.Fatalf("ADD: %v\n%s", err, out)
	}
}

// calls lists the pod network's calls, those that ended, in the order of their names.
func (h *host) calls() []string {
	h.Helper()
	b, err := os.ReadFile(h.log)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	must(h.T, err)
	var all []string
	for line := range strings.Lines(string(b)) {
		var e struct {
			Command, ContainerID, IfName string
			End                          bool
		}
		must(h.T, json.Unmarshal([]byte(line), &e))
		if e.End {
			all = append(all, e.Command+" "+e.ContainerID+" "+e.IfName)
		}
	}
	slices.Sort(all)
	return all
}

func (h *host) uninstall(force bool) error {
	h.Helper()
	o := h.Options
	o.Force = force
	return install.Uninstall(h.Context(), o, &h.out)
}

// clean checks that nothing of Weft is on the node, and that the pod network is.
func (h *host) clean() {
	h.Helper()
	gone(h.T, h.StateDir)
	var names []string
	for _, dir := range []string{h.ConfDir, h.BinDir} {
		entries, err := os.ReadDir(dir)
		must(h.T, err)
		for _, e := range entries {
			names = append(names, e.Name())
		}
	}
	if diff := cmp.Diff([]string{"10-pa.conflist", "pa"}, names); diff != "" {
		h.Errorf("on the node (-want +got):\n%s\n%s", diff, &h.out)
	}
}

// untouched checks that all is as it was.
func (h *host) untouched(before []byte) {
	h.Helper()
	b, err := os.ReadFile(h.published())
	if err != nil || !bytes.Equal(b, before) {
		h.Errorf("published conf: %q, %v", b, err)
	}
	if _, err := os.Stat(h.BinDir + "/weft-cni"); err != nil {
		h.Error(err)
	}
}

func TestUninstall(t *testing.T) {
	h := installed(t)
	must(t, os.WriteFile(h.ConfDir+"/.00-weft.conflist.1.tmp", nil, 0o600))
	must(t, os.WriteFile(h.BinDir+"/.weft-cni.1.tmp", nil, 0o600))
	must(t, h.uninstall(false))
	h.clean()
	must(t, h.uninstall(false))
	must(t, h.uninstall(true))
	h.clean()
}

// While pods are attached it is refused, with their number and names, and nothing changes.
func TestUninstallRefuses(t *testing.T) {
	h := installed(t)
	before, err := os.ReadFile(h.published())
	must(t, err)
	for i := range 25 {
		h.add(fmt.Sprintf("pod-%02d", i))
	}
	err = h.uninstall(false)
	left, ok := errors.AsType[*install.LeftError](err)
	if !ok || len(left.Records) != 25 {
		t.Fatalf("%v", err)
	}
	for _, want := range []string{"25 sandboxes are", "default/pod-00 (c-pod-00-eth0)", "and 5 more"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %s", want, err)
		}
	}
	h.untouched(before)
	h.add("pod-99") // Weft still works
	if h.out.Len() > 0 {
		t.Errorf("progress: %s", &h.out)
	}
}

// With force each record is undone by DEL, no plugin is told GC, and the progress is told.
func TestUninstallForce(t *testing.T) {
	for name, hurt := range map[string]func(h *host){
		"as it is":            func(*host) {},
		"the conf is gone":    func(h *host) { must(h.T, os.Remove(h.published())) },
		"the conf is broken":  func(h *host) { must(h.T, os.Truncate(h.published(), 30)) },
		"the plugin is gone":  func(h *host) { must(h.T, os.Remove(h.BinDir+"/weft-cni")) },
		"the primary is gone": func(h *host) { must(h.T, os.Truncate(h.ConfDir+"/10-pa.conflist", 0)) },
		"the pods are gone":   func(h *host) { must(h.T, os.Remove(h.netns)) },
		"an empty record":     func(h *host) { must(h.T, os.WriteFile(h.StateDir+"/attachments/c-x-eth0.jsonl", nil, 0o600)) },
	} {
		t.Run(name, func(t *testing.T) {
			h := installed(t)
			h.add("pod-a")
			h.add("pod-b")
			hurt(h)
			if err := h.uninstall(true); err != nil {
				t.Fatalf("%v\n%s", err, &h.out)
			}
			h.clean()
			want := []string{"ADD c-pod-a eth0", "ADD c-pod-b eth0", "DEL c-pod-a eth0", "DEL c-pod-b eth0"}
			if diff := cmp.Diff(want, h.calls()); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
			if !strings.Contains(h.out.String(), "2/2 default/pod-") {
				t.Errorf("progress:\n%s", &h.out)
			}
		})
	}
}

// What cannot be undone keeps Weft on the node, its conf included.
func TestUninstallForceFails(t *testing.T) {
	h := installed(t)
	h.primary(map[string]any{"fail": map[string]any{"DEL": map[string]any{"code": 102, "msg": "address is stuck"}}})
	before, err := os.ReadFile(h.published())
	must(t, err)
	h.add("pod-a")
	err = h.uninstall(true)
	if err == nil || !strings.Contains(err.Error(), "default/pod-a") || !strings.Contains(err.Error(), "address is stuck") {
		t.Errorf("%v", err)
	}
	h.untouched(before)
	if err := h.uninstall(false); err == nil {
		t.Error("uninstalled with a record left")
	}
}

// A record of a corrupt file is undone by its name and the conf, and kept as evidence; one of
// a newer version is nobody's to undo.
func TestUninstallForceUnreadable(t *testing.T) {
	h := installed(t)
	h.add("pod-a")
	record := h.StateDir + "/attachments/c-pod-a-eth0.jsonl"
	must(t, os.WriteFile(record, []byte("garbage\n"), 0o600))
	err := h.uninstall(false)
	if _, ok := errors.AsType[*install.LeftError](err); !ok {
		t.Fatal(err)
	}
	if err := h.uninstall(true); err != nil {
		t.Fatalf("%v\n%s", err, &h.out)
	}
	if got := h.calls(); !slices.Contains(got, "DEL c-pod-a eth0") {
		t.Errorf("calls %q", got)
	}
	gone(t, h.published())
	if kept, _ := os.ReadDir(h.StateDir + "/quarantine"); len(kept) == 0 {
		t.Error("the corrupt record is gone")
	}
}

// Prepared devices are refused, with force as well.
func TestUninstallDevices(t *testing.T) {
	h := installed(t)
	before, err := os.ReadFile(h.published())
	must(t, err)
	must(t, os.MkdirAll(h.StateDir+"/devices", 0o700))
	must(t, os.WriteFile(h.StateDir+"/devices/claim-1.jsonl", []byte("{}\n"), 0o600))
	for _, force := range []bool{false, true} {
		if err := h.uninstall(force); err == nil || !strings.Contains(err.Error(), "claim-1") {
			t.Errorf("force %v: %v", force, err)
		}
	}
	h.untouched(before)
}

// An agent that runs would publish the conf again.
func TestUninstallBesideAnAgent(t *testing.T) {
	h := installed(t)
	before, err := os.ReadFile(h.published())
	must(t, err)
	l, err := net.Listen("unix", h.AgentSocket)
	must(t, err)
	h.AgentSocket = "" // it is in the conf
	if err := h.uninstall(true); err == nil || !strings.Contains(err.Error(), "an agent answers") {
		t.Errorf("%v", err)
	}
	h.untouched(before)
	must(t, l.Close())
	must(t, h.uninstall(false))
	h.clean()
}

// A configuration that names other places than the published conf would pass over the pods that are
// attached and the agent that lives, and say that all is done.
func TestUninstallElsewhere(t *testing.T) {
	for name, c := range map[string]struct {
		change func(h *host)
		want   []string
	}{
		"stateDir":    {func(h *host) { h.StateDir += "-2" }, []string{`stateDir is "DIR/state", not "DIR/state-2"`}},
		"agentSocket": {func(h *host) { h.AgentSocket += "-2" }, []string{`agentSocket is "DIR/agent.sock", not "DIR/agent.sock-2"`}},
		"binDir":      {func(h *host) { h.BinDir += "-2" }, []string{`binDir is "DIR/bin", not "DIR/bin-2"`}},
		"the conf has none": {func(h *host) {
			at := h.Options
			h.StateDir, h.BinDir = "", ""
			h.primary(nil)
			h.StateDir, h.BinDir = at.StateDir, at.BinDir
		}, []string{`stateDir is "/var/lib/weft", not "DIR/state"`, `binDir is "/opt/cni/bin", not "DIR/bin"`}},
		"the conf is aside": {func(h *host) {
			must(h.T, os.Rename(h.published(), h.ConfDir+"/.00-weft.conflist.uninstall"))
			h.StateDir += "-2"
		}, []string{`stateDir is "DIR/state", not "DIR/state-2"`}},
	} {
		t.Run(name, func(t *testing.T) {
			h := installed(t)
			h.add("pod-a")
			before := tree(t, h.dir)
			at := h.Options
			c.change(h)
			if name == "the conf has none" || name == "the conf is aside" {
				before = tree(t, h.dir)
			}
			for _, force := range []bool{false, true} {
				err := h.uninstall(force)
				if err == nil || !strings.Contains(err.Error(), "--config") {
					t.Fatalf("force %v: %v\n%s", force, err, &h.out)
				}
				for _, want := range c.want {
					if want = strings.ReplaceAll(want, "DIR", h.dir); !strings.Contains(err.Error(), want) {
						t.Errorf("%v, want %s", err, want)
					}
				}
			}
			if d := cmp.Diff(before, tree(t, h.dir)); d != "" || h.out.Len() > 0 {
				t.Errorf("changed: %s%s", d, &h.out)
			}
			h.Options = at
			if name == "the conf has none" {
				return
			}
			// The same by another spelling is no other place.
			h.StateDir, h.AgentSocket = h.StateDir+"/", h.dir+"/./agent.sock"
			if _, ok := errors.AsType[*install.LeftError](h.uninstall(false)); !ok {
				t.Error("not refused for the pod")
			}
			if err := h.uninstall(true); err != nil {
				t.Fatal(err)
			}
			h.clean()
		})
	}
}

// What was published under another name before confName was changed goes as well, also when an
// uninstall was killed; it would be what the runtime takes, without a plugin. A conf that
// somebody wrote for Weft by hand stays.
func TestUninstallAfterAnotherName(t *testing.T) {
	for name, killed := range map[string]bool{"at once": false, "after a kill": true} {
		t.Run(name, func(t *testing.T) {
			h := installed(t)
			h.add("pod-a")
			former := h.ConfDir + "/05-weft.conflist"
			b, err := os.ReadFile(h.published())
			must(t, err)
			must(t, os.WriteFile(former, b, 0o600))
			byHand := h.ConfDir + "/90-mine.conflist"
			must(t, os.WriteFile(byHand, []byte(`{"cniVersion":"1.1.0","name":"weft","plugins":[{"type":"weft-cni","delegates":[{"cniVersion":"1.0.0","name":"a","type":"pa"}]}]}`), 0o600))
			before := tree(t, h.dir)
			if _, ok := errors.AsType[*install.LeftError](h.uninstall(false)); !ok {
				t.Error("not refused for the pod")
			}
			h.StateDir += "-2"
			if err := h.uninstall(true); err == nil || !strings.Contains(err.Error(), "05-weft.conflist: stateDir is ") {
				t.Errorf("%v", err)
			}
			h.StateDir = strings.TrimSuffix(h.StateDir, "-2")
			if d := cmp.Diff(before, tree(t, h.dir)); d != "" || h.out.Len() > 0 {
				t.Errorf("changed: %s%s", d, &h.out)
			}
			if killed {
				must(t, os.Rename(former, h.ConfDir+"/.05-weft.conflist.uninstall"))
			}
			if err := h.uninstall(true); err != nil {
				t.Fatalf("%v\n%s", err, &h.out)
			}
			must(t, os.Remove(byHand))
			h.clean()
			if got := h.calls(); !slices.Contains(got, "DEL c-pod-a eth0") {
				t.Errorf("calls %q", got)
			}
		})
	}
}

// What cannot be undone has both confs back.
func TestUninstallForceFailsAfterAnotherName(t *testing.T) {
	h := installed(t)
	h.primary(map[string]any{"fail": map[string]any{"DEL": map[string]any{"code": 102, "msg": "address is stuck"}}})
	b, err := os.ReadFile(h.published())
	must(t, err)
	former := h.ConfDir + "/05-weft.conflist"
	must(t, os.WriteFile(former, b, 0o600))
	h.add("pod-a")
	if err := h.uninstall(true); err == nil || !strings.Contains(err.Error(), "address is stuck") {
		t.Errorf("%v", err)
	}
	h.untouched(b)
	if got, err := os.ReadFile(former); err != nil || !bytes.Equal(got, b) {
		t.Errorf("%q, %v", got, err)
	}
}

// tree lists the files below a directory, with their sizes.
func tree(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	all := map[string]int64{}
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			all[path] = info.Size()
		}
		return err
	}))
	return all
}

// What is not of Weft's making stays.
func TestUninstallForeign(t *testing.T) {
	h := installed(t)
	must(t, os.MkdirAll(h.StateDir+"/other", 0o700))
	const other = `{"cniVersion":"1.0.0","name":"theirs","plugins":[{"type":"bridge"}]}`
	must(t, os.WriteFile(h.published(), []byte(other), 0o600))
	must(t, h.uninstall(false))
	if b, err := os.ReadFile(h.published()); err != nil || string(b) != other {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := os.Stat(h.StateDir + "/other"); err != nil {
		t.Error(err)
	}
	gone(t, h.BinDir+"/weft-cni")
	if !strings.Contains(h.out.String(), "stays") || !strings.Contains(h.out.String(), "left "+h.StateDir) {
		t.Errorf("progress:\n%s", &h.out)
	}
}

// An uninstall that is killed before any of its calls is finished by the next.
func TestUninstallKilledAnywhere(t *testing.T) {
	needTrace(t)
	// What comes before its first call on the node's files is the same for every kill, and a
	// kill before a read or a close is one before the next call as well.
	var first int
	names := []string{""}
	dry := installed(t)
	dry.add("pod-a")
	traced(t, "force", dry.dir, ptrace.Command{Fail: func(c ptrace.Call) syscall.Errno {
		if names = append(names, c.Name); first == 0 && strings.HasPrefix(c.Path, dry.dir) {
			first = len(names) - 1
		}
		return 0
	}})
	kills := 0
	for step, killed := first, true; killed && !t.Failed(); step++ {
		if step < len(names) && slices.Contains([]string{"read", "close"}, names[step]) {
			continue
		}
		h := installed(t)
		h.add("pod-a")
		killed = traced(t, "force", h.dir, ptrace.Command{KillAt: step}).Killed
		if killed {
			kills++
		}
		// At every point the runtime has a conf: Weft's, whole and with its plugin, or the other.
		if b, err := os.ReadFile(h.published()); err == nil {
			if _, err := confpub.Read(b); err != nil {
				t.Errorf("killed at %d: %v", step, err)
			}
			h.untouched(b)
		}
		if err := h.uninstall(true); err != nil {
			t.Fatalf("killed at %d, then: %v\n%s", step, err, &h.out)
		}
		h.clean()
		if got := h.calls(); !slices.Contains(got, "DEL c-pod-a eth0") {
			t.Errorf("killed at %d: calls %q", step, got)
		}
	}
	if kills < 20 {
		t.Errorf("killed only %d times", kills)
	}
	t.Logf("killed at %d calls", kills)
}
