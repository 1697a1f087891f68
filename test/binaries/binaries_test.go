// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package binaries_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/weftnet/weft/test/binaries"
)

// The delegate answers to each name, records what it was given and fails as told.
func TestDelegateRecords(t *testing.T) {
	dir := binaries.Delegate(t, "pa", "pb")
	log := filepath.Join(t.TempDir(), "calls.jsonl")
	conf := `{"cniVersion":"1.0.0","name":"n","type":"pb","log":"` + log + `","n":9007199254740993,` +
		`"fail":{"ADD":{"code":11,"msg":"busy","times":1}}}`
	var outputs []string
	for range 2 {
		cmd := exec.Command(filepath.Join(dir, "pb"))
		cmd.Env = []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_IFNAME=net1", "CNI_NETNS=/ns", "CNI_ARGS=A=b"}
		cmd.Stdin = bytes.NewReader([]byte(conf))
		out, _ := cmd.Output() // the first call fails on purpose: its text is asserted below
		outputs = append(outputs, string(bytes.TrimSpace(out)))
	}
	want := []string{`{"cniVersion":"1.0.0","code":11,"msg":"busy"}`, `{"cniVersion":"1.0.0"}`}
	if outputs[0] != want[0] || outputs[1] != want[1] {
		t.Errorf("answers %q, want %q", outputs, want)
	}
	data, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.Split(bytes.TrimSpace(data), []byte("\n"))
	if len(lines) != 4 {
		t.Fatalf("%d log lines, want start and end of two calls:\n%s", len(lines), data)
	}
	var first struct {
		Command, ContainerID, IfName, Netns, Args, Type, Stdin string
	}
	if err := json.Unmarshal(lines[0], &first); err != nil {
		t.Fatal(err)
	}
	if first.Command != "ADD" || first.ContainerID != "c1" || first.IfName != "net1" || first.Netns != "/ns" ||
		first.Args != "A=b" || first.Type != "pb" || first.Stdin != conf {
		t.Errorf("recorded %+v", first)
	}
}
