// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestMain plays the measured plugin when it is started as one: ADD holds heldBytes.
func TestMain(m *testing.M) {
	switch os.Getenv("CNI_COMMAND") {
	case "":
		os.Exit(m.Run())
	case "ADD":
		// Filled by the kernel: writing here would make the race detector hold as much again.
		_, err := syscall.Mmap(-1, 0, heldBytes, syscall.PROT_READ|syscall.PROT_WRITE,
			syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_POPULATE)
		if err != nil {
			panic(err)
		}
	case "CHECK":
		os.Exit(3)
	}
}

const heldBytes = 64 << 20

func TestHighWaterIsThatOfTheProcessAlone(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{weft: self}
	small, err := b.highWater(t.Context(), "DEL")
	if err != nil {
		t.Fatal(err)
	}
	large, err := b.highWater(t.Context(), "ADD")
	if err != nil {
		t.Fatal(err)
	}
	if small <= 0 || small >= heldBytes {
		t.Errorf("an idle process peaks at %d bytes", small)
	}
	if large < heldBytes || large > heldBytes+small+8<<20 {
		t.Errorf("a process that holds %d bytes peaks at %d, an idle one at %d", heldBytes, large, small)
	}
	if _, err := b.highWater(t.Context(), "CHECK"); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("a process that exits 3: %v", err)
	}
}

func TestQuantile(t *testing.T) {
	ten := []time.Duration{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	for _, c := range []struct {
		values []time.Duration
		q      float64
		want   time.Duration
	}{
		{nil, 0.5, 0},
		{ten[:1], 0.99, 1},
		{ten, 0, 1},
		{ten, 0.1, 1},
		{ten, 0.5, 5},
		{ten, 0.9, 9},
		{ten, 0.99, 10},
		{ten, 1, 10},
		{ten[:3], 0.5, 2},
	} {
		if got := quantile(c.values, c.q); got != c.want {
			t.Errorf("quantile %v of %d values: %d, want %d", c.q, len(c.values), got, c.want)
		}
	}
}

// good is a report whose every promise is kept, by a hair.
func good() *report {
	r := &report{
		binaries: []binary{{"weft-cni", maxPluginBytes}, {"weft-planner", 1 << 30}},
		memories: []agentMemory{{100, 100, 25<<20 - 1, 10<<20 - 1}, {250, 1000, 45<<20 - 1, 10<<20 - 1}},
		peaks:    []peak{{"ADD", maxPeakBytes}, {"DEL", 1 << 30}},
		micro: []micro{
			{room: plan100Room, name: plan100Name, nanos: 1e6},
			{room: mergeRoom, name: mergeName, nanos: 2e4 - 1, allocs: 99},
			{room: steadyRoom, name: steadyName, nanos: 1, own: map[string]float64{steadyCore: 0.99, steadyBytes: 20<<10 - 1, steadyWrites: 0}},
		},
		samples: []sample{
			{delegates: 8, record: 2, add: 15, del: 6, exchanges: 10, apiAdd: 50, apiDel: 6, plainFloor: 4, plainAdd: 5, plainDel: 2, addRequests: 3, agentAdd: 10, agentDel: 6, agentAddWrites: 1},
			{delegates: 1, record: 1, add: 50, del: 50, floorFirst: true, exchanges: 1, apiAdd: 90, apiDel: 90, plainFloor: 1, plainAdd: 90, addRequests: 3, agentAdd: 90, agentAddWrites: 1},
			{delegates: 8, record: 2, add: 10, del: 1, exchanges: 10, apiAdd: 30, apiDel: 1, plainFloor: 4, plainAdd: 3, addRequests: 2, agentAdd: 3, agentAddWrites: 1},
		},
	}
	for _, p := range driverPromises() {
		m := r.microOf(p)
		if m == nil {
			r.micro = append(r.micro, micro{room: p.room, name: p.name, nanos: 1, own: map[string]float64{}})
			m = r.microOf(p)
		}
		if p.unit == "" {
			m.nanos = float64(p.within)
		} else {
			m.own[p.unit] = p.most
		}
	}
	return r
}

func (r *report) microOf(p driverPromise) *micro {
	for i, m := range r.micro {
		if m.room == p.room && m.name == p.name {
			return &r.micro[i]
		}
	}
	return nil
}

func TestTargets(t *testing.T) {
	if r := good(); !r.reached() {
		t.Errorf("a report within every limit misses one: %+v", r.targets())
	}
	spoils := map[string]func(*report){
		"ratio":        func(r *report) { r.samples[0].del++ },
		"API ratio":    func(r *report) { r.samples[0].apiDel++ },
		"plain":        func(r *report) { r.samples[0].plainDel++ },
		"ADD asks":     func(r *report) { r.samples[2].addRequests = 4 },
		"agent":        func(r *report) { r.samples[0].agentDel++ },
		"agent writes": func(r *report) { r.samples[2].agentAddWrites = 2 },
		"agent's DEL":  func(r *report) { r.samples[1].agentDelRequests = 1 },
		"agent memory": func(r *report) { r.memories[1].settled++ },
		"agent burst":  func(r *report) { r.memories[0].burst++ },
		"DEL asks":     func(r *report) { r.samples[1].delRequests = 1 },
		"no request":   func(r *report) { r.samples = slices.Clone(r.samples[:1]); r.samples[0].addRequests = 0 },
		"size":         func(r *report) { r.binaries[0].size++ },
		"memory":       func(r *report) { r.peaks[0].bytes++ },
		"plan":         func(r *report) { r.micro[0].nanos++ },
		"other room":   func(r *report) { r.micro[0].room = "internal/cni/netconf" },
		"no plan":      func(r *report) { r.micro = r.micro[1:] },
		"merge":        func(r *report) { r.micro[1].nanos++ },
		"merge's heap": func(r *report) { r.micro[1].allocs++ },
	}
	for _, unit := range []string{steadyCore, steadyBytes, steadyWrites} {
		spoils["more "+unit] = func(r *report) { r.micro[2].own[unit]++ }
		spoils["no "+unit] = func(r *report) { delete(r.micro[2].own, unit) }
	}
	for _, p := range driverPromises() {
		if p.unit == "" {
			spoils["more: "+p.what] = func(r *report) { r.microOf(p).nanos++ }
			continue
		}
		spoils["more: "+p.what] = func(r *report) { r.microOf(p).own[p.unit]++ }
		spoils["not measured: "+p.what] = func(r *report) { delete(r.microOf(p).own, p.unit) }
	}
	for name, spoil := range spoils {
		r := good()
		spoil(r)
		missed := 0
		for _, target := range r.targets() {
			if !target.reached {
				missed++
			}
		}
		if missed != 1 || r.reached() {
			t.Errorf("%s: %d promises missed, want 1", name, missed)
		}
	}
	r := good()
	r.samples, r.micro = nil, nil
	for i, target := range append(r.targets()[:8], r.driverTargets()...) {
		if target.reached {
			t.Errorf("without a sample promise %d is reached: %+v", i, target)
		}
	}
}

func TestLeast(t *testing.T) {
	r := &report{samples: []sample{{delegates: 40, record: 10, plainFloor: 40}}}
	if agent, manifests, plain := r.least(); agent != 1.4 || manifests != 1.6 || plain != 1.5 {
		t.Errorf("%v, %v, %v", agent, manifests, plain)
	}
}

func TestCSV(t *testing.T) {
	r := &report{samples: []sample{
		{floorFirst: true, delegates: 4 * time.Millisecond, record: 1500 * time.Nanosecond, add: time.Second, plainFloor: time.Millisecond, plainAdd: 2 * time.Millisecond, plainDel: 3 * time.Millisecond, agentAdd: 4 * time.Millisecond, agentDel: 5 * time.Millisecond, agentAddWrites: 1, agentAddRequests: 2, agentDelRequests: 3},
		{
			delegates: 1, record: 2, add: 3, del: 4 * time.Microsecond, exchanges: 5 * time.Millisecond,
			apiAdd: 6 * time.Microsecond, apiDel: 7 * time.Millisecond, addRequests: 3, delRequests: 8,
		},
	}}
	got, err := r.csv()
	if err != nil {
		t.Fatal(err)
	}
	const want = "run,first,floor_delegates_us,floor_record_us,weft_add_us,weft_del_us," +
		"floor_exchanges_us,weft_api_add_us,weft_api_del_us,weft_agent_add_us,weft_agent_del_us,plain_floor_us,plain_add_us,plain_del_us," +
		"api_add_requests,api_del_requests,agent_add_writes,agent_add_requests,agent_del_requests\n" +
		"1,floor,4000,1,1000000,0,0,0,0,4000,5000,1000,2000,3000,0,0,1,2,3\n" +
		"2,subject,0,0,0,4,5000,6,7000,0,0,0,0,0,3,8,0,0,0\n"
	if string(got) != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestParseMicro(t *testing.T) {
	const out = `goos: linux
pkg: github.com/weftnet/weft/internal/cni/plan
cpu: Some CPU @ 2.00GHz
BenchmarkPlan100-2   	    1234	    812345 ns/op	  456789 B/op	     321 allocs/op
BenchmarkOdd/a-b     	       1	        12.5 ns/op	      42.0 MB/s	       0 B/op	       1 allocs/op
PASS
ok  	github.com/weftnet/weft/internal/cni/plan	1.2s
pkg: github.com/weftnet/weft/internal/host/journal
BenchmarkAppend
BenchmarkAppend-2    	     100	      2000 ns/op
`
	want := []micro{
		{"internal/cni/plan", "Plan100", 812345, 456789, 321, map[string]float64{}},
		{"internal/cni/plan", "Odd/a-b", 12.5, 0, 1, map[string]float64{"MB/s": 42}},
		{"internal/host/journal", "Append", 2000, 0, 0, map[string]float64{}},
	}
	if d := cmp.Diff(want, parseMicro(out), cmp.AllowUnexported(micro{})); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestMedians(t *testing.T) {
	runs := []micro{
		{"a", "X", 30, 7, 2, map[string]float64{"MB/s": 1}},
		{"a", "X", 10, 9, 2, map[string]float64{"MB/s": 3}},
		{"a", "Y", 5, 0, 0, map[string]float64{}},
		{"b", "X", 1, 1, 1, map[string]float64{}},
		{"a", "X", 20, 8, 3, map[string]float64{"MB/s": 2}},
		{"b", "X", 4, 1, 1, map[string]float64{}},
	}
	want := []micro{
		{"a", "X", 20, 8, 2, map[string]float64{"MB/s": 2}},
		{"a", "Y", 5, 0, 0, map[string]float64{}},
		{"b", "X", 4, 1, 1, map[string]float64{}},
	}
	if d := cmp.Diff(want, medians(runs), cmp.AllowUnexported(micro{})); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestRoomsWithBenchmarks(t *testing.T) {
	t.Chdir(t.TempDir())
	for path, text := range map[string]string{
		"in/a/x_test.go": "package a\n\nfunc BenchmarkOne() {}\n\nfunc BenchmarkTwo() {}\n",
		"in/a/y_test.go": "package a\n\nfunc BenchmarkThree() {}\n",
		"in/b/x_test.go": "package b\n\n// BenchmarkNone is only spoken of.\nfunc Test() {}\n",
		"in/c/x.go":      "package c\n\nfunc BenchmarkNot() {}\n",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := roomsWithBenchmarks("in")
	if err != nil || !slices.Equal(got, []string{"./in/a"}) {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestFileSystem(t *testing.T) {
	const mounts = `21 1 254:0 / / rw,relatime - ext4 /dev/vda rw
22 21 0:20 / /tmp rw - tmpfs tmpfs rw
23 21 254:1 / /data rw shared:5 master:2 - xfs /dev/vdb rw
24 23 0:21 / /data rw - btrfs /dev/vdc rw
garbage
`
	for dir, want := range map[string]string{
		"/":           "ext4",
		"/srv/x":      "ext4",
		"/tmp":        "tmpfs",
		"/tmp/a/b":    "tmpfs",
		"/tmpfile":    "ext4",
		"/data/state": "btrfs",
	} {
		if got := fileSystem(mounts, dir); got != want {
			t.Errorf("%s is on %q, want %q", dir, got, want)
		}
	}
	if got := fileSystem("", "/"); got != "" {
		t.Errorf("no mounts: %q", got)
	}
}

func TestCPUModel(t *testing.T) {
	if got := cpuModel([]byte("processor\t: 0\nmodel name\t: Some CPU: fast\nmodel name\t: other\n")); got != "Some CPU: fast" {
		t.Errorf("got %q", got)
	}
	if got := cpuModel([]byte("processor\t: 0\n")); got != "" {
		t.Errorf("got %q", got)
	}
}
