// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package order is what the machine's first process is told, and what it answers: a file in its
// root, and lines among the output of its commands.
//
// It knows neither QEMU nor what the commands are.
//
// Implements: architecture 5 (SR-IOV).
package order

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// Path is the order's file in the machine.
const Path = "/order.json"

// Port is the name of the serial port that a machine is served through.
const Port = "weft.owner"

// Order is what is to be done.
type Order struct {
	Modules  []string   `json:"modules"` // files, in the order in which they are loaded
	VFs      int        `json:"vfs"`     // of each card
	Share    bool       `json:"share"`   // mount the caller's directory at /share
	Disk     bool       `json:"disk"`    // mount the caller's disk at /disk
	Serve    bool       `json:"serve"`   // the disk is the root; do what comes through the port named Port
	Env      []string   `json:"env"`
	Commands [][]string `json:"commands"`
}

// Read reads an order.
func Read(path string) (Order, error) {
	var o Order
	data, err := os.ReadFile(path)
	if err != nil {
		return o, err
	}
	return o, json.Unmarshal(data, &o)
}

// The mark is a character that hardly any program writes: a test may well log such a line of another
// machine's.
const mark, format = "\x1e", "vm: command %d ended with status %d"

// StatusLine says with which status a command ended.
func StatusLine(command, status int) string { return mark + fmt.Sprintf(format, command, status) }

// CutStatus finds a StatusLine at the end of a line of output, and gives what is before it.
func CutStatus(line string) (before string, status int, ok bool) {
	before, text, found := strings.Cut(line, mark)
	var command int
	n, err := fmt.Sscanf(text, format, &command, &status)
	if !found || err != nil || n != 2 {
		return line, 0, false
	}
	return before, status, true
}
