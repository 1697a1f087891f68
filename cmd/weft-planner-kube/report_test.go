// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/wire"
	"github.com/weftnet/weft/internal/kube/kubetest"
)

// TestStatus has what can come between a report and the pod's annotation.
func TestStatus(t *testing.T) {
	theirs := `{"name":"other/hot","interface":"hot0","x":9007199254740993}`
	for name, c := range map[string]struct {
		fault   kubetest.Fault // of the patch
		change  func(*kubetest.Server)
		timeout time.Duration
		code    fault.Code
		text    string
		status  []string
		patches int // 0 = more than one
	}{
		"nothing":        {status: own, patches: 1},
		"a conflict":     {fault: kubetest.Fault{Status: 409, Times: 3}, status: own, patches: 4},
		"a lost race":    {fault: kubetest.Fault{Status: 422, Times: 2}, status: own, patches: 3},
		"a server away":  {fault: kubetest.Fault{Status: 503, Times: 2}, status: own, patches: 3},
		"a busy server":  {fault: kubetest.Fault{Status: 429, RetryAfter: 1, Times: 1}, status: own, patches: 2},
		"a lost answer":  {fault: kubetest.Fault{DropAfter: true, Times: 1}, status: own},
		"conflicts only": {fault: kubetest.Fault{Status: 409}, timeout: short, code: 11, text: "pod default/web: annotation k8s.v1.cni.cncf.io/network-status: no other answer in time than: patch pod default/web at "},
		"a refusal":      {fault: kubetest.Fault{Status: 422}, code: 7, text: "annotation k8s.v1.cni.cncf.io/network-status: patch pod default/web at ", patches: 3},
		"forbidden":      {fault: kubetest.Fault{Status: 403}, code: 7, text: "answer 403 Forbidden", patches: 1},
		"a hang":         {fault: kubetest.Fault{Hang: true}, timeout: short, code: 11, text: "pod default/web: annotation k8s.v1.cni.cncf.io/network-status: patch pod default/web at ", patches: 1},
		"a pod that is gone": {
			change: func(s *kubetest.Server) { s.Delete("pods", "default", "web") }, code: 11, text: "pod default/web: annotation k8s.v1.cni.cncf.io/network-status: patch pod default/web at ", patches: 1,
		},
		"a pod made anew": {
			change: func(s *kubetest.Server) { s.Apply(strings.Replace(pod("web", ""), "u1", "u2", 1)) },
			code:   11, text: `pod default/web: metadata.uid: is "u2" by now, the sandbox belongs to "u1"`, patches: 1,
		},
		"another writer": {
			change: func(s *kubetest.Server) { s.Annotate("default", "web", plan.StatusAnnotation, "["+theirs+"]") },
			status: append(append([]string{}, own...), "other/hot hot0  false"), patches: 2,
		},
		"another writer, long ago, and an earlier sandbox": {
			change: func(s *kubetest.Server) {
				s.Annotate("default", "web", plan.StatusAnnotation, `[{"name":"old","interface":"eth0","default":true},{"name":"default/neta"},`+theirs+`]`)
			},
			status: append(append([]string{}, own...), "other/hot hot0  false"), patches: 2,
		},
		"another annotation": {
			change: func(s *kubetest.Server) { s.Annotate("default", "web", "mine", "x") }, status: own, patches: 1,
		},
		"nonsense": {
			change: func(s *kubetest.Server) { s.Annotate("default", "web", plan.StatusAnnotation, "{nonsense") }, status: own, patches: 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := kubetest.New(t)
			s.Apply(nads + "---\n" + pod("web", "neta"))
			run := start(t, s, s.Kubeconfig(nil), nil)
			p, err := run.plan("web", long)
			if err != nil {
				t.Fatal(err)
			}
			if c.change != nil {
				c.change(s)
			}
			c.fault.Verb = "patch"
			s.Inject(c.fault)
			timeout := long
			if c.timeout > 0 {
				timeout = c.timeout
			}
			begun := time.Now()
			err = run.report(p, timeout, nil)
			if c.code != 0 {
				wantFault(t, err, c.code, c.text)
			} else if err != nil {
				t.Error(err)
			}
			if time.Since(begun) > timeout {
				t.Errorf("took %v of %v", time.Since(begun), timeout)
			}
			if d := cmp.Diff(c.status, status(t, s, "web")); d != "" {
				t.Error(d)
			}
			if n := s.Count("patch", "pods"); n != c.patches && (c.patches != 0 || n < 2) {
				t.Errorf("%d patches, want %d", n, c.patches)
			}
		})
	}
}

// TestStatusOfABarePod: there is no annotation to add to; and a second report of the
// same writes nothing.
func TestStatusOfABarePod(t *testing.T) {
	s := kubetest.New(t)
	s.Apply("kind: Pod\nmetadata: {name: web, uid: u1}\n")
	c := start(t, s, s.Kubeconfig(nil), nil)
	p, err := c.plan("web", long)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := c.report(p, long, nil); err != nil {
			t.Fatal(err)
		}
	}
	if d := cmp.Diff(own[:1], status(t, s, "web")); d != "" || s.Count("patch", "pods") != 1 || s.Count("get", "pods") != 1 {
		t.Errorf("%s requests %q", d, verbs(s))
	}
}

func TestEvents(t *testing.T) {
	event := func(reason, message string) []kubetest.Event {
		return []kubetest.Event{{Type: "Warning", Reason: reason, Message: message, Pod: "web", UID: "u1", Component: "weft"}}
	}
	const annotation = "pod default/web: annotation k8s.v1.cni.cncf.io/networks"
	for name, c := range map[string]struct {
		networks string
		failed   *wire.Error
		want     []kubetest.Event
	}{
		"all is well": {"neta", nil, nil},
		"a NAD that is not there": {"nowhere", nil, event("NoNetworkFound",
			annotation+`[0]: names the NetworkAttachmentDefinition "default/nowhere", which does not exist`)},
		"isolation": {"other/netb", nil, event("InvalidNetworks", annotation+
			`[0]: names a network of namespace "other", and pods of "default" may use only those of their own and of the global namespaces (default)`)},
		"a failed delegate": {
			"neta", &wire.Error{Code: 11, Msg: "network default/neta:\nno addresses left", Details: strings.Repeat("x", 4000)},
			event("FailedAddInterface", "network default/neta: no addresses left; "+strings.Repeat("x", 1024-3-len("network default/neta: no addresses left; "))+"…"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := kubetest.New(t)
			s.Apply(nads + "---\n" + pod("web", c.networks))
			for range 2 { // the kubelet tries again, and the same is told once
				run := start(t, s, s.Kubeconfig(nil), map[string]any{"namespaceIsolation": true})
				p, err := run.plan("web", long)
				if err == nil {
					err = run.report(p, long, c.failed)
				}
				if (err == nil) != (c.want == nil || c.failed != nil) {
					t.Errorf("error %v", err)
				}
				run.end()
			}
			if d := cmp.Diff(c.want, s.Events("default")); d != "" {
				t.Error(d)
			}
			if c.failed != nil && s.Count("patch", "") != 0 {
				t.Errorf("requests %q", verbs(s))
			}
		})
	}
}

// TestAnnotationFaultIsTold: what the grammar refuses, and what is merely odd.
func TestAnnotationFaultIsTold(t *testing.T) {
	s := kubetest.New(t)
	s.Apply(nads + "---\n" + pod("web", `{"name":"neta"}`) + "---\n" + pod("odd", `[{"name":"neta","colour":"red"}]`))
	run := start(t, s, s.Kubeconfig(nil), nil)
	_, err := run.plan("web", long)
	wantFault(t, err, 7, "annotation k8s.v1.cni.cncf.io/networks")
	run.end()
	run = start(t, s, s.Kubeconfig(nil), nil)
	if _, err := run.plan("odd", long); err != nil {
		t.Error(err)
	}
	run.end()
	got := s.Events("default")
	if len(got) != 2 || got[0].Reason != "InvalidNetworks" || got[0].Pod != "web" || !strings.Contains(err.Error(), got[0].Message) ||
		got[1].Reason != "QuestionableNetworks" || got[1].Pod != "odd" || !strings.Contains(got[1].Message, "colour") {
		t.Errorf("events %+v", got)
	}
}

// TestEventsDelayNobody: a server that takes no events holds up neither the answer nor
// the planner's end for long.
func TestEventsDelayNobody(t *testing.T) {
	for name, f := range map[string]kubetest.Fault{"hang": {Hang: true}, "forbidden": {Status: 403}, "away": {Status: 503}} {
		t.Run(name, func(t *testing.T) {
			s := kubetest.New(t)
			s.Apply(pod("web", "nowhere"))
			f.Resource = "events"
			s.Inject(f)
			run := start(t, s, s.Kubeconfig(nil), nil)
			begun := time.Now()
			_, err := run.plan("web", long)
			wantFault(t, err, 7, "does not exist")
			run.end() // kills a planner that takes longer than a second
			if took := time.Since(begun); took > 5*time.Second {
				t.Errorf("took %v", took)
			}
			if s.Count("create", "events") != 1 {
				t.Errorf("requests %q", verbs(s))
			}
		})
	}
}
