// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package netstatus_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/weftnet/weft/internal/cni/netstatus"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/results"
)

// BenchmarkBuild makes the annotation of a pod with 100 networks, each with a device.
func BenchmarkBuild(b *testing.B) {
	var p plan.Plan
	var rs []*results.Result
	var infos []json.RawMessage
	for i := range 101 {
		ifName := fmt.Sprintf("net%d", i)
		p.Attachments = append(p.Attachments, plan.Attachment{Network: "tenant/" + ifName, IfName: ifName, Default: i == 0})
		r, err := results.Parse(fmt.Appendf(nil, `{"cniVersion":"1.1.0","interfaces":[{"name":"br0"},{"name":"veth%d"},{"name":%q,"mac":"02:00:00:00:00:%02x","mtu":1500,%s}],`+
			`"ips":[{"interface":2,"address":"10.0.%d.5/24","gateway":"10.0.%d.1"},{"interface":2,"address":"fd00::%x/64"}],"routes":[{"dst":"0.0.0.0/0"}],"dns":{"nameservers":["10.0.0.53"]}}`,
			i, ifName, i, ns, i, i, i+1), "1.1.0")
		if err != nil {
			b.Fatal(err)
		}
		rs = append(rs, r)
		infos = append(infos, fmt.Appendf(nil, `{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:%02x:00.0"}}`, i))
	}
	b.ReportAllocs()
	for b.Loop() {
		entries := netstatus.Build(p, rs, infos)
		if len(entries) != 101 || len(netstatus.Encode(entries)) < 101*100 {
			b.Fatalf("%d entries", len(entries))
		}
	}
}
