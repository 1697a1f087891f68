// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package apply is what the agent and "weft-cni apply" say to each other: the orders that
// the agent gives the hands in the background, on stdin, and what they answer, on stdout.
// (The verbs of the planner, which the hands call, are internal/cni/wire.)
//
// It owns the JSON of both. An order names a record by its key and by the time of its
// begin, so that a later sandbox of the same key is nobody's business.
//
// Invariants: an order is never obeyed on the word of who gave it. The hands look at the
// record under its lock, and at the sandbox, themselves.
//
// It compares records with plans (Difference) and must not know files, processes or the kernel.
//
// Implements: architecture 4.4 (hot-plug and orphans use the same hands); spec/cni.md rule 12.
package apply

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/weftnet/weft/internal/host/journal"
)

// Version is the version of orders and answers. Both programs come from one image, and are
// of two versions for the moment of an upgrade only: then an order is refused.
const Version = 1

// MaxOrder bounds an order, in bytes.
const MaxOrder = 32 << 20

// Task is what is ordered. The zero value is invalid.
type Task string

// The tasks.
const (
	// Undo undoes a record whose sandbox is gone, if it is.
	Undo Task = "undo"
	// Plug attaches to a running pod what its annotation asks for and it has not, and detaches
	// what it has and the annotation does not ask for any more.
	Plug Task = "plug"
)

// Order is one order.
type Order struct {
	Version int    `json:"version"`
	Task    Task   `json:"task"`
	Conf    []byte `json:"conf"` // Weft's conf as the runtime would give it
	// Key and Begun name the record: its key, and the time of its intent.
	Key   journal.Key `json:"key"`
	Begun time.Time   `json:"begun"`
	// ResultsDir is where the runtime's CNI library keeps its cached results; "" = nowhere.
	ResultsDir string `json:"resultsDir,omitempty"`
}

// Outcome is what became of an order. The zero value is invalid.
type Outcome string

// The outcomes. An order that could not be carried out is a CNI error instead.
const (
	Done Outcome = "done" // it was carried out
	Gone Outcome = "gone" // there is no such record any more
	Busy Outcome = "busy" // another call is at work on the record
	Kept Outcome = "kept" // nothing was done, and Reason says why that is right
	// Unsure: what would be needed to decide cannot be seen from here. Nothing was done.
	Unsure Outcome = "unsure"
)

// Answer is the answer to an order.
type Answer struct {
	Version int     `json:"version"`
	Outcome Outcome `json:"outcome"`
	Reason  string  `json:"reason,omitempty"`
	// Of Plug: what was attached and detached, what could not be and why, and what is asked
	// for otherwise than it is there, which is left as it is. A line each.
	Attached []string `json:"attached,omitempty"`
	Detached []string `json:"detached,omitempty"`
	Failed   []string `json:"failed,omitempty"`
	Changed  []string `json:"changed,omitempty"`
}

// Parse reads an order.
func Parse(b []byte) (Order, error) {
	var o Order
	if err := json.Unmarshal(b, &o); err != nil {
		return o, fmt.Errorf("order: %w", err)
	}
	switch {
	case o.Version != Version:
		return o, fmt.Errorf("order has version %d, this weft-cni knows %d", o.Version, Version)
	case o.Task != Undo && o.Task != Plug:
		return o, fmt.Errorf("order has task %.40q, which this weft-cni does not know", o.Task)
	case o.Begun.IsZero():
		return o, fmt.Errorf("order names no begin")
	}
	if err := o.Key.Validate(); err != nil {
		return o, fmt.Errorf("order names a bad key: %w", err)
	}
	return o, nil
}
