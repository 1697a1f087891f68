// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package examples_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weftnet/weft/internal/cni/selection"
	"github.com/weftnet/weft/internal/host/kernel/kerneltest"
	"github.com/weftnet/weft/internal/sandbox"
	"github.com/weftnet/weft/test/binaries"
)

// example is a directory and what its pods must get. Each line of want is an interface:
// pod, interface, network, addresses, then "mtu N" unless it is 1500 and "mac M" when it was
// asked for; a default route: pod, "default", family, interface and gateway; a network-status
// entry with gateways: pod, "gateway", interface and gateways; or a probe: network and addresses.
// The pods' eth0 is left out where its network is the usual one, called pods.
type example struct {
	name string
	want string
	// refused holds the text that each pod is refused with.
	refused map[string]string
}

const isolated = `names a network of namespace "red", and pods of "blue" may use only those of their own ` +
	`and of the global namespaces (default, shared) (CNI error code 7)`

func examples() []example {
	return []example{
		{name: "bridge-macvlan", want: `
default/disk net1 default/storage 10.11.0.2/24 mtu 1400
default/disk net2 default/lan 10.12.0.2/24
default/reader data0 default/storage 10.11.0.3/24 mtu 1400
default/reader net2 default/lan 10.12.0.3/24
default/storage 10.11.0.2 > 10.11.0.3
default/storage 10.11.0.3 > 10.11.0.2
default/lan 10.12.0.2 > 10.12.0.3
default/lan 10.12.0.3 > 10.12.0.2
`},
		{name: "static-address", want: `
default/controller plant0 default/plant 10.21.0.10/24 fd00:10:21::10/64 mac 02:00:0a:15:00:0a
default/sensor net1 default/plant 10.21.0.11/24 mac 02:00:0a:15:00:0b
default/plant 10.21.0.10 > 10.21.0.11
default/plant 10.21.0.11 > 10.21.0.10
`},
		{name: "default-route", want: `
default/ipv4 net1 default/uplink 10.31.0.2/24 fd00:10:31::2/64
default/ipv4 default IPv4 net1 10.31.0.1
default/ipv4 gateway net1 10.31.0.1
default/both net1 default/uplink 10.31.0.3/24 fd00:10:31::3/64
default/both default IPv4 net1 10.31.0.1
default/both default IPv6 net1 fd00:10:31::1
default/both gateway net1 10.31.0.1 fd00:10:31::1
default/empty net1 default/uplink 10.31.0.4/24 fd00:10:31::4/64
default/uplink 10.31.0.2 > 10.31.0.3
default/uplink fd00:10:31::2 > fd00:10:31::3
default/uplink 10.31.0.3 > 10.31.0.4
default/uplink fd00:10:31::3 > fd00:10:31::4
default/uplink 10.31.0.4 > 10.31.0.2
default/uplink fd00:10:31::4 > fd00:10:31::2
`},
		{name: "chain", want: `
default/slow net1 default/limited 10.41.0.2/24 mtu 1300 mac 02:00:0a:29:00:02
default/fast net1 default/limited 10.41.0.3/24 mtu 1280
default/limited 10.41.0.2 > 10.41.0.3
default/limited 10.41.0.3 > 10.41.0.2
`},
		{name: "dual-stack", want: `
default/given net1 default/six fd00:10:51::2/64
default/given net2 default/dual 10.52.0.2/24 fd00:10:52::2/64
default/chosen net1 default/six fd00:10:51::3/64
default/chosen net2 default/dual 10.52.0.3/24 fd00:10:52::52/64
default/six fd00:10:51::2 > fd00:10:51::3
default/six fd00:10:51::3 > fd00:10:51::2
default/dual 10.52.0.2 > 10.52.0.3
default/dual fd00:10:52::2 > fd00:10:52::52
default/dual 10.52.0.3 > 10.52.0.2
default/dual fd00:10:52::52 > fd00:10:52::2
`},
		{name: "isolation", want: `
red/owner net1 red/private 10.61.0.2/24
red/owner net2 shared/backbone 10.62.0.2/24
blue/guest net1 shared/backbone 10.62.0.3/24
shared/backbone 10.62.0.2 > 10.62.0.3
shared/backbone 10.62.0.3 > 10.62.0.2
`, refused: map[string]string{
			"blue/intruder":  "pod blue/intruder: annotation k8s.v1.cni.cncf.io/networks[1]: " + isolated,
			"blue/back-door": "pod blue/back-door: annotation v1.multus-cni.io/default-network[0]: " + isolated,
		}},
		{name: "conf-dir", want: `
default/left net1 default/rack 10.71.0.2/24
default/right net1 default/rack 10.71.0.3/24
default/rack 10.71.0.2 > 10.71.0.3
default/rack 10.71.0.3 > 10.71.0.2
`},
		{name: "default-network", want: `
default/moved eth0 kube-system/lab 10.81.0.2/24
default/moved net1 default/side 10.82.0.2/24
default/moved default IPv4 eth0 10.81.0.1
default/moved gateway eth0 10.81.0.1
default/fixed eth0 kube-system/lab 10.81.0.81/24 mac 02:00:0a:51:00:51
default/fixed net1 default/side 10.82.0.3/24
default/fixed default IPv4 eth0 10.81.0.1
default/fixed gateway eth0 10.81.0.1
default/side 10.82.0.2 > 10.82.0.3
default/side 10.82.0.3 > 10.82.0.2
`},
		{name: "twelve-networks", want: `
default/hub net1 default/n1 10.90.1.2/24
default/hub net2 default/n2 10.90.2.2/24
default/hub net3 default/n3 10.90.3.2/24
default/hub net4 default/n4 10.90.4.2/24
default/hub five default/n5 10.90.5.2/24
default/hub net6 default/n6 10.90.6.2/24
default/hub net7 default/n7 10.90.7.2/24
default/hub net8 default/n8 10.90.8.2/24
default/hub net9 default/n9 10.90.9.2/24
default/hub net10 default/n10 10.90.10.2/24
default/hub net11 default/n11 10.90.11.2/24
default/hub net12 default/n12 10.90.12.2/24
default/spoke net1 default/n1 10.90.1.3/24
default/spoke net2 default/n12 10.90.12.3/24
default/n1 10.90.1.2 > 10.90.1.3
default/n1 10.90.1.3 > 10.90.1.2
default/n12 10.90.12.2 > 10.90.12.3
default/n12 10.90.12.3 > 10.90.12.2
`},
		{name: "from-multus", want: `
shop/web eth0 primary 10.101.0.2/24 mtu 1450
shop/web net1 kube-system/metrics 10.102.0.2/24
shop/web net2 trace 10.103.0.2/24
shop/web net3 default/macvlan-conf 10.104.0.2/24
shop/web default IPv4 eth0 10.101.0.1
shop/web gateway eth0 10.101.0.1
shop/db eth0 primary 10.101.0.3/24 mtu 1450
shop/db net1 kube-system/metrics 10.102.0.3/24
shop/db net2 trace 10.103.0.3/24
shop/db lan0 default/macvlan-conf 10.104.0.3/24
shop/db default IPv4 eth0 10.101.0.1
shop/db gateway eth0 10.101.0.1
kube-system/dns eth0 primary 10.101.0.4/24 mtu 1450
kube-system/dns default IPv4 eth0 10.101.0.1
kube-system/dns gateway eth0 10.101.0.1
kube-system/metrics 10.102.0.2 > 10.102.0.3
kube-system/metrics 10.102.0.3 > 10.102.0.2
trace 10.103.0.2 > 10.103.0.3
trace 10.103.0.3 > 10.103.0.2
default/macvlan-conf 10.104.0.2 > 10.104.0.3
default/macvlan-conf 10.104.0.3 > 10.104.0.2
`},
	}
}

func TestExamples(t *testing.T) {
	for _, e := range examples() {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			code := 0
			if len(e.refused) > 0 {
				code = 1
			}
			r := run(t, code, "-f", e.name)
			if !r.TakenDown || len(r.Left) > 0 || len(r.Faults) > 0 {
				t.Errorf("taken down: %t, left: %q, faults: %q", r.TakenDown, r.Left, r.Faults)
			}
			for _, p := range r.Pods {
				want := e.refused[p.Namespace+"/"+p.Name]
				if p.Error != want && (want == "" || !strings.HasSuffix(p.Error, want)) {
					t.Errorf("pod %s: error %q, want %q", p.Name, p.Error, want)
				}
				checkStatus(t, p)
			}
			for _, p := range r.Probes {
				if p.Error != "" {
					t.Errorf("%s: %s -> %s: %s", p.Network, p.From, p.To, p.Error)
				}
			}
			if got := strings.Join(lines(t, e.name, r), "\n"); got != strings.TrimSpace(e.want) {
				t.Errorf("the pods got\n%s\nwant\n%s", got, e.want)
			}
		})
	}
}

// lines shows a report as example.want is written.
func lines(t *testing.T, dir string, r *sandbox.Report) (all []string) {
	t.Helper()
	asked := askedMACs(t, dir)
	for _, p := range r.Pods {
		id := p.Namespace + "/" + p.Name
		usual := map[string]bool{} // interfaces of the network called pods
		for _, i := range p.Interfaces {
			if usual[i.Name] = i.Network == "pods"; usual[i.Name] {
				continue
			}
			line := fmt.Sprintf("%s %s %s %s", id, i.Name, i.Network, strings.Trim(fmt.Sprint(i.Addresses), "[]"))
			if i.MTU != 1500 {
				line += fmt.Sprintf(" mtu %d", i.MTU)
			}
			if asked[i.MAC] {
				line += " mac " + i.MAC
			}
			all = append(all, line)
		}
		families := map[string]int{}
		for _, route := range p.DefaultRoutes {
			if families[route.Family]++; !usual[route.Interface] {
				all = append(all, fmt.Sprintf("%s default %s %s %s", id, route.Family, route.Interface, route.Gateway))
			}
		}
		for family, n := range families {
			if n != 1 {
				t.Errorf("pod %s has %d default routes of %s", id, n, family)
			}
		}
		for _, s := range p.NetworkStatus {
			if len(s.Gateway) > 0 && !usual[s.Interface] {
				all = append(all, fmt.Sprintf("%s gateway %s %s", id, s.Interface, strings.Join(s.Gateway, " ")))
			}
		}
	}
	for _, p := range r.Probes {
		all = append(all, fmt.Sprintf("%s %s > %s", p.Network, p.From.Address, p.To.Address))
	}
	return all
}

// askedMACs are the addresses that the manifests of an example name, as the kernel writes them.
func askedMACs(t *testing.T, dir string) map[string]bool {
	t.Helper()
	asked := map[string]bool{}
	mac := regexp.MustCompile(`"mac": "([^"]*)"`)
	for _, file := range glob(t, dir+"/*.yaml") {
		for _, m := range mac.FindAllStringSubmatch(read(t, file), -1) {
			asked[strings.ReplaceAll(strings.ToLower(m[1]), "-", ":")] = true
		}
	}
	return asked
}

// checkStatus compares network-status with the kernel's interfaces, entry by entry.
func checkStatus(t *testing.T, p sandbox.Pod) {
	t.Helper()
	if len(p.NetworkStatus) != len(p.Interfaces) {
		t.Fatalf("pod %s: %d entries for %d interfaces", p.Name, len(p.NetworkStatus), len(p.Interfaces))
	}
	for at, s := range p.NetworkStatus {
		// The kernel lists interfaces as they were made, which is the order of the plan.
		i := p.Interfaces[at]
		var ips []string
		for _, a := range i.Addresses {
			ips = append(ips, a.Addr().String())
		}
		if s.Name != i.Network || s.Interface != i.Name || s.MAC != i.MAC || s.Default != (at == 0) || !slices.Equal(s.IPs, ips) ||
			s.MTU != 0 && s.MTU != i.MTU {
			t.Errorf("pod %s: entry %+v of interface %+v", p.Name, s, i)
		}
		for _, g := range s.Gateway {
			gateway, err := netip.ParseAddr(g)
			if err != nil || !slices.ContainsFunc(i.Addresses, func(a netip.Prefix) bool { return a.Contains(gateway) }) {
				t.Errorf("pod %s: the gateway %q is on no subnet of interface %+v", p.Name, g, i)
			}
		}
	}
}

// weft prepares a run of the real binary.
func weft(ctx context.Context, t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	bin := binaries.Weft(t)
	if slices.Contains(args, "run") {
		args = append(args, "--bin-dir", bin+":"+binaries.Plugins(t))
	}
	return exec.CommandContext(ctx, filepath.Join(bin, "weft"), args...)
}

// run is "weft sandbox run -o json" with more arguments.
func run(t *testing.T, code int, args ...string) *sandbox.Report {
	t.Helper()
	needNamespaces(t)
	cmd := weft(t.Context(), t, append([]string{"sandbox", "run", "-o", "json"}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	}
	r := &sandbox.Report{}
	if err := json.Unmarshal(out, r); err != nil {
		t.Fatalf("%v in %s\n%s", err, out, &stderr)
	}
	for _, p := range r.Pods {
		if strings.Contains(p.Error, "which the running kernel does not have") {
			t.Skipf("this kernel lacks what the example needs: %s", p.Error)
		}
	}
	if got := cmd.ProcessState.ExitCode(); got != code {
		t.Errorf("exit code %d, want %d: %s\n%s", got, code, out, &stderr)
	}
	return r
}

// needNamespaces skips where the system does not let this user make namespaces.
func needNamespaces(t *testing.T) {
	t.Helper()
	cmd := exec.Command("/bin/true")
	cmd.SysProcAttr = kerneltest.Namespaces()
	cmd.SysProcAttr.Pdeathsig = 0
	if err := cmd.Run(); err != nil {
		t.Skipf("no namespaces: %v", err) // a failure with WEFT_CI
	}
}

// TestChainInside looks at what no report shows of a chain: inside the kept sandbox.
func TestChainInside(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), "state")
	ctx := context.WithoutCancel(t.Context())
	down := func() (string, error) {
		out, err := weft(ctx, t, "sandbox", "down", "--state-dir", state).CombinedOutput()
		return string(out), err
	}
	t.Cleanup(func() {
		if t.Failed() || t.Skipped() {
			out, err := down()
			t.Logf("take down: %v: %s", err, out)
		}
	})
	r := run(t, 0, "-f", "chain", "--keep", "--state-dir", state)
	if r.Holder == nil {
		t.Fatal("nobody keeps it")
	}
	for _, pod := range r.Pods {
		cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", r.Holder.Enter(pod.Netns))
		cmd.Stdin = strings.NewReader("cat /proc/sys/net/ipv4/conf/net1/arp_notify; ls /sys/class/net")
		out, err := cmd.CombinedOutput()
		// sysfs shows the host's links. The plugin limits egress on one of its own, whose name
		// begins with bwp: the one pod that asked for it has one.
		notify, host, _ := strings.Cut(string(out), "\n")
		if err != nil || notify != "1" || strings.Count(host, "bwp") != 1 {
			t.Errorf("pod %s: %v, arp_notify %q, host links %q", pod.Name, err, notify, host)
		}
	}
	if out, err := down(); err != nil || !strings.HasPrefix(out, "Taken down: no interface") {
		t.Errorf("take down: %v: %s", err, out)
	}
}

// TestOnlyTheTypeChanges: the configuration of the node before Weft, and the one after.
func TestOnlyTheTypeChanges(t *testing.T) {
	before := read(t, "from-multus/before/00-multus.conf")
	after := strings.Replace(before, `"type": "multus"`, `"type": "weft-cni"`, 1)
	if got := read(t, "from-multus/00-multus.conf"); got != after || got == before {
		t.Errorf("got\n%s\nwant\n%s", got, after)
	}
}

// TestExamplesAreShown: each example has a test here, says what it shows, and stands in
// docs/annotations.md, whose pieces of examples are those of the files.
func TestExamplesAreShown(t *testing.T) {
	tested := []string{"demo"} // internal/sandbox tests it
	for _, e := range examples() {
		tested = append(tested, e.name)
	}
	slices.Sort(tested)
	var dirs []string
	for _, file := range glob(t, "*/*.yaml") {
		if dir := filepath.Dir(file); !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
		if head, _, _ := strings.Cut(read(t, file), "\n"); !strings.HasPrefix(head, "# ") {
			t.Errorf("%s does not begin with a comment that says what it shows", file)
		}
	}
	if !slices.Equal(dirs, tested) {
		t.Errorf("directories %q, tests of %q", dirs, tested)
	}
	doc := read(t, "../docs/annotations.md")
	shown := map[string]bool{}
	for _, m := range regexp.MustCompile("(?s)<!-- examples/([^ ]*) -->\n\n?(.*?)\n\n").FindAllStringSubmatch(doc, -1) {
		text := read(t, m[1])
		shown[filepath.Dir(m[1])], shown[filepath.Dir(filepath.Dir(m[1]))] = true, true
		var piece []string
		for line := range strings.SplitSeq(m[2], "\n") {
			piece = append(piece, strings.TrimPrefix(line, "    "))
		}
		if !strings.Contains(text, strings.Join(piece, "\n")) {
			t.Errorf("docs/annotations.md shows what examples/%s does not hold:\n%s", m[1], strings.Join(piece, "\n"))
		}
	}
	for _, dir := range dirs {
		if !shown[dir] {
			t.Errorf("docs/annotations.md does not show examples/%s", dir)
		}
	}
}

// TestAnnotationsDocument: what docs/annotations.md says of single values is what the parser does.
func TestAnnotationsDocument(t *testing.T) {
	doc := read(t, "../docs/annotations.md")
	piece := func(pattern string) string {
		m := regexp.MustCompile(pattern).FindStringSubmatch(doc)
		if m == nil {
			t.Fatalf("docs/annotations.md has nothing of the form %s", pattern)
		}
		return m[1]
	}
	every := piece(`(?s)<!-- every key -->\n\n(.*?)\n\n`)
	elements, warnings, err := selection.Parse(every)
	if err != nil || len(warnings) > 0 || len(elements) != 1 {
		t.Errorf("every key: %d elements, %v, %v", len(elements), warnings, err)
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-zA-Z-]+)` \\| (?:string|array|object)").FindAllStringSubmatch(doc, -1) {
		// Two are not for new annotations.
		if m[1] != "interfaceRequest" && m[1] != "ipam-claim-reference" && !strings.Contains(every, `"`+m[1]+`":`) {
			t.Errorf("the example of every key lacks %s", m[1])
		}
	}
	rows := regexp.MustCompile("(?m)^\\| `(.*)` \\| `(.*)` \\|$").FindAllStringSubmatch(piece(`(?s)<!-- refused -->\n\n(.*?)\n\n`), -1)
	if len(rows) < 20 {
		t.Errorf("%d refused values", len(rows))
	}
	for _, m := range rows {
		if _, _, err := selection.Parse(m[1]); err == nil || err.Error() != m[2] {
			t.Errorf("%s: got %v, the document says %s", m[1], err, m[2])
		}
	}
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("find %s: %v", pattern, err)
	}
	return files
}

func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
