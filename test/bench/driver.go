// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"
)

// driverPromise is a figure that the issues "The DRA network driver" and "The operator" promise, of
// one of the packages' own benchmarks.
type driverPromise struct {
	what, room, name string
	unit             string        // of the figure; "" is the time
	most             float64       // of the figure
	within           time.Duration // of the time
}

const movesUnit, prepareWritesUnit, publishWritesUnit = "x/moves", "writes/claim", "writes/op"

func driverPromises() []driverPromise {
	const (
		handover = "handing over 8 links of a pod"
		hanging  = "the same while 50 Prepares hang on a dead API server"
		maxMoves = 1.25
	)
	return []driverPromise{
		{what: "scanning 1,024 virtual functions in a sysfs tree", room: "internal/dra/sriov", name: "Scan1024", within: 50 * time.Millisecond},
		{what: "publishing 1,024 devices of which nothing changed", room: "internal/dra/publish", name: "Unchanged", within: 10 * time.Millisecond},
		{what: "the same: API writes", room: "internal/dra/publish", name: "Unchanged", unit: publishWritesUnit},
		{what: "status writes for a claim of 8 devices", room: "internal/dra/claim", name: "PrepareEightDevices", unit: prepareWritesUnit, most: 1},
		{what: handover + ", against the kernel's own moves, at the median", room: "internal/dra/handover", name: "Attach", unit: movesUnit, most: maxMoves},
		{what: handover + ", in all", room: "internal/dra/handover", name: "Attach", within: time.Second},
		{what: hanging + ", against the moves", room: "internal/dra/handover", name: "AttachWhilePreparesHang", unit: movesUnit, most: maxMoves},
		{what: hanging + ", in all", room: "internal/dra/handover", name: "AttachWhilePreparesHang", within: time.Second},
		{what: "node configurations of 5,000 nodes and 50 cluster configurations", room: "internal/operator/assign", name: "Fleet", within: 100 * time.Millisecond},
		{what: "the same where every configuration selects every node", room: "internal/operator/assign", name: "AllConflicting", within: 100 * time.Millisecond},
		{what: "the same after a change of one node", room: "internal/operator/assign", name: "OneNode", within: time.Millisecond},
	}
}

// driverTargets are the promises and what was found.
func (r *report) driverTargets() (out []target) {
	for _, p := range driverPromises() {
		t := target{what: p.what, limit: p.limit(), found: "not measured"}
		for _, m := range r.micro {
			if m.room == p.room && m.name == p.name {
				p.judge(&t, m)
			}
		}
		out = append(out, t)
	}
	return out
}

func (p driverPromise) limit() string {
	switch {
	case p.unit == "":
		return "≤ " + millis(p.within)
	case p.most == 0:
		return "0"
	}
	return fmt.Sprintf("≤ %v", p.most)
}

func (p driverPromise) judge(t *target, m micro) {
	if p.unit == "" {
		t.found, t.reached = millis(time.Duration(m.nanos)), m.nanos <= float64(p.within)
		return
	}
	if v, ok := m.own[p.unit]; ok {
		t.found, t.reached = fmt.Sprintf("%.4g", v), v <= p.most
	}
}
