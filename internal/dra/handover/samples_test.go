// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package handover_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/dra/record"
	"github.com/weftnet/weft/internal/host/journal"
	"github.com/weftnet/weft/internal/host/kernel"
)

// The file of testdata/journal/v1 was recorded when the first hand-overs were, and is never written
// again: every later version has to read it to these values. It is of another boot, after which all
// links are home.
func TestRecordOfVersion1(t *testing.T) {
	data, err := os.ReadFile("testdata/journal/v1/0c6f53c1.jsonl")
	must(t, err)
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != "e474d8c59b63ccb2407526491e8a9d836e96e9710db79f6b3f72ec61f883d967" {
		t.Errorf("the sample was changed: %x", sum)
	}
	r := newRig(t)
	r.remember()
	dir := filepath.Join(r.dir, record.Handovers)
	must(t, os.WriteFile(filepath.Join(dir, "0c6f53c1.jsonl"), data, 0o600))
	records, err := journal.Open(dir, record.Handovers)
	must(t, err)
	defer records.Close()
	state, err := records.Read("0c6f53c1")
	must(t, err)
	var body record.Handover
	must(t, json.Unmarshal(state.Intents[0].Body, &body))
	home := kernel.LinkState{Name: "ens1f0v0", MAC: net.HardwareAddr{0x02, 0x00, 0xa6, 0x29, 0xa2, 0x6d}, MTU: 1500}
	if diff := cmp.Diff(record.Handover{
		PodUID: "p1", SandboxID: "0c6f53c1", Namespace: kernel.Namespace{Path: "/run/netns/0c6f53c1", ID: 4026531841},
		Links: []record.Link{{
			ClaimUID: "11111111-2222-3333-4444-555555555555", Pool: "pool", Device: "0000-03-10-0", Manager: "sr-iov",
			Dev:   json.RawMessage(`{"Addr":"0000:03:10.0","Driver":"igbvf","Vendor":"0x8086","DeviceID":"0x10ca","PFName":"ens1f0","VFID":0,"KernelIfaceName":"ens1f0v0"}`),
			Saved: json.RawMessage(`{"pf":"0000:03:00.0","link":{"name":"ens1f0v0","mac":"AgCmKaJt","mtu":1500}}`),
			PCI:   "0000:03:10.0", Index: 3, Home: home, PodName: "sriov0",
		}},
	}, body); diff != "" {
		t.Error(diff)
	}
	if last := state.Phases[len(state.Phases)-1]; len(state.Phases) != 3 || last.Phase != journal.Done || last.Item != journal.WholeCall {
		t.Errorf("phases: %+v", state.Phases)
	}
	must(t, r.h.Recover(t.Context()))
	r.is("records", r.records(), nil)
	r.unchanged()
}
