// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weftnet/weft/internal/agent/debug"
)

func TestAge(t *testing.T) {
	for ago, want := range map[time.Duration]string{
		-time.Minute: "0s", 59 * time.Second: "59s", time.Minute: "1m", 119 * time.Minute: "1h", 47 * time.Hour: "47h", 49 * time.Hour: "2d",
	} {
		if got := age(at, at.Add(-ago)); got != want {
			t.Errorf("age of %s: %q, want %q", ago, got, want)
		}
	}
	if got := age(at, time.Time{}); got != "-" {
		t.Errorf("age of nothing: %q", got)
	}
}

// A plan of an agent of another mind makes no rows without end, and none is lost.
func TestPlannedByTheAgent(t *testing.T) {
	p := planned("ns", "web", &debug.Plan{
		Decisions:   []debug.Decision{{Attachment: 1 << 30, Subject: "network"}, {Attachment: -1, Subject: "device", Value: "v"}, {Attachment: 1, Subject: "interface", Value: "net1"}},
		Attachments: []debug.Planned{{Network: "pods", Interface: "eth0"}, {Network: "ns/a", Interface: "net1"}, {Network: "ns/b", Interface: "net2"}},
	})
	var names []string
	for _, a := range p.Attachments {
		names = append(names, a.Interface)
	}
	if !slices.Equal(names, []string{"eth0", "net1", "net2"}) || len(p.Decisions) != 1 {
		t.Errorf("attachments %q, decisions %v", names, p.Decisions)
	}
}

// What plugins and users write stays in its cell.
func TestCellsHoldOneLine(t *testing.T) {
	const bad = "first\nsecond\tthird\x1b[31m"
	for _, table := range []interface{ WriteTable(io.Writer) error }{
		&NodePods{PodsAnswer: debug.PodsAnswer{Pods: []debug.Pod{{Name: "p", Known: true, Sandboxes: []debug.Sandbox{{Attachments: []debug.Attachment{{Fault: bad}}}}}}}},
		&NodeNetworks{NetworksAnswer: debug.NetworksAnswer{Networks: []debug.Network{{Name: "n", Problem: bad}}}},
		&NodeState{debug.NodeAnswer{State: debug.Node{Conditions: []debug.Condition{{Name: "c", Why: bad}}}}},
		&Checkup{Checks: []Check{{Result: ResultOK, Check: "c", Text: oneLine(bad)}}},
	} {
		var b strings.Builder
		if err := table.WriteTable(&b); err != nil || !strings.Contains(b.String(), "first second third") || strings.Contains(b.String(), "\x1b") {
			t.Errorf("%T: %q %v", table, b.String(), err)
		}
	}
}

func TestExplainByAgentFails(t *testing.T) {
	want := errors.New("away")
	if _, err := ExplainByAgent(t.Context(), &theAgent{err: want}, "ns", "web", ""); !errors.Is(err, want) {
		t.Errorf("%v, want %v", err, want)
	}
	for _, ask := range []func() error{
		func() error { _, err := AgentNode(t.Context(), &theAgent{err: want}); return err },
		func() error { _, err := AgentPods(t.Context(), &theAgent{err: want}, ""); return err },
		func() error { _, err := AgentNetworks(t.Context(), &theAgent{err: want}, ""); return err },
	} {
		if err := ask(); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	l, err := AgentNetworks(t.Context(), &theAgent{}, "")
	if err != nil || len(l.Unseen) != 1 || !strings.Contains(l.Unseen[0], "2 networks for which the agent's answer had no room") {
		t.Errorf("left out: %v %v", l, err)
	}
}

// What the doctor asks for is what the manifests give.
func TestRightsAreThoseOfTheManifests(t *testing.T) {
	b, err := os.ReadFile("../../deploy/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for d := yaml.NewDecoder(bytes.NewReader(b)); ; {
		var role struct {
			Kind  string
			Rules []struct {
				Groups    []string `yaml:"apiGroups"`
				Resources []string
				Verbs     []string
			}
		}
		if d.Decode(&role) != nil {
			break
		}
		for _, rule := range role.Rules {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					want = append(want, strings.TrimSuffix(verb+" "+resource+"."+rule.Groups[0], "."))
				}
			}
		}
	}
	var got []string
	for _, a := range agentRights() {
		got = append(got, a.String())
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the doctor asks for\n%q, the manifests give\n%q", got, want)
	}
}

func TestPropagation(t *testing.T) {
	const info = `21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 0:20 / /run rw,nosuid - tmpfs tmpfs rw
23 22 0:20 /netns /run/netns rw,nosuid shared:7 master:2 - tmpfs tmpfs rw
24 21 0:21 / /with\040space rw - tmpfs tmpfs rw shared:9
25 21 0:22 / /run/netns2 rw - tmpfs tmpfs rw
short line
`
	for path, want := range map[string]struct {
		point  string
		shared bool
	}{
		"/run/netns": {"/run/netns", true}, "/run/netns/x": {"/run/netns", true}, "/run/weft": {"/run", false},
		"/var": {"/", true}, "/with space/a": {"/with space", false}, "/run/netns3": {"/run", false},
	} {
		if point, shared := propagation(info, path); point != want.point || shared != want.shared {
			t.Errorf("%s: %s %t, want %s %t", path, point, shared, want.point, want.shared)
		}
	}
	if point, shared := propagation("", "/a"); point != "" || shared {
		t.Errorf("nothing: %q %t", point, shared)
	}
}

func TestHostRoot(t *testing.T) {
	dir := t.TempDir()
	link := func(target, name string) {
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755), os.Symlink(target, filepath.Join(dir, name))); err != nil {
			t.Fatal(err)
		}
	}
	link("/run", "var/run")
	link("../../..", "up/out")
	link("loop", "loop")
	link("a/../b", "etc/c")
	for path, want := range map[string]string{
		"/var/run/x": "/run/x", "/up/out/etc/passwd": "/etc/passwd", "/../..": "/", "/etc/c": "/etc/b", "/none/x/": "/none/x", "": "/",
	} {
		if got := hostRoot(dir).path(path); got != filepath.Join(dir, want) {
			t.Errorf("%s leads to %s, want %s", path, got, filepath.Join(dir, want))
		}
	}
	if got := hostRoot(dir).path("/loop/x"); !strings.HasPrefix(got, dir) {
		t.Errorf("a loop leads to %s", got)
	}
	if got := hostRoot("").path("/a"); got != "/a" {
		t.Errorf("this machine's /a is %s", got)
	}
}

func FuzzHostRoot(f *testing.F) {
	f.Add("../../x", "/a/../b")
	f.Add("/", "/l/l/l")
	f.Fuzz(func(t *testing.T, target, path string) {
		dir := t.TempDir()
		if os.Symlink(target, filepath.Join(dir, "l")) != nil {
			return
		}
		if got := hostRoot(dir).path("/l/" + path); got != dir && !strings.HasPrefix(got, dir+"/") {
			t.Errorf("%q with a link to %q leads to %q", path, target, got)
		}
	})
}

func FuzzPropagation(f *testing.F) {
	f.Add("21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n", "/run/netns")
	f.Fuzz(func(t *testing.T, info, path string) {
		if point, shared := propagation(info, path); shared && point == "" {
			t.Errorf("no mount is shared: %q", info)
		}
	})
}
