// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vmistatus_test

import (
	"fmt"
	"testing"

	"github.com/weftnet/weft/vmistatus"
)

// large is a machine with 10 NICs whose guest reports 40 interfaces.
func large() vmistatus.Input {
	in := vmistatus.Input{PodCache: pods{}, Domain: &vmistatus.Domain{}}
	var all []spec
	for i := range 10 {
		name, mac := fmt.Sprintf("net-%d", i), fmt.Sprintf("52:54:00:aa:00:%02x", i)
		s := spec{name, "B", "mul", "", ""}
		if i == 0 {
			s.binding, s.network = "M", "pod"
		}
		all = append(all, s)
		in.PodCache[name] = read(fmt.Sprintf("10.%d.0.5", i), fmt.Sprintf("fd10:%x::5", i))
		in.Domain.Interfaces = append(in.Domain.Interfaces, d(name, mac))
		in.Domain.Guest = append(in.Domain.Guest, g(fmt.Sprintf("enp%ds0", i+1), mac, fmt.Sprintf("10.%d.0.5", i), fmt.Sprintf("fd10:%x::5", i), "fe80::1"))
	}
	for i := range 30 {
		in.Domain.Guest = append(in.Domain.Guest, g(fmt.Sprintf("veth%d", i), fmt.Sprintf("02:42:00:aa:00:%02x", i), fmt.Sprintf("172.17.0.%d", i+1)))
	}
	in.Interfaces, in.Networks = specs(all)
	r := vmistatus.Merge(in)
	for i := range r.Interfaces[:10] {
		r.Interfaces[i].PodInterfaceName = vmistatus.HashedName(r.Interfaces[i].Name)
		r.Interfaces[i].InfoSource = vmistatus.AddInfoSource(r.Interfaces[i].InfoSource, mul)
	}
	in.Previous = r.Interfaces
	return in
}

func BenchmarkMerge10NICs40Records(b *testing.B) {
	in := large()
	b.ReportAllocs()
	for b.Loop() {
		if len(vmistatus.Merge(in).Interfaces) != 20 {
			b.Fatal("not every entry is there")
		}
	}
}

func BenchmarkEqual(b *testing.B) {
	r := vmistatus.Merge(large()).Interfaces
	o := vmistatus.Merge(large()).Interfaces
	b.ReportAllocs()
	for b.Loop() {
		if !vmistatus.Equal(r, o) {
			b.Fatal("the same is not equal")
		}
	}
}

// TestMergeAllocates: a node merges hundreds of machines every few seconds.
func TestMergeAllocates(t *testing.T) {
	in := large()
	if n := testing.AllocsPerRun(100, func() { vmistatus.Merge(in) }); n >= 100 {
		t.Errorf("%.0f allocations", n)
	}
}
