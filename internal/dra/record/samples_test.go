// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package record_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/dra/record"
	"github.com/weftnet/weft/internal/host/journal"
)

// The file of testdata/journal/v1 was recorded when the first claims were, and is never written
// again: every later version has to read it to these values.
func TestRecordOfVersion1(t *testing.T) {
	const name = "testdata/journal/v1/11111111-2222-3333-4444-555555555555.jsonl"
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != "efc258b10959d578af23e251c376f5be08d178169e796bef378efe2b23118d3a" {
		t.Errorf("the sample was changed: %x", sum)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, filepath.Base(name)), data, 0o600); err != nil {
		t.Fatal(err)
	}
	store, err := journal.Open(dir, record.Devices)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	state, err := store.Read("11111111-2222-3333-4444-555555555555")
	if err != nil {
		t.Fatal(err)
	}
	var claim record.Claim
	if err := json.Unmarshal(state.Intents[0].Body, &claim); err != nil {
		t.Fatal(err)
	}
	const dev = `{"Addr":"0000:03:00.2","Driver":"mlx5_core","Vendor":"0x15b3","DeviceID":"0x101e","PFName":"ens1f0","VFID":0,"KernelIfaceName":"ens1f0v0"}`
	if diff := cmp.Diff(record.Claim{
		Namespace: "default", Name: "c1", UID: "11111111-2222-3333-4444-555555555555", PodUIDs: []string{"uid-p1"},
		Driver: "networkdriver.cilium.io",
		Devices: []record.Device{{
			Request: "net0", Pool: "sriov-pool", Slice: "n1/sriov-pool", Name: "0000-03-00-2", Manager: "sr-iov",
			Dev: json.RawMessage(dev), Config: v2alpha1.DeviceConfig{PodIfName: "sriov0", VLAN: 1001}, Saved: json.RawMessage(`{"VLAN":77}`),
		}},
	}, claim); diff != "" {
		t.Error(diff)
	}
	var prepared record.Prepared
	if len(state.Phases) != 3 || json.Unmarshal(state.Phases[1].Result, &prepared) != nil {
		t.Fatalf("phases: %+v", state.Phases)
	}
	if diff := cmp.Diff(record.Prepared{Dev: json.RawMessage(dev), IfName: "sriov0", MAC: "02:00:00:00:00:00"}, prepared); diff != "" {
		t.Error(diff)
	}
	if last := state.Phases[2]; last.Phase != journal.Done || last.Item != journal.WholeCall || state.Intents[0].PodUID != "uid-p1" {
		t.Errorf("%+v, pod %s", last, state.Intents[0].PodUID)
	}
}
