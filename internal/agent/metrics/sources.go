// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Sources are the numbers that other parts keep. A nil function leaves its metric out. They
// are called by several goroutines.
type Sources struct {
	// CacheAge is how long ago the API server was heard of; false = never.
	CacheAge func() (time.Duration, bool)
	// Records are the records on this node by their state.
	Records func() map[string]int
	// Reconcile is how many pods' status is still to be written, and since when the oldest is.
	Reconcile func() (pending int, oldest time.Duration)
	// StatusWrites are the writes of network-status so far, by outcome.
	StatusWrites func() map[string]uint64
	// Orphans are the orders about records whose sandboxes may be gone, by what came of them.
	Orphans func() map[string]uint64
	// Plugs are the orders to change running pods, by what came of them.
	Plugs func() map[string]uint64
	// APIRequests are the requests to the API server so far by "verb resource".
	APIRequests func() map[string]uint64
	// Published says whether the CNI configuration is, Restored how often it was put back.
	Published func() bool
	Restored  func() uint64
	Ready     func() bool
}

// reader is a collector that reads Sources when it is asked.
type reader struct {
	src   Sources
	descs map[string]*prometheus.Desc
}

func newReader(src Sources) *reader {
	r := &reader{src: src, descs: map[string]*prometheus.Desc{}}
	for _, d := range []struct {
		name, help string
		labels     []string
	}{
		{"weft_cache_age_seconds", "How long ago the API server was heard of.", nil},
		{"weft_records", "Records of attachments on this node.", []string{"state"}},
		{"weft_reconcile_pending", "Pods whose network-status is still to be written.", nil},
		{"weft_reconcile_lag_seconds", "How long the oldest of them has been waiting.", nil},
		{"weft_status_writes_total", "Writes of network-status.", []string{"outcome"}},
		{"weft_orphans_total", "Looks of weft-cni at records whose sandboxes may be gone without a DEL.", []string{"outcome"}},
		{"weft_hotplug_total", "Changes of running pods whose annotation changed.", []string{"outcome"}},
		{"weft_apiserver_requests_total", "Requests to the API server.", []string{"verb", "resource"}},
		{"weft_conf_published", "1 when the node's CNI configuration is published.", nil},
		{"weft_conf_restored_total", "How often the published configuration had to be put back.", nil},
		{"weft_ready", "1 when the agent is ready.", nil},
	} {
		r.descs[d.name] = prometheus.NewDesc(d.name, d.help, d.labels, nil)
	}
	return r
}

// Describe implements prometheus.Collector.
func (r *reader) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range r.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (r *reader) Collect(ch chan<- prometheus.Metric) {
	gauge := func(name string, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(r.descs[name], prometheus.GaugeValue, value, labels...)
	}
	counter := func(name string, value uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(r.descs[name], prometheus.CounterValue, float64(value), labels...)
	}
	if r.src.CacheAge != nil {
		if age, ok := r.src.CacheAge(); ok {
			gauge("weft_cache_age_seconds", age.Seconds())
		}
	}
	if r.src.Records != nil {
		each(r.src.Records(), func(state string, n int) { gauge("weft_records", float64(n), state) })
	}
	if r.src.Reconcile != nil {
		pending, oldest := r.src.Reconcile()
		gauge("weft_reconcile_pending", float64(pending))
		gauge("weft_reconcile_lag_seconds", oldest.Seconds())
	}
	if r.src.StatusWrites != nil {
		each(r.src.StatusWrites(), func(outcome string, n uint64) { counter("weft_status_writes_total", n, outcome) })
	}
	if r.src.Orphans != nil {
		each(r.src.Orphans(), func(outcome string, n uint64) { counter("weft_orphans_total", n, outcome) })
	}
	if r.src.Plugs != nil {
		each(r.src.Plugs(), func(outcome string, n uint64) { counter("weft_hotplug_total", n, outcome) })
	}
	if r.src.APIRequests != nil {
		each(r.src.APIRequests(), func(request string, n uint64) {
			verb, resource, _ := strings.Cut(request, " ")
			counter("weft_apiserver_requests_total", n, verb, resource)
		})
	}
	if r.src.Published != nil {
		gauge("weft_conf_published", truth(r.src.Published()))
	}
	if r.src.Restored != nil {
		counter("weft_conf_restored_total", r.src.Restored())
	}
	if r.src.Ready != nil {
		gauge("weft_ready", truth(r.src.Ready()))
	}
}

func each[V any](values map[string]V, f func(string, V)) {
	for _, k := range slices.Sorted(maps.Keys(values)) {
		f(k, values[k])
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
