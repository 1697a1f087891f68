// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestDriverScrape: the driver's numbers beside the others, and none of them without it.
func TestDriverScrape(t *testing.T) {
	m := pedantic(Sources{})
	plain := own(t, m)
	d := m.Driver(DriverSources{Devices: func() []Devices {
		return []Devices{{Manager: "sr-iov", State: "free", Count: 3}, {Manager: "sr-iov", Pool: "fast", State: "prepared", Count: 1}}
	}})
	fault := errors.New("x")
	d.Call("prepare", 20*time.Millisecond, nil)
	d.Call("prepare", 10*time.Millisecond, fault)
	d.Published(map[string]int{"gone": 1}, true, time.Millisecond, nil)
	d.Published(map[string]int{"fast": 4, "none": 0}, true, time.Millisecond, nil)
	d.Published(nil, true, time.Millisecond, fault) // what is there is still offered
	d.Published(map[string]int{"fast": 4, "none": 0}, false, time.Millisecond, nil)
	d.Scanned("sr-iov", 2*time.Millisecond)
	d.Registered(false)
	d.Registered(false)
	d.Registered(true)
	d.Runtime(true)
	d.WithoutDevice()
	got := slices.DeleteFunc(own(t, m), func(line string) bool { return slices.Contains(plain, line) })
	got = slices.DeleteFunc(got, func(line string) bool { return strings.HasPrefix(line, "weft_lane_wait") })
	want := strings.Split(strings.TrimSpace(`
weft_driver_call_duration_seconds_sum{call="prepare",outcome="done"} 0.02
weft_driver_call_duration_seconds_count{call="prepare",outcome="done"} 1
weft_driver_call_duration_seconds_sum{call="prepare",outcome="failed"} 0.01
weft_driver_call_duration_seconds_count{call="prepare",outcome="failed"} 1
weft_driver_devices{manager="sr-iov",pool="",state="free"} 3
weft_driver_devices{manager="sr-iov",pool="fast",state="prepared"} 1
weft_driver_offered_devices{pool="fast"} 4
weft_driver_offered_devices{pool="none"} 0
weft_driver_pods_without_device_total 1
weft_driver_publish_duration_seconds_sum{outcome="done"} 0.002
weft_driver_publish_duration_seconds_count{outcome="done"} 2
weft_driver_publish_duration_seconds_sum{outcome="failed"} 0.001
weft_driver_publish_duration_seconds_count{outcome="failed"} 1
weft_driver_publish_duration_seconds_sum{outcome="unchanged"} 0.001
weft_driver_publish_duration_seconds_count{outcome="unchanged"} 1
weft_driver_registered 1
weft_driver_registration_failures_total 2
weft_driver_runtime_connected 1
weft_driver_scan_duration_seconds_sum{manager="sr-iov"} 0.002
weft_driver_scan_duration_seconds_count{manager="sr-iov"} 1
`), "\n")
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
