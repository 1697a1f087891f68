// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

func pedantic(src Sources) *Metrics { return newIn(prometheus.NewPedanticRegistry(), "v0", src) }

func sources() Sources {
	return Sources{
		CacheAge:     func() (time.Duration, bool) { return 1500 * time.Millisecond, true },
		Records:      func() map[string]int { return map[string]int{"done": 3, "half-done": 1} },
		Reconcile:    func() (int, time.Duration) { return 2, 7 * time.Second },
		Orphans:      func() map[string]uint64 { return map[string]uint64{"done": 2} },
		Plugs:        func() map[string]uint64 { return map[string]uint64{"failed": 3} },
		StatusWrites: func() map[string]uint64 { return map[string]uint64{"written": 5, "failed": 1} },
		APIRequests:  func() map[string]uint64 { return map[string]uint64{"patch pods/status": 6, "watch pods": 1} },
		Published:    func() bool { return true },
		Restored:     func() uint64 { return 4 },
		Ready:        func() bool { return false },
	}
}

// own gives the scrape's lines of Weft's metrics, without comments and buckets.
func own(t *testing.T, m *Metrics) []string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
	b, err := io.ReadAll(w.Body)
	if err != nil || w.Code != 200 {
		t.Fatalf("%d %v\n%s", w.Code, err, b)
	}
	var lines []string
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, "weft_") && !strings.Contains(line, "_bucket{") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

func TestScrape(t *testing.T) {
	m := pedantic(sources())
	m.Call("ADD", "", 30*time.Millisecond, false)
	m.Call("ADD", "bridge", 20*time.Millisecond, true)
	m.LaneWait(time.Second)
	m.Planned("plan", 0, time.Millisecond)
	m.Planned("plan", 11, time.Millisecond)
	m.DevicesAsked("get", "exhausted", time.Millisecond)
	want := strings.Split(strings.TrimSpace(`
weft_apiserver_requests_total{resource="pods",verb="watch"} 1
weft_apiserver_requests_total{resource="pods/status",verb="patch"} 6
weft_build_info{version="v0"} 1
weft_cache_age_seconds 1.5
weft_cni_duration_seconds_sum{plugin="",verb="ADD"} 0.03
weft_cni_duration_seconds_count{plugin="",verb="ADD"} 1
weft_cni_duration_seconds_sum{plugin="bridge",verb="ADD"} 0.02
weft_cni_duration_seconds_count{plugin="bridge",verb="ADD"} 1
weft_cni_failures_total{plugin="bridge",verb="ADD"} 1
weft_conf_published 1
weft_conf_restored_total 4
weft_device_lookup_duration_seconds_sum{method="get",outcome="exhausted"} 0.001
weft_device_lookup_duration_seconds_count{method="get",outcome="exhausted"} 1
weft_hotplug_total{outcome="failed"} 3
weft_lane_wait_seconds_sum 1
weft_lane_wait_seconds_count 1
weft_orphans_total{outcome="done"} 2
weft_planner_duration_seconds_sum{verb="plan"} 0.002
weft_planner_duration_seconds_count{verb="plan"} 2
weft_planner_requests_total{code="0",verb="plan"} 1
weft_planner_requests_total{code="11",verb="plan"} 1
weft_ready 0
weft_reconcile_lag_seconds 7
weft_reconcile_pending 2
weft_records{state="done"} 3
weft_records{state="half-done"} 1
weft_status_writes_total{outcome="failed"} 1
weft_status_writes_total{outcome="written"} 5`), "\n")
	if d := cmp.Diff(want, own(t, m)); d != "" {
		t.Error(d)
	}
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) > 0 {
		t.Error(err, problems)
	}
}

// TestNothingKnownYet: what has no source, or no number yet, is left out.
func TestNothingKnownYet(t *testing.T) {
	never := Sources{CacheAge: func() (time.Duration, bool) { return 0, false }}
	for _, line := range append(own(t, pedantic(Sources{})), own(t, pedantic(never))...) {
		if !strings.HasPrefix(line, "weft_lane_wait_seconds") && !strings.HasPrefix(line, "weft_build_info") {
			t.Error(line)
		}
	}
}

// TestLabelsAreBounded: a NAD can name any plugin.
func TestLabelsAreBounded(t *testing.T) {
	m := pedantic(Sources{})
	var wait sync.WaitGroup
	for i := range 4 * maxPlugins {
		wait.Go(func() { m.Call("ADD", fmt.Sprint("p", i), time.Second, true) })
	}
	wait.Wait()
	if n := len(own(t, m)); n != 3*(maxPlugins+1)+len(own(t, pedantic(Sources{}))) {
		t.Errorf("%d lines", n)
	}
}

// TestDocumented: docs/metrics.md has every metric, and none that is not.
func TestDocumented(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	m := pedantic(sources())
	m.Call("ADD", "bridge", time.Second, true)
	m.Planned("plan", 0, time.Second)
	m.DevicesAsked("get", "done", time.Second)
	d := m.Driver(DriverSources{Devices: func() []Devices { return []Devices{{Manager: "dummy"}} }})
	d.Call("prepare", time.Second, nil)
	d.Published(map[string]int{"fast": 1}, true, time.Second, nil)
	d.Scanned("sr-iov", time.Second)
	m.VMIs(func() (differ, all int) { return 1, 2 }).Written(nil)
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "weft_") {
			there[f.GetName()] = true
			if !strings.Contains(string(b), "`"+f.GetName()) {
				t.Errorf("%s is not in docs/metrics.md", f.GetName())
			}
		}
	}
	for _, name := range regexp.MustCompile("`(weft_[a-z_]+)").FindAllStringSubmatch(string(b), -1) {
		if !there[name[1]] && !strings.HasPrefix(name[1], "weft_operator_") { // which has a test of its own
			t.Errorf("docs/metrics.md has %s, which there is not", name[1])
		}
	}
}

// TestClockSetBack: no sum falls.
func TestClockSetBack(t *testing.T) {
	m := pedantic(sources())
	m.Call("ADD", "", time.Second, false)
	m.Call("ADD", "", -time.Hour, false)
	m.LaneWait(-time.Hour)
	m.Planned("plan", 0, -time.Hour)
	m.DevicesAsked("get", "fine", -time.Hour)
	sums := 0
	for _, line := range own(t, m) {
		name, value, _ := strings.Cut(line, " ")
		if !strings.Contains(name, "_sum") {
			continue
		}
		sums++
		want := "0"
		if strings.HasPrefix(name, "weft_cni_duration") {
			want = "1"
		}
		if value != want {
			t.Errorf("%s, want %s", line, want)
		}
	}
	if sums != 4 {
		t.Errorf("%d sums", sums)
	}
}
