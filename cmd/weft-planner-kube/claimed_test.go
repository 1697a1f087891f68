// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weftnet/weft/internal/host/journal"
	"github.com/weftnet/weft/internal/kube/kubetest"
	"github.com/weftnet/weft/test/binaries"
)

// TestClaimedWithoutAgent: the UID is the pod's, as the API server tells it, and a pod for which a device
// is prepared is not attached without it; one that has none is.
func TestClaimedWithoutAgent(t *testing.T) {
	dir := t.TempDir()
	netns, log := filepath.Join(dir, "netns"), filepath.Join(dir, "calls.jsonl")
	if err := os.WriteFile(netns, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := kubetest.New(t)
	s.Apply(pod("web", "") + "---\n" + strings.Replace(pod("other", ""), "uid: u1", "uid: u2", 1))
	conf, err := json.Marshal(map[string]any{
		"cniVersion": "1.0.0", "name": "m", "type": "weft-cni", "kubeconfig": s.Kubeconfig(nil),
		"stateDir": filepath.Join(dir, "state"), "cniDir": filepath.Join(dir, "multus"), "kubeletDir": dir,
		"delegates": []any{map[string]any{"cniVersion": "1.0.0", "name": "defnet", "type": "pa", "log": log}},
	})
	if err != nil {
		t.Fatal(err)
	}
	prepared(t, filepath.Join(dir, "state", "devices"), "u1")
	for name, refused := range map[string]bool{"web": true, "other": false} {
		cmd := exec.CommandContext(t.Context(), filepath.Join(binaries.Weft(t), "weft-cni"))
		cmd.Env = []string{
			"CNI_COMMAND=ADD", "CNI_CONTAINERID=" + name, "CNI_IFNAME=eth0", "CNI_NETNS=" + netns, "CNI_PATH=" + binaries.Weft(t) + ":" + binaries.Delegate(t, "pa"),
			"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + name, // a runtime that tells no UID
		}
		cmd.Stdin = bytes.NewReader(conf)
		out, err := cmd.Output()
		if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(out), " ", "")
		if failed := cmd.ProcessState.ExitCode() != 0; failed != refused || failed && (!strings.Contains(text, `"code":11`) || !strings.Contains(string(out), "only the node's agent can hand it over")) {
			t.Errorf("ADD of %s: exit %d: %s", name, cmd.ProcessState.ExitCode(), out)
		}
	}
}

// prepared makes the record of a claim's device.
func prepared(t *testing.T, folder, podUID string) {
	t.Helper()
	records, err := journal.Open(folder, "devices")
	if err != nil {
		t.Fatal(err)
	}
	rec, err := records.Acquire(t.Context(), "claim")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(rec.Begin(journal.Intent{PodUID: podUID, Body: []byte("{}")}), rec.Close(), records.Close()); err != nil {
		t.Fatal(err)
	}
}
