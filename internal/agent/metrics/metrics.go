// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package metrics owns the agent's numbers for monitoring: their names, units and labels,
// in a registry of its own. docs/metrics.md describes them for people.
//
// Invariants: names and labels are stable; a label's values are bounded, whatever pods and
// plugins a node sees; numbers that another part keeps are read when somebody asks for
// them, so that nothing is counted twice; a scrape blocks nothing.
//
// It must not know the parts that it reads from: they are functions of Sources.
//
// Implements: architecture 4.4 (metrics).
package metrics

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"
)

// Metrics is the set of one agent. Its methods may be called by several goroutines.
type Metrics struct {
	registry *prometheus.Registry

	durations *prometheus.HistogramVec
	failures  *prometheus.CounterVec
	laneWait  prometheus.Histogram
	requests  *prometheus.CounterVec
	planning  *prometheus.HistogramVec
	devices   *prometheus.HistogramVec

	mu      sync.Mutex
	plugins map[string]bool
}

// maxPlugins bounds the label plugin: a NAD of any user names a plugin, and one that does
// not exist fails before it is measured, but hosts have been seen with links by the dozen.
const maxPlugins = 64

// New makes the metrics of an agent of a version. src is read at each scrape.
func New(version string, src Sources) *Metrics {
	return newIn(prometheus.NewRegistry(), version, src)
}

func newIn(registry *prometheus.Registry, version string, src Sources) *Metrics {
	// From a plain plugin's few milliseconds to an ADD's deadline.
	calls := []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 90}
	quick := []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	m := &Metrics{
		registry: registry,
		plugins:  map[string]bool{},
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "weft_cni_duration_seconds", Buckets: calls,
			Help: "Duration of weft-cni's calls as their records tell it: of one plugin's call, or, without plugin, of the whole.",
		}, []string{"verb", "plugin"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weft_cni_failures_total", Help: "Calls of weft-cni and of plugins that failed.",
		}, []string{"verb", "plugin"}),
		laneWait: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "weft_lane_wait_seconds", Buckets: calls, Help: "How long calls of weft-cni waited for lanes (delegateLimit), all plugins of a call together.",
		}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weft_planner_requests_total", Help: "Requests of weft-cni to the planner, by the CNI code of the answer (0 = fine).",
		}, []string{"verb", "code"}),
		planning: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "weft_planner_duration_seconds", Buckets: quick, Help: "How long the planner took to answer.",
		}, []string{"verb"}),
	}
	m.devices = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "weft_device_lookup_duration_seconds", Buckets: quick, Help: "How long it took to ask what devices the kubelet gave to a pod.",
	}, []string{"method", "outcome"})
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "weft_build_info", Help: "1, with the agent's version.", ConstLabels: prometheus.Labels{"version": version},
	})
	info.Set(1)
	registry.MustRegister(m.durations, m.failures, m.laneWait, m.requests, m.planning, m.devices, info, newReader(src),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Call notes one call of weft-cni (plugin "") or of a plugin.
func (m *Metrics) Call(verb, plugin string, d time.Duration, failed bool) {
	plugin = m.bounded(plugin)
	m.durations.WithLabelValues(verb, plugin).Observe(seconds(d))
	if failed {
		m.failures.WithLabelValues(verb, plugin).Inc()
	}
}

// LaneWait notes how long a call of weft-cni waited for lanes.
func (m *Metrics) LaneWait(d time.Duration) { m.laneWait.Observe(seconds(d)) }

// Planned notes one request to the planner and the CNI code of its answer, 0 for fine.
func (m *Metrics) Planned(verb string, code uint, d time.Duration) {
	m.requests.WithLabelValues(verb, strconv.FormatUint(uint64(code), 10)).Inc()
	m.planning.WithLabelValues(verb).Observe(seconds(d))
}

// DevicesAsked notes one attempt to learn which devices the kubelet gave to a pod.
func (m *Metrics) DevicesAsked(method, outcome string, d time.Duration) {
	m.devices.WithLabelValues(method, outcome).Observe(seconds(d))
}

// seconds are no fewer than none, whatever clock they are of: a sum that falls is taken for a start
// anew.
func seconds(d time.Duration) float64 { return max(d, 0).Seconds() }

func (m *Metrics) bounded(plugin string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if plugin == "" || m.plugins[plugin] {
		return plugin
	}
	if len(m.plugins) == maxPlugins {
		return "other"
	}
	m.plugins[plugin] = true
	return plugin
}

// Handler answers scrapes. What one source cannot tell keeps no other number back.
func (m *Metrics) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		families, err := m.registry.Gather()
		if err != nil && len(families) == 0 {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		format := expfmt.NegotiateAccept(r.Header, expfmt.DefaultAcceptedFormats()...)
		w.Header().Set("Content-Type", string(format))
		enc := expfmt.NewEncoder(w, format)
		for _, f := range families {
			if enc.Encode(f) != nil {
				return // whoever scraped is gone
			}
		}
	})
}
