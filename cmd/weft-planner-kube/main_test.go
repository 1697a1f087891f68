// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/wire"
	"github.com/weftnet/weft/internal/kube/kubetest"
)

// The test binary is weft-planner-kube when it is started under that name.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "weft-planner-kube" {
		main()
	}
	os.Exit(m.Run())
}

const nads = `
kind: NetworkAttachmentDefinition
metadata: {name: neta}
spec: {config: '{"cniVersion":"1.0.0","type":"pb","n":9007199254740993}'}
---
kind: NetworkAttachmentDefinition
metadata: {name: netb, namespace: other}
spec: {config: '{"cniVersion":"1.0.0","type":"pc"}'}
`

// pod is pod default/name with UID u1 and a networks annotation.
func pod(name, networks string) string {
	return fmt.Sprintf("kind: Pod\nmetadata: {name: %s, uid: u1, annotations: {%s: %q}}\n", name, plan.NetworksAnnotation, networks)
}

// call is one ADD's planner: a real process that asks a server.
type call struct {
	t      *testing.T
	server *kubetest.Server
	client *wire.Client
	conf   []byte
	stderr bytes.Buffer
}

func start(t *testing.T, s *kubetest.Server, kubeconfig string, more map[string]any) *call {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "weft-planner-kube")
	if err := os.Symlink(self, path); err != nil {
		t.Fatal(err)
	}
	conf := map[string]any{
		"cniVersion": "1.0.0", "name": "m", "type": "weft-cni", "kubeconfig": kubeconfig, "kubeletDir": t.TempDir(),
		"delegates": []any{map[string]any{"cniVersion": "1.0.0", "name": "defnet", "type": "pa"}},
	}
	maps.Copy(conf, more)
	c := &call{t: t, server: s}
	if c.conf, err = json.Marshal(conf); err != nil {
		t.Fatal(err)
	}
	if c.client, err = wire.Spawn(t.Context(), path, &c.stderr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.end)
	return c
}

// end ends the planner, which first tells its events.
func (c *call) end() {
	if c.client == nil {
		return
	}
	_ = c.client.Close()
	c.client = nil
	if c.stderr.Len() > 0 {
		c.t.Errorf("stderr: %s", c.stderr.String())
	}
}

const long = 20 * time.Second

// short is for calls that use up what they have; a busy machine takes a second to begin.
const short = 4 * time.Second

func (c *call) plan(pod string, timeout time.Duration) (*plan.Plan, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), timeout)
	defer cancel()
	return c.client.Plan(ctx, wire.PlanRequest{Conf: c.conf, Sandbox: sandbox(pod)}, func(n plan.Need) plan.File {
		c.t.Errorf("asked for %s", n)
		return plan.File{}
	})
}

func sandbox(pod string) plan.Sandbox {
	return plan.Sandbox{
		ContainerID: "cid1", IfName: "eth0", Netns: "/run/netns/x",
		Args: "K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + pod + ";K8S_POD_UID=u1",
	}
}

// report reports the results of a plan: each attachment made its interface.
func (c *call) report(p *plan.Plan, timeout time.Duration, failed *wire.Error) error {
	req := wire.ReportRequest{
		Conf: c.conf, Sandbox: sandbox(p.PodName),
		PodNamespace: p.PodNamespace, PodName: p.PodName, PodUID: p.PodUID, Error: failed,
	}
	for i, a := range p.Attachments {
		if failed != nil {
			break
		}
		req.Attachments = append(req.Attachments, wire.ReportAttachment{
			Network: a.Network, IfName: a.IfName, Default: a.Default, CNIVersion: "1.0.0",
			Result: fmt.Appendf(nil, `{"cniVersion":"1.0.0","interfaces":[{"name":%q,"mac":"02:00:00:00:00:0%d","sandbox":"/n"}],"ips":[{"address":"10.%d.0.2/24","interface":0}]}`,
				a.IfName, i, i),
		})
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), timeout)
	defer cancel()
	return c.client.Report(ctx, req)
}

// status is the pod's network-status as "name interface ip default" lines.
func status(t *testing.T, s *kubetest.Server, pod string) []string {
	t.Helper()
	text := s.Annotation("default", pod, plan.StatusAnnotation)
	if text == "" {
		return nil
	}
	var entries []struct {
		Name, Interface string
		IPs             []string
		Default         bool
	}
	if err := json.Unmarshal([]byte(text), &entries); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	var lines []string
	for _, e := range entries {
		lines = append(lines, fmt.Sprintf("%s %s %s %v", e.Name, e.Interface, strings.Join(e.IPs, ","), e.Default))
	}
	return lines
}

func wantFault(t *testing.T, err error, code fault.Code, text string) {
	t.Helper()
	f, ok := errors.AsType[*fault.Fault](err)
	if !ok || f.Code != code || !strings.Contains(f.Error(), text) {
		t.Errorf("error %v; want code %d with %s", err, code, text)
	}
}

var own = []string{"defnet eth0 10.0.0.2 true", "default/neta net1 10.1.0.2 false"}

// verbs lists the requests so far: "get pods web".
func verbs(s *kubetest.Server) []string {
	var all []string
	for _, r := range s.Requests() {
		all = append(all, strings.TrimSpace(fmt.Sprintf("%s %s %s %s", r.Verb, r.Resource, r.Name, r.Subresource)))
	}
	return all
}

// TestAdd: one pod, one NAD, three requests, over TLS with a client certificate. A pod
// that is named as a system namespace is a pod as any other (B47).
func TestAdd(t *testing.T) {
	s := kubetest.New(t, kubetest.WithClientCertificates())
	s.Apply(nads + "---\n" + pod("kube-system", "neta"))
	c := start(t, s, s.Kubeconfig(nil), nil)
	p, err := c.plan("kube-system", long)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Attachments) != 2 || string(p.Attachments[1].Conf.Plugins[0].Conf) != `{"cniVersion":"1.0.0","type":"pb","n":9007199254740993}` ||
		!c.client.WantsReport() {
		t.Errorf("plan %+v, wants report: %v", p, c.client.WantsReport())
	}
	if err := c.report(p, long, nil); err != nil {
		t.Fatal(err)
	}
	c.end()
	if d := cmp.Diff(own, status(t, s, "kube-system")); d != "" {
		t.Error(d)
	}
	want := []string{"get pods kube-system", "get network-attachment-definitions neta", "patch pods kube-system status"}
	if d := cmp.Diff(want, verbs(s)); d != "" {
		t.Error(d)
	}
}

func TestPlanFaults(t *testing.T) {
	for name, c := range map[string]struct {
		fault   kubetest.Fault
		timeout time.Duration
		code    fault.Code // 0 = a plan
		text    string
	}{
		"unauthorized": {kubetest.Fault{Status: 401}, long, 7, "pod default/web: get pod default/web at URL: answer 401 Unauthorized: told to answer so"},
		"forbidden":    {kubetest.Fault{Status: 403, Resource: "pods"}, long, 7, "pod default/web: get pod default/web at URL: answer 403 Forbidden: told to answer so"},
		"forbidden NAD": {
			kubetest.Fault{Status: 403, Resource: "network-attachment-definitions"},
			long, 7,
			"NetworkAttachmentDefinition default/neta: get NetworkAttachmentDefinition default/neta at URL: answer 403 Forbidden",
		},
		"no pod":           {kubetest.Fault{Status: 404, Resource: "pods"}, long, 11, "pod default/web: get pod default/web at URL: answer 404 Not-Found"},
		"no definition":    {kubetest.Fault{Status: 404, Plain: true, Resource: "network-attachment-definitions"}, long, 7, "answer 404 Not-Found: 404 page"},
		"conflict":         {kubetest.Fault{Status: 409}, long, 11, "answer 409 Conflict"},
		"too many once":    {kubetest.Fault{Status: 429, Times: 1}, long, 0, ""},
		"too many":         {kubetest.Fault{Status: 429}, short, 11, "no other answer in time than 429 Too Many Requests"},
		"away":             {kubetest.Fault{Status: 503}, short, 11, "no other answer in time than 503 Service Unavailable"},
		"away for NADs":    {kubetest.Fault{Status: 503, Resource: "network-attachment-definitions"}, short, 11, "NetworkAttachmentDefinition default/neta: "},
		"away once":        {kubetest.Fault{Status: 503, Times: 1}, long, 0, ""},
		"hang":             {kubetest.Fault{Hang: true}, short, 11, "pod default/web: get pod default/web at URL: no answer in time"},
		"a slow network":   {kubetest.Fault{Delay: 700 * time.Millisecond}, long, 0, ""}, // Multus issue 1461
		"redirect":         {kubetest.Fault{Redirect: "http://elsewhere.example"}, long, 7, `redirect is not followed: 307 to "http://elsewhere.example"`},
		"garbage":          {kubetest.Fault{Body: "<html>"}, long, 11, "answer is not of the Kubernetes API"},
		"hung up on once":  {kubetest.Fault{Drop: true, Times: 1}, long, 0, ""},
		"half a body once": {kubetest.Fault{Truncate: true, Times: 1}, long, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := kubetest.New(t)
			s.Apply(nads + "---\n" + pod("web", "neta"))
			s.Inject(c.fault)
			run := start(t, s, s.Kubeconfig(nil), nil)
			begun := time.Now()
			p, err := run.plan("web", c.timeout)
			if c.code == 0 {
				if err != nil || len(p.Attachments) != 2 {
					t.Errorf("plan %+v, %v", p, err)
				}
				return
			}
			wantFault(t, err, c.code, strings.Replace(c.text, "URL", s.URL(), 1))
			if c.timeout < long && time.Since(begun) > c.timeout {
				t.Errorf("took %v of %v", time.Since(begun), c.timeout)
			}
		})
	}
}

func TestKubeconfigFaults(t *testing.T) {
	s := kubetest.New(t, kubetest.WithTLS())
	gone := kubetest.New(t)
	gone.Stop()
	for name, c := range map[string]struct {
		edit func(cluster, user map[string]any)
		code fault.Code
		text string
	}{
		"exec": {func(_, user map[string]any) { user["exec"] = map[string]any{"command": "x"} }, 7, `: user "u": "exec" is not supported`},
		"no CA": {
			func(cluster, _ map[string]any) { delete(cluster, "certificate-authority-data") }, 7,
			"tls: failed to verify certificate: x509: certificate signed by unknown authority",
		},
		"no token file": {func(_, user map[string]any) { user["tokenFile"] = "/none/of" }, 11, "credentials cannot be read: open /none/of: no such file or directory"},
		"nobody there":  {func(cluster, _ map[string]any) { cluster["server"] = gone.URL() }, 11, "connect: connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := start(t, s, s.Kubeconfig(c.edit), nil).plan("web", short)
			wantFault(t, err, c.code, c.text)
		})
	}
	_, err := start(t, s, "/none/of", nil).plan("web", long)
	wantFault(t, err, 7, "kubeconfig /none/of: open /none/of: no such file or directory")
	_, err = start(t, s, "", nil).plan("web", long)
	wantFault(t, err, 7, "configuration m: kubeconfig: is missing")
}

// TestWhosePod: a pod of another UID is read once more, then refused; a mirror pod is the
// static pod's own (B41).
func TestWhosePod(t *testing.T) {
	another := strings.Replace(pod("web", "neta"), "u1", "u2", 1)
	for name, c := range map[string]struct {
		first, then string
		code        fault.Code
		gets        int
	}{
		"another pod":     {another, another, 11, 2},
		"a pod made anew": {another, pod("web", "neta"), 0, 2},
		"a mirror pod": {
			"kind: Pod\nmetadata: {name: web, uid: m1, annotations: {kubernetes.io/config.source: file, kubernetes.io/config.hash: u1}}\n", "", 0, 1,
		},
		"another mirror pod": {
			"kind: Pod\nmetadata: {name: web, uid: m1, annotations: {kubernetes.io/config.source: file, kubernetes.io/config.hash: u2}}\n", "", 11, 2,
		},
		"one that only says so": {
			"kind: Pod\nmetadata: {name: web, uid: m1, annotations: {kubernetes.io/config.source: api, kubernetes.io/config.hash: u1}}\n", "", 11, 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := kubetest.New(t)
			s.Apply(nads + "---\n" + c.first)
			s.Inject(kubetest.Fault{Verb: "get", Resource: "pods", Skip: 1, Times: 1, Before: func() { s.Apply(c.then) }})
			run := start(t, s, s.Kubeconfig(nil), nil)
			p, err := run.plan("web", long)
			if c.code != 0 {
				wantFault(t, err, c.code, "pod default/web: metadata.uid: is ")
			} else if err != nil {
				t.Error(err)
			} else if err := run.report(p, long, nil); err != nil || len(status(t, s, "web")) != len(p.Attachments) {
				t.Errorf("status %q, %v", status(t, s, "web"), err)
			}
			run.end()
			if s.Count("get", "pods") != c.gets || s.Count("create", "events") != 0 {
				t.Errorf("requests %q", verbs(s))
			}
		})
	}
}

func TestTokenFileIsRotated(t *testing.T) {
	s := kubetest.New(t, kubetest.WithToken("t1"))
	s.Apply(nads + "---\n" + pod("web", "neta"))
	file := filepath.Join(t.TempDir(), "token")
	rotate := func(token string) {
		if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		s.SetTokens(token)
	}
	rotate("t1")
	c := start(t, s, s.Kubeconfig(func(_, user map[string]any) { delete(user, "token"); user["tokenFile"] = file }), nil)
	p, err := c.plan("web", long)
	if err != nil {
		t.Fatal(err)
	}
	rotate("t2")
	if err := c.report(p, long, nil); err != nil {
		t.Fatal(err)
	}
	if s.Count("", "") != 3 {
		t.Errorf("requests %q", verbs(s))
	}
}
