// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Command noop is the CNI plugin that does nothing, as fast as a Go program can: it
// reads its configuration and answers ADD with one interface and one address. What a
// benchmark measures around it is the cost of running plugins, not that of a plugin.
package main

import (
	"io"
	"os"
)

const result = `{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/run/netns/bench"}],` +
	`"ips":[{"interface":0,"address":"10.1.2.3/24","gateway":"10.1.2.1"}]}`

func main() {
	if _, err := io.ReadAll(os.Stdin); err != nil {
		os.Exit(1)
	}
	if os.Getenv("CNI_COMMAND") != "ADD" {
		return
	}
	if _, err := os.Stdout.WriteString(result); err != nil {
		os.Exit(1)
	}
}
