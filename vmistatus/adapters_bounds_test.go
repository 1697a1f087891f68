// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vmistatus_test

import (
	"runtime"
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
