// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/agent/debug"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/record"
	"github.com/weftnet/weft/internal/host/journal"
	"github.com/weftnet/weft/internal/kube/rest"
)

// ownConf is what the agent publishes; PRIMARY and STATE are filled in.
const ownConf = `{"cniVersion":"1.1.0","name":"weft","plugins":[{"type":"weft-cni","agentSocket":"SOCKET","stateDir":"STATE",
	"binDir":"BIN","primaryConf":"PRIMARY","delegates":[` + primaryConf + `]}]}`

const primaryConf = `{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"bridge","ipam":{"type":"host-local"}},{"type":"portmap"}]}`

// host is a healthy host below a directory.
type host struct {
	t   *testing.T
	dir string
}

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{t: t, dir: t.TempDir()}
	conf := strings.NewReplacer("SOCKET", "/run/weft/agent.sock", "STATE", "/var/lib/weft", "BIN", "/opt/cni/bin", "PRIMARY", "/etc/cni/net.d/10-pods.conflist").Replace(ownConf)
	h.write("etc/cni/net.d/00-weft.conflist", conf)
	h.write("etc/cni/net.d/10-pods.conflist", primaryConf)
	for _, name := range []string{"bridge", "host-local", "portmap"} {
		h.program(name)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	h.copy(self, "opt/cni/bin/weft-cni")
	if err := os.MkdirAll(h.path("var/lib/weft/attachments"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(h.path("var/lib/weft"), 0o700); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *host) path(name string) string { return filepath.Join(h.dir, name) }

func (h *host) write(name, text string) {
	h.t.Helper()
	if err := os.MkdirAll(filepath.Dir(h.path(name)), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(h.path(name), []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) program(name string) {
	h.t.Helper()
	h.write("opt/cni/bin/"+name, "#!/bin/sh\n")
	h.chmod("opt/cni/bin/"+name, 0o755)
}

func (h *host) chmod(name string, mode fs.FileMode) {
	h.t.Helper()
	if err := os.Chmod(h.path(name), mode); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) remove(name string) {
	h.t.Helper()
	if err := os.RemoveAll(h.path(name)); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) link(target, name string) {
	h.t.Helper()
	if err := os.MkdirAll(filepath.Dir(h.path(name)), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.Symlink(target, h.path(name)); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) copy(from, name string) {
	h.t.Helper()
	in, err := os.Open(from)
	if err != nil {
		h.t.Fatal(err)
	}
	defer in.Close()
	if err := os.MkdirAll(filepath.Dir(h.path(name)), 0o755); err != nil {
		h.t.Fatal(err)
	}
	out, err := os.OpenFile(h.path(name), os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		h.t.Fatal(err)
	}
	defer out.Close()
	if _, err := io.Copy(out, in); err != nil {
		h.t.Fatal(err)
	}
}

// version is the one that a test binary has.
const version = "(devel)"

var at = time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)

// expect fails unless there is a check with that result and text, for each "result check: text",
// and no other fault or warning.
func expect(t *testing.T, c *Checkup, wants ...string) {
	t.Helper()
	met := make([]bool, len(wants))
	for _, check := range c.Checks {
		got := check.Result + " " + check.Check + ": " + check.Text
		known := false
		for i, want := range wants {
			head, text, _ := strings.Cut(want, ": ")
			if strings.HasPrefix(got, head+": ") && strings.Contains(got, text) {
				met[i], known = true, true
			}
		}
		if !known && check.Check != "mounts" && (check.Result == ResultFault || check.Result == ResultWarn) {
			t.Errorf("unexpected: %s", got)
		}
		if (check.Result == ResultFault) && check.Do == "" {
			t.Errorf("a fault without what to do: %s", got)
		}
	}
	for i, want := range wants {
		if !met[i] {
			t.Errorf("missing: %s", want)
		}
	}
	if t.Failed() {
		b, err := json.MarshalIndent(c, "", " ")
		t.Logf("%s %v", b, err)
	}
}

func TestDoctorLooksAtFiles(t *testing.T) {
	for name, test := range map[string]struct {
		edit  func(h *host)
		wants []string
	}{
		"healthy": {wants: []string{
			"ok conf order: 00-weft.conflist comes first of 2 configurations", "ok conf: 00-weft.conflist is right",
			"ok primary: /etc/cni/net.d/10-pods.conflist, network pods", "ok plugins: 3 of 3 that are needed are in /opt/cni/bin",
			"ok weft-cni: is of version (devel)", "ok state: /var/lib/weft is root's alone", "ok records: 0 records",
		}},
		"another comes first": {
			edit:  func(h *host) { h.write("etc/cni/net.d/00-a.conf", `{"cniVersion":"1.0.0","name":"a","type":"a-cni"}`) },
			wants: []string{"fault conf order: the runtime takes 00-a.conf (a-cni), not 00-weft.conflist"},
		},
		"a broken one comes first": {
			edit:  func(h *host) { h.write("etc/cni/net.d/00-a.conf", `{"cniVersion":`) },
			wants: []string{"fault conf order: 00-a.conf comes first and is broken"},
		},
		"what runtimes do not read": {
			edit:  func(h *host) { h.write("etc/cni/net.d/00-a.conf.bak", `{`) },
			wants: []string{"ok conf order: first of 2"},
		},
		"none is Weft's": {
			edit:  func(h *host) { h.remove("etc/cni/net.d/00-weft.conflist") },
			wants: []string{"fault conf order: none is Weft's: the runtime takes 10-pods.conflist (bridge, portmap)"},
		},
		"no configuration": {
			edit:  func(h *host) { h.remove("etc/cni") },
			wants: []string{"fault conf order: /etc/cni/net.d holds no configuration"},
		},
		"a FIFO among them": {
			edit: func(h *host) {
				if err := unix.Mkfifo(h.path("etc/cni/net.d/00-a.conf"), 0o600); err != nil {
					h.t.Fatal(err)
				}
			},
			wants: []string{"fault conf order: 00-a.conf comes first and is broken: is no regular file"},
		},
		"broken": {
			edit: func(h *host) {
				h.write("etc/cni/net.d/00-weft.conflist", `{"cniVersion":"1.1.0","name":"weft","plugins":[{"type":"weft-cni","timeout":7,"oops":1,"delegates":5}]}`)
			},
			wants: []string{"fault conf: timeout", "fault conf: delegates", "warn conf: oops"},
		},
		"the primary is gone": {
			edit:  func(h *host) { h.remove("etc/cni/net.d/10-pods.conflist") },
			wants: []string{"fault primary: /etc/cni/net.d/10-pods.conflist: no such file"},
		},
		"the primary is broken": {
			edit:  func(h *host) { h.write("etc/cni/net.d/10-pods.conflist", `{"plugins":[{"type":"a/b"}]}`) },
			wants: []string{"fault primary: a/b"},
		},
		"plugins are missing": {
			edit:  func(h *host) { h.remove("opt/cni/bin/portmap"); h.chmod("opt/cni/bin/host-local", 0o644) },
			wants: []string{`fault plugins: "portmap"`, `fault plugins: "host-local"`, "ok plugins: 1 of 3"},
		},
		"links as on the host": {
			edit: func(h *host) {
				h.remove("opt/cni/bin/portmap")
				h.link("/usr/lib/cni/portmap2", "opt/cni/bin/portmap")
				h.write("real/portmap2", "#!/bin/sh\n")
				h.chmod("real/portmap2", 0o755)
				h.link("../../real", "usr/lib/cni")
			},
			wants: []string{"ok plugins: 3 of 3"},
		},
		"links to the machine that looks": {
			edit: func(h *host) {
				h.remove("opt/cni/bin/portmap")
				h.link("../../../../../../../../../../../../bin/sh", "opt/cni/bin/portmap")
			},
			wants: []string{`fault plugins: "portmap"`, "ok plugins: 2 of 3"},
		},
		"weft-cni is missing": {
			edit:  func(h *host) { h.remove("opt/cni/bin/weft-cni") },
			wants: []string{`fault weft-cni: "weft-cni"`},
		},
		"weft-cni is no program of Go, and anybody's": {
			edit:  func(h *host) { h.program("weft-cni"); h.chmod("opt/cni/bin/weft-cni", 0o777) },
			wants: []string{"fault weft-cni: may be written by others", "warn weft-cni: its version cannot be read"},
		},
		"an open state directory": {
			edit:  func(h *host) { h.chmod("var/lib/weft/attachments", 0o755) },
			wants: []string{"fault state: /var/lib/weft/attachments is open to others (mode 0755)"},
		},
		"a state directory that the kubelet made": {
			edit:  func(h *host) { h.chmod("var/lib/weft", 0o755) },
			wants: []string{"ok state: /var/lib/weft is root's alone to change"},
		},
		"a state directory that anybody may change": {
			edit:  func(h *host) { h.chmod("var/lib/weft", 0o757) },
			wants: []string{"fault state: /var/lib/weft is open to others (mode 0757)"},
		},
		"a state directory that leads elsewhere": {
			edit: func(h *host) {
				h.remove("var/lib/weft/attachments")
				h.link("/tmp", "var/lib/weft/attachments")
			},
			wants: []string{"fault state: /var/lib/weft/attachments is no directory"},
		},
		"no state directory": {
			edit:  func(h *host) { h.remove("var/lib/weft") },
			wants: []string{"info state: is not there yet"},
		},
		"Multus": {
			edit: func(h *host) {
				h.write("etc/cni/net.d/00-multus.conf", `{"cniVersion":"1.0.0","name":"multus-cni-network","type":"multus","delegates":[`+primaryConf+`]}`)
				h.write("etc/cni/net.d/multus.d/multus.kubeconfig", "")
				h.write("var/lib/cni/multus/0123", "[]")
			},
			wants: []string{
				"fault conf order: the runtime takes 00-multus.conf (multus)", "warn multus: 00-multus.conf of /etc/cni/net.d is Multus'",
				"warn multus: /etc/cni/net.d/multus.d is Multus'", "info multus: 1 file of Multus in /var/lib/cni/multus",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			if test.edit != nil {
				test.edit(h)
			}
			expect(t, Doctor(t.Context(), DoctorOptions{Root: h.dir, Version: version, Now: at}), test.wants...)
		})
	}
}

// theAgent is an agent of this machine.
type theAgent struct {
	node     debug.Node
	networks []debug.Network
	pods     []debug.Pod
	plan     debug.Plan
	err      error
}

func (a *theAgent) Node(context.Context) (*debug.NodeAnswer, error) {
	if a.err != nil {
		return nil, a.err
	}
	return &debug.NodeAnswer{Head: debug.Head{Node: a.node.Name, Now: at}, State: a.node}, nil
}

func (a *theAgent) Pods(context.Context, string, string) (*debug.PodsAnswer, error) {
	return &debug.PodsAnswer{Head: debug.Head{Node: a.node.Name, Now: at}, Pods: a.pods}, a.err
}

func (a *theAgent) Networks(context.Context, string) (*debug.NetworksAnswer, error) {
	return &debug.NetworksAnswer{Networks: a.networks, LeftOut: 2}, a.err
}

func (a *theAgent) Explain(context.Context, string, string) (*debug.PlanAnswer, error) {
	return &debug.PlanAnswer{Head: debug.Head{Node: a.node.Name}, Plan: a.plan}, a.err
}

func TestDoctorAsksTheAgent(t *testing.T) {
	for name, test := range map[string]struct {
		edit  func(h *host, a *theAgent)
		wants []string
	}{
		"healthy": {wants: []string{"ok agent: v1 is ready, for 1h", "ok agent socket: takes connections", "ok conf order: first of 2"}},
		"away": {
			edit:  func(_ *host, a *theAgent) { a.err = fmt.Errorf("ask: %w", debug.ErrAway) },
			wants: []string{"fault agent: no agent listens there"},
		},
		"not root": {
			edit: func(_ *host, a *theAgent) { a.err = fmt.Errorf("ask: %w", fs.ErrPermission) },
		},
		"something else": {
			edit:  func(_ *host, a *theAgent) { a.err = io.ErrUnexpectedEOF },
			wants: []string{"fault agent: unexpected EOF"},
		},
		"not ready, stale, behind": {
			edit: func(_ *host, a *theAgent) {
				a.node.Ready, a.node.Conf.Published, a.node.Counts.PendingStatus = false, false, 2
				a.node.Conditions = []debug.Condition{{Name: "cachesSynced", Why: "no CRD"}, {Name: "x", OK: true}}
				a.node.Cache.LastContact = at.Add(-time.Hour)
			},
			wants: []string{
				"fault agent: is not ready: cachesSynced: no CRD", "warn agent conf: is not published",
				"warn agent cache: 1h ago", "warn agent status: 2 statuses to be written",
			},
		},
		"no primary": {
			edit:  func(_ *host, a *theAgent) { a.node.Conf.Fault = "no primary" },
			wants: []string{"fault agent conf: no primary"},
		},
		"another version": {
			edit:  func(_ *host, a *theAgent) { a.node.Versions.Plugin = "v2" },
			wants: []string{"warn weft-cni: the agent or this program of v2"},
		},
		"the planner does not listen": {
			edit:  func(h *host, _ *theAgent) { h.remove("run/weft/agent.sock") },
			wants: []string{"fault agent socket: no such file"},
		},
		"another socket": {
			edit:  func(h *host, a *theAgent) { a.node.Paths.AgentSocket = h.path("run/other.sock") },
			wants: []string{"fault agent socket: the configuration names", "fault agent socket: no such file"},
		},
		"plugins of networks": {
			edit: func(_ *host, a *theAgent) {
				a.networks = []debug.Network{
					{Namespace: "a", Name: "used", Types: []string{"macvlan"}, IPAM: []string{"whereabouts"}, Pods: 1},
					{Namespace: "a", Name: "idle", Types: []string{"ipvlan"}, IPAM: []string{"host-local"}},
				}
			},
			wants: []string{`fault plugins: "macvlan"`, `fault plugins: needed by a/used`, `warn plugins: "ipvlan"`, "ok plugins: 3 of 6"},
		},
		"records": {
			edit: func(h *host, _ *theAgent) {
				h.record("fine", at, h.dir, true)
				h.record("gone", at, h.path("no-netns"), true)
				h.record("stuck", at.Add(-time.Hour), h.dir, false)
				h.record("busy", at, h.dir, false)
				h.write("var/lib/weft/attachments/torn-eth0.jsonl", "{}\n")
				h.write("var/lib/weft/quarantine/20260504T030201.000000000Z-x-eth0.jsonl", "{}\n")
				h.chmod("var/lib/weft/quarantine", 0o700)
			},
			wants: []string{
				"ok records: 5 records, 1 of sandboxes that are attached", "warn records: 1 record of a sandbox that is gone: ns/gone",
				"warn records: half-done for more than 5 minutes: ns/stuck", "info records: is under way: ns/busy",
				"fault records: 1 record that cannot be read: torn-eth0", "warn records: 1 record in ",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			socket := h.path("run/weft/agent.sock")
			h.write("etc/cni/net.d/00-weft.conflist", strings.NewReplacer("SOCKET", socket, "STATE", h.path("var/lib/weft"), "BIN", h.path("opt/cni/bin"),
				"PRIMARY", h.path("etc/cni/net.d/10-pods.conflist")).Replace(ownConf))
			h.write("run/weft/x", "")
			l, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			a := &theAgent{node: debug.Node{
				Name: "n1", Ready: true, Started: at.Add(-time.Hour), Conf: debug.Conf{Path: "/etc/cni/net.d/00-weft.conflist", Published: true},
				Cache: debug.Cache{Synced: true, LastContact: at}, Versions: debug.Versions{Agent: "v1", Plugin: version},
				Paths: debug.Paths{ConfDir: h.path("etc/cni/net.d"), BinDir: h.path("opt/cni/bin"), StateDir: h.path("var/lib/weft"), KubeletDir: h.path("kubelet"), AgentSocket: socket},
			}}
			if test.edit != nil {
				test.edit(h, a)
			}
			o := DoctorOptions{Agent: a, Version: version, Now: at}
			if a.err != nil { // then nobody says where things are
				o.ConfDir, o.BinDir, o.StateDir = h.path("etc/cni/net.d"), h.path("opt/cni/bin"), h.path("var/lib/weft")
			}
			expect(t, Doctor(t.Context(), o), test.wants...)
		})
	}
}

// record writes a record as attach does.
func (h *host) record(pod string, when time.Time, netns string, finished bool) {
	h.t.Helper()
	store, err := journal.Open(h.path("var/lib/weft/attachments"), record.Kind)
	if err != nil {
		h.t.Fatal(err)
	}
	defer store.Close()
	r, err := store.Acquire(h.t.Context(), journal.Key(pod+"-eth0"))
	if err != nil {
		h.t.Fatal(err)
	}
	defer r.Close()
	body, err := json.Marshal(record.Body{
		Sandbox: plan.Sandbox{ContainerID: pod, IfName: "eth0", Netns: netns},
		Plan:    plan.Plan{PodNamespace: "ns", PodName: pod, Attachments: []plan.Attachment{{Network: "pods", IfName: "eth0", Default: true}}},
	})
	if err == nil {
		err = r.Begin(journal.Intent{Version: record.Version, PodUID: "u", Boot: journal.BootID(), Time: when, Body: body})
	}
	if err == nil && finished {
		err = errors.Join(
			r.Append(journal.Phase{Phase: journal.Attempting, Time: when}),
			r.Append(journal.Phase{Phase: journal.Done, Time: when, Result: json.RawMessage(`{"cniVersion":"1.0.0"}`)}),
			r.Append(journal.Phase{Phase: journal.Done, Item: journal.WholeCall, Time: when}))
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

// rights is an API server that denies some.
type rights struct {
	denied map[string]bool
	users  []string
	err    error
}

func (r *rights) List(context.Context, rest.Resource, string) ([]rest.Object, error) {
	var o rest.Object
	err := json.Unmarshal([]byte(`{"metadata":{"namespace":"a","name":"n"},"spec":{"config":"{\"type\":\"vlan\",\"ipam\":{\"type\":\"static\"}}"}}`), &o)
	return []rest.Object{o}, err
}

func (r *rights) Allowed(_ context.Context, a rest.Access, user string, _ ...string) (bool, error) {
	r.users = append(r.users, user)
	return !r.denied[a.String()], r.err
}

func TestDoctorAsksForRights(t *testing.T) {
	h := newHost(t)
	for _, name := range []string{"vlan", "static"} {
		h.program(name)
	}
	look := func(r *rights, account string) *Checkup {
		return Doctor(t.Context(), DoctorOptions{Root: h.dir, Version: version, Now: at, API: r, ServiceAccount: account})
	}
	all := &rights{}
	expect(t, look(all, ""), fmt.Sprintf("ok rights: the kubeconfig's account may do all %d", len(agentRights())), "ok plugins: 5 of 5")
	if all.users[0] != "" {
		t.Errorf("asked for %q", all.users[0])
	}
	some := &rights{denied: map[string]bool{"patch pods/status": true, "list resourceslices.resource.k8s.io": true}}
	expect(t, look(some, "kube-system/weft-agent"),
		"fault rights: service account kube-system/weft-agent may not: patch pods/status, list resourceslices.resource.k8s.io")
	if some.users[0] != "system:serviceaccount:kube-system:weft-agent" {
		t.Errorf("asked for %q", some.users[0])
	}
	c := look(&rights{err: io.ErrUnexpectedEOF}, "")
	if !strings.Contains(strings.Join(c.Unseen, "\n"), "the rights of the kubeconfig's account: unexpected EOF") {
		t.Errorf("unseen: %q", c.Unseen)
	}
}

// TestSaidVersion: the word of a release is not in its file's build information.
func TestSaidVersion(t *testing.T) {
	for script, want := range map[string]string{
		"echo weft-cni v1.2.3":                        "v1.2.3",
		"[ \"$1\" = --version ] && echo weft-cni v2":  "v2",
		"echo usage: nothing of the kind":             "",
		"echo weft-cni v1; exit 2":                    "",
		"[ -z \"$CNI_COMMAND\" ] && echo weft-cni v3": "v3",
		"head -c 1000 /dev/zero | tr '\\0' x; echo":   "",
	} {
		at := filepath.Join(t.TempDir(), "weft-cni")
		if err := os.WriteFile(at, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
		if got := saidVersion(t.Context(), at); got != want {
			t.Errorf("%s: %q, want %q", script, got, want)
		}
	}
	at := filepath.Join(t.TempDir(), "weft-cni")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-X github.com/weftnet/weft/internal/host/version.word=v1.2.3", "-o", at, "../../cmd/weft-cni")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as make build does, so that little is built anew
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	_, built, err := program(at)
	if got := saidVersion(t.Context(), at); got != "v1.2.3" || built == got || err != nil {
		t.Errorf("a release says %q, its file %q: %v", got, built, err)
	}
}
