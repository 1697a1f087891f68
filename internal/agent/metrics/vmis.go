// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import "github.com/prometheus/client_golang/prometheus"

// VMIs is the set of the virtual machines. Its methods may be called by several goroutines.
type VMIs struct{ writes *prometheus.CounterVec }

// VMIs adds the metrics of virtual machines: an agent that does not report them has none. Count
// gives how many of them have another status than they should, and how many there are.
func (m *Metrics) VMIs(count func() (differ, all int)) *VMIs {
	gauge := func(name, help string, value func() int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value()) })
	}
	v := &VMIs{prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "weft_vmi_status_writes_total", Help: "Attempts to write the interfaces of a virtual machine's status.",
	}, []string{"outcome"})}
	m.registry.MustRegister(v.writes,
		gauge("weft_vmi_differs", "Virtual machines whose status.interfaces is not what it should be.", func() int { differ, _ := count(); return differ }),
		gauge("weft_vmi_machines", "Virtual machines of this node that are watched.", func() int { _, all := count(); return all }))
	return v
}

// Written notes an attempt to write.
func (v *VMIs) Written(err error) { v.writes.WithLabelValues(outcome(err)).Inc() }
