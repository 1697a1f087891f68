// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vmistatus_test

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/weftnet/weft/vmistatus"
)

// allocated is how many bytes a function takes, also those that it gives back.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// What a guest or a launcher sends costs memory by what is kept of it, and not by how many things
// fit its bytes: a node's agent reads those of all machines.
func TestAdaptersTakeLittleMemory(t *testing.T) {
	const most = 8 << 20
	for name, text := range map[string]string{
		"records":              "[{}" + strings.Repeat(",{}", 1<<20/3-10) + "]",
		"records in return":    `{"return":[{}` + strings.Repeat(",{}", 1<<20/3-20) + `]}`,
		"records of 4 MiB":     `{"return":[{}` + strings.Repeat(",{}", 4<<20/3-20) + `]}`,
		"addresses":            `[{"ip-addresses":[{}` + strings.Repeat(",{}", 1<<20/3-40) + `]}]`,
		"something unknown":    `[{"x":[{}` + strings.Repeat(",{}", 1<<20/3-40) + `]}]`,
		"a name of a megabyte": `[{"name":"` + strings.Repeat("x", 1<<20-100) + `"}]`,
	} {
		if n := allocated(func() { _, _ = vmistatus.FromGuest([]byte(text)) }); n > most+uint64(len(text)) {
			t.Errorf("guest, %s: %d KiB are allocated to read %d KiB", name, n>>10, len(text)>>10)
		}
	}
	device := func(inner string) string { return "<domain><devices>" + inner + "</devices></domain>" }
	for name, text := range map[string]string{
		"interfaces": device(strings.Repeat("<interface/>", 80000)),
		"hostdevs":   device(strings.Repeat("<hostdev/>", 80000)),
		"channels":   device(strings.Repeat("<channel/>", 80000)),
		"disks":      device(strings.Repeat("<disk/>", 100000)),
	} {
		var d *vmistatus.Domain
		if n := allocated(func() { d = vmistatus.FromXML([]byte(text)) }); n > 5*most || d.Err == nil || len(d.Skipped) > 17 {
			t.Errorf("domain, %s: %d KiB are allocated to read %d KiB; %d skipped, error %v", name, n>>10, len(text)>>10, len(d.Skipped), d.Err)
		}
	}
}

// Names that are the same once they are cut are one name: a status has each once.
func TestCutNamesAreOne(t *testing.T) {
	long := strings.Repeat("x", 70)
	for name, of := range map[string][2]string{
		"too long":      {long + "1", long + "2"},
		"not printable": {"a\u0080", "a\u0081"},
	} {
		in := vmistatus.Input{Domain: nics(d(of[0], "52:54:00:aa:00:01"), d(of[1], "52:54:00:aa:00:02"))}
		r := checkInvariants(t, in)
		if len(r.Interfaces) != 1 || r.Interfaces[0].MAC != "52:54:00:aa:00:01" {
			t.Errorf("%s: %+v", name, r.Interfaces)
		}
		var codes []vmistatus.Code
		for _, w := range r.Warnings {
			codes = append(codes, w.Code)
		}
		if !slices.Contains(codes, vmistatus.DeviceSkipped) || !slices.Contains(codes, vmistatus.NameLimit) {
			t.Errorf("%s: warnings %v", name, r.Warnings)
		}
		in.Previous = []entry{podIf(nic(r.Interfaces[0].Name, "", dom, ""), "pod1")}
		if r = vmistatus.Merge(in); r.Interfaces[0].PodInterfaceName != "pod1" {
			t.Errorf("%s: what the status has of a cut name is lost: %+v", name, r.Interfaces)
		}
	}
}

// Only addresses that would be listed are told as left out, and by the rule for that.
func TestLeftOutAddresses(t *testing.T) {
	var many ips
	for i := range 50 {
		many = append(many, fmt.Sprintf("10.1.0.%d", i+1))
	}
	for _, p := range []vmistatus.Policy{vmistatus.FamilyMerge, vmistatus.PodAuthoritative} {
		in := vmistatus.Input{Domain: nics(d("prim", "52:54:00:aa:00:01")), PodCache: pods{"prim": read("10.1.0.1")}, Policy: p, Explain: true}
		in.Interfaces, in.Networks = specs([]spec{{"prim", "B", "pod", "", ""}})
		in.Domain.Guest = []guest{g("eth0", "52:54:00:aa:00:01", many...)}
		if r := vmistatus.Merge(in); len(r.Interfaces[0].IPs) != 1 || len(r.Warnings) != 0 {
			t.Errorf("%s: the pod's address alone is listed, with warnings %v", p, r.Warnings)
		}
		in.PodCache = nil
		r := vmistatus.Merge(in)
		if len(r.Interfaces[0].IPs) != 32 || len(r.Warnings) != 1 || !strings.HasSuffix(r.Warnings[0].Text, "18 were left out") {
			t.Errorf("%s: %d addresses, warnings %v", p, len(r.Interfaces[0].IPs), r.Warnings)
		}
		want := vmistatus.Value{Field: "ipAddresses", Value: "10.1.0.33", Source: "guest-agent", Rule: "over-limit"}
		if got := r.RejectedValues(0); len(got) != 18 || got[0] != want {
			t.Errorf("%s: left out are %v", p, got)
		}
	}
}
