// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/planner/stdio"
	"github.com/weftnet/weft/internal/cni/wire"
)

// The test binary is weft-planner when it is started under that name.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "weft-planner" {
		main()
	}
	os.Exit(m.Run())
}

// binary returns a path to weft-planner.
func binary(tb testing.TB) string {
	tb.Helper()
	self, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	path := filepath.Join(tb.TempDir(), "weft-planner")
	if err := os.Symlink(self, path); err != nil {
		tb.Fatal(err)
	}
	return path
}

// request asks for pod default/name, planned from the manifests given as one file.
func request(tb testing.TB, name, manifests string) wire.PlanRequest {
	tb.Helper()
	dir := tb.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "m.yaml"), []byte(manifests), 0o600); err != nil {
		tb.Fatal(err)
	}
	return wire.PlanRequest{Conf: conf(tb, map[string]any{"manifests": dir}), Sandbox: sandbox(name)}
}

func conf(tb testing.TB, more map[string]any) []byte {
	tb.Helper()
	all := map[string]any{
		"cniVersion": "1.0.0", "name": "m", "type": "weft-cni",
		"delegates": []any{map[string]any{"cniVersion": "1.0.0", "name": "defnet", "type": "pa"}},
	}
	maps.Copy(all, more)
	b, err := json.Marshal(all)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func sandbox(pod string) plan.Sandbox {
	return plan.Sandbox{
		ContainerID: "cid1", IfName: "eth0", Netns: "/run/netns/x",
		Args: "K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + pod + ";K8S_POD_UID=u1",
	}
}

func podYAML(name, networks string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: %s\n  annotations: {%s: %q}\n", name, plan.NetworksAnnotation, networks)
}

func nadYAML(name, config string) string {
	return fmt.Sprintf("---\napiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata: {name: %s}\nspec: {config: '%s'}\n", name, config)
}

// ask asks a real weft-planner, and checks that it says nothing on stderr.
func ask(tb testing.TB, req wire.PlanRequest, read func(plan.Need) plan.File) (*plan.Plan, error) {
	tb.Helper()
	var stderr bytes.Buffer
	c, err := wire.Spawn(tb.Context(), binary(tb), &stderr)
	if err != nil {
		tb.Fatal(err)
	}
	p, err := c.Plan(tb.Context(), req, read)
	if cerr := c.Close(); cerr != nil {
		tb.Error(cerr)
	}
	if stderr.Len() > 0 {
		tb.Errorf("stderr: %s", stderr.String())
	}
	return p, err
}

func noFile(tb testing.TB) func(plan.Need) plan.File {
	tb.Helper()
	return func(n plan.Need) plan.File {
		tb.Errorf("asked for %s", n)
		return plan.File{}
	}
}

func TestPlanOfAProcess(t *testing.T) {
	req := request(t, "web", podYAML("web", "neta,filed@foo0")+nadYAML("neta", `{"cniVersion":"1.0.0","type":"pb","n":9007199254740993}`)+
		"---\n{broken\n"+nadYAML("filed", ""))
	var needs []plan.Need
	p, err := ask(t, req, func(n plan.Need) plan.File {
		needs = append(needs, n)
		return plan.File{Found: true, Path: "/c/1.conf", Data: []byte(`{"cniVersion":"0.3.1","name":"filed","type":"pc"}`)}
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(needs) != 1 || needs[0] != "confDir/filed" {
		t.Errorf("asked for %q", needs)
	}
	var got []string
	for _, a := range p.Attachments {
		got = append(got, a.IfName+" "+a.Network+" "+string(a.Conf.Plugins[0].Conf))
	}
	want := []string{
		`eth0 defnet {"cniVersion":"1.0.0","name":"defnet","type":"pa"}`,
		`net1 default/neta {"cniVersion":"1.0.0","type":"pb","n":9007199254740993}`,
		`foo0 default/filed {"cniVersion":"0.3.1","name":"filed","type":"pc"}`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("attachments\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if len(p.Warnings) != 1 || !strings.HasSuffix(p.Warnings[0].Object, "m.yaml:13") {
		t.Errorf("warnings %+v", p.Warnings)
	}
}

func TestTwoHundredNetworksAndAHugeOne(t *testing.T) {
	huge := `{"cniVersion":"1.0.0","type":"pb","pad":"` + strings.Repeat("x", 1<<20) + `"}`
	req := request(t, "web", nadYAML("huge", huge)+nadYAML("neta", `{"cniVersion":"1.0.0","type":"pb"}`)+
		podYAML("web", "huge,"+strings.TrimSuffix(strings.Repeat("neta,", 199), ",")))
	p, err := ask(t, req, noFile(t))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(p.Attachments); n != 201 || p.Attachments[200].IfName != "net200" || p.Attachments[200].Network != "default/neta" {
		t.Fatalf("%d attachments", n)
	}
	if got := string(p.Attachments[1].Conf.Plugins[0].Conf); got != huge {
		t.Errorf("the huge conf came with %d bytes, want %d", len(got), len(huge))
	}
}

func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		req  wire.PlanRequest
		code fault.Code
		text string // a part of the error
	}{
		"pod absent": {
			request(t, "gone", podYAML("web", "")), fault.TryLater, "pod default/gone: is not known yet: no manifest holds it",
		},
		"kubeconfig": {
			wire.PlanRequest{Conf: conf(t, map[string]any{"kubeconfig": "/etc/k"}), Sandbox: sandbox("web")},
			fault.Config, "configuration m: kubeconfig: is read by weft-planner-kube, not by weft-planner",
		},
		"no source": {
			wire.PlanRequest{Conf: conf(t, nil), Sandbox: sandbox("web")}, fault.Config, "configuration m: manifests: is missing",
		},
		"no directory": {
			wire.PlanRequest{Conf: conf(t, map[string]any{"manifests": "/none/of"}), Sandbox: sandbox("web")},
			fault.Config, "manifests directory /none/of: cannot be opened: no such file or directory",
		},
		"a NAD that a broken manifest holds": {
			request(t, "web", podYAML("web", "neta")+"---\nkind: NetworkAttachmentDefinition\nmetadata: {name: neta}\n"),
			fault.Config, `m.yaml:8: apiVersion: of a NetworkAttachmentDefinition is k8s.cni.cncf.io/v1, not ""; the object is skipped`,
		},
		"a device that nobody gave": {
			request(t, "web", podYAML("web", "neta")+"---\napiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\n"+
				"metadata: {name: neta, annotations: {k8s.v1.cni.cncf.io/resourceName: ex.com/vf}}\nspec: {config: '{\"type\":\"pb\"}'}\n"),
			fault.Config, "ex.com/vf",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := ask(t, c.req, noFile(t))
			f, ok := errors.AsType[*fault.Fault](err)
			if !ok || p != nil || f.Code != c.code || !strings.Contains(f.Error(), c.text) {
				t.Errorf("plan %v, error %v; want code %d, %s", p, err, c.code, c.text)
			}
		})
	}
}

func TestRun(t *testing.T) {
	for name, c := range map[string]struct {
		args           []string
		stdin          string
		code           int
		stdout, stderr string // parts
	}{
		"help":        {[]string{"--help"}, "", 0, `"manifests": "/etc/weft/manifests"`, ""},
		"version":     {[]string{"--version"}, "", 0, "planner protocol versions 1\n", ""},
		"wrong flag":  {[]string{"--frobnicate"}, "", 2, "", "weft-planner: flag provided but not defined: -frobnicate; see weft-planner --help\n"},
		"an argument": {[]string{"x"}, "", 2, "", "weft-planner: unexpected argument \"x\"; see weft-planner --help\n"},
		"nothing":     {nil, "", 0, "", ""},
		"half a frame": {
			nil, "\x00\x00", 1, "", "weft-planner: serve planner: receive message: unexpected EOF\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			p := stdio.Program{Name: "weft-planner", Usage: usage}
			if code := p.Run(t.Context(), c.args, strings.NewReader(c.stdin), &stdout, &stderr, newAnswerer()); code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			if !strings.Contains(stdout.String(), c.stdout) || (c.stdout == "") != (stdout.Len() == 0) || stderr.String() != c.stderr {
				t.Errorf("stdout %q, stderr %q", stdout.String(), stderr.String())
			}
		})
	}
}

// TestOneSnapshot: the rounds of one ADD see the same objects.
func TestOneSnapshot(t *testing.T) {
	req := request(t, "web", podYAML("web", ""))
	var parsed struct{ Manifests string }
	if err := json.Unmarshal(req.Conf, &parsed); err != nil {
		t.Fatal(err)
	}
	answer := newAnswerer()
	for range 2 {
		if res := answer(t.Context(), wire.Request{Verb: wire.VerbPlan, Plan: &req}); res.Plan == nil || res.Plan.PodName != "web" {
			t.Fatalf("answer %+v", res.Error)
		}
		if err := os.RemoveAll(parsed.Manifests); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReportIsRefused(t *testing.T) {
	res := newAnswerer()(t.Context(), wire.Request{Verb: wire.VerbReport, Report: &wire.ReportRequest{}})
	want := wire.Error{Code: 100, Msg: `planner: answers no verb "report": there is nowhere to write to`}
	if res.Error == nil || *res.Error != want {
		t.Errorf("answer %+v, want %+v", res.Error, want)
	}
}

// BenchmarkPlanner is what weft-planner adds to an ADD: start, read, plan, end.
func BenchmarkPlanner(b *testing.B) {
	req := request(b, "web", podYAML("web", "neta")+nadYAML("neta", `{"cniVersion":"1.0.0","type":"pb"}`))
	path := binary(b)
	for b.Loop() {
		c, err := wire.Spawn(b.Context(), path, io.Discard)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := c.Plan(b.Context(), req, noFile(b)); err != nil {
			b.Fatal(err)
		}
		if err := c.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
