// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// DriverSources are the numbers that the parts of the network driver keep.
type DriverSources struct {
	// Devices are the node's devices, counted.
	Devices func() []Devices
}

// Devices is a number of devices that have these in common.
type Devices struct {
	Manager string
	Pool    string // of prepared ones; "" for others
	State   string // free or prepared
	Count   int
}

// Driver is the set of the network driver. Its methods may be called by several goroutines.
type Driver struct {
	calls         *prometheus.HistogramVec
	publish       *prometheus.HistogramVec
	offered       *prometheus.GaugeVec
	scans         *prometheus.HistogramVec
	registered    prometheus.Gauge
	attempts      prometheus.Counter
	runtime       prometheus.Gauge
	withoutDevice prometheus.Counter
}

// Driver adds the metrics of the network driver: an agent without it has none of them.
func (m *Metrics) Driver(src DriverSources) *Driver {
	quick := []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 1.5, 2.5, 5, 10, 30, 45}
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: quick}, labels)
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	d := &Driver{
		calls:   histogram("weft_driver_call_duration_seconds", "How long the network driver took for a claim or a sandbox.", "call", "outcome"),
		publish: histogram("weft_driver_publish_duration_seconds", "How long it took to make slices of the tables, and to hand them on when they had changed.", "outcome"),
		offered: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "weft_driver_offered_devices", Help: "Devices in the node's ResourceSlices."}, []string{"pool"}),
		scans:   histogram("weft_driver_scan_duration_seconds", "How long a look at all devices of a manager took.", "manager"),
		registered: gauge("weft_driver_registered",
			"1 when the kubelet knows the driver."),
		attempts: counter("weft_driver_registration_failures_total",
			"Attempts to register with the kubelet that failed."),
		runtime: gauge("weft_driver_runtime_connected",
			"1 when the runtime's NRI is connected."),
		withoutDevice: counter("weft_driver_pods_without_device_total",
			"How often a pod was found running without a device that it claimed."),
	}
	m.registry.MustRegister(d.calls, d.publish, d.offered, d.scans, d.registered, d.attempts, d.runtime, d.withoutDevice, deviceReader{
		src, prometheus.NewDesc("weft_driver_devices", "Devices of this node.", []string{"manager", "pool", "state"}, nil),
	})
	return d
}

// Call notes a call of the kubelet or the runtime: prepare, unprepare, status, attach, detach, return.
func (d *Driver) Call(call string, took time.Duration, err error) {
	d.calls.WithLabelValues(call, outcome(err)).Observe(seconds(took))
}

func outcome(err error) string {
	if err != nil {
		return "failed"
	}
	return "done"
}

// Published notes a look of the publisher: what is offered of each pool, and whether slices had
// changed and were handed on.
func (d *Driver) Published(offered map[string]int, changed bool, took time.Duration, err error) {
	what := outcome(err)
	if !changed {
		what = "unchanged"
	}
	d.publish.WithLabelValues(what).Observe(seconds(took))
	if err != nil {
		return
	}
	d.offered.Reset()
	for pool, n := range offered {
		d.offered.WithLabelValues(pool).Set(float64(n))
	}
}

// Scanned notes a look at all devices of a manager.
func (d *Driver) Scanned(manager string, took time.Duration) {
	d.scans.WithLabelValues(manager).Observe(seconds(took))
}

// Registered notes whether the kubelet knows the driver, and if not, that an attempt failed.
func (d *Driver) Registered(known bool) {
	d.registered.Set(truth(known))
	if !known {
		d.attempts.Inc()
	}
}

// Runtime notes that the runtime's NRI came or went.
func (d *Driver) Runtime(connected bool) { d.runtime.Set(truth(connected)) }

// WithoutDevice notes a pod that runs without a device that it claimed.
func (d *Driver) WithoutDevice() { d.withoutDevice.Inc() }

// deviceReader counts devices when it is asked.
type deviceReader struct {
	src  DriverSources
	desc *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (r deviceReader) Describe(ch chan<- *prometheus.Desc) { ch <- r.desc }

// Collect implements prometheus.Collector.
func (r deviceReader) Collect(ch chan<- prometheus.Metric) {
	if r.src.Devices == nil {
		return
	}
	for _, d := range r.src.Devices() {
		ch <- prometheus.MustNewConstMetric(r.desc, prometheus.GaugeValue, float64(d.Count), d.Manager, d.Pool, d.State)
	}
}
