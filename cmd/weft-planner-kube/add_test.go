// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/kube/kubetest"
	"github.com/weftnet/weft/test/binaries"
)

// TestWithTheHands: the real weft-cni and its planner, against an API server: three
// requests on ADD, none on DEL; an ADD whose status cannot be written is undone.
func TestWithTheHands(t *testing.T) {
	dir := t.TempDir()
	delegates := binaries.Delegate(t, "pa", "pb")
	path := binaries.Weft(t) + ":" + delegates
	log := filepath.Join(dir, "calls.jsonl")
	netns := filepath.Join(dir, "netns")
	if err := os.WriteFile(netns, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := kubetest.New(t, kubetest.WithTLS(), kubetest.WithToken("t"))
	s.Apply(pod("web", "neta") + fmt.Sprintf("---\nkind: NetworkAttachmentDefinition\nmetadata: {name: neta}\n"+
		"spec: {config: '{\"cniVersion\":\"1.0.0\",\"type\":\"pb\",\"log\":%q}'}\n", log))
	conf, err := json.Marshal(map[string]any{
		"cniVersion": "1.0.0", "name": "m", "type": "weft-cni", "kubeconfig": s.Kubeconfig(nil),
		"stateDir": filepath.Join(dir, "state"), "cniDir": filepath.Join(dir, "multus"), "binDir": filepath.Join(dir, "nobin"),
		"kubeletDir": dir, "deviceInfoDir": filepath.Join(dir, "devinfo"),
		"delegates": []any{map[string]any{"cniVersion": "1.0.0", "name": "defnet", "type": "pa", "log": log}},
	})
	if err != nil {
		t.Fatal(err)
	}
	run := func(verb string) (int, string) {
		cmd := exec.CommandContext(t.Context(), filepath.Join(binaries.Weft(t), "weft-cni"))
		cmd.Env = []string{
			"CNI_COMMAND=" + verb, "CNI_CONTAINERID=cid1", "CNI_IFNAME=eth0", "CNI_NETNS=" + netns, "CNI_PATH=" + path,
			"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;K8S_POD_UID=u1",
		}
		cmd.Stdin = bytes.NewReader(conf)
		out, err := cmd.Output()
		if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), string(out)
	}
	calls := func() []string {
		b, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for line := range strings.Lines(string(b)) {
			var e struct {
				Command, IfName, Type string
				End                   bool
			}
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatal(err)
			}
			if !e.End {
				all = append(all, e.Type+" "+e.Command+" "+e.IfName)
			}
		}
		_ = os.Remove(log)
		return all
	}
	made, undone := []string{"pa ADD eth0", "pb ADD net1"}, []string{"pb DEL net1", "pa DEL eth0"}

	if code, out := run("ADD"); code != 0 {
		t.Fatalf("ADD: exit %d: %s", code, out)
	}
	want := []string{"get pods web", "get network-attachment-definitions neta", "patch pods web status"}
	if d := cmp.Diff(want, verbs(s)) + cmp.Diff(made, calls()); d != "" {
		t.Error(d)
	}
	if lines := status(t, s, "web"); len(lines) != 2 || !strings.HasPrefix(lines[0], "defnet ") || !strings.HasPrefix(lines[1], "default/neta ") {
		t.Errorf("status %q", lines)
	}
	s.ResetRequests()
	s.Inject(kubetest.Fault{Hang: true})
	if code, out := run("DEL"); code != 0 {
		t.Errorf("DEL: exit %d: %s", code, out)
	}
	if d := cmp.Diff(undone, calls()); d != "" || s.Count("", "") != 0 {
		t.Errorf("%s requests %q", d, verbs(s))
	}

	s.Heal()
	s.Inject(kubetest.Fault{Verb: "patch", Status: 403})
	s.Annotate("default", "web", "k8s.v1.cni.cncf.io/network-status", "[]")
	code, out := run("ADD")
	if code != 1 || !strings.Contains(out, `"code": 7`) && !strings.Contains(out, `"code":7`) || !strings.Contains(out, "403 Forbidden") {
		t.Errorf("ADD: exit %d: %s", code, out)
	}
	if d := cmp.Diff(append(made, undone...), calls()); d != "" {
		t.Error(d)
	}
	if events := s.Events("default"); len(events) != 1 || events[0].Reason != "FailedAddInterface" || !strings.Contains(events[0].Message, "403 Forbidden") {
		t.Errorf("events %+v", events)
	}
	// What stops the hands before the first plugin is told as well.
	if err := os.Remove(filepath.Join(delegates, "pb")); err != nil {
		t.Fatal(err)
	}
	if code, out := run("ADD"); code != 1 || !strings.Contains(out, `find plugin \"pb\"`) {
		t.Errorf("ADD: exit %d: %s", code, out)
	}
	if events := s.Events("default"); len(events) != 2 || events[1].Reason != "FailedAddInterface" || !strings.Contains(events[1].Message, `find plugin "pb"`) {
		t.Errorf("events %+v", events)
	}
}
