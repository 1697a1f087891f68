// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weftnet/weft/internal/cni/manifests"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/host/journal"
)

func prefixes(all ...string) (list []netip.Prefix) {
	for _, p := range all {
		list = append(list, netip.MustParsePrefix(p))
	}
	return list
}

func TestPlanProbes(t *testing.T) {
	iface := func(name, network string, addrs ...string) Interface {
		return Interface{Name: name, Network: network, Addresses: prefixes(addrs...), linkLocal: netip.MustParseAddr("fe80::" + name[len(name)-1:])}
	}
	pods := []Pod{
		{Namespace: "n", Name: "a", Interfaces: []Interface{
			{Name: "eth0", Network: "pods", Default: true, Addresses: prefixes("10.0.0.1/24")},
			iface("net1", "n/x", "10.1.0.1/24", "fd00::1/64"), iface("net2", "n/x", "10.1.0.9/24"), iface("net3", "n/l2"),
		}},
		{Namespace: "n", Name: "b", Interfaces: []Interface{
			{Name: "eth0", Network: "pods", Default: true, Addresses: prefixes("10.0.0.2/24")},
			iface("net1", "n/x", "10.1.0.2/24", "fd00::2/64"), iface("net2", "n/l2"), iface("net3", "n/alone", "10.3.0.1/24"),
		}},
		{Namespace: "n", Name: "c", Interfaces: []Interface{iface("net1", "n/x", "10.1.0.3/24")}},
		{Namespace: "n", Name: "failed", Error: "x"},
	}
	var got []string
	for _, p := range planProbes(pods) {
		got = append(got, p.Network+": "+p.From.String()+" > "+p.To.String())
	}
	want := []string{
		"n/x: n/a net1 (10.1.0.1) > n/b net1 (10.1.0.2)",
		"n/x: n/a net1 (fd00::1) > n/b net1 (fd00::2)",
		"n/x: n/b net1 (10.1.0.2) > n/c net1 (10.1.0.3)",
		"n/x: n/c net1 (10.1.0.3) > n/a net1 (10.1.0.1)",
		"n/l2: n/a net3 (fe80::3) > n/b net2 (fe80::2)",
		"n/l2: n/b net2 (fe80::2) > n/a net3 (fe80::3)",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestFindWants(t *testing.T) {
	nad := func(name, conf string) manifests.NAD {
		return manifests.NAD{Ref: plan.NADRef{Namespace: "n", Name: name}, NAD: plan.NAD{Found: true, Config: conf}}
	}
	cluster := netconf.Network{Plugins: []netconf.Plugin{{Type: "bridge", Conf: []byte(`{"type":"bridge","bridge":"cni9"}`)}}}
	w := findWants([]manifests.NAD{
		nad("mv", `{"cniVersion":"1.0.0","name":"mv","type":"macvlan","master":"eth3"}`),
		nad("vl", `{"cniVersion":"1.0.0","name":"vl","plugins":[{"type":"vlan","master":"eth3"},{"type":"bandwidth"}]}`),
		nad("br", `{"cniVersion":"1.0.0","name":"br","type":"bridge","bridge":"br7","ipam":{"type":"host-local","dataDir":"/run/x"}}`),
		nad("onbr", `{"cniVersion":"1.0.0","name":"onbr","type":"macvlan","master":"br7"}`),
		nad("hd", `{"cniVersion":"1.0.0","name":"hd","type":"host-device","device":"ens5"}`),
		nad("none", `{"cniVersion":"1.0.0","name":"none","type":"macvlan"}`),
		nad("broken", `{"type":`), nad("number", `{"cniVersion":"1.0.0","name":"q","type":"macvlan","master":7}`),
	}, []netconf.Network{cluster})
	if want := []string{"ens5", "eth0", "eth3"}; !slices.Equal(w.masters, want) {
		t.Errorf("masters %q, want %q", w.masters, want)
	}
	if want := []string{"br7", "cni9"}; !slices.Equal(w.bridges, want) {
		t.Errorf("bridges %q, want %q", w.bridges, want)
	}
	if want := []string{"/run/x", "/var/lib/cni/networks"}; !slices.Equal(w.dataDirs, want) {
		t.Errorf("data directories %q, want %q", w.dataDirs, want)
	}
	if want := []string{"bridge", "ifb", "macvlan", "vlan"}; !slices.Equal(w.allKinds(), want) {
		t.Errorf("kinds %q, want %q", w.allKinds(), want)
	}
	got := w.lacking([]string{"n/mv", "n/vl", "n/unknown"}, []string{"vlan", "dummy"})
	if want := "network n/vl needs links of kind vlan, which the running kernel does not have"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestHint(t *testing.T) {
	settings := map[string]string{
		"/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n",
		"/proc/sys/user/max_user_namespaces":                     "1000\n",
	}
	read := func(path string) ([]byte, error) {
		if v, ok := settings[path]; ok {
			return []byte(v), nil
		}
		return nil, fs.ErrNotExist
	}
	got := hint(1000, read)
	if !strings.Contains(got, "sudo") || !strings.Contains(got, "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0") ||
		strings.Contains(got, "max_user_namespaces") || strings.Contains(got, "userns_clone") {
		t.Errorf("got %q", got)
	}
	clear(settings)
	if got := hint(1000, read); !strings.Contains(got, "sudo") || strings.Contains(got, "sysctl") {
		t.Errorf("nothing known: got %q", got)
	}
	if got := hint(0, read); !strings.Contains(got, "--privileged") || strings.Contains(got, "sudo") {
		t.Errorf("root: got %q", got)
	}
}

func TestPluginTimes(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	got := pluginTimes([]journal.Phase{
		{Phase: journal.Attempting, Item: 0, Time: at(10)},
		{Phase: journal.Started, Item: 0, Time: at(12)},
		{Phase: journal.Done, Item: 0, Time: at(30)},
		{Phase: journal.Attempting, Item: 1, Time: at(31)},
		{Phase: journal.Done, Item: 1, Time: at(36)},
		{Phase: journal.Done, Item: 0, Time: at(90)}, // its result again, with edited routes
		{Phase: journal.Done, Item: journal.WholeCall, Time: at(91)},
	})
	if len(got) != 2 || got[0] != 20*time.Millisecond || got[1] != 5*time.Millisecond {
		t.Errorf("got %v", got)
	}
}

func TestParseStat(t *testing.T) {
	rest := " S 7 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4711 0"
	for stat, want := range map[string]procStat{
		"42 (sleep)" + rest:     {"sleep", 7, 4711},
		"42 (a) S 9 (b)" + rest: {"a) S 9 (b", 7, 4711},
		"42 (short) S 7":        {"short", 0, 0},
		"":                      {},
		")(":                    {},
	} {
		if got := parseStat(stat); got != want {
			t.Errorf("%q: got %+v, want %+v", stat, got, want)
		}
	}
}

func TestDescends(t *testing.T) {
	parents := map[int]int{1: 0, 5: 1, 6: 5, 8: 0, 9: 8, 20: 21, 21: 20}
	for pid, want := range map[int]bool{5: true, 6: true, 8: false, 9: false, 20: false} {
		if got := descends(pid, 1, parents); got != want {
			t.Errorf("%d: got %t", pid, got)
		}
	}
}

func TestFilesBelow(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"net/10.0.0.2", "net/lock", "net/last_reserved_ip.0", "net/fd00::2"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	got, err := filesBelow(dir, isAddress)
	if want := []string{filepath.Join(dir, "net/10.0.0.2"), filepath.Join(dir, "net/fd00::2")}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	if got, err := filesBelow(filepath.Join(dir, "none"), isAddress); err != nil || len(got) != 0 {
		t.Errorf("no directory: got %q, %v", got, err)
	}
}

func TestWriteTable(t *testing.T) {
	r := newReport()
	r.Pods = []Pod{
		{Namespace: "default", Name: "a", Netns: "/run/netns/default.a", Interfaces: []Interface{
			{Name: "eth0", Network: "pods", Default: true, MAC: "02:00:00:00:00:01", Addresses: prefixes("10.0.0.2/24", "fd00::2/64"), PluginMilliseconds: 12.34},
			{Name: "net1", Network: "default/x", MAC: "02:00:00:00:00:02"},
		}, DefaultRoutes: []DefaultRoute{
			{"IPv4", "net1", netip.MustParseAddr("10.1.0.254")}, {"IPv6", "eth0", netip.MustParseAddr("fd00::1")}, {"IPv6", "net1", netip.Addr{}},
		}},
		{Namespace: "default", Name: "b", Error: "no such network"},
	}
	r.Probes = []Probe{
		{
			Network: "default/x", From: Endpoint{"default/a", "net1", netip.MustParseAddr("10.1.0.1"), 2},
			To: Endpoint{"default/b", "net1", netip.MustParseAddr("10.1.0.2"), 2}, Milliseconds: 0.4,
		},
		{
			Network: "default/x", From: Endpoint{"default/b", "net1", netip.MustParseAddr("10.1.0.2"), 2},
			To: Endpoint{"default/a", "net1", netip.MustParseAddr("10.1.0.1"), 2}, Error: "nothing arrived",
		},
	}
	r.Faults, r.TakenDown = []string{"file x.yaml:3: broken"}, true
	const want = `POD        INTERFACE  NETWORK    MAC                ADDRESSES               PLUGINS
default/a  eth0       pods       02:00:00:00:00:01  10.0.0.2/24,fd00::2/64  12.3ms
default/a  net1       default/x  02:00:00:00:00:02  -                       0.0ms
default/b  -          -          -                  -                       -

default/a: IPv4 default route on net1 via 10.1.0.254
default/a: IPv6 default route on net1

default/x: default/a net1 (10.1.0.1) -> default/b net1 (10.1.0.2) arrived in 0.4ms
default/x: default/b net1 (10.1.0.2) -> default/a net1 (10.1.0.1) FAILED: nothing arrived

pod default/b FAILED: no such network

FAULT: file x.yaml:3: broken
Taken down: no interface, address, record, namespace or process is left.
`
	var b strings.Builder
	if err := r.WriteTable(&b); err != nil || b.String() != want {
		t.Errorf("%v, got\n%s\nwant\n%s", err, b.String(), want)
	}
	r.Left = []string{"host interface veth1", "record x"}
	b.Reset()
	if err := r.WriteEnd(&b); err != nil || !strings.HasSuffix(b.String(), "LEFT BEHIND:\n  host interface veth1\n  record x\n") {
		t.Errorf("%v, got\n%s", err, b.String())
	}
}

func TestOK(t *testing.T) {
	for name, change := range map[string]func(*Report){
		"pod":   func(r *Report) { r.Pods = []Pod{{}, {Error: "x"}} },
		"probe": func(r *Report) { r.Probes = []Probe{{}, {Error: "x"}} },
		"fault": func(r *Report) { r.Faults = []string{"x"} },
		"left":  func(r *Report) { r.Left = []string{"x"} },
	} {
		r := newReport()
		if !r.OK() {
			t.Fatal("an empty report is not fine")
		}
		if change(r); r.OK() {
			t.Errorf("%s: a fault counts as fine", name)
		}
	}
}

func TestEmptyReportHasNoNulls(t *testing.T) {
	got, err := json.Marshal(newReport())
	const want = `{"pods":[],"probes":[],"faults":[],"takenDown":false,"left":[]}`
	if err != nil || string(got) != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
}

func TestNewSandboxed(t *testing.T) {
	s := newSandboxed(manifests.Pod{Pod: plan.Pod{Namespace: "default", Name: "web", UID: "u-1"}})
	if s.netns != "/run/netns/default.web" || len(s.id) != 64 {
		t.Errorf("got %+v", s)
	}
	if got := s.call("eth0").Args[4]; got != [2]string{"K8S_POD_UID", "u-1"} {
		t.Errorf("got %v", got)
	}
	odd := newSandboxed(manifests.Pod{Pod: plan.Pod{Namespace: "..", Name: "a/../b"}})
	if odd.netns != "/run/netns/"+odd.id || odd.id == s.id {
		t.Errorf("got %+v", odd)
	}
	if got := odd.call("eth0").Args[4][1]; len(got) != 36 {
		t.Errorf("uid %q", got)
	}
}

// Two that begin to be kept at once, or are taken down at once: one works, the other says why not.
func TestOneAtATime(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	p, err := newPlace(dir)
	if err != nil {
		t.Fatal(err)
	}
	const words = "another weft sandbox"
	if _, err := newPlace(dir); err == nil || !strings.Contains(err.Error(), words) {
		t.Errorf("a second one to keep: %v", err)
	}
	if _, err := Down(t.Context(), dir); err == nil || !strings.Contains(err.Error(), words) {
		t.Errorf("down meanwhile: %v", err)
	}
	p.close()
	if _, err := Down(t.Context(), dir); !errors.Is(err, ErrNotKept) {
		t.Errorf("down afterwards: %v", err)
	}
}

// TestDownCommand: what is printed is what a shell passes on.
func TestDownCommand(t *testing.T) {
	for dir, want := range map[string]string{
		"":            "weft sandbox down",
		"/tmp/st-3.d": "weft sandbox down --state-dir /tmp/st-3.d",
		"/tmp/st 3":   "weft sandbox down --state-dir '/tmp/st 3'",
		"/tmp/it's":   `weft sandbox down --state-dir '/tmp/it'\''s'`,
		"/tmp/$(x)":   "weft sandbox down --state-dir '/tmp/$(x)'",
	} {
		got := downCommand(dir)
		if got != want {
			t.Errorf("%q: %s, want %s", dir, got, want)
		}
		out, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", strings.Replace(got, "weft sandbox down", "printf %s", 1)+" ''").Output()
		if err != nil || !strings.HasSuffix(string(out), dir) {
			t.Errorf("a shell reads %q: %v", out, err)
		}
	}
}

// TestKept: how to enter what is kept is told apart from the table, for those who asked for JSON.
func TestKept(t *testing.T) {
	r := &Report{Pods: []Pod{{Namespace: "default", Name: "a", Netns: "/run/netns/a", Interfaces: []Interface{{}}}, {Namespace: "default", Name: "b"}}}
	if got := r.Kept(); got != "" {
		t.Errorf("nothing is kept: %q", got)
	}
	r.Holder = &Holder{PID: 7, down: "weft sandbox down"}
	want := "Kept running by process 7. Enter a pod with:\n  nsenter -t 7 -m -p -n nsenter --net=/run/netns/a sh    # default/a\nTake it down with:\n  weft sandbox down\n"
	if got := r.Kept(); got != want {
		t.Errorf("got %q\nwant %q", got, want)
	}
	var b strings.Builder
	if err := r.WriteTable(&b); err != nil || !strings.HasSuffix(b.String(), want) {
		t.Errorf("table %q: %v", b.String(), err)
	}
}
