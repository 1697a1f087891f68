// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package metrics owns the operator's numbers for monitoring: their names, units and labels, in a
// registry of its own. docs/metrics.md describes them for people.
//
// Invariants: names and labels are stable; the only label whose values people choose is the name of
// a cluster configuration; numbers that another part keeps are read when somebody asks for them.
//
// It must not know the parts that it reads from, beyond what they tell of configurations.
//
// Implements: architecture 4.5; spec/dra.md 1.9.
package metrics

import (
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weftnet/weft/internal/operator/assign"
)

// Summarizer tells what became of all cluster configurations, and how much waits to be looked at.
type Summarizer interface {
	Summaries() (all []assign.Summary, pending int)
}

// Metrics is the set of one operator. Its methods may be called by several goroutines.
type Metrics struct {
	registry   *prometheus.Registry
	reconciles *prometheus.HistogramVec
	writes     *prometheus.CounterVec
	reviews    *prometheus.CounterVec
	leader     prometheus.Gauge
	expiry     prometheus.Gauge

	nodes, configs, pending *prometheus.Desc

	mu   sync.Mutex
	from Summarizer
}

// New makes the metrics of an operator of a version.
func New(version string) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		reconciles: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "weft_operator_reconcile_duration_seconds", Help: "From the moment that a change was seen until it was dealt with.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120},
		}, []string{"kind", "outcome"}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weft_operator_writes_total", Help: "Requests that change configurations or their status.",
		}, []string{"verb", "outcome"}),
		reviews: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weft_operator_reviews_total", Help: "Objects that the admission webhook was asked about.",
		}, []string{"kind", "outcome"}),
		leader:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "weft_operator_leader", Help: "1 when this replica leads."}),
		expiry:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "weft_operator_certificate_expiry_seconds", Help: "Unix time until which the certificate in use is valid."}),
		nodes:   prometheus.NewDesc("weft_operator_nodes", "Nodes that a cluster configuration governs.", []string{"config"}, nil),
		configs: prometheus.NewDesc("weft_operator_configs", "Cluster configurations by what became of them.", []string{"state"}, nil),
		pending: prometheus.NewDesc("weft_operator_pending", "Nodes and cluster configurations that wait to be looked at.", nil, nil),
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "weft_operator_build_info", Help: "Always 1.", ConstLabels: prometheus.Labels{"version": version},
	})
	info.Set(1)
	m.registry.MustRegister(m.reconciles, m.writes, m.reviews, m.leader, m.expiry, info, m,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Handler answers scrapes.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
}

// Follow has the configurations told by s from now on; nil: nobody knows them.
func (m *Metrics) Follow(s Summarizer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.from = s
}

// Describe is that of a collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	out <- m.nodes
	out <- m.configs
	out <- m.pending
}

// Collect is that of a collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	m.mu.Lock()
	from := m.from
	m.mu.Unlock()
	if from == nil {
		return
	}
	all, pending := from.Summaries()
	states := map[string]int{assign.Governed.String(): 0, assign.Conflicting.String(): 0, assign.Wrong.String(): 0}
	for _, s := range all {
		states[s.State.String()]++
		out <- prometheus.MustNewConstMetric(m.nodes, prometheus.GaugeValue, float64(len(s.Nodes)), s.Config)
	}
	for state, n := range states {
		out <- prometheus.MustNewConstMetric(m.configs, prometheus.GaugeValue, float64(n), state)
	}
	out <- prometheus.MustNewConstMetric(m.pending, prometheus.GaugeValue, float64(pending))
}

func outcome(err error) string {
	if err != nil {
		return "failed"
	}
	return "done"
}

// Reconciled notes that a node or config was dealt with.
func (m *Metrics) Reconciled(kind string, took time.Duration, err error) {
	m.reconciles.WithLabelValues(kind, outcome(err)).Observe(took.Seconds())
}

// Wrote notes a request: create, apply, update, delete, status.
func (m *Metrics) Wrote(verb string, err error) { m.writes.WithLabelValues(verb, outcome(err)).Inc() }

// Reviewed notes what the webhook said about an object of a kind: allowed, denied, failed.
func (m *Metrics) Reviewed(kind, said string) { m.reviews.WithLabelValues(kind, said).Inc() }

// Leads notes that this replica leads.
func (m *Metrics) Leads() { m.leader.Set(1) }

// Certified notes until when the certificate in use is valid.
func (m *Metrics) Certified(until time.Time) { m.expiry.Set(float64(until.Unix())) }
